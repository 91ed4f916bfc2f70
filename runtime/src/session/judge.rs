//! Judges results of a fused plan by those of the unfused one, and finds what to leave out.
//!
//! In: results of both plans. Out: how they differ, and a plan without the rules that make the
//! difference. Invariant: rounding alone is no difference; what is returned agrees.

use std::collections::BTreeSet;

use hypatia_dsl::ir::{Clause, Demand};
use hypatia_dsl::numerics::Allowed;
use hypatia_graph::Graph;
use hypatia_optimize as optimize;
use hypatia_optimize::Report;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_tensor::compare::{Comparison, Tolerance, is_noise, is_off_where_steady, no_less_precise};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Compiled, Planner, Refusal};
use super::reference::Reference;
use super::{Options, delta_debugging};
use crate::executor::Executor;

/// Plans that are tried without some rules where the first one differs.
const TRIES: usize = 12;
/// The same on a GPU, where each may compile kernels.
const TRIES_ON_A_GPU: usize = 4;

/// What results of a model are judged by.
pub(super) struct Judge {
    /// The settings.
    pub options: Options,
    /// Name and tolerance of each output.
    pub outputs: Vec<(String, Tolerance)>,
    /// Makes plans of the host.
    pub host: Planner,
}

/// A plan that agrees, in place of one that does not.
pub(super) struct Mended {
    /// What runs.
    pub executor: Executor,
    /// What the optimiser did; `None` if no rule takes part.
    pub report: Option<Report>,
    /// What is left out, and why.
    pub refusal: Refusal,
}

impl Judge {
    /// A plan without the rules that make the difference; the unfused plan if they are not found.
    pub fn mended(
        &self,
        compiled: &Compiled,
        planner: &Planner,
        why: &Apart,
        reference: &mut Reference<'_>,
    ) -> Result<Mended> {
        self.may_run_unfused(why.what())?;
        let (gpu, graph) = (self.options.gpu.as_ref(), &compiled.unfused.graph);
        let fired: BTreeSet<&String> = compiled.report.firings.iter().map(|f| &f.rule).collect();
        let fired: Vec<String> = fired.into_iter().cloned().collect();
        let tries = if gpu.is_some() { TRIES_ON_A_GPU } else { TRIES };
        let found = delta_debugging::without(&fired, tries, |out| {
            // What cannot be planned or run is no better.
            let Ok((executor, report)) = self.plan_without(graph, planner, out) else { return Ok(None) };
            let Ok(got) = executor.run(reference.inputs) else { return Ok(None) };
            Ok(self.difference(&got, reference)?.is_none().then_some((executor, report)))
        })?;
        Ok(match found {
            Some((without, (executor, report))) => {
                let refusal = Refusal { reason: describe_part(why, &without), without, saved: None };
                Mended { executor, report: Some(report), refusal }
            }
            None => {
                let refusal = Refusal { reason: describe(why, &compiled.report), without: Vec::new(), saved: None };
                Mended { executor: planner.plan(graph, false, gpu)?, report: None, refusal }
            }
        })
    }

    /// Fails if the contract demands rules, and some are left out.
    pub fn keeps_contract(&self, refusal: Option<&Refusal>) -> Result<()> {
        let must = |c: &&Clause| matches!(c.demand, Demand::Must { .. });
        let Some(clause) = self.options.optimize.contract.iter().find(must) else { return Ok(()) };
        let Some(refusal) = refusal else { return Ok(()) };
        Err(Error::Contract(format!("`{clause}` is not met, because {refusal}")))
    }

    /// The plan without these rules, and what the optimiser did. What the contract demands is not
    /// the question here.
    pub fn plan_without(&self, graph: &Graph, planner: &Planner, without: &[String]) -> Result<(Executor, Report)> {
        let mut disabled = self.options.optimize.allowed().disabled;
        disabled.extend(without.iter().cloned());
        let options = optimize::Options { disabled, contract: Vec::new(), ..self.options.optimize.clone() };
        let optimized = pipeline::optimize(graph, &options)?;
        let allowed = Allowed { disabled: options.disabled, ..planner.options.allowed.clone() };
        let planner = Planner { options: plan::Options { allowed, ..planner.options.clone() }, ..planner.clone() };
        Ok((planner.plan(&optimized.graph, true, planner.gpu.as_ref())?, optimized.report))
    }

    /// Fails if the unfused plan must not run in place of the fused one: the plans of other numbers
    /// of rows have other bits.
    pub fn may_run_unfused(&self, why: &str) -> Result<()> {
        match self.options.batch_invariant {
            true => Err(Error::Input(format!(
                "a batch-invariant plan is wrong, and the plan without rules would have other bits: {why}"
            ))),
            false => Ok(()),
        }
    }

    /// What the unfused graph gives in f64, on the CPU; nothing where an op does not take f64.
    pub fn in_f64(&self, graph: &Graph, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        let Ok(wide) = graph.in_f64() else { return Ok(None) };
        let plan = self.host.build(&wide, false)?;
        self.host.executor(plan, None)?.run(inputs).map(Some)
    }

    /// Describes how the results of the fused and the unfused plan differ, if they do. Where they
    /// are further apart than the tolerance, rounding may be the reason: where it meets a step or a
    /// steep function, or where terms cancel. So results count as equal too if they are about as
    /// near to those of a wider type as the unfused plan's are (but for elements that no moved
    /// rounding moves), or no further away than moved
    /// roundings, and errors that the rules claim, take the unfused plan's.
    pub fn difference(&self, got: &[Tensor], reference: &mut Reference<'_>) -> Result<Option<Apart>> {
        let outputs = self.outputs.iter().zip(got.iter().zip(reference.want));
        for (i, ((name, tolerance), (g, w))) in outputs.enumerate() {
            let c = Comparison::of(g, w, *tolerance)?;
            if c.ok {
                continue;
            }
            let precise = reference.precise()?.and_then(|r| r.get(i)).is_some_and(|t| no_less_precise(g, w, t));
            let moved: Vec<&Tensor> = reference.moved().iter().filter_map(|run| run.get(i)).collect();
            if precise && !is_off_where_steady(g, w, &moved, *tolerance) {
                continue;
            }
            if is_noise(g, w, &moved, *tolerance) {
                continue;
            }
            let claims = if reference.approximates() { ", which what the rules claim does not explain" } else { "" };
            let what = format!("output `{name}` {c}{claims}");
            let only_special = Comparison::of_finite(g, w, *tolerance)?.ok;
            return Ok(Some(Apart { output: name.clone(), what, only_special }));
        }
        Ok(None)
    }
}

/// How the results of two plans differ.
pub(super) struct Apart {
    /// The output.
    output: String,
    /// The output and its worst element, in words.
    what: String,
    /// True if they differ only where one of them is NaN or infinite.
    only_special: bool,
}

impl Apart {
    /// The output.
    pub fn output(&self) -> &str {
        &self.output
    }

    /// The output and its worst element, in words.
    pub fn what(&self) -> &str {
        &self.what
    }
}

/// Describes a difference that the plan without these rules does not have.
fn describe_part(why: &Apart, without: &[String]) -> String {
    let what = why.what();
    match (why.only_special, without.len() == 1) {
        (true, one) => {
            let (it, not_wrong) = if one { ("it", "it is not wrong") } else { ("them", "they are not wrong") };
            format!(
                "with {it}, {what}. All elements agree that are finite in both plans. Rules that round differently \
                 promise nothing about NaN and infinities, so {not_wrong}, only unused in this plan"
            )
        }
        (false, true) => format!("with it, {what}. It is probably wrong: `hypatia verify` tells"),
        (false, false) => {
            format!("with them, {what}. One of them is probably wrong: `hypatia verify` tells which")
        }
    }
}

/// Describes the difference and names the rules that may be wrong. A rule whose right side is a
/// part of its left side leaves no node of its own, so rules that fired without a trace in the
/// result are named too.
fn describe(why: &Apart, report: &Report) -> String {
    let what = why.what();
    if why.only_special {
        return format!(
            "{what}. All elements agree that are finite in both plans. Rules that round differently promise nothing \
             about NaN and infinities, so none is blamed; `--numerics exact` uses none of them"
        );
    }
    let named = |kept: bool| -> BTreeSet<&str> {
        report.firings.iter().filter(|f| f.kept == kept).map(|f| f.base.as_str()).collect()
    };
    let seen = named(true);
    let unseen: Vec<&str> = named(false).difference(&seen).copied().collect();
    let list = |rules: &[&str]| rules.join(", ");
    let seen: Vec<&str> = seen.into_iter().collect();
    let all = match (seen.is_empty(), unseen.is_empty()) {
        (_, true) => list(&seen),
        (true, _) => list(&unseen),
        _ => format!("{}; or one of these, which left no trace in the result: {}", list(&seen), list(&unseen)),
    };
    format!(
        "{what}. One of these rules is probably wrong, most likely one of your own: {all}. `hypatia verify` tells which"
    )
}
