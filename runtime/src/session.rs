//! The front door of the library: a model, its rules, and runs.
//!
//! In: a model file and a Program. Out: results of runs, and reports of what was done. Holds always: one
//! plan for each combination of input shapes, made when it is first needed; in CHECK mode a new plan is
//! compared once with the unfused plan on the inputs at hand, and if they differ, the unfused plan is
//! used and the report names the rules that fired.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;

use crate::cuda::Gpu;
use crate::cuda::tune::Tuner;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::executor::{Executor, OnGpu};
use crate::graph::import;
use crate::graph::{Graph, NodeKind};
use crate::memory;
use crate::optimize::{self, Report, optimize};
use crate::plan::{self, Constants, Plan};
use crate::tensor::Tensor;

use crate::compare::no_less_precise;
pub use crate::compare::{Comparison, Tolerance};

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
    /// Bytes that intermediate results and outputs may take.
    pub memory: usize,
    /// Let a GPU round the operands of f32 products to TF32. Results agree to about 1e-3 then.
    pub tf32: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            optimize: optimize::Options::default(),
            check: CheckMode::Check,
            gpu: None,
            threads: 0,
            memory: memory::budget(),
            tf32: false,
        }
    }
}

impl Options {
    /// The same, on that GPU, with that choice of algorithms: costs are those of the GPU's profile.
    pub fn on(mut self, gpu: Arc<Gpu>, tuner: Tuner) -> Options {
        self.optimize.device = gpu.profile();
        self.gpu = Some(OnGpu { gpu, tuner: Arc::new(Mutex::new(tuner)) });
        self
    }
}

/// A model with its rules.
pub struct Model {
    graph: Graph,
    options: Options,
    plans: Mutex<HashMap<Vec<Vec<usize>>, Arc<Compiled>>>,
    constants: Mutex<Constants>,
}

/// A plan for some input shapes, ready to run.
pub struct Compiled {
    /// What runs.
    pub executor: Executor,
    /// The plan without any rule: what the rules are measured against.
    pub unfused: Executor,
    /// What the optimiser did.
    pub report: Report,
    /// What is worth telling: in CHECK mode that a fused plan was wrong and is not used.
    pub warnings: Vec<String>,
}

impl Model {
    /// Loads a model file.
    pub fn load(path: &Path, program: Arc<Program>, options: Options) -> Result<Model> {
        Ok(Model::new(import::load(path, program)?, options))
    }

    /// Loads a model file whose dynamic sizes are those of these inputs: for models whose shapes cannot be
    /// worked out without them.
    pub fn load_for(
        path: &Path,
        program: Arc<Program>,
        options: Options,
        inputs: &[(String, Tensor)],
    ) -> Result<Model> {
        let shapes = inputs.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        Ok(Model::new(
            import::load_with(path, program, &import::Options { shapes, ..Default::default() })?.graph,
            options,
        ))
    }

    /// A model from a graph.
    pub fn new(graph: Graph, options: Options) -> Model {
        Model { graph, options, plans: Mutex::default(), constants: Mutex::default() }
    }

    /// The graph as imported.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Names of the outputs, in order.
    pub fn outputs(&self) -> Vec<&str> {
        self.graph.outputs.iter().map(|(n, _)| n.as_str()).collect()
    }

    /// What may differ between an output and a reference for it, for each output: see [`crate::compare`].
    pub fn tolerances(&self) -> Vec<Tolerance> {
        let mut tolerances = Tolerance::of_outputs(&self.graph);
        if self.options.tf32 && self.options.gpu.is_some() {
            // TF32 keeps as many bits as f16 does.
            let coarse = Tolerance::of(DType::F16, 1).rtol;
            tolerances.iter_mut().for_each(|t| t.rtol = t.rtol.max(coarse));
        }
        tolerances
    }

    /// The plan for these inputs, made now if there is none.
    pub fn compile(&self, inputs: &[(String, Tensor)]) -> Result<Arc<Compiled>> {
        let ordered = self.order(inputs)?;
        let key: Vec<Vec<usize>> = ordered.iter().map(|t| t.shape().to_vec()).collect();
        if let Some(found) = self.plans.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(found.clone());
        }
        let compiled = Arc::new(self.compile_new(inputs, &ordered)?);
        if let Some(on) = &self.options.gpu {
            // Tunings that cannot be kept cost time at the next start and nothing else.
            let _ = on.tuner.lock().unwrap_or_else(PoisonError::into_inner).save();
        }
        self.plans.lock().unwrap_or_else(PoisonError::into_inner).insert(key, compiled.clone());
        Ok(compiled)
    }

    /// Runs once; the results stand in the order of the model's outputs.
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
        found.ok_or_else(|| Error::Internal("an input that was bound is missing".into()))
    }

    fn compile_new(&self, inputs: &[(String, Tensor)], ordered: &[Tensor]) -> Result<Compiled> {
        let named: HashMap<String, Tensor> = inputs.iter().cloned().collect();
        let graph = self.graph.specialize(&self.graph.bind_symbols(&named)?)?;
        let optimized = optimize(&graph, &self.options.optimize)?;
        let gpu = self.options.gpu.as_ref();
        let device = gpu.map_or_else(Device::cpu, |on| on.gpu.profile());
        let planned = |graph: &Graph, cluster: bool, gpu: Option<&OnGpu>| -> Result<Executor> {
            let options = plan::Options {
                cluster,
                memory: self.options.memory,
                tf32: self.options.tf32,
                ..plan::Options::new(device.clone())
            };
            let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
            let plan = Plan::build_with(graph, &options, &mut constants)?;
            Executor::new(Arc::new(plan), gpu, self.options.threads)
        };
        if self.options.optimize.no_rules {
            let (executor, unfused) = (planned(&graph, false, gpu)?, planned(&graph, false, gpu)?);
            return Ok(Compiled { executor, unfused, report: optimized.report, warnings: Vec::new() });
        }
        // What will run is planned first: it has the time that there is for measuring.
        let executor = planned(&optimized.graph, true, gpu)?;
        let unfused = planned(&graph, false, gpu)?;
        let mut compiled = Compiled { executor, unfused, report: optimized.report, warnings: Vec::new() };
        if self.options.check == CheckMode::Check
            && let Some(why) = self.difference(&compiled, ordered, || {
                let widened = if graph.computes_narrow() { Some(graph.widened()?) } else { None };
                let once = gpu.map(OnGpu::untuned);
                widened.map(|g| planned(&g, false, once.as_ref())?.run(ordered)).transpose()
            })?
        {
            compiled.warnings.push(not_used(&why, &compiled.report));
            compiled.executor = planned(&graph, false, gpu)?;
        }
        Ok(compiled)
    }

    /// What differs between the fused and the unfused plan, if anything does. `precise` runs the unfused graph in f32
    /// where it is narrower: rounding may take both far from each other, and neither further from that than the other.
    fn difference(
        &self,
        compiled: &Compiled,
        inputs: &[Tensor],
        precise: impl Fn() -> Result<Option<Vec<Tensor>>>,
    ) -> Result<Option<String>> {
        let got = compiled.executor.run(inputs)?;
        let want = compiled.unfused.run(inputs)?;
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

/// How a warning begins that tells of a fused plan that was wrong.
pub const NOT_USED: &str = "the fused plan is not used: ";

/// What to tell of a fused plan that was wrong. A rule whose right side is a part of its left one leaves nothing
/// of its own behind, so rules that fired and are not seen in the result are named too.
fn not_used(why: &str, report: &Report) -> String {
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
        _ => format!("{}; or, of those that left no trace: {}", list(&seen), list(&unseen)),
    };
    format!(
        "{NOT_USED}{why}. One of these rules is wrong (your own first of all): {all}. \
         `hypatia verify` finds out which"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use super::*;
    use crate::{library, npz};

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
        assert_eq!(compiled.warnings, [] as [String; 0]);
        let got = m.run(&inputs).unwrap();
        let mut worst = 0.0f64;
        for (name, got) in m.outputs().iter().zip(&got) {
            let (_, want) = want.iter().find(|(n, _)| n == name).unwrap();
            let c = Comparison::of(got, want, Tolerance::of(want.dtype(), 1)).unwrap();
            assert!(c.ok, "{c}");
            worst = worst.max(c.max_error / c.max_reference);
        }
        (worst, compiled.unfused.plan().launches(), compiled.executor.plan().launches())
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
        assert_eq!(compiled.warnings.len(), 1);
        let warning = &compiled.warnings[0];
        assert!(warning.contains("wrong::dropped") && warning.contains("not used"), "{warning}");
        assert_eq!(compiled.executor.plan().launches(), compiled.unfused.plan().launches());
        let agrees = |m: &Model| {
            let got = &m.run(&inputs).unwrap()[0];
            Comparison::of(got, &want[0].1, Tolerance::of(want[0].1.dtype(), 1)).unwrap().ok
        };
        assert!(agrees(&m));
        // Unchecked, the rule does what it says.
        let m = load(CheckMode::Off);
        assert!(m.compile(&inputs).unwrap().warnings.is_empty() && !agrees(&m));
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
        let (graph, inputs) = crate::test_runner::given(&program, program.tests.last().unwrap()).unwrap();
        (Model::new(graph, Options { threads: 2, ..Options::default() }), inputs)
    }

    #[test]
    fn a_model_that_computes_in_f16_keeps_its_fusions_whatever_it_returns() {
        let (model, inputs) = given(
            "test \"t\" { input x: f16[32, 64]; const w: f16[64, 48]; const b: f16[48];
               given cast(silu(matmul(x, w) + b), to = f32); expect launches == 1; }",
        );
        let compiled = model.compile(&inputs).unwrap();
        assert_eq!(compiled.warnings, [] as [String; 0]);
        assert!(compiled.executor.plan().launches() < compiled.unfused.plan().launches());
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
            assert_eq!(compiled.warnings.len(), 1, "{given_text}");
            assert!(compiled.warnings[0].contains("t::bad"), "{}", compiled.warnings[0]);
        }
    }
}
