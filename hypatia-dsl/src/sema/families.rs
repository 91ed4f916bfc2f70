//! Families: what the binders of a rule stand for.
//!
//! In: the binders of a `rule` item, or the members of a `family`. Out: the members of each, and
//! the choices of one member of each. Invariant: all members of a family take the same arguments.

use crate::ast::{self, Expr, ExprKind};
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{Head, ScalarId, VarId};
use crate::resolve::Space;
use crate::spell::closest;

use super::context::{Callee, Cx};
use super::{Sema, code};

/// What a binder stands for.
#[derive(Clone, Copy)]
pub(super) enum Member {
    Head(Head),
    DType(DType),
}

/// The members of each binder.
pub(super) fn families(cx: &mut Cx<'_>, r: &ast::Rule) -> Option<Vec<(String, Vec<Member>)>> {
    let mut out: Vec<(String, Vec<Member>)> = Vec::new();
    for b in &r.binders {
        if out.iter().any(|(n, _)| *n == b.name.node) {
            return cx.error(code::DUPLICATE, format!("`{}` is bound twice", b.name.node), b.name.span);
        }
        let members = match (&b.family.kind, dtype_set(cx, &b.family)) {
            (_, Some(dtypes)) => dtypes?.into_iter().map(Member::DType).collect(),
            (ExprKind::Path(p), _) if is_pointwise(cx, p) => vec![Member::Head(Head::Region(VarId(u32::MAX)))],
            _ => family(cx, &b.family)?.into_iter().map(Member::Head).collect(),
        };
        out.push((b.name.node.clone(), members));
    }
    Some(out)
}

/// Choice number `n` of a member of each family.
pub(super) fn choice(families: &[(String, Vec<Member>)], n: usize) -> Vec<(String, Member)> {
    let mut choice = Vec::new();
    let mut rest = n;
    for (name, members) in families.iter().rev() {
        choice.push((name.clone(), members[rest % members.len()]));
        rest /= members.len();
    }
    choice.reverse();
    choice
}

/// True for the keyword that binds pointwise work, unless a family has that name.
fn is_pointwise(cx: &Cx<'_>, p: &ast::Path) -> bool {
    p.text() == "pointwise" && cx.s.family_of(cx.file(), p).is_none()
}

/// The members of a family expression.
pub(super) fn family(cx: &mut Cx<'_>, e: &Expr) -> Option<Vec<Head>> {
    if let ExprKind::Path(p) = &e.kind
        && let Some(d) = unknown_family(cx, p)
    {
        return if cx.s.resolved.excused(cx.file(), &p.text()) { None } else { cx.report(d) };
    }
    let mut out = Vec::new();
    let mut good = true;
    members(cx, e, &mut out, &mut good);
    if !good {
        return None;
    }
    if out.is_empty() {
        let d = Diagnostic::error(code::FAMILY, "this family is empty", e.span);
        return cx.report(d.hint("list its members, such as `{exp, log}`, or use a family of the library: `unary`"));
    }
    alike(cx, &out, e)?;
    Some(out)
}

/// Checks that all members have the same signature, as a rule is written once for all of them.
fn alike(cx: &mut Cx<'_>, members: &[Head], e: &Expr) -> Option<()> {
    let program = &cx.s.program;
    let form = |h: &Head| match h {
        Head::Scalar(id) => (false, program.scalar(*id).params.len()),
        Head::Op(id) => (true, program.op(*id).operands().count()),
        _ => (false, 0),
    };
    let show = |h: &Head| {
        let (op, n) = form(h);
        let s = if n == 1 { "" } else { "s" };
        format!("`{}` is {} of {n} operand{s}", cx.s.head_name(*h), if op { "an op" } else { "a scalar" })
    };
    let first = members.first()?;
    let Some(other) = members.iter().find(|h| form(h) != form(first)) else { return Some(()) };
    let d = Diagnostic::error(code::FAMILY, "all members of a family must take the same arguments", e.span)
        .label(format!("{}, {}", show(first), show(other)))
        .note("a rule applies every member in the same way: `g(x)` or `g(x, y)`")
        .hint("write one family for each kind");
    cx.report(d)
}

/// The element types of `{f16, bf16}`; `None` for anything else. The inner `None` means that one of
/// them does not exist, which has been reported.
fn dtype_set(cx: &mut Cx<'_>, e: &Expr) -> Option<Option<Vec<DType>>> {
    let ExprKind::Set(items) = &e.kind else { return None };
    let names: Vec<&ast::Name> = items.iter().map(super::types::single).collect::<Option<_>>()?;
    // No scalar can have the name of an element type, so one such name decides what the set is.
    let is_type = |n: &&ast::Name| DType::from_name(&n.node).is_some();
    let known = |n: &&ast::Name| is_type(n) || DType::known_elsewhere_as(&n.node).is_some();
    if names.is_empty() || !(names.iter().any(is_type) || names.iter().all(known)) {
        return None;
    }
    let mut out = Some(Vec::new());
    for name in names {
        match (DType::from_name(&name.node), &mut out) {
            (Some(d), Some(list)) if !list.contains(&d) => list.push(d),
            (Some(_), _) => {}
            (None, _) => out = cx.no_element_type(&name.node, name.span),
        }
    }
    Some(out)
}

fn members(cx: &mut Cx<'_>, e: &Expr, out: &mut Vec<Head>, good: &mut bool) {
    match &e.kind {
        ExprKind::Set(items) => items.iter().for_each(|i| members(cx, i, out, good)),
        ExprKind::Spread(Some(inner)) => members(cx, inner, out, good),
        ExprKind::Path(p) => {
            let found = match cx.s.family_of(cx.file(), p) {
                Some(Ok(list)) => list,
                Some(Err(())) => {
                    *good = false; // reported at its declaration
                    return;
                }
                None if is_pointwise(cx, p) => {
                    let d = Diagnostic::error(
                        code::REGION,
                        "`pointwise` is not a family and cannot be a member of one",
                        e.span,
                    )
                    .label("stands for any pointwise operations")
                    .hint("bind it to a separate variable: `[f: pointwise, g in {relu, gelu}]`");
                    *good = false;
                    return cx.report::<()>(d).unwrap_or(());
                }
                None => match cx.callee(p) {
                    Some(Callee::Head(h)) => vec![h],
                    Some(Callee::Pattern(_)) => {
                        let d = Diagnostic::error(
                            code::WRONG_KIND,
                            format!("`{}` is a pattern; a family contains scalars and ops only", p.text()),
                            e.span,
                        );
                        *good = false;
                        return cx.report::<()>(d).unwrap_or(());
                    }
                    None => {
                        *good = false;
                        return;
                    }
                },
            };
            for h in found {
                if !out.contains(&h) {
                    out.push(h);
                }
            }
        }
        _ => {
            *good = false;
            let d = Diagnostic::error(code::FAMILY, "a family must be a name or a set of names", e.span)
                .hint("write `{relu, gelu}`");
            cx.report::<()>(d);
        }
    }
}

/// The error for a family that is not declared.
fn unknown_family(cx: &Cx<'_>, path: &ast::Path) -> Option<Diagnostic> {
    if cx.s.family_of(cx.file(), path).is_some() || is_pointwise(cx, path) {
        return None;
    }
    let not_found = *cx.s.resolved.lookup(cx.file(), Space::Value, path).err()?;
    let name = path.text();
    let d = Diagnostic::error(code::UNKNOWN_NAME, format!("there is no family `{name}`"), path.span).label("not found");
    let mut families: Vec<&str> = cx.s.visible_families(cx.file());
    families.sort_unstable();
    // `unaries`: the name of a family is singular.
    let singular = name.strip_suffix("ies").map(|stem| format!("{stem}y"));
    let near = closest(&name, families.iter().copied());
    if let Some(near) = near.or_else(|| families.iter().copied().find(|f| Some(*f) == singular.as_deref())) {
        return Some(d.hint(format!("did you mean `{near}`?")));
    }
    if cx.s.resolved.library.module_of(Space::Value, &name).is_some() {
        return Some(not_found.hints.into_iter().fold(d, Diagnostic::hint));
    }
    let known: Vec<String> = families.iter().map(|f| format!("`{f}`")).collect();
    let d = d.note(format!("the families in sight are {}, and `pointwise` for any pointwise work", known.join(", ")));
    Some(d.hint(format!("list the members, `[g in {{exp, tanh}}]`, or declare `family {name} = {{exp, tanh}};`")))
}

/// All scalars with `n` number parameters and a number as result.
pub(super) fn of_arity(s: &Sema<'_>, n: usize) -> Vec<Head> {
    use crate::dtype::Kind;
    s.program
        .scalars
        .iter()
        .enumerate()
        .filter(|(_, d)| {
            d.device.is_none()
                && d.params.len() == n
                && d.result == Kind::Number
                && d.params.iter().all(|p| p.1 == Kind::Number)
        })
        .map(|(i, _)| Head::Scalar(ScalarId(i as u32)))
        .collect()
}
