//! The same model, rules and target give the same plan: twice in one process, in other processes,
//! and however busy the machine is.
#![allow(clippy::unwrap_used)]

#[path = "../benches/support/models.rs"]
mod models;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Graph;
use hypatia_graph::Value;
use hypatia_library as library;
use hypatia_optimize::Options;
use hypatia_optimize::saturate::Budget;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;

/// Where a child of this test writes what it planned.
const FILE: &str = "HYPATIA_TEST_PLANS";

/// A long sum of biases, which is cut short by the budget of nodes.
fn biases(program: &Arc<Program>) -> Graph {
    let mut g = Graph::new(program.clone());
    let x = g.input("x", TensorType { dtype: DType::F32, shape: [Dim::from(4)].into_iter().collect() });
    let y = (0..300u16).fold(x, |y: Value, i| {
        let bias = g.constant(Tensor::from_slice(&[4], &[f32::from(i), 1.0, 2.0, 3.0]).unwrap());
        g.call("add", &[y, bias], &[]).unwrap()[0]
    });
    g.output("y", y);
    g
}

/// Optimised graphs, reports but for times, and plans of several models for two devices.
fn plans() -> String {
    let program = library::load(&[]).unwrap();
    let graphs = [
        ("bert", models::Bert { hidden: 64, heads: 4, inner: 128, ..models::Bert::base(2) }.graph(&program)),
        (
            "llama",
            models::Llama { hidden: 64, heads: 8, shared: 2, inner: 96, tokens: 32, ..models::Llama::shaped(2) }
                .graph(&program),
        ),
        ("biases", biases(&program)),
        ("deep", models::Bert { hidden: 48, heads: 4, inner: 64, tokens: 16, ..models::Bert::base(6) }.graph(&program)),
    ];
    let mut out = String::new();
    for (name, graph) in &graphs {
        for device in [Device::cpu(), Device::named("h200").unwrap()] {
            let optimized =
                pipeline::optimize(graph, &Options { device: device.clone(), ..Options::default() }).unwrap();
            let plan = pipeline::plan(&optimized.graph, &plan::Options::new(device)).unwrap();
            writeln!(out, "== {name}\n{}\n{plan}", optimized.graph).unwrap();
            for s in &optimized.report.runs {
                writeln!(out, "{} {} {} {} {} {}", s.ruleset, s.iterations, s.fired, s.nodes, s.steps, s.stop).unwrap();
            }
            for f in &optimized.report.firings {
                writeln!(out, "{} {:?} {}", f.rule, f.nodes, f.kept).unwrap();
            }
        }
    }
    out
}

/// What another process plans.
fn elsewhere(file: &Path) -> String {
    let this = std::env::current_exe().unwrap();
    let done =
        Command::new(this).args(["--exact", "plans_do_not_depend_on_run_process_or_load"]).env(FILE, file).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    std::fs::read_to_string(file).unwrap()
}

/// The first line in which two texts differ, for the reader.
fn difference(a: &str, b: &str) -> String {
    let differ = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    differ.map_or("one is longer".to_string(), |(a, b)| format!("`{a}` against `{b}`"))
}

#[test]
fn plans_do_not_depend_on_run_process_or_load() {
    if let Some(file) = std::env::var_os(FILE) {
        std::fs::write(file, plans()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let first = plans();
    assert!(first.contains("budget of nodes"), "nothing was cut short");
    let stop = AtomicBool::new(false);
    let (again, other) = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let other = scope.spawn(|| elsewhere(&folder.path().join("plans")));
        let again = plans();
        let other = other.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        (again, other)
    });
    assert!(first == again, "in the same process: {}", difference(&first, &again));
    assert!(first == other, "in another process: {}", difference(&first, &other));
}

#[test]
fn deep_models_take_a_small_part_of_the_budget() {
    let program = library::load(&[]).unwrap();
    let options = Options { every_layer: true, ..Options::default() };
    for (name, graph) in
        [("bert-12", models::Bert::base(12).graph(&program)), ("llama-80", models::Llama::shaped(80).graph(&program))]
    {
        let budget = Budget::of_optimisation(graph.nodes.len(), &options, Instant::now());
        let report = pipeline::optimize(&graph, &options).unwrap().report;
        let steps: usize = report.runs.iter().map(|s| s.steps).sum();
        let looked = report.runs.iter().map(|s| s.looked_through).max().unwrap();
        println!("{name}: {steps} steps of {}, {looked} nodes of {}", budget.steps, budget.looked_through);
        assert!(20 * steps <= budget.steps && 15 * looked <= budget.looked_through, "{name}: {steps}, {looked}");
    }
}
