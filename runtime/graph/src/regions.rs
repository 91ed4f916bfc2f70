//! Regions: pointwise nodes over one index space that become one launch.
//!
//! In: a graph, and which of its nodes are pointwise. Out: for each node its region, if it has one,
//! and an order of regions and other nodes. Invariant: the members of a region have the result
//! shape of its last node, but for small ones that nothing outside reads and that broadcast to it.
//! No path leaves a region and comes back, so each region can run as a whole.
//!
//! The algorithm is greedy. Each pointwise node joins the regions of its operands, in graph order.
//! Then sibling regions that read the same tensor are joined, so that it is read once. A region may
//! have several results, and operands that broadcast. `rows` then grows regions around reductions.
//! In the end, regions of smaller results join their only reader where computing them again for
//! each element takes less time than a launch: few elements, or a few instructions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::{Dim, broadcast};

use super::Graph;
use super::kinds::{builtin, is_light, is_view};
use hypatia_tensor::error::{Error, Result};

/// Maximum number of nodes in a region: generated code has a limited number of registers.
const MAX_NODES: usize = 256;
/// Maximum number of operands from outside a region: they become kernel arguments.
pub(super) const MAX_OPERANDS: usize = 32;
/// Maximum number of earlier readers of a tensor that a reader is compared with.
const MAX_SIBLINGS: usize = 8;
/// Maximum number of functions that are computed again to save a launch: by its rate of arithmetic,
/// a GPU takes less than a microsecond for as many.
pub(super) const MAX_AGAIN: i64 = 1 << 22;
/// Maximum number of functions of one instruction each that a GPU computes again for each element,
/// however many there are: meanwhile it waits for memory.
pub(super) const LIGHT_AGAIN: usize = 4;
/// Maximum number of groups that one path search visits; beyond it, the regions stay separate.
pub(super) const MAX_VISITS: usize = 4096;

/// A region, or a single node.
pub(super) struct Group {
    /// Ascending.
    pub nodes: Vec<usize>,
    /// Nodes outside the group that its members read.
    pub operands: Vec<usize>,
}

/// The regions so far.
pub(super) struct Cluster<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The group of each node, which is the index of one of its nodes.
    pub group_of: Vec<usize>,
    /// By the index of one of their nodes.
    pub groups: Vec<Group>,
}

/// Groups of nodes in an order in which they can run; nodes within a group ascend.
pub fn cluster(graph: &Graph, pointwise: &[bool]) -> Result<Vec<Vec<usize>>> {
    pointwise_regions(graph, pointwise, false).order()
}

/// The regions of the pointwise nodes. `small` says whether small ones join their readers later.
pub(super) fn pointwise_regions<'a>(graph: &'a Graph, pointwise: &[bool], small: bool) -> Cluster<'a> {
    let groups = graph.nodes.iter().enumerate().map(|(i, node)| {
        let mut operands: Vec<usize> = node.operands.iter().flatten().map(|v| v.node.index()).collect();
        operands.sort_unstable();
        operands.dedup();
        Group { nodes: vec![i], operands }
    });
    let mut c = Cluster { graph, group_of: (0..graph.nodes.len()).collect(), groups: groups.collect() };
    for node in (0..graph.nodes.len()).filter(|n| pointwise[*n]) {
        for operand in c.groups[node].operands.clone() {
            if pointwise[operand] && graph.nodes[operand].results[0].shape == graph.nodes[node].results[0].shape {
                c.join(operand, node);
            }
        }
    }
    let follows = if small { follow_readers(graph, pointwise) } else { vec![false; graph.nodes.len()] };
    c.join_siblings(pointwise, &follows);
    c
}

/// For each node the one whose result it is a view of; itself if it is no view.
fn sources(graph: &Graph) -> Vec<usize> {
    let mut sources: Vec<usize> = (0..graph.nodes.len()).collect();
    for (i, node) in graph.nodes.iter().enumerate() {
        if let (true, Some(Some(of))) = (is_view(graph, node), node.operands.first()) {
            sources[i] = sources[of.node.index()];
        }
    }
    sources
}

/// Whether a smaller shape broadcasts to a larger one.
fn broadcasts(small: &[Dim], large: &[Dim]) -> bool {
    small != large && broadcast(small, large).is_some_and(|shape| shape == *large)
}

/// For each node whether it is an instruction whose result only one pointwise node reads, which has
/// more elements: it joins that reader, not what reads the same tensor.
fn follow_readers(graph: &Graph, pointwise: &[bool]) -> Vec<bool> {
    let users = graph.users();
    let result = |n: usize| &graph.nodes[n].results[0].shape;
    let follows = |i: usize| match users[i].as_slice() {
        [reader] if pointwise[i] && pointwise[reader.index()] => {
            broadcasts(result(i), result(reader.index()))
                && is_light(graph, &graph.nodes[i])
                && !graph.outputs.iter().any(|(_, v)| v.node.index() == i)
        }
        _ => false,
    };
    (0..graph.nodes.len()).map(follows).collect()
}

impl Cluster<'_> {
    /// Joins the groups of two nodes unless that makes a cycle or exceeds the limits.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.group_of[a], self.group_of[b]);
        if a == b || self.groups[a].nodes.len() + self.groups[b].nodes.len() > MAX_NODES {
            return;
        }
        if self.reaches_around(a, b) || self.reaches_around(b, a) {
            return;
        }
        let mut nodes = [self.groups[a].nodes.as_slice(), &self.groups[b].nodes].concat();
        nodes.sort_unstable();
        let operands: HashSet<usize> = [a, b]
            .iter()
            .flat_map(|g| self.groups[*g].operands.iter().copied())
            .filter(|n| nodes.binary_search(n).is_err())
            .collect();
        if operands.len() > MAX_OPERANDS {
            return;
        }
        let mut operands: Vec<usize> = operands.into_iter().collect();
        operands.sort_unstable();
        for n in &self.groups[b].nodes {
            self.group_of[*n] = a;
        }
        self.groups[a] = Group { nodes, operands };
        self.groups[b] = Group { nodes: Vec::new(), operands: Vec::new() };
    }

    /// Joins groups with results of one shape that read the same tensor: as a whole, or parts of
    /// it, as queries and keys of one projection. Only groups that could run at the same time
    /// anyway are joined: what one reads and the other does not is available from the start, or a
    /// view of that tensor.
    fn join_siblings(&mut self, pointwise: &[bool], follows: &[bool]) {
        let graph = self.graph;
        let shape = |n: usize| &graph.nodes[n].results[0].shape;
        let from_the_start = |n: usize| graph.nodes[n].operands.iter().flatten().count() == 0;
        let sources = sources(graph);
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
        for node in (0..graph.nodes.len()).filter(|n| pointwise[*n] && !follows[*n]) {
            let result = shape(node);
            let whole = |v: &&super::Value| graph.ty(**v).shape == *result;
            let read = graph.nodes[node].operands.iter().flatten().filter(whole).map(|v| v.node.index());
            for operand in read.filter(|n| self.group_of[*n] != self.group_of[node]) {
                let source = sources[operand];
                if readers[source].last() != Some(&node) {
                    readers[source].push(node);
                }
            }
        }
        for (source, nodes) in readers.iter().enumerate() {
            for (i, b) in nodes.iter().enumerate() {
                for a in nodes[..i].iter().rev().take(MAX_SIBLINGS) {
                    let (ga, gb) = (self.group_of[*a], self.group_of[*b]);
                    let ready = |o: usize| from_the_start(sources[o]) || sources[o] == source;
                    let lacks = |x: usize, y: usize| {
                        let (x, y) = (&self.groups[x].operands, &self.groups[y].operands);
                        x.iter().filter(|o| !y.contains(o)).all(|o| ready(*o))
                    };
                    if ga != gb && shape(*a) == shape(*b) && lacks(ga, gb) && lacks(gb, ga) {
                        self.join(*a, *b);
                    }
                }
            }
        }
    }

    /// Joins pointwise groups with the only group that reads them, to whose larger shape their
    /// results broadcast, if computing them for each element costs less than a launch. `apart` says
    /// which groups are no pointwise regions.
    pub(super) fn join_small(&mut self, pointwise: &[bool], apart: impl Fn(usize) -> bool) {
        let graph = self.graph;
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            node.operands.iter().flatten().for_each(|v| readers[v.node.index()].push(i));
        }
        let results: HashSet<usize> = graph.outputs.iter().map(|(_, v)| v.node.index()).collect();
        // Backwards, so that a chain of small groups joins link by link.
        for node in (0..graph.nodes.len()).rev().filter(|n| pointwise[*n]) {
            let group = self.group_of[node];
            let nodes = &self.groups[group].nodes;
            let mut outside =
                nodes.iter().flat_map(|n| &readers[*n]).map(|n| self.group_of[*n]).filter(|g| *g != group);
            let Some(reader) = outside.next() else { continue };
            let alone = outside.all(|g| g == reader) && !nodes.iter().any(|n| results.contains(n));
            let [Some(own), Some(last)] = [group, reader].map(|g| self.groups[g].nodes.last().copied()) else {
                continue;
            };
            if !alone || !pointwise[last] || apart(group) || apart(reader) {
                continue;
            }
            let [small, large] = [own, last].map(|n| &graph.nodes[n].results[0].shape);
            let elements = large.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
            let again = elements.and_then(|n| n.checked_mul(nodes.len() as i64));
            let fits = broadcasts(small, large);
            // What is converted costs a reader less than the bytes that it need not read.
            let converts = nodes.iter().all(|n| builtin(graph, &graph.nodes[*n]) == Some(BuiltinOp::Cast));
            let light = nodes.len() <= LIGHT_AGAIN && nodes.iter().all(|n| is_light(graph, &graph.nodes[*n]));
            if fits && (converts || light || again.is_some_and(|n| n <= MAX_AGAIN)) {
                // The node that named a group may have moved to another one.
                self.join(last, own);
            }
        }
    }

    /// True if a path leads from group `from` through another group to group `to`, or if the search
    /// was cut off.
    fn reaches_around(&self, from: usize, to: usize) -> bool {
        // Operands come before users, so a group that lies wholly before `from` cannot depend on
        // it.
        let first = self.groups[from].nodes.first().copied().unwrap_or(0);
        let mut seen = HashSet::new();
        let mut stack: Vec<usize> = Vec::new();
        let push = |operands: &[usize], stack: &mut Vec<usize>| {
            stack.extend(operands.iter().map(|n| self.group_of[*n]));
        };
        push(&self.groups[to].operands, &mut stack);
        stack.retain(|g| *g != from);
        while let Some(g) = stack.pop() {
            if g == from {
                return true;
            }
            let last = self.groups[g].nodes.last().copied().unwrap_or(0);
            if g == to || last < first || !seen.insert(g) {
                continue;
            }
            if seen.len() > MAX_VISITS {
                return true;
            }
            push(&self.groups[g].operands, &mut stack);
        }
        false
    }

    /// The groups in topological order. Among those that are ready, the one whose first node comes
    /// first in the graph runs first.
    pub fn order(&self) -> Result<Vec<Vec<usize>>> {
        let n = self.graph.nodes.len();
        let mut waits = vec![0usize; n];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
        for (g, group) in self.groups.iter().enumerate() {
            let before: HashSet<usize> = group.operands.iter().map(|o| self.group_of[*o]).collect();
            waits[g] = before.len();
            before.into_iter().for_each(|b| users[b].push(g));
        }
        let last = |g: usize| self.groups[g].nodes.last().copied().unwrap_or(g);
        let mut ready: BinaryHeap<Reverse<(usize, usize)>> = (0..n)
            .filter(|g| waits[*g] == 0 && !self.groups[*g].nodes.is_empty())
            .map(|g| Reverse((last(g), g)))
            .collect();
        let mut out = Vec::new();
        while let Some(Reverse((_, g))) = ready.pop() {
            out.push(self.groups[g].nodes.clone());
            for user in &users[g] {
                waits[*user] -= 1;
                if waits[*user] == 0 {
                    ready.push(Reverse((last(*user), *user)));
                }
            }
        }
        if out.iter().map(Vec::len).sum::<usize>() != n {
            return Err(Error::Internal("pointwise regions form a cycle".into()));
        }
        Ok(out)
    }
}
