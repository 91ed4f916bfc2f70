//! A deep model optimised by a few of its layers is the model optimised as a whole.
#![allow(clippy::unwrap_used)]

#[path = "../benches/support/models.rs"]
#[allow(dead_code)]
mod models;

use std::collections::BTreeMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, NodeId, Value};
use hypatia_library as library;
use hypatia_optimize::{Doubt, EqualLayers, Options, Report};
use hypatia_pipeline::{count_launches, optimize};
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;

fn bert(layers: usize) -> models::Bert {
    models::Bert { layers, batch: 2, tokens: 5, hidden: 8, heads: 2, inner: 12 }
}

fn llama(layers: usize) -> models::Llama {
    models::Llama { layers, batch: 1, tokens: 6, hidden: 16, heads: 4, shared: 2, inner: 12 }
}

/// How often the rules of each file fired at which nodes, with a part in the result; and whether
/// the firing has its node there. (Firings without a part may differ: the more layers there are,
/// the more ways there are to spell one.)
fn fired(report: &Report) -> BTreeMap<(String, Vec<String>, bool), usize> {
    let mut fired = BTreeMap::new();
    for f in report.firings.iter().filter(|f| f.kept) {
        // Two rules of one file may build the same epilogue: which one comes first is a tie.
        let name = f.rule.split("::").next().unwrap().to_string();
        *fired.entry((name, f.nodes.clone(), f.site.is_some())).or_insert(0) += 1;
    }
    fired
}

/// Elements of every input, small ones.
fn inputs(graph: &Graph) -> Vec<(String, Tensor)> {
    let input = |id: &NodeId| {
        let node = graph.node(*id);
        let ty = &node.results[0];
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|i| ((i * 7 + id.index()) % 11) as f64 / 8.0 - 0.5).collect();
        (node.name.clone(), Tensor::from_f64(ty.dtype, &shape, &values).unwrap())
    };
    graph.inputs.iter().map(input).collect()
}

/// Optimises a graph by a few layers and as a whole, and compares. Returns how the layers were
/// optimised.
fn compare(graph: &Graph, device: &Device) -> Option<EqualLayers> {
    let by_layers = Options { device: device.clone(), ..Options::default() };
    let as_whole = Options { every_layer: true, ..by_layers.clone() };
    let [mut few, mut all] = [&by_layers, &as_whole].map(|o| optimize(graph, o).unwrap());
    for (optimized, options) in [(&mut few, &by_layers), (&mut all, &as_whole)] {
        count_launches(optimized, graph, options);
        optimized.graph.validate().unwrap();
    }
    assert_eq!(few.report.after.counts, all.report.after.counts);
    assert_eq!(few.report.before.counts, all.report.before.counts);
    assert_eq!(few.report.launches, all.report.launches);
    for (a, b) in
        [(few.report.before.micros, all.report.before.micros), (few.report.after.micros, all.report.after.micros)]
    {
        assert!((a - b).abs() < 1e-6 * b, "{a} us by layers, {b} us as a whole");
    }
    let [a, b] = [&few.report, &all.report].map(fired);
    let differing: Vec<_> = a.iter().filter(|(k, n)| b.get(k) != Some(n)).collect();
    assert!(
        a == b,
        "by layers {differing:?}, as a whole {:?}",
        b.iter().filter(|(k, n)| a.get(k) != Some(n)).collect::<Vec<_>>()
    );
    let given = inputs(graph);
    let [a, b] = [&few.graph, graph].map(|g| evaluate(g, &given, Mode::Exact).unwrap());
    for (x, y) in a.iter().zip(&b) {
        for (x, y) in x.to_f64().iter().zip(&y.to_f64()) {
            assert!((x - y).abs() <= 1e-9 * (1.0 + y.abs()), "{x} {y}");
        }
    }
    few.report.layers
}

/// Three layers stood for all.
fn few(count: usize) -> Option<EqualLayers> {
    Some(EqualLayers::Few { count, optimised: 3 })
}

fn all(count: usize, because: Doubt) -> Option<EqualLayers> {
    Some(EqualLayers::All { count, because })
}

fn devices() -> [Device; 2] {
    [Device::cpu(), Device::named("h200").unwrap()]
}

#[test]
fn a_few_layers_stand_for_all() {
    let program = library::load(&[]).unwrap();
    for device in devices() {
        for layers in [5, 8] {
            assert_eq!(compare(&bert(layers).graph(&program), &device), few(layers), "{}", device.name);
            assert_eq!(compare(&llama(layers).graph(&program), &device), few(layers), "{}", device.name);
        }
    }
}

/// A stack of residual perceptrons. `change` may alter a layer: it gets the layer's number and its
/// weights.
struct Stack {
    layers: usize,
    dtype: DType,
    /// Weights are inputs, as PyTorch's parameters are, instead of constants.
    inputs: bool,
    /// Each layer's activation is an output.
    outputs: bool,
}

/// The shapes of a layer's weights.
const SHAPES: [&[usize]; 3] = [&[9], &[6, 9], &[9, 6]];

impl Stack {
    fn new(layers: usize) -> Stack {
        Stack { layers, dtype: DType::F32, inputs: false, outputs: false }
    }

    fn weight(&self, g: &mut Graph, layer: usize, which: usize) -> Value {
        let value = |i: usize| ((i * 5 + which) % 13) as f64 / 16.0 - 0.25 + layer as f64 / 256.0;
        let values: Vec<f64> = (0..SHAPES[which].iter().product()).map(value).collect();
        self.tensor(g, &format!("w{layer}.{which}"), SHAPES[which], &values)
    }

    fn tensor(&self, g: &mut Graph, name: &str, shape: &[usize], values: &[f64]) -> Value {
        let dims = shape.iter().map(|d| Dim::from(*d as i64)).collect();
        match self.inputs {
            true => g.input(name, TensorType { dtype: self.dtype, shape: dims }),
            false => g.constant(Tensor::from_f64(self.dtype, shape, values).unwrap()),
        }
    }

    /// The graph, with each layer's weights as `change` makes them, and what `end` makes of the
    /// values of all layers.
    fn graph(
        &self,
        change: impl Fn(&mut Graph, usize, [Value; 3]) -> [Value; 3],
        end: impl Fn(&mut Graph, &[Value]) -> Value,
    ) -> Graph {
        let mut g = Graph::new(library::load(&[]).unwrap());
        let g = &mut g;
        let ty = TensorType { dtype: self.dtype, shape: vec![Dim::from(4), Dim::from(6)].into_iter().collect() };
        let x = g.input("x", ty);
        let mut x = call(g, "sub", &[x, x]);
        x = call(g, "cos", &[x]);
        let (mut all, mut outputs) = (vec![x], Vec::new());
        for layer in 0..self.layers {
            let given = [0, 1, 2].map(|which| self.weight(g, layer, which));
            let [scale, up, down] = change(g, layer, given);
            let inner = call(g, "matmul", &[x, up]);
            let scaled = call(g, "mul", &[inner, scale]);
            let inner = call(g, "tanh", &[scaled]);
            let outer = call(g, "matmul", &[inner, down]);
            x = call(g, "add", &[x, outer]);
            all.push(x);
            outputs.push((format!("inner{layer}"), inner));
        }
        let out = end(g, &all);
        if self.outputs {
            g.outputs = outputs;
        }
        g.output("out", out);
        g.clone()
    }
}

fn call(g: &mut Graph, name: &str, operands: &[Value]) -> Value {
    g.call(name, operands, &[]).unwrap()[0]
}

fn same(_: &mut Graph, _: usize, weights: [Value; 3]) -> [Value; 3] {
    weights
}

fn last(_: &mut Graph, all: &[Value]) -> Value {
    *all.last().unwrap()
}

fn compared(graph: &Graph) -> Option<EqualLayers> {
    let [cpu, gpu] = devices().map(|device| compare(graph, &device));
    assert_eq!(cpu, gpu);
    cpu
}

#[test]
fn weights_may_be_inputs_and_layers_may_have_outputs() {
    for (inputs, outputs) in [(false, false), (true, false), (false, true), (true, true)] {
        for layers in [5, 6, 11] {
            let stack = Stack { inputs, outputs, ..Stack::new(layers) };
            assert_eq!(compared(&stack.graph(same, last)), few(layers), "{inputs} {outputs}");
        }
    }
}

#[test]
fn few_layers_are_optimised_as_they_are() {
    assert_eq!(compared(&Stack::new(4).graph(same, last)), None);
}

#[test]
fn weights_that_all_layers_share_are_shared() {
    let one = |g: &mut Graph, _: usize, _: [Value; 3]| {
        // As in ALBERT; here each layer has a copy.
        [0, 1, 2].map(|which| Stack::new(1).weight(g, 0, which))
    };
    assert_eq!(compared(&Stack::new(7).graph(one, last)), few(7));
}

#[test]
fn layers_that_differ_are_no_run() {
    let full = |value: f64| {
        move |g: &mut Graph, layer: usize, [scale, up, down]: [Value; 3]| {
            let ones = Tensor::from_f64(DType::F32, SHAPES[0], &[value; 9]).unwrap();
            [if layer == 3 { g.constant(ones) } else { scale }, up, down]
        }
    };
    // A scale of ones is no product: the third layer must lose it, and no other.
    assert_eq!(compared(&Stack::new(8).graph(full(1.0), last)), None);
    // Two layers with one weight.
    let tied = |g: &mut Graph, layer: usize, [scale, up, down]: [Value; 3]| {
        [if layer == 5 { Stack::new(1).weight(g, 2, 0) } else { scale }, up, down]
    };
    assert_eq!(compared(&Stack::new(8).graph(tied, last)), None);
    // Something reads a layer in the middle.
    for middle in 1..8 {
        let end = |g: &mut Graph, all: &[Value]| call(g, "mul", &[all[middle], all[all.len() - 1]]);
        assert_eq!(compared(&Stack::new(8).graph(same, end)), all(8, Doubt::ReadFromOutside));
    }
    // What enters the first layer could stand for what enters another one.
    let first = |g: &mut Graph, all: &[Value]| call(g, "mul", &[all[0], all[all.len() - 1]]);
    assert_eq!(compared(&Stack::new(8).graph(same, first)), all(8, Doubt::NoCut));
    // The layers behind a different one are a run.
    let other = |g: &mut Graph, layer: usize, [scale, up, down]: [Value; 3]| {
        [if layer == 1 { call(g, "neg", &[scale]) } else { scale }, up, down]
    };
    assert_eq!(compared(&Stack::new(9).graph(other, last)), few(6));
}

#[test]
fn a_fold_that_one_layer_cannot_afford_is_made_in_no_run() {
    // Scales are folded into weights, unless the product leaves the range of f16.
    let with = |least: f64| {
        move |g: &mut Graph, layer: usize, [.., down]: [Value; 3]| {
            let values: Vec<f64> = (0..9).map(|i| (i + layer + 2) as f64 / 4.0).collect();
            let scale = Tensor::from_f64(DType::F16, SHAPES[0], &values).unwrap();
            let scale = g.constant(scale);
            let value = |i: usize| (1.0 + (i + layer) as f64 / 64.0) * if layer == 4 { least } else { 0.01 };
            let up = Tensor::from_f64(DType::F16, SHAPES[1], &(0..54).map(value).collect::<Vec<_>>()).unwrap();
            let up = g.constant(up);
            [scale, up, down]
        }
    };
    let stack = || Stack { dtype: DType::F16, ..Stack::new(8) };
    assert_eq!(compared(&stack().graph(with(0.01), last)), few(8));
    assert_eq!(compared(&stack().graph(with(30000.0), last)), all(8, Doubt::Digits));
}

/// Layers of which each scales its input by positive numbers and adds a product. What enters the
/// first one is the input, or whether it is NaN, as numbers.
fn scaled(layers: usize, truth: bool) -> Graph {
    let stack = Stack::new(layers);
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = TensorType { dtype: DType::F32, shape: vec![Dim::from(4), Dim::from(6)].into_iter().collect() };
    let x = g.input("x", ty);
    let mut x = match truth {
        true => {
            let truth = call(&mut g, "isnan", &[x]);
            let [zero, one] = [0.0, 1.0].map(|v| g.number(DType::F32, v).unwrap());
            call(&mut g, "select", &[truth, zero, one])
        }
        false => call(&mut g, "tanh", &[x]),
    };
    for layer in 0..layers {
        let positive: Vec<f64> = (0..6).map(|i| 0.25 + (i + layer) as f64 / 32.0).collect();
        let scale = stack.tensor(&mut g, "scale", &[6], &positive);
        let scaled = call(&mut g, "mul", &[x, scale]);
        let values: Vec<f64> = (0..36).map(|i| (i % 7) as f64 / 16.0 - 0.2 + layer as f64 / 512.0).collect();
        let weight = stack.tensor(&mut g, "weight", &[6, 6], &values);
        let product = call(&mut g, "matmul", &[scaled, weight]);
        x = call(&mut g, "add", &[scaled, product]);
    }
    g.output("out", x);
    g
}

#[test]
fn facts_that_only_the_first_layers_have_do_not_count_for_all() {
    assert_eq!(compared(&scaled(8, false)), few(8));
    // What enters is 0 or 1, so that what the first layer scales is at least 0.
    assert_eq!(compared(&scaled(8, true)), all(8, Doubt::Facts));
}

/// Layers that add a product and a constant; a constant is added to what enters the first one.
fn biased(layers: usize) -> Graph {
    let stack = Stack::new(layers);
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = TensorType { dtype: DType::F32, shape: vec![Dim::from(4), Dim::from(6)].into_iter().collect() };
    let x = g.input("x", ty);
    let bias = |g: &mut Graph, layer: usize| {
        let values: Vec<f64> = (0..6).map(|i| (i * 3 % 5) as f64 / 8.0 - 0.2 + layer as f64 / 64.0).collect();
        stack.tensor(g, "bias", &[6], &values)
    };
    let first = bias(&mut g, layers);
    let mut x = call(&mut g, "add", &[x, first]);
    for layer in 0..layers {
        let values: Vec<f64> = (0..36).map(|i| (i % 7) as f64 / 16.0 - 0.2 + layer as f64 / 512.0).collect();
        let weight = stack.tensor(&mut g, "weight", &[6, 6], &values);
        let bent = call(&mut g, "tanh", &[x]);
        let product = call(&mut g, "matmul", &[bent, weight]);
        let sum = call(&mut g, "add", &[x, product]);
        let bias = bias(&mut g, layer);
        x = call(&mut g, "add", &[sum, bias]);
    }
    g.output("out", x);
    g
}

#[test]
fn sums_over_layers_are_those_of_the_whole() {
    // Rules add the constants of a long sum, those of other layers and of what enters too.
    assert_eq!(compared(&biased(8)), few(8));
}

/// Layers that add a product; `begin` makes what enters the first one.
fn added(layers: usize, begin: &str) -> Graph {
    let stack = Stack::new(layers);
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = TensorType { dtype: DType::F32, shape: vec![Dim::from(4), Dim::from(6)].into_iter().collect() };
    let x = g.input("x", ty);
    let mut x = call(&mut g, begin, &[x]);
    for layer in 0..layers {
        let values: Vec<f64> = (0..36).map(|i| (i % 7) as f64 / 16.0 - 0.2 + layer as f64 / 512.0).collect();
        let weight = stack.tensor(&mut g, "weight", &[6, 6], &values);
        let bent = call(&mut g, "tanh", &[x]);
        let product = call(&mut g, "matmul", &[bent, weight]);
        x = call(&mut g, "add", &[x, product]);
    }
    g.output("out", x);
    g
}

#[test]
fn a_match_may_not_reach_in_front_of_the_layers() {
    assert_eq!(compared(&added(8, "cos")), few(8));
    // In a sum over layers, rules see the negation that enters the first one.
    assert_eq!(compared(&added(8, "neg")), all(8, Doubt::InFront));
}
