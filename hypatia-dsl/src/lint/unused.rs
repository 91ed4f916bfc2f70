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
    let mut used: HashSet<ItemRef> = HashSet::new();
    for (file, tree) in resolved.files.iter().enumerate() {
        for item in &tree.items {
            let mut add = |path: &crate::ast::Path, _applied: bool| {
                if path.parts.last().is_some_and(|name| candidates.contains(name.node.as_str())) {
                    used.extend(resolved.find(file, Space::Value, path));
                }
            };
            item_mentions(&item.kind, &mut add);
        }
    }
    for (file, tree) in resolved.files.iter().enumerate() {
        // A library declares names for others to use.
        if sources.file(tree.id).embedded {
            continue;
        }
        for (item, node) in tree.items.iter().enumerate() {
            if used.contains(&ItemRef { file, item }) {
                continue;
            }
            match &node.kind {
                ItemKind::Pattern(x) => out.push(
                    Diagnostic::warning(
                        code::UNUSED_PATTERN,
                        format!("no rule uses the pattern `{}`", x.name.node),
                        x.name.span,
                    )
                    .label("never used")
                    .hint("use it on a left side, or remove it"),
                ),
                ItemKind::Op(x) if x.body.is_some() => {
                    let defined = p
                        .ops
                        .iter()
                        .any(|o| o.origin.span == Some(x.name.span) && matches!(o.body, OpBody::Defined(_)));
                    if defined {
                        out.push(
                            Diagnostic::warning(
                                code::NO_KERNEL,
                                format!("the op `{}` is never used", x.name.node),
                                x.name.span,
                            )
                            .label("no kernel, rule, test or body mentions it")
                            .hint(format!(
                                "add `kernel {}_k for {}(...) {{ rowwise; }}` or a test, or remove the op",
                                x.name.node, x.name.node
                            )),
                        );
                    }
                }
                _ => {}
            }
        }
    }
}
