//! Widening: runs an f16 or bf16 graph in f32, or any graph in f64.
//!
//! In: a graph. Out: a graph that takes the same inputs and computes in that type whatever was
//! narrower; its narrow outputs become that type. It shows how much of a result's error comes from
//! rounding, and nothing else. Invariant: inputs keep their types. Wider values, and those that are
//! no floats, do not change.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::scalar::{Term, TermNode};

use super::{Graph, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

fn is_narrower(dtype: DType, than: DType) -> bool {
    dtype.is_float() && dtype.size() < than.size()
}

fn wide(dtype: DType, least: DType) -> DType {
    if is_narrower(dtype, least) { least } else { dtype }
}

fn wide_attr(attr: &AttrValue, least: DType) -> AttrValue {
    match attr {
        AttrValue::DType(d) => AttrValue::DType(wide(*d, least)),
        other => other.clone(),
    }
}

fn wide_term(term: &Term, least: DType) -> Term {
    let mut term = term.clone();
    for node in &mut term.nodes {
        if let TermNode::Cast { to, .. } = node {
            *to = wide(*to, least);
        }
    }
    term
}

impl Graph {
    /// True if any node computes in a float type narrower than f32.
    pub fn computes_narrow(&self) -> bool {
        let computed = |k: &NodeKind| matches!(k, NodeKind::Op { .. } | NodeKind::Scalar(_));
        self.nodes.iter().any(|n| computed(&n.kind) && n.results.iter().any(|t| is_narrower(t.dtype, DType::F32)))
    }

    /// The graph with all narrower floats replaced by f32.
    ///
    /// # Errors
    /// If an op does not take f32.
    pub fn widened(&self) -> Result<Graph> {
        self.widened_to(DType::F32)
    }

    /// The graph with all floats replaced by f64.
    ///
    /// # Errors
    /// If an op does not take f64.
    pub fn in_f64(&self) -> Result<Graph> {
        self.widened_to(DType::F64)
    }

    fn widened_to(&self, least: DType) -> Result<Graph> {
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
                    if is_narrower(node.results[0].dtype, least) {
                        out.builtin(BuiltinOp::Cast, &[value], vec![AttrValue::DType(least)])?
                    } else {
                        vec![value]
                    }
                }
                NodeKind::Const(t) if is_narrower(t.dtype(), least) => {
                    let exact = Tensor::from_f64(least, t.shape(), &t.to_f64());
                    vec![out.constant(exact.ok_or_else(|| Error::Internal("a wider constant".into()))?)]
                }
                NodeKind::Const(t) => vec![out.constant(t.clone())],
                NodeKind::Scalar(s) => vec![out.scalar(*s, &operands.into_iter().flatten().collect::<Vec<_>>())?],
                NodeKind::Op { op, attrs, term } => {
                    let attrs = attrs.iter().map(|a| wide_attr(a, least)).collect();
                    out.op(*op, &operands, attrs, term.as_ref().map(|t| wide_term(t, least)))?
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
