//! Steps of a plan as work for the GPU: generated kernels and calls of cuBLASLt.
//!
//! In: a plan for a GPU. Out: for each step what it launches, in order. Holds always: a step whose results are empty
//! launches nothing; what has no kernel is an error that names the step, never a trip to the host.

use std::sync::Arc;

use cudarc::driver::CudaModule;
use hypatia_dsl::emit::cuda::{self, CudaSource, Entry, RowTarget};
use hypatia_dsl::ir::Backend;

use super::cubin::{self, Origins};
use super::device::{Gpu, failed};
use super::gemm;
use super::launch::{KernelLaunch, Location, arguments, by_columns, entry};
use super::lt::{Algorithm, Epilogue, Matmul};
use super::tune::{self, Tuner};
use crate::error::{Error, Result};
use crate::generate::{Body, Work, step_kernels};
use crate::plan::{Action, GemmStep, Plan, Step, View};

/// A product and the places of its operands, once for each call.
pub struct Product {
    /// What is called.
    pub matmul: Matmul,
    /// The algorithms that can run it; the first one does.
    pub algorithms: Vec<Algorithm>,
    /// A, B, D of each call.
    pub calls: Vec<[Location; 3]>,
    /// The bias.
    pub bias: Option<Location>,
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
enum Draft {
    Kernel { source: Box<CudaSource>, work: Work },
    Product,
}

/// The launches of a plan, each with the index of its step, and where their machine code came from.
pub fn prepare(gpu: &Arc<Gpu>, plan: &Plan, tuner: &mut Tuner) -> Result<(Vec<(usize, Launch)>, Origins)> {
    let drafts = drafts(gpu, plan)?;
    let sources = sources(&drafts);
    // Kernels are compiled by the host, algorithms are timed on the device: both at once.
    let (codes, products) = std::thread::scope(|scope| {
        let compiling = scope.spawn(|| cubin::codes(gpu, &sources));
        let products = products(gpu, plan, &drafts, tuner);
        (compiling.join(), products)
    });
    let lost = |_| Error::Internal("the compiling thread was lost".into());
    let (modules, origins) = codes.map_err(lost)??.load(gpu)?;
    let mut products = products?.into_iter();
    let mut modules = modules.into_iter();
    let mut launches = Vec::with_capacity(drafts.len());
    for (step, draft) in drafts {
        let launch = match draft {
            Draft::Product => products.next().ok_or_else(|| Error::Internal("a product was lost".into()))?,
            Draft::Kernel { source, work } => {
                let module = modules.next().ok_or_else(|| Error::Internal("a module was lost".into()))?;
                kernel_launch(plan, &plan.steps[step], &module, (&source, &work))?
            }
        };
        launches.push((step, launch));
    }
    Ok((launches, origins))
}

/// Compiles the kernels of a plan that is made next, so that it need not wait for them.
pub fn compile_ahead(gpu: &Arc<Gpu>, plan: &Plan) -> Result<()> {
    cubin::ahead(gpu, &sources(&drafts(gpu, plan)?))
}

fn sources(drafts: &[(usize, Draft)]) -> Vec<String> {
    let text = |d: &Draft| match d {
        Draft::Kernel { source, .. } => Some(source.text.clone()),
        Draft::Product => None,
    };
    drafts.iter().filter_map(|(_, d)| text(d)).collect()
}

/// The steps that do something, with their indices.
fn drafts(gpu: &Gpu, plan: &Plan) -> Result<Vec<(usize, Draft)>> {
    let full = plan.steps.iter().enumerate().filter(|(_, step)| !step.writes.iter().all(View::is_empty));
    let mut out = Vec::new();
    for (index, step) in full {
        let drafts = draft(gpu, plan, step).map_err(|e| in_step(e, step))?;
        out.extend(drafts.into_iter().map(|draft| (index, draft)));
    }
    Ok(out)
}

/// The launches of the drafts that are products, in their order.
fn products(gpu: &Arc<Gpu>, plan: &Plan, drafts: &[(usize, Draft)], tuner: &mut Tuner) -> Result<Vec<Launch>> {
    let mut out = Vec::new();
    for (index, draft) in drafts {
        let step = &plan.steps[*index];
        if let (Draft::Product, Some(g)) = (draft, library_product(step)) {
            out.push(product(gpu, plan, step, g, tuner).map_err(|e| in_step(e, step))?);
        }
    }
    Ok(out)
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
    let pointer = |name: &str| operand(step, work, name).map(|v| Location::of(plan, v));
    let arguments = arguments(source, work, &pointer)?;
    Ok(Launch::Kernel(KernelLaunch::new(function, *geometry, [grid, block], arguments)?))
}

fn in_step(e: Error, step: &Step) -> Error {
    match e {
        Error::Device(m) => Error::Device(format!("step `{}`: {m}", step.name)),
        Error::Internal(m) => Error::Internal(format!("step `{}`: {m}", step.name)),
        Error::Type(m) => Error::Type(format!("step `{}`: {m}", step.name)),
        e => e,
    }
}

/// The operand that a kernel's argument names: `in0`, `out0`, `acc`, or what the work calls so.
pub(super) fn operand<'a>(step: &'a Step, work: &'a Work, name: &str) -> Option<&'a View> {
    if let Some((_, view)) = work.views.iter().find(|(n, _)| n == name) {
        return Some(view);
    }
    if name == "acc" {
        step.reads.last()
    } else if let Some(i) = name.strip_prefix("in") {
        step.reads.get(i.parse::<usize>().ok()?)
    } else {
        step.writes.get(name.strip_prefix("out")?.parse::<usize>().ok()?)
    }
}

/// A step as what it launches, in order.
fn draft(gpu: &Gpu, plan: &Plan, step: &Step) -> Result<Vec<Draft>> {
    if library_product(step).is_some() {
        return Ok(vec![Draft::Product]);
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
        Ok(Draft::Kernel { source: Box::new(source), work })
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

/// The source of a kernel; rows have the length that they have here.
fn source(gpu: &Gpu, plan: &Plan, body: &Body, work: &Work) -> Result<CudaSource, cuda::EmitError> {
    let Body::Rowwise(kernel) = body else { return body.emit(&plan.program) };
    let target = match kernel.strided() && by_columns(work) {
        true => RowTarget::Columns,
        false => RowTarget::Length { rows: work.rows as u64, n: work.n as u64, clusters: gpu.runs_clusters() },
    };
    cuda::rowwise_for(&plan.program, kernel, target)
}

fn emitted(e: cuda::EmitError) -> Error {
    Error::Device(format!("no CUDA kernel: {e}"))
}

/// Bytes that a plan touches.
fn footprint(plan: &Plan) -> usize {
    plan.arena + plan.constants.iter().map(|t| t.bytes().len()).sum::<usize>()
}

fn product(gpu: &Arc<Gpu>, plan: &Plan, step: &Step, g: &GemmStep, tuner: &mut Tuner) -> Result<Launch> {
    let ([a, b, ..], [d]) = (step.reads.as_slice(), step.writes.as_slice()) else {
        return Err(Error::Internal("a product of one operand".into()));
    };
    let epilogue = match step.kernel.map(|k| &plan.program.kernels[k.index()].backend) {
        None if g.scale(&plan.program).is_some() => Epilogue::Default,
        Some(Backend::Cublaslt(name)) => {
            let known = Epilogue::named(name);
            known.ok_or_else(|| {
                Error::Device(format!("cuBLASLt has no epilogue {name} that one result is enough for"))
            })?
        }
        _ => return Err(Error::Device("this epilogue has no kernel".into())),
    };
    if g.k == 0 && !epilogue.has_bias() {
        return Ok(Launch::Zeros(Location::of(plan, d), d.len() * d.dtype.size()));
    }
    let calls = gemm::calls(g, &step.reads, d.dtype, epilogue, plan.tf32)?;
    let scale = if step.kernel.is_none() { g.scale(&plan.program) } else { None };
    let mut matmul = Matmul::new(calls.product)?.scaled(scale.unwrap_or(1.0));
    let algorithms = tune::order(tuner, gpu, &mut matmul, footprint(plan))?;
    if algorithms.is_empty() {
        return Err(Error::Device(format!("cuBLASLt has no algorithm for {:?}", calls.product)));
    }
    let place = |v: &View, elements: isize| {
        let mut at = Location::of(plan, v);
        at.bytes = (at.bytes as isize + elements * v.dtype.size() as isize) as usize;
        at
    };
    let places = calls.offsets.iter().map(|[i, j, o]| [place(a, *i), place(b, *j), place(d, *o)]).collect();
    let bias = step.reads.get(2).map(|v| Location::of(plan, v));
    Ok(Launch::Product(Box::new(Product { matmul, algorithms, calls: places, bias })))
}
