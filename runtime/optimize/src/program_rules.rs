//! What is known of the rules of a program before any graph is.
//!
//! In: a Program. Out: its rules prepared for searching, the index of their left sides, and tables
//! by which an optimisation finds the rules that concern its graph without a look at the others.
//! Invariant: nothing here depends on a graph or on options. It is made once for each program.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hypatia_dsl::ir::{
    Build, BuildArg, BuildNode, Head, OpBody, ParamKind, Pat, Program, Rule, RuleId, RuleSetId, ScalarId,
};
use hypatia_dsl::kernel::short::is_short;
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::language::Discriminant;
use super::matcher::pattern_index::{PatternId, PatternIndex};
use super::matcher::prepare::Prepared;

/// The number of a [`Form`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormId(u32);

impl FormId {
    /// Its position among the forms.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rule that graphs are searched for, on tensors or on terms.
pub struct Form {
    /// The rule.
    pub rule: RuleId,
    /// Its ruleset.
    pub ruleset: RuleSetId,
    /// True if it rewrites terms.
    pub terms: bool,
    /// Its precomputed search properties.
    pub prepared: Arc<Prepared>,
    /// The list of heads that it needs, by its number in [`Reach`].
    pub needs: usize,
}

/// Some forms, in order.
#[derive(Default)]
pub struct Forms {
    /// Those that match node by node.
    pub steps: Vec<FormId>,
    /// Those with arbitrary pointwise work.
    pub of_work: Vec<FormId>,
    /// Those that build an op with an epilogue.
    pub builders: Vec<FormId>,
}

/// What searches need to know of the rules of a program.
pub struct ProgramRules {
    /// In the order of the rules; a pointwise rule on tensors, then on terms.
    pub forms: Vec<Form>,
    /// The left sides of all forms.
    pub index: Arc<PatternIndex>,
    /// The forms of each ruleset.
    pub by_ruleset: Vec<Forms>,
    /// The forms that rewrite terms.
    pub on_terms: Forms,
    /// The forms whose first root with a pattern has that pattern.
    by_root: Vec<Vec<FormId>>,
    /// The forms without such a root, which may match anywhere.
    pub rootless: Vec<FormId>,
    /// Rules that are left out because their pattern is too large to match.
    pub oversized: Vec<RuleId>,
    /// Which heads lead to which.
    pub reach: Reach,
}

/// Maximum number of programs whose rules are kept.
const KEPT: usize = 4;
/// The rules of the programs that were used last, the newest first.
static PROGRAMS: Mutex<VecDeque<(Weak<Program>, Arc<ProgramRules>)>> = Mutex::new(VecDeque::new());

impl ProgramRules {
    /// The rules of a program.
    pub fn of(program: &Arc<Program>) -> Arc<ProgramRules> {
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
        let (mut forms, mut oversized) = (Vec::new(), Vec::new());
        let mut reach = Reach::of(program);
        for (i, rule) in program.rules.iter().enumerate() {
            let (id, on_tensors) = (RuleId(i as u32), Prepared::of(program, rule, false));
            // A rule on heads that do not occur may still be the one that makes others occur.
            reach.add_rule(program, rule, &on_tensors);
            if is_oversized(rule) {
                oversized.push(id);
            } else if is_searched(program, rule) {
                let on_terms = rule.pointwise.then(|| Prepared::of(program, rule, true));
                for (terms, mut prepared) in [(false, Some(on_tensors)), (true, on_terms)]
                    .into_iter()
                    .filter_map(|(terms, prepared)| Some((terms, prepared?)))
                {
                    index.add_rule(program, &rule.lhs, terms, &mut prepared);
                    let needs = reach.list(&prepared.needed);
                    forms.push(Form { rule: id, ruleset: rule.ruleset, terms, prepared: Arc::new(prepared), needs });
                }
            }
        }
        reach.finish();
        ProgramRules { index: Arc::new(index), oversized, reach, ..ProgramRules::sorted(program, forms) }
    }

    /// The tables of forms.
    fn sorted(program: &Program, forms: Vec<Form>) -> ProgramRules {
        let mut by_ruleset: Vec<Forms> = program.rulesets.iter().map(|_| Forms::default()).collect();
        let (mut on_terms, mut by_root, mut rootless) = (Forms::default(), Vec::new(), Vec::new());
        for (i, form) in forms.iter().enumerate() {
            let id = FormId(i as u32);
            let builds = builds_terms(program, &program.rules[form.rule.index()]);
            let own = by_ruleset.get_mut(form.ruleset.index());
            for of in own.into_iter().chain(form.terms.then_some(&mut on_terms)) {
                if form.prepared.any_work { &mut of.of_work } else { &mut of.steps }.push(id);
                of.builders.extend(builds.then_some(id));
            }
            match form.prepared.roots.iter().flatten().next() {
                Some(root) => {
                    by_root.resize_with(by_root.len().max(root.index() + 1), Vec::new);
                    by_root[root.index()].push(id);
                }
                None => rootless.push(id),
            }
        }
        let (index, oversized, reach) = Default::default();
        ProgramRules { forms, index, by_ruleset, on_terms, by_root, rootless, oversized, reach }
    }

    /// The form of that number.
    pub fn form(&self, id: FormId) -> &Form {
        &self.forms[id.index()]
    }

    /// The forms whose first root with a pattern has this one.
    pub fn rooted(&self, pattern: PatternId) -> &[FormId] {
        self.by_root.get(pattern.index()).map_or(&[], Vec::as_slice)
    }
}

/// True for a rule that graphs are searched for. Rules on the terms of generated kernels run later,
/// in the planner.
fn is_searched(program: &Program, rule: &Rule) -> bool {
    !is_short(program, rule) && !rule.lhs.is_empty() && rule.lhs.len() == rule.rhs.len()
}

/// Which heads a graph may come to have, by the heads that rules need and build. Heads are numbers
/// here ([`Discriminant::index`]).
#[derive(Default)]
pub struct Reach {
    ops: usize,
    scalars: usize,
    /// The distinct lists of heads that rules need, sorted.
    needs: IndexSet<Vec<usize>, FxBuildHasher>,
    /// What the rules on tensors build that need such a list.
    built: Vec<FxHashSet<usize>>,
    /// The lists in which each head is.
    waiting: Vec<Vec<usize>>,
}

/// What a search for reachable heads has found.
struct Reached<'r> {
    reach: &'r Reach,
    have: Vec<bool>,
    /// The heads that are there, on tensors or on terms.
    somewhere: Vec<bool>,
    /// How many heads of each list are missing.
    missing: Vec<usize>,
    /// Heads that are there as well.
    open: Vec<usize>,
}

impl Reach {
    fn of(program: &Program) -> Reach {
        Reach { ops: program.ops.len(), scalars: program.scalars.len(), ..Reach::default() }
    }

    /// The number of a list of heads.
    fn list(&mut self, needed: &[Discriminant]) -> usize {
        let mut heads: Vec<usize> = needed.iter().map(|h| h.index(self.ops, self.scalars)).collect();
        heads.sort_unstable();
        let (list, new) = self.needs.insert_full(heads);
        if new {
            self.built.push(FxHashSet::default());
        }
        list
    }

    fn add_rule(&mut self, program: &Program, rule: &Rule, on_tensors: &Prepared) {
        let list = self.list(&on_tensors.needed);
        let mut built = FxHashSet::default();
        rule.rhs.iter().for_each(|b| built_heads(program, b, &mut built));
        self.built[list].extend(built.into_iter().map(|h| h.index(self.ops, self.scalars)));
    }

    fn finish(&mut self) {
        let heads = Discriminant::Call(ScalarId(self.scalars as u32)).index(self.ops, self.scalars);
        self.waiting = vec![Vec::new(); heads];
        for (list, heads) in self.needs.iter().enumerate() {
            heads.iter().for_each(|h| self.waiting[*h].push(list));
        }
    }

    /// For each list of needed heads, whether a graph may come to have them all, from the heads
    /// that are present (all where `None`). Rules may build a head if their own are reachable.
    pub fn reachable(&self, present: Option<impl Iterator<Item = Discriminant>>) -> Vec<bool> {
        let Some(present) = present else { return vec![true; self.needs.len()] };
        let heads = self.waiting.len();
        let mut reached = Reached {
            reach: self,
            have: vec![false; heads],
            somewhere: vec![false; heads],
            missing: self.needs.iter().map(Vec::len).collect(),
            open: present.map(|h| h.index(self.ops, self.scalars)).collect(),
        };
        // Any scalar may end up in an epilogue, and any result of an op with several may be used.
        let calls: Vec<usize> = reached.open.iter().filter_map(|h| self.as_call(*h)).collect();
        reached.open.extend(calls);
        let unconditional = (0..self.needs.len()).filter(|list| self.needs[*list].is_empty());
        reached.open.extend(unconditional.flat_map(|list| &self.built[list]));
        while let Some(head) = reached.open.pop() {
            reached.add(head);
        }
        self.needs.iter().map(|heads| heads.iter().all(|h| reached.have[*h])).collect()
    }

    /// The call in a term of a scalar on tensors.
    fn as_call(&self, head: usize) -> Option<usize> {
        let first = Discriminant::Scalar(ScalarId(0)).index(self.ops, self.scalars);
        (first..first + self.scalars).contains(&head).then_some(head + self.scalars)
    }

    /// The scalar on tensors that is called in a term.
    fn as_scalar(&self, call: usize) -> Option<usize> {
        call.checked_sub(self.scalars).filter(|head| self.as_call(*head) == Some(call))
    }
}

impl Reached<'_> {
    fn add(&mut self, head: usize) {
        if std::mem::replace(&mut self.have[head], true) {
            return;
        }
        // On terms a pointwise rule needs the calls of the scalars that it needs on tensors.
        for head in [Some(head), self.reach.as_scalar(head)].into_iter().flatten() {
            if std::mem::replace(&mut self.somewhere[head], true) {
                continue;
            }
            for list in &self.reach.waiting[head] {
                self.missing[*list] -= 1;
                if self.missing[*list] == 0 {
                    self.open.extend(&self.reach.built[*list]);
                }
            }
        }
    }
}

/// Maximum number of applications in the left side of a rule: the matcher recurses once for each.
const MAX_PATTERN: usize = 300;

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

/// True for a rule whose right side is an op with an epilogue.
pub fn builds_terms(program: &Program, rule: &Rule) -> bool {
    let has_term = |b: &Build| match b {
        Build::Node(BuildNode { head: Head::Op(op), .. }) => {
            program.op(*op).params.iter().any(|p| p.kind == ParamKind::Term)
        }
        _ => false,
    };
    rule.rhs.iter().any(has_term)
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
                        && let OpBody::Defined(bodies) = &program.op(op).body
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
