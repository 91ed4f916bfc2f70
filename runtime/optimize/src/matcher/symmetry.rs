//! Whether the roots of a rule's left side are one pattern.
//!
//! In: a rule. Out: true if each root is the first one with other variables. Invariant: then every
//! match in one order of the roots is one in every order, and a search may keep to the first.

use hypatia_dsl::ir::{Each, NodePat, Pat, Rest, Rule, VarId};

/// True if every root is the same pattern, up to variables that occur in it alone.
pub(super) fn is_symmetric(rule: &Rule) -> bool {
    // Alpha-equivalence: compare the shapes without variables, then which positions are shared.
    let [first, others @ ..] = rule.lhs.as_slice() else { return false };
    if others.is_empty() {
        return false;
    }
    let shape = erased(first);
    let lists: Vec<Vec<VarId>> = rule
        .lhs
        .iter()
        .map(|p| {
            let mut v = Vec::new();
            vars(unbound(p), &mut v);
            v
        })
        .collect();
    let same_positions = lists.iter().skip(1).all(|l| {
        l.len() == lists[0].len()
            && l.iter().zip(&lists[0]).all(|(a, b)| a == b || (!lists[0].contains(a) && !l.contains(b)))
    });
    others.iter().all(|p| erased(p) == shape) && same_positions
}

/// The variables of a pattern, in order of occurrence.
fn vars(p: &Pat, out: &mut Vec<VarId>) {
    match p {
        Pat::Var(v) | Pat::Optional(v) => out.push(*v),
        Pat::Bind(v, p) => {
            out.push(*v);
            vars(p, out);
        }
        Pat::Typed(p, _) => vars(p, out),
        Pat::OneOf(ps) => ps.iter().for_each(|p| vars(p, out)),
        Pat::Node(n) => {
            n.args.iter().for_each(|a| vars(a, out));
            if let Some(rest) = &n.rest {
                out.push(rest.var);
                rest.each.iter().for_each(|each| vars(&each.element, out));
            }
        }
        Pat::Any | Pat::Lit { .. } | Pat::Absent => {}
    }
}

/// A pattern with one variable in the place of all.
fn erased(p: &Pat) -> Pat {
    match p {
        Pat::Var(_) => Pat::Var(VarId(0)),
        Pat::Optional(_) => Pat::Optional(VarId(0)),
        Pat::Bind(_, p) => erased(p),
        Pat::Typed(p, t) => Pat::Typed(Box::new(erased(p)), t.clone()),
        Pat::OneOf(ps) => Pat::OneOf(ps.iter().map(erased).collect()),
        Pat::Node(n) => Pat::Node(NodePat {
            head: n.head,
            args: n.args.iter().map(erased).collect(),
            rest: n.rest.as_ref().map(|rest| Rest {
                var: VarId(0),
                each: rest.each.as_ref().map(|each| Box::new(Each { element: erased(&each.element), item: VarId(0) })),
            }),
            attrs: n.attrs.clone(),
            output: n.output,
        }),
        other => other.clone(),
    }
}

/// A pattern without the names that are bound to it as a whole.
fn unbound(p: &Pat) -> &Pat {
    match p {
        Pat::Bind(_, p) => unbound(p),
        p => p,
    }
}
