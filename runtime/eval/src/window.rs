//! Convolutions and windows.
//!
//! In: an operand, the window of each spatial axis, the shape of the result. Out: the result; sums
//! are not rounded. Invariant: what lies in the padding counts as 0.

use hypatia_dsl::dtype::DType;

use super::Mode;
use super::number::Number;
use super::value::{Data, RefTensor};
use hypatia_graph::prim::{Window, elements};
use hypatia_tensor::error::{Error, Result};

/// The indices after position `i` of a shape.
fn indices(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut out = vec![0; shape.len()];
    for (at, size) in out.iter_mut().zip(shape).rev() {
        (*at, i) = (i % size, i / size);
    }
    out
}

/// The position in a shape of element `tap` of window `place`; `None` among the zeros around it.
fn position(shape: &[usize], axes: &[Window], place: &[usize], tap: &[usize]) -> Option<usize> {
    let mut at = 0;
    for (i, axis) in axes.iter().enumerate() {
        let index = (place[i] * axis.stride + tap[i] * axis.dilation).checked_sub(axis.before)?;
        at = at * shape[i] + Some(index).filter(|v| *v < shape[i])?;
    }
    Some(at)
}

/// The convolution, its elements not rounded to their type.
pub(super) fn conv<R: Number>(
    x: &RefTensor<R>,
    w: &RefTensor<R>,
    axes: &[Window],
    groups: usize,
    dtype: DType,
    shape: &[usize],
    mode: Mode,
) -> Result<RefTensor<R>> {
    let ([batch, channels, d @ ..], [filters, depth, k @ ..]) = (&x.shape[..], &w.shape[..]) else {
        return Err(Error::Internal(format!("a convolution of {:?} and {:?}", x.shape, w.shape)));
    };
    let (Data::F(xs), Data::F(ws)) = (&x.data, &w.data) else {
        return Err(Error::Internal(format!("a convolution of {} and {}", x.dtype, w.dtype)));
    };
    let mut out = RefTensor::zeros(dtype, shape)?;
    let Data::F(sums) = &mut out.data else { return Err(Error::Internal(format!("a convolution to {dtype}"))) };
    let (plane, taps, places) = (elements(d)?, elements(k)?, elements(&shape[2..])?);
    let places: Vec<Vec<usize>> = (0..places).map(|p| indices(&shape[2..], p)).collect();
    let taps: Vec<Vec<usize>> = (0..taps).map(|t| indices(k, t)).collect();
    let mut results = sums.iter_mut();
    for n in 0..*batch {
        for o in 0..*filters {
            let group = o / (filters / groups);
            for place in &places {
                let mut sum = R::of(0.0);
                for c in 0..*depth {
                    let channel = (n * channels + group * depth + c) * plane;
                    for (t, tap) in taps.iter().enumerate() {
                        // The zeros around are factors like all others: times a NaN they are NaN.
                        let x = position(d, axes, place, tap).map_or(R::of(0.0), |at| xs[channel + at]);
                        sum = mode.partial(dtype, sum + x * ws[(o * depth + c) * taps.len() + t]);
                    }
                }
                if let Some(result) = results.next() {
                    *result = sum;
                }
            }
        }
    }
    Ok(out)
}

/// Windows onto the last axes.
pub(super) fn windows<R: Number>(x: &RefTensor<R>, axes: &[Window], shape: &[usize]) -> Result<RefTensor<R>> {
    let lead = x.shape.len() - axes.len();
    let inner = &x.shape[lead..];
    let mut out = RefTensor::zeros(x.dtype, shape)?;
    let beyond = || Error::Internal("a window beyond its operand".into());
    for i in 0..out.len() {
        let at = indices(shape, i);
        let row = at[..lead].iter().zip(&x.shape).fold(0, |row, (i, size)| row * size + i);
        let within = position(inner, axes, &at[lead..lead + axes.len()], &at[lead + axes.len()..]);
        out.set(i, x.at(row * elements(inner)? + within.ok_or_else(beyond)?));
    }
    Ok(out)
}
