//! Windows of an image, each multiplied by a filter and added up: depthwise convolutions.
//!
//! In: how windows lie along the rows and columns of an image, element types, and how many planes
//! there are. Out: a [`WindowsKernel`] with the [`WindowTile`] of a block (`tile`); none for
//! windows that registers or shared memory do not hold. Invariant: padding is read as zero and
//! multiplied as such; the order of a sum follows from the window alone.

mod tile;

use crate::dtype::DType;
use crate::scalar::Term;

use self::tile::Geometry;
use super::Operand;

pub use self::tile::WindowTile;

/// How windows lie along an axis: window `i` holds the elements `i * stride + j * dilation -
/// before`, for `j` below `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowAxis {
    /// Elements of the image.
    pub image: usize,
    /// Windows.
    pub out: usize,
    /// Elements of a window.
    pub size: usize,
    /// Distance between windows; 1 if there is one.
    pub stride: usize,
    /// Distance between the elements of a window; 1 if there is one.
    pub dilation: usize,
    /// Zeros before the first element.
    pub before: usize,
}

impl WindowAxis {
    /// An axis of one element and one window.
    pub const ONE: WindowAxis = WindowAxis { image: 1, out: 1, size: 1, stride: 1, dilation: 1, before: 0 };

    /// The same axis, on which equal windows have equal distances.
    pub fn plain(self) -> WindowAxis {
        let stride = if self.out > 1 { self.stride } else { 1 };
        WindowAxis { stride, dilation: if self.size > 1 { self.dilation } else { 1 }, ..self }
    }

    /// Elements from the first to the last of that many neighbouring windows.
    pub fn span(&self, windows: usize) -> usize {
        windows.saturating_sub(1) * self.stride + self.size.saturating_sub(1) * self.dilation + 1
    }
}

/// Windows of each plane of an image, multiplied by the plane's filter and added up, with an
/// epilogue on the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowsKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element types of the image and of the filters.
    pub factors: [DType; 2],
    /// Rows and columns.
    pub axes: [WindowAxis; 2],
    /// Planes of the result of each plane of the image.
    pub filters: usize,
    /// Element type of the sums.
    pub acc: DType,
    /// The epilogue.
    pub term: Term,
    /// What the epilogue reads: `Full` as the result lies, `Col` one element a plane, `Splat`, or
    /// `Strided`. `Col` and `Strided` are read with strides along batch, channel, row and column.
    pub inputs: Vec<Operand>,
    /// Element type of the result.
    pub output: DType,
    /// How blocks share the work.
    pub tile: WindowTile,
}

impl WindowsKernel {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.axes, [self.factors[0], self.acc], self.tile)
    }

    /// True if a block's memory holds the tile: those of [`WindowTile::of`] fit.
    pub fn fits(&self) -> bool {
        self.axes.iter().all(|a| a.out > 0 && a.image > 0 && a.stride > 0 && a.dilation > 0) && self.geometry().fits()
    }

    /// Blocks for so many planes of results.
    pub fn blocks(&self, planes: usize) -> usize {
        self.geometry().blocks(planes)
    }

    /// Blocks that should run beside each other on a multiprocessor.
    pub fn beside(&self) -> usize {
        self.geometry().beside()
    }

    /// Tiles of a plane along its rows and columns.
    pub fn tiles(&self) -> [usize; 2] {
        self.geometry().tiles()
    }

    /// Elements of the image that are read at once.
    pub fn vector(&self) -> usize {
        self.geometry().vector()
    }

    /// Elements of shared memory that a thread reads at once.
    pub fn read(&self) -> usize {
        self.geometry().read()
    }

    /// Elements of a result that are stored at once: each row is whole accesses.
    pub fn stored(&self) -> usize {
        self.tile.each[1].min(1 << self.axes[1].out.trailing_zeros().min(8))
    }

    /// Elements of an access in shared memory.
    pub fn access(&self) -> usize {
        self.geometry().access()
    }

    /// Elements of a tile's row before the first one that windows need.
    pub fn shift(&self) -> usize {
        self.geometry().shift()
    }

    /// Rows of a tile, and elements of each of them, that windows need.
    pub fn needed(&self) -> [usize; 2] {
        let [rows, columns] = self.geometry().spans();
        [rows, self.shift() + columns]
    }

    /// Accesses of a thread to a row of its windows.
    pub fn packs(&self) -> usize {
        self.geometry().packs()
    }

    /// Elements in shared memory from a row to the next, and from a plane to the next.
    pub fn pitches(&self) -> [usize; 2] {
        self.geometry().pitches()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn axis(image: usize, size: usize, stride: usize) -> WindowAxis {
        let before = size / 2;
        let out = (image + 2 * before - size) / stride + 1;
        WindowAxis { image, out, size, stride, dilation: 1, before }
    }

    fn tile(axes: [WindowAxis; 2], planes: usize) -> WindowTile {
        WindowTile::of(axes, [DType::BF16, DType::F32], planes).unwrap()
    }

    #[test]
    fn tiles_fit_and_cover_their_planes() {
        for size in [1, 2, 3, 5, 7, 8] {
            for (image, stride) in [(1, 1), (7, 1), (7, 2), (13, 3), (14, 1), (56, 1), (57, 2), (112, 2), (1000, 1)] {
                for planes in [0, 1, 70, 100_000] {
                    let axes = [axis(image, size, stride); 2];
                    for [image, acc] in [[DType::F16, DType::F32], [DType::F32; 2], [DType::F64; 2]] {
                        let tile = WindowTile::of(axes, [image, acc], planes).unwrap();
                        let kernel = kernel(axes, tile, [image, acc]);
                        let g = kernel.geometry();
                        assert!(kernel.fits(), "{axes:?} {tile:?}");
                        assert!((0..2).all(|a| g.tiles()[a] * g.results()[a] >= axes[a].out));
                        let [pitch, plane] = kernel.pitches();
                        assert!(kernel.needed()[1] <= pitch && pitch % kernel.access() == 0);
                        assert!(kernel.needed()[0] * pitch <= plane && plane % kernel.access() == 0);
                    }
                }
            }
        }
    }

    fn kernel(axes: [WindowAxis; 2], tile: WindowTile, [image, acc]: [DType; 2]) -> WindowsKernel {
        WindowsKernel {
            name: "windows".into(),
            doc: String::new(),
            factors: [image; 2],
            axes,
            filters: 1,
            acc,
            term: Term::empty(),
            inputs: Vec::new(),
            output: image,
            tile,
        }
    }

    #[test]
    fn threads_have_results_and_none_idles_in_planes_of_usual_sizes() {
        for image in [7, 14, 28, 56, 112] {
            let axes = [axis(image, 7, 1); 2];
            let t = tile(axes, 100_000);
            let computed = t.threads[0] * t.each[0] * t.threads[1] * t.each[1];
            assert!(image * image * 8 >= computed * 6, "{image}: {t:?}");
            assert!(t.active() * 8 >= t.block() * 7 && t.block() >= 32, "{image}: {t:?}");
        }
        // One plane alone gets more threads.
        let [few, many] = [1, 100_000].map(|planes| tile([axis(56, 3, 1); 2], planes));
        assert!(few.each[0] < many.each[0] || few.each[0] == 1, "{few:?} {many:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let of = |axes| WindowTile::of(axes, [DType::BF16, DType::F32], 8);
        // 81 elements; elements so far apart that shared memory does not hold a window.
        assert!(of([axis(32, 9, 1); 2]).is_none() && of([axis(32, 8, 1); 2]).is_some());
        let apart = WindowAxis { dilation: 300, before: 900, ..axis(1000, 7, 1) };
        assert!(of([apart; 2]).is_none());
        assert!(WindowTile::of([axis(32, 3, 1); 2], [DType::I32, DType::I32], 8).is_none());
        // A window that lies in the padding.
        assert!(of([WindowAxis { out: 1, before: 9, ..axis(1, 3, 1) }; 2]).is_none());
        assert!(of([WindowAxis { out: 0, ..axis(32, 3, 1) }, axis(32, 3, 1)]).is_none());
    }
}
