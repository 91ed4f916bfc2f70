//! The candidate: the cheapest graph extracted from the e-graph so far.
//!
//! In: the chosen node of each class that the graph needs. Out: properties that searches query,
//! such as use counts. Invariant: classes are canonical after [`Candidate::refresh`]. Every class
//! whose computation or uses change in the candidate is logged, so that a search can visit only the
//! changes.

use egg::Id;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::analysis::EGraph;
use super::dominate;
use super::language::Node;

/// The extracted graph as searches see it.
#[derive(Debug, Default)]
pub struct Candidate {
    /// Number of distinct consumers of each class; of one that is no longer needed, those it had
    /// when it last was.
    uses: FxHashMap<Id, u32>,
    /// The scalar functions of tensors, by class.
    pointwise: FxHashMap<Id, Node>,
    /// The classes that may be inside a pointwise region.
    inner: FxHashSet<Id>,
    /// Every class whose computation or uses changed, in order.
    reconsidered: Vec<Id>,
    /// Those whose computation changed, or that got or lost their only use.
    regrouped: Vec<Id>,
}

/// The candidate before any extraction.
static NONE: Candidate = Candidate {
    uses: FxHashMap::with_hasher(FxBuildHasher),
    pointwise: FxHashMap::with_hasher(FxBuildHasher),
    inner: FxHashSet::with_hasher(FxBuildHasher),
    reconsidered: Vec::new(),
    regrouped: Vec::new(),
};

impl Candidate {
    /// No candidate.
    pub fn none() -> &'static Candidate {
        &NONE
    }

    /// True if nothing was extracted: then no class has a use count, and any node may be the one
    /// that computes its class.
    pub fn is_none(&self) -> bool {
        self.uses.is_empty()
    }

    /// Number of distinct consumers of a canonical class, if the candidate needs it or one before
    /// it did: what a rule replaced stays known, since what other rules make of it may be cheaper.
    pub fn uses(&self, class: Id) -> Option<u32> {
        self.uses.get(&class).copied()
    }

    /// The scalar function that computes a canonical class.
    pub fn pointwise(&self, class: Id) -> Option<&Node> {
        self.pointwise.get(&class)
    }

    /// Whether a canonical class may be inside a pointwise region.
    pub fn is_inner(&self, class: Id) -> bool {
        self.inner.contains(&class)
    }

    /// The log of classes whose computation or uses changed.
    pub fn reconsidered(&self) -> &[Id] {
        &self.reconsidered
    }

    /// The log of classes that became, or are no longer, something that a sum with a rest is
    /// matched through: their computation changed, or they got or lost their only use.
    pub fn regrouped(&self) -> &[Id] {
        &self.regrouped
    }

    /// Makes all class ids canonical after merges.
    pub fn refresh(&mut self, egraph: &EGraph) {
        let moved = |id: &Id| egraph.find(*id) != *id;
        if self.uses.keys().any(moved) {
            let mut uses = FxHashMap::default();
            for (id, n) in std::mem::take(&mut self.uses) {
                let known = uses.entry(egraph.find(id)).or_insert(n);
                *known = n.max(*known);
            }
            self.uses = uses;
        }
        if self.pointwise.keys().any(moved) {
            let nodes = std::mem::take(&mut self.pointwise);
            self.pointwise = nodes.into_iter().map(|(id, n)| (egraph.find(id), n)).collect();
        }
        let inner = std::mem::take(&mut self.inner);
        self.inner = inner.into_iter().map(|id| egraph.find(id)).collect();
    }

    /// Replaces the candidate with a new one: its use counts and its scalar functions. `order`
    /// holds the needed classes, children first.
    pub fn replace(&mut self, order: &[Id], uses: FxHashMap<Id, u32>, pointwise: FxHashMap<Id, Node>) {
        let (old_uses, old_pointwise) = (&self.uses, &self.pointwise);
        let computed = pointwise.iter().filter(|(id, n)| old_pointwise.get(id) != Some(n)).map(|(id, _)| *id);
        let dropped = old_pointwise.keys().filter(|id| !pointwise.contains_key(id)).copied();
        let recomputed: Vec<Id> = computed.chain(dropped).collect();
        let used = uses.iter().map(|(id, n)| (*id, old_uses.get(id), Some(n)));
        let recounted: Vec<_> = used.filter(|(_, old, new)| old != new).collect();
        let only = |(id, old, new): &(Id, Option<&u32>, Option<&u32>)| {
            ((*old == Some(&1)) != (*new == Some(&1))).then_some(*id)
        };
        self.regrouped.extend(sorted(recomputed.iter().copied().chain(recounted.iter().filter_map(only))));
        self.reconsidered.extend(sorted(recomputed.iter().copied().chain(recounted.iter().map(|(id, ..)| *id))));
        self.inner = dominate::inner(order, &uses, &pointwise);
        self.uses.extend(uses);
        self.pointwise = pointwise;
    }
}

/// Each class once, in order.
fn sorted(classes: impl Iterator<Item = Id>) -> Vec<Id> {
    let mut classes: Vec<Id> = classes.collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}
