//! How much of a difference rounding explains: the scatter of noisy runs.
//!
//! In: a graph, its inputs, and the size of one rounding error. Out: the results without rounding,
//! and how far noise moves each element. Invariant: the runs without noise evaluate the graph in
//! f64, with unrounded literals.

use super::noise::{noisy_graph, widened};
use hypatia_eval::{Mode, Number, RefTensor, evaluate, evaluate_in};
use hypatia_graph::Graph;
use hypatia_graph::instantiate::Numbers;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// The number of noisy runs.
const RUNS: u64 = 12;
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
    evaluate_in(&noisy_graph(graph, numbers, 0.0, 0)?, &wide_inputs(inputs), Mode::Exact)
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
    pub(super) fn run(graph: &Graph, numbers: &Numbers, inputs: &[(String, Tensor)], noise: f64) -> Result<Scatter> {
        let inputs = wide_inputs(inputs);
        let run = |noise, seed| -> Result<Vec<Vec<f64>>> {
            let g = noisy_graph(graph, numbers, noise, seed)?;
            Ok(evaluate(&g, &inputs, Mode::Exact)?.iter().map(RefTensor::to_f64).collect())
        };
        let quiet = run(0.0, 0)?;
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
