//! Rules of a Program, ready to be searched and applied.
//!
//! In: a Program. Out: its rules, for the optimiser's own loop and, through `adapter`, for `egg`'s.
//! Holds always: a compiled rule never changes; a rule whose head occurs nowhere in the graph is
//! left out; a pointwise rule stands here twice, for tensors and for terms.

use std::collections::HashSet;
use std::sync::Arc;

use hypatia_dsl::approx::Approx;
use hypatia_dsl::ir::{Build, BuildArg, Head, Pat, Program, Rule, RuleId};
use hypatia_dsl::kernel::short::is_short;
use rustc_hash::{FxHashMap, FxHashSet};

use super::analysis::EGraph;
use super::apply::{Applied, Policy, Reject, apply, check, settle};
use super::below::BelowAll;
use super::candidate::Candidate;
use super::language::Discriminant;
use super::matcher::prepare::Prepared;
use super::matcher::{Changes, Found, Match, SearchLimits, Searchable, View, search};

/// A rule, lowered to one of the two sorts: what the optimiser runs, and what `hypatia_rules!`
/// gives out. It never changes; what its searches remember stands in [`SearchState`].
pub struct CompiledRule {
    program: Arc<Program>,
    /// Which rule.
    pub id: RuleId,
    /// True if it rewrites terms.
    pub terms: bool,
    prepared: Prepared,
    policy: Policy,
}

/// What searches remember from one iteration to the next, and what they ask besides the e-graph.
#[derive(Debug, Default)]
pub struct SearchState {
    /// The extracted graph.
    pub candidate: Candidate,
    /// What stands below each class.
    pub below: BelowAll,
    /// How far each rule has come.
    pub progress: FxHashMap<RuleKey, Progress>,
}

/// A rule, and whether it rewrites terms.
pub type RuleKey = (RuleId, bool);

/// How far one rule has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Fingerprints of matches that need not be looked at again.
    done: FxHashSet<u64>,
    /// Where a capped search goes on.
    resume: usize,
}

/// Limits of one search.
pub const SEARCH_LIMITS: SearchLimits = SearchLimits { matches: 10_000, steps: 2_000_000 };

impl CompiledRule {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.program.rules[self.id.index()]
    }

    /// The rule's name; a pointwise rule has one for tensors and one for terms.
    pub fn name(&self) -> String {
        let name = &self.rule().name;
        if self.terms { format!("{name} (in epilogues)") } else { name.clone() }
    }

    /// What its progress is kept under.
    pub fn key(&self) -> RuleKey {
        (self.id, self.terms)
    }

    /// What was worked out for searching it.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The rule as what is searched for.
    pub fn searchable(&self) -> Searchable<'_> {
        Searchable { rule: self.rule(), terms: self.terms, prepared: &self.prepared }
    }

    /// Matches that were not applied yet; with `changes`, those near what changed.
    pub fn find(
        &self,
        egraph: &View<'_>,
        progress: &mut Progress,
        limits: SearchLimits,
        changes: Option<&Changes>,
    ) -> Found {
        let absent = |h: &Discriminant| egraph.classes_for_op(h).is_none_or(|mut c| c.next().is_none());
        if self.prepared.needed.iter().any(absent) {
            return Found::default();
        }
        let found = search(egraph, &self.searchable(), &progress.done, progress.resume, limits, changes, None);
        progress.resume = found.resume;
        found
    }

    /// Applies a match, while the e-graph has fewer than `limit` nodes. What can never be applied,
    /// or was, is not found again.
    pub fn apply(
        &self,
        egraph: &mut EGraph,
        search: &mut SearchState,
        m: &Match,
        limit: usize,
    ) -> Result<Applied, Reject> {
        let print = m.fingerprint(egraph);
        let mut m = m.clone();
        let result = settle(egraph, &mut m, limit)
            .and_then(|()| check(egraph, &search.candidate, self.rule(), &mut m, self.policy))
            .and_then(|()| apply(egraph, self.rule(), self.terms, &m, limit));
        // Facts grow and uses are counted anew, so a guard may hold later; types, claims and
        // constants do not change.
        if matches!(result, Ok(_) | Err(Reject::Claim(_) | Reject::Type(_) | Reject::Lost(_))) {
            search.progress.entry(self.key()).or_default().done.insert(print);
        }
        result
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
                });
            }
        }
    }
    out
}

/// Heads that are present, or that rules may build whose own heads are.
fn reachable_heads(program: &Program, present: &HashSet<Discriminant>) -> HashSet<Discriminant> {
    let mut have = present.clone();
    // Any scalar may come to stand in an epilogue, and any result of an op with several may be
    // asked for.
    let as_call = |h: &Discriminant| if let Discriminant::Scalar(s) = h { Some(Discriminant::Call(*s)) } else { None };
    let calls: Vec<Discriminant> = have.iter().filter_map(as_call).collect();
    have.extend(calls);
    let needs: Vec<Vec<Discriminant>> = program.rules.iter().map(|r| Prepared::of(program, r, false).needed).collect();
    let mut open: Vec<usize> = (0..program.rules.len()).collect();
    loop {
        let before = (have.len(), open.len());
        open.retain(|i| {
            // On terms a pointwise rule needs the calls of the same scalars: they are there if
            // these are.
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

/// The rules of a program: what `hypatia_rules!` gives out.
pub fn rewrites(program: &Arc<Program>) -> Vec<CompiledRule> {
    compile(program, None, &Selection::default())
}
