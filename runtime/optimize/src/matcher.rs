//! E-matching: finds the left side of a rule in the e-graph.
//!
//! In: a rule's patterns and an e-graph. Out: matches, each with the bindings of all variables. The
//! matcher is our own because `egg`'s patterns cannot express alternatives, typed positions,
//! optional and variadic operands, constants by value, attribute lists and several roots.
//!
//! Invariant: a match binds every variable that occurs in the pattern. Commutative operands are
//! tried in both orders. If roots share a variable, the second and later roots are searched among
//! the parents of bound classes, never among all classes. A search that stops at a limit reports
//! it, and the next search resumes after it.

pub mod applied;
mod attributes;
pub mod bindings;
pub mod class_patterns;
mod frontier;
pub mod host;
mod miss;
pub mod pattern_index;
mod pattern_set;
pub mod prepare;
pub mod regions;
mod roots;
pub mod sums;
mod symmetry;

use std::ops::ControlFlow;
use std::rc::Rc;

use egg::Id;
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrType, AttrValue, Each, Head, InView, NodePat, OpDef, ParamKind, Pat, Program, Rest, Rule,
    ScalarBody, VarId,
};
use hypatia_dsl::typing::{self, Bindings, Facts, TensorType, match_type};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use self::attributes::Attribute;
pub use self::bindings::{Binding, Match, MatchFacts, attr_equal, normal_attr};
use self::bindings::{literal_matches, view_fits};
use self::frontier::root_candidates;
pub use self::frontier::{Frontiers, LogPosition, View};
use self::host::Host;
pub use self::miss::{Miss, MissReason, Probe};
use self::prepare::Prepared;
use self::regions::Boundary;
pub use self::regions::{Region, Step};
use self::sums::{PartialAssignment, Set, SumPattern};
pub use self::sums::{Target, VirtualSum};
use super::analysis::EGraph;
use super::analysis::{Sort, has_several_results};
use super::language::{Discriminant, Node, Payload};
use super::numbers::enlarging;

/// Limits of one search.
#[derive(Clone, Copy, Debug)]
pub struct SearchLimits {
    /// Maximum number of matches.
    pub matches: usize,
    /// Maximum number of steps.
    pub steps: usize,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct SearchResult {
    /// The matches, deduped.
    pub matches: Vec<Match>,
    /// True if a limit ended the search.
    pub capped: bool,
    /// Where the next search starts.
    pub resume: usize,
    /// Steps taken.
    pub steps: usize,
}

/// A rule prepared for searching.
pub struct Searchable<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// True if scalars in the pattern are those of terms, not of tensors.
    pub terms: bool,
    /// Analyses that do not depend on the e-graph.
    pub prepared: &'r Prepared,
}

#[derive(Clone)]
enum Goal<'r, 'e> {
    Class {
        pat: &'r Pat,
        class: Id,
        context: Position,
    },
    Attr(Attribute<'r, 'e>),
    /// Match this set of a sum's terms with the class as a whole or with its operands.
    Assign {
        sum: Rc<SumPattern<'r>>,
        set: Set,
        class: Id,
        depth: usize,
    },
    /// All terms of that sum have been assigned.
    Assigned {
        sum: Rc<SumPattern<'r>>,
    },
    /// Match each of these operands with the same pattern.
    Each(Operands<'r>),
    /// An operand of those has matched.
    Item(Operands<'r>),
    /// The operands of pointwise work are matched.
    Boundary {
        boundary: Rc<Boundary>,
    },
}

/// The remaining operands of a node, each of which matches one pattern.
#[derive(Clone)]
struct Operands<'r> {
    /// The variable that they bind.
    var: VarId,
    each: &'r Each,
    /// The class of the node.
    of: Id,
    /// All of these operands.
    all: Rc<[Id]>,
    /// How many of them have matched.
    done: usize,
    /// What the pattern's own variable stood for in these.
    items: Rc<Vec<Id>>,
    context: Position,
}

/// The context of a pattern.
#[derive(Clone, Copy)]
enum Position {
    Tensor,
    /// In a term, of the op in that class if there is one.
    Term(Option<Id>),
}

/// What remains to be matched, in order: the index of the first goal in [`Matcher::goals`], which
/// holds the index of the next. Lists share their tails. Code that pushes goals pops them once all
/// ways of matching them have been tried.
type Goals = Option<usize>;

type Flow = ControlFlow<()>;
const ON: Flow = ControlFlow::Continue(());

/// An expected value, and the attribute that should equal it.
type Deferred<'r, 'e> = (&'r AExpr, Attribute<'r, 'e>);

struct Matcher<'r, 'e, 'f, H: Host> {
    host: &'e H,
    what: &'r Searchable<'r>,
    bindings: Vec<Binding>,
    values: Bindings,
    roots: Vec<Id>,
    nodes: Vec<&'e Node>,
    /// Each goal with its continuation.
    goals: Vec<(Goal<'r, 'e>, Goals)>,
    /// The sums being matched, innermost last.
    assignments: Vec<PartialAssignment>,
    /// Sums to build when the match is applied.
    virtual_sums: Vec<VirtualSum>,
    /// Attributes that may use variables bound later.
    deferred: Vec<Deferred<'r, 'e>>,
    progress: usize,
    steps: usize,
    limit: usize,
    capped: bool,
    probe: Option<&'f mut Probe>,
    emit: &'f mut dyn FnMut(&MatchState<'_>) -> Flow,
}

/// The bindings of a match, in the form the matcher holds them.
struct MatchState<'m> {
    roots: &'m [Id],
    bindings: &'m [Binding],
    values: &'m Bindings,
    nodes: &'m [&'m Node],
    virtual_sums: &'m [VirtualSum],
}

impl MatchState<'_> {
    fn to_match(&self) -> Match {
        Match {
            roots: self.roots.to_vec(),
            // Variables that only other alternatives bind are absent.
            bindings: self.bindings.iter().map(|b| b.clone().or_absent()).collect(),
            values: self.values.clone(),
            nodes: self.nodes.iter().map(|n| (*n).clone()).collect(),
            virtual_sums: self.virtual_sums.to_vec(),
        }
    }
}

/// Finds matches that are not in `done`. The search starts at candidate class number `start`, so
/// that a capped search can be resumed.
pub fn search(
    egraph: &View<'_>,
    what: &Searchable<'_>,
    done: &FxHashSet<u64>,
    start: usize,
    limits: SearchLimits,
    changes: Option<&Frontiers>,
    probe: Option<&mut Probe>,
) -> SearchResult {
    let mut candidates = root_candidates(egraph, what, changes);
    if let Some(only) = probe.as_ref().and_then(|p| p.only) {
        candidates.retain(|c| egraph.find(*c) == egraph.find(only));
        if candidates.is_empty() && what.rule.lhs.len() == 1 {
            candidates.push(egraph.find(only));
        }
    }
    if candidates.is_empty() {
        return SearchResult::default();
    }
    let n = candidates.len();
    let mut seen = FxHashSet::default();
    let mut matches = Vec::new();
    let mut emit = |m: &MatchState<'_>| {
        let hit = m.to_match();
        let print = hit.fingerprint(egraph);
        if !done.contains(&print) && seen.insert(print) {
            matches.push(hit);
        }
        if matches.len() >= limits.matches { ControlFlow::Break(()) } else { ON }
    };
    let bindings = vec![Binding::Unbound; what.rule.vars.len()];
    let mut matcher = Matcher::new(egraph, what, bindings, limits.steps, &mut emit);
    matcher.probe = probe;
    let mut found = SearchResult::default();
    for i in 0..n {
        let at = (start + i) % n;
        if matcher.root(candidates[at]).is_break() {
            // Not all classes were visited: resume here.
            found.capped = true;
            found.resume = at;
            break;
        }
    }
    found.steps = matcher.steps;
    found.matches = matches;
    found
}

/// All matches of a pattern with one application: this node of that class, whatever else the class
/// holds.
pub fn match_application(
    egraph: &EGraph,
    what: &Searchable<'_>,
    (class, node): (Id, &Node),
    steps: usize,
) -> Vec<Match> {
    let Some(pattern) = what.rule.lhs.first().and_then(application) else { return Vec::new() };
    let view = View::plain(egraph);
    let mut found = Vec::new();
    let mut emit = |m: &MatchState<'_>| {
        found.push(m.to_match());
        ON
    };
    let unbound = vec![Binding::Unbound; what.rule.vars.len()];
    let mut matcher = Matcher::new(&view, what, unbound, steps, &mut emit);
    matcher.roots = vec![class];
    if matcher.head_matches(pattern.head, node.payload, Position::Tensor) {
        let _ = matcher.operands(pattern, node, class, Position::Tensor, None);
    }
    found
}

/// The application at the top of a pattern.
pub fn application(mut pat: &Pat) -> Option<&NodePat> {
    while let Pat::Bind(_, inner) | Pat::Typed(inner, _) = pat {
        pat = inner;
    }
    match pat {
        Pat::Node(n) => Some(n),
        _ => None,
    }
}

/// All matches at a value of a rule with one root.
pub fn match_at<H: Host>(host: &H, what: &Searchable<'_>, value: Id, steps: usize) -> Vec<Match> {
    let mut found = Vec::new();
    let mut emit = |m: &MatchState<'_>| {
        found.push(m.to_match());
        ON
    };
    let bindings = vec![Binding::Unbound; what.rule.vars.len()];
    let _ = Matcher::new(host, what, bindings, steps, &mut emit).root(value);
    found
}

/// The discriminants that the top node of a pattern may have; `None` for any.
pub fn heads(program: &Program, pat: &Pat, terms: bool, out: &mut Option<Vec<Discriminant>>) {
    match pat {
        Pat::Node(n) => match (head_discriminant(program, n.head, terms), out.as_mut()) {
            (Some(head), Some(list)) => list.push(head),
            _ => *out = None,
        },
        Pat::Bind(_, p) | Pat::Typed(p, _) => heads(program, p, terms, out),
        Pat::OneOf(ps) => ps.iter().for_each(|p| heads(program, p, terms, out)),
        Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => *out = None,
    }
}

/// True for a node that has its own class as a child, such as `x + 0` once it equals `x`. No graph
/// can contain it, and a rule that matched through it could match its own result again, without
/// end.
fn is_circular(node: &Node, class: Id) -> bool {
    node.children.contains(&class)
}

/// The discriminant by which classes with that head are looked up; `None` if any class may hold it.
fn head_discriminant(program: &Program, head: Head, terms: bool) -> Option<Discriminant> {
    Some(match head {
        Head::Region(_) => return None,
        Head::Op(op) if has_several_results(program.op(op)) => Discriminant::Output,
        Head::Op(op) => Discriminant::Op(op),
        Head::Scalar(s) if terms => Discriminant::Call(s),
        Head::Scalar(s) => Discriminant::Scalar(s),
        Head::Acc => Discriminant::Acc,
        Head::Second => Discriminant::Second,
        Head::In(_) => Discriminant::In,
        Head::TermCast => Discriminant::TermCast,
    })
}

impl<'r, 'e, 'f, H: Host> Matcher<'r, 'e, 'f, H> {
    fn new(
        host: &'e H,
        what: &'r Searchable<'r>,
        bindings: Vec<Binding>,
        limit: usize,
        emit: &'f mut dyn FnMut(&MatchState<'_>) -> Flow,
    ) -> Matcher<'r, 'e, 'f, H> {
        Matcher {
            host,
            what,
            bindings,
            values: Bindings::default(),
            roots: Vec::new(),
            nodes: Vec::new(),
            goals: Vec::new(),
            assignments: Vec::new(),
            virtual_sums: Vec::new(),
            deferred: Vec::new(),
            progress: 0,
            steps: 0,
            limit,
            capped: false,
            probe: None,
            emit,
        }
    }

    /// Tries to match the next root at a class.
    fn root(&mut self, class: Id) -> Flow {
        let Some(pat) = self.what.rule.lhs.get(self.roots.len()) else { return ON };
        let class = self.host.find(class);
        // Distinct roots are distinct values, and for equal patterns one order is enough.
        let clash = if self.what.prepared.symmetric {
            self.roots.last().is_some_and(|r| class <= *r)
        } else {
            self.roots.contains(&class)
        };
        if clash {
            return ON;
        }
        let context = if self.what.terms { Position::Term(None) } else { Position::Tensor };
        self.count_step()?;
        // Rejects most classes early.
        let pattern = self.what.prepared.roots.get(self.roots.len()).copied().flatten();
        if self.probe.is_none() && pattern.is_some_and(|p| !self.host.may_match(class, p)) {
            return ON;
        }
        self.roots.push(class);
        let flow = self.class(pat, class, context, None);
        self.roots.pop();
        flow
    }

    /// Pushes a goal before others.
    fn push(&mut self, goal: Goal<'r, 'e>, next: Goals) -> Goals {
        self.goals.push((goal, next));
        Some(self.goals.len() - 1)
    }

    /// Solves the goals, then pops those above `mark`.
    fn solve_and_forget(&mut self, goals: Goals, mark: usize) -> Flow {
        let flow = self.solve(goals);
        self.goals.truncate(mark);
        flow
    }

    /// Facts about the present bindings.
    fn facts(&self) -> impl Facts {
        self.host.facts(&self.bindings)
    }

    /// The value of an attribute expression, if the present bindings determine it.
    fn eval(&self, expr: &AExpr) -> Option<AttrValue> {
        typing::eval(expr, &self.values, &self.facts())
    }

    /// The type of a tensor class.
    fn type_of(&self, class: Id) -> Option<&'e TensorType> {
        self.host.type_of(class)
    }

    /// Counts a step, up to the limit.
    fn count_step(&mut self) -> Flow {
        self.steps += 1;
        self.capped |= self.steps > self.limit;
        if self.capped { ControlFlow::Break(()) } else { ON }
    }

    fn solve(&mut self, goals: Goals) -> Flow {
        self.count_step()?;
        let Some((goal, next)) = goals.and_then(|at| self.goals.get(at)).cloned() else { return self.next_root() };
        match goal {
            Goal::Class { pat, class, context } => self.class(pat, self.host.find(class), context, next),
            Goal::Attr(attribute) => self.attr(attribute, next),
            Goal::Assign { sum, set, class, depth } => self.assign(&sum, set, self.host.find(class), depth, next),
            Goal::Assigned { sum } => self.assigned(&sum, next),
            Goal::Each(operands) => self.each(operands, next),
            Goal::Item(operands) => self.item(operands, next),
            Goal::Boundary { boundary } => self.within(&boundary, next),
        }
    }

    fn advance(&mut self, goals: Goals) -> Flow {
        self.progress += 1;
        let flow = self.solve(goals);
        self.progress -= 1;
        flow
    }

    /// All patterns so far match: continue with the next root, then the deferred attributes, then
    /// report the match.
    fn next_root(&mut self) -> Flow {
        if self.roots.len() < self.what.rule.lhs.len() {
            for class in self.next_candidates() {
                self.root(class)?;
            }
            let (n, last) = (self.roots.len(), self.roots[0]);
            return self.miss(last, || MissReason::Root(n));
        }
        for at in 0..self.deferred.len() {
            let (want, attribute) = self.deferred[at];
            let want = self.eval(want);
            if want.and_then(|w| attribute.equals(&w)) != Some(true) {
                return self.missed(attribute);
            }
        }
        if !self.may_match() {
            return ON;
        }
        if self.what.prepared.reads_numbers
            && let Some(wide) = self.nodes.iter().find_map(|n| self.enlarging(n))
        {
            return self.miss(wide, || MissReason::Number);
        }
        (self.emit)(&MatchState {
            roots: &self.roots,
            bindings: &self.bindings,
            values: &self.values,
            nodes: &self.nodes,
            virtual_sums: &self.virtual_sums,
        })
    }

    fn class(&mut self, pat: &'r Pat, class: Id, context: Position, next: Goals) -> Flow {
        let absent = || self.host.is_absent(class);
        match pat {
            Pat::Any if absent() => self.miss(class, || MissReason::Presence(true)),
            Pat::Any => self.advance(next),
            Pat::Var(_) if absent() => self.miss(class, || MissReason::Presence(true)),
            Pat::Var(v) => self.bind(*v, Binding::Class(class), class, next),
            Pat::Optional(v) => {
                let slot = if absent() { Binding::Absent } else { Binding::Class(class) };
                self.bind(*v, slot, class, next)
            }
            Pat::Absent if absent() => self.advance(next),
            Pat::Absent => self.miss(class, || MissReason::Presence(false)),
            Pat::Bind(v, p) => {
                let mark = self.goals.len();
                let goals = self.push(Goal::Class { pat: p, class, context }, next);
                let flow = self.bind(*v, Binding::Class(class), class, goals);
                self.goals.truncate(mark);
                flow
            }
            Pat::Typed(p, ty) => {
                let Some(have) = self.type_of(class) else {
                    return self.miss(class, || MissReason::Type);
                };
                let before = self.values.values.mark();
                let flow = if match_type(ty, have, &mut self.values) == Some(true) {
                    self.progress += 1;
                    let flow = self.class(p, class, context, next);
                    self.progress -= 1;
                    flow
                } else {
                    self.miss(class, || MissReason::Type)
                };
                self.values.values.forget_since(before);
                flow
            }
            Pat::Lit { value, near } => {
                let dtype = self.host.type_of(class).map(|t| t.dtype);
                match self.host.number(class) {
                    Some(v) if literal_matches(v, dtype, *value, *near) => self.advance(next),
                    _ => self.miss(class, || MissReason::Literal(*value)),
                }
            }
            Pat::OneOf(choices) => {
                for p in choices {
                    self.class(p, class, context, next)?;
                }
                ON
            }
            Pat::Node(n) if self.host.is_whole_term(class) => self.whole_term(n, class, context, next),
            Pat::Node(n) => self.node(n, class, context, next),
        }
    }

    /// Matches a term that the host compares as a whole, then the tensors that it reads.
    fn whole_term(&mut self, n: &'r NodePat, class: Id, context: Position, next: Goals) -> Flow {
        let reads = match context {
            Position::Term(Some(op)) => self.host.compare_term(n, class, op),
            _ => None,
        };
        let Some(reads) = reads else { return self.miss(class, || MissReason::Head(n.clone())) };
        let mark = self.goals.len();
        let mut goals = next;
        for (pat, class) in reads.into_iter().rev() {
            goals = self.push(Goal::Class { pat, class, context: Position::Tensor }, goals);
        }
        let flow = self.advance(goals);
        self.goals.truncate(mark);
        flow
    }

    fn bind(&mut self, var: VarId, slot: Binding, class: Id, next: Goals) -> Flow {
        let i = var.index();
        match self.bindings.get(i) {
            None => ON,
            Some(Binding::Unbound) => {
                self.bindings[i] = slot;
                let flow = if self.may_be(var) { self.advance(next) } else { ON };
                self.bindings[i] = Binding::Unbound;
                flow
            }
            Some(bound) if *bound == slot => self.advance(next),
            Some(bound) => {
                let to = if let Binding::Class(id) = bound { *id } else { class };
                self.miss(class, || MissReason::Same(var, to))
            }
        }
    }

    fn node(&mut self, n: &'r NodePat, class: Id, context: Position, next: Goals) -> Flow {
        if let Head::Region(v) = n.head {
            return self.region(v, n, class, context, next);
        }
        // Rejects most classes early.
        if self.probe.is_none() && !self.holds(n.head, class, context) {
            return ON;
        }
        match self.sum(n, class, context, next) {
            Some(flow) => flow,
            None => self.written(n, class, context, next),
        }
    }

    /// Whether a class holds a node with that head.
    fn holds(&self, head: Head, class: Id, context: Position) -> bool {
        let terms = matches!(context, Position::Term(_));
        match head_discriminant(self.host.program(), head, terms) {
            Some(wanted) => self.host.holding(class, wanted).next().is_some(),
            None => true,
        }
    }

    /// A constant that the rule knows as a number, but that enlarges what stands beside it.
    fn enlarging(&self, node: &Node) -> Option<Id> {
        let Payload::Scalar(_) = node.payload else { return None };
        let classes = node.children.iter().map(|c| self.host.find(*c));
        let of = |c: Id| (self.type_of(c).map_or(&[][..], |t| t.shape.as_slice()), self.host.number(c).is_some());
        let operands: SmallVec<[_; 3]> = classes.map(of).collect();
        enlarging(&operands).map(|i| node.children[i])
    }

    /// False if a guard on this variable alone does not hold. A probe (for `--why-not`) has to see
    /// the guard fail, so it skips this check.
    fn may_be(&self, var: VarId) -> bool {
        let early = match self.what.prepared.early.get(var.index()) {
            Some(early) if !early.is_empty() && self.probe.is_none() => early,
            _ => return true,
        };
        let facts = self.facts();
        let nothing = Bindings::default();
        early.iter().all(|g| typing::eval(g, &nothing, &facts) == Some(AttrValue::Bool(true)))
    }

    /// False if a guard on bound tensors does not hold. Guards on virtual sums are checked when the
    /// sums are built.
    fn may_match(&self) -> bool {
        let late = &self.what.prepared.late;
        if late.is_empty() || !self.virtual_sums.is_empty() || self.probe.is_some() {
            return true;
        }
        // Variables that only other alternatives bind are absent.
        let bindings: Vec<Binding> = self.bindings.iter().map(|b| b.clone().or_absent()).collect();
        let facts = self.host.facts(&bindings);
        let nothing = Bindings::default();
        late.iter().all(|g| typing::eval(g, &nothing, &facts) == Some(AttrValue::Bool(true)))
    }

    /// Matches an application in the association in which it is written.
    fn written(&mut self, n: &'r NodePat, class: Id, context: Position, next: Goals) -> Flow {
        let host = self.host;
        let mut met = false;
        for node in host.nodes(class).iter().filter(|n| !is_circular(n, class)) {
            let (node, op_class) = match (node.payload, n.head) {
                // A result of an op with several results: the op's own nodes are in the child's
                // class.
                (Payload::Output(i), Head::Op(_)) if i == n.output => {
                    // The result counts as matched too: a rule that returns one of the op's
                    // operands leaves nothing else.
                    self.nodes.push(node);
                    for inner in host.nodes(node.children[0]) {
                        if self.head_matches(n.head, inner.payload, context) {
                            met = true;
                            self.operands(n, inner, node.children[0], context, next)?;
                        }
                    }
                    self.nodes.pop();
                    continue;
                }
                (Payload::Op(op, _), _) if has_several_results(host.program().op(op)) => continue,
                _ => (node, class),
            };
            if self.head_matches(n.head, node.payload, context) && self.view_matches(n.head, node, context) {
                met = true;
                self.operands(n, node, op_class, context, next)?;
            }
        }
        if met { ON } else { self.miss(class, || MissReason::Head(n.clone())) }
    }

    fn head_matches(&self, head: Head, payload: Payload, context: Position) -> bool {
        match (head, payload, context) {
            (Head::Op(a), Payload::Op(b, _), _) => a == b,
            (Head::Scalar(a), Payload::Scalar(b), Position::Tensor) => a == b,
            (Head::Scalar(a), Payload::Call(b), Position::Term(_)) => a == b,
            (Head::Acc, Payload::Acc, _) | (Head::Second, Payload::Second, _) => true,
            (Head::TermCast, Payload::TermCast(_), _) => true,
            (Head::In(_), Payload::In(_), _) => true,
            _ => false,
        }
    }

    /// `row`, `col` and `full` are ways of reading a tensor that its type determines: a plain
    /// `in(t)` of a vector along the last axis is a `row`.
    fn view_matches(&self, head: Head, node: &Node, context: Position) -> bool {
        let (Head::In(want), Payload::In(have)) = (head, node.payload) else { return true };
        if want == have || want == InView::Broadcast {
            return true;
        }
        let Position::Term(Some(op)) = context else { return false };
        let (Some(out), Some(t)) = (self.type_of(op), self.type_of(node.children[0])) else {
            return false;
        };
        view_fits(want, have, t, &out.shape)
    }

    /// Attributes first, as they decide at once; then the operands in every equivalent order.
    fn operands(&mut self, n: &'r NodePat, node: &'e Node, class: Id, context: Position, next: Goals) -> Flow {
        let children = &node.children;
        let enough = match &n.rest {
            Some(_) => children.len() >= n.args.len(),
            None => children.len() == n.args.len(),
        };
        if !enough {
            return self.miss(class, || MissReason::Arity(n.head, children.len()));
        }
        let swap = match n.head {
            Head::Scalar(s) if children.len() == 2 && children[0] != children[1] => {
                matches!(self.host.program().scalar(s).body, ScalarBody::Builtin(b) if b.commutes())
            }
            _ => false,
        };
        for swapped in if swap { &[false, true][..] } else { &[false][..] } {
            let child = |i: usize| children[if *swapped { 1 - i } else { i }];
            let could = |(i, pat): (usize, &Pat)| {
                self.could_be(pat, self.host.find(child(i)), self.inside(n.head, i, class, context))
            };
            if self.probe.is_none() && !n.args.iter().enumerate().all(could) {
                continue;
            }
            let mark = self.goals.len();
            let mut goals = next;
            for (i, pat) in n.args.iter().enumerate().rev() {
                let context = self.inside(n.head, i, class, context);
                goals = self.push(Goal::Class { pat, class: child(i), context }, goals);
            }
            goals = self.attribute_goals(n, node, class, goals);
            self.nodes.push(node);
            let flow = match &n.rest {
                Some(rest) => {
                    let classes = children[n.args.len()..].iter().map(|c| self.host.find(*c));
                    self.rest(rest, classes.collect(), (n.head, class), goals)
                }
                None => self.advance(goals),
            };
            self.nodes.pop();
            self.goals.truncate(mark);
            flow?;
        }
        ON
    }

    /// Matches the remaining operands of a node.
    fn rest(&mut self, rest: &'r Rest, operands: Vec<Id>, (head, of): (Head, Id), next: Goals) -> Flow {
        let Some(each) = &rest.each else { return self.bind(rest.var, Binding::Classes(operands), of, next) };
        let context = self.inside(head, 0, of, Position::Tensor);
        let (all, items) = (operands.into(), Rc::new(Vec::new()));
        self.each(Operands { var: rest.var, each, of, all, done: 0, items, context }, next)
    }

    /// Matches the next of several operands, or binds what all of them gave.
    fn each(&mut self, operands: Operands<'r>, next: Goals) -> Flow {
        let Some(class) = operands.all.get(operands.done).copied() else {
            return self.bind(operands.var, Binding::Classes(operands.items.to_vec()), operands.of, next);
        };
        let (pat, context) = (&operands.each.element, operands.context);
        let mark = self.goals.len();
        let goals = self.push(Goal::Item(operands), next);
        let flow = self.class(pat, self.host.find(class), context, goals);
        self.goals.truncate(mark);
        flow
    }

    /// One of several operands has matched: notes what the pattern's own variable stands for, and
    /// frees it for the next one.
    fn item(&mut self, operands: Operands<'r>, next: Goals) -> Flow {
        let at = operands.each.item.index();
        // A variable that collects the terms of a sum has no class yet.
        let Some(Binding::Class(class)) = self.bindings.get(at).cloned() else { return ON };
        let mut items = (*operands.items).clone();
        items.push(class);
        self.bindings[at] = Binding::Unbound;
        let (done, items) = (operands.done + 1, Rc::new(items));
        let mark = self.goals.len();
        let goals = self.push(Goal::Each(Operands { done, items, ..operands }), next);
        let flow = self.solve_and_forget(goals, mark);
        self.bindings[at] = Binding::Class(class);
        flow
    }

    /// The context of the operands of a head.
    fn inside(&self, head: Head, operand: usize, class: Id, context: Position) -> Position {
        match head {
            Head::Op(op) if self.host.takes_term(op, operand) => Position::Term(Some(class)),
            Head::Op(_) => Position::Tensor,
            Head::In(_) => Position::Tensor,
            Head::Scalar(_) | Head::Acc | Head::Second | Head::TermCast | Head::Region(_) => context,
        }
    }
}
