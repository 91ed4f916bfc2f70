//! `hypatia_rules!`: rules compiled with the Rust program that uses them.
//!
//! In: a path to a `.hyp` file, or its text. Out: the module that `emit::rust` prints. Holds always:
//! everything is decided in `hypatia-dsl`; an error becomes a `compile_error!` that shows the place in
//! the user's text.

use std::path::{Path, PathBuf};

use hypatia_dsl::compile::{FileLoader, compile};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::emit::instances::Scope;
use hypatia_dsl::emit::rust::{Options, source};
use hypatia_dsl::render::{Format, render, summary};
use hypatia_dsl::source::{SourceFile, open_regular};
use proc_macro::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::{Ident, LitStr, Token, Visibility};

/// Compiles rules into a module, when the Rust program is compiled.
///
/// ```text
/// hypatia_rules!("rules/fusions.hyp");                  // private module `fusions`
/// hypatia_rules!(pub mod mine = "rules/fusions.hyp");   // relative to Cargo.toml, or to this file
/// hypatia_rules!(mod mine = r#"
///     edition 1;
///     use core::*;
///     scalar cube(x) = x * x * x;
/// "#);
/// ```
///
/// The file is checked as `hypatia check` does; an error is a compile error that shows the place in the file. Cargo
/// builds anew when the file, or one that it uses, has changed.
///
/// # What the module has
///
/// | item | what |
/// |---|---|
/// | `program()` | the checked Program: the standard library and this file |
/// | `rewrites()` | its rules, as the optimiser runs them |
/// | `trait Formulas` | a method of `hypatia::graph::GraphBuilder` for each op and scalar of the file |
/// | `trait Ops` | the same for `hypatia::Graph`: values, and a `Result` from each method |
/// | `scalars::f64`, `scalars::f32` | the scalars as native Rust functions |
/// | `kernels` | CUDA sources of the kernels |
///
/// # A whole program
///
/// ```text
/// use hypatia::dsl::dtype::DType;
/// use hypatia::graph::GraphBuilder;
/// use hypatia::session::{Model, Options};
/// use hypatia::{Tensor, hypatia_rules, shape};
///
/// hypatia_rules!(mod mine = r#"
///     edition 1;
///     use core::*;
///     /// x where x > 0, else a tenth of it.
///     scalar tenth_relu(x) = max(x, 0.1 * x);
/// "#);
/// use mine::Formulas;
///
/// let g = GraphBuilder::new(mine::program());
/// let x = g.input("x", DType::F32, shape!["n", 2]);
/// g.output("y", g.tenth_relu(x));
/// let model = Model::new(g.finish()?, Options::default());
/// let x = Tensor::from_slice(&[1, 2], &[1.0f32, -1.0]).unwrap();
/// let y = model.run(&[("x".to_string(), x)])?;
/// assert_eq!(mine::scalars::f64::tenth_relu(-1.0), -0.1);
/// ```
///
/// `examples/src/bin/custom_rule.rs` is this with a rule of its own.
#[proc_macro]
pub fn hypatia_rules(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as Input);
    match expand(&input) {
        // The compiler's own lexer reads text much faster than tokens can be handed over one by one.
        Ok(text) => text.parse().unwrap_or_else(|e: proc_macro::LexError| {
            let message = format!("internal error: the emitted code cannot be read: {e}");
            syn::Error::new(input.source.span(), message).to_compile_error().into()
        }),
        Err(message) => syn::Error::new(input.source.span(), message).to_compile_error().into(),
    }
}

/// `[[pub] mod name =] "path or text"`
struct Input {
    public: bool,
    module: Option<Ident>,
    source: LitStr,
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> syn::Result<Input> {
        let mut module = None;
        let mut public = false;
        if !input.peek(LitStr) {
            public = !matches!(input.parse::<Visibility>()?, Visibility::Inherited);
            input.parse::<Token![mod]>()?;
            module = Some(input.parse::<Ident>()?);
            input.parse::<Token![=]>()?;
        }
        let source = input.parse()?;
        input.parse::<Option<Token![;]>>()?;
        Ok(Input { public, module, source })
    }
}

fn expand(input: &Input) -> Result<String, String> {
    let text = input.source.value();
    let file =
        if text.ends_with(".hyp") && !text.contains('\n') { read(&text, input.source.span())? } else { inline(text) };
    let stem = file.path.as_deref().and_then(Path::file_stem).map(|s| s.to_string_lossy().into_owned());
    let module = input.module.as_ref().map(Ident::to_string).or(stem).unwrap_or_else(|| "rules".into());
    let doc = format!(" The rules of `{}`.", file.name);
    let scope = Scope::Files(vec![file.name.clone()]);

    let loader = FileLoader { embedded: hypatia_rules::FILES };
    let mut roots: Vec<SourceFile> = hypatia_rules::FILES.iter().map(|(name, text)| library(name, text)).collect();
    roots.push(file);
    let compiled = compile(roots, &loader);
    let Some(program) = compiled.program else {
        let report = render(&compiled.sources, &compiled.diagnostics, Format::Full { color: false });
        return Err(format!("{report}{}", summary(&compiled.diagnostics)));
    };
    let watch = compiled.sources.files().filter_map(|(_, f)| f.path.as_ref()).map(|p| p.display().to_string());
    let options = Options {
        module,
        public: input.public,
        doc,
        scope,
        dtypes: vec![DType::F32, DType::F16, DType::BF16],
        watch: watch.collect(),
    };
    Ok(source(&program, &options))
}

fn library(name: &str, text: &str) -> SourceFile {
    SourceFile { name: format!("<library>/{name}.hyp"), path: None, text: text.into(), embedded: true }
}

fn inline(text: String) -> SourceFile {
    SourceFile { name: "<inline>".into(), path: None, text: text.into(), embedded: false }
}

/// A path is relative to the folder of the user's Cargo.toml, else to the file that calls the macro.
fn read(name: &str, call: proc_macro2::Span) -> Result<SourceFile, String> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let beside = call.local_file().and_then(|f| f.parent().map(Path::to_path_buf));
    for path in [manifest, beside].into_iter().flatten().map(|folder| folder.join(name)) {
        match open_regular(&path).and_then(std::io::read_to_string) {
            // The compiler takes a relative path in `include_bytes!` for one beside the calling file.
            Ok(text) => {
                let path = path.canonicalize().unwrap_or(path);
                return Ok(SourceFile { name: name.into(), path: Some(path), text: text.into(), embedded: false });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{name}: {e}")),
        }
    }
    Err(format!("{name}: there is no such file, neither relative to Cargo.toml nor beside this file"))
}
