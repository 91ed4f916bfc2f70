//! Prepares a graph: constant folding, and inlining of ops without a kernel.
//!
//! In: a graph with its lists of kernels. Out: a graph of builtin ops, scalars, and those defined
//! ops for which a row-wise kernel or a library call was taken from their list; and the nodes that
//! become one launch. Sizes may be symbols, which [`Prepared::specialized`] replaces: what was
//! decided stays. Invariant: the only nodes that depend on constants alone are views, constants,
//! ops without operands, what has a size that was a symbol, and work on weights that products of
//! few rows are to compute ([`narrow_weights`]). All other such nodes are folded, with the results
//! that the host would compute from inputs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::OpBody;
use hypatia_dsl::kernel::reduction;
use hypatia_dsl::shape::Dim;

use super::dense_weights::with_dense_weights;
use super::rows::Rows;
use super::{Options, narrow_weights};
use hypatia_graph::{
    Candidate, Constants, Graph, Matched, Node, NodeId, NodeKind, Region, Replacement, Strategy, Symbols, builtin,
    cluster_rows, constant_nodes, is_pointwise, with_channels_last, with_own_wide_values, with_reductions_in_turn,
    with_work_on_slices,
};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

/// The kernels chosen for the defined ops of a graph.
#[derive(Default)]
pub(super) struct Kernels {
    /// The row-wise kernel of each defined op that has one.
    pub rowwise: HashMap<NodeId, Rows>,
    /// The library call of each other defined op.
    pub calls: HashMap<NodeId, Call>,
}

/// A graph ready for lowering.
pub(super) struct Prepared {
    /// The graph.
    pub graph: Graph,
    /// The kernels of the remaining defined ops.
    pub kernels: Kernels,
    /// Nodes that become one launch, in order.
    pub regions: Vec<Region>,
}

impl Prepared {
    /// A graph whose defined ops have these kernels.
    pub fn of(graph: Graph, kernels: Kernels, options: &Options) -> Result<Prepared> {
        let regions = regions(&graph, &kernels, options)?;
        Ok(Prepared { graph, kernels, regions })
    }

    /// The same for these sizes. What only now depends on constants alone is folded, but for what
    /// rows compute.
    pub fn specialized(&self, symbols: &Symbols, options: &Options, known: &mut Constants) -> Result<Prepared> {
        let lookup = |s: &str| symbols.get(s).map(|v| Dim::from(*v));
        let mut kernels = Kernels::default();
        for (id, rows) in &self.kernels.rowwise {
            kernels.rowwise.insert(*id, rows.specialized(&lookup)?);
        }
        for (id, call) in &self.kernels.calls {
            let fallback = call.fallback.specialized(symbols, options, known)?;
            kernels.calls.insert(*id, Call { matched: call.matched.specialized(symbols)?, fallback });
        }
        let of_rows = self.regions.iter().filter(|r| r.rows.is_some()).flat_map(|r| r.nodes.iter().copied());
        let of_rows: HashSet<usize> = of_rows.collect();
        let together = options.cluster && !options.allowed.is_exact();
        let graph = self.graph.specialize(symbols)?;
        let graph = known.fold_except(graph, together, &|node| of_rows.contains(&node))?;
        let live = graph.live();
        let is_constant = |node: &usize| matches!(graph.nodes[*node].kind, NodeKind::Const(_));
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            let mut region = region.specialized(symbols)?;
            match &region.rows {
                Some(_) if region.nodes.iter().any(|n| live[*n]) => {}
                Some(_) => continue,
                None => region.nodes.retain(|n| live[*n] && !is_constant(n)),
            }
            if !region.nodes.is_empty() {
                regions.push(region);
            }
        }
        Ok(Prepared { graph, kernels, regions })
    }
}

/// The nodes that become one launch, in order.
fn regions(graph: &Graph, kernels: &Kernels, options: &Options) -> Result<Vec<Region>> {
    let pointwise: Vec<bool> = graph.nodes.iter().map(|n| is_pointwise(graph, n)).collect();
    let rowwise = |i: usize| {
        // A host's own search reads each row once.
        let searches = |op: BuiltinOp| op == BuiltinOp::Argmax && !options.device.is_host();
        let picks = |op: BuiltinOp| op == BuiltinOp::GatherElements || searches(op);
        let reduces = builtin(graph, &graph.nodes[i]).is_some_and(|op| reduction(op).is_some() || picks(op));
        reduces || kernels.rowwise.contains_key(&NodeId(i as u32))
    };
    // A region of rows keeps f32 inside, where the unfused plan rounds.
    let exact = options.allowed.is_exact();
    let rowwise: Vec<bool> = (0..graph.nodes.len()).map(|i| !exact && rowwise(i)).collect();
    let none = vec![false; pointwise.len()];
    match options.cluster {
        true => cluster_rows(graph, &pointwise, &rowwise, &options.device),
        false => cluster_rows(graph, &none, &none, &options.device),
    }
}

/// A launch that computes an op.
pub(super) struct Call {
    /// The kernel, and what its variables stand for.
    pub matched: Matched,
    /// The fallback: the same step by step. The op's operands are its inputs, in order.
    pub fallback: Prepared,
}

/// What becomes of work on weights that are constants.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Weights {
    /// A product of few rows may compute it.
    Narrow,
    /// It is folded.
    Folded,
}

pub(super) fn prepare(graph: &Graph, options: &Options, known: &mut Constants, weights: Weights) -> Result<Prepared> {
    let device = &options.device;
    // First replace composed ops by their parts, so that ops without a kernel inside the parts are
    // inlined with the rest.
    let graph = graph.pruned();
    let parts = graph.replaced(&|_, node| match chosen(&graph, node, device).map(|c| &c.strategy) {
        Some(Strategy::Composed(parts)) => Replacement::Graph(parts.clone()),
        _ => Replacement::Itself,
    })?;
    // Where results must be the bits of the plan without rules, constants round as they do there.
    let together = options.cluster && !options.allowed.is_exact();
    let mut parts = inlined(&parts, device)?;
    // How means of channels are divided may depend on the batch.
    if together
        && !device.is_host()
        && !options.allowed.batch_invariant
        && let Some(last) = with_channels_last(&parts, device)?
    {
        parts = last;
    }
    let kept = match weights {
        Weights::Narrow => narrow_weights::kept(&parts, options),
        Weights::Folded => Vec::new(),
    };
    let kept = |node: usize| kept.get(node).copied().unwrap_or_default();
    let graph = known.fold_except(parts, together, &kept)?.pruned();
    let mut graph = with_dense_weights(inlined(&graph, device)?, device)?;
    if together && !device.is_host() {
        graph = with_own_wide_values(&with_work_on_slices(&with_reductions_in_turn(&graph)?)?)?;
    }
    let mut kernels = Kernels::default();
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let running = running(&graph, node, device);
        match running.first() {
            Some(Candidate { strategy: Strategy::Rowwise, .. }) => {
                let rows = rowwise(&graph, node).ok_or_else(|| Error::Internal("a row-wise kernel was lost".into()))?;
                kernels.rowwise.insert(id, rows);
            }
            Some(Candidate { strategy: Strategy::Call, matched: Some(matched) }) => {
                let fallback = match running.get(1..) {
                    Some([Candidate { strategy: Strategy::Composed(parts), .. }]) => {
                        prepare(parts, options, known, weights)?
                    }
                    Some(behind @ [_, ..]) => prepare(&with(&graph, node, behind)?, options, known, weights)?,
                    _ => return Err(Error::Internal("a call without a fallback".into())),
                };
                kernels.calls.insert(id, Call { matched: matched.clone(), fallback });
            }
            _ => {}
        }
    }
    Prepared::of(graph, kernels, options)
}

/// A graph of that node alone, with these candidates.
fn with(graph: &Graph, node: &Node, candidates: &[&Candidate]) -> Result<Graph> {
    let mut alone = graph.alone(node)?;
    let list = candidates.iter().copied().cloned().collect();
    if let Some(last) = alone.nodes.last_mut() {
        last.kernels = hypatia_graph::Kernels { device: node.kernels.device, list };
    }
    Ok(alone)
}

/// The candidates of a defined op's node, or of two products, that run: the first choice, then its
/// fallbacks. None for another builtin op.
fn running<'g>(graph: &Graph, node: &'g Node, device: &Device) -> Vec<&'g Candidate> {
    let NodeKind::Op { op, .. } = &node.kind else { return Vec::new() };
    let is_builtin = matches!(graph.program.op(*op).body, OpBody::Builtin(_)) && !graph.is_pair(node);
    if is_builtin { Vec::new() } else { graph.running(node, device) }
}

/// The first of [`running`].
fn chosen<'g>(graph: &Graph, node: &'g Node, device: &Device) -> Option<&'g Candidate> {
    running(graph, node, device).first().copied()
}

/// Inlines the defined ops that neither a row-wise kernel nor a library call computes, and divides
/// pairs of products that no kernel computes.
fn inlined(graph: &Graph, device: &Device) -> Result<Graph> {
    let constant = constant_nodes(graph);
    let mut pairs: HashMap<usize, Arc<Graph>> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| graph.is_pair(n)) {
        pairs.insert(i, Arc::new(graph.two_products(node)?));
    }
    graph.replaced(&|i, node| {
        let NodeKind::Op { op, .. } = &node.kind else { return Replacement::Itself };
        let whole =
            || matches!(chosen(graph, node, device).map(|c| &c.strategy), Some(Strategy::Rowwise | Strategy::Call));
        match graph.program.op(*op).body {
            OpBody::Defined(_) if constant[i] || !whole() => Replacement::Body,
            OpBody::Defined(_) => Replacement::Itself,
            OpBody::Builtin(_) => match pairs.get(&i) {
                Some(parts) if constant[i] || !whole() => Replacement::Graph(parts.clone()),
                _ => Replacement::Itself,
            },
        }
    })
}

/// The row-wise kernel of a defined op's node.
fn rowwise(graph: &Graph, node: &Node) -> Option<Rows> {
    graph.rowwise(node).map(|(kernel, space)| Rows { kernel, space })
}
