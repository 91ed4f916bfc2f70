//! Matrix products: unrounded accumulators for floats, wrapping i64 for integers.

use hypatia_dsl::dtype::DType;

use super::Mode;
use super::number::Number;
use super::ops::Walk;
use super::value::{Data, RefTensor, wrap};
use hypatia_graph::prim::elements;
use hypatia_tensor::error::{Error, Result};

fn product<T: Copy>((m, k, n): (usize, usize, usize), a: &[T], b: &[T], out: &mut [T], fma: impl Fn(T, T, T) -> T) {
    for i in 0..m {
        let row = &mut out[i * n..(i + 1) * n];
        for l in 0..k {
            let x = a[i * k + l];
            for (o, y) in row.iter_mut().zip(&b[l * n..(l + 1) * n]) {
                *o = fma(*o, x, *y);
            }
        }
    }
}

/// The product, its elements not rounded to their type; the leading axes broadcast to those of
/// `shape`.
pub(super) fn matmul<R: Number>(
    a: &RefTensor<R>,
    b: &RefTensor<R>,
    dtype: DType,
    shape: &[usize],
    mode: Mode,
) -> Result<RefTensor<R>> {
    let split = |s: &[usize]| match s {
        [.., r, c] => Ok((*r, *c, s.len() - 2)),
        _ => Err(Error::Internal(format!("matmul of shape {s:?}"))),
    };
    let ((m, k, a_lead), (k2, n, b_lead), (_, _, lead)) = (split(&a.shape)?, split(&b.shape)?, split(shape)?);
    if k != k2 {
        return Err(Error::Internal(format!("matmul of {:?} and {:?}", a.shape, b.shape)));
    }
    // The leading axes alone, as shapes that broadcast: their offsets count matrices.
    let mut walk = Walk::broadcast(&shape[..lead], &[&a.shape[..a_lead], &b.shape[..b_lead]])?;
    let mut out = RefTensor::zeros(dtype, shape)?;
    for batch in 0..elements(&shape[..lead])? {
        let (ra, rb) = (walk.offsets[0] * m * k, walk.offsets[1] * k * n);
        let (ra, rb, ro) = (ra..ra + m * k, rb..rb + k * n, batch * m * n..(batch + 1) * m * n);
        match (&a.data, &b.data, &mut out.data) {
            (Data::F(a), Data::F(b), Data::F(o)) => {
                product((m, k, n), &a[ra], &b[rb], &mut o[ro], |s, x, y| mode.partial(dtype, s + x * y));
            }
            (Data::I(a), Data::I(b), Data::I(o)) => {
                let add = |s: i64, x: i64, y: i64| wrap(dtype, s.wrapping_add(x.wrapping_mul(y)));
                product((m, k, n), &a[ra], &b[rb], &mut o[ro], add);
            }
            _ => return Err(Error::Internal(format!("matmul of {} and {}", a.dtype, b.dtype))),
        }
        walk.step();
    }
    Ok(out)
}
