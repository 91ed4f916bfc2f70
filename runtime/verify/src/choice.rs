//! Indices at ties: which elements does an index choose among?
//!
//! In: a graph one of whose outputs is an index, as `argmax` and `argsort` give it. Out: whether
//! two indices name elements of equal values. Invariant: an index that is out of range, or that
//! stands twice where the left side has different ones, is never excused.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, OpBody};
use hypatia_eval::{Mode, RefTensor, Val, evaluate};
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, Node, NodeKind, Value};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::scatter::evaluate_exactly;

/// The values among which the indices of an output choose.
pub(super) struct Choice {
    values: RefTensor,
    axis: usize,
    /// The output lacks that axis.
    dropped: bool,
}

impl Choice {
    /// What the output chooses among; `None` if it is no index, or one that is computed with.
    pub(super) fn of(
        graph: &Graph,
        numbers: &Numbers,
        inputs: &[(String, Tensor)],
        output: usize,
        mode: Mode,
    ) -> Result<Option<Choice>> {
        let (mut graph, mut more) = graph.inlined_with_numbers()?;
        more.extend(numbers);
        let Some((values, axis, dropped)) = source(&graph, graph.outputs[output].1) else { return Ok(None) };
        graph.outputs = vec![("values".into(), values)];
        let graph = graph.pruned();
        let found = match mode {
            Mode::Exact => evaluate_exactly(&graph, &more, inputs)?,
            Mode::Rounded | Mode::Accumulated => evaluate(&graph, inputs, mode)?,
        };
        Ok(found.into_iter().next().map(|values| Choice { values, axis, dropped }))
    }

    /// Whether both indices at a place of the output name elements of equal values.
    pub(super) fn ties(&mut self, place: usize, left: &RefTensor, right: &RefTensor) -> bool {
        let same = |l: f64, r: f64| l == r || (l.is_nan() && r.is_nan());
        let (Some(l), Some(r)) = (self.value(place, left), self.value(place, right)) else { return false };
        same(l, r) && (self.dropped || !self.repeats(place, right) || self.repeats(place, left))
    }

    /// The value that the index at a place names.
    fn value(&self, place: usize, indices: &RefTensor) -> Option<f64> {
        let Val::I(index) = indices.at(place) else { return None };
        let index = usize::try_from(index).ok().filter(|i| *i < self.values.shape[self.axis])?;
        let mut at = coordinates(place, &indices.shape);
        match self.dropped {
            true => at.insert(self.axis, index),
            false => at[self.axis] = index,
        }
        let inside = at.len() == self.values.shape.len() && at.iter().zip(&self.values.shape).all(|(i, n)| i < n);
        let flat = at.iter().zip(&self.values.shape).fold(0, |sum, (i, n)| sum * n + i);
        inside.then(|| self.values.at(flat).f())
    }

    /// Whether the index at a place stands elsewhere along the axis too.
    fn repeats(&self, place: usize, indices: &RefTensor) -> bool {
        let stride: usize = indices.shape[self.axis + 1..].iter().product();
        let here = place / stride % indices.shape[self.axis];
        let first = place - here * stride;
        (0..indices.shape[self.axis]).any(|i| i != here && indices.at(first + i * stride) == indices.at(place))
    }
}

fn coordinates(place: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = place;
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|n| {
            let i = rest % n;
            rest /= n;
            i
        })
        .collect();
    at.reverse();
    at
}

/// The values that an index chooses among, the axis, and whether the index lacks it. Indices may be
/// cast, and cut off along that axis.
fn source(graph: &Graph, index: Value) -> Option<(Value, usize, bool)> {
    let (mut value, mut cut) = (index, Vec::new());
    loop {
        let node = graph.node(value.node);
        let operand = (*node.operands.first()?)?;
        match builtin(graph, node)? {
            (BuiltinOp::Cast, _) if graph.ty(value).dtype.is_int() => {}
            (BuiltinOp::Slice | BuiltinOp::Split, attrs) => cut.push(axis(attrs.first()?)?),
            (BuiltinOp::Argmax, attrs) => {
                let keeps = attrs.get(1)? == &AttrValue::Bool(true);
                return cut.is_empty().then_some((operand, axis(attrs.first()?)?, !keeps));
            }
            (BuiltinOp::Argsort, attrs) => {
                let along = axis(attrs.first()?)?;
                // A part that does not begin at the first index still holds indices along the axis.
                return cut.iter().all(|c| *c == along).then_some((operand, along, false));
            }
            _ => return None,
        }
        value = operand;
    }
}

fn builtin<'g>(graph: &Graph, node: &'g Node) -> Option<(BuiltinOp, &'g [AttrValue])> {
    match &node.kind {
        NodeKind::Op { op, attrs, .. } => match graph.program.op(*op).body {
            OpBody::Builtin(b) => Some((b, attrs)),
            OpBody::Defined(_) => None,
        },
        _ => None,
    }
}

/// An axis; attributes of a node count from the front.
fn axis(value: &AttrValue) -> Option<usize> {
    match value {
        AttrValue::Dim(d) => usize::try_from(d.as_const()?).ok(),
        _ => None,
    }
}
