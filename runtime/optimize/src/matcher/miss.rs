//! Near misses: how far a pattern matched before it failed, which `explain --why-not` prints.
//!
//! In: a search with a [`Probe`]. Out: the deepest miss. Invariant: a search with a probe finds the
//! same matches as one without; it only skips the early filters, so that the reason is seen.

use super::*;

/// The point at which a match failed, and how far it got.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Number of pattern positions that matched before.
    pub progress: usize,
    /// The root at which it was tried.
    pub root: Id,
    /// The class where it failed.
    pub class: Id,
    /// What the pattern expected there.
    pub reason: MissReason,
}

/// What a pattern expected.
#[derive(Clone, Debug)]
pub enum MissReason {
    /// An application that the class does not hold.
    Head(NodePat),
    /// A constant with that value.
    Literal(f64),
    /// Another type.
    Type,
    /// A constant that enlarges nothing: one that the rule knows as a number.
    Number,
    /// The class that the variable is already bound to.
    Same(VarId, Id),
    /// Another attribute value: its position, and the value of the node.
    Attr(Head, usize, AttrValue),
    /// Another number of operands.
    Arity(Head, usize),
    /// A present operand, or an absent one.
    Presence(bool),
    /// No further root was found.
    Root(usize),
    /// A term that a sum or product of these classes does not have.
    Term(Pat, Head, Vec<Id>),
    /// Pointwise work on that pattern. The class is pointwise work on these classes, or, if there
    /// are none, no pointwise work.
    Region(VarId, Pat, Vec<Id>),
}

/// Collects the deepest miss of a search, under one root class or under all.
#[derive(Debug, Default)]
pub struct Probe {
    /// Restricts the probe to this root.
    pub only: Option<Id>,
    /// The deepest miss.
    pub best: Option<Miss>,
}

impl<H: Host> Matcher<'_, '_, '_, H> {
    /// Records a miss, if there is a probe and it is deeper than those before.
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
