//! The leaves of a run of layers: which are shared, and which are a layer's own.
//!
//! In: a graph and a run whose other operands were compared. Out: [`Leaves`], or nothing if a leaf
//! is neither. Invariant: the elements of a layer's own constants are equal to those of no other
//! constant of the run, and nothing outside the run reads a layer's own leaf.

use hypatia_graph::{Graph, NodeId, NodeKind, Value, splat};
use hypatia_tensor::tensor::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::facts::{self, NumericFacts};
use super::super::lower::{are_equal, hash_of, tensor_facts};
use super::{Layers, Place, is_leaf};

/// Which of several leaves that differ from layer to layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Family(usize);

/// The leaves of a run.
#[derive(Default)]
pub(super) struct Leaves {
    /// The leaf of each family in each layer.
    families: Vec<Vec<NodeId>>,
    /// The family and the layer of each leaf that is a layer's own.
    own: FxHashMap<NodeId, (Family, usize)>,
    /// Facts of the leaves of each family: those that hold in every layer.
    facts: Vec<NumericFacts>,
    /// The contents of these leaves, as numbers.
    contents: FxHashSet<usize>,
}

impl Leaves {
    pub(super) fn of(graph: &Graph, layers: &Layers) -> Option<Leaves> {
        let mut contents = Contents::default();
        let mut leaves = Leaves::default();
        let mut known: FxHashMap<Vec<NodeId>, Option<Family>> = FxHashMap::default();
        let asked = facts::are_asked(&graph.program);
        for at in 0..layers.period {
            let second = graph.node(layers.node(Place { layer: 1, at }));
            for (k, operand) in second.operands.iter().enumerate() {
                if !operand.is_some_and(|v| is_leaf(graph, v.node)) {
                    continue;
                }
                let of_layer = |layer| graph.node(layers.node(Place { layer, at })).operands[k].map(|v: Value| v.node);
                let row: Vec<NodeId> = (0..layers.count()).map(of_layer).collect::<Option<_>>()?;
                if known.contains_key(&row) {
                    continue;
                }
                let family = match kind(graph, &row, &mut contents, asked)? {
                    Kind::Shared => None,
                    Kind::Own(facts) => Some(leaves.add(&row, facts, |n| contents.id(graph, n))?),
                };
                known.insert(row, family);
            }
        }
        let own = |i: &usize| leaves.own.contains_key(&NodeId(*i as u32));
        let mut others = (0..graph.nodes.len()).filter(|i| !own(i)).map(|i| NodeId(i as u32));
        // An e-graph stores equal constants once.
        let apart = others.all(|n| tensor(graph, n).is_none() || !leaves.contents.contains(&contents.id(graph, n)));
        (apart && leaves.stay_inside(graph, layers)).then_some(leaves)
    }

    /// A new family; `None` if one of its leaves, or one of the same content, is in another place
    /// of the run too.
    fn add(&mut self, row: &[NodeId], facts: NumericFacts, mut content: impl FnMut(NodeId) -> usize) -> Option<Family> {
        let family = Family(self.families.len());
        for (layer, node) in row.iter().enumerate() {
            if self.own.insert(*node, (family, layer)).is_some() || !self.contents.insert(content(*node)) {
                return None;
            }
        }
        self.families.push(row.to_vec());
        self.facts.push(facts);
        Some(family)
    }

    /// Whether only the run reads the leaves that are a layer's own.
    fn stay_inside(&self, graph: &Graph, layers: &Layers) -> bool {
        let outside = graph.nodes.iter().enumerate().filter(|(i, _)| layers.place(NodeId(*i as u32)).is_none());
        let mut read =
            outside.flat_map(|(_, n)| n.operands.iter().flatten()).chain(graph.outputs.iter().map(|(_, v)| v));
        read.all(|v| !self.own.contains_key(&v.node)) && layers.entries.iter().all(|v| !self.own.contains_key(&v.node))
    }

    /// The layer that a leaf belongs to.
    pub(super) fn layer(&self, leaf: NodeId) -> Option<usize> {
        self.own.get(&leaf).map(|(_, layer)| *layer)
    }

    /// The facts of each leaf that is a layer's own: those that hold in every layer.
    pub(super) fn facts(&self) -> impl Iterator<Item = (NodeId, NumericFacts)> {
        self.families.iter().zip(&self.facts).flat_map(|(row, facts)| row.iter().map(|leaf| (*leaf, *facts)))
    }

    /// The leaf that is so many layers further on; a shared one is itself.
    pub(super) fn shifted(&self, leaf: NodeId, by: usize) -> Option<NodeId> {
        match self.own.get(&leaf) {
            Some((family, layer)) => self.families[family.0].get(layer + by).copied(),
            None => Some(leaf),
        }
    }
}

enum Kind {
    /// One leaf.
    Shared,
    /// A leaf of its own for each layer, with facts that hold for all.
    Own(NumericFacts),
}

/// Whether a row of leaves, one for each layer, is one leaf or a leaf of its own for each layer.
fn kind(graph: &Graph, row: &[NodeId], contents: &mut Contents, asked: bool) -> Option<Kind> {
    let first = *row.first()?;
    if row.iter().all(|n| *n == first) {
        return Some(Kind::Shared);
    }
    let types = row.iter().all(|n| graph.node(*n).results == graph.node(first).results);
    let tensors: Vec<&Tensor> = row.iter().filter_map(|n| tensor(graph, *n)).collect();
    let mut distinct: Vec<usize> = row.iter().map(|n| contents.id(graph, *n)).collect();
    let all = distinct.len();
    distinct.sort_unstable();
    distinct.dedup();
    if !types || ![0, all].contains(&tensors.len()) {
        return None;
    }
    if distinct.len() == 1 {
        return Some(Kind::Shared);
    }
    let own = distinct.len() == all && tensors.iter().all(|t| splat(t).is_none());
    let facts = tensors.iter().map(|t| tensor_facts(t, asked)).reduce(NumericFacts::and);
    own.then(|| Kind::Own(facts.unwrap_or(NumericFacts::UNKNOWN)))
}

fn tensor(graph: &Graph, node: NodeId) -> Option<&Tensor> {
    match &graph.node(node).kind {
        NodeKind::Const(t) => Some(t),
        _ => None,
    }
}

/// Numbers for the contents of leaves: constants with the same elements have the same one.
#[derive(Default)]
struct Contents {
    /// Constants by [`hash_of`].
    by_hash: FxHashMap<u64, Vec<NodeId>>,
}

impl Contents {
    fn id(&mut self, graph: &Graph, node: NodeId) -> usize {
        let Some(of) = tensor(graph, node) else { return node.index() };
        let list = self.by_hash.entry(hash_of(of)).or_default();
        let same = |n: &&NodeId| tensor(graph, **n).is_some_and(|t| are_equal(t, of));
        match list.iter().find(same) {
            Some(n) => n.index(),
            None => {
                list.push(node);
                node.index()
            }
        }
    }
}
