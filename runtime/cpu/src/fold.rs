//! Constant folding with the host's executor.
//!
//! In: a graph of builtin ops without inputs. Out: its outputs. Invariant: they are bit-identical
//! to a run's, on one thread.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;

use super::Executor;
use super::interp::of_numbers;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{ConstantFolder, Graph, Node, NodeId, NodeKind, Value, is_view};
use hypatia_plan::{Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// Computes constants like the host's executor: by planning and running.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostFolder;

impl ConstantFolder for HostFolder {
    fn fold(&self, graph: &Graph, cluster: bool) -> Result<Vec<Tensor>> {
        let options = Options { cluster, ..Options::new(Device::cpu()) };
        let plan = Plan::inlined(&counted(graph.clone())?, &options)?;
        Executor::new(Arc::new(plan), 1)?.run(&[])
    }

    fn scalar(&self, f: BuiltinScalar, dtype: DType, args: [f64; 2]) -> f64 {
        of_numbers(f, dtype, args)
    }
}

/// The graph with ops without operands replaced by their values: positions and sizes, which no step
/// computes.
fn counted(mut graph: Graph) -> Result<Graph> {
    let is_counted = |n: &Node| matches!(n.kind, NodeKind::Op { .. }) && n.operands.is_empty() && !is_view(&graph, n);
    let found: Vec<Value> = (0..graph.nodes.len())
        .filter(|i| is_counted(&graph.nodes[*i]))
        .map(|i| Value { node: NodeId(i as u32), output: 0 })
        .collect();
    if found.is_empty() {
        return Ok(graph);
    }
    let mut part = graph.clone();
    part.outputs = found.iter().map(|v| (String::new(), *v)).collect();
    for (v, value) in found.iter().zip(evaluate(&part.pruned(), &[], Mode::Rounded)?) {
        graph.nodes[v.node.index()].kind = NodeKind::Const(Arc::new(value.to_tensor()?));
    }
    Ok(graph)
}
