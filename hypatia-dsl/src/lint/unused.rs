//! Lint for unused declarations and attributes, and for families that shadow predefined ones.

use std::collections::HashSet;

use crate::ast::{Expect, ItemKind, TestStatement};
use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{OpBody, ParamKind, Program, VarId};
use crate::resolve::{ItemRef, Resolved, Space};
use crate::sema::mentions::{item_mentions, names};
use crate::sema::walk::{build_vars, expr_vars, type_vars};
use crate::source::SourceMap;

pub(super) fn lint(p: &Program, resolved: &Resolved, sources: &SourceMap, out: &mut Vec<Diagnostic>) {
    // Most names in use are not the user's own, so they need not be resolved.
    attributes(p, resolved, out);
    families(resolved, sources, out);
    binders(resolved, out);
    inputs(resolved, out);
    let own = resolved.files.iter().filter(|tree| !sources.file(tree.id).embedded).flat_map(|tree| &tree.items);
    let candidates: HashSet<&str> = own
        .filter_map(|item| match &item.kind {
            ItemKind::Pattern(x) => Some(x.name.node.as_str()),
            ItemKind::Op(x) => Some(x.name.node.as_str()),
            _ => None,
        })
        .collect();
    if candidates.is_empty() {
        return;
    }
    let used = mentioned(resolved, &candidates);
    for (file, tree) in resolved.files.iter().enumerate() {
        // A library declares names for others to use.
        if sources.file(tree.id).embedded {
            continue;
        }
        for (item, node) in tree.items.iter().enumerate() {
            if !used.contains(&ItemRef { file, item }) {
                out.extend(warning(p, &node.kind));
            }
        }
    }
}

/// Families with the name of a predefined one, which rules of the same file then no longer mean.
fn families(resolved: &Resolved, sources: &SourceMap, out: &mut Vec<Diagnostic>) {
    let own = resolved.files.iter().filter(|tree| !sources.file(tree.id).embedded).flat_map(|tree| &tree.items);
    for item in own {
        let ItemKind::Family(f) = &item.kind else { continue };
        let name = &f.name.node;
        if ["unary", "binary", "pointwise"].contains(&name.as_str()) {
            let d = Diagnostic::warning(code::SHADOWS, format!("`{name}` shadows a predefined family"), f.name.span)
                .label(format!("rules in other files still use the predefined `{name}`"));
            out.push(d.hint("choose another name"));
        }
    }
}

/// Binders of rules that nothing uses: each of their members makes the same rule again.
fn binders(resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for item in resolved.files.iter().flat_map(|tree| &tree.items) {
        let ItemKind::Rule(r) = &item.kind else { continue };
        if r.binders.is_empty() || resolved.trusts(Some(item.span)) {
            continue;
        }
        let mut used: HashSet<&str> = HashSet::new();
        let terms = [&r.lhs, &r.rhs].into_iter().chain(r.lets.iter().map(|l| &l.1));
        let guards = r.requires.iter().chain(&r.prefer).chain(r.saves.iter().map(|s| &s.amount));
        for e in terms.chain(guards) {
            names(e, &mut used);
        }
        used.extend(r.classes.iter().flat_map(|c| &c.dtypes).map(|d| d.node.as_str()));
        used.extend(r.types.iter().map(|(_, t)| t.dtype.node.as_str()));
        for b in r.binders.iter().filter(|b| !used.contains(b.name.node.as_str())) {
            let what = format!("`{}` of `{}` is bound and never used", b.name.node, r.path.text());
            let d = Diagnostic::warning(code::UNUSED_VARIABLE, what, b.name.span)
                .label("each member of this family makes the same rule again");
            out.push(d.hint("remove it, or apply it: `g(x)`"));
        }
    }
}

/// Inputs of tests that no expression of theirs reads.
fn inputs(resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for item in resolved.files.iter().flat_map(|tree| &tree.items) {
        let ItemKind::Test(t) = &item.kind else { continue };
        if resolved.trusts(Some(item.span)) {
            continue;
        }
        let mut used: HashSet<&str> = HashSet::new();
        for statement in &t.statements {
            match statement {
                TestStatement::Input { value, .. } => value.iter().for_each(|e| names(e, &mut used)),
                TestStatement::Given(all) => all.iter().for_each(|e| names(e, &mut used)),
                TestStatement::Expect(Expect::Compare(e) | Expect::Equal(e) | Expect::Becomes(e)) => {
                    names(e, &mut used)
                }
                TestStatement::Expect(_) => {}
            }
        }
        for statement in &t.statements {
            let TestStatement::Input { constant, name, .. } = statement else { continue };
            if used.contains(name.node.as_str()) || name.node.starts_with('_') {
                continue;
            }
            let what = if *constant { "constant" } else { "input" };
            let message = format!("{what} `{}` of test \"{}\" is never used", name.node, t.name.node);
            let d = Diagnostic::warning(code::UNUSED_VARIABLE, message, name.span);
            out.push(d.hint("name it in `given` or in an expectation, or remove it"));
        }
    }
}

/// Attributes of ops with a body that neither it nor a type nor a guard reads.
fn attributes(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for op in p.ops.iter().filter(|o| !resolved.trusts(o.origin.span)) {
        let (OpBody::Defined(bodies), Some(span)) = (&op.body, op.origin.span) else { continue };
        let mut read: HashSet<VarId> = HashSet::new();
        let mut add = |v: VarId| {
            read.insert(v);
        };
        bodies.iter().for_each(|b| build_vars(b, &mut add));
        op.results.iter().for_each(|t| type_vars(t, &mut add));
        op.requires.iter().for_each(|g| expr_vars(g, &mut add));
        [&op.cost.flops, &op.cost.read, &op.cost.write].into_iter().flatten().for_each(|e| expr_vars(e, &mut add));
        op.grad.iter().flat_map(|g| &g.of).for_each(|(_, b)| build_vars(b, &mut add));
        for param in &op.params {
            if let ParamKind::Tensor { ty, .. } = &param.kind {
                type_vars(ty, &mut add);
            }
        }
        let unread = |i: usize| {
            let attr = matches!(op.params[i].kind, ParamKind::Attr { .. });
            attr && !op.params[i].name.starts_with('_') && !read.contains(&VarId(i as u32))
        };
        let names: Vec<String> =
            (0..op.params.len()).filter(|i| unread(*i)).map(|i| format!("`{}`", op.params[i].name)).collect();
        if names.is_empty() {
            continue;
        }
        let (s, is) = if names.len() == 1 { ("", "is") } else { ("s", "are") };
        let what = format!("attribute{s} {} of the op `{}` {is} never used", names.join(", "), op.name);
        let d = Diagnostic::warning(code::UNUSED_VARIABLE, what, span);
        out.push(d.hint("use it in the body, or remove it"));
    }
}

/// The items with one of these names that some item mentions.
fn mentioned(resolved: &Resolved, names: &HashSet<&str>) -> HashSet<ItemRef> {
    let mut used: HashSet<ItemRef> = HashSet::new();
    for (file, tree) in resolved.files.iter().enumerate() {
        for item in &tree.items {
            let mut add = |path: &crate::ast::Path, _applied: bool| {
                if path.parts.last().is_some_and(|name| names.contains(name.node.as_str())) {
                    used.extend(resolved.find(file, Space::Value, path));
                }
            };
            item_mentions(&item.kind, &mut add);
        }
    }
    used
}

/// The warning about an item that nothing mentions; `None` if it may be left so.
fn warning(p: &Program, item: &ItemKind) -> Option<Diagnostic> {
    match item {
        ItemKind::Pattern(x) => {
            let message = format!("no rule uses the pattern `{}`", x.name.node);
            let warning = Diagnostic::warning(code::UNUSED_PATTERN, message, x.name.span);
            Some(warning.label("never used").hint("use it on a left side, or remove it"))
        }
        ItemKind::Op(x) if x.body.is_some() => {
            let name = &x.name.node;
            let defined =
                p.ops.iter().any(|o| o.origin.span == Some(x.name.span) && matches!(o.body, OpBody::Defined(_)));
            defined.then(|| {
                Diagnostic::warning(code::NO_KERNEL, format!("the op `{name}` is never used"), x.name.span)
                    .label("no kernel, rule, test or body mentions it")
                    .hint(format!(
                        "add `kernel {name}_k for {name}(...) {{ rowwise; }}` or a test, or remove the op, unless \
                         nodes of a custom ONNX domain mean it (`--domain`)"
                    ))
            })
        }
        _ => None,
    }
}
