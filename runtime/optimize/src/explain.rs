//! Explains why a rule did not fire: the nearest miss, with the failing guard and the values that
//! it saw.
//!
//! In: a graph, options, the name of a rule (or of a family of rules), optionally a node. Out: a
//! [`WhyNot`], as data and as text. The rules are run first, so that the answer is about the graph
//! as the rule would have seen it. Invariant: every name in an answer is one that the user wrote or
//! that the graph prints.

use egg::{Id, Language};
use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::{OVER_SECOND, SECOND};
use hypatia_dsl::ir::{AExpr, AttrValue, Demand, Head, Kernel, OpBody, OpDef, Pat, Program, Rule, VarId};
use hypatia_dsl::kernel::short::is_short;
use hypatia_dsl::numerics::Numerics;
use hypatia_dsl::program_print::{show_pat, show_rule_lines};
use hypatia_dsl::spell::closest;
use hypatia_dsl::typing::{self, show_expr, show_value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Options;
use super::analysis::EGraph;
use super::analysis::{Sort, class_type};
use super::apply::{Reject, apply, build_sums, check};
use super::cost::ASSUMED_SIZE;
use super::kernels::refusals;
use super::language::{Node, Payload};
use super::matcher::{Match, MatchFacts, Miss, MissReason, Probe, search};
use super::optimizer::Optimizer;
use super::report::{Settled, WRITTEN};
use super::rewrites::{CompiledRule, SEARCH_LIMITS, compile};
use super::saturate::Trace;
pub use super::why_not::{Verdict, WhyNot};
use hypatia_graph::{ConstantFolder, Graph, NodeId, NodeKind, Symbols, show_number};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

/// What an answer needs beside the optimiser: what computes constants, and what counts the launches
/// of a graph's plan.
pub type Means<'a> = (&'static dyn ConstantFolder, &'a dyn Fn(&Graph) -> Option<usize>);

/// Why a rule did not fire, at a node or anywhere.
pub fn why_not(graph: &Graph, options: &Options, means: Means<'_>, rule: &str, node: Option<&str>) -> Result<WhyNot> {
    let named = |r: &Rule| r.name == rule || r.base_name == rule;
    if !graph.program.rules.iter().any(named) {
        return Err(Error::Input(no_such_rule(&graph.program, rule)));
    }
    nearest(graph, options, means, &named, node)
}

/// The answer for a rule of that name, if whole plans have decided against it.
pub fn lost_plan(program: &Program, rule: &str, settled: &Settled) -> Option<WhyNot> {
    let rule = program.rules.iter().find(|r| (r.name == rule || r.base_name == rule) && r.base_name == settled.rule)?;
    let verdict = Verdict::PlanLost { with: settled.with, without: settled.without };
    Some(WhyNot { rule: rule.name.clone(), text: show_rule_lines(program, rule), at: None, verdict })
}

/// [`why_not`] of the rule that came nearest, among some.
pub(super) fn nearest(
    graph: &Graph,
    options: &Options,
    (folder, count): Means<'_>,
    among: &dyn Fn(&Rule) -> bool,
    node: Option<&str>,
) -> Result<WhyNot> {
    let program = graph.program.clone();
    let named: Vec<&Rule> = program.rules.iter().filter(|r| among(r)).collect();
    let Some(first) = named.first() else { return Err(Error::Input("the ruleset has no rules".into())) };
    let answer =
        |r: &Rule, at, verdict| WhyNot { rule: r.name.clone(), text: show_rule_lines(&program, r), at, verdict };
    let allowed = options.allowed();
    if let Some(reason) = switched_off(&program, options, &named) {
        return Ok(answer(first, None, Verdict::NotTried { reason }));
    }
    if is_short(&program, first) {
        let reason = "it applies to generated kernels, not to graphs: `hypatia explain MODEL --target h200` lists \
                      where it fired";
        return Ok(answer(first, None, Verdict::NotTried { reason: reason.into() }));
    }
    let mut optimizer = Optimizer::start(graph, options, folder)?;
    optimizer.run();
    let only = node.map(|n| find_node(&optimizer, n)).transpose()?;
    let rules: Vec<CompiledRule> = compile(&program, &allowed)
        .into_iter()
        .filter(|r| among(r.rule()))
        .filter(|r| only.is_none() || !r.terms)
        .collect();
    let (numerics, device) = (options.numerics, &options.device);
    let mut explainer = Explainer { names: optimizer.names(), optimizer: &mut optimizer, numerics, device, count };
    if let Some(w) = explainer.fired(among, only) {
        return Ok(w);
    }
    let best = rules.iter().filter_map(|r| explainer.ask(r, only)).min_by_key(|(rank, _)| *rank);
    match best {
        Some((_, w)) => Ok(w),
        None => {
            let absent = absent_heads(explainer.optimizer.egraph(), first);
            let reason = match absent.as_slice() {
                [] => {
                    let taken = explainer.taken(first).map_or(String::new(), |why| format!(": {why}"));
                    format!("no value of the graph is of the form {}{taken}", show_lhs(first, &program))
                }
                heads => {
                    let names: Vec<&str> = heads.iter().map(|(name, _)| name.as_str()).collect();
                    let inlined: Vec<&str> =
                        heads.iter().filter(|(_, inlined)| *inlined).map(|h| h.0.as_str()).collect();
                    let why = match inlined.as_slice() {
                        [] => String::new(),
                        all => format!("; the body of {} replaces it, as it has no kernel", all.join(" and of ")),
                    };
                    format!(
                        "there is no {} in the graph, even after other rules have fired{why}",
                        names.join(" and no ")
                    )
                }
            };
            Ok(answer(first, None, Verdict::NoMatch { reason }))
        }
    }
}

/// What switches all of these rules off, if something does.
fn switched_off(program: &Program, options: &Options, rules: &[&Rule]) -> Option<String> {
    let allowed = options.allowed();
    if options.no_rules {
        return Some("rules are switched off for this run".to_string());
    }
    let first = rules.first().filter(|_| rules.iter().all(|r| allowed.is_off(program, r)))?;
    let never = options.contract.iter().find(|c| c.demand == Demand::Never && c.names(program, first));
    Some(match never {
        Some(clause) => format!("`{clause}` forbids it"),
        None => "it is disabled for this run".to_string(),
    })
}

fn show_lhs(rule: &Rule, program: &Program) -> String {
    rule.lhs.iter().map(|p| format!("`{}`", show_pat(program, &rule.vars, p))).collect::<Vec<_>>().join(" and ")
}

/// Maximum number of names listed in an error.
const MAX_NAMES: usize = 10;

/// The error for an unknown rule, with suggestions.
pub fn no_such_rule(program: &Program, rule: &str) -> String {
    let rule = rule.strip_suffix("::*").unwrap_or(rule);
    let names = |wanted: &dyn Fn(&Rule) -> bool| {
        let mut names: Vec<&str> = program.rules.iter().filter(|r| wanted(r)).map(|r| r.base_name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let more = names.len().saturating_sub(MAX_NAMES);
        names.truncate(MAX_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| names.join(", ") + &more)
    };
    if !is_name(rule) {
        return format!(
            "`{rule}` is not the name of a rule, such as fuse::unary or fuse::unary[relu]; to ask about a pattern, \
             write it as a rule into a file, give the file with --rules, and ask for the rule's name"
        );
    }
    let set = program.rulesets.iter().position(|s| s.name == rule);
    if let Some(rules) = set.and_then(|at| names(&|r| r.ruleset.index() == at)) {
        return format!("`{rule}` is a ruleset; name one of its rules: {rules}");
    }
    if program.kernels.iter().any(|k| k.name == rule) {
        return format!(
            "`{rule}` is a kernel, not a rule: `hypatia explain MODEL` lists the kernels of each step, and why some do \
             not run"
        );
    }
    let all = || program.rules.iter().flat_map(|r| [r.name.as_str(), r.base_name.as_str()]);
    if let Some(near) = closest(rule, all()) {
        return format!("there is no rule `{rule}`; did you mean `{near}`?");
    }
    // A member that the family lacks, a name without its ruleset, or another rule of the set.
    let base = rule.split('[').next().unwrap_or(rule);
    let last = base.rsplit("::").next().unwrap_or(base);
    let family = program.rules.iter().any(|r| r.base_name == base);
    if family {
        let members: Vec<&str> =
            program.rules.iter().filter(|r| r.base_name == base).map(|r| r.name.as_str()).take(MAX_NAMES).collect();
        return format!("there is no rule `{rule}`; the family `{base}` has {}, ...", members.join(", "));
    }
    let similar = names(&|r| r.base_name.contains(last))
        .or_else(|| names(&|r| r.base_name.split("::").next() == rule.split("::").next()));
    match similar {
        Some(names) => format!("there is no rule `{rule}`; there are {names}"),
        None => {
            let sets: Vec<&str> = program.rulesets.iter().map(|s| s.name.as_str()).collect();
            format!("there is no rule `{rule}`; the rulesets are {} (is --rules FILE.hyp missing?)", sets.join(", "))
        }
    }
}

/// True for words separated by `::`, optionally with family members in brackets.
fn is_name(rule: &str) -> bool {
    let (path, members_of) = rule.split_once('[').map_or((rule, None), |(path, rest)| (path, Some(rest)));
    let word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '\''));
    let members = |m: &str| m.strip_suffix(']').is_some_and(|m| m.split(',').all(|w| w.trim().split("::").all(word)));
    path.split("::").all(|w| w.split(':').all(word)) && members_of.is_none_or(members)
}

/// Adds the heads that a match of the pattern must have.
fn add_heads(pat: &Pat, out: &mut Vec<Head>) {
    match pat {
        Pat::Node(n) => {
            if !out.contains(&n.head) && matches!(n.head, Head::Op(_) | Head::Scalar(_)) {
                out.push(n.head);
            }
            // The inside of an epilogue is no node of the graph.
            n.args.iter().for_each(|p| add_heads(p, out));
        }
        Pat::Bind(_, p) | Pat::Typed(p, _) => add_heads(p, out),
        // One of the alternatives is enough.
        Pat::OneOf(_) | Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => {}
    }
}

/// The operands of pointwise work in a pattern.
fn operands_of_work<'p>(pat: &'p Pat, out: &mut Vec<&'p Pat>) {
    match pat {
        Pat::Node(n) if matches!(n.head, Head::Region(_)) => out.extend(&n.args),
        Pat::Node(n) => n.args.iter().for_each(|p| operands_of_work(p, out)),
        Pat::Bind(_, p) | Pat::Typed(p, _) => operands_of_work(p, out),
        Pat::OneOf(_) | Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => {}
    }
}

/// Heads of a pattern that do not occur in the graph, so that it cannot match; true for an op whose
/// body takes its place in every graph.
fn absent_heads(egraph: &EGraph, rule: &Rule) -> Vec<(String, bool)> {
    let mut heads = Vec::new();
    rule.lhs.iter().for_each(|p| add_heads(p, &mut heads));
    let there = |head: &Head| {
        egraph.classes().flat_map(|c| &c.nodes).any(|n| match (n.payload, head) {
            (Payload::Op(op, _), Head::Op(wanted)) => op == *wanted,
            (Payload::Scalar(s) | Payload::Call(s), Head::Scalar(wanted)) => s == *wanted,
            _ => false,
        })
    };
    let program = &egraph.analysis.program;
    let inlined = |head: &Head| match head {
        Head::Op(op) => {
            let of = |k: &Kernel| {
                let mut heads = Vec::new();
                add_heads(&k.pattern, &mut heads);
                heads.first() == Some(&Head::Op(*op))
            };
            matches!(program.op(*op).body, OpBody::Defined(_)) && !program.kernels.iter().any(of)
        }
        _ => false,
    };
    heads.iter().filter(|h| !there(h)).map(|h| (format!("`{}`", head_name(program, *h)), inlined(h))).collect()
}

/// The class of the node with that name or number (`%12`).
fn find_node(optimizer: &Optimizer<'_>, node: &str) -> Result<Id> {
    let graph = &optimizer.graph;
    let by_number = node.strip_prefix('%').and_then(|n| n.parse::<usize>().ok());
    let index = match by_number {
        Some(i) if i < graph.nodes.len() => Some(i),
        // The last node of that name has the value of the model's node; the others are parts of it.
        _ => graph
            .nodes
            .iter()
            .rposition(|n| n.name == node || matches!(&n.kind, NodeKind::Input { name } if name == node)),
    };
    let Some(id) = index.and_then(|i| optimizer.inserted.values[i].first()) else {
        let mut near: Vec<&str> =
            graph.nodes.iter().map(|n| n.name.as_str()).filter(|n| !n.is_empty() && n.contains(node)).collect();
        near.truncate(8);
        let hint = if near.is_empty() { String::new() } else { format!("; there are {}", near.join(", ")) };
        return Err(Error::Input(format!("the graph has no node `{node}`{hint}; `hypatia opt` prints their names")));
    };
    Ok(optimizer.egraph().find(*id))
}

/// How near an answer is: smaller is nearer.
type Rank = (u8, i64);
const COST_LOST: Rank = (0, 0);
/// Costs in microseconds that are as good as equal.
const LEAST_COST: f64 = 0.005;
/// Maximum number of operands of a sum that are printed.
const MAX_SHOWN: usize = 6;
/// Maximum number of matches of one rule that are costed.
const MAX_COSTED: usize = 8;

struct Explainer<'s, 'o> {
    count: &'s dyn Fn(&Graph) -> Option<usize>,
    optimizer: &'s mut Optimizer<'o>,
    names: FxHashMap<Id, String>,
    numerics: Numerics,
    device: &'s Device,
}

impl Explainer<'_, '_> {
    /// The answer if the rule fired after all.
    fn fired(&self, among: &dyn Fn(&Rule) -> bool, only: Option<Id>) -> Option<WhyNot> {
        let program = &self.optimizer.graph.program;
        let egraph = self.optimizer.egraph();
        let mut places = Vec::new();
        let mut which = None;
        for (t, kept) in self.optimizer.traces.iter().zip(self.optimizer.in_result()) {
            let r = &program.rules[t.rule.index()];
            let here = only.is_none_or(|o| t.roots.iter().any(|c| egraph.find(*c) == o));
            if kept && here && among(r) {
                let names = self.optimizer.fired_at(&self.names, t);
                let mut place =
                    if names.is_empty() { WRITTEN.to_string() } else { format!("`{}`", names.join("`, `")) };
                let first = *which.get_or_insert(r);
                // Another member of the family.
                if first.name != r.name {
                    place = format!("{place} (as {})", r.name);
                }
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        let r = which?;
        let verdict = Verdict::Fired { places };
        Some(WhyNot { rule: r.name.clone(), text: show_rule_lines(program, r), at: None, verdict })
    }

    /// Why pointwise work that the rule wants is not there, though its operand is: the work is cut
    /// out of the best graph so far, in which another rule has taken the operand.
    fn taken(&self, rule: &Rule) -> Option<String> {
        let program = &self.optimizer.graph.program;
        let mut operands = Vec::new();
        rule.lhs.iter().for_each(|p| operands_of_work(p, &mut operands));
        let mut wanted = Vec::new();
        operands.into_iter().for_each(|p| add_heads(p, &mut wanted));
        let is =
            |node: &Node, head: &Head| matches!((node.payload, head), (Payload::Op(op, _), Head::Op(o)) if op == *o);
        for (t, kept) in self.optimizer.traces.iter().zip(self.optimizer.kept()) {
            let head = wanted.iter().find(|head| kept && t.matched.iter().any(|n| is(n, head)));
            let (Some(head), Some(Payload::Op(by, _))) = (head, t.built.first().map(|n| n.payload)) else { continue };
            let (by, taker) = (&program.op(by).name, &program.rules[t.rule.index()]);
            let (what, set) = (head_name(program, *head), &program.rulesets[taker.ruleset.index()].name);
            return Some(format!(
                "such work is cut out of the best graph so far, in which `{}` has made `{by}` of `{what}`; match \
                 `{by}`, or say `before = {set}` in the ruleset",
                taker.name
            ));
        }
        None
    }

    /// Other rules that built the node chosen for a class, in the order in which they fired.
    fn fired_at(&self, class: Id, but: &Rule) -> Vec<String> {
        let egraph = self.optimizer.egraph();
        let class = egraph.find(class);
        let mut rules: Vec<String> = Vec::new();
        for (t, kept) in self.optimizer.traces.iter().zip(self.optimizer.kept()) {
            let name = &self.optimizer.graph.program.rules[t.rule.index()].name;
            let here = kept && t.roots.iter().any(|c| egraph.find(*c) == class);
            if here && *name != but.name && !rules.contains(name) {
                rules.push(name.clone());
            }
        }
        rules
    }

    /// The nearest miss of one rule.
    fn ask(&mut self, compiled: &CompiledRule, only: Option<Id>) -> Option<(Rank, WhyNot)> {
        let rule = compiled.rule();
        let what = compiled.searchable();
        let mut probe = Probe { only, best: None };
        let found =
            search(&self.optimizer.view(), &what, &FxHashSet::default(), 0, SEARCH_LIMITS, None, Some(&mut probe));
        let mut best: Option<(Rank, WhyNot)> = None;
        let mut costed = 0;
        for m in found.matches {
            // Extraction takes most of the time; a few places suffice to show by how much a rule
            // loses.
            if costed >= MAX_COSTED {
                break;
            }
            let at = self.names.get(&self.optimizer.egraph().find(m.roots[0])).cloned();
            let (rank, verdict) = self.judge(compiled, m, costed == 0);
            costed += usize::from(rank == COST_LOST);
            if best.as_ref().is_none_or(|(r, _)| rank < *r) {
                let text = show_rule_lines(&self.optimizer.graph.program, rule);
                best = Some((rank, WhyNot { rule: rule.name.clone(), text, at, verdict }));
            }
        }
        best.or_else(|| {
            let miss = probe.best?;
            let egraph = self.optimizer.egraph();
            let at = self.names.get(&egraph.find(miss.root)).cloned();
            let verdict = Verdict::NoMatch { reason: self.miss(rule, &miss) };
            let text = show_rule_lines(&self.optimizer.graph.program, rule);
            Some(((9, -(miss.progress as i64)), WhyNot { rule: rule.name.clone(), text, at, verdict }))
        })
    }

    /// The outcome of a match.
    fn judge(&mut self, compiled: &CompiledRule, mut m: Match, counts: bool) -> (Rank, Verdict) {
        let rule = compiled.rule();
        if !m.virtual_sums.is_empty() {
            let egraph = &mut self.optimizer.inserted.egraph;
            let built = build_sums(egraph, &mut m, usize::MAX);
            egraph.rebuild();
            if let Err(reject) = built {
                return self.rejected(rule, &m, &reject);
            }
        }
        match check(self.optimizer.egraph(), &self.optimizer.search.candidate, rule, &mut m, self.numerics) {
            Ok(()) => {}
            // Its preference held when it fired; that the graph chosen since is another one is no
            // reason.
            Err(Reject::Prefer(_)) if self.was_applied(compiled, &m) => {}
            Err(reject) => return self.rejected(rule, &m, &reject),
        }
        let root = m.roots[0];
        let before = self.optimizer.cost_with(root, None);
        // Another rule may have made less of what it built.
        let simplified = self.was_applied(compiled, &m).then_some(());
        let instead = self.fired_at(root, rule);
        let applied = {
            let egraph = &mut self.optimizer.inserted.egraph;
            let applied = apply(egraph, rule, compiled.terms, &m, usize::MAX);
            egraph.rebuild();
            applied
        };
        self.names = self.optimizer.names();
        match applied {
            Err(reject) => self.rejected(rule, &m, &reject),
            Ok(applied) => {
                self.optimizer.state(applied.saving(compiled.id, &m).as_ref());
                let with = self.optimizer.cost_with(root, applied.built.first());
                match with.or_else(|| simplified.and_then(|()| self.cost_otherwise(root))).zip(before) {
                    Some((with, without)) if with + LEAST_COST <= without => {
                        let cut_short = self.optimizer.runs.iter().filter(|r| r.stop.cut_short());
                        let runs = cut_short.map(|r| format!("ruleset {} was {}", r.ruleset, r.stop)).collect();
                        (COST_LOST, Verdict::CutShort { with, without, runs })
                    }
                    Some((with, without)) => {
                        let plans = |with: &Optimizer<'_>| {
                            let forced = with.graph_with(root, applied.built.first())?;
                            Some([(self.count)(&forced)?, (self.count)(&with.graph_with(root, None)?)?])
                        };
                        let launches = if counts { plans(self.optimizer) } else { None };
                        let refused = applied.built.first().map_or(Vec::new(), |node| self.refused(root, node));
                        (COST_LOST, Verdict::CostLost { with, without, instead, launches, refused })
                    }
                    None => {
                        let lacks = applied.built.first().and_then(|n| self.optimizer.why_impossible(root, n));
                        let reason = lacks.unwrap_or_else(|| "what it builds would contain itself".to_string());
                        ((4, 0), Verdict::Rejected { reason })
                    }
                }
            }
        }
    }

    /// The least cost of a class with another node than the chosen one.
    fn cost_otherwise(&self, root: Id) -> Option<f64> {
        let egraph = self.optimizer.egraph();
        let class = egraph.find(root);
        let chosen = self.optimizer.best.chosen.get(&class);
        let others = egraph[class].nodes.iter().filter(|n| Some(*n) != chosen);
        others.filter_map(|n| self.optimizer.cost_with(class, Some(n))).reduce(f64::min)
    }

    /// Whether the rule was applied to the match while the rules ran.
    fn was_applied(&self, compiled: &CompiledRule, m: &Match) -> bool {
        let egraph = self.optimizer.egraph();
        let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
        let same = |t: &Trace| {
            t.rule == compiled.id
                && t.terms == compiled.terms
                && t.roots.iter().map(|r| egraph.find(*r)).eq(m.roots.iter().map(|r| egraph.find(*r)))
                && t.matched.iter().map(canonical).collect::<FxHashSet<Node>>()
                    == m.nodes.iter().map(canonical).collect::<FxHashSet<Node>>()
        };
        self.optimizer.traces.iter().any(same)
    }

    /// What keeps each kernel from computing two products in one launch, if such a pair is what the
    /// rule built and none may.
    fn refused(&self, root: Id, node: &Node) -> Vec<String> {
        let program = &self.optimizer.graph.program;
        let Payload::Op(op, _) = node.payload else { return Vec::new() };
        if !matches!(program.op(op).body, OpBody::Builtin(b) if b.is_pair()) {
            return Vec::new();
        }
        let Some(graph) = self.optimizer.graph_with(root, Some(node)) else { return Vec::new() };
        let symbols: Symbols = graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
        let Ok(graph) = graph.specialize(&symbols) else { return Vec::new() };
        let pairs = |n: &hypatia_graph::Node| matches!(n.kind, NodeKind::Op { op: o, .. } if o == op);
        let Some(at) = graph.nodes.iter().position(pairs) else { return Vec::new() };
        refusals(&graph, NodeId(at as u32), self.device).into_iter().map(|(_, why)| why).collect()
    }

    /// Facts about the bindings of a match.
    fn facts<'m>(&'m self, m: &'m Match) -> MatchFacts<'m> {
        let candidate = &self.optimizer.search.candidate;
        MatchFacts { egraph: self.optimizer.egraph(), bindings: &m.bindings, device: None, candidate }
    }

    fn rejected(&self, rule: &Rule, m: &Match, reject: &Reject) -> (Rank, Verdict) {
        let guard = |clause: &str, guard: &AExpr| {
            let facts = self.facts(m);
            let part = failing(guard, &|e| typing::eval(e, &m.values, &facts));
            let values = self.values(rule, m, part);
            Verdict::Guard { clause: clause.to_string(), guard: show_expr(&rule.vars, part), values }
        };
        match reject {
            Reject::Prefer(i) => ((1, -(*i as i64)), guard("prefer", &rule.prefer[*i])),
            Reject::Requires(i) => ((2, -(*i as i64)), guard("requires", &rule.requires[*i])),
            Reject::Claim(dtype) => {
                let reason = format!(
                    "the rule makes no claim for {dtype} that this run accepts (--numerics {} allows {})",
                    self.numerics.name(),
                    allows(self.numerics)
                );
                ((3, 0), Verdict::Rejected { reason })
            }
            Reject::Let(v) => {
                let name = rule.vars.get(v.index()).map_or("?", |v| v.name.as_str());
                let values = rule.lets.iter().find(|(w, _)| w == v).map(|(_, e)| {
                    format!(
                        "`let {name} = {}` has no value: {}",
                        show_expr(&rule.vars, e),
                        self.values(rule, m, e).join(", ")
                    )
                });
                ((5, 0), Verdict::Rejected { reason: values.unwrap_or_default() })
            }
            Reject::Type(reason) | Reject::Lost(reason) => ((4, 0), Verdict::Rejected { reason: reason.clone() }),
            Reject::NotConstant => {
                ((4, 0), Verdict::Rejected { reason: "`build(...)` is over something that is not a constant".into() })
            }
            Reject::Budget => ((6, 0), Verdict::Rejected { reason: "the e-graph is full".into() }),
        }
    }

    /// The values that a guard saw, one line each.
    fn values(&self, rule: &Rule, m: &Match, guard: &AExpr) -> Vec<String> {
        let var = |v: VarId| rule.vars.get(v.index()).map_or("?", |v| v.name.as_str());
        let mut out: Vec<String> = Vec::new();
        let mut leaves = Vec::new();
        collect(guard, &mut leaves);
        for leaf in leaves {
            let shown = show_expr(&rule.vars, leaf);
            let facts = self.facts(m);
            let value = typing::eval(leaf, &m.values, &facts);
            let value = value.map_or("is not known".to_string(), |v| format!("is {}", show_value(&v)));
            let value = match leaf {
                // Uses are counted on the present candidate.
                AExpr::Fact(hypatia_dsl::ir::Fact::Uses, _) if value == "is not known" => {
                    "is not known, as the graph chosen so far does not compute it".to_string()
                }
                _ => value,
            };
            let line = match leaf {
                AExpr::Fact(_, v) => {
                    let what = m.class(*v).map_or("absent".to_string(), |id| self.describe(id));
                    format!("{shown} {value}: {} is {what}", var(*v))
                }
                AExpr::SameAccumulator(t, ..) => {
                    let what = m.class(*t).map_or("absent".to_string(), |id| self.describe(id));
                    format!("{shown} {value}: {} is {what}", var(*t))
                }
                _ => format!("{shown} {value}"),
            };
            if !out.contains(&line) {
                out.push(line);
            }
        }
        out
    }

    /// A description of a class: kind of value, name, type.
    fn describe(&self, id: Id) -> String {
        describe(self.optimizer.egraph(), &self.names, &self.optimizer.graph, id)
    }

    /// What the pattern expected where it failed, and what it found.
    fn miss(&self, rule: &Rule, miss: &Miss) -> String {
        let program = &self.optimizer.graph.program;
        let egraph = self.optimizer.egraph();
        let there = self.describe(miss.class);
        let attr_name = |head: Head, i: usize| match head {
            Head::Op(op) => program.op(op).attrs().nth(i).map_or("?".to_string(), |(_, p)| p.name.clone()),
            _ => "to".to_string(),
        };
        match &miss.reason {
            MissReason::Head(n) => {
                let wanted = show_pat(program, &rule.vars, &Pat::Node(n.clone()));
                let leaf = |n: &super::language::Node| matches!(n.payload, Payload::Leaf(_) | Payload::Splat(..));
                match egraph[egraph.find(miss.class)].nodes.iter().all(leaf) {
                    true => format!("`{wanted}` is wanted, but there is {there}"),
                    false => format!("`{wanted}` is wanted, but {there} is {}", heads(egraph, miss.class)),
                }
            }
            MissReason::Literal(v) => format!("the number {} is wanted, but there is {there}", show_number(*v)),
            MissReason::Type => format!("{there} is not of the type that is wanted"),
            MissReason::Number => format!("{there} is larger than what stands beside it, so it is no number"),
            MissReason::Same(v, to) => {
                let name = rule.vars.get(v.index()).map_or("?", |v| v.name.as_str());
                format!("`{name}` stands for {} already, but here is {there}", self.describe(*to))
            }
            MissReason::Attr(head, i, have) => {
                let name = head_name(program, *head);
                format!(
                    "`{name}` of {there} has {} = {}, which the pattern does not allow",
                    attr_name(*head, *i),
                    show_value(have)
                )
            }
            MissReason::Term(pat, head, parts) => {
                let wanted = show_pat(program, &rule.vars, pat);
                let parts: Vec<String> = parts.iter().take(MAX_SHOWN).map(|p| self.describe(*p)).collect();
                let name = head_name(program, *head);
                format!(
                    "`{wanted}` is wanted as an operand of `{name}`, in any order; {there} has {}",
                    parts.join(" and ")
                )
            }
            MissReason::Region(v, pat, over) => {
                let name = rule.vars.get(v.index()).map_or("?", |v| v.name.as_str());
                let wanted = show_pat(program, &rule.vars, pat);
                let over: Vec<String> = over.iter().take(MAX_SHOWN).map(|c| self.describe(*c)).collect();
                let found = match over.is_empty() {
                    true => "is no pointwise work".to_string(),
                    false => format!("is pointwise work over {}", over.join(" and ")),
                };
                format!("`{name}` stands for pointwise work over `{wanted}`, but {there} {found}")
            }
            MissReason::Arity(head, n) => format!("`{}` has {n} operands there", head_name(program, *head)),
            MissReason::Presence(true) => "an operand is wanted that is absent".to_string(),
            MissReason::Presence(false) => format!("an operand must be absent, but is {there}"),
            MissReason::Root(n) => {
                let wanted = rule.lhs.get(*n).map_or(String::new(), |p| show_pat(program, &rule.vars, p));
                format!("a first root is {there}, but there is no other value `{wanted}` beside it")
            }
        }
    }
}

/// The classes of rules that a rounding contract allows, in words.
fn allows(numerics: Numerics) -> &'static str {
    match numerics {
        Numerics::Exact => "`class exact` alone",
        Numerics::Rounds => "`approx` only where rounding the result hides it; `fast` allows all of it",
        Numerics::Fast => "all that is claimed",
    }
}

/// The failing part of a guard: the first conjunct that is not true.
fn failing<'g>(guard: &'g AExpr, eval: &dyn Fn(&AExpr) -> Option<AttrValue>) -> &'g AExpr {
    let holds = |e: &AExpr| eval(e) == Some(AttrValue::Bool(true));
    match guard {
        AExpr::Binary(BinaryOp::And, a, _) if !holds(a) => failing(a, eval),
        AExpr::Binary(BinaryOp::And, _, b) => failing(b, eval),
        other => other,
    }
}

/// Facts and variables of an expression, in order.
fn collect<'g>(e: &'g AExpr, out: &mut Vec<&'g AExpr>) {
    match e {
        AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Var(_) | AExpr::Device(_) => {
            if !out.contains(&e) {
                out.push(e);
            }
        }
        AExpr::Value(_) => {}
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().for_each(|x| collect(x, out)),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => collect(a, out),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => {
            collect(a, out);
            collect(b, out);
        }
        AExpr::Comprehension { over, .. } => collect(over, out),
        AExpr::If(a, b, c) => {
            collect(a, out);
            collect(b, out);
            collect(c, out);
        }
    }
}

fn head_name(program: &Program, head: Head) -> String {
    match head {
        Head::Op(op) => program.op(op).name.clone(),
        Head::Scalar(s) => program.scalar(s).name.clone(),
        Head::Acc => "acc".into(),
        Head::Second => OVER_SECOND.into(),
        Head::In(_) => "in".into(),
        Head::TermCast => "cast".into(),
        Head::Region(_) => "pointwise work".into(),
    }
}

/// The kinds of nodes in a class: `a mul`, `an input`, `a matmul or a gemm`.
fn heads(egraph: &EGraph, id: Id) -> String {
    let program = &egraph.analysis.program;
    let op = |d: &OpDef| format!("`{}`", d.name);
    let mut out: Vec<String> = Vec::new();
    for n in &egraph[egraph.find(id)].nodes {
        let name = match n.payload {
            Payload::Op(o, _) => op(program.op(o)),
            Payload::Scalar(s) | Payload::Call(s) => format!("`{}`", program.scalar(s).name),
            Payload::Leaf(l) if egraph.analysis.leaf(l).constant => "a weight".into(),
            Payload::Leaf(_) => "an input".into(),
            Payload::Splat(..) | Payload::Lit(_) => "a number".into(),
            Payload::Absent => "absent".into(),
            Payload::Output(_) => "one of several results".into(),
            Payload::Acc => "`acc`".into(),
            Payload::Second => format!("`{SECOND}`"),
            Payload::In(_) => "`in(...)`".into(),
            Payload::TermCast(_) => "`cast`".into(),
        };
        if !out.contains(&name) {
            out.push(name);
        }
    }
    let shown = out.len().min(6);
    out[..shown].join(" or ")
}

/// A description of a class.
fn describe(egraph: &EGraph, names: &FxHashMap<Id, String>, graph: &Graph, id: Id) -> String {
    let id = egraph.find(id);
    let data = &egraph[id].data;
    let Some(ty) = class_type(egraph, id) else {
        return match data.sort {
            Sort::Term(_) => format!("the epilogue `{}`", show_term_class(egraph, id, 0)),
            Sort::Absent => "absent".into(),
            _ => "several results".into(),
        };
    };
    if let Some(v) = data.value() {
        return format!("the constant {} ({ty})", show_number(v));
    }
    let input = egraph[id].nodes.iter().find_map(|n| match n.payload {
        Payload::Leaf(l) if !egraph.analysis.leaf(l).constant => Some(&graph.node(egraph.analysis.leaf(l).node).name),
        _ => None,
    });
    let kind = match (input, data.constant) {
        (Some(_), _) => "the input",
        (None, true) => "the constant",
        (None, false) => "the activation",
    };
    match names.get(&id) {
        Some(name) => format!("{kind} `{}` {ty}", name.trim_start_matches('%')),
        None => format!("{kind} {} {ty}", heads(egraph, id)),
    }
}

fn show_term_class(egraph: &EGraph, id: Id, depth: usize) -> String {
    let program = &egraph.analysis.program;
    let Some(n) = egraph[egraph.find(id)].nodes.iter().min_by_key(|n| n.children.len()) else { return "?".into() };
    if depth > 5 {
        return "...".into();
    }
    let args = || n.children.iter().map(|c| show_term_class(egraph, *c, depth + 1)).collect::<Vec<_>>().join(", ");
    match n.payload {
        Payload::Acc => "acc".into(),
        Payload::Second => format!("{OVER_SECOND}({})", args()),
        Payload::Lit(b) => show_number(f64::from_bits(b)),
        Payload::Call(s) => format!("{}({})", program.scalar(s).name, args()),
        Payload::TermCast(t) => format!("cast<{t}>({})", args()),
        _ => "in(...)".into(),
    }
}
