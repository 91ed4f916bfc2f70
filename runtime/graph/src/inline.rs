//! Inlining: replaces defined ops by their bodies.
//!
//! In: a graph as the model or a test wrote it. Out: the same function over builtin ops and scalars
//! only, with equal nodes deduplicated, ready for insertion into the e-graph. Invariant: inputs,
//! outputs and types stay the same. A subexpression that a body mentions twice, such as a mean, is
//! one node.

use super::instantiate::{Inline, Numbers};
use super::{Graph, Instantiator, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};

/// Maximum average number of nodes that one node of the graph may become; more is an error.
const GROWTH: usize = 200;

impl Graph {
    /// The graph with every defined op replaced by its body and equal nodes deduplicated.
    pub fn inlined(&self) -> Result<Graph> {
        Ok(self.inlined_with_numbers()?.0)
    }

    /// [`Graph::inlined`], with the unrounded numbers of the bodies.
    pub fn inlined_with_numbers(&self) -> Result<(Graph, Numbers)> {
        self.rebuilt(Inline::All)
    }

    /// The graph with every defined op replaced by its body, but for ops that write their
    /// gradients.
    pub(super) fn inlined_for_gradients(&self) -> Result<Graph> {
        Ok(self.rebuilt(Inline::WithoutGradients)?.0)
    }

    fn rebuilt(&self, inline: Inline) -> Result<(Graph, Numbers)> {
        let mut out = Graph::new(self.program.clone());
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(self.nodes.len());
        let mut into = Instantiator::with(&mut out, inline);
        into.allow(self.nodes.len().saturating_mul(GROWTH));
        for node in &self.nodes {
            let first_new = into.graph.nodes.len();
            let moved = |v: &Value| map[v.node.index()][v.output as usize];
            let operands: Vec<Option<Value>> = node.operands.iter().map(|v| v.as_ref().map(moved)).collect();
            let results = match &node.kind {
                NodeKind::Input { name } => Ok(vec![into.graph.input(name.clone(), node.results[0].clone())]),
                NodeKind::Const(t) => into.constant(t).map(|v| vec![v]),
                NodeKind::Scalar(s) => {
                    into.scalar(*s, &operands.iter().flatten().copied().collect::<Vec<_>>()).map(|v| vec![v])
                }
                NodeKind::Op { op, attrs, term } => into.op(*op, &operands, attrs, term.clone()),
            };
            let results = results.map_err(|e| match e {
                Error::Type(m) if !node.name.is_empty() => Error::Type(m.at(format_args!("node `{}`", node.name))),
                e => e,
            })?;
            for new in &mut into.graph.nodes[first_new..] {
                if new.name.is_empty() {
                    new.name.clone_from(&node.name);
                }
            }
            map.push(results);
        }
        let numbers = std::mem::take(&mut into.numbers);
        let outputs = self.outputs.iter().map(|(n, v)| (n.clone(), map[v.node.index()][v.output as usize]));
        out.outputs = outputs.collect();
        // Inputs keep the model's order, whatever the order of the nodes.
        out.inputs = self.inputs.iter().map(|id| map[id.index()][0].node).collect();
        Ok((out, numbers))
    }
}
