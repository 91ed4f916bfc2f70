//! The front door of the library: a model, its rules, and runs.
//!
//! In: a model file and a Program. Out: results of runs, and reports of what was done. Invariant:
//! there is one plan for each combination of input shapes, made when it is first needed. [`Safety`]
//! says how far it is trusted. Unless that is `Off`, a new plan is compared once with the unfused
//! plan on the given inputs; if they differ, one without the rules that make the difference runs,
//! or the unfused one. A cached verdict spares a later start the unfused plan.

mod compile;
mod compiled;
mod delta_debugging;
mod evidence;
mod incident;
mod judge;
mod reference;
mod safety;
mod strict;

use std::collections::{BTreeMap, HashMap};
#[cfg(feature = "onnx")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hypatia_dsl::dtype::DType;
#[cfg(feature = "onnx")]
use hypatia_dsl::ir::Program;

use crate::gpu::OnGpu;
use hypatia_cache::{Cache, Store};
#[cfg(feature = "cuda")]
use hypatia_cuda::{Gpu, tuner::Tuner};
use hypatia_graph::{Constants, Graph, NodeKind};
#[cfg(feature = "onnx")]
use hypatia_onnx::import;
use hypatia_optimize as optimize;
use hypatia_optimize::Optimized;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_plan::{Checks, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::memory;
use hypatia_tensor::tensor::Tensor;

pub use self::compiled::{Checked, Compiled, Refusal};
use self::compiled::{Open, Planner};
pub use self::incident::{Culprit, Incident, Watched};
use self::judge::Judge;
pub use self::safety::Safety;
pub use self::strict::Pending;
use crate::compare::of_outputs;
pub use crate::compare::{Loosened, loosened};
pub use crate::executor::Executor;
pub use hypatia_tensor::compare::{Comparison, Tolerance};

/// In a strict run, the share of runs that are compared: small beside the time of the others.
const COMPARE_EVERY: u64 = 32;

/// Settings of a [`Model`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings of the optimiser.
    pub optimize: optimize::Options,
    /// How far plans are trusted.
    pub safety: Safety,
    /// With [`Safety::Strict`]: one run in this many is compared with the unfused plan, the first
    /// one first; 0 means none. On a GPU, unless this is 1, comparisons take at most a fiftieth of
    /// the time.
    pub compare_every: u64,
    /// The folder for small graphs that show what was wrong with a plan; they run on the host. With
    /// [`Safety::Check`], only plans of the host are saved.
    pub incidents: Option<PathBuf>,
    /// The GPU to run on; the host if there is none. See [`Options::on`].
    pub gpu: Option<OnGpu>,
    /// Threads of the host; 0 means one for each core.
    pub threads: usize,
    /// Maximum number of bytes of intermediate results and outputs. By default one gibibyte on the
    /// host, or less if the limits of the process are lower, and the device's free memory on a GPU.
    pub memory: Option<usize>,
    /// Let a GPU round the operands of f32 products to TF32. Results then agree to about 1e-3.
    pub tf32: bool,
    /// Where verdicts on plans are cached; with `None`, every start compares again. On a GPU it is
    /// the user's cache, see [`Options::on`].
    pub verdicts: Option<Arc<Store>>,
    /// Compare again, even if a verdict is cached.
    pub recheck: bool,
    /// A row's result has the same bits, however many rows stand beside it, as long as their number
    /// is a dynamic size of the model: the graph is optimised, and divided into launches, before
    /// its dynamic sizes are known, so that no choice depends on them.
    ///
    /// # Example
    /// ```
    /// # use hypatia::session::Options;
    /// let options = Options { batch_invariant: true, ..Options::default() };
    /// ```
    pub batch_invariant: bool,
    /// With [`Safety::Strict`] on a GPU, tests may disturb products.
    #[doc(hidden)]
    pub disturbed: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            optimize: optimize::Options::default(),
            safety: Safety::Check,
            compare_every: COMPARE_EVERY,
            incidents: None,
            gpu: None,
            threads: 0,
            memory: None,
            tf32: false,
            verdicts: None,
            recheck: false,
            batch_invariant: false,
            disturbed: false,
        }
    }
}

impl Options {
    /// The same settings on that GPU, with that choice of algorithms. Costs are those of the GPU's
    /// profile, and verdicts go to the user's cache.
    #[cfg(feature = "cuda")]
    pub fn on(mut self, gpu: Arc<Gpu>, tuner: Tuner) -> Options {
        self = self.remembering();
        self.optimize.device = gpu.profile();
        self.gpu = Some(OnGpu::new(gpu, tuner));
        self
    }

    /// The same settings, where the optimiser knows which kernels may be used.
    fn settled(mut self) -> Options {
        self.batch_invariant |= self.optimize.batch_invariant;
        self.optimize.batch_invariant = self.batch_invariant;
        self.optimize.device = self.optimize.device.with_tf32(self.tf32);
        self
    }

    /// The same settings, with verdicts in the user's cache, if there is one.
    pub fn remembering(mut self) -> Options {
        self.verdicts = Cache::shared().as_ref().ok().map(|cache| cache.verdicts.clone());
        self
    }
}

/// Holds a plan once it is made. The thread that makes it holds the lock and others wait, so it is
/// made once. A failed attempt is repeated.
type PlanCell = Mutex<Option<Arc<Compiled>>>;

/// A model with its rules. Any number of threads may run it at once, each on its own inputs.
pub struct Model {
    graph: Graph,
    warnings: Vec<String>,
    options: Options,
    plans: Mutex<HashMap<Vec<Vec<usize>>, Arc<PlanCell>>>,
    constants: Arc<Mutex<Constants>>,
    /// What a narrowed model still computes in f32.
    wide: Option<BTreeMap<String, usize>>,
    /// The number of nodes that a narrowed model computes in the narrow type.
    narrow: usize,
    early: Mutex<Option<EarlyPlan>>,
    /// The graph optimised before its dynamic sizes are known, for batch-invariant plans.
    for_all_sizes: Mutex<Option<Arc<Optimized>>>,
}

/// A plan made for a device that is not open yet, and what it was made for.
struct EarlyPlan {
    shapes: Vec<Vec<usize>>,
    optimize: optimize::Options,
    plan: plan::Options,
    graph: Graph,
    optimized: Optimized,
    fused: Arc<Plan>,
}

impl Model {
    /// Loads a model file.
    #[cfg(feature = "onnx")]
    pub fn load(path: &Path, program: Arc<Program>, options: Options) -> Result<Model> {
        Ok(Model::imported(pipeline::load(path, program, &import::Options::default())?, options))
    }

    /// Loads a model file with the dynamic sizes of these inputs: for models whose shapes cannot be
    /// inferred without them.
    #[cfg(feature = "onnx")]
    pub fn load_for(
        path: &Path,
        program: Arc<Program>,
        options: Options,
        inputs: &[(String, Tensor)],
    ) -> Result<Model> {
        let shapes = inputs.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        Ok(Model::imported(pipeline::load(path, program, &import::Options { shapes, ..Default::default() })?, options))
    }

    /// A model from a file that was imported.
    #[cfg(feature = "onnx")]
    pub fn imported(import: import::Import, options: Options) -> Model {
        Model { warnings: import.warnings, ..Model::new(import.graph, options) }
    }

    /// A model from a graph.
    pub fn new(graph: Graph, options: Options) -> Model {
        Model {
            graph,
            warnings: Vec::new(),
            options: options.settled(),
            plans: Mutex::default(),
            constants: Arc::new(Mutex::new(pipeline::constants())),
            wide: None,
            narrow: 0,
            early: Mutex::default(),
            for_all_sizes: Mutex::default(),
        }
    }

    /// The model computed in f16 or bf16 where it is in f32: products, ops with kernels of their
    /// own and pointwise work between them. Inputs and outputs keep their types; [`Model::wide`]
    /// lists what stays f32.
    ///
    /// # Errors
    /// If the type is not one of the two, or the graph cannot be written in it.
    pub fn narrowed(self, to: DType) -> Result<Model> {
        // Sums of a norm or a softmax that is written out would be narrowed: the rules name those
        // ops first.
        let naming = self.options.optimize.naming(&self.graph.program);
        let narrowed = pipeline::optimize(&self.graph, &naming)?.graph.narrowed(to)?;
        let (wide, narrow) = (Some(narrowed.wide), narrowed.narrow);
        Ok(Model { wide, narrow, warnings: self.warnings, ..Model::new(narrowed.graph, self.options) })
    }

    /// The number of nodes that a narrowed model computes in the narrow type; 0 if narrowing
    /// changed nothing.
    pub fn narrow(&self) -> usize {
        self.narrow
    }

    /// What a narrowed model still computes in f32: each op or scalar with the number of its uses.
    /// `None` if the model was not narrowed.
    pub fn wide(&self) -> Option<&BTreeMap<String, usize>> {
        self.wide.as_ref()
    }

    /// The same model with other settings, such as a device that was opened while the file was
    /// read.
    pub fn with_options(self, options: Options) -> Model {
        Model { options: options.settled(), plans: Mutex::default(), for_all_sizes: Mutex::default(), ..self }
    }

    /// Optimises and plans for these inputs and for a device of that profile that is not open yet,
    /// so that [`Model::compile`] finds the plan if it is asked for the same. A failure is left to
    /// `compile`.
    pub fn plan_ahead(&self, device: &Device, inputs: &[(String, Tensor)]) {
        if let Ok(made) = self.early_plan(device, inputs) {
            *self.early.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        }
    }

    fn early_plan(&self, device: &Device, inputs: &[(String, Tensor)]) -> Result<EarlyPlan> {
        let shapes = shapes(&self.order(inputs)?);
        let device = device.clone().with_tf32(self.options.tf32);
        let optimize = optimize::Options { device: device.clone(), ..self.options.optimize.clone() };
        let (graph, optimized, open) = self.optimized(inputs, &optimize)?;
        let planner = self.planner(device, None);
        let fused = planner.first(&graph, &optimized, open.as_ref(), &optimize)?;
        Ok(EarlyPlan { shapes, optimize, plan: planner.options, graph, optimized, fused })
    }

    /// The graph on the sizes of these inputs, and what the rules make of it; the last is what
    /// batch-invariant plans are made of.
    fn optimized(
        &self,
        inputs: &[(String, Tensor)],
        options: &optimize::Options,
    ) -> Result<(Graph, Optimized, Option<Open>)> {
        let named: HashMap<String, Tensor> = inputs.iter().cloned().collect();
        let sizes = self.graph.bind_symbols(&named)?;
        let graph = self.graph.specialize(&sizes)?;
        if !self.options.batch_invariant {
            let optimized = pipeline::optimize(&graph, options)?;
            return Ok((graph, optimized, None));
        }
        let mut made = self.for_all_sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let all = match made.as_ref() {
            Some(all) => all.clone(),
            None => made.insert(Arc::new(pipeline::optimize(&self.graph, options)?)).clone(),
        };
        drop(made);
        let optimized = Optimized { graph: all.graph.specialize(&sizes)?, report: all.report.clone() };
        Ok((graph, optimized, Some(Open { optimized: all, sizes })))
    }

    fn planner(&self, device: Device, gpu: Option<&OnGpu>) -> Planner {
        // The cost model may have better figures for the same device.
        let own = &self.options.optimize.device;
        let device = if own.name == device.name { own.clone() } else { device.with_tf32(self.options.tf32) };
        Planner {
            options: plan::Options {
                // A GPU refuses what exceeds its memory when the plan is loaded.
                memory: self.options.memory.unwrap_or(match device.is_host() {
                    true => memory::budget(),
                    false => isize::MAX as usize,
                }),
                checks: match (self.options.safety, self.options.disturbed) {
                    (Safety::Strict, true) => Checks::Disturbed,
                    (Safety::Strict, false) => Checks::On,
                    _ => Checks::Off,
                },
                allowed: self.options.optimize.allowed(),
                ..plan::Options::new(device)
            },
            gpu: gpu.cloned(),
            threads: self.options.threads,
            strict: self.options.safety == Safety::Strict,
            constants: self.constants.clone(),
        }
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The graph as imported.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Contradictions in the model's file that do not change what it computes.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Names of the outputs, in order.
    pub fn outputs(&self) -> Vec<&str> {
        self.graph.outputs.iter().map(|(n, _)| n.as_str()).collect()
    }

    /// How far an output may differ from its reference, for each output: see `compare.rs`.
    pub fn tolerances(&self) -> Vec<Tolerance> {
        let mut tolerances = of_outputs(&self.graph);
        if self.options.tf32 && self.options.gpu.is_some() {
            // TF32 keeps as many bits as f16 does.
            let coarse = Tolerance::of(DType::F16, 1).rtol;
            tolerances.iter_mut().for_each(|t| t.rtol = t.rtol.max(coarse));
        }
        tolerances
    }

    /// The plan for these inputs, made now if there is none. Threads that ask for the same plan
    /// share it; those that ask for another do not wait for it.
    pub fn compile(&self, inputs: &[(String, Tensor)]) -> Result<Arc<Compiled>> {
        let ordered = self.order(inputs)?;
        let key = shapes(&ordered);
        let cell = self.plans.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut plan = cell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = plan.as_ref() {
            return Ok(found.clone());
        }
        let made = self.compile_new(inputs, &ordered)?;
        self.judge().keeps_contract(made.refusal.as_ref())?;
        Ok(plan.insert(Arc::new(made)).clone())
    }

    /// What results are judged by.
    fn judge(&self) -> Judge {
        let names = self.graph.outputs.iter().map(|(name, _)| name.clone());
        Judge {
            options: self.options.clone(),
            outputs: names.zip(self.tolerances()).collect(),
            host: self.planner(Device::cpu(), None),
        }
    }

    /// Runs once; the results are in the order of the model's outputs.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
        self.compile(inputs)?.run(&self.order(inputs)?)
    }

    /// The inputs in the model's order.
    pub fn order(&self, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
        let named: HashMap<String, Tensor> = inputs.iter().cloned().collect();
        self.graph.bind_symbols(&named)?;
        let names = self.graph.inputs.iter().filter_map(|id| match &self.graph.node(*id).kind {
            NodeKind::Input { name } => Some(name),
            _ => None,
        });
        let found: Option<Vec<Tensor>> = names.map(|n| named.get(n).cloned()).collect();
        found.ok_or_else(|| Error::Internal("a bound input is missing".into()))
    }
}

fn shapes(inputs: &[Tensor]) -> Vec<Vec<usize>> {
    inputs.iter().map(|t| t.shape().to_vec()).collect()
}

#[cfg(test)]
mod tests;
