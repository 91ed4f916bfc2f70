//! How far a pattern came where it did not match: what `explain --why-not` tells.
//!
//! In: a search with a [`Probe`]. Out: the deepest miss. Holds always: the search with a probe is
//! the search without one, but that nothing is ruled out at a glance, so that the reason is seen.

use super::*;

/// The point at which a match failed, and how far it had come.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Positions of the pattern that held before.
    pub progress: usize,
    /// The root under which it was tried.
    pub root: Id,
    /// The class at hand.
    pub class: Id,
    /// What the pattern wanted there.
    pub reason: MissReason,
}

/// What a pattern wanted.
#[derive(Clone, Debug)]
pub enum MissReason {
    /// An application that the class does not hold.
    Head(NodePat),
    /// A constant of that value.
    Literal(f64),
    /// Another type.
    Type,
    /// The same class as the variable stands for already.
    Same(VarId, Id),
    /// An attribute of another value: its position, and what the node has.
    Attr(Head, usize, AttrValue),
    /// Another number of operands.
    Arity(Head, usize),
    /// An operand that is there, or one that is not.
    Presence(bool),
    /// No further root was found.
    Root(usize),
    /// A term that a sum or product of these classes does not have.
    Term(Pat, Head, Vec<Id>),
    /// Pointwise work over that, where what is there is pointwise work over these classes, or none
    /// at all.
    Region(VarId, Pat, Vec<Id>),
}

/// Collects the deepest miss of a search, under one root class or under all.
#[derive(Debug, Default)]
pub struct Probe {
    /// Only this root.
    pub only: Option<Id>,
    /// The deepest miss.
    pub best: Option<Miss>,
}

impl<H: Host> Matcher<'_, '_, '_, H> {
    /// Notes a miss, if somebody asks and it is deeper than those before.
    pub(super) fn miss(&mut self, class: Id, reason: impl FnOnce() -> MissReason) -> Flow {
        let (progress, root) = (self.progress, self.roots.first().copied().unwrap_or(class));
        if let Some(probe) = &mut self.probe
            && probe.best.as_ref().is_none_or(|b| b.progress < progress)
        {
            probe.best = Some(Miss { progress, root, class, reason: reason() });
        }
        ON
    }
}
