//! Equality saturation: runs rules to a fixpoint, ruleset by ruleset, within budgets.
//!
//! In: an e-graph, compiled rules, limits. Out: a larger e-graph, the reason why each ruleset
//! ended, and a trace of what fired. Invariant: the limits are checked before every node that is
//! added, so that one application cannot exceed them. A ruleset that was cut short never claims to
//! be saturated. Limits count work, so that the same model and rules give the same e-graph on any
//! machine, unless the wall-clock backstop fires, which is then reported as the reason.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use egg::Id;
use hypatia_dsl::ir::{RuleId, RuleSetDef};
use hypatia_dsl::parallel::side_by_side_with;

use super::Options;
use super::analysis::EGraph;
use super::apply::Reject;
use super::language::Node;
use super::live_rules::RulesetRules;
use super::matcher::{Frontiers, LogPosition, Match, SearchLimits, View};
use super::report::Stop;
use super::rewrites::{CompiledRule, Progress, SEARCH_LIMITS, SearchState};
use super::savings::Saving;

/// Estimated bytes of an e-node, with its class, its table entries, and the memory of matches.
const BYTES_PER_NODE: usize = 600;

/// Budgets of one run of a ruleset.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Maximum number of iterations.
    pub iterations: Option<u32>,
    /// Maximum number of nodes.
    pub nodes: usize,
    /// Maximum number of bytes.
    pub memory: usize,
    /// Maximum number of nodes visited in all iterations of a ruleset.
    pub looked_through: usize,
    /// Maximum number of steps of work: of matching, plus [`STEPS_OF_APPLICATION`] for each match
    /// that is applied.
    pub steps: usize,
    /// Limits of one search, so that a rule with many matches does not starve the others.
    pub search: SearchLimits,
    /// The wall-clock backstop.
    pub deadline: Instant,
}

/// The cost of applying a match, in steps of matching that take as long.
pub const STEPS_OF_APPLICATION: usize = 50;

/// Maximum steps of work of an optimisation: a constant plus a number for each node of the graph.
/// With the whole library, a BERT encoder of 12 layers takes 400 steps a node and a Llama of 80
/// layers takes 330; sound rules take about as many on any graph.
const STEPS: (usize, usize) = (20_000_000, 8_000);
/// Maximum number of nodes visited in one run of a ruleset, in the same form: those models take 27
/// and 22 a node.
const LOOKED_THROUGH: (usize, usize) = (500_000, 500);
/// Maximum number of matches of one search for each node of the graph, where that exceeds
/// [`SEARCH_LIMITS`]. Each search visits the whole e-graph, so if the number of searches grew with
/// the graph, the time would be quadratic.
const MATCHES_OF_NODE: usize = 10;
/// Maximum number of steps of one search for each node of the graph, in the same way.
const SEARCH_STEPS_OF_NODE: usize = 500;

/// Maximum of the wall-clock backstop, which keeps clock arithmetic from overflowing.
const LONGEST: Duration = Duration::from_secs(1 << 30);

impl Budget {
    /// The limits of an optimisation of a graph with that many nodes, far above what sound rules
    /// need.
    pub fn of_optimisation(nodes: usize, options: &Options, started: Instant) -> Budget {
        let scaled = |(fixed, per_node): (usize, usize)| per_node.saturating_mul(nodes).saturating_add(fixed);
        Budget {
            iterations: None,
            nodes: options.max_nodes,
            memory: options.max_memory,
            looked_through: scaled(LOOKED_THROUGH),
            steps: options.max_steps.unwrap_or_else(|| scaled(STEPS)),
            search: SearchLimits {
                matches: SEARCH_LIMITS.matches.max(MATCHES_OF_NODE.saturating_mul(nodes)),
                steps: SEARCH_LIMITS.steps.max(SEARCH_STEPS_OF_NODE.saturating_mul(nodes)),
            },
            deadline: started + options.max_time.min(LONGEST),
        }
    }

    /// A ruleset's own budget for a graph of `nodes` nodes, within the limits of the whole
    /// optimisation. The e-graph has `present` nodes, of which earlier runs of that ruleset added
    /// `added`. Nodes that other rulesets added are not counted.
    pub fn of(ruleset: &RuleSetDef, nodes: usize, present: usize, added: usize, all: &Budget) -> Budget {
        let scaled = |(fixed, per_node): (u64, u64)| per_node.saturating_mul(nodes as u64).saturating_add(fixed);
        let own = scaled(ruleset.nodes);
        // The default budget of a ruleset is more than a sound ruleset needs.
        let own = if own == 0 { 1000 + 200 * nodes as u64 } else { own };
        let own = usize::try_from(own).unwrap_or(usize::MAX).saturating_sub(added).saturating_add(present);
        let steps = ruleset.steps.map_or(usize::MAX, |s| usize::try_from(scaled(s)).unwrap_or(usize::MAX));
        Budget { iterations: ruleset.iterations, nodes: all.nodes.min(own), steps: all.steps.min(steps), ..all.clone() }
    }

    fn node_limit(&self) -> usize {
        self.nodes.min(self.memory / BYTES_PER_NODE)
    }
}

/// A firing, before it gets names.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The rule.
    pub rule: RuleId,
    /// Whether the rule ran on its terms.
    pub terms: bool,
    /// The classes of its roots at that time.
    pub roots: Vec<Id>,
    /// The nodes that it matched.
    pub matched: Vec<Node>,
    /// The nodes that it built for the roots.
    pub built: Vec<Node>,
    /// False if what it built was there already.
    pub changed: bool,
    /// What it saves, if the rule says so.
    pub saving: Option<Box<Saving>>,
}

/// Maximum number of traces kept.
pub(super) const MAX_TRACES: usize = 200_000;

/// The result of one run of a ruleset.
#[derive(Debug)]
pub struct RulesetOutcome {
    /// Iterations.
    pub iterations: usize,
    /// Number of rule applications that changed something.
    pub fired: usize,
    /// Why it ended.
    pub stop: Stop,
    /// Steps of work.
    pub steps: usize,
    /// Number of nodes visited in all iterations.
    pub looked_through: usize,
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

    /// One line for each rule that has a name, in the order of the rules.
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

/// Number of consecutive searches that are cut short without finding anything new before a
/// ruleset gives up.
const MAX_IDLE_SEARCHES: usize = 20;

/// Runs the rules until nothing changes or a budget is spent. Rules on arbitrary pointwise work
/// wait until no other rule changes anything, since they match what the other rules build.
pub fn run(
    egraph: &mut EGraph,
    rules: &mut RulesetRules<'_>,
    budget: &Budget,
    search: &mut SearchState,
    seen: &mut SearchProgress,
    traces: &mut Vec<Trace>,
    rejections: &mut Rejections,
) -> RulesetOutcome {
    let mut ran = RulesetOutcome { iterations: 0, fired: 0, stop: Stop::Saturated, steps: 0, looked_through: 0 };
    let mut idle = 0;
    let mut of_work = !rules.steps;
    loop {
        if let Some(stop) = over(egraph, budget, &ran) {
            ran.stop = stop;
            break;
        }
        ran.iterations += 1;
        ran.looked_through += egraph.total_size();
        search.patterns.refresh(egraph);
        rules.wake(&search.patterns);
        let log = LogPosition::end(egraph, &search.candidate);
        let seen_now = if of_work { &mut seen.whole } else { &mut seen.steps };
        let now = rules.live(of_work);
        let Searched { found, capped, mut stop, steps } =
            search_all(egraph, &now, budget, search, *seen_now, ran.steps);
        ran.steps += steps;
        // Regions that were searched completely need no second search.
        *seen_now = (!capped && stop.is_none()).then_some(log);
        let noted = Notes { traces, rejections };
        let changed = apply_all(egraph, &found, budget, search, &mut ran.steps, &mut stop, noted);
        if !egraph.clean {
            egraph.rebuild();
        }
        if changed > 0 {
            search.candidate.refresh(egraph);
        }
        ran.fired += changed;
        if let Some(stop) = stop {
            ran.stop = stop;
            *seen = SearchProgress::default();
            break;
        }
        idle = if changed == 0 && capped { idle + 1 } else { 0 };
        if changed == 0 && !capped {
            if of_work || !rules.of_work {
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

/// What is kept of applications.
struct Notes<'a> {
    traces: &'a mut Vec<Trace>,
    rejections: &'a mut Rejections,
}

/// Applies matches until a budget is spent, which `stop` then says. Returns how many changed
/// something.
fn apply_all(
    egraph: &mut EGraph,
    found: &[(&CompiledRule, Match)],
    budget: &Budget,
    search: &mut SearchState,
    steps: &mut usize,
    stop: &mut Option<Stop>,
    Notes { traces, rejections }: Notes<'_>,
) -> usize {
    let mut changed = 0;
    for (i, (rule, m)) in found.iter().enumerate() {
        if stop.is_none() && *steps > budget.steps {
            *stop = Some(Stop::Work);
        } else if stop.is_none() && i % 64 == 0 && Instant::now() >= budget.deadline {
            *stop = Some(Stop::Time);
        }
        if stop.is_some() {
            break;
        }
        *steps += STEPS_OF_APPLICATION;
        match rule.apply(egraph, search, m, budget.node_limit()) {
            Ok(applied) => {
                changed += usize::from(applied.changed);
                let most = if applied.changed { MAX_TRACES } else { MAX_TRACES / 2 };
                if traces.len() < most && (applied.changed || !applied.built.is_empty()) {
                    let saving = applied.saving(rule.id, m).map(Box::new);
                    traces.push(Trace {
                        rule: rule.id,
                        terms: rule.terms,
                        roots: m.roots.clone(),
                        matched: m.nodes.clone(),
                        built: applied.built,
                        changed: applied.changed,
                        saving,
                    });
                }
            }
            Err(Reject::Budget) => {
                let by_memory = budget.memory / BYTES_PER_NODE < budget.nodes;
                *stop = Some(if by_memory { Stop::Memory } else { Stop::Nodes });
            }
            Err(reject) => rejections.note(rule.id, &reject),
        }
    }
    changed
}

fn over(egraph: &EGraph, budget: &Budget, ran: &RulesetOutcome) -> Option<Stop> {
    if budget.iterations.is_some_and(|n| ran.iterations >= n as usize) {
        return Some(Stop::Iterations);
    }
    if ran.looked_through > budget.looked_through || ran.steps > budget.steps {
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

/// How far a set of rules has searched.
#[derive(Clone, Copy, Debug, Default)]
pub struct SearchProgress {
    /// The ends of the change logs at the last search of all rules except those on arbitrary
    /// pointwise work; `None` if that search was incomplete.
    pub steps: Option<LogPosition>,
    /// The same for rules on arbitrary pointwise work.
    pub whole: Option<LogPosition>,
}

/// The result of searching all rules.
struct Searched<'r> {
    /// All new matches.
    found: Vec<(&'r CompiledRule, Match)>,
    /// The search of some rule was cut short.
    capped: bool,
    /// The run's work budget is spent, or the backstop fired.
    stop: Option<Stop>,
    steps: usize,
}

/// Number of classes to search for which it pays to start threads.
const CLASSES_FOR_THREADS: usize = 500;

/// Minimum number of rules per thread.
const RULES_A_THREAD: usize = 8;

/// Steps of matching between two looks at the clock.
const STEPS_BETWEEN_LOOKS: usize = 1_000;

/// Searches every rule on the present e-graph, after this many steps of matching. All cores search;
/// the result is the same as on one.
fn search_all<'r>(
    egraph: &EGraph,
    rules: &[&'r CompiledRule],
    budget: &Budget,
    search: &mut SearchState,
    seen: Option<LogPosition>,
    steps: usize,
) -> Searched<'r> {
    // Each match is held in memory until it is applied.
    let limits = SearchLimits { matches: budget.search.matches.min(budget.node_limit().max(1)), ..budget.search };
    let SearchState { candidate, patterns, progress } = search;
    let view = || View::of(egraph, candidate, patterns);
    let changes = seen.map(|from| Frontiers::since(&view(), from, rules.iter().map(|r| r.prepared())));
    let classes = changes.as_ref().map_or_else(|| egraph.number_of_classes(), Frontiers::near);
    let share = if classes < CLASSES_FOR_THREADS { usize::MAX } else { RULES_A_THREAD };
    let (known, nothing) = (&*progress, Progress::default());
    // A thread counts its own steps, all of earlier rules: what it leaves out is left out below
    // too.
    let found = side_by_side_with(
        rules,
        share,
        None,
        || (view(), steps, 0),
        |(view, steps, next_look), rule| {
            if *steps > budget.steps {
                return None;
            }
            // A look at the clock takes as long as searching a rule that matches nowhere.
            if *steps >= *next_look {
                if Instant::now() >= budget.deadline {
                    return None;
                }
                *next_look = *steps + STEPS_BETWEEN_LOOKS;
            }
            let found = rule.find(view, known.get(&rule.key()).unwrap_or(&nothing), limits, changes.as_ref());
            *steps += found.steps;
            Some(found)
        },
    );
    let mut out = Searched { found: Vec::new(), capped: false, stop: None, steps: 0 };
    for (rule, found) in rules.iter().zip(found) {
        if steps + out.steps > budget.steps {
            out.stop = Some(Stop::Work);
            break;
        }
        let Some(found) = found else {
            out.stop = Some(Stop::Time);
            break;
        };
        match progress.get_mut(&rule.key()) {
            Some(known) => known.resume = found.resume,
            None if found.resume == 0 => {}
            None => progress.entry(rule.key()).or_default().resume = found.resume,
        }
        out.capped |= found.capped;
        out.steps += found.steps;
        out.found.extend(found.matches.into_iter().map(|m| (*rule, m)));
    }
    out
}
