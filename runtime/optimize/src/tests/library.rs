//! The embedded library's rules on graphs as exporters write them.

use std::sync::Arc;
use std::time::Duration;

use crate::optimize;
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::source::SourceFile;
use hypatia_dsl::typing::TensorType;
use hypatia_pipeline::FOLDER;

use super::laws::{apply, check, count, matmul, ty, weight};
use crate::explain::why_not;
use crate::{Options, Stop};
use hypatia_graph::{Graph, Value};
use hypatia_library as library;
use hypatia_target::device::Device;

pub(super) fn library() -> Arc<Program> {
    library::load(&[]).unwrap()
}

pub(super) fn with_rules(text: &str) -> Arc<Program> {
    let text = format!("edition 1;\nuse core::*;\nuse nn::*;\nuse fuse::*;\n{text}");
    let file = SourceFile { name: "test.hyp".into(), path: None, text: text.into(), embedded: false };
    let compilation = library::check(vec![file]);
    let errors = library::rejected(&compilation).to_string();
    Arc::new(compilation.program.unwrap_or_else(|| panic!("{errors}")))
}

pub(super) fn axes(a: i64) -> Vec<AttrValue> {
    vec![AttrValue::List(vec![AttrValue::Dim(Dim::from(a))]), AttrValue::Bool(true)]
}

fn softmax_by_parts(g: &mut Graph, x: Value) -> Value {
    let largest = g.builtin(BuiltinOp::Amax, &[x], axes(-1)).unwrap()[0];
    let shifted = apply(g, "sub", &[x, largest]);
    let e = apply(g, "exp", &[shifted]);
    let sum = g.builtin(BuiltinOp::Sum, &[e], axes(-1)).unwrap()[0];
    apply(g, "div", &[e, sum])
}

#[test]
fn bodies_get_their_names_back() {
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let p = softmax_by_parts(&mut g, x);
    let (scale, bias) = (weight(&mut g, &[8], 1), weight(&mut g, &[8], 2));
    let n = g.call("layer_norm", &[p, scale, bias], &[]).unwrap()[0];
    g.output("n", n);
    let out = check(&g, &Options::default());
    assert_eq!((count(&out, "softmax"), count(&out, "layer_norm"), out.report.after.ops), (1, 1, 2), "{}", out.graph);
}

#[test]
fn an_anonymous_gelu_behind_a_product_is_gelu() {
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let (w, c) = (weight(&mut g, &[16, 8], 1), weight(&mut g, &[16], 2));
    let y = g.call("linear", &[x, w, c], &[]).unwrap()[0];
    let mut number = |v: f64| g.number(DType::F32, v).unwrap();
    let (half, one, root) = (number(0.5), number(1.0), number(std::f64::consts::FRAC_1_SQRT_2));
    let scaled = apply(&mut g, "mul", &[y, root]);
    let e = apply(&mut g, "erf", &[scaled]);
    let e = apply(&mut g, "add", &[e, one]);
    let h = apply(&mut g, "mul", &[y, half]);
    let out = apply(&mut g, "mul", &[h, e]);
    g.output("y", out);
    let out = check(&g, &Options::default());
    assert_eq!(out.report.after.ops, 1, "{}", out.graph);
    assert!(out.graph.to_text().contains("gelu("), "{}", out.graph);
}

#[test]
fn an_epilogue_without_a_kernel_costs_a_pass() {
    let mut g = Graph::new(library());
    let ty = |s: &[i64]| TensorType { dtype: DType::BF16, shape: s.iter().map(|d| Dim::from(*d)).collect() };
    let (x, w) = (g.input("x", ty(&[128, 256])), g.input("w", ty(&[256, 512])));
    let m = matmul(&mut g, x, w);
    let y = apply(&mut g, "tanh", &[m]);
    g.output("y", y);
    let costs: Vec<f64> = ["cpu", "h200"]
        .iter()
        .map(|d| {
            let options = Options { device: Device::named(d).unwrap(), ..Options::default() };
            let out = optimize(&g, &options, &FOLDER).unwrap();
            out.graph.validate().unwrap();
            out.report.after.micros / out.report.before.micros
        })
        .collect();
    assert!(costs.iter().all(|c| *c <= 1.0), "{costs:?}");
}

#[test]
fn products_that_share_an_input_become_one() {
    let program = with_rules(
        "ruleset merge { until = fixpoint; }
         rule merge::qkv: (q @ matmul(x, w1), k @ matmul(x, w2), v @ matmul(x, w3))
           => (split(
                 matmul(x, build(concat(w1, w2, w3, axis = 1))),
                 axis = -1,
                 sizes = [dim(w1, 1), dim(w2, 1), dim(w3, 1)]
               ).0,
               split(
                 matmul(x, build(concat(w1, w2, w3, axis = 1))),
                 axis = -1,
                 sizes = [dim(w1, 1), dim(w2, 1), dim(w3, 1)]
               ).1,
               split(
                 matmul(x, build(concat(w1, w2, w3, axis = 1))),
                 axis = -1,
                 sizes = [dim(w1, 1), dim(w2, 1), dim(w3, 1)]
               ).2)
           requires const(w1), const(w2), const(w3), rank(w1) == 2, rank(w2) == 2, rank(w3) == 2;",
    );
    let mut g = Graph::new(program);
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    // Different widths, as with grouped-query attention.
    for (i, n) in [16, 4, 4].into_iter().enumerate() {
        let w = weight(&mut g, &[8, n], i as u64);
        // Results that are slices of the product would have to be copied out of it.
        let y = matmul(&mut g, x, w);
        let y = g.call("softmax", &[y], &[]).unwrap()[0];
        g.output(format!("y{i}"), y);
    }
    let out = check(&g, &Options::default());
    assert_eq!(count(&out, "matmul") + count(&out, "gemm"), 1, "{}\n{}", out.graph, out.report);
}

#[test]
fn neutral_elements_do_not_feed_rules_for_ever() {
    // An exported normalisation with scale 1 and shift 0, then scaled and shifted again: `y + 0` is
    // `y`, and through a node that has its own class as a child each constant would produce the
    // next.
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[2, 8, 16]));
    let mut number = |v: f64| {
        let number = g.number(DType::F32, v).unwrap();
        g.builtin(
            BuiltinOp::Expand,
            &[number],
            vec![AttrValue::List(vec![AttrValue::Dim(Dim::from(8)), AttrValue::Dim(Dim::from(1))])],
        )
        .unwrap()[0]
    };
    let (one, zero) = (number(1.0), number(0.0));
    let (s, b) = (weight(&mut g, &[8, 1], 1), weight(&mut g, &[8, 1], 2));
    let mut y = x;
    for (op, with) in [("mul", one), ("add", zero), ("mul", s), ("add", b)] {
        y = apply(&mut g, op, &[y, with]);
    }
    g.output("y", y);
    let out = check(&g, &Options::default());
    assert!(out.report.runs.iter().all(|s| s.stop == Stop::Saturated && s.nodes < 60), "{}", out.report);
    assert_eq!(out.report.after.ops, 2, "{}", out.graph);
}

#[test]
fn a_ruleset_without_end_leaves_the_others_their_budgets() {
    let program = with_rules(
        "ruleset grow { until = fixpoint; nodes = 500; }
         rule grow::more: sin(x) => sin(x + 0.001) class approx(1e-3, 0);
         ruleset after { until = fixpoint; nodes = 100; }
         rule after::found: exp(relu(x)) => exp(max(x, 0));",
    );
    let mut g = Graph::new(program);
    let x = g.input("x", ty(DType::F32, &[4]));
    let (s, r) = (apply(&mut g, "sin", &[x]), apply(&mut g, "relu", &[x]));
    let e = apply(&mut g, "exp", &[r]);
    g.output("s", s);
    g.output("e", e);
    let out = optimize(&g, &Options { numerics: hypatia_dsl::numerics::Numerics::Fast, ..Options::default() }, &FOLDER)
        .unwrap();
    let ruleset = |name: &str| out.report.runs.iter().find(|s| s.ruleset == name).unwrap();
    assert_eq!(ruleset("grow").stop, Stop::Nodes, "{}", out.report);
    assert!(ruleset("after").fired > 0, "{}", out.report);
}

#[test]
fn a_long_sum_of_products_ends_by_counted_work() {
    // Every product can absorb every partial sum after it: the e-graph grows until the work budget
    // is spent.
    let mut g = Graph::new(library());
    let mut sum = None;
    for i in 0..150 {
        let a = g.input(format!("a{i}"), ty(DType::F32, &[4, 8]));
        let b = g.input(format!("b{i}"), ty(DType::F32, &[8, 4]));
        let product = matmul(&mut g, a, b);
        sum = Some(sum.map_or(product, |s| apply(&mut g, "add", &[s, product])));
    }
    g.output("y", sum.unwrap());
    let out = optimize(&g, &Options { max_time: Duration::from_secs(600), ..Options::default() }, &FOLDER).unwrap();
    out.graph.validate().unwrap();
    assert!(out.report.runs.iter().any(|s| s.stop == Stop::Work), "{}", out.report);
    assert_eq!(out.report.after.ops, 150, "{}", out.report);
}

#[test]
fn a_rule_that_builds_nothing_is_seen_where_it_spared_something() {
    let rules = "ruleset own { until = fixpoint; }
        rule own::twice: abs(y @ abs(x)) => y;
        rule own::whole: floor(ceil(x)) => ceil(x);
        rule own::undone: neg(neg(x)) => x;
        rule own::nothing: mul(x, 1.0) => x;";
    let mut g = Graph::new(with_rules(rules));
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let inner = apply(&mut g, "abs", &[x]);
    let twice = apply(&mut g, "abs", &[inner]);
    g.name_node(twice, "second");
    let neg = apply(&mut g, "neg", &[twice]);
    let back = apply(&mut g, "neg", &[neg]);
    g.name_node(back, "back");
    let y = apply(&mut g, "sin", &[back]);
    g.output("y", y);
    let out = check(&g, &Options::default());
    for (rule, node) in [("own::twice", "second"), ("own::undone", "back")] {
        let firing = out.report.firings.iter().find(|f| f.rule == rule).unwrap();
        assert!(firing.kept && firing.nodes.iter().any(|n| n == node), "{firing:?}\n{}", out.report);
    }
    // A rule has no part in the result if it matches nowhere, or only an unused result of another
    // rule.
    assert!(!out.report.fired("own::whole") && !out.report.fired("own::nothing"), "{}", out.report);
    let told = why_not(&g, &Options::default(), (&FOLDER, &|_| None), "own::undone", None).unwrap().to_string();
    assert!(told.contains("did fire, at `back`"), "{told}");
}

#[test]
fn parts_that_are_results_are_copied_and_cost_it() {
    let rules = "ruleset merge { until = fixpoint; }
         rule merge::looks: (gather(t: T[v, m], i, axis = 0), gather(u: T[v, n], i, axis = 0)) => (y.0, y.1)
           let y = split(gather(build(concat(t, u, axis = 1)), i, axis = 0), axis = -1, sizes = [m, n])
           requires const(t), const(u), rank(i) == 1;";
    let gathers = |used: bool| {
        let mut g = Graph::new(with_rules(rules));
        let i = g.input("i", ty(DType::I64, &[64]));
        for n in [32, 48] {
            let t = weight(&mut g, &[100, n], n as u64);
            let mut y = g.builtin(BuiltinOp::Gather, &[t, i], vec![hypatia_testing::int(0)]).unwrap()[0];
            if used {
                y = g.call("tanh", &[y], &[]).unwrap()[0];
            }
            g.output(format!("y{n}"), y);
        }
        let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
        count(&out, "gather")
    };
    // If an op reads the parts, they are views. As outputs each would be a copy, and two lookups
    // are cheaper.
    assert_eq!((gathers(true), gathers(false)), (1, 2));
}
