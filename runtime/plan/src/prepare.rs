//! What is known before any input: constants computed once, ops without a kernel replaced by their
//! bodies.
//!
//! In: a graph on concrete sizes with its lists of kernels. Out: a graph of builtin ops, scalars,
//! and those defined ops for which a row-wise kernel or a library's call was taken from their list.
//! Holds always: no node but a view, a constant or an op without operands depends on constants
//! alone. What does is computed as the host would compute it from inputs.

use std::collections::HashMap;

use hypatia_dsl::ir::{KernelId, OpBody};
use hypatia_dsl::kernel::derive_rowwise_over;
use hypatia_dsl::typing::TensorType;

use super::Options;
use super::rows::Rows;
use hypatia_graph::prim::sizes;
use hypatia_graph::{Candidate, Constants, Graph, Instead, Known, Node, NodeId, NodeKind, Way, constant_nodes};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

/// What computes the defined ops of a graph.
#[derive(Default)]
pub(super) struct Kernels {
    /// The row-wise kernel of each defined op that has one.
    pub rowwise: HashMap<NodeId, Rows>,
    /// The call of each other defined op.
    pub calls: HashMap<NodeId, Call>,
}

/// A graph that is ready to be lowered.
pub(super) struct Prepared {
    /// The graph.
    pub graph: Graph,
    /// The kernels of the defined ops that are left.
    pub kernels: Kernels,
}

/// A library's call that computes an op.
pub(super) struct Call {
    /// The kernel.
    pub kernel: KernelId,
    /// The same step by step: the op's operands are its inputs, in order.
    pub apart: Prepared,
}

pub(super) fn prepare(graph: &Graph, options: &Options, known: &mut Constants) -> Result<Prepared> {
    let device = &options.device;
    // Parts stand for their op first: what they hold that has no kernel is unfolded with the rest.
    let graph = graph.pruned();
    let parts = graph.replaced(&|_, node| match chosen(&graph, node, device).map(|c| &c.way) {
        Some(Way::Parts(parts)) => Instead::Parts(parts.clone()),
        _ => Instead::Itself,
    })?;
    let graph = known.fold(unfolded(&parts, device)?, options.cluster)?.pruned();
    let graph = unfolded(&graph, device)?;
    let mut kernels = Kernels::default();
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        match chosen(&graph, node, device) {
            Some(Candidate { way: Way::Rowwise, .. }) => {
                let rows = rowwise(&graph, node).ok_or_else(|| Error::Internal("a row-wise kernel was lost".into()))?;
                kernels.rowwise.insert(id, rows);
            }
            Some(Candidate { way: Way::Call, matched: Some(matched) }) => {
                let parts = node.kernels.list.iter().find_map(|c| match &c.way {
                    Way::Parts(parts) => Some(parts),
                    _ => None,
                });
                let parts = parts.ok_or_else(|| Error::Internal("a call without its parts".into()))?;
                let apart = prepare(parts, options, known)?;
                kernels.calls.insert(id, Call { kernel: matched.kernel, apart });
            }
            _ => {}
        }
    }
    Ok(Prepared { graph, kernels })
}

/// The first candidate for a node of a defined op that holds on its sizes; `None` for its body.
fn chosen<'g>(graph: &Graph, node: &'g Node, device: &Device) -> Option<&'g Candidate> {
    let NodeKind::Op { op, .. } = &node.kind else { return None };
    if node.kernels.device != device.name || matches!(graph.program.op(*op).body, OpBody::Builtin(_)) {
        return None;
    }
    let known = |operand: usize| {
        let v = node.operands.get(operand).copied().flatten()?;
        let constant = matches!(graph.node(v.node).kind, NodeKind::Const(_));
        Some(Known { ty: graph.ty(v).clone(), constant })
    };
    node.kernels.list.iter().find(|c| {
        c.matched.as_ref().is_none_or(|m| m.holds(&graph.program, &known, device))
            && (!matches!(c.way, Way::Rowwise) || rowwise(graph, node).is_some())
    })
}

/// Replaces defined ops that neither a row-wise kernel nor a library's call computes by their
/// bodies.
fn unfolded(graph: &Graph, device: &Device) -> Result<Graph> {
    let constant = constant_nodes(graph);
    graph.replaced(&|i, node| {
        let NodeKind::Op { op, .. } = &node.kind else { return Instead::Itself };
        let whole = || matches!(chosen(graph, node, device).map(|c| &c.way), Some(Way::Rowwise | Way::Call));
        match graph.program.op(*op).body {
            OpBody::Defined(_) if constant[i] || !whole() => Instead::Body,
            _ => Instead::Itself,
        }
    })
}

/// The row-wise kernel of a node of a defined op, on its sizes.
fn rowwise(graph: &Graph, node: &Node) -> Option<Rows> {
    let NodeKind::Op { op, attrs, .. } = &node.kind else { return None };
    let operands: Vec<Option<TensorType>> = node.operands.iter().map(|v| v.map(|v| graph.ty(v).clone())).collect();
    let (kernel, space) = derive_rowwise_over(&graph.program, *op, attrs, &operands, &node.results).ok()?;
    let sizes = sizes(&space.sizes, &|_| None).ok()?;
    Some(Rows { kernel, space, sizes })
}
