//! Invariants of every optimised graph.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::optimize;
use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AExpr, AttrValue, Program, Sort};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_pipeline as pipeline;
use hypatia_pipeline::FOLDER;
use rand::{Rng, SeedableRng};

use super::handmade::{Handmade, b, bn, pn, rule, v};
use crate::{Optimized, Options, Stop};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;

pub(super) fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|d| Dim::from(*d)).collect() }
}

fn random(shape: &[i64], seed: u64) -> Tensor {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let n = shape.iter().product::<i64>() as usize;
    let data: Vec<f64> = (0..n).map(|_| rng.random_range(-1.0..1.0)).collect();
    let shape: Vec<usize> = shape.iter().map(|d| *d as usize).collect();
    Tensor::from_f64(DType::F32, &shape, &data).unwrap()
}

pub(super) fn weight(g: &mut Graph, shape: &[i64], seed: u64) -> Value {
    g.constant(random(shape, seed))
}

pub(super) fn matmul(g: &mut Graph, a: Value, b: Value) -> Value {
    g.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0]
}

pub(super) fn apply(g: &mut Graph, f: &str, args: &[Value]) -> Value {
    g.call(f, args, &[]).unwrap()[0]
}

/// Optimises a graph and checks the invariants of the result.
pub(super) fn check(g: &Graph, options: &Options) -> Optimized {
    let out = optimize(g, options, &FOLDER).unwrap();
    out.graph.validate().unwrap();
    assert!(out.report.after.micros <= out.report.before.micros + 1e-9, "{}", out.report);
    assert_eq!(out.graph.inputs.len(), g.inputs.len());
    let inputs: Vec<(String, Tensor)> = g
        .inputs
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let node = g.node(*id);
            let shape: Vec<i64> = node.results[0].shape.iter().map(|d| d.as_const().unwrap()).collect();
            (node.name.clone(), random(&shape, 1000 + i as u64))
        })
        .collect();
    let want = evaluate(g, &inputs, Mode::Exact).unwrap();
    let have = evaluate(&out.graph, &inputs, Mode::Exact).unwrap();
    for (w, h) in want.iter().zip(&have) {
        for (a, b) in w.to_f64().iter().zip(h.to_f64()) {
            // When a body is replaced by its op, its numbers are used as written, without rounding
            // to the dtype of the graph.
            assert!((a - b).abs() <= 1e-6 * a.abs().max(1.0), "{a} and {b}\n{}\n{}", g, out.graph);
        }
    }
    out
}

pub(super) fn count(o: &Optimized, name: &str) -> usize {
    o.report.after.counts.get(name).copied().unwrap_or(0)
}

fn program() -> Arc<Program> {
    Handmade::new().arc()
}

#[test]
fn linear_and_relu_are_one_launch() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let (w, c) = (weight(&mut g, &[8, 16], 1), weight(&mut g, &[16], 2));
    let m = matmul(&mut g, x, w);
    let s = apply(&mut g, "add", &[m, c]);
    let y = apply(&mut g, "relu", &[s]);
    g.name_node(m, "mm");
    g.name_node(s, "bias");
    g.name_node(y, "act");
    g.output("y", y);
    let out = check(&g, &Options::default());
    let launches = |graph: &Graph, cluster: bool| pipeline::launches(graph, &Device::cpu(), cluster).unwrap();
    assert_eq!((launches(&g, false), launches(&out.graph, true)), (3, 1), "{}", out.report);
    assert_eq!(count(&out, "gemm"), 1, "{}", out.graph);
    assert!(out.report.complete() && out.report.fired("fuse::unary") && out.report.fired("fuse::operand"));
    assert!(out.graph.nodes.iter().any(|n| n.name == "mm + bias + act"), "{}", out.graph);
}

#[test]
fn no_rules_change_nothing() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 16], 1);
    let m = matmul(&mut g, x, w);
    let y = apply(&mut g, "relu", &[m]);
    g.output("y", y);
    let out = check(&g, &Options { no_rules: true, ..Options::default() });
    assert_eq!(out.report.after.counts.keys().collect::<Vec<_>>(), ["matmul", "relu"]);
    let off = Options { disabled: ["fuse::unary".to_string()].into(), ..Options::default() };
    assert!(!check(&g, &off).report.fired("fuse::unary"));
}

#[test]
fn x_times_sigmoid_of_x_fuses_into_one_node() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 16], 1);
    let m = matmul(&mut g, x, w);
    let s = apply(&mut g, "sigmoid", &[m]);
    let y = apply(&mut g, "mul", &[m, s]);
    g.output("y", y);
    let out = check(&g, &Options::default());
    assert_eq!(out.report.after.ops, 1, "{}", out.graph);
    assert!(out.graph.to_text().contains("silu(acc)"), "{}", out.graph);
}

#[test]
fn a_product_with_two_users_is_computed_once() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[64, 512]));
    let w = weight(&mut g, &[512, 512], 1);
    let m = matmul(&mut g, x, w);
    let (p, q) = (apply(&mut g, "tanh", &[m]), apply(&mut g, "exp", &[m]));
    g.output("p", p);
    g.output("q", q);
    let out = check(&g, &Options::default());
    assert_eq!(count(&out, "gemm") + count(&out, "matmul"), 1, "{}", out.graph);
}

#[test]
fn repeated_squares_sums_stay_small() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 16], 1);
    let mut y = matmul(&mut g, x, w);
    for _ in 0..4 {
        y = apply(&mut g, "mul", &[y, y]);
    }
    g.output("y", y);
    let out = check(&g, &Options::default());
    let nodes = out.report.runs.iter().map(|s| s.nodes).max().unwrap();
    assert!(nodes < 60, "{nodes} nodes\n{}", out.report);
    assert_eq!(out.report.after.ops, 1, "{}", out.graph);
}

/// A pre-LN transformer's residual stream: `x = x + f(norm(x))`, twice a layer.
pub(super) fn residual_stream(layers: usize) -> Graph {
    let mut g = Graph::new(program());
    let mut x = g.input("x", ty(DType::F32, &[8, 16]));
    let square = weight(&mut g, &[16, 16], 1);
    let (up, down) = (weight(&mut g, &[16, 32], 2), weight(&mut g, &[32, 16], 3));
    // Exporters reuse one initializer for many biases.
    let (bias, wide) = (weight(&mut g, &[16], 4), weight(&mut g, &[32], 5));
    let axes = || vec![AttrValue::List(vec![AttrValue::Dim(Dim::from(-1))]), AttrValue::Bool(true)];
    for _ in 0..layers {
        for half in 0..2 {
            let mean = g.builtin(BuiltinOp::Mean, &[x], axes()).unwrap()[0];
            let n = apply(&mut g, "sub", &[x, mean]);
            let y = if half == 0 {
                let m = matmul(&mut g, n, square);
                apply(&mut g, "add", &[m, bias])
            } else {
                let m = matmul(&mut g, n, up);
                let m = apply(&mut g, "add", &[m, wide]);
                let s = apply(&mut g, "sigmoid", &[m]);
                let m = apply(&mut g, "mul", &[m, s]);
                let m = matmul(&mut g, m, down);
                apply(&mut g, "add", &[m, bias])
            };
            x = apply(&mut g, "add", &[x, y]);
        }
    }
    g.output("y", x);
    g
}

#[test]
fn residual_streams_grow_linearly() {
    let mut sizes = Vec::new();
    for layers in [12, 48, 96] {
        let g = residual_stream(layers);
        let begun = Instant::now();
        let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
        let took = begun.elapsed();
        out.graph.validate().unwrap();
        let nodes = out.report.runs.iter().map(|s| s.nodes).max().unwrap();
        println!("{layers} layers: {nodes} nodes, {took:?}, extraction {:.1} ms", out.report.extraction_millis);
        assert!(out.report.complete(), "{}", out.report);
        // Three products a layer, with bias, activation and residual inside; two means and two
        // differences.
        assert_eq!(out.report.after.ops, 7 * layers, "{}", out.report);
        assert!(took < Duration::from_secs(10), "{layers} layers took {took:?}");
        sizes.push(nodes as f64 / layers as f64);
    }
    assert!(sizes[2] < 1.1 * sizes[0], "nodes a layer grow: {sizes:?}");
    check(&residual_stream(2), &Options::default());
}

#[test]
fn budgets_hold_and_are_reported() {
    let mut h = Handmade::new();
    // exp(x) => 0.5 * exp(x + 1): every application makes another match.
    let [exp, add, mul] =
        [BuiltinScalar::Exp, BuiltinScalar::Add, BuiltinScalar::Mul].map(|s| hypatia_dsl::ir::Head::Scalar(h.s(s)));
    let number = |v: f64| hypatia_dsl::ir::Build::Number(AExpr::Value(AttrValue::Float(v)));
    let shifted = bn(exp, vec![bn(add, vec![b(0), number(1.0)], vec![])], vec![]);
    let grow = rule(
        1,
        "canon::grow",
        &[("x", Sort::Tensor)],
        vec![pn(exp, vec![v(0)], vec![])],
        vec![bn(mul, vec![number(0.5), shifted], vec![])],
    );
    h.program.rules.push(grow);
    let mut g = Graph::new(h.arc());
    let x = g.input("x", ty(DType::F32, &[4]));
    let y = apply(&mut g, "exp", &[x]);
    g.output("y", y);
    let stop_of = |o: &Options| {
        let out = optimize(&g, o, &FOLDER).unwrap();
        out.graph.validate().unwrap();
        assert!(!out.report.complete(), "{}", out.report);
        let run = out.report.runs.iter().find(|s| s.ruleset == "canon").unwrap().clone();
        (run.stop, run.nodes)
    };
    let (stop, nodes) = stop_of(&Options { max_nodes: 500, ..Options::default() });
    assert!(stop == Stop::Nodes && nodes <= 510, "{stop:?} at {nodes}");
    let (stop, _) = stop_of(&Options { max_memory: 600 * 300, ..Options::default() });
    assert_eq!(stop, Stop::Memory);
    let begun = Instant::now();
    let (stop, _) = stop_of(&Options { max_time: Duration::from_millis(1), ..Options::default() });
    assert!(matches!(stop, Stop::Time | Stop::Nodes) && begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn constants_compare_by_bits() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[2]));
    let mut number = |v: f32| g.constant(Tensor::from_slice(&[], &[v]).unwrap());
    let values = [number(0.0), number(-0.0), number(f32::NAN), number(f32::NAN), number(1.0)];
    for (i, c) in values.iter().enumerate() {
        let y = apply(&mut g, "div", &[x, *c]);
        g.output(format!("y{i}"), y);
    }
    let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
    out.graph.validate().unwrap();
    // +0 and -0 stay apart; NaN equals itself, so those two are merged.
    assert_eq!(count(&out, "div"), 4, "{}", out.graph);
}

#[test]
fn a_rule_of_other_types_is_rejected_and_named() {
    let mut h = Handmade::new();
    let (neg, mean) = (h.s(BuiltinScalar::Neg), h.o(BuiltinOp::Mean));
    let wrong = rule(
        1,
        "canon::wrong",
        &[("x", Sort::Tensor)],
        vec![pn(hypatia_dsl::ir::Head::Scalar(neg), vec![v(0)], vec![])],
        vec![bn(
            hypatia_dsl::ir::Head::Op(mean),
            vec![b(0)],
            vec![
                AExpr::Value(AttrValue::List(vec![AttrValue::Dim(Dim::from(0))])),
                AExpr::Value(AttrValue::Bool(false)),
            ],
        )],
    );
    h.program.rules.push(wrong);
    let mut g = Graph::new(h.arc());
    let x = g.input("x", ty(DType::F32, &[4]));
    let y = apply(&mut g, "neg", &[x]);
    g.output("y", y);
    let out = check(&g, &Options::default());
    assert!(out.report.warnings.iter().any(|w| w.contains("canon::wrong") && w.contains("f32[4]")), "{}", out.report);
}
