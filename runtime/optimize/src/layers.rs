//! Runs of equal layers: a deep model is optimised with a few of its layers, and the result is
//! unrolled.
//!
//! In: an inlined graph. Out: the run of layers in it ([`find`]), a graph with [`KEPT`] of them
//! (`reduce`), and from its optimisation that of the whole graph (`unroll`), or nothing where
//! something is in doubt; then the whole graph is optimised as it is.
//!
//! Why the result is right: `cut` finds two places in the optimised small graph, a layer apart,
//! where the same values cross. The nodes between them compute one layer from the layer before,
//! from that layer's weights, and from values that all layers share. `independent` makes sure that
//! this rests on nothing which only these layers have: no elements of a weight, no fact, and no
//! match that reaches in front of the first layer. So they compute every layer between.
//!
//! Invariant: the layers of a run have equal nodes. An operand is a value of the same layer or the
//! one before, a value or leaf that all layers share, or a leaf of its own for each layer.

mod cut;
mod independent;
mod leaves;
mod reduce;
mod report;
mod unroll;

use std::hash::{Hash, Hasher};
use std::time::Instant;

use hypatia_graph::{ConstantFolder, Graph, Node, NodeId, NodeKind, Value};
use hypatia_tensor::error::Result;
use rustc_hash::{FxHashMap, FxHasher};

use super::optimizer::Optimizer;
use super::{Doubt, Optimized, Options};
use leaves::Leaves;

/// Layers of the small graph: the first, which reads what stands in front; one that stands for all
/// between; and the last, which is read by what stands behind.
const KEPT: usize = 3;
/// Minimum number of layers that are worth it.
const MIN_LAYERS: usize = KEPT + 2;
/// How many lengths of a layer are tried.
const MAX_PERIODS: usize = 8;

/// The place of a node in a run: its layer, and where it stands in the layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Place {
    layer: usize,
    at: usize,
}

/// A run of equal layers.
struct Layers {
    /// The nodes of the run that compute something, layer by layer; operands stand before readers.
    nodes: Vec<NodeId>,
    /// Number of nodes of a layer.
    period: usize,
    /// The place of each of these nodes.
    places: FxHashMap<NodeId, Place>,
    /// What the first layer reads where the others read the layer before.
    entries: Vec<Value>,
    leaves: Leaves,
}

impl Layers {
    fn count(&self) -> usize {
        self.nodes.len() / self.period
    }

    fn node(&self, place: Place) -> NodeId {
        self.nodes[place.layer * self.period + place.at]
    }

    fn place(&self, node: NodeId) -> Option<Place> {
        self.places.get(&node).copied()
    }
}

/// What became of the equal layers of a graph.
pub(super) enum Layered {
    /// There are none, or too few.
    None,
    /// A few stood for all.
    Few(Box<Optimized>),
    /// The graph has to be optimised as a whole.
    All { count: usize, because: Doubt },
}

/// Optimises a graph by a few layers of its longest run.
pub(super) fn optimize(graph: &Graph, options: &Options, folder: &'static dyn ConstantFolder) -> Result<Layered> {
    let Some(layers) = find(graph) else { return Ok(Layered::None) };
    let count = layers.count();
    let Some(small) = reduce::reduce(graph, &layers) else {
        return Ok(Layered::All { count, because: Doubt::ReadFromOutside });
    };
    let stated = layers.leaves.facts().filter_map(|(leaf, facts)| Some((small.node(leaf)?, facts))).collect();
    let mut optimizer = Optimizer::of(small.graph.clone(), options, folder, &stated, Instant::now())?;
    let before = report::cost_of_layer(&optimizer, &layers, &small);
    optimizer.run();
    Ok(match unroll::unroll(graph, &layers, &small, optimizer, before) {
        Ok(optimized) => Layered::Few(Box::new(optimized)),
        Err(because) => Layered::All { count, because },
    })
}

/// The longest run of equal layers.
fn find(graph: &Graph) -> Option<Layers> {
    let computing = by_first_use(graph);
    let labels: Vec<u64> = computing.iter().map(|n| label(graph.node(*n))).collect();
    let mut best: Option<(usize, usize, usize)> = None;
    for period in periods(&labels) {
        let (start, length) = longest(&labels, period);
        if length + period >= MIN_LAYERS * period && best.is_none_or(|(.., covered)| length > covered) {
            best = Some((period, start, length));
        }
    }
    let (period, start, length) = best?;
    let count = length / period + 1;
    // The first layers may differ in what they read.
    (0..2).filter(|skipped| count >= MIN_LAYERS + skipped).find_map(|skipped| {
        let first = start + skipped * period;
        verified(graph, &computing[first..first + (count - skipped) * period], period)
    })
}

/// The nodes that compute something, each as late as its first reader allows: exporters put what
/// depends on weights alone, such as their transposes, in front of all layers.
fn by_first_use(graph: &Graph) -> Vec<NodeId> {
    let mut order = Vec::with_capacity(graph.nodes.len());
    let mut placed: Vec<bool> = (0..graph.nodes.len()).map(|i| is_leaf(graph, NodeId(i as u32))).collect();
    for (_, output) in &graph.outputs {
        let mut work = vec![output.node];
        while let Some(node) = work.last().copied() {
            let before = work.len();
            if !placed[node.index()] {
                let operands = graph.node(node).operands.iter().flatten().map(|v| v.node);
                work.extend(operands.filter(|n| !placed[n.index()]).collect::<Vec<_>>().into_iter().rev());
            }
            if work.len() == before {
                work.pop();
                if !std::mem::replace(&mut placed[node.index()], true) {
                    order.push(node);
                }
            }
        }
    }
    order
}

fn is_leaf(graph: &Graph, node: NodeId) -> bool {
    matches!(graph.node(node).kind, NodeKind::Input { .. } | NodeKind::Const(_))
}

/// A hash of what a node does, without its operands.
fn label(node: &Node) -> u64 {
    let mut h = FxHasher::default();
    match &node.kind {
        NodeKind::Op { op, attrs, term } => (0, op, attrs, term).hash(&mut h),
        NodeKind::Scalar(s) => (1, s).hash(&mut h),
        NodeKind::Input { .. } | NodeKind::Const(_) => {}
    }
    node.results.hash(&mut h);
    h.finish()
}

/// The distances at which labels most often come again, the shortest of equally frequent ones
/// first.
fn periods(labels: &[u64]) -> Vec<usize> {
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    let mut frequency: FxHashMap<usize, usize> = FxHashMap::default();
    for (i, label) in labels.iter().enumerate() {
        if let Some(before) = last.insert(*label, i) {
            *frequency.entry(i - before).or_insert(0) += 1;
        }
    }
    let mut periods: Vec<(usize, usize)> = frequency.into_iter().filter(|(_, n)| *n + 1 >= MIN_LAYERS).collect();
    periods.sort_unstable_by_key(|(period, n)| (std::cmp::Reverse(*n), *period));
    periods.truncate(MAX_PERIODS);
    periods.into_iter().map(|(period, _)| period).collect()
}

/// Start and length of the longest stretch of labels that come again after that distance.
fn longest(labels: &[u64], period: usize) -> (usize, usize) {
    let (mut best, mut start) = ((0, 0), 0);
    for i in 0..labels.len() - period {
        if labels[i] != labels[i + period] {
            start = i + 1;
        } else if i + 1 - start > best.1 {
            best = (start, i + 1 - start);
        }
    }
    best
}

/// The run of layers that these nodes are, as far as the layers are equal.
fn verified(graph: &Graph, nodes: &[NodeId], period: usize) -> Option<Layers> {
    let place = |i: usize| Place { layer: i / period, at: i % period };
    let places: FxHashMap<NodeId, Place> = nodes.iter().enumerate().map(|(i, n)| (*n, place(i))).collect();
    let mut layers = Layers { nodes: nodes.to_vec(), period, places, entries: Vec::new(), leaves: Leaves::default() };
    // Each layer beside the second one; the first may enter by other values.
    let differs = (0..layers.count()).find(|layer| !layers.is_like_second(graph, *layer));
    if let Some(layer) = differs {
        if layer < MIN_LAYERS {
            return None;
        }
        layers.nodes.truncate(layer * period);
        layers.places.retain(|_, place| place.layer < layer);
    }
    layers.entries = layers.entering(graph);
    layers.leaves = Leaves::of(graph, &layers)?;
    Some(layers)
}

impl Layers {
    /// Whether a layer has the nodes and operands of the second one. Leaves are compared later.
    fn is_like_second(&self, graph: &Graph, layer: usize) -> bool {
        (0..self.period).all(|at| {
            let (a, b) = (graph.node(self.node(Place { layer: 1, at })), graph.node(self.node(Place { layer, at })));
            let leaf = |v: &Option<Value>| v.is_some_and(|v| is_leaf(graph, v.node));
            same_work(a, b)
                && a.operands.iter().zip(&b.operands).all(|(a, b)| match (leaf(a), leaf(b)) {
                    (true, true) => true,
                    (true, false) => false,
                    (false, true) => layer == 0 && self.enters(*a),
                    (false, false) => self.corresponds(*a, *b, layer),
                })
        })
    }

    /// Whether an operand of the second layer is a value of the first one.
    fn enters(&self, of_second: Option<Value>) -> bool {
        of_second.and_then(|v| self.place(v.node)).is_some_and(|p| p.layer == 0)
    }

    /// Whether an operand of a layer is to it what an operand of the second layer is to that.
    fn corresponds(&self, of_second: Option<Value>, operand: Option<Value>, layer: usize) -> bool {
        let (Some(a), Some(b)) = (of_second, operand) else { return of_second.is_none() && operand.is_none() };
        match (self.place(a.node), self.place(b.node)) {
            (None, None) => a == b,
            (Some(_), None) => layer == 0 && self.enters(of_second),
            (None, Some(_)) => false,
            (Some(p), Some(q)) => a.output == b.output && p.at == q.at && p.layer + layer == q.layer + 1,
        }
    }

    /// The operands of the first layer in the places of those that are values of the layer before.
    fn entering(&self, graph: &Graph) -> Vec<Value> {
        let mut entries = Vec::new();
        for at in 0..self.period {
            let [first, second] = [0, 1].map(|layer| &graph.node(self.node(Place { layer, at })).operands);
            let entering = first.iter().zip(second).filter(|(_, b)| self.enters(**b));
            entries.extend(entering.filter_map(|(a, _)| *a));
        }
        entries.sort_unstable();
        entries.dedup();
        entries
    }
}

/// Whether two nodes do the same with their operands.
fn same_work(a: &Node, b: &Node) -> bool {
    let same = match (&a.kind, &b.kind) {
        (NodeKind::Op { op, attrs, term }, NodeKind::Op { op: op2, attrs: attrs2, term: term2 }) => {
            op == op2 && attrs == attrs2 && term == term2
        }
        (NodeKind::Scalar(s), NodeKind::Scalar(t)) => s == t,
        _ => false,
    };
    same && a.results == b.results && a.operands.len() == b.operands.len()
}
