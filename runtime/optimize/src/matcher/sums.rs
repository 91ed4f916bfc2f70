//! AC matching: sums and products with many operands, in any order and any association.
//!
//! In: a pattern whose top is an associative operator (`add`, `mul`, `max`, ...) and a class. Out:
//! every way in which the pattern's terms are the terms of that class. The e-graph is not rewritten
//! for it. The matcher distributes the terms of the pattern over the nodes of the operator, from
//! the class downwards, so it finds exactly the associations that the e-graph holds.
//!
//! A class may hold more terms than the pattern. Then, at the root of a rule, the pattern matches
//! some of them and the others are the *rest*; and a variable of unrestricted type takes all terms
//! that the others leave. Both need a value that the e-graph may not hold yet: it becomes a
//! [`VirtualSum`] of the match and is built when the rule is applied.
//!
//! Invariant: with a rest, only the nodes that the present candidate chose are searched, only
//! through partial sums that no other value uses, and at most [`MAX_DEPTH`] deep, so that long
//! chains stay cheap and a rule cannot feed itself. A rule that claims bitwise equality keeps the
//! written association wherever floats would round differently.

use std::rc::Rc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::ScalarId;

use super::prepare::{MAX_DEPTH, MAX_TERMS, associative, required_labels, terms};
use super::*;
use crate::language::LabelSet;

/// Maximum number of classes of one sum that are searched.
const MAX_OPERANDS: usize = 48;
/// Levels of a pattern below its top that are checked against a class before matching there: a
/// cheap check that rejects most classes.
const FORESIGHT: usize = 2;
/// A sum or product that a match needs and that the e-graph may not hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualSum {
    /// The operator.
    pub head: ScalarId,
    /// Its operands, two or more, sorted.
    pub operands: Vec<Id>,
    /// Its role in the match.
    pub target: Target,
}

/// The role of a [`VirtualSum`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// It is bound to the variable.
    Variable(VarId),
    /// The rule's left side is this part of a longer sum that has these further operands; the
    /// variables are bound to it.
    Root {
        /// The other operands of the longer sum.
        rest: Vec<Id>,
        /// Variables that name the left side as a whole.
        named: Vec<VarId>,
    },
}

/// A sum being matched.
pub(super) struct SumPattern<'r> {
    head: ScalarId,
    terms: SmallVec<[&'r Pat; 8]>,
    context: Position,
    /// The variable that takes the remaining terms.
    free: Option<VarId>,
    /// A rest is allowed.
    rest: bool,
    /// It is the root of a rule.
    root: bool,
}

/// What a class holds as a sum: the operands of its nodes of the operator, and of theirs, and so
/// on.
#[derive(Debug, Default)]
pub struct SumOperands {
    /// All of them, each once.
    classes: SmallVec<[Id; 8]>,
    /// Their labels.
    labels: LabelSet,
    /// How often a constant is an operand.
    constants: usize,
    /// Some operand of the class's own nodes is a sum.
    nests: bool,
    /// Some sum is an operand twice, and with it its operands.
    repeats: bool,
    /// There are more than [`MAX_OPERANDS`], which are not looked at.
    many: bool,
}

/// The assignment of a sum's terms so far.
#[derive(Default)]
pub(super) struct PartialAssignment {
    taken: Vec<Id>,
    rest: Vec<Id>,
}

/// A set of a pattern's terms.
pub(super) type Set = u32;

impl<'r, 'e, H: Host> Matcher<'r, 'e, '_, H> {
    /// Matches a pattern as a sum, if it is one and may be regrouped here; `None` if only the two
    /// orders of its operands need to be tried.
    pub(super) fn sum(&mut self, n: &'r NodePat, class: Id, context: Position, next: Goals) -> Option<Flow> {
        let (head, operator) = associative(self.host.program(), n.head)?;
        if n.args.len() != 2 || !self.may_regroup(operator, class) {
            return None;
        }
        let operands = self.sum_operands(head, class, context);
        if self.probe.is_none() && self.rules_out(&operands, n, context) {
            return Some(ON);
        }
        let terms = terms(n);
        if terms.len() > MAX_TERMS {
            return None;
        }
        let partial = self.partial(head, &terms, context);
        if terms.len() == 2 && partial.is_none() {
            return None;
        }
        if self.probe.is_none() && !operands.nests {
            // As written, or not at all.
            return if terms.len() == 2 { None } else { Some(ON) };
        }
        let missing = self.lacking(&operands, &terms, head, context);
        let exact = SumPattern { head, terms, context, free: None, rest: false, root: false };
        let flow = match (exact.terms.len(), missing) {
            (2, missing) => {
                let flow = self.written(n, class, context, next);
                if flow.is_break() || missing.is_some() {
                    return Some(flow);
                }
                flow
            }
            (_, Some(missing)) => {
                return Some(match missing {
                    Some(why) => self.miss(class, || why),
                    None => ON,
                });
            }
            (_, None) => self.start(exact, class, next),
        };
        match partial {
            Some(sum) if flow.is_continue() => Some(self.start(sum, class, next)),
            _ => Some(flow),
        }
    }

    /// The same sum with a rest, where one is allowed: beside the result of a rule, or in the only
    /// variable of unrestricted type.
    fn partial(&self, head: ScalarId, terms: &SmallVec<[&'r Pat; 8]>, context: Position) -> Option<SumPattern<'r>> {
        if self.what.terms || matches!(context, Position::Term(_)) {
            return None; // terms of epilogues are not rebuilt
        }
        let root = self.nodes.is_empty() && self.what.rule.lhs.len() == 1;
        let free = |p: &&'r Pat| match p {
            Pat::Var(v) if self.what.prepared.free.get(v.index()) == Some(&true) => Some(*v),
            _ => None,
        };
        let mut frees = terms.iter().filter_map(free);
        let (first, several) = (frees.next(), frees.next().is_some());
        let typed = matches!(self.what.rule.lhs.first(), Some(Pat::Typed(..)));
        let fixed: SmallVec<[&'r Pat; 8]> = terms.iter().copied().filter(|t| free(t).is_none()).collect();
        // One fixed term stands beside all others at a deeper level.
        let possible = if root { fixed.len() > 1 && (first.is_some() || !typed) } else { first.is_some() };
        (possible && !several).then_some(SumPattern { head, terms: fixed, context, free: first, rest: true, root })
    }

    /// Distributes the terms of a sum over the nodes of a class.
    fn start(&mut self, sum: SumPattern<'r>, class: Id, next: Goals) -> Flow {
        let sum = Rc::new(sum);
        let all: Set = (1 << sum.terms.len()) - 1;
        self.assignments.push(PartialAssignment::default());
        let mark = self.goals.len();
        let goals = self.push(Goal::Assigned { sum: sum.clone() }, next);
        let flow = self.split(&sum, all, class, 0, goals);
        self.goals.truncate(mark);
        self.assignments.pop();
        flow
    }

    /// Whether operands of that operator may be regrouped without breaking the rule's rounding
    /// class.
    fn may_regroup(&self, operator: BuiltinScalar, class: Id) -> bool {
        if !matches!(operator, BuiltinScalar::Add | BuiltinScalar::Mul) {
            return true;
        }
        let floats = match self.type_of(class) {
            Some(t) => t.dtype.is_float(),
            None => true,
        };
        // The rounding class is about the element type of the root; terms compute in f32 or f64.
        let root = self.roots.first().and_then(|r| self.type_of(*r)).map(|t| t.dtype);
        !floats
            || match root {
                Some(t) => self.what.prepared.regroups(t),
                None => [DType::F32, DType::F64].iter().all(|t| self.what.prepared.regroups(*t)),
            }
    }

    /// What a class holds as a sum.
    fn sum_operands(&self, head: ScalarId, class: Id, context: Position) -> Rc<SumOperands> {
        self.host.sum_operands(class, wanted(head, context), || self.find_operands(head, class, context))
    }

    fn find_operands(&self, head: ScalarId, class: Id, context: Position) -> SumOperands {
        let mut operands = SumOperands::default();
        let mut work: SmallVec<[(Id, usize); 16]> = SmallVec::new();
        work.push((class, 0));
        while let Some((at, depth)) = work.pop() {
            for child in self.operations(head, at, context).flat_map(|n| &n.children) {
                let child = self.host.find(*child);
                let nests = self.operations(head, child, context).next().is_some();
                operands.constants += usize::from(self.host.is_constant(child));
                operands.nests |= nests && depth == 0;
                if operands.classes.contains(&child) {
                    operands.repeats |= nests;
                    continue;
                }
                operands.classes.push(child);
                operands.labels = operands.labels.with(self.host.labels(child));
                if nests && depth < MAX_DEPTH {
                    work.push((child, depth + 1));
                }
            }
            if operands.classes.len() > MAX_OPERANDS {
                operands.many = true;
                return operands;
            }
        }
        operands
    }

    /// True if these operands certainly lack what the operands of a pattern must hold.
    fn rules_out(&self, operands: &SumOperands, n: &NodePat, context: Position) -> bool {
        if operands.many || !matches!(context, Position::Tensor) {
            return false;
        }
        let (mut labels, mut constants) = (LabelSet::default(), 0);
        self.ask(n, &mut labels, &mut constants);
        !operands.labels.include(labels) || (!operands.repeats && constants > operands.constants)
    }

    /// Adds the labels that the terms of a sum must hold, and the number of terms that are
    /// constants.
    fn ask(&self, n: &NodePat, labels: &mut LabelSet, constants: &mut usize) {
        for arg in &n.args {
            match arg {
                Pat::Node(inner) if inner.head == n.head && inner.args.len() == 2 => self.ask(inner, labels, constants),
                Pat::Var(v) => *constants += usize::from(self.what.prepared.constant.get(v.index()) == Some(&true)),
                other => *labels = labels.with(required_labels(self.host.program(), other, false)),
            }
        }
    }

    /// The first term of the pattern that no part of the sum can match; `None` if there is none. A
    /// probe also gets the reason.
    fn lacking(
        &self,
        operands: &SumOperands,
        terms: &[&'r Pat],
        head: ScalarId,
        context: Position,
    ) -> Option<Option<MissReason>> {
        if operands.many {
            return None;
        }
        let (asked, operands) = (self.probe.is_some(), &operands.classes);
        if operands.is_empty() {
            if !asked {
                return Some(None);
            }
            let args = terms.iter().map(|_| Pat::Any).collect();
            let node = NodePat { head: Head::Scalar(head), args, rest: None, attrs: vec![], output: 0 };
            return Some(Some(MissReason::Head(node)));
        }
        let missing = terms.iter().find(|t| !operands.iter().any(|p| self.could_be(t, *p, context)))?;
        let why = || MissReason::Term((*missing).clone(), Head::Scalar(head), self.leaves(head, operands, context));
        Some(asked.then(why))
    }

    /// The operands that are not sums themselves.
    fn leaves(&self, head: ScalarId, operands: &[Id], context: Position) -> Vec<Id> {
        operands.iter().copied().filter(|p| self.operations(head, *p, context).next().is_none()).collect()
    }

    /// Nodes of that operator in a class.
    fn operations(&self, head: ScalarId, class: Id, context: Position) -> impl Iterator<Item = &'e Node> + use<'e, H> {
        self.host.holding(class, wanted(head, context)).filter(move |n| n.children.len() == 2 && !is_circular(n, class))
    }

    /// False if a pattern certainly does not match a class, judged by [`FORESIGHT`] levels. A probe
    /// (for `--why-not`) has to see how far the match gets, so it checks the top only.
    pub(super) fn could_be(&self, pat: &Pat, class: Id, context: Position) -> bool {
        self.could(pat, class, context, if self.probe.is_some() { 0 } else { FORESIGHT })
    }

    fn could(&self, pat: &Pat, class: Id, context: Position, levels: usize) -> bool {
        match pat {
            Pat::Lit { value, near } => {
                let dtype = self.host.type_of(class).map(|t| t.dtype);
                self.host.number(class).is_some_and(|v| literal_matches(v, dtype, *value, *near))
            }
            Pat::Node(_) if self.host.is_whole_term(class) => true,
            Pat::Node(n) => {
                let terms = matches!(context, Position::Term(_));
                let Some(wanted) = head_discriminant(self.host.program(), n.head, terms) else { return true };
                let mut nodes = self.host.holding(class, wanted);
                // The operands of an op with several results are in another class.
                if levels == 0 || n.rest.is_some() || wanted == Discriminant::Output {
                    return nodes.next().is_some();
                }
                nodes.any(|node| self.operands_could(n, node, class, context, levels - 1))
            }
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.could(p, class, context, levels),
            Pat::OneOf(ps) => ps.iter().any(|p| self.could(p, class, context, levels)),
            Pat::Var(v) => match self.bindings.get(v.index()) {
                Some(Binding::Class(id)) => self.host.find(*id) == class,
                Some(Binding::Unbound) if levels > 0 && self.what.prepared.constant.get(v.index()) == Some(&true) => {
                    self.host.is_constant(class)
                }
                _ => true,
            },
            Pat::Any | Pat::Absent | Pat::Optional(_) => true,
        }
    }

    /// Whether the operands of a node could match those of a pattern, in any order and any
    /// association.
    fn operands_could(&self, n: &NodePat, node: &Node, class: Id, context: Position, levels: usize) -> bool {
        if n.args.len() != node.children.len() {
            return false;
        }
        let child = |i: usize| self.host.find(node.children[i]);
        let program = self.host.program();
        if let Some((head, _)) = associative(program, n.head) {
            // Nested sums are not searched here.
            let nested = |c: Id| self.operations(head, c, context).next().is_some();
            let (a, b) = (child(0), child(1));
            return nested(a)
                || nested(b)
                || n.args.iter().all(|p| self.could(p, a, context, levels) || self.could(p, b, context, levels));
        }
        let commutes = matches!(n.head, Head::Scalar(s) if
            matches!(&program.scalar(s).body, ScalarBody::Builtin(b) if b.commutes()));
        let one = |i: usize, p: &Pat| self.could(p, child(i), self.inside(n.head, i, class, context), levels);
        commutes || n.args.iter().enumerate().all(|(i, p)| one(i, p))
    }

    /// Distributes a set of terms over a class: either the class as a whole is one of them, or its
    /// operands hold them.
    pub(super) fn assign(&mut self, sum: &Rc<SumPattern<'r>>, set: Set, class: Id, depth: usize, next: Goals) -> Flow {
        if set == 0 {
            return self.left(class, next);
        }
        if set.count_ones() == 1 {
            self.take(sum, set.trailing_zeros() as usize, class, next)?;
        }
        let may = if sum.rest { self.used_once(class) } else { set.count_ones() > 1 };
        let deeper = may && depth < MAX_DEPTH;
        if deeper { self.split(sum, set, class, depth, next) } else { ON }
    }

    /// Distributes a set of terms over the two operands of each node of the operator.
    fn split(&mut self, sum: &Rc<SumPattern<'r>>, set: Set, class: Id, depth: usize, next: Goals) -> Flow {
        for node in self.operations(sum.head, class, sum.context) {
            if sum.rest && !self.is_present(class, node) {
                continue;
            }
            let (a, b) = (self.host.find(node.children[0]), self.host.find(node.children[1]));
            self.nodes.push(node);
            let flow = self.split_node(sum, set, (a, b), depth, next);
            self.nodes.pop();
            flow?;
        }
        ON
    }

    fn split_node(&mut self, sum: &Rc<SumPattern<'r>>, set: Set, (a, b): (Id, Id), depth: usize, next: Goals) -> Flow {
        let mut one = set;
        loop {
            let other = set & !one;
            let whole = one == 0 || other == 0;
            // At the root, terms that are all within one operand are matched there, with a smaller
            // rest.
            let elsewhere = whole && (!sum.rest || (sum.root && depth == 0));
            let mirrored = a == b && one < other;
            if !(elsewhere || mirrored) {
                // `y * y` needs `y` twice.
                let depth = if a == b && sum.rest { MAX_DEPTH } else { depth + 1 };
                let goal = |set: Set, class: Id| Goal::Assign { sum: sum.clone(), set, class, depth };
                let mark = self.goals.len();
                let second = self.push(goal(other, b), next);
                let first = self.push(goal(one, a), second);
                self.solve_and_forget(first, mark)?;
            }
            if one == 0 {
                return ON;
            }
            one = (one - 1) & set;
        }
    }

    /// Assigns a class to a term.
    pub(super) fn take(&mut self, sum: &Rc<SumPattern<'r>>, term: usize, class: Id, next: Goals) -> Flow {
        self.with_assignment(|d| d.taken.push(class));
        let flow = self.class(sum.terms[term], class, sum.context, next);
        self.with_assignment(|d| {
            d.taken.pop();
        });
        flow
    }

    /// Assigns a class to the rest.
    fn left(&mut self, class: Id, next: Goals) -> Flow {
        self.with_assignment(|d| d.rest.push(class));
        let flow = self.solve(next);
        self.with_assignment(|d| {
            d.rest.pop();
        });
        flow
    }

    fn with_assignment(&mut self, f: impl FnOnce(&mut PartialAssignment)) {
        if let Some(d) = self.assignments.last_mut() {
            f(d);
        }
    }

    /// Whether searching a class duplicates no work: the present candidate uses it only once.
    fn used_once(&self, class: Id) -> bool {
        let candidate = self.host.candidate();
        if candidate.is_none() { self.host.use_count(class) <= 1 } else { candidate.uses(class) == Some(1) }
    }

    /// Whether the present candidate computes the class with this node. Without a candidate, any
    /// node will do.
    fn is_present(&self, class: Id, node: &Node) -> bool {
        let candidate = self.host.candidate();
        if candidate.is_none() {
            return true;
        }
        candidate.pointwise(class).is_some_and(|n| {
            n.payload == node.payload
                && n.children.len() == node.children.len()
                && n.children.iter().zip(&node.children).all(|(a, b)| self.host.find(*a) == self.host.find(*b))
        })
    }

    /// All terms are assigned: the rest goes to the variable that takes it, or stays beside the
    /// rule's result.
    pub(super) fn assigned(&mut self, sum: &Rc<SumPattern<'r>>, next: Goals) -> Flow {
        let Some(mine) = self.assignments.pop() else { return ON };
        let flow = match (sum.free, mine.rest.as_slice()) {
            (None, []) if !sum.rest => self.advance(next),
            (Some(v), [_, _, ..]) => {
                let sum = VirtualSum { head: sum.head, operands: sorted(&mine.rest), target: Target::Variable(v) };
                self.with_virtual_sum(sum, next)
            }
            (None, rest @ [_, ..]) if sum.rest => {
                let target = Target::Root { rest: sorted(rest), named: named(&self.what.rule.lhs[0]) };
                self.with_virtual_sum(VirtualSum { head: sum.head, operands: sorted(&mine.taken), target }, next)
            }
            // If nothing remains, or one class for the variable, this is the sum without a rest.
            _ => ON,
        };
        self.assignments.push(mine);
        flow
    }

    fn with_virtual_sum(&mut self, sum: VirtualSum, next: Goals) -> Flow {
        self.virtual_sums.push(sum);
        let flow = self.advance(next);
        self.virtual_sums.pop();
        flow
    }
}

/// The discriminant of the nodes of an operator.
fn wanted(head: ScalarId, context: Position) -> Discriminant {
    match context {
        Position::Tensor => Discriminant::Scalar(head),
        Position::Term(_) => Discriminant::Call(head),
    }
}

fn sorted(ids: &[Id]) -> Vec<Id> {
    let mut ids = ids.to_vec();
    ids.sort();
    ids
}

/// Variables that name the whole pattern.
fn named(p: &Pat) -> Vec<VarId> {
    let mut out = Vec::new();
    let mut p = p;
    while let Pat::Bind(v, inner) = p {
        out.push(*v);
        p = inner;
    }
    out
}
