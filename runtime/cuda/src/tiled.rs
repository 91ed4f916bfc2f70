//! Measured choice among the launches of a kernel that is timed, and its fallback steps.
//!
//! In: a step with such a kernel. Out: its fastest launches, or the launches of the fallback if
//! these are faster. The tuner keeps the result like the choice of an algorithm. Invariant: without
//! a measurement the fallback runs.

use hypatia_cache::KeyMaker;
use hypatia_dsl::ir::{Backend, Kernel};
use hypatia_dsl::kernel::StoredTiling;
use hypatia_templates::cuda::{CudaSource, EmitError};
use hypatia_templates::instances::Body;

use super::cubin;
use super::device::Gpu;
use super::fallback::FALLBACK;
use super::nvrtc::NvrtcError;
use super::tune::{Tuner, WARM, footprint, machine};
use crate::lowering::Work;
use crate::lowering::timed::Timed;
pub(super) use crate::lowering::timed::kernel;
use crate::tuner::{Effort, Measured, Source};
use crate::tuning::Choice;
use hypatia_plan::{CallStep, Plan, Step};
use hypatia_tensor::error::{Error, Result};

/// Tilings that are compiled and timed, by effort. Each takes half a second to compile.
const FIRST: usize = 3;
const MORE: usize = 8;
const MOST: usize = 24;

/// The tilings of a step that are compiled, the best predicted one first.
pub(super) struct Tilings {
    /// The problem's name in tuning files.
    pub problem: String,
    /// Each with the sources of its launches and their arguments.
    pub variants: Vec<(StoredTiling, Vec<(CudaSource, Work)>)>,
}

/// Whether a kernel is from a user's template.
pub(super) fn is_template(kernel: &Kernel) -> bool {
    matches!(kernel.backend, Backend::Template(_))
}

impl Tilings {
    /// What is to be compiled for a step: the tiling chosen earlier, or the most plausible ones.
    /// `None` if no template reads the operands in place.
    pub(super) fn of(
        gpu: &Gpu,
        plan: &Plan,
        (step, call, kernel): (&Step, &CallStep, &Kernel),
        tuner: &mut Tuner,
    ) -> Result<Option<Tilings>> {
        if is_template(kernel) && tuner.trials_mut().quarantined(kernel, gpu.name()).is_some() {
            return Ok(None);
        }
        let Some(work) = Timed::of(plan, (step, call, kernel)) else { return Ok(None) };
        match Tilings::wanted(gpu, plan, (step, call, kernel), &work, tuner) {
            // Somebody else's source may not compile, which must not keep the plan from running.
            Err(Error::Input(why)) if is_template(kernel) => {
                tuner.trials_mut().fail(kernel, gpu.name(), format!("cannot be compiled: {why}"));
                Ok(None)
            }
            other => other,
        }
    }

    fn wanted(
        gpu: &Gpu,
        plan: &Plan,
        (step, call, kernel): (&Step, &CallStep, &Kernel),
        work: &Timed,
        tuner: &Tuner,
    ) -> Result<Option<Tilings>> {
        let all = work.plausible(kernel, gpu.multiprocessors());
        let source = |(body, work): (Body, Work)| -> Result<(CudaSource, Work)> {
            let source = match body.emit(&plan.program) {
                Ok(source) => source,
                Err(EmitError::Template(why)) => return Err(Error::Input(why)),
                Err(e) => return Err(Error::Device(format!("no CUDA kernel: {e}"))),
            };
            if is_template(kernel)
                && let Err(e) = cubin::code(gpu, &source.text)
            {
                let of_user = matches!(e, NvrtcError::Compile { .. });
                return Err(if of_user { Error::Input(e.to_string()) } else { e.into() });
            }
            Ok((source, work))
        };
        let sources = |words: &StoredTiling| -> Result<Vec<(CudaSource, Work)>> {
            work.launches(words).into_iter().map(source).collect()
        };
        let first = all.first().map(sources).transpose()?.unwrap_or_default();
        if first.is_empty() {
            // Other sizes have such a kernel: its parts would add up in another order.
            return match all.is_empty() || !plan.allowed.batch_invariant {
                true => Ok(None),
                false => Err(Error::Device(format!(
                    "{} needs more workspace than there is to have the same bits in any batch",
                    work.name(kernel)
                ))),
            };
        }
        let text: String = first.iter().map(|(source, _)| source.text.as_str()).collect();
        let problem = problem(plan, step, call, &work.name(kernel), &text);
        let known = tuner.known(&machine(gpu), &problem).filter(|c| accepted(&all, c));
        let chosen = |c: &Choice| if c.algorithm == FALLBACK { Vec::new() } else { vec![c.algorithm] };
        let wanted: Vec<StoredTiling> = match (known, tuner.effort()) {
            (Some(c), Effort::Unknown) => chosen(&c),
            (Some(c), Effort::Guessed) if c.us.is_some() => chosen(&c),
            (_, Effort::Unknown) => all.iter().copied().take(FIRST).collect(),
            (_, Effort::Guessed) => all.iter().copied().take(MORE).collect(),
            (_, Effort::Everything) => all.iter().copied().take(MOST).collect(),
        };
        let mut variants = Vec::new();
        for words in wanted {
            let launches = sources(&words)?;
            if !launches.is_empty() {
                variants.push((words, launches));
            }
        }
        Ok(Some(Tilings { problem, variants }))
    }

    /// The index of the variant to launch, or the fallback for `None`. `race` gives the median
    /// times of the variants and, last, of the fallback, if that may run.
    pub(super) fn choose(
        &self,
        gpu: &Gpu,
        tuner: &mut Tuner,
        race: impl FnOnce() -> Result<Option<Vec<f64>>>,
    ) -> Result<Option<usize>> {
        let guess = Measured { algorithm: FALLBACK, workspace: 0, us: None, first_us: None, candidates: 1 };
        let tilings: Vec<StoredTiling> = self.variants.iter().map(|(t, ..)| *t).collect();
        let measure = || {
            let Some(times) = race()? else { return Ok(None) };
            let fastest = (0..times.len()).min_by(|i, j| times[*i].total_cmp(&times[*j])).unwrap_or(0);
            Ok(Some(Measured {
                algorithm: tilings.get(fastest).copied().unwrap_or(FALLBACK),
                workspace: 0,
                us: Some(times[fastest]),
                first_us: times.last().copied(),
                candidates: times.len(),
            }))
        };
        let accepts = |c: &Choice, _: Source| accepted(&tilings, c);
        let choice = tuner.choose(&machine(gpu), &self.problem, guess, accepts, measure)?;
        Ok(choice.and_then(|c| tilings.iter().position(|t| *t == c.algorithm)))
    }
}

fn accepted(tilings: &[StoredTiling], choice: &Choice) -> bool {
    choice.algorithm == FALLBACK || tilings.contains(&choice.algorithm)
}

/// The name in tuning files of what a step computes, on a GPU of so many multiprocessors; `None` if
/// no template of ours reads the operands in place.
pub(crate) fn problem_of(
    plan: &Plan,
    (step, call, kernel): (&Step, &CallStep, &Kernel),
    work: &Timed,
    multiprocessors: usize,
) -> Option<String> {
    let first = work.plausible(kernel, multiprocessors).into_iter().next()?;
    let text = |(body, _): (Body, Work)| Some(body.emit(&plan.program).ok()?.text);
    let texts: Vec<String> = work.launches(&first).into_iter().map(text).collect::<Option<_>>()?;
    (!texts.is_empty()).then(|| problem(plan, step, call, &work.name(kernel), &texts.concat()))
}

/// The name of a problem in tuning files: sizes, layouts, and a hash of what is computed.
fn problem(plan: &Plan, step: &Step, call: &CallStep, what: &str, source: &str) -> String {
    let strides: Vec<String> =
        step.reads[..call.reads].iter().map(|v| format!("{}:{:?}", v.offset, v.strides)).collect();
    let term = KeyMaker::default().part(source).part(strides.join(";")).key();
    let term: String = term[..8].iter().map(|b| format!("{b:02x}")).collect();
    let cold = if footprint(plan) > WARM { "cold" } else { "warm" };
    let dtype = step.reads[0].dtype;
    let order = if plan.allowed.batch_invariant { "in order, " } else { "" };
    format!("{order}tiled or {} launches, {what} {dtype} {term}, {cold}", call.fallback.len())
}
