//! Attributes, sizes and types: values, the expressions that compute them, and types with
//! variables.
//!
//! In: what `sema` makes. Out: `typing` evaluates the expressions and matches the types. Invariant:
//! a variable belongs to the declaration that contains the expression.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::VarId;
use crate::dtype::DType;
use crate::shape::Dim;

/// Types of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttrType {
    /// An integer.
    Int,
    /// An axis of the first tensor operand. Negative axes count from the end and are normalised.
    Axis,
    /// A list of axes of the first tensor operand, normalised in the same way.
    Axes,
    /// A list of integers.
    Ints,
    /// A number.
    Float,
    /// A list of numbers.
    Floats,
    /// A boolean.
    Bool,
    /// An element type.
    DType,
    /// A size, possibly symbolic.
    Dim,
    /// A list of sizes.
    Dims,
    /// A string.
    Str,
}

/// A tensor type with variables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypePat {
    /// The element type.
    pub dtype: DTypePat,
    /// Dimensions before the rest.
    pub prefix: Vec<DimPat>,
    /// The rest, at most one: a variable that it binds, an expression that gives a list, or
    /// unnamed.
    pub rest: Option<RestPat>,
    /// Dimensions after the rest.
    pub suffix: Vec<DimPat>,
}

/// An element type in a type pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DTypePat {
    /// `_`
    Any,
    /// `f32`
    Is(DType),
    /// `T`: binds, or must equal.
    Var(VarId),
    /// A dtype attribute or expression (result types only).
    Expr(AExpr),
}

/// A dimension in a type pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DimPat {
    /// `_`
    Any,
    /// Binds, or must equal.
    Var(VarId),
    /// A number or a formula. It is compared, and solved for one unbound variable if it is linear.
    Expr(AExpr),
}

/// The rest in a type pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RestPat {
    /// `..`
    Any,
    /// `..s`: binds a list, or must equal.
    Var(VarId),
    /// `..broadcast(s, t)`: a list.
    Expr(AExpr),
}

/// A value of an attribute, a guard or a `let`. Floats compare by their bits: -0 and +0 differ, and
/// NaN equals itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AttrValue {
    /// An integer or a size.
    Dim(Dim),
    /// A number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// An element type.
    DType(DType),
    /// A string.
    Str(String),
    /// A list.
    List(Vec<AttrValue>),
}

impl PartialEq for AttrValue {
    fn eq(&self, other: &AttrValue) -> bool {
        match (self, other) {
            (AttrValue::Dim(a), AttrValue::Dim(b)) => a == b,
            (AttrValue::Float(a), AttrValue::Float(b)) => a.to_bits() == b.to_bits(),
            (AttrValue::Bool(a), AttrValue::Bool(b)) => a == b,
            (AttrValue::DType(a), AttrValue::DType(b)) => a == b,
            (AttrValue::Str(a), AttrValue::Str(b)) => a == b,
            (AttrValue::List(a), AttrValue::List(b)) => a == b,
            _ => false,
        }
    }
}
impl Eq for AttrValue {}
impl Hash for AttrValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            AttrValue::Dim(d) => d.hash(state),
            AttrValue::Float(v) => v.to_bits().hash(state),
            AttrValue::Bool(b) => b.hash(state),
            AttrValue::DType(d) => d.hash(state),
            AttrValue::Str(s) => s.hash(state),
            AttrValue::List(l) => l.hash(state),
        }
    }
}

macro_rules! attr_values {
    ($($t:ty: $v:ident => $e:expr),* $(,)?) => { $(
        impl From<$t> for AttrValue {
            fn from($v: $t) -> AttrValue {
                $e
            }
        }
    )* };
}
attr_values! {
    i64: v => AttrValue::Dim(Dim::from(v)),
    i32: v => AttrValue::Dim(Dim::from(i64::from(v))),
    f64: v => AttrValue::Float(v),
    bool: v => AttrValue::Bool(v),
    DType: v => AttrValue::DType(v),
    &str: v => AttrValue::Str(v.to_string()),
    Dim: v => AttrValue::Dim(v),
    Vec<Dim>: v => AttrValue::List(v.into_iter().map(AttrValue::Dim).collect()),
    &[i64]: v => AttrValue::List(v.iter().map(|i| AttrValue::from(*i)).collect()),
}

impl<const N: usize> From<[i64; N]> for AttrValue {
    fn from(v: [i64; N]) -> AttrValue {
        v.as_slice().into()
    }
}

/// An expression over attributes, sizes, element types and facts of tensors: guards, `let`s,
/// attribute values, cost formulas. Evaluation is three-valued: an unknown fact makes the result
/// unknown, unless the other operand decides (`false and ?` is false).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AExpr {
    /// A value.
    Value(AttrValue),
    /// A variable of sort `Attr`, `Shape` or `DType`, or the variable of a comprehension.
    Var(VarId),
    /// A list; `Spread` entries are spliced.
    List(Vec<AExpr>),
    /// Splices a list into the surrounding list.
    Spread(Box<AExpr>),
    /// `list[i]`, negative from the end.
    Index(Box<AExpr>, Box<AExpr>),
    /// `[element for var in over if condition]`; `var` is bound inside.
    Comprehension {
        /// The element.
        element: Box<AExpr>,
        /// The variable.
        var: VarId,
        /// The list.
        over: Box<AExpr>,
        /// The filter: elements for which it is true are kept.
        condition: Option<Box<AExpr>>,
    },
    /// `-a`
    Neg(Box<AExpr>),
    /// `not a`
    Not(Box<AExpr>),
    /// `a op b`: arithmetic on numbers (`Pow` included), comparisons, `and`, `or`, `in`, `not in`.
    Binary(crate::ast::BinaryOp, Box<AExpr>, Box<AExpr>),
    /// `if c then a else b`
    If(Box<AExpr>, Box<AExpr>, Box<AExpr>),
    /// A function of lists and numbers.
    Call(AFn, Vec<AExpr>),
    /// A fact of a tensor variable.
    Fact(Fact, VarId),
    /// `same_accumulator(t, a, b)`: the e-class of `t` contains a gemm over the same operands
    /// (`prefer` only).
    SameAccumulator(VarId, VarId, VarId),
    /// A property of the device: `sm`, `device` (kernels only).
    Device(DeviceFact),
}

/// A boolean expression over the variables of its rule.
pub type Guard = AExpr;

/// Functions in attribute expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AFn {
    /// `len(list)`
    Len,
    /// `prod(list)`
    Prod,
    /// `sum(list)`
    Sum,
    /// `min(a, b)` or `min(list)`
    Min,
    /// `max(a, b)` or `max(list)`
    Max,
    /// `abs(a)`
    Abs,
    /// `range(n)`
    Range,
    /// `broadcast(s, t)`: unknown if the shapes do not broadcast.
    Broadcast,
    /// `permute(list, perm)`
    Permute,
    /// `reduce(shape, axes, keepdims)`: the shape after a reduction.
    Reduce,
    /// `is_permutation(list)`
    IsPermutation,
    /// `inverse(perm)`
    Inverse,
    /// `sort(list)`
    Sort,
    /// `reverse(list)`
    Reverse,
    /// `slice(list, from, to)`
    Slice,
    /// `float(a)`: a size as a number; unknown while the size is symbolic.
    Float,
    /// `sqrt(a)`
    Sqrt,
    /// `size(dtype)`: the size of an element in bytes.
    SizeOf,
    /// `is_float(dtype)`
    IsFloat,
    /// `floor(a)`: floor division if `a` is a quotient `a / b` of sizes.
    Floor,
    /// `index(list, value)`: the position of the first equal element.
    IndexOf,
    /// `finfo_min(dtype)`
    FloatMin,
    /// `finfo_max(dtype)`
    FloatMax,
}

/// Facts of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fact {
    /// `shape(x)`: a list.
    Shape,
    /// `dtype(x)`
    DType,
    /// `rank(x)`
    Rank,
    /// `const(x)`: computable at plan time (weights and what is computed from them).
    Const,
    /// `value(x)`: the constant that all elements equal, if there is one.
    Value,
    /// `nonneg(x)`: every element is known to be at least 0 and not NaN.
    NonNegative,
    /// `positive(x)`: every element is known to be greater than 0 and not NaN.
    Positive,
    /// `finite(x)`: no NaN, no infinity.
    Finite,
    /// `uses(x)`: the number of distinct consumers (`prefer` only).
    Uses,
    /// `present(x)`: whether an optional operand is present.
    Present,
    /// `numel(x)`
    Numel,
    /// `count(xs)`: the number of variadic operands.
    Count,
    /// `shapes(xs)`: the list of the shapes of variadic operands.
    Shapes,
    /// `uniform(x)`: whether all elements of a known constant are equal.
    Uniform,
}

/// Facts of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceFact {
    /// Compute capability as a number: 90 for sm_90.
    Sm,
    /// The profile's name.
    Name,
    /// Whether f32 products may round their operands to TF32.
    Tf32,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::AttrValue;

    #[test]
    fn numbers_compare_by_their_bits() {
        let list = |v: f64| AttrValue::List(vec![AttrValue::Float(v), AttrValue::from(1)]);
        assert!(list(f64::NAN) == list(f64::NAN) && list(0.0) != list(-0.0));
        assert!(AttrValue::from(1) != AttrValue::from(1.0));
        let all = [list(f64::NAN), list(f64::NAN), list(0.0), list(-0.0), AttrValue::from(true), AttrValue::from(1)];
        assert_eq!(all.into_iter().collect::<HashSet<_>>().len(), 5);
    }
}
