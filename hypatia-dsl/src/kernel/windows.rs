//! Windows of an image, each multiplied by a filter and added up: depthwise convolutions.
//!
//! In: how windows lie along the rows and columns of an image, element types, and how many planes
//! there are. Out: a [`WindowsKernel`] with the [`WindowTile`] of a block; none for windows that
//! registers or shared memory do not hold. Invariant: padding is read as zero and multiplied as
//! such; the order of a sum follows from the window alone.

use crate::dtype::DType;
use crate::scalar::Term;

use super::Operand;

/// The most elements of a window: a thread keeps a filter in registers.
const MOST_TAPS: usize = 64;
/// The most elements of a plane, so that 32 bits count them.
const MOST_ELEMENTS: usize = 1 << 30;
/// Bytes of an access.
const ACCESS: usize = 16;
/// Shared memory of a block, in bytes: what every device has without asking, and where a block takes
/// several planes, so that several blocks run beside each other.
const MOST_SHARED: usize = 48 << 10;
const FEW_SHARED: usize = 40 << 10;
/// The most threads of a block, and those from which on it needs no more.
const MOST_THREADS: usize = 256;
const THREADS: usize = 128;
/// The most rows of results of a thread.
const MOST_ROWS: usize = 8;
/// A large GPU: multiprocessors, and of each registers, shared memory in bytes, threads that run at a
/// time, and those that keep it busy.
const MULTIPROCESSORS: usize = 132;
const REGISTERS: usize = 65_536;
const SHARED: usize = 200 << 10;
const RESIDENT: usize = 2048;
const BUSY: usize = 384;

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
    /// Distance between windows.
    pub stride: usize,
    /// Distance between the elements of a window.
    pub dilation: usize,
    /// Zeros before the first element.
    pub before: usize,
}

impl WindowAxis {
    /// An axis of one element and one window.
    pub const ONE: WindowAxis = WindowAxis { image: 1, out: 1, size: 1, stride: 1, dilation: 1, before: 0 };

    /// True for an axis of one element and one window of it.
    pub fn is_one(&self) -> bool {
        (self.image, self.out, self.size, self.before) == (1, 1, 1, 0)
    }

    /// Elements from the first to the last of that many neighbouring windows.
    pub fn span(&self, windows: usize) -> usize {
        windows.saturating_sub(1) * self.stride + self.size.saturating_sub(1) * self.dilation + 1
    }
}

/// How the threads of a block share planes of results. Each has neighbouring results, which it
/// computes from registers; a block has several planes, or one or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowTile {
    /// Rows and columns of results of a thread.
    pub each: [usize; 2],
    /// Threads along the rows and columns of a plane.
    pub threads: [usize; 2],
    /// Planes of a block.
    pub planes: usize,
}

impl WindowTile {
    /// Threads that have results.
    pub fn active(&self) -> usize {
        self.threads[0] * self.threads[1] * self.planes
    }

    /// Threads of a block: whole warps.
    pub fn block(&self) -> usize {
        self.active().next_multiple_of(32)
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

/// What decides on a tile: the windows, and the elements of the image and of the sums.
#[derive(Clone, Copy, Debug)]
struct Layout {
    axes: [WindowAxis; 2],
    size: usize,
    words: usize,
}

impl WindowTile {
    /// The tile for so many planes of results; `None` if registers or shared memory do not hold such
    /// windows.
    pub fn of(axes: [WindowAxis; 2], [image, acc]: [DType; 2], planes: usize) -> Option<WindowTile> {
        let [rows, columns] = axes;
        let taps = rows.size * columns.size;
        let counted = |n: [usize; 2]| n[0].checked_mul(n[1]).is_some_and(|n| n <= MOST_ELEMENTS);
        let whole = counted([rows.image + rows.before, columns.image + columns.before]);
        let held = (1..=MOST_TAPS).contains(&taps) && whole && counted([rows.out, columns.out]);
        if !held || !image.is_float() || image.only_stored() || axes.iter().any(|a| a.out == 0 || a.image == 0) {
            return None;
        }
        let layout = Layout { axes, size: image.size(), words: acc.size().div_ceil(4) };
        let across = layout.across();
        let tiles = (1..=MOST_ROWS.min(rows.out)).filter_map(|down| layout.tile([down, across], planes));
        let timed = tiles.map(|t| (layout.cycles(&t, planes), t));
        timed.min_by(|x, y| x.0.total_cmp(&y.0)).map(|(_, t)| t)
    }
}

impl Layout {
    /// Neighbouring results of a thread: as many as lie in one access, or as the windows of these
    /// begin in one.
    fn across(&self) -> usize {
        let [_, columns] = self.axes;
        let most = (ACCESS / self.size / columns.stride.max(1)).max(1);
        // Powers of two: accesses are.
        let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        most.min(columns.out.next_power_of_two())
    }

    /// The tile of a block whose threads have so many results.
    fn tile(&self, each: [usize; 2], planes: usize) -> Option<WindowTile> {
        let threads = [0, 1].map(|a| self.axes[a].out.div_ceil(each[a]));
        let shared = |t: &WindowTile| Geometry { layout: *self, tile: *t }.shared();
        let mut tile = WindowTile { each, threads, planes: 1 };
        if tile.active() > MOST_THREADS || shared(&tile) > MOST_SHARED {
            tile.threads[1] = balanced(threads[1], THREADS / 2);
            tile.threads[0] = balanced(threads[0], THREADS / tile.threads[1]);
        }
        while shared(&tile) > MOST_SHARED {
            let longer = usize::from(tile.threads[0] == 1);
            if tile.threads[longer] == 1 {
                return None;
            }
            tile.threads[longer] = balanced(threads[longer], tile.threads[longer] / 2);
        }
        // As few idle lanes as possible; no more planes than leave two blocks to a multiprocessor.
        let most = planes.div_ceil(2 * MULTIPROCESSORS).max(1);
        let fits = |t: &WindowTile| t.active() <= MOST_THREADS && shared(t) <= FEW_SHARED;
        let counts = (1..=most.min(MOST_THREADS)).map(|planes| WindowTile { planes, ..tile }).filter(fits);
        let busy = |t: &WindowTile| t.active() as f64 / t.block() as f64;
        let enough = |t: &WindowTile| t.active().min(THREADS);
        let better = |a: &WindowTile, b: &WindowTile| {
            (busy(a), enough(a), b.planes).partial_cmp(&(busy(b), enough(b), a.planes))
        };
        Some(counts.max_by(|a, b| better(a, b).unwrap_or(std::cmp::Ordering::Equal)).unwrap_or(tile))
    }

    /// Predicted cycles. Rough: it only ranks tiles.
    fn cycles(&self, tile: &WindowTile, planes: usize) -> f64 {
        let geometry = Geometry { layout: *self, tile: *tile };
        let [rows, columns] = self.axes;
        let [down, across] = tile.each;
        let read = rows.span(down) * (geometry.packs() * 8 + columns.span(across));
        let of_thread = (down * across * (rows.size * columns.size + 4) + read + 100) * self.words;
        let held = (down * across + rows.size * columns.size + columns.span(across)) * self.words + 40;
        let beside = (REGISTERS / held / tile.block()).min(SHARED / geometry.shared().max(1));
        let resident = (beside * tile.active()).clamp(1, RESIDENT);
        let threads = geometry.blocks(planes) * tile.block();
        let lanes = (MULTIPROCESSORS * 128) as f64 * (resident as f64 / BUSY as f64).min(1.0);
        // A thread alone takes some cycles for each instruction.
        threads as f64 * of_thread as f64 / lanes + of_thread as f64 * 4.0
    }
}

/// Parts of equal size, each of at most `most`: the size of one.
fn balanced(all: usize, most: usize) -> usize {
    all.div_ceil(all.div_ceil(most.max(1)).max(1)).max(1)
}

/// Where the elements of a tile lie.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    layout: Layout,
    tile: WindowTile,
}

impl Geometry {
    /// Tiles of a plane, along each axis.
    fn tiles(&self) -> [usize; 2] {
        [0, 1].map(|a| self.layout.axes[a].out.div_ceil(self.results()[a]).max(1))
    }

    /// Rows and columns of results of a tile.
    fn results(&self) -> [usize; 2] {
        [0, 1].map(|a| self.tile.threads[a] * self.tile.each[a])
    }

    fn blocks(&self, planes: usize) -> usize {
        planes.div_ceil(self.tile.planes) * self.tiles()[0] * self.tiles()[1]
    }

    /// Elements that a thread reads at once: its windows begin at a multiple of it.
    fn read(&self) -> usize {
        let step = self.tile.each[1] * self.layout.axes[1].stride;
        (ACCESS / self.layout.size).min(1 << step.trailing_zeros())
    }

    /// Elements of an image that are read at once: each row is whole accesses, and each tile begins
    /// at one.
    fn vector(&self) -> usize {
        let columns = self.layout.axes[1];
        let begin = if self.tiles()[1] > 1 { self.results()[1] * columns.stride } else { 0 };
        (ACCESS / self.layout.size).min(1 << (columns.image | begin).trailing_zeros().min(8))
    }

    /// Elements of an access in shared memory.
    fn access(&self) -> usize {
        ACCESS / self.layout.size
    }

    /// Elements before the first one that windows need, so that those of the image are aligned.
    fn shift(&self) -> usize {
        let before = self.layout.axes[1].before;
        before.next_multiple_of(self.access()) - before
    }

    /// Accesses of a thread to a row of its windows.
    fn packs(&self) -> usize {
        let read = self.read();
        (self.shift() % read + self.layout.axes[1].span(self.tile.each[1])).div_ceil(read)
    }

    /// Rows of the image that a tile needs.
    fn rows(&self) -> usize {
        self.layout.axes[0].span(self.results()[0])
    }

    /// Elements of a row in shared memory: such that the threads of a warp read from different
    /// banks.
    fn pitch(&self) -> usize {
        let (read, access) = (self.read(), self.access());
        let last = (self.tile.threads[1] - 1) * self.tile.each[1] * self.layout.axes[1].stride;
        let needed = (last + self.shift() / read * read + self.packs() * read).div_ceil(access);
        let best = (needed..needed + 8).min_by_key(|units| (self.collisions(*units), *units));
        best.unwrap_or(needed) * access
    }

    /// How often the first threads want the same banks, for rows of that many accesses.
    fn collisions(&self, units: usize) -> usize {
        let [_, across] = self.tile.threads;
        let place = |t: usize| {
            let (x, y, plane) = (t % across, t / across % self.tile.threads[0], t / across / self.tile.threads[0]);
            let step = |a: usize| self.tile.each[a] * self.layout.axes[a].stride;
            let row = plane * self.rows() + y * step(0);
            (row * units * ACCESS + x * step(1) * self.layout.size) / ACCESS % 8
        };
        let active = self.tile.active().min(32);
        let of_phase = |first: usize| {
            let places: Vec<usize> = (first..(first + 8).min(active)).map(place).collect();
            (0..8).map(|p| places.iter().filter(|q| **q == p).count()).max().unwrap_or(0)
        };
        (0..active).step_by(8).map(of_phase).sum()
    }

    /// Bytes of shared memory.
    fn shared(&self) -> usize {
        let [rows, columns] = self.layout.axes;
        let filter = rows.size * columns.size * self.layout.words * 4;
        self.tile.planes * (self.rows() * self.pitch() * self.layout.size + filter)
    }
}

impl WindowsKernel {
    fn geometry(&self) -> Geometry {
        let layout = Layout { axes: self.axes, size: self.factors[0].size(), words: self.acc.size().div_ceil(4) };
        Geometry { layout, tile: self.tile }
    }

    /// True if a block's memory holds the tile: those of [`WindowTile::of`] fit.
    pub fn fits(&self) -> bool {
        let g = self.geometry();
        let some = self.tile.active() > 0 && self.axes.iter().all(|a| a.out > 0 && a.image > 0 && a.stride > 0);
        some && self.tile.active() <= MOST_THREADS && g.shared() <= MOST_SHARED
    }

    /// Blocks for so many planes of results.
    pub fn blocks(&self, planes: usize) -> usize {
        self.geometry().blocks(planes)
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

    /// Elements of a tile's row that windows need.
    pub fn columns(&self) -> usize {
        self.shift() + self.axes[1].span(self.tile.threads[1] * self.tile.each[1])
    }

    /// Accesses of a thread to a row of its windows.
    pub fn packs(&self) -> usize {
        self.geometry().packs()
    }

    /// Rows of a tile in shared memory, and elements from one to the next.
    pub fn room(&self) -> [usize; 2] {
        [self.geometry().rows(), self.geometry().pitch()]
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
                        assert!(kernel.columns() <= kernel.room()[1] && kernel.room()[1] % kernel.access() == 0);
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
            let t = tile(axes, 32 * 96);
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
        assert!(of([WindowAxis { out: 0, ..axis(32, 3, 1) }, axis(32, 3, 1)]).is_none());
    }

    #[test]
    fn threads_side_by_side_read_from_different_banks() {
        for image in [7, 14, 28, 56] {
            let axes = [axis(image, 7, 1); 2];
            let tile = tile(axes, 100_000);
            let g = kernel(axes, tile, [DType::BF16, DType::F32]).geometry();
            assert!(g.collisions(g.pitch() / g.access()) <= 6, "{image}: {tile:?}");
        }
    }
}
