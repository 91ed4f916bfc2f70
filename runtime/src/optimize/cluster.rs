//! An estimate of the launches of a graph: connected pointwise nodes of one shape are one kernel.
//!
//! In: a graph. Out: numbers for reports. The planner makes the real regions; this only counts. Holds always: what is
//! counted as one kernel has no other kernel between its nodes.

use std::collections::BTreeMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::OpBody;

use super::cost::is_view;
use super::report::Summary;
use crate::graph::{Graph, NodeId, NodeKind};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Neither computed nor launched.
    Free,
    Pointwise,
    Kernel,
}

fn kind(graph: &Graph, id: NodeId) -> Kind {
    match &graph.node(id).kind {
        NodeKind::Input { .. } | NodeKind::Const(_) => Kind::Free,
        NodeKind::Scalar(_) => Kind::Pointwise,
        NodeKind::Op { op, .. } => match &graph.program.op(*op).body {
            OpBody::Builtin(BuiltinOp::Cast) => Kind::Pointwise,
            OpBody::Builtin(b) if is_view(*b) => Kind::Free,
            _ => Kind::Kernel,
        },
    }
}

/// Counts of a graph; `micros` is the cost that the caller worked out.
pub fn summarise(graph: &Graph, micros: f64) -> Summary {
    let n = graph.nodes.len();
    let mut constant = vec![false; n];
    let mut kinds = Vec::with_capacity(n);
    let mut counts = BTreeMap::new();
    // How many kernels lie on the longest way to a node: pointwise neighbours of equal depth can be one kernel.
    let mut depth = vec![0usize; n];
    let mut region: Vec<usize> = (0..n).collect();
    fn find(region: &mut [usize], mut i: usize) -> usize {
        while region[i] != i {
            region[i] = region[region[i]];
            i = region[i];
        }
        i
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let leaf = matches!(node.kind, NodeKind::Input { .. });
        constant[i] = !leaf && node.operands.iter().flatten().all(|v| constant[v.node.index()]);
        let k = if constant[i] { Kind::Free } else { kind(graph, id) };
        kinds.push(k);
        for v in node.operands.iter().flatten() {
            let p = v.node.index();
            let joins = k == Kind::Pointwise
                && kinds[p] == Kind::Pointwise
                && graph.nodes[p].results.first().map(|t| &t.shape) == node.results.first().map(|t| &t.shape);
            let step = usize::from(!joins && kinds[p] != Kind::Free);
            depth[i] = depth[i].max(depth[p] + step);
        }
        for v in node.operands.iter().flatten() {
            let p = v.node.index();
            let same_shape = graph.nodes[p].results.first().map(|t| &t.shape) == node.results.first().map(|t| &t.shape);
            if k == Kind::Pointwise && kinds[p] == Kind::Pointwise && same_shape && depth[p] == depth[i] {
                let (a, b) = (find(&mut region, p), find(&mut region, i));
                region[b] = a;
            }
        }
        if k != Kind::Free {
            *counts.entry(graph.head_name(id).to_string()).or_insert(0) += 1;
        }
    }
    let ops = kinds.iter().filter(|k| **k != Kind::Free).count();
    let launches = (0..n).filter(|i| kinds[*i] != Kind::Free && region[*i] == *i).count();
    Summary { ops, launches, micros, counts }
}
