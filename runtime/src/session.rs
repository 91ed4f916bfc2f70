//! The front door of the library: a model, its rules, and runs.
//!
//! In: a model file and a Program. Out: results of runs, and reports of what was done. Invariant:
//! there is one plan for each combination of input shapes, made when it is first needed. In CHECK
//! mode, a new plan is compared once with the unfused plan on the given inputs; if they differ, the
//! unfused plan runs and the report names the rules that fired. A cached verdict spares a later
//! start the unfused plan.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
#[cfg(feature = "onnx")]
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hypatia_dsl::dtype::DType;
#[cfg(feature = "onnx")]
use hypatia_dsl::ir::Program;

use crate::device::Device;
use crate::executor::Executor;
use crate::gpu::OnGpu;
use crate::verdict::{self, Subject, Verdict, VerdictEntry};
use hypatia_cache::{Cache, Store};
#[cfg(feature = "cuda")]
use hypatia_cuda::{Gpu, tuner::Tuner};
use hypatia_graph::{Constants, Graph, NodeKind};
#[cfg(feature = "onnx")]
use hypatia_onnx::import;
use hypatia_optimize as optimize;
use hypatia_optimize::{Optimized, Report};
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_plan::Plan;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::memory;
use hypatia_tensor::tensor::Tensor;

use crate::compare::of_outputs;
pub use crate::compare::{Loosened, loosened};
use hypatia_tensor::compare::no_less_precise;
pub use hypatia_tensor::compare::{Comparison, Tolerance};

/// How much a new plan is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CheckMode {
    /// Compared once with the unfused plan.
    #[default]
    Check,
    /// Not compared.
    Off,
}

/// Settings of a [`Model`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings of the optimiser.
    pub optimize: optimize::Options,
    /// How much a new plan is trusted.
    pub check: CheckMode,
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
}

impl Default for Options {
    fn default() -> Options {
        Options {
            optimize: optimize::Options::default(),
            check: CheckMode::Check,
            gpu: None,
            threads: 0,
            memory: None,
            tf32: false,
            verdicts: None,
            recheck: false,
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

/// A plan for some input shapes, ready to run.
pub struct Compiled {
    /// What runs.
    pub executor: Executor,
    unfused: Unfused,
    /// What the optimiser did.
    pub report: Report,
    /// In CHECK mode, why the fused plan was wrong: then the unfused one runs.
    pub refusal: Option<Refusal>,
    /// How the plan came to be trusted.
    pub checked: Checked,
}

impl Compiled {
    /// What the user should know.
    pub fn warnings(&self) -> Vec<String> {
        self.refusal.iter().map(Refusal::to_string).collect()
    }

    /// The plan without any rule, which the rules are measured against. It is made on first use.
    pub fn unfused(&self) -> Result<&Executor> {
        self.unfused.get()
    }
}

/// Why a fused plan is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What differs, and which rules may be wrong.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fused plan is not used: {}", self.reason)
    }
}

/// Whether the results of a plan were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// At this start.
    Now,
    /// At an earlier start.
    Before,
    /// Not at all.
    Never,
}

impl Checked {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Checked::Now => "now",
            Checked::Before => "before",
            Checked::Never => "never",
        }
    }
}

/// The unfused plan of a graph, made when it is needed.
struct Unfused {
    graph: Graph,
    planner: Planner,
    /// The plan, if it has been made.
    plan: Option<Arc<Plan>>,
    made: OnceLock<Executor>,
}

impl Unfused {
    fn get(&self) -> Result<&Executor> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let gpu = self.planner.gpu.as_ref();
        let executor = match &self.plan {
            Some(plan) => self.planner.executor(plan.clone(), gpu)?,
            None => self.planner.plan(&self.graph, false, gpu)?,
        };
        Ok(self.made.get_or_init(|| executor))
    }
}

/// The unfused graph in f32 if it is narrower, and its plan if that has been made.
struct Precise {
    graph: Graph,
    plan: Option<Arc<Plan>>,
}

/// Makes executors for the graphs of a model.
#[derive(Clone)]
struct Planner {
    options: plan::Options,
    gpu: Option<OnGpu>,
    threads: usize,
    constants: Arc<Mutex<Constants>>,
}

impl Planner {
    fn plan(&self, graph: &Graph, cluster: bool, gpu: Option<&OnGpu>) -> Result<Executor> {
        self.executor(self.build(graph, cluster)?, gpu)
    }

    fn build(&self, graph: &Graph, cluster: bool) -> Result<Arc<Plan>> {
        let options = plan::Options { cluster, ..self.options.clone() };
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::new(pipeline::plan_with(graph, &options, &mut constants)?))
    }

    /// The plan that runs unless the comparison rejects it.
    fn first(&self, graph: &Graph, optimized: &Optimized, options: &optimize::Options) -> Result<Arc<Plan>> {
        if options.no_rules { self.build(graph, false) } else { self.build(&optimized.graph, true) }
    }

    fn executor(&self, plan: Arc<Plan>, gpu: Option<&OnGpu>) -> Result<Executor> {
        Executor::new(plan, gpu, self.threads)
    }

    /// The plan of a graph without rules, with its kernels compiled for the executor that is made
    /// next. `None` on the host, or if anything fails: it will fail again where the executor is
    /// made.
    fn compile_ahead(&self, graph: &Graph) -> Option<Arc<Plan>> {
        let on = self.gpu.as_ref()?;
        let plan = self.build(graph, false).ok()?;
        on.compile_ahead(&plan).ok()?;
        Some(plan)
    }
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
            options,
            plans: Mutex::default(),
            constants: Arc::new(Mutex::new(pipeline::constants())),
            wide: None,
            narrow: 0,
            early: Mutex::default(),
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
        Model { options, plans: Mutex::default(), ..self }
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
        let graph = self.specialized(inputs)?;
        let optimize = optimize::Options { device: device.clone(), ..self.options.optimize.clone() };
        let optimized = pipeline::optimize(&graph, &optimize)?;
        let planner = self.planner(device.clone(), None);
        let fused = planner.first(&graph, &optimized, &optimize)?;
        Ok(EarlyPlan { shapes, optimize, plan: planner.options, graph, optimized, fused })
    }

    /// The graph on the sizes of these inputs.
    fn specialized(&self, inputs: &[(String, Tensor)]) -> Result<Graph> {
        let named: HashMap<String, Tensor> = inputs.iter().cloned().collect();
        self.graph.specialize(&self.graph.bind_symbols(&named)?)
    }

    fn planner(&self, device: Device, gpu: Option<&OnGpu>) -> Planner {
        Planner {
            options: plan::Options {
                // A GPU refuses what exceeds its memory when the plan is loaded.
                memory: self.options.memory.unwrap_or(match device.is_host() {
                    true => memory::budget(),
                    false => isize::MAX as usize,
                }),
                tf32: self.options.tf32,
                allowed: self.options.optimize.allowed(),
                ..plan::Options::new(device)
            },
            gpu: gpu.cloned(),
            threads: self.options.threads,
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

    /// How far an output may differ from its reference, for each output: see [`crate::compare`].
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
        Ok(plan.insert(Arc::new(self.compile_new(inputs, &ordered)?)).clone())
    }

    /// Runs once; the results are in the order of the model's outputs.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
        self.compile(inputs)?.executor.run(&self.order(inputs)?)
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

    fn compile_new(&self, inputs: &[(String, Tensor)], ordered: &[Tensor]) -> Result<Compiled> {
        let gpu = self.options.gpu.as_ref();
        let planner = self.planner(gpu.map_or_else(Device::cpu, |on| on.profile()), gpu);
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner).take();
        let early = early.filter(|a| {
            a.shapes == shapes(ordered) && a.optimize == self.options.optimize && a.plan == planner.options
        });
        let (graph, optimized, fused) = match early {
            Some(a) => (a.graph, a.optimized, Some(a.fused)),
            None => {
                let graph = self.specialized(inputs)?;
                let optimized = pipeline::optimize(&graph, &self.options.optimize)?;
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
                Some(Verdict::Differ(why)) => {
                    let refusal = Some(Refusal { reason: why });
                    planner.plan(&graph, false, gpu).map(|e| (e, Checked::Before, refusal))
                }
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
                (None, None) => return Ok(None),
            };
            planner.executor(plan, once.as_ref())?.run(inputs).map(Some)
        })?;
        let verdict = why.map_or(Verdict::Agree, |why| Verdict::Differ(describe(&why, &compiled.report)));
        if let Some(memory) = memory {
            memory.keep(&verdict);
        }
        compiled.checked = Checked::Now;
        if let Verdict::Differ(why) = verdict {
            compiled.refusal = Some(Refusal { reason: why });
            compiled.executor = planner.plan(&compiled.unfused.graph, false, gpu)?;
        }
        Ok(compiled)
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
        let settings = format!("tf32 {} approx {:?} without {disabled:?}", self.options.tf32, allowed.approx);
        VerdictEntry::of(self.options.verdicts.as_ref()?, &Subject { given, fused, machine, settings })
    }

    /// Describes how the results of the fused and the unfused plan differ, if they do. `precise`
    /// runs the unfused graph in f32 where it is narrower: both plans may be far apart by rounding
    /// alone, if neither is further from that result than the other.
    fn difference(
        &self,
        compiled: &Compiled,
        inputs: &[Tensor],
        precise: impl Fn() -> Result<Option<Vec<Tensor>>>,
    ) -> Result<Option<String>> {
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
            if !truth.is_some_and(|t| no_less_precise(g, w, t)) {
                return Ok(Some(format!("output `{name}` {c}")));
            }
        }
        Ok(None)
    }
}

fn shapes(inputs: &[Tensor]) -> Vec<Vec<usize>> {
    inputs.iter().map(|t| t.shape().to_vec()).collect()
}

/// Describes the difference and names the rules that may be wrong. A rule whose right side is a
/// part of its left side leaves no node of its own, so rules that fired without a trace in the
/// result are named too.
fn describe(why: &str, report: &Report) -> String {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use super::*;
    use hypatia_library as library;
    use hypatia_tensor::npz;

    fn model(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name)
    }

    /// The largest error relative to the largest reference value, over all outputs.
    fn error(name: &str, rules: bool) -> (f64, usize, usize) {
        let program = library::load(&[]).unwrap();
        let mut options = Options { threads: 2, ..Options::default() };
        options.optimize.no_rules = !rules;
        let m = Model::load(&model(name).join("model.onnx"), program, options).unwrap();
        let inputs = npz::read(&model(name).join("inputs.npz")).unwrap();
        let want = npz::read(&model(name).join("outputs.npz")).unwrap();
        let compiled = m.compile(&inputs).unwrap();
        assert_eq!(compiled.warnings(), [] as [String; 0]);
        let got = m.run(&inputs).unwrap();
        let mut worst = 0.0f64;
        for (name, got) in m.outputs().iter().zip(&got) {
            let (_, want) = want.iter().find(|(n, _)| n == name).unwrap();
            let c = Comparison::of(got, want, Tolerance::of(want.dtype(), 1)).unwrap();
            assert!(c.ok, "{c}");
            worst = worst.max(c.max_error / c.max_reference);
        }
        (worst, compiled.unfused().unwrap().plan().launches(), compiled.executor.plan().launches())
    }

    #[test]
    fn models_give_their_expected_outputs_with_and_without_rules() {
        for name in ["digits", "ffn", "bert"] {
            let (plain, before, _) = error(name, false);
            let (fused, _, after) = error(name, true);
            assert!(plain < 1e-5, "{name} without rules is off by {plain}");
            assert!(fused < 1e-5, "{name} with rules is off by {fused}");
            assert!(after < before, "{name}: {before} launches became {after}");
        }
    }

    #[test]
    fn an_early_plan_is_used_for_the_same_inputs_and_settings() {
        let program = library::load(&[]).unwrap();
        let load = |options| Model::load(&model("digits").join("model.onnx"), program.clone(), options).unwrap();
        let inputs = npz::read(&model("digits").join("inputs.npz")).unwrap();
        let (name, x) = &inputs[0];
        let fewer = Tensor::zeros(x.dtype(), &[&[1], &x.shape()[1..]].concat()).unwrap();
        let others = [(name.clone(), fewer)];
        let no_rules = |optimize: optimize::Options| optimize::Options { no_rules: true, ..optimize };
        let plain = Options { threads: 2, ..Options::default() };
        let changed = Options { optimize: no_rules(plain.optimize.clone()), ..plain.clone() };
        let more = Options { memory: Some(memory::budget() / 2), ..plain.clone() };
        for (what, device, options, given, used) in [
            ("the same", Device::cpu(), &plain, &inputs[..], true),
            ("other sizes", Device::cpu(), &plain, &others[..], false),
            ("another device", Device::named("h200").unwrap(), &plain, &inputs[..], false),
            ("other rules", Device::cpu(), &changed, &inputs[..], false),
            ("other memory", Device::cpu(), &more, &inputs[..], false),
        ] {
            let model = load(plain.clone());
            model.plan_ahead(&device, given);
            let made = model.early.lock().unwrap().as_ref().map(|a| a.fused.clone()).unwrap();
            let model = model.with_options(options.clone());
            let compiled = model.compile(&inputs).unwrap();
            assert_eq!(std::ptr::eq(&*made, compiled.executor.plan()), used, "{what}");
            let want = load(options.clone()).run(&inputs).unwrap();
            assert_eq!(model.run(&inputs).unwrap()[0].bytes(), want[0].bytes(), "{what}");
        }
    }

    #[test]
    fn a_wrong_rule_is_caught_and_named_and_the_unfused_plan_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wrong.hyp");
        let rule = "rule wrong::dropped: relu(x) => x;";
        std::fs::write(
            &path,
            format!("edition 1;\nuse core::*;\nuse nn::*;\nruleset wrong {{ until = fixpoint; }}\n{rule}\n"),
        )
        .unwrap();
        let inputs = npz::read(&model("digits").join("inputs.npz")).unwrap();
        let want = npz::read(&model("digits").join("outputs.npz")).unwrap();
        let load = |check: CheckMode| {
            let program = library::load(std::slice::from_ref(&path)).unwrap();
            let options = Options { threads: 1, check, ..Options::default() };
            Model::load(&model("digits").join("model.onnx"), program, options).unwrap()
        };
        let m = load(CheckMode::Check);
        let compiled = m.compile(&inputs).unwrap();
        assert_eq!(compiled.warnings().len(), 1);
        let warning = compiled.refusal.as_ref().unwrap().to_string();
        assert!(warning.contains("wrong::dropped") && warning.contains("not used"), "{warning}");
        assert_eq!(compiled.executor.plan().launches(), compiled.unfused().unwrap().plan().launches());
        let agrees = |m: &Model| {
            let got = &m.run(&inputs).unwrap()[0];
            Comparison::of(got, &want[0].1, Tolerance::of(want[0].1.dtype(), 1)).unwrap().ok
        };
        assert!(agrees(&m));
        // Unchecked, the rule does what it says.
        let m = load(CheckMode::Off);
        assert!(m.compile(&inputs).unwrap().refusal.is_none() && !agrees(&m));
    }

    /// The digits model with a rule of the user's own, as a process that starts now would load it.
    fn start(rule: &str, store: &Arc<Store>, change: impl FnOnce(&mut Options, &mut Graph)) -> Arc<Compiled> {
        let path = store.folder().with_file_name("own.hyp");
        let head = "edition 1;\nuse core::*;\nuse nn::*;\nruleset own { until = fixpoint; }";
        std::fs::write(&path, format!("{head}\n{rule}\n")).unwrap();
        let program = library::load(&[path]).unwrap();
        let mut options = Options { threads: 1, verdicts: Some(store.clone()), ..Options::default() };
        let mut graph =
            pipeline::load(&model("digits").join("model.onnx"), program, &import::Options::default()).unwrap().graph;
        change(&mut options, &mut graph);
        let inputs = npz::read(&model("digits").join("inputs.npz")).unwrap();
        Model::new(graph, options).compile(&inputs).unwrap()
    }

    fn store() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), hypatia_cache::Kind::Verdict));
        (folder, store)
    }

    #[test]
    fn a_second_start_makes_no_second_plan_until_something_changes() {
        let (_folder, store) = store();
        let same = |_: &mut Options, _: &mut Graph| {};
        let first = start("", &store, same);
        assert_eq!((first.checked, first.unfused.made.get().is_some()), (Checked::Now, true));
        let second = start("", &store, same);
        assert_eq!((second.checked, second.unfused.made.get().is_some()), (Checked::Before, false));
        assert_eq!(second.executor.plan().launches(), first.executor.plan().launches());
        assert!(second.unfused().unwrap().plan().launches() > second.executor.plan().launches());

        assert_eq!(start("", &store, |o, _| o.recheck = true).checked, Checked::Now);
        assert_eq!(start("", &store, |o, _| o.check = CheckMode::Off).checked, Checked::Never);
        assert_eq!(start("", &store, |o, _| o.threads = 2).checked, Checked::Now);
        assert_eq!(start("", &store, |o, _| o.tf32 = true).checked, Checked::Now);
        assert_eq!(start("rule own::add: x + 0 => x;", &store, same).checked, Checked::Now);
        let one_bit = |_: &mut Options, g: &mut Graph| {
            let weight = g.nodes.iter_mut().find_map(|n| match &mut n.kind {
                NodeKind::Const(t) if t.bytes().len() > 64 => Some(t),
                _ => None,
            });
            let weight = weight.unwrap();
            let mut bytes = weight.bytes().to_vec();
            bytes[8] ^= 1;
            *weight = Arc::new(Tensor::from_bytes(weight.dtype(), weight.shape(), &bytes).unwrap());
        };
        assert_eq!(start("", &store, one_bit).checked, Checked::Now);
        assert_eq!(start("", &store, one_bit).checked, Checked::Before);

        assert_eq!(start("", &store, same).checked, Checked::Before);
        for seen in store.list().unwrap() {
            std::fs::write(&seen.path, "damaged").unwrap();
        }
        assert_eq!(start("", &store, same).checked, Checked::Now);
        store.clear().unwrap();
        assert_eq!(start("", &store, same).checked, Checked::Now);
        assert_eq!(start("", &store, same).checked, Checked::Before);
    }

    #[test]
    fn a_plan_that_was_refused_stays_refused_with_its_reason() {
        let (_folder, store) = store();
        let rule = "rule own::dropped: relu(x) => x;";
        let first = start(rule, &store, |_, _| {});
        assert_eq!((first.checked, first.warnings().len()), (Checked::Now, 1));
        let second = start(rule, &store, |_, _| {});
        assert_eq!((second.checked, &second.refusal), (Checked::Before, &first.refusal));
        assert!(second.warnings()[0].contains("own::dropped"));
        assert_eq!(second.executor.plan().launches(), first.unfused().unwrap().plan().launches());
        assert!(second.unfused.made.get().is_none());
    }

    #[test]
    fn a_missing_input_is_named() {
        let program = library::load(&[]).unwrap();
        let m = Model::load(&model("digits").join("model.onnx"), program, Options::default()).unwrap();
        let e = m.run(&[]).unwrap_err().to_string();
        assert!(e.contains("missing"), "{e}");
        let wrong = vec![("nonsense".to_string(), Tensor::zeros(hypatia_dsl::dtype::DType::F32, &[1]).unwrap())];
        let e = m.run(&wrong).unwrap_err().to_string();
        assert!(e.contains("nonsense"), "{e}");
    }

    /// A test's `given` as a model, with random inputs, and the program of its file.
    fn given(text: &str) -> (Model, Vec<(String, Tensor)>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.hyp");
        std::fs::write(&file, format!("edition 1;\nuse core::*;\nuse nn::*;\n{text}")).unwrap();
        let program = library::load(&[file]).unwrap();
        let (graph, inputs) = hypatia_verify::test_runner::given(&program, program.tests.last().unwrap()).unwrap();
        (Model::new(graph, Options { threads: 2, ..Options::default() }), inputs)
    }

    #[test]
    fn a_model_that_computes_in_f16_keeps_its_fusions_whatever_it_returns() {
        let (model, inputs) = given(
            "test \"t\" { input x: f16[32, 64]; const w: f16[64, 48]; const b: f16[48];
               given cast(silu(matmul(x, w) + b), to = f32); expect launches == 1; }",
        );
        let compiled = model.compile(&inputs).unwrap();
        assert_eq!(compiled.warnings(), [] as [String; 0]);
        assert!(compiled.executor.plan().launches() < compiled.unfused().unwrap().plan().launches());
    }

    #[test]
    fn a_wrong_rule_is_found_beside_large_numbers() {
        for given_text in ["concat(gelu(x), x * 1e5, axis = 1)", "select(lt(x, 0.5), gelu(x), -3.4e38)"] {
            let (model, inputs) = given(&format!(
                "ruleset t {{ until = fixpoint; }}
                 rule t::bad: gelu(x) => relu(x) class exact;
                 test \"t\" {{ input x: f32[16, 64]; given {given_text}; expect launches >= 1; }}"
            ));
            let compiled = model.compile(&inputs).unwrap();
            assert_eq!(compiled.warnings().len(), 1, "{given_text}");
            assert!(compiled.warnings()[0].contains("t::bad"), "{}", compiled.warnings()[0]);
        }
    }
}
