//! What rules say that they save counts where graphs are chosen.

use crate::{Optimized, Options, optimize};
use hypatia_dsl::dtype::DType;
use hypatia_graph::Graph;
use hypatia_pipeline::FOLDER;
use hypatia_target::device::Device;

use super::laws::{apply, ty};
use super::library::with_rules;

/// A rule whose right side costs more by every estimate, on a product of `exp`.
fn optimized(clause: &str, sizes: &[i64], options: &Options) -> Optimized {
    let program = with_rules(&format!(
        "ruleset mine {{ until = fixpoint; }}
         rule mine::sum: exp(x) * y => exp(x + log(y)) {clause} class rounds;"
    ));
    let mut g = Graph::new(program);
    let [x, y] = ["x", "y"].map(|name| g.input(name, ty(DType::F32, sizes)));
    let e = apply(&mut g, "exp", &[x]);
    let z = apply(&mut g, "mul", &[e, y]);
    g.output("z", z);
    optimize(&g, options, &FOLDER).unwrap()
}

fn fires(clause: &str, sizes: &[i64], options: &Options) -> bool {
    optimized(clause, sizes, options).report.fired("mine::sum")
}

#[test]
fn a_claim_takes_the_place_of_an_estimate() {
    let options = Options::default();
    assert!(!fires("", &[64, 64], &options));
    assert!(fires("saves 0.001 us", &[64, 64], &options));
    assert!(!fires("saves 0 us", &[64, 64], &options), "a tie keeps the given graph");
    // Where the amount is no cost, the estimate counts.
    assert!(!fires("saves numel(x) - 5000 bytes", &[64, 64], &options));
    assert!(fires("saves numel(x) - 4000 bytes", &[64, 64], &options));
}

#[test]
fn the_graph_costs_less_by_what_is_saved() {
    let options = Options::default();
    let out = optimized("saves 0.5 us", &[64, 64], &options);
    let (before, after) = (out.report.before.micros, out.report.after.micros);
    assert!((before - after - 0.5).abs() < 1e-3, "{before} {after}");
    let bytes = optimized("saves 4 * numel(x) bytes", &[64, 64], &options);
    let us = 4.0 * 64.0 * 64.0 / Device::cpu().bandwidth * 1e6;
    assert!((bytes.report.savings[0].claimed_us - us).abs() < 1e-6, "{:?}", bytes.report.savings);
    // More than everything is not saved.
    let all = optimized("saves 1000000 us", &[64, 64], &options);
    assert!(all.report.after.micros >= 0.0 && all.report.after.micros < before, "{}", all.report);
}

#[test]
fn what_was_measured_counts_in_place_of_the_claim() {
    let measured = |us: f64| Options { measured: [("mine::sum".to_string(), us)].into(), ..Options::default() };
    for (claim, us, expected) in [("saves 3 us", -0.25, false), ("saves 3 us", 0.25, true), ("", 0.25, false)] {
        let out = optimized(claim, &[64, 64], &measured(us));
        assert_eq!(out.report.fired("mine::sum"), expected, "{claim}: {}", out.report);
    }
    let shown = optimized("saves 3 us", &[64, 64], &measured(-0.25)).report.to_string();
    let line = shown.lines().find(|l| l.starts_with("mine::sum")).unwrap_or_default();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["mine::sum", "0", "3.00", "-0.25", "measured"], "{shown}");
}
