//! Writes scalar terms as ONNX nodes.
//!
//! In: a term, the names of the values that its leaves read. Out: nodes of a [`Body`], and the name
//! of the result. Invariant: defined scalars are expanded into builtin ones; numbers are computed
//! in the type that Hypatia computes in.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{Program, ScalarBody};
use hypatia_dsl::scalar::{Term, TermNode, expand};

use super::body::{Attr, Body, code};
use hypatia_tensor::error::{Error, Result};

/// The compute type of an element type.
pub(super) fn computed_in(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        // Few runtimes compute with bytes.
        DType::I8 | DType::U8 => DType::I32,
        other => other,
    }
}

/// The values of a term's leaves.
pub(super) struct Leaves<'a> {
    /// The accumulator, in the compute type.
    pub acc: Option<String>,
    /// The tensors that it reads, with their types.
    pub reads: &'a [(String, DType)],
    /// The compute type.
    pub compute: DType,
    /// The type of the result.
    pub result: DType,
}

impl Body {
    /// Adds a cast if one is needed.
    pub fn cast(&mut self, value: &str, from: DType, to: DType) -> String {
        if from == to {
            return value.to_string();
        }
        let to_code = ("to", Attr::Int(code(to).into()));
        if to.only_stored() {
            // Where the model saturates, it clips first.
            return self.op("Cast", &[value], &[to_code, ("saturate", Attr::Int(0))]);
        }
        self.op("Cast", &[value], &[to_code])
    }

    /// Adds a term.
    pub fn term(&mut self, program: &Program, term: &Term, leaves: &Leaves) -> Result<String> {
        let term = expand(program, term).map_err(Error::Limit)?;
        let compute = leaves.compute;
        let broken = || Error::Internal("the nodes of a term are not in order".into());
        // Name and kind of each node's value; numbers are in the compute type.
        let mut values: Vec<(String, Kind)> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            values.push(match node {
                TermNode::Param(_) | TermNode::Second => return Err(broken()),
                TermNode::Acc => (leaves.acc.clone().ok_or_else(broken)?, Kind::Number),
                TermNode::Lit(v) => (self.number(compute, v.0)?, Kind::Number),
                TermNode::In { input, .. } => {
                    let (name, dtype) = leaves.reads.get(*input as usize).ok_or_else(broken)?;
                    let kind = dtype.kind();
                    let value = if kind == Kind::Bool { name.clone() } else { self.cast(name, *dtype, compute) };
                    (value, kind)
                }
                TermNode::Cast { to, arg } => {
                    let (arg, kind) = values.get(arg.0 as usize).cloned().ok_or_else(broken)?;
                    let from = if kind == Kind::Bool { DType::Bool } else { compute };
                    let value = self.cast(&arg, from, *to);
                    match to.kind() {
                        Kind::Bool => (value, Kind::Bool),
                        Kind::Number => (self.cast(&value, *to, compute), Kind::Number),
                    }
                }
                TermNode::Call { scalar, args } => {
                    let ScalarBody::Builtin(b) = program.scalar(*scalar).body else { return Err(broken()) };
                    let args = args
                        .iter()
                        .map(|a| values.get(a.0 as usize).map(|v| v.0.as_str()))
                        .collect::<Option<Vec<_>>>()
                        .ok_or_else(broken)?;
                    (self.scalar(b, &args, compute)?, b.result())
                }
            });
        }
        let (value, kind) = term.roots.first().and_then(|r| values.get(r.0 as usize)).cloned().ok_or_else(broken)?;
        let from = if kind == Kind::Bool { DType::Bool } else { compute };
        Ok(self.cast(&value, from, leaves.result))
    }

    /// Adds a builtin scalar function; `compute` is the type of its numbers.
    fn scalar(&mut self, f: BuiltinScalar, args: &[&str], compute: DType) -> Result<String> {
        use BuiltinScalar::*;
        // Integers are whole, and neither NaN nor infinite.
        if !compute.is_float() {
            match f {
                Floor | Ceil | Round | Trunc => return Ok(args[0].to_string()),
                IsNan | IsInf => return Ok(self.op("Less", &[args[0], args[0]], &[])),
                _ => {}
            }
        }
        let plain = match f {
            Add => "Add",
            Sub => "Sub",
            Mul => "Mul",
            Div => "Div",
            Neg => "Neg",
            Abs => "Abs",
            Sign => "Sign",
            Max => "Max",
            Min => "Min",
            Pow => "Pow",
            Exp => "Exp",
            Log => "Log",
            Sqrt => "Sqrt",
            Erf => "Erf",
            Tanh => "Tanh",
            Sin => "Sin",
            Cos => "Cos",
            Atan => "Atan",
            Floor => "Floor",
            Ceil => "Ceil",
            Round => "Round",
            Eq => "Equal",
            Lt => "Less",
            Le => "LessOrEqual",
            Not => "Not",
            And => "And",
            Or => "Or",
            Xor => "Xor",
            Select => "Where",
            IsNan => "IsNaN",
            IsInf => "IsInf",
            Fmod => return Ok(self.op("Mod", args, &[("fmod", Attr::Int(1))])),
            Rsqrt => {
                let root = self.op("Sqrt", args, &[]);
                return Ok(self.op("Reciprocal", &[&root], &[]));
            }
            Log1p => {
                let one = self.number(compute, 1.0)?;
                let sum = self.op("Add", &[args[0], &one], &[]);
                return Ok(self.op("Log", &[&sum], &[]));
            }
            Expm1 => return self.expm1(args[0], compute),
            Trunc => return self.trunc(args[0], compute),
        };
        Ok(self.op(plain, args, &[]))
    }

    /// tanh(x / 2) * (e^x + 1): precise near 0, and correct at both infinities.
    fn expm1(&mut self, x: &str, compute: DType) -> Result<String> {
        let (one, half) = (self.number(compute, 1.0)?, self.number(compute, 0.5)?);
        let scaled = self.op("Mul", &[x, &half], &[]);
        let tanh = self.op("Tanh", &[&scaled], &[]);
        let exp = self.op("Exp", &[x], &[]);
        let sum = self.op("Add", &[&exp, &one], &[]);
        Ok(self.op("Mul", &[&tanh, &sum], &[]))
    }

    /// Rounding towards 0: up below it, down above it.
    fn trunc(&mut self, x: &str, compute: DType) -> Result<String> {
        let zero = self.number(compute, 0.0)?;
        let below = self.op("Less", &[x, &zero], &[]);
        let (up, down) = (self.op("Ceil", &[x], &[]), self.op("Floor", &[x], &[]));
        Ok(self.op("Where", &[&below, &up, &down], &[]))
    }
}
