//! One count of launches: `explain`, `opt` and tests report the launches that the plan runs.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypatia::session::{Model, Options};
use hypatia_dsl::dtype::DType;
use hypatia_graph::{Graph, NodeKind};
use hypatia_library as library;
use hypatia_onnx::import;
use hypatia_optimize as optimize;
use hypatia_optimize::Launches;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;
use hypatia_tensor::npz;
use hypatia_tests::random_graph;

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    all.retain(|p| p.join("model.onnx").is_file() && p.join("inputs.npz").is_file());
    all.sort();
    assert!(all.len() >= 3);
    all
}

/// The launches that `explain` reports.
fn reported(graph: &Graph, options: &optimize::Options) -> Launches {
    let mut optimized = pipeline::optimize(graph, options).unwrap();
    pipeline::count_launches(&mut optimized, graph, options);
    assert!(optimized.report.launches.is_some(), "{:?}", optimized.report.warnings);
    optimized.report.launches.unwrap()
}

/// The launches that are run.
fn run(graph: Graph, inputs: &[(String, Tensor)], no_rules: bool) -> Launches {
    let mut options = Options { threads: 1, ..Options::default() };
    options.optimize.no_rules = no_rules;
    let compiled = Model::new(graph, options).compile(inputs).unwrap();
    assert_eq!(compiled.warnings(), [] as [String; 0]);
    Launches { before: compiled.unfused().unwrap().plan().launches(), after: compiled.executor.plan().launches() }
}

#[test]
fn the_reported_launches_of_the_models_are_those_that_run() {
    let program = library::load(&[]).unwrap();
    for model in models() {
        let inputs = npz::read(&model.join("inputs.npz")).unwrap();
        let shapes = inputs.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        let options = import::Options { shapes, ..Default::default() };
        let graph = pipeline::load(&model.join("model.onnx"), program.clone(), &options).unwrap().graph;
        let graph = graph.specialize(&graph.bind_symbols(&inputs.iter().cloned().collect()).unwrap()).unwrap();
        for no_rules in [false, true] {
            let options = optimize::Options { no_rules, ..optimize::Options::default() };
            let (reported, run) = (reported(&graph, &options), run(graph.clone(), &inputs, no_rules));
            assert_eq!(reported, run, "{}, no_rules = {no_rules}", model.display());
        }
    }
}

#[test]
fn the_reported_launches_of_random_graphs_are_those_that_run() {
    let program = library::load(&[]).unwrap();
    let mut fused = 0;
    for seed in 0..50 {
        let graph = random_graph(&program, seed);
        let inputs: Vec<(String, Tensor)> = graph
            .inputs
            .iter()
            .map(|id| {
                let NodeKind::Input { name } = &graph.node(*id).kind else { unreachable!() };
                let shape: Vec<usize> =
                    graph.node(*id).results[0].shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
                (name.clone(), Tensor::from_f64(DType::F32, &shape, &vec![0.5; shape.iter().product()]).unwrap())
            })
            .collect();
        let reported = reported(&graph, &optimize::Options::default());
        assert_eq!(reported, run(graph, &inputs, false), "seed {seed}");
        fused += usize::from(reported.after < reported.before);
    }
    assert!(fused >= 5, "only {fused} graphs are fused: they test nothing");
}

/// For any target device, even one that is absent, a report counts the steps of the plan for that
/// device.
#[test]
fn every_target_is_counted_on_its_own_plan() {
    let program = library::load(&[]).unwrap();
    let mut apart = 0;
    for seed in 0..50 {
        let graph = random_graph(&program, seed);
        let mut counts = Vec::new();
        for name in Device::names() {
            let device = Device::named(name).unwrap();
            let options = optimize::Options { device: device.clone(), ..optimize::Options::default() };
            let optimized = pipeline::optimize(&graph, &options).unwrap();
            let plan = pipeline::plan(&optimized.graph, &plan::Options::new(device)).unwrap();
            let reported = reported(&graph, &options);
            assert_eq!(reported.after, plan.launches(), "seed {seed} on {name}\n{plan}");
            counts.push(reported.after);
        }
        apart += usize::from(counts.iter().any(|c| *c != counts[0]));
    }
    assert!(apart > 0, "no graph needs another number of launches elsewhere: the targets are not looked at");
}

/// `expect launches` counts as `run` does.
#[test]
fn tests_count_what_is_run() {
    let text = "edition 1;\nuse core::*;\nuse nn::*;\nuse fuse::*;\n\
        test \"t\" { input x: f32[8, 16]; input w: f32[16, 4]; given softmax(gelu(matmul(x, w)) + 1); \
        expect launches == 99; }\n";
    let file = hypatia_dsl::source::SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false };
    let program = Arc::new(library::check(vec![file]).program.unwrap());
    let failures = hypatia_verify::test_runner::run_test(&program, program.tests.last().unwrap()).failures;
    let mut g = Graph::new(program.clone());
    let input = |g: &mut Graph, name: &str, shape: &[i64]| {
        let shape = shape.iter().map(|d| (*d).into()).collect();
        g.input(name, hypatia_dsl::typing::TensorType { dtype: DType::F32, shape })
    };
    let (x, w) = (input(&mut g, "x", &[8, 16]), input(&mut g, "w", &[16, 4]));
    let m = g.call("matmul", &[x, w], &[]).unwrap()[0];
    let a = g.call("gelu", &[m], &[]).unwrap()[0];
    let one = g.constant(Tensor::from_f64(DType::F32, &[], &[1.0]).unwrap());
    let b = g.call("add", &[a, one], &[]).unwrap()[0];
    let y = g.call("softmax", &[b], &[]).unwrap()[0];
    g.output("y", y);
    let tensor = |shape: &[usize]| Tensor::from_f64(DType::F32, shape, &vec![0.5; shape.iter().product()]).unwrap();
    let inputs = [("x".to_string(), tensor(&[8, 16])), ("w".to_string(), tensor(&[16, 4]))];
    let run = run(g, &inputs, false);
    assert!(failures[0].contains(&format!("there are {}:", run.after)), "{run:?} {failures:?}");
}
