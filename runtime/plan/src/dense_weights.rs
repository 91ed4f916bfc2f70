//! Weights of products of bytes, stored so that the matrix units can multiply them.
//!
//! In: a graph of builtin ops whose constants are folded, for a GPU. Out: the same function, in
//! which the constant right factor of such a product lies with its sums' axis (k) dense. Invariant:
//! only constants that nothing else reads are stored in another order; f16 and bf16 need none, as
//! these can be transposed on their way from shared memory.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_target::device::{AMPERE, Device};

use hypatia_graph::{Graph, Node, NodeId, NodeKind, Replacement, Value, builtin};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// The graph with such weights transposed.
pub(super) fn with_dense_weights(graph: Graph, device: &Device) -> Result<Graph> {
    if device.is_host() || device.sm < AMPERE {
        return Ok(graph);
    }
    let users = graph.users();
    let mut instead = vec![None; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if let NodeKind::Const(weight) = &node.kind
            && is_weight(&graph, &users[i], NodeId(i as u32))
        {
            instead[i] = Some(Arc::new(transposed_twice(&graph, weight)?));
        }
    }
    if instead.iter().all(Option::is_none) {
        return Ok(graph);
    }
    graph.replaced(&|i, _| instead[i].clone().map_or(Replacement::Itself, Replacement::Graph))
}

/// Whether products of bytes alone read a constant matrix, each as its right factor.
fn is_weight(graph: &Graph, users: &[NodeId], weight: NodeId) -> bool {
    let result = &graph.node(weight).results[0];
    let outside = graph.outputs.iter().any(|(_, v)| v.node == weight);
    let reads = |user: &NodeId| {
        let user = graph.node(*user);
        let right = |(at, v): (usize, &Option<Value>)| v.is_some_and(|v| v.node == weight) == (at == 1);
        multiplies_bytes(graph, user) && user.operands.iter().enumerate().all(right)
    };
    result.dtype.is_byte() && result.shape.len() == 2 && !outside && !users.is_empty() && users.iter().all(reads)
}

fn multiplies_bytes(graph: &Graph, node: &Node) -> bool {
    matches!(builtin(graph, node), Some(BuiltinOp::Matmul | BuiltinOp::Gemm))
        && node.operands.iter().take(2).flatten().all(|v| graph.ty(*v).dtype.is_byte())
}

/// A graph whose result is a matrix of bytes, as the transpose of what it stores.
fn transposed_twice(of: &Graph, weight: &Tensor) -> Result<Graph> {
    let [rows, columns] = *weight.shape() else { return Err(Error::Internal("a weight that is no matrix".into())) };
    let from = weight.bytes();
    let bytes: Vec<u8> = (0..rows * columns).map(|i| from[i % rows * columns + i / rows]).collect();
    let stored = Tensor::from_bytes(weight.dtype(), &[columns, rows], &bytes);
    let stored = stored.ok_or_else(|| Error::Limit(format!("a weight of {rows}x{columns} cannot be stored again")))?;
    let mut graph = Graph::new(of.program.clone());
    let constant = graph.constant(Arc::new(stored));
    let transpose = graph.program.builtin_op(BuiltinOp::Transpose);
    let transpose = transpose.ok_or_else(|| Error::Internal("the program has no `transpose`".into()))?;
    let result = graph.op(transpose, &[Some(constant)], vec![[1i64, 0].into()], None)?;
    graph.output("weight".to_string(), result[0]);
    Ok(graph)
}
