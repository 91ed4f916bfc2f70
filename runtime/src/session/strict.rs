//! Strict runs: results that are checked, and mended where they are wrong.
//!
//! In: a compiled plan and inputs. Out: results, and an [`Incident`] for each thing that was wrong.
//! Invariant: what a comparison or a checksum has found wrong is never returned. Products mend
//! themselves (`hypatia-cpu`); a run whose results differ from the unfused plan's is repeated,
//! first by the same executor, then by a new one of the same plan, then without rules.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hypatia_plan::Plan;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Compiled, Refusal, Unfused};
use super::evidence::Evidence;
use super::incident::{Culprit, Incident, Watched};
use super::judge::{Apart, Judge};
use super::reference::Reference;
use crate::executor::{Executor, Finding, Found};
use crate::gpu::OnGpu;
use crate::verdict::{Verdict, VerdictEntry};

/// Incidents that are kept; later ones are dropped.
const MOST: usize = 100;
/// On a GPU, comparisons take at most one part in this many of the time.
const SHARE_ON_A_GPU: u32 = 50;

/// A run in a framework's memory that is to be compared, and what its checksums suspect.
pub struct Pending(Vec<Finding>);

/// What watches the runs of a plan.
pub(super) struct Strict {
    judge: Judge,
    memory: Option<VerdictEntry>,
    runs: AtomicU64,
    compared: AtomicU64,
    /// When the last comparison ended, and how long it took.
    last: Mutex<Option<(Instant, Duration)>>,
    /// Held by the thread that looks for what is wrong.
    mending: Mutex<()>,
    /// What runs in place of the plan that was compiled.
    instead: RwLock<Option<Arc<Executor>>>,
    /// Runs the unfused graph in f32, once that was needed.
    wide: OnceLock<Executor>,
    incidents: Mutex<Vec<Incident>>,
    /// Why no further run may succeed: a contract demands a rule that was found wrong.
    broken: OnceLock<String>,
}

impl Strict {
    pub fn new(judge: Judge, memory: Option<VerdictEntry>) -> Strict {
        let (runs, compared, last, mending, instead, incidents) = Default::default();
        let (wide, broken) = (OnceLock::new(), OnceLock::new());
        Strict { judge, memory, runs, compared, last, mending, instead, wide, incidents, broken }
    }

    pub fn incidents(&self) -> Vec<Incident> {
        self.incidents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn watched(&self) -> Watched {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Watched { runs: count(&self.runs), compared: count(&self.compared) }
    }

    fn report(&self, incident: Incident) {
        let mut all = self.incidents.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST {
            all.push(incident);
        }
    }

    /// True if this run is compared. On a GPU, the comparison on the host would take most of the
    /// time if it came as often as `compare_every` says.
    fn is_due(&self) -> bool {
        let (run, every) = (self.runs.fetch_add(1, Ordering::Relaxed), self.judge.options.compare_every);
        let due = every > 0 && run.is_multiple_of(every);
        if !due || every == 1 || self.judge.options.gpu.is_none() {
            return due;
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|(end, took)| end.elapsed() >= took * (SHARE_ON_A_GPU - 1))
    }

    /// What runs in place of the plan that was compiled.
    fn instead(&self) -> Option<Arc<Executor>> {
        self.instead.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keeps_contract(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |why| Err(Error::Contract(why.clone())))
    }

    /// Runs once, and compares if it is time to.
    pub fn run(&self, compiled: &Compiled, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.keeps_contract()?;
        let instead = self.instead();
        let executor = instead.as_deref().unwrap_or(&compiled.executor);
        let got = executor.run(inputs)?;
        let suspicions = self.note(executor);
        if !self.is_due() && suspicions.is_empty() {
            return Ok(got);
        }
        self.compare(compiled, executor, inputs, (got, &suspicions))
    }

    /// The same on memory that the caller holds.
    pub fn run_in_place(&self, compiled: &Compiled, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        self.keeps_contract()?;
        let instead = self.instead();
        let executor = instead.as_deref().unwrap_or(&compiled.executor);
        executor.run_in_place(inputs, outputs)?;
        let suspicions = self.note(executor);
        if !self.is_due() && suspicions.is_empty() {
            return Ok(());
        }
        let plan = executor.plan();
        let wrong = || Error::Internal("memory that ran is not as long as the plan says".into());
        let given = inputs.iter().zip(&plan.inputs).map(|(b, i)| Tensor::from_bytes(i.dtype, &i.shape, b));
        let given: Vec<Tensor> = given.collect::<Option<_>>().ok_or_else(wrong)?;
        let got = outputs.iter().zip(&plan.outputs).map(|(b, (_, v))| Tensor::from_bytes(v.dtype, &v.shape, b));
        let got: Vec<Tensor> = got.collect::<Option<_>>().ok_or_else(wrong)?;
        for (right, out) in self.compare(compiled, executor, &given, (got, &suspicions))?.iter().zip(outputs) {
            out.get_mut(..right.bytes().len()).ok_or_else(wrong)?.copy_from_slice(right.bytes());
        }
        Ok(())
    }

    /// Whether another executor runs in place of the one that was compiled.
    pub fn is_replaced(&self) -> bool {
        self.instead().is_some()
    }

    /// For a run of the executor that was compiled, in a framework's memory: what is to be judged.
    pub fn watch(&self, compiled: &Compiled) -> Result<Option<Pending>> {
        self.keeps_contract()?;
        let suspicions = self.note(&compiled.executor);
        Ok((self.is_due() || !suspicions.is_empty()).then_some(Pending(suspicions)))
    }

    /// The right results of that run.
    pub fn judged(
        &self,
        compiled: &Compiled,
        pending: &Pending,
        inputs: &[Tensor],
        got: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        self.compare(compiled, &compiled.executor, inputs, (got, &pending.0))
    }

    /// Reports what checksums have found, and returns what they only suspect.
    fn note(&self, executor: &Executor) -> Vec<Finding> {
        let mut suspicions = Vec::new();
        for finding in executor.findings() {
            match incident_of(&finding, executor.plan()) {
                Some(incident) => self.report(incident),
                None => suspicions.push(finding),
            }
        }
        suspicions
    }

    /// The right results: these, unless they differ from the unfused plan's. Products that
    /// checksums suspect are right if the results are.
    fn compare(
        &self,
        compiled: &Compiled,
        executor: &Executor,
        inputs: &[Tensor],
        (got, suspicions): (Vec<Tensor>, &[Finding]),
    ) -> Result<Vec<Tensor>> {
        let unfused = compiled.unfused()?;
        let begun = Instant::now();
        let want = unfused.run(inputs)?;
        self.compared.fetch_add(1, Ordering::Relaxed);
        self.note(unfused);
        let widen = || self.truth(compiled, inputs);
        let mut reference = Reference::new((&compiled.unfused, &compiled.report), inputs, &want, &widen);
        let difference = self.judge.difference(&got, &mut reference)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), begun.elapsed()));
        let Some(why) = difference else {
            suspicions.iter().for_each(|s| executor.accept(s));
            return Ok(got);
        };
        let suspected = suspicions.first().map(|s| executor.plan().step_name(s.step));
        self.mend(compiled, (executor, suspected), &why, &mut reference)
    }

    /// The right results of a run that differs, as `why` says, from the reference. Finds out what
    /// was wrong, reports it, and lets another executor run from now on if it was not a transient
    /// fault.
    fn mend(
        &self,
        compiled: &Compiled,
        (executor, suspected): (&Executor, Option<String>),
        why: &Apart,
        reference: &mut Reference<'_>,
    ) -> Result<Vec<Tensor>> {
        let inputs = reference.inputs;
        let _mending = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have mended the plan meanwhile.
        if let Some(newer) = self.instead().filter(|newer| !std::ptr::eq(newer.as_ref(), executor)) {
            let got = newer.run(inputs)?;
            self.note(&newer);
            let agrees = self.judge.difference(&got, reference)?.is_none();
            return Ok(if agrees { got } else { reference.want.to_vec() });
        }
        let again = executor.run(inputs)?;
        if self.judge.difference(&again, reference)?.is_none() {
            self.report(Incident::at_output(Culprit::Transient, why));
            return Ok(again);
        }
        // A new executor has new memory for constants and code.
        let planner = &compiled.unfused.planner;
        let fresh = planner.executor(executor.shared_plan(), planner.gpu.as_ref())?;
        let right = fresh.run(inputs)?;
        self.note(&fresh);
        if self.judge.difference(&right, reference)?.is_none() {
            let step = executor.first_difference(&fresh, inputs)?.or(suspected);
            let step = step.unwrap_or_else(|| why.output().to_string());
            self.report(Incident::at_output(Culprit::Kernel(step), why));
            self.replace(fresh);
            return Ok(right);
        }
        let mended = self.judge.mended(compiled, planner, why, reference)?;
        let (culprit, saved) = Evidence { judge: &self.judge, compiled, inputs }.shown(&mended.refusal);
        // Accumulators that are wrong are no rule's fault.
        let culprit = suspected.map_or(culprit, Culprit::Kernel);
        self.report(Incident { saved, ..Incident::at_output(culprit, why) });
        let Refusal { reason, without, .. } = &mended.refusal;
        self.memory.iter().for_each(|m| m.keep(&Verdict::Differ(reason.clone(), without.clone())));
        if let Err(Error::Contract(why)) = self.judge.keeps_contract(Some(&mended.refusal)) {
            let _ = self.broken.set(why);
        }
        self.keeps_contract()?;
        let right = mended.executor.run(inputs)?;
        self.replace(mended.executor);
        Ok(right)
    }

    /// What the unfused graph gives in a wider type: on a GPU in f32 if the graph is narrower.
    fn truth(&self, compiled: &Compiled, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        let Unfused { graph, planner, .. } = &compiled.unfused;
        let gpu = planner.gpu.as_ref().filter(|_| graph.computes_narrow()).map(OnGpu::untuned);
        if gpu.is_none() {
            return self.judge.in_f64(graph, inputs);
        }
        if self.wide.get().is_none() {
            let plan = planner.build(&graph.widened()?, false)?;
            let _ = self.wide.set(planner.executor(plan, gpu.as_ref())?);
        }
        self.wide.get().map(|wide| wide.run(inputs)).transpose()
    }

    fn replace(&self, executor: Executor) {
        *self.instead.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(executor));
    }
}

impl Incident {
    fn at_output(culprit: Culprit, why: &Apart) -> Incident {
        let place = format!("output `{}`", why.output());
        Incident { culprit, place, detail: why.what().to_string(), saved: None }
    }
}

/// What a checksum has found, in words; `None` for a suspicion.
fn incident_of(finding: &Finding, plan: &Plan) -> Option<Incident> {
    let name = plan.step_name(finding.step);
    let culprit = match finding.found {
        Found::Transient => Culprit::Transient,
        Found::Kernel => Culprit::Kernel(name.clone()),
        Found::Suspicion { .. } => return None,
    };
    Some(Incident {
        culprit,
        place: format!("the product of step `{name}`"),
        detail: finding.detail.clone(),
        saved: None,
    })
}
