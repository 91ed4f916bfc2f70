//! Rules: both sides and guards, for each choice of family members.
//!
//! In: `rule` items. Out: [`Rule`]s, one for each choice of family members, each direction of `<=>`
//! and each alternative of a left side's root. Invariant: the right side and the guards mention
//! bound variables only; a rule whose heads are all scalars is `pointwise`.

use crate::ast::{self, Expr, ExprKind};
use crate::diag::{Diagnostic, has_errors};
use crate::ir::{AExpr, Build, BuildNode, Claim, Head, Origin, Pat, Rule, RuleSetId, Saves, Sort, VarId};
use crate::resolve::Space;

use super::classes::{claims, untyped_of_integers};
use super::context::{AttrContext, Callee, Cx, ValueSort};
use super::families::{Member, choice, families};
use super::guards::AKind;
use super::lets::LetValue;
use super::ops::roots;
use super::saves::saves;
use super::walk::pat_vars;
use super::{Sema, check, code, hygiene};
use crate::source::Span;

/// Maximum number of rules that one declaration expands to.
const MAX_RULES: usize = 4096;

/// All rules of a declaration, and its diagnostics.
pub(super) fn rules(s: &Sema<'_>, file: usize, r: &ast::Rule, doc: &str) -> (Vec<Rule>, Vec<Diagnostic>) {
    let mut cx = Cx::new(s, file);
    let Some(ruleset) = ruleset(&mut cx, r) else { return (Vec::new(), cx.diags) };
    let Some(families) = families(&mut cx, r) else { return (Vec::new(), cx.diags) };
    let count = families.iter().try_fold(1usize, |n, f| n.checked_mul(f.1.len())).unwrap_or(usize::MAX);
    if count > MAX_RULES {
        let d = Diagnostic::error(
            code::TOO_LARGE,
            format!("the families of `{}` produce more than {MAX_RULES} rules", r.path.text()),
            r.path.span,
        )
        .hint("bind fewer or smaller families");
        return (Vec::new(), vec![d]);
    }
    let (mut out, mut warnings) = (Vec::new(), Vec::new());
    // Of one choice of family members after the other: whether its results are integers.
    let mut integers = Vec::new();
    for n in 0..count {
        let choice = choice(&families, n);
        let directions: &[bool] = if r.both_ways { &[false, true] } else { &[false] };
        for back in directions {
            let mut cx = Cx::new(s, file);
            for (binder, (name, member)) in r.binders.iter().zip(&choice) {
                let head = match member {
                    Member::Head(Head::Region(_)) => {
                        Head::Region(cx.fresh(name.clone(), Sort::Region, Some(binder.name.span)))
                    }
                    Member::Head(head) => *head,
                    Member::DType(d) => {
                        cx.dtypes.insert(name.clone(), *d);
                        continue;
                    }
                };
                cx.binders.insert(name.clone(), head);
            }
            let made = one(&mut cx, r, *back);
            if !cx.diags.is_empty() {
                // Every choice has the same error.
                return (Vec::new(), cx.diags);
            }
            let Some(made) = made else { return (Vec::new(), cx.diags) };
            let name = rule_name(s, r, &choice, *back);
            let made = split_roots(cx, made, name, r, ruleset, doc, s);
            if !s.resolved.trusted[file] && untyped_of_integers(r).is_some() {
                integers.extend(made.iter().map(|rule| check::gives_integers(&s.program, rule)));
            }
            if n == 0 && !s.resolved.trusted[file] {
                // Checks of one choice of family members apply to all.
                let (left, right) = if *back { (r.rhs.span, r.lhs.span) } else { (r.lhs.span, r.rhs.span) };
                let found: Vec<Diagnostic> =
                    made.iter().filter_map(|rule| check_whole(s, rule, left, right)).take(1).collect();
                if has_errors(&found) {
                    return (Vec::new(), found);
                }
                warnings.extend(found);
            }
            out.extend(made);
        }
    }
    match untyped_of_integers(r) {
        Some(class) if !integers.is_empty() && integers.iter().all(|i| *i == Some(false)) => {
            let said = format!("class `{}` is about integers, but the results of this rule are none", class.node);
            let d = Diagnostic::error(code::CLASS, said, class.span).label("no result is an integer");
            let d = d.hint("write `class rounds`, or `class approx(rel, abs)` for a bound on floats");
            (Vec::new(), vec![d])
        }
        _ => (out, warnings),
    }
}

/// Checks that need both sides.
fn check_whole(s: &Sema<'_>, r: &Rule, left: Span, right: Span) -> Option<Diagnostic> {
    if hygiene::self_containing(&s.program, r) {
        return Some(
            Diagnostic::error(
                code::SELF_CONTAINING,
                format!("`{}` makes a tensor its own operand", r.base_name),
                right,
            )
            .label("this is part of the left side")
            .also(left, "below these functions")
            .note("the rule applies to tensors only, so an epilogue could absorb the outer function without end")
            .hint("write it for scalars, without types: it then applies in epilogues too and terminates")
            .hint(
                "or name the op that produces the inner tensor, if it is not a matrix product: `p @ \
                    softmax(x, axis = a)`",
            ),
        );
    }
    check::rule(&s.program, r, right, left)
}

fn rule_name(s: &Sema<'_>, r: &ast::Rule, choice: &[(String, Member)], back: bool) -> String {
    let mut name = r.path.text();
    if back {
        name.push_str(".back");
    }
    // The matcher finds pointwise work: one rule covers all of it.
    let members: Vec<&str> = choice
        .iter()
        .filter_map(|(_, m)| match m {
            Member::Head(Head::Region(_)) => None,
            Member::Head(h) => Some(s.head_name(*h)),
            Member::DType(d) => Some(d.name()),
        })
        .collect();
    if !members.is_empty() {
        name.push_str(&format!("[{}]", members.join(", ")));
    }
    name
}

fn ruleset(cx: &mut Cx<'_>, r: &ast::Rule) -> Option<RuleSetId> {
    let [set, _] = r.path.parts.as_slice() else {
        let d = Diagnostic::error(
            code::UNKNOWN_NAME,
            format!("a rule's name must have the form `ruleset::name`, but this is `{}`", r.path.text()),
            r.path.span,
        )
        .label("the ruleset is missing");
        let name = &r.path.parts.last()?.node;
        // Suggest the file's own ruleset, if it has one.
        let own = cx.s.resolved.files[cx.file()].items.iter().find_map(|i| match &i.kind {
            ast::ItemKind::RuleSet(set) => Some(&set.name.node),
            _ => None,
        });
        return cx.report(match own {
            Some(set) => {
                d.hint(format!("write `rule {set}::{name}: ...`, where `{set}` is the ruleset that runs the rule"))
            }
            None => d.hint(format!(
                "declare one, `ruleset mine {{ until = fixpoint; }}`, and write `rule mine::{name}: ...`"
            )),
        });
    };
    let path = ast::Path { parts: vec![set.clone()], span: set.span };
    match cx.s.resolved.lookup(cx.file(), Space::RuleSet, &path) {
        Ok(item) => cx.s.ruleset_ids.get(&item).copied(),
        Err(d) => {
            let mut d = *d;
            if cx.s.resolved.excused(cx.file(), &set.node) {
                return None;
            }
            if d.hints.is_empty() {
                d = d.hint(format!("declare it: `ruleset {} {{ until = fixpoint; nodes = 50 * graph; }}`", set.node));
            }
            cx.report(d)
        }
    }
}

/// Reports variables for pointwise work that the left side does not apply exactly once.
fn check_regions(cx: &mut Cx<'_>, lhs: &[Pat], left: &Expr) -> Option<()> {
    fn uses(p: &Pat, v: VarId) -> usize {
        match p {
            Pat::Bind(_, p) | Pat::Typed(p, _) => uses(p, v),
            Pat::OneOf(l) => l.iter().map(|p| uses(p, v)).max().unwrap_or(0),
            Pat::Node(n) => usize::from(n.head == Head::Region(v)) + n.args.iter().map(|a| uses(a, v)).sum::<usize>(),
            _ => 0,
        }
    }
    let mut good = true;
    for i in 0..cx.vars.len() {
        let v = VarId(i as u32);
        if cx.sort(v) != Sort::Region {
            continue;
        }
        let n: usize = lhs.iter().map(|p| uses(p, v)).sum();
        if n != 1 {
            good = false;
            let name = cx.vars[i].name.clone();
            let d = Diagnostic::error(
                code::REGION,
                format!("the left side must apply `{name}` once, but applies it {n} times"),
                left.span,
            )
            .label(format!("`{name}` stands for the pointwise operations that match here"))
            .hint("the right side may apply it any number of times");
            cx.report::<()>(d);
        }
    }
    good.then_some(())
}

/// The parts of a rule before the alternatives of its roots are split.
struct RuleParts {
    lhs: Vec<Pat>,
    rhs: Vec<Build>,
    lets: Vec<(VarId, AExpr)>,
    requires: Vec<AExpr>,
    prefer: Vec<AExpr>,
    saves: Option<Saves>,
    claims: Vec<Claim>,
}

fn one<'a>(cx: &mut Cx<'a>, r: &'a ast::Rule, back: bool) -> Option<RuleParts> {
    let (left, right) = if back { (&r.rhs, &r.lhs) } else { (&r.lhs, &r.rhs) };
    cx.context = AttrContext::Pattern;
    cx.types = r.types.iter().map(|(name, ty)| (name.node.as_str(), ty)).collect();
    let lhs_exprs = roots(left);
    let lhs: Vec<Option<Pat>> = lhs_exprs.iter().map(|e| cx.pattern(e, ValueSort::Tensor)).collect();
    let lhs: Option<Vec<Pat>> = lhs.into_iter().collect();
    let settled = cx.settle_deferred();
    // After an error on the left, all names on the right would seem unbound.
    let (lhs, ()) = (lhs?, settled?);
    let mut good = check_types(cx, r, left).is_some();
    for (p, e) in lhs.iter().zip(&lhs_exprs) {
        good &= check_root(cx, p, e).is_some();
    }
    good &= check_related(cx, &lhs, left).is_some();
    good &= check_regions(cx, &lhs, left).is_some();
    cx.context = AttrContext::Let;
    let mut lets = Vec::new();
    let bound = cx.read_lets(&r.lets, |cx, name, _, value| {
        let LetValue::Attribute(x) = value else { return };
        let kind = cx.akind(&x);
        let v = cx.declare(&name.node, if kind == AKind::DType { Sort::DType } else { Sort::Attr }, name.span);
        cx.info[v.index()].kind = Some(kind);
        lets.push((v, x));
    });
    if !bound {
        return None; // what the `let` binds would seem unbound
    }
    cx.context = AttrContext::Right;
    let rhs = right_side(cx, right, lhs.len(), left);
    cx.context = AttrContext::Requires;
    let mut requires = std::mem::take(&mut cx.implied);
    for g in &r.requires {
        match cx.guard(g) {
            Some(g) => requires.push(g),
            None => good = false,
        }
    }
    cx.context = AttrContext::Prefer;
    let mut prefer = Vec::new();
    for g in &r.prefer {
        match cx.guard(g) {
            Some(g) => prefer.push(g),
            None => good = false,
        }
    }
    let claims = claims(cx, &r.classes);
    let (rhs, claims) = (rhs?, claims?);
    // Its facts are those of soundness: what it counts must not change while the graph grows.
    cx.context = AttrContext::Requires;
    let saves = saves(cx, r, &rhs, right)?;
    let lhs = cx.tidy(lhs);
    good.then_some(RuleParts { lhs, rhs, lets, requires, prefer, saves, claims })
}

/// Reports types of `where` for names that the left side does not bind to a tensor, or twice.
fn check_types(cx: &mut Cx<'_>, r: &ast::Rule, left: &Expr) -> Option<()> {
    let mut good = true;
    for (i, (name, _)) in r.types.iter().enumerate() {
        if r.types[..i].iter().any(|(n, _)| n.node == name.node) {
            good = false;
            let d = Diagnostic::error(code::DUPLICATE, format!("`{}` has two types", name.node), name.span);
            cx.report::<()>(d.hint("remove one of them"));
            continue;
        }
        let bound = match cx.definition(&name.node) {
            Some(super::context::Definition::Var(v)) => cx.sort(*v) == Sort::Tensor,
            _ => false,
        };
        if !bound {
            good = false;
            let d = Diagnostic::error(
                code::UNBOUND,
                format!("`where` types `{}`, which is no tensor of the left side", name.node),
                name.span,
            )
            .label("not bound to a tensor")
            .also(left.span, "the side that matches")
            .hint("name a variable that stands for an operand; a rule with `<=>` needs it on both sides");
            cx.report::<()>(d);
        }
    }
    good.then_some(())
}

fn check_root(cx: &mut Cx<'_>, p: &Pat, e: &Expr) -> Option<()> {
    match p {
        Pat::Node(_) => Some(()),
        Pat::Bind(_, p) | Pat::Typed(p, _) => check_root(cx, p, e),
        Pat::OneOf(l) => l.iter().try_for_each(|p| check_root(cx, p, e)),
        _ => {
            let d = Diagnostic::error(code::BARE_ROOT, "a left side must be an application", e.span)
                .label("this matches every tensor")
                .hint("start with the op or scalar that the rule rewrites: `relu(x)`");
            cx.report(d)
        }
    }
}

/// Checks that shared variables connect the roots.
fn check_related(cx: &mut Cx<'_>, lhs: &[Pat], e: &Expr) -> Option<()> {
    let sets: Vec<Vec<VarId>> = lhs
        .iter()
        .map(|p| {
            let mut v = Vec::new();
            pat_vars(p, &mut |x| {
                if matches!(cx.sort(x), Sort::Tensor | Sort::Tensors | Sort::Term) {
                    v.push(x);
                }
            });
            v
        })
        .collect();
    let mut reached: Vec<VarId> = sets.first().cloned().unwrap_or_default();
    let mut open: Vec<usize> = (1..sets.len()).collect();
    loop {
        let before = open.len();
        open.retain(|i| {
            let joins = sets[*i].iter().any(|v| reached.contains(v));
            if joins {
                reached.extend(&sets[*i]);
            }
            !joins
        });
        if open.is_empty() {
            return Some(());
        }
        if open.len() == before {
            let at = roots(e)[open[0]].span;
            let d = Diagnostic::error(code::UNRELATED_ROOTS, "this root shares no tensor with the others", at)
                .label("every combination in the graph would match")
                .hint("make all roots share an operand, such as the input of several products");
            return cx.report(d);
        }
    }
}

fn right_side<'a>(cx: &mut Cx<'a>, right: &'a Expr, count: usize, left: &'a Expr) -> Option<Vec<Build>> {
    let exprs = roots(right);
    if count > 1
        && let [e] = exprs.as_slice()
        && let ExprKind::Call { callee, optional: false, .. } = &e.kind
        && let Some(Callee::Head(Head::Op(id))) = cx.quiet_callee(callee)
    {
        // A single op with as many results as there are roots.
        let def = cx.s.program.op(id);
        if def.variadic_result || def.results.len() == count {
            return every_result(cx, e, count);
        }
    }
    if exprs.len() != count {
        let d = Diagnostic::error(
            code::ROOT_COUNT,
            format!(
                "the left side has {count} root{}, but the right side has {}",
                if count == 1 { "" } else { "s" },
                exprs.len()
            ),
            right.span,
        )
        .label("expected one expression per root of the left side")
        .also(left.span, "the left side")
        .hint(match (count, exprs.len()) {
            (1, _) => "write one expression, or add roots to the left side: `(p, q) => (r, s)`".to_string(),
            (n, _) => format!("write {n} expressions: `({})`", vec!["..."; n.min(6)].join(", ")),
        });
        return cx.report(d);
    }
    let built: Vec<Option<Build>> = exprs.iter().map(|e| cx.build(e, ValueSort::Tensor)).collect();
    built.into_iter().collect()
}

fn every_result<'a>(cx: &mut Cx<'a>, e: &'a Expr, count: usize) -> Option<Vec<Build>> {
    let first = cx.build_result(e, 0)?;
    Some(
        (0..count)
            .map(|i| match &first {
                Build::Node(n) => Build::Node(BuildNode { output: i as u32, ..n.clone() }),
                other => other.clone(),
            })
            .collect(),
    )
}

/// One rule for each alternative of its first root.
fn split_roots(
    cx: Cx<'_>,
    made: RuleParts,
    name: String,
    r: &ast::Rule,
    ruleset: RuleSetId,
    doc: &str,
    s: &Sema<'_>,
) -> Vec<Rule> {
    let (first, others) = match made.lhs.split_first() {
        Some((f, o)) => (f.clone(), o.to_vec()),
        None => return Vec::new(),
    };
    let firsts = alternatives(first);
    let several = firsts.len() > 1;
    let origin: Origin = s.origin(r.path.span);
    firsts
        .into_iter()
        .enumerate()
        .map(|(i, f)| {
            let mut lhs = vec![f];
            lhs.extend(others.iter().cloned());
            let pointwise = lhs.len() == 1 && pointwise(&lhs, &made.rhs);
            Rule {
                name: if several { format!("{name}.{}", i + 1) } else { name.clone() },
                base_name: r.path.text(),
                ruleset,
                doc: doc.to_string(),
                origin: origin.clone(),
                vars: cx.vars.clone(),
                lhs,
                rhs: made.rhs.clone(),
                lets: made.lets.clone(),
                requires: made.requires.clone(),
                prefer: made.prefer.clone(),
                saves: made.saves.clone(),
                claims: made.claims.clone(),
                pointwise,
                derived: false,
            }
        })
        .collect()
}

fn alternatives(p: Pat) -> Vec<Pat> {
    match p {
        Pat::OneOf(l) => l.into_iter().flat_map(alternatives).collect(),
        Pat::Bind(v, p) => alternatives(*p).into_iter().map(|p| Pat::Bind(v, Box::new(p))).collect(),
        Pat::Typed(p, t) => alternatives(*p).into_iter().map(|p| Pat::Typed(Box::new(p), t.clone())).collect(),
        other => vec![other],
    }
}

/// True if both sides consist of scalars, variables and numbers only.
pub(super) fn pointwise(lhs: &[Pat], rhs: &[Build]) -> bool {
    fn pat(p: &Pat) -> bool {
        match p {
            Pat::Any | Pat::Var(_) | Pat::Lit { .. } => true,
            Pat::Bind(_, p) => pat(p),
            Pat::Node(n) => matches!(n.head, Head::Scalar(_)) && n.args.iter().all(pat),
            Pat::OneOf(l) => l.iter().all(pat),
            Pat::Typed(..) | Pat::Absent | Pat::Optional(_) => false,
        }
    }
    fn build(b: &Build) -> bool {
        match b {
            Build::Var(_) | Build::Number(_) => true,
            Build::Node(n) => {
                matches!(n.head, Head::Scalar(_))
                    && n.args.iter().all(|a| matches!(a, crate::ir::BuildArg::One(b) if build(b)))
            }
            _ => false,
        }
    }
    lhs.iter().all(pat) && rhs.iter().all(build)
}
