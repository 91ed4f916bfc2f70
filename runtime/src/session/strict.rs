//! Strict runs: results that are checked, and mended where they are wrong.
//!
//! In: a compiled plan and inputs. Out: results, and an [`Incident`] for each thing that was wrong.
//! Invariant: what a comparison or a checksum has found wrong is never returned. Products mend
//! themselves (`hypatia-cpu`); a run whose results differ from the unfused plan's is repeated,
//! first by the same executor, then by a new one of the same plan, then without rules.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use hypatia_cpu::{Cause, Mismatch};
use hypatia_plan::Plan;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Compiled, Refusal};
use super::evidence::Evidence;
use super::incident::{Culprit, Incident, Watched};
use super::judge::{Apart, Judge};
use crate::executor::Executor;
use crate::verdict::{Verdict, VerdictEntry};

/// Incidents that are kept; later ones are dropped.
const MOST: usize = 100;

/// What watches the runs of a plan.
pub(super) struct Strict {
    judge: Judge,
    memory: Option<VerdictEntry>,
    runs: AtomicU64,
    compared: AtomicU64,
    /// Held by the thread that looks for what is wrong.
    mending: Mutex<()>,
    /// What runs in place of the plan that was compiled.
    instead: RwLock<Option<Arc<Executor>>>,
    incidents: Mutex<Vec<Incident>>,
    /// Why no further run may succeed: a contract demands a rule that was found wrong.
    broken: OnceLock<String>,
}

impl Strict {
    pub fn new(judge: Judge, memory: Option<VerdictEntry>) -> Strict {
        let (runs, compared, mending, instead, incidents) = Default::default();
        Strict { judge, memory, runs, compared, mending, instead, incidents, broken: OnceLock::new() }
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

    /// True if this run is compared.
    fn is_due(&self) -> bool {
        let (run, every) = (self.runs.fetch_add(1, Ordering::Relaxed), self.judge.options.compare_every);
        every > 0 && run.is_multiple_of(every)
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
        self.note(executor);
        if !self.is_due() {
            return Ok(got);
        }
        self.compare(compiled, executor, inputs, got)
    }

    /// The same on memory that the caller holds.
    pub fn run_in_place(&self, compiled: &Compiled, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        self.keeps_contract()?;
        let instead = self.instead();
        let executor = instead.as_deref().unwrap_or(&compiled.executor);
        executor.run_in_place(inputs, outputs)?;
        self.note(executor);
        if !self.is_due() {
            return Ok(());
        }
        let plan = executor.plan();
        let wrong = || Error::Internal("memory that ran is not as long as the plan says".into());
        let given = inputs.iter().zip(&plan.inputs).map(|(b, i)| Tensor::from_bytes(i.dtype, &i.shape, b));
        let given: Vec<Tensor> = given.collect::<Option<_>>().ok_or_else(wrong)?;
        let got = outputs.iter().zip(&plan.outputs).map(|(b, (_, v))| Tensor::from_bytes(v.dtype, &v.shape, b));
        let got: Vec<Tensor> = got.collect::<Option<_>>().ok_or_else(wrong)?;
        for (right, out) in self.compare(compiled, executor, &given, got)?.iter().zip(outputs) {
            out.get_mut(..right.bytes().len()).ok_or_else(wrong)?.copy_from_slice(right.bytes());
        }
        Ok(())
    }

    /// Notes what checksums have found.
    fn note(&self, executor: &Executor) {
        executor.mismatches().iter().for_each(|m| self.report(incident_of(m, executor.plan())));
    }

    /// The right results: these, unless they differ from the unfused plan's.
    fn compare(
        &self,
        compiled: &Compiled,
        executor: &Executor,
        inputs: &[Tensor],
        got: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let unfused = compiled.unfused()?;
        let want = unfused.run(inputs)?;
        self.compared.fetch_add(1, Ordering::Relaxed);
        self.note(unfused);
        let truth = OnceLock::new();
        let mut precise = || -> Result<Option<Vec<Tensor>>> {
            if truth.get().is_none() {
                let _ = truth.set(self.judge.in_f64(&compiled.unfused.graph, inputs)?);
            }
            Ok(truth.get().cloned().flatten())
        };
        let Some(why) = self.judge.difference(&got, &want, &mut precise)? else { return Ok(got) };
        let _mending = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have mended the plan meanwhile.
        if let Some(newer) = self.instead().filter(|newer| !std::ptr::eq(newer.as_ref(), executor)) {
            let got = newer.run(inputs)?;
            self.note(&newer);
            return Ok(if self.judge.difference(&got, &want, &mut precise)?.is_none() { got } else { want });
        }
        let again = executor.run(inputs)?;
        if self.judge.difference(&again, &want, &mut precise)?.is_none() {
            self.report(Incident::at_output(Culprit::Transient, &why));
            return Ok(again);
        }
        // A new executor has new memory for constants and code.
        let planner = &compiled.unfused.planner;
        let fresh = planner.executor(executor.shared_plan(), None)?;
        let right = fresh.run(inputs)?;
        if self.judge.difference(&right, &want, &mut precise)?.is_none() {
            let step = executor.first_difference(&fresh, inputs)?.unwrap_or_else(|| why.output().to_string());
            self.report(Incident::at_output(Culprit::Kernel(step), &why));
            self.replace(fresh);
            return Ok(right);
        }
        let mended = self.judge.mended(compiled, planner, &why, inputs, (&want, &mut precise))?;
        let (culprit, saved) = Evidence { judge: &self.judge, compiled, inputs }.shown(&mended.refusal);
        self.report(Incident { saved, ..Incident::at_output(culprit, &why) });
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

/// What a checksum has found, in words.
fn incident_of(mismatch: &Mismatch, plan: &Plan) -> Incident {
    let name = plan.steps.get(mismatch.step).map_or("", |s| s.name.as_str());
    let detail =
        format!("element {} was {:e} before the epilogue, not {:e}", mismatch.element, mismatch.got, mismatch.want);
    let culprit = match mismatch.cause {
        Cause::Transient => Culprit::Transient,
        Cause::Kernel => Culprit::Kernel(name.to_string()),
    };
    Incident { culprit, place: format!("the product of step `{name}`"), detail, saved: None }
}
