//! The numbers in a rule's text, so that instances cover them.
//!
//! In: a rule and its Program. Out: sizes of axes and elements of tensors at which the rule may
//! behave differently: the constants of guards, types and attributes, and the literals of both
//! sides, including those inside the scalars and ops that they call. Invariant: the order is that
//! of the text, so that one seed gives one report.

use std::collections::{BTreeMap, BTreeSet};

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AFn, AttrPat, AttrType, AttrValue, Build, BuildArg, DTypePat, DimPat, Fact, Head, OpBody, OpId, ParamKind,
    Pat, Program, RestPat, Rule, ScalarBody, ScalarId, TypePat,
};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_dsl::typing::{Bindings, NoFacts, eval};

/// Larger sizes are not tried.
const MAX_SIZE: i64 = 4096;
/// Such ones are tried where sums of integers may leave their range.
const MAX_LONG: i64 = 150_000;
/// The limit for a size that only occurs on the right side or in an op's body: a rule rarely
/// depends on those.
const MAX_FAR_SIZE: i64 = 64;
/// The largest number of elements of a tensor, whatever sizes a rule names.
const MAX_ELEMENTS: i64 = 1 << 16;
/// Larger ranks, list lengths and operand counts are not tried.
const MAX_COUNT: i64 = 16;
/// The number of sizes and of literals that are kept.
const MAX_SIZES: usize = 24;
const MAX_LITERALS: usize = 24;
/// The number of literals that the elements of ensembles lie around.
const MAX_CENTRES: usize = 4;

/// The constants of one rule.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    /// Sizes to try in addition to the usual ones: constants and their neighbours.
    pub sizes: Vec<i64>,
    /// Sizes that guards and types name and that are beyond the usual ones.
    pub long: Vec<i64>,
    /// The largest size that a guard or a type names.
    pub largest: i64,
    /// Ranks, list lengths and operand counts to try: the numbers that the rule compares them with,
    /// and their neighbours.
    pub counts: Vec<i64>,
    /// Numbers that elements are compared or combined with, and their neighbours, by element type.
    elements: BTreeMap<DType, Vec<f64>>,
    /// The numbers other than 0 that both sides compute with, as they are written.
    pub centres: Vec<f64>,
    /// The magnitudes of all numbers other than 0 in the text, sorted.
    pub magnitudes: Vec<f64>,
    /// A guard or a type requires tensors without elements.
    pub empty: bool,
    /// The element types that the text names.
    pub dtypes: BTreeSet<DType>,
}

impl Constants {
    /// The constants of a rule.
    pub fn of(program: &Program, rule: &Rule) -> Constants {
        let mut reader = Reader::new(program);
        rule.requires.iter().for_each(|g| reader.guard(g));
        rule.lets.iter().for_each(|(_, e)| reader.expr(e));
        rule.lhs.iter().for_each(|p| reader.pat(p));
        reader.context = Context::Right;
        rule.rhs.iter().for_each(|b| reader.build(b));
        let Reader { near, far_sizes, moduli, literals, centres, empty, counts, dtypes, .. } = reader;
        let mut sizes: Vec<i64> = Vec::new();
        let mut add = |n: i64| {
            if n > 0 && n <= MAX_SIZE && !sizes.contains(&n) && sizes.len() < MAX_SIZES {
                sizes.push(n);
            }
        };
        // All constants before their neighbours.
        near.iter().for_each(|n| add(*n));
        // Two guards on one size: `n % 6 == 0, n % 4 == 0`.
        moduli.iter().flat_map(|a| moduli.iter().map(|b| lcm(*a, *b))).for_each(&mut add);
        // Multiples by factors that are no powers of two.
        moduli.iter().flat_map(|n| [n.saturating_mul(3), n.saturating_mul(6)]).for_each(&mut add);
        far_sizes.iter().for_each(|n| add(n.saturating_add(1)));
        near.iter().flat_map(|n| [n.saturating_mul(2), n + 1, n - 1]).for_each(&mut add);
        // `4 * n == 256`
        let quotients =
            near.iter().flat_map(|a| near.iter().filter(move |b| **b > 1 && a % **b == 0).map(move |b| a / b));
        quotients.for_each(&mut add);
        far_sizes.iter().for_each(|n| add(*n));
        let long = near.iter().copied().filter(|n| (MAX_SIZE + 1..=MAX_LONG).contains(n)).collect();
        let largest = near.into_iter().filter(|n| *n <= MAX_SIZE).max().unwrap_or(0);
        let elements = DType::ALL.into_iter().map(|d| (d, around(&literals, d))).collect();
        let mut magnitudes: Vec<f64> = literals.iter().chain(&centres).map(|v| v.abs()).collect();
        magnitudes.retain(|v| *v > 0.0);
        magnitudes.sort_by(f64::total_cmp);
        magnitudes.dedup();
        Constants { largest, sizes, long, counts, elements, centres, magnitudes, empty, dtypes }
    }

    /// The literals and their neighbours, as elements of this type.
    pub fn elements(&self, dtype: DType) -> &[f64] {
        self.elements.get(&dtype).map_or(&[], Vec::as_slice)
    }

    /// The number of elements that a tensor may have, so that two axes may have the largest size;
    /// `usual` where the rule names no size.
    pub fn room(&self, usual: i64) -> i64 {
        (self.largest * self.largest * 2).clamp(usual, MAX_ELEMENTS.max(usual))
    }
}

fn around(literals: &[f64], dtype: DType) -> Vec<f64> {
    let mut out: Vec<f64> = Vec::new();
    for x in literals {
        let at = dtype.round(*x);
        let step = if dtype.is_float() { super::differ::ulp(dtype, at) } else { 1.0 };
        // A square, or a product of two operands, equals the literal at its root, and slightly
        // exceeds it slightly above the root.
        let root = if dtype.is_float() { x.abs().sqrt() } else { at };
        for v in [at, at + step, at - step, at + 1.0, at - 1.0, -at, root, root * 1.004, -root * 1.004] {
            let v = dtype.round(v);
            if v.is_finite() && !out.contains(&v) {
                out.push(v);
            }
        }
    }
    out
}

fn lcm(a: i64, b: i64) -> i64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

/// The part of the rule that is being read.
#[derive(Clone, Copy, PartialEq)]
enum Context {
    /// Guards, types and the left side.
    Left,
    /// The right side. A rule rarely depends on a bare number here, but it may depend on one that
    /// is compared or computed with.
    Right,
    /// The body of an op.
    Body,
}

struct Reader<'a> {
    program: &'a Program,
    /// Sizes from guards, types and the left side's attributes, and sizes that attributes of the
    /// right side are computed from.
    near: Vec<i64>,
    /// Sizes from the right side and from bodies.
    far_sizes: Vec<i64>,
    counts: Vec<i64>,
    moduli: Vec<i64>,
    literals: Vec<f64>,
    centres: Vec<f64>,
    empty: bool,
    dtypes: BTreeSet<DType>,
    context: Context,
    seen_ops: BTreeSet<OpId>,
    seen_scalars: BTreeSet<ScalarId>,
}

impl<'a> Reader<'a> {
    fn new(program: &'a Program) -> Reader<'a> {
        Reader {
            program,
            near: Vec::new(),
            far_sizes: Vec::new(),
            moduli: Vec::new(),
            literals: Vec::new(),
            centres: Vec::new(),
            empty: false,
            dtypes: BTreeSet::new(),
            counts: Vec::new(),
            context: Context::Left,
            seen_ops: BTreeSet::new(),
            seen_scalars: BTreeSet::new(),
        }
    }

    fn size(&mut self, n: i64) {
        if self.context != Context::Left {
            if (2..=MAX_FAR_SIZE).contains(&n) && !self.far_sizes.contains(&n) {
                self.far_sizes.push(n);
            }
        } else if n > 1 && !self.near.contains(&n) {
            self.near.push(n);
        }
    }

    /// A number that elements are combined with.
    fn number(&mut self, v: f64) {
        if v.is_finite() && v != 0.0 && !self.centres.contains(&v.abs()) && self.centres.len() < MAX_CENTRES {
            self.centres.push(v.abs());
        }
        self.literal(v);
    }

    fn literal(&mut self, v: f64) {
        // Every tensor holds the usual values anyway.
        let usual = v.fract() == 0.0 && v.abs() <= 2.0;
        if v.is_finite() && !usual && !self.literals.contains(&v) && self.literals.len() < MAX_LITERALS {
            self.literals.push(v);
        }
    }

    /// A guard that must hold.
    fn guard(&mut self, e: &AExpr) {
        match e {
            AExpr::Binary(BinaryOp::And | BinaryOp::Or, a, b) => {
                self.guard(a);
                self.guard(b);
            }
            AExpr::Binary(op, a, b) => {
                let is = |e: &AExpr, n: i64| matches!(e, AExpr::Value(AttrValue::Dim(d)) if d.as_const() == Some(n));
                // `dim(x, 0) == 0`, not `dim(x, 0) % 8 == 0`.
                self.empty |= match op {
                    BinaryOp::Eq | BinaryOp::Le => is(b, 0) && is_size(a),
                    BinaryOp::Lt => is(b, 1) && is_size(a),
                    _ => false,
                } || (*op == BinaryOp::Eq && is(a, 0) && is_size(b));
                self.expr(e);
            }
            _ => self.expr(e),
        }
    }

    fn expr(&mut self, e: &AExpr) {
        // `3 * 9` names 27.
        if let AExpr::Binary(..) | AExpr::Call(..) = e
            && let Some(v @ (AttrValue::Dim(_) | AttrValue::Float(_))) = eval(e, &Bindings::default(), &NoFacts)
        {
            self.value(&v);
        }
        match e {
            AExpr::Value(v) => self.value(v),
            AExpr::Binary(op, a, b) => {
                if let (BinaryOp::Rem, AExpr::Value(AttrValue::Dim(d))) = (op, &**b)
                    && let Some(n) = d.as_const().filter(|n| *n > 1)
                {
                    self.moduli.push(n);
                }
                self.count(*op, a, b);
                self.count(*op, b, a);
                self.expr(a);
                self.expr(b);
            }
            AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => self.expr(a),
            AExpr::Index(list, at) => {
                self.expr(list);
                if !matches!(**at, AExpr::Value(_)) {
                    self.expr(at);
                }
            }
            AExpr::If(a, b, c) => [a, b, c].into_iter().for_each(|x| self.expr(x)),
            AExpr::List(l) | AExpr::Call(_, l) => {
                if let AExpr::Call(AFn::Slice, _) = e {
                    l.iter().for_each(|x| self.cut(x));
                }
                l.iter().for_each(|x| self.expr(x));
            }
            AExpr::Comprehension { element, over, condition, .. } => {
                self.expr(element);
                self.expr(over);
                condition.iter().for_each(|c| self.expr(c));
            }
            AExpr::Var(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => {}
        }
    }

    /// An expression of the right side that decides or computes something: its numbers count like
    /// those of guards.
    fn computed(&mut self, e: &AExpr) {
        let context = self.context;
        if context == Context::Right {
            self.context = Context::Left;
        }
        self.expr(e);
        self.context = context;
    }

    /// A list that is cut there is most likely treated wrongly where more is behind.
    fn cut(&mut self, at: &AExpr) {
        let AExpr::Value(AttrValue::Dim(d)) = at else { return };
        for n in d.as_const().filter(|n| (1..MAX_COUNT).contains(n)).into_iter().flat_map(|n| [n + 1, n + 2]) {
            if !self.counts.contains(&n) {
                self.counts.push(n);
            }
        }
    }

    /// Collects the numbers that ranks, lengths and operand counts are compared with.
    fn count(&mut self, op: BinaryOp, a: &AExpr, b: &AExpr) {
        use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
        let AExpr::Value(AttrValue::Dim(d)) = b else { return };
        if let Some(n) = d.as_const().filter(|n| (0..=MAX_COUNT).contains(n))
            && is_count(a)
            && matches!(op, Eq | Ne | Lt | Le | Gt | Ge)
        {
            for n in [n, n + 1, n - 1] {
                if n >= 0 && !self.counts.contains(&n) {
                    self.counts.push(n);
                }
            }
        }
    }

    fn value(&mut self, v: &AttrValue) {
        match v {
            AttrValue::Dim(d) => d.as_const().into_iter().for_each(|n| self.size(n)),
            AttrValue::Float(f) => self.literal(*f),
            AttrValue::List(l) => l.iter().for_each(|v| self.value(v)),
            AttrValue::DType(d) => drop(self.dtypes.insert(*d)),
            AttrValue::Bool(_) | AttrValue::Str(_) => {}
        }
    }

    fn ty(&mut self, ty: &TypePat) {
        match &ty.dtype {
            DTypePat::Expr(e) => self.expr(e),
            DTypePat::Is(d) => drop(self.dtypes.insert(*d)),
            DTypePat::Any | DTypePat::Var(_) => {}
        }
        for dim in ty.prefix.iter().chain(&ty.suffix) {
            if let DimPat::Expr(e) = dim {
                let zero = |v: &AttrValue| matches!(v, AttrValue::Dim(d) if d.as_const() == Some(0));
                self.empty |= eval(e, &Bindings::default(), &NoFacts).as_ref().is_some_and(zero);
                self.expr(e);
            }
        }
        if let Some(RestPat::Expr(e)) = &ty.rest {
            self.expr(e);
        }
    }

    fn pat(&mut self, pat: &Pat) {
        match pat {
            Pat::Bind(_, p) => self.pat(p),
            Pat::Typed(p, ty) => {
                self.ty(ty);
                self.pat(p);
            }
            Pat::Lit { value, .. } => self.number(*value),
            Pat::OneOf(pats) => pats.iter().for_each(|p| self.pat(p)),
            Pat::Node(n) => {
                for (i, a) in n.attrs.iter().enumerate() {
                    if !self.is_axis(n.head, i) {
                        self.attr(a);
                    }
                }
                n.operands().for_each(|p| self.pat(p));
                self.head(n.head);
            }
            Pat::Any | Pat::Var(_) | Pat::Absent | Pat::Optional(_) => {}
        }
    }

    fn attr(&mut self, attr: &AttrPat) {
        match attr {
            AttrPat::Is(e) => self.expr(e),
            AttrPat::List(l) => l.iter().for_each(|a| self.attr(a)),
            AttrPat::Any | AttrPat::Var(_) | AttrPat::Rest(_) => {}
        }
    }

    fn build(&mut self, build: &Build) {
        match build {
            Build::Number(AExpr::Value(AttrValue::Dim(d))) => {
                d.as_const().into_iter().for_each(|n| self.number(n as f64))
            }
            Build::Number(AExpr::Value(AttrValue::Float(v))) => self.number(*v),
            Build::Number(e) => self.computed(e),
            Build::Node(n) => {
                for (i, e) in n.attrs.iter().enumerate() {
                    if let AExpr::Value(_) = e {
                        if !self.is_axis(n.head, i) {
                            self.expr(e);
                        }
                    } else {
                        self.computed(e);
                    }
                }
                for arg in &n.args {
                    match arg {
                        BuildArg::One(b) | BuildArg::Each { element: b, .. } => self.build(b),
                        BuildArg::Spread(_) => {}
                    }
                }
                self.head(n.head);
            }
            Build::Else(_, b) | Build::Frozen(b) => self.build(b),
            Build::If(c, a, b) => {
                self.computed(c);
                self.build(a);
                self.build(b);
            }
            Build::Var(_) | Build::Absent => {}
        }
    }

    /// True if attribute `i` names axes rather than sizes.
    fn is_axis(&self, head: Head, i: usize) -> bool {
        let Head::Op(op) = head else { return false };
        let kind = self.program.op(op).attrs().nth(i).map(|(_, p)| &p.kind);
        matches!(kind, Some(ParamKind::Attr { ty: AttrType::Axis | AttrType::Axes, .. }))
    }

    /// Reads the definition of a scalar or an op.
    fn head(&mut self, head: Head) {
        match head {
            Head::Scalar(s) => self.scalar(s),
            Head::Op(op) if self.seen_ops.insert(op) => {
                let def = self.program.op(op);
                if matches!(def.body, OpBody::Builtin(_)) {
                    return;
                }
                // Instances must also satisfy what the op requires of its operands.
                def.requires.iter().for_each(|g| self.guard(g));
                for param in &def.params {
                    if let ParamKind::Tensor { ty, .. } = &param.kind {
                        self.ty(ty);
                    }
                }
                let context = std::mem::replace(&mut self.context, Context::Body);
                if let OpBody::Defined(bodies) = &def.body {
                    bodies.iter().for_each(|b| self.build(b));
                }
                self.context = context;
            }
            _ => {}
        }
    }

    fn scalar(&mut self, id: ScalarId) {
        if self.seen_scalars.insert(id)
            && let ScalarBody::Term(term) = &self.program.scalar(id).body
        {
            self.term(term);
        }
    }

    fn term(&mut self, term: &Term) {
        for node in &term.nodes {
            match node {
                TermNode::Lit(l) => self.number(l.0),
                TermNode::Call { scalar, .. } => self.scalar(*scalar),
                _ => {}
            }
        }
    }
}

/// The literals of a scalar, including those of the scalars that it calls.
pub(super) fn literals_of(program: &Program, id: ScalarId) -> Vec<f64> {
    let mut reader = Reader::new(program);
    reader.scalar(id);
    reader.literals
}

/// True for a rank, a length or an operand count.
fn is_count(e: &AExpr) -> bool {
    matches!(e, AExpr::Fact(Fact::Rank | Fact::Count, _) | AExpr::Call(AFn::Len, _))
}

/// True for a size or an element count, without arithmetic on it.
fn is_size(e: &AExpr) -> bool {
    match e {
        AExpr::Index(list, _) => is_size(list),
        AExpr::Fact(f, _) => matches!(f, Fact::Shape | Fact::Numel),
        AExpr::Var(_) => true,
        _ => false,
    }
}
