//! Types of tensors and of applications.
//!
//! In: an op or scalar of a Program, attribute values, operand types. Out: result types, or why
//! there are none. `sema` (tests, bodies), the importer, the graph builder and the e-graph's
//! analysis use it, so that there is one set of typing rules. Invariant: no implicit promotion.

mod attrs;
mod bindings;
mod builtin;
mod call;
mod eval;
mod infer;
mod matching;
mod show;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod window;

use crate::diag::Code;
use crate::dtype::DType;
use crate::ir::{AttrValue, VarId};
use crate::shape::{Shape, show_shape};

pub use attrs::normalise_attrs;
pub use bindings::{Bindings, Values};
pub use eval::{eval, eval_guard, same_value};
pub use infer::{apply_op, apply_scalar, bind_op, type_fact};
pub use matching::{Mismatch, match_dims, match_type, match_type_or_why};
pub(crate) use show::one_of;
pub use show::{attr_type_name, attr_type_words, show_bound, show_expr, show_type_pat, show_value};

/// Diagnostic codes of type errors.
pub mod codes {
    use crate::diag::Code;
    /// A tensor's rank is not one that the op takes.
    pub const RANK: Code = Code(301);
    /// Element types that must agree differ, or the op does not take an element type.
    pub const DTYPE: Code = Code(302);
    /// An attribute is missing, of the wrong type, or out of range.
    pub const ATTRIBUTE: Code = Code(303);
    /// Sizes that must agree differ, or cannot be shown to agree.
    pub const SIZE: Code = Code(304);
    /// Shapes that must broadcast do not broadcast.
    pub const BROADCAST: Code = Code(305);
    /// A requirement of the op does not hold, or cannot be shown to hold.
    pub const REQUIRES: Code = Code(306);
    /// Too few or too many operands.
    pub const OPERANDS: Code = Code(307);
    /// The type of a result cannot be inferred.
    pub const RESULT: Code = Code(308);
    /// The epilogue of a product of bytes does not give what is stored.
    pub const BYTES: Code = Code(309);
}

/// Element type and shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Shape,
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.dtype, show_shape(&self.shape))
    }
}

/// Why an application has no type. The message names the op, what was expected and what was found.
#[derive(Clone, PartialEq, Debug)]
pub struct TypeError {
    /// Its diagnostic code.
    pub code: Code,
    /// One sentence.
    pub message: String,
    /// Index of the operand at fault, if there is one.
    pub operand: Option<usize>,
    /// A suggested fix, if one is known.
    pub hint: Option<String>,
}

impl TypeError {
    /// Creates an error without operand and hint.
    pub fn new(code: Code, message: impl Into<String>) -> TypeError {
        TypeError { code, message: message.into(), operand: None, hint: None }
    }

    /// Sets the operand at fault.
    pub fn about(mut self, operand: usize) -> TypeError {
        self.operand = Some(operand);
        self
    }

    /// Sets the suggested fix.
    pub fn hint(mut self, hint: impl Into<String>) -> TypeError {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for TypeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)
    }
}
impl std::error::Error for TypeError {}

/// Facts of tensors and of the device that an attribute expression uses. Each may be unknown.
pub trait Facts {
    /// The value of a fact of a tensor variable.
    fn fact(&self, fact: crate::ir::Fact, var: VarId) -> Option<AttrValue>;
    /// `same_accumulator(t, a, b)`.
    fn same_accumulator(&self, _t: VarId, _a: VarId, _b: VarId) -> Option<bool> {
        None
    }
    /// A property of the device.
    fn device(&self, _fact: crate::ir::DeviceFact) -> Option<AttrValue> {
        None
    }
}

/// No facts at all: each is unknown.
pub struct NoFacts;
impl Facts for NoFacts {
    fn fact(&self, _: crate::ir::Fact, _: VarId) -> Option<AttrValue> {
        None
    }
}
