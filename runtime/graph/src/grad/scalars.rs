//! Gradients of scalar functions, and of the terms of epilogues.
//!
//! In: a scalar or a term, its operands, the gradient of its result. Out: the gradient of each
//! operand. Invariant: where a derivative chooses (`select`), the gradient is chosen too, not
//! multiplied by 0 or 1: an infinite gradient of what was not chosen is no NaN.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{ScalarBody, ScalarId};
use hypatia_dsl::scalar::{Term, TermId, TermNode, gradients};
use hypatia_tensor::error::{Error, Result};

use super::Backward;
use crate::Value;
use crate::kinds::is_exact;

impl Backward<'_> {
    /// The gradients of a scalar function's operands.
    pub(super) fn scalar(
        &mut self,
        scalar: ScalarId,
        operands: &[Value],
        result: Value,
        gradient: Value,
    ) -> Result<()> {
        let program = self.emit.graph().program.clone();
        if program.scalar(scalar).result == Kind::Bool {
            return Ok(());
        }
        let slopes = gradients(&program, scalar).map_err(|e| Error::Type(e.into()))?;
        let leaf = |node: &TermNode| match node {
            TermNode::Param(i) => operands.get(*i as usize).copied(),
            _ => None,
        };
        for (operand, slope) in operands.iter().zip(&slopes) {
            if self.wants(*operand) {
                let dtype = self.emit.dtype(result);
                if let Some(part) = self.times(slope, &leaf, dtype, gradient)? {
                    let part = self.emit.cast(part, self.emit.dtype(*operand))?;
                    let shape = self.emit.shape(*operand);
                    let part = self.emit.unbroadcast(part, &shape)?;
                    self.add(*operand, part)?;
                }
            }
        }
        Ok(())
    }

    /// `gradient * slope`, where `slope` is a term over the leaves; `None` if it is 0. Leaves and
    /// result have the type `dtype`. More than one rounding is worth computing in f32.
    pub(super) fn times(
        &mut self,
        slope: &Term,
        leaf: &dyn Fn(&TermNode) -> Option<Value>,
        dtype: DType,
        gradient: Value,
    ) -> Result<Option<Value>> {
        let within = if self.roundings(slope) > 1 { dtype.compute() } else { dtype };
        let gradient = self.emit.cast(gradient, within)?;
        let mut terms = Terms { back: self, term: slope, leaf, dtype: within, made: vec![None; slope.nodes.len()] };
        let made = terms.scaled(slope.root(), gradient)?;
        made.map(|v| self.emit.cast(v, dtype)).transpose()
    }

    /// An upper bound of the number of roundings in `gradient * slope`.
    fn roundings(&self, slope: &Term) -> usize {
        let program = &self.emit.graph().program;
        let rounds = |node: &TermNode| match node {
            TermNode::Call { scalar, .. } => match program.scalar(*scalar).body {
                ScalarBody::Builtin(f) => usize::from(!is_exact(f)),
                ScalarBody::Term(_) => 2,
            },
            TermNode::Cast { .. } => 2,
            _ => 0,
        };
        1 + slope.nodes.iter().map(rounds).sum::<usize>()
    }
}

/// A term while its nodes become nodes of the graph.
struct Terms<'b, 'g, 't> {
    back: &'b mut Backward<'g>,
    term: &'t Term,
    leaf: &'t dyn Fn(&TermNode) -> Option<Value>,
    /// The type in which numbers are computed.
    dtype: DType,
    made: Vec<Option<Value>>,
}

impl Terms<'_, '_, '_> {
    fn function(&self, scalar: ScalarId) -> Option<BuiltinScalar> {
        match self.back.emit.graph().program.scalar(scalar).body {
            ScalarBody::Builtin(f) => Some(f),
            ScalarBody::Term(_) => None,
        }
    }

    /// `gradient` times the term of that node; `None` if it is 0.
    fn scaled(&mut self, id: TermId, gradient: Value) -> Result<Option<Value>> {
        match self.term.node(id).clone() {
            TermNode::Lit(l) if l.0 == 0.0 => Ok(None),
            TermNode::Lit(l) if l.0 == 1.0 => Ok(Some(gradient)),
            TermNode::Lit(l) if l.0 == -1.0 => self.back.emit.call(BuiltinScalar::Neg, &[gradient]).map(Some),
            TermNode::Call { scalar, args } => match (self.function(scalar), args.as_slice()) {
                (Some(BuiltinScalar::Select), &[c, a, b]) => {
                    let condition = self.value(c)?;
                    let (a, b) = (self.scaled(a, gradient)?, self.scaled(b, gradient)?);
                    if a.is_none() && b.is_none() {
                        return Ok(None);
                    }
                    let zero = self.back.emit.number(self.dtype, 0.0)?;
                    let operands = [condition, a.unwrap_or(zero), b.unwrap_or(zero)];
                    self.back.emit.call(BuiltinScalar::Select, &operands).map(Some)
                }
                (Some(BuiltinScalar::Neg), &[a]) => {
                    let a = self.scaled(a, gradient)?;
                    a.map(|a| self.back.emit.call(BuiltinScalar::Neg, &[a])).transpose()
                }
                (Some(BuiltinScalar::Div), &[a, b]) => {
                    let (a, b) = (self.scaled(a, gradient)?, self.value(b)?);
                    a.map(|a| self.back.emit.call(BuiltinScalar::Div, &[a, b])).transpose()
                }
                _ => self.product(id, gradient).map(Some),
            },
            _ => self.product(id, gradient).map(Some),
        }
    }

    fn product(&mut self, id: TermId, gradient: Value) -> Result<Value> {
        let value = self.value(id)?;
        self.back.emit.mul(gradient, value)
    }

    /// The value of that node.
    fn value(&mut self, id: TermId) -> Result<Value> {
        if let Some(made) = self.made[id.0 as usize] {
            return Ok(made);
        }
        let value = match self.term.node(id).clone() {
            TermNode::Lit(l) => self.back.emit.number(self.dtype, l.0)?,
            TermNode::Call { scalar, args } => {
                let args = args.iter().map(|a| self.value(*a)).collect::<Result<Vec<_>>>()?;
                self.back.emit.into.scalar(scalar, &args)?
            }
            TermNode::Cast { to, arg } => {
                let cast = self.value(arg)?;
                let cast = self.back.emit.cast(cast, to)?;
                if to.is_float() { self.back.emit.cast(cast, self.dtype)? } else { cast }
            }
            leaf => {
                let read = (self.leaf)(&leaf);
                let read = read.ok_or_else(|| Error::Internal("a derivative reads an unknown leaf".into()))?;
                if self.back.emit.dtype(read).is_float() { self.back.emit.cast(read, self.dtype)? } else { read }
            }
        };
        self.made[id.0 as usize] = Some(value);
        Ok(value)
    }
}
