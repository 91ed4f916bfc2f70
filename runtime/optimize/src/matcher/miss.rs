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
    /// How much what is there resembles the rest of the pattern: see [`Matcher::likeness`].
    pub likeness: i32,
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

/// What a head of the pattern that is found counts, and one that is skipped, there or in the graph.
const FOUND: i32 = 4;
const SKIPPED: i32 = 1;
/// How deep the graph is compared with the pattern.
const DEPTH: usize = 7;

/// Likenesses of patterns and classes, to that depth.
type Known = FxHashMap<(*const NodePat, Id, usize), i32>;

impl<H: Host> Matcher<'_, '_, '_, H> {
    /// Records a miss, if there is a probe and it is deeper than those before, or as deep and more
    /// like the pattern.
    pub(super) fn miss(&mut self, class: Id, reason: impl FnOnce() -> MissReason) -> Flow {
        let (progress, root) = (self.progress, self.roots.first().copied().unwrap_or(class));
        let best = self.probe.as_ref().map(|p| p.best.as_ref().map(|b| (b.progress, b.likeness)));
        let Some(best) = best.filter(|b| b.is_none_or(|(deepest, _)| deepest <= progress)) else { return ON };
        let reason = reason();
        let likeness = match &reason {
            MissReason::Head(wanted) => self.likeness(wanted, class, DEPTH, &mut Known::default()),
            _ => 0,
        };
        if best.is_none_or(|b| b < (progress, likeness))
            && let Some(probe) = &mut self.probe
        {
            probe.best = Some(Miss { progress, likeness, root, class, reason });
        }
        ON
    }

    /// How much a class resembles a pattern whose head it may lack: heads that are found below it
    /// in the pattern's order, less those that are skipped.
    fn likeness(&self, wanted: &NodePat, class: Id, left: usize, known: &mut Known) -> i32 {
        let (host, class) = (self.host, self.host.find(class));
        let key = (std::ptr::from_ref(wanted), class, left);
        if left == 0 {
            return 0;
        }
        if let Some(known) = known.get(&key) {
            return *known;
        }
        let mut best = 0;
        for arg in &wanted.args {
            best = best.max(self.likeness_of(arg, class, left - 1, known) - SKIPPED);
        }
        for node in host.nodes(class).iter().filter(|n| !is_circular(n, class)) {
            if !self.head_matches(wanted.head, node.payload, Position::Tensor) {
                for child in &node.children {
                    best = best.max(self.likeness(wanted, *child, left - 1, known) - SKIPPED);
                }
                continue;
            }
            let mut below = |children: &mut dyn Iterator<Item = Id>| -> i32 {
                wanted.args.iter().zip(children).map(|(arg, c)| self.likeness_of(arg, c, left - 1, known)).sum()
            };
            let written = below(&mut node.children.iter().copied());
            best = best.max(FOUND + written.max(below(&mut node.children.iter().rev().copied())));
        }
        known.insert(key, best);
        best
    }

    fn likeness_of(&self, pat: &Pat, class: Id, left: usize, known: &mut Known) -> i32 {
        match pat {
            Pat::Node(wanted) => self.likeness(wanted, class, left, known),
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.likeness_of(p, class, left, known),
            Pat::OneOf(ps) => ps.iter().map(|p| self.likeness_of(p, class, left, known)).max().unwrap_or(0),
            Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => 0,
        }
    }
}
