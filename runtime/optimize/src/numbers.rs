//! Constants that a rule knows as numbers.
//!
//! In: a rule, and the shapes beside such a constant. Out: whether the rule may lose the constant's
//! shape, and whether that shape matters. Invariant: a constant whose elements all equal 2 is the
//! number 2 only where it enlarges nothing, since a reduction could hide the larger size from the
//! types of both sides. The matcher asks for every number; `verify`, whose literals are of rank 0,
//! only for the numbers of a body.

use hypatia_dsl::ir::{AExpr, Fact, Pat, Rule};
use hypatia_dsl::shape::{Dim, Shape, broadcast};
use hypatia_graph::{Graph, NodeKind, splat};

/// True if the left side has literals, or numbers of a body.
pub fn reads_numbers(rule: &Rule) -> bool {
    rule.lhs.iter().any(has_literal) || has_numbers_of_a_body(rule)
}

/// True if the rule was derived from a body, and a constant gives one of its attributes. A rule
/// that somebody wrote says itself which shapes `value(c)` may have.
pub fn has_numbers_of_a_body(rule: &Rule) -> bool {
    let mut guards = rule.lets.iter().map(|(_, e)| e).chain(rule.requires.iter());
    rule.derived && guards.any(asks_for_value)
}

fn has_literal(p: &Pat) -> bool {
    match p {
        Pat::Lit { .. } => true,
        Pat::Bind(_, p) | Pat::Typed(p, _) => has_literal(p),
        Pat::OneOf(ps) => ps.iter().any(has_literal),
        Pat::Node(n) => n.operands().any(has_literal),
        Pat::Any | Pat::Var(_) | Pat::Absent | Pat::Optional(_) => false,
    }
}

fn asks_for_value(e: &AExpr) -> bool {
    match e {
        AExpr::Fact(fact, _) => *fact == Fact::Value,
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().any(asks_for_value),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => asks_for_value(a),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => asks_for_value(a) || asks_for_value(b),
        AExpr::If(a, b, c) => [a, b, c].into_iter().any(|e| asks_for_value(e)),
        AExpr::SameAccumulator(..)
        | AExpr::Value(_)
        | AExpr::Var(_)
        | AExpr::Comprehension { .. }
        | AExpr::Device(_) => false,
    }
}

/// The first of the operands of a scalar function that is a number and enlarges the others. Each
/// operand has a shape, and a flag for those whose elements are all equal.
pub fn enlarging(operands: &[(&[Dim], bool)]) -> Option<usize> {
    if !operands.iter().any(|(shape, number)| *number && !shape.is_empty()) {
        return None;
    }
    let others = operands.iter().filter(|(_, number)| !number).map(|(shape, _)| shape.to_vec());
    let beside: Shape = others.reduce(|a, b| broadcast(&a, &b).unwrap_or(a))?;
    let enlarges = |shape: &[Dim]| broadcast(&beside, shape).is_some_and(|joined| joined != beside);
    operands.iter().position(|(shape, number)| *number && enlarges(shape))
}

/// True if a number among the constants of a graph enlarges what stands beside it.
pub fn any_enlarges(graph: &Graph) -> bool {
    let number = |v: hypatia_graph::Value| match &graph.node(v.node).kind {
        NodeKind::Const(t) => splat(t).is_some(),
        _ => false,
    };
    graph.nodes.iter().filter(|n| matches!(n.kind, NodeKind::Scalar(_))).any(|node| {
        let operands: Vec<(&[Dim], bool)> =
            node.operands.iter().flatten().map(|v| (graph.ty(*v).shape.as_slice(), number(*v))).collect();
        enlarging(&operands).is_some()
    })
}
