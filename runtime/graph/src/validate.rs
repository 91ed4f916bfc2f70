//! Checks the invariants of a [`Graph`].
//!
//! In: a graph from the importer, the builder or the e-graph. Out: an error that names the first
//! invalid node.
//!
//! Each stage that makes a graph runs this in its tests, and on models at run time (it is linear in
//! the graph).

use std::collections::HashSet;

use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{TensorType, apply_scalar};

use super::{Graph, Node, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};

impl Graph {
    /// Checks that operands come before users, that types follow the typing rules, and that inputs
    /// and outputs are in order.
    pub fn validate(&self) -> Result<()> {
        let mut names = HashSet::new();
        let mut inputs = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let id = NodeId(i as u32);
            for v in node.operands.iter().flatten() {
                let known = v.node < id && (v.output as usize) < self.nodes[v.node.index()].results.len();
                if !known {
                    return Err(
                        self.broken(id, format!("its operand {}.{} does not come before it", v.node.0, v.output))
                    );
                }
            }
            if let NodeKind::Input { name } = &node.kind {
                inputs.push(id);
                if !names.insert(name.as_str()) {
                    return Err(self.broken(id, format!("two inputs are called `{name}`")));
                }
            }
            let types = self.expected_types(node).map_err(|e| self.broken(id, e.to_string()))?;
            if types != node.results {
                let show = |t: &[TensorType]| t.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("its type is {}, but must be {}", show(&node.results), show(&types));
                return Err(self.broken(id, message));
            }
        }
        let mut listed = self.inputs.clone();
        listed.sort();
        if listed != inputs {
            return Err(Error::Internal("the graph's list of inputs is not its input nodes".into()));
        }
        self.validate_outputs()
    }

    fn validate_outputs(&self) -> Result<()> {
        let mut names = HashSet::new();
        for (name, Value { node, output }) in &self.outputs {
            if self.nodes.get(node.index()).is_none_or(|n| n.results.len() <= *output as usize) {
                return Err(Error::Internal(format!("output `{name}` is not a value of the graph")));
            }
            if !names.insert(name.as_str()) {
                return Err(Error::Internal(format!("two outputs are called `{name}`")));
            }
        }
        Ok(())
    }

    fn expected_types(&self, node: &Node) -> Result<Vec<TensorType>> {
        Ok(match &node.kind {
            NodeKind::Input { .. } if node.results.len() == 1 && node.operands.is_empty() => node.results.clone(),
            NodeKind::Input { .. } => return Err(Error::Internal("an input has one result and no operand".into())),
            NodeKind::Const(t) => {
                let shape = t.shape().iter().map(|&d| Dim::from(d as i64)).collect();
                vec![TensorType { dtype: t.dtype(), shape }]
            }
            NodeKind::Scalar(s) => {
                let types: Vec<TensorType> = node.operands.iter().flatten().map(|v| self.ty(*v).clone()).collect();
                vec![apply_scalar(&self.program, *s, &types).map_err(Error::from)?]
            }
            NodeKind::Op { op, attrs, term } => {
                let (normal, types) = self.type_op(*op, &node.operands, attrs, term.as_ref())?;
                if normal != *attrs {
                    return Err(Error::Internal("its attributes are not in normal form".into()));
                }
                types
            }
        })
    }

    fn broken(&self, id: NodeId, message: String) -> Error {
        let name = &self.nodes[id.index()].name;
        let called = if name.is_empty() { String::new() } else { format!(" (`{name}`)") };
        Error::Internal(format!("node {}{called}, {}: {message}", id.0, self.head_name(id)))
    }
}
