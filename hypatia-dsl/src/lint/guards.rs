//! Lint for guards that can never hold: constantly false, or contradicting each other, or the types
//! of the ops that they are about.

use crate::ast::BinaryOp;
use crate::code;
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AExpr, AttrValue, DTypePat, Fact, Head, NodePat, OpDef, ParamKind, Pat, Program, TypePat, Var, VarId};
use crate::resolve::Resolved;
use crate::source::Span;
use crate::typing::{Bindings, NoFacts, eval, eval_guard, same_value, show_expr};

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for r in p.rules.iter().filter(|r| !r.derived && !resolved.trusts(r.origin.span)) {
        let mut guards = r.requires.clone();
        r.lhs.iter().for_each(|pattern| typed(p, pattern, &mut guards));
        check(&format!("rule `{}`", r.base_name), &r.vars, &guards, r.origin.span, out);
        check(&format!("rule `{}`", r.base_name), &r.vars, &r.prefer, r.origin.span, out);
    }
    for o in p.ops.iter().filter(|o| !resolved.trusts(o.origin.span)) {
        let mut guards = o.requires.clone();
        guards.extend(o.params.iter().enumerate().filter_map(|(i, of)| match &of.kind {
            ParamKind::Tensor { ty, .. } => Some(is_among(VarId(i as u32), types_of(o, ty)?)),
            _ => None,
        }));
        check(&format!("op `{}`", o.name), &o.vars, &guards, o.origin.span, out);
    }
    for k in p.kernels.iter().filter(|k| !resolved.trusts(k.origin.span)) {
        let mut guards = k.requires.clone();
        typed(p, &k.pattern, &mut guards);
        check(&format!("kernel `{}`", k.name), &k.vars, &guards, k.origin.span, out);
        check(&format!("the preference of kernel `{}`", k.name), &k.vars, &k.prefer, k.origin.span, out);
    }
}

fn check(what: &str, vars: &[Var], guards: &[AExpr], span: Option<Span>, out: &mut Vec<Diagnostic>) {
    let Some(span) = span else { return };
    let mut flat: Vec<&AExpr> = Vec::new();
    guards.iter().for_each(|g| conjuncts(g, &mut flat));
    for g in &flat {
        let value = eval_guard(g, &Bindings::default(), &NoFacts);
        if value.is_none() && says_all(g) {
            out.push(
                Diagnostic::warning(code::UNREACHABLE_GUARD, format!("{what} can never apply"), span)
                    .note(format!("`{}` has no value: a list is too long, or a number too large", show_expr(vars, g)))
                    .hint("fix the condition, or remove it"),
            );
            return;
        }
        if let Some(always) = never(g) {
            let (shown, of) = (show_expr(vars, g), show_expr(vars, always.of));
            out.push(
                Diagnostic::warning(code::UNREACHABLE_GUARD, format!("{what} can never apply"), span)
                    .note(format!("`{shown}` is never true: `{of}` is {}", always.is))
                    .hint("fix the condition, or remove it"),
            );
            return;
        }
        if value == Some(false) {
            out.push(
                Diagnostic::warning(code::UNREACHABLE_GUARD, format!("{what} can never apply"), span)
                    .note(format!("`{}` is always false", show_expr(vars, g)))
                    .hint("fix the condition, or remove it"),
            );
            return;
        }
    }
    for (i, a) in flat.iter().enumerate() {
        for b in &flat[i + 1..] {
            if contradict(a, b) {
                out.push(
                    Diagnostic::warning(code::UNREACHABLE_GUARD, format!("{what} can never apply"), span)
                        .note(format!("`{}` and `{}` are never both true", show_expr(vars, a), show_expr(vars, b)))
                        .hint("fix one of the conditions, or remove it"),
                );
                return;
            }
        }
    }
}

/// The guards `dtype(x) in [..]` that the ops of a pattern imply for its variables.
fn typed(p: &Program, pattern: &Pat, out: &mut Vec<AExpr>) {
    match pattern {
        Pat::Bind(_, of) | Pat::Typed(of, _) => typed(p, of, out),
        Pat::Node(NodePat { head, args, .. }) => {
            if let Head::Op(op) = head {
                let op = p.op(*op);
                let types = op.params.iter().filter_map(|of| match &of.kind {
                    ParamKind::Tensor { ty, .. } => Some(types_of(op, ty)),
                    _ => None,
                });
                let named = args.iter().zip(types).filter_map(|(arg, types)| Some(is_among(variable(arg)?, types?)));
                out.extend(named);
            }
            args.iter().for_each(|arg| typed(p, arg, out));
        }
        _ => {}
    }
}

fn variable(pattern: &Pat) -> Option<VarId> {
    match pattern {
        Pat::Var(v) | Pat::Bind(v, _) => Some(*v),
        Pat::Typed(of, _) => variable(of),
        _ => None,
    }
}

/// The element types that an operand of an op can have, if its declaration bounds them.
fn types_of(op: &OpDef, ty: &TypePat) -> Option<Vec<DType>> {
    match &ty.dtype {
        DTypePat::Is(d) => Some(vec![*d]),
        DTypePat::Var(v) => op.bounds.iter().find(|(of, _)| of == v).map(|(_, types)| types.clone()),
        _ => None,
    }
}

fn is_among(v: VarId, types: Vec<DType>) -> AExpr {
    let types = types.into_iter().map(|d| AExpr::Value(AttrValue::DType(d))).collect();
    AExpr::Binary(BinaryOp::In, Box::new(AExpr::Fact(Fact::DType, v)), Box::new(AExpr::List(types)))
}

/// True if nothing but numbers and texts occurs in an expression.
pub(super) fn says_all(e: &AExpr) -> bool {
    match e {
        AExpr::Value(_) => true,
        AExpr::Binary(_, a, b) | AExpr::Index(a, b) => says_all(a) && says_all(b),
        AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => says_all(a),
        AExpr::If(a, b, c) => [a, b, c].into_iter().all(|e| says_all(e)),
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().all(says_all),
        _ => false,
    }
}

fn conjuncts<'g>(g: &'g AExpr, out: &mut Vec<&'g AExpr>) {
    match g {
        AExpr::Binary(BinaryOp::And, a, b) => {
            conjuncts(a, out);
            conjuncts(b, out);
        }
        g => out.push(g),
    }
}

/// The values that satisfy a comparison with a constant.
enum Allowed {
    /// One of these.
    OneOf(Vec<AttrValue>),
    /// Integers or numbers in an interval, with each bound inclusive or exclusive.
    Range(f64, bool, f64, bool),
}

/// What an expression always is.
struct Always<'g> {
    of: &'g AExpr,
    /// In words.
    is: String,
}

/// What keeps a comparison with a constant from ever being true, if something does.
fn never(g: &AExpr) -> Option<Always<'_>> {
    let (e, wanted) = allowed(g)?;
    let inf = f64::INFINITY;
    let (has, is) = match e {
        AExpr::Binary(BinaryOp::Rem, of, by) => {
            let by = eval(by, &Bindings::default(), &NoFacts)?;
            let by = number(&by).filter(|by| *by > 0.0)?;
            match is_count(of) {
                true => (Allowed::Range(0.0, true, by, false), format!("from 0 to {}", by - 1.0)),
                false => (Allowed::Range(-by, false, by, false), format!("from {} to {}", 1.0 - by, by - 1.0)),
            }
        }
        e if is_count(e) => (Allowed::Range(0.0, true, inf, true), "at least 0".to_string()),
        _ => return None,
    };
    disjoint(&wanted, &has).then_some(Always { of: e, is })
}

/// True for sizes and numbers of things.
fn is_count(e: &AExpr) -> bool {
    match e {
        AExpr::Fact(fact, _) => matches!(fact, Fact::Rank | Fact::Numel | Fact::Count | Fact::Uses),
        AExpr::Index(list, _) => matches!(**list, AExpr::Fact(Fact::Shape, _)),
        _ => false,
    }
}

fn number(v: &AttrValue) -> Option<f64> {
    match v {
        AttrValue::Dim(d) => d.as_const().map(|c| c as f64),
        AttrValue::Float(f) => Some(*f),
        _ => None,
    }
}

/// Matches `e op constant` or `constant op e`.
fn allowed(g: &AExpr) -> Option<(&AExpr, Allowed)> {
    use BinaryOp::{Eq, Ge, Gt, In, Le, Lt};
    let AExpr::Binary(op, a, b) = g else { return None };
    let constant = |e: &AExpr| eval(e, &Bindings::default(), &NoFacts);
    let (e, v, op) = match (constant(a), constant(b)) {
        (None, Some(v)) => (&**a, v, *op),
        (Some(v), None) => {
            let turned = match op {
                Lt => Gt,
                Le => Ge,
                Gt => Lt,
                Ge => Le,
                Eq => Eq,
                _ => return None,
            };
            (&**b, v, turned)
        }
        _ => return None,
    };
    let inf = f64::INFINITY;
    Some((
        e,
        match (op, &v) {
            (Eq, _) => Allowed::OneOf(vec![v]),
            (In, AttrValue::List(l)) => Allowed::OneOf(l.clone()),
            (Lt, _) => Allowed::Range(-inf, true, number(&v)?, false),
            (Le, _) => Allowed::Range(-inf, true, number(&v)?, true),
            (Gt, _) => Allowed::Range(number(&v)?, false, inf, true),
            (Ge, _) => Allowed::Range(number(&v)?, true, inf, true),
            _ => return None,
        },
    ))
}

fn contradict(a: &AExpr, b: &AExpr) -> bool {
    let negation = |x: &AExpr, y: &AExpr| matches!(x, AExpr::Not(inner) if **inner == *y);
    if negation(a, b) || negation(b, a) {
        return true;
    }
    let (Some((x, ax)), Some((y, ay))) = (allowed(a), allowed(b)) else { return false };
    x == y && disjoint(&ax, &ay)
}

/// Whether no value satisfies both.
fn disjoint(one: &Allowed, other: &Allowed) -> bool {
    let inside = |v: &AttrValue, (lo, lc): (f64, bool), (hi, hc): (f64, bool)| {
        // Non-numbers are kept.
        number(v).is_none_or(|n| (n > lo || (lc && n == lo)) && (n < hi || (hc && n == hi)))
    };
    match (one, other) {
        (Allowed::OneOf(l), Allowed::OneOf(m)) => l.iter().all(|v| m.iter().all(|w| same_value(v, w) == Some(false))),
        (Allowed::OneOf(l), Allowed::Range(lo, lc, hi, hc)) | (Allowed::Range(lo, lc, hi, hc), Allowed::OneOf(l)) => {
            l.iter().all(|v| !inside(v, (*lo, *lc), (*hi, *hc)))
        }
        (Allowed::Range(a, ac, b, bc), Allowed::Range(c, cc, d, dc)) => {
            let (lo, lc) = if a > c || (a == c && !ac) { (a, ac) } else { (c, cc) };
            let (hi, hc) = if b < d || (b == d && !bc) { (b, bc) } else { (d, dc) };
            lo > hi || (lo == hi && !(*lc && *hc))
        }
    }
}
