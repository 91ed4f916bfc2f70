//! Windows of each channel of an image, reduced: pooling, with the channels last.
//!
//! In: how windows lie along the rows and columns of an image, and the reduction. Out: a
//! [`PoolKernel`]. Invariant: what lies outside of the image changes no result; the order of a sum
//! follows from the window alone.

use crate::dtype::DType;

use super::{Reduction, WindowAxis};

/// The widest access, in bytes.
const WIDEST: usize = 16;
/// The most elements of a window: its columns are unrolled.
const MOST_PLACES: usize = 64;
/// The most elements of a row of the image that a thread reads for neighbouring windows.
const MOST_SPAN: usize = 24;

/// `out[image, y, x, c]` is the reduction of channel `c` of window `[y, x]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the image and of the result.
    pub dtype: DType,
    /// Rows and columns.
    pub axes: [WindowAxis; 2],
    /// Channels.
    pub channels: usize,
    /// Sum, mean, maximum or minimum. A mean is divided by all elements of a window.
    pub kind: Reduction,
}

impl PoolKernel {
    /// True if the kernel reduces such windows.
    pub fn fits(axes: [WindowAxis; 2], channels: usize, dtype: DType, kind: Reduction) -> bool {
        let some = |a: &WindowAxis| a.image > 0 && a.out > 0 && a.size > 0 && a.stride > 0 && a.dilation > 0;
        let places: usize = axes.iter().map(|a| a.size).product();
        dtype.is_float()
            && !dtype.only_stored()
            && kind != Reduction::Prod
            && channels > 0
            && axes.iter().all(some)
            && places <= MOST_PLACES
            && axes[1].span(1) <= MOST_SPAN
    }

    /// Neighbouring channels of a thread: an access.
    pub fn vector(&self) -> usize {
        let most = WIDEST / self.dtype.size();
        1 << self.channels.trailing_zeros().min(most.ilog2())
    }

    /// Neighbouring windows of a thread: two if they have elements in common.
    pub fn across(&self) -> usize {
        let columns = self.axes[1];
        let pays = columns.out > 1 && columns.size > columns.stride && columns.span(2) <= MOST_SPAN;
        if pays { 2 } else { 1 }
    }

    /// Elements of a row of the image from the first to the last of these windows.
    pub fn span(&self) -> usize {
        self.axes[1].span(self.across())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel([size, stride]: [usize; 2], channels: usize, dtype: DType) -> PoolKernel {
        let axis = WindowAxis { image: 56, out: (56 - size) / stride + 1, size, stride, dilation: 1, before: 0 };
        PoolKernel { name: "pool".into(), doc: String::new(), dtype, axes: [axis; 2], channels, kind: Reduction::Max }
    }

    #[test]
    fn neighbours_that_share_elements_are_one_thread() {
        assert_eq!((kernel([3, 2], 64, DType::BF16).across(), kernel([3, 2], 64, DType::BF16).span()), (2, 5));
        assert_eq!((kernel([2, 2], 64, DType::BF16).across(), kernel([2, 2], 64, DType::BF16).span()), (1, 2));
    }

    #[test]
    fn accesses_divide_the_channels() {
        let vector = |channels, dtype| kernel([3, 2], channels, dtype).vector();
        assert_eq!([64, 12, 3].map(|c| vector(c, DType::F16)), [8, 4, 1]);
        assert_eq!([vector(64, DType::F32), vector(64, DType::F64)], [4, 2]);
    }

    #[test]
    fn large_windows_do_not_fit() {
        let fits = |size, kind| PoolKernel::fits(kernel([size, 1], 8, DType::F32).axes, 8, DType::F32, kind);
        assert!(fits(8, Reduction::Mean) && !fits(9, Reduction::Mean) && !fits(3, Reduction::Prod));
    }
}
