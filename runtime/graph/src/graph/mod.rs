//! The types of a graph: nodes, values, and the candidate kernels of a node.
//!
//! In: nothing; `build` makes graphs. Out: what every other module reads. Invariant: operands come
//! before their users. [`kernels`] is part of this module because a candidate may be a graph
//! itself.

pub mod kernels;

use std::sync::Arc;

use hypatia_dsl::ir::{AttrValue, OpId, Program, ScalarId};
use hypatia_dsl::scalar::Term;
use hypatia_dsl::typing::TensorType;

use self::kernels::Kernels;
use hypatia_tensor::tensor::Tensor;

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index into `Graph::nodes`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One result of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub output: u32,
}

/// A graph of tensor operations.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The program whose ops and scalars the nodes name.
    pub program: Arc<Program>,
    /// Nodes in topological order: operands before users.
    pub nodes: Vec<Node>,
    /// The inputs, in the model's order; each is a node of kind `Input`.
    pub inputs: Vec<NodeId>,
    /// Name and value of each output, in the model's order.
    pub outputs: Vec<(String, Value)>,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub kind: NodeKind,
    /// Its operands in the op's order; `None` for an absent optional one. If the op has a term, the
    /// term's operands follow: `In { input: i }` is `operands[tensor operands + i]`.
    pub operands: Vec<Option<Value>>,
    /// Types of its results.
    pub results: Vec<TensorType>,
    /// Its name in the model, for messages: an ONNX node name, or the joined names of a fusion.
    pub name: String,
    /// Its candidate kernels, once the optimiser has chosen them.
    pub kernels: Kernels,
}

/// What a node does.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// An input of the graph.
    Input {
        /// Its name.
        name: String,
    },
    /// A constant: a weight, or a value known at plan time.
    Const(Arc<Tensor>),
    /// An op.
    Op {
        /// The op.
        op: OpId,
        /// One value for each attribute, in declaration order.
        attrs: Vec<AttrValue>,
        /// The epilogue, if the op has one.
        term: Option<Term>,
    },
    /// A scalar function applied to tensors element by element, with numpy broadcasting.
    Scalar(ScalarId),
}
