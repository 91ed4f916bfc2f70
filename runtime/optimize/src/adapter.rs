//! A compiled rule behind `egg`'s traits.
//!
//! In: a [`CompiledRule`]. Out: an [`egg::Rewrite`] that searches and applies with that rule alone.
//! Invariant: this module has no logic. The search state is stored beside the rule, because `egg`
//! passes the e-graph and nothing else; so there is no candidate, and no guard on uses holds.

use std::sync::{Arc, Mutex, MutexGuard};

use egg::{Applier, Id, PatternAst, SearchMatches, Searcher, Subst, Symbol, Var};

use super::Rewrite;
use super::analysis::Context;
use super::analysis::EGraph;
use super::language::Node;
use super::matcher::{Match, SearchLimits, View};
use super::rewrites::{CompiledRule, SEARCH_LIMITS, SearchState};

/// One rule as both the searcher and the applier of an `egg` rewrite.
struct Adapter {
    rule: CompiledRule,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    search: SearchState,
    /// The matches of the last search.
    found: Vec<Match>,
}

#[derive(Clone)]
struct Shared(Arc<Adapter>);

impl From<CompiledRule> for Rewrite {
    fn from(rule: CompiledRule) -> Rewrite {
        let name = rule.name();
        let shared = Shared(Arc::new(Adapter { rule, state: Mutex::default() }));
        match Rewrite::new(name, shared.clone(), shared) {
            Ok(rewrite) => rewrite,
            Err(e) => unreachable!("the adapter's two halves have the same variable: {e}"),
        }
    }
}

/// The variable that carries the index of a match through `egg`.
fn number_var() -> Var {
    Var::from_u32(0)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that a search panicked elsewhere. The state only records finished
        // work, so it is still usable.
        self.0.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Searcher<Node, Context> for Shared {
    fn search_eclass_with_limit(&self, egraph: &EGraph, eclass: Id, limit: usize) -> Option<SearchMatches<'_, Node>> {
        self.search_with_limit(egraph, limit).into_iter().find(|m| egraph.find(m.eclass) == egraph.find(eclass))
    }

    fn search_with_limit(&self, egraph: &EGraph, limit: usize) -> Vec<SearchMatches<'_, Node>> {
        let limits = SearchLimits { matches: limit.clamp(1, SEARCH_LIMITS.matches), ..SEARCH_LIMITS };
        let State { search: SearchState { candidate, patterns, progress }, found } = &mut *self.state();
        let progress = progress.entry(self.0.rule.key()).or_default();
        let result = self.0.rule.find(&View::of(egraph, candidate, patterns), progress, limits, None);
        progress.resume = result.resume;
        *found = result.matches;
        let numbered = found.iter().enumerate().map(|(i, m)| {
            let mut subst = Subst::with_capacity(1);
            subst.insert(number_var(), Id::from(i));
            SearchMatches { eclass: m.roots[0], substs: vec![subst], ast: None }
        });
        numbered.collect()
    }

    fn vars(&self) -> Vec<Var> {
        vec![number_var()]
    }
}

impl Applier<Node, Context> for Shared {
    fn apply_one(&self, egraph: &mut EGraph, _: Id, subst: &Subst, _: Option<&PatternAst<Node>>, _: Symbol) -> Vec<Id> {
        let State { search, found } = &mut *self.state();
        let at = subst.get(number_var()).map(|id| usize::from(*id));
        let Some(m) = at.and_then(|i| found.get(i)) else { return Vec::new() };
        match self.0.rule.apply(egraph, search, m, usize::MAX) {
            Ok(applied) if applied.changed => m.roots.clone(),
            _ => Vec::new(),
        }
    }
}
