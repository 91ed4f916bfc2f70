//! Weights that stay in the narrow form from which a product of few rows computes its factor.
//!
//! In: a graph of builtin ops, before its constants are folded. Out: the nodes that are not folded.
//! Invariant: what stays is pointwise work on constants whose result, in 16 bits, has far more
//! bytes than they have, and only products of few rows read it, as their right factor.
//!
//! Such a product takes as long as its weight's way from memory. Whether the plan then joins the
//! work with the product is known only at the end: a plan that would compute constants in a step of
//! its own is made again with all of them folded (`build.rs`).

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::MOST_ROWS;

use super::{Action, Options, Plan, Storage, View};
use hypatia_graph::{Graph, Node, NodeId, Value, builtin, constant_nodes, is_pointwise};

/// Elements of a weight from which on its way from memory counts: it takes a microsecond.
const LARGE: usize = 1 << 21;
/// The compute capability from which templates multiply by warps.
const AMPERE: u32 = 80;

/// For each node, whether it is not folded.
pub(super) fn kept(graph: &Graph, options: &Options) -> Vec<bool> {
    let mut kept = vec![false; graph.nodes.len()];
    let allowed = &options.allowed;
    let device = !options.device.is_host() && options.device.sm >= AMPERE;
    if !device || !options.cluster || allowed.is_exact() || allowed.batch_invariant {
        return kept;
    }
    let constant = constant_nodes(graph);
    let users = graph.users();
    for (i, node) in graph.nodes.iter().enumerate() {
        let weight = Value { node: NodeId(i as u32), output: 0 };
        let half = matches!(node.results.as_slice(), [t] if matches!(t.dtype, DType::F16 | DType::BF16));
        if constant[i] && half && is_pointwise(graph, node) && is_factor(graph, &users, weight) {
            let (nodes, bytes) = narrow(graph, &constant, i);
            if len(graph, weight).is_some_and(|len| len >= LARGE && 3 * bytes <= 2 * 2 * len) {
                nodes.into_iter().for_each(|n| kept[n] = true);
            }
        }
    }
    kept
}

/// Whether a plan has a pointwise step that computes from constants alone.
pub(super) fn computes_constants(plan: &Plan) -> bool {
    let constant = |v: &View| matches!(plan.buffers[v.buffer.index()].storage, Storage::Constant(_));
    let pointwise = plan.steps.iter().filter(|s| matches!(s.action, Action::Pointwise(_)));
    pointwise.into_iter().any(|s| !s.reads.is_empty() && s.reads.iter().all(constant))
}

fn len(graph: &Graph, v: Value) -> Option<usize> {
    graph.ty(v).shape.iter().map(|d| d.as_const().and_then(|d| usize::try_from(d).ok())).product()
}

/// True if transposes and products of few rows alone read a value, the products as their right
/// factor.
fn is_factor(graph: &Graph, users: &[Vec<NodeId>], v: Value) -> bool {
    let readers = &users[v.node.index()];
    let outside = graph.outputs.iter().any(|(_, w)| w.node == v.node);
    let reads = |id: &NodeId| {
        let node = graph.node(*id);
        if builtin(graph, node) == Some(BuiltinOp::Transpose) {
            return is_factor(graph, users, Value { node: *id, output: 0 });
        }
        multiplies_few_rows(graph, node)
            && node.operands.iter().flatten().filter(|w| w.node == v.node).count() == 1
            && {
                let right = if graph.is_pair(node) { 1..3 } else { 1..2 };
                node.operands
                    .iter()
                    .position(|w| w.is_some_and(|w| w.node == v.node))
                    .is_some_and(|at| right.contains(&at))
            }
    };
    !outside && !readers.is_empty() && readers.iter().all(reads)
}

fn multiplies_few_rows(graph: &Graph, node: &Node) -> bool {
    let product = matches!(builtin(graph, node), Some(BuiltinOp::Matmul | BuiltinOp::Gemm | BuiltinOp::Gemm2));
    let rows = node.operands.first().copied().flatten().and_then(|a| {
        let (_, lead) = graph.ty(a).shape.split_last()?;
        lead.iter().map(|d| d.as_const().and_then(|d| usize::try_from(d).ok())).product::<Option<usize>>()
    });
    product && rows.is_some_and(|rows| (1..=MOST_ROWS).contains(&rows))
}

/// The pointwise work and transposes of that node's size from which it is computed, and the bytes
/// of what these read.
fn narrow(graph: &Graph, constant: &[bool], node: usize) -> (Vec<usize>, usize) {
    let size = len(graph, Value { node: NodeId(node as u32), output: 0 });
    let (mut nodes, mut bytes) = (vec![node], 0);
    let mut at = 0;
    while let Some(i) = nodes.get(at).copied() {
        at += 1;
        for v in graph.nodes[i].operands.iter().flatten() {
            let (from, source) = (v.node.index(), graph.node(v.node));
            // Groups along k (a reshape) gain nothing: their scales are one more access each.
            let moves = is_pointwise(graph, source) || builtin(graph, source) == Some(BuiltinOp::Transpose);
            if moves && constant[from] && len(graph, *v) == size && !source.operands.is_empty() {
                if !nodes.contains(&from) {
                    nodes.push(from);
                }
            } else {
                bytes += len(graph, *v).unwrap_or(usize::MAX / 8) * graph.ty(*v).dtype.size();
            }
        }
    }
    (nodes, bytes)
}
