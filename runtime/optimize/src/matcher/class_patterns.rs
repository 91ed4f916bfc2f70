//! Which patterns of a [`PatternIndex`] may match at each class of an e-graph.
//!
//! In: a rebuilt e-graph, and its log of dirty classes. Out: for each class, a set of patterns, so
//! that a rule is searched only where its left side may match. Invariant: sets only grow, as the
//! nodes of classes do. A [`ClassPatterns::refresh`] visits the classes that became dirty since the
//! last one, and above them as far as sets change. Until it is refreshed after a change, it answers
//! nothing.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use egg::Id;
use rustc_hash::FxHashMap;

use super::bindings::literal_matches;
use super::pattern_index::{NodeShape, PatternId, PatternIndex, Shape};
use super::pattern_set::{Collector, PatternSet};
use crate::analysis::{EGraph, class_type};
use crate::language::{Discriminant, Node};

/// The patterns that may match at each class.
#[derive(Debug, Default)]
pub struct ClassPatterns {
    index: Arc<PatternIndex>,
    /// By class.
    sets: Vec<PatternSet>,
    /// For a class that is a sum, the patterns that may match some term of it, at any depth.
    terms: FxHashMap<(Id, Discriminant), PatternSet>,
    /// The patterns that may match at some class, in the order in which that was found.
    found: Vec<PatternId>,
    /// The same as a set.
    is_found: Collector,
    /// How much of the log of dirty classes was processed.
    seen: usize,
    /// Number of ids of classes at that time.
    known: usize,
}

/// Classes to visit, each once at a time.
struct Work {
    waits: Vec<bool>,
    list: VecDeque<Id>,
}

impl Work {
    fn add(&mut self, class: Id) {
        if !std::mem::replace(&mut self.waits[usize::from(class)], true) {
            self.list.push_back(class);
        }
    }

    fn next(&mut self) -> Option<Id> {
        let class = self.list.pop_front()?;
        self.waits[usize::from(class)] = false;
        Some(class)
    }
}

/// Of no index.
static NONE: LazyLock<ClassPatterns> = LazyLock::new(ClassPatterns::default);

impl ClassPatterns {
    /// Patterns of no index: anything may match.
    pub fn none() -> &'static ClassPatterns {
        &NONE
    }

    /// The patterns of an index; nothing is known about any class.
    pub fn of_index(index: Arc<PatternIndex>) -> ClassPatterns {
        let is_found = Collector::of_size(index.len());
        ClassPatterns { index, is_found, ..ClassPatterns::default() }
    }

    /// False if that pattern certainly does not match at a canonical class of an e-graph whose log
    /// has that length.
    pub fn may_match(&self, class: Id, pattern: PatternId, dirty: usize) -> bool {
        self.seen != dirty || self.set(class).is_none_or(|s| s.has(pattern))
    }

    /// Those of some patterns that may match at a class.
    pub(super) fn among<'a>(&'a self, class: Id, wanted: &'a PatternSet) -> impl Iterator<Item = PatternId> + use<'a> {
        self.set(class).into_iter().flat_map(|set| set.both(wanted))
    }

    /// The patterns that may match at some class. The list only grows.
    pub fn found(&self) -> &[PatternId] {
        &self.found
    }

    /// Whether the sets are those of an e-graph whose log has that length.
    pub(super) fn is_fresh(&self, dirty: usize) -> bool {
        self.seen == dirty && !self.index.is_empty()
    }

    fn set(&self, class: Id) -> Option<&PatternSet> {
        self.sets.get(usize::from(class))
    }

    /// Processes the classes that became dirty since the last time. The e-graph must be rebuilt.
    pub fn refresh(&mut self, egraph: &EGraph) {
        let dirty = egraph.analysis.dirty.get(self.seen..).unwrap_or_default();
        if dirty.is_empty() {
            return;
        }
        let (known, all) = (self.known, egraph.nodes().len());
        self.sets.resize_with(all, PatternSet::default);
        let mut work = Work { waits: vec![false; all], list: VecDeque::new() };
        // The users of a class that was merged knew less of it than the class that it became.
        let mut merged = vec![false; all];
        for (id, _) in dirty {
            let class = egraph.find(*id);
            merged[usize::from(class)] |= class != *id || usize::from(class) < known;
            work.add(class);
        }
        let mut scratch = [Collector::of_size(self.index.len()), Collector::of_size(self.index.len())];
        while let Some(class) = work.next() {
            let grew = self.recompute(egraph, class, &mut scratch);
            if std::mem::take(&mut merged[usize::from(class)]) || grew {
                egraph[class].parents().for_each(|p| work.add(egraph.find(p)));
            }
        }
        self.known = all;
        self.seen = egraph.analysis.dirty.len();
    }

    /// Finds the set of a class anew. Returns whether it, or what its terms match, grew.
    fn recompute(&mut self, egraph: &EGraph, class: Id, [set, below]: &mut [Collector; 2]) -> bool {
        let index = self.index.clone();
        set.clear();
        set.join(&self.sets[usize::from(class)]);
        let mut grew = false;
        // Most classes are neither a number nor constant.
        let data = &egraph[class].data;
        let of_value = if data.constant || data.value().is_some() { index.of_value() } else { &[] };
        for pattern in of_value.iter().filter(|p| value_matches(egraph, class, index.shape(**p))) {
            self.include(set, *pattern);
        }
        // Nodes of a class are sorted, so equal heads are adjacent.
        for nodes in egraph[class].nodes.chunk_by(|a, b| a.payload.discriminant() == b.payload.discriminant()) {
            let head = nodes[0].payload.discriminant();
            let Some(of_head) = index.of_head(head) else { continue };
            below.clear();
            // Where no operand matters, what it matches does not either.
            if of_head.is_sum || !of_head.keys.is_empty() {
                grew |= self.collect(egraph, (class, head), nodes, of_head.is_sum, below);
            }
            let holds = |pattern: PatternId| match index.shape(pattern) {
                Shape::Node(shape) => nodes.iter().any(|n| self.node_matches(egraph, shape, n)),
                Shape::Sum(_, terms) => terms.iter().all(|t| below.has(*t)),
                _ => false,
            };
            let keyed = below.among(&of_head.keys).flat_map(|key| of_head.with_key(key));
            for pattern in of_head.without_key.iter().chain(keyed) {
                if !set.has(*pattern) && holds(*pattern) {
                    self.include(set, *pattern);
                }
            }
        }
        let known = &mut self.sets[usize::from(class)];
        if set.extend(known) {
            self.is_found.absorb(known, &mut self.found);
            grew = true;
        }
        grew
    }

    /// Adds a pattern to a set, and the alternatives of which it is one.
    fn include(&self, set: &mut Collector, pattern: PatternId) {
        set.insert(pattern);
        for alternative in self.index.alternatives(pattern) {
            if !set.has(*alternative) {
                self.include(set, *alternative);
            }
        }
    }

    /// Collects in `below`, which is empty, what the operands of these nodes match; of a sum, what
    /// its terms match, at any depth. Returns whether a sum's terms match something new.
    fn collect(
        &mut self,
        egraph: &EGraph,
        (class, head): (Id, Discriminant),
        nodes: &[Node],
        is_sum: bool,
        below: &mut Collector,
    ) -> bool {
        for child in nodes.iter().flat_map(|n| &n.children).map(|c| egraph.find(*c)) {
            self.set(child).into_iter().for_each(|of| below.join(of));
            let terms = if is_sum { self.terms.get(&(child, head)) } else { None };
            terms.into_iter().for_each(|of| below.join(of));
        }
        if !is_sum {
            return false;
        }
        let known = self.terms.entry((class, head)).or_default();
        below.join(known);
        below.extend(known)
    }

    fn node_matches(&self, egraph: &EGraph, shape: &NodeShape, node: &Node) -> bool {
        let n = node.children.len();
        if n < shape.operands || (n > shape.operands && !shape.more) {
            return false;
        }
        let holds = |i: usize, p: PatternId| self.set(egraph.find(node.children[i])).is_some_and(|s| s.has(p));
        shape.restricted.iter().all(|(i, p)| holds(*i as usize, *p))
            || (shape.commutes && shape.restricted.iter().all(|(i, p)| holds(1 - *i as usize, *p)))
    }
}

fn value_matches(egraph: &EGraph, class: Id, shape: &Shape) -> bool {
    let data = &egraph[class].data;
    match shape {
        Shape::Constant => data.constant,
        Shape::Literal(value, near) => data.value().is_some_and(|v| {
            let dtype = class_type(egraph, class).map(|t| t.dtype);
            literal_matches(v, dtype, f64::from_bits(*value), near.map(f64::from_bits))
        }),
        Shape::Node(_) | Shape::Sum(..) | Shape::OneOf(_) => false,
    }
}
