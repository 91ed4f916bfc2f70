//! docs/library.md lists the library's declarations. It is generated from declarations and doc
//! comments, and must not be stale.
//! `UPDATE_LIBRARY_PAGE=1 cargo test -p hypatia-tests --test library_page` rewrites it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use hypatia_dsl::ast::ItemKind;
use hypatia_dsl::ir::{OpBody, Origin, Program, ScalarBody};
use hypatia_dsl::program_print::{show_op_signature, show_scalar_signature};
use hypatia_dsl::source::SourceFile;

/// A line for each declaration of a file: its kind, its name with operands and attributes, and the
/// first sentence of its documentation.
type Lines = BTreeMap<String, Vec<(&'static str, String, String)>>;

fn file(origin: &Origin) -> String {
    Path::new(&origin.file).file_stem().unwrap().to_string_lossy().into_owned()
}

/// The first paragraph of a doc comment on one line.
fn first(doc: &str) -> String {
    let lines = doc.lines().map(str::trim).take_while(|l| !l.is_empty());
    lines.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn lines(program: &Program) -> Lines {
    let mut out = Lines::new();
    for s in program.scalars.iter().filter(|s| matches!(s.body, ScalarBody::Term(_))) {
        out.entry(file(&s.origin)).or_default().push(("scalar", show_scalar_signature(s), first(&s.doc)));
    }
    for o in program.ops.iter().filter(|o| matches!(o.body, OpBody::Defined(_))) {
        out.entry(file(&o.origin)).or_default().push(("op", show_op_signature(o), first(&o.doc)));
    }
    patterns(&mut out);
    let mut rules: Vec<&str> = Vec::new();
    for r in program.rules.iter().filter(|r| !r.derived) {
        if !rules.contains(&r.base_name.as_str()) {
            rules.push(&r.base_name);
            out.entry(file(&r.origin)).or_default().push(("rule", r.base_name.clone(), first(&r.doc)));
        }
    }
    out
}

/// Named patterns and families, which a program does not keep: they are read from the files.
fn patterns(out: &mut Lines) {
    for (name, text) in hypatia_rules::FILES {
        let file = SourceFile { name: format!("{name}.hyp"), path: None, text: (*text).into(), embedded: true };
        let compiled = hypatia_library::check(vec![file]);
        let lines = out.entry((*name).to_string()).or_default();
        for item in &compiled.files[0].items {
            match &item.kind {
                ItemKind::Pattern(p) => {
                    let params: Vec<&str> = p.params.iter().map(|n| n.node.as_str()).collect();
                    lines.push(("pattern", format!("{}({})", p.name.node, params.join(", ")), first(&item.doc)));
                }
                ItemKind::Family(f) => lines.push(("family", f.name.node.clone(), first(&item.doc))),
                _ => {}
            }
        }
    }
}

/// The `//!` lines of a file.
fn about(text: &str) -> String {
    let lines = text.lines().filter_map(|l| l.strip_prefix("//!")).map(str::trim);
    lines.collect::<Vec<_>>().join("\n")
}

fn page(program: &Program) -> String {
    let mut out = String::from(
        "# The standard library\n\n\
         `rules/*.hyp` declare what this page lists, in the order in which the files build on each other.\n\
         Every model is loaded with the whole library; a file of your own names what it needs with\n\
         `use nn::*;`. `hypatia explain builtins` lists the builtins, and `hypatia explain MODEL.onnx`\n\
         reports which rules fired. This page is generated from the doc comments\n\
         (tests/tests/library_page.rs).\n\n\
         Ops and scalars are shown as they are declared: `T[..s, n]` is a tensor, `b: T[n]?` may be left\n\
         out, `*xs` is any number of tensors, and `eps: float = 1e-5` is an attribute with its default.\n\
         Parameters of a scalar are numbers, and broadcast.\n",
    );
    let lines = lines(program);
    for (name, text) in hypatia_rules::FILES {
        let Some(lines) = lines.get(*name) else { continue };
        write!(out, "\n## {name}\n\n{}\n\n| | |\n|---|---|\n", about(text)).unwrap();
        for (kind, name, doc) in lines {
            writeln!(out, "| {kind} `{}` | {doc} |", name.replace('|', "\\|")).unwrap();
        }
    }
    out
}

#[test]
fn the_page_is_not_stale() {
    let program = hypatia_library::load(&[]).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/library.md");
    let wanted = page(&program);
    if std::env::var_os("UPDATE_LIBRARY_PAGE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == wanted, "docs/library.md is stale: run this test with UPDATE_LIBRARY_PAGE=1");
}

/// Every rule and op must be documented.
#[test]
fn every_declaration_has_a_doc_comment() {
    let program = hypatia_library::load(&[]).unwrap();
    let silent: Vec<String> = lines(&program)
        .into_values()
        .flatten()
        .filter(|(_, _, doc)| doc.is_empty())
        .map(|(kind, name, _)| format!("{kind} {name}"))
        .collect();
    assert!(silent.is_empty(), "no doc comment: {silent:?}");
}
