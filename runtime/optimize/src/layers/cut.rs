//! Two places in the optimised small graph, a layer apart, where the same values cross.
//!
//! In: the extracted graph of the small graph. Out: a [`Cut`], or nothing. Invariant: each value
//! that crosses the first place and is not shared crosses the second as its successor, a layer
//! further on, and nothing else crosses the second. A shared value is the same at both.

use hypatia_graph::{Graph, NodeId, NodeKind, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::language::{Node, Payload};
use super::super::lower::Rebuilt;
use super::super::optimizer::Optimizer;
use super::reduce::Small;
use super::{KEPT, Layers, Place, is_leaf};

/// Which part of the optimised small graph a node is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// In front of the first place.
    Front,
    /// Between the places: one layer.
    Layer,
    /// Behind the second place.
    Back,
}

/// Two places where the same values cross, a layer apart.
pub(super) struct Cut {
    /// The node of a layer whose value, in the first two layers, ends the front and the layer.
    pub(super) anchor: usize,
    /// The part of each node; leaves are in none.
    pub(super) parts: Vec<Part>,
    /// Of each value of the front that the layer reads and that is not shared: the value that a
    /// further layer reads in its place.
    pub(super) next: FxHashMap<Value, Value>,
}

/// The values of the optimised small graph, as values of the given one.
pub(super) struct Images<'a> {
    rebuilt: &'a Rebuilt,
    optimizer: &'a Optimizer<'a>,
    layers: &'a Layers,
    small: &'a Small,
    /// Which nodes of the run, and of which layers, have that value.
    origins: FxHashMap<Value, Vec<(Place, u32)>>,
    /// Whether all layers share the values of each node.
    shared: Vec<bool>,
    /// The leaf of the whole graph that each leaf of the optimised small graph is; `None` for
    /// other nodes, and for constants that rules wrote.
    pub(super) sources: Vec<Option<NodeId>>,
}

impl<'a> Images<'a> {
    pub(super) fn of(
        rebuilt: &'a Rebuilt,
        optimizer: &'a Optimizer,
        layers: &'a Layers,
        small: &'a Small,
    ) -> Images<'a> {
        let (origins, shared) = (FxHashMap::default(), Vec::new());
        let mut images =
            Images { rebuilt, optimizer, layers, small, origins, shared, sources: sources(optimizer, rebuilt, small) };
        let entering: Vec<Option<Value>> = layers.entries.iter().map(|v| images.of_whole(*v)).collect();
        for (i, whole) in small.whole.iter().enumerate() {
            let Some(place) = layers.place(*whole) else { continue };
            for output in 0..optimizer.inserted.values[i].len() as u32 {
                let Some(v) = images.image(Value { node: NodeId(i as u32), output }) else { continue };
                images.origins.entry(v).or_default().push((place, output));
            }
        }
        images.share(&entering);
        images
    }

    /// Finds what all layers share: what depends neither on a layer's own leaf nor on what enters
    /// the run. (What the first layer reads could stand for what the others read of the layer
    /// before them, if rules joined the first layer with the second.)
    fn share(&mut self, entering: &[Option<Value>]) {
        for (i, node) in self.rebuilt.graph.nodes.iter().enumerate() {
            let enters = |output: u32| entering.contains(&Some(Value { node: NodeId(i as u32), output }));
            let own = self.sources[i].is_some_and(|leaf| self.layers.leaves.layer(leaf).is_some());
            let all = node.operands.iter().flatten().all(|v| self.shared[v.node.index()]);
            self.shared.push(all && !own && !(0..node.results.len() as u32).any(enters));
        }
    }

    /// What a value of the whole graph became, if it is still computed.
    fn of_whole(&self, v: Value) -> Option<Value> {
        self.image(Value { node: self.small.node(v.node)?, ..v })
    }

    /// The value that a value of the small graph became, if it is still computed.
    fn image(&self, v: Value) -> Option<Value> {
        let class = self.optimizer.inserted.values.get(v.node.index())?.get(v.output as usize)?;
        self.rebuilt.values.get(&self.optimizer.egraph().find(*class)).copied()
    }

    /// The value that a result of a node of the run became.
    pub(super) fn at(&self, place: Place, output: u32) -> Option<Value> {
        self.image(Value { node: self.small.node(self.layers.node(place))?, output })
    }

    /// The same value a layer further on; a shared value is itself. `None` if it is not computed,
    /// or if the value stands for nodes whose values differ further on.
    fn successor(&self, v: Value) -> Option<Value> {
        if self.shared[v.node.index()] {
            return Some(v);
        }
        let further = |(p, output): &(Place, u32)| {
            (p.layer + 1 < KEPT).then(|| self.at(Place { layer: p.layer + 1, ..*p }, *output)).flatten()
        };
        let mut successors = self.origins.get(&v)?.iter().filter_map(further);
        let first = successors.next()?;
        successors.all(|other| other == first).then_some(first)
    }

    /// The first cut that there is, from the end of a layer to its beginning.
    pub(super) fn cut(&self) -> Option<Cut> {
        (0..self.layers.period).rev().find_map(|anchor| self.cut_at(anchor))
    }

    /// Whether the layer reads a leaf that enters the run.
    fn reads_what_enters(&self, parts: &[Part]) -> bool {
        let graph = &self.rebuilt.graph;
        let layer = graph.nodes.iter().zip(parts).filter(|(_, part)| **part == Part::Layer);
        let mut leaves = layer.flat_map(|(n, _)| n.operands.iter().flatten()).filter(|v| is_leaf(graph, v.node));
        leaves.any(|v| {
            !self.shared[v.node.index()]
                && self.sources[v.node.index()].is_none_or(|l| self.layers.leaves.layer(l).is_none())
        })
    }

    fn cut_at(&self, anchor: usize) -> Option<Cut> {
        let graph = &self.rebuilt.graph;
        let [first, second] = [0, 1].map(|layer| self.at(Place { layer, at: anchor }, 0));
        let (first, second) = (first?.node, second?.node);
        if first == second || is_leaf(graph, first) || is_leaf(graph, second) {
            return None;
        }
        let (front, both) = (with_operands(graph, first), with_operands(graph, second));
        let part = |i: usize| match (front[i], both[i]) {
            (true, _) => Part::Front,
            (false, true) => Part::Layer,
            (false, false) => Part::Back,
        };
        let parts: Vec<Part> = (0..graph.nodes.len()).map(part).collect();
        if self.reads_what_enters(&parts) {
            return None;
        }
        let (crossing, further) = (crossing(graph, &front), crossing(graph, &both));
        let mut next = FxHashMap::default();
        for v in &crossing {
            let then = self.successor(*v)?;
            if then == *v {
                continue;
            }
            if parts[then.node.index()] != Part::Layer || !further.contains(&then) {
                return None;
            }
            next.insert(*v, then);
        }
        let reached: FxHashSet<Value> = next.values().copied().collect();
        let shared = |v: &Value| crossing.contains(v) && !next.contains_key(v);
        let all = reached.len() == next.len() && further.iter().all(|v| reached.contains(v) || shared(v));
        (all && !next.is_empty()).then_some(Cut { anchor, parts, next })
    }
}

/// The leaf of the whole graph that each leaf of the optimised small graph is; `None` for other
/// nodes, and for constants that rules wrote.
fn sources(optimizer: &Optimizer, rebuilt: &Rebuilt, small: &Small) -> Vec<Option<NodeId>> {
    let egraph = optimizer.egraph();
    let inputs: FxHashMap<NodeId, NodeId> =
        rebuilt.graph.inputs.iter().zip(&small.graph.inputs).map(|(a, b)| (*a, *b)).collect();
    let source = |i: usize| {
        let id = NodeId(i as u32);
        let node = match rebuilt.graph.nodes[i].kind {
            NodeKind::Input { .. } => *inputs.get(&id)?,
            NodeKind::Const(_) => {
                let leaf = |n: &Node| match n.payload {
                    Payload::Leaf(l) => Some(egraph.analysis.leaf(l).node),
                    _ => None,
                };
                optimizer.best.chosen.get(&rebuilt.classes[i]).and_then(leaf)?
            }
            _ => return None,
        };
        small.whole.get(node.index()).copied()
    };
    (0..rebuilt.graph.nodes.len()).map(source).collect()
}

/// A node and all that it needs, without leaves.
fn with_operands(graph: &Graph, node: NodeId) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    needed[node.index()] = true;
    for i in (0..graph.nodes.len()).rev() {
        if needed[i] {
            graph.nodes[i].operands.iter().flatten().for_each(|v| needed[v.node.index()] = true);
        }
    }
    (0..needed.len()).for_each(|i| needed[i] &= !is_leaf(graph, NodeId(i as u32)));
    needed
}

/// The values of those nodes that others read.
fn crossing(graph: &Graph, inside: &[bool]) -> FxHashSet<Value> {
    let outside = graph.nodes.iter().enumerate().filter(|(i, _)| !inside[*i]);
    outside.flat_map(|(_, n)| n.operands.iter().flatten()).filter(|v| inside[v.node.index()]).copied().collect()
}
