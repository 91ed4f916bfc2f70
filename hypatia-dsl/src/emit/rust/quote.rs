//! Values of `ir` as Rust expressions that construct them.
//!
//! In: any part of a Program. Out: an expression that is `==` to it when it is run. Holds always: the
//! generated module has the types of `ir`, `scalar`, `shape`, `dtype` and `builtin` in scope; numbers
//! keep their bits.

use proc_macro2::{Literal as Token, TokenStream};
use quote::quote;

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
    /// The expression.
    fn quote(&self) -> TokenStream;
}

macro_rules! record {
    ($($ty:ident { $($f:ident),* $(,)? })*) => { $(
        impl Quote for $ty {
            fn quote(&self) -> TokenStream {
                let $ty { $($f),* } = self;
                $(let $f = $f.quote();)*
                quote!($ty { $($f: #$f),* })
            }
        }
    )* };
}

macro_rules! choice {
    ($($ty:ident { $($unit:ident),* ; $($tuple:ident($($a:ident),+)),* ; $($rec:ident { $($f:ident),+ }),* })*) => { $(
        impl Quote for $ty {
            fn quote(&self) -> TokenStream {
                match self {
                    $($ty::$unit => quote!($ty::$unit),)*
                    $($ty::$tuple($($a),+) => {
                        $(let $a = $a.quote();)+
                        quote!($ty::$tuple($(#$a),+))
                    })*
                    $($ty::$rec { $($f),+ } => {
                        $(let $f = $f.quote();)+
                        quote!($ty::$rec { $($f: #$f),+ })
                    })*
                }
            }
        }
    )* };
}

macro_rules! newtype {
    ($($ty:ident),*) => { $(
        impl Quote for $ty {
            fn quote(&self) -> TokenStream {
                let inner = self.0.quote();
                quote!($ty(#inner))
            }
        }
    )* };
}

/// Enums without fields: `Debug` prints the variant's name.
macro_rules! plain {
    ($($ty:ident),*) => { $(
        impl Quote for $ty {
            fn quote(&self) -> TokenStream {
                let variant = quote::format_ident!("{self:?}");
                quote!($ty::#variant)
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
    Head { Acc, TermCast ; Op(o), Scalar(s), In(v) ; }
    AttrPat { Any ; Var(v), Is(e), List(l), Rest(v) ; }
    Build { Absent ; Var(v), Number(n), Node(n), Else(v, b), Frozen(b), If(c, a, b) ; }
    BuildArg { ; One(b), Spread(v) ; Each { element, item, over } }
    Class { Exact, Finite, Rounds ; Approx(u) ; }
    Backend { Pointwise, Rowwise ; Cublaslt(s), Template(s) ; }
    Expect { ; Launches(op, n), Count(h, op, n), Error(c), Fires(r, b), Equal(b), Becomes(b) ; }
    TermNode { Acc ; Param(i), Lit(l) ; In { input, view }, Call { scalar, args }, Cast { to, arg } }
}

impl<T: Quote> Quote for Vec<T> {
    fn quote(&self) -> TokenStream {
        let items = self.iter().map(Quote::quote);
        quote!(vec![#(#items),*])
    }
}

impl<T: Quote> Quote for Option<T> {
    fn quote(&self) -> TokenStream {
        match self {
            None => quote!(None),
            Some(v) => {
                let v = v.quote();
                quote!(Some(#v))
            }
        }
    }
}

impl<T: Quote> Quote for Box<T> {
    fn quote(&self) -> TokenStream {
        let v = (**self).quote();
        quote!(Box::new(#v))
    }
}

impl<A: Quote, B: Quote> Quote for (A, B) {
    fn quote(&self) -> TokenStream {
        let (a, b) = (self.0.quote(), self.1.quote());
        quote!((#a, #b))
    }
}

impl Quote for String {
    fn quote(&self) -> TokenStream {
        if self.is_empty() { quote!(String::new()) } else { quote!(#self.to_string()) }
    }
}

impl Quote for bool {
    fn quote(&self) -> TokenStream {
        quote!(#self)
    }
}

impl Quote for u16 {
    fn quote(&self) -> TokenStream {
        let v = Token::u16_unsuffixed(*self);
        quote!(#v)
    }
}

impl Quote for u32 {
    fn quote(&self) -> TokenStream {
        let v = Token::u32_unsuffixed(*self);
        quote!(#v)
    }
}

impl Quote for u64 {
    fn quote(&self) -> TokenStream {
        let v = Token::u64_unsuffixed(*self);
        quote!(#v)
    }
}

impl Quote for i64 {
    fn quote(&self) -> TokenStream {
        let v = Token::u64_unsuffixed(self.unsigned_abs());
        match *self {
            i64::MIN => quote!(i64::MIN),
            n if n < 0 => quote!(-#v),
            _ => quote!(#v),
        }
    }
}

impl Quote for f64 {
    fn quote(&self) -> TokenStream {
        if !self.is_finite() {
            let bits = Token::u64_unsuffixed(self.to_bits());
            return quote!(f64::from_bits(#bits));
        }
        let v = Token::f64_unsuffixed(self.abs());
        if self.is_sign_negative() { quote!(-#v) } else { quote!(#v) }
    }
}

impl Quote for Dim {
    fn quote(&self) -> TokenStream {
        if let Some(c) = self.as_const() {
            let c = c.quote();
            return quote!(Dim::from(#c));
        }
        let terms = self.polynomial().into_iter().map(|(c, factors)| {
            let c = c.quote();
            let factors = factors.iter().map(|f| match f {
                DimFactor::Symbol(s) => {
                    let s: &str = s;
                    quote!(DimFactor::Symbol(#s.into()))
                }
                DimFactor::Quotient(a, b) => {
                    let (a, b) = (a.quote(), b.quote());
                    quote!(DimFactor::Quotient(#a, #b))
                }
                DimFactor::Remainder(a, b) => {
                    let (a, b) = (a.quote(), b.quote());
                    quote!(DimFactor::Remainder(#a, #b))
                }
            });
            quote!((#c, vec![#(#factors),*]))
        });
        quote!(Dim::from_polynomial(vec![#(#terms),*]))
    }
}
