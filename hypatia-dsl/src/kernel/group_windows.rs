//! Windows of an image, multiplied by the filters of their group of channels by warps: grouped
//! convolutions of images whose channels lie last, and convolutions of images of few channels,
//! which lie first (those of colours).
//!
//! In: how windows lie along the rows and columns of an image, groups, a 16-bit type. Out: a
//! [`GroupWindowsKernel`] with the [`GroupTile`] of a block, the fastest by a rough prediction;
//! none for groups that warps do not multiply, or for windows that shared memory does not hold.
//! Invariant: a sum has the channels of one group; its order follows from the window alone. The
//! channels of the result lie last.

use crate::dtype::DType;
use crate::scalar::Term;

use super::{Operand, WindowAxis};

/// Pixels that a warp multiplies at once, and how often it does.
const ROWS: usize = 16;
const PARTS: usize = 2;
/// Elements of a column of filters, and of a quad.
const COLUMN: usize = 8;
const QUAD: usize = 4;
/// Bytes of the filters of four quads and one column.
const FRAGMENT: usize = 256;
/// The filters of a group that are the columns of a warp, or a part of them.
const FILTERS: [usize; 8] = [4, 8, 12, 16, 24, 32, 48, 64];
/// The most channels of a group, elements of a window, and steps of a warp, which are unrolled.
const MOST_DEPTH: usize = 64;
const MOST_TAPS: usize = 64;
const MOST_STEPS: usize = 160;
/// Warps of a block.
const WARPS: [usize; 2] = [8, 4];
/// Bytes of shared memory that a block may have on every GPU from Ampere on, and those of a
/// multiprocessor of a large one.
const SHARED: usize = 80 << 10;
const OF_MULTIPROCESSOR: usize = 220 << 10;
/// Multiprocessors of a large device, and the warps of one that registers suffice for.
const MULTIPROCESSORS: usize = 132;
const RESIDENT: usize = 24;
/// Cycles that a warp takes for a copy of 32 units and to store 16 rows of results, and those that
/// a block waits for.
const COPY: usize = 16;
const STORE: usize = 60;
const WAIT: usize = 2500;

/// Windows of each group of channels of an image, multiplied by the group's filters and added up,
/// with an epilogue on the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupWindowsKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the image and of the filters: a 16-bit one.
    pub factors: DType,
    /// Rows and columns.
    pub axes: [WindowAxis; 2],
    /// Groups, and the channels and filters of each.
    pub groups: ChannelGroups,
    /// The epilogue, of a sum in f32.
    pub term: Term,
    /// What the epilogue reads: `Full` as the result lies, `Row` one element a filter, `Splat`, or
    /// `Strided`, with strides along batch, row, column and channel.
    pub inputs: Vec<Operand>,
    /// Element type of the result.
    pub output: DType,
    /// What a block has.
    pub tile: GroupTile,
}

/// Groups of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelGroups {
    /// How many.
    pub count: usize,
    /// Channels of each.
    pub channels: usize,
    /// Filters of each.
    pub filters: usize,
}

/// The pixels of the result that a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTile {
    /// Images; one if they have several tiles.
    pub images: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub columns: usize,
    /// Warps of a block.
    pub warps: usize,
}

impl GroupTile {
    /// The fastest tile for so many images by a rough prediction; `None` if none fits.
    pub fn of(axes: [WindowAxis; 2], groups: ChannelGroups, images: usize) -> Option<GroupTile> {
        let [down, across] = axes.map(|a| a.out);
        let some = axes.iter().all(|a| a.out > 0 && a.image > 0 && a.size > 0 && a.stride > 0 && a.dilation > 0);
        // 32 bits count the elements of an image and of the filters.
        let elements = [axes[0].image, axes[1].image, groups.count, groups.channels];
        let results = [down, across, groups.count, groups.filters];
        let filters = [axes[0].size, axes[1].size, groups.count, groups.channels, groups.filters];
        let counted = |sizes: &[usize]| {
            let all = sizes.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            all.is_some_and(|n| n < 1 << 30)
        };
        let few = axes[0].size.saturating_mul(axes[1].size) <= MOST_TAPS;
        if !(some && few && groups.fit() && counted(&elements) && counted(&results) && counted(&filters)) {
            return None;
        }
        let mut best: Option<(usize, GroupTile)> = None;
        for warps in WARPS {
            let most = warps * PARTS * ROWS;
            // A tile has the rows and columns of so many equal ones.
            let even = |all: usize| (1..=all).map(move |n| all.div_ceil(n)).filter(move |n| *n <= most);
            for columns in even(across) {
                for rows in even(down).filter(|rows| rows * columns <= most) {
                    let whole = [rows, columns] == [down, across];
                    let several = if whole { (most / (rows * columns)).min(images).max(1) } else { 1 };
                    for images_of_tile in 1..=several {
                        let tile = GroupTile { images: images_of_tile, rows, columns, warps };
                        let lies = Lies { axes, groups, tile };
                        let cycles = lies.cycles(images);
                        if lies.fits() && best.is_none_or(|(least, _)| cycles < least) {
                            best = Some((cycles, tile));
                        }
                    }
                }
            }
        }
        best.map(|(_, tile)| tile)
    }
}

impl ChannelGroups {
    /// True for an image of few channels: they lie first, and fill one quad.
    pub fn is_few(&self) -> bool {
        self.count == 1 && (1..QUAD).contains(&self.channels)
    }

    /// Elements of a pixel of a group in shared memory: whole quads.
    fn depth(&self) -> usize {
        self.channels.next_multiple_of(QUAD)
    }

    /// True if warps multiply such groups.
    fn fit(&self) -> bool {
        let ChannelGroups { count, channels, filters } = *self;
        if self.is_few() {
            return filters > 0 && filters.is_multiple_of(COLUMN);
        }
        // Pixels are whole accesses of 16 bytes.
        let whole = |n: usize| count.saturating_mul(n).is_multiple_of(COLUMN);
        let depth = channels > 0 && channels <= MOST_DEPTH && channels.is_multiple_of(QUAD);
        count > 1 && depth && FILTERS.contains(&filters) && whole(channels) && whole(filters)
    }

    /// Columns of 8 filters of a block.
    fn columns(&self) -> usize {
        if self.is_few() {
            // One group has no neighbour for columns that are left.
            return (1..=4).rev().find(|n| self.filters.is_multiple_of(n * COLUMN)).unwrap_or(1);
        }
        if self.filters.is_multiple_of(3) { 3 } else { 4 }
    }

    /// Groups of a block, if it has whole ones; else it has a part of one.
    fn of_block(&self) -> usize {
        (self.columns() * COLUMN / self.filters.max(1)).max(1)
    }

    /// Columns of a group that a block has; some share one with a neighbour.
    fn columns_of_group(&self) -> usize {
        (self.filters.min(self.columns() * COLUMN) + QUAD) / COLUMN
    }
}

/// How a block's part of the image lies in shared memory.
#[derive(Clone, Copy, Debug)]
struct Lies {
    axes: [WindowAxis; 2],
    groups: ChannelGroups,
    tile: GroupTile,
}

impl Lies {
    /// Rows and columns of the image that the windows of a tile hold.
    fn held(&self) -> [usize; 2] {
        let [down, across] = self.axes;
        [down.span(self.tile.rows), across.span(self.tile.columns)]
    }

    /// Bytes of a block's channels of a pixel.
    fn channels(&self) -> usize {
        self.groups.of_block() * self.groups.depth() * 2
    }

    /// Bytes of a copy into shared memory.
    fn unit(&self) -> usize {
        if self.channels().is_multiple_of(16) { 16 } else { 8 }
    }

    /// Bytes of a pixel in shared memory. Lanes side by side read neighbouring pixels: four quads
    /// of one, or one quad of several.
    fn pixel(&self) -> usize {
        if self.groups.is_few() {
            return self.channels();
        }
        let [every, rest] = match self.groups.channels >= ROWS && !self.axes[1].stride.is_multiple_of(2) {
            true => [64, 32],
            false => [32, 16],
        };
        (self.channels().saturating_sub(rest)).next_multiple_of(every) + rest
    }

    /// Steps of a group's sum.
    fn steps(&self) -> usize {
        (self.axes[0].size * self.axes[1].size * self.groups.depth() / QUAD).div_ceil(QUAD)
    }

    fn fragments(&self) -> usize {
        self.groups.of_block() * self.steps() * self.groups.columns_of_group()
    }

    /// Where the filters begin in shared memory, behind the image or what is stored of results of
    /// that size; where the pixels' places begin; and the end.
    fn shared(&self, result: usize) -> [usize; 3] {
        let [high, wide] = self.held();
        let image = self.tile.images.saturating_mul(high).saturating_mul(wide).saturating_mul(self.pixel());
        let stage = self.tile.warps * ROWS * (self.groups.columns() * COLUMN * result + 16);
        let filters = image.max(stage).next_multiple_of(16);
        let places = filters.saturating_add(self.fragments() * FRAGMENT);
        [filters, places, places.saturating_add(self.tile.warps * PARTS * ROWS * 4)]
    }

    fn fits(&self) -> bool {
        let GroupTile { images, rows, columns, warps } = self.tile;
        let some = images > 0 && rows > 0 && columns > 0 && WARPS.contains(&warps);
        let few = self.groups.of_block() * self.steps() <= MOST_STEPS;
        some && few && images * rows * columns <= warps * PARTS * ROWS && self.shared(4)[2] <= SHARED
    }

    fn blocks(&self, images: usize) -> usize {
        let GroupTile { images: of_tile, rows, columns, .. } = self.tile;
        let chunks = (self.groups.count * self.groups.filters).div_ceil(self.groups.columns() * COLUMN);
        let tiles = self.axes[0].out.div_ceil(rows.max(1)) * self.axes[1].out.div_ceil(columns.max(1));
        chunks * tiles * images.div_ceil(of_tile.max(1))
    }

    /// Blocks that should run beside each other on a multiprocessor.
    fn beside(&self) -> usize {
        (RESIDENT / self.tile.warps).min(OF_MULTIPROCESSOR / self.shared(2)[2]).max(1)
    }

    /// A rough prediction of the cycles of a multiprocessor.
    fn cycles(&self, images: usize) -> usize {
        let [high, wide] = self.held();
        let lines = self.tile.images.saturating_mul(high);
        let copies = lines.saturating_mul((wide * self.channels() / self.unit()).div_ceil(32)) + self.fragments();
        let columns = self.groups.columns_of_group();
        // Where a row of the tile ends, lanes read from the same banks.
        let step = PARTS * (4 + columns) + 2 * columns + PARTS * ROWS / self.tile.columns.max(1);
        let multiplied = self.tile.warps * self.groups.of_block() * self.steps() * step;
        let work = copies.saturating_mul(COPY) + multiplied + self.tile.warps * PARTS * STORE;
        let of_one = self.blocks(images).div_ceil(MULTIPROCESSORS);
        of_one.saturating_mul(work).saturating_add(of_one.div_ceil(self.beside()) * WAIT)
    }
}

impl GroupWindowsKernel {
    /// True if a kernel computes such windows of images of that type.
    pub fn computes(axes: [WindowAxis; 2], groups: ChannelGroups, dtype: DType) -> bool {
        matches!(dtype, DType::F16 | DType::BF16) && GroupTile::of(axes, groups, 1).is_some()
    }

    /// True if a kernel stores results of that type.
    pub fn stores(dtype: DType) -> bool {
        dtype.is_float() && matches!(dtype.size(), 2 | 4)
    }

    fn lies(&self) -> Lies {
        Lies { axes: self.axes, groups: self.groups, tile: self.tile }
    }

    /// True if warps multiply the factors and shared memory holds the tile.
    pub fn fits(&self) -> bool {
        let GroupTile { images, rows, columns, .. } = self.tile;
        let whole = [rows, columns] == self.axes.map(|a| a.out);
        Self::computes(self.axes, self.groups, self.factors)
            && self.lies().fits()
            && (images == 1 || whole)
            && Self::stores(self.output)
    }

    /// Threads of a block.
    pub fn block(&self) -> usize {
        self.tile.warps * 32
    }

    /// Blocks for so many images.
    pub fn blocks(&self, images: usize) -> usize {
        self.lies().blocks(images)
    }

    /// Blocks that should run beside each other on a multiprocessor.
    pub fn beside(&self) -> usize {
        self.lies().beside()
    }

    /// Elements of a pixel of a group in shared memory.
    pub fn depth(&self) -> usize {
        self.groups.depth()
    }

    /// How often a warp multiplies 16 pixels.
    pub fn parts(&self) -> usize {
        PARTS
    }

    /// Columns of 8 filters of a block.
    pub fn columns(&self) -> usize {
        self.groups.columns()
    }

    /// Rows and columns of the image that the windows of a tile hold.
    pub fn held(&self) -> [usize; 2] {
        self.lies().held()
    }

    /// Bytes of a copy into shared memory, and of a pixel there.
    pub fn unit_and_pixel(&self) -> [usize; 2] {
        [self.lies().unit(), self.lies().pixel()]
    }

    /// Where filters and the pixels' places begin in shared memory, and its bytes.
    pub fn shared(&self) -> [usize; 3] {
        self.lies().shared(self.output.size())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn axis(image: usize, size: usize, stride: usize) -> WindowAxis {
        let before = size / 2;
        WindowAxis { image, out: (image + 2 * before - size) / stride + 1, size, stride, dilation: 1, before }
    }

    fn groups(count: usize, channels: usize, filters: usize) -> ChannelGroups {
        ChannelGroups { count, channels, filters }
    }

    #[test]
    fn tiles_fit_and_cover_the_result() {
        for filters in FILTERS {
            for (channels, image, size, stride) in [(4, 56, 3, 1), (8, 112, 3, 2), (24, 14, 5, 1), (64, 7, 3, 1)] {
                for images in [1, 32] {
                    let (axes, groups) = ([axis(image, size, stride); 2], groups(16, channels, filters));
                    let Some(tile) = GroupTile::of(axes, groups, images) else {
                        let steps = groups.of_block() * size * size * channels / (QUAD * QUAD);
                        assert!(steps > MOST_STEPS || channels == 64, "{groups:?} {axes:?}");
                        continue;
                    };
                    let lies = Lies { axes, groups, tile };
                    assert!(lies.fits() && tile.images <= images, "{tile:?}");
                    let covered = lies.blocks(images) * tile.images * tile.rows * tile.columns * groups.columns() * 8;
                    assert!(covered >= images * axes[0].out * axes[1].out * 16 * filters, "{tile:?}");
                    // Copies begin at whole units.
                    assert!(lies.pixel().is_multiple_of(lies.unit()) && lies.pixel() >= lies.channels());
                    assert!(lies.shared(2).iter().all(|at| at.is_multiple_of(16)));
                }
            }
        }
    }

    #[test]
    fn small_images_share_a_block() {
        let of = |image, count, channels| {
            GroupTile::of([axis(image, 3, 1); 2], groups(count, channels, channels), 32).unwrap()
        };
        let tile = of(7, 32, 32);
        assert!(tile.images > 1 && [tile.rows, tile.columns] == [7, 7], "{tile:?}");
        assert_eq!(of(56, 32, 4).images, 1);
    }

    #[test]
    fn images_of_few_channels_have_whole_columns() {
        for filters in [8, 16, 24, 32, 40, 48, 64, 96] {
            for (size, stride) in [(3, 1), (3, 2), (7, 2), (4, 4)] {
                let (axes, groups) = ([axis(224, size, stride); 2], groups(1, 3, filters));
                let tile = GroupTile::of(axes, groups, 32).unwrap();
                let lies = Lies { axes, groups, tile };
                assert!(filters % (groups.columns() * COLUMN) == 0 && groups.of_block() == 1, "{groups:?}");
                assert!(lies.pixel() == 8 && lies.shared(2).iter().all(|at| at.is_multiple_of(8)), "{tile:?}");
            }
        }
        assert!(!GroupWindowsKernel::computes([axis(14, 3, 1); 2], groups(1, 3, 20), DType::BF16));
        assert!(!GroupWindowsKernel::computes([axis(14, 3, 1); 2], groups(1, 4, 32), DType::BF16));
    }

    #[test]
    fn other_groups_and_wide_windows_do_not_fit() {
        let fits = |size, count, channels, filters| {
            let groups = groups(count, channels, filters);
            GroupWindowsKernel::computes([axis(14, size, 1); 2], groups, DType::BF16)
        };
        assert!(fits(3, 32, 4, 4) && fits(1, 2, 16, 32) && fits(5, 8, 24, 24) && fits(7, 4, 8, 8));
        // One group; channels that are no quads; filters that fill no columns; pixels of no whole
        // accesses; too long a sum; too many channels.
        assert!(!fits(3, 1, 8, 8) && !fits(3, 8, 6, 8) && !fits(3, 8, 8, 20) && !fits(3, 3, 4, 4));
        assert!(!fits(9, 8, 4, 4) && !fits(7, 2, 64, 64) && !fits(3, 2, 128, 64));
        let axes = [axis(14, 3, 1); 2];
        assert!(!GroupWindowsKernel::computes(axes, groups(8, 8, 8), DType::F32));
        assert!(GroupTile::of([WindowAxis { out: 0, ..axes[0] }; 2], groups(8, 8, 8), 1).is_none());
    }
}
