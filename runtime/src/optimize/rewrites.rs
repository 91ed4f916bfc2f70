//! Rules of a Program as rewrites of the e-graph.
//!
//! In: a Program. Out: its rules, ready to be searched and applied, for the optimiser's own loop and, through
//! `egg`'s traits, for any other. Holds always: a rule whose head occurs nowhere in the graph is left out; a
//! pointwise rule stands here twice, for tensors and for terms.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use egg::{Applier, Id, PatternAst, Rewrite, SearchMatches, Searcher, Subst, Symbol, Var};
use hypatia_dsl::approx::Approx;
use hypatia_dsl::ir::{Build, BuildArg, Head, Pat, Program, Rule, RuleId};
use hypatia_dsl::kernel::short::is_short;
use rustc_hash::FxHashSet;

use super::analysis::Context;
use super::apply::{Applied, Policy, Reject, apply, check, settle};
use super::language::{Discriminant, EGraph, Node};
use super::matcher::prepare::Prepared;
use super::matcher::{Changes, Found, Match, SearchLimits, Searchable, View, search};

/// A rule, lowered to one of the two sorts.
pub struct CompiledRule {
    program: Arc<Program>,
    /// Which rule.
    pub id: RuleId,
    /// True if it rewrites terms.
    pub terms: bool,
    prepared: Prepared,
    policy: Policy,
    state: Mutex<State>,
}

/// What a rule remembers from one iteration to the next.
#[derive(Default)]
struct State {
    /// Fingerprints of matches that need not be looked at again.
    done: FxHashSet<u64>,
    /// Where a capped search goes on.
    resume: usize,
    /// What the last search through `egg`'s trait found.
    found: Vec<Match>,
}

/// Limits of one search.
pub const SEARCH_LIMITS: SearchLimits = SearchLimits { matches: 10_000, steps: 2_000_000 };

impl CompiledRule {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.program.rules[self.id.index()]
    }

    /// What was worked out for searching it.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The rule as what is searched for.
    pub fn searchable(&self) -> Searchable<'_> {
        Searchable { rule: self.rule(), terms: self.terms, prepared: &self.prepared }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that a search panicked elsewhere; its memory is only of what was done.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Matches that were not applied yet; with `changes`, those near what changed.
    pub fn find(&self, egraph: &View<'_>, limits: SearchLimits, changes: Option<&Changes>) -> Found {
        let mut state = self.state();
        let absent = |h: &Discriminant| egraph.classes_for_op(h).is_none_or(|mut c| c.next().is_none());
        if self.prepared.needed.iter().any(absent) {
            return Found::default();
        }
        let found = search(egraph, &self.searchable(), &state.done, state.resume, limits, changes, None);
        state.resume = found.resume;
        found
    }

    /// Applies a match. What can never be applied, or was, is not found again.
    pub fn apply(&self, egraph: &mut EGraph, m: &Match) -> Result<Applied, Reject> {
        let print = m.fingerprint(egraph);
        let mut m = m.clone();
        let result = settle(egraph, &mut m)
            .and_then(|()| check(egraph, self.rule(), &mut m, self.policy, true))
            .and_then(|()| apply(egraph, self.rule(), self.terms, &m));
        // Facts grow and uses are counted anew, so a guard may hold later; types, claims and constants do not change.
        if matches!(result, Ok(_) | Err(Reject::Claim(_) | Reject::Type(_) | Reject::Lost(_))) {
            self.state().done.insert(print);
        }
        result
    }

    /// Forgets where it was.
    pub fn reset(&self) {
        *self.state() = State::default();
    }
}

/// Which rules are taken.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Rules, families (`fuse::unary`) or rulesets that are left out.
    pub disabled: HashSet<String>,
    /// Which approximations may fire.
    pub approx: Approx,
}

/// Applications in the left side of a rule at most: the matcher recurses once for each.
const MAX_PATTERN: usize = 300;

/// Rules that are left out because their pattern is too large to be matched.
pub fn oversized(program: &Program) -> Vec<&Rule> {
    program.rules.iter().filter(|r| is_oversized(r)).collect()
}

fn is_oversized(rule: &Rule) -> bool {
    fn size(p: &Pat) -> usize {
        match p {
            Pat::Bind(_, p) | Pat::Typed(p, _) => 1 + size(p),
            Pat::OneOf(ps) => 1 + ps.iter().map(size).max().unwrap_or(0),
            Pat::Node(n) => 1 + n.attrs.len() + n.args.iter().map(size).sum::<usize>(),
            Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => 1,
        }
    }
    rule.lhs.iter().map(size).sum::<usize>() > MAX_PATTERN
}

/// The rules of a program that could fire on a graph with these heads (all rules where `None`).
pub fn compile(
    program: &Arc<Program>,
    present: Option<&HashSet<Discriminant>>,
    selection: &Selection,
) -> Vec<CompiledRule> {
    let mut out = Vec::new();
    let reachable = present.map(|p| reachable_heads(program, p));
    for (i, rule) in program.rules.iter().enumerate() {
        let ruleset = program.rulesets.get(rule.ruleset.index()).map_or("", |r| r.name.as_str());
        let off =
            [rule.name.as_str(), rule.base_name.as_str(), ruleset].iter().any(|n| selection.disabled.contains(*n));
        // Those about the terms of generated kernels wait for these.
        if off
            || is_short(program, rule)
            || rule.lhs.is_empty()
            || rule.lhs.len() != rule.rhs.len()
            || is_oversized(rule)
        {
            continue;
        }
        for terms in if rule.pointwise { &[false, true][..] } else { &[false][..] } {
            let prepared = Prepared::of(program, rule, *terms);
            let could = reachable.as_ref().is_none_or(|have| prepared.needed.iter().all(|h| have.contains(h)));
            if could {
                out.push(CompiledRule {
                    program: program.clone(),
                    id: RuleId(i as u32),
                    terms: *terms,
                    prepared,
                    policy: Policy { approx: selection.approx },
                    state: Mutex::new(State::default()),
                });
            }
        }
    }
    out
}

/// Heads that are present, or that rules may build whose own heads are.
fn reachable_heads(program: &Program, present: &HashSet<Discriminant>) -> HashSet<Discriminant> {
    let mut have = present.clone();
    // Any scalar may come to stand in an epilogue, and any result of an op with several may be asked for.
    let as_call = |h: &Discriminant| if let Discriminant::Scalar(s) = h { Some(Discriminant::Call(*s)) } else { None };
    let calls: Vec<Discriminant> = have.iter().filter_map(as_call).collect();
    have.extend(calls);
    let needs: Vec<Vec<Discriminant>> = program.rules.iter().map(|r| Prepared::of(program, r, false).needed).collect();
    let mut open: Vec<usize> = (0..program.rules.len()).collect();
    loop {
        let before = (have.len(), open.len());
        open.retain(|i| {
            // On terms a pointwise rule needs the calls of the same scalars: they are there if these are.
            let fires = needs[*i].iter().all(|h| have.contains(h) || as_call(h).is_some_and(|c| have.contains(&c)));
            if fires {
                program.rules[*i].rhs.iter().for_each(|b| built_heads(program, b, &mut have));
            }
            !fires
        });
        if (have.len(), open.len()) == before {
            return have;
        }
    }
}

fn built_heads(program: &Program, build: &Build, out: &mut HashSet<Discriminant>) {
    match build {
        Build::Node(n) => {
            match n.head {
                Head::Scalar(s) => out.extend([Discriminant::Scalar(s), Discriminant::Call(s)]),
                Head::Op(op) => {
                    out.insert(Discriminant::Output);
                    // It may be unfolded; bodies are not recursive, and each op adds its own.
                    if out.insert(Discriminant::Op(op))
                        && let hypatia_dsl::ir::OpBody::Defined(bodies) = &program.op(op).body
                    {
                        bodies.iter().for_each(|b| built_heads(program, b, out));
                    }
                }
                Head::Acc => out.extend([Discriminant::Acc]),
                Head::In(_) => out.extend([Discriminant::In]),
                Head::TermCast => out.extend([Discriminant::TermCast]),
                // The same functions as on the left side, which are there.
                Head::Region(_) => out.extend([Discriminant::In]),
            }
            for arg in &n.args {
                match arg {
                    BuildArg::One(b) | BuildArg::Each { element: b, .. } => built_heads(program, b, out),
                    BuildArg::Spread(_) => {}
                }
            }
        }
        Build::Else(_, b) | Build::Frozen(b) => built_heads(program, b, out),
        Build::If(_, a, b) => {
            built_heads(program, a, out);
            built_heads(program, b, out);
        }
        Build::Var(_) | Build::Number(_) | Build::Absent => {}
    }
}

/// The rules of a program as `egg` rewrites: what `hypatia_rules!` gives out too.
pub fn rewrites(program: &Arc<Program>) -> Vec<Rewrite<Node, Context>> {
    let rules = compile(program, None, &Selection::default());
    rules
        .into_iter()
        .filter_map(|r| {
            let name = if r.terms { format!("{} (in epilogues)", r.rule().name) } else { r.rule().name.clone() };
            let shared = Arc::new(r);
            Rewrite::new(name, Shared(shared.clone()), Shared(shared)).ok()
        })
        .collect()
}

/// One rule as both halves of an `egg` rewrite.
struct Shared(Arc<CompiledRule>);

/// The variable under which a match's number travels through `egg`.
fn number_var() -> Var {
    Var::from_u32(0)
}

impl Searcher<Node, Context> for Shared {
    fn search_eclass_with_limit(&self, egraph: &EGraph, eclass: Id, limit: usize) -> Option<SearchMatches<'_, Node>> {
        self.search_with_limit(egraph, limit).into_iter().find(|m| egraph.find(m.eclass) == egraph.find(eclass))
    }

    fn search_with_limit(&self, egraph: &EGraph, limit: usize) -> Vec<SearchMatches<'_, Node>> {
        let limits = SearchLimits { matches: limit.clamp(1, SEARCH_LIMITS.matches), ..SEARCH_LIMITS };
        let found = self.0.find(&View::of(egraph), limits, None);
        let mut out = Vec::with_capacity(found.matches.len());
        for (i, m) in found.matches.iter().enumerate() {
            let mut subst = Subst::with_capacity(1);
            subst.insert(number_var(), Id::from(i));
            out.push(SearchMatches { eclass: m.roots[0], substs: vec![subst], ast: None });
        }
        self.0.state().found = found.matches;
        out
    }

    fn vars(&self) -> Vec<Var> {
        vec![number_var()]
    }
}

impl Applier<Node, Context> for Shared {
    fn apply_one(&self, egraph: &mut EGraph, _: Id, subst: &Subst, _: Option<&PatternAst<Node>>, _: Symbol) -> Vec<Id> {
        let at = subst.get(number_var()).map(|id| usize::from(*id));
        let found = at.and_then(|i| self.0.state().found.get(i).cloned());
        let Some(m) = found else { return Vec::new() };
        match self.0.apply(egraph, &m) {
            Ok(applied) if applied.changed => m.roots.clone(),
            _ => Vec::new(),
        }
    }
}
