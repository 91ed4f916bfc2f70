//! Reports what an optimisation did, as data and as text.
//!
//! In: the record of an optimisation. Out: a [`Report`]. Invariant: launches are counted on plans;
//! a report has them only if they were counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{OpBody, OpId};
use hypatia_dsl::scalar::TermId;
use serde::Serialize;

use super::facts::is_view;
use super::outcome::Outcome;
use hypatia_graph::fate::Fate;
use hypatia_graph::fusions::Fusion;
use hypatia_graph::{Graph, NodeId, NodeKind};

/// Nodes of one choice that are named.
const SHOWN_NODES: usize = 3;

/// Why a run of a ruleset ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// No rule changes anything any more.
    Saturated,
    /// The ruleset's own limit on iterations.
    Iterations,
    /// The node budget.
    Nodes,
    /// The work budget: nodes visited, steps of matching, and matches applied.
    Work,
    /// The wall-clock backstop. It depends on the speed and load of the machine, and so does the
    /// result.
    Time,
    /// The memory budget.
    Memory,
    /// A search was cut short and found nothing new.
    Search,
}

impl Stop {
    /// Whether the run may have missed matches.
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

/// One run of a ruleset.
#[derive(Clone, Debug, Serialize)]
pub struct RulesetRun {
    /// The ruleset.
    pub ruleset: String,
    /// The round, from 1: rulesets run again after uses were recounted.
    pub round: usize,
    /// Iterations.
    pub iterations: usize,
    /// Number of rule applications that changed something.
    pub fired: usize,
    /// Number of e-nodes at its end.
    pub nodes: usize,
    /// Number of e-classes at its end.
    pub classes: usize,
    /// Steps of work: of matching, plus an equivalent number for each match applied.
    pub steps: usize,
    /// Number of e-nodes visited in all iterations.
    pub looked_through: usize,
    /// Milliseconds.
    pub millis: f64,
    /// Why it ended.
    pub stop: Stop,
    /// If it was cut short, the rules that fired most often, and how often.
    pub busiest: Vec<(String, usize)>,
}

/// A node whose kernel depends on sizes that are not known yet.
#[derive(Clone, Debug, Serialize)]
pub struct UndecidedKernel {
    /// The name of the node or of its value.
    pub node: String,
    /// The kernels that may compute it, best first. A run uses the first whose guards hold for its
    /// sizes.
    pub kernels: Vec<String>,
}

/// The ways to compute some nodes, all alike.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// The nodes, by name.
    pub nodes: Vec<String>,
    /// The candidates in the order of the plan's preference, then what is not admitted.
    pub candidates: Vec<Considered>,
}

/// A way to compute a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Considered {
    /// The kernel, or what is run instead.
    pub kernel: String,
    /// Microseconds as the device's profile predicts them, if it is admitted.
    pub predicted_us: Option<f64>,
    /// What becomes of it, as far as sizes decide it. The strides of an operand may keep more from
    /// running.
    pub fate: Fate,
}

/// A rule that fired.
#[derive(Clone, Debug, Serialize)]
pub struct Firing {
    /// The full name of the rule.
    pub rule: String,
    /// The name as written, without the member of its family.
    pub base: String,
    /// Names of the nodes whose values are the roots; if there are none, the name of one node that
    /// it matched. Empty inside an epilogue.
    pub nodes: Vec<String>,
    /// True if the optimised graph depends on it.
    pub kept: bool,
    /// True if the optimised graph depends on what it built, even if the model had that already or
    /// another rule built it first.
    #[serde(skip)]
    pub in_result: bool,
    /// What became of the node that it built, if it built one and the result depends on it.
    #[serde(skip)]
    pub site: Option<Site>,
}

impl Firing {
    /// True if it fired on what rules had written: at no node of the model.
    pub fn is_on_written(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// What a rule with `saves` saves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saved {
    /// The rule, as written.
    pub rule: String,
    /// Number of firings that the result depends on.
    pub sites: usize,
    /// Microseconds that it claims for a firing, on average.
    pub claimed_us: f64,
    /// Microseconds that were measured, if they were: they are counted instead.
    pub measured_us: Option<f64>,
}

/// A rule that whole plans have decided, against the costs of nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settled {
    /// The rule, as written.
    pub rule: String,
    /// Predicted microseconds of the plan with it.
    pub with: f64,
    /// Without it.
    pub without: f64,
    /// Whether it fires: the plan with it takes less time.
    pub used: bool,
}

/// A place in the optimised graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The node.
    pub node: NodeId,
    /// Which part of the node's epilogue a rule built, if that part is still there.
    pub term: Option<TermId>,
    /// The op that the rule built, and those that other rules made of it, up to the node's own.
    pub ops: Vec<OpId>,
}

/// Statistics of a graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Nodes that compute something: neither inputs, constants nor views.
    pub ops: usize,
    /// Estimated time in microseconds, with one kernel for each node.
    pub micros: f64,
    /// How often each op and scalar occurs.
    pub counts: BTreeMap<String, usize>,
}

impl Summary {
    /// Statistics of a graph; the caller supplies the cost as `micros`.
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

/// Launches of a model's plans before and after optimisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Launches {
    /// Of the given graph, without clustering of pointwise nodes.
    pub before: usize,
    /// Of the optimised graph.
    pub after: usize,
}

/// How the equal layers of a deep model were optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EqualLayers {
    /// The rules ran on a few, which stand for all.
    Few {
        /// How many layers there are.
        count: usize,
        /// On how many of them the rules ran.
        optimised: usize,
    },
    /// The rules ran on all.
    All {
        /// How many layers look equal.
        count: usize,
        /// Why a few do not stand for all.
        because: Doubt,
    },
}

/// Why a few layers do not stand for all equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Doubt {
    /// Something else than the next layer reads the values of a layer.
    ReadFromOutside,
    /// No two places of the optimised graph, a layer apart, are crossed by the same values.
    NoCut,
    /// There are too many firings to tell which ones a layer rests on.
    TooManyFirings,
    /// A value is known to be positive, finite or constant in some layers only.
    Facts,
    /// A match reached through what stands in front of the first layer.
    InFront,
    /// Constants that a rule multiplies keep their digits in some layers only.
    Digits,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doubt::ReadFromOutside => "something behind them reads one in the middle",
            Doubt::NoCut => "rules have joined them",
            Doubt::TooManyFirings => "rules fired too often",
            Doubt::Facts => "more is known of the values of some",
            Doubt::InFront => "a rule joined them with what stands in front",
            Doubt::Digits => "some constants would lose digits in some",
        })
    }
}

/// The report of one optimisation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device profile.
    pub device: String,
    /// The given graph, with defined ops inlined.
    pub before: Summary,
    /// The optimised graph.
    pub after: Summary,
    /// Launches of both plans, if they were counted: `pipeline::count_launches`.
    pub launches: Option<Launches>,
    /// The fused kernels of the optimised graph, deduped, if they were counted in the same way. An
    /// exported model has them as functions.
    pub fusions: Option<Vec<Fusion>>,
    /// Nodes of the optimised graph whose kernel depends on sizes that are not known yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undecided: Vec<UndecidedKernel>,
    /// The ways to compute nodes that have a choice, for those who ask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// How equal layers were optimised, if there are many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<EqualLayers>,
    /// Every run of a ruleset, in order.
    pub runs: Vec<RulesetRun>,
    /// True if rules rewrote in place: then nothing tells what each of them did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub greedy: bool,
    /// Every firing, those that the result depends on first.
    pub firings: Vec<Firing>,
    /// Every match whose result was there already.
    #[serde(skip)]
    pub repeats: Vec<Firing>,
    /// What rules that say so save.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub savings: Vec<Saved>,
    /// The user's rules that whole plans have decided, against the costs of nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<Settled>,
    /// Whether each clause of the contract is met.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contract: Vec<Outcome>,
    /// Warnings, such as rules that were rejected where they matched.
    pub warnings: Vec<String>,
    /// Steps of extraction.
    pub extraction_steps: usize,
    /// Milliseconds of extraction.
    pub extraction_millis: f64,
    /// Milliseconds in total.
    pub millis: f64,
}

impl Report {
    /// True if the result depends on a rule with that full or written name.
    pub fn fired(&self, rule: &str) -> bool {
        self.matches(rule).any(|f| f.in_result)
    }

    /// The applied matches of a rule with that full or written name, whatever became of them.
    pub fn matches(&self, rule: &str) -> impl Iterator<Item = &Firing> {
        self.firings.iter().chain(&self.repeats).filter(move |f| f.rule == rule || f.base == rule)
    }

    /// True if no ruleset was cut short.
    pub fn complete(&self) -> bool {
        !self.runs.iter().any(|s| s.stop.cut_short())
    }
}

/// At most this many places are printed for one rule.
const MAX_PLACES: usize = 12;
/// The place of a match without a value of the model: an epilogue, or a node that a rule made.
pub(super) const WRITTEN: &str = "what rules wrote";
/// Places are wrapped at this column.
const WIDTH: usize = 110;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show_totals(f)?;
        self.show_fusion_total(f)?;
        self.show_contract(f)?;
        self.show_fusions(f)?;
        self.show_rules(f)?;
        self.show_savings(f)?;
        self.show_settled(f)?;
        self.show_counts(f)?;
        self.show_undecided(f)?;
        self.show_choices(f)?;
        self.show_runs(f)?;
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
            "  {:<10} {:>9.1}  {:>9.1}  us, estimated op by op: arithmetic or memory traffic, and a launch (pointwise \
             neighbours then share one)",
            "cost", b.micros, a.micros
        )
    }

    /// What the contract demands, and what became of it.
    fn show_contract(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.contract.is_empty() {
            return Ok(());
        }
        writeln!(f, "\ncontract")?;
        let lines = self.contract.iter().map(Outcome::to_string);
        lines.flat_map(|l| l.lines().map(str::to_string).collect::<Vec<_>>()).try_for_each(|l| writeln!(f, "  {l}"))
    }

    /// The last row of the totals: the number of fused kernels.
    fn show_fusion_total(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(fusions) = &self.fusions else { return Ok(()) };
        writeln!(f, "  {:<10} {:>9}  {:>9}  different kernels of more than one op", "fusions", 0, fusions.len())
    }

    /// The fused kernels, and how often each is called.
    fn show_fusions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(fusions) = &self.fusions else { return Ok(()) };
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

    /// Rules that are not listed because others had made what they make.
    fn show_made_before(&self, listed: &[&str], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.firings.iter().chain(&self.repeats);
        let made: BTreeSet<&str> = all.filter(|f| f.in_result && !f.kept).map(|f| f.rule.as_str()).collect();
        let made: Vec<&str> = made.into_iter().filter(|rule| !listed.contains(rule)).collect();
        if made.is_empty() {
            return Ok(());
        }
        let shown = made.len().min(MAX_PLACES);
        let more = if made.len() > shown { format!(" and {} more", made.len() - shown) } else { String::new() };
        let text = format!("others had made what these make: {}{more}", made[..shown].join(", "));
        wrapped(&text, WIDTH).iter().try_for_each(|line| writeln!(f, "{line}"))
    }

    /// The rules that the result depends on, and where they fired.
    fn show_rules(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_rule: Vec<(&str, Vec<&Firing>)> = Vec::new();
        for firing in self.firings.iter().filter(|f| f.kept) {
            match by_rule.iter_mut().find(|(r, _)| *r == firing.rule) {
                Some((_, list)) => list.push(firing),
                None => by_rule.push((&firing.rule, vec![firing])),
            }
        }
        if self.greedy {
            return writeln!(f, "\ngreedy rewriting keeps no list of what each rule did");
        }
        if by_rule.is_empty() {
            return writeln!(f, "\nno rule has a part in the result");
        }
        let width = by_rule.iter().map(|(r, _)| r.len()).max().unwrap_or(0);
        writeln!(f, "\n{:<width$}  times  at the model's nodes", "rule")?;
        let listed: Vec<&str> = by_rule.iter().map(|(r, _)| *r).collect();
        for (rule, places) in by_rule {
            let (unnamed, named): (Vec<&Firing>, Vec<&Firing>) = places.iter().partition(|f| f.is_on_written());
            let shown = named.len().min(MAX_PLACES);
            let mut list: Vec<String> = named[..shown].iter().map(|f| location(f)).collect();
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
        self.show_made_before(&listed, f)?;
        let others = self.firings.iter().filter(|f| !f.in_result).count();
        if others > 0 {
            writeln!(f, "{others} more firings made nothing cheaper; `--why-not RULE` tells of one rule")?;
        }
        Ok(())
    }

    /// The rules that whole plans have decided.
    fn show_settled(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.settled.iter().map(|s| s.rule.len()).max().unwrap_or(0).max(22);
        if !self.settled.is_empty() {
            writeln!(f, "\n{:<width$}  us with it  without  so it is", "decided by whole plans")?;
        }
        for s in &self.settled {
            let so = if s.used { "used" } else { "left out" };
            writeln!(f, "{:<width$}  {:>10.2}  {:>7.2}  {so}", s.rule, s.with, s.without)?;
        }
        Ok(())
    }

    /// What rules claim to save, beside what was measured.
    fn show_savings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.savings.iter().map(|s| s.rule.len()).max().unwrap_or(0).max(6);
        if !self.savings.is_empty() {
            writeln!(f, "\n{:<width$}  times  claimed us  measured us  counted for each time", "saving")?;
        }
        for s in &self.savings {
            let measured = s.measured_us.map_or("-".to_string(), |us| format!("{us:.2}"));
            let counted = if s.measured_us.is_some() { "measured" } else { "claimed" };
            writeln!(f, "{:<width$}  {:>5}  {:>10.2}  {measured:>11}  {counted}", s.rule, s.sites, s.claimed_us)?;
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

    /// Kernels that are chosen once sizes are known.
    fn show_undecided(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.undecided.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nsizes that are not known yet decide these kernels; the first that holds is run")?;
        for node in &self.undecided {
            writeln!(f, "  {}: {}", node.node, node.kernels.join("; "))?;
        }
        Ok(())
    }

    /// The candidates of nodes with a choice.
    fn show_choices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.choices.is_empty() {
            return Ok(());
        }
        writeln!(f, "\ncandidates of each step, with the time that the profile of {} predicts", self.device)?;
        for choice in &self.choices {
            let more = choice.nodes.len().saturating_sub(SHOWN_NODES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let shown: Vec<&str> = choice.nodes.iter().take(SHOWN_NODES).map(String::as_str).collect();
            writeln!(f, "  {}{more}", shown.join(", "))?;
            for c in &choice.candidates {
                let time = c.predicted_us.map_or("-".to_string(), |us| format!("{us:.2} us"));
                writeln!(f, "    {time:>12}  {}: {}", c.kernel, c.fate)?;
            }
        }
        Ok(())
    }

    fn show_runs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layers {
            Some(EqualLayers::Few { count, optimised }) => {
                writeln!(f, "\nthe rules ran on {optimised} of {count} equal layers, which stand for all")?;
            }
            Some(EqualLayers::All { count, because }) => {
                writeln!(f, "\nthe rules ran on all of {count} equal layers: {because}")?;
            }
            None => {}
        }
        let width = self.runs.iter().map(|s| s.ruleset.len()).max().unwrap_or(0).max(7);
        writeln!(f, "\n{:<width$}  round  iterations  firings    nodes  classes        ms  ended", "ruleset")?;
        for s in &self.runs {
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

fn location(f: &Firing) -> String {
    if f.is_on_written() { WRITTEN.to_string() } else { f.nodes.join(" and ") }
}

/// Wraps the words of a list at that width, unless one word is longer.
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
