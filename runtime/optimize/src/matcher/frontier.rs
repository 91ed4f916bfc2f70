//! Incremental (semi-naive) search: where a rule is searched, which is all classes with its head,
//! or only those near a change since the last search (the dirty frontier).
//!
//! In: an e-graph, and how far its change logs were processed. Out: classes that may hold the first
//! root of a rule. Invariant: a class that is left out cannot hold a match that did not exist at
//! the last search.

use std::cell::RefCell;
use std::ops::{Deref, Index};
use std::rc::Rc;
use std::sync::Arc;

use super::class_patterns::ClassPatterns;
use super::pattern_index::PatternId;
use super::pattern_set::PatternSet;
use super::prepare::{DependsOn, associative};
use super::sums::SumOperands;
use super::*;
use crate::analysis::Data;
use crate::candidate::Candidate;
use crate::language::LabelSet;
use egg::EClass;

/// An e-graph as a search sees it, with the candidate and the patterns of its classes.
pub struct View<'e> {
    egraph: &'e EGraph,
    /// The classes by id, to avoid hashing.
    classes: Vec<Option<&'e EClass<Node, Data>>>,
    candidate: &'e Candidate,
    patterns: &'e ClassPatterns,
    /// The operands of sums that were asked for, by the class and the discriminant of the sum.
    sums: RefCell<FxHashMap<(Id, Discriminant), Rc<SumOperands>>>,
}

impl<'e> View<'e> {
    /// A view for searching many rules.
    pub fn of(egraph: &'e EGraph, candidate: &'e Candidate, patterns: &'e ClassPatterns) -> View<'e> {
        let mut classes = vec![None; egraph.nodes().len()];
        for class in egraph.classes() {
            classes[usize::from(class.id)] = Some(class);
        }
        View { egraph, classes, candidate, patterns, sums: RefCell::default() }
    }

    /// A view for occasional queries, without a candidate.
    pub fn plain(egraph: &'e EGraph) -> View<'e> {
        let (candidate, patterns) = (Candidate::none(), ClassPatterns::none());
        View { egraph, classes: Vec::new(), candidate, patterns, sums: RefCell::default() }
    }

    /// The operands of a class as a sum, which `find` finds the first time.
    pub(super) fn operands_of(
        &self,
        class: Id,
        sum: Discriminant,
        find: impl FnOnce() -> SumOperands,
    ) -> Rc<SumOperands> {
        if let Some(operands) = self.sums.borrow().get(&(class, sum)) {
            return operands.clone();
        }
        let operands = Rc::new(find());
        self.sums.borrow_mut().insert((class, sum), operands.clone());
        operands
    }

    /// The candidate.
    pub(super) fn candidate_of(&self) -> &'e Candidate {
        self.candidate
    }

    /// The nodes of a canonical class with that discriminant.
    pub(super) fn nodes_holding(&self, class: Id, wanted: Discriminant) -> impl Iterator<Item = &'e Node> + use<'e> {
        let class = self.class(class);
        let nodes: &'e [Node] = if class.data.labels.include(LabelSet::of(wanted)) { &class.nodes } else { &[] };
        nodes.iter().filter(move |n| n.payload.discriminant() == wanted)
    }

    /// False if that pattern certainly does not match at a canonical class.
    pub(super) fn may_be(&self, class: Id, pattern: PatternId) -> bool {
        self.patterns.may_match(class, pattern, self.egraph.analysis.dirty.len())
    }

    fn class(&self, id: Id) -> &'e EClass<Node, Data> {
        match self.classes.get(usize::from(id)) {
            Some(Some(class)) => class,
            _ => &self.egraph[id],
        }
    }
}

impl Deref for View<'_> {
    type Target = EGraph;

    fn deref(&self) -> &EGraph {
        self.egraph
    }
}

impl Index<Id> for View<'_> {
    type Output = EClass<Node, Data>;

    fn index(&self, id: Id) -> &EClass<Node, Data> {
        self.class(id)
    }
}

/// How much of the change logs a search has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    dirty: usize,
    reconsidered: usize,
    regrouped: usize,
}

impl LogPosition {
    /// The present end of the logs.
    pub fn end(egraph: &EGraph, candidate: &Candidate) -> LogPosition {
        LogPosition {
            dirty: egraph.analysis.dirty.len(),
            reconsidered: candidate.reconsidered().len(),
            regrouped: candidate.regrouped().len(),
        }
    }
}

/// The changes since a search, for a set of rules: a new search can find something new only near
/// them.
pub struct Frontiers {
    /// By [`DependsOn`]: the changes that concern such rules.
    changes: [Arc<Frontier>; 3],
    /// For each pattern that is the first root of a rule of the set, the classes near a change at
    /// which it may match, sorted, if there are any. `None` if the patterns of classes are not
    /// known.
    by_root: Option<FxHashMap<PatternId, Vec<Id>>>,
}

/// The distance of a class without a change nearby.
const FAR: u16 = u16::MAX;

/// The changes near each class.
#[derive(Default)]
struct Frontier {
    /// The distance of the nearest change below each class, and the labels that are new there or at
    /// other changes below; empty if nothing changed.
    level: Vec<(u16, LabelSet)>,
    /// Number of classes that are near a change.
    near: usize,
}

impl Frontiers {
    /// The classes near the entries of the change logs after a position, as far above them as some
    /// rule of the set matches.
    pub fn since<'r>(
        egraph: &View<'_>,
        from: LogPosition,
        rules: impl Iterator<Item = &'r Prepared> + Clone,
    ) -> Frontiers {
        let depth = rules.clone().map(|r| r.depth).max().unwrap_or(0);
        let dirty = egraph.analysis.dirty.get(from.dirty..).unwrap_or_default();
        let reconsidered = egraph.candidate.reconsidered().get(from.reconsidered..).unwrap_or_default();
        let regrouped = egraph.candidate.regrouped().get(from.regrouped..).unwrap_or_default();
        let sums = regrouped.iter().filter_map(|id| Some((*id, sums_of(egraph, *id)?))).collect();
        let anything = reconsidered.iter().map(|id| (*id, LabelSet::ALL)).collect();
        let held = Arc::new(Frontier::of(egraph, dirty, &[], depth));
        let with = |on: DependsOn, further: Vec<(Id, LabelSet)>| match further.is_empty()
            || !rules.clone().any(|r| r.depends_on == on)
        {
            true => held.clone(),
            false => Arc::new(Frontier::of(egraph, dirty, &further, depth)),
        };
        let changes = [held.clone(), with(DependsOn::Sums, sums), with(DependsOn::Candidate, anything)];
        let by_root = by_root(egraph, &changes, rules);
        Frontiers { changes, by_root }
    }

    /// Number of classes near a change, at most.
    pub fn near(&self) -> usize {
        self.changes.iter().map(|c| c.near).max().unwrap_or(0)
    }

    fn of_rule(&self, prepared: &Prepared) -> &Frontier {
        &self.changes[prepared.depends_on as usize]
    }
}

/// The labels of the operations of a class whose operands match in any association, if it has some.
fn sums_of(egraph: &View<'_>, class: Id) -> Option<LabelSet> {
    let program = &egraph.analysis.program;
    let nodes = &egraph[egraph.find(class)].nodes;
    let associates = |n: &&Node| match n.payload {
        Payload::Scalar(s) => associative(program, Head::Scalar(s)).is_some(),
        _ => false,
    };
    let labels: LabelSet = nodes.iter().filter(associates).map(|n| n.payload.discriminant()).collect();
    (labels != LabelSet::default()).then_some(labels)
}

/// For each pattern that is the first root of a rule of the set, the classes near changes at which
/// it may match.
fn by_root<'r>(
    egraph: &View<'_>,
    changes: &[Arc<Frontier>; 3],
    rules: impl Iterator<Item = &'r Prepared>,
) -> Option<FxHashMap<PatternId, Vec<Id>>> {
    if !egraph.patterns.is_fresh(egraph.analysis.dirty.len()) {
        return None;
    }
    let roots = PatternSet::of(rules.filter_map(|r| r.roots.first().copied().flatten()));
    let mut by_root: FxHashMap<PatternId, Vec<Id>> = FxHashMap::default();
    let is_near = |c: &Id| changes.iter().any(|f| f.is_near(*c));
    for class in (0..egraph.egraph.nodes().len()).map(Id::from).filter(is_near) {
        egraph.patterns.among(class, &roots).for_each(|p| by_root.entry(p).or_default().push(class));
    }
    Some(by_root)
}

impl Frontier {
    /// The classes at most `depth` levels above changes of the e-graph and above `further` changes.
    fn of(egraph: &View<'_>, dirty: &[(Id, LabelSet)], further: &[(Id, LabelSet)], depth: usize) -> Frontier {
        if dirty.is_empty() && further.is_empty() {
            return Frontier::default();
        }
        let mut level = vec![(FAR, LabelSet::default()); egraph.egraph.nodes().len()];
        let mut ring: Vec<Id> = Vec::new();
        for (id, labels) in dirty.iter().chain(further) {
            let id = egraph.find(*id);
            let (nearest, known) = &mut level[usize::from(id)];
            if *nearest == FAR {
                *nearest = 0;
                ring.push(id);
            }
            *known = known.with(*labels);
        }
        let mut near = ring.len();
        // The distance at which a class was last put into the ring.
        let mut in_ring = vec![0; level.len()];
        for distance in 1..=depth.min(usize::from(FAR) - 1) {
            let mut above = Vec::new();
            for class in ring {
                let (_, labels) = level[usize::from(class)];
                for parent in egraph[class].parents() {
                    let parent = egraph.find(parent);
                    let (nearest, known) = &mut level[usize::from(parent)];
                    if *nearest == FAR {
                        *nearest = distance as u16;
                        near += 1;
                    } else if known.include(labels) {
                        continue;
                    }
                    if std::mem::replace(&mut in_ring[usize::from(parent)], distance) != distance {
                        above.push(parent);
                    }
                    *known = known.with(labels);
                }
            }
            ring = above;
        }
        Frontier { level, near }
    }

    /// Nothing changed.
    fn is_empty(&self) -> bool {
        self.near == 0
    }

    /// Whether a canonical class is near a change.
    fn is_near(&self, class: Id) -> bool {
        self.level.get(usize::from(class)).is_some_and(|(distance, _)| *distance != FAR)
    }

    /// Whether a rule may match anew at a class.
    fn concerns(&self, class: Id, rule: &Prepared) -> bool {
        let Some((distance, labels)) = self.level.get(usize::from(class)) else { return false };
        usize::from(*distance) <= rule.depth && labels.meets(rule.labels)
    }
}

/// Classes that may hold the first root.
pub(super) fn root_candidates(egraph: &View<'_>, what: &Searchable<'_>, changes: Option<&Frontiers>) -> Vec<Id> {
    let Prepared { heads, below_work, .. } = what.prepared;
    // A shared part of further roots may have changed far from the first root.
    let near = changes.map(|c| (c, c.of_rule(what.prepared))).filter(|(_, f)| what.rule.lhs.len() == 1 || f.is_empty());
    let is_near = |frontier: &Frontier, class: Id| frontier.concerns(class, what.prepared);
    if near.is_some_and(|(_, frontier)| frontier.is_empty()) {
        return Vec::new();
    }
    if let Some(heads) = below_work.as_ref().filter(|_| !egraph.candidate.is_none()) {
        let mut tops = regions::tops(egraph, heads);
        tops.retain(|c| near.is_none_or(|(_, frontier)| is_near(frontier, *c)));
        return tops;
    }
    let is_one =
        |c: &EClass<Node, Data>| matches!((c.data.sort, what.terms), (Sort::Tensor(_), false) | (Sort::Term(_), true));
    let root = what.prepared.roots.first().copied().flatten();
    let indexed = near
        .zip(root)
        .and_then(|((changes, _), root)| Some(changes.by_root.as_ref()?.get(&root).map_or(&[][..], Vec::as_slice)));
    let mut ids: Vec<Id> = match (indexed, heads) {
        (Some(ids), Some(_)) => ids.to_vec(),
        (Some(ids), None) => ids.iter().copied().filter(|c| is_one(&egraph[*c])).collect(),
        (None, Some(heads)) => {
            heads.iter().filter_map(|h| egraph.classes_for_op(h).map(|ids| ids.collect::<Vec<_>>())).flatten().collect()
        }
        (None, None) => egraph.classes().filter(|c| is_one(c)).map(|c| c.id).collect(),
    };
    ids.retain(|c| near.is_none_or(|(_, frontier)| is_near(frontier, *c)));
    // The classes of a root are sorted already.
    if !ids.is_sorted() {
        ids.sort_unstable();
    }
    ids.dedup();
    ids
}
