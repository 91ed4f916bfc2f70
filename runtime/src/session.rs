//! The front door of the library: a model, its rules, and runs.
//!
//! In: a model file and a Program. Out: results of runs, and reports of what was done. Holds always: one
//! plan for each combination of input shapes, made when it is first needed; in CHECK mode a new plan is
//! compared once with the unfused plan on the inputs at hand, and if they differ, the unfused plan is
//! used and the report names the rules that fired.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hypatia_dsl::ir::Program;

use crate::cpu::Executor;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::import;
use crate::graph::{Graph, NodeKind};
use crate::optimize::{self, Report, optimize};
use crate::plan::{self, Constants, Plan};
use crate::tensor::Tensor;

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
    /// Threads; 0 means one for each core.
    pub threads: usize,
    /// Bytes that intermediate results and outputs may take.
    pub memory: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { optimize: optimize::Options::default(), check: CheckMode::Check, threads: 0, memory: plan::MEMORY }
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
        Ok(Model::new(import::load_with(path, program, &import::Options { shapes })?.graph, options))
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

    /// The plan for these inputs, made now if there is none.
    pub fn compile(&self, inputs: &[(String, Tensor)]) -> Result<Arc<Compiled>> {
        let ordered = self.order(inputs)?;
        let key: Vec<Vec<usize>> = ordered.iter().map(|t| t.shape().to_vec()).collect();
        if let Some(found) = self.plans.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(found.clone());
        }
        let compiled = Arc::new(self.compile_new(inputs, &ordered)?);
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
        let device = Device::cpu();
        let planned = |graph: &Graph, cluster: bool| -> Result<Executor> {
            let options = plan::Options { cluster, memory: self.options.memory, ..plan::Options::new(device.clone()) };
            let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
            let plan = Plan::build_with(graph, &options, &mut constants)?;
            Executor::new(Arc::new(plan), self.options.threads)
        };
        let unfused = planned(&graph, false)?;
        if self.options.optimize.no_rules {
            let executor = planned(&graph, false)?;
            return Ok(Compiled { executor, unfused, report: optimized.report, warnings: Vec::new() });
        }
        let executor = planned(&optimized.graph, true)?;
        let mut compiled = Compiled { executor, unfused, report: optimized.report, warnings: Vec::new() };
        if self.options.check == CheckMode::Check
            && let Some(why) = self.difference(&compiled, ordered)?
        {
            let mut rules: Vec<&str> =
                compiled.report.firings.iter().filter(|f| f.kept).map(|f| f.base.as_str()).collect();
            rules.sort_unstable();
            rules.dedup();
            let rules = rules.join(", ");
            compiled.warnings.push(format!(
                "the fused plan is not used: {why}. One of these rules is wrong: {rules}. `hypatia verify` finds out which"
            ));
            compiled.executor = planned(&graph, false)?;
        }
        Ok(compiled)
    }

    /// What differs between the fused and the unfused plan, if anything does.
    fn difference(&self, compiled: &Compiled, inputs: &[Tensor]) -> Result<Option<String>> {
        let got = compiled.executor.run(inputs)?;
        let want = compiled.unfused.run(inputs)?;
        for ((name, _), (g, w)) in self.graph.outputs.iter().zip(got.iter().zip(&want)) {
            let c = Comparison::of(g, w)?;
            if !c.ok {
                return Ok(Some(format!("output `{name}` {c}")));
            }
        }
        Ok(None)
    }
}

/// Two tensors side by side.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// The largest absolute difference; infinite if NaN or infinities do not agree.
    pub max_error: f64,
    /// The largest finite absolute value of the reference.
    pub max_reference: f64,
    /// What the difference may be.
    pub bound: f64,
    /// Index of the largest difference, in row-major order.
    pub worst: usize,
    /// True if the difference is within the bound.
    pub ok: bool,
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.ok { "agrees" } else { "differs" };
        write!(f, "{what}: max |error| {:.3e}, max |reference| {:.3e}", self.max_error, self.max_reference)?;
        write!(f, ", allowed {:.3e} (element {})", self.bound, self.worst)
    }
}

impl Comparison {
    /// Compares a result with its reference. Floats may differ by 1e-4 of the largest reference value (f16
    /// and bf16 by some units in the last place of theirs); all else must be equal.
    pub fn of(got: &Tensor, want: &Tensor) -> Result<Comparison> {
        if got.dtype().is_float() != want.dtype().is_float() || got.shape() != want.shape() {
            let show = |t: &Tensor| format!("{}{:?}", t.dtype(), t.shape());
            return Err(Error::Input(format!("the result is {}, the reference {}", show(got), show(want))));
        }
        let (g, w) = (got.to_f64(), want.to_f64());
        let mut c = Comparison { max_error: 0.0, max_reference: 0.0, bound: 0.0, worst: 0, ok: false };
        for (i, (g, w)) in g.iter().zip(&w).enumerate() {
            if w.is_finite() {
                c.max_reference = c.max_reference.max(w.abs());
            }
            let error = if g == w || (g.is_nan() && w.is_nan()) { 0.0 } else { (g - w).abs() };
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if error > c.max_error {
                (c.max_error, c.worst) = (error, i);
            }
        }
        let epsilon = got.dtype().epsilon().max(want.dtype().epsilon());
        if got.dtype().is_float() {
            c.bound = c.max_reference * (8.0 * epsilon).max(1e-4);
        }
        c.ok = c.max_error <= c.bound;
        Ok(c)
    }
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
            let c = Comparison::of(got, want).unwrap();
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
    fn a_missing_input_is_named() {
        let program = library::load(&[]).unwrap();
        let m = Model::load(&model("digits").join("model.onnx"), program, Options::default()).unwrap();
        let e = m.run(&[]).unwrap_err().to_string();
        assert!(e.contains("missing"), "{e}");
        let wrong = vec![("nonsense".to_string(), Tensor::zeros(hypatia_dsl::dtype::DType::F32, &[1]).unwrap())];
        let e = m.run(&wrong).unwrap_err().to_string();
        assert!(e.contains("nonsense"), "{e}");
    }
}
