//! `Options::batch_invariant`: a row's result has the same bits, however many rows stand beside it:
//! products, norms, softmax, reductions, whole BERT and Llama blocks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia::session::{Model, Options, Safety};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};

use hypatia_graph::{Graph, GraphBuilder, Var, shape};
use hypatia_library as library;
use hypatia_tensor::Tensor;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

/// The most rows.
const MOST: usize = 4096;
/// Tokens, width and heads of the blocks.
const TOKENS: usize = 6;
const WIDTH: usize = 32;
const HEADS: usize = 4;

/// Random weights.
struct Weights(ChaCha8Rng);

impl Weights {
    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.0.random_range(-0.5..0.5)).collect()
    }

    fn of<'g>(&mut self, g: &'g GraphBuilder, shape: &[usize]) -> Var<'g> {
        let numbers = self.numbers(shape.iter().product());
        g.tensor(shape, &numbers)
    }

    fn linear<'g>(&mut self, g: &'g GraphBuilder, x: Var<'g>, [n, k]: [usize; 2]) -> Var<'g> {
        let (w, b) = (self.of(g, &[n, k]), self.of(g, &[n]));
        g.call("linear", &[x, w, b], &[])
    }
}

fn heads(x: Var<'_>) -> Var<'_> {
    x.reshape(shape!["batch", 6, 4, 8]).transpose(&[0, 2, 1, 3])
}

fn attention<'g>(g: &'g GraphBuilder, w: &mut Weights, x: Var<'g>) -> Var<'g> {
    let [q, k, v] = [(); 3].map(|()| heads(w.linear(g, x, [WIDTH, WIDTH])));
    let scale = AttrValue::Float(((WIDTH / HEADS) as f64).sqrt().recip());
    let y = g.call("attention", &[q, k, v], &[("scale", scale)]);
    let joined = y.transpose(&[0, 2, 1, 3]).reshape(shape!["batch", 6, 32]);
    w.linear(g, joined, [WIDTH, WIDTH])
}

/// An encoder layer of BERT.
fn bert<'g>(g: &'g GraphBuilder, w: &mut Weights, x: Var<'g>) -> Var<'g> {
    let norm = |w: &mut Weights, x| {
        let (scale, bias) = (w.of(g, &[WIDTH]), w.of(g, &[WIDTH]));
        g.call("layer_norm", &[x, scale, bias], &[])
    };
    let mixed = attention(g, w, x);
    let x = norm(w, x + mixed);
    let inner = w.linear(g, x, [4 * WIDTH, WIDTH]);
    let inner = g.call("gelu", &[inner], &[]);
    let out = w.linear(g, inner, [WIDTH, 4 * WIDTH]);
    norm(w, x + out)
}

/// A decoder layer of Llama.
fn llama<'g>(g: &'g GraphBuilder, w: &mut Weights, x: Var<'g>) -> Var<'g> {
    let norm = |w: &mut Weights, x| {
        let scale = w.of(g, &[WIDTH]);
        g.call("rms_norm", &[x, scale], &[])
    };
    let normed = norm(w, x);
    let x = x + attention(g, w, normed);
    let normed = norm(w, x);
    let gate = w.linear(g, normed, [3 * WIDTH, WIDTH]);
    let up = w.linear(g, normed, [3 * WIDTH, WIDTH]);
    let gated = g.call("silu", &[gate], &[]) * up;
    x + w.linear(g, gated, [WIDTH, 3 * WIDTH])
}

/// Models whose first input axis is the batch, with the shape of a row.
fn models(program: &Arc<Program>) -> Vec<(&'static str, Graph, Vec<usize>)> {
    let mut out = Vec::new();
    let mut rows = |name: &'static str, made: &dyn for<'g> Fn(&'g GraphBuilder, &mut Weights, Var<'g>) -> Var<'g>| {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", 32]);
        let y = made(&g, &mut Weights(ChaCha8Rng::seed_from_u64(5)), x);
        g.output("y", y);
        out.push((name, g.finish().unwrap(), vec![WIDTH]));
    };
    rows("product", &|g, w, x| w.linear(g, x, [40, WIDTH]));
    rows("long sums", &|g, w, x| {
        let wide = w.linear(g, x, [700, WIDTH]);
        w.linear(g, wide, [3, 700])
    });
    rows("products in a chain", &|g, w, x| x.matmul(w.of(g, &[WIDTH, 4])).matmul(w.of(g, &[4, 512])));
    rows("product with epilogue", &|g, w, x| {
        let y = w.linear(g, x, [WIDTH, WIDTH]);
        g.call("gelu", &[y], &[]) + x
    });
    rows("layer norm", &|g, w, x| {
        let (scale, bias) = (w.of(g, &[WIDTH]), w.of(g, &[WIDTH]));
        g.call("layer_norm", &[x, scale, bias], &[])
    });
    rows("softmax", &|g, w, x| {
        let y = w.linear(g, x, [100, WIDTH]);
        g.call("softmax", &[y], &[])
    });
    rows("reductions", &|g, w, x| {
        let y = w.linear(g, x, [300, WIDTH]);
        y.sum(&[-1], true) * y.mean(&[-1], true) + y.amax(&[-1], true)
    });
    // A plan keeps long rows apart from the work around them if there are few of them.
    rows("long rows", &|g, w, x| {
        let y = w.linear(g, x, [2500, WIDTH]);
        let y = g.call("softmax", &[g.call("exp", &[y], &[])], &[]);
        y.sum(&[-1], true) + y.amax(&[-1], true) * y.mean(&[-1], true)
    });
    let mut blocks = |name: &'static str, made: &dyn for<'g> Fn(&'g GraphBuilder, &mut Weights, Var<'g>) -> Var<'g>| {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", 6, 32]);
        let mut w = Weights(ChaCha8Rng::seed_from_u64(6));
        let first = made(&g, &mut w, x);
        g.output("y", made(&g, &mut w, first));
        out.push((name, g.finish().unwrap(), vec![TOKENS, WIDTH]));
    };
    blocks("bert", &bert);
    blocks("llama", &llama);
    out
}

fn model(graph: &Graph, batch_invariant: bool) -> Model {
    let options = Options { safety: Safety::Off, threads: 2, batch_invariant, ..Options::default() };
    Model::new(graph.clone(), options)
}

/// The bytes of the result of the first `batch` rows.
fn result(model: &Model, given: &[f32], row: &[usize], batch: usize) -> Vec<u8> {
    let count: usize = row.iter().product();
    let shape = [&[batch], row].concat();
    let x = Tensor::from_slice(&shape, &given[..batch * count]).unwrap();
    model.run(&[("x".to_string(), x)]).unwrap()[0].bytes().to_vec()
}

/// The numbers of rows whose results are not the first bytes of those of all rows.
fn apart(model: &Model, row: &[usize], batches: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let given: Vec<f32> = (0..MOST * row.iter().product::<usize>()).map(|_| rng.random_range(-2.0..2.0)).collect();
    let all = result(model, &given, row, MOST);
    batches.filter(|batch| !all.starts_with(&result(model, &given, row, *batch))).collect()
}

#[test]
fn a_row_has_the_same_bits_beside_any_number_of_rows() {
    let program = library::load(&[]).unwrap();
    for (name, graph, row) in models(&program) {
        let start = std::time::Instant::now();
        let every = if name == "long rows" { 37 } else { 1 };
        let batches = (1..=9).chain((10..=512).step_by(every)).chain([512]);
        assert_eq!(apart(&model(&graph, true), &row, batches), [0; 0], "{name}");
        for narrow in [DType::BF16, DType::F16] {
            let model = model(&graph, true).narrowed(narrow).unwrap();
            let some = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 256, 511, 512];
            assert_eq!(apart(&model, &row, some.into_iter()), [0; 0], "{name} in {narrow}");
        }
        println!("{name}: {:?}", start.elapsed());
    }
}

/// The same sums in another order have other bits: the test above can fail.
#[test]
fn sums_in_another_order_have_other_bits() {
    let program = library::load(&[]).unwrap();
    let mut w = Weights(ChaCha8Rng::seed_from_u64(5));
    let (all, given) = (w.numbers(WIDTH * WIDTH), w.numbers(33 * WIDTH));
    let half = |first: bool| -> Vec<f32> {
        all.iter().enumerate().map(|(i, v)| if (i < WIDTH * WIDTH / 2) == first { *v } else { 0.0 }).collect()
    };
    let of = |weights: &[Vec<f32>]| {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", 32]);
        let products = weights.iter().map(|w| x.matmul(g.tensor(&[WIDTH, WIDTH], w)));
        g.output("y", products.reduce(|a, b| a + b).unwrap());
        let mut options = Options { safety: Safety::Off, ..Options::default() };
        options.optimize.no_rules = true;
        result(&Model::new(g.finish().unwrap(), options), &given, &[WIDTH], 33)
    };
    assert_ne!(of(std::slice::from_ref(&all)), of(&[half(true), half(false)]));
}
