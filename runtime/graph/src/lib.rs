//! The typed graph: what a model computes.
//!
//! In: built by `import`, by the builder methods, or by extraction from the e-graph. Out: input of
//! the optimiser, of the reference evaluator and of the planner. Invariant (checked by `validate`):
//! operands come before their users; every result type is the one that `typing::apply_op` gives.

mod build;
mod builder;
mod constants;
mod facts;
pub mod fusions;
#[doc(hidden)]
pub mod generated;
pub mod instantiate;
mod kernels;
mod kinds;
mod narrow;
mod print;
mod regions;
mod replace;
mod specialize;
mod term;
mod unfold;
mod validate;
mod widen;

pub use builder::{GraphBuilder, Size, Var};
pub use constants::{ConstantFolder, Constants, constant_nodes, constant_value};
pub use facts::{GraphFacts, splat};
pub use instantiate::{Env, Instantiator};
pub use kernels::{Asked, Candidate, Kernels, Known, Matched, Product, Split, Way, device_fact, scale};
pub use kinds::{builtin, is_pointwise, is_view};
pub use print::show_attr;
pub use regions::cluster;
pub use replace::Instead;
pub use specialize::Symbols;
pub use term::check_view;
pub use term::{check_term, show_number, show_term};

pub mod prim;

use std::sync::Arc;

use hypatia_dsl::ir::{AttrValue, OpId, Program, ScalarId};
use hypatia_dsl::scalar::Term;
use hypatia_dsl::typing::TensorType;

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
