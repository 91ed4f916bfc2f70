//! Models: an ONNX file or a graph, with rules and settings.
//!
//! In: a path or a graph, a Program, settings. Out: plans, results of runs, reports. Invariant: a
//! setting that names nothing is an error before anything is compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hypatia::session::{self, Options};
use hypatia_cuda::Gpu;
use hypatia_cuda::tuner::{Effort, Tuner};
use hypatia_dsl::ir::{Clause, Program};
use hypatia_dsl::numerics::Numerics;
use hypatia_graph::{Graph, NodeKind, fusions};
use hypatia_onnx::import;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_target::device::Device;
use hypatia_tensor::{Error, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::raised;
use crate::memory;
use crate::plan::Plan;
use crate::rules::Rules;
use crate::sizes::sizes;

/// A model with its rules. Threads may share it.
#[pyclass(frozen, module = "hypatia_core._native")]
pub struct Model {
    model: session::Model,
}

/// Settings of a model, by the names of `hypatia_core.Model`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    device: String,
    threads: usize,
    safety: String,
    compare_every: u64,
    incidents: Option<PathBuf>,
    use_rules: bool,
    disable: Vec<String>,
    numerics: Option<String>,
    must: Vec<String>,
    never: Vec<String>,
    tf32: bool,
    batch_invariant: bool,
}

impl Settings {
    /// The settings that are given; all must be.
    pub fn of(given: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
        let missing = || crate::errors::wrong_input("the settings of the model are missing");
        given.ok_or_else(missing)?.extract()
    }

    fn optimizer(&self, graph: &Graph) -> Result<optimize::Options, Error> {
        let program = &graph.program;
        for name in &self.disable {
            let known = program.rules.iter().any(|r| r.name == *name || r.base_name == *name)
                || program.rulesets.iter().any(|r| r.name == *name);
            if !known {
                return Err(Error::Input(format!("disable: there is no rule or ruleset `{name}`")));
            }
        }
        let wrong =
            |text: &String| Error::Input(format!("numerics: expected `exact`, `rounds` or `fast`, not `{text}`"));
        let numerics =
            self.numerics.as_ref().map(|text| Numerics::named(text).ok_or_else(|| wrong(text))).transpose()?;
        Ok(optimize::Options {
            no_rules: !self.use_rules,
            disabled: self.disable.iter().cloned().collect(),
            numerics: numerics.unwrap_or_default(),
            contract: self.contract(program)?,
            ..optimize::Options::default()
        })
    }

    fn contract(&self, program: &Program) -> Result<Vec<Clause>, Error> {
        let must = self.must.iter().map(|text| Clause::must(text).map_err(|e| Error::Input(format!("must: {e}"))));
        let never = self.never.iter().map(|rule| Ok(Clause::never(rule)));
        let clauses = must.chain(never).collect::<Result<Vec<Clause>, Error>>()?;
        let known = |c: &Clause| {
            program.rules.iter().any(|r| c.names(program, r)) || program.rulesets.iter().any(|s| s.name == c.rule)
        };
        match clauses.iter().find(|c| !known(c)) {
            Some(clause) => Err(Error::Input(format!("{clause}: there is no rule or ruleset of that name"))),
            None => Ok(clauses),
        }
    }

    fn options(&self, graph: &Graph) -> Result<Options, Error> {
        let options = Options {
            optimize: self.optimizer(graph)?,
            safety: self.safety.parse()?,
            compare_every: self.compare_every,
            incidents: self.incidents.clone(),
            threads: self.threads,
            tf32: self.tf32,
            batch_invariant: self.batch_invariant,
            ..Options::default()
        };
        let gpu = match self.device.as_str() {
            "cpu" => None,
            "cuda" => Some(Gpu::open(0)?),
            "auto" => Gpu::open(0).ok(),
            other => match other.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Some(Gpu::open(ordinal)?),
                _ => {
                    let known = "`cpu`, `cuda`, `cuda:1` or `auto`";
                    return Err(Error::Input(format!("the device is {known}, not `{other}`")));
                }
            },
        };
        let tuner = || Tuner::of_user(Duration::from_secs(5), Effort::Unknown);
        Ok(match gpu {
            Some(gpu) => options.on(gpu, tuner()),
            None => options.remembering(),
        })
    }
}

/// The name of an input, its element type and its sizes; a dynamic size is a string.
type Port<'py> = (String, &'static str, Bound<'py, PyTuple>);

/// Name, formula, names of the given graph's nodes.
type Fusion = (String, String, Vec<String>);

/// The name of an input, its memory and its shape.
type Array<'py> = (String, Bound<'py, PyAny>, Vec<usize>);
type Arrays<'py> = Vec<Array<'py>>;

#[pymethods]
impl Model {
    /// Loads an ONNX file. `dims` are numbers for its dynamic sizes, `shapes` the shapes of its
    /// inputs, where its shapes cannot be worked out without them.
    #[staticmethod]
    #[pyo3(signature = (path, rules, dims, shapes, **settings))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        rules: &Rules,
        dims: BTreeMap<String, i64>,
        shapes: BTreeMap<String, Vec<usize>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Model> {
        let settings = Settings::of(settings)?;
        let options = import::Options { dims, shapes, ..Default::default() };
        let program = rules.program.clone();
        py.detach(|| {
            let graph = pipeline::load(&path, program, &options)?.graph;
            let options = settings.options(&graph)?;
            Ok(Model { model: session::Model::new(graph, options) })
        })
        .map_err(raised)
    }

    /// Name, element type and sizes of each input.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Port<'py>>> {
        let graph = self.model.graph();
        let nodes = graph.inputs.iter().map(|id| graph.node(*id));
        let named = nodes.filter_map(|n| match &n.kind {
            NodeKind::Input { name } => Some((name, &n.results[0])),
            _ => None,
        });
        named.map(|(name, ty)| Ok((name.clone(), ty.dtype.name(), sizes(py, &ty.shape)?))).collect()
    }

    /// Name, element type and sizes of each output.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Port<'py>>> {
        let graph = self.model.graph();
        let typed = graph.outputs.iter().map(|(name, value)| (name, graph.ty(*value)));
        typed.map(|(name, ty)| Ok((name.clone(), ty.dtype.name(), sizes(py, &ty.shape)?))).collect()
    }

    /// The plan for inputs of these shapes, made now if there is none. `arrays` are (name, memory,
    /// shape); a new plan is compared with the unfused one on their values.
    fn compile(&self, py: Python<'_>, arrays: Arrays<'_>) -> PyResult<Plan> {
        let inputs = tensors(&arrays)?;
        let compiled = py.detach(|| self.model.compile(&inputs)).map_err(raised)?;
        Ok(Plan::of(compiled))
    }

    /// What the rules do on a target, as text and as JSON: for inputs of these shapes if there are
    /// any, else for the sizes that the model knows.
    #[pyo3(signature = (target, arrays = None))]
    fn explain(&self, py: Python<'_>, target: &str, arrays: Option<Arrays<'_>>) -> PyResult<(String, String)> {
        let inputs = arrays.as_ref().map(|a| tensors(a)).transpose()?;
        py.detach(|| {
            let graph = self.graph_for(inputs.as_deref())?;
            let options = self.options_for(target)?;
            let mut optimized = pipeline::optimize(&graph, &options)?;
            pipeline::count_launches(&mut optimized, &graph, &options);
            let json = serde_json::to_string(&optimized.report).map_err(|e| Error::Internal(e.to_string()))?;
            Ok((optimized.report.to_string(), json))
        })
        .map_err(raised)
    }

    /// The fusions of the optimised graph: name, formula, and the names of the nodes that became
    /// one.
    fn fusions(&self, py: Python<'_>, target: &str) -> PyResult<Vec<Fusion>> {
        py.detach(|| {
            let optimized = pipeline::optimize(self.model.graph(), &self.options_for(target)?)?;
            let groups = fusions::groups(&optimized.graph)?;
            Ok(groups.iter().filter_map(|group| fusion(&optimized, group)).collect())
        })
        .map_err(raised)
    }

    /// The rules on which the optimised graph depends, by name. Where one of the user's own matches
    /// what another rule has rewritten to the same already, it is named in that rule's place.
    fn fired(&self, py: Python<'_>, target: &str) -> PyResult<BTreeSet<String>> {
        py.detach(|| {
            let graph = self.model.graph();
            let report = pipeline::optimize(graph, &self.options_for(target)?)?.report;
            let rules = &graph.program.rules;
            let is_own = |name: &str| rules.iter().any(|r| r.name == name && !r.origin.is_embedded());
            let own: Vec<_> = report.repeats.iter().filter(|f| f.in_result && is_own(&f.rule)).collect();
            let has_twin = |nodes: &[String]| !nodes.is_empty() && own.iter().any(|f| f.nodes == nodes);
            let others = report.firings.iter().filter(|f| f.kept && (is_own(&f.rule) || !has_twin(&f.nodes)));
            Ok(others.chain(own.iter().copied()).map(|f| f.rule.clone()).collect())
        })
        .map_err(raised)
    }

    /// How close a rule came to firing, as text.
    #[pyo3(signature = (rule, target, node = None))]
    fn why_not(&self, py: Python<'_>, rule: &str, target: &str, node: Option<&str>) -> PyResult<String> {
        py.detach(|| {
            let options = self.options_for(target)?;
            Ok(pipeline::why_not(self.model.graph(), &options, rule, node)?.to_string())
        })
        .map_err(raised)
    }

    /// The graph as text, before any rule.
    fn text(&self) -> String {
        self.model.graph().to_text()
    }
}

impl Model {
    /// A model of a graph.
    pub fn of(graph: Graph, settings: &Settings) -> PyResult<Model> {
        let options = settings.options(&graph).map_err(raised)?;
        Ok(Model { model: session::Model::new(graph, options) })
    }

    fn graph_for(&self, inputs: Option<&[(String, Tensor)]>) -> Result<Graph, Error> {
        let graph = self.model.graph();
        let Some(inputs) = inputs else { return Ok(graph.clone()) };
        graph.specialize(&graph.bind_symbols(&inputs.iter().cloned().collect())?)
    }

    fn options_for(&self, target: &str) -> Result<optimize::Options, Error> {
        let device = Device::named(target).ok_or_else(|| {
            let names: Vec<&str> = Device::names().collect();
            Error::Input(format!("there is no target `{target}`; the targets are {}", names.join(", ")))
        })?;
        Ok(optimize::Options { device, ..self.model.options().optimize.clone() })
    }
}

/// A fusion, with the names of the nodes that it is made of.
fn fusion(optimized: &optimize::Optimized, group: &fusions::Group) -> Option<Fusion> {
    let (name, formula) = group.fused.clone()?;
    let labels = group.nodes.iter().map(|i| optimized.graph.nodes[*i].name.as_str());
    let nodes: BTreeSet<&str> = labels.flat_map(constituents).collect();
    Some((name, formula, nodes.into_iter().map(String::from).collect()))
}

/// The nodes of the model that a joined name stands for.
fn constituents(name: &str) -> impl Iterator<Item = &str> {
    name.split(" + ").filter(|n| !n.is_empty())
}

fn tensors(arrays: &[Array<'_>]) -> PyResult<Vec<(String, Tensor)>> {
    arrays.iter().map(|(name, array, shape)| Ok((name.clone(), memory::tensor(array, shape)?))).collect()
}

/// A model is used by several threads at once.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<session::Model>>();
};
