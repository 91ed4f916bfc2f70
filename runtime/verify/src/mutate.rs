//! Mutation testing: rules broken on purpose, which verification must notice.
//!
//! In: a rule. Out: mutants, each with one small change (a guard dropped, operands swapped, a
//! constant or an axis changed, a function replaced by another) and a stable name for it.
//! Invariant: a mutant differs from its rule, and is a well-formed rule of the same Program. Not
//! every mutant is wrong: a person must review those that survive.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar, OVER_SECOND};
use hypatia_dsl::ir::{
    AExpr, AFn, AttrPat, AttrType, AttrValue, Build, BuildArg, Head, InView, OpBody, ParamKind, Pat, Program, Rule,
    ScalarBody,
};
use hypatia_dsl::scalar::TermNode;
use hypatia_dsl::shape::Dim;

use super::copies;

/// How the change of a rule is called in which two operands changed places.
pub(super) const SWAPPED: &str = "operands swapped";

/// A changed rule.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The change: `right side: sub: operands swapped (2)`. The number counts equal texts.
    pub change: String,
    /// The change without that number.
    pub base: String,
    /// Where the change is.
    pub site: Site,
    /// A bound of indices changed, which existing ones need not reach.
    pub bounds_indices: bool,
    /// The rule.
    pub rule: Rule,
}

/// Where a rule was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A guard.
    Guard,
    /// The left side.
    Left,
    /// A number, an attribute or operands of the right side.
    Right,
    /// A function of the right side.
    RightHead,
    /// A `let`.
    Let,
}

/// All mutants of a rule.
pub fn mutants(program: &Program, rule: &Rule) -> Vec<Mutant> {
    let mut out: Vec<Mutant> = (0..rule.requires.len())
        .map(|i| {
            let mut mutant = rule.clone();
            mutant.requires.remove(i);
            let change = format!("guard {} dropped", i + 1);
            Mutant { base: change.clone(), change, site: Site::Guard, bounds_indices: false, rule: mutant }
        })
        .collect();
    // Counts the places where something can be changed, then changes one at a time.
    let mut counter = Walker::to(program, usize::MAX);
    counter.rule(&mut rule.clone());
    for target in 0..counter.at {
        let mut mutant = rule.clone();
        let mut walker = Walker::to(program, target);
        walker.rule(&mut mutant);
        copies::follow(&rule.rhs, &mut mutant.rhs);
        if let Some((change, site, bounds_indices)) = walker.change
            && mutant != *rule
        {
            out.push(Mutant { base: change.clone(), change, site, bounds_indices, rule: mutant });
        }
    }
    for i in 0..out.len() {
        let same = out[..i]
            .iter()
            .filter(|m| m.change == out[i].change || m.change.starts_with(&format!("{} (", out[i].change)))
            .count();
        if same > 0 {
            out[i].change = format!("{} ({})", out[i].change, same + 1);
        }
    }
    out
}

struct Walker<'a> {
    program: &'a Program,
    target: usize,
    at: usize,
    /// What was changed, where, and whether it bounds indices.
    change: Option<(String, Site, bool)>,
    /// What is being walked.
    site: Site,
    /// The attribute that is being walked is a set of axes: their order says nothing.
    set: bool,
    /// What is walked computes indices, and is a bound of them.
    indexes: bool,
    bounds: bool,
}

impl<'a> Walker<'a> {
    fn to(program: &'a Program, target: usize) -> Walker<'a> {
        let site = Site::Left;
        Walker { program, target, at: 0, change: None, site, set: false, indexes: false, bounds: false }
    }

    /// True if this is the place to change.
    fn here(&mut self, change: impl FnOnce() -> String) -> bool {
        let here = self.at == self.target;
        self.at += 1;
        if here {
            self.change = Some((change(), self.site, self.bounds));
        }
        here
    }

    fn rule(&mut self, rule: &mut Rule) {
        for pat in &mut rule.lhs {
            self.pat(pat);
        }
        self.site = Site::Right;
        for build in &mut rule.rhs {
            self.build(build);
        }
        self.site = Site::Let;
        for (_, e) in &mut rule.lets {
            self.expr(e, "let");
        }
    }

    fn pat(&mut self, pat: &mut Pat) {
        match pat {
            Pat::Lit { value, .. } => {
                if self.here(|| format!("left side: number {value} changed")) {
                    *value = other_number(*value);
                }
            }
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.pat(p),
            Pat::OneOf(pats) => pats.iter_mut().for_each(|p| self.pat(p)),
            Pat::Node(node) => {
                if let Some(other) = self.other_head(node.head)
                    && self.here(|| {
                        format!(
                            "left side: {} for {}",
                            self_name(self.program, other),
                            self_name(self.program, node.head)
                        )
                    })
                {
                    node.head = other;
                }
                let name = self_name(self.program, node.head);
                if swappable(self.program, node.head, node.args.len())
                    && node.args[0] != node.args[1]
                    && self.here(|| format!("left side: {name}: {SWAPPED}"))
                {
                    node.args.swap(0, 1);
                }
                for (i, attr) in node.attrs.iter_mut().enumerate() {
                    self.set = is_set(self.program, node.head, i);
                    self.attr(attr, &name);
                    self.set = false;
                }
                node.operands_mut().for_each(|p| self.pat(p));
            }
            Pat::Any | Pat::Var(_) | Pat::Absent | Pat::Optional(_) => {}
        }
    }

    fn attr(&mut self, attr: &mut AttrPat, name: &str) {
        match attr {
            AttrPat::Is(e) => self.expr(e, &format!("left side: {name}")),
            AttrPat::List(items) => items.iter_mut().for_each(|a| self.attr(a, name)),
            AttrPat::Any | AttrPat::Var(_) | AttrPat::Rest(_) => {}
        }
    }

    fn build(&mut self, build: &mut Build) {
        match build {
            Build::Number(e) => self.expr(e, "right side: number"),
            Build::Else(_, b) | Build::Frozen(b) => self.build(b),
            Build::If(_, a, b) => {
                self.build(a);
                self.build(b);
            }
            Build::Node(node) => {
                let name = self_name(self.program, node.head);
                self.site = Site::RightHead;
                if let Some(other) = self.other_head(node.head)
                    && self.here(|| format!("right side: {} for {name}", self_name(self.program, other)))
                {
                    node.head = other;
                }
                self.site = Site::Right;
                if swappable(self.program, node.head, node.args.len())
                    && node.args[0] != node.args[1]
                    && self.here(|| format!("right side: {name}: {SWAPPED}"))
                {
                    node.args.swap(0, 1);
                }
                for (i, e) in node.attrs.iter_mut().enumerate() {
                    self.set = is_set(self.program, node.head, i);
                    self.expr(e, &format!("right side: {name}"));
                    self.set = false;
                }
                let before = (self.indexes, self.bounds);
                let (gathers, clamps) = (gathers(self.program, node.head), clamps(self.program, node.head));
                for (i, arg) in node.args.iter_mut().enumerate() {
                    self.indexes |= gathers && i == 1;
                    match arg {
                        BuildArg::One(b) => {
                            self.bounds |= self.indexes && clamps && matches!(b, Build::Number(_));
                            self.build(b);
                        }
                        BuildArg::Each { element, .. } => self.build(element),
                        BuildArg::Spread(_) => {}
                    }
                    (self.indexes, self.bounds) = before;
                }
            }
            Build::Var(_) | Build::Absent => {}
        }
    }

    /// Constants inside an attribute expression, and the order of `[p[i] for i in q]`.
    fn expr(&mut self, e: &mut AExpr, place: &str) {
        match e {
            AExpr::Value(v) => self.value(v, place),
            AExpr::Comprehension { element, over, .. } => {
                if let (AExpr::Index(list, _), AExpr::Var(_)) = (&mut **element, &**over)
                    && matches!(**list, AExpr::Var(_))
                    && **list != **over
                    && self.here(|| format!("{place}: lists of a comprehension swapped"))
                {
                    std::mem::swap(&mut **list, &mut **over);
                }
                self.expr(element, place);
                self.expr(over, place);
            }
            AExpr::List(items) => {
                let first_differs = items.len() > 1 && items[0] != items[1] && !self.set;
                if first_differs && self.here(|| format!("{place}: list reordered")) {
                    items.swap(0, 1);
                }
                items.iter_mut().for_each(|i| self.expr(i, place));
            }
            AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => self.expr(a, place),
            AExpr::Index(a, b) => {
                self.expr(a, place);
                self.expr(b, place);
            }
            AExpr::Binary(_, a, b) => {
                if a != b && self.here(|| format!("{place}: left part for the whole")) {
                    *e = (**a).clone();
                    return;
                }
                self.expr(a, place);
                self.expr(b, place);
            }
            AExpr::If(_, a, b) => {
                self.expr(a, place);
                self.expr(b, place);
            }
            // The order of these lists says nothing.
            AExpr::Call(AFn::Min | AFn::Max | AFn::Prod | AFn::Sum | AFn::Sort, args) => {
                for a in args {
                    match a {
                        AExpr::List(items) => items.iter_mut().for_each(|i| self.expr(i, place)),
                        a => self.expr(a, place),
                    }
                }
            }
            AExpr::Call(_, args) => args.iter_mut().for_each(|a| self.expr(a, place)),
            AExpr::Var(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => {}
        }
    }

    fn value(&mut self, value: &mut AttrValue, place: &str) {
        let shown = hypatia_graph::show_attr(value);
        match value {
            AttrValue::Dim(d) => {
                if let Some(c) = d.as_const()
                    && self.here(|| format!("{place}: {shown} changed"))
                {
                    *d = Dim::from(if c == 0 { 1 } else { c - 1 });
                }
            }
            AttrValue::Float(v) => {
                if self.here(|| format!("{place}: {shown} changed")) {
                    *v = other_number(*v);
                }
            }
            AttrValue::Bool(b) => {
                if self.here(|| format!("{place}: {shown} changed")) {
                    *b = !*b;
                }
            }
            AttrValue::List(items) => {
                let first_differs = items.len() > 1 && items[0] != items[1] && !self.set;
                if first_differs && self.here(|| format!("{place}: {shown} reordered")) {
                    items.swap(0, 1);
                }
                for item in items {
                    self.value(item, place);
                }
            }
            AttrValue::DType(_) | AttrValue::Str(_) => {}
        }
    }

    /// A function that is easily mistaken for this one.
    fn other_head(&self, head: Head) -> Option<Head> {
        match head {
            Head::Scalar(s) => {
                let ScalarBody::Builtin(b) = self.program.scalar(s).body else { return None };
                let other = match b {
                    BuiltinScalar::Add => BuiltinScalar::Sub,
                    BuiltinScalar::Sub => BuiltinScalar::Add,
                    BuiltinScalar::Mul => BuiltinScalar::Div,
                    BuiltinScalar::Div => BuiltinScalar::Mul,
                    BuiltinScalar::Max => BuiltinScalar::Min,
                    BuiltinScalar::Min => BuiltinScalar::Max,
                    BuiltinScalar::Lt => BuiltinScalar::Le,
                    BuiltinScalar::Le => BuiltinScalar::Lt,
                    BuiltinScalar::Sqrt => BuiltinScalar::Rsqrt,
                    BuiltinScalar::Rsqrt => BuiltinScalar::Sqrt,
                    BuiltinScalar::Exp => BuiltinScalar::Expm1,
                    BuiltinScalar::Log => BuiltinScalar::Log1p,
                    BuiltinScalar::Floor => BuiltinScalar::Ceil,
                    BuiltinScalar::And => BuiltinScalar::Or,
                    BuiltinScalar::Or => BuiltinScalar::And,
                    _ => return None,
                };
                self.program.builtin_scalar(other).map(Head::Scalar)
            }
            Head::Op(o) => {
                let OpBody::Builtin(b) = self.program.op(o).body else { return None };
                let other = match b {
                    BuiltinOp::Sum => BuiltinOp::Amax,
                    BuiltinOp::Amax => BuiltinOp::Amin,
                    BuiltinOp::Amin => BuiltinOp::Amax,
                    BuiltinOp::Mean => BuiltinOp::Sum,
                    _ => return None,
                };
                self.program.builtin_op(other).map(Head::Op)
            }
            Head::In(InView::Row) => Some(Head::In(InView::Col)),
            Head::In(InView::Col) => Some(Head::In(InView::Row)),
            Head::In(_) | Head::Acc | Head::Second | Head::TermCast | Head::Region(_) => None,
        }
    }
}

/// Another number; a whole one for a whole one, which integers hold too.
fn other_number(v: f64) -> f64 {
    match v {
        0.0 => 1.0,
        // Towards 0: a cast would saturate beyond 127 and -128 anyway.
        v if v.fract() == 0.0 && (100.0..1e6).contains(&v.abs()) => v - v.signum(),
        v if v.fract() == 0.0 && v.abs() < 100.0 => v + v.signum(),
        v => v * 1.25,
    }
}

fn self_name(program: &Program, head: Head) -> String {
    match head {
        Head::Op(o) => program.op(o).name.clone(),
        Head::Scalar(s) => program.scalar(s).name.clone(),
        Head::Acc => "acc".into(),
        Head::Second => OVER_SECOND.into(),
        Head::In(InView::Broadcast) => "in".into(),
        Head::In(InView::Row) => "row".into(),
        Head::In(InView::Col) => "col".into(),
        Head::In(InView::Full) => "full".into(),
        Head::TermCast => "round".into(),
        Head::Region(_) => "pointwise work".into(),
    }
}

/// True for an op whose second operand is indices.
fn gathers(program: &Program, head: Head) -> bool {
    use BuiltinOp::{Gather, GatherElements, GatherNd};
    let Head::Op(op) = head else { return false };
    matches!(program.op(op).body, OpBody::Builtin(Gather | GatherElements | GatherNd))
}

/// True for the larger or the smaller of two, and for what consists of these.
fn clamps(program: &Program, head: Head) -> bool {
    let Head::Scalar(scalar) = head else { return false };
    match &program.scalar(scalar).body {
        ScalarBody::Builtin(b) => matches!(b, BuiltinScalar::Max | BuiltinScalar::Min),
        ScalarBody::Term(term) => term.nodes.iter().all(|n| match n {
            TermNode::Call { scalar, .. } => clamps(program, Head::Scalar(*scalar)),
            TermNode::Param(_) => true,
            _ => false,
        }),
    }
}

/// True if attribute `i` is a set of axes.
fn is_set(program: &Program, head: Head, i: usize) -> bool {
    let Head::Op(op) = head else { return false };
    let kind = program.op(op).attrs().nth(i).map(|(_, p)| &p.kind);
    matches!(kind, Some(ParamKind::Attr { ty: AttrType::Axes, .. }))
}

/// True if swapping the first two operands can change the meaning.
fn swappable(program: &Program, head: Head, operands: usize) -> bool {
    operands >= 2
        && match head {
            Head::Scalar(s) => match program.scalar(s).body {
                ScalarBody::Builtin(b) => !b.commutes() && b != BuiltinScalar::Select,
                ScalarBody::Term(_) => true,
            },
            Head::Op(_) => true,
            _ => false,
        }
}
