//! How much of a difference rounding explains: the scatter of noisy runs.
//!
//! In: a graph, its inputs, and the size of one rounding error. Out: the results without rounding,
//! and how far noise moves each element. Invariant: the runs without noise evaluate the graph in
//! f64, with unrounded literals.

use std::collections::HashMap;

use super::noise::{Noise, noisy_graph, widened};
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::{OpBody, ScalarBody};
use hypatia_eval::{Mode, Number, RefTensor, evaluate, evaluate_in};
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, NodeId, NodeKind, Value};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// The number of noisy runs.
const RUNS: u64 = 12;
/// Below this, the rest of a number of twice the digits of f64 has few of them.
const LEAST: f64 = 1e-270;
/// Rounding explains a difference of up to this many times the scatter of the noisy runs.
pub(super) const FACTOR: f64 = 4.0;

/// Outputs of a graph as real numbers: floats in f64, literals unrounded.
pub(super) fn evaluate_exactly(
    graph: &Graph,
    numbers: &Numbers,
    inputs: &[(String, Tensor)],
) -> Result<Vec<RefTensor>> {
    exactly_in(graph, numbers, inputs)
}

/// The same in any kind of numbers.
pub(super) fn exactly_in<R: Number>(
    graph: &Graph,
    numbers: &Numbers,
    inputs: &[(String, Tensor)],
) -> Result<Vec<RefTensor<R>>> {
    evaluate_in(&noisy_graph(graph, numbers, Noise::default(), 0)?, &wide_inputs(inputs), Mode::Exact)
}

/// Whether a value is so small that even numbers of twice the digits of f64 lose them: their range
/// is that of f64.
pub(super) fn underflows(graph: &Graph, numbers: &Numbers, inputs: &[(String, Tensor)]) -> Result<bool> {
    let mut graph = noisy_graph(graph, numbers, Noise::default(), 0)?;
    let nodes = 0..graph.nodes.len();
    let values: Vec<Value> = nodes.flat_map(|i| graph.results(NodeId(i as u32))).collect();
    graph.outputs = values.iter().enumerate().map(|(i, v)| (format!("v{i}"), *v)).collect();
    let found: Vec<RefTensor> = evaluate(&graph, &wide_inputs(inputs), Mode::Exact)?;
    let zero = |v: &f64| *v == 0.0;
    let small = |v: &f64| *v != 0.0 && v.abs() < LEAST;
    Ok(values.iter().zip(&found).any(|(v, t)| {
        let numbers = t.to_f64();
        let vanished = |b: BuiltinScalar| {
            use BuiltinScalar::{Div, Exp, Mul, Pow};
            matches!(b, Mul | Div | Exp | Pow) && numbers.iter().any(zero)
        };
        let function = match &graph.node(v.node).kind {
            NodeKind::Scalar(s) => match graph.program.scalar(*s).body {
                ScalarBody::Builtin(b) => vanished(b),
                ScalarBody::Term(_) => false,
            },
            _ => false,
        };
        t.dtype.is_float() && (function || numbers.iter().any(small))
    }) || products_vanish(&graph, &values, &found, LEAST))
}

/// Whether a matrix product may lose a product of two elements that is smaller than this. `found`
/// are the elements of `values`, which are all values of the graph.
pub(super) fn products_vanish(graph: &Graph, values: &[Value], found: &[RefTensor], below: f64) -> bool {
    let places: HashMap<Value, usize> = values.iter().enumerate().map(|(i, v)| (*v, i)).collect();
    // The smallest magnitude of an operand, 0 apart.
    let least = |v: &Value| {
        let numbers = places.get(v).and_then(|i| found.get(*i)).map(RefTensor::to_f64).unwrap_or_default();
        numbers.into_iter().map(f64::abs).filter(|v| *v != 0.0).fold(f64::INFINITY, f64::min)
    };
    graph.nodes.iter().any(|node| match &node.kind {
        NodeKind::Op { op, .. } => {
            matches!(graph.program.op(*op).body, OpBody::Builtin(b) if b.multiplies())
                && node.operands.iter().flatten().take(2).map(least).product::<f64>() < below
        }
        _ => false,
    })
}

/// The inputs with floats converted to f64.
pub(super) fn wide_inputs(inputs: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    inputs.iter().map(|(n, t)| (n.clone(), widened(t))).collect()
}

/// Outputs of the noisy runs and of the run without noise.
pub(super) struct Scatter {
    quiet: Vec<Vec<f64>>,
    noisy: Vec<Vec<Vec<f64>>>,
}

impl Scatter {
    /// Runs the graph with noise of this size after every operation.
    pub(super) fn run(graph: &Graph, numbers: &Numbers, inputs: &[(String, Tensor)], noise: Noise) -> Result<Scatter> {
        let inputs = wide_inputs(inputs);
        let run = |noise: Noise, seed| -> Result<Vec<Vec<f64>>> {
            let g = noisy_graph(graph, numbers, noise, seed)?;
            Ok(evaluate(&g, &inputs, Mode::Exact)?.iter().map(RefTensor::to_f64).collect())
        };
        let quiet = run(Noise::default(), 0)?;
        let noisy = (1..=RUNS).map(|seed| run(noise, seed)).collect::<Result<_>>()?;
        Ok(Scatter { quiet, noisy })
    }

    /// The largest distance of a noisy run from the run without noise.
    pub(super) fn spread(&self, output: usize, index: usize) -> f64 {
        let at = |run: &[Vec<f64>]| run.get(output).and_then(|o| o.get(index)).copied().unwrap_or(0.0);
        let base = at(&self.quiet);
        let far = self.noisy.iter().map(|run| (at(run) - base).abs());
        far.fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
    }

    /// True if noise changes whether the element is finite.
    pub(super) fn unsteady(&self, output: usize, index: usize) -> bool {
        let at = |run: &[Vec<f64>]| run.get(output).and_then(|o| o.get(index)).copied().unwrap_or(0.0).is_finite();
        let base = at(&self.quiet);
        self.noisy.iter().any(|run| at(run) != base)
    }
}
