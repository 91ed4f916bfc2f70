//! A small part of a graph: some nodes and the nearest of those that lead to them.
//!
//! In: a graph, the nodes at the end, a number of nodes. Out: a graph of no more nodes than that,
//! whose inputs are values of the whole graph. Invariant: for the values of its inputs, its outputs
//! are those of the whole graph; constants stay constants.

use std::collections::{BTreeSet, VecDeque};

use super::{Graph, NodeId, NodeKind, Value};
use crate::replace::copy;
use hypatia_tensor::error::Result;

/// A part of a graph.
pub struct Cone {
    /// The part.
    pub graph: Graph,
    /// For each of its inputs, the value of the whole graph.
    pub inputs: Vec<Value>,
}

impl Graph {
    /// The nodes `ends` and what leads to them, breadth first, `most` nodes that compute at most.
    /// All results of the ends are outputs.
    ///
    /// # Errors
    /// If the graph is not well typed.
    pub fn cone(&self, ends: &[NodeId], most: usize) -> Result<Cone> {
        let computes = |id: NodeId| !matches!(self.node(id).kind, NodeKind::Input { .. } | NodeKind::Const(_));
        let mut inside = BTreeSet::new();
        let mut next: VecDeque<NodeId> = ends.iter().copied().collect();
        while let Some(id) = next.pop_front() {
            if inside.len() == most {
                break;
            }
            if computes(id) && inside.insert(id.index()) {
                next.extend(self.node(id).operands.iter().flatten().map(|v| v.node));
            }
        }
        let mut cone = Cone { graph: Graph::new(self.program.clone()), inputs: Vec::new() };
        // The values of the whole graph that the part has already.
        let mut have: Vec<(Value, Value)> = Vec::new();
        for id in inside {
            let node = self.node(NodeId(id as u32));
            let mut operands = Vec::with_capacity(node.operands.len());
            for operand in &node.operands {
                operands.push(operand.map(|v| cone.value(self, v, &mut have)).transpose()?);
            }
            let results = copy(&mut cone.graph, node, &operands)?;
            if let Some(first) = results.first() {
                cone.graph.name_node(*first, node.name.clone());
            }
            let whole = (0..results.len()).map(|output| Value { node: NodeId(id as u32), output: output as u32 });
            have.extend(whole.zip(results));
        }
        for (whole, own) in have.iter().filter(|(whole, _)| ends.contains(&whole.node) && computes(whole.node)) {
            cone.graph.output(format!("end{}_{}", whole.node.0, whole.output), *own);
        }
        Ok(cone)
    }
}

impl Cone {
    /// A value of the whole graph: what the part has, a constant, or a new input.
    fn value(&mut self, whole: &Graph, v: Value, have: &mut Vec<(Value, Value)>) -> Result<Value> {
        if let Some((_, own)) = have.iter().find(|(known, _)| *known == v) {
            return Ok(*own);
        }
        let own = match &whole.node(v.node).kind {
            NodeKind::Const(t) => self.graph.constant(t.clone()),
            _ => {
                self.inputs.push(v);
                self.graph.input(format!("in{}", self.inputs.len() - 1), whole.ty(v).clone())
            }
        };
        have.push((v, own));
        Ok(own)
    }
}
