//! Windows of an image as a factor of a product, which nobody stores: the copy engine reads them
//! from the image (its im2col mode), or threads do.
//!
//! In: how windows lie along the rows and columns of an image. Out: what a descriptor of the image
//! needs, how the sums are cut into slices, and whether threads can read them. Invariant: where the
//! channels lie last, a window has its places in turn, each with all channels; a slice of the copy
//! engine, which reads rows of the left factor alone, has channels of one place. Where the channels
//! come first, a window has the channels in turn, each with all places.
//!
//! Source: CUDA driver API, `cuTensorMapEncodeIm2col`; PTX ISA, "im2col mode".

use crate::dtype::DType;

use super::gemm::TILE_K;
use super::windows::WindowAxis;

/// The copy engine moves multiples of this many bytes.
const ACCESS: usize = 16;
/// The largest distance between windows that the copy engine has.
const MOST_STRIDE: usize = 8;
/// The farthest element of a window from its first one.
const FARTHEST: usize = 255;
/// The most rows or columns of a window that threads read: a bit for each says which lie in the
/// image.
const MOST_SIZE: usize = 32;
/// The corners of the first elements of all windows, from those of the image.
const CORNERS: std::ops::RangeInclusive<i64> = -128..=127;

/// Windows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageWindows {
    /// Rows and columns.
    pub axes: [WindowAxis; 2],
    /// Channels of a window.
    pub channels: usize,
}

/// Where windows begin, for a descriptor of the image. Each is for columns, then rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowBounds {
    /// The first place, from the image's first element.
    pub lower: [i32; 2],
    /// The last place, from the image's last element.
    pub upper: [i32; 2],
    /// Distance between windows.
    pub steps: [u32; 2],
}

impl ImageWindows {
    /// True if threads read such windows.
    pub fn fits_threads(&self) -> bool {
        let axis = |a: &WindowAxis| a.image > 0 && a.out > 0 && (1..=MOST_SIZE).contains(&a.size);
        self.channels > 0 && self.axes.iter().all(axis)
    }

    /// True if the copy engine reads such windows of elements of that type. Their channels lie
    /// last.
    pub fn fits(&self, dtype: DType) -> bool {
        let axis = |a: &WindowAxis| {
            let [lower, upper] = corners(a);
            a.image > 0
                && a.out > 0
                && a.size > 0
                && (1..=MOST_STRIDE).contains(&a.stride)
                && (a.size - 1) * a.dilation <= FARTHEST
                && CORNERS.contains(&lower)
                && CORNERS.contains(&upper)
        };
        let half = matches!(dtype, DType::F16 | DType::BF16);
        half && self.channels > 0 && (self.channels * dtype.size()).is_multiple_of(ACCESS) && self.axes.iter().all(axis)
    }

    /// Places in a window.
    pub fn places(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Slices of the sums that a place has.
    pub fn slices_of_place(&self) -> usize {
        self.channels.div_ceil(TILE_K)
    }

    /// Slices of the sums.
    pub fn slices(&self) -> usize {
        self.places() * self.slices_of_place()
    }

    /// Where windows begin.
    pub fn bounds(&self) -> WindowBounds {
        let [rows, columns] = &self.axes;
        let of = [columns, rows].map(corners);
        WindowBounds {
            lower: of.map(|[lower, _]| lower as i32),
            upper: of.map(|[_, upper]| upper as i32),
            steps: [columns, rows].map(|a| a.stride as u32),
        }
    }
}

/// Where the first window begins, from the image's first element, and the last one, from its last.
fn corners(a: &WindowAxis) -> [i64; 2] {
    let first = -(a.before as i64);
    let last = first + (a.out as i64 - 1) * a.stride as i64;
    [first, last + 1 - a.image as i64]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(image: usize, [size, stride, dilation, before]: [usize; 4], channels: usize) -> ImageWindows {
        let out = (image + 2 * before - (size - 1) * dilation - 1) / stride + 1;
        let axis = WindowAxis { image, out, size, stride, dilation, before };
        ImageWindows { axes: [axis.plain(); 2], channels }
    }

    #[test]
    fn windows_begin_between_the_corners() {
        let same = windows(14, [3, 1, 1, 1], 64);
        assert_eq!(same.bounds(), WindowBounds { lower: [-1; 2], upper: [-1; 2], steps: [1; 2] });
        // Windows at 0, 2, .., 12 of 14 elements.
        let points = windows(14, [1, 2, 1, 0], 64);
        assert_eq!(points.bounds(), WindowBounds { lower: [0; 2], upper: [-1; 2], steps: [2; 2] });
        // At -3, -1, .., 219 of 224.
        let first = windows(224, [7, 2, 1, 3], 8);
        assert_eq!(first.bounds(), WindowBounds { lower: [-3; 2], upper: [-4; 2], steps: [2; 2] });
    }

    #[test]
    fn a_slice_has_channels_of_one_place() {
        let slices = |channels| windows(14, [3, 1, 1, 1], channels).slices();
        assert_eq!([64, 128, 72, 8].map(slices), [9, 18, 18, 9]);
    }

    #[test]
    fn the_copy_engine_reads_whole_accesses_and_near_windows() {
        let fits = |how, channels, dtype| windows(300, how, channels).fits(dtype);
        assert!(fits([3, 1, 1, 1], 64, DType::BF16) && fits([3, 8, 1, 0], 8, DType::F16));
        assert!(!fits([3, 1, 1, 1], 12, DType::BF16) && !fits([3, 1, 1, 1], 64, DType::F32));
        assert!(!fits([3, 9, 1, 1], 64, DType::BF16) && !fits([3, 1, 140, 0], 64, DType::BF16));
        assert!(!fits([3, 1, 100, 0], 64, DType::BF16) && fits([3, 1, 60, 0], 64, DType::BF16));
    }
}
