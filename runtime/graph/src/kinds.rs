//! Classifies nodes.
//!
//! In: a node. Out: the builtin op that it applies, and whether it is a view or pointwise.
//! Invariant: the answers follow from the op alone, not from types or users, so every stage gets
//! the same ones.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::OpBody;

use super::{Graph, Node, NodeKind};

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
