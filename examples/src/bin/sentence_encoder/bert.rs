//! BERT as formulas, with mean pooling and normalisation to length 1 at the end.

use std::sync::Arc;

use hypatia::graph::Var;
use hypatia::weights::Weights;
use hypatia::{DType, Error, Graph, GraphBuilder, Program, shape};

/// Sizes of a BERT encoder that do not follow from its weights.
pub struct Config {
    /// Layers.
    pub layers: usize,
    /// The hidden width.
    pub heads: i64,
    /// Width.
    pub hidden: i64,
    /// The epsilon that is added to variances.
    pub eps: f64,
}

impl Config {
    /// all-MiniLM-L6-v2.
    pub const MINI_LM: Config = Config { layers: 6, heads: 12, hidden: 384, eps: 1e-12 };
}

/// The encoder from `ids` and `mask` (1 for tokens, 0 for padding), both `[batch, tokens]`, to
/// `embeddings`.
pub fn encoder(program: Arc<Program>, weights: &Weights, config: &Config) -> Result<Graph, Error> {
    let g = GraphBuilder::new(program);
    let b = Bert { g: &g, weights, config };
    let ids = g.input("ids", DType::I64, shape!["batch", "tokens"]);
    let mask = g.input("mask", DType::F32, shape!["batch", "tokens"]);

    let positions = [("shape", shape!["tokens"].into()), ("axis", 0.into()), ("to", DType::I64.into())];
    let positions = g.call("iota", &[], &positions);
    let words = b.weight("embeddings.word_embeddings.weight")?.gather(ids, 0);
    let places = b.weight("embeddings.position_embeddings.weight")?.gather(positions, 0);
    let first = b.weight("embeddings.token_type_embeddings.weight")?.slice(0, 0, 1);
    let mut x = b.layer_norm(words + places + first, "embeddings.LayerNorm")?;

    // Padding gets no attention.
    let bias = ((mask - 1.0) * 1e9).reshape(shape!["batch", 1, 1, "tokens"]);
    for layer in 0..config.layers {
        x = b.layer(x, bias, &format!("encoder.layer.{layer}"))?;
    }

    // The mean over tokens, normalised to length 1: the published recipe.
    let mask = mask.reshape(shape!["batch", "tokens", 1]);
    let tokens = g.call("max", &[mask.sum(&[1], false), g.tensor(&[], &[1e-9f32])], &[]);
    let mean = (x * mask).sum(&[1], false) / tokens;
    let length = (mean * mean).sum(&[-1], true).sqrt();
    g.output("embeddings", mean / g.call("max", &[length, g.tensor(&[], &[1e-12f32])], &[]));
    g.finish()
}

struct Bert<'g> {
    g: &'g GraphBuilder,
    weights: &'g Weights,
    config: &'g Config,
}

impl<'g> Bert<'g> {
    fn weight(&self, name: &str) -> Result<Var<'g>, Error> {
        Ok(self.g.constant(self.weights.tensor(name)?).named(name))
    }

    fn linear(&self, x: Var<'g>, name: &str) -> Result<Var<'g>, Error> {
        let (w, b) = (self.weight(&format!("{name}.weight"))?, self.weight(&format!("{name}.bias"))?);
        Ok(self.g.call("linear", &[x, w, b], &[]).named(name))
    }

    fn layer_norm(&self, x: Var<'g>, name: &str) -> Result<Var<'g>, Error> {
        let (scale, shift) = (self.weight(&format!("{name}.weight"))?, self.weight(&format!("{name}.bias"))?);
        Ok(self.g.call("layer_norm", &[x, scale, shift], &[("eps", self.config.eps.into())]).named(name))
    }

    /// `[batch, tokens, hidden]` to `[batch, heads, tokens, width]`.
    fn heads(&self, x: Var<'g>) -> Var<'g> {
        let heads = self.config.heads;
        x.reshape(shape!["batch", "tokens", heads, self.config.hidden / heads]).transpose(&[0, 2, 1, 3])
    }

    fn layer(&self, x: Var<'g>, bias: Var<'g>, name: &str) -> Result<Var<'g>, Error> {
        let attention = format!("{name}.attention");
        let q = self.heads(self.linear(x, &format!("{attention}.self.query"))?);
        let k = self.heads(self.linear(x, &format!("{attention}.self.key"))?);
        let v = self.heads(self.linear(x, &format!("{attention}.self.value"))?);
        let width = (self.config.hidden / self.config.heads) as f64;
        let scores = q.matmul(k.transpose(&[0, 1, 3, 2])) / width.sqrt() + bias;
        let context = self.g.call("softmax", &[scores], &[]).matmul(v);
        let context = context.transpose(&[0, 2, 1, 3]).reshape(shape!["batch", "tokens", self.config.hidden]);
        let attended = self.linear(context, &format!("{attention}.output.dense"))?;
        let x = self.layer_norm(x + attended, &format!("{attention}.output.LayerNorm"))?;

        let inner = self.g.call("gelu", &[self.linear(x, &format!("{name}.intermediate.dense"))?], &[]);
        let outer = self.linear(inner, &format!("{name}.output.dense"))?;
        self.layer_norm(x + outer, &format!("{name}.output.LayerNorm"))
    }
}
