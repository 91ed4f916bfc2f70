//! Attention in a graph: a product, a softmax of its result, and a product with the values; and the
//! gradients of attention.
//!
//! In: the graph of an op's body, optimised. Out: what it multiplies, and the term of its scores;
//! `None` for any other graph. Invariant: nothing but the results reads scores, weights and their
//! gradients, so that none of these has to be stored.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::attention::{logsumexp_of, softmax_of};
use hypatia_dsl::scalar::{Term, prune};

use super::scores::{Scores, is_widening, product, untransposed};
use super::{Graph, Product, Value};

/// The parts of an attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Queries `[.., m, d]`, keys `[.., d, n]` and values `[.., n, e]`.
    pub factors: [Value; 3],
    /// What the scores' term reads; each broadcasts to `[.., m, n]`.
    pub reads: Vec<Value>,
    /// The score, from the product of a query and a key.
    pub term: Term,
    /// True if rows that the softmax makes NaN are 0.
    pub safe: bool,
    /// True if the log-sum-exp of each query's scores is a second result, `[.., m, 1]` in f32.
    pub lse: bool,
    /// What is stored of each element of the product with the values.
    pub finish: Term,
    /// What that term reads; each broadcasts to `[.., m, e]`. None if there is an `lse`.
    pub beside: Vec<Value>,
}

impl Attention {
    /// The attention whose results are a graph's.
    pub fn of(graph: &Graph) -> Option<Attention> {
        let ((_, out), further) = graph.outputs.split_first()?;
        let ([weights, values], beside, finish) = product(graph, *out)?;
        if finish != Product::plain() && (!further.is_empty() || finish.roots.len() != 1) {
            return None;
        }
        let mut scores = Scores::new(graph, 1);
        scores.hide(weights);
        // The kernel multiplies weights of the values' type, whatever type the softmax has.
        let made = match graph.node(weights.node).operands.first() {
            Some(Some(from)) if is_widening(graph, weights) && graph.ty(*from).dtype == DType::F32 => *from,
            _ => weights,
        };
        scores.hide(made);
        let (root, safe) = scores.of_rows(made, softmax_of)?;
        let lse = match further {
            [] => false,
            [(_, lse)] => scores.of_rows(*lse, logsumexp_of)? == (root, safe),
            _ => return None,
        };
        // What the result's term reads is no score and no weight: these are not stored.
        if beside.iter().any(|v| scores.hides(*v)) {
            return None;
        }
        let [[queries, keys]] = scores.products[..] else { return None };
        // Every axis of the scores comes from the product.
        let shape = &graph.ty(weights).shape;
        if lse == further.is_empty() || graph.ty(keys).shape.last() != shape.last() || !scores.is_closed(&graph.outputs)
        {
            return None;
        }
        let term = prune(&scores.terms.finish(vec![root]));
        let (factors, reads) = ([queries, keys, values], scores.reads);
        Some(Attention { factors, reads, term, safe, lse, finish, beside })
    }
}

/// The gradients of an attention.
#[derive(Clone, Debug)]
pub struct AttentionGrad {
    /// Queries `[.., m, d]`, keys `[.., n, d]`, values `[.., e, n]`, and the gradient of the result
    /// `[.., m, e]`.
    pub factors: [Value; 4],
    /// What the terms read; each broadcasts to `[.., m, n]`.
    pub reads: Vec<Value>,
    /// The weight of a query and a key, from their product.
    pub weight: Term,
    /// The gradient of that product, from it and from the second one, of gradient and value.
    pub slope: Term,
}

impl AttentionGrad {
    /// The gradients of queries, keys and values that are a graph's results.
    pub fn of(graph: &Graph) -> Option<AttentionGrad> {
        let [(_, dq), (_, dk), (_, dv)] = graph.outputs.as_slice() else { return None };
        let plain = |v: Value| product(graph, v).filter(|(_, beside, t)| beside.is_empty() && *t == Product::plain());
        let ([slopes, keys], ..) = plain(*dq)?;
        let ([turned_slopes, queries], ..) = plain(*dk)?;
        let ([turned_weights, dy], ..) = plain(*dv)?;
        let weights = untransposed(graph, turned_weights)?;
        let mut scores = Scores::new(graph, 2);
        [turned_slopes, turned_weights].into_iter().for_each(|v| scores.hide(v));
        let weight = scores.value(weights, 0)?;
        let slope = scores.value(slopes, 0)?;
        let [[q, kt], [d, values]] = scores.products[..] else { return None };
        let same = untransposed(graph, turned_slopes)? == slopes && untransposed(graph, kt)? == keys;
        if !same || (q, d) != (queries, dy) || !scores.is_closed(&graph.outputs) {
            return None;
        }
        let both = scores.terms.finish(vec![weight, slope]);
        let of = |root| prune(&Term { nodes: both.nodes.clone(), roots: vec![root] });
        let (weight, slope) = (of(weight), of(slope));
        Some(AttentionGrad { factors: [queries, keys, values, dy], reads: scores.reads, weight, slope })
    }
}
