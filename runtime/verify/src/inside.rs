//! Ops as their kernels compute them: narrow operands, f32 inside.
//!
//! In: a graph. Out: the same graph, where each op that has a generated kernel takes operands of
//! f16 or bf16 as f32, and its results are rounded once. Invariant: types of inputs and outputs
//! stay; an op without a generated kernel is left as it is, so that its body rounds every step.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Backend, Head, OpBody, OpId, Pat};
use hypatia_graph::{Graph, Node, NodeKind, Value};
use hypatia_tensor::error::Result;

/// The graph with its ops as kernels.
pub(super) fn as_kernels(graph: &Graph) -> Result<Graph> {
    let mut out = Graph::new(graph.program.clone());
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let operands: Vec<Option<Value>> =
            node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
        let results = match &node.kind {
            NodeKind::Input { name } => vec![out.input(name.clone(), node.results[0].clone())],
            NodeKind::Const(t) => vec![out.constant(t.clone())],
            NodeKind::Scalar(s) => vec![out.scalar(*s, &operands.into_iter().flatten().collect::<Vec<_>>())?],
            NodeKind::Op { op, attrs, term } => match has_kernel(graph, *op) && narrow(node) {
                true => call(&mut out, node, *op, attrs, &operands)?,
                false => out.op(*op, &operands, attrs.clone(), term.clone())?,
            },
        };
        map.push(results);
    }
    for (name, v) in &graph.outputs {
        out.output(name.clone(), map[v.node.index()][v.output as usize]);
    }
    Ok(out)
}

/// Whether an op of the graph has a kernel that rounds less often than its body.
pub(super) fn has_kernels(graph: &Graph) -> bool {
    let kernel = |n: &Node| matches!(n.kind, NodeKind::Op { op, .. } if narrow(n) && has_kernel(graph, op));
    graph.nodes.iter().any(kernel)
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn narrow(node: &Node) -> bool {
    node.results.iter().any(|t| is_narrow(t.dtype))
}

fn has_kernel(graph: &Graph, op: OpId) -> bool {
    let generated = |b: &Backend| matches!(b, Backend::Rowwise | Backend::Pointwise);
    let of = |p: &Pat| matches!(p, Pat::Node(n) if n.head == Head::Op(op));
    matches!(graph.program.op(op).body, OpBody::Defined(_))
        && graph.program.kernels.iter().any(|k| generated(&k.backend) && of(&k.pattern))
}

fn call(out: &mut Graph, node: &Node, op: OpId, attrs: &[AttrValue], operands: &[Option<Value>]) -> Result<Vec<Value>> {
    let mut wide = Vec::with_capacity(operands.len());
    for v in operands {
        wide.push(match v {
            Some(v) if is_narrow(out.ty(*v).dtype) => Some(cast(out, *v, DType::F32)?),
            v => *v,
        });
    }
    let attrs = attrs.iter().map(|a| match a {
        AttrValue::DType(d) if is_narrow(*d) => AttrValue::DType(DType::F32),
        a => a.clone(),
    });
    let results = out.op(op, &wide, attrs.collect(), None)?;
    results.into_iter().zip(&node.results).map(|(v, t)| cast(out, v, t.dtype)).collect()
}

fn cast(out: &mut Graph, v: Value, to: DType) -> Result<Value> {
    if out.ty(v).dtype == to {
        return Ok(v);
    }
    Ok(out.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)])?[0])
}
