//! Windows of each channel of an image whose channels lie last, reduced, for plans of other
//! devices.
//!
//! In: a contiguous image and its windows. Out: a reduction for each window and channel. Invariant:
//! computed in f64 and rounded once; what lies beside the image is left out. Plans for the host
//! reduce windows where they lie (`pooling`), so nothing here is tuned.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::Reduction;
use hypatia_plan::PoolStep;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::interp::{Dst, read};
use super::rowwise::{identity, join};

/// Reduces the windows of `image`, whose shape is `shape`; `result` is that of `out`.
pub fn pool(
    image: &[u8],
    dtype: DType,
    shape: &[usize],
    how: &PoolStep,
    result: &[usize],
    out: &mut [u8],
) -> Result<()> {
    let odd = || Error::Internal(format!("pooling of {shape:?} into {result:?}"));
    let ([_, rows, columns, channels], [images, high, wide, _]) = (shape, result) else { return Err(odd()) };
    let [down, right] = how.windows.as_slice() else { return Err(odd()) };
    let mut elements = vec![0.0; shape.iter().product()];
    read_f64(image, dtype, &mut elements);
    let mut results = Vec::with_capacity(result.iter().product());
    for (n, y, x) in (0..*images).flat_map(|n| (0..*high).flat_map(move |y| (0..*wide).map(move |x| (n, y, x)))) {
        let start = results.len();
        results.resize(start + channels, identity(how.kind));
        for (i, j) in (0..down.size).flat_map(|i| (0..right.size).map(move |j| (i, j))) {
            let at = |at: usize, w: &hypatia_graph::prim::Window, place: usize, size: usize| {
                (at * w.stride + place * w.dilation).checked_sub(w.before).filter(|at| *at < size)
            };
            let (Some(row), Some(column)) = (at(y, down, i, *rows), at(x, right, j, *columns)) else { continue };
            let pixel = &elements[((n * rows + row) * columns + column) * channels..][..*channels];
            results[start..].iter_mut().zip(pixel).for_each(|(r, e)| *r = join(how.kind, *r, *e));
        }
        if how.kind == Reduction::Mean {
            results[start..].iter_mut().for_each(|r| *r /= (down.size * right.size) as f64);
        }
    }
    let rounded = Tensor::from_f64(dtype, result, &results).ok_or_else(odd)?;
    out.copy_from_slice(rounded.bytes());
    Ok(())
}

fn read_f64(bytes: &[u8], dtype: DType, out: &mut [f64]) {
    if dtype == DType::F64 {
        return read(bytes, dtype, 0, 1, Dst::F64(out));
    }
    let mut narrow = vec![0f32; out.len()];
    read(bytes, dtype, 0, 1, Dst::F32(&mut narrow));
    out.iter_mut().zip(narrow).for_each(|(to, from)| *to = f64::from(from));
}
