//! The parts of the module that a user calls: builder methods and kernels.
//!
//! In: a Program and the user's scope. Out: `trait Ops` on graphs, `trait Formulas` on graph
//! builders, and `mod kernels`. Invariant: a method's parameters are the op's operands and
//! attributes in the order of their declaration.

use std::collections::HashSet;

use hypatia_dsl::ir::{AttrType, OpDef, ParamKind, Program, ScalarBody, ScalarDef};
use hypatia_templates::instances::{Scope, of_program};
use proc_macro2::TokenStream;
use quote::quote;

use super::{Options, docs, dtype, ident};

/// True if the declaration is the user's.
fn own(options: &Options, file: &str) -> bool {
    match &options.scope {
        Scope::All => true,
        Scope::Files(files) => files.iter().any(|f| f == file),
    }
}

/// What the methods are for.
#[derive(Clone, Copy, PartialEq)]
enum Host {
    /// `Graph`: values, and a `Result` from each method.
    Graph,
    /// `GraphBuilder`: formulas; mistakes are told at the end.
    Builder,
}

impl Host {
    fn receiver(self) -> TokenStream {
        match self {
            Host::Graph => quote!(&mut self),
            Host::Builder => quote!(&'g self),
        }
    }

    fn lifetime(self) -> TokenStream {
        match self {
            Host::Graph => quote!(),
            Host::Builder => quote!(<'g>),
        }
    }

    fn value(self) -> TokenStream {
        match self {
            Host::Graph => quote!(::hypatia::graph::Value),
            Host::Builder => quote!(::hypatia::graph::Var<'g>),
        }
    }

    fn result(self, single: bool) -> TokenStream {
        let value = self.value();
        let value = if single { value } else { quote!(::std::vec::Vec<#value>) };
        match self {
            Host::Graph => quote!(::std::result::Result<#value, ::hypatia::Error>),
            Host::Builder => value,
        }
    }
}

/// `trait Ops`, implemented for graphs, and `trait Formulas`, implemented for graph builders.
pub(super) fn ops(program: &Program, options: &Options) -> TokenStream {
    let traits = [(Host::Graph, "Ops", quote!(Graph)), (Host::Builder, "Formulas", quote!(GraphBuilder))];
    let traits = traits.map(|(host, name, on)| {
        let mut taken = HashSet::new();
        let mut methods: Vec<(TokenStream, TokenStream)> = Vec::new();
        for op in program.ops.iter().filter(|o| own(options, &o.origin.file)) {
            // A term is no formula.
            let possible = host == Host::Graph || op.params.iter().all(|p| p.kind != ParamKind::Term);
            if possible && taken.insert(op.name.clone()) {
                methods.push(op_method(op, host));
            }
        }
        for s in program.scalars.iter().filter(|s| own(options, &s.origin.file)) {
            if matches!(s.body, ScalarBody::Term(_)) && taken.insert(s.name.clone()) {
                methods.push(scalar_method(s, host));
            }
        }
        let declared = methods.iter().map(|(head, _)| quote!(#head;));
        let defined = methods.iter().map(|(head, body)| quote!(#head { #body }));
        let name = ident(name);
        quote! {
            /// Builder methods of the ops and of the scalar functions on tensors.
            pub trait #name {
                #(#declared)*
            }
            impl #name for ::hypatia::#on {
                #(#defined)*
            }
        }
    });
    quote!(#(#traits)*)
}

/// The parameters of an op's method, and the statements that collect what they are given.
struct Params {
    /// The parameters.
    list: Vec<TokenStream>,
    /// Statements that add to `operands`.
    operands: Vec<TokenStream>,
    /// Statements that add to `attrs`.
    attrs: Vec<TokenStream>,
    /// The term, as an option.
    term: TokenStream,
}

/// The parameters of an op, in declaration order.
fn params(op: &OpDef, value: &TokenStream) -> Params {
    let mut params = Vec::new();
    let mut operands = Vec::new();
    let mut attrs = Vec::new();
    let mut term = quote!(::std::option::Option::None);
    let mut behind = None;
    for p in &op.params {
        let id = ident(&p.name);
        match &p.kind {
            ParamKind::Tensor { variadic: true, .. } => {
                params.push(quote!(#id: &[#value]));
                operands.push(quote!(operands.extend(#id.iter().copied().map(::std::option::Option::Some));));
            }
            ParamKind::Tensor { optional: true, .. } => {
                params.push(quote!(#id: ::std::option::Option<#value>));
                operands.push(quote!(operands.push(#id);));
            }
            ParamKind::Tensor { .. } => {
                params.push(quote!(#id: #value));
                operands.push(quote!(operands.push(::std::option::Option::Some(#id));));
            }
            ParamKind::Term => {
                params.push(quote!(#id: ::hypatia::graph::Term));
                params.push(quote!(operands_of_term: &[#value]));
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
    // What the term reads comes after the other operands.
    operands.extend(behind);
    Params { list: params, operands, attrs, term }
}

/// The head and the body of an op's method.
fn op_method(op: &OpDef, host: Host) -> (TokenStream, TokenStream) {
    let name = ident(&op.name);
    let text = op.name.as_str();
    let doc = docs(&op.doc);
    let value = host.value();
    let Params { list, operands, attrs, term } = params(op, &value);
    let single = op.results.len() == 1 && !op.variadic_result;
    let finish = match (host, single) {
        (Host::Graph, true) => quote! {
            let results = ::hypatia::generated::op(self, #text, &operands, &attrs, #term)?;
            ::hypatia::generated::single(results)
        },
        (Host::Graph, false) => quote!(::hypatia::generated::op(self, #text, &operands, &attrs, #term)),
        (Host::Builder, true) => quote!(self.first(self.apply(#text, &operands, &attrs))),
        (Host::Builder, false) => quote!(self.apply(#text, &operands, &attrs)),
    };
    let (receiver, lifetime, result) = (host.receiver(), host.lifetime(), host.result(single));
    let track = (host == Host::Builder).then(|| quote!(#[track_caller]));
    let head = quote! {
        #(#doc)*
        #track
        fn #name #lifetime (#receiver #(, #list)*) -> #result
    };
    let body = quote! {
        use ::hypatia::graph::AttrValue;
        let mut operands: ::std::vec::Vec<::std::option::Option<#value>> = ::std::vec::Vec::new();
        let mut attrs: ::std::vec::Vec<(&str, AttrValue)> = ::std::vec::Vec::new();
        #(#operands)*
        #(#attrs)*
        #finish
    };
    (head, body)
}

/// The Rust type of an attribute, and the expression that makes its value.
fn attr(ty: AttrType, id: &proc_macro2::Ident) -> (TokenStream, TokenStream) {
    let dim = quote!(::hypatia::graph::Dim);
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
        AttrType::DType => (quote!(::hypatia::DType), quote!(AttrValue::DType(#id))),
        AttrType::Dim => (dim, quote!(AttrValue::Dim(#id))),
        AttrType::Dims => (quote!(&[#dim]), quote!(AttrValue::List(#id.iter().cloned().map(AttrValue::Dim).collect()))),
        AttrType::Str => (quote!(&str), quote!(AttrValue::Str(#id.to_string()))),
    }
}

fn scalar_method(s: &ScalarDef, host: Host) -> (TokenStream, TokenStream) {
    let name = ident(&s.name);
    let text = s.name.as_str();
    let doc = docs(&s.doc);
    let ids: Vec<_> = s.params.iter().map(|(n, _)| ident(n)).collect();
    let (receiver, lifetime, value, result) = (host.receiver(), host.lifetime(), host.value(), host.result(true));
    let (track, body) = match host {
        Host::Graph => (None, quote!(::hypatia::generated::scalar(self, #text, &[#(#ids),*]))),
        Host::Builder => (Some(quote!(#[track_caller])), quote!(self.call(#text, &[#(#ids),*], &[]))),
    };
    let head = quote! {
        #(#doc)*
        #track
        fn #name #lifetime (#receiver #(, #ids: #value)*) -> #result
    };
    (head, body)
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
        let (text, kernel, dtype) = (&source.text, &instance.kernel, dtype(instance.dtype));
        constants.push(quote!(#(#doc)* pub const #constant: &str = #text;));
        names.push(quote!((#kernel, #dtype, #constant)));
    }
    let open = program.kernels.iter().filter(|k| !k.closed && own(options, &k.origin.file)).map(|k| {
        let (name, text) = (ident(&k.name), k.name.as_str());
        let doc = docs(&format!("{}\nFor one epilogue: see `hypatia::kernels::instantiate`.", k.doc));
        quote! {
            #(#doc)*
            pub fn #name(
                term: &::hypatia::graph::Term,
                acc: DType,
                operands: &[::hypatia::kernels::Operand],
                output: DType,
                tune: &[(&str, i64)],
            ) -> ::std::result::Result<
                ::hypatia::kernels::CudaSource,
                ::hypatia::kernels::EmitError,
            > {
                ::hypatia::kernels::instantiate(
                    &super::super::program(), #text, term, acc, operands, output, tune,
                )
            }
        }
    });
    quote! {
        /// The kernels: sources of closed ones, functions that instantiate open ones.
        pub mod kernels {
            use ::hypatia::DType;
            #(#constants)*
            /// Name, element type and CUDA C++ of each closed kernel.
            pub const ALL: &[(&str, DType, &str)] = &[#(#names),*];
            /// A function for each open kernel.
            pub mod instantiate {
                use ::hypatia::DType;
                #(#open)*
            }
        }
    }
}
