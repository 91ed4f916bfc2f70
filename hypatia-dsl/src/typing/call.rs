//! An application of a builtin op: the input of its shape function.
//!
//! In: attribute values (normalised) and operand types. Out: each of them by position, or an error
//! that names the op, the operand or attribute, and what is wrong with it.

use crate::builtin::BuiltinOp;
use crate::dtype::DType;
use crate::ir::{AttrValue, Param};
use crate::shape::{Dim, Shape};

use super::eval::{as_dims, position};
use super::show::one_of;
use super::{TensorType, TypeError, codes, show_value};

/// The hint for differing element types.
const CAST_HINT: &str = "convert one operand with `cast`: there is no implicit promotion";

/// An application of a builtin op.
pub(super) struct Call<'a> {
    /// The op's name.
    pub name: &'a str,
    /// Its parameters, for their names.
    pub params: &'a [Param],
    /// One value for each attribute.
    pub attrs: &'a [AttrValue],
    /// The operands.
    pub operands: &'a [TensorType],
}

pub(super) type Types = Result<Vec<TensorType>, TypeError>;
pub(super) fn one(dtype: DType, shape: Shape) -> Types {
    Ok(vec![TensorType { dtype, shape }])
}

impl Call<'_> {
    pub(super) fn operand(&self, i: usize) -> Result<&TensorType, TypeError> {
        self.operands.get(i).ok_or_else(|| {
            let text = format!("{}: {} operands are not enough", self.name, self.operands.len());
            TypeError::new(codes::OPERANDS, text).hint(format!("pass at least one: `{}(x, ...)`", self.name))
        })
    }

    /// The name of tensor operand `i`. The operands of a variadic parameter are numbered.
    pub(super) fn operand_name(&self, i: usize) -> String {
        use crate::ir::ParamKind::Tensor;
        let mut tensors = self.params.iter().filter_map(|p| match p.kind {
            Tensor { variadic, .. } => Some((p.name.as_str(), variadic)),
            _ => None,
        });
        match tensors.nth(i) {
            Some((name, false)) => name.to_string(),
            _ => format!("operand {i}"),
        }
    }

    pub(super) fn attr(&self, i: usize) -> Result<&AttrValue, TypeError> {
        self.attrs.get(i).ok_or_else(|| self.error(codes::ATTRIBUTE, format!("attribute {i} is missing")))
    }

    pub(super) fn attr_name(&self, i: usize) -> &str {
        let attrs = self.params.iter().filter(|p| matches!(p.kind, crate::ir::ParamKind::Attr { .. }));
        attrs.map(|p| p.name.as_str()).nth(i).unwrap_or("?")
    }

    pub(super) fn error(&self, code: crate::diag::Code, text: String) -> TypeError {
        TypeError::new(code, format!("{}: {text}", self.name))
    }

    /// An error about attribute `i`: `` `axis = 3` <why> ``.
    pub(super) fn bad_attr(&self, i: usize, why: &str) -> TypeError {
        let value = self.attrs.get(i).map_or_else(|| "?".into(), show_value);
        self.error(codes::ATTRIBUTE, format!("attribute `{} = {value}` {why}", self.attr_name(i)))
    }

    pub(super) fn dtype(&self, i: usize) -> Result<DType, TypeError> {
        match self.attr(i)? {
            AttrValue::DType(d) => Ok(*d),
            _ => Err(self.bad_attr(i, "must be an element type")),
        }
    }

    pub(super) fn flag(&self, i: usize) -> Result<bool, TypeError> {
        match self.attr(i)? {
            AttrValue::Bool(b) => Ok(*b),
            _ => Err(self.bad_attr(i, "must be `true` or `false`")),
        }
    }

    pub(super) fn size(&self, i: usize) -> Result<Dim, TypeError> {
        match self.attr(i)? {
            AttrValue::Dim(d) => Ok(d.clone()),
            _ => Err(self.bad_attr(i, "must be a size")),
        }
    }

    pub(super) fn int(&self, i: usize) -> Result<i64, TypeError> {
        self.size(i)?.as_const().ok_or_else(|| self.bad_attr(i, "must be an integer"))
    }

    pub(super) fn list(&self, i: usize) -> Result<Vec<Dim>, TypeError> {
        match self.attr(i)? {
            AttrValue::List(items) => as_dims(items).ok_or_else(|| self.bad_attr(i, "must be a list of sizes")),
            _ => Err(self.bad_attr(i, "must be a list of sizes")),
        }
    }

    /// A list of sizes, none of them negative.
    pub(super) fn sizes(&self, i: usize) -> Result<Vec<Dim>, TypeError> {
        let sizes = self.list(i)?;
        match sizes.iter().find(|d| d.known_le(&Dim::from(-1)) == Some(true)) {
            Some(d) => Err(self
                .bad_attr(i, &format!("contains {d}, but a size must be at least 0"))
                .hint("write the size itself: -1 does not mean \"infer this size\"")),
            None => Ok(sizes),
        }
    }

    /// An axis of a tensor with that rank.
    pub(super) fn axis(&self, i: usize, rank: usize) -> Result<usize, TypeError> {
        let axis = self.int(i)?;
        position(axis, rank).ok_or_else(|| self.bad_attr(i, &format!("is out of range: the operand has {rank} axes")))
    }

    /// Numbers to compute with.
    pub(super) fn needs_numbers(&self, i: usize) -> Result<(), TypeError> {
        let ty = self.operand(i)?;
        if ty.dtype.only_stored() {
            return Err(stored(self.name, &self.operand_name(i), ty).about(i));
        }
        if ty.dtype == DType::Bool {
            let text = format!("`{}` must contain numbers, but is {ty}", self.operand_name(i));
            return Err(self.error(codes::DTYPE, text).about(i).hint("convert it with `cast`"));
        }
        Ok(())
    }

    /// Numbers to multiply: where `to` is the element type of the result, they may be of a type
    /// that is only stored.
    pub(super) fn needs_factors(&self, i: usize, to: Option<DType>) -> Result<(), TypeError> {
        let ty = self.operand(i)?;
        match to {
            Some(_) if ty.dtype.only_stored() => Ok(()),
            None if ty.dtype.only_stored() => {
                let op = BuiltinOp::from_name(self.name);
                let carries = |o: &&BuiltinOp| o.accumulator() == op && op.is_some() && !o.is_pair();
                let summed = BuiltinOp::ALL.iter().find(carries).map_or("gemm", |o| o.name());
                let hint = format!(
                    "`{summed}` with the epilogue `acc` and `to = f32` sums in f32; or cast both operands first"
                );
                Err(stored(self.name, &self.operand_name(i), ty).about(i).hint(hint))
            }
            _ => self.needs_numbers(i),
        }
    }

    pub(super) fn needs_floats(&self, i: usize) -> Result<(), TypeError> {
        let ty = self.operand(i)?;
        if ty.dtype.only_stored() {
            return self.needs_numbers(i);
        }
        if !ty.dtype.is_float() {
            let floats: Vec<DType> = DType::ALL.into_iter().filter(|d| d.computes_in_floats()).collect();
            let text = format!("`{}` must be {}, but is {ty}", self.operand_name(i), one_of(&floats));
            return Err(self.error(codes::DTYPE, text).about(i).hint("convert it with `cast`"));
        }
        Ok(())
    }

    pub(super) fn needs_indices(&self, i: usize) -> Result<(), TypeError> {
        let ty = self.operand(i)?;
        if !ty.dtype.is_int() {
            let text = format!("`{}` must contain integers, but is {ty}", self.operand_name(i));
            return Err(self.error(codes::DTYPE, text).about(i).hint("convert it with `cast(.., to = i64)`"));
        }
        Ok(())
    }

    /// Checks that operands 0 and `i` have the same element type.
    pub(super) fn same_dtype(&self, i: usize) -> Result<(), TypeError> {
        let (a, b) = (self.operand(0)?, self.operand(i)?);
        if a.dtype != b.dtype {
            let text = format!(
                "the operands must have the same element type, but `{}` is {a} and `{}` is {b}",
                self.operand_name(0),
                self.operand_name(i)
            );
            return Err(self.error(codes::DTYPE, text).about(i).hint(CAST_HINT));
        }
        Ok(())
    }

    pub(super) fn at_least(&self, i: usize, rank: usize) -> Result<&TensorType, TypeError> {
        let ty = self.operand(i)?;
        if ty.shape.len() < rank {
            let axes = if rank == 1 { "1 axis".to_string() } else { format!("{rank} axes") };
            let text = format!("`{}` must have at least {axes}, but is {ty}", self.operand_name(i));
            return Err(self.error(codes::RANK, text).about(i));
        }
        Ok(ty)
    }

    pub(super) fn overflow(&self) -> TypeError {
        self.error(codes::RESULT, "a size of the result is too large".into())
    }
}

/// The error for an operand whose element type is only stored.
pub(super) fn stored(applied: &str, operand: &str, ty: &TensorType) -> TypeError {
    let text = format!("{applied}: `{operand}` is {ty}, and {} is only stored: nothing computes in it", ty.dtype);
    TypeError::new(codes::DTYPE, text)
        .hint("cast it first, for example with `cast(.., to = f32)`, and cast the result back")
}

/// "must agree, but" for a known mismatch, or "cannot be shown to agree:".
pub(super) fn agree(known: Option<bool>) -> &'static str {
    if known == Some(false) { "must agree, but" } else { "cannot be shown to agree:" }
}
