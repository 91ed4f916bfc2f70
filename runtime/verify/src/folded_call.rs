//! Functions of constants, which the optimiser computes before a run.
//!
//! In: a value of a graph. Out: the call with the values of its operands, as
//! `hypatia_optimize::folded` examines it. Invariant: the operands are those that the optimiser
//! sees.

use hypatia_dsl::ir::OpBody;
use hypatia_graph::{Graph, NodeKind, Value, constant_value};
use hypatia_optimize::range_loss::{FoldedCall, FoldedProduct, Operand};
use hypatia_pipeline::FOLDER;

/// A value that is a scalar function of constants, with its operands.
pub(super) fn folded<T>(graph: &Graph, value: Value, ask: impl FnOnce(&FoldedCall<'_>) -> T) -> Option<T> {
    let node = graph.node(value.node);
    let NodeKind::Scalar(scalar) = node.kind else { return None };
    let operand = |v: &Option<Value>| constant_value(&FOLDER, graph, (*v)?).map(|t| Operand::Tensor(t.into()));
    let operands = node.operands.iter().map(operand).collect::<Option<Vec<_>>>()?;
    let ty = graph.ty(value);
    let shape = ty.shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect::<Option<Vec<_>>>()?;
    let program = &graph.program;
    Some(ask(&FoldedCall { program, scalar, operands: &operands, dtype: ty.dtype, shape: &shape }))
}

/// What a product of constants would lose.
pub(super) fn product_loss(graph: &Graph, value: Value) -> Option<String> {
    let node = graph.node(value.node);
    let NodeKind::Op { op, attrs, term: None } = &node.kind else { return None };
    if !is_product(graph, value) {
        return None;
    }
    let operand = |v: &Option<Value>| constant_value(&FOLDER, graph, (*v)?).map(Into::into);
    let operands = node.operands.iter().map(operand).collect::<Option<Vec<_>>>()?;
    FoldedProduct { program: &graph.program, op: *op, attrs, operands: &operands }.loss(&FOLDER)
}

/// For each element of a product of constants the largest that may be summed with it.
pub(super) fn beside_product(graph: &Graph, value: Value) -> Option<Vec<f64>> {
    let found = constant_value(&FOLDER, graph, value).filter(|_| is_product(graph, value))?;
    Some(FoldedProduct::beside(&found.to_f64(), found.shape()))
}

/// Whether a value is the result of an op that sums products.
pub(super) fn is_product(graph: &Graph, value: Value) -> bool {
    let NodeKind::Op { op, .. } = &graph.node(value.node).kind else { return false };
    matches!(graph.program.op(*op).body, OpBody::Builtin(b) if b.multiplies())
}
