//! Constants that are computed when a plan is made, each once for all plans of a model.
//!
//! In: graphs. Out: the same graphs with constant expressions replaced by their values: computed in f64,
//! rounded by explicit casts and at the end. Holds always: views stay views, so a transposed weight is not
//! copied; equal expressions over the same weights share one value.

use std::collections::HashMap;
use std::sync::Arc;

use super::prepare::{constants, is_view};
use crate::cpu::reference::{Mode, evaluate};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::tensor::Tensor;

/// Values of constant expressions. Keep one for a model, so that plans for other input shapes find them.
#[derive(Default)]
pub struct Constants {
    /// Numbers of expressions, by what they are.
    ids: HashMap<Key, usize>,
    values: HashMap<usize, Arc<Tensor>>,
    /// Weights whose addresses name them: they must live as long as their names.
    weights: Vec<Arc<Tensor>>,
}

/// An expression: an op in words, and the results of other expressions that it reads.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    head: String,
    operands: Vec<Option<(usize, u32)>>,
}

impl Constants {
    /// Computes what depends on constants alone and is needed by something that does not.
    pub(crate) fn fold(&mut self, mut graph: Graph) -> Result<Graph> {
        let constant = constants(&graph);
        let frontier = frontier(&graph, &constant);
        if frontier.is_empty() {
            return Ok(graph);
        }
        let ids = self.number(&graph, &constant);
        let id = |v: &Value| ids.get(v.node.index()).copied().flatten().unwrap_or(usize::MAX);
        let missing: Vec<Value> = frontier.iter().filter(|v| !self.values.contains_key(&id(v))).copied().collect();
        if !missing.is_empty() {
            let mut part = graph.clone();
            part.outputs = missing.iter().enumerate().map(|(i, v)| (i.to_string(), *v)).collect();
            part.inputs.clear();
            let values = evaluate(&part.pruned(), &[], Mode::Casts).map_err(|e| match e {
                Error::Limit(m) => Error::Limit(format!("computing the model's constants: {m}")),
                e => e,
            })?;
            for (v, value) in missing.iter().zip(values) {
                self.values.insert(id(v), Arc::new(value.to_tensor()?));
            }
        }
        for v in &frontier {
            let value = self.values.get(&id(v)).ok_or_else(|| Error::Internal("a constant was lost".into()))?;
            let node = &mut graph.nodes[v.node.index()];
            if node.results.len() != 1 {
                return Err(Error::Internal("a constant node with several results".into()));
            }
            node.kind = NodeKind::Const(value.clone());
            node.operands.clear();
        }
        Ok(graph)
    }

    /// A number for each constant node; equal expressions get the same.
    fn number(&mut self, graph: &Graph, constant: &[bool]) -> Vec<Option<usize>> {
        let mut ids: Vec<Option<usize>> = Vec::with_capacity(graph.nodes.len());
        for (node, constant) in graph.nodes.iter().zip(constant) {
            if !constant {
                ids.push(None);
                continue;
            }
            let types: Vec<String> = node.results.iter().map(|t| t.to_string()).collect();
            let head = match &node.kind {
                NodeKind::Const(t) => format!("weight {:p}", Arc::as_ptr(t)),
                kind => format!("{kind:?} {}", types.join(", ")),
            };
            let operands = node.operands.iter().map(|v| v.and_then(|v| Some((ids[v.node.index()]?, v.output))));
            let key = Key { head, operands: operands.collect() };
            let next = self.ids.len();
            let id = *self.ids.entry(key).or_insert(next);
            if let (true, NodeKind::Const(t)) = (id == next, &node.kind) {
                self.weights.push(t.clone());
            }
            ids.push(Some(id));
        }
        ids
    }
}

/// Values to be computed now: read by nodes that are not constant, or by constant views that are
/// themselves read so.
fn frontier(graph: &Graph, constant: &[bool]) -> Vec<Value> {
    let mut wanted = vec![Vec::new(); graph.nodes.len()];
    let outputs: Vec<Value> = graph.outputs.iter().map(|(_, v)| *v).collect();
    for v in outputs {
        want(&mut wanted, v);
    }
    for i in (0..graph.nodes.len()).rev() {
        let node = &graph.nodes[i];
        if !constant[i] || (is_view(graph, node) && !wanted[i].is_empty()) {
            for v in node.operands.iter().flatten().copied().collect::<Vec<_>>() {
                want(&mut wanted, v);
            }
        }
    }
    (0..graph.nodes.len())
        .filter(|i| {
            constant[*i] && !matches!(graph.nodes[*i].kind, NodeKind::Const(_)) && !is_view(graph, &graph.nodes[*i])
        })
        .flat_map(|i| wanted[i].iter().map(move |output| Value { node: NodeId(i as u32), output: *output }))
        .collect()
}

fn want(wanted: &mut [Vec<u32>], v: Value) {
    let list = &mut wanted[v.node.index()];
    if !list.contains(&v.output) {
        list.push(v.output);
    }
}
