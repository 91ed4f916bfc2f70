//! Precomputes what every search for a rule needs.
//!
//! In: a rule. Out: properties of its left side. Invariant: nothing here depends on an e-graph, and
//! preparation is deterministic.

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, Class, Fact, Head, NodePat, ParamKind, Pat, Program, Rule, ScalarBody, ScalarId, Sort, VarId,
};

use smallvec::SmallVec;

use super::pattern_index::PatternId;
use super::{Discriminant, symmetry};
use crate::language::LabelSet;
use crate::numbers::reads_numbers;

/// Maximum nesting of partial sums that are searched.
pub(super) const MAX_DEPTH: usize = 6;
/// Maximum number of terms of a pattern that is matched in any association; longer ones are matched
/// as written.
pub(super) const MAX_TERMS: usize = 8;

/// Precomputed properties of a rule's left side.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// True if all roots are the same pattern up to their own variables: then one order of them is
    /// enough.
    pub symmetric: bool,
    /// By variable: the conjuncts of guards on it alone, checked as soon as it is bound.
    pub(super) early: Vec<Vec<AExpr>>,
    /// Conjuncts of guards on several bound tensors only, checked before a match is reported.
    pub(super) late: Vec<AExpr>,
    /// By variable: a guard requires it to be constant.
    pub(super) constant: Vec<bool>,
    /// By variable: it occurs once on the left side and may be any tensor, so that it can take the
    /// rest of a sum.
    pub(super) free: Vec<bool>,
    /// Element types for which sums and products of floats match in any association; `None` for
    /// all.
    regroups: Option<Vec<DType>>,
    /// Maximum depth of a match below its root, in classes.
    pub depth: usize,
    /// What its matches depend on.
    pub depends_on: DependsOn,
    /// The labels that a match may contain.
    pub(super) labels: LabelSet,
    /// The heads that the first root may have; `None` for any.
    pub(super) heads: Option<Vec<Discriminant>>,
    /// The heads that the operand of pointwise work may have, if the first root is such work and
    /// its operand restricts them.
    pub(super) below_work: Option<Vec<Discriminant>>,
    /// One of its variables matches arbitrary pointwise work.
    pub any_work: bool,
    /// The left side has numbers, which match constants that enlarge nothing.
    pub(super) reads_numbers: bool,
    /// Nodes that the e-graph must hold for a match to exist.
    pub needed: Vec<Discriminant>,
    /// The number of each root in the program's pattern index; `None` if it matches anything.
    /// Empty without an index.
    pub roots: SmallVec<[Option<PatternId>; 1]>,
}

/// What the matches of a rule depend on, each including what stands before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DependsOn {
    /// On the e-graph alone.
    #[default]
    EGraph,
    /// On how the present candidate computes sums, and on which of them are used once: the pattern
    /// has a sum that may have a rest.
    Sums,
    /// On use counts, or on pointwise work of the candidate.
    Candidate,
}

/// The pattern without names and types.
pub(super) fn unnamed(p: &Pat) -> &Pat {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => unnamed(p),
        p => p,
    }
}

/// What a class must hold for a pattern to match there.
pub(super) fn required_labels(program: &Program, p: &Pat, terms: bool) -> LabelSet {
    match unnamed(p) {
        Pat::Node(n) => super::head_discriminant(program, n.head, terms).into_iter().collect(),
        Pat::Lit { .. } => LabelSet::of(Discriminant::Splat),
        _ => LabelSet::default(),
    }
}

/// Whether that operand of a head is a term, depending on whether the head is in a term.
pub(super) fn is_term(program: &Program, head: Head, operand: usize, terms: bool) -> bool {
    match head {
        Head::Op(op) => program.op(op).operands().nth(operand).is_some_and(|(_, p)| p.kind == ParamKind::Term),
        Head::In(_) => false,
        Head::Scalar(_) | Head::Acc | Head::Second | Head::TermCast | Head::Region(_) => terms,
    }
}

impl Prepared {
    /// Prepares a rule.
    pub fn of(program: &Program, rule: &Rule, terms: bool) -> Prepared {
        let n = rule.vars.len();
        let mut count = vec![0usize; n];
        rule.lhs.iter().for_each(|p| mentions(p, &mut count));
        let mut telling = vec![false; n];
        for guard in &rule.requires {
            let mut query = Query::default();
            asks(guard, &mut query);
            if let [v] = query.vars.as_slice()
                && !query.other
                && !query.uses
                && is_tensor(rule, *v)
            {
                telling[v.index()] |= query.telling;
            }
        }
        let (early, late) = split_guards(rule);
        let constant =
            early.iter().map(|guards| guards.iter().any(|g| matches!(g, AExpr::Fact(Fact::Const, _)))).collect();
        let free: Vec<bool> = (0..n).map(|i| count[i] == 1 && !telling[i]).collect();
        let mut needed = Vec::new();
        rule.lhs.iter().for_each(|p| needs(program, p, terms, &mut needed));
        let depends_on = depends_on(program, rule, &free, terms);
        let first = rule.lhs.first();
        Prepared {
            symmetric: symmetry::is_symmetric(rule),
            early,
            late,
            constant,
            free,
            regroups: regroups(rule),
            depth: rule.lhs.iter().map(|p| depth(program, p, true)).max().unwrap_or(0),
            depends_on,
            labels: labels_of_rule(program, rule, terms),
            heads: first.and_then(|p| heads_of(program, p, terms)),
            below_work: first.and_then(|p| heads_below_work(program, p)),
            any_work: rule.vars.iter().any(|v| v.sort == Sort::Region),
            reads_numbers: reads_numbers(rule),
            needed,
            roots: SmallVec::new(),
        }
    }

    /// The same, but sums and products of floats match only in the association in which they are
    /// written.
    pub fn as_written(self) -> Prepared {
        Prepared { regroups: Some(Vec::new()), ..self }
    }

    /// Whether sums and products of floats of that type match in any association.
    pub fn regroups(&self, dtype: DType) -> bool {
        self.regroups.as_ref().is_none_or(|l| l.contains(&dtype))
    }
}

/// Applications that every match contains.
fn needs(program: &Program, p: &Pat, terms: bool, out: &mut Vec<Discriminant>) {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => needs(program, p, terms, out),
        Pat::Node(n) => {
            if let Some(head) = super::head_discriminant(program, n.head, terms)
                && !out.contains(&head)
            {
                out.push(head);
            }
            for (i, arg) in n.args.iter().enumerate() {
                needs(program, arg, is_term(program, n.head, i, terms), out);
            }
        }
        // One of the alternatives is enough.
        Pat::OneOf(_) | Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => {}
    }
}

/// Depth of a pattern, in classes below its root.
fn depth(program: &Program, p: &Pat, root: bool) -> usize {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => depth(program, p, root),
        Pat::OneOf(ps) => ps.iter().map(|p| depth(program, p, root)).max().unwrap_or(0),
        Pat::Node(n) => {
            let below =
                |args: &mut dyn Iterator<Item = &Pat>| args.map(|a| depth(program, a, false)).max().unwrap_or(0);
            if associative(program, n.head).is_some() {
                let terms = terms(n);
                // A sum with a rest is searched deeper than it is written.
                let rest = root || terms.iter().any(|t| matches!(t, Pat::Var(_)));
                let nested = terms.len().max(2) - 1 + if rest { MAX_DEPTH } else { 0 };
                return nested + below(&mut terms.into_iter());
            }
            // A result of an op with several is two nodes above the op's operands.
            let several = matches!(n.head, Head::Op(op) if super::has_several_results(program.op(op)));
            let between = if matches!(n.head, Head::Region(_)) { super::regions::MAX_DEPTH } else { 0 };
            1 + between + usize::from(several) + below(&mut n.operands())
        }
        Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => 0,
    }
}

/// Appends the terms of a sum as written.
fn flatten<'r>(n: &'r NodePat, out: &mut SmallVec<[&'r Pat; 8]>) {
    for arg in &n.args {
        match arg {
            Pat::Node(inner) if inner.head == n.head && inner.args.len() == 2 && out.len() <= MAX_TERMS => {
                flatten(inner, out);
            }
            other => out.push(other),
        }
    }
}

/// The terms of a sum as written.
pub(super) fn terms(n: &NodePat) -> SmallVec<[&Pat; 8]> {
    let mut out = SmallVec::new();
    flatten(n, &mut out);
    out
}

/// Number of terms of a pattern's sum; 1 if it is not a sum.
pub(super) fn width(program: &Program, n: &NodePat) -> usize {
    if associative(program, n.head).is_none() || n.args.len() != 2 {
        return 1;
    }
    terms(n).len().min(MAX_TERMS)
}

/// What the matches of a rule depend on.
fn depends_on(program: &Program, rule: &Rule, free: &[bool], terms: bool) -> DependsOn {
    let guards = || rule.requires.iter().chain(&rule.prefer).chain(rule.lets.iter().map(|(_, value)| value));
    if rule.vars.iter().any(|v| v.sort == Sort::Region) || guards().any(counts_uses) {
        return DependsOn::Candidate;
    }
    let one_root = rule.lhs.len() == 1;
    let has_rest = |p: &Pat| may_have_rest(program, p, free, one_root.then_some(matches!(p, Pat::Typed(..))));
    // Terms of epilogues are not rebuilt.
    if !terms && rule.lhs.iter().any(has_rest) { DependsOn::Sums } else { DependsOn::EGraph }
}

/// Whether an expression asks for use counts of the candidate.
fn counts_uses(e: &AExpr) -> bool {
    match e {
        AExpr::Fact(fact, _) => matches!(fact, Fact::Uses),
        AExpr::SameAccumulator(..) => true,
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().any(counts_uses),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => counts_uses(a),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => counts_uses(a) || counts_uses(b),
        AExpr::If(a, b, c) => [a, b, c].into_iter().any(|e| counts_uses(e)),
        AExpr::Comprehension { element, over, condition, .. } => {
            counts_uses(element) || counts_uses(over) || condition.as_ref().is_some_and(|c| counts_uses(c))
        }
        AExpr::Value(_) | AExpr::Var(_) | AExpr::Device(_) => false,
    }
}

/// Whether a sum in a pattern of tensors may match with a rest. `root` says that the pattern is the
/// only root of its rule, and whether that is typed.
fn may_have_rest(program: &Program, p: &Pat, free: &[bool], root: Option<bool>) -> bool {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => may_have_rest(program, p, free, root),
        Pat::OneOf(ps) => ps.iter().any(|p| may_have_rest(program, p, free, root)),
        Pat::Node(n) => {
            let itself = associative(program, n.head).is_some() && n.args.len() == 2 && {
                let is_free = |p: &&Pat| matches!(p, Pat::Var(v) if free.get(v.index()) == Some(&true));
                let terms = terms(n);
                let free = terms.iter().filter(|t| is_free(t)).count();
                let fixed = terms.len() - free;
                match root {
                    Some(typed) => fixed > 1 && (free == 1 || (free == 0 && !typed)),
                    None => free == 1,
                }
            };
            let below =
                |(i, p): (usize, &Pat)| !is_term(program, n.head, i, false) && may_have_rest(program, p, free, None);
            itself || n.operands().enumerate().any(below)
        }
        Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => false,
    }
}

/// The labels of all nodes that a match of a rule may contain.
fn labels_of_rule(program: &Program, rule: &Rule, terms: bool) -> LabelSet {
    let of = |p: &Pat| labels_of(program, p, terms);
    let labels = rule.lhs.iter().fold(LabelSet::default(), |all, p| all.with(of(p)));
    if labels == LabelSet::default() { LabelSet::ALL } else { labels }
}

/// The labels of all nodes that a match of a pattern may contain.
fn labels_of(program: &Program, p: &Pat, terms: bool) -> LabelSet {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => labels_of(program, p, terms),
        Pat::OneOf(ps) => ps.iter().fold(LabelSet::default(), |all, p| all.with(labels_of(program, p, terms))),
        Pat::Node(n) => {
            let Some(head) = super::head_discriminant(program, n.head, terms) else { return LabelSet::ALL };
            // The op of a result of several is a node of its own.
            let op = if let Head::Op(op) = n.head { Some(Discriminant::Op(op)) } else { None };
            let own: LabelSet = op.into_iter().chain([head]).collect();
            n.operands()
                .enumerate()
                .fold(own, |all, (i, p)| all.with(labels_of(program, p, is_term(program, n.head, i, terms))))
        }
        Pat::Lit { .. } => LabelSet::of(Discriminant::Splat),
        Pat::Absent | Pat::Optional(_) => LabelSet::of(Discriminant::Absent),
        Pat::Any | Pat::Var(_) => LabelSet::default(),
    }
}

/// The heads that the top of a pattern may have; `None` for any.
fn heads_of(program: &Program, p: &Pat, terms: bool) -> Option<Vec<Discriminant>> {
    let mut wanted = Some(Vec::new());
    super::heads(program, p, terms, &mut wanted);
    wanted
}

/// The heads of the operand of a pattern for pointwise work, if it is one and restricts them.
fn heads_below_work(program: &Program, pat: &Pat) -> Option<Vec<Discriminant>> {
    match pat {
        Pat::Bind(_, p) | Pat::Typed(p, _) => heads_below_work(program, p),
        Pat::Node(n) if matches!(n.head, Head::Region(_)) => {
            n.args.iter().find_map(|arg| heads_of(program, arg, false))
        }
        _ => None,
    }
}

/// Element types for which the rule claims at most `rounds`. A derived rule claims `exact` for the
/// body as written, but is meant for every form of it.
fn regroups(rule: &Rule) -> Option<Vec<DType>> {
    if rule.derived || rule.claims.is_empty() {
        return None;
    }
    let bitwise = |d: DType| {
        rule.claims
            .iter()
            .any(|c| (c.dtypes.is_empty() || c.dtypes.contains(&d)) && matches!(c.class, Class::Exact | Class::Finite))
    };
    Some(DType::ALL.iter().copied().filter(|d| !bitwise(*d)).collect())
}

/// The operator, if the pattern's applications of it may match in any association.
pub(super) fn associative(program: &Program, head: Head) -> Option<(ScalarId, BuiltinScalar)> {
    let Head::Scalar(s) = head else { return None };
    match &program.scalar(s).body {
        ScalarBody::Builtin(b) if b.associates() => Some((s, *b)),
        _ => None,
    }
}

/// How often each variable occurs in a pattern, not counting types and attributes.
fn mentions(p: &Pat, count: &mut [usize]) {
    fn add(v: VarId, count: &mut [usize]) {
        if let Some(n) = count.get_mut(v.index()) {
            *n += 1;
        }
    }
    match p {
        Pat::Var(v) | Pat::Optional(v) => add(*v, count),
        Pat::Bind(v, p) => {
            add(*v, count);
            mentions(p, count);
        }
        Pat::Typed(p, _) => mentions(p, count),
        // Each alternative binds its variables.
        Pat::OneOf(ps) => ps.iter().for_each(|p| mentions(p, count)),
        Pat::Node(n) => {
            n.args.iter().for_each(|a| mentions(a, count));
            if let Some(rest) = &n.rest {
                add(rest.var, count);
                rest.each.iter().for_each(|each| mentions(&each.element, count));
            }
        }
        Pat::Any | Pat::Lit { .. } | Pat::Absent => {}
    }
}

fn is_tensor(rule: &Rule, v: VarId) -> bool {
    rule.vars.get(v.index()).is_some_and(|v| v.sort == Sort::Tensor)
}

/// The conjuncts of a rule's guards that bound tensors decide: those on one variable, by variable,
/// and those on several.
fn split_guards(rule: &Rule) -> (Vec<Vec<AExpr>>, Vec<AExpr>) {
    let (mut early, mut late) = (vec![Vec::new(); rule.vars.len()], Vec::new());
    let mut parts: Vec<AExpr> = rule.requires.iter().chain(&rule.prefer).map(|g| without_lets(g, rule)).collect();
    while let Some(part) = parts.pop() {
        if let AExpr::Binary(BinaryOp::And, a, b) = part {
            parts.extend([*a, *b]);
            continue;
        }
        let mut query = Query::default();
        asks(&part, &mut query);
        // What pointwise work consumes is known once the work is matched.
        let waits = query.uses && rule.vars.iter().any(|v| v.sort == Sort::Region);
        match query.vars.as_slice() {
            _ if query.other => {}
            [v] if is_tensor(rule, *v) && !waits => early[v.index()].push(part),
            vars if !vars.is_empty() && vars.iter().all(|v| is_tensor(rule, *v)) => late.push(part),
            _ => {}
        }
    }
    (early, late)
}

/// True if an expression depends on tensors only.
fn is_of_tensors(e: &AExpr) -> bool {
    let mut query = Query::default();
    asks(e, &mut query);
    !query.other
}

/// A guard with every `let` inlined that depends on tensors only.
fn without_lets(e: &AExpr, rule: &Rule) -> AExpr {
    let inner = |e: &AExpr| Box::new(without_lets(e, rule));
    match e {
        AExpr::Var(v) => match rule.lets.iter().find(|(name, _)| name == v) {
            Some((_, value)) if is_of_tensors(value) => value.clone(),
            _ => e.clone(),
        },
        AExpr::Binary(op, a, b) => AExpr::Binary(*op, inner(a), inner(b)),
        AExpr::Neg(a) => AExpr::Neg(inner(a)),
        AExpr::Not(a) => AExpr::Not(inner(a)),
        AExpr::Call(f, args) => AExpr::Call(*f, args.iter().map(|a| without_lets(a, rule)).collect()),
        _ => e.clone(),
    }
}

#[derive(Default)]
struct Query {
    vars: Vec<VarId>,
    /// It asks for a property that few tensors have.
    telling: bool,
    /// It depends on the present state of the candidate or of the e-graph.
    uses: bool,
    /// It depends on attributes, on the device, or on what matching cannot know.
    other: bool,
}

fn asks(e: &AExpr, out: &mut Query) {
    match e {
        AExpr::Fact(fact, v) => {
            if !out.vars.contains(v) {
                out.vars.push(*v);
            }
            out.telling |= matches!(fact, Fact::Const | Fact::Value);
            out.uses |= matches!(fact, Fact::Uses);
        }
        AExpr::Value(_) => {}
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().for_each(|e| asks(e, out)),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => asks(a, out),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => {
            asks(a, out);
            asks(b, out);
        }
        AExpr::If(a, b, c) => [a, b, c].into_iter().for_each(|e| asks(e, out)),
        AExpr::SameAccumulator(t, a, b) => {
            out.uses = true;
            out.vars.extend([*t, *a, *b]);
        }
        AExpr::Var(_) | AExpr::Comprehension { .. } | AExpr::Device(_) => out.other = true,
    }
}
