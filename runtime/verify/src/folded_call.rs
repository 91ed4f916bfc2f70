//! Scalar functions of constants, which the optimiser computes before a run.
//!
//! In: a value of a graph. Out: the call with the values of its operands, as
//! `hypatia_optimize::folded` examines it. Invariant: the operands are those that the optimiser
//! sees.

use hypatia_graph::{Graph, NodeKind, Value, constant_value};
use hypatia_optimize::range_loss::{FoldedCall, Operand};
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
