//! The windows of an image as the rows or the columns of a matrix (im2col), for plans of other
//! devices.
//!
//! In: a contiguous image and its windows. Out: their elements, in the order that an
//! [`UnfoldStep`] says. Invariant: elements outside of the image are zero bytes. Plans for the host
//! pack windows as they multiply them (`im2col`), so nothing here is tuned.

use hypatia_plan::UnfoldStep;

/// Copies the windows of `image`, whose elements have `size` bytes; `shape` is its shape and
/// `result` that of `out`.
pub fn unfold(image: &[u8], shape: &[usize], how: &UnfoldStep, result: &[usize], size: usize, out: &mut [u8]) {
    let ([of_image, places, windows], channels) = (how.axes(), how.channels([shape.len(), result.len()]));
    let mut index = vec![0usize; result.len()];
    let mut from = vec![0usize; shape.len()];
    for to in out.chunks_exact_mut(size) {
        (from[0], from[channels[0]]) = (index[0], index[channels[1]]);
        let mut inside = true;
        for (i, w) in how.windows.iter().enumerate() {
            let at = index[windows.start + i] * w.stride + index[places.start + i] * w.dilation;
            let at = at.checked_sub(w.before).filter(|at| *at < shape[of_image.start + i]);
            inside &= at.is_some();
            from[of_image.start + i] = at.unwrap_or(0);
        }
        if inside {
            let at = from.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
            to.copy_from_slice(&image[at * size..][..size]);
        } else {
            to.fill(0);
        }
        for (at, count) in index.iter_mut().zip(result).rev() {
            *at = (*at + 1) % count;
            if *at != 0 {
                break;
            }
        }
    }
}
