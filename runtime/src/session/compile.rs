//! Makes the plan for some input shapes, and compares it with the unfused plan.
//!
//! In: a model and its inputs. Out: a [`Compiled`]. Invariant: unless safety is off, a plan without
//! a valid cached verdict is compared once on these inputs; if the results differ, a plan without
//! some rules is made that agrees, or else the unfused plan runs. The refusal names the rules.

use std::sync::{OnceLock, PoisonError};

use hypatia_graph::Graph;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Checked, Compiled, Planner, Precise, Refusal, Unfused};
use super::evidence::Evidence;
use super::reference::Reference;
use super::strict::Strict;
use super::{Model, Safety, shapes};
use crate::device::Device;
use crate::gpu::OnGpu;
use crate::verdict::{self, Subject, Verdict, VerdictEntry};

impl Model {
    /// Optimises, plans and compares.
    pub(super) fn compile_new(&self, inputs: &[(String, Tensor)], ordered: &[Tensor]) -> Result<Compiled> {
        let (gpu, judge) = (self.options.gpu.as_ref(), self.judge());
        let planner = self.planner(gpu.map_or_else(Device::cpu, |on| on.profile()), gpu);
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner).take();
        let early = early.filter(|a| {
            a.shapes == shapes(ordered) && a.optimize == self.options.optimize && a.plan == planner.options
        });
        let (graph, mut optimized, open, fused) = match early {
            Some(a) => (a.graph, a.optimized, None, Some(a.fused)),
            None => {
                let (graph, optimized, open) = self.optimized(inputs, &self.options.optimize)?;
                (graph, optimized, open, None)
            }
        };
        let (rules, check) = (!self.options.optimize.no_rules, self.options.safety != Safety::Off);
        // Looking up a verdict reads all weights: meanwhile, the plan that probably runs is made.
        let ((memory, kept), first) = std::thread::scope(|scope| {
            let looking = (rules && check).then(|| scope.spawn(|| self.recall(&graph, &optimized.graph)));
            let first = || planner.first(&graph, &optimized, open.as_ref(), &self.options.optimize);
            let first = fused.map_or_else(first, Ok);
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
                Some(Verdict::Differ(reason, without)) => judge.may_run_unfused(&reason).and_then(|()| {
                    let made = match without.is_empty() {
                        true => planner.plan(&graph, false, gpu)?,
                        false => {
                            let (executor, report) = judge.plan_without(&graph, &planner, &without)?;
                            optimized.report = report;
                            executor
                        }
                    };
                    Ok((made, Checked::Before, Some(Refusal { reason, without, saved: None })))
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
        let strict = (self.options.safety == Safety::Strict).then(|| Box::new(Strict::new(judge, memory.clone())));
        let compiled = Compiled { executor, unfused, report: optimized.report, refusal, checked, strict };
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
        let (gpu, judge) = (self.options.gpu.as_ref(), self.judge());
        let want = compiled.unfused()?.run(inputs)?;
        let widen = || {
            let once = gpu.map(OnGpu::untuned);
            let made = precise.and_then(|p| p.plan.clone());
            let plan = match (made, precise) {
                (Some(plan), _) => plan,
                (None, Some(p)) => planner.build(&p.graph, false)?,
                (None, None) if compiled.unfused.graph.computes_narrow() => {
                    planner.build(&compiled.unfused.graph.widened()?, false)?
                }
                (None, None) => return judge.in_f64(&compiled.unfused.graph, inputs),
            };
            planner.executor(plan, once.as_ref())?.run(inputs).map(Some)
        };
        let mut reference = Reference::new((&compiled.unfused, &compiled.report), inputs, &want, &widen);
        let got = compiled.executor.run(inputs)?;
        let Some(why) = judge.difference(&got, &mut reference)? else {
            compiled.checked = Checked::Now;
            memory.iter().for_each(|m| m.keep(&Verdict::Agree));
            return Ok(compiled);
        };
        let mended = judge.mended(&compiled, planner, &why, &mut reference)?;
        compiled.checked = Checked::Now;
        // A small graph is run on the host.
        let saves = self.options.incidents.is_some() && gpu.is_none();
        let evidence = saves.then(|| Evidence { judge: &judge, compiled: &compiled, inputs }.shown(&mended.refusal));
        let saved = evidence.and_then(|(_, saved)| saved);
        let Refusal { reason, without, .. } = mended.refusal;
        compiled.executor = mended.executor;
        compiled.report = mended.report.unwrap_or(compiled.report);
        memory.iter().for_each(|m| m.keep(&Verdict::Differ(reason.clone(), without.clone())));
        compiled.refusal = Some(Refusal { reason, without, saved });
        Ok(compiled)
    }

    /// The cache entry of the verdict on these graphs, if verdicts are cached, and the verdict if
    /// there is a valid one.
    fn recall(&self, given: &Graph, fused: &Graph) -> (Option<VerdictEntry>, Option<Verdict>) {
        let memory = self.memory(given, fused);
        let kept = memory.as_ref().filter(|_| !self.options.recheck).and_then(VerdictEntry::load);
        // Who wants to see what is wrong is not told what an earlier start has found.
        let kept = kept.filter(|v| *v == Verdict::Agree || self.options.incidents.is_none());
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
        // Other kernels run where products are checked.
        let strict = if self.options.safety == Safety::Strict && self.options.gpu.is_some() { " strict" } else { "" };
        let batches = if allowed.batch_invariant { " in any batch" } else { "" };
        let settings =
            format!("tf32 {} numerics {:?} without {disabled:?}{strict}{batches}", self.options.tf32, allowed.numerics);
        VerdictEntry::of(self.options.verdicts.as_ref()?, &Subject { given, fused, machine, settings })
    }
}
