//! Makes the plan for some input shapes, and compares it with the unfused plan.
//!
//! In: a model and its inputs. Out: a [`Compiled`]. Invariant: in CHECK mode, a plan without a
//! valid cached verdict is compared once on these inputs; if the results differ, a plan without
//! some rules is made that agrees, or else the unfused plan runs. The refusal names the rules.

use std::collections::BTreeSet;
use std::sync::{OnceLock, PoisonError};

use hypatia_dsl::numerics::Allowed;
use hypatia_graph::Graph;
use hypatia_optimize as optimize;
use hypatia_optimize::Report;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Checked, Compiled, Planner, Precise, Refusal, Unfused};
use super::{CheckMode, Model, part, shapes};
use crate::device::Device;
use crate::executor::Executor;
use crate::gpu::OnGpu;
use crate::verdict::{self, Subject, Verdict, VerdictEntry};
use hypatia_tensor::compare::{Comparison, no_less_precise};

/// Plans that are tried without some rules where the first one differs.
const TRIES: usize = 12;
/// The same on a GPU, where each may compile kernels.
const TRIES_ON_A_GPU: usize = 4;

impl Model {
    /// Optimises, plans and compares.
    pub(super) fn compile_new(&self, inputs: &[(String, Tensor)], ordered: &[Tensor]) -> Result<Compiled> {
        let gpu = self.options.gpu.as_ref();
        let planner = self.planner(gpu.map_or_else(Device::cpu, |on| on.profile()), gpu);
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner).take();
        let early = early.filter(|a| {
            a.shapes == shapes(ordered) && a.optimize == self.options.optimize && a.plan == planner.options
        });
        let (graph, mut optimized, fused) = match early {
            Some(a) => (a.graph, a.optimized, Some(a.fused)),
            None => {
                let (graph, optimized) = self.optimized(inputs, &self.options.optimize)?;
                (graph, optimized, None)
            }
        };
        let (rules, check) = (!self.options.optimize.no_rules, self.options.check == CheckMode::Check);
        // Looking up a verdict reads all weights: meanwhile, the plan that probably runs is made.
        let ((memory, kept), first) = std::thread::scope(|scope| {
            let looking = (rules && check).then(|| scope.spawn(|| self.recall(&graph, &optimized.graph)));
            let first = fused.map_or_else(|| planner.first(&graph, &optimized, &self.options.optimize), Ok);
            (looking.and_then(|l| l.join().ok()).unwrap_or_default(), first)
        });
        let compares = rules && check && kept.is_none();
        // On a GPU, the comparison probably needs the graph in f32, which takes long to compile.
        let narrow = compares && gpu.is_some() && graph.computes_narrow();
        let widened = narrow.then(|| graph.widened().ok()).flatten();
        // The plan that runs comes first: it may use the time for measuring. What it is compared
        // with is compiled meanwhile.
        let (made, [unfused, wide]) = std::thread::scope(|scope| {
            let others = [Some(&graph).filter(|_| compares), widened.as_ref()];
            let others = others.map(|g| g.filter(|_| gpu.is_some()).map(|g| scope.spawn(|| planner.compile_ahead(g))));
            let made = match kept {
                Some(Verdict::Differ(reason, without)) => self.may_run_unfused(&reason).and_then(|()| {
                    let made = match without.is_empty() {
                        true => planner.plan(&graph, false, gpu)?,
                        false => {
                            let (executor, report) = self.plan_without(&graph, &planner, &without)?;
                            optimized.report = report;
                            executor
                        }
                    };
                    Ok((made, Checked::Before, Some(Refusal { reason, without })))
                }),
                kept => {
                    let checked = if kept.is_some() { Checked::Before } else { Checked::Never };
                    first.and_then(|plan| planner.executor(plan, gpu)).map(|e| (e, checked, None))
                }
            };
            (made, others.map(|p| p.and_then(|p| p.join().ok().flatten())))
        });
        let (executor, checked, refusal) = made?;
        let unfused = Unfused { graph, planner: planner.clone(), plan: unfused, made: OnceLock::new() };
        let compiled = Compiled { executor, unfused, report: optimized.report, refusal, checked };
        if !rules || !check || checked == Checked::Before {
            return Ok(compiled);
        }
        let precise = widened.map(|graph| Precise { graph, plan: wide });
        self.compare(compiled, &planner, precise.as_ref(), ordered, memory.as_ref())
    }

    /// Compares a new fused plan with the unfused one and caches the verdict. If they differ, the
    /// unfused plan takes its place.
    fn compare(
        &self,
        mut compiled: Compiled,
        planner: &Planner,
        precise: Option<&Precise>,
        inputs: &[Tensor],
        memory: Option<&VerdictEntry>,
    ) -> Result<Compiled> {
        let gpu = self.options.gpu.as_ref();
        let want = compiled.unfused()?.run(inputs)?;
        let mut truth = None;
        let mut precise = || -> Result<Option<Vec<Tensor>>> {
            if let Some(known) = &truth {
                return Ok(Option::clone(known));
            }
            let once = gpu.map(OnGpu::untuned);
            let made = precise.and_then(|p| p.plan.clone());
            let plan = match (made, precise) {
                (Some(plan), _) => plan,
                (None, Some(p)) => planner.build(&p.graph, false)?,
                (None, None) if compiled.unfused.graph.computes_narrow() => {
                    planner.build(&compiled.unfused.graph.widened()?, false)?
                }
                (None, None) => {
                    return Ok(truth.insert(self.in_f64(&compiled.unfused.graph, inputs)?).clone());
                }
            };
            let known = planner.executor(plan, once.as_ref())?.run(inputs).map(Some)?;
            Ok(truth.insert(known).clone())
        };
        compiled.checked = Checked::Now;
        let Some(why) = self.difference(&compiled.executor.run(inputs)?, &want, &mut precise)? else {
            memory.iter().for_each(|m| m.keep(&Verdict::Agree));
            return Ok(compiled);
        };
        self.may_run_unfused(why.what())?;
        let graph = &compiled.unfused.graph;
        let fired: BTreeSet<&String> = compiled.report.firings.iter().map(|f| &f.rule).collect();
        let fired: Vec<String> = fired.into_iter().cloned().collect();
        let tries = if gpu.is_some() { TRIES_ON_A_GPU } else { TRIES };
        let part = part::without(&fired, tries, |out| {
            // What cannot be planned or run is no better.
            let Ok((executor, report)) = self.plan_without(graph, planner, out) else { return Ok(None) };
            let Ok(got) = executor.run(inputs) else { return Ok(None) };
            Ok(self.difference(&got, &want, &mut precise)?.is_none().then_some((executor, report)))
        })?;
        let (reason, without) = match part {
            Some((without, (executor, report))) => {
                (compiled.executor, compiled.report) = (executor, report);
                (describe_part(&why, &without), without)
            }
            None => {
                compiled.executor = planner.plan(graph, false, gpu)?;
                (describe(&why, &compiled.report), Vec::new())
            }
        };
        memory.iter().for_each(|m| m.keep(&Verdict::Differ(reason.clone(), without.clone())));
        compiled.refusal = Some(Refusal { reason, without });
        Ok(compiled)
    }

    /// The plan without these rules, and what the optimiser did. What the contract demands is not
    /// the question here.
    fn plan_without(&self, graph: &Graph, planner: &Planner, without: &[String]) -> Result<(Executor, Report)> {
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
    fn may_run_unfused(&self, why: &str) -> Result<()> {
        match self.options.batch_invariant {
            true => Err(Error::Input(format!(
                "a batch-invariant plan is wrong, and the plan without rules would have other bits: {why}"
            ))),
            false => Ok(()),
        }
    }

    /// What the unfused graph gives in f64, on the CPU; nothing where an op does not take f64.
    fn in_f64(&self, graph: &Graph, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        let Ok(wide) = graph.in_f64() else { return Ok(None) };
        let planner = self.planner(Device::cpu(), None);
        let plan = planner.build(&wide, false)?;
        planner.executor(plan, None)?.run(inputs).map(Some)
    }

    /// The cache entry of the verdict on these graphs, if verdicts are cached, and the verdict if
    /// there is a valid one.
    fn recall(&self, given: &Graph, fused: &Graph) -> (Option<VerdictEntry>, Option<Verdict>) {
        let memory = self.memory(given, fused);
        let kept = memory.as_ref().filter(|_| !self.options.recheck).and_then(VerdictEntry::load);
        (memory, kept)
    }

    /// The cache entry of the verdict on these graphs, if verdicts are cached.
    fn memory(&self, given: &Graph, fused: &Graph) -> Option<VerdictEntry> {
        let machine = match &self.options.gpu {
            None => verdict::host(self.options.threads),
            Some(on) => on.machine(),
        };
        // The graphs say what is computed, but not how products are rounded.
        let allowed = self.options.optimize.allowed();
        let mut disabled: Vec<&String> = allowed.disabled.iter().collect();
        disabled.sort();
        let settings = format!("tf32 {} numerics {:?} without {disabled:?}", self.options.tf32, allowed.numerics);
        VerdictEntry::of(self.options.verdicts.as_ref()?, &Subject { given, fused, machine, settings })
    }

    /// Describes how the results of the fused and the unfused plan differ, if they do. `precise`
    /// runs the unfused graph in a wider type: where rounding meets a step or a steep function,
    /// both plans may be far apart by rounding alone, if neither is further from that result than
    /// the other.
    fn difference(
        &self,
        got: &[Tensor],
        want: &[Tensor],
        precise: &mut impl FnMut() -> Result<Option<Vec<Tensor>>>,
    ) -> Result<Option<Apart>> {
        let mut reference = None;
        let outputs = self.graph.outputs.iter().zip(self.tolerances());
        for (i, (((name, _), tolerance), (g, w))) in outputs.zip(got.iter().zip(want)).enumerate() {
            let c = Comparison::of(g, w, tolerance)?;
            if c.ok {
                continue;
            }
            if reference.is_none() {
                reference = Some(precise()?);
            }
            let truth = reference.as_ref().and_then(|r| r.as_ref()).and_then(|r| r.get(i));
            if truth.is_some_and(|t| no_less_precise(g, w, t)) {
                continue;
            }
            let what = format!("output `{name}` {c}");
            let finite = Comparison::of_finite(g, w, tolerance)?.ok;
            return Ok(Some(if finite { Apart::NotFinite(what) } else { Apart::Numbers(what) }));
        }
        Ok(None)
    }
}

/// How the results of two plans differ.
enum Apart {
    /// In numbers.
    Numbers(String),
    /// Only where one of them is NaN or infinite.
    NotFinite(String),
}

impl Apart {
    fn what(&self) -> &str {
        let (Apart::Numbers(what) | Apart::NotFinite(what)) = self;
        what
    }
}

/// Describes a difference that the plan without these rules does not have.
fn describe_part(why: &Apart, without: &[String]) -> String {
    match why {
        Apart::NotFinite(what) => {
            format!(
                "with {}, {what}. All elements agree that are finite in both plans. Rules that round differently \
                 promise nothing about NaN and infinities, so none is blamed",
                if without.len() == 1 { "it" } else { "them" }
            )
        }
        Apart::Numbers(what) if without.len() == 1 => {
            format!("with it, {what}. It is probably wrong: `hypatia verify` tells")
        }
        Apart::Numbers(what) => {
            format!("with them, {what}. One of them is probably wrong: `hypatia verify` tells which")
        }
    }
}

/// Describes the difference and names the rules that may be wrong. A rule whose right side is a
/// part of its left side leaves no node of its own, so rules that fired without a trace in the
/// result are named too.
fn describe(why: &Apart, report: &Report) -> String {
    let why = match why {
        Apart::Numbers(why) => why,
        Apart::NotFinite(why) => {
            return format!(
                "{why}. All elements agree that are finite in both plans. Rules that round differently promise nothing \
                 about NaN and infinities, so none is blamed; `--numerics exact` uses none of them"
            );
        }
    };
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
        "{why}. One of these rules is probably wrong, most likely one of your own: {all}. `hypatia verify` tells which"
    )
}
