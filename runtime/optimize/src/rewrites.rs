//! Compiled rules of a Program, ready to be searched and applied.
//!
//! In: a Program. Out: its rules, for the optimiser's own loop and, through `adapter`, for `egg`'s.
//! Invariant: a compiled rule never changes. A pointwise rule is compiled twice, for tensors and
//! for terms.

use std::sync::Arc;

use hypatia_dsl::ir::{Program, Rule, RuleId};
use hypatia_dsl::numerics::{Allowed, Numerics};
use rustc_hash::{FxHashMap, FxHashSet};

use super::analysis::EGraph;
use super::apply::{Applied, Reject, apply, build_sums, check};
use super::candidate::Candidate;
use super::language::Discriminant;
use super::matcher::class_patterns::ClassPatterns;
use super::matcher::prepare::Prepared;
use super::matcher::{Frontiers, Match, SearchLimits, SearchResult, Searchable, View, search};
use super::program_rules::{Form, ProgramRules};

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
    /// A rule as its program prepared it.
    pub fn of_form(program: &Arc<Program>, form: &Form, allowed: &Allowed) -> CompiledRule {
        let exact = || Arc::new(Prepared::clone(&form.prepared).as_written());
        CompiledRule {
            program: program.clone(),
            id: form.rule,
            terms: form.terms,
            prepared: if allowed.is_exact() { exact() } else { form.prepared.clone() },
            numerics: allowed.numerics,
        }
    }

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

/// All rules of a program that graphs are searched for and that may fire.
pub fn compile(program: &Arc<Program>, allowed: &Allowed) -> Vec<CompiledRule> {
    let all = ProgramRules::of(program);
    let on = all.forms.iter().filter(|form| !allowed.is_off(program, &program.rules[form.rule.index()]));
    on.map(|form| CompiledRule::of_form(program, form, allowed)).collect()
}

/// The compiled rules of a program, as `hypatia_rules!` returns them.
pub fn rewrites(program: &Arc<Program>) -> Vec<CompiledRule> {
    compile(program, &Allowed::default())
}
