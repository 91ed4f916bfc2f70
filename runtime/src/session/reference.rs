//! What results of a fused plan are judged by.
//!
//! In: the unfused plan's results, its graph, and what the rules that fired claim of their errors.
//! Out: the same results in a wider type, and results whose roundings were moved, and moved by the
//! claimed errors, each made when it is first asked for. Invariant: all are results of the unfused
//! graph on the same inputs.

use std::collections::BTreeMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, Rule};
use hypatia_graph::{ClaimedError, Graph, Node, NodeId, NodeKind, Noise, Noisy, is_whole};
use hypatia_optimize::Report;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::compiled::Unfused;
use crate::gpu::OnGpu;

/// Runs with moved roundings: enough that the scatter of one element is known to a half. In the
/// second half of them, all errors of one claim have one sign.
const RUNS: u64 = 8;

/// Results of the unfused plan, and how far rounding takes them.
pub(super) struct Reference<'a> {
    /// What runs without rules.
    unfused: &'a Unfused,
    /// What it runs on.
    pub inputs: &'a [Tensor],
    /// Its results.
    pub want: &'a [Tensor],
    /// What the rules that fired claim of their errors, where it is more than rounding.
    errors: Vec<ClaimedError>,
    widen: &'a dyn Fn() -> Result<Option<Vec<Tensor>>>,
    precise: Option<Option<Vec<Tensor>>>,
    moved: Option<Vec<Vec<Tensor>>>,
}

impl<'a> Reference<'a> {
    /// `widen` runs the unfused graph in a wider type, if every op takes one. The report is the
    /// fused plan's.
    pub fn new(
        (unfused, report): (&'a Unfused, &Report),
        inputs: &'a [Tensor],
        want: &'a [Tensor],
        widen: &'a dyn Fn() -> Result<Option<Vec<Tensor>>>,
    ) -> Reference<'a> {
        let errors = claimed_errors(&unfused.graph, report);
        Reference { unfused, inputs, want, errors, widen, precise: None, moved: None }
    }

    /// True if rules take part that claim an error larger than rounding.
    pub fn approximates(&self) -> bool {
        !self.errors.is_empty()
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
        let Noisy { graph, noise } = self.unfused.graph.noisy(&whole, &self.errors)?;
        let planner = &self.unfused.planner;
        let executor = planner.plan(&graph, false, planner.gpu.as_ref().map(OnGpu::untuned).as_ref())?;
        let run = |seed: u64| {
            let mut inputs = self.inputs.to_vec();
            inputs.extend(noise.iter().enumerate().filter_map(|(i, Noise { dtype, most, claim })| {
                let together = claim.filter(|_| seed >= RUNS / 2).map(|claim| noise.len() + claim);
                let up = is_up(seed, together.unwrap_or(i) as u64);
                Tensor::from_f64(*dtype, &[], &[if up { *most } else { -most }])
            }));
            executor.run(&inputs)
        };
        (0..RUNS).map(run).collect()
    }
}

/// What rules that fired claim of their errors at the nodes of the unfused graph, where it is more
/// than rounding. A rule whose place has no name there, inside an epilogue for example, may have
/// fired at any node.
fn claimed_errors(graph: &Graph, report: &Report) -> Vec<ClaimedError> {
    let mut at: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for firing in &report.firings {
        at.entry(&firing.rule).or_default().extend(firing.nodes.iter().map(String::as_str));
        if firing.nodes.is_empty() {
            at.entry(&firing.rule).or_default().push("");
        }
    }
    let computes = |node: &Node| matches!(node.kind, NodeKind::Scalar(_) | NodeKind::Op { .. });
    let mut errors = Vec::new();
    for (claim, rule) in graph.program.rules.iter().enumerate() {
        let Some(nodes) = at.get(rule.name.as_str()) else { continue };
        let anywhere = nodes.iter().any(|name| name.is_empty() || graph.nodes.iter().all(|n| n.name != *name));
        for (i, node) in graph.nodes.iter().enumerate() {
            let here = computes(node) && (anywhere || nodes.contains(&node.name.as_str()));
            let Some((rel, abs)) = node.results.first().filter(|_| here).and_then(|ty| approximation(rule, ty.dtype))
            else {
                continue;
            };
            errors.push(ClaimedError { node: NodeId(i as u32), rel, abs, claim });
        }
    }
    errors
}

/// The relative and absolute error that a rule claims for that type, if it claims an approximation.
fn approximation(rule: &Rule, dtype: DType) -> Option<(f64, f64)> {
    let claim = rule.claims.iter().find(|c| c.dtypes.is_empty() || c.dtypes.contains(&dtype));
    match claim.map(|c| c.class) {
        Some(Class::Approx { rel, abs }) => Some((rel, abs)),
        _ => None,
    }
}

/// The direction in which a run moves a rounding: one bit of a hash (SplitMix64).
fn is_up(run: u64, rounding: u64) -> bool {
    let mut z = (run << 32 | rounding).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) & 1 == 1
}
