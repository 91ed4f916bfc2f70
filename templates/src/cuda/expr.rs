//! Single C++ expressions: literals, builtin functions, conversions and stores.
//!
//! In: operands with their compute types. Out: expressions. Invariant: an operation is one C++
//! operation in the compute type; literals read back to the same bits.

use std::collections::BTreeSet;

use super::EmitError;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;

/// Approximate number of instructions of a builtin.
pub fn weight(b: BuiltinScalar) -> u64 {
    b.cost().instructions
}

/// The C++ name of a compute type.
pub fn compute_name(ty: DType) -> &'static str {
    match ty.compute() {
        DType::F64 => "double",
        DType::I64 => "long long",
        DType::Bool => "bool",
        _ => "float",
    }
}

/// Short name of a compute type, used in helper names.
pub fn tag(ty: DType) -> &'static str {
    ty.compute().name()
}

/// Precedence of C++ operators, loosest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Prec {
    Ternary,
    Or,
    And,
    Equality,
    Relation,
    Sum,
    Product,
    Unary,
    Primary,
}

/// An expression with its type and precedence.
#[derive(Clone, Debug)]
pub struct Expr {
    /// The text.
    pub text: String,
    prec: Prec,
    /// The compute type.
    pub ty: DType,
    /// The same value in a narrower integer type, if it was wrapped to that type.
    narrow: Option<(DType, String)>,
}

impl Expr {
    /// A name or a call.
    pub fn primary(text: impl Into<String>, ty: DType) -> Expr {
        Expr::new(text, Prec::Primary, ty)
    }

    fn new(text: impl Into<String>, prec: Prec, ty: DType) -> Expr {
        Expr { text: text.into(), prec, ty, narrow: None }
    }

    /// The text, in parentheses if its precedence is lower than `prec`.
    fn at(&self, prec: Prec) -> String {
        if self.prec < prec { format!("({})", self.text) } else { self.text.clone() }
    }
}

/// What the expressions need from the templates.
#[derive(Default)]
pub struct Needs {
    /// Helper functions that are called.
    pub helpers: BTreeSet<String>,
    /// Types that values are rounded to.
    pub rounded: BTreeSet<DType>,
    /// True if the source must do without the headers of 16-bit types.
    pub bare: bool,
}

impl Needs {
    /// Applies a builtin to operands of one compute type.
    pub fn builtin(&mut self, b: BuiltinScalar, ty: DType, args: &[Expr]) -> Result<Expr, EmitError> {
        use BuiltinScalar::*;
        if ty == DType::I64 && b.float_only() {
            return Err(EmitError::FloatOnly { scalar: b.name().into() });
        }
        let int = ty == DType::I64;
        let infix = |op: &str, prec: Prec, right: Prec, ty: DType| {
            Expr::new(format!("{} {op} {}", args[0].at(prec), args[1].at(right)), prec, ty)
        };
        Ok(match b {
            Add if !int => infix("+", Prec::Sum, Prec::Product, ty),
            Sub if !int => infix("-", Prec::Sum, Prec::Product, ty),
            Mul if !int => infix("*", Prec::Product, Prec::Unary, ty),
            Div if !int => infix("/", Prec::Product, Prec::Unary, ty),
            Neg if !int => Expr::new(format!("-{}", args[0].at(Prec::Primary)), Prec::Unary, ty),
            Floor | Ceil | Round | Trunc if int => args[0].clone(),
            IsNan | IsInf if int => Expr::primary("false", DType::Bool),
            Max | Min if !int => self.helper(format!("{}_nan", b.name()), ty, args),
            Sign => self.helper(format!("{}_of", b.name()), ty, args),
            Add | Sub | Mul | Div | Neg | Abs | Pow | Fmod if int => self.helper(format!("int_{}", b.name()), ty, args),
            Round => function(if ty == DType::F64 { "rint" } else { "rintf" }, ty, args),
            IsNan | IsInf => function(b.name(), DType::Bool, args),
            Abs if ty == DType::F64 => function("fabs", ty, args),
            Abs => function("fabsf", ty, args),
            Max | Min => function(b.name(), ty, args),
            Eq => infix("==", Prec::Equality, Prec::Relation, DType::Bool),
            Lt => infix("<", Prec::Relation, Prec::Sum, DType::Bool),
            Le => infix("<=", Prec::Relation, Prec::Sum, DType::Bool),
            Not => Expr::new(format!("!{}", args[0].at(Prec::Primary)), Prec::Unary, DType::Bool),
            And => infix("&&", Prec::And, Prec::Equality, DType::Bool),
            Or => Expr::new(
                format!("{} || {}", args[0].at(Prec::Equality), args[1].at(Prec::Equality)),
                Prec::Or,
                DType::Bool,
            ),
            Xor => Expr::new(
                format!("{} != {}", args[0].at(Prec::Relation), args[1].at(Prec::Relation)),
                Prec::Equality,
                DType::Bool,
            ),
            Select => Expr::new(
                format!("{} ? {} : {}", args[0].at(Prec::Or), args[1].at(Prec::Or), args[2].at(Prec::Or)),
                Prec::Ternary,
                ty,
            ),
            // The others have their C name, with an `f` suffix in single precision.
            _ => function(&format!("{}{}", b.name(), if ty == DType::F64 { "" } else { "f" }), ty, args),
        })
    }

    /// A call of a helper function of the templates.
    pub fn helper(&mut self, name: String, ty: DType, args: &[Expr]) -> Expr {
        self.helpers.insert(format!("{name}_{}", tag(ty)));
        function(&name, ty, args)
    }

    /// Converts the value to another compute type.
    pub fn convert(&mut self, e: Expr, to: DType) -> Expr {
        let plain = |text: &str| Expr::new(format!("({text}){}", e.at(Prec::Unary)), Prec::Unary, to);
        match to {
            _ if e.ty == to => e,
            DType::F64 => plain("double"),
            DType::Bool => Expr::new(format!("{} != 0", e.at(Prec::Relation)), Prec::Equality, DType::Bool),
            DType::I64 if e.ty == DType::Bool => plain("long long"),
            DType::I64 => self.integer(&e, DType::I64),
            _ => plain("float"),
        }
    }

    /// Rounds or wraps the value to a narrower element type, then widens it to its compute type
    /// again.
    pub fn round(&mut self, e: &Expr, to: DType) -> Expr {
        if self.bare && matches!(to, DType::F16 | DType::BF16) && e.ty == DType::F32 {
            let name = format!("rounded_to_{}", to.name());
            self.helpers.insert(name.clone());
            return Expr::primary(format!("{name}({})", e.text), DType::F32);
        }
        self.rounded.insert(to);
        match to {
            DType::F16 | DType::BF16 => Expr::primary(widen(&narrowed(e, to), to), DType::F32),
            _ if e.ty == DType::I64 => {
                let inner = format!("({})({})", super::storage(to), e.text);
                Expr {
                    narrow: Some((to, inner.clone())),
                    ..Expr::new(format!("(long long){inner}"), Prec::Unary, e.ty)
                }
            }
            _ => self.integer(e, to),
        }
    }

    fn integer(&mut self, e: &Expr, to: DType) -> Expr {
        self.helpers.insert(format!("to_{}_{}", to.name(), tag(e.ty)));
        // Narrower integers are converted from f32 in 32 bits.
        if to == DType::I64 || e.ty == DType::F64 {
            self.helpers.insert(format!("to_i64_{}", tag(e.ty)));
        }
        Expr::primary(format!("to_{}({})", to.name(), e.text), DType::I64)
    }

    /// Converts a root to the storage type of an output: the single rounding at the store.
    pub fn store(&mut self, root: &Expr, to: DType) -> String {
        match to {
            DType::F16 | DType::BF16 if root.ty == DType::Bool => narrowed(&self.convert(root.clone(), DType::F32), to),
            DType::F16 | DType::BF16 => narrowed(root, to),
            DType::I32 | DType::I8 | DType::U8 => match &root.narrow {
                Some((done, inner)) if *done == to => inner.clone(),
                _ => {
                    let whole = match root.ty {
                        DType::I64 => root.clone(),
                        DType::Bool => self.convert(root.clone(), DType::I64),
                        _ => self.integer(root, to),
                    };
                    format!("({}){}", super::storage(to), whole.at(Prec::Unary))
                }
            },
            _ => self.convert(root.clone(), to).text,
        }
    }
}

/// The expression rounded once to half precision, in its storage type.
fn narrowed(e: &Expr, to: DType) -> String {
    let half = to == DType::F16;
    let name = match (e.ty, half) {
        (DType::F64, true) => "__double2half",
        (DType::F64, false) => "__double2bfloat16",
        (DType::I64, true) => "__ll2half_rn",
        (DType::I64, false) => "__ll2bfloat16_rn",
        (_, true) => "__float2half_rn",
        (_, false) => "__float2bfloat16_rn",
    };
    format!("{name}({})", e.text)
}

/// Converts a storage value to its compute type.
pub fn widen(text: &str, from: DType) -> String {
    match from {
        DType::F16 => format!("__half2float({text})"),
        DType::BF16 => format!("__bfloat162float({text})"),
        DType::I32 | DType::I8 | DType::U8 => format!("(long long){text}"),
        _ => text.into(),
    }
}

/// A call.
pub fn function(name: &str, ty: DType, args: &[Expr]) -> Expr {
    let list: Vec<&str> = args.iter().map(|a| a.text.as_str()).collect();
    Expr::primary(format!("{name}({})", list.join(", ")), ty)
}

/// A literal that reads back to the same bits.
pub fn literal(v: f64, ty: DType) -> Result<Expr, EmitError> {
    let (text, negative) = match ty.compute() {
        DType::Bool => (if v != 0.0 { "true" } else { "false" }.to_string(), false),
        DType::I64 => {
            if v.fract() != 0.0 || !(-9.2e18..=9.2e18).contains(&v) {
                return Err(EmitError::Fraction { literal: format!("{v:?}") });
            }
            (format!("{}LL", v as i64), v < 0.0)
        }
        DType::F64 if !v.is_finite() => (format!("__longlong_as_double(0x{:016x}LL)", v.to_bits()), false),
        DType::F64 => (format!("{v:?}"), v.is_sign_negative()),
        _ => {
            let v = v as f32;
            if v.is_finite() {
                (format!("{v:?}f"), v.is_sign_negative())
            } else {
                (format!("__int_as_float(0x{:08x})", v.to_bits()), false)
            }
        }
    };
    Ok(Expr::new(text, if negative { Prec::Unary } else { Prec::Primary }, ty.compute()))
}

/// The initial value of a reduction over elements of that type. For a narrow integer type it is a
/// limit of that type, because it is the result if there are no elements.
pub fn identity_literal(v: f64, ty: DType) -> Result<String, EmitError> {
    let limits = match ty {
        DType::I32 => Some((i32::MIN as f64, i32::MAX as f64)),
        DType::I8 => Some((i8::MIN as f64, i8::MAX as f64)),
        DType::U8 => Some((u8::MIN as f64, u8::MAX as f64)),
        _ => None,
    };
    let v = limits.map_or(v, |(least, most)| v.clamp(least, most));
    Ok(match (ty.compute(), v) {
        (DType::I64, f64::NEG_INFINITY) => "-0x7fffffffffffffffLL - 1".into(),
        (DType::I64, f64::INFINITY) => "0x7fffffffffffffffLL".into(),
        _ => literal(v, ty)?.text,
    })
}
