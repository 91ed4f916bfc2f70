//! Incremental (semi-naive) search: where a rule is searched, which is all classes with its head,
//! or only those near a change since the last search (the dirty frontier).
//!
//! In: an e-graph, and how far its change logs were processed. Out: classes that may hold the first
//! root of a rule. Invariant: a class that is left out cannot hold a match that did not exist at
//! the last search.

use std::cell::RefCell;
use std::ops::{Deref, Index};
use std::rc::Rc;

use egg::EClass;
use hypatia_dsl::ir::ScalarId;

use super::prepare::RequiredLabels;
use super::sums::Parts;
use super::*;
use crate::analysis::Data;
use crate::candidate::Candidate;
use crate::label_filter::{LabelFilter, LabelsBelow};
use crate::language::LabelSet;

/// An e-graph as a search sees it, with the candidate and the label filter.
pub struct View<'e> {
    egraph: &'e EGraph,
    /// The classes by id, to avoid hashing.
    classes: Vec<Option<&'e EClass<Node, Data>>>,
    candidate: &'e Candidate,
    labels: &'e LabelFilter,
    /// The parts of sums that were asked for, by the class and the discriminant of the sum.
    sums: RefCell<FxHashMap<(Id, Discriminant), Rc<Parts>>>,
}

impl<'e> View<'e> {
    /// A view for searching many rules.
    pub fn of(egraph: &'e EGraph, candidate: &'e Candidate, labels: &'e LabelFilter) -> View<'e> {
        let mut classes = vec![None; egraph.nodes().len()];
        for class in egraph.classes() {
            classes[usize::from(class.id)] = Some(class);
        }
        View { egraph, classes, candidate, labels, sums: RefCell::default() }
    }

    /// A view for occasional queries, without a candidate.
    pub fn plain(egraph: &'e EGraph) -> View<'e> {
        let (candidate, labels) = (Candidate::none(), LabelFilter::none());
        View { egraph, classes: Vec::new(), candidate, labels, sums: RefCell::default() }
    }

    /// The parts of a class as a sum, which `find` finds the first time.
    pub(super) fn parts_of(&self, class: Id, sum: Discriminant, find: impl FnOnce() -> Parts) -> Rc<Parts> {
        if let Some(parts) = self.sums.borrow().get(&(class, sum)) {
            return parts.clone();
        }
        let parts = Rc::new(find());
        self.sums.borrow_mut().insert((class, sum), parts.clone());
        parts
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

    /// False if a canonical class certainly cannot match a pattern with that label filter.
    pub(super) fn may_have(&self, class: Id, required: &RequiredLabels) -> bool {
        let dirty = self.egraph.analysis.dirty.len();
        let Some(LabelsBelow { operands, further }) = self.labels.of(class, dirty) else { return true };
        required.nests.is_some_and(|head| operands.include(head))
            || (operands.include(required.operands) && further.include(required.further))
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

/// The changes since a search: a new search can find something new only near them.
pub struct Frontiers {
    /// Changes of the e-graph.
    held: Frontier,
    /// Those and the changes of the candidate, if there are any.
    chosen: Option<Frontier>,
}

/// The distance of a class without a change nearby.
const FAR: u16 = u16::MAX;

/// Classes near a change.
struct Frontier {
    /// Classes by the heads they hold ([`Discriminant::index`]), sorted, with the distance of the
    /// nearest change below them.
    by_head: Vec<Vec<(Id, u16)>>,
    /// The distance of the nearest change below each class; empty if nothing changed.
    level: Vec<u16>,
    /// Nothing changed.
    none: bool,
}

impl Frontiers {
    /// The classes at most `depth` levels above the entries of the logs of dirty and of
    /// reconsidered classes behind these positions.
    pub fn since(egraph: &View<'_>, (dirty, reconsidered): (usize, usize), depth: usize) -> Frontiers {
        let dirty = egraph.analysis.dirty.get(dirty..).unwrap_or_default();
        let reconsidered = egraph.candidate.reconsidered().get(reconsidered..).unwrap_or_default();
        let both = || Frontier::of(egraph, dirty.iter().chain(reconsidered), depth);
        Frontiers { held: Frontier::of(egraph, dirty.iter(), depth), chosen: (!reconsidered.is_empty()).then(both) }
    }

    fn of_rule(&self, prepared: &Prepared) -> &Frontier {
        match &self.chosen {
            Some(frontier) if prepared.by_candidate => frontier,
            _ => &self.held,
        }
    }
}

impl Frontier {
    fn of<'a>(egraph: &View<'_>, changed: impl Iterator<Item = &'a Id>, depth: usize) -> Frontier {
        let mut changed = changed.peekable();
        if changed.peek().is_none() {
            return Frontier { by_head: Vec::new(), level: Vec::new(), none: true };
        }
        let mut level = vec![FAR; egraph.egraph.nodes().len()];
        let mut all: Vec<Id> = Vec::new();
        for id in changed {
            let id = egraph.find(*id);
            if level[usize::from(id)] == FAR {
                level[usize::from(id)] = 0;
                all.push(id);
            }
        }
        let mut ring = 0..all.len();
        for distance in 1..=depth.min(usize::from(FAR) - 1) {
            for at in ring.clone() {
                for parent in egraph[all[at]].parents() {
                    let parent = egraph.find(parent);
                    if level[usize::from(parent)] == FAR {
                        level[usize::from(parent)] = distance as u16;
                        all.push(parent);
                    }
                }
            }
            ring = ring.end..all.len();
        }
        let (ops, scalars) = sizes(egraph);
        let mut by_head: Vec<Vec<(Id, u16)>> =
            vec![Vec::new(); Discriminant::Call(ScalarId(0)).index(ops, scalars) + scalars];
        for (class, distance) in level.iter().enumerate().filter(|(_, distance)| **distance != FAR) {
            let class = Id::from(class);
            let mut last = None;
            for node in &egraph[class].nodes {
                // Nodes of a class are sorted, so equal heads are adjacent.
                let head = node.payload.discriminant().index(ops, scalars);
                if last != Some(head) {
                    by_head[head].push((class, *distance));
                    last = Some(head);
                }
            }
        }
        Frontier { by_head, level, none: false }
    }

    /// The distance of the nearest change below a class; [`FAR`] if there is none.
    fn distance(&self, class: Id) -> u16 {
        self.level.get(usize::from(class)).copied().unwrap_or(FAR)
    }
}

/// The heads of the operand of a pattern for pointwise work, if it is one and restricts them.
fn heads_below_work(egraph: &EGraph, pat: &Pat) -> Option<Vec<Discriminant>> {
    match pat {
        Pat::Bind(_, p) | Pat::Typed(p, _) => heads_below_work(egraph, p),
        Pat::Node(n) if matches!(n.head, Head::Region(_)) => n.args.iter().find_map(|arg| {
            let mut wanted = Some(Vec::new());
            heads(&egraph.analysis.program, arg, false, &mut wanted);
            wanted
        }),
        _ => None,
    }
}

/// Number of ops and of scalars of the program.
fn sizes(egraph: &EGraph) -> (usize, usize) {
    let program = &egraph.analysis.program;
    (program.ops.len(), program.scalars.len())
}

/// Classes that may hold the first root.
pub(super) fn root_candidates(egraph: &View<'_>, what: &Searchable<'_>, changes: Option<&Frontiers>) -> Vec<Id> {
    let mut wanted = Some(Vec::new());
    if let Some(first) = what.rule.lhs.first() {
        heads(&egraph.analysis.program, first, what.terms, &mut wanted);
    }
    // A shared part of further roots may have changed far from the first root.
    let changes = changes.map(|c| c.of_rule(what.prepared)).filter(|c| what.rule.lhs.len() == 1 || c.none);
    if let Some(heads) = what.rule.lhs.first().and_then(|p| heads_below_work(egraph, p))
        && !egraph.candidate.is_none()
    {
        let mut tops = regions::tops(egraph, &heads);
        if let Some(frontier) = changes {
            tops.retain(|c| usize::from(frontier.distance(*c)) <= what.prepared.depth);
        }
        return tops;
    }
    let (ops, scalars) = sizes(egraph);
    let mut ids: Vec<Id> = match (wanted, changes) {
        (Some(heads), Some(changes)) => {
            let near = |(id, distance): &(Id, u16)| (usize::from(*distance) <= what.prepared.depth).then_some(*id);
            heads.iter().filter_map(|h| changes.by_head.get(h.index(ops, scalars))).flatten().filter_map(near).collect()
        }
        (None, Some(changes)) if changes.none => Vec::new(),
        (Some(heads), None) => {
            heads.iter().filter_map(|h| egraph.classes_for_op(h).map(|ids| ids.collect::<Vec<_>>())).flatten().collect()
        }
        (None, _) => egraph
            .classes()
            .filter(|c| matches!((c.data.sort, what.terms), (Sort::Tensor(_), false) | (Sort::Term(_), true)))
            .map(|c| c.id)
            .collect(),
    };
    // With a single head, its classes near changes are sorted already.
    if !ids.is_sorted() {
        ids.sort_unstable();
    }
    ids.dedup();
    ids
}
