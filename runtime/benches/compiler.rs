//! Compile time: saturation and extraction of deep models with the whole library loaded, and the
//! loading of the library, which every command pays for.
//!
//! `cargo bench -p hypatia --bench compiler`, or `./x bench`. `docs/benchmarks.md` has the figures
//! and the limits.
#![allow(clippy::unwrap_used)]

#[path = "support/models.rs"]
mod models;
#[path = "support/rules.rs"]
mod rules;

/// The same allocator as in the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use hypatia_dsl::source::SourceFile;
use hypatia_graph::Graph;
use hypatia_library as library;
use hypatia_optimize::Options;
use hypatia_pipeline::optimize;

/// Prints the milliseconds of saturation and of extraction, and the result, for the log.
fn describe(name: &str, graph: &Graph, options: &Options) {
    let report = optimize(graph, options).unwrap().report;
    let saturation: f64 = report.runs.iter().map(|s| s.millis).sum();
    eprintln!(
        "{name}: {} nodes, {} ops become {}; {:.1} ms: saturation {saturation:.1}, extraction {:.1}, {} e-nodes{}",
        graph.nodes.len(),
        report.before.ops,
        report.after.ops,
        report.millis,
        report.extraction_millis,
        report.runs.iter().map(|s| s.nodes).max().unwrap_or(0),
        if report.complete() { "" } else { " (cut short)" },
    );
}

fn optimiser(c: &mut Criterion) {
    let program = library::load(&[]).unwrap();
    let options = Options::default();
    let models = [
        ("bert-12", models::Bert::base(12).graph(&program)),
        ("bert-48", models::Bert::base(48).graph(&program)),
        ("bert-96", models::Bert::base(96).graph(&program)),
        ("llama-80", models::Llama::shaped(80).graph(&program)),
    ];
    let mut group = c.benchmark_group("optimize");
    group.sample_size(10);
    for (name, graph) in &models {
        describe(name, graph, &options);
        group.bench_function(*name, |b| b.iter(|| optimize(black_box(graph), &options).unwrap()));
    }
    // Nine generated rules beside each of the library's.
    let file = SourceFile {
        name: "generated.hyp".into(),
        path: None,
        text: rules::generated(9 * program.rules.len()).into(),
        embedded: false,
    };
    let many = Arc::new(library::compile_sources(vec![file]).program.unwrap());
    let bert = models::Bert::base(12).graph(&many);
    describe("bert-12, ten times as many rules", &bert, &options);
    group.bench_function("bert-12-rules-x10", |b| b.iter(|| optimize(black_box(&bert), &options).unwrap()));
    group.finish();
}

fn loading(c: &mut Criterion) {
    c.bench_function("library/load", |b| b.iter(|| library::load(black_box(&[])).unwrap()));
}

criterion_group!(benches, optimiser, loading);
criterion_main!(benches);
