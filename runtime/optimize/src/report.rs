//! What optimising did, as data and as text.
//!
//! In: what a session recorded. Out: a [`Report`]. Holds always: launches are those of the plans; they stand in a report
//! only if they were counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::OpBody;
use serde::Serialize;

use super::facts::is_view;
use hypatia_graph::fusions::Fusion;
use hypatia_graph::{Graph, NodeId, NodeKind};

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
    /// The budget of work: nodes looked through, steps of matching, and matches applied.
    Work,
    /// The wall-clock backstop. It depends on how fast and busy the machine is, and so does the result.
    Time,
    /// The budget of memory.
    Memory,
    /// A search was cut short and found nothing new.
    Search,
}

impl Stop {
    /// Whether there may be more to do.
    pub fn cut_short(self) -> bool {
        !matches!(self, Stop::Saturated | Stop::Iterations)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Saturated => "saturated",
            Stop::Iterations => "its number of iterations",
            Stop::Nodes => "cut short: budget of nodes",
            Stop::Work => "cut short: budget of work",
            Stop::Time => "stopped by the wall-clock backstop (the result may differ from run to run)",
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
    /// Steps of work: of matching, and for each match that was applied as many as take as long.
    pub steps: usize,
    /// Nodes of the e-graph that were looked through, all iterations together.
    pub looked_through: usize,
    /// Milliseconds.
    pub millis: f64,
    /// Why it ended.
    pub stop: Stop,
    /// Where it was cut short, the rules that fired most often, and how often.
    pub busiest: Vec<(String, usize)>,
}

/// A node whose kernel depends on sizes that are not known yet.
#[derive(Clone, Debug, Serialize)]
pub struct Open {
    /// Its name, or that of its value.
    pub node: String,
    /// What may compute it, best first: the first whose guards hold on the sizes of a run does.
    pub kernels: Vec<String>,
}

/// A rule that fired.
#[derive(Clone, Debug, Serialize)]
pub struct Firing {
    /// The rule's whole name.
    pub rule: String,
    /// The name as written, without the family's choice.
    pub base: String,
    /// Names of the nodes whose values the roots are or, if they are none, of one that it matched; empty inside an
    /// epilogue.
    pub nodes: Vec<String>,
    /// True if the optimised graph owes something to it.
    pub kept: bool,
}

/// A graph in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Nodes that compute something: neither inputs, constants nor views.
    pub ops: usize,
    /// Estimated time in microseconds, each node a kernel of its own.
    pub micros: f64,
    /// How often each op and scalar occurs.
    pub counts: BTreeMap<String, usize>,
}

impl Summary {
    /// Counts of a graph; `micros` is the cost that the caller worked out.
    pub(super) fn of(graph: &Graph, micros: f64) -> Summary {
        let mut constant = vec![false; graph.nodes.len()];
        let mut counts = BTreeMap::new();
        for (i, node) in graph.nodes.iter().enumerate() {
            let free = match &node.kind {
                NodeKind::Input { .. } | NodeKind::Const(_) => true,
                NodeKind::Scalar(_) => false,
                NodeKind::Op { op, .. } => {
                    matches!(graph.program.op(*op).body, OpBody::Builtin(b) if is_view(b) || b == BuiltinOp::Full)
                }
            };
            let input = matches!(node.kind, NodeKind::Input { .. });
            constant[i] = !input && node.operands.iter().flatten().all(|v| constant[v.node.index()]);
            if !free && !constant[i] {
                *counts.entry(graph.head_name(NodeId(i as u32)).to_string()).or_insert(0) += 1;
            }
        }
        Summary { ops: counts.values().sum(), micros, counts }
    }
}

/// Launches of a model before and after optimising, as the plans have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Launches {
    /// Of the graph as given, each pointwise node by itself.
    pub before: usize,
    /// Of what is run instead.
    pub after: usize,
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
    /// Launches of the plans of both, if they were counted: `pipeline::count_launches`.
    pub launches: Option<Launches>,
    /// The fused kernels of the graph that was chosen, equal ones once, if they were counted likewise: what an exported
    /// model has as functions.
    pub fusions: Option<Vec<Fusion>>,
    /// Nodes of the graph that was chosen whose kernel depends on sizes that are not known yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<Open>,
    /// Every stage.
    pub stages: Vec<Stage>,
    /// Every firing, those that the result owes something to first.
    pub firings: Vec<Firing>,
    /// Rules that were rejected where they matched, and the like.
    pub warnings: Vec<String>,
    /// Steps of the searches for the cheapest graph.
    pub extraction_steps: usize,
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
        !self.stages.iter().any(|s| s.stop.cut_short())
    }
}

/// At most this many places are printed for one rule.
const MAX_PLACES: usize = 12;
/// The place of what matched no value of the model: an epilogue, or a node that is in no model.
pub(super) const WRITTEN: &str = "what rules wrote";
/// Places are wrapped at this column.
const WIDTH: usize = 110;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show_totals(f)?;
        self.show_fusions(f)?;
        self.show_rules(f)?;
        self.show_counts(f)?;
        self.show_open(f)?;
        self.show_stages(f)?;
        for w in &self.warnings {
            writeln!(f, "\nwarning: {w}")?;
        }
        Ok(())
    }
}

impl Report {
    fn show_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (b, a) = (&self.before, &self.after);
        writeln!(f, "{:<12} {:>9}  {:>9}", format!("on {}", self.device), "before", "after")?;
        if let Some(l) = self.launches {
            writeln!(f, "  {:<10} {:>9}  {:>9}  the steps of the plan", "launches", l.before, l.after)?;
        }
        writeln!(f, "  {:<10} {:>9}  {:>9}  inputs, constants and views are not counted", "ops", b.ops, a.ops)?;
        writeln!(
            f,
            "  {:<10} {:>9.1}  {:>9.1}  us, estimated op by op: arithmetic or memory traffic, and a launch (pointwise neighbours then share one)",
            "cost", b.micros, a.micros
        )
    }

    /// The fused kernels, and how often each is called.
    fn show_fusions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(fusions) = &self.fusions else { return Ok(()) };
        writeln!(f, "  {:<10} {:>9}  {:>9}  different kernels of more than one op", "fusions", 0, fusions.len())?;
        let width = fusions.iter().map(|f| f.name.len()).max().unwrap_or(0).max(6);
        if !fusions.is_empty() {
            writeln!(f, "\n{:<width$}  calls  computes", "fusion")?;
        }
        for fusion in fusions {
            for (i, line) in wrapped(&fusion.formula, WIDTH.saturating_sub(width + 9).max(30)).iter().enumerate() {
                match i {
                    0 => writeln!(f, "{:<width$}  {:>5}  {line}", fusion.name, fusion.calls)?,
                    _ => writeln!(f, "{:<width$}  {:>5}  {line}", "", "")?,
                }
            }
        }
        Ok(())
    }

    /// What fired and has a part in the result, and where.
    fn show_rules(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_rule: Vec<(&str, Vec<String>)> = Vec::new();
        for firing in self.firings.iter().filter(|f| f.kept) {
            match by_rule.iter_mut().find(|(r, _)| *r == firing.rule) {
                Some((_, list)) => list.push(place(firing)),
                None => by_rule.push((&firing.rule, vec![place(firing)])),
            }
        }
        if by_rule.is_empty() {
            return writeln!(f, "\nno rule has a part in the result");
        }
        let width = by_rule.iter().map(|(r, _)| r.len()).max().unwrap_or(0);
        writeln!(f, "\n{:<width$}  times  at the model's nodes", "rule")?;
        for (rule, places) in by_rule {
            let (named, unnamed): (Vec<_>, Vec<_>) = places.iter().partition(|p| *p != WRITTEN);
            let shown = named.len().min(MAX_PLACES);
            let mut list: Vec<String> = named[..shown].iter().map(|p| p.to_string()).collect();
            if named.len() > shown {
                list.push(format!("and {} more", named.len() - shown));
            }
            match unnamed.len() {
                0 => {}
                1 => list.push(WRITTEN.to_string()),
                n => list.push(format!("{n} times {WRITTEN}")),
            }
            let text = list.join(", ");
            for (i, line) in wrapped(&text, WIDTH.saturating_sub(width + 9).max(30)).iter().enumerate() {
                match i {
                    0 => writeln!(f, "{rule:<width$}  {:>5}  {line}", places.len())?,
                    _ => writeln!(f, "{:<width$}  {:>5}  {line}", "", "")?,
                }
            }
        }
        let others = self.firings.iter().filter(|f| !f.kept).count();
        if others > 0 {
            writeln!(f, "{others} more firings made nothing cheaper; `--why-not RULE` tells of one rule")?;
        }
        Ok(())
    }

    /// How often each op occurs before and after.
    fn show_counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (b, a) = (&self.before.counts, &self.after.counts);
        let names: BTreeSet<&String> = b.keys().chain(a.keys()).collect();
        let width = names.iter().map(|n| n.len()).max().unwrap_or(0).max(4);
        writeln!(f, "\n{:<width$}  before  after", "op")?;
        for name in names {
            let n = |c: &BTreeMap<String, usize>| c.get(name).copied().unwrap_or(0);
            writeln!(f, "{name:<width$}  {:>6}  {:>5}", n(b), n(a))?;
        }
        Ok(())
    }

    /// Kernels that are chosen when sizes are known.
    fn show_open(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.open.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nsizes that are not known yet decide these kernels; the first that holds is run")?;
        for open in &self.open {
            writeln!(f, "  {}: {}", open.node, open.kernels.join("; "))?;
        }
        Ok(())
    }

    fn show_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.stages.iter().map(|s| s.ruleset.len()).max().unwrap_or(0).max(7);
        writeln!(f, "\n{:<width$}  round  iterations  firings    nodes  classes        ms  ended", "stage")?;
        for s in &self.stages {
            writeln!(
                f,
                "{:<width$}  {:>5}  {:>10}  {:>7}  {:>7}  {:>7}  {:>8.1}  {}",
                s.ruleset, s.round, s.iterations, s.fired, s.nodes, s.classes, s.millis, s.stop
            )?;
            if !s.busiest.is_empty() {
                let list: Vec<String> = s.busiest.iter().map(|(rule, n)| format!("{rule} ({n} times)")).collect();
                writeln!(f, "{:<width$}  most often fired: {}", "", list.join(", "))?;
            }
        }
        Ok(())
    }
}

fn place(f: &Firing) -> String {
    if f.nodes.is_empty() { WRITTEN.to_string() } else { f.nodes.join(" and ") }
}

/// Words of a list in lines of at most so many characters, unless one word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_wrapped_between_words() {
        assert_eq!(wrapped("a, bb, ccc, and 2 more", 10), ["a, bb,", "ccc, and 2", "more"]);
        assert_eq!(wrapped("longer_than_the_line b", 5), ["longer_than_the_line", "b"]);
    }
}
