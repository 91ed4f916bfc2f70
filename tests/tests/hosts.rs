//! One pipeline, several hosts: the macro's module and the run-time loader give the same Program
//! and, on random graphs, the same e-graphs, extractions and costs; `gen --emit rust` prints the
//! macro's tokens.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;

use hypatia_dsl::compile::{FileLoader, compile};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::source::SourceFile;
use hypatia_emit::{Options, text, tokens};
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_templates::Checker;
use hypatia_templates::instances::Scope;
use hypatia_tests::random_graph;

hypatia::hypatia_rules!(mod macro_made = "fusions.hyp");

fn loaded() -> Program {
    let mut roots: Vec<SourceFile> = hypatia_rules::FILES.iter().map(|(n, t)| SourceFile::library(n, t)).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fusions.hyp");
    let text = std::fs::read_to_string(&path).unwrap();
    roots.push(SourceFile { name: "fusions.hyp".into(), path: Some(path), text: text.into(), embedded: false });
    let compiled =
        compile(roots, &FileLoader { embedded: hypatia_rules::FILES, trees: hypatia_rules::TREES }, &Checker);
    assert!(compiled.program.is_some(), "{:?}", compiled.diagnostics);
    compiled.program.unwrap()
}

#[test]
fn both_programs_are_equal() {
    assert!(*macro_made::program() == loaded());
    assert_eq!(macro_made::rewrites().len(), optimize::rewrites(&Arc::new(loaded())).len());
}

#[test]
fn fifty_graphs_are_optimised_alike() {
    let (made, loaded) = (macro_made::program(), Arc::new(loaded()));
    let options = optimize::Options::default();
    let mut fired = 0;
    for seed in 0..50 {
        let a = pipeline::optimize(&random_graph(&made, seed), &options).unwrap();
        let b = pipeline::optimize(&random_graph(&loaded, seed), &options).unwrap();
        assert_eq!(a.graph.to_string(), b.graph.to_string(), "seed {seed}");
        let runs = |o: &optimize::Optimized| {
            o.report.runs.iter().map(|s| (s.ruleset.clone(), s.nodes, s.classes, s.fired)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&a), runs(&b), "seed {seed}");
        assert_eq!(a.report.after.micros.to_bits(), b.report.after.micros.to_bits(), "seed {seed}");
        fired += a.report.runs.iter().map(|s| s.fired).sum::<usize>();
    }
    assert!(fired > 100, "only {fired} rules fired: the graphs test nothing");
}

#[test]
fn the_text_is_the_tokens() {
    let program = loaded();
    let options = Options {
        module: "fusions".into(),
        public: true,
        doc: " Fusions.".into(),
        scope: Scope::Files(vec!["fusions.hyp".into()]),
        dtypes: vec![DType::F32],
        watch: Vec::new(),
    };
    let printed = text(&program, &options).unwrap();
    let squeeze = |t: String| t.chars().filter(|c| !c.is_whitespace() && *c != ',').collect::<String>();
    let reread: proc_macro2::TokenStream = printed.parse().unwrap();
    // The formatter drops trailing commas and redundant blocks; names, literals and structure stay.
    let (a, b) = (squeeze(reread.to_string()), squeeze(tokens(&program, &options).to_string()));
    assert!((a.len() as f64 / b.len() as f64 - 1.0).abs() < 0.01, "{} against {}", a.len(), b.len());
    assert!(printed.contains("pub fn squash(x: f32, asm: f32) -> f32"));
    assert!(printed.contains("/// x * x * x"));
}
