//! What is known before any input: constants computed once, ops without a kernel replaced by their bodies.
//!
//! In: a graph on concrete sizes. Out: a graph of builtin ops, scalars, and those defined ops that have
//! a row-wise kernel or a library's call. Holds always: no node but a view, a constant or an op without operands depends on
//! constants alone. What does is computed as the host would compute it from inputs.

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, OpBody};

use super::constants::Constants;
use super::rows::Rows;
use super::{Options, composed};
use crate::device::Device;
use crate::error::Result;
use crate::graph::{Graph, Instantiator, Node, NodeId, NodeKind, Value};

/// A graph that is ready to be lowered.
pub(super) struct Prepared {
    /// The graph.
    pub graph: Graph,
    /// The kernel of each defined op that is left.
    pub rowwise: HashMap<NodeId, Rows>,
}

/// The builtin that a node applies.
pub(super) fn builtin(graph: &Graph, node: &Node) -> Option<BuiltinOp> {
    match &node.kind {
        NodeKind::Op { op, .. } => match graph.program.op(*op).body {
            OpBody::Builtin(b) => Some(b),
            OpBody::Defined(_) => None,
        },
        _ => None,
    }
}

/// True for ops whose result is a window onto their first operand, and for constant fills, which are a
/// window onto one element.
pub(super) fn is_view(graph: &Graph, node: &Node) -> bool {
    use BuiltinOp::*;
    matches!(builtin(graph, node), Some(Reshape | Transpose | Expand | Slice | Windows | Split | Full))
}

/// True for nodes that compute each element of their result from one of each operand.
pub(super) fn is_pointwise(graph: &Graph, node: &Node) -> bool {
    matches!(node.kind, NodeKind::Scalar(_)) || builtin(graph, node) == Some(BuiltinOp::Cast)
}

pub(super) fn prepare(graph: &Graph, options: &Options, known: &mut Constants) -> Result<Prepared> {
    let device = &options.device;
    let (graph, _) = unfold_kernelless(&composed::expand(&graph.pruned(), device)?, device)?;
    let (graph, rowwise) = unfold_kernelless(&known.fold(graph, options.cluster)?.pruned(), device)?;
    Ok(Prepared { graph, rowwise })
}

/// Replaces defined ops that neither a row-wise kernel nor a library's call computes by their bodies.
fn unfold_kernelless(graph: &Graph, device: &Device) -> Result<(Graph, HashMap<NodeId, Rows>)> {
    let mut out = Graph::new(graph.program.clone());
    let mut rowwise = HashMap::new();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes.len());
    let constant = constants(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let operands: Vec<Option<Value>> =
            node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
        let start = out.nodes.len();
        let results = match &node.kind {
            NodeKind::Input { name } => vec![out.input(name.clone(), node.results[0].clone())],
            NodeKind::Const(t) => vec![out.constant(t.clone())],
            NodeKind::Scalar(s) => {
                let operands: Vec<Value> = operands.iter().flatten().copied().collect();
                vec![out.scalar(*s, &operands)?]
            }
            NodeKind::Op { op, attrs, term } => {
                let kernel = match graph.program.op(*op).body {
                    OpBody::Builtin(_) => None,
                    OpBody::Defined(_) if constant[i] => Some(None),
                    OpBody::Defined(_) if super::kernels::called(graph, node, device).is_some() => None,
                    OpBody::Defined(_) => Some(super::kernels::rowwise(graph, node, device)),
                };
                match kernel {
                    None => out.op(*op, &operands, attrs.clone(), term.clone())?,
                    Some(Some(kernel)) => {
                        let values = out.op(*op, &operands, attrs.clone(), term.clone())?;
                        if let Some(v) = values.first() {
                            rowwise.insert(v.node, kernel);
                        }
                        values
                    }
                    Some(None) => Instantiator::unfolding(&mut out).op(*op, &operands, attrs, term.clone())?,
                }
            }
        };
        for new in &mut out.nodes[start..] {
            if new.name.is_empty() {
                new.name.clone_from(&node.name);
            }
        }
        map.push(results);
    }
    let moved = |v: &Value| map[v.node.index()][v.output as usize];
    out.outputs = graph.outputs.iter().map(|(n, v)| (n.clone(), moved(v))).collect();
    out.inputs = graph.inputs.iter().map(|id| map[id.index()][0].node).collect();
    Ok((out, rowwise))
}

/// Which nodes depend on constants alone. What depends on a size that is not known yet does not.
pub(crate) fn constants(graph: &Graph) -> Vec<bool> {
    let mut constant = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        constant[i] = match &node.kind {
            NodeKind::Input { .. } => false,
            NodeKind::Const(_) => true,
            NodeKind::Scalar(_) => node.operands.iter().flatten().all(|v| constant[v.node.index()]),
            NodeKind::Op { attrs, .. } => {
                node.operands.iter().flatten().all(|v| constant[v.node.index()])
                    && node.results.iter().flat_map(|t| &t.shape).all(|d| d.as_const().is_some())
                    && attrs.iter().all(is_known)
            }
        };
    }
    constant
}

/// True for an attribute without symbols.
fn is_known(attr: &AttrValue) -> bool {
    match attr {
        AttrValue::Dim(d) => d.as_const().is_some(),
        AttrValue::List(l) => l.iter().all(is_known),
        _ => true,
    }
}
