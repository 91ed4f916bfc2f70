//! Subsumption: matches patterns against right sides and against each other.
//!
//! In: parts of rules. Out: whether one matches the other, with the substitution. Invariant: a
//! positive answer is certain as far as structure goes; the caller checks guards.

use std::collections::HashMap;

use crate::ir::{
    AExpr, AttrPat, AttrValue, Build, BuildArg, BuildNode, Head, NodePat, OpBody, Pat, Program, Rule, VarId, walk_build,
};

/// The bindings of a pattern's variables.
#[derive(Default, Debug)]
pub(crate) struct Match {
    /// Tensors and terms.
    pub builds: HashMap<VarId, Build>,
    /// Attributes.
    pub attrs: HashMap<VarId, AExpr>,
}

/// Whether a pattern matches a right side as written.
pub(crate) fn matches(p: &Pat, b: &Build, m: &mut Match) -> bool {
    match (p, b) {
        (Pat::Any, _) => true,
        (Pat::Var(v), _) => match m.builds.get(v) {
            Some(have) => have == b,
            None => {
                m.builds.insert(*v, b.clone());
                true
            }
        },
        (Pat::Bind(v, p), _) => matches(&Pat::Var(*v), b, m) && matches(p, b, m),
        (Pat::Lit { value, near: None }, Build::Number(AExpr::Value(AttrValue::Float(x)))) => {
            value.to_bits() == x.to_bits()
        }
        (Pat::Absent, Build::Absent) => true,
        (Pat::OneOf(l), _) => l.iter().any(|p| {
            let mut own = Match { builds: m.builds.clone(), attrs: m.attrs.clone() };
            let yes = matches(p, b, &mut own);
            if yes {
                *m = own;
            }
            yes
        }),
        (Pat::Node(n), Build::Node(bn)) => {
            n.head == bn.head
                && n.rest.is_none()
                && n.output == bn.output
                && n.args.len() == bn.args.len()
                && n.args.iter().zip(&bn.args).all(|(p, a)| matches!(a, BuildArg::One(b) if matches(p, b, m)))
                && n.attrs.len() == bn.attrs.len()
                && n.attrs.iter().zip(&bn.attrs).all(|(p, e)| attr_matches(p, e, m))
        }
        _ => false,
    }
}

fn attr_matches(p: &AttrPat, e: &AExpr, m: &mut Match) -> bool {
    match p {
        AttrPat::Any => true,
        AttrPat::Var(v) => match m.attrs.get(v) {
            Some(have) => have == e,
            None => {
                m.attrs.insert(*v, e.clone());
                true
            }
        },
        AttrPat::Is(x) => x == e,
        AttrPat::List(_) | AttrPat::Rest(_) => false,
    }
}

/// True if the right side contains a match of the left side, so that each application makes the
/// term larger.
pub(crate) fn grows(r: &Rule) -> bool {
    let ([lhs], [rhs]) = (r.lhs.as_slice(), r.rhs.as_slice()) else { return false };
    if !unguarded(r) {
        return false;
    }
    let mut found = false;
    walk_build(
        rhs,
        &mut |b, root| {
            let mut m = Match::default();
            if matches(lhs, b, &mut m) {
                found |= !root || m.builds.values().any(|b| !matches!(b, Build::Var(_) | Build::Number(_)));
            }
        },
        true,
    );
    found
}

/// True for a rule with one root and no guards or types: it applies wherever its pattern matches.
pub(crate) fn unguarded(r: &Rule) -> bool {
    matches!((r.lhs.as_slice(), r.rhs.as_slice()), ([lhs], [_]) if r.requires.is_empty() && !has_type(lhs))
}

fn has_type(p: &Pat) -> bool {
    match p {
        Pat::Typed(..) => true,
        Pat::Bind(_, p) => has_type(p),
        Pat::OneOf(l) => l.iter().any(has_type),
        Pat::Node(n) => n.args.iter().any(has_type),
        _ => false,
    }
}

/// True if the right side is a part of the left side under scalar functions only, in a rule that is
/// not lifted to terms: the e-class then contains itself, and an epilogue could absorb the function
/// again and again. A part that is known to be an op's result, such as `p @ softmax(x)`, cannot be
/// absorbed into an epilogue: only products have epilogues. So products, and ops whose bodies end
/// in one, are distinguished from other ops.
pub(crate) fn self_containing(p: &Program, r: &Rule) -> bool {
    let ([lhs], [rhs]) = (r.lhs.as_slice(), r.rhs.as_slice()) else { return false };
    let by_op = matches!(rhs, Build::Var(v) if is_op(p, lhs, *v));
    !r.pointwise && !by_op && scalars_only(rhs) && below(lhs, rhs)
}

/// True if the pattern binds the variable to an application of an op that is not a product and
/// contains none.
fn is_op(program: &Program, p: &Pat, v: VarId) -> bool {
    match p {
        Pat::Bind(w, inner) => (*w == v && no_product(program, inner)) || is_op(program, inner, v),
        Pat::Typed(p, _) => is_op(program, p, v),
        Pat::Node(n) => n.args.iter().any(|a| is_op(program, a, v)),
        _ => false,
    }
}

fn no_product(program: &Program, p: &Pat) -> bool {
    let Pat::Node(NodePat { head: Head::Op(id), .. }) = p else { return false };
    let mut work = vec![*id];
    let mut seen = Vec::new();
    while let Some(id) = work.pop() {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        match &program.op(id).body {
            OpBody::Builtin(b) if b.multiplies() => return false,
            OpBody::Builtin(_) => {}
            OpBody::Defined(bodies) => {
                for b in bodies {
                    walk_build(
                        b,
                        &mut |b, _| {
                            if let Build::Node(BuildNode { head: Head::Op(id), .. }) = b {
                                work.push(*id);
                            }
                        },
                        true,
                    );
                }
            }
        }
    }
    true
}

fn scalars_only(b: &Build) -> bool {
    match b {
        Build::Var(_) | Build::Number(_) => true,
        Build::Node(n) => {
            matches!(n.head, Head::Scalar(_)) && n.args.iter().all(|a| matches!(a, BuildArg::One(b) if scalars_only(b)))
        }
        _ => false,
    }
}

fn below(p: &Pat, rhs: &Build) -> bool {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => below(p, rhs),
        Pat::Node(NodePat { head: Head::Scalar(_), args, .. }) => args.iter().any(|a| same(a, rhs) || below(a, rhs)),
        _ => false,
    }
}

/// Whether a part of the left side is the same as the right side, as written.
fn same(p: &Pat, b: &Build) -> bool {
    match (p, b) {
        (Pat::Var(v), Build::Var(w)) => v == w,
        (Pat::Bind(v, p), _) => matches!(b, Build::Var(w) if v == w) || same(p, b),
        (Pat::Typed(p, _), _) => same(p, b),
        (Pat::Lit { value, near: None }, Build::Number(AExpr::Value(AttrValue::Float(x)))) => {
            value.to_bits() == x.to_bits()
        }
        (Pat::Optional(v), Build::Var(w)) => v == w,
        (Pat::Absent, Build::Absent) => true,
        (Pat::Node(n), Build::Node(bn)) => {
            n.head == bn.head
                && n.rest.is_none()
                && n.output == bn.output
                && n.args.len() == bn.args.len()
                && n.args.iter().zip(&bn.args).all(|(p, a)| matches!(a, BuildArg::One(b) if same(p, b)))
                && n.attrs.len() == bn.attrs.len()
                && n.attrs.iter().zip(&bn.attrs).all(|(p, e)| same_attr(p, e))
        }
        _ => false,
    }
}

fn same_attr(p: &AttrPat, e: &AExpr) -> bool {
    match (p, e) {
        (AttrPat::Var(v), AExpr::Var(w)) => v == w,
        (AttrPat::Is(x), _) => x == e,
        _ => false,
    }
}

/// True if both sides of a rule are the same, as written.
pub(crate) fn changes_nothing(r: &Rule) -> bool {
    r.lhs.len() == r.rhs.len() && r.lhs.iter().zip(&r.rhs).all(|(p, b)| same(p, b))
}

/// A substitution from the variables of one pattern to the parts of another.
#[derive(Default, Debug, Clone)]
pub(crate) struct Instance {
    pats: HashMap<VarId, Pat>,
    attrs: HashMap<VarId, AttrPat>,
}

/// Whether every match of `special` is a match of `general`.
pub(crate) fn instance_of(general: &Pat, special: &Pat, i: &mut Instance) -> bool {
    match (general, special) {
        (Pat::Any, _) => true,
        (Pat::Var(v), _) => match i.pats.get(v) {
            Some(have) => have == special || matches!((have, special), (Pat::Bind(a, _), Pat::Var(b)) if a == b),
            None => {
                i.pats.insert(*v, special.clone());
                true
            }
        },
        (Pat::Bind(v, g), _) => instance_of(&Pat::Var(*v), special, i) && instance_of(g, special, i),
        (_, Pat::Bind(_, s)) => instance_of(general, s, i),
        (_, Pat::Typed(s, _)) if !matches!(general, Pat::Typed(..)) => instance_of(general, s, i),
        (_, Pat::OneOf(l)) => l.iter().all(|s| instance_of(general, s, i)),
        (Pat::OneOf(l), _) => l.iter().any(|g| {
            let mut own = i.clone();
            let yes = instance_of(g, special, &mut own);
            if yes {
                *i = own;
            }
            yes
        }),
        (Pat::Lit { value: a, near }, Pat::Lit { value: b, near: n }) => near == n && a.to_bits() == b.to_bits(),
        (Pat::Absent, Pat::Absent) => true,
        (Pat::Optional(v), Pat::Optional(_) | Pat::Absent) => instance_of(&Pat::Var(*v), special, i),
        (Pat::Node(g), Pat::Node(s)) => {
            g.head == s.head
                && g.rest.is_none()
                && s.rest.is_none()
                && g.output == s.output
                && g.args.len() == s.args.len()
                && g.args.iter().zip(&s.args).all(|(g, s)| instance_of(g, s, i))
                && g.attrs.len() == s.attrs.len()
                && g.attrs.iter().zip(&s.attrs).all(|(g, s)| attr_instance(g, s, i))
        }
        _ => false,
    }
}

fn attr_instance(g: &AttrPat, s: &AttrPat, i: &mut Instance) -> bool {
    match (g, s) {
        (AttrPat::Any, _) => true,
        (AttrPat::Var(v), _) => match i.attrs.get(v) {
            Some(have) => have == s,
            None => {
                i.attrs.insert(*v, s.clone());
                true
            }
        },
        (AttrPat::Is(a), AttrPat::Is(b)) => a == b,
        _ => false,
    }
}

/// Whether the general rule's right side, after substitution, equals the special one's.
pub(crate) fn same_result(general: &Build, special: &Build, i: &Instance) -> bool {
    match (general, special) {
        (Build::Var(v), _) => i.pats.get(v).is_some_and(|p| same(p, special)),
        (Build::Number(AExpr::Var(v)), Build::Number(e)) => attr_is(i, *v, e),
        (Build::Number(a), Build::Number(b)) => closed(a) && a == b,
        (Build::Frozen(a), Build::Frozen(b)) => same_result(a, b, i),
        (Build::Absent, Build::Absent) => true,
        (Build::Node(g), Build::Node(s)) => {
            g.head == s.head
                && g.output == s.output
                && g.args.len() == s.args.len()
                && g.args
                    .iter()
                    .zip(&s.args)
                    .all(|(a, b)| matches!((a, b), (BuildArg::One(a), BuildArg::One(b)) if same_result(a, b, i)))
                && g.attrs.len() == s.attrs.len()
                && g.attrs.iter().zip(&s.attrs).all(|(a, b)| match a {
                    AExpr::Var(v) => attr_is(i, *v, b),
                    a => closed(a) && a == b,
                })
        }
        _ => false,
    }
}

fn attr_is(i: &Instance, v: VarId, e: &AExpr) -> bool {
    match (i.attrs.get(&v), e) {
        (Some(AttrPat::Var(w)), AExpr::Var(x)) => w == x,
        (Some(AttrPat::Is(a)), e) => a == e,
        _ => false,
    }
}

/// Whether the expression has no variables.
pub(crate) fn closed(e: &AExpr) -> bool {
    let mut any = false;
    super::walk::expr_vars(e, &mut |_| any = true);
    !any
}
