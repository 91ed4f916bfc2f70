//! Widening: runs an f16 or bf16 graph in f32.
//!
//! In: a graph. Out: a graph that takes the same inputs and computes in f32 whatever was narrower;
//! its narrow outputs become f32. It shows how much of a result's error comes from narrow types,
//! and nothing else. Invariant: inputs keep their types. Values that are f32, f64 or not floats do
//! not change.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::scalar::{Term, TermNode};

use super::{Graph, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

fn narrow(dtype: DType) -> bool {
    dtype.is_float() && dtype.size() < DType::F32.size()
}

fn wide(dtype: DType) -> DType {
    if narrow(dtype) { DType::F32 } else { dtype }
}

fn wide_attr(attr: &AttrValue) -> AttrValue {
    match attr {
        AttrValue::DType(d) => AttrValue::DType(wide(*d)),
        other => other.clone(),
    }
}

fn wide_term(term: &Term) -> Term {
    let mut term = term.clone();
    for node in &mut term.nodes {
        if let TermNode::Cast { to, .. } = node {
            *to = wide(*to);
        }
    }
    term
}

impl Graph {
    /// True if any node computes in a float type narrower than f32.
    pub fn computes_narrow(&self) -> bool {
        let computed = |k: &NodeKind| matches!(k, NodeKind::Op { .. } | NodeKind::Scalar(_));
        self.nodes.iter().any(|n| computed(&n.kind) && n.results.iter().any(|t| narrow(t.dtype)))
    }

    /// The graph with all narrower floats replaced by f32.
    pub fn widened(&self) -> Result<Graph> {
        let mut out = Graph::new(self.program.clone());
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(self.nodes.len());
        let mut inputs: Vec<NodeId> = Vec::new();
        for node in &self.nodes {
            let operands: Vec<Option<Value>> =
                node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
            let results = match &node.kind {
                NodeKind::Input { name } => {
                    let value = out.input(name.clone(), node.results[0].clone());
                    inputs.push(value.node);
                    if narrow(node.results[0].dtype) {
                        out.builtin(BuiltinOp::Cast, &[value], vec![AttrValue::DType(DType::F32)])?
                    } else {
                        vec![value]
                    }
                }
                NodeKind::Const(t) if narrow(t.dtype()) => {
                    let exact = Tensor::from_f64(DType::F32, t.shape(), &t.to_f64());
                    vec![out.constant(exact.ok_or_else(|| Error::Internal("a constant as f32".into()))?)]
                }
                NodeKind::Const(t) => vec![out.constant(t.clone())],
                NodeKind::Scalar(s) => vec![out.scalar(*s, &operands.into_iter().flatten().collect::<Vec<_>>())?],
                NodeKind::Op { op, attrs, term } => {
                    out.op(*op, &operands, attrs.iter().map(wide_attr).collect(), term.as_ref().map(wide_term))?
                }
            };
            map.push(results);
        }
        out.inputs = inputs;
        for (name, v) in &self.outputs {
            out.output(name.clone(), map[v.node.index()][v.output as usize]);
        }
        Ok(out)
    }
}
