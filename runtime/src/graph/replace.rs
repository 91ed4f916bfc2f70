//! Ops that a `composed` kernel computes: several launches behind one name. And those that a library's call would compute,
//! where the device has none that fits.
//!
//! In: a graph on concrete sizes. Out: the same without such ops; in the place of each stands its body, optimised by
//! itself for the device. Holds always: each op is worked out once for its attributes and operand types, however
//! often it occurs; the results have the types that the op gives.

use std::collections::HashMap;

use hypatia_dsl::ir::Backend;

use super::kernels::{called, declares, is_callable};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::{ConstantFolder, Graph, Node, NodeKind, Value};
use crate::optimize::{Options, optimize};

/// Replaces every node that a `composed` kernel computes, or that is for a library which has no such call here.
pub(super) fn expand(graph: &Graph, device: &Device, folder: &'static dyn ConstantFolder) -> Result<Graph> {
    let apart = |n: &Node| match is_callable(graph, n) {
        true => called(graph, n, device).is_none(),
        false => declares(graph, n, &Backend::Composed, device),
    };
    let composed: Vec<bool> = graph.nodes.iter().map(apart).collect();
    if !composed.contains(&true) {
        return Ok(graph.clone());
    }
    let mut out = Graph::new(graph.program.clone());
    let mut parts: HashMap<String, Graph> = HashMap::new();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes.len());
    for (node, composed) in graph.nodes.iter().zip(composed) {
        let operands: Vec<Option<Value>> =
            node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
        let start = out.nodes.len();
        let results = if composed {
            let key = key(graph, node);
            let part = match parts.remove(&key) {
                Some(part) => part,
                None => optimized(graph, node, device, folder)?,
            };
            let results = splice(&mut out, &part, &operands)?;
            parts.insert(key, part);
            results
        } else {
            copy(&mut out, node, &operands)?
        };
        for new in &mut out.nodes[start..] {
            if new.name.is_empty() {
                new.name.clone_from(&node.name);
            }
        }
        map.push(results);
    }
    let moved = |v: &Value| map[v.node.index()][v.output as usize];
    out.outputs = graph.outputs.iter().map(|(n, v)| (n.clone(), moved(v))).collect();
    out.inputs = graph.inputs.iter().map(|id| map[id.index()][0].node).collect();
    Ok(out)
}

/// What the optimised body depends on.
fn key(graph: &Graph, node: &Node) -> String {
    let types: Vec<_> = node.operands.iter().map(|v| v.map(|v| graph.ty(v))).collect();
    format!("{:?} {types:?}", node.kind)
}

/// The op alone, its operands as inputs, optimised.
pub(super) fn optimized(
    graph: &Graph,
    node: &Node,
    device: &Device,
    folder: &'static dyn ConstantFolder,
) -> Result<Graph> {
    let NodeKind::Op { op, attrs, term } = &node.kind else {
        return Err(Error::Internal("a kernel for something that is no op".into()));
    };
    let mut alone = Graph::new(graph.program.clone());
    let mut operands = Vec::with_capacity(node.operands.len());
    for (i, v) in node.operands.iter().enumerate() {
        operands.push(v.map(|v| alone.input(format!("operand{i}"), graph.ty(v).clone())));
    }
    for (i, v) in alone.op(*op, &operands, attrs.clone(), term.clone())?.into_iter().enumerate() {
        alone.output(format!("result{i}"), v);
    }
    let options = Options { device: device.clone(), composed: false, ..Options::default() };
    Ok(optimize(&alone, &options, folder)?.graph)
}

/// Puts a graph into another one, these values in the place of its inputs. Returns its outputs.
fn splice(out: &mut Graph, part: &Graph, operands: &[Option<Value>]) -> Result<Vec<Value>> {
    let given: Vec<Value> = operands.iter().flatten().copied().collect();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(part.nodes.len());
    for (i, node) in part.nodes.iter().enumerate() {
        let inner: Vec<Option<Value>> =
            node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
        let results = match part.inputs.iter().position(|n| n.index() == i) {
            Some(at) => given.get(at).map(|v| vec![*v]).ok_or_else(|| Error::Internal("an input too many".into()))?,
            None => copy(out, node, &inner)?,
        };
        map.push(results);
    }
    Ok(part.outputs.iter().map(|(_, v)| map[v.node.index()][v.output as usize]).collect())
}

/// One node over other operands.
fn copy(out: &mut Graph, node: &Node, operands: &[Option<Value>]) -> Result<Vec<Value>> {
    Ok(match &node.kind {
        NodeKind::Input { name } => vec![out.input(name.clone(), node.results[0].clone())],
        NodeKind::Const(t) => vec![out.constant(t.clone())],
        NodeKind::Scalar(s) => {
            let operands: Vec<Value> = operands.iter().flatten().copied().collect();
            vec![out.scalar(*s, &operands)?]
        }
        NodeKind::Op { op, attrs, term } => out.op(*op, operands, attrs.clone(), term.clone())?,
    })
}
