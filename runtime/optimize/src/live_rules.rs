//! The rules that may match somewhere in an e-graph, so that a program's other rules cost nothing.
//!
//! In: a program's rules, what may fire, and the patterns that may match at some class. Out: for
//! each ruleset, its rules to search. Invariant: a rule that is left out has a root that matches at
//! no class. Once a rule is live it remains so.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypatia_dsl::ir::{Program, RuleId, RuleSetId};
use hypatia_dsl::numerics::Allowed;

use super::language::Discriminant;
use super::matcher::class_patterns::ClassPatterns;
use super::program_rules::{FormId, Forms, ProgramRules};
use super::rewrites::CompiledRule;

/// The rules that may match in an e-graph.
pub struct LiveRules {
    program: Arc<Program>,
    all: Arc<ProgramRules>,
    allowed: Allowed,
    /// For each list of heads that rules need, whether the e-graph may come to have them.
    reachable: Vec<bool>,
    live: BTreeMap<FormId, CompiledRule>,
    /// How many of the patterns that were found at some class have woken their rules; `None` before
    /// the first [`LiveRules::wake`].
    woken: Option<usize>,
}

impl LiveRules {
    /// The rules of a program that may fire on a graph with these heads (on any where `None`). None
    /// is live yet.
    pub fn of(
        program: &Arc<Program>,
        present: Option<impl Iterator<Item = Discriminant>>,
        allowed: Allowed,
    ) -> LiveRules {
        let all = ProgramRules::of(program);
        let reachable = all.reach.reachable(present);
        LiveRules { program: program.clone(), all, allowed, reachable, live: BTreeMap::new(), woken: None }
    }

    /// No rules, on any e-graph.
    pub fn none(program: &Arc<Program>) -> LiveRules {
        let rules = LiveRules::of(program, None::<std::iter::Empty<_>>, Allowed::default());
        LiveRules { reachable: vec![false; rules.reachable.len()], ..rules }
    }

    /// Makes the rules live whose first root may match now.
    pub fn wake(&mut self, patterns: &ClassPatterns) {
        let all = self.all.clone();
        if self.woken.is_none() {
            all.rootless.iter().for_each(|form| self.add(*form));
        }
        let found = patterns.found();
        for pattern in &found[self.woken.unwrap_or(0).min(found.len())..] {
            all.rooted(*pattern).iter().for_each(|form| self.add(*form));
        }
        self.woken = Some(found.len());
    }

    fn add(&mut self, id: FormId) {
        if self.may_fire(id) {
            self.live.insert(id, CompiledRule::of_form(&self.program, self.all.form(id), &self.allowed));
        }
    }

    fn may_fire(&self, id: FormId) -> bool {
        let form = self.all.form(id);
        self.reachable[form.needs] && !self.allowed.is_off(&self.program, &self.program.rules[form.rule.index()])
    }

    /// The live forms of a rule.
    pub fn of_rule(&self, rule: RuleId) -> impl Iterator<Item = &CompiledRule> {
        self.live.values().filter(move |r| r.id == rule)
    }

    /// The rules of a ruleset; `None` if none of them may ever fire.
    pub fn of_ruleset(&mut self, ruleset: RuleSetId) -> Option<RulesetRules<'_>> {
        let all = self.all.clone();
        let any = |forms: &[FormId]| forms.iter().any(|f| self.may_fire(*f));
        let own = all.by_ruleset.get(ruleset.index())?;
        // Rulesets that grow epilogues also run the identities on terms of every other ruleset:
        // otherwise `x = x * 1` on tensors would grow an epilogue without end.
        let grows = any(&own.builders);
        let may = |list: fn(&Forms) -> &[FormId]| any(list(own)) || (grows && any(list(&all.on_terms)));
        let (steps, of_work) = (may(|f| &f.steps), may(|f| &f.of_work));
        (steps || of_work).then_some(RulesetRules { rules: self, ruleset, grows, steps, of_work })
    }
}

/// The rules of a ruleset that may match in an e-graph.
pub struct RulesetRules<'r> {
    rules: &'r mut LiveRules,
    ruleset: RuleSetId,
    /// All rules on terms run with it.
    pub grows: bool,
    /// Some rule that matches node by node may fire, if not now.
    pub steps: bool,
    /// Some rule on arbitrary pointwise work may fire, if not now.
    pub of_work: bool,
}

impl RulesetRules<'_> {
    /// Makes the rules live whose first root may match now.
    pub fn wake(&mut self, patterns: &ClassPatterns) {
        self.rules.wake(patterns);
    }

    /// Those that are live, in order: the ones on arbitrary pointwise work, or the others.
    pub fn live(&self, of_work: bool) -> Vec<&CompiledRule> {
        let is_own = |id: FormId| {
            let form = self.rules.all.form(id);
            form.prepared.any_work == of_work && (form.ruleset == self.ruleset || (self.grows && form.terms))
        };
        self.rules.live.iter().filter(|(id, _)| is_own(**id)).map(|(_, rule)| rule).collect()
    }
}
