//! Row-wise regions: reductions along one axis, and the work between, before and after them, that
//! become one launch.
//!
//! In: pointwise regions, and which nodes are computed row by row. Out: larger regions, each with
//! its row-wise kernel, operands and results. Invariant: as for pointwise regions, no path leaves a
//! region and comes back; the members of a region have a row-wise kernel ([`RowRegion`]) that
//! computes nothing twice, but for little work on what rows share.
//!
//! A region grows along the edges from an operand to its user, through the views between them, as
//! long as the kernel exists and is worth it ([`Grower::is_worth_it`]).

mod sink;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{
    ColumnSum, GatheredRows, LONG_ROW, MAX_SUMS, RowAccess, RowOperand, RowRegion, RowSpace, RowValue, RowwiseKernel,
    SharedWork, SumSplit,
};
use hypatia_dsl::shape::Dim;
use hypatia_target::device::{Device, HOPPER};
use hypatia_tensor::error::Result;

use super::kinds::{builtin, is_view, literal};
use super::regions::{Cluster, Group, LIGHT_AGAIN, MAX_AGAIN, MAX_VISITS, pointwise_regions};
use super::{Graph, NodeId, NodeKind, Value};

/// Maximum number of nodes in a region.
const MAX_NODES: usize = 96;
/// Maximum number of operands and results of a kernel.
const MAX_TENSORS: usize = 24;
/// Maximum number of views between two members.
const MAX_VIEWS: usize = 8;
/// How often all edges are tried.
const ROUNDS: usize = 3;
/// Bytes that one element of a row may have in all operands that are as large as the result: a GPU
/// keeps them in registers from the first pass to the last.
const ROW_BYTES: usize = 32;
/// Elements of a row up to which a host keeps values in registers from pass to pass, and a GPU.
const LONGEST: [i64; 2] = [1 << 13, 1 << 16];
/// Elements of a row up to which a GPU reads it again in each pass, and the bytes that an element
/// of it may have in all operands: what the parts of the region store and read takes longer.
const AGAIN: i64 = 1 << 20;
const AGAIN_BYTES: usize = 8;
/// The fewest threads that occupy a GPU where each computes a row of its own, or a part of it, and
/// the longest of these rows: a thread reads its part again in each pass.
const FEWEST_COLUMNS: i64 = 1 << 12;
const LONGEST_COLUMN: i64 = 1 << 10;
/// Rows that occupy a host, and a GPU.
const ROWS: [i64; 2] = [8, 64];
/// Elements that a GPU reads in the time of a launch, wherever they lie.
const FEW_APART: i64 = 1 << 18;
/// The fewest rows that are added up by a kernel of rows, and the fewest columns: fewer are added
/// up in one launch, by a thread or a block for each column.
const FEWEST_ADDED: i64 = 128;
const NARROWEST_ADDED: i64 = 16;

/// A region that is computed row by row.
#[derive(Clone, Debug)]
pub struct RowwiseRegion {
    /// Its kernel. Operands and results are in the order of those below.
    pub kernel: RowwiseKernel,
    /// The axes of the kernel's operands and results.
    pub space: RowSpace,
    /// What it reads.
    pub operands: Vec<RowsOperand>,
    /// What it stores: the outputs of the kernel, then its sums over all rows.
    pub results: Vec<Value>,
    /// Operands that hold places in a row, and the number of places: a place outside is an error
    /// where the device can say so.
    pub lookups: Vec<(Value, usize)>,
}

/// An operand of a row-wise region.
#[derive(Clone, Debug)]
pub enum RowsOperand {
    /// A value of the graph.
    Value(Value),
    /// 0, 1, 2 and so on: this many, in that type.
    Positions(DType, usize),
}

/// Nodes that run as one launch, or one node.
#[derive(Clone, Debug)]
pub struct Region {
    /// Indices of the nodes, ascending.
    pub nodes: Vec<usize>,
    /// How it runs row by row, if it is more than one node and reduces something.
    pub rows: Option<RowwiseRegion>,
}

/// Regions in an order in which they can run. `rowwise` says which nodes are reductions or ops with
/// a row-wise kernel.
pub fn cluster_rows(graph: &Graph, pointwise: &[bool], rowwise: &[bool], device: &Device) -> Result<Vec<Region>> {
    let mut c = pointwise_regions(graph, pointwise, !device.is_host());
    let mut found =
        Grower { convolved: convolved(graph, pointwise), cluster: &mut c, pointwise, rowwise, device }.grow();
    if !device.is_host() {
        c.join_small(pointwise, |group| found.contains_key(&group));
    }
    let order = c.order()?;
    let region = |nodes: Vec<usize>| {
        let rows = nodes.first().and_then(|n| found.remove(&c.group_of[*n]));
        Region { nodes, rows }
    };
    Ok(order.into_iter().map(region).collect())
}

/// Grows pointwise regions to row-wise ones. `rowwise` says which nodes are reductions or ops with
/// a row-wise kernel.
struct Grower<'c, 'g> {
    cluster: &'c mut Cluster<'g>,
    pointwise: &'c [bool],
    rowwise: &'c [bool],
    device: &'c Device,
    /// Convolutions, and views and pointwise functions of these.
    convolved: Vec<bool>,
}

impl Grower<'_, '_> {
    /// The row-wise regions by group.
    fn grow(mut self) -> HashMap<usize, RowwiseRegion> {
        let mut found: HashMap<usize, RowwiseRegion> = HashMap::new();
        let users = users(self.cluster.graph);
        self.join_along_edges(&users, &mut found);
        self.join_siblings(&users, &mut found);
        self.alone(&users, &mut found);
        if !self.device.is_host() && self.sink(&users, &mut found) {
            self.join_along_edges(&users, &mut found);
        }
        found
    }

    /// Joins regions with what computes their operands.
    fn join_along_edges(&mut self, users: &Users, found: &mut HashMap<usize, RowwiseRegion>) {
        for _ in 0..ROUNDS {
            let mut changed = false;
            for node in 0..self.cluster.graph.nodes.len() {
                if !self.is_member(node) {
                    continue;
                }
                for operand in self.cluster.graph.nodes[node].operands.iter().flatten() {
                    let Some(union) = self.union(node, operand.node.index()) else { continue };
                    changed |= self.join(union, users, found);
                }
            }
            if !changed {
                break;
            }
        }
    }

    /// Sums over all rows of what no region computes, which a kernel of their own reads as rows
    /// lie, and searches for the largest element of rows.
    fn alone(&mut self, users: &Users, found: &mut HashMap<usize, RowwiseRegion>) {
        for node in 0..self.cluster.graph.nodes.len() {
            let (graph, group) = (self.cluster.graph, self.cluster.group_of[node]);
            let searches = !self.device.is_host() && builtin(graph, &graph.nodes[node]) == Some(BuiltinOp::Argmax);
            if (searches || reduced_rows(graph, node).is_some())
                && !found.contains_key(&group)
                && let Some(rows) = self.rows(&self.cluster.groups[group].nodes.clone(), users)
            {
                found.insert(group, rows);
            }
        }
    }

    /// Makes one region of a union, if it has a kernel that is worth it.
    fn join(&mut self, union: Union, users: &Users, found: &mut HashMap<usize, RowwiseRegion>) -> bool {
        let Some(rows) = self.rows(&union.nodes, users) else { return false };
        for group in &union.groups {
            found.remove(group);
        }
        found.insert(self.cluster.merge(&union.groups, union.nodes), rows);
        true
    }

    /// Joins regions that read the same tensor, so that it is read once. Only regions that could
    /// run at the same time anyway are joined: what one reads and the other does not is available
    /// from the start.
    fn join_siblings(&mut self, users: &Users, found: &mut HashMap<usize, RowwiseRegion>) {
        let graph = self.cluster.graph;
        let mut values: Vec<(&Value, &Vec<usize>)> = users.iter().collect();
        values.sort_unstable();
        for (value, nodes) in values {
            let ready =
                |o: &usize| *o == value.node.index() || graph.nodes[*o].operands.iter().flatten().next().is_none();
            for pair in nodes.windows(2) {
                let [a, b] = pair else { continue };
                if *b == usize::MAX || !self.is_member(*a) || !self.is_member(*b) {
                    continue;
                }
                let groups = [self.cluster.group_of[*a], self.cluster.group_of[*b]];
                let alone = groups.iter().all(|g| self.cluster.groups[*g].operands.iter().all(ready));
                if groups[0] != groups[1]
                    && alone
                    && let Some(union) = self.joined(groups.to_vec())
                {
                    self.join(union, users, found);
                }
            }
        }
    }

    fn is_member(&self, node: usize) -> bool {
        self.pointwise[node] || self.rowwise[node] || gathers(self.cluster.graph, node)
    }

    /// The groups of a node and of what computes its operand, with the views between them.
    fn union(&self, node: usize, operand: usize) -> Option<Union> {
        let graph = self.cluster.graph;
        let own = self.cluster.group_of[node];
        let (mut at, mut groups) = (operand, vec![own]);
        while is_alias(graph, at) && self.cluster.group_of[at] != own {
            groups.push(self.cluster.group_of[at]);
            at = graph.nodes[at].operands.first().copied().flatten()?.node.index();
            if groups.len() > MAX_VIEWS {
                return None;
            }
        }
        let other = self.cluster.group_of[at];
        if !self.is_member(at) || other == own {
            return None;
        }
        if !groups.contains(&other) {
            groups.push(other);
        }
        self.joined(groups)
    }

    /// The nodes of these groups, if they reduce something or, on a GPU, look up many rows, and may
    /// become one.
    fn joined(&self, groups: Vec<usize>) -> Option<Union> {
        let nodes = |g: &usize| self.cluster.groups[*g].nodes.iter().copied();
        let mut all: Vec<usize> = groups.iter().flat_map(nodes).collect();
        all.sort_unstable();
        let looks_up = |n: usize| !self.device.is_host() && looks_up_many(self.cluster.graph, n);
        let by_rows = all.iter().any(|n| self.rowwise[*n] || looks_up(*n));
        (by_rows && all.len() <= MAX_NODES && !self.cluster.comes_back(&groups)).then_some(Union { groups, nodes: all })
    }

    /// The kernel of these nodes, if there is one that is worth it.
    fn rows(&self, nodes: &[usize], users: &Users) -> Option<RowwiseRegion> {
        let graph = self.cluster.graph;
        let inside: HashSet<usize> = nodes.iter().copied().collect();
        let mut reading = Reading::new(graph, inside, self.device.is_host());
        for index in nodes {
            for (output, value) in reading.node(*index)?.into_iter().enumerate() {
                let v = Value { node: NodeId(*index as u32), output: output as u32 };
                if users.get(&v).is_some_and(|u| u.iter().any(|n| !reading.inside.contains(n))) {
                    match value {
                        // A view that is read elsewhere costs nothing outside, and a copy inside.
                        Made::Rows(_) if is_alias(graph, *index) => return None,
                        Made::Rows(value) => reading.results.push((v, value)),
                        Made::Sum(sum) => reading.sums.push((v, sum)),
                    }
                }
                reading.values.insert(v, value);
            }
        }
        let Reading { region, operands, results, sums, lookups, .. } = reading;
        // Where the channels come first or last is decided for convolutions, in the plan.
        let convolved = |o: &RowsOperand| matches!(o, RowsOperand::Value(v) if self.convolved[v.node.index()]);
        if operands.iter().any(convolved) {
            return None;
        }
        let count = results.len() + sums.len();
        if count == 0 || operands.len() + count > MAX_TENSORS || sums.len() > MAX_SUMS {
            return None;
        }
        let (mut results, made): (Vec<Value>, Vec<RowValue>) = results.into_iter().unzip();
        let (of_sums, sums): (Vec<Value>, Vec<ColumnSum>) = sums.into_iter().unzip();
        results.extend(of_sums);
        let (name, doc) = self.named(nodes);
        let (kernel, space, again) = region.finish(&name, doc, (&made, &sums)).ok()?;
        // A host would find the place of each element on its own.
        let of_elements = |g: &GatheredRows| {
            let axes = [g.table, g.index].map(|i| space.tensors[i].iter().flatten().any(|a| *a >= space.outer));
            kernel.inputs[g.table].1 == RowAccess::Picked && axes.contains(&true)
        };
        if self.device.is_host() && kernel.gathers.iter().any(of_elements) {
            return None;
        }
        // A search alone has a kernel of its own, which gives a row one block.
        let searches =
            !self.device.is_host() && nodes.iter().all(|n| builtin(graph, &graph.nodes[*n]) == Some(BuiltinOp::Argmax));
        (self.may_do_again(again, &space) && (searches || self.is_worth_it(&kernel, &space))).then_some(RowwiseRegion {
            kernel,
            space,
            operands,
            results,
            lookups,
        })
    }

    /// A name for the kernel, and the names of the nodes.
    fn named(&self, nodes: &[usize]) -> (String, String) {
        let graph = self.cluster.graph;
        let of_rows = nodes.iter().filter(|n| self.rowwise[**n]);
        let mut heads: Vec<&str> = of_rows.map(|n| graph.head_name(NodeId(*n as u32))).collect();
        heads.dedup();
        let mut known = HashSet::new();
        let names = nodes.iter().map(|n| graph.nodes[*n].name.as_str());
        let names: Vec<&str> = names.filter(|n| !n.is_empty() && known.insert(*n)).collect();
        (format!("rows_{}", heads.join("_")), names.join(" + "))
    }

    /// Whether computing again what rows share takes less time than a launch. A GPU does a few
    /// instructions for each element while it waits for memory.
    fn may_do_again(&self, again: SharedWork, space: &RowSpace) -> bool {
        let SharedWork { functions, light } = again;
        let elements = space.sizes.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
        let in_all = elements.and_then(|n| n.checked_mul(functions as i64));
        let few = (light && functions <= LIGHT_AGAIN) || in_all.is_some_and(|n| n <= MAX_AGAIN);
        functions == 0 || (!self.device.is_host() && few)
    }

    /// Whether one launch is faster than the parts: rows that are neither too long to be kept in
    /// registers or read again nor too few for the device, unless they are read once; elements of a
    /// row side by side in memory.
    fn is_worth_it(&self, kernel: &RowwiseKernel, space: &RowSpace) -> bool {
        let size = |sizes: &[Dim]| sizes.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
        let (rows, n) = (size(&space.sizes[..space.outer]), size(&space.sizes[space.outer..]));
        let gpu = usize::from(!self.device.is_host());
        // What reads each row once keeps none, and the plan cuts rows that are few and long.
        let long = n.is_none_or(|n| n >= LONG_ROW as i64);
        let once = gpu == 1 && long && kernel.folds();
        use RowAccess::{Full, Gathered, Picked, Strided};
        let wide = |access: RowAccess| matches!(access, Full | Strided | Gathered | Picked);
        let along = |axes: &Vec<Vec<usize>>| axes.iter().flatten().any(|a| *a >= space.outer);
        let elements = kernel.inputs.iter().zip(&space.tensors).filter(|(i, axes)| wide(i.1) && along(axes));
        let bytes: usize = elements.map(|(i, _)| i.0.size()).sum();
        let longest = if gpu == 1 && bytes <= AGAIN_BYTES { AGAIN } else { LONGEST[gpu] };
        if !once && n.is_some_and(|n| n > longest) {
            return false;
        }
        if !kernel.sums.is_empty() && !sums_are_worth_it(kernel, rows, n, space.groups_of_sums()) {
            return false;
        }
        if let (Some(rows), Some(n)) = (rows, n) {
            let alone = if gpu == 1 { n } else { rows.saturating_mul(n) };
            if !once && rows < ROWS[gpu] && alone > self.at_once() {
                return false;
            }
        }
        bytes <= ROW_BYTES
            && (gpu == 1 && is_by_columns(kernel, space, rows, n) || self.lies_by_rows(kernel, space, rows.zip(n)))
    }

    /// Elements of a row that are computed in the time of a launch, however few rows there are: by
    /// a thread of a host together with all other rows, by a block of a GPU, or by a cluster of
    /// blocks.
    fn at_once(&self) -> i64 {
        match self.device.sm {
            0 => 1 << 14,
            sm if sm < HOPPER => 1 << 13,
            _ => LONGEST[1],
        }
    }

    /// Whether results lie row after row, and so do operands, as far as rows go, but for few
    /// elements. What has one element a group varies along the first axes of a row.
    fn lies_by_rows(&self, kernel: &RowwiseKernel, space: &RowSpace, sizes: Option<(i64, i64)>) -> bool {
        let along = |axes: &Vec<Vec<usize>>| {
            let of_row: Vec<usize> = axes.iter().flatten().copied().skip_while(|a| *a < space.outer).collect();
            of_row.iter().copied().eq(space.outer..space.outer + of_row.len())
        };
        let stored = kernel.outputs.iter().all(|o| o.1 != RowAccess::Strided);
        let elements = sizes.and_then(|(rows, n)| rows.checked_mul(n));
        let few = !self.device.is_host() && elements.is_some_and(|n| n <= FEW_APART);
        stored && (few || space.tensors.iter().all(along))
    }
}

/// Whether rows are so many and so short that a thread each computes them, or a few threads, and
/// neighbouring rows lie side by side in everything that is read and stored: so do the accesses of
/// neighbouring threads.
fn is_by_columns(kernel: &RowwiseKernel, space: &RowSpace, rows: Option<i64>, n: Option<i64>) -> bool {
    let (Some(rows), Some(n)) = (rows, n) else { return false };
    let beside = |axes: &Vec<Vec<usize>>| {
        let mut own = axes.iter().flatten().copied();
        !own.clone().any(|a| a + 1 == space.outer) || own.next_back() == space.outer.checked_sub(1)
    };
    let size = |n: i64| usize::try_from(n).unwrap_or(0);
    let each = kernel.most_slices(size(rows), size(n)) as i64;
    rows.saturating_mul(each) >= FEWEST_COLUMNS && n <= LONGEST_COLUMN && space.tensors.iter().all(beside)
}

/// Whether a kernel that adds up this many rows is faster than sums of their own.
fn sums_are_worth_it(kernel: &RowwiseKernel, rows: Option<i64>, n: Option<i64>, groups: Option<usize>) -> bool {
    let (Some(rows), Some(n), Some(groups)) = (rows, n, groups) else { return false };
    let sizes = usize::try_from(rows).ok().zip(usize::try_from(n).ok());
    let split = sizes.and_then(|(rows, n)| SumSplit::of(kernel, rows, n, groups));
    split.is_some() && n >= NARROWEST_ADDED && kernel.gathers.is_empty()
}

/// What would become one region.
struct Union {
    groups: Vec<usize>,
    nodes: Vec<usize>,
}

/// True for views that neither leave elements out nor repeat an operand's storage elsewhere.
fn is_alias(graph: &Graph, node: usize) -> bool {
    let node = &graph.nodes[node];
    use BuiltinOp::{Expand, Reshape, Transpose};
    is_view(graph, node) && matches!(builtin(graph, node), Some(Reshape | Transpose | Expand))
}

/// The convolutions, and views and pointwise functions of these.
fn convolved(graph: &Graph, pointwise: &[bool]) -> Vec<bool> {
    let mut out = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let of = builtin(graph, node);
        let is_convolution = matches!(of, Some(BuiltinOp::Conv | BuiltinOp::ConvGemm));
        let passes_on = pointwise[i] || is_view(graph, node);
        out[i] = is_convolution || passes_on && node.operands.iter().flatten().any(|v| out[v.node.index()]);
    }
    out
}

/// True for a lookup of rows of a table of so many elements that rows of threads are faster than
/// parts of a launch, which each find their own place.
fn looks_up_many(graph: &Graph, node: usize) -> bool {
    const MANY: i64 = 1 << 21;
    let sizes =
        graph.nodes[node].results.first().map(|t| t.shape.iter().map(|d| d.as_const()).product::<Option<i64>>());
    gathers(graph, node) && sizes.flatten().is_some_and(|n| n > MANY)
}

/// True for a lookup of rows of a table.
fn gathers(graph: &Graph, node: usize) -> bool {
    let node = &graph.nodes[node];
    let first = |attrs: &[AttrValue]| matches!(attrs.first(), Some(AttrValue::Dim(d)) if d.as_const() == Some(0));
    let along_rows = matches!(&node.kind, NodeKind::Op { attrs, .. } if first(attrs));
    let wide = node.operands.first().copied().flatten().is_some_and(|v| graph.ty(v).shape.len() > 1);
    builtin(graph, node) == Some(BuiltinOp::Gather) && along_rows && wide
}

/// The neighbouring axes that a node adds up, if axes behind them make up a row: a sum over all
/// rows, or over those of each group that axes in front number. A sum over fewer rows than
/// [`FEWEST_ADDED`] reduces them as any other axis. A mean is such a sum too.
fn reduced_rows(graph: &Graph, node: usize) -> Option<Range<usize>> {
    let node = &graph.nodes[node];
    let NodeKind::Op { attrs, .. } = &node.kind else { return None };
    let (Some(BuiltinOp::Sum | BuiltinOp::Mean), Some(AttrValue::List(axes))) = (builtin(graph, node), attrs.first())
    else {
        return None;
    };
    let of = graph.ty(node.operands.first().copied().flatten()?);
    let axes = axes.iter().map(|a| match a {
        AttrValue::Dim(axis) => axis.as_const().and_then(|a| usize::try_from(a).ok()),
        _ => None,
    });
    let mut axes = axes.collect::<Option<Vec<usize>>>()?;
    axes.sort_unstable();
    let first = *axes.first()?;
    let side_by_side = axes.iter().copied().eq(first..first + axes.len());
    let reduced = first..first + axes.len();
    let left = of.shape.get(reduced.end..)?.iter().any(|d| d.as_const() != Some(1));
    let rows = of.shape[reduced.clone()].iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
    let many = rows.is_some_and(|n| n >= FEWEST_ADDED);
    (side_by_side && left && many && of.dtype.is_float()).then_some(reduced)
}

/// A value of a region.
#[derive(Clone, Copy)]
enum Made {
    /// It varies from row to row.
    Rows(RowValue),
    /// A sum over all rows.
    Sum(ColumnSum),
}

/// The kernel of a region while its nodes are read, in order.
struct Reading<'g> {
    graph: &'g Graph,
    /// The nodes of the region.
    inside: HashSet<usize>,
    on_host: bool,
    region: RowRegion<'g>,
    /// What is known in the kernel: operands, and values of nodes that were read.
    values: HashMap<Value, Made>,
    operands: Vec<RowsOperand>,
    results: Vec<(Value, RowValue)>,
    sums: Vec<(Value, ColumnSum)>,
    lookups: Vec<(Value, usize)>,
}

impl<'g> Reading<'g> {
    fn new(graph: &'g Graph, inside: HashSet<usize>, on_host: bool) -> Reading<'g> {
        let (operands, results, sums, lookups) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let region = RowRegion::new(&graph.program);
        Reading { graph, inside, on_host, region, values: HashMap::new(), operands, results, sums, lookups }
    }

    /// The results of a node; `None` if no row-wise kernel computes it.
    fn node(&mut self, index: usize) -> Option<Vec<Made>> {
        let node = &self.graph.nodes[index];
        if let (true, [Some(table), Some(places)]) = (gathers(self.graph, index), node.operands.as_slice()) {
            return self.gather(*table, *places).map(|made| vec![Made::Rows(made)]);
        }
        if let Some(sum) = self.sum(index) {
            return Some(vec![Made::Sum(sum?)]);
        }
        let mut args: Vec<Option<RowValue>> = Vec::with_capacity(node.operands.len());
        for v in &node.operands {
            args.push(match v {
                Some(v) => Some(self.argument(index, *v)?),
                None => None,
            });
        }
        let made = match &node.kind {
            NodeKind::Scalar(scalar) => {
                let args: Vec<RowValue> = args.into_iter().flatten().collect();
                let value = self.region.scalar(*scalar, &args).ok()?;
                let dtype = node.results[0].dtype;
                // As in pointwise regions, generated code computes integers in 64 bits.
                let wraps = !self.on_host && dtype.is_int() && dtype != DType::I64;
                vec![if wraps { self.region.stored(value) } else { value }]
            }
            NodeKind::Op { op, attrs, .. } => self.region.op(*op, attrs, &args).ok()?,
            _ => return None,
        };
        while let Some(operand) = self.region.operands().get(self.operands.len()) {
            self.operands.push(match operand {
                RowOperand::Positions(dtype, count) => RowsOperand::Positions(*dtype, *count),
                RowOperand::Again(at) => self.operands.get(*at)?.clone(),
                RowOperand::Given => return None,
            });
        }
        if let (Some(BuiltinOp::GatherElements), [Some(of), Some(places)]) =
            (builtin(self.graph, node), node.operands.as_slice())
        {
            // What is computed inside cannot be looked at before.
            if self.inside.contains(&places.node.index()) && self.on_host {
                return None;
            }
            let count = self.graph.ty(*of).shape.last()?.as_const().and_then(|n| usize::try_from(n).ok())?;
            self.lookups.push((*places, count));
        }
        Some(made.into_iter().map(Made::Rows).collect())
    }

    /// A sum over all rows, or such a sum in another shape or type; the inner `None` if no kernel
    /// computes it.
    fn sum(&mut self, index: usize) -> Option<Option<ColumnSum>> {
        let node = &self.graph.nodes[index];
        let of = node.operands.first().copied().flatten()?;
        let ty = node.results.first()?;
        if let Some(Made::Sum(sum)) = self.values.get(&of).copied() {
            let kept = matches!(builtin(self.graph, node), Some(BuiltinOp::Cast | BuiltinOp::Reshape));
            return Some(if kept { self.region.stored_sum(sum, ty).ok() } else { None });
        }
        let reduced = reduced_rows(self.graph, index)?;
        if self.on_host {
            return Some(None);
        }
        let is_mean = builtin(self.graph, node) == Some(BuiltinOp::Mean);
        let count = self.graph.ty(of).shape[reduced.clone()].iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
        let summand = self.argument(index, of).and_then(|of| match (is_mean, count) {
            (false, _) => Some(of),
            (true, Some(count)) => self.region.over(of, count).ok(),
            (true, None) => None,
        });
        Some(summand.and_then(|of| self.region.column_sum(of, reduced, ty).ok()))
    }

    /// Rows of a table.
    fn gather(&mut self, table: Value, places: Value) -> Option<RowValue> {
        if [table, places].iter().any(|v| self.inside.contains(&v.node.index())) {
            return None;
        }
        let rows = usize::try_from(self.graph.ty(table).shape[0].as_const()?).ok()?;
        let index = match self.values.get(&places) {
            Some(Made::Rows(known)) => *known,
            Some(Made::Sum(_)) => return None,
            None => {
                let index = self.region.operand(self.graph.ty(places));
                self.operands.push(RowsOperand::Value(places));
                self.values.insert(places, Made::Rows(index));
                index
            }
        };
        let made = self.region.gather(self.graph.ty(table), index).ok()?;
        self.operands.push(RowsOperand::Value(table));
        self.lookups.push((places, rows));
        Some(made)
    }

    /// The operand of a node: known, a number, or one more operand of the kernel. `None` for a sum
    /// over all rows, which no row has before the end.
    fn argument(&mut self, index: usize, v: Value) -> Option<RowValue> {
        match self.values.get(&v) {
            Some(Made::Rows(known)) => return Some(*known),
            Some(Made::Sum(_)) => return None,
            None => {}
        }
        let ty = self.graph.ty(v);
        if let Some(number) = literal(self.graph, &self.graph.nodes[index], v) {
            return Some(self.region.number(number, ty.dtype));
        }
        self.operands.push(RowsOperand::Value(v));
        let value = self.region.operand(ty);
        self.values.insert(v, Made::Rows(value));
        Some(value)
    }
}

/// The nodes that read each value.
type Users = HashMap<Value, Vec<usize>>;

/// The nodes that read each value; a result of the graph is read by no node of it.
fn users(graph: &Graph) -> Users {
    let mut users = Users::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        node.operands.iter().flatten().for_each(|v| users.entry(*v).or_default().push(i));
    }
    graph.outputs.iter().for_each(|(_, v)| users.entry(*v).or_default().push(usize::MAX));
    users
}

impl Cluster<'_> {
    /// True if a path leaves these groups and comes back, or if the search was cut off.
    fn comes_back(&self, of: &[usize]) -> bool {
        let first = of.iter().filter_map(|g| self.groups[*g].nodes.first()).min().copied().unwrap_or(0);
        let mut seen: HashSet<usize> = HashSet::new();
        let outside = |g: &usize| !of.contains(g);
        let before = |g: usize| self.groups[g].operands.iter().map(|n| self.group_of[*n]);
        let mut stack: Vec<usize> = of.iter().flat_map(|g| before(*g)).filter(outside).collect();
        while let Some(g) = stack.pop() {
            if of.contains(&g) {
                return true;
            }
            let last = self.groups[g].nodes.last().copied().unwrap_or(0);
            if last < first || !seen.insert(g) {
                continue;
            }
            if seen.len() > MAX_VISITS {
                return true;
            }
            stack.extend(before(g));
        }
        false
    }

    /// Makes one group of these; returns it.
    fn merge(&mut self, groups: &[usize], nodes: Vec<usize>) -> usize {
        let into = groups[0];
        let mut operands: Vec<usize> = groups.iter().flat_map(|g| self.groups[*g].operands.clone()).collect();
        operands.retain(|n| nodes.binary_search(n).is_err());
        operands.sort_unstable();
        operands.dedup();
        for g in groups {
            self.groups[*g] = Group { nodes: Vec::new(), operands: Vec::new() };
        }
        nodes.iter().for_each(|n| self.group_of[*n] = into);
        self.groups[into] = Group { nodes, operands };
        into
    }
}
