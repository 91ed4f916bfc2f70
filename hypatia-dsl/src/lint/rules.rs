//! Lint for rules that are redundant, that grow, that bind unused variables, or that never match.

use std::collections::{HashMap, HashSet};

use crate::builtin::BuiltinOp;
use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{
    AExpr, AttrPat, AttrValue, Build, Head, NodePat, OpBody, OpId, Pat, Program, Rule, Sort, VarId, walk_build,
};
use crate::resolve::Resolved;
use crate::sema::hygiene::{Instance, changes_nothing, grows, instance_of, same_result};
use crate::sema::walk::{build_vars, expr_vars, pat_vars};

/// Maximum number of compared pairs of rules with the same head, so that linting a huge library
/// stays fast.
const MAX_PAIRS: usize = 200_000;

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    let written: Vec<&Rule> = p.rules.iter().filter(|r| !r.derived).collect();
    let reachable = reachable_ops(p);
    let trusted: Vec<bool> = written.iter().map(|r| resolved.trusts(r.origin.span)).collect();
    for (r, _) in written.iter().zip(&trusted).filter(|(_, trusted)| !**trusted) {
        unused_variables(r, out);
        if grows(r)
            && let Some(span) = r.origin.span
        {
            out.push(
                Diagnostic::warning(code::GROWS, format!("`{}` matches inside its own right side", r.base_name), span)
                    .label("can be applied without end")
                    .hint("reverse it, or add a `requires` that is false for its own result"),
            );
        }
        if changes_nothing(r)
            && let Some(span) = r.origin.span
        {
            let said = format!("both sides of `{}` are the same", r.base_name);
            let d = Diagnostic::warning(code::CHANGES_NOTHING, said, span).label("changes nothing");
            out.push(d.hint("write on the right side what may replace the left side, or remove the rule"));
        }
        for l in &r.lhs {
            unmatchable(p, r, l, &reachable, out);
        }
    }
    duplicates(&written, &trusted, out);
}

/// Unused variables: those that occur once and are used nowhere.
fn unused_variables(r: &Rule, out: &mut Vec<Diagnostic>) {
    let mut count: HashMap<VarId, usize> = HashMap::new();
    let mut add = |v: VarId| *count.entry(v).or_default() += 1;
    r.lhs.iter().for_each(|p| pat_vars(p, &mut add));
    r.rhs.iter().for_each(|b| build_vars(b, &mut add));
    for (v, e) in &r.lets {
        add(*v);
        expr_vars(e, &mut add);
    }
    r.requires.iter().chain(&r.prefer).for_each(|g| expr_vars(g, &mut add));
    r.saves.iter().for_each(|s| expr_vars(&s.amount, &mut add));
    let mut in_types = HashSet::new();
    r.lhs.iter().for_each(|p| type_only(p, &mut in_types));
    let Some(span) = r.origin.span else { return };
    let mut names: Vec<&str> = Vec::new();
    for (i, var) in r.vars.iter().enumerate() {
        let v = VarId(i as u32);
        // Sizes in types are named for the reader.
        let speaks = !var.name.starts_with('_') && !in_types.contains(&v);
        if speaks && count.get(&v) == Some(&1) && !names.contains(&var.name.as_str()) {
            names.push(&var.name);
        }
    }
    if names.is_empty() {
        return;
    }
    let list: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    let (s, it) = if names.len() == 1 { ("", "is") } else { ("s", "are") };
    let bound_by_let = r.lets.iter().any(|(v, _)| names.contains(&r.vars[v.index()].name.as_str()));
    let mut d = Diagnostic::warning(
        code::UNUSED_VARIABLE,
        format!("variable{s} {} of `{}` {it} bound and never used", list.join(", "), r.base_name),
        span,
    );
    d = if bound_by_let {
        d.hint("remove the `let`")
    } else {
        d.hint("write `_` to match anything, or start the name with `_`")
    };
    out.push(d);
}

/// Variables that types bind.
fn type_only(p: &Pat, out: &mut HashSet<VarId>) {
    match p {
        Pat::Typed(p, t) => {
            crate::sema::walk::type_vars(t, &mut |v| {
                out.insert(v);
            });
            type_only(p, out);
        }
        Pat::Bind(_, p) => type_only(p, out),
        Pat::OneOf(l) => l.iter().for_each(|p| type_only(p, out)),
        Pat::Node(n) => n.operands().for_each(|p| type_only(p, out)),
        _ => {}
    }
}

/// Ops that can occur in an e-graph: builtin ops, ops that own a kernel, and ops that rules build.
fn reachable_ops(p: &Program) -> HashSet<OpId> {
    let mut out: HashSet<OpId> = HashSet::new();
    for (i, op) in p.ops.iter().enumerate() {
        if matches!(op.body, OpBody::Builtin(_)) {
            out.insert(OpId(i as u32));
        }
    }
    for k in &p.kernels {
        if let Pat::Node(NodePat { head: Head::Op(id), .. }) = &k.pattern {
            out.insert(*id);
        }
    }
    // A rule builds only what a graph contains that its left side needs.
    loop {
        let known = out.len();
        for r in &p.rules {
            if r.lhs.iter().all(|pat| needs_only(pat, &out)) {
                r.rhs.iter().for_each(|b| walk_build(b, &mut |b, _| out.extend(built(b)), true));
            }
        }
        if out.len() == known {
            return out;
        }
    }
}

/// The op that an expression applies.
fn built(b: &Build) -> Option<OpId> {
    if let Build::Node(n) = b
        && let Head::Op(id) = n.head
    {
        return Some(id);
    }
    None
}

/// Whether a pattern needs no other ops; of alternatives, one suffices.
fn needs_only(pat: &Pat, ops: &HashSet<OpId>) -> bool {
    match pat {
        Pat::Node(n) => {
            let own = if let Head::Op(id) = n.head { ops.contains(&id) } else { true };
            own && n.operands().all(|a| needs_only(a, ops))
        }
        Pat::Bind(_, inner) | Pat::Typed(inner, _) => needs_only(inner, ops),
        Pat::OneOf(all) => all.iter().any(|a| needs_only(a, ops)),
        _ => true,
    }
}

/// Reports ops in a pattern that never occur in an e-graph. A defined op is inlined on insertion;
/// without a kernel, no derived rule finds it again.
fn unmatchable(p: &Program, r: &Rule, pat: &Pat, reachable: &HashSet<OpId>, out: &mut Vec<Diagnostic>) {
    match pat {
        Pat::Node(n) => {
            if let Head::Op(id) = n.head
                && !reachable.contains(&id)
                && let Some(span) = r.origin.span
            {
                let op = p.op(id);
                let mut d = Diagnostic::warning(
                    code::UNMATCHABLE,
                    format!("`{}` can never match: no graph contains `{}`", r.base_name, op.name),
                    span,
                )
                .note(format!(
                    "`{}` has a body but no kernel: in a model, the body replaces `{}` before any rule runs",
                    op.name, op.name
                ))
                .hint(format!(
                    "match the body instead, or give `{}` a kernel: `kernel k for {}(...) {{ rowwise; }}`",
                    op.name, op.name
                ));
                if let Some(s) = op.origin.span {
                    d = d.also(s, format!("`{}` is declared here", op.name));
                }
                out.push(d);
            }
            beyond_split(p, r, n, out);
            no_permutation(p, r, n, out);
            n.operands().for_each(|a| unmatchable(p, r, a, reachable, out));
        }
        Pat::Bind(_, inner) | Pat::Typed(inner, _) => unmatchable(p, r, inner, reachable, out),
        // An alternative that never matches is harmless if another one can match.
        _ => {}
    }
}

/// Warns of a part that a split into a written number of parts does not have.
fn beyond_split(p: &Program, r: &Rule, n: &NodePat, out: &mut Vec<Diagnostic>) {
    let Head::Op(id) = n.head else { return };
    let op = p.op(id);
    let written = |a: &AttrPat| match a {
        AttrPat::List(l) if !l.iter().any(|i| matches!(i, AttrPat::Rest(_))) => Some(l.len()),
        AttrPat::Is(AExpr::List(l)) if !l.iter().any(|i| matches!(i, AExpr::Spread(_))) => Some(l.len()),
        AttrPat::Is(AExpr::Value(AttrValue::List(l))) => Some(l.len()),
        _ => None,
    };
    let parts = n.attrs.iter().find_map(written).filter(|_| op.variadic_result);
    if let (Some(parts), Some(span)) = (parts, r.origin.span)
        && n.output as usize >= parts
    {
        let what = format!("`{}` can never match: `{}` has {parts} results here", r.base_name, op.name);
        let last = parts.saturating_sub(1);
        let d = Diagnostic::warning(code::UNMATCHABLE, what, span)
            .note(format!("it asks for `.{}`, and the last one is `.{last}`", n.output));
        out.push(d.hint("results are counted from 0"));
    }
}

/// Warns of axes that are no order of those of the operand.
fn no_permutation(p: &Program, r: &Rule, n: &NodePat, out: &mut Vec<Diagnostic>) {
    let Head::Op(id) = n.head else { return };
    let (OpBody::Builtin(BuiltinOp::Transpose), Some(span)) = (&p.op(id).body, r.origin.span) else { return };
    let number = |v: &AttrValue| if let AttrValue::Dim(d) = v { d.as_const() } else { None };
    let literal = |a: &AExpr| if let AExpr::Value(v) = a { number(v) } else { None };
    let axes: Option<Vec<i64>> = match n.attrs.first() {
        Some(AttrPat::List(l)) => l.iter().map(|a| if let AttrPat::Is(e) = a { literal(e) } else { None }).collect(),
        Some(AttrPat::Is(AExpr::List(l))) => l.iter().map(literal).collect(),
        Some(AttrPat::Is(AExpr::Value(AttrValue::List(l)))) => l.iter().map(number).collect(),
        _ => None,
    };
    let Some(mut axes) = axes else { return };
    let rank = n.operands().next().and_then(|x| match x {
        Pat::Typed(_, t) if t.rest.is_none() => Some(t.prefix.len() + t.suffix.len()),
        _ => None,
    });
    let count = rank.unwrap_or(axes.len());
    let written: Vec<String> = axes.iter().map(i64::to_string).collect();
    axes.sort_unstable();
    if axes.iter().copied().eq(0..count as i64) {
        return;
    }
    let what = format!("`{}` can never match: [{}] orders no {count} axes", r.base_name, written.join(", "));
    let d = Diagnostic::warning(code::UNMATCHABLE, what, span);
    out.push(d.hint(format!("name each of the axes from 0 to {} once", count.saturating_sub(1))));
}

fn root(r: &Rule) -> Option<Head> {
    fn head(p: &Pat) -> Option<Head> {
        match p {
            Pat::Node(n) => Some(n.head),
            Pat::Bind(_, p) | Pat::Typed(p, _) => head(p),
            _ => None,
        }
    }
    r.lhs.first().and_then(head)
}

/// The numbers that every match of a rule contains or, with `some`, that any match may contain.
fn literals(r: &Rule, some: bool) -> Vec<u64> {
    fn collect(p: &Pat, some: bool, out: &mut Vec<u64>) {
        match p {
            Pat::Lit { value, near: None } => out.push(value.to_bits()),
            Pat::Bind(_, p) | Pat::Typed(p, _) => collect(p, some, out),
            Pat::Node(n) => n.args.iter().for_each(|a| collect(a, some, out)),
            Pat::OneOf(l) if some => l.iter().for_each(|p| collect(p, some, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    r.lhs.iter().for_each(|p| collect(p, some, &mut out));
    out
}

/// Rules that another rule makes redundant.
fn duplicates(rules: &[&Rule], trusted: &[bool], out: &mut Vec<Diagnostic>) {
    let numbers: Vec<_> = rules.iter().map(|r| (literals(r, false), literals(r, true))).collect();
    let mut by_head: HashMap<Option<Head>, Vec<usize>> = HashMap::new();
    for (i, r) in rules.iter().enumerate() {
        by_head.entry(root(r)).or_default().push(i);
    }
    let mut pairs = 0;
    for (i, r) in rules.iter().enumerate() {
        for &j in by_head.get(&root(r)).into_iter().flatten() {
            let other = rules[j];
            if trusted[i] && trusted[j] {
                continue;
            }
            pairs += 1;
            if pairs > MAX_PAIRS {
                return;
            }
            // A rule that requires a number covers no rule without it. This rejects most pairs of a
            // long table.
            if !numbers[j].0.iter().all(|n| numbers[i].1.contains(n)) {
                continue;
            }
            if r.base_name == other.base_name || !covers(other, r) {
                continue;
            }
            let (Some(here), Some(there)) = (r.origin.span, other.origin.span) else { continue };
            let both = covers(r, other);
            // Of two equal rules the later one is redundant.
            if both && here < there {
                continue;
            }
            let (code, message, label) = if both {
                (code::DUPLICATE_RULE, format!("`{}` repeats `{}`", r.base_name, other.base_name), "the same rule")
            } else {
                (
                    code::SUBSUMED_RULE,
                    format!("`{}` is redundant: `{}` already covers it", r.base_name, other.base_name),
                    "the more general rule",
                )
            };
            out.push(Diagnostic::warning(code, message, here).also(there, label).hint("remove it"));
        }
    }
}

/// Whether `general` covers every rewrite of `special`.
fn covers(general: &Rule, special: &Rule) -> bool {
    if general.lhs.len() != special.lhs.len() || !general.lets.is_empty() || !special.lets.is_empty() {
        return false;
    }
    if general.ruleset != special.ruleset {
        return false;
    }
    // Guards are compared as written, and with the same variables only. This check is fast, so it
    // comes first.
    let plain = general.requires.is_empty() && general.prefer.is_empty();
    let alike = general.requires == special.requires && general.prefer == special.prefer;
    if !(plain || alike && same_vars(general, special)) {
        return false;
    }
    let mut i = Instance::default();
    general.lhs.iter().zip(&special.lhs).all(|(g, s)| instance_of(g, s, &mut i))
        && general.rhs.iter().zip(&special.rhs).all(|(g, s)| same_result(g, s, &i))
}

fn same_vars(a: &Rule, b: &Rule) -> bool {
    let sorts = |r: &Rule| r.vars.iter().map(|v| v.sort).collect::<Vec<Sort>>();
    a.lhs == b.lhs && sorts(a) == sorts(b)
}
