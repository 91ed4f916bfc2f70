//! Run-time support for the code that `hypatia_rules!` generates. Not for direct use.
//!
//! Invariant: names of ops and scalars come from the generated code, which takes them from the
//! user's file.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::scalar::{Term, float};

use crate::{Graph, Value};
use hypatia_tensor::error::{Error, Result};

/// Adds an application of the op of that name.
pub fn op(
    graph: &mut Graph,
    name: &str,
    operands: &[Option<Value>],
    attrs: &[(&str, AttrValue)],
    term: Option<Term>,
) -> Result<Vec<Value>> {
    graph.named_op(name, operands, attrs, term)
}

/// Adds an application of the scalar of that name.
pub fn scalar(graph: &mut Graph, name: &str, operands: &[Value]) -> Result<Value> {
    let missing =
        || Error::Input(format!("the graph's program has no scalar `{name}`: build it with `Graph::new(program())`"));
    let scalar = graph.program.find_scalar(name).ok_or_else(missing)?;
    graph.scalar(scalar, operands)
}

/// The only result.
pub fn single(results: Vec<Value>) -> Result<Value> {
    results.first().copied().ok_or_else(|| Error::Internal("an op without results".into()))
}

/// f64 or f32.
pub trait Real: Copy {
    /// Converts from f64, rounding once.
    fn of(value: f64) -> Self;
    /// Converts to f64, exactly.
    fn to(self) -> f64;
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn to(self) -> f64 {
        self
    }
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn to(self) -> f64 {
        self as f64
    }
}

/// A builtin function of one number, rounded once.
pub fn one<T: Real>(f: BuiltinScalar, x: T) -> T {
    T::of(float(f, x.to(), 0.0))
}

/// A builtin function of two numbers, rounded once.
pub fn two<T: Real>(f: BuiltinScalar, x: T, y: T) -> T {
    T::of(float(f, x.to(), y.to()))
}

/// The number rounded or converted to an element type.
pub fn cast<T: Real>(to: DType, x: T) -> T {
    T::of(to.round(x.to()))
}

/// 1 for true.
pub fn of_bool<T: Real>(b: bool) -> T {
    T::of(b as u8 as f64)
}
