//! What results of a fused plan are judged by.
//!
//! In: the unfused plan's results, and its graph. Out: the same results in a wider type, and
//! results whose roundings were moved, each made when it is first asked for. Invariant: all are
//! results of the unfused graph on the same inputs.

use hypatia_graph::{Noisy, is_whole};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::compiled::Unfused;
use crate::gpu::OnGpu;

/// Runs with moved roundings: enough that the scatter of one element is known to a half.
const RUNS: u64 = 8;

/// Results of the unfused plan, and how far rounding takes them.
pub(super) struct Reference<'a> {
    /// What runs without rules.
    unfused: &'a Unfused,
    /// What it runs on.
    pub inputs: &'a [Tensor],
    /// Its results.
    pub want: &'a [Tensor],
    widen: &'a dyn Fn() -> Result<Option<Vec<Tensor>>>,
    precise: Option<Option<Vec<Tensor>>>,
    moved: Option<Vec<Vec<Tensor>>>,
}

impl<'a> Reference<'a> {
    /// `widen` runs the unfused graph in a wider type, if every op takes one.
    pub fn new(
        unfused: &'a Unfused,
        inputs: &'a [Tensor],
        want: &'a [Tensor],
        widen: &'a dyn Fn() -> Result<Option<Vec<Tensor>>>,
    ) -> Reference<'a> {
        Reference { unfused, inputs, want, widen, precise: None, moved: None }
    }

    /// The results in a wider type, if there is one.
    pub fn precise(&mut self) -> Result<Option<&Vec<Tensor>>> {
        if self.precise.is_none() {
            self.precise = Some((self.widen)()?);
        }
        Ok(self.precise.as_ref().and_then(Option::as_ref))
    }

    /// Results whose roundings were moved; none where the graph cannot be run so.
    pub fn moved(&mut self) -> &[Vec<Tensor>] {
        if self.moved.is_none() {
            // Without these runs the plans differ: what fails here is no reason to fail the run.
            self.moved = Some(self.noisy_runs().unwrap_or_default());
        }
        self.moved.as_deref().unwrap_or_default()
    }

    fn noisy_runs(&self) -> Result<Vec<Vec<Tensor>>> {
        let whole: Vec<bool> = self.inputs.iter().map(is_whole).collect();
        let Noisy { graph, noise } = self.unfused.graph.noisy(&whole)?;
        let planner = &self.unfused.planner;
        let executor = planner.plan(&graph, false, planner.gpu.as_ref().map(OnGpu::untuned).as_ref())?;
        let run = |seed: u64| {
            let mut inputs = self.inputs.to_vec();
            inputs.extend(noise.iter().enumerate().filter_map(|(i, dtype)| {
                let unit = if is_up(seed, i as u64) { dtype.epsilon() } else { -dtype.epsilon() };
                Tensor::from_f64(*dtype, &[], &[unit])
            }));
            executor.run(&inputs)
        };
        (0..RUNS).map(run).collect()
    }
}

/// The direction in which a run moves a rounding: one bit of a hash (SplitMix64).
fn is_up(run: u64, rounding: u64) -> bool {
    let mut z = (run << 32 | rounding).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) & 1 == 1
}
