//! The windows of an image as the rows of a matrix (im2col), for plans of other devices.
//!
//! In: a contiguous image `[n, c, image..]` and its windows. Out: `[n, c, size.., windows..]`.
//! Invariant: elements outside of the image are zero bytes. Plans for the host pack windows as they
//! multiply them (`im2col`), so nothing here is tuned.

use hypatia_graph::prim::Window;

/// Copies the windows of `image`, whose elements have `size` bytes; `shape` is its shape and
/// `result` that of `out`.
pub fn unfold(image: &[u8], shape: &[usize], windows: &[Window], result: &[usize], size: usize, out: &mut [u8]) {
    let axes = windows.len();
    let mut index = vec![0usize; result.len()];
    for to in out.chunks_exact_mut(size) {
        let mut from = Some(index[0] * shape[1] + index[1]);
        for (i, w) in windows.iter().enumerate() {
            let at = index[2 + axes + i] * w.stride + index[2 + i] * w.dilation;
            let at = at.checked_sub(w.before).filter(|at| *at < shape[2 + i]);
            from = from.zip(at).map(|(from, at)| from * shape[2 + i] + at);
        }
        match from {
            Some(from) => to.copy_from_slice(&image[from * size..][..size]),
            None => to.fill(0),
        }
        for (at, count) in index.iter_mut().zip(result).rev() {
            *at = (*at + 1) % count;
            if *at != 0 {
                break;
            }
        }
    }
}
