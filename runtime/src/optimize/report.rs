//! What optimising did, as data and as text.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Why a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// Nothing more could fire.
    Saturated,
    /// The ruleset's own number of iterations.
    Iterations,
    /// The budget of nodes.
    Nodes,
    /// The budget of time.
    Time,
    /// The budget of memory.
    Memory,
    /// A search was cut short and found nothing new.
    Search,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Saturated => "saturated",
            Stop::Iterations => "its number of iterations",
            Stop::Nodes => "cut short: budget of nodes",
            Stop::Time => "cut short: budget of time",
            Stop::Memory => "cut short: budget of memory",
            Stop::Search => "cut short: budget of a search",
        })
    }
}

/// One stage: a ruleset run once.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// The ruleset.
    pub ruleset: String,
    /// Which round, from 1: the stages are run again after uses were recounted.
    pub round: usize,
    /// Iterations.
    pub iterations: usize,
    /// Times a rule changed something.
    pub fired: usize,
    /// Nodes of the e-graph at its end.
    pub nodes: usize,
    /// Classes of the e-graph at its end.
    pub classes: usize,
    /// Milliseconds.
    pub millis: f64,
    /// Why it ended.
    pub stop: Stop,
}

/// A rule that fired.
#[derive(Clone, Debug, Serialize)]
pub struct Firing {
    /// The rule's whole name.
    pub rule: String,
    /// The name as written, without the family's choice.
    pub base: String,
    /// Names of the nodes whose values the roots are; empty inside an epilogue.
    pub nodes: Vec<String>,
    /// True if the optimised graph owes something to it.
    pub kept: bool,
}

/// A graph in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Nodes that compute something: neither inputs, constants nor views.
    pub ops: usize,
    /// Kernels that would be launched, connected pointwise nodes as one.
    pub launches: usize,
    /// Estimated time in microseconds, each node a kernel of its own.
    pub micros: f64,
    /// How often each op and scalar occurs.
    pub counts: BTreeMap<String, usize>,
}

/// The report of one optimisation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device's profile.
    pub device: String,
    /// The graph as given, defined ops replaced by their bodies.
    pub before: Summary,
    /// The graph that was chosen.
    pub after: Summary,
    /// Every stage.
    pub stages: Vec<Stage>,
    /// Every firing, those that the result owes something to first.
    pub firings: Vec<Firing>,
    /// Rules that were rejected where they matched, and the like.
    pub warnings: Vec<String>,
    /// Milliseconds of extraction.
    pub extraction_millis: f64,
    /// Milliseconds in all.
    pub millis: f64,
}

impl Report {
    /// True if a rule of that name, whole or as written, has a part in the result.
    pub fn fired(&self, rule: &str) -> bool {
        self.firings.iter().any(|f| f.kept && (f.rule == rule || f.base == rule))
    }

    /// True if no stage was cut short.
    pub fn complete(&self) -> bool {
        self.stages.iter().all(|s| matches!(s.stop, Stop::Saturated | Stop::Iterations))
    }
}

/// At most this many places are printed for one rule.
const MAX_PLACES: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (b, a) = (&self.before, &self.after);
        writeln!(f, "on {}:", self.device)?;
        writeln!(f, "  ops       {:>8} -> {}", b.ops, a.ops)?;
        writeln!(f, "  launches  {:>8} -> {}  (estimated: connected pointwise ops are one)", b.launches, a.launches)?;
        writeln!(
            f,
            "  cost      {:>8.1} -> {:.1} us (estimated: max of arithmetic and memory, plus launches)",
            b.micros, a.micros
        )?;
        writeln!(f, "\nstages:")?;
        for s in &self.stages {
            writeln!(
                f,
                "  {:<12} round {}: {} iterations, {} firings, {} nodes in {} classes, {:.1} ms, {}",
                s.ruleset, s.round, s.iterations, s.fired, s.nodes, s.classes, s.millis, s.stop
            )?;
        }
        let mut by_rule: Vec<(&str, Vec<&Firing>)> = Vec::new();
        for firing in self.firings.iter().filter(|f| f.kept) {
            match by_rule.iter_mut().find(|(r, _)| *r == firing.rule) {
                Some((_, list)) => list.push(firing),
                None => by_rule.push((&firing.rule, vec![firing])),
            }
        }
        writeln!(f, "\nfired, and kept:")?;
        if by_rule.is_empty() {
            writeln!(f, "  nothing")?;
        }
        for (rule, list) in by_rule {
            let places: Vec<String> = list.iter().map(|p| place(p)).collect();
            let shown = places.len().min(MAX_PLACES);
            let more = if places.len() > shown { format!(" and {} more", places.len() - shown) } else { String::new() };
            writeln!(f, "  {rule}  ({} times)\n      at {}{more}", list.len(), places[..shown].join(", "))?;
        }
        let others = self.firings.iter().filter(|f| !f.kept).count();
        if others > 0 {
            writeln!(f, "  ({others} more firings gave nothing cheaper)")?;
        }
        for w in &self.warnings {
            writeln!(f, "warning: {w}")?;
        }
        Ok(())
    }
}

fn place(f: &Firing) -> String {
    if f.nodes.is_empty() { "an epilogue".to_string() } else { f.nodes.join(" and ") }
}
