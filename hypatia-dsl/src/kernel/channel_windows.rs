//! Windows of an image whose channels lie last, each channel multiplied by a filter of its own and
//! added up: depthwise convolutions.
//!
//! In: how windows lie along the rows and columns of an image, its channels, element types. Out: a
//! [`ChannelWindowsKernel`], and how its blocks share the work. Invariant: padding is read as zero
//! and multiplied as such; the order of a sum follows from the window alone.

use crate::dtype::DType;
use crate::scalar::Term;

use super::{Operand, WindowAxis};

/// Bytes of an access. Wider ones would take twice the registers.
const ACCESS: usize = 8;
/// Threads of a block, and how many of them at most have the channels of a pixel.
const THREADS: usize = 256;
const MOST_LANES: usize = 32;
const FEWEST_LANES: usize = 8;
const USUAL_LANES: usize = 16;
/// Registers of a multiprocessor in words, those of a thread besides what it multiplies and adds
/// up, and the most blocks that should run beside each other.
const REGISTERS: usize = 1 << 16;
const BESIDES: usize = 40;
const MOST_BESIDE: usize = 4;
/// The most results of a thread at a time.
const ACROSS: usize = 4;
/// The most elements of a row of the image that a thread keeps for them, and of a window.
const MOST_SPAN: usize = 16;
const MOST_TAPS: usize = 64;
/// Bytes of shared memory that every device has without asking.
const SHARED: usize = 48 << 10;
/// Blocks that fill a device several times; more of them would read filters more often.
const BLOCKS: usize = 1024;
const MOST_PASSES: usize = 8;

/// Windows of each channel of an image, multiplied by the channel's filter and added up, with an
/// epilogue on the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelWindowsKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element types of the image and of the filters.
    pub factors: [DType; 2],
    /// Rows and columns.
    pub axes: [WindowAxis; 2],
    /// Channels: whole accesses of them.
    pub channels: usize,
    /// Element type of the sums.
    pub acc: DType,
    /// The epilogue.
    pub term: Term,
    /// What the epilogue reads: `Full` as the result lies, `Row` one element a channel, `Splat`, or
    /// `Strided`, with strides along batch, row, column and channel.
    pub inputs: Vec<Operand>,
    /// Element type of the result.
    pub output: DType,
    /// How often the threads of a block take further results.
    pub passes: usize,
}

impl ChannelWindowsKernel {
    /// True if registers and shared memory hold such windows of an image of that type.
    pub fn fits(axes: [WindowAxis; 2], channels: usize, dtype: DType) -> bool {
        let [rows, columns] = axes;
        let vector = ACCESS / dtype.size();
        let some = axes.iter().all(|a| a.out > 0 && a.image > 0 && a.size > 0 && a.stride > 0 && a.dilation > 0);
        let few = (rows.size.saturating_mul(columns.size)) <= MOST_TAPS;
        let float = dtype.is_float() && !dtype.only_stored();
        // 32 bits count the elements of an image.
        let elements = [rows.image, columns.image, channels].iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let counted = elements.is_some_and(|n| n < 1 << 30) && rows.out.saturating_mul(columns.out) < 1 << 30;
        float
            && some
            && few
            && counted
            && channels > 0
            && channels.is_multiple_of(vector)
            && span(&columns) <= MOST_SPAN
    }

    /// Channels of an access.
    pub fn vector(&self) -> usize {
        ACCESS / self.factors[0].size()
    }

    /// Threads that have the channels of a pixel in a block: as many as divide them evenly.
    pub fn lanes(&self) -> usize {
        let packs = self.channels / self.vector();
        let taps = self.axes[0].size * self.axes[1].size;
        let most = (SHARED / (taps * self.vector() * self.acc.size())).clamp(1, MOST_LANES);
        let even = (FEWEST_LANES.min(packs)..=most.min(packs)).rev().find(|lanes| packs.is_multiple_of(*lanes));
        even.unwrap_or(USUAL_LANES.min(most))
    }

    /// Threads of a block with the same channels.
    pub fn side(&self) -> usize {
        THREADS / self.lanes()
    }

    /// Threads of a block: whole warps.
    pub fn block(&self) -> usize {
        (self.lanes() * self.side()).next_multiple_of(32)
    }

    /// Blocks that should run beside each other on a multiprocessor.
    pub fn beside(&self) -> usize {
        let words = (self.span() + self.across()) * self.vector() * self.acc.size().div_ceil(4) + BESIDES;
        (REGISTERS / (THREADS * words)).clamp(1, MOST_BESIDE)
    }

    /// Neighbouring results of a thread in a row.
    pub fn across(&self) -> usize {
        across(&self.axes[1])
    }

    /// Elements of a row of the image from the first to the last that these windows hold.
    pub fn span(&self) -> usize {
        span(&self.axes[1])
    }

    /// Blocks for so many images.
    pub fn blocks(&self, images: usize) -> usize {
        self.chunks() * self.groups(images).div_ceil(self.side() * self.passes.max(1))
    }

    /// The kernel with as many passes as fill a device several times, for so many images.
    pub fn with_passes(mut self, images: usize) -> ChannelWindowsKernel {
        let blocks = self.chunks() * self.groups(images).div_ceil(self.side());
        self.passes = (blocks / BLOCKS).clamp(1, MOST_PASSES);
        self
    }

    fn chunks(&self) -> usize {
        (self.channels / self.vector()).div_ceil(self.lanes())
    }

    /// The results of a thread at a time, in all images.
    fn groups(&self, images: usize) -> usize {
        images * self.axes[0].out * self.axes[1].out.div_ceil(self.across())
    }
}

fn across(columns: &WindowAxis) -> usize {
    let fits = |n: &usize| columns.span(*n) <= MOST_SPAN;
    (1..=ACROSS.min(columns.out.max(1))).rev().find(fits).unwrap_or(1)
}

fn span(columns: &WindowAxis) -> usize {
    columns.span(across(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(channels: usize, size: usize, stride: usize, dtype: DType) -> ChannelWindowsKernel {
        let axis = WindowAxis { image: 56, out: 56 / stride, size, stride, dilation: 1, before: size / 2 };
        ChannelWindowsKernel {
            name: "windows".into(),
            doc: String::new(),
            factors: [dtype; 2],
            axes: [axis; 2],
            channels,
            acc: dtype.compute(),
            term: Term::empty(),
            inputs: Vec::new(),
            output: dtype,
            passes: 1,
        }
    }

    #[test]
    fn blocks_cover_all_channels_and_fit() {
        for channels in [8, 16, 72, 96, 120, 184, 200, 960, 1152] {
            for (size, stride) in [(3, 1), (3, 2), (5, 1), (7, 1), (8, 2)] {
                for dtype in [DType::BF16, DType::F32, DType::F64] {
                    let kernel = kernel(channels, size, stride, dtype).with_passes(32);
                    let lanes = kernel.lanes();
                    assert!(lanes * kernel.vector() * size * size * kernel.acc.size() <= SHARED);
                    assert!(kernel.block() <= THREADS && kernel.span() <= MOST_SPAN);
                    let covered = kernel.blocks(32) / kernel.chunks() * kernel.side() * kernel.passes;
                    assert!(covered >= kernel.groups(32), "{channels} {size} {dtype}");
                }
            }
        }
        // 30 accesses of the channels of a pixel, and 46, which 23 divides, and 37.
        assert_eq!([120, 184, 148].map(|c| kernel(c, 3, 1, DType::BF16).lanes()), [30, 23, 16]);
    }

    #[test]
    fn wide_windows_and_uneven_channels_do_not_fit() {
        let axes = |size, dilation| {
            let axis = WindowAxis { image: 90, out: 40, size, stride: 1, dilation, before: 0 };
            [axis; 2]
        };
        let fits = |axes, channels| ChannelWindowsKernel::fits(axes, channels, DType::F16);
        assert!(fits(axes(8, 1), 16) && fits(axes(3, 7), 16));
        assert!(!fits(axes(9, 1), 16) && !fits(axes(3, 8), 16) && !fits(axes(3, 1), 10) && !fits(axes(3, 1), 0));
    }
}
