//! Type-checks bodies and rules on small instances with symbolic and small sizes.
//!
//! In: checked ops and rules. Out: errors if a body's type is not the declared one, or if both
//! sides of a rule cannot have the same type; a warning if they have the same type for some element
//! types only. Invariant: only certain errors are reported; anything that depends on unknown values
//! passes.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::ast;
use crate::diag::Diagnostic;
use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AttrPat, AttrType, AttrValue, Build, BuildArg, BuildNode, DTypePat, Head, InView, NodePat, OpDef, OpGrad,
    ParamKind, Pat, Program, Rule, Sort, TypePat, VarId,
};
use crate::shape::Dim;
use crate::source::Span;
use crate::typing::{Bindings, TensorType, TypeError, codes, match_type};

use super::code;
use super::infer::Infer;
use super::instances::{Instance, concrete, describe, instances, locate};

/// Maximum number of combinations of ranks that are tried.
const MAX_TRIES: usize = 160;

/// Whether two sizes certainly differ for all values of their symbols.
fn differ(a: &Dim, b: &Dim) -> bool {
    match a.known_eq(b) {
        Some(equal) => !equal,
        None => [3i64, 5, 7].iter().all(|seed| {
            let lookup = |s: &str| Some(s.bytes().fold(*seed, |h, c| (h * 31 + i64::from(c)) % 97) + 2);
            matches!((a.eval(&lookup), b.eval(&lookup)), (Some(x), Some(y)) if x != y)
        }),
    }
}

fn types_differ(a: &TensorType, b: &TensorType) -> bool {
    a.dtype != b.dtype || a.shape.len() != b.shape.len() || a.shape.iter().zip(&b.shape).any(|(x, y)| differ(x, y))
}

/// The error for a body whose result `i` has another type than the declared one.
fn not_declared(def: &OpDef, op: &ast::Op, i: usize, [have, wanted]: [&TensorType; 2]) -> Diagnostic {
    let at = op.results.get(i).map_or(op.name.span, |r| r.ty.span);
    let body = op.body.as_ref().map_or(op.name.span, |b| b.span);
    let message = format!("the body of `{}` does not have the declared type", def.name);
    let d = Diagnostic::error(code::BODY_TYPE, message, body).label(format!("this has type {have}"));
    d.also(at, format!("declared as {wanted}")).hint(match have.shape == wanted.shape {
        true => {
            format!("declare the element type of the body, or convert the body: `cast(..., to = {})`", wanted.dtype)
        }
        false => "declare the shape of the body, or change the body to the declared shape".to_string(),
    })
}

/// Checks the body of an op. `nodes` are its applications with their spans, operands first.
pub(super) fn body(
    program: &Program,
    def: &OpDef,
    op: &ast::Op,
    bodies: &[Build],
    nodes: &[(Build, Span)],
) -> Option<Diagnostic> {
    let mut failure: Option<(TypeError, Instance)> = None;
    let mut passed = false;
    for inst in instances(def, None) {
        let lookup = |v: VarId| inst.types.get(&v).cloned();
        let mut infer = Infer::new(program, &lookup);
        infer.bindings = inst.bindings.clone();
        infer.absent = inst.absent.clone();
        if def.requires.iter().any(|g| infer.holds(g) != Some(true)) {
            return None; // implications of the guard for sizes are not used here
        }
        for (i, b) in bodies.iter().enumerate() {
            match infer.build(b) {
                Ok(None) => passed = true,
                Ok(Some(have)) => {
                    passed = true;
                    let Some(wanted) = def.results.get(i).and_then(|t| concrete(t, &inst.bindings)) else { continue };
                    if types_differ(&have, &wanted) {
                        let d = not_declared(def, op, i, [&have, &wanted]);
                        return Some(d.note(format!("with {}", describe(&def.vars, &inst.types, &inst.absent))));
                    }
                }
                Err(e) => {
                    failure = Some((
                        e,
                        Instance {
                            bindings: inst.bindings.clone(),
                            types: inst.types.clone(),
                            absent: inst.absent.clone(),
                        },
                    ));
                    break;
                }
            }
        }
    }
    let Some((error, inst)) = failure.filter(|_| !passed) else {
        // Some ranks type-check: users of the op get errors for the other ranks.
        return super::bounds::check(program, def, op, bodies, nodes);
    };
    let lookup = |v: VarId| inst.types.get(&v).cloned();
    let mut infer = Infer::new(program, &lookup);
    infer.bindings = inst.bindings.clone();
    infer.absent = inst.absent.clone();
    let (error, span) = locate(&infer, nodes).unwrap_or((error, op.body.as_ref().map_or(op.name.span, |b| b.span)));
    let mut d = Diagnostic::error(error.code, error.message, span)
        .label("in this body")
        .note(format!("with {}", describe(&def.vars, &inst.types, &inst.absent)));
    if let Some(h) = error.hint {
        d = d.hint(h);
    }
    Some(d)
}

/// Checks that the gradients of an op have the types of its operands. `nodes` are their
/// applications with their spans, operands first.
pub(super) fn gradients(
    program: &Program,
    def: &OpDef,
    op: &ast::Op,
    grad: &OpGrad,
    nodes: &[(Build, Span)],
) -> Option<Diagnostic> {
    let spans: Vec<Span> = op.grad.iter().flat_map(|g| super::ops::roots(&g.body)).map(|e| e.span).collect();
    let (mut failure, mut passed) = (None, false);
    for mut inst in instances(def, None) {
        for (i, pattern) in def.results.iter().enumerate() {
            let ty = concrete(pattern, &inst.bindings)?;
            for v in [i, i + def.results.len()] {
                inst.types.insert(VarId(grad.first.0 + v as u32), ty.clone());
            }
        }
        let lookup = |v: VarId| inst.types.get(&v).cloned();
        let mut infer = Infer::new(program, &lookup);
        infer.bindings = inst.bindings.clone();
        infer.absent = inst.absent.clone();
        if def.requires.iter().any(|g| infer.holds(g) != Some(true)) {
            return None; // as for bodies
        }
        for (i, (operand, b)) in grad.of.iter().enumerate() {
            let at = spans.get(i).copied().unwrap_or(op.name.span);
            let operand = VarId(*operand as u32);
            if inst.absent.contains(&operand) {
                continue;
            }
            let wanted = &inst.types[&operand];
            let with = describe(&grad.vars, &inst.types, &inst.absent);
            match infer.build(b) {
                Ok(None) => passed = true,
                Ok(Some(have)) if !types_differ(&have, wanted) => passed = true,
                Ok(Some(have)) => {
                    let name = &def.vars[operand.index()].name;
                    let d = Diagnostic::error(
                        code::BODY_TYPE,
                        format!("the gradient of `{name}` does not have its type"),
                        at,
                    );
                    let d = d.label(format!("this has type {have}, the operand {wanted}")).note(format!("with {with}"));
                    return Some(d.hint(
                        "sum over the axes along which the operand was broadcast; those of `..s` are \
                         `axes = [..range(len(s))], keepdims = false`",
                    ));
                }
                Err(e) => {
                    let (e, span) = locate(&infer, nodes).unwrap_or((e, at));
                    failure.get_or_insert((e, span, with));
                }
            }
        }
    }
    // Users of the op get errors for the ranks that do not type-check.
    let (error, span, with) = failure.filter(|_| !passed)?;
    let d = Diagnostic::error(error.code, error.message, span).label("in this gradient").note(format!("with {with}"));
    Some(match error.hint {
        Some(h) => d.hint(h),
        None => d,
    })
}

/// The result of one choice of ranks for a rule.
enum Verdict {
    /// The left side has no type with these ranks, or something is unknown.
    Nothing,
    /// Both sides agree, as far as is known.
    Agree,
    /// The sides differ: how, and with which operands.
    Differ(String, String),
    /// The right side has no type with these operands.
    NoType(TypeError, String),
}

/// What the sides of a rule are tried with.
struct Trial<'t> {
    /// The rank of each operand.
    ranks: &'t [usize],
    /// True if an axis is the first one, false if it is the last one.
    front: bool,
}

/// The tensors of a rule's left side.
fn leaves(r: &Rule) -> Vec<VarId> {
    let mut leaves: Vec<VarId> = Vec::new();
    for p in &r.lhs {
        super::walk::pat_vars(p, &mut |v| {
            if r.vars[v.index()].sort == Sort::Tensor && !leaves.contains(&v) {
                leaves.push(v);
            }
        });
    }
    leaves
}

/// The ranks that the operands of a left side are tried with: those that it says, and of up to
/// three others all combinations.
fn ranks(r: &Rule, leaves: &[VarId]) -> Vec<Vec<usize>> {
    let said: Vec<Option<usize>> = leaves.iter().map(|v| r.lhs.iter().find_map(|p| said_rank(p, *v))).collect();
    let open: Vec<usize> = (0..said.len()).filter(|i| said[*i].is_none()).collect();
    let combined = open.len() <= 3;
    let choices = if combined { 5usize.pow(open.len() as u32) } else { 5 };
    let of = |choice: usize| {
        let mut ranks: Vec<usize> = said.iter().map(|s| s.unwrap_or(choice)).collect();
        for (at, i) in open.iter().enumerate().filter(|_| combined) {
            ranks[*i] = choice / 5usize.pow(at as u32) % 5;
        }
        ranks
    };
    (0..choices).map(of).collect()
}

/// The rank of a variable that a pattern says: by its type, or by how a term reads it.
fn said_rank(p: &Pat, v: VarId) -> Option<usize> {
    let is = |p: &Pat| matches!(p, Pat::Var(w) if *w == v);
    match p {
        Pat::Typed(inner, TypePat { prefix, rest: None, suffix, .. }) if is(inner) => Some(prefix.len() + suffix.len()),
        Pat::Bind(_, p) | Pat::Typed(p, _) => said_rank(p, v),
        Pat::OneOf(l) => l.iter().find_map(|p| said_rank(p, v)),
        Pat::Node(n) => match (n.head, n.args.first()) {
            (Head::In(InView::Row), Some(arg)) if is(arg) => Some(1),
            _ => n.operands().find_map(|p| said_rank(p, v)),
        },
        _ => None,
    }
}

/// Whether some result of a rule can be an integer; `None` if its types are not known.
pub(super) fn gives_integers(program: &Program, r: &Rule) -> Option<bool> {
    let leaves = leaves(r);
    let mut known = None;
    for usual in DType::ALL {
        for ranks in ranks(r, &leaves).iter().take(MAX_TRIES) {
            let Some((_, left)) = left_side(program, r, &leaves, &Trial { ranks, front: false }, usual) else {
                continue;
            };
            if left.iter().any(|t| t.dtype.is_int()) {
                return Some(true);
            }
            known = Some(false);
            break;
        }
    }
    // An attribute may name the element type.
    let mut named = false;
    r.lhs.iter().for_each(|p| named |= has_open_dtype(r, p));
    known.filter(|_| !named)
}

/// Whether an attribute of a pattern can be any element type.
fn has_open_dtype(r: &Rule, p: &Pat) -> bool {
    let open = |a: &AttrPat| match a {
        AttrPat::Any => true,
        AttrPat::Var(v) => r.vars[v.index()].sort == Sort::DType,
        _ => false,
    };
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => has_open_dtype(r, p),
        Pat::OneOf(l) => l.iter().any(|p| has_open_dtype(r, p)),
        Pat::Node(n) => n.attrs.iter().any(open) || n.operands().any(|p| has_open_dtype(r, p)),
        _ => false,
    }
}

/// Checks that both sides of a rule can have the same type.
pub(super) fn rule(program: &Program, r: &Rule, right: Span, left: Span) -> Option<Diagnostic> {
    let leaves = leaves(r);
    let n = leaves.len();
    let tries = ranks(r, &leaves);
    // Most rules type-check on matrices: then no other ranks need to be tried.
    let matrices = Trial { ranks: &vec![2; n], front: false };
    if let Verdict::Agree = attempt(program, r, &leaves, &matrices, DType::F32) {
        return without_floats(program, r, &leaves, &matrices, (right, left));
    }
    let mut found: Option<(String, String)> = None;
    let tries = tries.iter().take(MAX_TRIES).flat_map(|ranks| [false, true].map(|front| Trial { ranks, front }));
    for trial in tries {
        let (typed, what, with) = match attempt(program, r, &leaves, &trial, DType::F32) {
            Verdict::Nothing => continue,
            Verdict::Agree => return without_floats(program, r, &leaves, &trial, (right, left)),
            Verdict::Differ(what, with) => (true, what, with),
            Verdict::NoType(e, with) => (false, format!("this has no type: {}", e.message), with),
        };
        // A type difference is more informative than a missing type.
        if found.is_none() || typed {
            found = Some((what, with));
        }
    }
    let (what, with) = found?;
    Some(
        Diagnostic::error(code::SIDES_TYPE, "both sides of a rule must have the same type", right)
            .label(what)
            .also(left, "the left side")
            .note(format!("with {with}; no other rank up to 4 fits either"))
            .hint("a rule must keep the element type and the shape: add a `cast`, `reshape` or `keepdims`"),
    )
}

/// The element types of leaves: bool for boolean operands, and those that a written type requires.
fn leaf_dtypes(program: &Program, p: &Pat, out: &mut HashMap<VarId, DType>) {
    match p {
        Pat::Bind(_, p) => leaf_dtypes(program, p, out),
        Pat::Typed(inner, t) => {
            if let (Pat::Var(v), DTypePat::Is(d)) = (&**inner, &t.dtype) {
                out.insert(*v, *d);
            }
            leaf_dtypes(program, inner, out);
        }
        Pat::OneOf(l) => l.iter().for_each(|p| leaf_dtypes(program, p, out)),
        Pat::Node(n) => {
            if let Head::Scalar(id) = n.head {
                for (a, (_, k)) in n.args.iter().zip(&program.scalar(id).params) {
                    if let (Pat::Var(v), Kind::Bool) = (a, k) {
                        out.insert(*v, DType::Bool);
                    }
                }
            }
            n.args.iter().for_each(|p| leaf_dtypes(program, p, out));
        }
        _ => {}
    }
}

struct Attempt<'p> {
    program: &'p Program,
    types: RefCell<HashMap<VarId, TensorType>>,
    bindings: Bindings,
    rank: usize,
    front: bool,
}

/// Warns about a rule whose left side matches integers although its right side has no type for
/// them: the rule is not applied there.
fn without_floats(
    program: &Program,
    r: &Rule,
    leaves: &[VarId],
    trial: &Trial<'_>,
    (right, left): (Span, Span),
) -> Option<Diagnostic> {
    let dtype = DType::I64;
    let claimed = r.claims.is_empty() || r.claims.iter().any(|c| c.dtypes.is_empty() || c.dtypes.contains(&dtype));
    let Verdict::NoType(e, with) = attempt(program, r, leaves, trial, dtype) else { return None };
    if !claimed || e.code != codes::DTYPE {
        return None;
    }
    let guard = match leaves.iter().map(|v| &r.vars[v.index()].name).find(|n| !n.starts_with('_')) {
        None => "state the element types: `class rounds for f64, f32, f16, bf16`".to_string(),
        Some(x) => format!("add `requires is_float(dtype({x}))`"),
    };
    let message = format!("the right side is undefined where the left side has element type {dtype}");
    Some(
        Diagnostic::warning(code::BOUND, message, right)
            .label(e.message)
            .also(left, "this matches it")
            .note(format!("with {with}"))
            .hint(guard),
    )
}

/// The types of a rule's left side with these ranks, and its variables. `None` if it has none, or
/// if a guard refuses them.
fn left_side<'p>(
    program: &'p Program,
    r: &Rule,
    leaves: &[VarId],
    trial: &Trial<'_>,
    usual: DType,
) -> Option<(Attempt<'p>, Vec<TensorType>)> {
    let Trial { ranks, front } = *trial;
    let mut dtypes = HashMap::new();
    r.lhs.iter().for_each(|p| leaf_dtypes(program, p, &mut dtypes));
    let types: HashMap<VarId, TensorType> = leaves
        .iter()
        .zip(ranks)
        .map(|(v, n)| {
            let dtype = dtypes.get(v).copied().unwrap_or(usual);
            (*v, TensorType { dtype, shape: vec![Dim::from(2); *n] })
        })
        .collect();
    let rank = ranks.first().copied().unwrap_or(0);
    let mut a = Attempt { program, types: RefCell::new(types), bindings: Bindings::default(), rank, front };
    // A variable that names an inner node has the node's type.
    let left = r.lhs.iter().map(|p| a.pat(p)).collect::<Option<Vec<TensorType>>>()?;
    let lookup = |v: VarId| a.types.borrow().get(&v).cloned();
    let mut infer = Infer::new(program, &lookup);
    infer.bindings = a.bindings.clone();
    for (v, e) in &r.lets {
        let value = infer.value(e)?;
        infer.bindings.values.insert(*v, value);
    }
    let refused = r.requires.iter().any(|g| infer.holds(g) == Some(false));
    let bindings = std::mem::take(&mut infer.bindings);
    a.bindings = bindings;
    (!refused).then_some((a, left))
}

fn attempt(program: &Program, r: &Rule, leaves: &[VarId], trial: &Trial<'_>, usual: DType) -> Verdict {
    let Some((a, left)) = left_side(program, r, leaves, trial, usual) else { return Verdict::Nothing };
    let lookup = |v: VarId| a.types.borrow().get(&v).cloned();
    let mut infer = Infer::new(program, &lookup);
    infer.bindings = a.bindings.clone();
    let shown = || describe(&r.vars, &leaves.iter().filter_map(|v| Some((*v, lookup(*v)?))).collect(), &[]);
    for (b, t) in r.rhs.iter().zip(&left) {
        match infer.build(b) {
            Ok(None) => return Verdict::Agree,
            Ok(Some(have)) if have != *t => {
                return Verdict::Differ(format!("this has type {have}, the left side has {t}"), shown());
            }
            Ok(Some(_)) => {}
            Err(e) => return Verdict::NoType(e, shown()),
        }
    }
    Verdict::Agree
}

impl Attempt<'_> {
    /// The type of a pattern; `None` if it has no type with these ranks, or if it is unknown.
    fn pat(&mut self, p: &Pat) -> Option<TensorType> {
        match p {
            Pat::Var(v) => self.types.borrow().get(v).cloned(),
            Pat::Bind(v, p) => {
                let t = self.pat(p)?;
                self.types.borrow_mut().insert(*v, t.clone());
                Some(t)
            }
            Pat::Typed(p, ty) => {
                let t = self.pat(p)?;
                (match_type(ty, &t, &mut self.bindings) == Some(true)).then_some(t)
            }
            Pat::Node(n) => self.node(n),
            Pat::OneOf(l) => self.pat(l.first()?),
            Pat::Any | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => None,
        }
    }

    fn node(&mut self, n: &NodePat) -> Option<TensorType> {
        if n.rest.is_some() {
            return None;
        }
        let mut args = Vec::new();
        for (i, p) in n.args.iter().enumerate() {
            args.push(BuildArg::One(match p {
                Pat::Lit { value, .. } => Build::Number(AExpr::Value(AttrValue::Float(*value))),
                Pat::Absent => Build::Absent,
                _ if self.is_term(n.head, i) => Build::Absent,
                _ => {
                    let t = self.pat(p)?;
                    // A placeholder variable, far beyond the rule's own variables.
                    let v = VarId(u32::MAX - self.types.borrow().len() as u32);
                    self.types.borrow_mut().insert(v, t);
                    Build::Var(v)
                }
            }));
        }
        if let Head::Op(id) = n.head {
            // Terms have no tensor type.
            let terms: Vec<bool> = self.program.op(id).operands().map(|(_, p)| p.kind == ParamKind::Term).collect();
            let mut i = 0;
            args.retain(|_| {
                i += 1;
                !terms.get(i - 1).copied().unwrap_or(false)
            });
        }
        let first = args.first().and_then(|a| match a {
            BuildArg::One(Build::Var(v)) => self.types.borrow().get(v).map(|t| t.shape.len()),
            _ => None,
        });
        let attrs = self.attrs(n, first.unwrap_or(self.rank))?;
        let node = Build::Node(BuildNode { head: n.head, args, attrs, output: n.output });
        let lookup = |v: VarId| self.types.borrow().get(&v).cloned();
        let mut infer = Infer::new(self.program, &lookup);
        infer.bindings = self.bindings.clone();
        infer.build(&node).ok().flatten()
    }

    fn is_term(&self, head: Head, i: usize) -> bool {
        match head {
            Head::Op(id) => self.program.op(id).operands().nth(i).is_some_and(|(_, p)| p.kind == ParamKind::Term),
            _ => false,
        }
    }

    /// Values for the attributes of a pattern; variables get a plausible value.
    fn attrs(&mut self, n: &NodePat, rank: usize) -> Option<Vec<AExpr>> {
        let Head::Op(id) = n.head else { return Some(Vec::new()) };
        let types: Vec<AttrType> = self
            .program
            .op(id)
            .attrs()
            .filter_map(|(_, p)| if let ParamKind::Attr { ty, .. } = p.kind { Some(ty) } else { None })
            .collect();
        n.attrs.iter().zip(types).map(|(a, ty)| self.attr(a, ty, rank)).collect()
    }

    fn attr(&mut self, a: &AttrPat, ty: AttrType, rank: usize) -> Option<AExpr> {
        match a {
            AttrPat::Is(e) => Some(e.clone()),
            AttrPat::Any => Some(AExpr::Value(likely(ty, rank, self.front)?)),
            AttrPat::Var(v) => {
                if let Some(x) = self.bindings.values.get(v) {
                    return Some(AExpr::Value(x.clone()));
                }
                let x = likely(ty, rank, self.front)?;
                self.bindings.values.insert(*v, x.clone());
                Some(AExpr::Value(x))
            }
            AttrPat::List(l) => {
                let element = if ty == AttrType::Axes { AttrType::Axis } else { AttrType::Dim };
                Some(AExpr::List(l.iter().map(|a| self.attr(a, element, rank)).collect::<Option<_>>()?))
            }
            AttrPat::Rest(_) => None,
        }
    }
}

/// A plausible value of an attribute whose op has a first operand of that rank. Axes count from the
/// front, as they do in graphs: rules compute with them.
fn likely(ty: AttrType, rank: usize, front: bool) -> Option<AttrValue> {
    let dims = |l: Vec<i64>| AttrValue::List(l.into_iter().map(|d| AttrValue::Dim(Dim::from(d))).collect());
    let axis = if front { 0 } else { rank as i64 - 1 };
    Some(match ty {
        AttrType::Axis => AttrValue::Dim(Dim::from(axis)),
        AttrType::Axes => dims(vec![axis]),
        AttrType::Ints => dims((0..rank as i64).rev().collect()),
        AttrType::Dims => dims(vec![2; rank]),
        AttrType::Bool => AttrValue::Bool(true),
        AttrType::DType => AttrValue::DType(DType::F32),
        AttrType::Dim => AttrValue::Dim(Dim::from(2)),
        AttrType::Int => AttrValue::Dim(Dim::from(1)),
        AttrType::Float => AttrValue::Float(1.0),
        AttrType::Floats | AttrType::Str => return None,
    })
}
