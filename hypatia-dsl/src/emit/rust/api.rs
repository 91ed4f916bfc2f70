//! The parts of the module that a user calls: builder methods and kernels.
//!
//! In: a Program and the user's scope. Out: `trait Ops` on graphs, and `mod kernels`. Holds always: a
//! method's parameters are the op's operands and attributes in the order of their declaration.

use std::collections::HashSet;

use ::quote::quote;
use proc_macro2::TokenStream;

use super::quote::Quote;
use super::{Options, docs, ident};
use crate::emit::instances::{Scope, of_program};
use crate::ir::{AttrType, OpDef, ParamKind, Program, ScalarBody, ScalarDef};

/// True if the declaration is the user's.
fn own(options: &Options, file: &str) -> bool {
    match &options.scope {
        Scope::All => true,
        Scope::Files(files) => files.iter().any(|f| f == file),
    }
}

/// `trait Ops`, implemented for graphs.
pub(super) fn ops(program: &Program, options: &Options) -> TokenStream {
    let mut taken = HashSet::new();
    let mut methods: Vec<(TokenStream, TokenStream)> = Vec::new();
    for op in program.ops.iter().filter(|o| own(options, &o.origin.file)) {
        if taken.insert(op.name.clone()) {
            methods.push(op_method(op));
        }
    }
    for s in program.scalars.iter().filter(|s| own(options, &s.origin.file)) {
        if matches!(s.body, ScalarBody::Term(_)) && taken.insert(s.name.clone()) {
            methods.push(scalar_method(s));
        }
    }
    let declared = methods.iter().map(|(head, _)| quote!(#head;));
    let defined = methods.iter().map(|(head, body)| quote!(#head { #body }));
    quote! {
        /// Builder methods of the ops and of the scalar functions on tensors.
        pub trait Ops {
            #(#declared)*
        }
        impl Ops for ::hypatia::Graph {
            #(#defined)*
        }
    }
}

fn op_method(op: &OpDef) -> (TokenStream, TokenStream) {
    let name = ident(&op.name);
    let text = op.name.as_str();
    let doc = docs(&op.doc);
    let mut params = Vec::new();
    let mut operands = Vec::new();
    let mut attrs = Vec::new();
    let mut term = quote!(::std::option::Option::None);
    let mut behind = None;
    for p in &op.params {
        let id = ident(&p.name);
        match &p.kind {
            ParamKind::Tensor { variadic: true, .. } => {
                params.push(quote!(#id: &[::hypatia::graph::Value]));
                operands.push(quote!(operands.extend(#id.iter().copied().map(::std::option::Option::Some));));
            }
            ParamKind::Tensor { optional: true, .. } => {
                params.push(quote!(#id: ::std::option::Option<::hypatia::graph::Value>));
                operands.push(quote!(operands.push(#id);));
            }
            ParamKind::Tensor { .. } => {
                params.push(quote!(#id: ::hypatia::graph::Value));
                operands.push(quote!(operands.push(::std::option::Option::Some(#id));));
            }
            ParamKind::Term => {
                params.push(quote!(#id: ::hypatia::dsl::scalar::Term));
                params.push(quote!(operands_of_term: &[::hypatia::graph::Value]));
                term = quote!(::std::option::Option::Some(#id));
                behind = Some(quote! {
                    operands.extend(operands_of_term.iter().copied().map(::std::option::Option::Some));
                });
            }
            ParamKind::Attr { ty, default } => {
                let (rust, value) = attr(*ty, &id);
                let text = p.name.as_str();
                if default.is_some() {
                    params.push(quote!(#id: ::std::option::Option<#rust>));
                    attrs.push(quote!(if let ::std::option::Option::Some(#id) = #id { attrs.push((#text, #value)); }));
                } else {
                    params.push(quote!(#id: #rust));
                    attrs.push(quote!(attrs.push((#text, #value));));
                }
            }
        }
    }
    let single = op.results.len() == 1 && !op.variadic_result;
    let (result, finish) = if single {
        (quote!(::hypatia::graph::Value), quote!(::hypatia::generated::single(results)))
    } else {
        (quote!(::std::vec::Vec<::hypatia::graph::Value>), quote!(::std::result::Result::Ok(results)))
    };
    let head = quote! {
        #(#doc)*
        fn #name(&mut self #(, #params)*) -> ::std::result::Result<#result, ::hypatia::Error>
    };
    let body = quote! {
        use ::hypatia::dsl::ir::AttrValue;
        let mut operands: ::std::vec::Vec<::std::option::Option<::hypatia::graph::Value>> = ::std::vec::Vec::new();
        let mut attrs: ::std::vec::Vec<(&str, AttrValue)> = ::std::vec::Vec::new();
        #(#operands)*
        #behind
        #(#attrs)*
        let results = ::hypatia::generated::op(self, #text, &operands, &attrs, #term)?;
        #finish
    };
    (head, body)
}

/// The Rust type of an attribute, and the expression that makes its value.
fn attr(ty: AttrType, id: &proc_macro2::Ident) -> (TokenStream, TokenStream) {
    let dim = quote!(::hypatia::dsl::shape::Dim);
    match ty {
        AttrType::Int | AttrType::Axis => (quote!(i64), quote!(AttrValue::Dim(#dim::from(#id)))),
        AttrType::Ints | AttrType::Axes => {
            (quote!(&[i64]), quote!(AttrValue::List(#id.iter().map(|v| AttrValue::Dim(#dim::from(*v))).collect())))
        }
        AttrType::Float => (quote!(f64), quote!(AttrValue::Float(#id))),
        AttrType::Floats => {
            (quote!(&[f64]), quote!(AttrValue::List(#id.iter().map(|v| AttrValue::Float(*v)).collect())))
        }
        AttrType::Bool => (quote!(bool), quote!(AttrValue::Bool(#id))),
        AttrType::DType => (quote!(::hypatia::dsl::dtype::DType), quote!(AttrValue::DType(#id))),
        AttrType::Dim => (dim, quote!(AttrValue::Dim(#id))),
        AttrType::Dims => (quote!(&[#dim]), quote!(AttrValue::List(#id.iter().cloned().map(AttrValue::Dim).collect()))),
        AttrType::Str => (quote!(&str), quote!(AttrValue::Str(#id.to_string()))),
    }
}

fn scalar_method(s: &ScalarDef) -> (TokenStream, TokenStream) {
    let name = ident(&s.name);
    let text = s.name.as_str();
    let doc = docs(&s.doc);
    let ids: Vec<_> = s.params.iter().map(|(n, _)| ident(n)).collect();
    let head = quote! {
        #(#doc)*
        fn #name(&mut self #(, #ids: ::hypatia::graph::Value)*)
            -> ::std::result::Result<::hypatia::graph::Value, ::hypatia::Error>
    };
    (head, quote!(::hypatia::generated::scalar(self, #text, &[#(#ids),*])))
}

/// `mod kernels`: sources of closed kernels, `instantiate` for open ones.
pub(super) fn kernels(program: &Program, options: &Options) -> TokenStream {
    let (instances, _) = of_program(program, &options.scope, &options.dtypes);
    let mut constants = Vec::new();
    let mut names = Vec::new();
    for instance in &instances {
        let Ok(source) = instance.emit(program) else { continue };
        let constant = ident(&format!("{}_{}", instance.kernel, instance.dtype).to_ascii_uppercase());
        let doc = docs(&format!("CUDA C++ of `{}` in {}: `{}`.", instance.kernel, instance.dtype, source.formula));
        let (text, kernel, dtype) = (&source.text, &instance.kernel, instance.dtype.quote());
        constants.push(quote!(#(#doc)* pub const #constant: &str = #text;));
        names.push(quote!((#kernel, #dtype, #constant)));
    }
    let open = program.kernels.iter().filter(|k| !k.closed && own(options, &k.origin.file)).map(|k| {
        let (name, text) = (ident(&k.name), k.name.as_str());
        let doc = docs(&format!("{}\nFor one epilogue: see `hypatia::dsl::emit::instances::instantiate`.", k.doc));
        quote! {
            #(#doc)*
            pub fn #name(
                term: &::hypatia::dsl::scalar::Term,
                acc: DType,
                operands: &[::hypatia::dsl::kernel::Operand],
                output: DType,
                tune: &[(&str, i64)],
            ) -> ::std::result::Result<
                ::hypatia::dsl::emit::cuda::CudaSource,
                ::hypatia::dsl::emit::cuda::EmitError,
            > {
                ::hypatia::dsl::emit::instances::instantiate(
                    &super::super::program(), #text, term, acc, operands, output, tune,
                )
            }
        }
    });
    quote! {
        /// The kernels: sources of closed ones, functions that instantiate open ones.
        pub mod kernels {
            use ::hypatia::dsl::dtype::DType;
            #(#constants)*
            /// Name, element type and CUDA C++ of each closed kernel.
            pub const ALL: &[(&str, DType, &str)] = &[#(#names),*];
            /// A function for each open kernel.
            pub mod instantiate {
                use ::hypatia::dsl::dtype::DType;
                #(#open)*
            }
        }
    }
}
