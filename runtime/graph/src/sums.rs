//! Reduces axes that do not lie side by side in two steps: first the last ones, then the others.
//!
//! In: a graph. Out: the same function, up to the order in which sums are added. A sum over axes 0,
//! 2 and 3 of four, as the gradient of a scale of channels needs, has no rows that lie side by side
//! in memory. Over axes 2 and 3 it has, so a region of rows computes it beside the work in front of
//! it and other such sums ([`crate::cluster_rows`]); what is left is small. Invariant: a result is
//! rounded to its type once.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::Dim;

use super::kinds::builtin;
use super::replace::copy;
use super::{Graph, Node, NodeKind, Value};
use hypatia_tensor::error::Result;

/// The fewest elements of a row that are reduced first.
const SHORTEST: i64 = 16;

/// The graph whose reductions over scattered axes are two.
///
/// # Errors
/// If a node cannot be built.
pub fn with_reductions_in_turn(graph: &Graph) -> Result<Graph> {
    let mut out = Graph::new(graph.program.clone());
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let moved = |v: &Value| map[v.node.index()][v.output as usize];
        let operands: Vec<Option<Value>> = node.operands.iter().map(|v| v.as_ref().map(moved)).collect();
        let start = out.nodes.len();
        let made = match (scattered(graph, node), operands.as_slice()) {
            (Some(axes), [Some(of)]) => vec![in_turn(&mut out, node, *of, &axes)?],
            _ => copy(&mut out, node, &operands)?,
        };
        out.nodes[start..].iter_mut().for_each(|new| new.name.clone_from(&node.name));
        map.push(made);
    }
    out.outputs = graph.outputs.iter().map(|(n, v)| (n.clone(), map[v.node.index()][v.output as usize])).collect();
    out.inputs = graph.inputs.iter().map(|id| map[id.index()][0].node).collect();
    Ok(out)
}

/// The axes that a node reduces: the last ones, and the others, which lie apart from them.
struct Scattered {
    op: BuiltinOp,
    last: Vec<usize>,
    others: Vec<usize>,
}

/// The axes of a reduction whose last ones make up a row and whose others lie in front of axes that
/// are kept. Axes of one element lie anywhere.
fn scattered(graph: &Graph, node: &Node) -> Option<Scattered> {
    let op = builtin(graph, node)?;
    let NodeKind::Op { attrs, .. } = &node.kind else { return None };
    let of = graph.ty(node.operands.first().copied().flatten()?);
    let (true, Some(AttrValue::List(axes))) = (is_split(op) && of.dtype.is_float(), attrs.first()) else {
        return None;
    };
    let axis = |a: &AttrValue| match a {
        AttrValue::Dim(axis) => axis.as_const().and_then(|a| usize::try_from(a).ok()),
        _ => None,
    };
    let reduced = axes.iter().map(axis).collect::<Option<Vec<usize>>>()?;
    let one = |a: &usize| of.shape[*a].as_const() == Some(1);
    let kept = (0..of.shape.len()).rev().find(|a| !reduced.contains(a) && !one(a))?;
    let (last, others): (Vec<usize>, Vec<usize>) = reduced.into_iter().partition(|a| *a > kept);
    let size = last.iter().try_fold(1i64, |n, a| n.checked_mul(of.shape[*a].as_const()?));
    let long = size.is_none_or(|n| n >= SHORTEST);
    (long && others.iter().any(|a| !one(a))).then_some(Scattered { op, last, others })
}

/// Whether a reduction of reductions is the reduction of all. (Means are of equally many elements.)
fn is_split(op: BuiltinOp) -> bool {
    matches!(op, BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Amax | BuiltinOp::Amin)
}

/// Builds a reduction as two.
fn in_turn(out: &mut Graph, node: &Node, of: Value, axes: &Scattered) -> Result<Value> {
    let result = node.results[0].clone();
    let narrow = matches!(result.dtype, DType::F16 | DType::BF16);
    let mut made = if narrow { cast(out, of, DType::F32)? } else { of };
    for step in [&axes.last, &axes.others] {
        let list = step.iter().map(|a| AttrValue::Dim(Dim::from(*a as i64))).collect();
        made = out.builtin(axes.op, &[made], vec![AttrValue::List(list), AttrValue::Bool(true)])?[0];
    }
    if narrow {
        made = cast(out, made, result.dtype)?;
    }
    if out.ty(made).shape != result.shape {
        let shape = AttrValue::List(result.shape.into_iter().map(AttrValue::Dim).collect());
        made = out.builtin(BuiltinOp::Reshape, &[made], vec![shape])?[0];
    }
    Ok(made)
}

fn cast(out: &mut Graph, v: Value, to: DType) -> Result<Value> {
    Ok(out.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)])?[0])
}
