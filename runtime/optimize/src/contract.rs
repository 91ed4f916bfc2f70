//! The fusion contract: does the optimised graph have the sites that a user demands, and if not,
//! why not?
//!
//! In: the given and the optimised graph with its lists of kernels, the report, the clauses. Out:
//! an [`Outcome`] for each clause. Invariant: a site is a firing on which the optimised graph
//! depends, and whose result one launch computes.

use hypatia_dsl::ir::{Clause, Demand, OpId, Program};
use hypatia_dsl::scalar::{Term, TermId, prune};

use super::cost::ASSUMED_SIZE;
use super::explain::{Means, nearest, no_such_rule};
use super::kernels::refusals;
use super::outcome::{Outcome, Unmet};
use super::report::{Firing, Site, WRITTEN};
use super::{Optimized, Options};
use hypatia_graph::{Graph, NodeId, NodeKind, Strategy, Symbols};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

/// The outcome of each clause.
///
/// # Errors
/// If a clause names no rule of the program.
pub fn outcomes(given: &Graph, options: &Options, means: Means<'_>, optimized: &Optimized) -> Result<Vec<Outcome>> {
    let program = &given.program;
    contradiction(program, options)?;
    let symbols: Symbols = optimized.graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
    let graph = optimized.graph.specialize(&symbols)?;
    let judge = Judge { given, options, means, optimized, graph: &graph };
    let outcome = |clause: &Clause| {
        known(program, clause)?;
        judge.outcome(clause)
    };
    options.contract.iter().map(outcome).collect()
}

/// The error for clauses that are not met; `None` if all are.
pub fn unmet(outcomes: &[Outcome]) -> Option<Error> {
    let unmet: Vec<String> = outcomes.iter().filter(|o| o.unmet.is_some()).map(Outcome::to_string).collect();
    (!unmet.is_empty()).then(|| Error::Contract(unmet.concat().trim_end().to_string()))
}

/// Fails if a clause demands rules all of which the run forbids.
fn contradiction(program: &Program, options: &Options) -> Result<()> {
    let allowed = options.allowed();
    for must in options.contract.iter().filter(|c| c.demand != Demand::Never) {
        let mut named = program.rules.iter().filter(|r| must.names(program, r)).peekable();
        let Some(first) = named.peek().copied() else { continue };
        if !named.all(|r| allowed.is_off(program, r)) {
            continue;
        }
        let never = options.contract.iter().find(|c| c.demand == Demand::Never && c.names(program, first));
        return Err(Error::Input(match never {
            Some(never) => format!(
                "`{must}` contradicts `{never}`: a run cannot demand a rule that it forbids; remove one of the two"
            ),
            None => format!("`{must}` demands a rule that is disabled for this run; remove one of the two"),
        }));
    }
    Ok(())
}

/// Fails unless the clause names a rule or a ruleset.
fn known(program: &Program, clause: &Clause) -> Result<()> {
    let named = |r: &&hypatia_dsl::ir::Rule| clause.names(program, r);
    if program.rules.iter().any(|r| named(&r)) || program.rulesets.iter().any(|s| s.name == clause.rule) {
        return Ok(());
    }
    Err(Error::Input(format!("the contract says `{clause}`: {}", no_such_rule(program, &clause.rule))))
}

struct Judge<'a> {
    given: &'a Graph,
    options: &'a Options,
    means: Means<'a>,
    optimized: &'a Optimized,
    /// The optimised graph on sizes that are numbers.
    graph: &'a Graph,
}

impl Judge<'_> {
    fn outcome(&self, clause: &Clause) -> Result<Outcome> {
        let fired = self.firings(clause);
        let (alone, split): (Vec<&Firing>, Vec<&Firing>) = fired.iter().partition(|f| self.is_one_launch(f));
        let sites: Vec<String> = alone.iter().map(|f| place(f)).collect();
        let unmet = match &clause.demand {
            Demand::Never if fired.is_empty() => None,
            Demand::Never => {
                let sites = fired.iter().map(|f| place(f)).collect();
                return Ok(outcome(clause, sites, Some(Unmet::Fires)));
            }
            Demand::Must { count: Some(wanted), .. } if sites.len() > *wanted => {
                Some(Unmet::TooMany { wanted: *wanted })
            }
            Demand::Must { count, at } => {
                let wanted = count.unwrap_or(1);
                match split.first() {
                    _ if sites.len() >= wanted => None,
                    Some(first) => Some(self.by_kernel(first, &split)),
                    None => Some(self.missing(clause, wanted, at.as_deref())?),
                }
            }
        };
        Ok(outcome(clause, sites, unmet))
    }

    /// The firings on which the result depends, of the rules that the clause names, at its node:
    /// also those whose result the model had, or another rule made first.
    fn firings(&self, clause: &Clause) -> Vec<&Firing> {
        let program = &self.given.program;
        let named = |f: &&Firing| {
            let rule = program.rules.iter().find(|r| r.name == f.rule);
            f.in_result && rule.is_some_and(|r| clause.names(program, r))
        };
        let here = |f: &&Firing| match &clause.demand {
            Demand::Must { at: Some(node), .. } => f.nodes.iter().any(|n| n == node),
            _ => true,
        };
        let report = &self.optimized.report;
        let mut found: Vec<&Firing> = report.firings.iter().filter(named).filter(here).filter(|f| f.kept).collect();
        // What was made before counts once, in whatever order its operands were matched.
        for firing in report.firings.iter().chain(&report.repeats).filter(named).filter(here).filter(|f| !f.kept) {
            let node = |f: &Firing| f.site.as_ref().map(|s| (s.node, s.term));
            let same_node = |f: &Firing| node(f).is_some() && node(f) == node(firing);
            if !found.iter().any(|f| f.nodes == firing.nodes || same_node(f)) {
                found.push(firing);
            }
        }
        found
    }

    /// Whether one launch computes what the rule built there. A rule that built no node of its own
    /// leaves none that could be divided.
    fn is_one_launch(&self, firing: &Firing) -> bool {
        let Some(site) = &firing.site else { return true };
        let device = &self.options.device;
        match self.graph.chosen_kernel(site.node, device).map(|c| &c.strategy) {
            Some(Strategy::Split(split)) => self.term(site).is_some_and(|t| contains(&split.head, &t)),
            // What the rule built may be one launch among those of another op.
            Some(Strategy::Composed(parts)) => site.ops.iter().any(|op| is_launch_of(parts, *op, device)),
            Some(Strategy::Body) => false,
            Some(Strategy::Whole | Strategy::Call | Strategy::Rowwise) => true,
            None => !self.graph.needs_kernel(site.node),
        }
    }

    /// The epilogue that the rule built, as a part of the node's.
    fn term(&self, site: &Site) -> Option<Term> {
        let whole = self.graph.term(site.node)?;
        let mut part = whole.clone();
        part.roots = vec![site.term?];
        Some(prune(&part))
    }

    fn by_kernel(&self, first: &Firing, all: &[&Firing]) -> Unmet {
        let device = &self.options.device;
        let node = first.site.as_ref().map(|p| p.node);
        let launches = node.map_or(String::new(), |n| self.launches(n, device));
        let refused = node.map_or(Vec::new(), |n| refusals(self.graph, n, device));
        let refused: Vec<String> = refused.into_iter().map(|(_, why)| why).collect();
        Unmet::Kernel { device: device.name.to_string(), at: all.iter().map(|f| place(f)).collect(), launches, refused }
    }

    /// What computes a node, in words.
    fn launches(&self, node: NodeId, device: &Device) -> String {
        let head = self.graph.head_name(node);
        match self.graph.chosen_kernel(node, device) {
            Some(c) => match &c.strategy {
                Strategy::Composed(_) => format!("`{head}` runs as the parts of its body"),
                Strategy::Body => format!("`{head}` runs as its body"),
                _ => format!("`{head}` runs as {}", self.graph.describe_kernel(self.graph.node(node), c)),
            },
            None => format!("`{head}` runs as its body"),
        }
    }

    fn missing(&self, clause: &Clause, wanted: usize, at: Option<&str>) -> Result<Unmet> {
        let program = &self.given.program;
        let why = nearest(self.given, self.options, self.means, &|r| clause.names(program, r), at)?;
        let short = self.optimized.report.runs.iter().filter(|s| s.stop.cut_short());
        let mut cut_short: Vec<String> = short.map(|s| format!("ruleset {} was {}", s.ruleset, s.stop)).collect();
        cut_short.dedup();
        Ok(Unmet::Missing { wanted, why: Box::new(why), cut_short })
    }
}

fn outcome(clause: &Clause, sites: Vec<String>, unmet: Option<Unmet>) -> Outcome {
    let written = clause.origin.as_ref().map(|o| format!("{}:{}:{}", o.file, o.line, o.column));
    Outcome { clause: clause.to_string(), written, sites, unmet }
}

fn place(f: &Firing) -> String {
    if f.is_on_written() { WRITTEN.to_string() } else { format!("`{}`", f.nodes.join("` and `")) }
}

/// Whether a graph has a node of that op, and one launch computes each.
fn is_launch_of(parts: &Graph, op: OpId, device: &Device) -> bool {
    let of_op = |n: &NodeKind| matches!(n, NodeKind::Op { op: o, .. } if *o == op);
    let mut nodes = (0..parts.nodes.len()).filter(|i| of_op(&parts.nodes[*i].kind)).peekable();
    let alone = |i: usize| {
        let way = parts.chosen_kernel(NodeId(i as u32), device).map(|c| &c.strategy);
        matches!(way, Some(Strategy::Whole | Strategy::Call | Strategy::Rowwise))
            || way.is_none() && !parts.needs_kernel(NodeId(i as u32))
    };
    nodes.peek().is_some() && nodes.all(alone)
}

/// Whether a term has that part.
fn contains(whole: &Term, part: &Term) -> bool {
    (0..whole.nodes.len()).any(|i| {
        let mut at = whole.clone();
        at.roots = vec![TermId(i as u32)];
        prune(&at) == *part
    })
}
