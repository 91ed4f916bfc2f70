//! Running rules to a fixpoint, stage by stage, within budgets.
//!
//! In: an e-graph, compiled rules, limits. Out: a bigger e-graph, why each stage ended, and a trace of what fired.
//! Holds always: the limits are looked at before every node that is added, so that one application cannot pass
//! them; a stage that was cut short never says that it is saturated.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use egg::Id;
use hypatia_dsl::ir::{RuleId, RuleSetDef};

use super::apply::Reject;
use super::language::{EGraph, Node};
use super::matcher::{Changes, Match, SearchLimits, View};
use super::report::Stop;
use super::rewrites::{CompiledRule, SEARCH_LIMITS, SearchState};

/// Bytes that a node of the e-graph takes, with its class, its entries in the tables, and the memory of matches.
const BYTES_PER_NODE: usize = 600;

/// Budgets of one stage.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Iterations at most.
    pub iterations: Option<u32>,
    /// Nodes at most.
    pub nodes: usize,
    /// Bytes at most.
    pub memory: usize,
    /// Nodes at most that are looked through, all iterations of a stage together.
    pub rebuilt: usize,
    /// Steps of matching at most, of the whole run.
    pub steps: usize,
    /// When to stop: the last resort, as it makes results depend on how busy the machine is.
    pub deadline: Instant,
}

impl Budget {
    /// The limits of a run over a graph of that many nodes, far above what sound rules need.
    pub fn of_run(nodes: usize, max_nodes: usize, memory: usize, deadline: Instant) -> Budget {
        Budget {
            iterations: None,
            nodes: max_nodes,
            memory,
            rebuilt: 500_000 + 150 * nodes,
            steps: 20_000_000 + 5_000 * nodes,
            deadline,
        }
    }

    /// A ruleset's own budget for a graph of `nodes` nodes, within the limits of the whole run. The e-graph has `present`
    /// nodes, of which earlier stages of that ruleset added `added`: what others added is not counted against it.
    pub fn of(ruleset: &RuleSetDef, nodes: usize, present: usize, added: usize, all: &Budget) -> Budget {
        let (fixed, per_node) = ruleset.nodes;
        let own = fixed.saturating_add(per_node.saturating_mul(nodes as u64));
        // A ruleset without a budget of its own gets one that no sound ruleset needs.
        let own = if own == 0 { 1000 + 200 * nodes as u64 } else { own };
        let own = usize::try_from(own).unwrap_or(usize::MAX).saturating_sub(added).saturating_add(present);
        let time = if ruleset.time_ms == 0 { 10_000 } else { ruleset.time_ms };
        Budget {
            iterations: ruleset.iterations,
            nodes: all.nodes.min(own),
            memory: all.memory,
            rebuilt: all.rebuilt,
            steps: all.steps,
            deadline: all.deadline.min(Instant::now() + Duration::from_millis(time)),
        }
    }

    fn node_limit(&self) -> usize {
        self.nodes.min(self.memory / BYTES_PER_NODE)
    }
}

/// A firing, before names are put to it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The rule.
    pub rule: RuleId,
    /// Whether its terms.
    pub terms: bool,
    /// The classes of its roots then.
    pub roots: Vec<Id>,
    /// The nodes that it matched.
    pub matched: Vec<Node>,
    /// The nodes that it built for the roots.
    pub built: Vec<Node>,
}

/// Traces that are kept.
const MAX_TRACES: usize = 200_000;

/// What a stage did.
#[derive(Debug)]
pub struct Ran {
    /// Iterations.
    pub iterations: usize,
    /// Times a rule changed something.
    pub fired: usize,
    /// Why it ended.
    pub stop: Stop,
    /// Steps of matching.
    pub steps: usize,
}

/// Rejected applications by rule, with the first reason.
#[derive(Debug, Default)]
pub struct Rejections {
    by_rule: HashMap<RuleId, (usize, String)>,
}

impl Rejections {
    fn note(&mut self, rule: RuleId, reject: &Reject) {
        let reason = match reject {
            Reject::Type(m) => m.clone(),
            Reject::NotConstant => "`build(...)` over something that is not a constant".to_string(),
            _ => return,
        };
        self.by_rule.entry(rule).or_insert((0, reason)).0 += 1;
    }

    /// One line a rule that has a name, in the rules' order.
    pub fn lines(&self, name: impl Fn(RuleId) -> Option<String>) -> Vec<String> {
        let mut all: Vec<_> = self.by_rule.iter().collect();
        all.sort_by_key(|(id, _)| **id);
        all.iter()
            .filter_map(|(id, (n, reason))| {
                let times = if *n == 1 { "once".to_string() } else { format!("{n} times") };
                Some(format!("{} matched but was not applied, {times}: {reason}", name(**id)?))
            })
            .collect()
    }
}

/// Searches that are cut short without finding anything new, one after the other, before a stage gives up.
const MAX_IDLE_SEARCHES: usize = 20;

/// Runs the rules until nothing changes or a budget is used up. Rules about any pointwise work wait until no other rule
/// changes anything: what single steps build is theirs.
pub fn run(
    egraph: &mut EGraph,
    rules: &[&CompiledRule],
    budget: &Budget,
    search: &mut SearchState,
    seen: &mut Seen,
    traces: &mut Vec<Trace>,
    rejections: &mut Rejections,
) -> Ran {
    let mut ran = Ran { iterations: 0, fired: 0, stop: Stop::Saturated, steps: 0 };
    let (mut idle, mut rebuilt) = (0, 0);
    let (steps, whole): (Vec<&CompiledRule>, Vec<&CompiledRule>) = rules.iter().partition(|r| !r.prepared().any_work);
    let mut of_work = steps.is_empty();
    loop {
        if let Some(stop) = over(egraph, budget, &ran, rebuilt) {
            ran.stop = stop;
            break;
        }
        ran.iterations += 1;
        rebuilt += egraph.total_size();
        search.below.refresh(egraph);
        let log = (egraph.analysis.touched.len(), search.candidate.reconsidered().len());
        let (now, seen_now) = if of_work { (&whole, &mut seen.whole) } else { (&steps, &mut seen.steps) };
        let Searched { found, capped, mut stop, steps } = search_all(egraph, now, budget, search, *seen_now, ran.steps);
        ran.steps += steps;
        // What was searched whole need not be searched again.
        *seen_now = (!capped && stop.is_none()).then_some(log);
        let mut changed = 0;
        for (i, (rule, m)) in found.iter().enumerate() {
            if stop.is_some() || (i % 64 == 0 && Instant::now() >= budget.deadline) {
                stop = stop.or(Some(Stop::Time));
                break;
            }
            match rule.apply(egraph, search, m, budget.node_limit()) {
                Ok(applied) if applied.changed => {
                    changed += 1;
                    if traces.len() < MAX_TRACES {
                        traces.push(Trace {
                            rule: rule.id,
                            terms: rule.terms,
                            roots: m.roots.clone(),
                            matched: m.nodes.clone(),
                            built: applied.built,
                        });
                    }
                }
                Ok(_) => {}
                Err(Reject::Budget) => {
                    let by_memory = budget.memory / BYTES_PER_NODE < budget.nodes;
                    stop = Some(if by_memory { Stop::Memory } else { Stop::Nodes });
                }
                Err(reject) => rejections.note(rule.id, &reject),
            }
        }
        if !egraph.clean {
            egraph.rebuild();
        }
        if changed > 0 {
            search.candidate.refresh(egraph);
        }
        ran.fired += changed;
        if let Some(stop) = stop {
            ran.stop = stop;
            *seen = Seen::default();
            break;
        }
        idle = if changed == 0 && capped { idle + 1 } else { 0 };
        if changed == 0 && !capped {
            if of_work || whole.is_empty() {
                break;
            }
            of_work = true;
            continue;
        }
        of_work &= changed == 0;
        if idle > MAX_IDLE_SEARCHES {
            ran.stop = Stop::Search;
            break;
        }
    }
    ran
}

fn over(egraph: &EGraph, budget: &Budget, ran: &Ran, rebuilt: usize) -> Option<Stop> {
    if budget.iterations.is_some_and(|n| ran.iterations >= n as usize) {
        return Some(Stop::Iterations);
    }
    if rebuilt > budget.rebuilt || ran.steps > budget.steps {
        return Some(Stop::Work);
    }
    if Instant::now() >= budget.deadline {
        return Some(Stop::Time);
    }
    if egraph.total_size() >= budget.node_limit() {
        let by_memory = budget.memory / BYTES_PER_NODE < budget.nodes;
        return Some(if by_memory { Stop::Memory } else { Stop::Nodes });
    }
    None
}

/// How far a set of rules has looked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The lengths of the logs of touched and of reconsidered classes at the last search of all rules but those about any
    /// pointwise work; `None` where not all was searched.
    pub steps: Option<(usize, usize)>,
    /// The same of rules about any pointwise work.
    pub whole: Option<(usize, usize)>,
}

/// What a search of all rules found.
struct Searched<'r> {
    /// All new matches.
    found: Vec<(&'r CompiledRule, Match)>,
    /// The search of a rule was cut short.
    capped: bool,
    /// The time or the work that the run may take is used up.
    stop: Option<Stop>,
    steps: usize,
}

/// Searches every rule on the e-graph as it is, after so many steps of matching.
fn search_all<'r>(
    egraph: &EGraph,
    rules: &[&'r CompiledRule],
    budget: &Budget,
    search: &mut SearchState,
    seen: Option<(usize, usize)>,
    steps: usize,
) -> Searched<'r> {
    let mut out = Searched { found: Vec::new(), capped: false, stop: None, steps: 0 };
    // Each match is held in memory until it is applied.
    let limits = SearchLimits { matches: SEARCH_LIMITS.matches.min(budget.node_limit().max(1)), ..SEARCH_LIMITS };
    let depth = rules.iter().map(|r| r.prepared().depth).max().unwrap_or(0);
    let SearchState { candidate, below, progress } = search;
    let view = View::of(egraph, candidate, below);
    let changes = seen.map(|from| Changes::since(&view, from, depth));
    for rule in rules {
        if steps + out.steps > budget.steps {
            out.stop = Some(Stop::Work);
        } else if Instant::now() >= budget.deadline {
            out.stop = Some(Stop::Time);
        }
        if out.stop.is_some() {
            break;
        }
        let found = rule.find(&view, progress.entry(rule.key()).or_default(), limits, changes.as_ref());
        out.capped |= found.capped;
        out.steps += found.steps;
        out.found.extend(found.matches.into_iter().map(|m| (*rule, m)));
    }
    out
}
