//! Measured choice among the tilings of a generated product, and its fallback steps.
//!
//! In: a step whose kernel is tiled. Out: the launch of the fastest tiling, or the launches of the
//! fallback if these are faster. The tuner keeps the result like the choice of an algorithm.
//! Invariant: without a measurement the fallback runs; only tilings that the kernel declares are
//! used.

use hypatia_cache::KeyMaker;
use hypatia_dsl::ir::{Backend, Kernel};
use hypatia_dsl::kernel::Tiling;
use hypatia_templates::cuda::CudaSource;

use super::device::Gpu;
use super::fallback::FALLBACK;
use super::tune::{Tuner, WARM, footprint, machine};
use crate::lowering::Work;
use crate::lowering::tiled::TiledProduct;
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
    /// Each with its source and arguments.
    pub variants: Vec<(Tiling, CudaSource, Work)>,
}

/// The kernel of a step, if it is tiled.
pub(super) fn kernel<'p>(plan: &'p Plan, step: &Step) -> Option<&'p Kernel> {
    let kernel = &plan.program.kernels[step.kernel?.index()];
    (kernel.backend == Backend::Tiled).then_some(kernel)
}

impl Tilings {
    /// What is to be compiled for a step: the tiling chosen earlier, or the most plausible ones.
    /// `None` if the copy engine cannot read the operands in place.
    pub(super) fn of(
        gpu: &Gpu,
        plan: &Plan,
        (step, call, kernel): (&Step, &CallStep, &Kernel),
        tuner: &Tuner,
    ) -> Result<Option<Tilings>> {
        let [out] = &step.writes[..call.writes] else { return Ok(None) };
        if call.product.k == 0 {
            return Ok(None);
        }
        let Some(product) = TiledProduct::of(&call.product, &step.reads[..call.reads], out) else {
            return Ok(None);
        };
        let all = product.plausible(&Tiling::all(&kernel.tune), gpu.multiprocessors());
        let source = |tiling: &Tiling| -> Result<Option<(Tiling, CudaSource, Work)>> {
            let Some((body, work)) = product.tiled(*tiling) else { return Ok(None) };
            let source = body.emit(&plan.program).map_err(|e| Error::Device(format!("no CUDA kernel: {e}")))?;
            Ok(Some((*tiling, source, work)))
        };
        let Some(first) = all.first().map(source).transpose()?.flatten() else { return Ok(None) };
        let problem = problem(plan, step, call, &product, &first.1.text);
        let known = tuner.known(&machine(gpu), &problem).filter(|c| accepted(&all, c));
        let wanted: Vec<Tiling> = match (known.map(|c| (Tiling::of_words(&c.algorithm), c.us)), tuner.effort()) {
            (Some((tiling, _)), Effort::Unknown) => tiling.into_iter().collect(),
            (Some((tiling, Some(_))), Effort::Guessed) => tiling.into_iter().collect(),
            (_, Effort::Unknown) => all.iter().copied().take(FIRST).collect(),
            (_, Effort::Guessed) => all.iter().copied().take(MORE).collect(),
            (_, Effort::Everything) => all.iter().copied().take(MOST).collect(),
        };
        let variants = wanted.iter().map(source).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        Ok(Some(Tilings { problem, variants }))
    }

    /// The index of the variant to launch, or the fallback for `None`. `race` gives the median
    /// times of the variants and, last, of the fallback.
    pub(super) fn choose(
        &self,
        gpu: &Gpu,
        tuner: &mut Tuner,
        race: impl FnOnce() -> Result<Option<Vec<f64>>>,
    ) -> Result<Option<usize>> {
        let guess = Measured { algorithm: FALLBACK, workspace: 0, us: None, first_us: None, candidates: 1 };
        let tilings: Vec<Tiling> = self.variants.iter().map(|(t, ..)| *t).collect();
        let measure = || {
            let Some(times) = race()? else { return Ok(None) };
            let fastest = (0..times.len()).min_by(|i, j| times[*i].total_cmp(&times[*j])).unwrap_or(0);
            Ok(Some(Measured {
                algorithm: tilings.get(fastest).map_or(FALLBACK, Tiling::words),
                workspace: 0,
                us: Some(times[fastest]),
                first_us: times.last().copied(),
                candidates: times.len(),
            }))
        };
        let accepts = |c: &Choice, _: Source| accepted(&tilings, c);
        let choice = tuner.choose(&machine(gpu), &self.problem, guess, accepts, measure)?;
        Ok(choice.and_then(|c| tilings.iter().position(|t| t.words() == c.algorithm)))
    }
}

fn accepted(tilings: &[Tiling], choice: &Choice) -> bool {
    choice.algorithm == FALLBACK || Tiling::of_words(&choice.algorithm).is_some_and(|t| tilings.contains(&t))
}

/// The name of a problem in tuning files: sizes, layouts, and a hash of what is computed.
fn problem(plan: &Plan, step: &Step, call: &CallStep, product: &TiledProduct, source: &str) -> String {
    let [batches, m, n, k] = product.sizes();
    let strides: Vec<String> =
        step.reads[..call.reads].iter().map(|v| format!("{}:{:?}", v.offset, v.strides)).collect();
    let term = KeyMaker::default().part(source).part(strides.join(";")).key();
    let term: String = term[..8].iter().map(|b| format!("{b:02x}")).collect();
    let cold = if footprint(plan) > WARM { "cold" } else { "warm" };
    let dtype = step.reads[0].dtype;
    format!("tiled or {} launches, {m}x{n}x{k} batch {batches} {dtype} {term}, {cold}", call.fallback.len())
}
