//! Einstein sums, as matrix products where two operands meet.
//!
//! Holds always: a label has one size in all operands (ONNX's own limit on broadcasting is kept); what
//! is summed away in one operand alone is summed before the product.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::{Dim, product};

use super::super::context::{Ctx, Out};
use crate::graph::Value;

/// An operand and the label of each of its axes.
struct Term {
    value: Value,
    labels: Vec<char>,
}

/// `ij,jk->ik`: letters only, each at most once in an operand.
pub(in super::super) fn einsum(ctx: &mut Ctx) -> Out {
    let count = ctx.inputs.len();
    ctx.arity(1, count.max(1), 1)?;
    let equation: String = ctx.attrs.text_or("equation", "")?.split_whitespace().collect();
    if equation.contains("...") {
        return ctx.unsupported("an ellipsis in the equation; name the axes");
    }
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (equation.as_str(), None),
    };
    let operands: Vec<Vec<char>> = left.split(',').map(|t| t.chars().collect()).collect();
    let all: Vec<char> = operands.iter().flatten().copied().collect();
    let mut result: Vec<char> = match right {
        Some(r) => r.chars().collect(),
        // Without an arrow: labels that stand once, in alphabetical order.
        None => all.iter().copied().filter(|c| all.iter().filter(|d| *d == c).count() == 1).collect(),
    };
    if right.is_none() {
        result.sort_unstable();
    }
    let once = |labels: &[char]| labels.iter().enumerate().all(|(i, c)| !labels[..i].contains(c));
    if operands.len() != count || all.iter().any(|c| !c.is_ascii_alphabetic()) || !once(&result) {
        return ctx.wrong(format!("the equation `{equation}` does not fit {count} operands"));
    }
    if result.iter().any(|c| !all.contains(c)) {
        return ctx.wrong(format!("the equation `{equation}` has a label on the right that no operand has"));
    }
    if !operands.iter().all(|o| once(o)) {
        return ctx.unsupported("a label twice in one operand (a diagonal)");
    }
    let mut terms = Vec::new();
    for (i, labels) in operands.into_iter().enumerate() {
        terms.push(Term { value: ctx.value(i)?, labels });
    }
    sizes_agree(ctx, &terms, &equation)?;
    let mut rest = terms.into_iter();
    let Some(mut sum) = rest.next() else { return ctx.wrong("it has no inputs") };
    while let Some(next) = rest.next() {
        let later: Vec<char> = rest.as_slice().iter().flat_map(|t| t.labels.clone()).chain(result.clone()).collect();
        sum = pair(ctx, sum, next, &later)?;
    }
    let sum = summed(ctx, sum, &result)?;
    Ok(vec![ordered(ctx, &sum, &result)?.into()])
}

fn sizes_agree(ctx: &Ctx, terms: &[Term], equation: &str) -> Out<()> {
    let mut seen: Vec<(char, Dim)> = Vec::new();
    for t in terms {
        let shape = ctx.shape_of(t.value);
        if shape.len() != t.labels.len() {
            return ctx.wrong(format!(
                "an operand has rank {}, the equation `{equation}` says {}",
                shape.len(),
                t.labels.len()
            ));
        }
        for (c, d) in t.labels.iter().zip(shape) {
            match seen.iter().find(|(s, _)| s == c) {
                Some((_, have)) if *have != d => return ctx.wrong(format!("`{c}` is {have} and {d}")),
                Some(_) => {}
                None => seen.push((*c, d)),
            }
        }
    }
    Ok(())
}

/// The sum over all labels but those kept.
fn summed(ctx: &mut Ctx, t: Term, keep: &[char]) -> Out<Term> {
    let axes: Vec<i64> = (0..t.labels.len()).filter(|i| !keep.contains(&t.labels[*i])).map(|i| i as i64).collect();
    if axes.is_empty() {
        return Ok(t);
    }
    let value = ctx.reduce(BuiltinOp::Sum, t.value, &axes, false)?;
    Ok(Term { value, labels: t.labels.into_iter().filter(|c| keep.contains(c)).collect() })
}

/// The operand with its axes in this order of its labels.
fn ordered(ctx: &mut Ctx, t: &Term, labels: &[char]) -> Out<Value> {
    let perm: Vec<i64> = labels.iter().filter_map(|c| t.labels.iter().position(|d| d == c)).map(|i| i as i64).collect();
    ctx.transpose(t.value, &perm)
}

/// The product of two, with the labels that are needed later.
fn pair(ctx: &mut Ctx, a: Term, b: Term, later: &[char]) -> Out<Term> {
    let with = |other: &[char]| [later, other].concat();
    let (a, b) = (summed(ctx, a, &with(&b.labels))?, b);
    let b = summed(ctx, b, &with(&a.labels))?;
    let pick =
        |t: &Term, f: &dyn Fn(char) -> bool| -> Vec<char> { t.labels.iter().copied().filter(|c| f(*c)).collect() };
    let batch = pick(&a, &|c| b.labels.contains(&c) && later.contains(&c));
    let inner = pick(&a, &|c| b.labels.contains(&c) && !later.contains(&c));
    let rows = pick(&a, &|c| !b.labels.contains(&c));
    let columns = pick(&b, &|c| !a.labels.contains(&c));
    let (left, right) = ([&batch[..], &rows, &inner].concat(), [&batch[..], &inner, &columns].concat());
    let (x, y) = (ordered(ctx, &a, &left)?, ordered(ctx, &b, &right)?);
    let (xs, ys) = (ctx.shape_of(x), ctx.shape_of(y));
    let (n, m) = (batch.len(), rows.len());
    let sizes = |part: &[Dim]| product(part);
    let (Some(rows_size), Some(inner_size)) = (sizes(&xs[n..n + m]), sizes(&xs[n + m..])) else {
        return ctx.wrong("the shape is too large");
    };
    let Some(columns_size) = sizes(&ys[n + inner.len()..]) else { return ctx.wrong("the shape is too large") };
    let x = ctx.reshape(x, &[&xs[..n], &[rows_size, inner_size.clone()]].concat())?;
    let y = ctx.reshape(y, &[&ys[..n], &[inner_size, columns_size]].concat())?;
    let z = ctx.op(BuiltinOp::Matmul, &[x, y], vec![])?;
    let shape = [&xs[..n + m], &ys[n + inner.len()..]].concat();
    Ok(Term { value: ctx.reshape(z, &shape)?, labels: [batch, rows, columns].concat() })
}
