//! The work of an optimisation, counted instead of timed.

use std::sync::Arc;
use std::time::Duration;

use crate::optimize;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::numerics::Numerics;
use hypatia_pipeline::FOLDER;

use super::laws::{apply, residual_stream, ty, weight};
use crate::{Options, Report, Stop};
use hypatia_graph::{Graph, Value};
use hypatia_library as library;
use hypatia_testing::int;

/// A chain of one operator, made by a function of the last value, an input, and the number of the
/// link.
type Link = fn(&mut Graph, Value, Value, usize) -> Value;

const CHAINS: &[(&str, Link)] = &[
    ("add", |g, y, x, _| apply(g, "add", &[y, x])),
    ("mul", |g, y, x, _| apply(g, "mul", &[y, x])),
    ("relu", |g, y, _, _| apply(g, "relu", &[y])),
    ("tanh", |g, y, _, _| apply(g, "tanh", &[y])),
    ("concat", |g, y, x, _| g.call("concat", &[y, x], &[("axis", int(0))]).unwrap()[0]),
];

/// Numbers that all differ, so that each link has another value.
const BIASES: Link = |g, y, _, i| {
    let bias = weight(g, &[2, 4], i as u64);
    apply(g, "add", &[y, bias])
};

fn chain(link: Link, n: usize) -> Graph {
    let mut g = Graph::new(library::load(&[]).unwrap());
    let x = g.input("x", ty(DType::F32, &[2, 4]));
    let y = (0..n).fold(x, |y, i| link(&mut g, y, x, i));
    g.output("y", y);
    g
}

/// The work of all rulesets.
fn saturation(report: &Report) -> usize {
    report.runs.iter().map(|s| s.steps + s.looked_through).sum()
}

/// All work of an optimisation.
fn all(report: &Report) -> usize {
    saturation(report) + report.extraction_steps
}

fn grows_linearly(name: &str, link: Link, sizes: [usize; 3], work: fn(&Report) -> usize) {
    let done = sizes.map(|n| {
        let report = optimize(&chain(link, n), &Options::default(), &FOLDER).unwrap().report;
        assert!(report.runs.iter().all(|s| s.stop != Stop::Time), "{name}: {report}");
        work(&report)
    });
    println!("{name}: {sizes:?} take {done:?} steps");
    for pair in done.windows(2) {
        assert!((pair[1] as f64) < 2.3 * pair[0] as f64, "{name}: {sizes:?} take {done:?} steps");
    }
}

#[test]
fn work_grows_linearly_with_the_length_of_a_chain() {
    for (name, link) in CHAINS {
        grows_linearly(name, *link, [2_000, 4_000, 8_000], all);
    }
}

#[test]
fn work_grows_linearly_where_every_link_fires_rules() {
    // Extraction is cut short there, so its work is not compared.
    grows_linearly("biases", BIASES, [500, 1_000, 2_000], saturation);
}

#[test]
fn steps_end_a_run_at_the_same_place_each_time() {
    let g = residual_stream(2);
    let run = |max_steps| {
        let out = optimize(&g, &Options { max_steps, ..Options::default() }, &FOLDER).unwrap();
        (out.graph.to_string(), out.report)
    };
    let (_, whole) = run(None);
    assert!(whole.complete(), "{whole}");
    let half = whole.runs.iter().map(|s| s.steps).sum::<usize>() / 2;
    let (first, report) = run(Some(half));
    assert!(report.runs.iter().any(|s| s.stop == Stop::Work), "{report}");
    assert!(report.warnings.iter().any(|w| w.contains("cut short: budget of work")), "{report}");
    assert_eq!(first, run(Some(half)).0);
}

#[test]
fn a_ruleset_may_bound_its_steps() {
    let run = |setting: &str| {
        let text = format!(
            "edition 1;\nuse core::*;\nruleset own {{ until = fixpoint; nodes = 100000; {setting} }}\n\
             rule own::more: sin(x) => sin(x + 0.001) class approx(1e-3, 0);\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.hyp");
        std::fs::write(&path, text).unwrap();
        let program: Arc<_> = library::load(&[path]).unwrap();
        let mut g = Graph::new(program);
        let x = g.input("x", ty(DType::F32, &[4]));
        let y = apply(&mut g, "sin", &[x]);
        g.output("y", y);
        let report = optimize(&g, &Options { numerics: Numerics::Fast, max_nodes: 400, ..Options::default() }, &FOLDER)
            .unwrap()
            .report;
        let run = report.runs.iter().find(|s| s.ruleset == "own").unwrap().clone();
        (run.stop, run.steps)
    };
    assert_eq!(run("").0, Stop::Nodes);
    let (stop, steps) = run("steps = 300 + 10 * graph;");
    // The last search may exceed the budget by a few steps.
    assert!(stop == Stop::Work && steps < 500, "{stop:?} after {steps}");
}

#[test]
fn the_backstop_is_named_where_it_fires() {
    let report = optimize(&chain(BIASES, 60), &Options { max_time: Duration::ZERO, ..Options::default() }, &FOLDER)
        .unwrap()
        .report;
    assert!(report.runs.iter().all(|s| s.stop == Stop::Time) && !report.complete(), "{report}");
    let told = "stopped by the wall-clock backstop (the result may differ from run to run)";
    assert!(report.warnings.iter().any(|w| w.contains(told)) && report.to_string().contains(told), "{report}");
}
