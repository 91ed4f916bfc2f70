//! The windows of an image as the rows of a matrix (im2col), with zeros around the image.
//!
//! In: how windows lie along the rows and columns of an image. Out: an [`UnfoldKernel`]. Invariant:
//! for each plane and each place in a window, the matrix has a row with an element of each window;
//! with the channels last, a row for each window.

use crate::dtype::DType;

use super::WindowAxis;

/// The widest access, in bytes.
const WIDEST: usize = 16;
/// The most elements that a thread keeps of a row of the image.
const KEPT: usize = 64;

/// A copy of the windows of each plane: `out[plane, i, j, y, x]` is element `[i, j]` of window
/// `[y, x]`; with the channels last, that of channel `c` is `out[image, y, x, i, j, c]`.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfoldKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type.
    pub dtype: DType,
    /// Rows and columns.
    pub axes: [WindowAxis; 2],
    /// The number of channels, if they lie last.
    pub channels: Option<usize>,
}

impl UnfoldKernel {
    /// Neighbouring windows of a thread: their elements are stored in one access, and a row of
    /// windows consists of whole accesses. With the channels last, neighbouring channels.
    pub fn vector(&self) -> usize {
        let most = WIDEST / self.dtype.size();
        1 << self.channels.unwrap_or(self.axes[1].out).trailing_zeros().min(most.ilog2())
    }

    /// Elements of a row of the image from the first to the last that these windows hold.
    pub fn span(&self) -> usize {
        self.axes[1].span(self.vector())
    }

    /// Whether a thread reads each of these elements once. It does not where most of them belong to
    /// no window, or are too many.
    pub fn keeps_rows(&self) -> bool {
        self.span() <= (self.vector() * self.axes[1].size).min(KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(image: usize, [size, stride, dilation]: [usize; 3], dtype: DType) -> UnfoldKernel {
        let out = (image - (size - 1) * dilation - 1) / stride + 1;
        let axis = WindowAxis { image, out, size, stride, dilation, before: 0 };
        UnfoldKernel { name: "unfold".into(), doc: String::new(), dtype, axes: [axis; 2], channels: None }
    }

    #[test]
    fn accesses_divide_rows_of_windows() {
        let vector = |out: usize, dtype| kernel(out + 2, [3, 1, 1], dtype).vector();
        assert_eq!([56, 28, 14, 7].map(|out| vector(out, DType::BF16)), [8, 4, 2, 1]);
        assert_eq!([vector(56, DType::F32), vector(56, DType::F64), vector(64, DType::I8)], [4, 2, 16]);
    }

    #[test]
    fn rows_are_kept_where_windows_share_them() {
        assert!(kernel(58, [3, 1, 1], DType::BF16).keeps_rows());
        // Every other element belongs to no window; the windows of a thread span 15 elements.
        assert!(!kernel(63, [1, 2, 1], DType::BF16).keeps_rows());
        assert!(kernel(229, [7, 2, 1], DType::BF16).keeps_rows());
        assert!(!kernel(300, [3, 1, 40], DType::BF16).keeps_rows());
    }
}
