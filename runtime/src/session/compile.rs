//! Makes the plan for some input shapes, and compares it with the unfused plan.
//!
//! In: a model and its inputs. Out: a [`Compiled`]. Invariant: in CHECK mode, a plan without a
//! valid cached verdict is compared once on these inputs; if the results differ, the unfused plan
//! runs, and the refusal names the rules that fired.

use std::collections::BTreeSet;
use std::sync::{OnceLock, PoisonError};

use hypatia_graph::Graph;
use hypatia_optimize::Report;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Checked, Compiled, Planner, Precise, Refusal, Unfused};
use super::{CheckMode, Model, shapes};
use crate::device::Device;
use crate::gpu::OnGpu;
use crate::verdict::{self, Subject, Verdict, VerdictEntry};
use hypatia_tensor::compare::{Comparison, no_less_precise};

impl Model {
    /// Optimises, plans and compares.
    pub(super) fn compile_new(&self, inputs: &[(String, Tensor)], ordered: &[Tensor]) -> Result<Compiled> {
        let gpu = self.options.gpu.as_ref();
        let planner = self.planner(gpu.map_or_else(Device::cpu, |on| on.profile()), gpu);
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner).take();
        let early = early.filter(|a| {
            a.shapes == shapes(ordered) && a.optimize == self.options.optimize && a.plan == planner.options
        });
        let (graph, optimized, fused) = match early {
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
                Some(Verdict::Differ(why)) => self.may_run_unfused(&why).and_then(|()| {
                    let refusal = Some(Refusal { reason: why });
                    planner.plan(&graph, false, gpu).map(|e| (e, Checked::Before, refusal))
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
        let why = self.difference(&compiled, inputs, || {
            let once = gpu.map(OnGpu::untuned);
            let made = precise.and_then(|p| p.plan.clone());
            let plan = match (made, precise) {
                (Some(plan), _) => plan,
                (None, Some(p)) => planner.build(&p.graph, false)?,
                (None, None) if compiled.unfused.graph.computes_narrow() => {
                    planner.build(&compiled.unfused.graph.widened()?, false)?
                }
                (None, None) => return self.in_f64(&compiled.unfused.graph, inputs),
            };
            planner.executor(plan, once.as_ref())?.run(inputs).map(Some)
        })?;
        let verdict = why.map_or(Verdict::Agree, |why| Verdict::Differ(describe(&why, &compiled.report)));
        if let Some(memory) = memory {
            memory.keep(&verdict);
        }
        compiled.checked = Checked::Now;
        if let Verdict::Differ(why) = verdict {
            self.may_run_unfused(&why)?;
            compiled.refusal = Some(Refusal { reason: why });
            compiled.executor = planner.plan(&compiled.unfused.graph, false, gpu)?;
        }
        Ok(compiled)
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
        compiled: &Compiled,
        inputs: &[Tensor],
        precise: impl Fn() -> Result<Option<Vec<Tensor>>>,
    ) -> Result<Option<Apart>> {
        let got = compiled.executor.run(inputs)?;
        let want = compiled.unfused()?.run(inputs)?;
        let mut reference = None;
        let outputs = self.graph.outputs.iter().zip(self.tolerances());
        for (i, (((name, _), tolerance), (g, w))) in outputs.zip(got.iter().zip(&want)).enumerate() {
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
