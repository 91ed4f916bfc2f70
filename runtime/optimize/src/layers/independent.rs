//! Whether what was found of one layer holds for all layers between the first and the last.
//!
//! In: the e-graph of the small graph, and the cut of its optimised graph. Out: whether the layer
//! rests on nothing that only the kept layers have. Three things could be special to them:
//!
//! - the elements of their weights: what a rule has found of a function of constants must be so in
//!   every layer;
//! - facts of values (above 0, finite, a constant): each value of a layer must have the same ones
//!   in all kept layers. The facts of a layer follow from those of the layer before, so they are
//!   the same in all further layers;
//! - the nodes in front of the first layer: no match that changed the layer may reach through what
//!   enters the run ([`Layers::entries`]), itself or by what such a match built.
//!
//! Shared values are the same in every layer, so a match may reach into what computes them.

use egg::{Id, Language};
use hypatia_graph::{Graph, NodeId, NodeKind, Value};
use rustc_hash::FxHashSet;

use super::super::Doubt;
use super::super::known;
use super::super::language::{LeafId, Node};
use super::super::lower::Rebuilt;
use super::super::optimizer::Optimizer;
use super::super::saturate::MAX_TRACES;
use super::cut::{Cut, Part};
use super::reduce::Small;
use super::{KEPT, Layers, Place, is_leaf};

/// Why a few layers may not stand for all, if there is a reason.
pub(super) fn doubt(
    optimizer: &Optimizer,
    rebuilt: &Rebuilt,
    cut: &Cut,
    layers: &Layers,
    small: &Small,
    whole: &Graph,
) -> Option<Doubt> {
    if optimizer.traces.len() >= MAX_TRACES {
        return Some(Doubt::TooManyFirings);
    }
    if !facts_are_equal(optimizer, layers, small) {
        return Some(Doubt::Facts);
    }
    if !no_match_reaches_in_front(optimizer, rebuilt, cut, layers, small) {
        return Some(Doubt::InFront);
    }
    (!folds_are_equal(optimizer, layers, small, whole)).then_some(Doubt::Digits)
}

/// Whether each function of constants keeps its digits in every layer, or in none.
fn folds_are_equal(optimizer: &Optimizer, layers: &Layers, small: &Small, whole: &Graph) -> bool {
    let egraph = optimizer.egraph();
    let source = |l: LeafId| small.whole.get(egraph.analysis.leaf(l).node.index()).copied();
    let further = layers.count() - KEPT;
    egraph.analysis.folds().iter().all(|(fold, kept)| {
        let of_layers = known::leaves(fold, egraph).into_iter().filter_map(|l| layers.leaves.layer(source(l)?)).max();
        // The last kept layer stands for the last one alone.
        let shifts = match of_layers {
            Some(layer) if layer + 1 < KEPT => 1..=further,
            Some(_) => further..=further,
            None => return true,
        };
        let elements = |l: LeafId, shift: usize| match &whole.node(layers.leaves.shifted(source(l)?, shift)?).kind {
            NodeKind::Const(tensor) => Some(tensor.clone()),
            _ => None,
        };
        shifts.into_iter().all(|shift| known::loss(fold, egraph, &|l| elements(l, shift)).is_none() == *kept)
    })
}

/// The classes of the results of a node of the run.
fn classes<'s>(
    optimizer: &'s Optimizer,
    layers: &Layers,
    small: &Small,
    place: Place,
) -> impl Iterator<Item = Id> + 's {
    let node = small.node(layers.node(place));
    let values = node.and_then(|n| optimizer.inserted.values.get(n.index()));
    values.into_iter().flatten().map(|class| optimizer.egraph().find(*class))
}

fn facts_are_equal(optimizer: &Optimizer, layers: &Layers, small: &Small) -> bool {
    let facts = |class: Id| {
        let data = &optimizer.egraph()[class].data;
        (data.facts, data.constant, data.splat)
    };
    (0..layers.period).all(|at| {
        let of_layer = |layer| classes(optimizer, layers, small, Place { layer, at }).map(facts).collect::<Vec<_>>();
        let first = of_layer(0);
        (1..KEPT).all(|layer| of_layer(layer) == first)
    })
}

fn no_match_reaches_in_front(
    optimizer: &Optimizer,
    rebuilt: &Rebuilt,
    cut: &Cut,
    layers: &Layers,
    small: &Small,
) -> bool {
    let egraph = optimizer.egraph();
    let entering = layers.entries.iter().filter(|v| !is_leaf_of(small, v)).filter_map(|v| {
        let values = optimizer.inserted.values.get(small.node(v.node)?.index())?;
        values.get(v.output as usize).map(|class| egraph.find(*class))
    });
    let entering: FxHashSet<Id> = entering.collect();
    if entering.is_empty() {
        return true;
    }
    let of_run = (1..KEPT).flat_map(|layer| (0..layers.period).map(move |at| Place { layer, at }));
    let mut own: FxHashSet<Id> = of_run.flat_map(|place| classes(optimizer, layers, small, place)).collect();
    let between = rebuilt.classes.iter().zip(&cut.parts).filter(|(_, part)| **part == Part::Layer);
    own.extend(between.map(|(class, _)| egraph.find(*class)));
    if entering.iter().any(|class| own.contains(class)) {
        return false;
    }
    let canonical = |n: &Node| n.clone().map_children(|c| egraph.find(c));
    // Nodes that only a match reaching in front has built.
    let mut reaching: FxHashSet<Node> = FxHashSet::default();
    let mut others: FxHashSet<Node> = FxHashSet::default();
    optimizer.traces.iter().all(|t| {
        let enters = |n: &Node| egraph.lookup(n.clone()).is_some_and(|class| entering.contains(&class));
        let reaches = t.matched.iter().map(canonical).any(|n| reaching.contains(&n) || enters(&n));
        for built in t.built.iter().map(canonical) {
            if !reaches {
                reaching.remove(&built);
                others.insert(built);
            } else if !others.contains(&built) {
                reaching.insert(built);
            }
        }
        !(reaches && t.changed && t.roots.iter().any(|r| own.contains(&egraph.find(*r))))
    })
}

/// Whether a value of the whole graph is an input: nothing is known of it, and no rule matches it.
fn is_leaf_of(small: &Small, v: &Value) -> bool {
    small.node(v.node).is_some_and(|n: NodeId| is_leaf(&small.graph, n))
}
