//! Values of `ir` as Rust expressions that construct them.
//!
//! In: any part of a Program. Out: an expression that is `==` to it when it is run. Holds always: the
//! generated module has the types of `ir`, `scalar`, `shape`, `dtype` and `builtin` in scope; numbers
//! keep their bits. A library comes to a million tokens: they are written as text, which the compiler's own
//! lexer reads much faster than tokens are built one by one.

use std::fmt::Write;

use proc_macro2::TokenStream;

use crate::ast::BinaryOp;
use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::diag::Code;
use crate::dtype::{DType, Kind};
use crate::ir::*;
use crate::scalar::{Literal, Term, TermId, TermNode};
use crate::shape::{Dim, DimFactor};
use crate::source::{FileId, Span};

/// Prints itself as an expression.
pub(super) trait Quote {
    /// Writes the expression.
    fn write(&self, out: &mut String);

    /// The expression's tokens.
    fn quote(&self) -> TokenStream {
        let mut text = String::new();
        self.write(&mut text);
        tokens(&text)
    }
}

/// The tokens of text that this module wrote.
pub(super) fn tokens(text: &str) -> TokenStream {
    text.parse().unwrap_or_else(|e| {
        let message = format!("internal error: the emitted code cannot be read: {e}");
        quote::quote!(compile_error!(#message))
    })
}

macro_rules! record {
    ($($ty:ident { $($f:ident),* $(,)? })*) => { $(
        impl Quote for $ty {
            fn write(&self, out: &mut String) {
                let $ty { $($f),* } = self;
                out.push_str(concat!(stringify!($ty), "{"));
                $(
                    out.push_str(concat!(stringify!($f), ":"));
                    $f.write(out);
                    out.push(',');
                )*
                out.push('}');
            }
        }
    )* };
}

macro_rules! choice {
    ($($ty:ident { $($unit:ident),* ; $($tuple:ident($($a:ident),+)),* ; $($rec:ident { $($f:ident),+ }),* })*) => { $(
        impl Quote for $ty {
            fn write(&self, out: &mut String) {
                match self {
                    $($ty::$unit => out.push_str(concat!(stringify!($ty), "::", stringify!($unit))),)*
                    $($ty::$tuple($($a),+) => {
                        out.push_str(concat!(stringify!($ty), "::", stringify!($tuple), "("));
                        $($a.write(out); out.push(',');)+
                        out.push(')');
                    })*
                    $($ty::$rec { $($f),+ } => {
                        out.push_str(concat!(stringify!($ty), "::", stringify!($rec), "{"));
                        $(
                            out.push_str(concat!(stringify!($f), ":"));
                            $f.write(out);
                            out.push(',');
                        )+
                        out.push('}');
                    })*
                }
            }
        }
    )* };
}

macro_rules! newtype {
    ($($ty:ident),*) => { $(
        impl Quote for $ty {
            fn write(&self, out: &mut String) {
                out.push_str(concat!(stringify!($ty), "("));
                self.0.write(out);
                out.push(')');
            }
        }
    )* };
}

/// Enums without fields: `Debug` prints the variant's name.
macro_rules! plain {
    ($($ty:ident),*) => { $(
        impl Quote for $ty {
            fn write(&self, out: &mut String) {
                // Writing into a string cannot fail.
                let _ = write!(out, concat!(stringify!($ty), "::{:?}"), self);
            }
        }
    )* };
}

/// Numbers that `Debug` prints as Rust reads them.
macro_rules! numbers {
    ($($ty:ty),*) => { $(
        impl Quote for $ty {
            fn write(&self, out: &mut String) {
                let _ = write!(out, "{self:?}");
            }
        }
    )* };
}

newtype!(ScalarId, OpId, RuleSetId, VarId, TermId, Code, FileId, Literal);
plain!(DType, Kind, BuiltinOp, BuiltinScalar, Sort, AttrType, AFn, Fact, DeviceFact, InView, BinaryOp);

record! {
    Span { file, start, end }
    Origin { file, line, column, span }
    ScalarDef { name, doc, origin, params, result, body, grads }
    Var { name, sort }
    OpDef { name, doc, origin, vars, params, bounds, results, variadic_result, requires, body, cost }
    CostFormulas { flops, read, write }
    Param { name, kind }
    TypePat { dtype, prefix, rest, suffix }
    NodePat { head, args, rest, attrs, output }
    BuildNode { head, args, attrs, output }
    Claim { class, dtypes }
    TemplateFile { file, text }
    RuleSetDef { name, doc, origin, iterations, nodes, time_ms }
    Rule {
        name, base_name, ruleset, doc, origin, vars, lhs, rhs, lets, requires, prefer, claims, pointwise, derived,
    }
    Kernel { name, doc, origin, vars, pattern, backend, requires, tune, launch, claims, closed }
    Test { name, origin, target, inputs, given, error, expect }
    TestInput { name, dtype, shape, constant, value }
    Term { nodes, roots }
}

choice! {
    ScalarBody { ; Builtin(b), Term(t) ; }
    ParamKind { Term ; ; Tensor { ty, optional, variadic }, Attr { ty, default } }
    OpBody { ; Builtin(b), Defined(b) ; }
    DTypePat { Any ; Is(d), Var(v), Expr(e) ; }
    DimPat { Any ; Var(v), Expr(e) ; }
    RestPat { Any ; Var(v), Expr(e) ; }
    AttrValue { ; Dim(d), Float(f), Bool(b), DType(d), Str(s), List(l) ; }
    AExpr {
        ;
        Value(v), Var(v), List(l), Spread(e), Index(a, b), Neg(a), Not(a), Binary(op, a, b), If(c, a, b), Call(f, a),
        Fact(f, v), SameAccumulator(a, b, c), Device(f)
        ;
        Comprehension { element, var, over, condition }
    }
    Pat { Any, Absent ; Var(v), Bind(v, p), Typed(p, t), Node(n), OneOf(p), Optional(v) ; Lit { value, near } }
    Head { Acc, TermCast ; Op(o), Scalar(s), In(v), Region(v) ; }
    AttrPat { Any ; Var(v), Is(e), List(l), Rest(v) ; }
    Build { Absent ; Var(v), Number(n), Node(n), Else(v, b), Frozen(b), If(c, a, b) ; }
    BuildArg { ; One(b), Spread(v) ; Each { element, item, over } }
    Class { Exact, Finite, Rounds ; Approx(u) ; }
    Backend { Pointwise, Rowwise, Composed ; Cublaslt(s), Template(s) ; }
    Expect { ; Launches(op, n), Count(h, op, n), Error(c), Fires(r, b), Equal(b), Becomes(b) ; }
    TermNode { Acc ; Param(i), Lit(l) ; In { input, view }, Call { scalar, args }, Cast { to, arg } }
}

numbers!(bool, u16, u32, u64);

impl<T: Quote> Quote for Vec<T> {
    fn write(&self, out: &mut String) {
        list(out, self, |item, out| item.write(out));
    }
}

/// `vec![a, b]`
fn list<T>(out: &mut String, items: &[T], mut one: impl FnMut(&T, &mut String)) {
    out.push_str("vec![");
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        one(item, out);
    }
    out.push(']');
}

impl<T: Quote> Quote for Option<T> {
    fn write(&self, out: &mut String) {
        match self {
            None => out.push_str("None"),
            Some(v) => {
                out.push_str("Some(");
                v.write(out);
                out.push(')');
            }
        }
    }
}

impl<T: Quote> Quote for Box<T> {
    fn write(&self, out: &mut String) {
        out.push_str("Box::new(");
        (**self).write(out);
        out.push(')');
    }
}

impl<A: Quote, B: Quote> Quote for (A, B) {
    fn write(&self, out: &mut String) {
        out.push('(');
        self.0.write(out);
        out.push(',');
        self.1.write(out);
        out.push(')');
    }
}

impl Quote for String {
    fn write(&self, out: &mut String) {
        if self.is_empty() {
            return out.push_str("String::new()");
        }
        let _ = write!(out, "{self:?}.to_string()");
    }
}

impl Quote for i64 {
    fn write(&self, out: &mut String) {
        if *self == i64::MIN {
            return out.push_str("i64::MIN");
        }
        let _ = write!(out, "{self}");
    }
}

impl Quote for f64 {
    fn write(&self, out: &mut String) {
        let _ = match self.is_finite() {
            true => write!(out, "{self:?}"),
            false => write!(out, "f64::from_bits({})", self.to_bits()),
        };
    }
}

impl Quote for Dim {
    fn write(&self, out: &mut String) {
        if let Some(c) = self.as_const() {
            out.push_str("Dim::from(");
            c.write(out);
            return out.push(')');
        }
        out.push_str("Dim::from_polynomial(");
        list(out, &self.polynomial(), |(c, factors), out| {
            out.push('(');
            c.write(out);
            out.push(',');
            list(out, factors, factor);
            out.push(')');
        });
        out.push(')');
    }
}

fn factor(f: &DimFactor, out: &mut String) {
    let (variant, a, b) = match f {
        DimFactor::Symbol(s) => {
            let s: &str = s;
            let _ = write!(out, "DimFactor::Symbol({s:?}.into())");
            return;
        }
        DimFactor::Quotient(a, b) => ("Quotient", a, b),
        DimFactor::Remainder(a, b) => ("Remainder", a, b),
    };
    let _ = write!(out, "DimFactor::{variant}(");
    a.write(out);
    out.push(',');
    b.write(out);
    out.push(')');
}
