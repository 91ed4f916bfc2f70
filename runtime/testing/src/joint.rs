//! Small networks of the kinds that people train, each with its loss and all gradients as one
//! graph; and how far results may be from the exact ones.
//!
//! In: the library's Program, an element type, whether sizes are multiples of 16. Out: graphs with
//! inputs, among which are all weights. Invariant: every weight has an influence on the loss.

use std::cell::RefCell;
use std::sync::Arc;

use crate::random::coarsest;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_graph::{Graph, GraphBuilder, Var, shape};
use hypatia_tensor::tensor::Tensor;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

/// A loss and gradients.
pub struct Joint {
    /// What it is.
    pub name: String,
    /// The loss, then the gradients of the weights.
    pub graph: Graph,
    /// Inputs and weights.
    pub inputs: Vec<(String, Tensor)>,
}

/// A network while it is built.
struct Network {
    g: GraphBuilder,
    dtype: DType,
    inputs: RefCell<Vec<(String, Tensor)>>,
    weights: RefCell<Vec<String>>,
    rng: RefCell<ChaCha8Rng>,
}

impl Network {
    fn new(program: &Arc<Program>, dtype: DType) -> Network {
        let rng = RefCell::new(ChaCha8Rng::seed_from_u64(11));
        let (inputs, weights) = Default::default();
        Network { g: GraphBuilder::new(program.clone()), dtype, inputs, weights, rng }
    }

    /// An input of numbers around `centre`.
    fn numbers(&self, name: &str, shape: &[usize], centre: f64, spread: f64) -> Var<'_> {
        let mut rng = self.rng.borrow_mut();
        let values: Vec<f64> =
            (0..shape.iter().product()).map(|_| centre + rng.random_range(-spread..spread)).collect();
        let tensor = Tensor::from_f64(self.dtype, shape, &values).unwrap();
        self.inputs.borrow_mut().push((name.to_string(), tensor));
        self.g.input(name, self.dtype, shape.iter().map(|n| (*n as i64).into()).collect())
    }

    fn input(&self, name: &str, shape: &[usize]) -> Var<'_> {
        self.numbers(name, shape, 0.0, 1.0)
    }

    /// A weight whose products have about the size of their operand.
    fn weight(&self, name: &str, shape: &[usize]) -> Var<'_> {
        self.weights.borrow_mut().push(name.to_string());
        let terms = if shape.len() == 1 { 3 } else { shape[..shape.len() - 1].iter().product() };
        let centre = if name.contains("scale") { 1.0 } else { 0.0 };
        self.numbers(name, shape, centre, (3.0 / terms as f64).sqrt())
    }

    /// Whole numbers below `upto`.
    fn whole(&self, name: &str, shape: &[usize], upto: i64) -> Var<'_> {
        let mut rng = self.rng.borrow_mut();
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| rng.random_range(0..upto)).collect();
        self.inputs.borrow_mut().push((name.to_string(), Tensor::from_slice(shape, &values).unwrap()));
        self.g.input(name, DType::I64, shape.iter().map(|n| (*n as i64).into()).collect())
    }

    /// `x w + b`
    fn dense<'g>(&'g self, name: &str, x: Var<'g>, [from, to]: [usize; 2]) -> Var<'g> {
        x.matmul(self.weight(&format!("{name}.w"), &[from, to])) + self.weight(&format!("{name}.b"), &[to])
    }

    /// The loss of a classifier, and the graph with its gradients.
    fn classify(self, name: String, build: impl for<'g> Fn(&'g Network) -> (Var<'g>, usize, usize)) -> Joint {
        let (logits, rows, classes) = build(&self);
        let labels = self.whole("labels", &[rows], classes as i64).reshape(shape![rows, 1]);
        let logits = logits.cast(if self.dtype == DType::F64 { DType::F64 } else { DType::F32 });
        let likely = self.g.call("log_softmax", &[logits], &[("axis", 1.into())]);
        let picked = self.g.call("gather_elements", &[likely, labels], &[("axis", 1.into())]);
        self.g.output("loss", -picked.mean(&[0, 1], false));
        let weights = self.weights.take();
        let names: Vec<&str> = weights.iter().map(String::as_str).collect();
        let graph = self.g.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
        let graph = graph.grad("loss", &names).unwrap_or_else(|e| panic!("{name}: {e}"));
        Joint { name, graph, inputs: self.inputs.take() }
    }
}

/// All networks.
pub fn networks(program: &Arc<Program>, dtype: DType, even: bool) -> Vec<Joint> {
    let mut all = Vec::new();
    let kind = if even { "even" } else { "ragged" };
    for activation in ["relu", "gelu", "gelu_tanh", "silu", "softplus"] {
        let n = Network::new(program, dtype);
        all.push(n.classify(format!("perceptron with {activation}, {dtype}, {kind}"), |n| {
            let (rows, w) = if even { (64, [64, 128, 64, 16]) } else { (37, [23, 45, 30, 10]) };
            let mut h = n.input("x", &[rows, w[0]]);
            for i in 0..3 {
                h = if i == 0 { h } else { n.g.call(activation, &[h], &[]) };
                h = n.dense(&format!("l{i}"), h, [w[i], w[i + 1]]);
            }
            (h, rows, w[3])
        }));
    }
    let sizes =
        if even { Sizes { b: 2, s: 32, w: 64, heads: 4, v: 48 } } else { Sizes { b: 3, s: 7, w: 30, heads: 3, v: 17 } };
    for modern in [false, true] {
        let style = if modern { "RMS norm, SwiGLU" } else { "layer norm, GELU" };
        let n = Network::new(program, dtype);
        all.push(n.classify(format!("transformer, {style}, {dtype}, {kind}"), |n| transformer(n, sizes, modern)));
    }
    let n = Network::new(program, dtype);
    all.push(n.classify(format!("convolutions, {dtype}, {kind}"), |n| {
        let (b, c, side) = if even { (4, 16, 16) } else { (3, 5, 9) };
        let pads: AttrValue = [1i64, 1][..].into();
        let ones: AttrValue = [1i64, 1][..].into();
        let conv = |name: &str, x, to: usize, from: usize, stride: i64| {
            let w = n.weight(name, &[to, from, 3, 3]);
            let strides: AttrValue = [stride, stride][..].into();
            let attrs = [("strides", strides), ("before", pads.clone()), ("after", pads.clone())];
            let attrs = [attrs.to_vec(), vec![("dilations", ones.clone()), ("groups", 1.into())]].concat();
            n.g.call("conv", &[x, w], &attrs)
        };
        let x = n.input("x", &[b, 3, side, side]);
        let h = n.g.call("relu", &[conv("first", x, c, 3, 1)], &[]);
        let h = n.g.call("silu", &[conv("second", h, c, c, 2)], &[]);
        (n.dense("head", h.mean(&[2, 3], false), [c, 10]), b, 10)
    }));
    all
}

#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    s: usize,
    w: usize,
    heads: usize,
    v: usize,
}

/// A decoder of one block over words.
fn transformer(n: &Network, Sizes { b, s, w, heads, v }: Sizes, modern: bool) -> (Var<'_>, usize, usize) {
    let d = w / heads;
    let norm = |name: &str, x| match modern {
        true => n.g.call("rms_norm", &[x, n.weight(&format!("{name}.scale"), &[w])], &[]),
        false => {
            let (scale, bias) = (n.weight(&format!("{name}.scale"), &[w]), n.weight(&format!("{name}.bias"), &[w]));
            n.g.call("layer_norm", &[x, scale, bias], &[])
        }
    };
    let words = n.whole("words", &[b, s], v as i64);
    let x = n.weight("embedding", &[v, w]).gather(words, 0);
    let h = norm("before", x);
    let split = |name: &str| {
        let y = n.dense(name, h, [w, w]).reshape(shape![b, s, heads, d]);
        y.transpose(&[0, 2, 1, 3])
    };
    let (q, k, values) = (split("q"), split("k"), split("v"));
    let hidden: Vec<f64> = (0..s * s).map(|i| if i % s > i / s { -1e4 } else { 0.0 }).collect();
    let mask = n.g.constant(Tensor::from_f64(n.dtype, &[s, s], &hidden).unwrap());
    let scale = AttrValue::Float((d as f64).powf(-0.5));
    let y = n.g.call("attention", &[q, k, values, mask], &[("scale", scale)]);
    let y = y.transpose(&[0, 2, 1, 3]).reshape(shape![b, s, w]);
    let x = x + n.dense("out", y, [w, w]);
    let h = norm("behind", x);
    let h = match modern {
        true => n.g.call("silu", &[n.dense("gate", h, [w, 2 * w])], &[]) * n.dense("up", h, [w, 2 * w]),
        false => n.g.call("gelu", &[n.dense("up", h, [w, 2 * w])], &[]),
    };
    let x = x + n.dense("down", h, [2 * w, w]);
    (n.dense("head", x, [w, v]).reshape(shape![b * s, v]), b * s, v)
}

/// Asserts that results are as near to the exact ones as those that round every step and every
/// partial sum, by norms: 1.5 times their distance, and four units of the graph's narrowest type,
/// as a ReLU's slope jumps where its operand is rounded to the other side of 0.
pub fn assert_near(joint: &Joint, got: &[Tensor], rounded: &[Vec<f64>], exact: &[Vec<f64>]) {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let epsilon = coarsest(&joint.graph);
    let whole = exact[1..].iter().map(|e| norm(&mut e.iter().copied())).fold(0.0, f64::max);
    for (i, (name, _)) in joint.graph.outputs.iter().enumerate() {
        let far = |values: &[f64]| norm(&mut values.iter().zip(&exact[i]).map(|(a, b)| a - b));
        let size = norm(&mut exact[i].iter().copied()).max(1e-3 * whole);
        let values = got[i].to_f64();
        assert_eq!(values.len(), exact[i].len(), "{}: {name}", joint.name);
        let (found, allowed) = (far(&values), 1.5 * far(&rounded[i]) + 4.0 * epsilon * size);
        assert!(found <= allowed, "{}: {name} is off by {found:e}, {allowed:e} allowed, of {size:e}", joint.name);
    }
}
