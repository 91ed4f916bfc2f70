//! `hypatia_rules!`: rules compiled with the Rust program that uses them.
//!
//! In: rules as tokens, as text, or as a path to a `.hyp` file. Out: the module that `hypatia-emit`
//! prints. Invariant: `hypatia-dsl` decides everything; an error becomes a `compile_error!` at the
//! tokens that caused it. For a string literal it is at the whole literal, and its text shows file,
//! line, column and caret: the span of a part of a literal (`proc_macro::Literal::subspan`) is not
//! stable in Rust 1.95.

mod tokens;

use std::path::{Path, PathBuf};

use hypatia_dsl::compile::{Compilation, FileLoader, compile};
use hypatia_dsl::diag::{Diagnostic, Severity};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::render::{Format, render, summary};
use hypatia_dsl::source::{SourceFile, open_regular};
use hypatia_emit::{Options, tokens};
use hypatia_templates::Checker;
use hypatia_templates::instances::Scope;
use proc_macro::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::{Ident, LitStr, Token, Visibility};

use crate::tokens::{FAR, Text};

/// Compiles rules into a module, when the Rust program is compiled.
///
/// ```text
/// hypatia_rules!("rules/fusions.hyp");                  // private module `fusions`
/// hypatia_rules!(pub mod mine = "rules/fusions.hyp");   // relative to Cargo.toml, or to this file
/// hypatia_rules! {                                      // the compiler points at the wrong word
///     mod mine;
///     use core::*;
///     scalar cube(x) = x * x * x;
/// }
/// hypatia_rules!(mod mine = r#"
///     edition 1;
///     use core::*;
///     scalar cube(x) = x * x * x;
/// "#);
/// ```
///
/// Rules are checked as `hypatia check` does, and an error is a compile error. For rules between
/// braces it points at the wrong tokens, in an editor too: write short rules so. For a file it
/// shows the line and the column in the file. For a string the compiler marks the whole literal,
/// and the message shows the line and the column in the Rust file, with a caret. Rules between
/// braces are of edition 1 unless they declare another one. Cargo rebuilds when a file, or a file
/// that it uses, has changed.
///
/// # What the module has
///
/// | item | what |
/// |---|---|
/// | `program()` | the checked Program: the standard library and this file |
/// | `rewrites()` | its rules, as the optimiser runs them |
/// | `trait Formulas` | a method of `GraphBuilder` for each op and scalar of the file |
/// | `trait Ops` | the same for `hypatia::Graph`: values, and a `Result` from each method |
/// | `scalars::f64`, `scalars::f32` | the scalars as native Rust functions |
/// | `kernels` | CUDA sources of the kernels |
///
/// # A whole program
///
/// ```text
/// use hypatia::{DType, GraphBuilder, Model, Options, Tensor, hypatia_rules, shape};
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
    expand(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// `[[pub] mod name =] "path or text"`, or `[pub] mod name; rules`
struct Input {
    public: bool,
    module: Option<Ident>,
    source: Source,
}

/// Where the rules come from.
enum Source {
    /// A string literal: the rules, or the path of their file.
    Literal(LitStr),
    /// The tokens after `mod name;`.
    Tokens(proc_macro2::TokenStream),
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> syn::Result<Input> {
        let mut module = None;
        let mut public = false;
        if !input.peek(LitStr) {
            public = !matches!(input.parse::<Visibility>()?, Visibility::Inherited);
            input.parse::<Token![mod]>()?;
            module = Some(input.parse::<Ident>()?);
            if input.peek(Token![;]) {
                input.parse::<Token![;]>()?;
                return Ok(Input { public, module, source: Source::Tokens(input.parse()?) });
            }
            input.parse::<Token![=]>()?;
        }
        let source = Source::Literal(input.parse()?);
        input.parse::<Option<Token![;]>>()?;
        Ok(Input { public, module, source })
    }
}

fn expand(input: &Input) -> syn::Result<proc_macro2::TokenStream> {
    let call = input.module.as_ref().map_or_else(proc_macro2::Span::call_site, Ident::span);
    let (file, to_error): (SourceFile, Box<ToError<'_>>) = match &input.source {
        Source::Literal(literal) => {
            let (text, at) = (literal.value(), literal.span());
            let is_path = text.ends_with(".hyp") && !text.contains('\n');
            let wrong = move |message| syn::Error::new(at, message);
            let file = if is_path { read(&text, at).map_err(wrong)? } else { in_place(literal) };
            (file, Box::new(move |c| wrong(report(c))))
        }
        Source::Tokens(tokens) => {
            let text = Text::of(tokens.clone());
            (unsaved(&rust_file(call), &text.text), Box::new(move |c| at_tokens(c, &text, call)))
        }
    };
    let stem = file.path.as_deref().and_then(Path::file_stem).map(|s| s.to_string_lossy().into_owned());
    let module = input.module.as_ref().map(Ident::to_string).or(stem).unwrap_or_else(|| "rules".into());
    let doc = format!(" The rules of `{}`.", file.name);
    let scope = Scope::Files(vec![file.name.clone()]);

    let loader = FileLoader { embedded: hypatia_rules::FILES, trees: hypatia_rules::TREES };
    let mut roots: Vec<SourceFile> =
        hypatia_rules::FILES.iter().map(|(name, text)| SourceFile::library(name, text)).collect();
    roots.push(file);
    let compiled = compile(roots, &loader, &Checker);
    let Some(program) = &compiled.program else { return Err(to_error(&compiled)) };
    let watch = compiled.sources.files().filter_map(|(_, f)| f.path.as_ref()).map(|p| p.display().to_string());
    let options = Options {
        module,
        public: input.public,
        doc,
        scope,
        dtypes: vec![DType::F32, DType::F16, DType::BF16],
        watch: watch.collect(),
    };
    Ok(tokens(program, &options))
}

/// Turns the errors of a compilation into a compile error.
type ToError<'a> = dyn Fn(&Compilation) -> syn::Error + 'a;

/// All errors with their source lines.
fn report(compiled: &Compilation) -> String {
    let report = render(&compiled.sources, &compiled.diagnostics, Format::Full { color: false });
    format!("{report}{}", summary(&compiled.diagnostics))
}

/// One compile error per diagnostic, at its tokens. rustc shows the source lines itself.
fn at_tokens(compiled: &Compilation, text: &Text, call: proc_macro2::Span) -> syn::Error {
    let errors = compiled.diagnostics.iter().filter(|d| d.severity == Severity::Error);
    let all = errors.map(|d| {
        let span = d.primary.span;
        let own = *compiled.sources.file(span.file).text == *text.text;
        let (first, last) = text.spans(span.start as usize..span.end as usize).filter(|_| own).unwrap_or((call, call));
        let (first, last) = (Ident::new("from", first), Ident::new("to", last));
        syn::Error::new_spanned(quote::quote!(#first #last), in_words(d, compiled))
    });
    let joined = all.reduce(|mut a, b| {
        a.combine(b);
        a
    });
    joined.unwrap_or_else(|| syn::Error::new(call, report(compiled)))
}

/// A diagnostic without its source lines.
fn in_words(d: &Diagnostic, compiled: &Compilation) -> String {
    let mut out = format!("{} [{}]", d.message, d.code);
    let mut add = |line: String| out.push_str(&format!("\n{line}"));
    if !d.primary.text.is_empty() {
        add(d.primary.text.clone());
    }
    for other in d.secondary.iter().filter(|l| !l.text.is_empty()) {
        let (line, column) = compiled.sources.line_column(other.span);
        add(format!("{}:{line}:{column}: {}", compiled.sources.file(other.span.file).name, other.text));
    }
    d.notes.iter().for_each(|n| add(format!("note: {n}")));
    d.hints.iter().for_each(|h| add(format!("help: {h}")));
    out
}

/// The rules of a string literal. If they stand there as they are written, without escapes, they
/// keep the lines and columns of the user's file, and its name.
fn in_place(literal: &LitStr) -> SourceFile {
    let (text, written, span) = (literal.value(), literal.token().to_string(), literal.span());
    let opening = written.find('"').map_or(0, |quote| quote + 1);
    // The compiler's own span, which there is since this runs in a macro.
    let start = span.unwrap().start();
    if !written[opening..].starts_with(&text) || start.line().max(start.column()) > FAR {
        return unsaved("<inline>", &text);
    }
    let (lines, columns) = (start.line().saturating_sub(1), start.column().saturating_sub(1) + opening);
    unsaved(&rust_file(span), &format!("{}{}{text}", "\n".repeat(lines), " ".repeat(columns)))
}

/// The name of the Rust file of a span, without its folder.
fn rust_file(span: proc_macro2::Span) -> String {
    let name = span.unwrap().file();
    Path::new(&name).file_name().map_or(name.clone(), |n| n.to_string_lossy().into_owned())
}

fn unsaved(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.into(), path: None, text: text.into(), embedded: false }
}

/// Resolves a path relative to the folder of the user's Cargo.toml, else relative to the file that
/// calls the macro.
fn read(name: &str, call: proc_macro2::Span) -> Result<SourceFile, String> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let beside = call.local_file().and_then(|f| f.parent().map(Path::to_path_buf));
    for path in [manifest, beside].into_iter().flatten().map(|folder| folder.join(name)) {
        match open_regular(&path).and_then(std::io::read_to_string) {
            // rustc resolves a relative path in `include_bytes!` relative to the calling file.
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
