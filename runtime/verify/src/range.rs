//! Intermediate values that leave the range of their element type.
//!
//! In: a graph with its inputs. Out: whether an intermediate value leaves its range, and the
//! reference for the results in that case. Invariant: a result is excused only if its meaning is
//! finite, and only if its value is that meaning as a kernel computes it: in at least f32 and
//! rounded once.
//!
//! `rounds` only covers intermediate values that do not overflow. An f16 body that rounds every
//! step overflows at 65504. Its kernel, which computes in f32 between load and store, does not
//! overflow: the kernel is right in that case.

use std::cell::OnceCell;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::ScalarBody;

use super::differ::tolerance;
use super::noise::Noise;
use super::scatter::{FACTOR, Scatter, evaluate_exactly};
use hypatia_eval::{Mode, RefTensor, evaluate};
use hypatia_graph::constant_nodes;
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, NodeId, NodeKind, Value, builtin};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// The rounding of f32, in which kernels compute.
const NOISE: f64 = f32::EPSILON as f64;

/// True if an intermediate value is finite as a real number but not when rounded to its element
/// type.
pub fn leaves_range(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<bool> {
    Ok(lost(graph.inlined()?, inputs)?.contains(&true))
}

/// Like [`leaves_range`], but ignores constants that none of the first `roots` outputs needs, and
/// values computed from them: like the constants of a right side, they are computed before a run.
pub fn leaves_range_outside(graph: &Graph, inputs: &[(String, Tensor)], roots: usize) -> Result<bool> {
    let graph = graph.inlined()?;
    let left = needed_by(&graph, roots);
    let constant = constant_nodes(&graph);
    let operands: Vec<Vec<usize>> =
        graph.nodes.iter().map(|n| n.operands.iter().flatten().map(|v| v.node.index()).collect()).collect();
    let lost = lost(graph, inputs)?;
    // The first lost value on each path.
    let first = |i: usize| lost[i] && !operands[i].iter().any(|o| lost[*o]);
    Ok((0..lost.len()).any(|i| first(i) && (left[i] || !constant[i])))
}

/// Whether a cast that only the outputs behind the first `roots` need makes an infinity or NaN of a
/// number. What an op does inside, a kernel does in a wider type; a cast is one everywhere.
pub fn lost_by_cast(graph: &Graph, inputs: &[(String, Tensor)], roots: usize) -> Result<bool> {
    let left = needed_by(graph, roots);
    let is_cast = |i: usize| builtin(graph, &graph.nodes[i]) == Some(BuiltinOp::Cast);
    let casts: Vec<usize> = (0..left.len()).filter(|i| !left[*i] && is_cast(*i)).collect();
    let mut all = graph.clone();
    let ends = |i: &usize| {
        [graph.nodes[*i].operands.first().copied().flatten(), graph.results(NodeId(*i as u32)).first().copied()]
    };
    all.outputs = casts.iter().flat_map(ends).flatten().enumerate().map(|(i, v)| (format!("v{i}"), v)).collect();
    let values = evaluate(&all, inputs, Mode::Rounded)?;
    let lost = |pair: &[RefTensor]| match pair {
        [from, to] => from.to_f64().iter().zip(to.to_f64()).any(|(f, t)| f.is_finite() && !t.is_finite()),
        _ => false,
    };
    Ok(values.chunks(2).any(lost))
}

/// Whether a function or an op that only the outputs behind the first `roots` need gives an
/// infinity or NaN where its result is a finite number. What a defined op or an epilogue does
/// inside, a kernel does in a wider type.
pub fn lost_by_step(graph: &Graph, inputs: &[(String, Tensor)], roots: usize) -> Result<bool> {
    let left = needed_by(graph, roots);
    let lost = lost(graph.clone(), inputs)?;
    let is_step = |i: usize| match &graph.nodes[i].kind {
        NodeKind::Scalar(s) => matches!(graph.program.scalar(*s).body, ScalarBody::Builtin(_)),
        NodeKind::Op { term, .. } => term.is_none() && builtin(graph, &graph.nodes[i]).is_some(),
        NodeKind::Input { .. } | NodeKind::Const(_) => false,
    };
    let operands = |i: usize| graph.nodes[i].operands.iter().flatten().map(|v| v.node.index());
    Ok((0..lost.len()).any(|i| lost[i] && !left[i] && is_step(i) && !operands(i).any(|o| lost[o])))
}

/// For each node, whether one of the first `roots` outputs needs it.
fn needed_by(graph: &Graph, roots: usize) -> Vec<bool> {
    needed_for(graph, graph.outputs.iter().take(roots).map(|(_, v)| *v))
}

/// For each node, whether one of these values needs it.
pub fn needed_for(graph: &Graph, values: impl Iterator<Item = Value>) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    values.for_each(|v| needed[v.node.index()] = true);
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let all = needed[i];
        node.operands.iter().flatten().for_each(|v| needed[v.node.index()] |= all);
    }
    needed
}

/// For each node, whether one of its results is lost.
fn lost(mut graph: Graph, inputs: &[(String, Tensor)]) -> Result<Vec<bool>> {
    let values: Vec<_> = (0..graph.nodes.len()).flat_map(|i| graph.results(NodeId(i as u32))).collect();
    graph.outputs = values.iter().enumerate().map(|(i, v)| (format!("v{i}"), *v)).collect();
    let exact = evaluate(&graph, inputs, Mode::Exact)?;
    let rounded = evaluate(&graph, inputs, Mode::Rounded)?;
    let mut lost = vec![false; graph.nodes.len()];
    for (v, (e, r)) in values.iter().zip(exact.iter().zip(&rounded)) {
        let differ = || e.to_f64().iter().zip(r.to_f64()).any(|(e, r)| e.is_finite() && !r.is_finite());
        lost[v.node.index()] |= e.dtype.is_float() && differ();
    }
    Ok(lost)
}

/// The meaning of a graph: the reference for kernel results where the element types are too small.
pub struct Meaning<'a> {
    graph: &'a Graph,
    inputs: &'a [(String, Tensor)],
    exact: Vec<RefTensor>,
    overflow: OnceCell<bool>,
    scatter: OnceCell<Option<Scatter>>,
}

impl<'a> Meaning<'a> {
    /// Evaluates the graph.
    pub fn of(graph: &'a Graph, inputs: &'a [(String, Tensor)]) -> Result<Meaning<'a>> {
        let exact = evaluate_exactly(graph, &Numbers::new(), inputs)?;
        Ok(Meaning { graph, inputs, exact, overflow: OnceCell::new(), scatter: OnceCell::new() })
    }

    /// An element as a real number.
    pub fn at(&self, root: usize, index: usize) -> f64 {
        self.exact[root].at(index).f()
    }

    /// Whether `got` is right although it differs from the step-by-step rounded result. Where the
    /// element types are too small, it must be the meaning, computed in f32. Where terms cancel, it
    /// must be as close to the meaning as rounding the terms allows.
    pub fn excuses(&self, root: usize, index: usize, got: &RefTensor) -> bool {
        let (g, x) = (got.at(index).f(), self.at(root, index));
        if !x.is_finite() {
            return false;
        }
        let rounded = got.dtype.round(x);
        let scattered = || {
            let scatter = self
                .scatter
                .get_or_init(|| Scatter::run(self.graph, &Numbers::new(), self.inputs, Noise::of_results(NOISE)).ok());
            scatter.as_ref().map_or(0.0, |s| FACTOR * s.spread(root, index))
        };
        let near = tolerance(got.dtype, &self.exact[root].to_f64());
        let overflow = || *self.overflow.get_or_init(|| leaves_range(self.graph, self.inputs).unwrap_or(false));
        let plain = g == rounded || (g - rounded).abs() <= near;
        // If nothing overflows, a result that equals the exact meaning instead of the step-by-step
        // rounded result has skipped a rounding: a plan that dropped a cast of the graph must be
        // noticed.
        (plain && overflow()) || (!plain && (g - rounded).abs() <= near + scattered())
    }
}
