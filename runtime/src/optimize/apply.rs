//! Putting the right side of a rule into the e-graph.
//!
//! In: a match. Out: new nodes, and the classes of the roots merged with them, or the reason why not. Holds
//! always: nothing is merged unless the rule's claim covers the dtype at hand, every `requires` is known to be
//! true, every node that is built type-checks, both sides have the same type, and what is computed beforehand keeps its meaning in
//! its element type (`folded`); the limits of the stage are looked at before every node.

use egg::Id;
use hypatia_dsl::approx::{Approx, mantissa_bits};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AttrValue, Build, BuildArg, BuildNode, Class, Head, InView, OpBody, OpDef, OpId, ParamKind, Pat, Rule,
    ScalarId, VarId,
};
use hypatia_dsl::neutral::without_absent;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{self, Bindings, TensorType};

use super::analysis::{Sort, class_type, conflict, has_several_results, is_term, node_types, rounded_apart, term_kind};
use super::known;
use super::language::{EGraph, Node, Payload};
use super::matcher::{Match, MatchFacts, Slot, Step, Target};
use crate::folded::{Folded, Place, is_of_values, number_loss};
use crate::graph::check_view;

/// Why a match was not applied.
#[derive(Clone, Debug, PartialEq)]
pub enum Reject {
    /// The rule does not claim to hold for that dtype, or only approximately.
    Claim(DType),
    /// That `requires` is not known to be true.
    Requires(usize),
    /// That `prefer` is not true.
    Prefer(usize),
    /// That `let` has no value here.
    Let(VarId),
    /// The right side does not type-check, or is not of the left side's type.
    Type(String),
    /// `build(...)` over something that is not a constant.
    NotConstant,
    /// A constant or a number that it computes would lose what it means in its element type.
    Lost(String),
    /// A limit of the stage.
    Budget,
}

/// What came of applying a match.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// True if the e-graph says more than before.
    pub changed: bool,
    /// For each root that is not a mere variable, the node that was built for it, as it was then.
    pub built: Vec<Node>,
}

/// Whether approximations are allowed, and other settings of applying.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// Which rules that claim no more than `approx` may fire.
    pub approx: Approx,
}

/// Whether a rule may fire for values of that dtype.
pub fn claimed(rule: &Rule, dtype: DType, policy: Policy) -> bool {
    let strongest = |c: &Class| policy.approx.allows(*c, dtype, mantissa_bits(dtype));
    if rule.claims.is_empty() {
        return true;
    }
    rule.claims.iter().any(|c| (c.dtypes.is_empty() || c.dtypes.contains(&dtype)) && strongest(&c.class))
}

/// Works out the `let`s of a match and checks its claims and guards. With `profit` false, `prefer` is not asked.
pub fn check(egraph: &EGraph, rule: &Rule, m: &mut Match, policy: Policy, profit: bool) -> Result<(), Reject> {
    for root in &m.roots {
        match egraph[*root].data.sort {
            Sort::Tensor(t) => {
                let dtype = egraph.analysis.ty(t).dtype;
                if !claimed(rule, dtype, policy) {
                    return Err(Reject::Claim(dtype));
                }
            }
            // Terms are shared by products of all dtypes, and compute in f32 or f64.
            Sort::Term(_) => {
                for dtype in [DType::F32, DType::F64] {
                    if !claimed(rule, dtype, policy) {
                        return Err(Reject::Claim(dtype));
                    }
                }
            }
            _ => return Err(Reject::Type("the root is no tensor".to_string())),
        }
    }
    for (var, expr) in &rule.lets {
        let facts = MatchFacts { egraph, slots: &m.slots, device: None };
        let value = typing::eval(expr, &m.values, &facts).ok_or(Reject::Let(*var))?;
        m.values.values.insert(*var, value);
    }
    let facts = MatchFacts { egraph, slots: &m.slots, device: None };
    let holds = |g: &AExpr| typing::eval(g, &m.values, &facts) == Some(AttrValue::Bool(true));
    if let Some(i) = rule.requires.iter().position(|g| !holds(g)) {
        return Err(Reject::Requires(i));
    }
    if profit && let Some(i) = rule.prefer.iter().position(|g| !holds(g)) {
        return Err(Reject::Prefer(i));
    }
    Ok(())
}

/// Makes the sums that a match needs, and puts them where its variables and its root are: after this the match is one of
/// a left side as it is written. A part of a longer sum gets a value of its own, and the longer sum is also the sum of
/// that value and the rest.
pub fn settle(egraph: &mut EGraph, m: &mut Match) -> Result<(), Reject> {
    for pending in std::mem::take(&mut m.pending) {
        let sum = chain(egraph, pending.head, &pending.parts, None)?;
        match pending.target {
            Target::Variable(v) => {
                if let Some(slot) = m.slots.get_mut(v.index()) {
                    *slot = Slot::Class(sum);
                }
            }
            Target::Root { rest, named } => {
                let whole = chain(egraph, pending.head, &rest, Some(sum))?;
                let Some(root) = m.roots.first_mut() else { continue };
                if let Some(why) = conflict(egraph, whole, *root) {
                    return Err(ill_typed(format!("a sum in another association is of another type: {why}")));
                }
                egraph.union(*root, whole);
                *root = sum;
                for v in named {
                    if let Some(slot) = m.slots.get_mut(v.index()) {
                        *slot = Slot::Class(sum);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The sum of these classes, from the left.
fn chain(egraph: &mut EGraph, head: ScalarId, parts: &[Id], first: Option<Id>) -> Result<Id, Reject> {
    let mut sum = first;
    for part in parts {
        let part = egraph.find(*part);
        sum = Some(match sum {
            None => part,
            Some(sum) => {
                let sum = egraph.find(sum);
                add_checked(egraph, Node::new(Payload::Scalar(head), [sum, part]))?
            }
        });
    }
    sum.ok_or_else(|| ill_typed("a sum has no terms"))
}

/// Adds a node that type-checks, within the limits.
fn add_checked(egraph: &mut EGraph, node: Node) -> Result<Id, Reject> {
    if let Some(id) = egraph.lookup(node.clone()) {
        return Ok(id);
    }
    if egraph.total_size() >= egraph.analysis.limits.nodes {
        return Err(Reject::Budget);
    }
    let checked = match node.payload {
        Payload::Absent | Payload::Acc => Ok(()),
        p if is_term(p) => term_kind(egraph, &node).map(drop),
        _ => node_types(egraph, &node).map(drop),
    };
    checked.map_err(Reject::Type)?;
    Ok(egraph.add(node))
}

/// Builds the right side of a checked match and merges it with the left.
pub fn apply(egraph: &mut EGraph, rule: &Rule, terms: bool, m: &Match) -> Result<Applied, Reject> {
    let mut ids = Vec::with_capacity(rule.rhs.len());
    let mut built = Vec::new();
    for (build, root) in rule.rhs.iter().zip(&m.roots) {
        let mut builder = Builder { rule: Some(rule), ..Builder::new(egraph, m, *root, 0) };
        let id = if terms { builder.term(build)? } else { builder.root(build)? };
        built.extend(builder.last);
        ids.push(id);
    }
    for (id, root) in ids.iter().zip(&m.roots) {
        if rounded_apart(egraph, *id, *root) {
            return Ok(Applied::default());
        }
        if let Some(why) = conflict(egraph, *id, *root) {
            return Err(Reject::Type(format!("its two sides differ: {why}")));
        }
    }
    let mut changed = false;
    for (id, root) in ids.iter().zip(&m.roots) {
        changed |= egraph.union(*root, *id);
    }
    Ok(Applied { changed, built })
}

struct Builder<'a> {
    egraph: &'a mut EGraph,
    m: &'a Match,
    replaced: Id,
    /// Variables of comprehensions over operands.
    items: Vec<(VarId, Id)>,
    /// Bodies of ops that are being unfolded.
    depth: usize,
    /// The node that was added last.
    last: Option<Node>,
    /// What the terms of the op that is being built read other than by broadcasting.
    views: Vec<(InView, Id)>,
    /// The rule whose right side it is; none in bodies of ops.
    rule: Option<&'a Rule>,
    /// Where what is being built stands.
    place: Place,
    /// Inside of `build(...)`.
    frozen: bool,
}

/// Ops within bodies of ops at most.
const MAX_UNFOLD: usize = 16;

/// True if the pattern is that op.
pub fn implements(pattern: &Pat, op: OpId) -> bool {
    match pattern {
        Pat::Node(n) => n.head == Head::Op(op),
        Pat::Bind(_, p) | Pat::Typed(p, _) => implements(p, op),
        Pat::OneOf(ps) => ps.iter().any(|p| implements(p, op)),
        _ => false,
    }
}

type Built = Result<Id, Reject>;

/// An operand to build, what the variable of its comprehension stands for, and whether it is a term.
type Argument<'b> = (&'b Build, Option<(VarId, Id)>, bool);

fn ill_typed(message: impl Into<String>) -> Reject {
    Reject::Type(message.into())
}

impl<'a> Builder<'a> {
    fn new(egraph: &'a mut EGraph, m: &'a Match, replaced: Id, depth: usize) -> Builder<'a> {
        Builder {
            egraph,
            m,
            replaced,
            items: Vec::new(),
            depth,
            last: None,
            views: Vec::new(),
            rule: None,
            place: Place::Factor,
            frozen: false,
        }
    }

    fn eval(&self, expr: &AExpr) -> Option<AttrValue> {
        if self.items.is_empty() {
            return typing::eval(
                expr,
                &self.m.values,
                &MatchFacts { egraph: self.egraph, slots: &self.m.slots, device: None },
            );
        }
        let mut slots = self.m.slots.clone();
        for (v, id) in &self.items {
            if let Some(slot) = slots.get_mut(v.index()) {
                *slot = Slot::Class(*id);
            }
        }
        typing::eval(expr, &self.m.values, &MatchFacts { egraph: self.egraph, slots: &slots, device: None })
    }

    fn truth(&self, guard: &AExpr) -> Result<bool, Reject> {
        match self.eval(guard) {
            Some(AttrValue::Bool(b)) => Ok(b),
            _ => Err(ill_typed("the condition of an `if` is not known")),
        }
    }

    fn number(&self, expr: &AExpr) -> Result<f64, Reject> {
        match self.eval(expr) {
            Some(AttrValue::Float(v)) => Ok(v),
            Some(AttrValue::Bool(b)) => Ok(f64::from(u8::from(b))),
            Some(AttrValue::Dim(d)) => {
                d.as_const().map(|c| c as f64).ok_or_else(|| ill_typed(format!("the size `{d}` is not known")))
            }
            _ => Err(ill_typed("a number cannot be computed")),
        }
    }

    fn absent(&mut self) -> Built {
        self.add(Node::leaf(Payload::Absent))
    }

    fn variable(&mut self, v: VarId) -> Built {
        if let Some((_, id)) = self.items.iter().rev().find(|(w, _)| *w == v) {
            return Ok(*id);
        }
        match self.m.slots.get(v.index()) {
            Some(Slot::Class(id)) => Ok(self.egraph.find(*id)),
            Some(Slot::Absent) => self.absent(),
            _ => Err(ill_typed("a variable stands for no tensor")),
        }
    }

    fn is_absent(&self, v: VarId) -> bool {
        matches!(self.m.slots.get(v.index()), Some(Slot::Absent) | None)
    }

    /// Adds a node whose type is known to be right, within the limits.
    fn add(&mut self, node: Node) -> Built {
        self.last = Some(node.clone());
        add_checked(self.egraph, node)
    }

    /// The number of an expression. What is computed from constants must keep its digits in that type.
    fn kept_number(&self, expr: &AExpr, dtype: DType) -> Result<f64, Reject> {
        let value = self.number(expr)?;
        if !self.rule.is_some_and(|r| is_of_values(r, expr)) {
            return Ok(value);
        }
        let known = |slot: &Slot| match slot {
            Slot::Class(id) => {
                let of = class_type(self.egraph, *id).map_or(dtype, |t| t.dtype);
                self.egraph[*id].data.value().map(|v| (of, v))
            }
            _ => None,
        };
        let constants: Vec<(DType, f64)> = self.m.slots.iter().filter_map(known).collect();
        number_loss(dtype, value, &constants).map_or(Ok(value), |lost| Err(Reject::Lost(lost)))
    }

    /// A splat constant.
    fn splat(&mut self, ty: TensorType, value: f64) -> Built {
        // An integer type must hold the number as it is: 0.5 beside integers is an error, not 0.
        if ty.dtype.is_int() && ty.dtype.round(value) != value {
            return Err(ill_typed(format!("the number {value} stands beside {}, which does not hold it", ty.dtype)));
        }
        let bits = ty.dtype.round(value).to_bits();
        let ty = self.egraph.analysis.type_id(ty);
        self.add(Node::leaf(Payload::Splat(ty, bits)))
    }

    /// The whole right side: a number there fills the type of what it replaces.
    fn root(&mut self, build: &Build) -> Built {
        if let Build::Number(expr) = build {
            let ty = class_type(self.egraph, self.replaced).cloned().ok_or_else(|| ill_typed("no tensor"))?;
            let value = self.kept_number(expr, ty.dtype)?;
            return self.splat(ty, value);
        }
        let hint = class_type(self.egraph, self.replaced).map(|t| t.dtype);
        self.tensor(build, hint)
    }

    /// A tensor; `hint` is the dtype of numbers that stand alone.
    fn tensor(&mut self, build: &Build, hint: Option<DType>) -> Built {
        match build {
            Build::Var(v) => self.variable(*v),
            Build::Absent => self.absent(),
            Build::Number(expr) => {
                let dtype = hint.ok_or_else(|| ill_typed("a number has no tensor beside it"))?;
                let value = self.kept_number(expr, dtype)?;
                self.splat(TensorType { dtype, shape: Vec::new() }, value)
            }
            Build::Else(v, other) if self.is_absent(*v) => self.tensor(other, hint),
            Build::Else(v, _) => self.variable(*v),
            Build::Frozen(inner) => {
                let outer = std::mem::replace(&mut self.frozen, true);
                let id = self.tensor(inner, hint);
                self.frozen = outer;
                let id = id?;
                if self.egraph[id].data.constant { Ok(id) } else { Err(Reject::NotConstant) }
            }
            Build::If(guard, a, b) => {
                let branch = if self.truth(guard)? { a } else { b };
                self.tensor(branch, hint)
            }
            Build::Node(n) => match n.head {
                Head::Op(op) => self.op(op, n, hint),
                Head::Scalar(s) => {
                    let program = self.egraph.analysis.program.clone();
                    match without_absent(&program, n, &|v| self.is_absent(v)) {
                        Some(rest) => self.tensor(rest, hint),
                        None => self.scalar(s, n, hint),
                    }
                }
                Head::Region(v) => self.region(v, n, hint, false),
                Head::Acc | Head::In(_) | Head::TermCast => Err(ill_typed("a term stands outside of an epilogue")),
            },
        }
    }

    /// True if the expression has no tensor of its own, so that its dtype comes from beside it.
    fn needs_hint(&self, build: &Build) -> bool {
        match build {
            Build::Number(_) => true,
            Build::Var(_) | Build::Absent => false,
            Build::Else(v, other) => self.is_absent(*v) && self.needs_hint(other),
            Build::Frozen(inner) => self.needs_hint(inner),
            Build::If(guard, a, b) => match self.truth(guard) {
                Ok(true) => self.needs_hint(a),
                Ok(false) => self.needs_hint(b),
                Err(_) => false,
            },
            Build::Node(n) => {
                !n.args.is_empty()
                    && n.args.iter().all(|a| matches!(a, BuildArg::One(b) if self.needs_hint(b)))
                    && matches!(n.head, Head::Scalar(_))
            }
        }
    }

    /// Operands in order: those with a type of their own first, then numbers in the dtype of the first of them
    /// that holds numbers.
    fn operands(&mut self, args: &[Argument<'_>], hint: Option<DType>) -> Result<Vec<Id>, Reject> {
        let mut out: Vec<Option<Id>> = vec![None; args.len()];
        let mut dtype = None;
        for pass in [false, true] {
            for (i, (build, item, is_term)) in args.iter().enumerate() {
                if self.needs_hint(build) != pass || out[i].is_some() {
                    continue;
                }
                if let Some(item) = item {
                    self.items.push(*item);
                }
                let id = if *is_term { self.term(build) } else { self.tensor(build, dtype.or(hint)) };
                if item.is_some() {
                    self.items.pop();
                }
                let id = id?;
                if let Some(t) = class_type(self.egraph, id)
                    && (t.dtype != DType::Bool || args.len() == 1)
                {
                    dtype = dtype.or(Some(t.dtype));
                }
                out[i] = Some(id);
            }
        }
        out.into_iter().collect::<Option<_>>().ok_or_else(|| ill_typed("an operand is missing"))
    }

    fn arguments<'b>(
        &mut self,
        n: &'b BuildNode,
        is_term: &dyn Fn(usize) -> bool,
        hint: Option<DType>,
        spreads: &'b mut Vec<(Build, Id)>,
    ) -> Result<Vec<Id>, Reject> {
        for arg in &n.args {
            if let BuildArg::Spread(v) = arg {
                let Some(Slot::Classes(ids)) = self.m.slots.get(v.index()) else {
                    return Err(ill_typed("a variable stands for no list of operands"));
                };
                spreads.extend(ids.iter().map(|id| (Build::Var(*v), *id)));
            }
        }
        let within = self.place.under(&self.egraph.analysis.program, n.head);
        let outer = std::mem::replace(&mut self.place, within);
        let spreads: &'b [(Build, Id)] = spreads;
        let mut next_spread = spreads.iter();
        let mut args: Vec<Argument<'_>> = Vec::new();
        for (i, arg) in n.args.iter().enumerate() {
            match arg {
                BuildArg::One(b) => args.push((b, None, is_term(i))),
                BuildArg::Spread(v) => {
                    let count = match self.m.slots.get(v.index()) {
                        Some(Slot::Classes(ids)) => ids.len(),
                        _ => 0,
                    };
                    args.extend(next_spread.by_ref().take(count).map(|(b, id)| (b, Some((*v, *id)), false)));
                }
                BuildArg::Each { element, item, over } => {
                    let Some(Slot::Classes(ids)) = self.m.slots.get(over.index()) else {
                        return Err(ill_typed("a variable stands for no list of operands"));
                    };
                    args.extend(ids.iter().map(|id| (element, Some((*item, *id)), false)));
                }
            }
        }
        let operands = self.operands(&args, hint);
        self.place = outer;
        operands
    }

    fn scalar(&mut self, s: ScalarId, n: &BuildNode, hint: Option<DType>) -> Built {
        let children = self.arguments(n, &|_| false, hint, &mut Vec::new())?;
        let node = Node::new(Payload::Scalar(s), children);
        if self.frozen {
            self.keeps(s, &node)?;
        }
        self.add(node)
    }

    /// An error if a function of constants loses what it means when it is rounded. What cannot be computed now is not known to keep it.
    fn keeps(&self, scalar: ScalarId, node: &Node) -> Result<(), Reject> {
        if !node.children.iter().all(|c| self.egraph[*c].data.constant) {
            return Err(Reject::NotConstant);
        }
        let types = node_types(self.egraph, node).map_err(Reject::Type)?;
        let Some(ty) = types.first().filter(|t| t.dtype.is_float()) else { return Ok(()) };
        let size = |d: &Dim| d.as_const().and_then(|c| usize::try_from(c).ok());
        let shape = ty.shape.iter().map(size).collect::<Option<Vec<_>>>();
        let operands = node.children.iter().map(|c| known::constant(self.egraph, *c)).collect::<Option<Vec<_>>>();
        let (Some(shape), Some(operands)) = (shape, operands) else {
            return Err(Reject::Lost("what `build(...)` computes is not known".to_string()));
        };
        let program = &self.egraph.analysis.program;
        let folded = Folded { program, scalar, operands: &operands, dtype: ty.dtype, shape: &shape };
        folded.loss(self.place).map_or(Ok(()), |lost| Err(Reject::Lost(lost)))
    }

    fn op(&mut self, op: OpId, n: &BuildNode, hint: Option<DType>) -> Built {
        let program = self.egraph.analysis.program.clone();
        let def = program.op(op);
        let terms: Vec<bool> = def.operands().map(|(_, p)| p.kind == ParamKind::Term).collect();
        let outer = std::mem::take(&mut self.views);
        let children = self.arguments(n, &|i| terms.get(i).copied().unwrap_or(false), hint, &mut Vec::new())?;
        let views = std::mem::replace(&mut self.views, outer);
        let rank = children.first().and_then(|c| class_type(self.egraph, *c)).map(|t| t.shape.len());
        let mut attrs = Vec::with_capacity(n.attrs.len());
        for (expr, (_, param)) in n.attrs.iter().zip(def.attrs()) {
            let value = self
                .eval(expr)
                .ok_or_else(|| ill_typed(format!("`{}` of `{}` cannot be computed", param.name, def.name)))?;
            attrs.push(Some(value));
        }
        let attrs = typing::normalise_attrs(def, &attrs, rank).map_err(|e| Reject::Type(e.to_string()))?;
        if let OpBody::Defined(bodies) = &def.body
            && !program.kernels.iter().any(|k| implements(&k.pattern, op))
        {
            let body = bodies.get(n.output as usize).ok_or_else(|| ill_typed("there is no such result"))?;
            return self.unfold(def, body, &children, attrs);
        }
        let attrs = self.egraph.analysis.attrs_id(attrs);
        let node = Node::new(Payload::Op(op, attrs), children);
        self.check_views(&node, views)?;
        let id = self.add(node)?;
        if has_several_results(def) { self.add(Node::new(Payload::Output(n.output), [id])) } else { Ok(id) }
    }

    /// An error if the op's terms say of an operand that it is a row, a column or whole, and it is none of the result.
    fn check_views(&mut self, node: &Node, views: Vec<(InView, Id)>) -> Result<(), Reject> {
        if views.is_empty() {
            return Ok(());
        }
        let types = node_types(self.egraph, node).map_err(Reject::Type)?;
        let Some(result) = types.first() else { return Ok(()) };
        for (view, id) in views {
            if let Some(ty) = class_type(self.egraph, id) {
                check_view(view, ty, &result.shape).map_err(Reject::Type)?;
            }
        }
        Ok(())
    }

    /// The body of an op that no kernel computes whole.
    fn unfold(&mut self, def: &OpDef, body: &Build, children: &[Id], attrs: Vec<AttrValue>) -> Built {
        if self.depth >= MAX_UNFOLD {
            return Err(ill_typed(format!("`{}` is defined by itself", def.name)));
        }
        let mut m = Match {
            roots: Vec::new(),
            slots: vec![Slot::Unbound; def.vars.len()],
            values: Bindings::default(),
            nodes: Vec::new(),
            pending: Vec::new(),
        };
        let mut attrs = attrs.into_iter();
        let mut next = children.iter();
        for (i, param) in def.params.iter().enumerate() {
            match &param.kind {
                ParamKind::Attr { .. } => {
                    m.values.values.extend(attrs.next().map(|v| (VarId(i as u32), v)));
                }
                ParamKind::Tensor { variadic: true, .. } => {
                    m.slots[i] = Slot::Classes(next.by_ref().copied().collect())
                }
                ParamKind::Term => m.slots[i] = next.next().map_or(Slot::Absent, |id| Slot::Class(*id)),
                ParamKind::Tensor { ty, .. } => {
                    let Some(ty_of) = next.next().map(|id| (*id, class_type(self.egraph, *id).cloned())) else {
                        continue;
                    };
                    m.slots[i] = match ty_of {
                        (id, Some(have)) => {
                            let _ = typing::match_type(ty, &have, &mut m.values);
                            Slot::Class(id)
                        }
                        (_, None) => Slot::Absent,
                    };
                }
            }
        }
        let hint = children.iter().find_map(|c| class_type(self.egraph, *c)).map(|t| t.dtype);
        let mut inner = Builder::new(self.egraph, &m, self.replaced, self.depth + 1);
        let id = inner.tensor(body, hint)?;
        self.last = inner.last;
        Ok(id)
    }

    fn term(&mut self, build: &Build) -> Built {
        match build {
            Build::Var(v) => self.variable(*v),
            // Terms compute in f32, or in f64, which holds more.
            Build::Number(expr) => {
                let bits = self.kept_number(expr, DType::F32)?.to_bits();
                self.add(Node::leaf(Payload::Lit(bits)))
            }
            Build::Else(v, other) if self.is_absent(*v) => self.term(other),
            Build::Else(v, _) => self.variable(*v),
            Build::Frozen(inner) => self.term(inner),
            Build::Absent => Err(ill_typed("an absent operand stands in an epilogue")),
            Build::If(guard, a, b) => {
                let branch = if self.truth(guard)? { a } else { b };
                self.term(branch)
            }
            Build::Node(n) => self.term_node(n),
        }
    }

    /// A tensor inside a term. A constant number is part of the term, not something to be read.
    fn read(&mut self, view: InView, id: Id) -> Built {
        let data = self.egraph[id].data;
        match (data.splat, self.egraph.analysis.data_type(&data)) {
            (Some(bits), Some(t)) if t.dtype.is_float() => self.add(Node::leaf(Payload::Lit(bits))),
            _ => {
                if view != InView::Broadcast {
                    self.views.push((view, id));
                }
                self.add(Node::new(Payload::In(view), [id]))
            }
        }
    }

    /// The pointwise work that a variable stands for, over these operands.
    fn region(&mut self, v: VarId, n: &BuildNode, hint: Option<DType>, term: bool) -> Built {
        let Some(Slot::Region(region)) = self.m.slots.get(v.index()) else {
            return Err(ill_typed("a variable stands for no pointwise work"));
        };
        let mut args = Vec::with_capacity(n.args.len());
        for arg in &n.args {
            let BuildArg::One(build) = arg else { return Err(ill_typed("pointwise work lacks an operand")) };
            args.push(if term { self.term(build)? } else { self.tensor(build, hint)? });
        }
        let mut made: Vec<Id> = Vec::with_capacity(region.steps.len());
        for step in &region.steps {
            let id = match step {
                Step::Argument(i) => *args.get(*i).ok_or_else(|| ill_typed("pointwise work lacks an operand"))?,
                Step::Operand(id) if term => {
                    let id = self.egraph.find(*id);
                    self.read(InView::Broadcast, id)?
                }
                Step::Operand(id) => self.egraph.find(*id),
                Step::Call(s, of) => {
                    let children: Vec<Id> = of.iter().map(|i| made[*i]).collect();
                    let payload = if term { Payload::Call(*s) } else { Payload::Scalar(*s) };
                    self.add(Node::new(payload, children))?
                }
            };
            made.push(id);
        }
        made.last().copied().ok_or_else(|| ill_typed("pointwise work without a step"))
    }

    fn term_node(&mut self, n: &BuildNode) -> Built {
        let one = |i: usize| match n.args.get(i) {
            Some(BuildArg::One(b)) => Ok(b),
            _ => Err(ill_typed("a function in an epilogue lacks its argument")),
        };
        match n.head {
            Head::Acc => self.add(Node::leaf(Payload::Acc)),
            Head::In(view) => {
                let id = self.tensor(one(0)?, None)?;
                self.read(view, id)
            }
            Head::Region(v) => self.region(v, n, None, true),
            Head::TermCast => {
                let to = n.attrs.first().and_then(|a| self.eval(a));
                let Some(AttrValue::DType(to)) = to else {
                    return Err(ill_typed("the type of a cast in an epilogue cannot be computed"));
                };
                let child = self.term(one(0)?)?;
                self.add(Node::new(Payload::TermCast(to), [child]))
            }
            Head::Scalar(s) => {
                let children: Vec<Id> = (0..n.args.len()).map(|i| self.term(one(i)?)).collect::<Result<_, _>>()?;
                self.add(Node::new(Payload::Call(s), children))
            }
            Head::Op(_) => Err(ill_typed("an op stands in an epilogue, where only scalars may")),
        }
    }
}
