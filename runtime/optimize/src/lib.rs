//! The optimiser: rewrites a graph with the rules of its program.
//!
//! In: a [`Graph`] and [`Options`]. Out: an equal graph that costs less, and a [`Report`] of what
//! was done. The stages: defined ops are inlined, the graph is inserted into an e-graph (`lower`),
//! the rulesets run in order, each to a fixpoint (`saturate`), the cheapest graph is extracted
//! (`extract`, with `cost`), uses are recounted on it, and the rulesets run again until nothing
//! changes. Then each node gets its list of kernels (`kernels`). Of many equal layers, a few stand
//! for all (`layers`).
//!
//! Invariant: the result passes `Graph::validate`, has the inputs and outputs of the given graph,
//! and does not cost more, with launches of pointwise work joined.

mod adapter;
pub mod analysis;
pub mod apply;
mod built_problem;
pub mod candidate;
pub mod contract;
pub mod cost;
mod dominate;
pub mod explain;
pub mod extract;
pub mod facts;
mod greedy;
pub mod kernels;
mod known;
pub mod language;
mod layers;
pub mod live_rules;
pub mod lower;
pub mod matcher;
pub mod numbers;
mod optimizer;
pub mod outcome;
pub mod problem;
pub mod program_rules;
pub mod range_loss;
pub mod report;
pub mod rewrites;
pub mod saturate;
pub mod savings;
#[cfg(test)]
mod tests;
pub mod why_not;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

pub use outcome::{Outcome, Unmet};
pub use report::{
    Choice, Considered, Doubt, EqualLayers, Firing, Launches, Report, RulesetRun, Settled, Site, Stop, Summary,
    UndecidedKernel,
};
pub use rewrites::{CompiledRule, rewrites};

use layers::Layered;
use lower::StatedFacts;

use hypatia_dsl::ir::{Clause, Demand, Program, Rule};
use hypatia_dsl::numerics::{Allowed, Numerics};

use hypatia_graph::{ConstantFolder, Graph};
use hypatia_target::device::Device;
use hypatia_tensor::error::Result;

/// A rule as an `egg` rewrite: `Rewrite::from(rule)` runs in `egg`'s own `Runner`.
pub type Rewrite = egg::Rewrite<language::Node, analysis::Context>;

/// Settings of the optimiser.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The device whose costs decide.
    pub device: Device,
    /// Which rules may fire, by what they claim of their precision.
    pub numerics: Numerics,
    /// Fire no rules: only inline defined ops.
    pub no_rules: bool,
    /// Rewrite greedily, in the order of the files, instead of with an e-graph: for comparison.
    pub greedy: bool,
    /// Allow ops in the result that a `composed` kernel or a library call computes. Otherwise they
    /// are inlined.
    pub composed: bool,
    /// Choose only kernels that add up in an order that does not depend on how many rows there are.
    pub batch_invariant: bool,
    /// Rules, families of rules (`fuse::unary`) or rulesets that do not fire.
    pub disabled: HashSet<String>,
    /// What the plan must and must not have: rules that it forbids do not fire, and
    /// [`contract::outcomes`] says whether the others have their sites.
    pub contract: Vec<Clause>,
    /// What rules with `saves` were measured to save, in microseconds a site, by their written
    /// names: it counts in place of what they claim.
    pub measured: BTreeMap<String, f64>,
    /// Optimise every layer of a deep model, instead of a few that stand for all equal ones.
    pub every_layer: bool,
    /// Maximum number of e-nodes, whatever the rulesets allow.
    pub max_nodes: usize,
    /// Maximum number of steps of work (matching, and applying matches); `None` scales it with the
    /// size of the graph. Work is counted, so that the same model gives the same result on any
    /// machine.
    pub max_steps: Option<usize>,
    /// The wall-clock backstop: far longer than the allowed work takes. If it fires, the result may
    /// differ from run to run, and the report says so ([`Stop::Time`]).
    pub max_time: Duration,
    /// Maximum memory of the e-graph in bytes (an estimate).
    pub max_memory: usize,
}

impl Options {
    /// Which rules may fire, in the graph and in generated kernels.
    pub fn allowed(&self) -> Allowed {
        let numerics = if self.no_rules { Numerics::Exact } else { self.numerics };
        let forbidden = self.contract.iter().filter(|c| c.demand == Demand::Never).map(|c| c.rule.clone());
        let disabled = self.disabled.iter().cloned().chain(forbidden).collect();
        Allowed { numerics, disabled, batch_invariant: self.batch_invariant }
    }

    /// The options that only restore the names of ops from their bodies: rules that grow epilogues,
    /// or that make one op of several, do not fire.
    pub fn naming(&self, program: &Program) -> Options {
        // They decide which model is computed, not how.
        let numerics = Numerics::default();
        let mut options = Options { no_rules: false, numerics, contract: Vec::new(), ..self.clone() };
        let grows = |r: &&Rule| !r.derived && (r.lhs.len() > 1 || program_rules::builds_terms(program, r));
        options.disabled.extend(program.rules.iter().filter(grows).map(|r| r.name.clone()));
        options
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: Device::cpu(),
            numerics: Numerics::default(),
            no_rules: false,
            greedy: false,
            composed: true,
            batch_invariant: false,
            disabled: HashSet::new(),
            contract: Vec::new(),
            measured: BTreeMap::new(),
            every_layer: false,
            max_nodes: 2_000_000,
            max_steps: None,
            max_time: Duration::from_secs(60),
            max_memory: 1 << 30,
        }
    }
}

/// An optimised graph.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The graph.
    pub graph: Graph,
    /// What was done.
    pub report: Report,
}

/// Optimises a graph with an e-graph: of a few of its layers, if it has many equal ones, or else of
/// the whole.
fn saturated(graph: &Graph, options: &Options, folder: &'static dyn ConstantFolder) -> Result<Optimized> {
    let started = Instant::now();
    let graph = optimizer::inlined(graph, options, folder)?;
    let mut equal = None;
    if !options.every_layer && !options.no_rules {
        match layers::optimize(&graph, options, folder)? {
            Layered::Few(mut optimized) => {
                optimized.report.millis = started.elapsed().as_secs_f64() * 1e3;
                return Ok(*optimized);
            }
            Layered::All { count, because } => equal = Some(EqualLayers::All { count, because }),
            Layered::None => {}
        }
    }
    let mut optimizer = optimizer::Optimizer::of(graph, options, folder, &StatedFacts::default(), started)?;
    optimizer.run();
    let mut optimized = optimizer.finish()?;
    optimized.report.layers = equal;
    Ok(optimized)
}

/// Optimises a graph with the rules of its program. The folder computes the constants that rules
/// ask for.
pub fn optimize(graph: &Graph, options: &Options, folder: &'static dyn ConstantFolder) -> Result<Optimized> {
    let mut optimized = match options.greedy && !options.no_rules {
        true => greedy::optimize(graph, options, folder)?,
        false => saturated(graph, options, folder)?,
    };
    kernels::attach(&mut optimized.graph, &options.device, &options.allowed(), folder)?;
    optimized.report.undecided = kernels::undecided(&optimized.graph);
    Ok(optimized)
}
