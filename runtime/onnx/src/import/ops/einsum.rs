//! Einstein sums, as matrix products of pairs of operands.
//!
//! Invariant: a label has the same size in all operands. An ellipsis broadcasts. A label that
//! occurs in one operand only, and not in the result, is summed before the product.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::{Dim, product};

use super::super::context::{Ctx, Fail, Out, int};
use hypatia_graph::Value;

/// An operand and the label of each of its axes.
struct Term {
    value: Value,
    labels: Vec<char>,
}

/// The label of axis `i` of an ellipsis, counted from the last axis.
fn ellipsis(i: usize) -> Option<char> {
    char::from_u32(0xE0FF - u32::try_from(i).ok().filter(|i| *i < 0xff)?)
}

/// The labels of an operand or result; `dots` axes stand for an ellipsis.
fn labels(text: &str, dots: usize) -> Option<Vec<char>> {
    let around: Vec<char> = (0..dots).rev().map(ellipsis).collect::<Option<_>>()?;
    match text.split_once("...") {
        Some((a, b)) => Some(a.chars().chain(around).chain(b.chars()).collect()),
        None => Some(text.chars().collect()),
    }
}

/// `ij,jk->ik`, `...ii->...i`
pub fn einsum(ctx: &mut Ctx) -> Out {
    let count = ctx.inputs.len();
    ctx.arity(1, count.max(1), 1)?;
    let equation: String = ctx.attrs.text_or("equation", "")?.split_whitespace().collect();
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (equation.as_str(), None),
    };
    let mismatch = || Fail::Model(format!("the equation `{equation}` does not match {count} operands"));
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != count {
        return Err(mismatch());
    }
    let mut operands = Vec::new();
    let mut most = 0;
    for (i, text) in texts.iter().enumerate() {
        let letters = text.replace("...", "");
        let dots = ctx.ty(i)?.shape.len().saturating_sub(letters.chars().count());
        if letters.chars().any(|c| !c.is_ascii_alphabetic()) || (dots > 0 && !text.contains("...")) {
            return Err(mismatch());
        }
        most = most.max(dots);
        operands.push(labels(text, dots).ok_or_else(mismatch)?);
    }
    let all: Vec<char> = operands.iter().flatten().copied().collect();
    let result = match right {
        Some(r) => labels(r, most).ok_or_else(mismatch)?,
        // Without an arrow the result is the ellipsis, then the labels that occur once, in
        // alphabetical order.
        None => {
            let mut once: Vec<char> =
                all.iter().copied().filter(|c| all.iter().filter(|d| *d == c).count() == 1 && c.is_ascii()).collect();
            once.sort_unstable();
            labels("...", most).ok_or_else(mismatch)?.into_iter().chain(once).collect()
        }
    };
    if result.iter().enumerate().any(|(i, c)| result[..i].contains(c) || !all.contains(c)) {
        return ctx
            .wrong(format!("the equation `{equation}` has a label on the right twice, or one that no operand has"));
    }
    let mut terms = Vec::new();
    for (i, labels) in operands.into_iter().enumerate() {
        let value = ctx.value(i)?;
        terms.push(diagonals(ctx, Term { value, labels })?);
    }
    stretch(ctx, &mut terms)?;
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

/// The operand with each label once: axes that share a label become their diagonal.
fn diagonals(ctx: &mut Ctx, mut t: Term) -> Out<Term> {
    while let Some(second) = (1..t.labels.len()).find(|i| t.labels[..*i].contains(&t.labels[*i])) {
        let label = t.labels[second];
        let first = t.labels.iter().position(|c| *c == label).unwrap_or(0);
        let shape = ctx.shape_of(t.value);
        let size = match (shape.get(first), shape.get(second)) {
            (Some(a), Some(b)) if a == b => a.as_const(),
            _ => return ctx.wrong(format!("`{label}` names axes of two sizes")),
        };
        let Some(size) = size.filter(|s| (0..1 << 31).contains(s)) else {
            return ctx.unsupported(format!("the diagonal of axes of dynamic size, `{label}`"));
        };
        // If the two axes are last and joined, the diagonal is every (size + 1)-th element.
        let others: Vec<usize> = (0..shape.len()).filter(|i| *i != first && *i != second).collect();
        let perm: Vec<i64> = others.iter().chain(&[first, second]).map(|i| *i as i64).collect();
        let kept: Vec<Dim> = others.iter().map(|i| shape[*i].clone()).collect();
        let x = ctx.transpose(t.value, &perm)?;
        let x = ctx.reshape(x, &[&kept[..], &[Dim::from(size * size)]].concat())?;
        let attrs = vec![int(kept.len() as i64), int(0), int(size * size), int(size + 1)];
        let value = ctx.op(BuiltinOp::Slice, &[x], attrs)?;
        let labels = others.iter().map(|i| t.labels[*i]).chain([label]).collect();
        t = Term { value, labels };
    }
    Ok(t)
}

/// Broadcasts the axes of an ellipsis that have size 1 in one operand and another size in others.
fn stretch(ctx: &mut Ctx, terms: &mut [Term]) -> Out<()> {
    let one = Dim::from(1);
    let mut wide: Vec<(char, Dim)> = Vec::new();
    for t in terms.iter() {
        let sized = t.labels.iter().copied().zip(ctx.shape_of(t.value));
        wide.extend(sized.filter(|(c, d)| !c.is_ascii() && *d != one));
    }
    for t in terms {
        let mut shape = ctx.shape_of(t.value);
        for (c, d) in t.labels.iter().zip(&mut shape) {
            if let Some((_, w)) = wide.iter().find(|(l, _)| l == c).filter(|_| *d == one) {
                *d = w.clone();
            }
        }
        t.value = ctx.expand(t.value, &shape)?;
    }
    Ok(())
}

fn sizes_agree(ctx: &Ctx, terms: &[Term], equation: &str) -> Out<()> {
    let mut seen: Vec<(char, Dim)> = Vec::new();
    for t in terms {
        let shape = ctx.shape_of(t.value);
        if shape.len() != t.labels.len() {
            return ctx.wrong(format!(
                "an operand has rank {}, but the equation `{equation}` needs {}",
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

/// Sums over all labels except those kept.
fn summed(ctx: &mut Ctx, t: Term, keep: &[char]) -> Out<Term> {
    let axes: Vec<i64> = (0..t.labels.len()).filter(|i| !keep.contains(&t.labels[*i])).map(|i| i as i64).collect();
    if axes.is_empty() {
        return Ok(t);
    }
    let value = ctx.reduce(BuiltinOp::Sum, t.value, &axes, false)?;
    Ok(Term { value, labels: t.labels.into_iter().filter(|c| keep.contains(c)).collect() })
}

/// Transposes the operand to this order of labels.
fn ordered(ctx: &mut Ctx, t: &Term, labels: &[char]) -> Out<Value> {
    let perm: Vec<i64> = labels.iter().filter_map(|c| t.labels.iter().position(|d| d == c)).map(|i| i as i64).collect();
    ctx.transpose(t.value, &perm)
}

/// The product of two operands, with the labels that are needed later.
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
