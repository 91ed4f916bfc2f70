//! What is known before any input: constants computed once, ops without a kernel replaced by their bodies.
//!
//! In: a graph on concrete sizes. Out: a graph of builtin ops, scalars, and those defined ops that have
//! a row-wise kernel or a library's call. Holds always: no node but a view, a constant or an op without operands depends on
//! constants alone. What does is computed as the host would compute it from inputs.

use std::collections::HashMap;

use hypatia_dsl::ir::{KernelId, OpBody};

use super::rows::Rows;
use super::{Options, composed};
use crate::device::Device;
use crate::error::Result;
use crate::graph::{Constants, Graph, Instantiator, NodeId, NodeKind, Value, constant_nodes};

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
    let (graph, _) = unfold_kernelless(&composed::expand(&graph.pruned(), device, known.folder())?, device)?;
    let (graph, rowwise) = unfold_kernelless(&known.fold(graph, options.cluster)?.pruned(), device)?;
    let mut calls = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        if let Some(kernel) = super::kernels::called(&graph, node, device) {
            let body = composed::optimized(&graph, node, device, known.folder())?;
            let apart = prepare(&body, options, known)?;
            calls.insert(NodeId(i as u32), Call { kernel, apart });
        }
    }
    Ok(Prepared { graph, kernels: Kernels { rowwise, calls } })
}

/// Replaces defined ops that neither a row-wise kernel nor a library's call computes by their bodies.
fn unfold_kernelless(graph: &Graph, device: &Device) -> Result<(Graph, HashMap<NodeId, Rows>)> {
    let mut out = Graph::new(graph.program.clone());
    let mut rowwise = HashMap::new();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes.len());
    let constant = constant_nodes(graph);
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
