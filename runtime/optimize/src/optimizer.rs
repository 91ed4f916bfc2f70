//! One optimisation from start to end: the e-graph, the rules, the present candidate.
//!
//! In: a graph, options, and what computes constants. Out: the cheapest graph that was found, and a
//! [`Report`]. Invariant: the candidate is a graph of the e-graph that computes all outputs; it
//! begins as the given graph.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use egg::{Id, Language};
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{OpBody, OpId, Program, RuleId, RuleSetId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::analysis::EGraph;
use super::analysis::Sort;
use super::built_problem::{BuiltProblem, ChosenGraph};
use super::cost::{Cost, CostModel};
use super::extract::{extract, refine};
use super::facts::is_view;
use super::language::{Node, Payload};
use super::live_rules::LiveRules;
use super::lower::{Inserted, Rebuilder, Rebuilt, StatedFacts, insert_graph};
use super::matcher::{SearchLimits, View};
use super::program_rules::ProgramRules;
use super::report::{Firing, Report, RulesetRun, Saved, Site, Summary};
use super::rewrites::SearchState;
use super::saturate::{Budget, Rejections, SearchProgress, Trace, run};
use super::savings::Saving;
use super::{Optimized, Options, kernels};
use hypatia_graph::{ConstantFolder, Graph, NodeId, Value, cluster, constant_nodes, is_pointwise};
use hypatia_tensor::error::{Error, Result};

/// What depends on a trace.
#[derive(Clone, Copy)]
struct Owner {
    /// The class of the result.
    class: Id,
    /// The trace that matched what it built; `None` if the result has that itself.
    through: Option<usize>,
}

/// Notes what depends on a node, if nothing did so far.
fn is_new(seen: &mut FxHashMap<Node, Owner>, node: &Node, owner: Owner) -> bool {
    let entry = seen.entry(node.clone());
    let new = matches!(entry, Entry::Vacant(_));
    entry.or_insert(owner);
    new
}

/// A finished optimisation.
pub(super) struct Finished {
    pub(super) optimized: Optimized,
    /// The number of the trace of each firing of the report,
    pub(super) of_firings: Vec<usize>,
    /// and of each repeat.
    pub(super) of_repeats: Vec<usize>,
}

/// Maximum number of firings whose cost is counted again with launches joined.
const MAX_RECONSIDERED: usize = 16;
/// Maximum number of rounds of all rulesets; each recounts uses on the present candidate.
const MAX_ROUNDS: usize = 6;

/// An optimisation in progress.
pub struct Optimizer<'a> {
    options: &'a Options,
    /// The given graph, inlined.
    pub graph: Graph,
    /// Its e-graph.
    pub inserted: Inserted,
    program: Arc<Program>,
    /// The cost model, with cached node costs.
    model: CostModel,
    /// The rules that may match.
    rules: LiveRules,
    /// The state of searches: what they cache and query.
    pub search: SearchState,
    /// The present candidate.
    pub best: ChosenGraph,
    /// The chosen node of each class of the given graph.
    given: Vec<(Id, Node)>,
    before: Summary,
    pub runs: Vec<RulesetRun>,
    /// How far the rules of each ruleset have searched.
    seen: Vec<SearchProgress>,
    /// How many nodes the rules of each ruleset have added.
    added: Vec<usize>,
    /// Every firing.
    pub traces: Vec<Trace>,
    rejections: Rejections,
    started: Instant,
    extraction_steps: usize,
    extraction_millis: f64,
    warnings: Vec<String>,
}

impl<'a> Optimizer<'a> {
    /// Inlines the graph and inserts it into an e-graph.
    pub fn start(graph: &Graph, options: &'a Options, folder: &'static dyn ConstantFolder) -> Result<Optimizer<'a>> {
        let started = Instant::now();
        Optimizer::of(inlined(graph, options, folder)?, options, folder, &StatedFacts::default(), started)
    }

    /// Inserts a graph whose ops stay as they are into an e-graph.
    pub fn resume(graph: Graph, options: &'a Options, folder: &'static dyn ConstantFolder) -> Result<Optimizer<'a>> {
        Optimizer::of(graph.pruned(), options, folder, &StatedFacts::default(), Instant::now())
    }

    /// Inserts a graph that [`inlined`] gave, or a part of it, into an e-graph.
    pub(super) fn of(
        graph: Graph,
        options: &'a Options,
        folder: &'static dyn ConstantFolder,
        stated: &StatedFacts,
        started: Instant,
    ) -> Result<Optimizer<'a>> {
        let inserted = insert_graph(&graph, folder, stated)?;
        let program = graph.program.clone();
        let given = inserted.egraph.classes().filter_map(|c| c.nodes.first().map(|n| (c.id, n.clone()))).collect();
        let (rules, large) = if options.no_rules {
            (LiveRules::none(&program), Vec::new())
        } else {
            let present: FxHashSet<_> =
                inserted.egraph.classes().flat_map(|c| c.nodes.iter().map(Language::discriminant)).collect();
            let rules = LiveRules::of(&program, Some(present.into_iter()), options.allowed());
            (rules, ProgramRules::of(&program).oversized.clone())
        };
        let large = large.iter().map(|r| &program.rules[r.index()].name);
        let warnings = large.map(|name| format!("{name} is not used: its pattern is too large")).collect();
        let search = SearchState::of_program(&program);
        let model = CostModel::new(&program, options);
        let mut optimizer = Optimizer {
            options,
            graph,
            inserted,
            program,
            model,
            rules,
            search,
            best: ChosenGraph::default(),
            given,
            before: Summary::default(),
            runs: Vec::new(),
            seen: Vec::new(),
            added: Vec::new(),
            traces: Vec::new(),
            rejections: Rejections::default(),
            started,
            extraction_steps: 0,
            extraction_millis: 0.0,
            warnings,
        };
        optimizer.seen = vec![SearchProgress::default(); optimizer.program.rulesets.len()];
        optimizer.added = vec![0; optimizer.program.rulesets.len()];
        optimizer.choose(false)?;
        optimizer.before = Summary::of(&optimizer.graph, micros(optimizer.best.cost));
        Ok(optimizer)
    }

    /// Statistics of the given graph.
    pub fn before(&self) -> &Summary {
        &self.before
    }

    /// The cost of the present candidate in microseconds.
    pub fn cost(&self) -> f64 {
        micros(self.best.cost)
    }

    /// Applies a rule at match number `skip`, and forces what it built into the graph: that graph
    /// and its cost. The inner `None` means that this match cannot be applied, the outer one that
    /// there is no such match.
    pub fn rewrite(&mut self, rule: usize, skip: usize, limits: SearchLimits) -> Option<Option<(Graph, f64)>> {
        self.search.patterns.refresh(&self.inserted.egraph);
        self.rules.wake(&self.search.patterns);
        let mut before = 0;
        for compiled in self.rules.of_rule(RuleId(rule as u32)) {
            let view = View::of(&self.inserted.egraph, &self.search.candidate, &self.search.patterns);
            let found = compiled.find(&view, &Default::default(), limits, None);
            if let Some(m) = found.matches.get(skip - before) {
                let egraph = &mut self.inserted.egraph;
                let Ok(applied) = compiled.apply(egraph, &mut self.search, m, usize::MAX) else { return Some(None) };
                egraph.rebuild();
                if !applied.changed {
                    return Some(None);
                }
                self.search.candidate.refresh(&self.inserted.egraph);
                self.model.state(&self.inserted.egraph, applied.saving(compiled.id, m).iter());
                // A term is no value of its own; a rule that builds nothing leaves only its root.
                let root = m.roots.first().copied().filter(|_| !compiled.terms);
                let root = root.or(self.inserted.outputs.first().copied())?;
                let built = applied.built.first().filter(|_| !compiled.terms);
                return Some(self.candidates_with(root, built).and_then(|c| Some((self.rebuilt(&c)?, micros(c.cost)))));
            }
            before += found.matches.len();
            if skip < before {
                return None;
            }
        }
        None
    }

    /// The cost of the chosen nodes of some classes, each by itself.
    pub(super) fn cost_of(&self, classes: impl Iterator<Item = Id>) -> f64 {
        let egraph = &self.inserted.egraph;
        let outputs: FxHashSet<Id> = self.inserted.outputs.iter().map(|c| egraph.find(*c)).collect();
        let cost = |class: Id| {
            let class = &egraph[egraph.find(class)];
            let Some(node) = self.best.chosen.get(&class.id) else { return 0 };
            let stored = if outputs.contains(&class.id) { self.model.stored(egraph, class, node) } else { 0 };
            self.model.node(egraph, class, node).saturating_add(stored)
        };
        micros(classes.map(cost).sum())
    }

    /// The graph of the present candidate, with the class of each of its nodes.
    pub(super) fn chosen_graph(&self) -> Result<Rebuilt> {
        let (chosen, order) = (&self.best.chosen, &self.best.order);
        Rebuilder { original: &self.graph, inserted: &self.inserted, chosen, order }.rebuild()
    }

    /// The e-graph.
    pub fn egraph(&self) -> &EGraph {
        &self.inserted.egraph
    }

    /// The e-graph as searches see it.
    pub fn view(&self) -> View<'_> {
        View::of(&self.inserted.egraph, &self.search.candidate, &self.search.patterns)
    }

    /// Runs all rulesets until a round changes nothing, and extracts the final graph.
    pub fn run(&mut self) {
        self.saturate();
        self.choose_finally();
    }

    /// Runs all rulesets until a round changes nothing.
    pub fn saturate(&mut self) {
        let mut all = Budget::of_optimisation(self.graph.nodes.len(), self.options, self.started);
        for round in 1..=MAX_ROUNDS {
            let mut fired = 0;
            for index in 0..self.program.rulesets.len() {
                fired += self.run_ruleset(RuleSetId(index as u32), round, &mut all);
            }
            if fired == 0 {
                break;
            }
        }
    }

    /// Extracts the final graph, once nothing fires any more.
    fn choose_finally(&mut self) {
        if let Err(e) = self.choose(true) {
            self.warnings.push(e.to_string());
        }
        self.reconsider_pointwise();
    }

    /// Pointwise work is joined into launches after extraction, so a rule that makes pointwise work
    /// of another op looks costlier than it is. Tries those whose result lost, and keeps what is
    /// cheaper with launches joined.
    fn reconsider_pointwise(&mut self) {
        let mut tried: FxHashSet<Node> = FxHashSet::default();
        let mut kept: Option<Cost> = None;
        for i in 0..self.traces.len() {
            let Some((root, node)) = self.lost_to_an_op(&self.traces[i]) else { continue };
            if !tried.insert(node.clone()) {
                continue;
            }
            if tried.len() > MAX_RECONSIDERED {
                break;
            }
            let Some(best) = kept.or_else(|| self.joined_cost(&self.best)) else { return };
            let other = self.candidates_with(root, Some(&node)).and_then(|c| Some((self.joined_cost(&c)?, c)));
            kept = Some(best);
            if let Some((cost, candidates)) = other.filter(|(cost, _)| *cost < best) {
                kept = Some(cost);
                self.best = candidates;
                self.count_uses();
            }
        }
    }

    /// The root and the pointwise node that a rule built there, if the present candidate computes
    /// an op instead that the rule matched and that is not pointwise.
    fn lost_to_an_op(&self, t: &Trace) -> Option<(Id, Node)> {
        let egraph = &self.inserted.egraph;
        let ([root], [built], true, false) = (&*t.roots, &*t.built, t.changed, t.terms) else { return None };
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let (root, built) = (egraph.find(*root), canonical(built));
        let chosen = self.best.chosen.get(&root)?;
        let body = |op: OpId| &self.program.op(op).body;
        let pointwise = match built.payload {
            Payload::Scalar(_) => true,
            Payload::Op(op, _) => *body(op) == OpBody::Builtin(BuiltinOp::Cast),
            _ => false,
        };
        if !pointwise || *chosen == built || egraph[root].data.constant {
            return None;
        }
        let is_op = |n: &Node| {
            let Payload::Op(op, _) = n.payload else { return false };
            let own = !matches!(*body(op), OpBody::Builtin(b) if is_view(b) || b == BuiltinOp::Cast);
            let class = egraph.lookup(n.clone()).filter(|c| !egraph[*c].data.constant);
            own && class.is_some_and(|c| self.best.chosen.get(&c) == Some(n))
        };
        t.matched.iter().map(canonical).any(|n| is_op(&n)).then_some((root, built))
    }

    /// The cost of a candidate if each region of pointwise work is one launch.
    fn joined_cost(&self, candidates: &ChosenGraph) -> Option<Cost> {
        let graph = self.rebuilt(candidates)?;
        let constant = constant_nodes(&graph);
        let pointwise: Vec<bool> =
            graph.nodes.iter().zip(&constant).map(|(n, constant)| !constant && is_pointwise(&graph, n)).collect();
        let joined: usize = cluster(&graph, &pointwise).ok()?.iter().map(|region| region.len() - 1).sum();
        let launch = (self.options.device.launch * 1e12) as Cost;
        Some(candidates.cost.saturating_sub(launch.saturating_mul(joined as Cost)))
    }

    /// Runs one ruleset, and extracts a new candidate if it fired. Returns how often it fired.
    fn run_ruleset(&mut self, id: RuleSetId, round: usize, all: &mut Budget) -> usize {
        let Some(mut rules) = self.rules.of_ruleset(id) else { return 0 };
        let begun = Instant::now();
        let ruleset = &self.program.rulesets[id.index()];
        let present = self.inserted.egraph.total_size();
        let budget = Budget::of(ruleset, self.graph.nodes.len(), present, self.added[id.index()], all);
        let seen = &mut self.seen[id.index()];
        let traced = self.traces.len();
        let search = &mut self.search;
        let ran =
            run(&mut self.inserted.egraph, &mut rules, &budget, search, seen, &mut self.traces, &mut self.rejections);
        all.steps = all.steps.saturating_sub(ran.steps);
        self.added[id.index()] += self.inserted.egraph.total_size().saturating_sub(present);
        self.runs.push(RulesetRun {
            ruleset: ruleset.name.clone(),
            round,
            iterations: ran.iterations,
            fired: ran.fired,
            nodes: self.inserted.egraph.total_number_of_nodes(),
            classes: self.inserted.egraph.number_of_classes(),
            millis: begun.elapsed().as_secs_f64() * 1e3,
            steps: ran.steps,
            looked_through: ran.looked_through,
            stop: ran.stop,
            busiest: if ran.stop.cut_short() { busiest(&self.program, &self.traces[traced..]) } else { Vec::new() },
        });
        if ran.fired > 0
            && let Err(e) = self.choose(false)
        {
            self.warnings.push(e.to_string());
        }
        ran.fired
    }

    /// Extracts the cheapest graph, by full search or by improving the present candidate, and
    /// counts uses on it.
    fn choose(&mut self, every_means: bool) -> Result<()> {
        let begun = Instant::now();
        self.state(None);
        let egraph = &self.inserted.egraph;
        let built = BuiltProblem::new(egraph, &self.inserted.outputs, None, &self.model);
        let start = match self.best.chosen.is_empty() {
            true => built.choice_of(egraph, self.given.iter().map(|(c, n)| (c, n))),
            false => built.choice_of(egraph, self.best.chosen.iter()),
        };
        let refined = if every_means { None } else { refine(&built.problem, &start) };
        let choice = refined
            .or_else(|| extract(&built.problem, Some(&start)))
            .ok_or_else(|| Error::Internal("an output of the graph cannot be extracted".into()))?;
        self.best = built.candidates(&choice).ok_or_else(|| Error::Internal("the extracted graph is cyclic".into()))?;
        self.extraction_steps += built.problem.walked();
        self.count_uses();
        self.extraction_millis += begun.elapsed().as_secs_f64() * 1e3;
        Ok(())
    }

    /// Counts what rules say that they save, in every firing so far and in another application.
    pub fn state(&mut self, also: Option<&Saving>) {
        let savings = self.traces.iter().filter_map(|t| t.saving.as_deref());
        self.model.state(&self.inserted.egraph, savings.chain(also));
    }

    /// What rules that say so save: claimed beside measured.
    fn savings(&self, kept: &[bool]) -> Vec<Saved> {
        let mut by_rule: BTreeMap<&str, (usize, Vec<f64>)> = BTreeMap::new();
        for (t, kept) in self.traces.iter().zip(kept) {
            let Some(saving) = &t.saving else { continue };
            let (sites, claims) = by_rule.entry(&self.program.rules[t.rule.index()].base_name).or_default();
            *sites += usize::from(*kept);
            claims.push(saving.claimed.micros(&self.options.device));
        }
        let saved = |(rule, (sites, claims)): (&str, (usize, Vec<f64>))| Saved {
            rule: rule.to_string(),
            sites,
            claimed_us: claims.iter().sum::<f64>() / claims.len().max(1) as f64,
            measured_us: self.options.measured.get(rule).copied(),
        };
        by_rule.into_iter().map(saved).collect()
    }

    /// Counts the distinct consumers of each class of the candidate at run time; constants are
    /// computed earlier. The op of a term consumes what the term reads.
    fn count_uses(&mut self) {
        let egraph = &self.inserted.egraph;
        let mut uses: FxHashMap<Id, u32> = FxHashMap::default();
        for class in &self.best.order {
            let Some(node) = self.best.chosen.get(class) else { continue };
            if super::analysis::is_term(node.payload) || egraph[*class].data.constant {
                continue;
            }
            for used in consumed(egraph, &self.best.chosen, node) {
                *uses.entry(used).or_insert(0) += 1;
            }
        }
        for class in &self.inserted.outputs {
            *uses.entry(egraph.find(*class)).or_insert(0) += 1;
        }
        let scalars = self.best.chosen.iter().filter(|(_, n)| matches!(n.payload, Payload::Scalar(_)));
        let pointwise = scalars.map(|(c, n)| (*c, n.clone())).collect();
        self.search.candidate.replace(&self.best.order, uses, pointwise);
    }

    /// The optimised graph and the report.
    pub fn finish(self) -> Result<Optimized> {
        Ok(self.finish_with_traces()?.optimized)
    }

    /// The optimised graph and the report, with the traces of its firings.
    pub(super) fn finish_with_traces(mut self) -> Result<Finished> {
        let rebuilder = Rebuilder {
            original: &self.graph,
            inserted: &self.inserted,
            chosen: &self.best.chosen,
            order: &self.best.order,
        };
        // The extracted graph must be valid. If it is not, that is a bug, and the given graph is
        // returned.
        let left = rebuilder.rebuild().and_then(|l| l.graph.validate().map(|()| l));
        let [firings, repeats] = self.firings(left.as_ref().ok());
        let of_firings = firings.iter().map(|(trace, _)| *trace).collect();
        let of_repeats = repeats.iter().map(|(trace, _)| *trace).collect();
        let without = |list: Vec<(usize, Firing)>| list.into_iter().map(|(_, f)| f).collect::<Vec<Firing>>();
        let any = self.traces.iter().any(|t| t.saving.is_some());
        let savings = if any { self.savings(&self.kept()) } else { Vec::new() };
        let (graph, cost) = match left {
            Ok(left) => (left.graph, self.best.cost),
            Err(e) => {
                self.warnings.push(format!("the optimised graph is not legal, so the given one is used: {e}"));
                (self.graph.clone(), 0)
            }
        };
        let cost = if cost == 0 { self.before.micros } else { micros(cost) };
        let mut warnings = std::mem::take(&mut self.warnings);
        // Rules of the library are expected to be rejected where they do not fit.
        let own = |id: RuleId| Some(&self.program.rules[id.index()]).filter(|r| !r.origin.is_embedded());
        warnings.extend(self.rejections.lines(|id| own(id).map(|r| r.name.clone())));
        warnings.extend(
            self.runs
                .iter()
                .filter(|s| s.stop.cut_short())
                .map(|s| format!("ruleset {} was {}, so that better graphs may exist", s.ruleset, s.stop)),
        );
        let report = Report {
            device: self.options.device.name.to_string(),
            before: self.before.clone(),
            after: Summary::of(&graph, cost),
            launches: None,
            fusions: None,
            undecided: Vec::new(),
            choices: Vec::new(),
            layers: None,
            greedy: false,
            firings: without(firings),
            repeats: without(repeats),
            savings,
            settled: Vec::new(),
            contract: Vec::new(),
            runs: std::mem::take(&mut self.runs),
            warnings,
            extraction_steps: self.extraction_steps,
            extraction_millis: self.extraction_millis,
            millis: self.started.elapsed().as_secs_f64() * 1e3,
        };
        Ok(Finished { optimized: Optimized { graph, report }, of_firings, of_repeats })
    }

    /// For each trace, whether the result depends on it.
    pub fn kept(&self) -> Vec<bool> {
        self.owners().0.into_iter().map(|owner| owner.is_some()).collect()
    }

    /// For each trace, whether the result depends on it, or on what it built though the model had
    /// that already or another rule built it first.
    pub fn in_result(&self) -> Vec<bool> {
        let (owners, needed) = self.owners();
        let made = self.made_alike(&owners, &needed);
        self.traces.iter().zip(&owners).map(|(t, owner)| owner.is_some() || made(t).is_some()).collect()
    }

    /// What depends on what a trace made, whichever rule made it: on a node that it built or, if it
    /// builds nothing, on a kept trace that took the same nodes away.
    fn made_alike<'s>(
        &'s self,
        owners: &[Option<Owner>],
        needed: &'s FxHashMap<Node, Owner>,
    ) -> impl Fn(&Trace) -> Option<Owner> + use<'s> {
        let egraph = &self.inserted.egraph;
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let place = move |t: &Trace| {
            let roots: Vec<Id> = t.roots.iter().map(|r| egraph.find(*r)).collect();
            let mut matched: Vec<Node> = t.matched.iter().map(canonical).collect();
            matched.sort_unstable();
            (roots, matched)
        };
        let removed = self.traces.iter().zip(owners).filter(|(t, _)| t.built.is_empty());
        let taken: HashMap<_, Owner> = removed.filter_map(|(t, owner)| Some((place(t), (*owner)?))).collect();
        move |t: &Trace| {
            if t.built.is_empty() {
                return taken.get(&place(t)).copied();
            }
            let built: Vec<Node> = t.built.iter().map(canonical).collect();
            let (roots, matched) = place(t);
            let is_root = |n: &&Node| egraph.lookup((*n).clone()).is_some_and(|c| roots.contains(&c));
            // `tanh(x) => tanh(x * 1)` made its own left side.
            if matched.iter().filter(is_root).all(|n| built.contains(n)) {
                return None;
            }
            built.iter().find_map(|n| needed.get(n).copied())
        }
    }

    /// For each trace on which the result depends, what depends on it; and the nodes on which the
    /// result depends, with what depends on them.
    fn owners(&self) -> (Vec<Option<Owner>>, FxHashMap<Node, Owner>) {
        let egraph = &self.inserted.egraph;
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let mut kept: Vec<Option<Owner>> = vec![None; self.traces.len()];
        let mut by_built: FxHashMap<Node, usize> = FxHashMap::default();
        for (i, t) in self.traces.iter().enumerate().filter(|(_, t)| t.changed) {
            for n in &t.built {
                by_built.entry(canonical(n)).or_insert(i);
            }
        }
        let given: FxHashSet<Node> = self.given.iter().map(|(_, n)| canonical(n)).collect();
        let chosen = |c: &Id| self.best.chosen.get(c).map(|n| (n.clone(), Owner { class: *c, through: None }));
        let mut work: Vec<(Node, Owner)> = self.best.order.iter().rev().filter_map(chosen).collect();
        let mut seen: FxHashMap<Node, Owner> = work.iter().cloned().collect();
        loop {
            while let Some((node, owner)) = work.pop() {
                if given.contains(&node) {
                    continue;
                }
                if let Some(i) = by_built.get(&node)
                    && kept[*i].is_none()
                {
                    kept[*i] = Some(owner);
                    let owner = Owner { through: Some(*i), ..owner };
                    let matched = self.traces[*i].matched.iter().map(canonical);
                    work.extend(matched.filter(|n| is_new(&mut seen, n, owner)).map(|n| (n, owner)));
                }
            }
            let asked_for = |n: &Node| given.contains(n) || seen.contains_key(n);
            // What the model had already is nothing new, but the result may depend on it.
            let nothing = |t: &Trace| {
                let mut built = t.built.iter().map(canonical);
                built.all(|n| given.contains(&n) && seen.contains_key(&n))
            };
            let mut removals = self.removals(&kept, asked_for, nothing);
            if removals.is_empty() {
                // `x / 1 => x * 1`, then `x * 1 => x`: nobody asked for the node in between.
                let between = self.built_of(asked_for);
                removals = self.removals(&kept, |n| between.contains(n), nothing);
                let explained: FxHashSet<Id> = self.roots_of(&kept).collect();
                // Rules that build nothing make one value of two.
                let removed = |t: &Trace, k: &Option<Owner>| k.is_some() && t.built.is_empty();
                let removed = self.traces.iter().zip(&kept).filter(|(t, k)| removed(t, k));
                let joined: FxHashSet<Id> = removed.flat_map(|(t, _)| &t.roots).map(|r| egraph.find(*r)).collect();
                let is_explained = |c: Id| explained.contains(&c) && (joined.contains(&c) || !self.holds_several(c));
                // A value that is computed as in the given graph has lost nothing.
                let lost = |c: Id| {
                    egraph[c]
                        .nodes
                        .iter()
                        .map(canonical)
                        .any(|n| asked_for(&n) && self.best.chosen.get(&c).is_some_and(|chosen| *chosen != n))
                };
                removals.retain(|i| {
                    let mut roots = self.traces[*i].roots.iter().map(|r| egraph.find(*r));
                    roots.all(|c| !is_explained(c) && lost(c))
                });
                removals.truncate(1);
            }
            if removals.is_empty() {
                return (kept, seen);
            }
            for i in removals {
                let class = self.traces[i].roots.first().map_or(Id::from(0), |r| egraph.find(*r));
                let owner = Owner { class, through: None };
                kept[i] = Some(owner);
                let matched = self.traces[i].matched.iter().map(canonical);
                work.extend(matched.filter(|n| is_new(&mut seen, n, owner)).map(|n| (n, owner)));
            }
        }
    }

    /// Whether a class holds several values of the given graph.
    fn holds_several(&self, class: Id) -> bool {
        let egraph = &self.inserted.egraph;
        let mut here = self.given.iter().filter(|(id, _)| egraph.find(*id) == class).map(|(id, _)| *id);
        here.next().is_some_and(|first| here.any(|id| id != first))
    }

    /// The nodes that rules built of those which were asked for, and of nodes built so.
    fn built_of(&self, asked_for: impl Fn(&Node) -> bool) -> FxHashSet<Node> {
        let egraph = &self.inserted.egraph;
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let mut found: FxHashSet<Node> = FxHashSet::default();
        loop {
            let before = found.len();
            for t in self.traces.iter().filter(|t| t.changed) {
                if t.matched.iter().map(canonical).all(|n| asked_for(&n) || found.contains(&n)) {
                    found.extend(t.built.iter().map(canonical));
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// The classes of the values that kept traces gave.
    fn roots_of<'s>(&'s self, kept: &'s [Option<Owner>]) -> impl Iterator<Item = Id> + 's {
        let traces = self.traces.iter().zip(kept).filter(|(_, k)| k.is_some());
        traces.flat_map(|(t, _)| t.roots.iter().map(|r| self.inserted.egraph.find(*r)))
    }

    /// Traces, not kept so far, of rules that build nothing, such as `x * 1 => x`, without which
    /// the result would compute more: a node that they matched was asked for, and its class is
    /// needed with another node chosen.
    fn removals(
        &self,
        kept: &[Option<Owner>],
        asked_for: impl Fn(&Node) -> bool,
        builds_nothing: impl Fn(&Trace) -> bool,
    ) -> Vec<usize> {
        let egraph = &self.inserted.egraph;
        let removes = |t: &Trace| {
            t.matched.iter().any(|n| {
                let n = n.clone().map_children(|c| egraph.find(c));
                let class = egraph.lookup(n.clone()).filter(|c| t.roots.iter().any(|r| egraph.find(*r) == *c));
                let chosen = class.and_then(|c| self.best.chosen.get(&c));
                chosen.is_some_and(|chosen| *chosen != n) && asked_for(&n)
            })
        };
        // If a rule fired twice for one value, as after a sum was reordered, count it once.
        let place = |t: &Trace| (t.rule, t.roots.iter().map(|r| egraph.find(*r)).collect::<Vec<Id>>());
        let mut places: HashSet<_> =
            self.traces.iter().zip(kept).filter(|(_, k)| k.is_some()).map(|(t, _)| place(t)).collect();
        let open = |i: &usize| {
            let t = &self.traces[*i];
            kept[*i].is_none() && t.changed && builds_nothing(t)
        };
        let removals = (0..kept.len()).filter(open).filter(|i| removes(&self.traces[*i]));
        removals.filter(|i| places.insert(place(&self.traces[*i]))).collect()
    }

    /// The traces with names and what became of their nodes, those that the result depends on
    /// first; and those that changed nothing. Each with its number.
    fn firings(&self, result: Option<&Rebuilt>) -> [Vec<(usize, Firing)>; 2] {
        let names = self.names();
        let (owners, needed) = self.owners();
        let made_alike = self.made_alike(&owners, &needed);
        let mut nodes: FxHashMap<Id, NodeId> = FxHashMap::default();
        for (i, class) in result.iter().flat_map(|r| r.classes.iter().enumerate()) {
            nodes.entry(*class).or_insert(NodeId(i as u32));
        }
        let all = self.traces.iter().zip(&owners).enumerate().map(|(number, (t, owner))| {
            let kept = owner.is_some();
            let owner = owner.or_else(|| made_alike(t));
            let rule = &self.program.rules[t.rule.index()];
            let firing = Firing {
                rule: rule.name.clone(),
                base: rule.base_name.clone(),
                nodes: self.fired_at(&names, t),
                kept,
                in_result: owner.is_some(),
                site: owner.as_ref().zip(result).and_then(|(owner, r)| {
                    let mut site = self.site_of(t, owner.class, r, &nodes)?;
                    let mut next = owner.through;
                    while let Some(i) = next {
                        site.ops.extend(self.op_of(&self.traces[i]));
                        next = owners[i].as_ref().and_then(|o| o.through);
                    }
                    Some(site)
                }),
            };
            (number, firing)
        });
        let (mut firings, repeats): (Vec<_>, Vec<_>) = all.partition(|(number, _)| self.traces[*number].changed);
        firings.sort_by_key(|(_, f)| !f.kept);
        [firings, repeats]
    }

    /// The op that a trace built.
    fn op_of(&self, t: &Trace) -> Option<OpId> {
        let egraph = &self.inserted.egraph;
        let op = |n: &Node| if let Payload::Op(op, _) = n.payload { Some(op) } else { None };
        let built = t.built.first()?;
        match built.payload {
            Payload::Output(_) => egraph[egraph.find(*built.children.first()?)].nodes.iter().find_map(op),
            _ => op(built),
        }
    }

    /// The node of the result that depends on a trace, and which part of its epilogue the trace
    /// built.
    fn site_of(&self, t: &Trace, owner: Id, result: &Rebuilt, nodes: &FxHashMap<Id, NodeId>) -> Option<Site> {
        let egraph = &self.inserted.egraph;
        let built = t.built.first()?;
        // A result of an op with several stands for the op.
        let class = match self.best.chosen.get(&owner)?.payload {
            Payload::Output(_) => egraph.find(*self.best.chosen.get(&owner)?.children.first()?),
            _ => owner,
        };
        let node = *nodes.get(&class)?;
        let is_term = |c: &&Id| matches!(egraph[**c].data.sort, Sort::Term(_));
        let term = built.children.iter().map(|c| egraph.find(*c)).collect::<Vec<Id>>();
        let term = term.iter().find(is_term).and_then(|c| result.terms.get(&node)?.get(c).copied());
        Some(Site { node, term, ops: self.op_of(t).into_iter().collect() })
    }

    /// The cost in microseconds of the best graph that computes that class, with that node if one
    /// is given. `None` if there is no such graph.
    pub fn cost_with(&self, class: Id, node: Option<&Node>) -> Option<f64> {
        Some(micros(self.candidates_with(class, node)?.cost))
    }

    /// That graph.
    pub fn graph_with(&self, class: Id, node: Option<&Node>) -> Option<Graph> {
        self.rebuilt(&self.candidates_with(class, node)?)
    }

    /// Why no graph that computes that class with that node can run, if a kernel is what it lacks.
    pub fn why_impossible(&self, class: Id, node: &Node) -> Option<String> {
        let egraph = &self.inserted.egraph;
        let node = node.clone().map_children(|c| egraph.find(c));
        self.model.why_impossible(egraph, egraph.find(class), &node)
    }

    fn rebuilt(&self, ChosenGraph { chosen, order, .. }: &ChosenGraph) -> Option<Graph> {
        let rebuilder = Rebuilder { original: &self.graph, inserted: &self.inserted, chosen, order };
        rebuilder.rebuild().ok().map(|r| r.graph.pruned())
    }

    fn candidates_with(&self, class: Id, node: Option<&Node>) -> Option<ChosenGraph> {
        let egraph = &self.inserted.egraph;
        let mut built = BuiltProblem::new(egraph, &self.inserted.outputs, Some(class), &self.model);
        if let Some(node) = node {
            let at = built.at(egraph, class)?;
            let node = node.clone().map_children(|c| egraph.find(c));
            let keep = built.nodes(at).iter().position(|n| **n == node)?;
            built.problem.keep_only(at, keep);
        }
        let choice = extract(&built.problem, None)?;
        built.candidates(&choice)
    }

    /// Where a rule fired: the values of the given graph that are its roots or, if there are none,
    /// that it matched. Empty inside an epilogue.
    pub fn fired_at(&self, names: &FxHashMap<Id, String>, trace: &Trace) -> Vec<String> {
        let egraph = &self.inserted.egraph;
        let roots: Vec<String> = trace.roots.iter().filter_map(|r| self.name_of(names, *r).cloned()).collect();
        if trace.terms || !roots.is_empty() {
            return roots;
        }
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let classes = trace.matched.iter().filter_map(|n| egraph.lookup(canonical(n)));
        classes.filter_map(|c| names.get(&c).cloned()).take(1).collect()
    }

    /// The name of a class by its id at some time. If that id named a value of the given graph,
    /// that name wins, since the class may have been merged with another value since.
    pub fn name_of<'n>(&self, names: &'n FxHashMap<Id, String>, class: Id) -> Option<&'n String> {
        names.get(&class).or_else(|| names.get(&self.inserted.egraph.find(class)))
    }

    /// A name for each class that holds values of the given graph, by its present id and by its id
    /// at insertion.
    pub fn names(&self) -> FxHashMap<Id, String> {
        let mut given: Vec<(Id, String)> = Vec::new();
        for (i, outs) in self.inserted.values.iter().enumerate() {
            let node = &self.graph.nodes[i];
            for (k, id) in outs.iter().enumerate() {
                let v = Value { node: NodeId(i as u32), output: k as u32 };
                let name = if node.name.is_empty() { self.graph.value_name(v) } else { node.name.clone() };
                given.push((*id, name));
            }
        }
        let mut names: FxHashMap<Id, String> = FxHashMap::default();
        for (id, name) in &given {
            names.entry(*id).or_insert_with(|| name.clone());
        }
        for (id, name) in given {
            names.entry(self.inserted.egraph.find(id)).or_insert(name);
        }
        names
    }
}

/// The graph that is inserted into the e-graph: without dead nodes, and with ops inlined. Where
/// results must be the same bits, an op that has a kernel without any rule keeps it.
pub(super) fn inlined(graph: &Graph, options: &Options, folder: &'static dyn ConstantFolder) -> Result<Graph> {
    match options.allowed().is_exact() && !options.no_rules && options.composed {
        true => Ok(kernels::select(graph, &options.device, &options.allowed(), folder)?.pruned()),
        false => Ok(graph.inlined()?.pruned()),
    }
}

/// The rules that fired most often, and how often.
fn busiest(program: &Program, traces: &[Trace]) -> Vec<(String, usize)> {
    const SHOWN: usize = 3;
    let mut times: FxHashMap<&str, usize> = FxHashMap::default();
    traces
        .iter()
        .filter(|t| t.changed)
        .for_each(|t| *times.entry(&program.rules[t.rule.index()].name).or_insert(0) += 1);
    let mut times: Vec<(String, usize)> = times.into_iter().map(|(rule, n)| (rule.to_string(), n)).collect();
    times.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    times.truncate(SHOWN);
    times
}

fn micros(cost: Cost) -> f64 {
    cost as f64 / 1e6
}

/// The distinct tensors that a node consumes, including those that its term reads.
pub fn consumed(egraph: &EGraph, chosen: &FxHashMap<Id, Node>, node: &Node) -> Vec<Id> {
    let is_term = |c: Id| matches!(egraph[c].data.sort, Sort::Term(_));
    let mut out = Vec::with_capacity(node.children.len());
    let mut terms = Vec::new();
    for c in &node.children {
        let c = egraph.find(*c);
        if is_term(c) { terms.push(c) } else { out.push(c) }
    }
    let mut seen: FxHashSet<Id> = terms.iter().copied().collect();
    while let Some(term) = terms.pop() {
        for c in chosen.get(&term).into_iter().flat_map(|n| &n.children) {
            let c = egraph.find(*c);
            if !is_term(c) {
                out.push(c);
            } else if seen.insert(c) {
                terms.push(c);
            }
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}
