//! Replaces nodes by other graphs, for example ops without a kernel by their bodies.
//!
//! In: a graph, and a replacement for each node. Out: the same function. Invariant: the results
//! have the types that the op gives. New nodes without a name take the name of the node that they
//! replace. Nodes that stay keep their kernels.

use std::sync::Arc;

use super::{Graph, Instantiator, Node, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};

/// The replacement of a node.
pub enum Replacement {
    /// The node itself.
    Itself,
    /// The body of its op.
    Body,
    /// This graph; its inputs are the node's operands, in order.
    Graph(Arc<Graph>),
}

impl Graph {
    /// The graph with some nodes replaced.
    pub fn replaced(&self, instead: &dyn Fn(usize, &Node) -> Replacement) -> Result<Graph> {
        let mut out = Graph::new(self.program.clone());
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            let operands: Vec<Option<Value>> =
                node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
            let start = out.nodes.len();
            let results = match (instead(i, node), &node.kind) {
                (Replacement::Graph(part), _) => splice(&mut out, &part, &operands)?,
                (Replacement::Body, NodeKind::Op { op, attrs, term }) => {
                    Instantiator::inlining(&mut out).op(*op, &operands, attrs, term.clone())?
                }
                _ => copy(&mut out, node, &operands)?,
            };
            for new in &mut out.nodes[start..] {
                if new.name.is_empty() {
                    new.name.clone_from(&node.name);
                }
            }
            map.push(results);
        }
        let moved = |v: &Value| map[v.node.index()][v.output as usize];
        out.outputs = self.outputs.iter().map(|(n, v)| (n.clone(), moved(v))).collect();
        out.inputs = self.inputs.iter().map(|id| map[id.index()][0].node).collect();
        Ok(out)
    }

    /// A graph of one node's op alone, with its operands as inputs.
    pub fn alone(&self, node: &Node) -> Result<Graph> {
        let NodeKind::Op { op, attrs, term } = &node.kind else {
            return Err(Error::Internal("a kernel for something that is no op".into()));
        };
        let mut alone = Graph::new(self.program.clone());
        let mut operands = Vec::with_capacity(node.operands.len());
        for (i, v) in node.operands.iter().enumerate() {
            operands.push(v.map(|v| alone.input(format!("operand{i}"), self.ty(v).clone())));
        }
        for (i, v) in alone.op(*op, &operands, attrs.clone(), term.clone())?.into_iter().enumerate() {
            alone.output(format!("result{i}"), v);
        }
        Ok(alone)
    }
}

/// Inlines a graph into another one, with these values for its inputs. Returns its outputs.
fn splice(out: &mut Graph, part: &Graph, operands: &[Option<Value>]) -> Result<Vec<Value>> {
    let given: Vec<Value> = operands.iter().flatten().copied().collect();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(part.nodes.len());
    for (i, node) in part.nodes.iter().enumerate() {
        let inner: Vec<Option<Value>> =
            node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
        let results = match part.inputs.iter().position(|n| n.index() == i) {
            Some(at) => given.get(at).map(|v| vec![*v]).ok_or_else(|| Error::Internal("an input too many".into()))?,
            None => copy(out, node, &inner)?,
        };
        map.push(results);
    }
    Ok(part.outputs.iter().map(|(_, v)| map[v.node.index()][v.output as usize]).collect())
}

/// Copies one node, with other operands.
pub(crate) fn copy(out: &mut Graph, node: &Node, operands: &[Option<Value>]) -> Result<Vec<Value>> {
    let results = match &node.kind {
        NodeKind::Input { name } => vec![out.input(name.clone(), node.results[0].clone())],
        NodeKind::Const(t) => vec![out.constant(t.clone())],
        NodeKind::Scalar(s) => {
            let operands: Vec<Value> = operands.iter().flatten().copied().collect();
            vec![out.scalar(*s, &operands)?]
        }
        NodeKind::Op { op, attrs, term } => out.op(*op, operands, attrs.clone(), term.clone())?,
    };
    if let Some(v) = results.first() {
        out.nodes[v.node.index()].kernels = node.kernels.clone();
    }
    Ok(results)
}
