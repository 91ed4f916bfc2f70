//! Scalar functions as native Rust, in f64 and in f32.
//!
//! In: the scalars of a Program. Out: `pub mod scalars` with one function for each defined scalar.
//! Invariant: each operation rounds to the type of the module, as kernels do; a builtin is
//! identified by its kind, not by a name of Rust's library.

use std::collections::HashSet;

use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

use super::{docs, dtype, ident};
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{Program, ScalarBody, ScalarDef};
use hypatia_dsl::scalar::{Term, TermNode};

/// Operations in one expression; then a name is given.
const MAX_NESTING: u32 = 6;

/// `pub mod scalars { pub mod f64 { .. } pub mod f32 { .. } }`
pub(super) fn modules(program: &Program) -> TokenStream {
    let module = |ty: &str| {
        let name = ident(ty);
        let functions = program.scalars.iter().filter_map(|def| match &def.body {
            ScalarBody::Term(body) => Some(function(program, def, body, &name)),
            ScalarBody::Builtin(_) => None,
        });
        let doc = format!(" In {ty}.");
        quote! {
            #[doc = #doc]
            pub mod #name {
                use ::hypatia::DType;
                use ::hypatia::generated::{BuiltinScalar, cast, of_bool, one, two};
                #(#functions)*
            }
        }
    };
    let (double, single) = (module("f64"), module("f32"));
    quote! {
        /// The scalar functions, native.
        pub mod scalars {
            #double
            #single
        }
    }
}

/// An expression, its kind, and how deep it is.
#[derive(Clone)]
struct Emitted {
    tokens: TokenStream,
    kind: Kind,
    depth: u32,
}

fn function(program: &Program, def: &ScalarDef, body: &Term, ty: &Ident) -> TokenStream {
    let name = ident(&def.name);
    let doc = docs(&def.doc);
    let mut taken = HashSet::new();
    let params: Vec<(Ident, Kind)> = def
        .params
        .iter()
        .enumerate()
        .map(|(i, (n, k))| {
            let id = ident(n);
            if taken.insert(id.to_string()) { (id, *k) } else { (ident(&format!("{n}_{i}")), *k) }
        })
        .collect();
    let of = |k: Kind| if k == Kind::Bool { quote!(bool) } else { quote!(#ty) };
    let list = params.iter().map(|(n, k)| {
        let t = of(*k);
        quote!(#n: #t)
    });
    let result = of(def.result);
    let (lets, value) = expression(program, body, &params, ty);
    let value = as_kind(&value, def.result, ty);
    quote! {
        #(#doc)*
        pub fn #name(#(#list),*) -> #result {
            #(#lets)*
            #value
        }
    }
}

fn expression(program: &Program, term: &Term, params: &[(Ident, Kind)], ty: &Ident) -> (Vec<TokenStream>, Emitted) {
    let mut uses = vec![0u32; term.nodes.len()];
    for node in &term.nodes {
        for a in node.args() {
            uses[a.0 as usize] += 1;
        }
    }
    let mut lets = Vec::new();
    let mut emitted: Vec<Emitted> = Vec::with_capacity(term.nodes.len());
    for (i, node) in term.nodes.iter().enumerate() {
        let mut one = operation(program, node, &emitted, params, ty);
        let leaf = matches!(node, TermNode::Param(_) | TermNode::Lit(_));
        if !leaf && (uses[i] > 1 || one.depth >= MAX_NESTING) {
            let name = ident(&format!("t{i}"));
            let tokens = &one.tokens;
            lets.push(quote!(let #name = #tokens;));
            one = Emitted { tokens: quote!(#name), kind: one.kind, depth: 0 };
        }
        emitted.push(one);
    }
    let none = Emitted { tokens: quote!(0.0), kind: Kind::Number, depth: 0 };
    (lets, term.roots.first().and_then(|r| emitted.get(r.0 as usize).cloned()).unwrap_or(none))
}

fn operation(program: &Program, node: &TermNode, emitted: &[Emitted], params: &[(Ident, Kind)], ty: &Ident) -> Emitted {
    let leaf = |tokens, kind| Emitted { tokens, kind, depth: 0 };
    match node {
        TermNode::Param(i) => match params.get(*i as usize) {
            Some((name, kind)) => leaf(quote!(#name), *kind),
            None => leaf(quote!(0.0), Kind::Number),
        },
        // Scalar bodies have no such leaves.
        TermNode::Acc | TermNode::Second | TermNode::In { .. } => leaf(quote!(0.0), Kind::Number),
        TermNode::Lit(v) if ty == "f32" => {
            let v = v.0 as f32;
            if v.is_finite() {
                // The shortest text that reads back as the same f32.
                let short = Literal::f32_unsuffixed(v.abs());
                leaf(if v.is_sign_negative() { quote!((-#short)) } else { quote!(#short) }, Kind::Number)
            } else {
                let wide = number(v as f64);
                leaf(quote!((#wide as f32)), Kind::Number)
            }
        }
        TermNode::Lit(v) => {
            let number = number(v.0);
            leaf(if v.0.is_sign_negative() { quote!((#number)) } else { number }, Kind::Number)
        }
        TermNode::Cast { to, arg } => {
            let arg = &emitted[arg.0 as usize];
            let depth = arg.depth + 1;
            if *to == DType::Bool {
                return Emitted { tokens: as_kind(arg, Kind::Bool, ty), kind: Kind::Bool, depth };
            }
            let (to, value) = (dtype(*to), as_kind(arg, Kind::Number, ty));
            Emitted { tokens: quote!(cast(#to, #value)), kind: Kind::Number, depth }
        }
        TermNode::Call { scalar, args } => {
            let Some(def) = program.scalars.get(scalar.index()) else { return leaf(quote!(0.0), Kind::Number) };
            let depth = 1 + args.iter().map(|a| emitted[a.0 as usize].depth).max().unwrap_or(0);
            let values: Vec<TokenStream> =
                args.iter().zip(&def.params).map(|(a, (_, k))| as_kind(&emitted[a.0 as usize], *k, ty)).collect();
            let tokens = match &def.body {
                ScalarBody::Builtin(b) => builtin(*b, &values),
                ScalarBody::Term(_) => {
                    let name = ident(&def.name);
                    quote!(#name(#(#values),*))
                }
            };
            Emitted { tokens, kind: def.result, depth }
        }
    }
}

fn builtin(b: BuiltinScalar, v: &[TokenStream]) -> TokenStream {
    use BuiltinScalar::*;
    match (b, v) {
        (Add, [a, b]) => quote!((#a + #b)),
        (Sub, [a, b]) => quote!((#a - #b)),
        (Mul, [a, b]) => quote!((#a * #b)),
        (Div, [a, b]) => quote!((#a / #b)),
        (Neg, [a]) => quote!((-#a)),
        (Eq, [a, b]) => quote!((#a == #b)),
        (Lt, [a, b]) => quote!((#a < #b)),
        (Le, [a, b]) => quote!((#a <= #b)),
        (Not, [a]) => quote!((!#a)),
        (And, [a, b]) => quote!((#a & #b)),
        (Or, [a, b]) => quote!((#a | #b)),
        (Xor, [a, b]) => quote!((#a ^ #b)),
        (Select, [c, a, b]) => quote!((if #c { #a } else { #b })),
        (IsNan, [a]) => quote!(#a.is_nan()),
        (IsInf, [a]) => quote!(#a.is_infinite()),
        (b, [x]) => {
            let b = format_ident!("{b:?}");
            quote!(one(BuiltinScalar::#b, #x))
        }
        (b, [x, y]) => {
            let b = format_ident!("{b:?}");
            quote!(two(BuiltinScalar::#b, #x, #y))
        }
        _ => quote!(0.0),
    }
}

/// A number as it is written in Rust, with its bits.
pub(super) fn number(v: f64) -> TokenStream {
    if !v.is_finite() {
        let bits = Literal::u64_unsuffixed(v.to_bits());
        return quote!(f64::from_bits(#bits));
    }
    let magnitude = format!("{:?}", v.abs()).parse().unwrap_or_else(|_| Literal::f64_unsuffixed(v.abs()));
    if v.is_sign_negative() { quote!(-#magnitude) } else { quote!(#magnitude) }
}

fn as_kind(one: &Emitted, kind: Kind, ty: &Ident) -> TokenStream {
    let tokens = &one.tokens;
    match (one.kind, kind) {
        (Kind::Bool, Kind::Number) => quote!(of_bool::<#ty>(#tokens)),
        (Kind::Number, Kind::Bool) => quote!((#tokens != 0.0)),
        _ => quote!(#tokens),
    }
}
