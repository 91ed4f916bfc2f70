//! Models of any depth, in the primitives that exporters write, for measuring the compiler's speed.
//!
//! In: a Program and a number of layers. Out: graphs. Invariant: every weight is a separate
//! constant, except for vectors that start out equal in a trained model too (scales of 1, biases of
//! 0), which exporters share. The memory of weights is allocated but never touched, apart from a
//! few numbers that distinguish the weights.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Graph;
use hypatia_graph::Value;
use hypatia_tensor::Tensor;

/// Sizes of a BERT encoder.
#[derive(Clone, Copy)]
pub struct Bert {
    /// Encoder layers.
    pub layers: usize,
    /// The number of sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub tokens: usize,
    /// Width.
    pub hidden: usize,
    /// Heads.
    pub heads: usize,
    /// Width of the hidden layer of the MLP.
    pub inner: usize,
}

impl Bert {
    /// BERT-base with this many layers, 8 sequences of 128 tokens.
    pub fn base(layers: usize) -> Bert {
        Bert { layers, batch: 8, tokens: 128, hidden: 768, heads: 12, inner: 3072 }
    }

    /// The encoder after the embeddings: the input is `hidden`, with an additive mask.
    pub fn graph(&self, program: &Arc<Program>) -> Graph {
        let Bert { batch, tokens, hidden, heads, .. } = *self;
        let mut m = Maker::new(program.clone());
        let mut x = m.input("hidden", &[batch, tokens, hidden]);
        let mask = m.input("mask", &[batch, 1, 1, tokens]);
        for _ in 0..self.layers {
            let q = m.linear(x, hidden, hidden);
            let k = m.linear(x, hidden, hidden);
            let v = m.linear(x, hidden, hidden);
            let split = [batch, tokens, heads, hidden / heads];
            let [q, k, v] = [q, k, v].map(|t| m.heads(t, &split));
            let context = m.attention(q, k, v, Some(mask), (hidden / heads) as f64);
            let context = m.join(context, &[batch, tokens, hidden]);
            let projected = m.linear(context, hidden, hidden);
            let sum = m.call("add", &[projected, x]);
            let normed = m.layer_norm(sum, hidden);
            let inner = m.linear(normed, hidden, self.inner);
            let inner = m.gelu(inner);
            let outer = m.linear(inner, self.inner, hidden);
            let sum = m.call("add", &[outer, normed]);
            x = m.layer_norm(sum, hidden);
        }
        m.finish(x)
    }
}

/// Sizes of a Llama decoder.
#[derive(Clone, Copy)]
pub struct Llama {
    /// Decoder layers.
    pub layers: usize,
    /// The number of sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub tokens: usize,
    /// Width.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub shared: usize,
    /// Width of the gate.
    pub inner: usize,
}

impl Llama {
    /// The shape of a Llama with this many layers: grouped heads, rotary embedding, SwiGLU, RMS
    /// norms.
    pub fn shaped(layers: usize) -> Llama {
        Llama { layers, batch: 1, tokens: 256, hidden: 2048, heads: 32, shared: 4, inner: 5632 }
    }

    /// The decoder after the embeddings: inputs `hidden`, the rotary tables, an additive mask.
    pub fn graph(&self, program: &Arc<Program>) -> Graph {
        let Llama { batch, tokens, hidden, heads, shared, inner, .. } = *self;
        let width = hidden / heads;
        let mut m = Maker::new(program.clone());
        let mut x = m.input("hidden", &[batch, tokens, hidden]);
        let mask = m.input("mask", &[batch, 1, tokens, tokens]);
        let tables = ["cos", "sin"].map(|name| m.input(name, &[1, 1, tokens, width]));
        for _ in 0..self.layers {
            let normed = m.rms_norm(x, hidden);
            let q = m.product(normed, hidden, hidden);
            let k = m.product(normed, hidden, shared * width);
            let v = m.product(normed, hidden, shared * width);
            let q = m.heads(q, &[batch, tokens, heads, width]);
            let [k, v] = [k, v].map(|t| m.heads(t, &[batch, tokens, shared, width]));
            let [q, k] = [q, k].map(|t| m.rotary(t, tables, width));
            let [k, v] = [k, v].map(|t| m.repeat(t, [batch, shared, tokens, width], heads / shared));
            let context = m.attention(q, k, v, Some(mask), width as f64);
            let context = m.join(context, &[batch, tokens, hidden]);
            let projected = m.product(context, hidden, hidden);
            x = m.call("add", &[x, projected]);
            let normed = m.rms_norm(x, hidden);
            let gate = m.product(normed, hidden, inner);
            let up = m.product(normed, hidden, inner);
            let sigmoid = m.call("sigmoid", &[gate]);
            let gate = m.call("mul", &[gate, sigmoid]);
            let both = m.call("mul", &[gate, up]);
            let down = m.product(both, inner, hidden);
            x = m.call("add", &[x, down]);
        }
        let out = m.rms_norm(x, hidden);
        m.finish(out)
    }
}

/// A graph builder.
struct Maker {
    graph: Graph,
    weights: u32,
}

impl Maker {
    fn new(program: Arc<Program>) -> Maker {
        Maker { graph: Graph::new(program), weights: 0 }
    }

    fn finish(mut self, out: Value) -> Graph {
        self.graph.output("out", out);
        self.graph
    }

    fn input(&mut self, name: &str, shape: &[usize]) -> Value {
        let shape = shape.iter().map(|d| Dim::from(*d as i64)).collect();
        self.graph.input(name, TensorType { dtype: DType::F32, shape })
    }

    fn with(&mut self, name: &str, operands: &[Value], attrs: &[(&str, AttrValue)]) -> Value {
        self.graph.call(name, operands, attrs).unwrap()[0]
    }

    fn call(&mut self, name: &str, operands: &[Value]) -> Value {
        self.with(name, operands, &[])
    }

    fn number(&mut self, value: f64) -> Value {
        self.graph.number(DType::F32, value).unwrap()
    }

    /// A weight that differs from all others in its first elements.
    fn weight(&mut self, shape: &[usize]) -> Value {
        self.weights += 1;
        let mut t = Tensor::zeros(DType::F32, shape).unwrap();
        let id = (self.weights as f32).to_le_bytes();
        t.bytes_mut()[..4].copy_from_slice(&id);
        self.graph.constant(t)
    }

    fn product(&mut self, x: Value, from: usize, to: usize) -> Value {
        let w = self.weight(&[from, to]);
        self.call("matmul", &[x, w])
    }

    fn linear(&mut self, x: Value, from: usize, to: usize) -> Value {
        let product = self.product(x, from, to);
        let b = self.weight(&[to]);
        self.call("add", &[product, b])
    }

    fn reshape(&mut self, x: Value, shape: &[usize]) -> Value {
        self.with("reshape", &[x], &[("shape", list(shape))])
    }

    fn transpose(&mut self, x: Value, perm: &[usize]) -> Value {
        self.with("transpose", &[x], &[("perm", list(perm))])
    }

    fn heads(&mut self, x: Value, shape: &[usize]) -> Value {
        let x = self.reshape(x, shape);
        self.transpose(x, &[0, 2, 1, 3])
    }

    fn join(&mut self, x: Value, shape: &[usize]) -> Value {
        let x = self.transpose(x, &[0, 2, 1, 3]);
        self.reshape(x, shape)
    }

    /// As PyTorch exports it: both operands are scaled by the fourth root of their width.
    fn attention(&mut self, q: Value, k: Value, v: Value, mask: Option<Value>, width: f64) -> Value {
        let scale = self.number(width.powf(-0.25));
        let k = self.transpose(k, &[0, 1, 3, 2]);
        let q = self.call("mul", &[q, scale]);
        let k = self.call("mul", &[k, scale]);
        let mut scores = self.call("matmul", &[q, k]);
        if let Some(mask) = mask {
            scores = self.call("add", &[scores, mask]);
        }
        let weights = self.with("softmax", &[scores], &[("axis", int(-1))]);
        let bad = self.call("isnan", &[weights]);
        let zero = self.number(0.0);
        let weights = self.call("select", &[bad, zero, weights]);
        self.call("matmul", &[weights, v])
    }

    fn mean(&mut self, x: Value) -> Value {
        self.with("mean", &[x], &[("axes", AttrValue::List(vec![int(-1)]))])
    }

    fn layer_norm(&mut self, x: Value, width: usize) -> Value {
        let mean = self.mean(x);
        let centred = self.call("sub", &[x, mean]);
        let two = self.number(2.0);
        let square = self.call("pow", &[centred, two]);
        let variance = self.mean(square);
        let eps = self.number(1e-12);
        let variance = self.call("add", &[variance, eps]);
        let deviation = self.call("sqrt", &[variance]);
        let normed = self.call("div", &[centred, deviation]);
        let (scale, shift) = (self.weight(&[width]), self.weight(&[width]));
        let scaled = self.call("mul", &[normed, scale]);
        self.call("add", &[scaled, shift])
    }

    fn rms_norm(&mut self, x: Value, width: usize) -> Value {
        let two = self.number(2.0);
        let square = self.call("pow", &[x, two]);
        let mean = self.mean(square);
        let eps = self.number(1e-5);
        let mean = self.call("add", &[mean, eps]);
        let root = self.call("sqrt", &[mean]);
        let recip = self.call("recip", &[root]);
        let normed = self.call("mul", &[x, recip]);
        let scale = self.weight(&[width]);
        self.call("mul", &[scale, normed])
    }

    fn gelu(&mut self, x: Value) -> Value {
        let [root, one, half] = [std::f64::consts::SQRT_2, 1.0, 0.5].map(|v| self.number(v));
        let scaled = self.call("div", &[x, root]);
        let erf = self.call("erf", &[scaled]);
        let sum = self.call("add", &[erf, one]);
        let product = self.call("mul", &[x, sum]);
        self.call("mul", &[product, half])
    }

    /// Rotates each half of a head by its position.
    fn rotary(&mut self, x: Value, [cos, sin]: [Value; 2], width: usize) -> Value {
        let mut half = |from: usize, to: usize| {
            let attrs = [("axis", int(-1)), ("start", int(from as i64)), ("stop", int(to as i64))];
            self.with("slice", &[x], &attrs)
        };
        let (low, high) = (half(0, width / 2), half(width / 2, width));
        let high = self.call("neg", &[high]);
        let turned = self.with("concat", &[high, low], &[("axis", int(-1))]);
        let straight = self.call("mul", &[x, cos]);
        let turned = self.call("mul", &[turned, sin]);
        self.call("add", &[straight, turned])
    }

    /// Repeats each head this many times, for the queries that share it.
    fn repeat(&mut self, x: Value, [batch, heads, tokens, width]: [usize; 4], times: usize) -> Value {
        let x = self.reshape(x, &[batch, heads, 1, tokens, width]);
        let x = self.with("expand", &[x], &[("shape", list(&[batch, heads, times, tokens, width]))]);
        self.reshape(x, &[batch, heads * times, tokens, width])
    }
}

fn int(v: i64) -> AttrValue {
    AttrValue::Dim(Dim::from(v))
}

fn list(values: &[usize]) -> AttrValue {
    AttrValue::List(values.iter().map(|v| int(*v as i64)).collect())
}
