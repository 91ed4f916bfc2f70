//! Lint for unused declarations.

use std::collections::HashSet;

use crate::ast::ItemKind;
use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{OpBody, Program};
use crate::resolve::{ItemRef, Resolved, Space};
use crate::sema::mentions::item_mentions;
use crate::source::SourceMap;

pub(super) fn lint(p: &Program, resolved: &Resolved, sources: &SourceMap, out: &mut Vec<Diagnostic>) {
    // Most names in use are not the user's own, so they need not be resolved.
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
                    .hint(format!("add `kernel {name}_k for {name}(...) {{ rowwise; }}` or a test, or remove the op"))
            })
        }
        _ => None,
    }
}
