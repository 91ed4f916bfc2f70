//! What each element of a graph's results is made of.
//!
//! In: a graph of known sizes. Out: for each value its shape and a number for each of its elements;
//! elements with equal numbers are the same function of the same inputs, whatever way they were
//! moved. Invariant: numbers are equal only if that is so for all inputs (as real numbers: what is
//! multiplied by 0 is 0), hashes apart.
//!
//! So the right sides of a rule and of its mutant are told to be the same, though one merges axes
//! in another order, or fills more of what is cut off again.

use std::hash::{DefaultHasher, Hash, Hasher};

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, OpId, ScalarBody};
use hypatia_dsl::typing::TensorType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Node, NodeId, NodeKind, Value, builtin};
use hypatia_tensor::tensor::Tensor;

/// A value: its sizes, and a number for each element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Elements {
    sizes: Vec<usize>,
    made: Vec<u64>,
}

/// Values with more elements are not looked at.
const MOST: usize = 1 << 14;

/// The values of a graph in the order of their nodes, constants and inputs apart, with the operands
/// of convolutions as they are padded, and its outputs; `None` if a size is not known or large.
pub(super) fn elements(graph: &Graph) -> Option<(Vec<Elements>, Vec<Elements>)> {
    let mut found: Vec<Vec<Elements>> = Vec::with_capacity(graph.nodes.len());
    let mut on_the_way: Vec<Elements> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let operands: Vec<&Elements> =
            node.operands.iter().flatten().map(|v| &found[v.node.index()][v.output as usize]).collect();
        let results = graph.results(NodeId(i as u32));
        let sizes = results.iter().map(|v| sizes(graph, *v)).collect::<Option<Vec<_>>>()?;
        if sizes.iter().any(|s| s.iter().product::<usize>() > MOST) {
            return None;
        }
        if let (NodeKind::Op { attrs, .. }, Some(BuiltinOp::Conv)) = (&node.kind, builtin(graph, node)) {
            on_the_way.push(padded(operands.first()?, attrs)?);
        }
        let made = of_node(graph, node, &operands, sizes)?;
        if !matches!(node.kind, NodeKind::Const(_) | NodeKind::Input { .. }) {
            on_the_way.extend_from_slice(&made);
        }
        found.push(made);
    }
    let outputs = graph.outputs.iter().map(|(_, v)| found[v.node.index()][v.output as usize].clone()).collect();
    Some((on_the_way, outputs))
}

fn sizes(graph: &Graph, v: Value) -> Option<Vec<usize>> {
    graph.ty(v).shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect()
}

fn number(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn constant(v: f64) -> u64 {
    // -0 and 0 are one number.
    number(&("number", (v + 0.0).to_bits()))
}

fn of_node(graph: &Graph, node: &Node, operands: &[&Elements], sizes: Vec<Vec<usize>>) -> Option<Vec<Elements>> {
    let len = |sizes: &[usize]| sizes.iter().product::<usize>();
    let one = |sizes: &[usize], made: Vec<u64>| Some(vec![Elements { sizes: sizes.to_vec(), made }]);
    match (&node.kind, sizes.as_slice()) {
        (NodeKind::Const(t), [sizes]) => one(sizes, t.to_f64().into_iter().map(constant).collect()),
        (NodeKind::Input { name }, [sizes]) => one(sizes, (0..len(sizes)).map(|i| number(&(name, i))).collect()),
        (NodeKind::Scalar(s), [sizes]) => {
            let ScalarBody::Builtin(f) = graph.program.scalar(*s).body else { return None };
            let seen: Option<Vec<Vec<u64>>> = operands.iter().map(|o| broadcast(o, sizes)).collect();
            let seen = seen?;
            let each = (0..len(sizes)).map(|i| applied(f, seen.iter().map(|s| s[i]).collect()));
            one(sizes, each.collect())
        }
        (NodeKind::Op { op, attrs, .. }, [sizes]) => {
            let made = match builtin(graph, node) {
                Some(BuiltinOp::Matmul) => multiplied(operands, sizes),
                Some(BuiltinOp::Sum) => reduced(operands.first()?, attrs, len(sizes), &sum),
                Some(BuiltinOp::Mean) => reduced(operands.first()?, attrs, len(sizes), &mean),
                Some(BuiltinOp::Cumsum) => summed_up(operands.first()?, attrs),
                Some(BuiltinOp::Conv) => convolved(operands, attrs, sizes),
                Some(BuiltinOp::Cast) => Some(converted(operands.first()?, node.results.first()?.dtype)),
                Some(op @ (BuiltinOp::Amax | BuiltinOp::Amin)) => {
                    reduced(operands.first()?, attrs, len(sizes), &|terms| extreme(op, terms))
                }
                _ => moved(graph, node, *op, attrs, operands),
            };
            match made {
                Some(made) if made.len() == len(sizes) => one(sizes, made),
                _ => one(sizes, whole(node, operands, 0, len(sizes))),
            }
        }
        (_, all) => {
            let each = all.iter().enumerate();
            let value = |(i, sizes): (usize, &Vec<usize>)| Elements {
                sizes: sizes.clone(),
                made: whole(node, operands, i, len(sizes)),
            };
            Some(each.map(value).collect())
        }
    }
}

/// Elements that depend on all operands.
fn whole(node: &Node, operands: &[&Elements], output: usize, len: usize) -> Vec<u64> {
    let kind = match &node.kind {
        NodeKind::Op { op, attrs, term } => format!("{op:?} {attrs:?} {term:?}"),
        kind => format!("{kind:?}"),
    };
    let of = number(&(kind, operands, output));
    (0..len).map(|i| number(&(of, i))).collect()
}

/// A function of elements.
fn applied(f: BuiltinScalar, mut operands: Vec<u64>) -> u64 {
    let zero = constant(0.0);
    match (f, operands.as_slice()) {
        (BuiltinScalar::Mul, [a, b]) if *a == zero || *b == zero => return zero,
        (BuiltinScalar::Add, [a, b]) if *b == zero => return *a,
        (BuiltinScalar::Add, [a, b]) if *a == zero => return *b,
        _ => {}
    }
    if f.commutes() {
        operands.sort_unstable();
    }
    number(&(f, operands))
}

/// Elements in another type. 0 is 0 in each.
fn converted(from: &Elements, to: DType) -> Vec<u64> {
    let zero = constant(0.0);
    from.made.iter().map(|v| if *v == zero { zero } else { number(&("cast", to, v)) }).collect()
}

/// The sum of elements; their order says nothing.
fn sum(mut terms: Vec<u64>) -> u64 {
    let zero = constant(0.0);
    terms.retain(|t| *t != zero);
    match terms.as_slice() {
        [] => zero,
        [one] => *one,
        _ => {
            terms.sort_unstable();
            number(&("sum", terms))
        }
    }
}

fn mean(terms: Vec<u64>) -> u64 {
    let count = constant(terms.len() as f64);
    applied(BuiltinScalar::Div, vec![sum(terms), count])
}

/// The largest or the smallest of elements; neither their order nor a second one says anything.
fn extreme(op: BuiltinOp, mut terms: Vec<u64>) -> u64 {
    terms.sort_unstable();
    terms.dedup();
    match terms.as_slice() {
        [one] => *one,
        _ => number(&(op, terms)),
    }
}

/// The elements as a larger shape sees them.
fn broadcast(from: &Elements, sizes: &[usize]) -> Option<Vec<u64>> {
    let missing = sizes.len().checked_sub(from.sizes.len())?;
    let mut strides = vec![0; sizes.len()];
    let mut step = 1;
    for (axis, size) in from.sizes.iter().enumerate().rev() {
        if *size != 1 {
            strides[missing + axis] = step;
        }
        step *= size;
    }
    let len = sizes.iter().product::<usize>();
    let place = |i: usize| {
        let (mut rest, mut at) = (i, 0);
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            at += rest % size * stride;
            rest /= size;
        }
        at
    };
    (0..len).map(|i| from.made.get(place(i)).copied()).collect()
}

/// A matrix product.
fn multiplied(operands: &[&Elements], sizes: &[usize]) -> Option<Vec<u64>> {
    let ([a, b], [lead @ .., m, n]) = (operands, sizes) else { return None };
    let k = *a.sizes.last()?;
    let wide = |e: &Elements, rows: usize, columns: usize| broadcast(e, &[lead, &[rows, columns]].concat());
    let (a, b) = (wide(a, *m, k)?, wide(b, k, *n)?);
    let element = |i: usize| {
        let (batch, row, column) = (i / (m * n), i / n % m, i % n);
        let term =
            |l: usize| applied(BuiltinScalar::Mul, vec![a[(batch * m + row) * k + l], b[(batch * k + l) * n + column]]);
        sum((0..k).map(term).collect())
    };
    (sizes.iter().product::<usize>() * k <= 64 * MOST).then(|| (0..sizes.iter().product()).map(element).collect())
}

/// The sums of elements and of those in front of them, or behind, along an axis.
fn summed_up(from: &Elements, attrs: &[AttrValue]) -> Option<Vec<u64>> {
    let axis = usize::try_from(number_of(attrs.first()?)?.rem_euclid(from.sizes.len().max(1) as i64)).ok()?;
    let (size, inner) = (*from.sizes.get(axis)?, from.sizes[axis + 1..].iter().product::<usize>());
    let flag = |i: usize| match attrs.get(i) {
        Some(AttrValue::Bool(b)) => Some(*b),
        Some(v) => number_of(v).map(|n| n != 0),
        None => Some(false),
    };
    let (exclusive, reverse) = (flag(1)?, flag(2)?);
    let element = |i: usize| {
        let at = i / inner % size;
        let counts = |j: &usize| if reverse { *j > at } else { *j < at } || (*j == at && !exclusive);
        sum((0..size).filter(counts).map(|j| from.made[i + j * inner - at * inner]).collect())
    };
    Some((0..from.made.len()).map(element).collect())
}

/// The sizes of what a convolution pads. Its elements say no more.
fn padded(x: &Elements, attrs: &[AttrValue]) -> Option<Elements> {
    let mut sizes = x.sizes.clone();
    for list in attrs.get(1..3)? {
        let AttrValue::List(l) = list else { return None };
        for (size, n) in sizes.iter_mut().skip(2).zip(l) {
            *size = usize::try_from(*size as i64 + number_of(n)?).ok()?;
        }
    }
    Some(Elements { sizes, made: Vec::new() })
}

/// A convolution. Padding is zeros.
fn convolved(operands: &[&Elements], attrs: &[AttrValue], sizes: &[usize]) -> Option<Vec<u64>> {
    let ([x, w], [strides, before, _, dilations, groups]) = (operands, attrs) else { return None };
    let list = |v: &AttrValue| match v {
        AttrValue::List(l) => l.iter().map(number_of).collect::<Option<Vec<i64>>>(),
        _ => None,
    };
    let (strides, before, dilations) = (list(strides)?, list(before)?, list(dilations)?);
    let groups = usize::try_from(number_of(groups)?).ok().filter(|g| *g > 0)?;
    let ([_, c, d @ ..], [o, i, k @ ..], [_, _, out @ ..]) = (&x.sizes[..], &w.sizes[..], sizes) else { return None };
    let taps: usize = k.iter().product();
    if sizes.iter().product::<usize>() * i * taps > 64 * MOST || d.len() != k.len() {
        return None;
    }
    let places: usize = out.iter().product();
    let term = |(n, f, place): (usize, usize, usize), channel: usize, tap: usize| {
        let (mut at, mut step, mut place, mut rest) = (0, 1, place, tap);
        for axis in (0..k.len()).rev() {
            let (window, own) = ((place % out[axis]) as i64, (rest % k[axis]) as i64);
            let row = usize::try_from(window * strides[axis] + own * dilations[axis] - before[axis]).ok();
            at += row.filter(|r| *r < d[axis])? * step;
            (step, place, rest) = (step * d[axis], place / out[axis], rest / k[axis]);
        }
        let from = f / (o / groups).max(1) * i + channel;
        let [x, w] = [x.made.get((n * c + from) * step + at)?, w.made.get((f * i + channel) * taps + tap)?];
        Some(applied(BuiltinScalar::Mul, vec![*x, *w]))
    };
    let element = |e: usize| {
        let at = (e / places / o, e / places % o, e % places);
        sum((0..*i).flat_map(|channel| (0..taps).filter_map(move |tap| term(at, channel, tap))).collect())
    };
    Some((0..sizes.iter().product()).map(element).collect())
}

fn number_of(v: &AttrValue) -> Option<i64> {
    if let AttrValue::Dim(d) = v { d.as_const() } else { None }
}

/// A sum, or the like, over the axes that its first attribute lists.
fn reduced(from: &Elements, attrs: &[AttrValue], len: usize, of: &dyn Fn(Vec<u64>) -> u64) -> Option<Vec<u64>> {
    let Some(AttrValue::List(axes)) = attrs.first() else { return None };
    let axis = |a: &AttrValue| match a {
        AttrValue::Dim(d) => usize::try_from(d.as_const()?.rem_euclid(from.sizes.len().max(1) as i64)).ok(),
        _ => None,
    };
    let axes: Vec<usize> = axes.iter().map(axis).collect::<Option<_>>()?;
    let mut terms: Vec<Vec<u64>> = vec![Vec::new(); len];
    for (i, made) in from.made.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for (axis, size) in from.sizes.iter().enumerate().rev() {
            if !axes.contains(&axis) {
                at += rest % size * step;
                step *= size;
            }
            rest /= size;
        }
        terms.get_mut(at)?.push(*made);
    }
    Some(terms.into_iter().map(of).collect())
}

/// An op that only moves elements, run over their places.
fn moved(graph: &Graph, node: &Node, op: OpId, attrs: &[AttrValue], operands: &[&Elements]) -> Option<Vec<u64>> {
    use BuiltinOp::{Concat, Expand, Pad, Reshape, Slice, Transpose, Windows};
    if !matches!(builtin(graph, node), Some(Concat | Expand | Pad | Reshape | Slice | Transpose | Windows)) {
        return None;
    }
    let mut places = Graph::new(graph.program.clone());
    let (mut values, mut inputs, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (i, operand) in operands.iter().enumerate() {
        let shape: Vec<_> = operand.sizes.iter().map(|n| (*n as i64).into()).collect();
        values.push(Some(places.input(format!("o{i}"), TensorType { dtype: DType::F64, shape })));
        let own: Vec<f64> = (all.len()..all.len() + operand.made.len()).map(|p| p as f64).collect();
        inputs.push((format!("o{i}"), Tensor::from_f64(DType::F64, &operand.sizes, &own)?));
        all.extend_from_slice(&operand.made);
    }
    let result = places.op(op, &values, attrs.to_vec(), None).ok()?;
    places.output("y", *result.first()?);
    let found = evaluate(&places, &inputs, Mode::Exact).ok()?;
    found.first()?.to_f64().into_iter().map(|p| all.get(p as usize).copied()).collect()
}
