//! `Options::batch_invariant`: a row's result has the same bits, however many rows stand beside it:
//! products, norms, softmax, reductions, whole BERT and Llama blocks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia::session::{Model, Options, Safety};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};

use hypatia_graph::{Graph, GraphBuilder, Symbols, Var, shape};
use hypatia_library as library;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_plan::{Action, Step};
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

/// The most rows.
const MOST: usize = 4096;

/// Sizes of the models.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    width: usize,
    heads: usize,
}

/// Models that a reference computes in little time.
const SMALL: Sizes = Sizes { tokens: 6, width: 32, heads: 4 };
/// Models whose matrices the copy engine of a GPU moves, with ragged tiles of queries and keys.
const WIDE: Sizes = Sizes { tokens: 72, width: 256, heads: 4 };

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

fn attention<'g>(g: &'g GraphBuilder, w: &mut Weights, x: Var<'g>, of: Sizes) -> Var<'g> {
    let Sizes { tokens, width, heads } = of;
    let (tokens, head) = (tokens as i64, width / heads);
    let split = |x: Var<'g>| x.reshape(shape!["batch", tokens, heads as i64, head as i64]).transpose(&[0, 2, 1, 3]);
    let [q, k, v] = [(); 3].map(|()| split(w.linear(g, x, [width, width])));
    let scale = AttrValue::Float((head as f64).sqrt().recip());
    let y = g.call("attention", &[q, k, v], &[("scale", scale)]);
    let joined = y.transpose(&[0, 2, 1, 3]).reshape(shape!["batch", tokens, width as i64]);
    w.linear(g, joined, [width, width])
}

/// An encoder layer of BERT.
fn bert<'g>(g: &'g GraphBuilder, w: &mut Weights, x: Var<'g>, of: Sizes) -> Var<'g> {
    let width = of.width;
    let norm = |w: &mut Weights, x| {
        let (scale, bias) = (w.of(g, &[width]), w.of(g, &[width]));
        g.call("layer_norm", &[x, scale, bias], &[])
    };
    let mixed = attention(g, w, x, of);
    let x = norm(w, x + mixed);
    let inner = w.linear(g, x, [4 * width, width]);
    let inner = g.call("gelu", &[inner], &[]);
    let out = w.linear(g, inner, [width, 4 * width]);
    norm(w, x + out)
}

/// A decoder layer of Llama.
fn llama<'g>(g: &'g GraphBuilder, w: &mut Weights, x: Var<'g>, of: Sizes) -> Var<'g> {
    let width = of.width;
    let norm = |w: &mut Weights, x| {
        let scale = w.of(g, &[width]);
        g.call("rms_norm", &[x, scale], &[])
    };
    let normed = norm(w, x);
    let x = x + attention(g, w, normed, of);
    let normed = norm(w, x);
    let gate = w.linear(g, normed, [3 * width, width]);
    let up = w.linear(g, normed, [3 * width, width]);
    let gated = g.call("silu", &[gate], &[]) * up;
    x + w.linear(g, gated, [width, 3 * width])
}

/// A layer of a model of sequences.
type Layer = dyn for<'g> Fn(&'g GraphBuilder, &mut Weights, Var<'g>, Sizes) -> Var<'g>;

/// Models whose first input axis is the batch, with the shape of a row.
fn models(program: &Arc<Program>, of: Sizes) -> Vec<(&'static str, Graph, Vec<usize>)> {
    let (tokens, width) = (of.tokens, of.width);
    let mut out = Vec::new();
    let mut rows = |name: &'static str, made: &dyn for<'g> Fn(&'g GraphBuilder, &mut Weights, Var<'g>) -> Var<'g>| {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", width as i64]);
        let y = made(&g, &mut Weights(ChaCha8Rng::seed_from_u64(5)), x);
        g.output("y", y);
        out.push((name, g.finish().unwrap(), vec![width]));
    };
    rows("product", &|g, w, x| w.linear(g, x, [40, width]));
    rows("long sums", &|g, w, x| {
        let wide = w.linear(g, x, [700, width]);
        w.linear(g, wide, [3, 700])
    });
    rows("products in a chain", &|g, w, x| x.matmul(w.of(g, &[width, 4])).matmul(w.of(g, &[4, 512])));
    rows("product with epilogue", &|g, w, x| {
        let y = w.linear(g, x, [width, width]);
        g.call("gelu", &[y], &[]) + x
    });
    rows("layer norm", &|g, w, x| {
        let (scale, bias) = (w.of(g, &[width]), w.of(g, &[width]));
        g.call("layer_norm", &[x, scale, bias], &[])
    });
    rows("softmax", &|g, w, x| {
        let y = w.linear(g, x, [100, width]);
        g.call("softmax", &[y], &[])
    });
    rows("reductions", &|g, w, x| {
        let y = w.linear(g, x, [300, width]);
        y.sum(&[-1], true) * y.mean(&[-1], true) + y.amax(&[-1], true)
    });
    // What depends on the batch and on constants alone is known once the batch is.
    rows("places of rows", &|g, w, x| {
        let iota = [("shape", shape!["batch", 1].into()), ("axis", 0.into()), ("to", DType::F32.into())];
        let places = g.call("iota", &[], &iota);
        let far = g.call("exp", &[places * -0.5], &[]);
        w.linear(g, x, [40, width]) + far
    });
    // A plan keeps long rows apart from the work around them if there are few of them.
    rows("long rows", &|g, w, x| {
        let y = w.linear(g, x, [2500, width]);
        let y = g.call("softmax", &[g.call("exp", &[y], &[])], &[]);
        y.sum(&[-1], true) + y.amax(&[-1], true) * y.mean(&[-1], true)
    });
    let mut blocks = |name: &'static str, made: &Layer| {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", tokens as i64, width as i64]);
        let mut w = Weights(ChaCha8Rng::seed_from_u64(6));
        let first = made(&g, &mut w, x, of);
        g.output("y", made(&g, &mut w, first, of));
        out.push((name, g.finish().unwrap(), vec![tokens, width]));
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
    apart_from(model, row, MOST, batches)
}

/// The same, beside at most so many rows.
fn apart_from(model: &Model, row: &[usize], most: usize, batches: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let given: Vec<f32> = (0..most * row.iter().product::<usize>()).map(|_| rng.random_range(-2.0..2.0)).collect();
    let all = result(model, &given, row, most);
    batches.filter(|batch| !all.starts_with(&result(model, &given, row, *batch))).collect()
}

#[test]
fn a_row_has_the_same_bits_beside_any_number_of_rows() {
    let program = library::load(&[]).unwrap();
    for (name, graph, row) in models(&program, SMALL) {
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

/// What each step of a plan for that batch is, but for copies: its name, its action and its kernel.
/// `open` plans before the batch is known.
fn steps(graph: &Graph, device: &Device, batch: i64, open: bool) -> Vec<(String, String, Option<String>)> {
    let options = optimize::Options { device: device.clone(), batch_invariant: open, ..Default::default() };
    let (allowed, memory) = (options.allowed(), isize::MAX as usize);
    let settings = plan::Options { allowed, memory, ..plan::Options::new(device.clone()) };
    let sizes = Symbols::from([("batch".into(), batch)]);
    let constants = &mut pipeline::constants();
    let made = match open {
        true => {
            let graph = pipeline::optimize(graph, &options).unwrap().graph;
            pipeline::plan_specialized(&graph, &sizes, &settings, constants)
        }
        false => {
            let graph = pipeline::optimize(&graph.specialize(&sizes).unwrap(), &options).unwrap().graph;
            pipeline::plan_with(&graph, &settings, constants)
        }
    };
    let made = made.unwrap();
    let kernel = |s: &Step| s.kernel.map(|k| made.program.kernels[k.index()].name.clone());
    // What lies as it is needed for one sequence is copied for several.
    let steps = made.steps.iter().filter(|s| !matches!(s.action, Action::Copy));
    steps.map(|s| (s.name.clone(), s.action.name().to_string(), kernel(s))).collect()
}

#[test]
fn plans_have_the_same_launches_for_every_batch() {
    let program = library::load(&[]).unwrap();
    let mut differ = 0;
    for device in [Device::cpu(), Device::named("h200").unwrap(), Device::named("a100").unwrap()] {
        for (name, graph, _) in models(&program, WIDE) {
            let naming = optimize::Options::default().naming(&program);
            let named = pipeline::optimize(&graph, &naming).unwrap().graph;
            for graph in [graph, named.narrowed(DType::BF16).unwrap().graph] {
                let many = steps(&graph, &device, 4096, true);
                for batch in [1, 2, 7, 64] {
                    assert_eq!(steps(&graph, &device, batch, true), many, "{name}, batch {batch}, {}", device.name);
                }
                differ += usize::from(steps(&graph, &device, 1, false) != steps(&graph, &device, 4096, false));
            }
        }
    }
    // Where sizes are known, some plans depend on them: the test above can fail.
    assert!(differ > 0);
}

#[cfg(feature = "cuda")]
#[test]
fn a_row_has_the_same_bits_beside_any_number_of_rows_on_a_gpu() {
    use hypatia_cuda::{Gpu, tuner::Tuner};
    let batches = [1, 2, 3, 5, 8, 16, 33, 64, 127, 256, 512];
    let types = [DType::F32, DType::BF16, DType::F16];
    let program = library::load(&[]).unwrap();
    let models = models(&program, WIDE);
    let cases = models.len() * types.len() * batches.len();
    let Some(gpu) = hypatia_testing::gpu_or_skip(Gpu::open(0), cases) else { return };
    for (name, graph, row) in models {
        for dtype in types {
            let start = std::time::Instant::now();
            let options = Options { safety: Safety::Off, batch_invariant: true, ..Options::default() };
            let tuner = Tuner::without_cache(std::time::Duration::from_secs(2));
            let options = Options { verdicts: None, ..options.on(gpu.clone(), tuner) };
            let model = Model::new(graph.clone(), options);
            let model = if dtype == DType::F32 { model } else { model.narrowed(dtype).unwrap() };
            let most = if row.len() > 1 { 640 } else { MOST };
            assert_eq!(apart_from(&model, &row, most, batches.into_iter()), [0; 0], "{name} in {dtype}");
            println!("{name} in {dtype}: {:?}", start.elapsed());
        }
    }
}

/// The same sums in another order have other bits: the test above can fail.
#[test]
fn sums_in_another_order_have_other_bits() {
    let program = library::load(&[]).unwrap();
    let mut w = Weights(ChaCha8Rng::seed_from_u64(5));
    let (all, given) = (w.numbers(SMALL.width * SMALL.width), w.numbers(33 * SMALL.width));
    let half = |first: bool| -> Vec<f32> {
        all.iter()
            .enumerate()
            .map(|(i, v)| if (i < SMALL.width * SMALL.width / 2) == first { *v } else { 0.0 })
            .collect()
    };
    let of = |weights: &[Vec<f32>]| {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", 32]);
        let products = weights.iter().map(|w| x.matmul(g.tensor(&[SMALL.width, SMALL.width], w)));
        g.output("y", products.reduce(|a, b| a + b).unwrap());
        let mut options = Options { safety: Safety::Off, ..Options::default() };
        options.optimize.no_rules = true;
        result(&Model::new(g.finish().unwrap(), options), &given, &[SMALL.width], 33)
    };
    assert_ne!(of(std::slice::from_ref(&all)), of(&[half(true), half(false)]));
}
