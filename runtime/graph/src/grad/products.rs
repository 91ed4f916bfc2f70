//! Gradients of matrix products, and of products and convolutions with an epilogue.
//!
//! In: the product, the gradient of its result. Out: the gradients of its factors and of what the
//! epilogue reads. Invariant: each gradient of a factor is one product of the type of that factor;
//! a factor that all batches share is multiplied once, over the rows of all batches.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::scalar::{Term, TermNode, derivative};
use hypatia_dsl::shape::product;
use hypatia_tensor::error::{Error, Result};

use super::emit::size;
use super::{Applied, Backward};
use crate::Value;

impl Backward<'_> {
    /// `c = a b`: the gradient of `a` is `g b^T`, that of `b` is `a^T g`.
    pub(super) fn matmul(&mut self, a: &Applied) -> Result<()> {
        let (left, right, gradient) = (a.operand(0)?, a.operand(1)?, a.gradient()?);
        self.factors(left, right, gradient)
    }

    /// Adds to the gradients of both factors of a product.
    fn factors(&mut self, left: Value, right: Value, gradient: Value) -> Result<()> {
        if self.wants(left) {
            let turned = self.emit.turned(right)?;
            let whole = self.emit.op(BuiltinOp::Matmul, &[gradient, turned], &[])?;
            let shape = self.emit.shape(left);
            let part = self.emit.unbroadcast(whole, &shape)?;
            self.add(left, part)?;
        }
        if self.wants(right) {
            let shape = self.emit.shape(right);
            let shared = shape.len() == 2 && self.emit.rank(left) == self.emit.rank(gradient);
            let (left, gradient) = if shared { (self.rows(left)?, self.rows(gradient)?) } else { (left, gradient) };
            let turned = self.emit.turned(left)?;
            let whole = self.emit.op(BuiltinOp::Matmul, &[turned, gradient], &[])?;
            let part = self.emit.unbroadcast(whole, &shape)?;
            self.add(right, part)?;
        }
        Ok(())
    }

    /// All batches as rows of one matrix.
    fn rows(&mut self, v: Value) -> Result<Value> {
        let shape = self.emit.shape(v);
        let (columns, rows) = (shape[shape.len() - 1].clone(), size(product(&shape[..shape.len() - 1]))?);
        self.emit.reshape(v, vec![rows, columns])
    }

    /// A product with an epilogue: through the derivatives of the epilogue by its accumulators and
    /// by what it reads. The accumulators are computed once more.
    pub(super) fn epilogue(&mut self, a: &Applied) -> Result<()> {
        let Some(term) = &a.term else { return Err(Error::Internal(format!("{} has no term", a.op.name()))) };
        let factors = if a.op.is_pair() { 3 } else { 2 };
        let (left, right) = (a.operand(0)?, a.operand(1)?);
        let dtype = self.emit.dtype(left).compute();
        let mut accumulators = vec![self.accumulator(a, left, right)?];
        if a.op.is_pair() {
            accumulators.push(self.accumulator(a, left, a.operand(2)?)?);
        }
        let reads: Vec<Value> = a.operands[factors..].iter().flatten().copied().collect();
        let leaf = |node: &TermNode| match node {
            TermNode::Acc => accumulators.first().copied(),
            TermNode::Second => accumulators.get(1).copied(),
            TermNode::In { input, .. } => reads.get(*input as usize).copied(),
            _ => None,
        };
        let gradient = self.emit.cast(a.gradient()?, dtype)?;
        for (node, right) in [(TermNode::Acc, right), (TermNode::Second, a.operand(factors - 1)?)] {
            if !term.nodes.contains(&node) || !(self.wants(left) || self.wants(right)) {
                continue;
            }
            let slope = self.slope(term, &node)?;
            let Some(inner) = self.times(&slope, &leaf, dtype, gradient)? else { continue };
            let inner = self.emit.cast(inner, self.emit.dtype(left))?;
            match a.op {
                BuiltinOp::ConvGemm => self.conv_factors(a, inner)?,
                _ => self.factors(left, right, inner)?,
            }
        }
        for node in term.nodes.iter().filter(|n| matches!(n, TermNode::In { .. })) {
            let Some(read) = leaf(node) else { return Err(Error::Internal("a term reads no operand".into())) };
            if self.wants(read) {
                let slope = self.slope(term, node)?;
                let Some(part) = self.times(&slope, &leaf, dtype, gradient)? else { continue };
                let part = self.emit.cast(part, self.emit.dtype(read))?;
                let shape = self.emit.shape(read);
                let part = self.emit.unbroadcast(part, &shape)?;
                self.add(read, part)?;
            }
        }
        Ok(())
    }

    fn slope(&self, term: &Term, by: &TermNode) -> Result<Term> {
        derivative(&self.emit.graph().program, term, by).map_err(|e| Error::Type(e.into()))
    }

    /// The product of two factors as the epilogue sees it.
    fn accumulator(&mut self, a: &Applied, left: Value, right: Value) -> Result<Value> {
        let dtype = self.emit.dtype(left).compute();
        let (left, right) = (self.emit.cast(left, dtype)?, self.emit.cast(right, dtype)?);
        match a.op {
            // The last attribute is the type of the result.
            BuiltinOp::ConvGemm => self.emit.op(BuiltinOp::Conv, &[left, right], &a.attrs[..a.attrs.len() - 1]),
            _ => self.emit.op(BuiltinOp::Matmul, &[left, right], &[]),
        }
    }
}
