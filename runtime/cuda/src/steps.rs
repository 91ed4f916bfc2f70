//! Steps of a plan as GPU work: generated kernels and cuBLASLt calls.
//!
//! In: a plan for a GPU. Out: the launches of each step, in order. Invariant: a step with empty
//! results launches nothing; a step without a kernel is an error that names the step, and never
//! falls back to the host.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaModule;
use hypatia_dsl::ir::{Backend, Kernel, Program};
use hypatia_dsl::parallel::side_by_side;
use hypatia_templates::cuda::{self, Arg, ArgRole, CudaSource, Entry, MANY_ROWS, PointTarget, RowTarget};

use super::address::Location;
use super::cubin::{self, Origins};
use super::device::Gpu;
use super::driver::failed;
use super::kernel::{KernelLaunch, arguments, by_columns, entry, rows_are_strided};
use super::launch::{Comparisons, Launch, Product};
use super::lt::{self, ADDRESSES_FROM, Matmul};
use super::memory::DeviceMemory;
use super::tiled::{self, Tilings};
use super::tune::{self, Tuner, footprint};
use super::{fallback, gemm, trial, weight_layout};
use crate::lowering::checksum::{Checksum, Seen};
use crate::lowering::{Kept, Work, step_kernels};
use crate::tuner::Effort;
use hypatia_plan::{Action, CallStep, Called, Checks, GemmStep, Plan, Step, View};
use hypatia_target::cublaslt::Epilogue;
use hypatia_templates::instances::Body;
use hypatia_tensor::error::{Error, Result};

/// An unfinished step: its source is not compiled yet, or its algorithm is not chosen yet.
enum PendingLaunch<'p> {
    Kernel {
        source: Box<CudaSource>,
        work: Box<Work>,
        step: &'p Step,
    },
    Product(&'p Step),
    /// A call that the library may support, and its fallback steps.
    Call(&'p Step, Vec<PendingLaunch<'p>>),
    /// A product, an attention or a user's template, with its tilings if it has any, and its
    /// fallback steps.
    Tiled(&'p Step, Option<Tilings>, Vec<PendingLaunch<'p>>),
}

/// The launches of a plan, each with the index of its step, and the origin of their machine code.
pub fn prepare(gpu: &Arc<Gpu>, plan: &Plan, tuner: &mut Tuner) -> Result<(Vec<(usize, Launch)>, Origins)> {
    has_kernels(plan)?;
    let mut pending = pending(gpu, plan)?;
    for (_, launch) in &mut pending {
        tilings(gpu, plan, launch, tuner)?;
    }
    let sources = sources(&pending);
    // The host compiles kernels while the device times algorithms.
    let (codes, products) = std::thread::scope(|scope| {
        let compiling = scope.spawn(|| cubin::codes(gpu, &sources));
        query_ahead(gpu, plan, &pending, tuner.effort());
        let mut out = Vec::new();
        let mut add = |(_, d): &(usize, PendingLaunch<'_>)| products(gpu, plan, d, (tuner, false), &mut out);
        let products = pending.iter().try_for_each(&mut add).and_then(|()| {
            // All products get their algorithms before transposed weights are timed.
            out.iter_mut().flatten().try_for_each(|launch| match launch {
                Launch::Product(product) => weight_layout::choose(gpu, plan, product, tuner),
                Launch::Kernel(_) | Launch::Once(_) | Launch::Checks(_) | Launch::Zeros(..) => Ok(()),
            })?;
            Ok(out)
        });
        (compiling.join(), products)
    });
    let lost = |_| Error::Internal("the compiling thread was lost".into());
    let (modules, origins) = codes.map_err(lost)??.load(gpu)?;
    let kept = HashMap::new();
    let mut ready = Finished { products: products?.into_iter(), modules: modules.into_iter(), kept };
    let mut launches = Vec::with_capacity(pending.len());
    for (step, launch) in pending {
        let finished = finish(gpu, plan, launch, &mut ready, tuner)?;
        launches.extend(finished.into_iter().map(|launch| (step, launch)));
    }
    Ok((launches, origins))
}

/// Compiles the kernels of the plan that is prepared next, ahead of time.
pub fn precompile(gpu: &Arc<Gpu>, plan: &Plan) -> Result<()> {
    cubin::precompile(gpu, &sources(&pending(gpu, plan)?))
}

fn sources(pending: &[(usize, PendingLaunch<'_>)]) -> Vec<String> {
    fn add(launch: &PendingLaunch<'_>, out: &mut Vec<String>) {
        match launch {
            PendingLaunch::Kernel { source, .. } => out.push(source.text.clone()),
            PendingLaunch::Product(_) => {}
            PendingLaunch::Call(_, fallback) => fallback.iter().for_each(|d| add(d, out)),
            PendingLaunch::Tiled(_, tilings, fallback) => {
                let variants = tilings.iter().flat_map(|t| &t.variants);
                out.extend(variants.flat_map(|(_, launches)| launches).map(|(source, _)| source.text.clone()));
                fallback.iter().for_each(|d| add(d, out));
            }
        }
    }
    let mut out = Vec::new();
    pending.iter().for_each(|(_, d)| add(d, &mut out));
    out
}

/// Number of steps that justifies a thread: printing a source takes 0.1 to 0.2 ms.
const STEPS_A_THREAD: usize = 16;

/// The steps that launch something, with their indices.
fn pending<'p>(gpu: &Gpu, plan: &'p Plan) -> Result<Vec<(usize, PendingLaunch<'p>)>> {
    let full = plan.steps.iter().enumerate().filter(|(_, step)| !step.writes.iter().all(View::is_empty));
    let full: Vec<(usize, &Step)> = full.collect();
    let pending = side_by_side(&full, STEPS_A_THREAD, None, |(_, step)| {
        pending_launches(gpu, plan, step).map_err(|e| in_step(e, step))
    });
    let mut out = Vec::new();
    for ((index, _), pending) in full.iter().zip(pending) {
        out.extend(pending?.into_iter().map(|launch| (*index, launch)));
    }
    Ok(out)
}

/// Asks the library about all products in advance, as [`products`] will. Errors are reported there.
fn query_ahead(gpu: &Arc<Gpu>, plan: &Plan, pending: &[(usize, PendingLaunch<'_>)], effort: Effort) {
    fn add(plan: &Plan, launch: &PendingLaunch<'_>, effort: Effort, out: &mut Vec<(lt::Product, bool)>) -> Result<()> {
        match launch {
            PendingLaunch::Kernel { .. } => {}
            PendingLaunch::Product(step) => {
                if let Some(g) = library_product(step)
                    && let Launch::Product(finished) = product(plan, step, g)?
                {
                    out.push((*finished.matmul.product(), false));
                    out.extend(finished.transposed.iter().map(|t| (*t.product(), true)));
                }
            }
            PendingLaunch::Call(step, fallback) => {
                let Action::Call(e) = &step.action else { return Ok(()) };
                out.push((called(plan, step, e)?.0.product, false));
                if step.kernel.is_some() || effort != Effort::Unknown {
                    fallback.iter().try_for_each(|d| add(plan, d, effort, out))?;
                }
            }
            PendingLaunch::Tiled(_, _, fallback) => fallback.iter().try_for_each(|d| add(plan, d, effort, out))?,
        }
        Ok(())
    }
    let mut asked = Vec::new();
    pending.iter().for_each(|(_, launch)| drop(add(plan, launch, effort, &mut asked)));
    asked.retain(|(p, _)| !p.uses_pointer_arrays() || gpu.lt().version() >= ADDRESSES_FROM);
    tune::query_ahead(gpu, effort, &asked);
}

/// The launches of the products, in the order in which they are finished; `None` for a call that
/// the library does not support. With `later` the library is not asked for algorithms yet.
fn products(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    launch: &PendingLaunch<'_>,
    (tuner, later): (&mut Tuner, bool),
    out: &mut Vec<Option<Launch>>,
) -> Result<()> {
    match launch {
        PendingLaunch::Kernel { .. } => {}
        PendingLaunch::Product(step) => {
            let g = library_product(step).ok_or_else(|| Error::Internal("a product that is none".into()))?;
            let mut launch = product(plan, step, g).map_err(|e| in_step(e, step))?;
            if let (Launch::Product(product), false) = (&mut launch, later) {
                choose(gpu, plan, product, tuner).map_err(|e| in_step(e, step))?;
            }
            out.push(Some(launch));
        }
        PendingLaunch::Call(step, fallback) => {
            let Action::Call(e) = &step.action else { return Err(Error::Internal("a call that is none".into())) };
            out.push(call(gpu, plan, step, e, tuner).map_err(|e| in_step(e, step))?);
            // Copies cost more than any choice of algorithm saves. Before a first result, the
            // variant with copies is raced with the library's guess, and tuned only if it wins.
            let later = later || step.kernel.is_none() && tuner.effort() == Effort::Unknown;
            fallback.iter().try_for_each(|d| products(gpu, plan, d, (&mut *tuner, later), out))?;
        }
        PendingLaunch::Tiled(_, tilings, fallback) => {
            // The library need not have an algorithm for what does not run.
            let later =
                later || plan.allowed.batch_invariant && tilings.as_ref().is_some_and(|t| !t.variants.is_empty());
            fallback.iter().try_for_each(|d| products(gpu, plan, d, (&mut *tuner, later), out))?;
        }
    }
    Ok(())
}

/// Compiled code and products for the pending, in their order.
struct Finished {
    products: std::vec::IntoIter<Option<Launch>>,
    modules: std::vec::IntoIter<Arc<CudaModule>>,
    /// Memory that launches share beyond a run, by what it holds.
    kept: HashMap<String, Arc<DeviceMemory>>,
}

/// The launches of a step, in order.
fn finish(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    launch: PendingLaunch<'_>,
    finished: &mut Finished,
    tuner: &mut Tuner,
) -> Result<Vec<Launch>> {
    let lost = || Error::Internal("a product or a module was lost".into());
    match launch {
        PendingLaunch::Product(_) => Ok(vec![finished.products.next().flatten().ok_or_else(lost)?]),
        PendingLaunch::Kernel { source, work, step } => {
            let module = finished.modules.next().ok_or_else(lost)?;
            Ok(vec![kernel_launch(gpu, plan, step, &module, (&source, &work), &mut finished.kept)?])
        }
        PendingLaunch::Tiled(step, tilings, fallback) => {
            finish_tiled(gpu, plan, (step, tilings, fallback), finished, tuner)
        }
        PendingLaunch::Call(step, fallback) => {
            let call = finished.products.next().ok_or_else(lost)?;
            let mut launches = Vec::new();
            for launch in fallback {
                launches.extend(finish(gpu, plan, launch, finished, tuner)?);
            }
            let mut chosen = match call {
                Some(call) => fallback::faster(gpu, plan, step, call, launches, tuner).map_err(|e| in_step(e, step))?,
                None => launches,
            };
            for launch in &mut chosen {
                if let Launch::Product(product) = launch
                    && product.guessed
                {
                    choose(gpu, plan, product, tuner).map_err(|e| in_step(e, step))?;
                    weight_layout::choose(gpu, plan, product, tuner).map_err(|e| in_step(e, step))?;
                }
            }
            Ok(chosen)
        }
    }
}

/// The launches of a tiled product: the fastest tiling, or the fallback.
fn finish_tiled(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    (step, tilings, pending): (&Step, Option<Tilings>, Vec<PendingLaunch<'_>>),
    finished: &mut Finished,
    tuner: &mut Tuner,
) -> Result<Vec<Launch>> {
    let lost = || Error::Internal("a module was lost".into());
    let mut tilings = tilings;
    let mut loaded = Vec::new();
    for (_, launches) in tilings.iter().flat_map(|t| &t.variants) {
        let modules: Vec<_> = finished.modules.by_ref().take(launches.len()).collect();
        if modules.len() < launches.len() {
            return Err(lost());
        }
        let kept = &mut finished.kept;
        let load = |((source, work), module): (&(CudaSource, Work), &_)| {
            kernel_launch(gpu, plan, step, module, (source, work), kept)
        };
        loaded.push(launches.iter().zip(&modules).map(load).collect::<Result<Vec<Launch>>>());
    }
    let mut launches = Vec::new();
    for launch in pending {
        launches.extend(finish(gpu, plan, launch, finished, tuner)?);
    }
    let template = tiled::kernel(plan, step).filter(|k| tiled::is_template(k));
    let mut variants: Vec<Vec<Launch>> = match (template, &mut tilings) {
        (Some(kernel), Some(tilings)) => {
            tried(gpu, plan, (step, kernel), (tilings, loaded), &mut launches, tuner).map_err(|e| in_step(e, step))?
        }
        _ => loaded.into_iter().collect::<Result<_>>()?,
    };
    // Its parts may add up in another order.
    let alone = plan.allowed.batch_invariant && !variants.is_empty();
    if !alone {
        variants.push(launches);
    }
    let chosen = match &tilings {
        Some(_) if plan.allowed.batch_invariant && !alone => Ok(None),
        Some(tilings) => tilings.choose(gpu, tuner, || fallback::time(gpu, plan, step, &mut variants)),
        None => Ok(None),
    };
    let unmeasured = if alone { 0 } else { variants.len() - 1 };
    Ok(variants.swap_remove(chosen.map_err(|e| in_step(e, step))?.unwrap_or(unmeasured)))
}

/// The launches of a user's template that passed their trial. If one failed, the kernel is in
/// quarantine, and there are none.
fn tried(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    (step, kernel): (&Step, &Kernel),
    (tilings, loaded): (&mut Tilings, Vec<Result<Vec<Launch>>>),
    fallback: &mut [Launch],
    tuner: &mut Tuner,
) -> Result<Vec<Vec<Launch>>> {
    let Action::Call(call) = &step.action else { return Err(Error::Internal("a call that is none".into())) };
    let mut variants = Vec::new();
    for (variant, launches) in std::mem::take(&mut tilings.variants).into_iter().zip(loaded) {
        let launches = match launches {
            Ok(launches) => launches,
            Err(e) => {
                tuner.trials_mut().fail(kernel, gpu.name(), format!("cannot be loaded: {e}"));
                break;
            }
        };
        let ([(source, _)], [launch]) = (variant.1.as_slice(), launches.as_slice()) else {
            return Err(Error::Internal("a template of several launches".into()));
        };
        let trials = tuner.trials_mut();
        if trial::passes(gpu, plan, (step, call, kernel), (source, launch), fallback, trials)? {
            variants.push(launches);
            tilings.variants.push(variant);
        }
    }
    if tuner.trials_mut().quarantined(kernel, gpu.name()).is_some() {
        tilings.variants.clear();
        variants.clear();
    }
    Ok(variants)
}

/// Finds the tilings of a tiled product that are compiled.
fn tilings(gpu: &Gpu, plan: &Plan, launch: &mut PendingLaunch<'_>, tuner: &mut Tuner) -> Result<()> {
    let PendingLaunch::Tiled(step, tilings, fallback) = launch else { return Ok(()) };
    if let (Action::Call(call), Some(kernel)) = (&step.action, tiled::kernel(plan, step)) {
        *tilings = Tilings::of(gpu, plan, (step, call, kernel), tuner).map_err(|error| in_step(error, step))?;
    }
    fallback.iter_mut().try_for_each(|launch| self::tilings(gpu, plan, launch, tuner))
}

fn kernel_launch(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    step: &Step,
    module: &Arc<CudaModule>,
    (source, work): (&CudaSource, &Work),
    kept: &mut HashMap<String, Arc<DeviceMemory>>,
) -> Result<Launch> {
    let (at, grid, block) = entry(source, work)?;
    let Entry { name, geometry } = &source.entries[at];
    let function = module.load_function(name).map_err(|e| failed(&format!("cuModuleGetFunction of {name}"), e))?;
    let pointer = |arg: &Arg| operand(step, work, arg).map(|v| Location::of(plan, v));
    let mut own = uploaded(gpu, work)?;
    if let Some(Kept { role, name, bytes }) = &work.kept {
        let memory = match kept.get(name) {
            Some(memory) => memory.clone(),
            None => {
                let stream = gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
                Arc::new(DeviceMemory::new(&stream, *bytes)?)
            }
        };
        kept.insert(name.clone(), memory.clone());
        own.push((*role, memory));
    }
    let arguments = arguments(source, work, &own, &pointer)?;
    let shared = work.declared.as_ref().map_or(geometry.shared(), |d| d.shared);
    let launch = KernelLaunch::new(function, *geometry, ([grid, block], shared), arguments)?;
    Ok(match (work.once, work.compares) {
        (true, _) => Launch::Once(launch),
        (false, true) => Launch::Checks(Comparisons::of(launch.exchanging(work.exchanged))),
        (false, false) => Launch::Kernel(launch),
    })
}

/// Memory of the device with the integers that a launch reads.
fn uploaded(gpu: &Arc<Gpu>, work: &Work) -> Result<Vec<(ArgRole, Arc<DeviceMemory>)>> {
    if work.data.is_empty() {
        return Ok(Vec::new());
    }
    let stream = gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
    let mut out = Vec::new();
    for (role, values) in &work.data {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let memory = DeviceMemory::new(&stream, bytes.len())?;
        memory.upload(&bytes)?;
        out.push((*role, Arc::new(memory)));
    }
    stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))?;
    Ok(out)
}

fn in_step(e: Error, step: &Step) -> Error {
    match e {
        Error::Device(m) => Error::Device(format!("step `{}`: {m}", step.title())),
        Error::Internal(m) => Error::Internal(format!("step `{}`: {m}", step.title())),
        Error::Type(m) => Error::Type(m.at(format_args!("step `{}`", step.title()))),
        e => e,
    }
}

/// The tensor that a kernel argument points to, found by its role in the work or in the step.
pub(super) fn operand<'a>(step: &'a Step, work: &'a Work, arg: &Arg) -> Option<&'a View> {
    if let Some((_, view)) = work.views.iter().find(|(role, _)| *role == arg.role) {
        return Some(view);
    }
    match arg.role {
        ArgRole::Accumulator => step.reads.last(),
        ArgRole::Read(i) => step.reads.get(i),
        ArgRole::Written(i) => step.writes.get(i),
        ArgRole::Factor(_) | ArgRole::Sums | ArgRole::Order | ArgRole::From | ArgRole::To => None,
        ArgRole::Part(_) | ArgRole::RowSums | ArgRole::Tops | ArgRole::Ranges | ArgRole::Intervals => None,
        ArgRole::Report | ArgRole::Fault => None,
        ArgRole::Rows | ArgRole::RowLength | ArgRole::Axes | ArgRole::Problems => None,
        ArgRole::TiledRows | ArgRole::TiledColumns | ArgRole::Named => None,
    }
}

/// The launches of a step in pending form, in order.
fn pending_launches<'p>(gpu: &Gpu, plan: &Plan, step: &'p Step) -> Result<Vec<PendingLaunch<'p>>> {
    // Kernels are named only by their function, so that equal work is compiled once.
    let launch = |(body, work)| {
        let source = source(gpu, plan, &body, &work).map_err(emitted)?;
        Ok(PendingLaunch::Kernel { source: Box::new(source), work: Box::new(work), step })
    };
    if library_product(step).is_some() {
        let behind: Result<Vec<_>> = checks_of(plan, step).into_iter().map(launch).collect();
        return Ok([vec![PendingLaunch::Product(step)], behind?].into_iter().flatten().collect());
    }
    if let Action::Call(e) = &step.action
        && !matches!(e.called, Called::Rows(_))
    {
        let mut fallback = Vec::new();
        for part in e.fallback.iter().filter(|s| !s.writes.iter().all(View::is_empty)) {
            fallback.extend(pending_launches(gpu, plan, part)?);
        }
        // A library call may hide its accumulators.
        if plan.checks != Checks::Off && tiled::kernel(plan, step).is_none() {
            return Ok(fallback);
        }
        return Ok(vec![match tiled::kernel(plan, step) {
            Some(_) => PendingLaunch::Tiled(step, None, fallback),
            None => PendingLaunch::Call(step, fallback),
        }]);
    }
    let kernels = step_kernels(step);
    if kernels.is_empty() {
        let what = step.action.name();
        return Err(Error::Device(format!("{what} has no CUDA kernel yet; use --device cpu")));
    }
    kernels.into_iter().map(launch).collect()
}

/// What checks the result of a step that is a product of the library.
pub(super) fn checks_of(plan: &Plan, step: &Step) -> Vec<(Body, Work)> {
    let ([a, b, ..], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return Vec::new() };
    let Some(product) = library_product(step) else { return Vec::new() };
    let scale = match epilogue(plan, step) {
        Ok(None) => product.scale(&plan.program),
        Ok(Some(Epilogue::Default)) => Some(1.0),
        _ => None,
    };
    let checksum = Checksum::of(plan, product, [a, b, out], None).zip(scale);
    checksum.and_then(|(c, scale)| c.launches(Seen::Result(scale))).unwrap_or_default()
}

/// The floating-point product of a step that the library computes.
fn library_product(step: &Step) -> Option<&GemmStep> {
    match &step.action {
        Action::Gemm(g) if g.acc.is_float() => Some(g),
        _ => None,
    }
}

/// The source of a kernel for this amount of work.
fn source(gpu: &Gpu, plan: &Plan, body: &Body, work: &Work) -> Result<CudaSource, cuda::EmitError> {
    let Body::Rowwise(kernel) = body else { return elementwise(&plan.program, body, work, gpu.threads()) };
    // How threads share a row decides in which order it is added up.
    let rows = if plan.allowed.batch_invariant { MANY_ROWS } else { work.rows };
    let shared = || cuda::slices(kernel, [rows as u64, work.n as u64], gpu.threads());
    let shared = if rows_are_strided(work) { shared() } else { None };
    let target = match shared {
        Some(slices) => slices,
        None if kernel.strided() && by_columns(rows, work) => RowTarget::Columns,
        None => RowTarget::Length { rows: rows as u64, n: work.n as u64, clusters: gpu.runs_clusters() },
    };
    cuda::rowwise_for(&plan.program, kernel, target)
}

/// The source of a kernel that is not row-wise, for a device with this many resident threads.
pub(super) fn elementwise(
    program: &Program,
    body: &Body,
    work: &Work,
    threads: u64,
) -> Result<CudaSource, cuda::EmitError> {
    let target = PointTarget { elements: work.rows as u64 * work.n as u64, row: work.n as u64, threads };
    match body {
        Body::Pointwise(kernel) => cuda::pointwise_for(program, kernel, &[], target),
        Body::InPlace(kernel, shared) => cuda::pointwise_for(program, kernel, shared, target),
        body => body.emit(program),
    }
}

/// An error about the first step with an element type that the GPU's kernels lack. Such kernels
/// begin here, in `lt::data_type` (products) and in `templates/src/cuda/expr.rs` (conversions).
fn has_kernels(plan: &Plan) -> Result<()> {
    let types = |s: &'_ Step| s.reads.iter().chain(&s.writes).map(|v| v.dtype).find(|d| d.only_stored());
    match plan.steps.iter().find_map(|s| types(s).map(|dtype| (s, dtype))) {
        None => Ok(()),
        Some((step, dtype)) => {
            let why = cuda::EmitError::NoKernels { dtype };
            Err(Error::Device(format!("`{}` cannot run on a GPU: {why}", step.name)))
        }
    }
}

fn emitted(e: cuda::EmitError) -> Error {
    Error::Device(format!("no CUDA kernel: {e}"))
}

/// The epilogue that a step's kernel names.
fn epilogue(plan: &Plan, step: &Step) -> Result<Option<Epilogue>> {
    match step.kernel.map(|k| &plan.program.kernels[k.index()].backend) {
        None => Ok(None),
        Some(Backend::Cublaslt(epilogue)) => Ok(Some(*epilogue)),
        Some(_) => Err(Error::Device("this epilogue has no kernel".into())),
    }
}

/// The launch of a product that the library computes, without its algorithms.
fn product(plan: &Plan, step: &Step, g: &GemmStep) -> Result<Launch> {
    let ([_, _, ..], [d]) = (step.reads.as_slice(), step.writes.as_slice()) else {
        return Err(Error::Internal("a product of one operand".into()));
    };
    let scale = if step.kernel.is_none() { g.scale(&plan.program) } else { None };
    let epilogue = match epilogue(plan, step)? {
        Some(epilogue) => epilogue,
        None if scale.is_some() => Epilogue::Default,
        None => return Err(Error::Device("this epilogue has no kernel".into())),
    };
    if g.k == 0 && !epilogue.has_bias() {
        return Ok(Launch::Zeros(Location::of(plan, d), d.len() * d.dtype.size()));
    }
    let in_order = plan.allowed.batch_invariant;
    let calls =
        gemm::calls(g, &step.reads, d, gemm::Terms { epilogue, tf32: plan.device.tf32, addresses: false, in_order })?;
    let scale = scale.unwrap_or(1.0);
    Ok(Launch::Product(Box::new(Product {
        matmul: Matmul::new(calls.product)?.scaled(scale),
        algorithms: Vec::new(),
        guessed: true,
        calls: locations(plan, step, &calls.offsets),
        lists: 0,
        bias: step.reads.get(2).map(|v| Location::of(plan, v)),
        aux: None,
        added: None,
        transposed: if in_order { None } else { weight_layout::transposed(plan, step, &calls, scale)? },
    })))
}

/// The algorithms of a product; it is an error if there are none.
fn choose(gpu: &Arc<Gpu>, plan: &Plan, product: &mut Product, tuner: &mut Tuner) -> Result<()> {
    let (algorithms, choice) = tune::order(tuner, gpu, &mut product.matmul, footprint(plan))?;
    if algorithms.is_empty() && product.matmul.product().in_order {
        return Err(Error::Device(format!(
            "cuBLASLt has no algorithm that adds up in one order for any number of rows: {:?}",
            product.matmul.product()
        )));
    }
    if algorithms.is_empty() {
        return Err(Error::Device(format!("cuBLASLt has no algorithm for {:?}", product.matmul.product())));
    }
    (product.algorithms, product.guessed) = (algorithms, false);
    // A guess has no measurement to compare with.
    product.transposed.take_if(|_| choice.is_none_or(|c| c.us.is_none()));
    Ok(())
}

/// Alignment in bytes of an epilogue's bias and second matrix.
const AUX_ALIGNMENT: usize = 16;

/// The products of a call with a fallback, and their scale.
fn called(plan: &Plan, step: &Step, e: &CallStep) -> Result<(gemm::Calls, f64)> {
    // Without an epilogue name, it is a product of many strided matrices.
    let named = epilogue(plan, step)?;
    let product = e.product().ok_or_else(|| Error::Internal("a call that is no product".into()))?;
    let (epilogue, scale) = match (named, product.scale(&plan.program)) {
        (Some(epilogue), _) => (epilogue, 1.0),
        (None, Some(scale)) => (Epilogue::Default, scale),
        (None, None) => return Err(Error::Internal("a call without a name".into())),
    };
    let [d, ..] = &step.writes[..e.writes] else { return Err(Error::Internal("a call without a result".into())) };
    let in_order = plan.allowed.batch_invariant;
    let terms = gemm::Terms { epilogue, tf32: plan.device.tf32, addresses: named.is_none(), in_order };
    let mut calls = gemm::calls(product, &step.reads[..e.reads], d, terms)?;
    calls.product.added = added(e, step).map(|c| gemm::alignment(c, &[]));
    Ok((calls, scale))
}

/// The matrix that a call adds its product to.
fn added<'s>(e: &CallStep, step: &'s Step) -> Option<&'s View> {
    let last = e.reads.checked_sub(1).filter(|_| matches!(e.called, Called::Sum(_)));
    last.and_then(|i| step.reads.get(i))
}

/// The call of a step with a fallback; `None` if the library does not support these operands.
fn call(gpu: &Arc<Gpu>, plan: &Plan, step: &Step, e: &CallStep, tuner: &mut Tuner) -> Result<Option<Launch>> {
    let (calls, scale) = called(plan, step, e)?;
    let (epilogue, named) = (calls.product.epilogue, step.kernel.is_some());
    let (reads, writes) = (&step.reads[..e.reads], &step.writes[..e.writes]);
    let stored = &writes[1..];
    let lists = calls.product.uses_pointer_arrays();
    if lists && gpu.lt().version() < ADDRESSES_FROM {
        return Ok(None);
    }
    // Sums and second matrices cover the whole product, so there must be a single call.
    let single = calls.offsets.len() == 1 && (!named || calls.product.batch == 1);
    let aligned = |v: &View| (v.offset * v.dtype.size()).is_multiple_of(AUX_ALIGNMENT);
    let auxiliary = || reads[2..].iter().chain(stored);
    if e.product().is_none_or(|g| g.k == 0) || !single || writes.iter().any(View::is_empty) || !auxiliary().all(aligned)
    {
        return Ok(None);
    }
    let mut matmul = Matmul::new(calls.product)?.scaled(scale);
    let (algorithms, _) = tune::order(tuner, gpu, &mut matmul, footprint(plan))?;
    if algorithms.is_empty() {
        return Ok(None);
    }
    let (read, stored) = (reads.get(2), stored.first());
    let bias = if epilogue.stores_sums() { stored } else { read.filter(|_| epilogue.has_bias()) };
    let aux = if epilogue.stores_aux() { stored } else { read.filter(|_| epilogue.has_aux()) };
    let [bias, aux, added] = [bias, aux, added(e, step)].map(|v| v.map(|v| Location::of(plan, v)));
    let calls = locations(plan, step, &calls.offsets);
    let product = Product { matmul, algorithms, guessed: false, calls, lists: 0, bias, aux, added, transposed: None };
    Ok(Some(Launch::Product(Box::new(product))))
}

/// The locations of each call's operands.
fn locations(plan: &Plan, step: &Step, offsets: &[[isize; 3]]) -> Vec<[Location; 3]> {
    let location = |v: &View, elements: isize| {
        let mut at = Location::of(plan, v);
        at.bytes = (at.bytes as isize + elements * v.dtype.size() as isize) as usize;
        at
    };
    let (a, b, d) = (&step.reads[0], &step.reads[1], &step.writes[0]);
    offsets.iter().map(|[i, j, o]| [location(a, *i), location(b, *j), location(d, *o)]).collect()
}
