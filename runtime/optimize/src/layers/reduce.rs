//! A graph with fewer layers.
//!
//! In: a graph and its run of layers. Out: the graph with the first [`KEPT`] of them; what read the
//! last layer reads the last of these. Nothing if something behind the run reads another layer.
//! Invariant: of an output of every layer, those of the kept layers remain.

use hypatia_graph::{Graph, NodeId, NodeKind, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{KEPT, Layers, Place};

/// A graph with [`KEPT`] layers.
pub(super) struct Small {
    pub(super) graph: Graph,
    /// The node of the whole graph that each node was.
    pub(super) whole: Vec<NodeId>,
    /// The node that each node of the whole graph became.
    small: FxHashMap<NodeId, NodeId>,
    /// The outputs that every layer has: where the layer computes it, and its name in each layer.
    pub(super) of_layers: Vec<OfLayers>,
}

/// An output that every layer has.
pub(super) struct OfLayers {
    /// Where a layer computes it.
    pub(super) at: (usize, u32),
    /// Its name in each layer.
    pub(super) names: Vec<String>,
}

impl Small {
    /// The node that a node of the whole graph became.
    pub(super) fn node(&self, whole: NodeId) -> Option<NodeId> {
        self.small.get(&whole).copied()
    }

    /// The names of outputs that every layer has.
    pub(super) fn named_by_layers(&self) -> FxHashSet<&str> {
        self.of_layers.iter().flat_map(|o| &o.names).map(String::as_str).collect()
    }
}

pub(super) fn reduce(graph: &Graph, layers: &Layers) -> Option<Small> {
    let of_layers = outputs_of_layers(graph, layers);
    let last = layers.count() - 1;
    let read = read_by_kept(graph, layers);
    let mut small =
        Small { graph: Graph::new(graph.program.clone()), whole: Vec::new(), small: FxHashMap::default(), of_layers };
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let layer = layers.place(id).map(|p| p.layer).or(layers.leaves.layer(id));
        let unread = matches!(node.kind, NodeKind::Const(_)) && !read.contains(&id);
        if unread || layer.is_some_and(|layer| layer >= KEPT) {
            continue;
        }
        let mut node = node.clone();
        for v in node.operands.iter_mut().flatten() {
            *v = match layers.place(id) {
                Some(_) => Value { node: small.node(v.node)?, ..*v },
                None => small.value(layers, last, *v)?,
            };
        }
        small.small.insert(id, NodeId(small.graph.nodes.len() as u32));
        small.whole.push(id);
        small.graph.nodes.push(node);
    }
    small.graph.inputs = graph.inputs.iter().filter_map(|n| small.node(*n)).collect();
    let by_layers: FxHashMap<&str, usize> =
        small.of_layers.iter().flat_map(|o| o.names.iter().enumerate().map(|(l, n)| (n.as_str(), l))).collect();
    let mut outputs = Vec::new();
    for (name, v) in &graph.outputs {
        match by_layers.get(name.as_str()) {
            Some(layer) if *layer >= KEPT => {}
            Some(_) => outputs.push((name.clone(), Value { node: small.node(v.node)?, ..*v })),
            None => outputs.push((name.clone(), small.value(layers, last, *v)?)),
        }
    }
    drop(by_layers);
    small.graph.outputs = outputs;
    Some(small)
}

/// What the nodes read that stay, and the outputs.
fn read_by_kept(graph: &Graph, layers: &Layers) -> FxHashSet<NodeId> {
    let stays = |i: usize| layers.place(NodeId(i as u32)).is_none_or(|p| p.layer < KEPT);
    let nodes = graph.nodes.iter().enumerate().filter(|(i, _)| stays(*i));
    let operands = nodes.flat_map(|(_, n)| n.operands.iter().flatten());
    operands.chain(graph.outputs.iter().map(|(_, v)| v)).map(|v| v.node).collect()
}

impl Small {
    /// What a value of the whole graph became for a reader outside of the run. The last layer
    /// became the last one that is kept; `None` for the other layers.
    fn value(&self, layers: &Layers, last: usize, v: Value) -> Option<Value> {
        let node = match layers.place(v.node) {
            Some(p) if p.layer == last => layers.node(Place { layer: KEPT - 1, ..p }),
            Some(_) => return None,
            None => v.node,
        };
        Some(Value { node: self.node(node)?, ..v })
    }
}

/// The outputs that every layer has.
fn outputs_of_layers(graph: &Graph, layers: &Layers) -> Vec<OfLayers> {
    let mut found: FxHashMap<(usize, u32), Vec<(usize, &String)>> = FxHashMap::default();
    for (name, v) in &graph.outputs {
        if let Some(p) = layers.place(v.node) {
            found.entry((p.at, v.output)).or_default().push((p.layer, name));
        }
    }
    let mut all: Vec<OfLayers> = Vec::new();
    for (at, mut list) in found {
        list.sort_unstable();
        if list.len() == layers.count() && list.iter().enumerate().all(|(i, (layer, _))| i == *layer) {
            all.push(OfLayers { at, names: list.into_iter().map(|(_, name)| name.clone()).collect() });
        }
    }
    all.sort_by_key(|o| o.at);
    all
}
