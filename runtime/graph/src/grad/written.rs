//! Gradients that ops write: `grad(y, dy) = ...`.
//!
//! In: an application of such an op, the gradients of its results. Out: the gradients of its
//! operands. Invariant: they are computed in f32 at least, where the op allows it, and rounded
//! once.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, OpDef, OpGrad, OpId, ParamKind, VarId};
use hypatia_tensor::error::{Error, Result};

use super::Backward;
use crate::Value;

impl Backward<'_> {
    pub(super) fn written(
        &mut self,
        op: OpId,
        operands: &[Option<Value>],
        attrs: &[AttrValue],
        results: &[Value],
        given: &[Option<Value>],
    ) -> Result<()> {
        let program = self.emit.graph().program.clone();
        let def = program.op(op);
        let Some(grad) = &def.grad else {
            return Err(Error::Internal(format!("`{}` has no `grad`, but was not inlined", def.name)));
        };
        let wide = operands.iter().map(|v| v.map(|v| self.widened(def, v)).transpose()).collect::<Result<Vec<_>>>()?;
        let mut env = self.emit.into.op_env(op, &wide, attrs, None)?;
        for (i, (result, gradient)) in results.iter().zip(given).enumerate() {
            let gradient = match gradient {
                Some(gradient) => *gradient,
                None => self.emit.full(&self.emit.ty(*result).clone(), 0.0)?,
            };
            for (value, at) in [(*result, i), (gradient, i + results.len())] {
                env.tensors.insert(VarId(grad.first.0 + at as u32), self.widened(def, value)?);
            }
        }
        for (operand, build) in &grad.of {
            let Some(value) = narrow_of(def, operands, *operand).filter(|v| self.wants(*v)) else { continue };
            let part = self.emit.into.build(build, &env).map_err(|e| at(def, grad, *operand, e))?;
            let part = self.emit.cast(part, self.emit.dtype(value))?;
            let (have, wanted) = (self.emit.ty(part), self.emit.ty(value));
            if have != wanted {
                let name = &def.params[*operand].name;
                let message = format!("`grad` of `{}` gives {have} for `{name}`, which is {wanted}", def.name);
                return Err(Error::Type(message.into()));
            }
            self.add(value, part)?;
        }
        Ok(())
    }

    /// The value in the type in which its element type is computed, if the op allows that type.
    fn widened(&mut self, def: &OpDef, value: Value) -> Result<Value> {
        let (from, to) = (self.emit.dtype(value), self.emit.dtype(value).compute());
        let allows = |to: DType| def.bounds.iter().all(|(_, list)| !list.contains(&from) || list.contains(&to));
        if from.is_float() && from != to && allows(to) { self.emit.cast(value, to) } else { Ok(value) }
    }
}

/// The operand that is parameter `i`; no op with `grad` has variadic operands or terms.
fn narrow_of(def: &OpDef, operands: &[Option<Value>], i: usize) -> Option<Value> {
    let before = def.params[..i].iter().filter(|p| matches!(p.kind, ParamKind::Tensor { .. })).count();
    operands.get(before).copied().flatten()
}

fn at(def: &OpDef, grad: &OpGrad, operand: usize, e: Error) -> Error {
    let name = grad.vars.get(operand).map_or("", |v| v.name.as_str());
    match e {
        Error::Type(m) => Error::Type(m.at(format_args!("in the gradient of `{name}` that `{}` writes", def.name))),
        e => e,
    }
}
