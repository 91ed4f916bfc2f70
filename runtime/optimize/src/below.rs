//! The label filter: which heads occur below each class of an e-graph, so that a search rejects
//! most classes early.
//!
//! In: a rebuilt e-graph, and its log of touched classes. Out: for each class, the heads of its
//! nodes' operands, and of their operands. Invariant: a [`BelowAll::refresh`] visits only the
//! classes touched since the last one and two levels above them. Until it is refreshed after a
//! change, the filter answers nothing.

use egg::Id;

use super::analysis::EGraph;
use super::language::Heads;

/// The heads below a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// The heads of its nodes' operands.
    pub operands: Heads,
    /// The heads of the operands of those.
    pub further: Heads,
}

/// The heads below each class.
#[derive(Debug, Default)]
pub struct BelowAll {
    by_class: Vec<Below>,
    /// How much of the log of touched classes was processed.
    seen: usize,
}

impl BelowAll {
    /// An empty filter.
    pub fn none() -> &'static BelowAll {
        static NONE: BelowAll = BelowAll { by_class: Vec::new(), seen: 0 };
        &NONE
    }

    /// The heads below a canonical class, if the filter is up to date with a log of that length.
    pub fn of(&self, class: Id, touched: usize) -> Option<Below> {
        if self.seen == touched { self.by_class.get(usize::from(class)).copied() } else { None }
    }

    /// Processes the classes touched since the last time. The e-graph must be rebuilt.
    pub fn refresh(&mut self, egraph: &EGraph) {
        let touched = &egraph.analysis.touched[self.seen.min(egraph.analysis.touched.len())..];
        self.by_class.resize(egraph.nodes().len(), Below::default());
        let mut near = vec![false; egraph.nodes().len()];
        let mut classes: Vec<Id> = Vec::new();
        let mut add = |id: Id, classes: &mut Vec<Id>| {
            if !std::mem::replace(&mut near[usize::from(id)], true) {
                classes.push(id);
            }
        };
        touched.iter().for_each(|id| add(egraph.find(*id), &mut classes));
        // The heads of a class are visible one level above, to its users, and two levels above, to
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
                operands(*class).fold(Heads::default(), |all, c| all.with(egraph[c].data.heads));
        }
        for class in &classes {
            let further =
                operands(*class).fold(Heads::default(), |h, c| h.with(self.by_class[usize::from(c)].operands));
            self.by_class[usize::from(*class)].further = further;
        }
        self.seen = egraph.analysis.touched.len();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hypatia_dsl::builtin::BuiltinScalar;
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::language::Discriminant;
    use crate::lower::enter;
    use hypatia_graph::Graph;
    use hypatia_pipeline::FOLDER;
    use hypatia_testing::{program, ty};

    /// The same computed from all nodes.
    fn anew(egraph: &EGraph, class: Id) -> Below {
        let operands = |id: Id| egraph[id].nodes.iter().flat_map(|n| n.children.clone()).map(|c| egraph.find(c));
        let held = |id: Id| operands(id).fold(Heads::default(), |all, c| all.with(egraph[c].data.heads));
        Below { operands: held(class), further: operands(class).fold(Heads::default(), |all, c| all.with(held(c))) }
    }

    #[test]
    fn what_is_told_is_what_a_look_at_all_nodes_tells() {
        let mut g = Graph::new(program());
        let [x, y] = ["x", "y"].map(|name| g.input(name, ty(DType::F32, &[4])));
        use BuiltinScalar::{Add, Cos, Exp, Sin, Tanh};
        let mut call = |f: BuiltinScalar, of: &[_]| g.builtin_scalar(f, of).unwrap();
        let (e, s) = (call(Exp, &[x]), call(Sin, &[y]));
        let sum = call(Add, &[e, s]);
        let (top, other) = (call(Tanh, &[sum]), call(Cos, &[s]));
        g.output("top", top);
        g.output("other", other);
        let mut egraph = enter(&g, &FOLDER).unwrap().egraph;
        let mut below = BelowAll::default();
        let same = |egraph: &EGraph, below: &BelowAll| {
            let touched = egraph.analysis.touched.len();
            egraph.classes().all(|c| below.of(c.id, touched) == Some(anew(egraph, c.id)))
        };
        assert!(!same(&egraph, &below));
        below.refresh(&egraph);
        assert!(same(&egraph, &below));
        // exp(x) is merged with cos(sin(y)): classes two levels above get more heads below them.
        let find = |egraph: &EGraph, f: BuiltinScalar| {
            let scalar = egraph.analysis.program.builtin_scalar(f).unwrap();
            egraph.classes_for_op(&Discriminant::Scalar(scalar)).unwrap().next().unwrap()
        };
        let (tanh, e, c) = (find(&egraph, Tanh), find(&egraph, Exp), find(&egraph, Cos));
        let before = below.of(tanh, egraph.analysis.touched.len()).unwrap();
        egraph.union(e, c);
        egraph.rebuild();
        assert_eq!(below.of(tanh, egraph.analysis.touched.len()), None);
        below.refresh(&egraph);
        assert!(same(&egraph, &below));
        let after = below.of(egraph.find(tanh), egraph.analysis.touched.len()).unwrap();
        assert!(after != before && after.further.include(before.further));
    }
}
