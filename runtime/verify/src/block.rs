//! Counterexamples as `test` blocks.
//!
//! In: an instance and both sides in one graph. Out: text that can be pasted into a `.hyp` file and
//! fails under `hypatia test`. Invariant: every tensor of the instance is written out.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::ScalarBody;

use super::check::Failure;
use super::differ::Difference;
use super::generate::Instance;
use super::sides::Sides;
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, NodeId, NodeKind, Value, show_attr, show_number, show_term};
use hypatia_tensor::tensor::Tensor;

/// A test that fails because the sides differ as `failure` says, at `difference`.
pub fn test_block(
    title: &str,
    instance: &Instance,
    sides: &Sides,
    failure: Failure,
    difference: Option<&Difference>,
) -> String {
    // Where nothing is compared, the first results of different types say what is wrong.
    let types = |(l, r): (&Value, &Value)| sides.graph.ty(*l) != sides.graph.ty(*r);
    let apart = || sides.left.iter().zip(&sides.right).position(types).unwrap_or(0);
    let root = difference.map_or_else(apart, |d| d.root);
    let (left, right) = (sides.left[root.min(sides.left.len() - 1)], sides.right[root.min(sides.right.len() - 1)]);
    let mut w = Writer::of(&sides.graph, &sides.numbers, instance);
    let (l, r) = (w.value(left, 0), w.value(right, 0));
    let (tight_l, tight_r) = (w.value(left, 3), w.value(right, 3));
    let dtype = sides.graph.ty(left).dtype;
    // Nothing computes in a type that is only stored.
    let number = |text: &str| if dtype.only_stored() { format!("cast({text}, to = f32)") } else { text.to_string() };
    let integers = difference.is_some_and(|d| d.whole.is_some());
    let (given, expect) = match failure {
        Failure::Bits
        | Failure::FiniteBits
        | Failure::Approx
        | Failure::Rounding
        | Failure::Integer
        | Failure::Value
            if integers || failure != Failure::Value =>
        {
            match difference {
                // Truth values are compared directly.
                _ if dtype == DType::Bool => (l, r),
                Some(d) if d.left == d.right && !integers => {
                    (format!("1 / {}", number(&tight_l)), format!("1 / {}", number(&tight_r)))
                }
                Some(d) if (d.left.is_finite() && d.right.is_finite()) || failure == Failure::Rounding => {
                    let shape = &sides.graph.ty(left).shape;
                    let dims: Vec<String> = shape.iter().map(|d| d.to_string()).collect();
                    w.extra.push(format!("const same: bool[{}] = 1;", dims.join(", ")));
                    (format!("eq({}, {})", number(&l), number(&r)), "same".to_string())
                }
                _ => (l, r),
            }
        }
        _ => (l, r),
    };
    let mut out = format!("test \"{}\" {{\n", escaped(title));
    let used = |name: &str| mentions(&given, name) || mentions(&expect, name);
    // What is wrong with types does not depend on values.
    let shapes = matches!(failure, Failure::Broken | Failure::NoMeaning | Failure::NoBody);
    out.push_str(&declarations(instance, &used, shapes));
    for line in &w.extra {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(out, "  given {given};\n  expect equal {expect};\n}}");
    out
}

/// Floats that are shown although their values say nothing: up to this many.
const FEW: usize = 4;

/// The used tensors of an instance, one per line. The part of an integer that f64 cannot hold
/// becomes a separate tensor. With `shapes`, many floats have no values.
fn declarations(instance: &Instance, used: &dyn Fn(&str) -> bool, shapes: bool) -> String {
    let mut out = String::new();
    let mut line = |word: &str, name: &str, tensor: &Tensor| {
        let says_nothing = shapes && tensor.dtype().is_float() && hypatia_graph::splat(tensor).is_none();
        if used(name) && says_nothing && tensor.len() > FEW {
            let _ = writeln!(out, "  {word} {name}: {};", type_of(tensor));
        } else if used(name) {
            let _ = writeln!(out, "  {word} {name}: {}", declaration(tensor));
            if let Some(rest) = remainders(tensor) {
                let _ = writeln!(out, "  {word} {name}{REST}: {}", declaration(&rest));
            }
        }
    };
    for (name, tensor) in &instance.inputs {
        line("input", name, tensor);
    }
    for (name, node) in &instance.constants {
        if let NodeKind::Const(tensor) = &instance.graph.node(*node).kind {
            line("const", name, tensor);
        }
    }
    out
}

/// The suffix of the tensor that is added to a tensor of integers.
const REST: &str = "_and";

/// The differences of integers from the numbers that a file can hold, if there are any.
fn remainders(tensor: &Tensor) -> Option<Tensor> {
    let rest: Vec<i64> = tensor.as_slice::<i64>()?.iter().map(|v| v.wrapping_sub(*v as f64 as i64)).collect();
    if rest.iter().all(|v| *v == 0) { None } else { Tensor::from_slice(tensor.shape(), &rest) }
}

/// True if the name occurs as a whole word.
fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == name)
}

/// `f32[2, 3] = [[1, 2, 3], [4, 5, 6]];`
pub fn declaration(tensor: &Tensor) -> String {
    let ty = type_of(tensor);
    if tensor.is_empty() {
        return format!("{ty};");
    }
    if let Some(v) = hypatia_graph::splat(tensor) {
        return format!("{ty} = {};", show_number(v));
    }
    format!("{ty} = {};", nested(&tensor.to_f64(), tensor.shape()))
}

fn type_of(tensor: &Tensor) -> String {
    let dims: Vec<String> = tensor.shape().iter().map(|d| d.to_string()).collect();
    format!("{}[{}]", tensor.dtype(), dims.join(", "))
}

fn nested(data: &[f64], shape: &[usize]) -> String {
    match shape {
        [] => data.first().map_or(String::new(), |v| show_number(*v)),
        [_] => format!("[{}]", data.iter().map(|v| show_number(*v)).collect::<Vec<_>>().join(", ")),
        [n, rest @ ..] => {
            let size = data.len() / n.max(&1);
            let rows: Vec<String> = data.chunks(size.max(1)).map(|c| nested(c, rest)).collect();
            format!("[{}]", rows.join(", "))
        }
    }
}

struct Writer<'a> {
    graph: &'a Graph,
    names: HashMap<NodeId, String>,
    /// Declarations of constants that are not bound to variables.
    extra: Vec<String>,
    /// Numbers as they were written, before their constants rounded them.
    numbers: &'a Numbers,
}

/// Texts of shared nodes are repeated. Instances are small, but this cap bounds a pathological one.
const MAX_TEXT: usize = 20_000;

impl<'a> Writer<'a> {
    /// A writer for a graph over the tensors of an instance.
    fn of(graph: &'a Graph, numbers: &'a Numbers, instance: &Instance) -> Writer<'a> {
        let whole = |name: &str, tensor: &Tensor| match remainders(tensor) {
            Some(_) => format!("({name} + {name}{REST})"),
            None => name.to_string(),
        };
        let mut names = HashMap::new();
        for (name, node) in &instance.constants {
            if let NodeKind::Const(tensor) = &graph.node(*node).kind {
                names.insert(*node, whole(name, tensor));
            }
        }
        let tensor = |name: &str| instance.inputs.iter().find(|i| i.0 == name).map(|i| &i.1);
        for id in &graph.inputs {
            if let NodeKind::Input { name } = &graph.node(*id).kind
                && let Some(tensor) = tensor(name)
            {
                names.insert(*id, whole(name, tensor));
            }
        }
        Writer { graph, names, extra: Vec::new(), numbers }
    }

    /// An expression. `level` is the precedence of the context.
    fn value(&mut self, value: Value, level: u8) -> String {
        let node = self.graph.node(value.node);
        if let Some(name) = self.names.get(&value.node) {
            return name.clone();
        }
        let text = match &node.kind {
            NodeKind::Input { name } => name.clone(),
            NodeKind::Const(t) => self.constant(value.node, t),
            NodeKind::Scalar(s) => {
                let def = self.graph.program.scalar(*s);
                // Operators that bind less than those of the context are in parentheses, and so are
                // truth values within others.
                let infix = match &def.body {
                    ScalarBody::Builtin(BuiltinScalar::Or) => Some(("or", 0)),
                    ScalarBody::Builtin(BuiltinScalar::And) => Some(("and", 0)),
                    ScalarBody::Builtin(BuiltinScalar::Add) => Some(("+", 1)),
                    ScalarBody::Builtin(BuiltinScalar::Sub) => Some(("-", 1)),
                    ScalarBody::Builtin(BuiltinScalar::Mul) => Some(("*", 2)),
                    ScalarBody::Builtin(BuiltinScalar::Div) => Some(("/", 2)),
                    _ => None,
                };
                let args: Vec<Value> = node.operands.iter().flatten().copied().collect();
                match (infix, args.as_slice()) {
                    (Some((sign, mine)), [a, b]) => {
                        let least = u8::max(mine, 1);
                        let (a, b) = (self.operand(*a, Some(*b), least), self.operand(*b, Some(*a), mine + 1));
                        let text = format!("{a} {sign} {b}");
                        if level > mine { format!("({text})") } else { text }
                    }
                    _ => {
                        let beside = |i: usize| {
                            let mut numbers = (0..args.len())
                                .filter(|j| *j != i && def.params.get(*j).is_some_and(|p| p.1 == Kind::Number));
                            numbers.find(|j| !self.is_number(args[*j])).map(|j| args[j])
                        };
                        let others: Vec<Option<Value>> = (0..args.len()).map(beside).collect();
                        let texts: Vec<String> = args.iter().zip(others).map(|(a, o)| self.operand(*a, o, 0)).collect();
                        format!("{}({})", def.name, texts.join(", "))
                    }
                }
            }
            NodeKind::Op { op, attrs, term } => {
                let def = self.graph.program.op(*op);
                let split = self.graph.tensor_operands(node);
                let mut args: Vec<String> =
                    node.operands[..split].iter().map(|v| v.map_or("none".to_string(), |v| self.value(v, 0))).collect();
                if let Some(term) = term {
                    let reads: Vec<String> =
                        node.operands[split..].iter().map(|v| v.map_or("none".into(), |v| self.value(v, 0))).collect();
                    let read = |i: u32| reads.get(i as usize).cloned().unwrap_or_default();
                    args.push(show_term(&self.graph.program, term, &read));
                }
                for (value, (_, param)) in attrs.iter().zip(def.attrs()) {
                    args.push(format!("{} = {}", param.name, show_attr(value)));
                }
                let call = format!("{}({})", def.name, args.join(", "));
                if node.results.len() > 1 || def.variadic_result { format!("{call}.{}", value.output) } else { call }
            }
        };
        if text.len() > MAX_TEXT { "…".into() } else { text }
    }

    /// An operand of an infix operator: a bare number is allowed there if the other operand has its
    /// type.
    fn operand(&mut self, value: Value, other: Option<Value>, level: u8) -> String {
        if self.is_number(value)
            && other.is_some_and(|o| !self.is_number(o))
            && let NodeKind::Const(t) = &self.graph.node(value.node).kind
        {
            let written = self.numbers.get(&(Arc::as_ptr(t) as usize)).copied();
            if let Some(v) = written.or(t.to_f64().first().copied()) {
                let text = show_number(v);
                return if text.starts_with('-') && level > 0 { format!("({text})") } else { text };
            }
        }
        self.value(value, level)
    }

    /// True for a constant of rank 0 that is not bound to a variable of the rule.
    fn is_number(&self, v: Value) -> bool {
        !self.names.contains_key(&v.node)
            && matches!(&self.graph.node(v.node).kind, NodeKind::Const(t)
                if t.shape().is_empty() && t.dtype() != DType::Bool)
    }

    fn constant(&mut self, node: NodeId, tensor: &Tensor) -> String {
        let name = format!("number_{}", self.extra.len() + 1);
        self.extra.push(format!("const {name}: {}", declaration(tensor)));
        self.names.insert(node, name.clone());
        name
    }
}

/// The left side alone, with an expectation that fails and the reason as a comment, for when there
/// is no right side to compare with. An expectation of `equal` compares the left side's kernels
/// with its meaning. With `shapes`, the values say nothing.
pub fn left_block(title: &str, instance: &Instance, expect: &str, why: &str, shapes: bool) -> String {
    let mut w = Writer::of(&instance.graph, &instance.numbers, instance);
    let given: Vec<String> = instance.left.iter().map(|v| w.value(*v, 0)).collect();
    let mut out = format!("test \"{}\" {{\n", escaped(title));
    out.push_str(&declarations(instance, &|_| true, shapes));
    for line in &w.extra {
        let _ = writeln!(out, "  {line}");
    }
    let expect = match (expect, given.as_slice()) {
        ("equal", [one]) => format!("equal {one}"),
        ("equal", several) => format!("equal ({})", several.join(", ")),
        (other, _) => other.to_string(),
    };
    let why = why.replace(['\n', '\r'], " ");
    let _ = writeln!(out, "  given {};\n  // {why}\n  expect {expect};\n}}", given.join(", "));
    out
}

/// Text between double quotes.
pub fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
