//! What `explain` says of a node's candidates is what the plan does with them.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, KernelId, Program};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::fate::Fate;
use hypatia_graph::{Graph, Node, Strategy, Value};
use hypatia_library as library;
use hypatia_pipeline::{self as pipeline, FOLDER};
use hypatia_plan::{self as plan, Action, CallStep, Called, Step};
use hypatia_target::device::Device;
use hypatia_testing::{int, list};

use crate::kernels::{attach, considered};
use crate::{Options, optimize};

/// An op that two calls compute, and one with a template that has no launch for 70 rows.
const OWN: &str = r#"edition 1;
use core::*;
op product<T: float>(a: T[m, k], b: T[k, n]) -> T[m, n] = matmul(a, b);
kernel one for product(a, b) { cublaslt DEFAULT; requires dim(a, 0) > 8; }
kernel two for product(a, b) { cublaslt DEFAULT; }
op shares<T: float>(x: T[m, n]) -> T[m, n] = x / sum(x, axes = [-1]);
kernel shares_warp for shares(x) {
  template "shares.cu.j2";
  launch grid = dim(x, 0) - 70, block = 32;
}
"#;
const SHARES: &str = "${ prelude }\nextern \"C\" __global__ void ${ entry }(${ params }) {}\n";

fn device() -> Device {
    Device::named("h200").unwrap()
}

/// A program with these rules and the library.
fn program() -> Arc<Program> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.hyp");
    std::fs::write(&path, OWN).unwrap();
    std::fs::write(folder.path().join("shares.cu.j2"), SHARES).unwrap();
    library::load(&[path]).unwrap()
}

/// A graph without nodes, and its inputs of these shapes.
fn inputs(shapes: &[[Dim; 2]]) -> (Graph, Vec<Value>) {
    let mut g = Graph::new(program());
    let ty = |s: &[Dim; 2]| TensorType { dtype: DType::BF16, shape: s.to_vec() };
    let inputs = shapes.iter().enumerate().map(|(i, s)| g.input(format!("x{i}"), ty(s))).collect();
    (g, inputs)
}

/// Adds `(u v) * gelu_tanh_grad(pre)`.
fn gradient(g: &mut Graph, inputs: &[Value]) -> Value {
    let slope = g.call("gelu_tanh_grad", &inputs[2..], &[]).unwrap()[0];
    let back = g.call("matmul", &inputs[..2], &[]).unwrap()[0];
    g.call("mul", &[back, slope], &[]).unwrap()[0]
}

/// A graph whose kernels were listed before its sizes were known.
fn sized(listed: &Graph, sizes: &[(&str, i64)]) -> Graph {
    listed.specialize(&sizes.iter().map(|(name, size)| ((*name).into(), *size)).collect()).unwrap()
}

/// An op on symbolic sizes, with its list of kernels.
fn listed(op: &str, shapes: &[[&str; 2]]) -> Graph {
    let shapes: Vec<[Dim; 2]> = shapes.iter().map(|s| s.map(Dim::symbol)).collect();
    let (mut g, inputs) = inputs(&shapes);
    let y = g.call(op, &inputs, &[]).unwrap()[0];
    g.output("y", y);
    attach(&mut g, &device(), &Options::default().allowed(), &FOLDER).unwrap();
    g
}

/// The kernels of the calls in these steps, each among the fallback steps of the one before it, and
/// the kernel of the product among the last ones.
fn launched(steps: &[Step]) -> (Vec<KernelId>, Option<KernelId>) {
    let calls = |s: &&Step| matches!(s.action, Action::Call(_) | Action::Gemm(_));
    let Some(step) = steps.iter().find(calls) else { return (Vec::new(), None) };
    let Action::Call(call) = &step.action else { return (Vec::new(), step.kernel) };
    let (behind, last) = launched(&call.fallback);
    (step.kernel.into_iter().chain(behind).collect(), last)
}

/// Holds the plan of a graph against the fates of its only node with a list; returns these.
fn fates_of(graph: &Graph) -> Vec<String> {
    let has_list = |n: &&Node| !n.kernels.list.is_empty();
    let node = graph.nodes.iter().find(has_list).unwrap_or_else(|| panic!("{graph}"));
    let fates = graph.fates(node, &device());
    let told = considered(graph, &device(), &|_| None);
    let told: Vec<Fate> = told[0].candidates[..fates.len()].iter().map(|c| c.fate.clone()).collect();
    assert_eq!(told, fates);
    let runs = |f: &Fate| matches!(f, Fate::Taken | Fate::Raced | Fate::Fallback);
    let run: Vec<_> = node.kernels.list.iter().zip(&fates).filter(|(_, f)| runs(f)).map(|(c, _)| c).collect();
    let plan = pipeline::plan(graph, &plan::Options::new(device())).unwrap();
    // A convolution that reads its windows is timed beside the steps of its node.
    let steps = match plan.steps.as_slice() {
        [Step { action: Action::Call(CallStep { called: Called::Prologue(_), fallback, .. }), .. }] => fallback,
        all => all,
    };
    let (calls, product) = launched(steps);
    let raced = &run[..run.len().saturating_sub(1)];
    assert_eq!(calls, raced.iter().filter_map(|c| c.kernel()).collect::<Vec<_>>(), "{fates:?}\n{plan}");
    let last = run.last().filter(|c| matches!(c.strategy, Strategy::Whole | Strategy::Split(_)));
    if run.is_empty() || last.is_some() {
        assert_eq!(product, last.and_then(|c| c.kernel()), "{fates:?}\n{plan}");
    }
    let word = |f: &Fate| format!("{f:?}").split('(').next().unwrap_or_default().to_string();
    fates.iter().map(word).collect()
}

/// A tiled kernel where it is preferred, a call for training, the tiled kernel, a product and a
/// pass, and those without a kernel.
#[test]
fn a_product_falls_back_on_what_is_always_there() {
    let (mut g, inputs) = inputs(&[["m", "k"], ["k", "n"], ["m", "n"]].map(|s| s.map(Dim::symbol)));
    let y = gradient(&mut g, &inputs);
    g.output("y", y);
    let listed = optimize(&g, &Options { device: device(), ..Options::default() }, &FOLDER).unwrap().graph;
    let of = |k: i64, n: i64| fates_of(&sized(&listed, &[("m", 128), ("k", k), ("n", n)]));
    assert_eq!(of(512, 256), ["Raced", "Fallback", "Skipped", "Fallback", "Behind"]);
    assert_eq!(of(1 << 16, 2048), ["Refused", "Raced", "Skipped", "Fallback", "Behind"]);
    assert_eq!(of(516, 256), ["Raced", "Fallback", "Skipped", "Fallback", "Behind"]);
    assert_eq!(of(512, 250), ["Raced", "Refused", "Skipped", "Fallback", "Behind"]);
    assert_eq!(of(32, 100), ["Refused", "Refused", "Raced", "Fallback", "Behind"]);
}

/// Any call of an op is timed beside the op's parts, whatever its epilogue.
#[test]
fn a_call_of_an_op_falls_back_on_its_parts() {
    let listed = listed("product", &[["m", "k"], ["k", "n"]]);
    let of = |m: i64| fates_of(&sized(&listed, &[("m", m), ("k", 32), ("n", 64)]));
    assert_eq!(of(128), ["Raced", "Skipped", "Fallback"]);
    assert_eq!(of(8), ["Refused", "Raced", "Fallback"]);
}

#[test]
fn a_template_without_a_launch_is_refused() {
    let listed = listed("shares", &[["m", "n"]]);
    let of = |m: i64| fates_of(&sized(&listed, &[("m", m), ("n", 100)]));
    assert_eq!(of(70), ["Refused", "Taken"]);
    assert_eq!(of(71), ["Raced", "Fallback"]);
}

/// The guards of a product's kernels ask about the matrices that a convolution becomes, not about
/// its image and filters.
#[test]
fn a_convolution_is_a_product_of_its_windows() {
    let of = |size: i64, filters: i64| {
        let mut g = Graph::new(program());
        let ty = |s: [i64; 4]| TensorType { dtype: DType::BF16, shape: s.map(Dim::from).to_vec() };
        let (x, w) = (g.input("x", ty([1, 4, size, size])), g.input("w", ty([filters, 4, 3, 3])));
        let ones = || list(&[1, 1]);
        let attrs = vec![ones(), ones(), ones(), ones(), int(1), AttrValue::DType(DType::BF16)];
        let mut term = Term::empty();
        let acc = term.add(TermNode::Acc);
        let root = term.add(TermNode::Call { scalar: g.program.find_scalar("gelu_tanh").unwrap(), args: vec![acc] });
        term.roots.push(root);
        let op = g.program.builtin_op(BuiltinOp::ConvGemm).unwrap();
        let y = g.op(op, &[Some(x), Some(w)], attrs, Some(term)).unwrap()[0];
        g.output("y", y);
        attach(&mut g, &device(), &Options::default().allowed(), &FOLDER).unwrap();
        fates_of(&g)
    };
    assert_eq!(of(8, 8), ["Taken", "Behind", "Behind", "Behind"]);
    assert_eq!(of(7, 8), ["Refused", "Raced", "Fallback", "Behind"]);
    // So few filters are sums.
    assert_eq!(of(8, 3), ["Refused"; 4]);
}

/// A launch that needs a fallback computes a whole node: a product with a part of an epilogue, in
/// front of a pass, has no fallback.
#[test]
fn no_part_of_an_epilogue_needs_a_fallback() {
    let (mut g, inputs) = inputs(&[[128, 64], [64, 256], [128, 256]].map(|s| s.map(Dim::from)));
    let grad = gradient(&mut g, &inputs);
    let y = g.call("sin", &[grad], &[]).unwrap()[0];
    g.output("y", y);
    let out = optimize(&g, &Options { device: device(), ..Options::default() }, &FOLDER).unwrap().graph;
    let listed = out.nodes.iter().flat_map(|n| &n.kernels.list);
    let split: Vec<_> = listed.filter(|c| matches!(c.strategy, Strategy::Split(_))).collect();
    assert!(!split.is_empty(), "{out}");
    for kernel in split.iter().filter_map(|c| c.kernel()) {
        let backend = &out.program.kernels[kernel.index()].backend;
        assert!(!backend.needs_fallback(), "{backend:?}\n{out}");
    }
}
