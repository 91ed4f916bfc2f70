//! Steps of a plan as work for the GPU: generated kernels and calls of cuBLASLt.
//!
//! In: a plan for a GPU. Out: for each step what it launches, in order. Holds always: a step whose results are empty
//! launches nothing; what has no kernel is an error that names the step, never a trip to the host.

use std::sync::Arc;

use cudarc::driver::CudaModule;
use hypatia_dsl::ir::{Backend, Program};
use hypatia_dsl::parallel::side_by_side;
use hypatia_templates::cuda::{self, Arg, ArgRole, CudaSource, Entry, PointTarget, RowTarget};

use super::cubin::{self, Origins};
use super::device::{Gpu, failed};
use super::launch::{KernelLaunch, Location, arguments, by_columns, entry};
use super::lt::{self, ADDRESSES_FROM, Algorithm, Epilogue, Matmul};
use super::packed::Other;
use super::tune::{self, Tuner};
use super::{either, gemm, packed};
use crate::lowering::{Work, step_kernels};
use crate::tuner::Effort;
use hypatia_plan::{Action, EitherStep, GemmStep, Plan, Step, View};
use hypatia_templates::instances::Body;
use hypatia_tensor::error::{Error, Result};

/// A product and the places of its operands, once for each call.
pub struct Product {
    /// What is called.
    pub matmul: Matmul,
    /// The algorithms that can run it; the first one does. None yet where the library has not been asked.
    pub algorithms: Vec<Algorithm>,
    /// True if they are not yet chosen: the library's first one is raced, or none is known.
    pub guessed: bool,
    /// A, B, D of each call.
    pub calls: Vec<[Location; 3]>,
    /// Where its lists of addresses begin among all of a graph, in bytes.
    pub lists: u64,
    /// The bias, or its gradient.
    pub bias: Option<Location>,
    /// The second matrix of its epilogue.
    pub aux: Option<Location>,
    /// The same over the other order of a weight.
    pub other: Option<Other>,
}

impl Product {
    /// The weight that is read in the other order, if one is.
    pub fn packed(&self) -> Option<&Other> {
        self.other.as_ref().filter(|other| other.taken)
    }
}

/// What a step launches.
pub enum Launch {
    /// A generated kernel.
    Kernel(KernelLaunch),
    /// cuBLASLt.
    Product(Box<Product>),
    /// Zeros in so many bytes: a product over no terms.
    Zeros(Location, usize),
}

impl Launch {
    /// How many calls it makes that do not wait for each other.
    pub fn calls(&self) -> usize {
        match self {
            Launch::Product(p) => p.calls.len(),
            Launch::Kernel(_) | Launch::Zeros(..) => 1,
        }
    }
}

/// A step on its way: its source must still be compiled, or its algorithm chosen.
enum Draft<'p> {
    Kernel {
        source: Box<CudaSource>,
        work: Work,
        step: &'p Step,
    },
    Product(&'p Step),
    /// A call that the library may have, and the steps that do without.
    Either(&'p Step, Vec<Draft<'p>>),
}

/// The launches of a plan, each with the index of its step, and where their machine code came from.
pub fn prepare(gpu: &Arc<Gpu>, plan: &Plan, tuner: &mut Tuner) -> Result<(Vec<(usize, Launch)>, Origins)> {
    let drafts = drafts(gpu, plan)?;
    let sources = sources(&drafts);
    // Kernels are compiled by the host, algorithms are timed on the device: both at once.
    let (codes, products) = std::thread::scope(|scope| {
        let compiling = scope.spawn(|| cubin::codes(gpu, &sources));
        ask_ahead(gpu, plan, &drafts, tuner.effort());
        let mut out = Vec::new();
        let mut add = |(_, d): &(usize, Draft<'_>)| products(gpu, plan, d, (tuner, false), &mut out);
        let products = drafts.iter().try_for_each(&mut add).and_then(|()| {
            // All have their algorithms before time is spent on other orders.
            out.iter_mut().flatten().try_for_each(|launch| match launch {
                Launch::Product(product) => packed::settle(gpu, plan, product, tuner),
                Launch::Kernel(_) | Launch::Zeros(..) => Ok(()),
            })?;
            Ok(out)
        });
        (compiling.join(), products)
    });
    let lost = |_| Error::Internal("the compiling thread was lost".into());
    let (modules, origins) = codes.map_err(lost)??.load(gpu)?;
    let mut made = Made { products: products?.into_iter(), modules: modules.into_iter() };
    let mut launches = Vec::with_capacity(drafts.len());
    for (step, draft) in drafts {
        let finished = finish(gpu, plan, draft, &mut made, tuner)?;
        launches.extend(finished.into_iter().map(|launch| (step, launch)));
    }
    Ok((launches, origins))
}

/// Compiles the kernels of a plan that is made next, so that it need not wait for them.
pub fn compile_ahead(gpu: &Arc<Gpu>, plan: &Plan) -> Result<()> {
    cubin::ahead(gpu, &sources(&drafts(gpu, plan)?))
}

fn sources(drafts: &[(usize, Draft<'_>)]) -> Vec<String> {
    fn add(draft: &Draft<'_>, out: &mut Vec<String>) {
        match draft {
            Draft::Kernel { source, .. } => out.push(source.text.clone()),
            Draft::Product(_) => {}
            Draft::Either(_, apart) => apart.iter().for_each(|d| add(d, out)),
        }
    }
    let mut out = Vec::new();
    drafts.iter().for_each(|(_, d)| add(d, &mut out));
    out
}

/// Steps for which a thread is worth it: a source takes 0.1 to 0.2 ms.
const DRAFTED: usize = 16;

/// The steps that do something, with their indices.
fn drafts<'p>(gpu: &Gpu, plan: &'p Plan) -> Result<Vec<(usize, Draft<'p>)>> {
    let full = plan.steps.iter().enumerate().filter(|(_, step)| !step.writes.iter().all(View::is_empty));
    let full: Vec<(usize, &Step)> = full.collect();
    let drafts = side_by_side(&full, DRAFTED, None, |(_, step)| draft(gpu, plan, step).map_err(|e| in_step(e, step)));
    let mut out = Vec::new();
    for ((index, _), drafts) in full.iter().zip(drafts) {
        out.extend(drafts?.into_iter().map(|draft| (*index, draft)));
    }
    Ok(out)
}

/// Asks the library about all products, as [`products`] is going to. What is wrong with one is told there.
fn ask_ahead(gpu: &Arc<Gpu>, plan: &Plan, drafts: &[(usize, Draft<'_>)], effort: Effort) {
    fn add(plan: &Plan, draft: &Draft<'_>, effort: Effort, out: &mut Vec<(lt::Product, bool)>) -> Result<()> {
        match draft {
            Draft::Kernel { .. } => {}
            Draft::Product(step) => {
                if let Some(g) = library_product(step)
                    && let Launch::Product(made) = product(plan, step, g)?
                {
                    out.push((*made.matmul.product(), false));
                    out.extend(made.other.iter().map(|other| (*other.product(), true)));
                }
            }
            Draft::Either(step, apart) => {
                let Action::Either(e) = &step.action else { return Ok(()) };
                out.push((called(plan, step, e)?.0.product, false));
                if step.kernel.is_some() || effort != Effort::Unknown {
                    apart.iter().try_for_each(|d| add(plan, d, effort, out))?;
                }
            }
        }
        Ok(())
    }
    let mut asked = Vec::new();
    drafts.iter().for_each(|(_, draft)| drop(add(plan, draft, effort, &mut asked)));
    asked.retain(|(p, _)| !p.by_addresses() || gpu.lt().version() >= ADDRESSES_FROM);
    tune::ask_ahead(gpu, effort, &asked);
}

/// The launches of what is a product, in the order in which they are finished; `None` for a call that the library lacks.
/// With `later` the library is not yet asked for their algorithms.
fn products(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    draft: &Draft<'_>,
    (tuner, later): (&mut Tuner, bool),
    out: &mut Vec<Option<Launch>>,
) -> Result<()> {
    match draft {
        Draft::Kernel { .. } => {}
        Draft::Product(step) => {
            let g = library_product(step).ok_or_else(|| Error::Internal("a product that is none".into()))?;
            let mut launch = product(plan, step, g).map_err(|e| in_step(e, step))?;
            if let (Launch::Product(product), false) = (&mut launch, later) {
                choose(gpu, plan, product, tuner).map_err(|e| in_step(e, step))?;
            }
            out.push(Some(launch));
        }
        Draft::Either(step, apart) => {
            let Action::Either(e) = &step.action else { return Err(Error::Internal("a call that is none".into())) };
            out.push(call(gpu, plan, step, e, tuner).map_err(|e| in_step(e, step))?);
            // Copies cost more than any choice of algorithm saves: before a first result the way with copies is raced
            // as the library guesses, and tuned only if it wins.
            let later = later || step.kernel.is_none() && tuner.effort() == Effort::Unknown;
            apart.iter().try_for_each(|d| products(gpu, plan, d, (&mut *tuner, later), out))?;
        }
    }
    Ok(())
}

/// What drafts wait for, in their order.
struct Made {
    products: std::vec::IntoIter<Option<Launch>>,
    modules: std::vec::IntoIter<Arc<CudaModule>>,
}

/// The launches of a step, in order.
fn finish(gpu: &Arc<Gpu>, plan: &Plan, draft: Draft<'_>, made: &mut Made, tuner: &mut Tuner) -> Result<Vec<Launch>> {
    let lost = || Error::Internal("a product or a module was lost".into());
    match draft {
        Draft::Product(_) => Ok(vec![made.products.next().flatten().ok_or_else(lost)?]),
        Draft::Kernel { source, work, step } => {
            let module = made.modules.next().ok_or_else(lost)?;
            Ok(vec![kernel_launch(plan, step, &module, (&source, &work))?])
        }
        Draft::Either(step, apart) => {
            let call = made.products.next().ok_or_else(lost)?;
            let mut launches = Vec::new();
            for draft in apart {
                launches.extend(finish(gpu, plan, draft, made, tuner)?);
            }
            let mut chosen = match call {
                Some(call) => either::faster(gpu, plan, step, call, launches, tuner).map_err(|e| in_step(e, step))?,
                None => launches,
            };
            for launch in &mut chosen {
                if let Launch::Product(product) = launch
                    && product.guessed
                {
                    choose(gpu, plan, product, tuner).map_err(|e| in_step(e, step))?;
                    packed::settle(gpu, plan, product, tuner).map_err(|e| in_step(e, step))?;
                }
            }
            Ok(chosen)
        }
    }
}

fn kernel_launch(
    plan: &Plan,
    step: &Step,
    module: &Arc<CudaModule>,
    (source, work): (&CudaSource, &Work),
) -> Result<Launch> {
    let (at, grid, block) = entry(source, work)?;
    let Entry { name, geometry } = &source.entries[at];
    let function = module.load_function(name).map_err(|e| failed(&format!("cuModuleGetFunction of {name}"), e))?;
    let pointer = |arg: &Arg| operand(step, work, arg).map(|v| Location::of(plan, v));
    let arguments = arguments(source, work, &pointer)?;
    Ok(Launch::Kernel(KernelLaunch::new(function, *geometry, [grid, block], arguments)?))
}

fn in_step(e: Error, step: &Step) -> Error {
    match e {
        Error::Device(m) => Error::Device(format!("step `{}`: {m}", step.name)),
        Error::Internal(m) => Error::Internal(format!("step `{}`: {m}", step.name)),
        Error::Type(m) => Error::Type(m.at(format_args!("step `{}`", step.name))),
        e => e,
    }
}

/// The tensor that a kernel's argument points to: what the work calls so, or what its role says.
pub(super) fn operand<'a>(step: &'a Step, work: &'a Work, arg: &Arg) -> Option<&'a View> {
    if let Some((_, view)) = work.views.iter().find(|(n, _)| *n == arg.name) {
        return Some(view);
    }
    match arg.role {
        ArgRole::Accumulator => step.reads.last(),
        ArgRole::Read(i) => step.reads.get(i),
        ArgRole::Written(i) => step.writes.get(i),
        ArgRole::Rows | ArgRole::RowLength | ArgRole::Named => None,
    }
}

/// A step as what it launches, in order.
fn draft<'p>(gpu: &Gpu, plan: &Plan, step: &'p Step) -> Result<Vec<Draft<'p>>> {
    if library_product(step).is_some() {
        return Ok(vec![Draft::Product(step)]);
    }
    if let Action::Either(e) = &step.action {
        let mut apart = Vec::new();
        for part in e.apart.iter().filter(|s| !s.writes.iter().all(View::is_empty)) {
            apart.extend(draft(gpu, plan, part)?);
        }
        return Ok(vec![Draft::Either(step, apart)]);
    }
    let kernels = step_kernels(step);
    if kernels.is_empty() {
        let what = format!("{:?}", step.action);
        let what = what.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_lowercase();
        return Err(Error::Device(format!("{what} has no CUDA kernel yet; use --device cpu")));
    }
    // Kernels are named by what they do alone, so that equal work is compiled once.
    let draft = |(body, work)| {
        let source = source(gpu, plan, &body, &work).map_err(emitted)?;
        Ok(Draft::Kernel { source: Box::new(source), work, step })
    };
    kernels.into_iter().map(draft).collect()
}

/// The product of a step that the library computes: one of floats.
fn library_product(step: &Step) -> Option<&GemmStep> {
    match &step.action {
        Action::Gemm(g) if g.acc.is_float() => Some(g),
        _ => None,
    }
}

/// The source of a kernel for as much work as there is here.
fn source(gpu: &Gpu, plan: &Plan, body: &Body, work: &Work) -> Result<CudaSource, cuda::EmitError> {
    let Body::Rowwise(kernel) = body else { return elementwise(&plan.program, body, work, gpu.threads()) };
    let target = match kernel.strided() && by_columns(work) {
        true => RowTarget::Columns,
        false => RowTarget::Length { rows: work.rows as u64, n: work.n as u64, clusters: gpu.runs_clusters() },
    };
    cuda::rowwise_for(&plan.program, kernel, target)
}

/// The source of a kernel that is not row-wise, on a device that runs so many threads at a time.
pub(super) fn elementwise(
    program: &Program,
    body: &Body,
    work: &Work,
    threads: u64,
) -> Result<CudaSource, cuda::EmitError> {
    let target = PointTarget { elements: work.rows as u64 * work.n as u64, threads };
    match body {
        Body::Pointwise(kernel) => cuda::pointwise_for(program, kernel, &[], target),
        Body::InPlace(kernel, shared) => cuda::pointwise_for(program, kernel, shared, target),
        body => body.emit(program),
    }
}

fn emitted(e: cuda::EmitError) -> Error {
    Error::Device(format!("no CUDA kernel: {e}"))
}

/// Bytes that a plan touches.
pub(super) fn footprint(plan: &Plan) -> usize {
    plan.arena + plan.constants.iter().map(|t| t.bytes().len()).sum::<usize>()
}

/// The epilogue that a step's kernel names.
fn epilogue(plan: &Plan, step: &Step) -> Result<Option<Epilogue>> {
    match step.kernel.map(|k| &plan.program.kernels[k.index()].backend) {
        None => Ok(None),
        Some(Backend::Cublaslt(name)) => {
            let known = Epilogue::named(name);
            known.map(Some).ok_or_else(|| Error::Device(format!("cuBLASLt's epilogue {name} is not supported")))
        }
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
    let calls = gemm::calls(g, &step.reads, d, gemm::Terms { epilogue, tf32: plan.tf32, addresses: false })?;
    let scale = scale.unwrap_or(1.0);
    Ok(Launch::Product(Box::new(Product {
        matmul: Matmul::new(calls.product)?.scaled(scale),
        algorithms: Vec::new(),
        guessed: true,
        calls: places(plan, step, &calls.offsets),
        lists: 0,
        bias: step.reads.get(2).map(|v| Location::of(plan, v)),
        aux: None,
        other: packed::other(plan, step, &calls, scale)?,
    })))
}

/// The algorithms of a product that must have one.
fn choose(gpu: &Arc<Gpu>, plan: &Plan, product: &mut Product, tuner: &mut Tuner) -> Result<()> {
    let (algorithms, choice) = tune::order(tuner, gpu, &mut product.matmul, footprint(plan))?;
    if algorithms.is_empty() {
        return Err(Error::Device(format!("cuBLASLt has no algorithm for {:?}", product.matmul.product())));
    }
    (product.algorithms, product.guessed) = (algorithms, false);
    // Nothing is compared with a guess.
    product.other.take_if(|_| choice.is_none_or(|c| c.us.is_none()));
    Ok(())
}

/// Bytes that divide the address of what an epilogue reads or stores beside.
const BESIDE_ALIGNMENT: usize = 16;

/// The products of the call of a step that can do without, and what scales them.
fn called(plan: &Plan, step: &Step, e: &EitherStep) -> Result<(gemm::Calls, f64)> {
    // Without a name it is a product of many matrices as they lie.
    let named = epilogue(plan, step)?;
    let (epilogue, scale) = match (named, e.product.scale(&plan.program)) {
        (Some(epilogue), _) => (epilogue, 1.0),
        (None, Some(scale)) => (Epilogue::Default, scale),
        (None, None) => return Err(Error::Internal("a call without a name".into())),
    };
    let [d, ..] = &step.writes[..e.writes] else { return Err(Error::Internal("a call without a result".into())) };
    let terms = gemm::Terms { epilogue, tf32: plan.tf32, addresses: named.is_none() };
    Ok((gemm::calls(&e.product, &step.reads[..e.reads], d, terms)?, scale))
}

/// The call of a step that can do without; `None` if the library has none for these operands.
fn call(gpu: &Arc<Gpu>, plan: &Plan, step: &Step, e: &EitherStep, tuner: &mut Tuner) -> Result<Option<Launch>> {
    let (calls, scale) = called(plan, step, e)?;
    let (epilogue, named) = (calls.product.epilogue, step.kernel.is_some());
    let (reads, writes) = (&step.reads[..e.reads], &step.writes[..e.writes]);
    let stored = &writes[1..];
    let lists = calls.product.by_addresses();
    if lists && gpu.lt().version() < ADDRESSES_FROM {
        return Ok(None);
    }
    // Sums and second matrices are those of the whole product.
    let single = calls.offsets.len() == 1 && (!named || calls.product.batch == 1);
    let aligned = |v: &View| (v.offset * v.dtype.size()).is_multiple_of(BESIDE_ALIGNMENT);
    let beside = || reads[2..].iter().chain(stored);
    if e.product.k == 0 || !single || writes.iter().any(View::is_empty) || !beside().all(aligned) {
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
    let [bias, aux] = [bias, aux].map(|v| v.map(|v| Location::of(plan, v)));
    let calls = places(plan, step, &calls.offsets);
    let product = Product { matmul, algorithms, guessed: false, calls, lists: 0, bias, aux, other: None };
    Ok(Some(Launch::Product(Box::new(product))))
}

/// Where the operands of each call lie.
fn places(plan: &Plan, step: &Step, offsets: &[[isize; 3]]) -> Vec<[Location; 3]> {
    let place = |v: &View, elements: isize| {
        let mut at = Location::of(plan, v);
        at.bytes = (at.bytes as isize + elements * v.dtype.size() as isize) as usize;
        at
    };
    let (a, b, d) = (&step.reads[0], &step.reads[1], &step.writes[0]);
    offsets.iter().map(|[i, j, o]| [place(a, *i), place(b, *j), place(d, *o)]).collect()
}
