//! How long the front end takes: a thousand rules parsed, checked and emitted, and each file of the
//! library checked.
//!
//! `cargo bench -p hypatia-dsl --bench language`, or `./x bench`. `docs/benchmarks.md` has the
//! figures and the limits.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use hypatia_dsl::ast;
use hypatia_dsl::compile::{Compilation, FileLoader, Loader, compile};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::parse::parse;
use hypatia_dsl::source::{FileId, SourceFile, SourceMap};
use hypatia_emit::{Options, tokens};
use hypatia_templates::Checker;
use hypatia_templates::instances::Scope;

/// As in the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LOADER: FileLoader = FileLoader { embedded: hypatia_rules::FILES, trees: hypatia_rules::TREES };

fn file(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.into(), path: None, text: text.into(), embedded: false }
}

fn checked(name: &str, text: &str) -> Compilation {
    let c = compile(vec![file(name, text)], &LOADER, &Checker);
    assert!(c.program.is_some(), "{:?}", c.diagnostics.first());
    c
}

/// A file of a thousand rules of several forms: epilogues, views with computed attributes, guards,
/// constants.
fn thousand() -> String {
    let mut text = String::from("edition 1;\nuse core::*;\nuse nn::*;\n\nruleset many { until = fixpoint; }\n\n");
    for i in 0..250 {
        let c = 1.0 + i as f64 / 64.0;
        write!(
            text,
            "/// Scaled activations.\n\
             rule many::scaled_{i}: mul(gelu(gemm(a, b, e, to = d)), {c}) => gemm(a, b, gelu(e) * {c}, to = d)\n  \
             class exact for f64, f32, rounds for f16, bf16;\n\
             /// Views.\n\
             rule many::views_{i}: transpose(reshape(transpose(x, perm = p), shape = s), perm = q)\n  \
             => reshape(x, shape = s)\n  \
             requires rank(x) == {i}, p == [1, 0], len(q) == {r}, false;\n\
             /// Sums.\n\
             rule many::sums_{i}: (x * {c} + y * {c}) => (x + y) * {c}\n  \
             requires shape(x) == shape(y), is_float(dtype(x));\n\
             /// Reductions.\n\
             rule many::means_{i}: sum(x * {c}, axes = a, keepdims = k) => sum(x, axes = a, keepdims = k) * {c}\n  \
             requires positive(x), rank(x) >= {r} prefer uses(x) == 1;\n",
            r = 2 + i % 3,
        )
        .unwrap();
    }
    text
}

fn many_rules(c: &mut Criterion) {
    let text = thousand();
    let mut group = c.benchmark_group("rules-1000");
    group.sample_size(20);
    let program = checked("many.hyp", &text).program.unwrap();
    assert!(program.rules.len() >= 1000);
    let options = Options {
        module: "many".into(),
        public: false,
        doc: String::new(),
        scope: Scope::Files(vec!["many.hyp".into()]),
        dtypes: vec![DType::F32],
        watch: Vec::new(),
    };
    let mut sources = SourceMap::new();
    let id = sources.add(file("many.hyp", &text));
    group.bench_function("parse", |b| b.iter(|| parse(black_box(&sources), id)));
    group.bench_function("parse+check", |b| b.iter(|| checked("many.hyp", black_box(&text))));
    group.bench_function("emit", |b| b.iter(|| tokens(black_box(&program), &options)));
    group.bench_function("parse+check+emit", |b| {
        b.iter(|| tokens(&checked("many.hyp", black_box(&text)).program.unwrap(), &options))
    });
    group.finish();
}

/// Parses one file, as if a user had written it; the files that it uses are embedded.
struct Written(&'static str);

impl Loader for Written {
    fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String> {
        LOADER.load(module, from)
    }

    fn tree(&self, file: &SourceFile) -> Option<&'static [u8]> {
        LOADER.tree(file).filter(|_| file.library_module() != Some(self.0))
    }
}

fn library_files(c: &mut Criterion) {
    let mut group = c.benchmark_group("check-file");
    group.sample_size(20);
    for (name, text) in hypatia_rules::FILES {
        group.bench_function(*name, |b| {
            b.iter(|| compile(vec![SourceFile::library(name, black_box(text))], &Written(name), &Checker))
        });
    }
    group.finish();
}

fn whole_library(c: &mut Criterion) {
    let roots = || hypatia_rules::FILES.iter().map(|(n, t)| SourceFile::library(n, t)).collect();
    c.bench_function("check-library", |b| b.iter(|| compile(black_box(roots()), &LOADER, &Checker)));
    let all = || hypatia_rules::FILES.iter().zip(hypatia_rules::TREES);
    c.bench_function("load-library", |b| {
        b.iter(|| {
            all().map(|((_, t), (_, b))| ast::File::from_bytes(black_box(b), t, FileId(0)).unwrap()).collect::<Vec<_>>()
        })
    });
}

criterion_group!(benches, many_rules, library_files, whole_library);
criterion_main!(benches);
