//! A plan for some input shapes, ready to run, and whether it may be trusted.
//!
//! In: graphs and their plans. Out: a [`Compiled`]. Invariant: the unfused plan is made at most
//! once, when it is first needed.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hypatia_graph::{Constants, Graph, Symbols};
use hypatia_optimize as optimize;
use hypatia_optimize::{Optimized, Report};
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_plan::Plan;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::incident::{Incident, Watched};
use super::strict::{Pending, Strict};
use crate::executor::Executor;
use crate::gpu::OnGpu;

/// A plan for some input shapes, ready to run.
pub struct Compiled {
    /// What runs.
    pub executor: Executor,
    pub(super) unfused: Unfused,
    /// What the optimiser did.
    pub report: Report,
    /// In CHECK mode, why the fused plan was wrong: then one without some rules runs, or the
    /// unfused one.
    pub refusal: Option<Refusal>,
    /// How the plan came to be trusted.
    pub checked: Checked,
    /// In STRICT mode, what watches the runs.
    pub(super) strict: Option<Box<Strict>>,
}

impl Compiled {
    /// What the user should know.
    pub fn warnings(&self) -> Vec<String> {
        let incidents = self.incidents();
        self.refusal.iter().map(Refusal::to_string).chain(incidents.iter().map(Incident::to_string)).collect()
    }

    /// Runs once. The inputs are in the plan's order. In STRICT mode the results are checked, and
    /// right results take the place of wrong ones: see [`Compiled::incidents`].
    ///
    /// # Errors
    /// If the inputs are not the plan's, or, in STRICT mode, if a contract demands rules that had
    /// to be left out.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match &self.strict {
            Some(strict) => strict.run(self, inputs),
            None => self.executor.run(inputs),
        }
    }

    /// The same on memory of the host that the caller holds, see [`Executor::run_in_place`].
    ///
    /// # Errors
    /// As of [`Compiled::run`].
    pub fn run_in_place(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        match &self.strict {
            Some(strict) => strict.run_in_place(self, inputs, outputs),
            None => self.executor.run_in_place(inputs, outputs),
        }
    }

    /// True if a strict run has found the executor to be wrong: a framework that holds the operands
    /// runs [`Compiled::run`] in its place.
    pub fn is_replaced(&self) -> bool {
        self.strict.as_ref().is_some_and(|strict| strict.is_replaced())
    }

    /// What is to be judged of a run of [`Compiled::executor`] in a framework's memory, which has
    /// ended: nothing, as a rule.
    ///
    /// # Errors
    /// If a contract demands rules that had to be left out.
    pub fn watch(&self) -> Result<Option<Pending>> {
        self.strict.as_ref().map_or(Ok(None), |strict| strict.watch(self))
    }

    /// The right results of such a run, given its operands and results.
    ///
    /// # Errors
    /// As of [`Compiled::run`].
    pub fn judged(&self, pending: &Pending, inputs: &[Tensor], got: Vec<Tensor>) -> Result<Vec<Tensor>> {
        match &self.strict {
            Some(strict) => strict.judged(self, pending, inputs, got),
            None => Ok(got),
        }
    }

    /// How much strict runs have checked so far; `None` in another mode.
    pub fn watched(&self) -> Option<Watched> {
        self.strict.as_ref().map(|strict| strict.watched())
    }

    /// What strict runs have found wrong so far, in order.
    pub fn incidents(&self) -> Vec<Incident> {
        self.strict.iter().flat_map(|strict| strict.incidents()).collect()
    }

    /// The plan without any rule, which the rules are measured against. It is made on first use.
    pub fn unfused(&self) -> Result<&Executor> {
        self.unfused.get()
    }
}

/// Why a fused plan, or a part of it, is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What differs, and which rules may be wrong.
    pub reason: String,
    /// The rules without which the plan agrees and runs; none if the unfused plan runs.
    pub without: Vec<String>,
    /// The folder with a small graph that shows it, if one was saved at this start.
    pub saved: Option<PathBuf>,
}

impl Refusal {
    /// True if no rule takes part in what runs.
    pub fn is_whole(&self) -> bool {
        self.without.is_empty()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_whole() {
            true => write!(f, "the fused plan is not used: {}", self.reason),
            false => write!(f, "{} not used: {}", are(&self.without), self.reason),
        }?;
        match &self.saved {
            Some(folder) => write!(f, ". A small graph that shows it is in {}", folder.display()),
            None => Ok(()),
        }
    }
}

/// Rules as the subject of a sentence.
fn are(rules: &[String]) -> String {
    match rules {
        [rule] => format!("the rule {rule} is"),
        rules => format!("the rules {} are", rules.join(", ")),
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
pub(super) struct Unfused {
    pub graph: Graph,
    pub planner: Planner,
    /// The plan, if it has been made.
    pub plan: Option<Arc<Plan>>,
    pub made: OnceLock<Executor>,
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
pub(super) struct Precise {
    pub graph: Graph,
    pub plan: Option<Arc<Plan>>,
}

/// What the rules make of a graph before its sizes are known, and its sizes.
pub(super) struct Open {
    pub optimized: Arc<Optimized>,
    pub sizes: Symbols,
}

/// Makes executors for the graphs of a model.
#[derive(Clone)]
pub(super) struct Planner {
    pub options: plan::Options,
    pub gpu: Option<OnGpu>,
    pub threads: usize,
    /// Executors of the host check their products.
    pub strict: bool,
    pub constants: Arc<Mutex<Constants>>,
}

impl Planner {
    pub fn plan(&self, graph: &Graph, cluster: bool, gpu: Option<&OnGpu>) -> Result<Executor> {
        self.executor(self.build(graph, cluster)?, gpu)
    }

    pub fn build(&self, graph: &Graph, cluster: bool) -> Result<Arc<Plan>> {
        let options = plan::Options { cluster, ..self.options.clone() };
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::new(pipeline::plan_with(graph, &options, &mut constants)?))
    }

    /// The plan that runs unless the comparison rejects it.
    pub fn first(
        &self,
        graph: &Graph,
        optimized: &Optimized,
        open: Option<&Open>,
        options: &optimize::Options,
    ) -> Result<Arc<Plan>> {
        let Some(open) = open else {
            return if options.no_rules { self.build(graph, false) } else { self.build(&optimized.graph, true) };
        };
        let settings = plan::Options { cluster: !options.no_rules, ..self.options.clone() };
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        let graph = &open.optimized.graph;
        Ok(Arc::new(pipeline::plan_specialized(graph, &open.sizes, &settings, &mut constants)?))
    }

    pub fn executor(&self, plan: Arc<Plan>, gpu: Option<&OnGpu>) -> Result<Executor> {
        let executor = Executor::new(plan, gpu, self.threads)?;
        Ok(if self.strict { executor.strict() } else { executor })
    }

    /// The plan of a graph without rules, with its kernels compiled for the executor that is made
    /// next. `None` on the host, or if anything fails: it will fail again where the executor is
    /// made.
    pub fn compile_ahead(&self, graph: &Graph) -> Option<Arc<Plan>> {
        let on = self.gpu.as_ref()?;
        let plan = self.build(graph, false).ok()?;
        on.compile_ahead(&plan).ok()?;
        Some(plan)
    }
}
