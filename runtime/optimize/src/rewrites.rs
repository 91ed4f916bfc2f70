//! Compiled rules of a Program, ready to be searched and applied.
//!
//! In: a Program. Out: its rules, for the optimiser's own loop and, through `adapter`, for `egg`'s.
//! Invariant: a compiled rule never changes. A rule is left out if its head occurs nowhere in the
//! graph. A pointwise rule is compiled twice, for tensors and for terms.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hypatia_dsl::ir::{Build, BuildArg, Head, Pat, Program, Rule, RuleId};
use hypatia_dsl::kernel::short::is_short;
use hypatia_dsl::numerics::{Allowed, Numerics};
use rustc_hash::{FxHashMap, FxHashSet};

use super::analysis::EGraph;
use super::apply::{Applied, Reject, apply, build_sums, check};
use super::candidate::Candidate;
use super::language::Discriminant;
use super::matcher::class_patterns::ClassPatterns;
use super::matcher::pattern_index::PatternIndex;
use super::matcher::prepare::Prepared;
use super::matcher::{Frontiers, Match, SearchLimits, SearchResult, Searchable, View, search};

/// A rule compiled for tensors or for terms: what the optimiser runs and what `hypatia_rules!`
/// returns. It is immutable; the state of its searches is in [`SearchState`].
pub struct CompiledRule {
    program: Arc<Program>,
    /// Which rule.
    pub id: RuleId,
    /// True if it rewrites terms.
    pub terms: bool,
    prepared: Arc<Prepared>,
    numerics: Numerics,
}

/// The state that searches keep between iterations, and the inputs they have besides the e-graph.
#[derive(Debug, Default)]
pub struct SearchState {
    /// The extracted graph.
    pub candidate: Candidate,
    /// The patterns that may match at each class.
    pub patterns: ClassPatterns,
    /// The progress of each rule.
    pub progress: FxHashMap<RuleKey, Progress>,
}

impl SearchState {
    /// For searching rules of a program.
    pub fn of_program(program: &Arc<Program>) -> SearchState {
        let index = ProgramRules::of(program).index.clone();
        SearchState { patterns: ClassPatterns::of_index(index), ..SearchState::default() }
    }
}

/// A rule, and whether it rewrites terms.
pub type RuleKey = (RuleId, bool);

/// The progress of one rule.
#[derive(Debug, Default)]
pub struct Progress {
    /// Fingerprints of matches that need not be checked again.
    done: FxHashSet<u64>,
    /// Where a capped search resumes.
    pub resume: usize,
}

/// Limits of one search.
pub const SEARCH_LIMITS: SearchLimits = SearchLimits { matches: 10_000, steps: 2_000_000 };

impl CompiledRule {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.program.rules[self.id.index()]
    }

    /// The rule's name; a pointwise rule has a different name for terms.
    pub fn name(&self) -> String {
        let name = &self.rule().name;
        if self.terms { format!("{name} (in epilogues)") } else { name.clone() }
    }

    /// The key of its progress.
    pub fn key(&self) -> RuleKey {
        (self.id, self.terms)
    }

    /// Its precomputed search properties.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The rule as input of a search.
    pub fn searchable(&self) -> Searchable<'_> {
        Searchable { rule: self.rule(), terms: self.terms, prepared: &self.prepared }
    }

    /// Matches that were not applied yet; with `changes`, only those near a change. The caller
    /// keeps where a search that was cut short resumes.
    pub fn find(
        &self,
        egraph: &View<'_>,
        progress: &Progress,
        limits: SearchLimits,
        changes: Option<&Frontiers>,
    ) -> SearchResult {
        let absent = |h: &Discriminant| egraph.classes_for_op(h).is_none_or(|mut c| c.next().is_none());
        if self.prepared.needed.iter().any(absent) {
            return SearchResult::default();
        }
        search(egraph, &self.searchable(), &progress.done, progress.resume, limits, changes, None)
    }

    /// Applies a match, as long as the e-graph has fewer than `limit` nodes. A match that was
    /// applied, or never can be, is not found again.
    pub fn apply(
        &self,
        egraph: &mut EGraph,
        search: &mut SearchState,
        m: &Match,
        limit: usize,
    ) -> Result<Applied, Reject> {
        let print = m.fingerprint(egraph);
        let mut m = m.clone();
        let result = build_sums(egraph, &mut m, limit)
            .and_then(|()| check(egraph, &search.candidate, self.rule(), &mut m, self.numerics))
            .and_then(|()| apply(egraph, self.rule(), self.terms, &m, limit));
        // Facts grow and uses are recounted, so a guard may hold later; types, rounding classes and
        // constants do not change.
        if matches!(result, Ok(_) | Err(Reject::Claim(_) | Reject::Type(_) | Reject::Lost(_))) {
            search.progress.entry(self.key()).or_default().done.insert(print);
        }
        result
    }
}

/// Maximum number of applications in the left side of a rule: the matcher recurses once for each.
const MAX_PATTERN: usize = 300;

/// Rules that are left out because their pattern is too large to match.
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

/// What searches need to know of the rules of a program, whatever the graph. A program has it made
/// once.
struct ProgramRules {
    /// By rule.
    rules: Vec<ProgramRule>,
    /// The left sides of all rules.
    index: Arc<PatternIndex>,
}

struct ProgramRule {
    /// False for a rule that no graph is searched for.
    searched: bool,
    on_tensors: Arc<Prepared>,
    /// The same rule on terms, if it is pointwise.
    on_terms: Option<Arc<Prepared>>,
    /// The heads that it may build.
    built: Vec<Discriminant>,
}

/// Maximum number of programs whose rules are kept.
const KEPT: usize = 4;
/// The rules of the programs that were used last, the newest first.
static PROGRAMS: Mutex<VecDeque<(Weak<Program>, Arc<ProgramRules>)>> = Mutex::new(VecDeque::new());

impl ProgramRules {
    /// The rules of a program.
    fn of(program: &Arc<Program>) -> Arc<ProgramRules> {
        let same = |(known, _): &(Weak<Program>, _)| known.as_ptr() == Arc::as_ptr(program);
        let kept = || PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rules)) = kept().iter().find(|known| same(known)) {
            return rules.clone();
        }
        let rules = Arc::new(ProgramRules::made(program));
        let mut kept = kept();
        kept.retain(|(program, _)| program.strong_count() > 0);
        kept.push_front((Arc::downgrade(program), rules.clone()));
        kept.truncate(KEPT);
        rules
    }

    fn made(program: &Program) -> ProgramRules {
        let mut index = PatternIndex::default();
        let mut prepared = |rule: &Rule, terms: bool| {
            let mut prepared = Prepared::of(program, rule, terms);
            index.add_rule(program, &rule.lhs, terms, &mut prepared);
            Arc::new(prepared)
        };
        let rules = program.rules.iter().map(|rule| {
            let mut built = FxHashSet::default();
            rule.rhs.iter().for_each(|b| built_heads(program, b, &mut built));
            ProgramRule {
                // Rules on the terms of generated kernels run later, in the planner.
                searched: !is_short(program, rule)
                    && !rule.lhs.is_empty()
                    && rule.lhs.len() == rule.rhs.len()
                    && !is_oversized(rule),
                on_tensors: prepared(rule, false),
                on_terms: rule.pointwise.then(|| prepared(rule, true)),
                built: built.into_iter().collect(),
            }
        });
        let rules = rules.collect();
        ProgramRules { rules, index: Arc::new(index) }
    }

    /// Heads that are present, or that a rule may build whose own heads are reachable.
    fn reachable_heads(&self, present: &HashSet<Discriminant>) -> HashSet<Discriminant> {
        let mut have = present.clone();
        // Any scalar may end up in an epilogue, and any result of an op with several may be used.
        let as_call =
            |h: &Discriminant| if let Discriminant::Scalar(s) = h { Some(Discriminant::Call(*s)) } else { None };
        let calls: Vec<Discriminant> = have.iter().filter_map(as_call).collect();
        have.extend(calls);
        let mut open: Vec<&ProgramRule> = self.rules.iter().collect();
        loop {
            let before = (have.len(), open.len());
            open.retain(|rule| {
                // On terms a pointwise rule needs the calls of the same scalars: they are present
                // if these are.
                let has = |h: &Discriminant| have.contains(h) || as_call(h).is_some_and(|c| have.contains(&c));
                let fires = rule.on_tensors.needed.iter().all(has);
                if fires {
                    have.extend(rule.built.iter().copied());
                }
                !fires
            });
            if (have.len(), open.len()) == before {
                return have;
            }
        }
    }
}

/// The rules of a program that could fire on a graph with these heads (all rules where `None`).
pub fn compile(
    program: &Arc<Program>,
    present: Option<&HashSet<Discriminant>>,
    allowed: &Allowed,
) -> Vec<CompiledRule> {
    let all = ProgramRules::of(program);
    let reachable = present.map(|p| all.reachable_heads(p));
    let could = |p: &Prepared| reachable.as_ref().is_none_or(|have| p.needed.iter().all(|h| have.contains(h)));
    let mut out = Vec::new();
    for (i, of) in all.rules.iter().enumerate() {
        if !of.searched || allowed.is_off(program, &program.rules[i]) {
            continue;
        }
        let forms = [Some((&of.on_tensors, false)), of.on_terms.as_ref().map(|p| (p, true))];
        for (prepared, terms) in forms.into_iter().flatten().filter(|(p, _)| could(p)) {
            let exact = || Arc::new(Prepared::clone(prepared).as_written());
            out.push(CompiledRule {
                program: program.clone(),
                id: RuleId(i as u32),
                terms,
                prepared: if allowed.is_exact() { exact() } else { prepared.clone() },
                numerics: allowed.numerics,
            });
        }
    }
    out
}

fn built_heads(program: &Program, build: &Build, out: &mut FxHashSet<Discriminant>) {
    match build {
        Build::Node(n) => {
            match n.head {
                Head::Scalar(s) => out.extend([Discriminant::Scalar(s), Discriminant::Call(s)]),
                Head::Op(op) => {
                    out.insert(Discriminant::Output);
                    // The op may be inlined; bodies are not recursive, and each op adds its own.
                    if out.insert(Discriminant::Op(op))
                        && let hypatia_dsl::ir::OpBody::Defined(bodies) = &program.op(op).body
                    {
                        bodies.iter().for_each(|b| built_heads(program, b, out));
                    }
                }
                Head::Acc => out.extend([Discriminant::Acc]),
                Head::Second => out.extend([Discriminant::Second]),
                Head::In(_) => out.extend([Discriminant::In]),
                Head::TermCast => out.extend([Discriminant::TermCast]),
                // The same functions as on the left side, which are present.
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

/// The compiled rules of a program, as `hypatia_rules!` returns them.
pub fn rewrites(program: &Arc<Program>) -> Vec<CompiledRule> {
    compile(program, None, &Allowed::default())
}
