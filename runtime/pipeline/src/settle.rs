//! Settles by whole plans what costs of single nodes cannot: whether a user's rule pays.
//!
//! Extraction adds up what nodes cost. But a plan clusters: a reduction and the work around it are
//! one launch, a large constant that is repeated along an axis is copied. So each rule of the
//! user's that matched is tried the other way: one that fired is left out, one that lost is
//! favoured, and the plan that is predicted to take less time decides. The library's rules state
//! their costs so that no trial is needed.
//!
//! In: a graph, its options, and what the optimiser made of them. Out: what the optimiser makes
//! with the decisions. Invariant: without rules of the user's that matched, nothing is tried; a
//! rule that is demanded is not left out, and one that says what it saves is not tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use hypatia_dsl::ir::{AExpr, AttrValue, Demand, Program, Rule, Saves, SavesUnit};
use hypatia_graph::{Constants, Graph, NodeKind};
use hypatia_optimize as optimize;
use hypatia_optimize::{Optimized, Settled};
use hypatia_plan as plan;
use hypatia_tensor::error::Result;

/// Rules that are tried at most: each trial optimises and plans.
const MOST_TRIALS: usize = 8;
/// Larger graphs, and graphs with more bytes of constants, are not planned for this.
const MOST_NODES: usize = 4_000;
const MOST_CONSTANTS: usize = 1 << 30;
/// The least gain of a trial, as a share of a launch.
const LEAST_GAIN: f64 = 0.25;
/// What a favoured rule counts as saving, in microseconds: so little that no other choice changes.
const FAVOUR: f64 = 1e-3;

/// What rules are decided, and how they are optimised with.
pub(super) struct Decisions {
    /// The graph, whose program says what favoured rules save.
    graph: Graph,
    options: optimize::Options,
    /// The rules that were decided otherwise than by the costs of nodes.
    pub settled: Vec<Settled>,
}

impl Decisions {
    fn none(graph: &Graph, options: &optimize::Options) -> Decisions {
        Decisions { graph: graph.clone(), options: options.clone(), settled: Vec::new() }
    }

    /// With a rule decided the other way.
    fn but(&self, rule: &str, used: bool) -> Decisions {
        let (mut graph, mut options) = (self.graph.clone(), self.options.clone());
        if used {
            graph.program = Arc::new(favouring(&graph.program, rule));
            options.measured.insert(rule.to_string(), FAVOUR);
        } else {
            options.disabled.insert(rule.to_string());
        }
        Decisions { graph, options, settled: self.settled.clone() }
    }

    /// The graph and the options that the decisions stand for.
    pub fn parts(&self) -> (&Graph, &optimize::Options) {
        (&self.graph, &self.options)
    }

    /// What the optimiser makes with them. The program is that of `given` again.
    fn optimized(&self, given: &Graph) -> Result<Optimized> {
        let mut optimized = optimize::optimize(&self.graph, &self.options, &super::FOLDER)?;
        optimized.graph.program = given.program.clone();
        let favoured = |rule: &str| self.settled.iter().any(|s| s.used && s.rule == rule);
        optimized.report.savings.retain(|s| !favoured(&s.rule));
        optimized.report.settled = self.settled.clone();
        Ok(optimized)
    }
}

/// The decisions, and what the optimiser makes with them; `None` if they change nothing.
pub(super) fn settle(
    graph: &Graph,
    options: &optimize::Options,
    first: &Optimized,
) -> Result<Option<(Decisions, Optimized)>> {
    let rules = contested(graph, options, first);
    if rules.is_empty() || is_large(graph) {
        return Ok(None);
    }
    let mut constants = super::constants();
    let Some(mut best) = predicted(first, options, &mut constants) else { return Ok(None) };
    let least = LEAST_GAIN * options.device.launch * 1e6;
    let mut now: Option<(Decisions, Optimized)> = None;
    let none = Decisions::none(graph, options);
    for (rule, fired) in rules.into_iter().take(MOST_TRIALS) {
        let mut trial = now.as_ref().map_or(&none, |(d, _)| d).but(&rule, !fired);
        // What cannot be made or planned is no better.
        let Ok(optimized) = trial.optimized(graph) else { continue };
        let Some(us) = predicted(&optimized, options, &mut constants) else { continue };
        // A favoured rule that still has no part in the result is not what made the difference.
        if us > best - least || optimized.report.firings.iter().any(|f| f.base == rule && f.in_result) == fired {
            continue;
        }
        let [with, without] = if fired { [best, us] } else { [us, best] };
        trial.settled.push(Settled { rule, with, without, used: !fired });
        best = us;
        let optimized = trial.optimized(graph)?;
        now = Some((trial, optimized));
    }
    Ok(now)
}

/// The user's rules that matched, as they are written, and whether the result depends on them:
/// those that lost come first.
fn contested(graph: &Graph, options: &optimize::Options, first: &Optimized) -> Vec<(String, bool)> {
    if options.no_rules || options.greedy {
        return Vec::new();
    }
    let program = &graph.program;
    let demanded = |r: &Rule| {
        let must = |d: &Demand| matches!(d, Demand::Must { .. });
        options.contract.iter().any(|c| must(&c.demand) && c.names(program, r))
    };
    let mut matched: BTreeSet<&str> = BTreeSet::new();
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for firing in &first.report.firings {
        matched.insert(&firing.base);
        if firing.kept || firing.in_result {
            used.insert(&firing.base);
        }
    }
    let own = program.rules.iter().filter(|r| !r.derived && r.saves.is_none() && !r.origin.is_embedded());
    // One that is demanded and fired stays.
    let stays = |r: &Rule| demanded(r) && used.contains(r.base_name.as_str());
    let own: BTreeSet<&str> = own.filter(|r| !stays(r)).map(|r| r.base_name.as_str()).collect();
    let matched = matched.into_iter().filter(|r| own.contains(r));
    let mut rules: Vec<(String, bool)> = matched.map(|r| (r.to_string(), used.contains(r))).collect();
    rules.sort_by_key(|(_, fired)| *fired);
    rules
}

/// Whether a graph is too large to be planned several times.
fn is_large(graph: &Graph) -> bool {
    let bytes = graph.nodes.iter().map(|n| if let NodeKind::Const(t) = &n.kind { t.bytes().len() } else { 0 });
    graph.nodes.len() > MOST_NODES || bytes.sum::<usize>() > MOST_CONSTANTS
}

/// The program in which a rule says that its right side costs what its left side does.
fn favouring(program: &Program, rule: &str) -> Program {
    let mut program = program.clone();
    for r in program.rules.iter_mut().filter(|r| r.base_name == rule) {
        r.saves = Some(Saves { amount: AExpr::Value(AttrValue::Float(0.0)), unit: SavesUnit::Micros });
    }
    program
}

/// The predicted time of a plan in microseconds, if there is one.
fn predicted(optimized: &Optimized, options: &optimize::Options, constants: &mut Constants) -> Option<f64> {
    let plain = plan::Options { memory: usize::MAX, ..plan::Options::new(options.device.clone()) };
    let plain = plan::Options { allowed: options.allowed(), ..plain };
    let symbols = optimized.graph.symbols().into_iter().map(|s| (s, super::ASSUMED_SIZE)).collect();
    let graph = optimized.graph.specialize(&symbols).ok()?;
    Some(super::plan_with(&graph, &plain, constants).ok()?.predicted() * 1e6)
}
