//! One pipeline, several hosts: the macro's module and the run-time loader give the same Program, and on
//! random graphs the same e-graphs, extractions and costs; `gen --emit rust` prints the macro's tokens.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;

use hypatia::Graph;
use hypatia::dsl::compile::{FileLoader, compile};
use hypatia::dsl::dtype::DType;
use hypatia::dsl::emit::instances::Scope;
use hypatia::dsl::emit::rust::{Options, text, tokens};
use hypatia::dsl::ir::{Program, ScalarBody, ScalarId};
use hypatia::dsl::shape::Dim;
use hypatia::dsl::source::SourceFile;
use hypatia::dsl::typing::TensorType;
use hypatia::graph::Value;
use hypatia::optimize::{self, optimize};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

hypatia::hypatia_rules!(mod macro_made = "ui/fusions.hyp");

fn loaded() -> Program {
    let library = |(name, text): &(&str, &str)| SourceFile {
        name: format!("<library>/{name}.hyp"),
        path: None,
        text: (*text).into(),
        embedded: true,
    };
    let mut roots: Vec<SourceFile> = hypatia_rules::FILES.iter().map(library).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/fusions.hyp");
    let text = std::fs::read_to_string(&path).unwrap();
    roots.push(SourceFile { name: "ui/fusions.hyp".into(), path: Some(path), text: text.into(), embedded: false });
    let compiled = compile(roots, &FileLoader { embedded: hypatia_rules::FILES });
    assert!(compiled.program.is_some(), "{:?}", compiled.diagnostics);
    compiled.program.unwrap()
}

/// A random graph of products, ops and scalars; the same for the same seed, whatever the host.
fn random_graph(program: &Arc<Program>, seed: u64) -> Graph {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut g = Graph::new(program.clone());
    let n = [2i64, 3, 8][rng.random_range(0..3)];
    let ty = TensorType { dtype: DType::F32, shape: vec![Dim::from(n), Dim::from(n)] };
    let mut values: Vec<Value> = (0..3).map(|i| g.input(format!("x{i}"), ty.clone())).collect();
    let scalars: Vec<ScalarId> = (0..program.scalars.len() as u32)
        .map(ScalarId)
        .filter(|s| {
            let def = program.scalar(*s);
            matches!(def.body, ScalarBody::Term(_)) || def.params.len() == 2
        })
        .collect();
    for _ in 0..rng.random_range(3..12) {
        let pick = |rng: &mut ChaCha8Rng| values[rng.random_range(0..values.len())];
        let made = match rng.random_range(0..5) {
            0 | 1 => g.call("matmul", &[pick(&mut rng), pick(&mut rng)], &[]).map(|v| v[0]),
            2 => g.call("cubed", &[pick(&mut rng), pick(&mut rng)], &[]).map(|v| v[0]),
            _ => {
                let s = scalars[rng.random_range(0..scalars.len())];
                let args: Vec<Value> = program.scalar(s).params.iter().map(|_| pick(&mut rng)).collect();
                g.scalar(s, &args)
            }
        };
        // Functions of truth values do not take these operands.
        if let Ok(v) = made
            && *g.ty(v) == ty
        {
            values.push(v);
        }
    }
    let last = values.len() - 1;
    g.output("y", values[last]);
    g.output("z", values[last / 2]);
    g
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
        let a = optimize(&random_graph(&made, seed), &options).unwrap();
        let b = optimize(&random_graph(&loaded, seed), &options).unwrap();
        assert_eq!(a.graph.to_string(), b.graph.to_string(), "seed {seed}");
        let stages = |o: &optimize::Optimized| {
            o.report.stages.iter().map(|s| (s.ruleset.clone(), s.nodes, s.classes, s.fired)).collect::<Vec<_>>()
        };
        assert_eq!(stages(&a), stages(&b), "seed {seed}");
        assert_eq!(a.report.after.micros.to_bits(), b.report.after.micros.to_bits(), "seed {seed}");
        fired += a.report.stages.iter().map(|s| s.fired).sum::<usize>();
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
        scope: Scope::Files(vec!["ui/fusions.hyp".into()]),
        dtypes: vec![DType::F32],
        watch: Vec::new(),
    };
    let printed = text(&program, &options).unwrap();
    let squeeze = |t: String| t.chars().filter(|c| !c.is_whitespace() && *c != ',').collect::<String>();
    let reread: proc_macro2::TokenStream = printed.parse().unwrap();
    // The formatter drops trailing commas and needless blocks; names, literals and structure stay.
    let (a, b) = (squeeze(reread.to_string()), squeeze(tokens(&program, &options).to_string()));
    assert!((a.len() as f64 / b.len() as f64 - 1.0).abs() < 0.01, "{} against {}", a.len(), b.len());
    assert!(printed.contains("pub fn squash(x: f32, asm: f32) -> f32"));
    assert!(printed.contains("/// x * x * x"));
}
