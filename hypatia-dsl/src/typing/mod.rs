//! Types of tensors and of applications.
//!
//! In: an op or scalar of a Program, attribute values, operand types. Out: result types, or why
//! there are none. Used by sema (tests, bodies), the importer, the graph builder and the e-graph's
//! analysis, so that there is one set of typing rules. Holds always: no implicit promotion.

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

/// The codes that typing reports under.
pub mod codes {
    use crate::diag::Code;
    /// A tensor has another rank than the op takes.
    pub const RANK: Code = Code(301);
    /// Element types that must agree do not, or a type that the op does not take.
    pub const DTYPE: Code = Code(302);
    /// An attribute is missing, of another type, or out of range.
    pub const ATTRIBUTE: Code = Code(303);
    /// Sizes that must agree do not, or cannot be shown to.
    pub const SIZE: Code = Code(304);
    /// Shapes that must broadcast do not.
    pub const BROADCAST: Code = Code(305);
    /// A requirement of the op does not hold, or cannot be shown to.
    pub const REQUIRES: Code = Code(306);
    /// Too few or too many operands.
    pub const OPERANDS: Code = Code(307);
    /// The type of a result cannot be worked out.
    pub const RESULT: Code = Code(308);
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

/// Why an application has no type. The message names the op, what was expected and what came.
#[derive(Clone, PartialEq, Debug)]
pub struct TypeError {
    /// The diagnostic code it is reported under.
    pub code: Code,
    /// One sentence.
    pub message: String,
    /// Index of the operand it is about, if it is about one.
    pub operand: Option<usize>,
    /// What to do, if that is known.
    pub hint: Option<String>,
}

impl TypeError {
    /// An error with that sentence.
    pub fn new(code: Code, message: impl Into<String>) -> TypeError {
        TypeError { code, message: message.into(), operand: None, hint: None }
    }

    /// About the operand of that index.
    pub fn about(mut self, operand: usize) -> TypeError {
        self.operand = Some(operand);
        self
    }

    /// Says what to do.
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

/// Facts of tensors and of the device that an attribute expression asks for. Each may be unknown.
pub trait Facts {
    /// The value of a fact of a tensor variable.
    fn fact(&self, fact: crate::ir::Fact, var: VarId) -> Option<AttrValue>;
    /// `same_accumulator`.
    fn same_accumulator(&self, _t: VarId, _a: VarId, _b: VarId) -> Option<bool> {
        None
    }
    /// A property of the device.
    fn device(&self, _fact: crate::ir::DeviceFact) -> Option<AttrValue> {
        None
    }
}

/// No facts at all.
pub struct NoFacts;
impl Facts for NoFacts {
    fn fact(&self, _: crate::ir::Fact, _: VarId) -> Option<AttrValue> {
        None
    }
}
