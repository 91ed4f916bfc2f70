//! Moves pointwise work whose result is only read in slices behind the slices.
//!
//! In: a graph of builtin ops. Out: the same function, in which each slice of such a result is
//! computed from slices of the operands: the gates of a recurrent cell behind one activation, the
//! parts of a detection head. Invariant: the slices together have no more elements than the result,
//! so no more is computed than before; only pointwise work and concatenations read them, which can
//! then compute them themselves ([`crate::cluster_rows`]).

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::Dim;

use super::kinds::{builtin, is_pointwise};
use super::prim::Prim;
use super::replace::copy;
use super::{Graph, Node, NodeId, NodeKind, Value};
use hypatia_tensor::error::Result;

/// The graph with work behind the slices that read it.
///
/// # Errors
/// If a node cannot be built again.
pub fn with_work_on_slices(graph: &Graph) -> Result<Graph> {
    let moved = moved(graph);
    let (map, known) = (Vec::new(), HashMap::new());
    let mut pass = Pass { graph, moved, out: Graph::new(graph.program.clone()), map, known };
    for (i, node) in graph.nodes.iter().enumerate() {
        let start = pass.out.nodes.len();
        let made = pass.node(i)?;
        pass.out.nodes[start..].iter_mut().filter(|n| n.name.is_empty()).for_each(|n| n.name.clone_from(&node.name));
        pass.map.push(made);
    }
    for (name, v) in &graph.outputs {
        let value = pass.map[v.node.index()][v.output as usize];
        pass.out.output(name.clone(), value);
    }
    pass.out.inputs = graph.inputs.iter().map(|id| pass.map[id.index()][0].node).collect();
    Ok(pass.out)
}

/// A part of each line along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    axis: usize,
    start: i64,
    count: i64,
    step: i64,
}

struct Pass<'g> {
    graph: &'g Graph,
    moved: Vec<bool>,
    out: Graph,
    /// The results of each node so far; none of one that is moved.
    map: Vec<Vec<Value>>,
    /// The parts of values that were built.
    known: HashMap<(Value, Part), Value>,
}

impl Pass<'_> {
    fn node(&mut self, at: usize) -> Result<Vec<Value>> {
        let graph = self.graph;
        let node = &graph.nodes[at];
        if self.moved[at] {
            return Ok(Vec::new());
        }
        if let Some(of) = node.operands.first().copied().flatten().filter(|v| self.moved[v.node.index()]) {
            let parts = parts(graph, node).unwrap_or_default();
            return parts.into_iter().map(|part| self.part(of, part)).collect();
        }
        let of = |v: &Option<Value>| v.map(|v| self.map[v.node.index()][v.output as usize]);
        let operands: Vec<Option<Value>> = node.operands.iter().map(of).collect();
        copy(&mut self.out, node, &operands)
    }

    /// That part of a value: computed from parts of the operands, if the value is.
    fn part(&mut self, v: Value, part: Part) -> Result<Value> {
        if let Some(made) = self.known.get(&(v, part)) {
            return Ok(*made);
        }
        let made = self.new_part(v, part)?;
        self.known.insert((v, part), made);
        Ok(made)
    }

    fn new_part(&mut self, v: Value, part: Part) -> Result<Value> {
        let graph = self.graph;
        if !self.moved[v.node.index()] {
            let made = self.map[v.node.index()][v.output as usize];
            let Part { axis, start, count, step } = part;
            let stop = start + (count - 1) * step + 1;
            let attrs = vec![(axis as i64).into(), start.into(), stop.into(), step.into()];
            return Ok(self.out.builtin(BuiltinOp::Slice, &[made], attrs)?[0]);
        }
        let node = graph.node(v.node);
        let rank = graph.ty(v).shape.len();
        let mut operands = Vec::with_capacity(node.operands.len());
        for operand in &node.operands {
            let Some(o) = *operand else {
                operands.push(None);
                continue;
            };
            let (shape, moved) = (&graph.ty(o).shape, self.moved[o.node.index()]);
            // What broadcasts along the axis is the same for every part. What is moved has the
            // result's own axes.
            let varies = |a: &usize| moved || shape[*a].as_const() != Some(1);
            let axis = (part.axis + shape.len()).checked_sub(rank).filter(varies);
            operands.push(Some(match axis {
                Some(axis) => self.part(o, Part { axis, ..part })?,
                None => self.map[o.node.index()][o.output as usize],
            }));
        }
        Ok(copy(&mut self.out, node, &operands)?[0])
    }
}

/// The parts that a slice or a split takes of its first operand.
fn parts(graph: &Graph, node: &Node) -> Option<Vec<Part>> {
    let op = builtin(graph, node).filter(|op| matches!(op, BuiltinOp::Slice | BuiltinOp::Split))?;
    let NodeKind::Op { attrs, .. } = &node.kind else { return None };
    let of = |shape: &[Dim]| shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect::<Option<Vec<usize>>>();
    let (from, result) = (of(&graph.ty(node.operands[0]?).shape)?, of(&node.results[0].shape)?);
    match Prim::read(op, attrs, &|_| None, &[&from], &result).ok()? {
        Prim::Slice { axis, start, step } => {
            Some(vec![Part { axis, start, count: result[axis] as i64, step }]).filter(|_| step > 0 && result[axis] > 0)
        }
        Prim::Split { axis, sizes } => {
            let starts = sizes.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n)));
            let part = |(start, n): (usize, &usize)| Part { axis, start: start as i64, count: *n as i64, step: 1 };
            Some(starts.zip(&sizes).map(part).collect()).filter(|_| !sizes.contains(&0))
        }
        _ => None,
    }
}

/// Which nodes are computed behind the slices of their results.
fn moved(graph: &Graph) -> Vec<bool> {
    let users = graph.users();
    let elements = |shape: &[Dim]| shape.iter().map(Dim::as_const).try_fold(1i64, |n, d| n.checked_mul(d?));
    let is_output = |i: usize| graph.outputs.iter().any(|(_, v)| v.node.index() == i);
    let mut moved = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let own = elements(&node.results[0].shape);
        if !is_pointwise(graph, node) || users[i].is_empty() || is_output(i) {
            continue;
        }
        let slice = |u: &NodeId| {
            let user = graph.node(*u);
            let joins = |r: &Node| is_pointwise(graph, r) || builtin(graph, r) == Some(BuiltinOp::Concat);
            let read = |r: &NodeId| joins(graph.node(*r));
            let alone = user.operands.first().copied().flatten().is_some_and(|v| v.node.index() == i);
            let readers = &users[u.index()];
            alone
                && !is_output(u.index())
                && !readers.is_empty()
                && readers.iter().all(read)
                && parts(graph, user).is_some()
        };
        let all = |u: &NodeId| {
            let results = &graph.node(*u).results;
            results.iter().try_fold(0i64, |n, r| n.checked_add(elements(&r.shape)?))
        };
        let behind = users[i].iter().try_fold(0i64, |n, u| n.checked_add(all(u)?));
        let sliced = users[i].iter().all(slice) && own.zip(behind).is_some_and(|(own, behind)| behind <= own);
        // What only moved work of its own size reads is computed in front of it.
        let alike = |u: &NodeId| graph.node(*u).results[0].shape == node.results[0].shape;
        let feeds = matches!(users[i].as_slice(), [u] if moved[u.index()] && alike(u));
        moved[i] = sliced || feeds;
    }
    moved
}
