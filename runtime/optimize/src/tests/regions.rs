//! Pointwise work as a variable of a rule.

use std::sync::Arc;

use crate::optimize;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_pipeline::FOLDER;

use super::laws::{apply, check, count, matmul, ty, weight};
use super::library::with_rules;
use crate::Options;
use hypatia_graph::{Graph, Value};
use hypatia_verify as verify;
use hypatia_verify::{Status, verify_rule};

const RULES: &str = "
ruleset t { until = fixpoint; }
rule t::region[f: pointwise]: f(gemm(a, b, e, to = d)) => gemm(a, b, f(e), to = d);
rule t::both[f: pointwise]: f(gemm(a, b, e, to = d), gemm(a, b, g, to = d)) => gemm(a, b, f(e, g), to = d);
rule t::floors[f: pointwise]: f(floor(x)) => f(ceil(x));
";

/// The library's rules that fuse are off, so that only the variable of these rules fuses.
fn options() -> Options {
    let off = ["fuse::unary", "fuse::operand", "fuse::operand_left", "fuse::both", "fuse::work", "fuse::side"];
    Options { disabled: off.iter().map(|r| r.to_string()).collect(), ..Options::default() }
}

fn product(program: &Arc<Program>) -> (Graph, Value, Value) {
    let mut g = Graph::new(program.clone());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 16], 1);
    let m = matmul(&mut g, x, w);
    (g, x, m)
}

#[test]
fn any_work_behind_a_product_is_its_epilogue() {
    let program = with_rules(RULES);
    let (mut g, _, m) = product(&program);
    // (t - tanh(m)) ** 2 * (m < row ? m : row): the product is used three times, always inside.
    let t = g.input("t", ty(DType::F32, &[4, 16]));
    let row = weight(&mut g, &[16], 3);
    let two = g.number(DType::F32, 2.0).unwrap();
    let a = apply(&mut g, "tanh", &[m]);
    let a = apply(&mut g, "sub", &[t, a]);
    let a = apply(&mut g, "pow", &[a, two]);
    let less = apply(&mut g, "lt", &[m, row]);
    let b = apply(&mut g, "select", &[less, m, row]);
    let y = apply(&mut g, "mul", &[a, b]);
    g.output("y", y);
    let out = check(&g, &options());
    assert_eq!((count(&out, "gemm"), out.report.after.ops), (1, 1), "{}\n{}", out.graph, out.report);
    assert!(out.report.fired("t::region"), "{}", out.report);
}

#[test]
fn two_operands_of_one_work() {
    let program = with_rules(&RULES.replace("rule t::region", "rule t::unused"));
    let mut off = options();
    off.disabled.insert("t::unused".into());
    let mut g = Graph::new(program);
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 16], 1);
    let m = matmul(&mut g, x, w);
    let bias = weight(&mut g, &[16], 2);
    let h = apply(&mut g, "exp", &[m]);
    let h = apply(&mut g, "sub", &[h, bias]);
    let y = apply(&mut g, "div", &[m, h]);
    g.output("y", y);
    let out = optimize(&g, &off, &FOLDER).unwrap();
    out.graph.validate().unwrap();
    // A single product does not match a pattern with two.
    assert!(!out.report.firings.iter().any(|f| f.rule == "t::both"), "{}", out.report);
}

#[test]
fn work_is_built_again_over_tensors() {
    let program = with_rules(RULES);
    let mut g = Graph::new(program);
    let (x, t) = (g.input("x", ty(DType::F32, &[4])), g.input("t", ty(DType::F32, &[2, 4])));
    let f = apply(&mut g, "floor", &[x]);
    let y = apply(&mut g, "exp", &[f]);
    let y = apply(&mut g, "add", &[y, t]);
    let y = apply(&mut g, "mul", &[y, f]);
    g.output("y", y);
    let out = optimize(&g, &options(), &FOLDER).unwrap();
    out.graph.validate().unwrap();
    let firing = out.report.firings.iter().find(|f| f.rule == "t::floors");
    assert!(firing.is_some(), "{}", out.report);
}

#[test]
fn what_others_need_is_not_taken_in() {
    let program = with_rules(RULES);
    let (mut g, _, m) = product(&program);
    let t = g.input("t", ty(DType::F32, &[4, 16]));
    let a = apply(&mut g, "tanh", &[m]);
    let y = apply(&mut g, "mul", &[a, t]);
    g.output("inside", a);
    g.output("y", y);
    let out = check(&g, &options());
    // tanh of the product is stored, and later nodes read it.
    assert_eq!((count(&out, "gemm"), count(&out, "mul")), (1, 1), "{}", out.graph);
}

#[test]
fn a_residual_of_another_shape_stays_outside() {
    let program = with_rules(RULES);
    let (mut g, _, m) = product(&program);
    let wide = g.input("wide", ty(DType::F32, &[3, 4, 16]));
    let y = apply(&mut g, "add", &[m, wide]);
    g.output("y", y);
    let out = check(&g, &options());
    assert_eq!(count(&out, "add"), 1, "{}", out.graph);
}

#[test]
fn rules_over_any_work_are_verified_by_examples() {
    let program = with_rules(
        "ruleset t { until = fixpoint; }
         rule t::right[f: pointwise]: f(gemm(a, b, e, to = d)) => gemm(a, b, f(e), to = d);
         rule t::wrong[f: pointwise]: f(matmul(a, b)) => f(matmul(b, a)) requires shape(a) == shape(b);
         rule t::lost[f: pointwise]: f(gemm(a, b, e, to = d)) => gemm(a, b, f(acc), to = d);",
    );
    let options = verify::Options { cases: 30, seed: 1 };
    for (name, good) in [("t::right", true), ("t::wrong", false), ("t::lost", false)] {
        let rule = program.rules.iter().find(|r| r.name == name).unwrap();
        let entries = verify_rule(&program, rule, &options);
        assert!(!entries.is_empty());
        let verified = entries.iter().all(|e| e.status == Status::Verified);
        assert_eq!(verified, good, "{name}: {:?}", entries.iter().map(|e| &e.status).collect::<Vec<_>>());
    }
}
