//! Moves pointwise work to the only region that reads its result, where that moves fewer bytes.
//!
//! In: pointwise and row-wise regions. Out: the same nodes in the same number of launches, or
//! fewer. Invariant: a node is moved from a pointwise region to the region that reads it, so that
//! no path leaves a region and comes back; the region that takes it has a kernel for all its nodes.
//!
//! A pointwise region grows as far as it can, and ends with values that only one later region
//! reads: `cast<f32>(x)` and `x * scale` in front of a norm's gradient, in f32, where x itself is
//! in bf16. It is cheaper to store x once, and to compute the others where they are read. For that,
//! each reader has such values of its own ([`crate::with_own_wide_values`]).

use std::collections::{HashMap, HashSet};

use hypatia_dsl::shape::Dim;

use super::super::regions::{Group, MAX_OPERANDS};
use super::{Grower, MAX_NODES, NodeId, ROUNDS, RowwiseRegion, Users, Value};

/// Work to move.
struct Move {
    from: usize,
    into: usize,
    nodes: Vec<usize>,
}

impl Grower<'_, '_> {
    /// Moves all work that is worth it. True if there was some.
    pub(super) fn sink(&mut self, users: &Users, found: &mut HashMap<usize, RowwiseRegion>) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS {
            let mut changed = false;
            for node in (0..self.cluster.graph.nodes.len()).rev() {
                if let Some(work) = self.sinking(node, users, found) {
                    changed |= self.moved(work, users, found);
                }
            }
            any |= changed;
            if !changed {
                break;
            }
        }
        any
    }

    /// A node, and what only it reads, if its one reader had better compute it.
    fn sinking(&self, node: usize, users: &Users, found: &HashMap<usize, RowwiseRegion>) -> Option<Move> {
        let graph = self.cluster.graph;
        let v = Value { node: NodeId(node as u32), output: 0 };
        let (from, read) = (self.cluster.group_of[node], users.get(&v)?);
        if !self.pointwise[node] || found.contains_key(&from) || read.contains(&usize::MAX) {
            return None;
        }
        let into = self.cluster.group_of[*read.first()?];
        if into == from || read.iter().any(|u| self.cluster.group_of[*u] != into) {
            return None;
        }
        let rows = found.contains_key(&into);
        let takes = |n: &usize| self.pointwise[*n] && graph.nodes[*n].results[0].shape == graph.ty(v).shape;
        if !rows && !self.cluster.groups[into].nodes.iter().all(takes) {
            return None;
        }
        let mut work = Move { from, into, nodes: vec![node] };
        let price = self.price_of_operands(node, users, &mut work)?;
        (price < 2 * self.bytes(v)?).then_some(work)
    }

    /// Bytes that the reader moves, and the region before it, so that the reader has the operands
    /// of a node.
    fn price_of_operands(&self, node: usize, users: &Users, work: &mut Move) -> Option<usize> {
        let operands = self.cluster.graph.nodes[node].operands.iter().flatten();
        operands.map(|v| self.price(*v, users, work)).sum()
    }

    /// The same for a value. Adds it to the work if computing it is cheaper than reading it.
    fn price(&self, v: Value, users: &Users, work: &mut Move) -> Option<usize> {
        let node = v.node.index();
        let group = |n: usize| self.cluster.group_of[n];
        let (bytes, readers) = (self.bytes(v)?, users.get(&v)?);
        let read_there = readers.iter().any(|u| *u != usize::MAX && group(*u) == work.into);
        if read_there || group(node) == work.into || work.nodes.contains(&node) {
            return Some(0);
        }
        let is_stored = |u: &usize| *u == usize::MAX || group(*u) != work.from;
        if group(node) != work.from || readers.iter().any(is_stored) {
            return Some(bytes);
        }
        if self.pointwise[node] && readers.iter().all(|u| work.nodes.contains(u)) {
            let mut more = Move { nodes: [&work.nodes[..], &[node]].concat(), ..*work };
            let price = self.price_of_operands(node, users, &mut more)?;
            if price < 2 * bytes {
                work.nodes = more.nodes;
                return Some(price);
            }
        }
        Some(2 * bytes)
    }

    fn bytes(&self, v: Value) -> Option<usize> {
        let ty = self.cluster.graph.ty(v);
        let sizes = ty.shape.iter().map(Dim::as_const);
        let elements = sizes.map(|d| usize::try_from(d?).ok()).collect::<Option<Vec<_>>>()?;
        elements.iter().try_fold(ty.dtype.size(), |n, d| n.checked_mul(*d))
    }

    /// Moves the work, if the region that takes it has a kernel then.
    fn moved(&mut self, work: Move, users: &Users, found: &mut HashMap<usize, RowwiseRegion>) -> bool {
        let Move { from, into, nodes } = work;
        let stays = self.cluster.groups[from].nodes.iter().copied().filter(|n| !nodes.contains(n)).collect();
        let mut all = [&self.cluster.groups[into].nodes[..], &nodes].concat();
        all.sort_unstable();
        if all.len() > MAX_NODES {
            return false;
        }
        let (rest, taken) = (self.group(stays), self.group(all));
        match found.get_mut(&into) {
            Some(region) => match self.rows(&taken.nodes, users) {
                Some(rows) => *region = rows,
                None => return false,
            },
            None if taken.operands.len() > MAX_OPERANDS => return false,
            None => {}
        }
        nodes.iter().for_each(|n| self.cluster.group_of[*n] = into);
        self.cluster.groups[from] = rest;
        self.cluster.groups[into] = taken;
        true
    }

    /// The group of these nodes, which ascend.
    fn group(&self, nodes: Vec<usize>) -> Group {
        let read = nodes.iter().flat_map(|n| self.cluster.graph.nodes[*n].operands.iter().flatten());
        let read: HashSet<usize> = read.map(|v| v.node.index()).collect();
        let mut operands: Vec<usize> = read.into_iter().filter(|n| nodes.binary_search(n).is_err()).collect();
        operands.sort_unstable();
        Group { nodes, operands }
    }
}
