//! The label filter: which labels (the discriminants of nodes) occur below each class of an
//! e-graph, so that a search rejects most classes early.
//!
//! In: a rebuilt e-graph, and its log of dirty classes. Out: for each class, the labels of its
//! nodes' operands, and of their operands. Invariant: a [`LabelFilter::refresh`] visits only the
//! classes that became dirty since the last one and two levels above them. Until it is refreshed
//! after a change, the filter answers nothing.

use egg::Id;

use super::analysis::EGraph;
use super::language::LabelSet;

/// The labels below a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelsBelow {
    /// The labels of its nodes' operands.
    pub operands: LabelSet,
    /// The labels of the operands of those.
    pub further: LabelSet,
}

/// The labels below each class.
#[derive(Debug, Default)]
pub struct LabelFilter {
    by_class: Vec<LabelsBelow>,
    /// How much of the log of dirty classes was processed.
    seen: usize,
}

impl LabelFilter {
    /// An empty filter.
    pub fn none() -> &'static LabelFilter {
        static NONE: LabelFilter = LabelFilter { by_class: Vec::new(), seen: 0 };
        &NONE
    }

    /// The labels below a canonical class, if the filter is up to date with a log of that length.
    pub fn of(&self, class: Id, dirty: usize) -> Option<LabelsBelow> {
        if self.seen == dirty { self.by_class.get(usize::from(class)).copied() } else { None }
    }

    /// Processes the classes that became dirty since the last time. The e-graph must be rebuilt.
    pub fn refresh(&mut self, egraph: &EGraph) {
        let dirty = &egraph.analysis.dirty[self.seen.min(egraph.analysis.dirty.len())..];
        self.by_class.resize(egraph.nodes().len(), LabelsBelow::default());
        let mut near = vec![false; egraph.nodes().len()];
        let mut classes: Vec<Id> = Vec::new();
        let mut add = |id: Id, classes: &mut Vec<Id>| {
            if !std::mem::replace(&mut near[usize::from(id)], true) {
                classes.push(id);
            }
        };
        dirty.iter().for_each(|(id, _)| add(egraph.find(*id), &mut classes));
        // The labels of a class are visible one level above, to its users, and two levels above, to
        // theirs.
        let mut level = 0..classes.len();
        for _ in 0..2 {
            let first = classes.len();
            for at in level {
                egraph[classes[at]].parents().for_each(|p| add(egraph.find(p), &mut classes));
            }
            level = first..classes.len();
        }
        let operands = |class: Id| egraph[class].nodes.iter().flat_map(|n| &n.children).map(|c| egraph.find(*c));
        for class in &classes {
            self.by_class[usize::from(*class)].operands =
                operands(*class).fold(LabelSet::default(), |all, c| all.with(egraph[c].data.labels));
        }
        for class in &classes {
            let further =
                operands(*class).fold(LabelSet::default(), |h, c| h.with(self.by_class[usize::from(c)].operands));
            self.by_class[usize::from(*class)].further = further;
        }
        self.seen = egraph.analysis.dirty.len();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hypatia_dsl::builtin::BuiltinScalar;
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::language::Discriminant;
    use crate::lower::insert_graph;
    use hypatia_graph::Graph;
    use hypatia_pipeline::FOLDER;
    use hypatia_testing::{program, ty};

    /// The same computed from all nodes.
    fn recomputed(egraph: &EGraph, class: Id) -> LabelsBelow {
        let operands = |id: Id| egraph[id].nodes.iter().flat_map(|n| n.children.clone()).map(|c| egraph.find(c));
        let held = |id: Id| operands(id).fold(LabelSet::default(), |all, c| all.with(egraph[c].data.labels));
        LabelsBelow {
            operands: held(class),
            further: operands(class).fold(LabelSet::default(), |all, c| all.with(held(c))),
        }
    }

    #[test]
    fn a_refreshed_filter_is_the_one_computed_from_all_nodes() {
        let mut g = Graph::new(program());
        let [x, y] = ["x", "y"].map(|name| g.input(name, ty(DType::F32, &[4])));
        use BuiltinScalar::{Add, Cos, Exp, Sin, Tanh};
        let mut call = |f: BuiltinScalar, of: &[_]| g.builtin_scalar(f, of).unwrap();
        let (e, s) = (call(Exp, &[x]), call(Sin, &[y]));
        let sum = call(Add, &[e, s]);
        let (top, other) = (call(Tanh, &[sum]), call(Cos, &[s]));
        g.output("top", top);
        g.output("other", other);
        let mut egraph = insert_graph(&g, &FOLDER).unwrap().egraph;
        let mut filter = LabelFilter::default();
        let same = |egraph: &EGraph, filter: &LabelFilter| {
            let dirty = egraph.analysis.dirty.len();
            egraph.classes().all(|c| filter.of(c.id, dirty) == Some(recomputed(egraph, c.id)))
        };
        assert!(!same(&egraph, &filter));
        filter.refresh(&egraph);
        assert!(same(&egraph, &filter));
        // exp(x) is merged with cos(sin(y)): classes two levels above get more heads below them.
        let find = |egraph: &EGraph, f: BuiltinScalar| {
            let scalar = egraph.analysis.program.builtin_scalar(f).unwrap();
            egraph.classes_for_op(&Discriminant::Scalar(scalar)).unwrap().next().unwrap()
        };
        let (tanh, e, c) = (find(&egraph, Tanh), find(&egraph, Exp), find(&egraph, Cos));
        let before = filter.of(tanh, egraph.analysis.dirty.len()).unwrap();
        egraph.union(e, c);
        egraph.rebuild();
        assert_eq!(filter.of(tanh, egraph.analysis.dirty.len()), None);
        filter.refresh(&egraph);
        assert!(same(&egraph, &filter));
        let after = filter.of(egraph.find(tanh), egraph.analysis.dirty.len()).unwrap();
        assert!(after != before && after.further.include(before.further));
    }
}
