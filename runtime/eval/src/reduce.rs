//! Reductions. Floats accumulate in the evaluator's kind of numbers and are rounded once. A sum
//! over nothing is 0, a product 1, a mean NaN, the largest of nothing the smallest value of the
//! type.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::Reduction;

use super::number::Number;
use super::ops::Walk;
use super::value::{RefTensor, Val, convert};
use super::views::around;
use super::{Mode, scalars};
use hypatia_graph::prim::Cumsum;
use hypatia_tensor::error::Result;

/// The smallest and the largest value of a type.
fn extremes<R: Number>(dtype: DType) -> (Val<R>, Val<R>) {
    match dtype {
        DType::I64 => (Val::I(i64::MIN), Val::I(i64::MAX)),
        DType::I32 => (Val::I(i32::MIN as i64), Val::I(i32::MAX as i64)),
        DType::I8 => (Val::I(i8::MIN as i64), Val::I(i8::MAX as i64)),
        DType::U8 => (Val::I(0), Val::I(255)),
        DType::Bool => (Val::B(false), Val::B(true)),
        _ => (Val::F(R::of(f64::NEG_INFINITY)), Val::F(R::of(f64::INFINITY))),
    }
}

fn start<R: Number>(kind: Reduction, dtype: DType) -> Val<R> {
    let number = |v: i64| match dtype {
        DType::Bool => Val::B(v != 0),
        d if d.is_int() => Val::I(v),
        _ => Val::F(R::of_int(v)),
    };
    match kind {
        Reduction::Sum | Reduction::Mean => number(0),
        Reduction::Prod => number(1),
        Reduction::Max => extremes(dtype).0,
        Reduction::Min => extremes(dtype).1,
    }
}

fn join<R: Number>(kind: Reduction, dtype: DType, a: Val<R>, b: Val<R>) -> Val<R> {
    let f = match kind {
        Reduction::Sum | Reduction::Mean => BuiltinScalar::Add,
        Reduction::Prod => BuiltinScalar::Mul,
        Reduction::Max => BuiltinScalar::Max,
        Reduction::Min => BuiltinScalar::Min,
    };
    match (a, b) {
        (Val::F(x), _) => Val::F(R::builtin(f, x, b.f())),
        // Truth values: a sum or maximum is `or`, a product or minimum `and`.
        (Val::B(x), _) if matches!(kind, Reduction::Prod | Reduction::Min) => Val::B(x && b.b()),
        (Val::B(x), _) => Val::B(x || b.b()),
        (Val::I(x), _) => Val::I(scalars::int(f, dtype, x, b.i())),
    }
}

/// What a reduction holds after some elements.
fn partial<R: Number>(v: Val<R>, dtype: DType, mode: Mode) -> Val<R> {
    match v {
        Val::F(x) => Val::F(mode.partial(dtype, x)),
        v => v,
    }
}

/// Reduction over `axes`; `shape` is the result's, with or without the reduced axes.
pub(super) fn reduce<R: Number>(
    x: &RefTensor<R>,
    kind: Reduction,
    axes: &[usize],
    shape: &[usize],
    mode: Mode,
) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(x.dtype, shape)?;
    let mut sums = vec![start(kind, x.dtype); out.len()];
    // Where each axis of x moves in the result: not at all if it is reduced.
    let mut strides = vec![0; x.shape.len()];
    let mut step = 1;
    for (axis, size) in x.shape.iter().enumerate().rev() {
        if !axes.contains(&axis) {
            strides[axis] = step;
            step *= size;
        }
    }
    let mut walk = Walk::new(&x.shape, vec![strides]);
    for i in 0..x.len() {
        let at = walk.offsets[0];
        sums[at] = partial(join(kind, x.dtype, sums[at], x.at(i)), x.dtype, mode);
        walk.step();
    }
    let count: usize = axes.iter().map(|a| x.shape[*a]).product();
    for (i, sum) in sums.into_iter().enumerate() {
        let v = match kind {
            Reduction::Mean => Val::F(sum.f() / R::of_int(count as i64)),
            _ => sum,
        };
        out.set(i, convert(v, x.dtype, mode.rounds()));
    }
    Ok(out)
}

/// Sums of all elements up to each. Those of floats accumulate like those of `reduce`, and each is
/// rounded once.
pub(super) fn cumsum<R: Number>(x: &RefTensor<R>, how: Cumsum, mode: Mode) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(x.dtype, &x.shape)?;
    let (outer, size, inner) = around(&x.shape, how.axis);
    for line in 0..outer * inner {
        let mut sum = start(Reduction::Sum, x.dtype);
        for i in 0..size {
            let i = if how.reverse { size - 1 - i } else { i };
            let at = (line / inner * size + i) * inner + line % inner;
            let next = partial(join(Reduction::Sum, x.dtype, sum, x.at(at)), x.dtype, mode);
            out.set(at, convert(if how.exclusive { sum } else { next }, x.dtype, mode.rounds()));
            sum = next;
        }
    }
    Ok(out)
}

/// Position of the largest element along an axis; NaN is largest. Along an axis of size 0 it is 0.
pub(super) fn argmax<R: Number>(x: &RefTensor<R>, axis: usize, last: bool, shape: &[usize]) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(DType::I64, shape)?;
    let (outer, size, inner) = around(&x.shape, axis);
    for o in 0..outer {
        for r in 0..inner {
            let at = |i: usize| x.at((o * size + i) * inner + r);
            let mut best = 0;
            for i in 1..size {
                let (a, b) = (at(best), at(i));
                let (greater, equal) = match (a, b) {
                    (Val::F(x), Val::F(y)) => {
                        (y > x || (y.is_nan() && !x.is_nan()), y == x || (y.is_nan() && x.is_nan()))
                    }
                    _ => (b.i() > a.i(), a.i() == b.i()),
                };
                if greater || (last && equal) {
                    best = i;
                }
            }
            out.set(o * inner + r, Val::I(best as i64));
        }
    }
    Ok(out)
}

/// Where the elements along an axis stand in order; equal ones as they stand.
pub(super) fn argsort<R: Number>(x: &RefTensor<R>, axis: usize, descending: bool) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(DType::I64, &x.shape)?;
    let (outer, size, inner) = around(&x.shape, axis);
    for o in 0..outer {
        for r in 0..inner {
            let at = |i: usize| (o * size + i) * inner + r;
            let mut order: Vec<usize> = (0..size).collect();
            order.sort_by(|a, b| {
                let order = scalars::ascending(x.at(at(*a)), x.at(at(*b)));
                if descending { order.reverse() } else { order }
            });
            for (i, from) in order.into_iter().enumerate() {
                out.set(at(i), Val::I(from as i64));
            }
        }
    }
    Ok(out)
}
