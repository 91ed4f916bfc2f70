//! Two products of one left operand, as two products.
//!
//! In: a node whose epilogue is a term of two accumulators. Out: a graph with the same function:
//! the second product is stored, and the first one's epilogue reads it. Invariant: the inputs are
//! the node's operands, in order.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, OpBody};
use hypatia_dsl::typing::TensorType;

use super::graph::kernels::Product;
use super::{Graph, Node, NodeKind};
use hypatia_tensor::error::{Error, Result};

impl Graph {
    /// True for a node that is two products of one left operand.
    pub fn is_pair(&self, node: &Node) -> bool {
        let NodeKind::Op { op, .. } = &node.kind else { return false };
        matches!(self.program.op(*op).body, OpBody::Builtin(b) if b.is_pair())
    }

    /// The two products of such a node, one after the other. The second product is rounded where
    /// the plan without rules stores it.
    pub fn two_products(&self, node: &Node) -> Result<Graph> {
        let broken = || Error::Internal("two products without their operands".into());
        let NodeKind::Op { term: Some(term), .. } = &node.kind else { return Err(broken()) };
        let gemm = self.program.builtin_op(BuiltinOp::Gemm);
        let gemm = gemm.ok_or_else(|| Error::Input("the rules do not declare the builtin op `gemm`".into()))?;
        let mut out = Graph::new(self.program.clone());
        let mut operands = Vec::with_capacity(node.operands.len() + 1);
        for (i, v) in node.operands.iter().enumerate() {
            let v = v.ok_or_else(broken)?;
            operands.push(Some(out.input(format!("operand{i}"), self.ty(v).clone())));
        }
        let [a, b, c, reads @ ..] = operands.as_slice() else { return Err(broken()) };
        let [TensorType { dtype: to, .. }] = node.results.as_slice() else { return Err(broken()) };
        let from = a.map(|a| out.ty(a).dtype).ok_or_else(broken)?;
        let between = Product { term, from, to: *to }.between();
        let second = out.op(gemm, &[*a, *c], vec![AttrValue::DType(between)], Some(Product::plain()))?;
        let term = term.reading_second(reads.len() as u32);
        let of_first: Vec<_> =
            [*a, *b].into_iter().chain(reads.iter().copied()).chain(second.into_iter().map(Some)).collect();
        let result = out.op(gemm, &of_first, vec![AttrValue::DType(*to)], Some(term))?;
        result.into_iter().enumerate().for_each(|(i, v)| out.output(format!("result{i}"), v));
        Ok(out)
    }
}
