//! Prints attribute values, expressions and type patterns for messages.
//!
//! In: IR and the names of its variables. Out: the text as written in a `.hyp` file.

use crate::ast::BinaryOp;
use crate::dtype::DType;
use crate::ir::{AExpr, AFn, AttrType, AttrValue, DTypePat, DeviceFact, DimPat, Fact, RestPat, TypePat, Var, VarId};

/// Maximum depth of an expression that is printed in full.
const MAX_DEPTH: u32 = 64;

/// A value as written: `[1, 0]`, `f32`, `0.5`, `"same"`.
pub fn show_value(value: &AttrValue) -> String {
    match value {
        AttrValue::Dim(d) => d.to_string(),
        AttrValue::Float(f) => show_float(*f),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::DType(d) => d.to_string(),
        AttrValue::Str(s) => format!("{s:?}"),
        AttrValue::List(items) => {
            let shown: Vec<String> = items.iter().take(17).map(show_value).collect();
            if items.len() > 17 {
                return format!("[{}, ... ({} in all)]", shown[..16].join(", "), items.len());
            }
            format!("[{}]", shown.join(", "))
        }
    }
}

fn show_float(f: f64) -> String {
    if f.is_nan() { "nan".into() } else { format!("{f:?}") }
}

/// An expression with the names of its variables.
pub fn show_expr(vars: &[Var], expr: &AExpr) -> String {
    let mut out = String::new();
    write(vars, expr, 0, 0, &mut out);
    out
}

fn name(vars: &[Var], var: VarId) -> &str {
    vars.get(var.index()).map_or("?", |v| v.name.as_str())
}

/// The precedence of an operator, as in the grammar.
fn precedence(op: BinaryOp) -> (u8, &'static str) {
    use BinaryOp::*;
    match op {
        Or => (1, "or"),
        And => (2, "and"),
        Eq => (4, "=="),
        Ne => (4, "!="),
        Lt => (4, "<"),
        Le => (4, "<="),
        Gt => (4, ">"),
        Ge => (4, ">="),
        In => (4, "in"),
        NotIn => (4, "not in"),
        Add => (5, "+"),
        Sub => (5, "-"),
        Mul => (6, "*"),
        Div => (6, "/"),
        Rem => (6, "%"),
        Pow => (8, "**"),
    }
}

/// The level of an expression's outermost operator, as in [`precedence`].
fn level(expr: &AExpr) -> u8 {
    match expr {
        AExpr::Binary(op, ..) => precedence(*op).0,
        AExpr::Not(_) => 3,
        AExpr::Neg(_) => 7,
        AExpr::If(..) => 0,
        _ => 10,
    }
}

/// Writes an expression, in parentheses if its level is below `outer`.
fn write(vars: &[Var], expr: &AExpr, outer: u8, depth: u32, out: &mut String) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    let parenthesised = level(expr) < outer;
    if parenthesised {
        out.push('(');
    }
    write_bare(vars, expr, depth + 1, out);
    if parenthesised {
        out.push(')');
    }
}

/// Writes expressions with commas between them.
fn write_list(vars: &[Var], items: &[AExpr], depth: u32, out: &mut String) {
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        write(vars, item, 0, depth, out);
    }
}

/// Writes an expression without parentheses around it; `depth` is that of its parts.
fn write_bare(vars: &[Var], expr: &AExpr, depth: u32, out: &mut String) {
    match expr {
        AExpr::Value(v) => out.push_str(&show_value(v)),
        AExpr::Var(v) => out.push_str(name(vars, *v)),
        AExpr::List(items) => {
            out.push('[');
            write_list(vars, items, depth, out);
            out.push(']');
        }
        AExpr::Spread(inner) => {
            out.push_str("..");
            write(vars, inner, 10, depth, out);
        }
        AExpr::Index(a, i) => {
            write(vars, a, 10, depth, out);
            out.push('[');
            write(vars, i, 0, depth, out);
            out.push(']');
        }
        AExpr::Comprehension { element, var, over, condition } => {
            out.push('[');
            write(vars, element, 0, depth, out);
            out.push_str(&format!(" for {} in ", name(vars, *var)));
            write(vars, over, 0, depth, out);
            if let Some(condition) = condition {
                out.push_str(" if ");
                write(vars, condition, 0, depth, out);
            }
            out.push(']');
        }
        AExpr::Neg(a) => {
            out.push('-');
            write(vars, a, 7, depth, out);
        }
        AExpr::Not(a) => {
            out.push_str("not ");
            write(vars, a, 3, depth, out);
        }
        AExpr::Binary(op, a, b) => write_binary(vars, (*op, a, b), depth, out),
        AExpr::If(c, a, b) => {
            out.push_str("if ");
            write(vars, c, 1, depth, out);
            out.push_str(" then ");
            write(vars, a, 1, depth, out);
            out.push_str(" else ");
            write(vars, b, 0, depth, out);
        }
        AExpr::Call(f, args) => {
            out.push_str(f.name());
            out.push('(');
            write_list(vars, args, depth, out);
            out.push(')');
        }
        AExpr::Fact(fact, var) => out.push_str(&format!("{}({})", fact.name(), name(vars, *var))),
        AExpr::SameAccumulator(t, a, b) => {
            out.push_str(&format!("same_accumulator({}, {}, {})", name(vars, *t), name(vars, *a), name(vars, *b)))
        }
        AExpr::Device(DeviceFact::Sm) => out.push_str("sm"),
        AExpr::Device(DeviceFact::Name) => out.push_str("device"),
        AExpr::Device(DeviceFact::Tf32) => out.push_str("tf32"),
    }
}

/// Writes both operands of an operator, each in parentheses if it would be read otherwise without.
fn write_binary(vars: &[Var], (op, a, b): (BinaryOp, &AExpr, &AExpr), depth: u32, out: &mut String) {
    let (level, symbol) = precedence(op);
    // Comparisons do not chain, and `**` is right-associative.
    let left = level + (level == 4 || level == 8) as u8;
    let right = level + (level != 8) as u8;
    write(vars, a, left, depth, out);
    out.push_str(&format!(" {symbol} "));
    write(vars, b, right, depth, out);
}

/// A type pattern with the names of its variables: `T[..s, m, k]`.
pub fn show_type_pat(vars: &[Var], pat: &TypePat) -> String {
    let dtype = match &pat.dtype {
        DTypePat::Any => "_".to_string(),
        DTypePat::Is(d) => d.to_string(),
        DTypePat::Var(v) => name(vars, *v).to_string(),
        DTypePat::Expr(e) => show_expr(vars, e),
    };
    let dim = |d: &DimPat| match d {
        DimPat::Any => "_".to_string(),
        DimPat::Var(v) => name(vars, *v).to_string(),
        DimPat::Expr(e) => show_expr(vars, e),
    };
    let rest = pat.rest.as_ref().map(|r| match r {
        RestPat::Any => "..".to_string(),
        RestPat::Var(v) => format!("..{}", name(vars, *v)),
        RestPat::Expr(e) => format!("..{}", show_expr(vars, e)),
    });
    let dims: Vec<String> = pat.prefix.iter().map(dim).chain(rest).chain(pat.suffix.iter().map(dim)).collect();
    format!("{dtype}[{}]", dims.join(", "))
}

/// A bound on element types as written: `float`, `f32`, or `{f32, f16}` if no keyword denotes it.
pub fn show_bound(dtypes: &[DType]) -> String {
    let classes = ["float", "int", "number", "any"];
    let holds = |class: &str, d: DType| match class {
        "float" => d.computes_in_floats(),
        "int" => d.is_int(),
        "number" => d.computes_in_floats() || d.is_int(),
        _ => true,
    };
    match classes.into_iter().find(|c| DType::ALL.into_iter().all(|d| dtypes.contains(&d) == holds(c, d))) {
        Some(word) => word.to_string(),
        None if dtypes.len() == 1 => dtypes[0].to_string(),
        None => format!("{{{}}}", dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")),
    }
}

/// The name of an attribute's type as written.
pub fn attr_type_name(ty: AttrType) -> &'static str {
    match ty {
        AttrType::Int => "int",
        AttrType::Axis => "axis",
        AttrType::Axes => "axes",
        AttrType::Ints => "ints",
        AttrType::Float => "float",
        AttrType::Floats => "floats",
        AttrType::Bool => "bool",
        AttrType::DType => "dtype",
        AttrType::Dim => "dim",
        AttrType::Dims => "dims",
        AttrType::Str => "string",
    }
}

/// An attribute's type in words: "an integer".
pub fn attr_type_words(ty: AttrType) -> &'static str {
    match ty {
        AttrType::Int => "an integer",
        AttrType::Axis => "an axis (an integer)",
        AttrType::Axes => "a list of axes",
        AttrType::Ints => "a list of integers",
        AttrType::Float => "a number",
        AttrType::Floats => "a list of numbers",
        AttrType::Bool => "`true` or `false`",
        AttrType::DType => "an element type such as f32",
        AttrType::Dim => "a size",
        AttrType::Dims => "a list of sizes",
        AttrType::Str => "a text in quotes",
    }
}

macro_rules! names {
    ($ty:ident { $($variant:ident = $name:literal,)* }) => {
        impl $ty {
            /// All variants.
            pub const ALL: &'static [$ty] = &[$($ty::$variant,)*];
            /// The name as written.
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $name,)* }
            }
            /// The variant with that name.
            pub fn from_name(name: &str) -> Option<$ty> {
                match name { $($name => Some($ty::$variant),)* _ => None }
            }
        }
    };
}

names!(AFn {
    Len = "len",
    Prod = "prod",
    Sum = "sum",
    Min = "min",
    Max = "max",
    Abs = "abs",
    Range = "range",
    Broadcast = "broadcast",
    Permute = "permute",
    Reduce = "reduce",
    IsPermutation = "is_permutation",
    Inverse = "inverse",
    Sort = "sort",
    Reverse = "reverse",
    Slice = "slice",
    Float = "float",
    Sqrt = "sqrt",
    SizeOf = "size",
    IsFloat = "is_float",
    Floor = "floor",
    IndexOf = "index",
    FloatMin = "finfo_min",
    FloatMax = "finfo_max",
});

names!(Fact {
    Shape = "shape",
    DType = "dtype",
    Rank = "rank",
    Const = "const",
    Value = "value",
    NonNegative = "nonneg",
    Positive = "positive",
    Finite = "finite",
    Uses = "uses",
    Present = "present",
    Numel = "numel",
    Shapes = "shapes",
    Uniform = "uniform",
    Count = "count",
});

/// `f64, f32, f16 or bf16`
pub(crate) fn one_of(dtypes: &[DType]) -> String {
    let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.join(""),
    }
}

/// The hint of every broadcasting error.
pub(super) const BROADCAST_HINT: &str = "sizes are compared from the last axis on, and must be equal or 1; \
    a symbolic size broadcasts with itself and 1 only";
