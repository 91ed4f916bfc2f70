//! Where a rule is looked for: all classes of its head, or those near what changed since the last search.
//!
//! In: an e-graph, and how far its logs of changes were looked at. Out: classes that may hold the first root of a rule.
//! Holds always: a class that is left out cannot hold a match that was not there at the last search.

use std::ops::{Deref, Index};

use egg::EClass;

use super::*;
use crate::optimize::analysis::Data;

/// An e-graph whose classes are found without hashing.
pub struct View<'e> {
    egraph: &'e EGraph,
    classes: Vec<Option<&'e EClass<Node, Data>>>,
}

impl<'e> View<'e> {
    /// Of an e-graph that is searched for many rules.
    pub fn of(egraph: &'e EGraph) -> View<'e> {
        let mut classes = vec![None; egraph.nodes().len()];
        for class in egraph.classes() {
            classes[usize::from(class.id)] = Some(class);
        }
        View { egraph, classes }
    }

    /// Of an e-graph that is looked at here and there.
    pub fn plain(egraph: &'e EGraph) -> View<'e> {
        View { egraph, classes: Vec::new() }
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
        match self.classes.get(usize::from(id)) {
            Some(Some(class)) => class,
            _ => &self.egraph[id],
        }
    }
}

/// What changed since a search: where else it can find anything new.
pub struct Changes {
    /// Of what classes hold.
    held: Near,
    /// Of that and of the candidate, if that changed at all.
    chosen: Option<Near>,
}

/// Classes near a change.
struct Near {
    /// By what they hold, with the distance of the nearest change below them.
    by_head: FxHashMap<Discriminant, Vec<(Id, u16)>>,
    /// Nothing changed.
    none: bool,
}

impl Changes {
    /// Of the logs of touched and of reconsidered classes what stands behind these places, seen from `depth` classes above
    /// at most.
    pub fn since(egraph: &View<'_>, (touched, reconsidered): (usize, usize), depth: usize) -> Changes {
        let touched = egraph.analysis.touched.get(touched..).unwrap_or_default();
        let reconsidered = egraph.analysis.reconsidered.get(reconsidered..).unwrap_or_default();
        let both = || Near::of(egraph, touched.iter().chain(reconsidered), depth);
        Changes { held: Near::of(egraph, touched.iter(), depth), chosen: (!reconsidered.is_empty()).then(both) }
    }

    fn of_rule(&self, prepared: &Prepared) -> &Near {
        match &self.chosen {
            Some(near) if prepared.by_candidate => near,
            _ => &self.held,
        }
    }
}

impl Near {
    fn of<'a>(egraph: &View<'_>, changed: impl Iterator<Item = &'a Id>, depth: usize) -> Near {
        const FAR: u16 = u16::MAX;
        let mut level = vec![FAR; egraph.nodes().len()];
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
        let mut by_head: FxHashMap<Discriminant, Vec<(Id, u16)>> = FxHashMap::default();
        for class in &all {
            let mut last = None;
            for node in &egraph[*class].nodes {
                // Nodes of a class are sorted, so that equal heads stand together.
                let head = node.payload.discriminant();
                if last != Some(head) {
                    by_head.entry(head).or_default().push((*class, level[usize::from(*class)]));
                    last = Some(head);
                }
            }
        }
        by_head.values_mut().for_each(|classes| classes.sort_unstable());
        Near { by_head, none: all.is_empty() }
    }
}

/// Classes that may hold the first root.
pub(super) fn root_candidates(egraph: &View<'_>, what: &Searchable<'_>, changes: Option<&Changes>) -> Vec<Id> {
    let mut wanted = Some(Vec::new());
    if let Some(first) = what.rule.lhs.first() {
        heads(&egraph.analysis.program, first, what.terms, &mut wanted);
    }
    // What further roots share with the first may have changed far from it.
    let changes = changes.map(|c| c.of_rule(what.prepared)).filter(|c| what.rule.lhs.len() == 1 || c.none);
    let mut ids: Vec<Id> = match (wanted, changes) {
        (Some(heads), Some(changes)) => {
            let near = |(id, distance): &(Id, u16)| (usize::from(*distance) <= what.prepared.depth).then_some(*id);
            heads.iter().filter_map(|h| changes.by_head.get(h)).flatten().filter_map(near).collect()
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
    // One head's classes near changes are sorted already.
    if !ids.is_sorted() {
        ids.sort_unstable();
    }
    ids.dedup();
    ids
}
