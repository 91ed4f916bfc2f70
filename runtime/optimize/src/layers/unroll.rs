//! The optimised whole graph, from that of the small graph.
//!
//! In: the optimizer of the small graph, after its run. Out: the optimised whole graph and its
//! report, or why a few layers do not stand for all. The front stands once, then the layer of the
//! [`Cut`] for each layer between the first and the last, then the back. A copy reads its own
//! layer's leaves, and the values of the copy before.
//!
//! Invariant: the result has the inputs and outputs of the whole graph and passes
//! `Graph::validate`.

use std::borrow::Cow;

use hypatia_graph::{Graph, NodeId, NodeKind, Value};
use rustc_hash::FxHashMap;

use super::super::lower::Rebuilt;
use super::super::optimizer::Optimizer;
use super::super::{Doubt, Optimized};
use super::cut::{Cut, Images, Part};
use super::independent::doubt;
use super::reduce::Small;
use super::{KEPT, Layers, Place, is_leaf, report};

/// Optimises the whole graph as the small one was.
pub(super) fn unroll(
    graph: &Graph,
    layers: &Layers,
    small: &Small,
    optimizer: Optimizer,
    layer_before: f64,
) -> Result<Optimized, Doubt> {
    let rebuilt = optimizer.chosen_graph().map_err(|_| Doubt::NoCut)?;
    let images = Images::of(&rebuilt, &optimizer, layers, small);
    let cut = images.cut().ok_or(Doubt::NoCut)?;
    if let Some(doubt) = doubt(&optimizer, &rebuilt, &cut, layers, small, graph) {
        return Err(doubt);
    }
    let names = Names::of(graph, layers, small);
    let mut unrolled = Unrolled {
        whole: graph,
        layers,
        small,
        rebuilt: &rebuilt,
        cut: &cut,
        names: &names,
        sources: &images.sources,
        graph: Graph::new(graph.program.clone()),
        leaves: FxHashMap::default(),
        copies: Vec::new(),
        front: FxHashMap::default(),
        back: FxHashMap::default(),
    };
    unrolled.build().ok_or(Doubt::NoCut)?;
    unrolled.graph.outputs = unrolled.outputs(&images).ok_or(Doubt::NoCut)?;
    debug_assert!(unrolled.graph.validate().is_ok());
    unrolled.graph.validate().map_err(|_| Doubt::NoCut)?;
    let whole = report::Whole::of(&unrolled, &optimizer, layer_before);
    let result = std::mem::replace(&mut unrolled.graph, Graph::new(graph.program.clone()));
    let finished = optimizer.finish_with_traces().map_err(|_| Doubt::NoCut)?;
    let report = whole.report(finished, graph, &result);
    Ok(Optimized { graph: result, report })
}

/// A whole graph that is being built of the optimised small one.
pub(super) struct Unrolled<'a> {
    pub(super) whole: &'a Graph,
    pub(super) layers: &'a Layers,
    pub(super) small: &'a Small,
    pub(super) rebuilt: &'a Rebuilt,
    pub(super) cut: &'a Cut,
    pub(super) names: &'a Names<'a>,
    sources: &'a [Option<NodeId>],
    pub(super) graph: Graph,
    /// Leaves so far, by the node of the whole graph; others by the node of the small one.
    leaves: FxHashMap<(bool, NodeId), NodeId>,
    /// By node of the optimised small graph: the nodes of the copies of a layer,
    copies: Vec<FxHashMap<NodeId, NodeId>>,
    /// of the front,
    front: FxHashMap<NodeId, NodeId>,
    /// and of the back.
    back: FxHashMap<NodeId, NodeId>,
}

impl Unrolled<'_> {
    /// Number of copies of the layer, less one: how many layers further on the back is.
    pub(super) fn shift(&self) -> usize {
        self.layers.count() - KEPT
    }

    fn build(&mut self) -> Option<()> {
        for id in &self.whole.inputs {
            let node = self.whole.node(*id);
            let NodeKind::Input { name } = &node.kind else { return None };
            let made = self.graph.input(name.clone(), node.results.first().cloned()?);
            self.leaves.insert((true, *id), made.node);
        }
        self.part(Part::Front, 0)?;
        for copy in 0..=self.shift() {
            self.copies.push(FxHashMap::default());
            self.part(Part::Layer, copy)?;
        }
        self.part(Part::Back, self.shift())
    }

    /// Appends the nodes of a part, so many layers further on.
    fn part(&mut self, part: Part, shift: usize) -> Option<()> {
        let rebuilt = self.rebuilt;
        for (i, node) in rebuilt.graph.nodes.iter().enumerate() {
            let id = NodeId(i as u32);
            if self.cut.parts[i] != part || is_leaf(&rebuilt.graph, id) {
                continue;
            }
            let mut node = node.clone();
            for v in node.operands.iter_mut().flatten() {
                *v = self.operand(*v, part, shift)?;
            }
            node.name = self.names.shifted(&node.name, shift);
            let made = NodeId(self.graph.nodes.len() as u32);
            self.graph.nodes.push(node);
            let map = match part {
                Part::Front => &mut self.front,
                Part::Layer => self.copies.last_mut()?,
                Part::Back => &mut self.back,
            };
            map.insert(id, made);
        }
        Some(())
    }

    /// What an operand of a node of that part, so many layers further on, is in the whole graph.
    fn operand(&mut self, v: Value, part: Part, shift: usize) -> Option<Value> {
        if is_leaf(&self.rebuilt.graph, v.node) {
            return Some(Value { node: self.leaf(v.node, shift)?, ..v });
        }
        match (part, self.cut.parts[v.node.index()]) {
            (Part::Layer, Part::Front) if shift > 0 => match self.cut.next.get(&v) {
                Some(next) => Some(Value { node: *self.copies.get(shift - 1)?.get(&next.node)?, ..*next }),
                None => self.at(v, Part::Front, 0),
            },
            (Part::Back, Part::Front) if self.cut.next.contains_key(&v) && self.shift() > 0 => None,
            (_, of) => self.at(v, of, shift),
        }
    }

    /// A value of a part in the whole graph; of a layer, of the copy so many layers further on.
    pub(super) fn at(&self, v: Value, part: Part, shift: usize) -> Option<Value> {
        let map = match part {
            Part::Front => &self.front,
            Part::Layer => self.copies.get(shift)?,
            Part::Back => &self.back,
        };
        Some(Value { node: *map.get(&v.node)?, ..v })
    }

    /// The nodes that a node of the optimised small graph became: one, or one for each copy of the
    /// layer. A node of the front that a further layer computes by itself stands before its copies.
    pub(super) fn became(&self, node: NodeId) -> Vec<NodeId> {
        let copies = |node: NodeId| self.copies.iter().filter_map(move |copy| copy.get(&node).copied());
        match self.cut.parts[node.index()] {
            _ if is_leaf(&self.rebuilt.graph, node) => Vec::new(),
            Part::Layer => copies(node).collect(),
            Part::Back => self.back.get(&node).copied().into_iter().collect(),
            Part::Front => {
                let next = self.cut.next.iter().filter(|(v, _)| v.node == node).min().map(|(_, next)| next.node);
                self.front.get(&node).copied().into_iter().chain(next.into_iter().flat_map(copies)).collect()
            }
        }
    }

    /// A leaf, so many layers further on.
    fn leaf(&mut self, node: NodeId, shift: usize) -> Option<NodeId> {
        let key = match self.sources[node.index()] {
            Some(source) => (true, self.layers.leaves.shifted(source, shift)?),
            None => (false, node),
        };
        if let Some(known) = self.leaves.get(&key) {
            return Some(*known);
        }
        let from = if key.0 { self.whole.node(key.1) } else { self.rebuilt.graph.node(key.1) };
        let NodeKind::Const(tensor) = &from.kind else { return None };
        let (made, name) = (self.graph.constant(tensor.clone()), from.name.clone());
        self.graph.name_node(made, name);
        self.leaves.insert(key, made.node);
        Some(made.node)
    }

    /// The outputs of the whole graph.
    fn outputs(&mut self, images: &Images) -> Option<Vec<(String, Value)>> {
        let of_layers = self.small.named_by_layers();
        let small: FxHashMap<&str, Value> = self.rebuilt.graph.outputs.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let mut made: FxHashMap<&str, Value> = FxHashMap::default();
        for (name, _) in self.whole.outputs.iter().filter(|(name, _)| !of_layers.contains(name.as_str())) {
            let v = *small.get(name.as_str())?;
            let part = self.cut.parts[v.node.index()];
            // What the last layer gives must not come from another one.
            if part != Part::Back && self.cut.next.contains_key(&v) {
                return None;
            }
            let shift = self.shift();
            made.insert(name, self.operand(v, part, if part == Part::Front { 0 } else { shift })?);
        }
        for output in &self.small.of_layers {
            for (layer, name) in output.names.iter().enumerate() {
                made.insert(name, self.of_layer(images, output.at, layer)?);
            }
        }
        self.whole.outputs.iter().map(|(name, _)| Some((name.clone(), *made.get(name.as_str())?))).collect()
    }

    /// The value that a layer computes at that place.
    fn of_layer(&mut self, images: &Images, (at, output): (usize, u32), layer: usize) -> Option<Value> {
        let kept: Vec<Value> = (0..KEPT).map(|layer| images.at(Place { layer, at }, output)).collect::<Option<_>>()?;
        let part = |v: &Value| self.cut.parts[v.node.index()];
        if kept.iter().any(|v| is_leaf(&self.rebuilt.graph, v.node)) {
            return None;
        }
        let between = kept.iter().position(|v| part(v) == Part::Layer)?;
        let ordered = kept[..between].iter().all(|v| part(v) == Part::Front)
            && kept[between + 1..].iter().all(|v| part(v) == Part::Back);
        let shift = self.shift();
        match ordered {
            false => None,
            true if layer < between => self.at(kept[layer], Part::Front, 0),
            true if layer <= between + shift => self.at(kept[between], Part::Layer, layer - between),
            true => self.at(kept[layer - shift], Part::Back, shift),
        }
    }
}

/// The names that the nodes of the small graph have in the whole one, in their own layer or further
/// on.
pub(super) struct Names<'a> {
    whole: &'a Graph,
    layers: &'a Layers,
    by_name: FxHashMap<Cow<'a, str>, NodeId>,
}

impl<'a> Names<'a> {
    fn of(whole: &'a Graph, layers: &'a Layers, small: &'a Small) -> Names<'a> {
        let mut by_name = FxHashMap::default();
        for (i, node) in small.whole.iter().enumerate() {
            by_name.entry(name(&small.graph, NodeId(i as u32))).or_insert(*node);
        }
        Names { whole, layers, by_name }
    }

    /// A name, or joined ones, so many layers further on.
    pub(super) fn shifted(&self, joined: &str, by: usize) -> String {
        let further = |part: &str| {
            let Some(node) = self.by_name.get(part) else { return part.to_string() };
            let node = match self.layers.place(*node) {
                Some(p) if p.layer + by < self.layers.count() => self.layers.node(Place { layer: p.layer + by, ..p }),
                _ => *node,
            };
            name(self.whole, node).into_owned()
        };
        joined.split(" + ").map(further).collect::<Vec<String>>().join(" + ")
    }
}

/// The name of a node, or of its value.
fn name(graph: &Graph, node: NodeId) -> Cow<'_, str> {
    let own = graph.node(node).name.as_str();
    if own.is_empty() { graph.value_name(Value { node, output: 0 }).into() } else { own.into() }
}
