//! Recursion check: scalars, ops, patterns and families must not be recursive.
//!
//! In: all declarations. Out: an error for each cycle of definitions that names all its members.
//! The members are poisoned so that nothing walks around the cycle. Invariant: the check itself
//! uses an explicit stack instead of recursion.

use std::collections::{HashMap, HashSet};

use crate::ast::{self, Expr, ExprKind, ItemKind};
use crate::diag::Diagnostic;
use crate::ir::{OpBody, ScalarBody};
use crate::resolve::{ItemRef, Space, declared};

use super::mentions::mentions;
use super::{Decl, Sema, code};

/// Reports cycles among scalars, ops and patterns.
pub(super) fn check(s: &mut Sema<'_>) {
    let mut nodes: Vec<ItemRef> = Vec::new();
    let mut edges: Vec<Vec<ItemRef>> = Vec::new();
    for (at, item) in s.items() {
        let bodies: Vec<&Expr> = match &item.kind {
            // A derivative may mention its own scalar: d tanh = 1 - tanh * tanh.
            ItemKind::Scalar(x) => x.body.iter().collect(),
            ItemKind::Op(x) => x.body.iter().chain(x.lets.iter().map(|l| &l.1)).collect(),
            ItemKind::Pattern(x) => vec![&x.body],
            _ => continue,
        };
        let mut out = Vec::new();
        for b in bodies {
            mentions(b, &mut |p, applied| {
                if applied {
                    out.extend(s.resolved.find(at.file, Space::Value, p));
                }
            });
        }
        nodes.push(at);
        edges.push(out);
    }
    let circles = circles(&nodes, &edges);
    for circle in circles {
        report(s, &circle);
        for at in circle {
            s.poisoned_items.insert(at);
            match s.decls.get(&at) {
                Some(Decl::Op(id)) => {
                    s.poisoned_ops.insert(*id);
                    s.program.ops[id.index()].body = OpBody::Defined(Vec::new());
                }
                Some(Decl::Scalar(id)) => {
                    s.poisoned_scalars.insert(*id);
                    if let ScalarBody::Term(t) = &mut s.program.scalars[id.index()].body {
                        *t = crate::scalar::Term::empty();
                    }
                }
                _ => {}
            }
        }
    }
}

fn report(s: &mut Sema<'_>, circle: &[ItemRef]) {
    let names: Vec<(&str, crate::source::Span)> = circle
        .iter()
        .filter_map(|at| declared(&s.resolved.files[at.file].items[at.item].kind))
        .map(|(n, _)| (n.node.as_str(), n.span))
        .collect();
    let Some((first, rest)) = names.split_first() else { return };
    let mut path: Vec<&str> = names.iter().map(|n| n.0).collect();
    path.push(first.0);
    let d = if rest.is_empty() {
        Diagnostic::error(code::RECURSION, format!("`{}` is defined in terms of itself", first.0), first.1)
    } else {
        let mut d = Diagnostic::error(code::RECURSION, format!("circular definition: {}", path.join(" -> ")), first.1);
        for (n, span) in rest {
            d = d.also(*span, format!("`{n}` is part of the cycle"));
        }
        d
    };
    let d = match rest.first() {
        Some((next, _)) => {
            d.hint(format!("write in `{}` what `{next}` computes, without using `{}`", first.0, first.0))
        }
        None => d.hint("write the computation out; the language has no loops, and `builtin` is for the library only"),
    };
    s.diags.push(d.label("a definition cannot use itself, directly or through others"));
}

/// The cycles of a graph, each once; members of a cycle are not searched again.
fn circles(nodes: &[ItemRef], edges: &[Vec<ItemRef>]) -> Vec<Vec<ItemRef>> {
    let index: HashMap<ItemRef, usize> = nodes.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let mut state = vec![0u8; nodes.len()];
    let mut out = Vec::new();
    for root in 0..nodes.len() {
        if state[root] != 0 {
            continue;
        }
        let mut stack = vec![(root, 0usize)];
        state[root] = 1;
        while let Some(&(node, next)) = stack.last() {
            let Some(target) = edges[node].get(next) else {
                state[node] = 2;
                stack.pop();
                continue;
            };
            if let Some(top) = stack.last_mut() {
                top.1 += 1;
            }
            let Some(&t) = index.get(target) else { continue };
            match state[t] {
                0 => {
                    state[t] = 1;
                    stack.push((t, 0));
                }
                1 => {
                    let start = stack.iter().position(|(n, _)| *n == t).unwrap_or(0);
                    out.push(stack[start..].iter().map(|(n, _)| nodes[*n]).collect());
                }
                _ => {}
            }
        }
    }
    out
}

/// The order in which families can be resolved. Cycles are reported and left out.
pub(super) fn family_order(s: &mut Sema<'_>, items: &[(ItemRef, &ast::Family)]) -> Vec<usize> {
    let index: HashMap<ItemRef, usize> = items.iter().enumerate().map(|(i, (at, _))| (*at, i)).collect();
    let mut edges: Vec<Vec<ItemRef>> = Vec::new();
    for (at, f) in items {
        let mut out = Vec::new();
        let mut stack = vec![&f.members];
        while let Some(e) = stack.pop() {
            match &e.kind {
                ExprKind::Set(l) => stack.extend(l),
                ExprKind::Spread(Some(x)) => stack.push(x),
                ExprKind::Path(p) => out.extend(s.resolved.find(at.file, Space::Value, p)),
                _ => {}
            }
        }
        out.retain(|o| index.contains_key(o));
        edges.push(out);
    }
    let nodes: Vec<ItemRef> = items.iter().map(|(at, _)| *at).collect();
    let circles = circles(&nodes, &edges);
    let bad: HashSet<ItemRef> = circles.iter().flatten().copied().collect();
    for c in &circles {
        report(s, c);
    }
    // Members first: a walk with an explicit stack of (family, next member).
    let mut order: Vec<usize> = Vec::new();
    let mut seen: Vec<bool> = nodes.iter().map(|n| bad.contains(n)).collect();
    for root in 0..items.len() {
        let mut stack = if seen[root] { Vec::new() } else { vec![(root, 0)] };
        seen[root] = true;
        while let Some((family, next)) = stack.pop() {
            let Some(member) = edges[family].get(next) else {
                order.push(family);
                continue;
            };
            stack.push((family, next + 1));
            if let Some(m) = index.get(member).copied().filter(|m| !seen[*m]) {
                seen[m] = true;
                stack.push((m, 0));
            }
        }
    }
    order
}
