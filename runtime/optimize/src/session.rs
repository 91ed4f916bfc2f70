//! One optimisation from start to end: the e-graph, the rules, the present candidate.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use egg::{Id, Language};
use hypatia_dsl::ir::{Build, BuildNode, Head, ParamKind, Program, Rule, RuleId, RuleSetId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::analysis::EGraph;
use super::analysis::Sort;
use super::cost::{Cost, CostModel};
use super::extract::{extract, refine};
use super::language::{Discriminant, Node, Payload};
use super::lower::{Inserted, Rebuilder, insert_graph};
use super::matcher::View;
use super::problem::{Choice, Problem};
use super::report::{Firing, Report, Stage, Summary};
use super::rewrites::{CompiledRule, SearchState, Selection, compile, oversized};
use super::saturate::{Budget, Rejections, SearchProgress, Trace, run};
use super::{Optimized, Options};
use hypatia_graph::{ConstantFolder, Graph, Value};
use hypatia_tensor::error::{Error, Result};

/// A chosen graph inside the e-graph.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The node of each needed class, children canonical.
    pub chosen: FxHashMap<Id, Node>,
    /// Needed classes, children first.
    pub order: Vec<Id>,
    /// What it costs.
    pub cost: Cost,
}

/// Maximum number of rounds of all stages; each recounts uses on the present candidate.
const MAX_ROUNDS: usize = 6;

/// An optimisation in progress.
pub struct Session<'a> {
    options: &'a Options,
    /// The given graph, inlined.
    pub graph: Graph,
    /// Its e-graph.
    pub inserted: Inserted,
    program: Arc<Program>,
    /// The cost model, with cached node costs.
    model: CostModel,
    /// The rules that may fire.
    pub rules: Vec<CompiledRule>,
    /// The state of searches: what they cache and query.
    pub search: SearchState,
    /// The present candidate.
    pub best: Candidates,
    /// The chosen node of each class of the given graph.
    given: Vec<(Id, Node)>,
    before: Summary,
    stages: Vec<Stage>,
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

impl<'a> Session<'a> {
    /// Inlines the graph and inserts it into an e-graph.
    pub fn start(graph: &Graph, options: &'a Options, folder: &'static dyn ConstantFolder) -> Result<Session<'a>> {
        let started = Instant::now();
        let graph = graph.inlined()?.pruned();
        let inserted = insert_graph(&graph, folder)?;
        let program = graph.program.clone();
        let given = inserted.egraph.classes().filter_map(|c| c.nodes.first().map(|n| (c.id, n.clone()))).collect();
        let rules = if options.no_rules {
            Vec::new()
        } else {
            let present: HashSet<Discriminant> =
                inserted.egraph.classes().flat_map(|c| c.nodes.iter().map(Language::discriminant)).collect();
            let selection = Selection { disabled: options.disabled.clone(), approx: options.approx };
            compile(&program, Some(&present), &selection)
        };
        let large = if options.no_rules { Vec::new() } else { oversized(&program) };
        let warnings = large.iter().map(|r| format!("{} is not used: its pattern is too large", r.name)).collect();
        let model = CostModel::new(&program, options);
        let mut session = Session {
            options,
            graph,
            inserted,
            program,
            model,
            rules,
            search: SearchState::default(),
            best: Candidates::default(),
            given,
            before: Summary::default(),
            stages: Vec::new(),
            seen: Vec::new(),
            added: Vec::new(),
            traces: Vec::new(),
            rejections: Rejections::default(),
            started,
            extraction_steps: 0,
            extraction_millis: 0.0,
            warnings,
        };
        session.seen = vec![SearchProgress::default(); session.program.rulesets.len()];
        session.added = vec![0; session.program.rulesets.len()];
        session.choose(false)?;
        session.before = Summary::of(&session.graph, micros(session.best.cost));
        Ok(session)
    }

    /// The e-graph.
    pub fn egraph(&self) -> &EGraph {
        &self.inserted.egraph
    }

    /// The e-graph as searches see it.
    pub fn view(&self) -> View<'_> {
        View::of(&self.inserted.egraph, &self.search.candidate, &self.search.labels)
    }

    /// Runs all stages until a round changes nothing.
    pub fn run(&mut self) {
        let mut all = Budget::of_run(self.graph.nodes.len(), self.options, self.started);
        for round in 1..=MAX_ROUNDS {
            let mut fired = 0;
            for index in 0..self.program.rulesets.len() {
                fired += self.stage(RuleSetId(index as u32), round, &mut all);
            }
            if fired == 0 {
                break;
            }
        }
        self.choose_finally();
    }

    /// Extracts the final graph, once nothing fires any more.
    fn choose_finally(&mut self) {
        if let Err(e) = self.choose(true) {
            self.warnings.push(e.to_string());
        }
    }

    /// Runs one stage, and extracts a new candidate if it fired. Returns how often it fired.
    fn stage(&mut self, id: RuleSetId, round: usize, all: &mut Budget) -> usize {
        // Stages that grow epilogues also run the identities on terms of every other stage:
        // otherwise `x = x * 1` on tensors would grow an epilogue without end.
        let of_stage = |r: &&CompiledRule| self.program.rules[r.id.index()].ruleset == id;
        let mut own = self.rules.iter().filter(of_stage);
        let grows = own.any(|r| builds_terms(&self.program, &self.program.rules[r.id.index()]));
        let rules: Vec<&CompiledRule> = self
            .rules
            .iter()
            .filter(|r| self.program.rules[r.id.index()].ruleset == id || (grows && r.terms))
            .collect();
        if rules.is_empty() {
            return 0;
        }
        let begun = Instant::now();
        let ruleset = &self.program.rulesets[id.index()];
        let present = self.inserted.egraph.total_size();
        let budget = Budget::of(ruleset, self.graph.nodes.len(), present, self.added[id.index()], all);
        let seen = &mut self.seen[id.index()];
        let traced = self.traces.len();
        let search = &mut self.search;
        let ran = run(&mut self.inserted.egraph, &rules, &budget, search, seen, &mut self.traces, &mut self.rejections);
        all.steps = all.steps.saturating_sub(ran.steps);
        self.added[id.index()] += self.inserted.egraph.total_size().saturating_sub(present);
        self.stages.push(Stage {
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
        let order =
            built.problem.order(&choice).ok_or_else(|| Error::Internal("the extracted graph is cyclic".into()))?;
        let cost = built.problem.cost_of(&order, &choice);
        let mut chosen = FxHashMap::with_capacity_and_hasher(order.len(), Default::default());
        for class in order.iter().map(|c| *c as usize) {
            if let Some(i) = choice[class] {
                chosen.insert(built.ids[class], built.nodes(class)[i as usize].clone());
            }
        }
        let order = order.iter().map(|c| built.ids[*c as usize]).collect();
        self.best = Candidates { chosen, order, cost };
        self.extraction_steps += built.problem.walked();
        self.count_uses();
        self.extraction_millis += begun.elapsed().as_secs_f64() * 1e3;
        Ok(())
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
    pub fn finish(mut self) -> Result<Optimized> {
        let rebuilder = Rebuilder {
            original: &self.graph,
            inserted: &self.inserted,
            chosen: &self.best.chosen,
            order: &self.best.order,
        };
        // The extracted graph must be valid. If it is not, that is a bug, and the given graph is
        // returned.
        let left = rebuilder.rebuild().and_then(|l| l.graph.validate().map(|()| l));
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
            self.stages
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
            open: Vec::new(),
            firings: self.firings(),
            stages: std::mem::take(&mut self.stages),
            warnings,
            extraction_steps: self.extraction_steps,
            extraction_millis: self.extraction_millis,
            millis: self.started.elapsed().as_secs_f64() * 1e3,
        };
        Ok(Optimized { graph, report })
    }

    /// For each trace, whether the result depends on it.
    pub fn kept(&self) -> Vec<bool> {
        let egraph = &self.inserted.egraph;
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let mut kept = vec![false; self.traces.len()];
        let mut by_built: FxHashMap<Node, usize> = FxHashMap::default();
        for (i, t) in self.traces.iter().enumerate() {
            for n in &t.built {
                by_built.entry(canonical(n)).or_insert(i);
            }
        }
        let given: FxHashSet<Node> = self.given.iter().map(|(_, n)| canonical(n)).collect();
        let mut work: Vec<Node> = self.best.chosen.values().cloned().collect();
        let mut seen: FxHashSet<Node> = work.iter().cloned().collect();
        loop {
            while let Some(node) = work.pop() {
                if given.contains(&node) {
                    continue;
                }
                if let Some(i) = by_built.get(&node)
                    && !kept[*i]
                {
                    kept[*i] = true;
                    work.extend(self.traces[*i].matched.iter().map(canonical).filter(|n| seen.insert(n.clone())));
                }
            }
            let spared = self.spared(&kept, |n| given.contains(n) || seen.contains(n));
            if spared.is_empty() {
                return kept;
            }
            for i in spared {
                kept[i] = true;
                work.extend(self.traces[i].matched.iter().map(canonical).filter(|n| seen.insert(n.clone())));
            }
        }
    }

    /// Traces, not kept so far, of rules that build nothing, such as `x * 1 => x`, without which
    /// the result would compute more: a node that they matched was asked for, and its class is
    /// needed with another node chosen.
    fn spared(&self, kept: &[bool], asked_for: impl Fn(&Node) -> bool) -> Vec<usize> {
        let egraph = &self.inserted.egraph;
        let spares = |t: &Trace| {
            t.matched.iter().any(|n| {
                let n = n.clone().map_children(|c| egraph.find(c));
                let class = egraph.lookup(n.clone()).filter(|c| t.roots.iter().any(|r| egraph.find(*r) == *c));
                let chosen = class.and_then(|c| self.best.chosen.get(&c));
                chosen.is_some_and(|chosen| *chosen != n) && asked_for(&n)
            })
        };
        // If a rule fired twice for one value, as after a sum was reordered, count it once.
        let place = |t: &Trace| (t.rule, t.roots.iter().map(|r| egraph.find(*r)).collect::<Vec<Id>>());
        let mut places: HashSet<_> = self.traces.iter().zip(kept).filter(|(_, k)| **k).map(|(t, _)| place(t)).collect();
        let open = |i: &usize| !kept[*i] && self.traces[*i].built.is_empty();
        let spared = (0..kept.len()).filter(open).filter(|i| spares(&self.traces[*i]));
        spared.filter(|i| places.insert(place(&self.traces[*i]))).collect()
    }

    /// The traces with names, those that the result depends on first.
    fn firings(&self) -> Vec<Firing> {
        let names = self.names();
        let mut out: Vec<Firing> = self
            .traces
            .iter()
            .zip(self.kept())
            .map(|(t, kept)| {
                let rule = &self.program.rules[t.rule.index()];
                let nodes = self.fired_at(&names, t);
                Firing { rule: rule.name.clone(), base: rule.base_name.clone(), nodes, kept }
            })
            .collect();
        out.sort_by_key(|f| !f.kept);
        out
    }

    /// The cost in microseconds of the best graph that computes that class, with that node if one
    /// is given. `None` if there is no such graph.
    pub fn cost_with(&self, class: Id, node: Option<&Node>) -> Option<f64> {
        let egraph = &self.inserted.egraph;
        let mut built = BuiltProblem::new(egraph, &self.inserted.outputs, Some(class), &self.model);
        if let Some(node) = node {
            let at = built.at(egraph, class)?;
            let node = node.clone().map_children(|c| egraph.find(c));
            let keep = built.nodes(at).iter().position(|n| **n == node)?;
            built.problem.keep_only(at, keep);
        }
        let choice = extract(&built.problem, None)?;
        built.problem.cost(&choice).map(micros)
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
                let v = Value { node: hypatia_graph::NodeId(i as u32), output: k as u32 };
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

/// True for a rule whose right side is an op with an epilogue.
pub(super) fn builds_terms(program: &Program, rule: &Rule) -> bool {
    let has_term = |b: &Build| match b {
        Build::Node(BuildNode { head: Head::Op(op), .. }) => {
            program.op(*op).params.iter().any(|p| p.kind == ParamKind::Term)
        }
        _ => false,
    };
    rule.rhs.iter().any(has_term)
}

/// The rules that fired most often, and how often.
fn busiest(program: &Program, traces: &[Trace]) -> Vec<(String, usize)> {
    const SHOWN: usize = 3;
    let mut times: FxHashMap<&str, usize> = FxHashMap::default();
    traces.iter().for_each(|t| *times.entry(&program.rules[t.rule.index()].name).or_insert(0) += 1);
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

/// The extraction problem of a rebuilt e-graph, whose nodes have canonical children.
pub struct BuiltProblem<'e> {
    /// The problem with classes as numbers.
    pub problem: Problem,
    /// The class of each number.
    pub ids: Vec<Id>,
    /// The nodes of all classes, in the problem's order.
    nodes: Vec<&'e Node>,
    /// The number of each class.
    index: Vec<u32>,
}

/// The number of a class that no output needs.
const NO_NUMBER: u32 = u32::MAX;

impl<'e> BuiltProblem<'e> {
    /// Everything that the outputs, and optionally another class, could need. Outputs are stored;
    /// the other class is not.
    pub fn new(egraph: &'e EGraph, outputs: &[Id], also: Option<Id>, model: &CostModel) -> BuiltProblem<'e> {
        let mut index = vec![NO_NUMBER; egraph.nodes().len()];
        let mut ids = Vec::with_capacity(egraph.number_of_classes());
        let mut number = |id: Id, ids: &mut Vec<Id>| {
            let number = &mut index[usize::from(id)];
            if *number == NO_NUMBER {
                *number = ids.len() as u32;
                ids.push(id);
            }
            *number
        };
        let mut problem = Problem::with_capacity(egraph.number_of_classes(), egraph.total_size());
        let mut nodes = Vec::with_capacity(egraph.total_size());
        // Outputs are numbered first.
        problem.roots = outputs.iter().map(|o| number(egraph.find(*o), &mut ids)).collect();
        let given = ids.len();
        problem.roots.extend(also.map(|class| number(egraph.find(class), &mut ids)));
        problem.roots.sort_unstable();
        problem.roots.dedup();
        let mut at = 0;
        while at < ids.len() {
            let class = &egraph[ids[at]];
            // A node that needs its own class cannot be chosen.
            for node in class.nodes.iter().filter(|n| !n.children.contains(&class.id)) {
                let mut cost = model.node(egraph, class, node);
                if at < given {
                    cost = cost.saturating_add(model.stored(egraph, class, node));
                }
                problem.add_node(cost, node.children.iter().map(|c| number(*c, &mut ids)));
                nodes.push(node);
            }
            problem.end_class();
            at += 1;
        }
        BuiltProblem { problem, ids, nodes, index }
    }

    /// The nodes of a class.
    fn nodes(&self, class: usize) -> &[&'e Node] {
        &self.nodes[self.problem.range(class)]
    }

    /// The number of a class, if an output could need it.
    fn at(&self, egraph: &EGraph, class: Id) -> Option<usize> {
        let number = *self.index.get(usize::from(egraph.find(class)))?;
        (number != NO_NUMBER).then_some(number as usize)
    }

    /// The choice of these nodes, where they still exist.
    fn choice_of<'n>(&self, egraph: &EGraph, chosen: impl Iterator<Item = (&'n Id, &'n Node)>) -> Choice {
        let mut choice: Choice = vec![None; self.ids.len()];
        for (class, node) in chosen {
            let Some(i) = self.at(egraph, *class) else { continue };
            let same = |n: &&Node| {
                let children = || n.children.iter().zip(&node.children);
                n.payload == node.payload
                    && n.children.len() == node.children.len()
                    && children().all(|(a, b)| *a == egraph.find(*b))
            };
            if let Some(k) = self.nodes(i).iter().position(same) {
                choice[i] = Some(k as u32);
            }
        }
        choice
    }
}
