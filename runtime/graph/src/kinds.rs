//! Classifies nodes.
//!
//! In: a node. Out: the builtin op that it applies, and whether it is a view or pointwise.
//! Also which operands are numbers in a kernel. Invariant: the answers about ops follow from the op
//! alone, not from types or users, so every stage gets the same ones.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::Kind;
use hypatia_dsl::ir::{AttrValue, OpBody, ScalarBody};

use super::{Graph, Node, NodeKind, Value};

/// The builtin that a node applies.
pub fn builtin(graph: &Graph, node: &Node) -> Option<BuiltinOp> {
    match &node.kind {
        NodeKind::Op { op, .. } => match graph.program.op(*op).body {
            OpBody::Builtin(b) => Some(b),
            OpBody::Defined(_) => None,
        },
        _ => None,
    }
}

/// True for ops whose result is a view of their first operand, and for constant fills, which are a
/// view of one element.
pub fn is_view(graph: &Graph, node: &Node) -> bool {
    use BuiltinOp::*;
    matches!(builtin(graph, node), Some(Reshape | Transpose | Expand | Slice | Windows | Split | Full))
}

/// True for nodes that compute each element of their result from one element of each operand.
pub fn is_pointwise(graph: &Graph, node: &Node) -> bool {
    matches!(node.kind, NodeKind::Scalar(_)) || builtin(graph, node) == Some(BuiltinOp::Cast)
}

/// True for pointwise nodes of one instruction.
pub fn is_light(graph: &Graph, node: &Node) -> bool {
    match node.kind {
        NodeKind::Scalar(s) => {
            matches!(graph.program.scalar(s).body, ScalarBody::Builtin(b) if b.cost().instructions == 1)
        }
        _ => builtin(graph, node) == Some(BuiltinOp::Cast),
    }
}

/// True for nodes that reduce whole axes.
pub fn is_reduction(graph: &Graph, node: &Node) -> bool {
    use BuiltinOp::*;
    matches!(builtin(graph, node), Some(Sum | Mean | Prod | Amax | Amin))
}

/// True if a type that holds the operands of the function also holds its result: nothing is
/// rounded.
pub fn is_exact(f: BuiltinScalar) -> bool {
    use BuiltinScalar::*;
    f.result() == Kind::Bool || matches!(f, Neg | Abs | Sign | Max | Min | Floor | Ceil | Round | Trunc | Select | Fmod)
}

/// True if a device rounds the result of an op with these attributes: the op computes rather than
/// moves elements.
pub fn rounds(op: BuiltinOp, attrs: &[AttrValue]) -> bool {
    let combines = |how: &AttrValue| matches!(how, AttrValue::Str(how) if how == "add" || how == "mul");
    op.multiplies()
        || (op == BuiltinOp::Scatter && attrs.first().is_some_and(combines))
        || matches!(op, BuiltinOp::Cast | BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Prod | BuiltinOp::Cumsum)
}

/// The number that replaces an operand of a scalar function in a kernel: a one-element float
/// constant, where another operand gives the literal its type.
pub fn literal(graph: &Graph, node: &Node, v: Value) -> Option<f64> {
    let NodeKind::Scalar(scalar) = node.kind else { return None };
    let number = float_splat(graph.node(v.node))?;
    let dtype = graph.ty(v).dtype;
    let params = &graph.program.scalar(scalar).params;
    let typed = node.operands.iter().zip(params).any(|(o, (_, kind))| {
        o.is_some_and(|o| {
            *kind == Kind::Number && graph.ty(o).dtype == dtype && float_splat(graph.node(o.node)).is_none()
        })
    });
    typed.then_some(number)
}

/// The value of a one-element float constant.
fn float_splat(node: &Node) -> Option<f64> {
    match &node.kind {
        NodeKind::Const(t) if t.len() == 1 && t.dtype().is_float() => t.to_f64().first().copied(),
        _ => None,
    }
}
