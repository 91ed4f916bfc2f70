//! The report on the whole graph, from that on the small graph.
//!
//! In: what was done to the small graph. Out: the same, with what was done to the layer that stands
//! for others counted for each of them. Invariant: what was done to a value that all layers share
//! counts once.

use egg::Id;
use hypatia_graph::{Graph, NodeId, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::lower::Rebuilt;
use super::super::optimizer::{Finished, Optimizer};
use super::super::report::{EqualLayers, Firing, Report, Site, Summary};
use super::super::saturate::Trace;
use super::cut::Part;
use super::reduce::Small;
use super::unroll::{Names, Unrolled};
use super::{KEPT, Layers, Place};

/// The cost of one layer as it was given, in microseconds. For a optimizer that has not run.
pub(super) fn cost_of_layer(optimizer: &Optimizer, layers: &Layers, small: &Small) -> f64 {
    let nodes = (0..layers.period).filter_map(|at| small.node(layers.node(Place { layer: 1, at })));
    optimizer.cost_of(nodes.flat_map(|n| optimizer.inserted.values[n.index()].iter().copied()))
}

/// What the report on the whole graph takes from the optimizer.
pub(super) struct Whole<'a> {
    names: &'a Names<'a>,
    count: usize,
    /// Of each trace, the part that it belongs to.
    parts: Vec<Part>,
    /// Of each trace, whether its rule says what it saves.
    saves: Vec<bool>,
    /// The nodes of the whole graph that each node of the optimised small one became, the first as
    /// it is in the small graph.
    nodes: Vec<Vec<NodeId>>,
    /// The cost of a layer in microseconds, before and after.
    layer: [f64; 2],
}

impl<'a> Whole<'a> {
    pub(super) fn of(unrolled: &Unrolled<'a>, optimizer: &Optimizer, layer_before: f64) -> Whole<'a> {
        let Unrolled { layers, small, rebuilt, cut, .. } = *unrolled;
        let before = before_anchor(unrolled.whole, layers, cut.anchor);
        let places = places(optimizer, layers, small, unrolled.whole);
        let part = |t: &Trace| {
            let (place, ends) = match place_of(optimizer, &places, t) {
                Fired::Once => return Part::Front,
                Fired::After => return Part::Back,
                Fired::At(place) => (place, false),
                Fired::Behind(place) => (place, place.at == cut.anchor),
            };
            match place.layer + usize::from(ends || !before[place.at]) {
                0 => Part::Front,
                1 => Part::Layer,
                _ => Part::Back,
            }
        };
        Whole {
            names: unrolled.names,
            count: layers.count(),
            parts: optimizer.traces.iter().map(part).collect(),
            saves: optimizer.traces.iter().map(|t| t.saving.is_some()).collect(),
            nodes: (0..rebuilt.graph.nodes.len()).map(|i| unrolled.became(NodeId(i as u32))).collect(),
            layer: [layer_before, optimizer.cost_of(classes_of_layer(rebuilt, &cut.parts).into_iter())],
        }
    }

    /// The report on the whole graph.
    pub(super) fn report(&self, small: Finished, whole: &Graph, result: &Graph) -> Report {
        let Finished { optimized, of_firings, of_repeats } = small;
        let mut report = optimized.report;
        let more = (self.count - KEPT) as f64;
        let [before, after] = self.layer.map(|us| us * more);
        report.before = Summary::of(whole, report.before.micros + before);
        report.after = Summary::of(result, report.after.micros + after);
        for saved in &mut report.savings {
            let kept = |(f, trace): &(&Firing, &usize)| {
                f.kept && f.base == saved.rule && self.saves[**trace] && self.parts[**trace] == Part::Layer
            };
            saved.sites += report.firings.iter().zip(&of_firings).filter(kept).count() * (self.count - KEPT);
        }
        report.firings = self.repeated(report.firings, &of_firings);
        report.repeats = self.repeated(report.repeats, &of_repeats);
        report.layers = Some(EqualLayers::Few { count: self.count, optimised: KEPT });
        report
    }

    /// The firings of the whole graph.
    fn repeated(&self, firings: Vec<Firing>, traces: &[usize]) -> Vec<Firing> {
        let mut all = Vec::with_capacity(firings.len() * self.count / KEPT);
        for (firing, trace) in firings.into_iter().zip(traces) {
            let shifts = match self.parts[*trace] {
                Part::Front => 0..=0,
                Part::Layer => 0..=self.count - KEPT,
                Part::Back => self.count - KEPT..=self.count - KEPT,
            };
            all.extend(shifts.map(|shift| self.further(&firing, shift)));
        }
        all
    }

    /// A firing, so many layers further on.
    fn further(&self, firing: &Firing, shift: usize) -> Firing {
        let nodes = firing.nodes.iter().map(|name| self.names.shifted(name, shift)).collect();
        let site = firing.site.as_ref().and_then(|site| {
            let became = &self.nodes[site.node.index()];
            let node = *became.get(shift).or(became.last())?;
            Some(Site { node, ..site.clone() })
        });
        Firing { nodes, site, ..firing.clone() }
    }
}

/// The classes that the layer computes, with those of its terms that no other part has.
fn classes_of_layer(rebuilt: &Rebuilt, parts: &[Part]) -> FxHashSet<Id> {
    let none = FxHashMap::default();
    let of = |i: usize| {
        let terms = rebuilt.terms.get(&NodeId(i as u32)).unwrap_or(&none);
        terms.keys().copied().chain([rebuilt.classes[i]])
    };
    let (layer, others): (Vec<usize>, Vec<usize>) = (0..parts.len()).partition(|i| parts[*i] == Part::Layer);
    let others: FxHashSet<Id> = others.into_iter().flat_map(of).collect();
    layer.into_iter().flat_map(of).filter(|class| !others.contains(class)).collect()
}

/// Whether the second layer's value at the anchor needs each node of that layer.
fn before_anchor(graph: &Graph, layers: &Layers, anchor: usize) -> Vec<bool> {
    let mut needed = vec![false; layers.period];
    needed[anchor] = true;
    for at in (0..layers.period).rev().filter(|at| *at <= anchor) {
        if !needed[at] {
            continue;
        }
        let node = graph.node(layers.node(Place { layer: 1, at }));
        let places = node.operands.iter().flatten().filter_map(|v| layers.place(v.node));
        places.filter(|p| p.layer == 1).for_each(|p| needed[p.at] = true);
    }
    needed
}

/// Where a class stands in the small graph.
#[derive(Clone, Copy)]
enum Seen {
    /// It is the value of one layer.
    In(Place),
    /// Several layers, or nodes in front of them, have that value.
    Shared,
    /// It is computed of the last layer.
    After,
}

/// Whether each node needs a node of the run.
fn behind(layers: &Layers, graph: &Graph) -> Vec<bool> {
    let mut behind: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let needs = |v: &Value| behind[v.node.index()] || layers.place(v.node).is_some();
        behind.push(node.operands.iter().flatten().any(needs));
    }
    behind
}

/// The first node of its layer that reads a leaf of the layer's own.
fn reader(layers: &Layers, leaf: NodeId, whole: &Graph) -> Option<Place> {
    let layer = layers.leaves.layer(leaf)?;
    let reads = |at: &usize| {
        let node = whole.node(layers.node(Place { layer, at: *at }));
        node.operands.iter().flatten().any(|v| v.node == leaf)
    };
    (0..layers.period).find(reads).map(|at| Place { layer, at })
}

/// Where a trace fired.
enum Fired {
    /// At a value of that node.
    At(Place),
    /// At a value that rules wrote, which needs the value of that node.
    Behind(Place),
    /// At a value of several layers, or in front of them.
    Once,
    /// At a value that is computed of the last layer.
    After,
}

/// The places of all classes that hold a value of the small graph. A layer's own leaf stands where
/// it is read.
fn places(optimizer: &Optimizer, layers: &Layers, small: &Small, graph: &Graph) -> FxHashMap<Id, Seen> {
    let mut places: FxHashMap<Id, Seen> = FxHashMap::default();
    let after = behind(layers, graph);
    for (i, whole) in small.whole.iter().enumerate() {
        let here = layers.place(*whole).or_else(|| reader(layers, *whole, graph));
        for class in &optimizer.inserted.values[i] {
            let seen = places.entry(optimizer.egraph().find(*class));
            let other = |p: &mut Seen| match (&*p, here) {
                (Seen::In(a), Some(b)) if a.layer == b.layer => {}
                _ => *p = Seen::Shared,
            };
            let outside = if after[whole.index()] { Seen::After } else { Seen::Shared };
            seen.and_modify(other).or_insert(here.map_or(outside, Seen::In));
        }
    }
    places
}

/// Where a trace fired: at its first root that a node of the graph has; or else next to the last
/// value that what it matched needs.
fn place_of(optimizer: &Optimizer, places: &FxHashMap<Id, Seen>, t: &Trace) -> Fired {
    let egraph = optimizer.egraph();
    if let Some(seen) = t.roots.iter().find_map(|r| places.get(&egraph.find(*r))) {
        return match seen {
            Seen::In(place) => Fired::At(*place),
            Seen::Shared => Fired::Once,
            Seen::After => Fired::After,
        };
    }
    let mut last: Option<Place> = None;
    let mut work: Vec<Id> = t.matched.iter().flat_map(|n| &n.children).map(|c| egraph.find(*c)).collect();
    let mut seen: FxHashSet<Id> = work.iter().copied().collect();
    while let Some(class) = work.pop() {
        match places.get(&class) {
            Some(Seen::In(p)) => last = last.max(Some(*p)),
            Some(Seen::After) => return Fired::After,
            Some(Seen::Shared) => {}
            None => {
                let children = egraph[class].nodes.first().into_iter().flat_map(|n| &n.children);
                work.extend(children.map(|c| egraph.find(*c)).filter(|c| seen.insert(*c)));
            }
        }
    }
    last.map_or(Fired::Once, Fired::Behind)
}
