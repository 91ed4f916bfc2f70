//! Types of tensors and of applications.
//!
//! In: an op or scalar of a Program, attribute values, operand types. Out: result types, or why
//! there are none. Used by sema (tests, bodies), the importer, the graph builder and the e-graph's
//! analysis, so that there is one set of typing rules. Holds always: no implicit promotion.

use std::collections::HashMap;

use crate::diag::Code;
use crate::dtype::DType;
use crate::ir::{AExpr, AttrValue, OpId, Program, ScalarId, TypePat, VarId};
use crate::shape::{Shape, show_shape};

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

impl std::fmt::Display for TypeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)
    }
}
impl std::error::Error for TypeError {}

/// Values of variables while types, attributes and guards are worked out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings {
    /// By variable; attributes, dims, shapes (as lists) and dtypes.
    pub values: HashMap<VarId, AttrValue>,
}

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

/// Evaluates an attribute expression; `None` where it is unknown or undefined (index out of range,
/// division by zero, overflow). Integers are `AttrValue::Dim`; a float literal or `/` on numbers
/// that do not divide gives `Float`. Equality of sizes is `Dim::known_eq`.
pub fn eval(_expr: &AExpr, _bindings: &Bindings, _facts: &dyn Facts) -> Option<AttrValue> {
    todo!()
}

/// Matches a concrete type against a type pattern, binding its variables (or comparing with what
/// is bound). `Some(true)` matched, `Some(false)` cannot, `None` unknown for some symbol's value.
pub fn match_type(_pat: &TypePat, _ty: &TensorType, _bindings: &mut Bindings) -> Option<bool> {
    todo!()
}

/// Result types of an op. `attrs` has one entry for each attribute (defaults filled in), `operands`
/// one for each tensor operand in order: absent optional ones are `None`, variadic ones follow at
/// the end. A term operand has no entry. For defined ops the declared types decide (they were
/// checked against the body); for builtins the built-in shape function.
pub fn apply_op(
    _program: &Program,
    _op: OpId,
    _attrs: &[AttrValue],
    _operands: &[Option<TensorType>],
) -> Result<Vec<TensorType>, TypeError> {
    todo!()
}

/// Result type of a scalar on tensors: numpy broadcasting, one dtype for all numbers.
pub fn apply_scalar(_program: &Program, _scalar: ScalarId, _operands: &[TensorType]) -> Result<TensorType, TypeError> {
    todo!()
}
