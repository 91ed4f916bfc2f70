//! Which part of the planes a block has, and where it lies in shared memory.
//!
//! In: the windows, element types, and the number of planes. Out: a [`WindowTile`], the fastest by
//! a rough prediction, and the places of its elements. Invariant: a tile that is chosen fits into
//! registers and shared memory of every device; accesses are aligned.

use crate::dtype::DType;

use super::WindowAxis;

/// The most elements of a window: a thread keeps a filter in registers.
const MOST_TAPS: usize = 64;
/// The most elements of a plane, so that 32 bits count them.
const MOST_ELEMENTS: usize = 1 << 30;
/// Bytes of an access.
const ACCESS: usize = 16;
/// Bytes that shared memory serves at a time.
const SERVED: usize = 128;
/// Shared memory of a block, in bytes: what every device has without asking, and where a block has
/// several planes, so that several blocks run beside each other.
const MOST_SHARED: usize = 48 << 10;
const FEW_SHARED: usize = 40 << 10;
/// The most threads of a block, and along a row.
const MOST_THREADS: usize = 256;
const MOST_WIDE: usize = 64;
/// The most rows of results of a thread, and words that it keeps.
const MOST_ROWS: usize = 8;
const MOST_HELD: usize = 144;
/// Into how many tiles a plane that one block could have may be cut; planes of a block.
const MOST_PARTS: usize = 4;
const PLANES: [usize; 11] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64];

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
    /// The tile for so many planes of results; `None` if registers or shared memory do not hold
    /// such windows.
    pub fn of(axes: [WindowAxis; 2], types: [DType; 2], planes: usize) -> Option<WindowTile> {
        let [rows, columns] = axes;
        let taps = rows.size.checked_mul(columns.size)?;
        let few = |n: [usize; 2]| n[0].checked_mul(n[1]).is_some_and(|n| n <= MOST_ELEMENTS);
        let padded = |a: &WindowAxis| a.image.checked_add(a.before);
        let counted = few([padded(&rows)?, padded(&columns)?]) && few([rows.out, columns.out]);
        let some = axes.iter().all(|a| a.out > 0 && a.image > 0 && a.stride > 0 && a.dilation > 0);
        let float = types[0].is_float() && !types[0].only_stored();
        // Windows reach the image.
        if !(some && counted && float && (1..=MOST_TAPS).contains(&taps))
            || axes.iter().any(|a| a.span(a.out) <= a.before)
        {
            return None;
        }
        let least = WindowTile { each: [1, 1], threads: [1, 1], planes: 1 };
        let geometry = Geometry::new(axes, types, least);
        let timed = geometry.candidates(planes).into_iter().map(|g| (g.cycles(planes), g.tile));
        timed.min_by(|x, y| x.0.total_cmp(&y.0)).map(|(_, tile)| tile)
    }

    /// Threads that have results.
    pub fn active(&self) -> usize {
        self.threads[0] * self.threads[1] * self.planes
    }

    /// Threads of a block: whole warps.
    pub fn block(&self) -> usize {
        self.active().next_multiple_of(32)
    }
}

/// Parts of equal size, each of at most `most`: the size of one.
fn balanced(all: usize, most: usize) -> usize {
    all.div_ceil(all.div_ceil(most.max(1)).max(1)).max(1)
}

/// Where the elements of a tile lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    axes: [WindowAxis; 2],
    /// Bytes of an element of the image, and words of 32 bits of a sum.
    size: usize,
    words: usize,
    tile: WindowTile,
}

impl Geometry {
    /// Of elements and sums of these types.
    pub fn new(axes: [WindowAxis; 2], [image, acc]: [DType; 2], tile: WindowTile) -> Geometry {
        Geometry { axes, size: image.size(), words: acc.size().div_ceil(4), tile }
    }

    /// True if a block's memory holds the tile.
    pub fn fits(&self) -> bool {
        (1..=MOST_THREADS).contains(&self.tile.active()) && self.shared(self.least()) <= MOST_SHARED
    }

    /// Tiles of a plane, along each axis.
    pub fn tiles(&self) -> [usize; 2] {
        [0, 1].map(|a| self.axes[a].out.div_ceil(self.results()[a]).max(1))
    }

    /// Rows and columns of results of a tile.
    pub fn results(&self) -> [usize; 2] {
        [0, 1].map(|a| self.tile.threads[a] * self.tile.each[a])
    }

    /// Blocks for so many planes of results.
    pub fn blocks(&self, planes: usize) -> usize {
        planes.div_ceil(self.tile.planes.max(1)) * self.tiles()[0] * self.tiles()[1]
    }

    /// Rows and columns of the image that a tile needs.
    pub fn spans(&self) -> [usize; 2] {
        [0, 1].map(|a| self.axes[a].span(self.results()[a]))
    }

    /// Elements of an access in shared memory.
    pub fn access(&self) -> usize {
        ACCESS / self.size
    }

    /// Elements that a thread reads at once: its windows begin at a multiple of it.
    pub fn read(&self) -> usize {
        self.access().min(1 << self.step(1).trailing_zeros().min(8))
    }

    /// Elements from the windows of a thread to those of the next one.
    fn step(&self, axis: usize) -> usize {
        self.tile.each[axis] * self.axes[axis].stride
    }

    /// Elements of an image that are read at once: each row is whole accesses, and each tile begins
    /// at one.
    pub fn vector(&self) -> usize {
        let columns = self.axes[1];
        let begin = if self.tiles()[1] > 1 { self.results()[1] * columns.stride } else { 0 };
        self.access().min(1 << (columns.image | begin).trailing_zeros().min(8))
    }

    /// Elements before the first one that windows need, so that those of the image are aligned.
    pub fn shift(&self) -> usize {
        let before = self.axes[1].before;
        before.next_multiple_of(self.access()) - before
    }

    /// Accesses of a thread to a row of its windows.
    pub fn packs(&self) -> usize {
        let read = self.read();
        (self.shift() % read + self.axes[1].span(self.tile.each[1])).div_ceil(read)
    }

    /// The accesses that a row and a plane take at least.
    fn least(&self) -> [usize; 2] {
        let read = self.read();
        let last = (self.tile.threads[1] - 1) * self.step(1);
        let row = (last + self.shift() / read * read + self.packs() * read).div_ceil(self.access());
        [row, self.spans()[0] * row]
    }

    /// Elements from a row to the next in shared memory, and from a plane to the next: such that
    /// the threads of a warp read from different banks.
    pub fn pitches(&self) -> [usize; 2] {
        let ([row, _], rows) = (self.least(), self.spans()[0]);
        let banks = SERVED / ACCESS;
        let beside = if self.tile.planes > 1 { banks } else { 1 };
        let all = (row..row + banks).flat_map(|u| (0..beside).map(move |more| [u, rows * u + more]));
        let fitting = all.filter(|units| self.shared(*units) <= MOST_SHARED);
        let best = fitting.min_by_key(|units| (self.served(*units), units[1]));
        best.unwrap_or(self.least()).map(|units| units * self.access())
    }

    /// How often shared memory serves a warp that reads once, for rows and planes of so many
    /// accesses.
    pub(super) fn served(&self, [of_row, of_plane]: [usize; 2]) -> usize {
        let [high, wide] = self.tile.threads;
        let unit = self.read() * self.size;
        let banks = SERVED / unit;
        let place = |t: usize| {
            let (x, y, plane) = (t % wide, t / wide % high, t / wide / high);
            ((plane * of_plane + y * self.step(0) * of_row) * ACCESS + x * self.step(1) * self.size) / unit % banks
        };
        let active = self.tile.active().min(32);
        let of_phase = |first: usize| {
            let mut wanted = [0; SERVED];
            (first..(first + banks).min(active)).for_each(|t| wanted[place(t)] += 1);
            wanted.into_iter().max().unwrap_or(0)
        };
        (0..active).step_by(banks).map(of_phase).sum()
    }

    /// Bytes of shared memory, for rows and planes of so many accesses.
    fn shared(&self, [_, of_plane]: [usize; 2]) -> usize {
        let [rows, columns] = self.axes;
        self.tile.planes * (of_plane * ACCESS + rows.size * columns.size * self.words * 4)
    }

    /// Words that a thread keeps: its sums, the filter, and a row of its windows.
    fn held(&self) -> usize {
        let ([rows, columns], [down, across]) = (self.axes, self.tile.each);
        (down * across + rows.size * columns.size + columns.span(across)) * self.words
    }

    /// The most neighbouring results of a thread: as many as lie in one access, or as their windows
    /// begin in one.
    fn most_across(&self) -> usize {
        let columns = self.axes[1];
        let most = (self.access() / columns.stride).max(1);
        // Powers of two: accesses are.
        let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        most.min(columns.out.next_power_of_two())
    }

    /// The tiles that fit, of which one is chosen.
    fn candidates(&self, planes: usize) -> Vec<Geometry> {
        let mut out = Vec::new();
        let across = self.most_across();
        for across in [across, across / 2].into_iter().filter(|a| *a > 0) {
            for down in 1..=MOST_ROWS.min(self.axes[0].out) {
                let each = [down, across];
                let all = [0, 1].map(|a| self.axes[a].out.div_ceil(each[a]));
                let wide = balanced(all[1], MOST_WIDE);
                // Planes are cut into few parts, or into as small ones as threads and memory want.
                let halves = std::iter::successors(Some(all[0]), |n| (*n > 1).then_some(n.div_ceil(2)));
                let mut high: Vec<usize> = halves.chain((1..=MOST_PARTS).map(|parts| all[0].div_ceil(parts))).collect();
                high.sort_unstable();
                high.dedup();
                for threads in high.into_iter().map(|high| [balanced(all[0], high), wide]) {
                    let tiles = PLANES.map(|planes| WindowTile { each, threads, planes });
                    let fits = |t: &WindowTile| t.planes == 1 || t.planes <= planes && threads == all;
                    out.extend(tiles.into_iter().filter(fits).map(|tile| Geometry { tile, ..*self }));
                }
            }
        }
        out.retain(|g| {
            let room = if g.tile.planes == 1 { MOST_SHARED } else { FEW_SHARED };
            g.tile.active() <= MOST_THREADS && g.held() <= MOST_HELD.max(g.words * 80) && g.shared(g.least()) <= room
        });
        // Parts of few rows read most of these twice.
        let thick = |g: &Geometry| g.tiles()[0] == 1 || g.results()[0] >= 2 * self.axes[0].span(1);
        if out.iter().any(thick) {
            out.retain(thick);
        }
        out
    }

    /// Blocks that should run beside each other: as many as fit without keeping less of their work
    /// in registers. Left alone, a compiler takes twice the registers.
    pub fn beside(&self) -> usize {
        /// Of a multiprocessor: quarters, registers of a lane in each, bytes of shared memory, and
        /// threads that keep it busy. A thread has some registers for addresses, and as many as
        /// these while it brings the image.
        const QUARTERS: usize = 4;
        const REGISTERS: usize = 512;
        const SHARED: usize = 220 << 10;
        const BUSY: usize = 1024;
        const OF_ADDRESSES: usize = 40;
        const BRINGING: usize = 96;
        let block = self.tile.block();
        let registers = (self.held() + OF_ADDRESSES).max(BRINGING);
        let of_registers = REGISTERS / registers * QUARTERS * 32 / block;
        let of_shared = SHARED / (self.shared(self.least()) + 1024);
        of_registers.min(of_shared).min(BUSY / block).clamp(1, 24)
    }

    /// Predicted cycles. Rough: it only ranks tiles.
    fn cycles(&self, planes: usize) -> f64 {
        /// A large GPU: multiprocessors, bytes of memory of each in a cycle, and cycles until what
        /// is asked for arrives.
        const MULTIPROCESSORS: f64 = 132.0;
        const BYTES: f64 = 20.0;
        const LATENCY: f64 = 1000.0;
        let ([rows, columns], [down, across], t) = (self.axes, self.tile.each, &self.tile);
        let (taps, block) = (rows.size * columns.size, t.block());
        let reads = rows.span(down) * self.packs();
        let [high, wide] = self.spans();
        // Accesses to the image of a thread, and how often it waits for them.
        let asked = (t.planes * high.min(rows.image) * wide.min(columns.image)).div_ceil(self.vector() * block);
        let waits = asked.div_ceil(8) as f64;
        let sums = (down * across * (taps + 6) + rows.span(down) * columns.span(across)) * self.words;
        let issued = sums + reads + taps * self.words + asked * (12 + self.vector()) + 120;
        let served = reads * 32 * self.read() * self.size / SERVED + taps * self.words;
        let beside = self.beside() as f64;
        let blocks = self.blocks(planes).max(1) as f64;
        let warps = blocks * block as f64 / 32.0 / MULTIPROCESSORS;
        let computed = warps * (issued as f64 / 4.0).max(served as f64);
        let moved = (planes * (rows.image * columns.image + rows.out * columns.out) * self.size) as f64;
        let moved = moved / BYTES / MULTIPROCESSORS;
        // A block alone: it waits for the image, and then has few instructions on their way.
        let alone = (waits + 1.0) * LATENCY + issued as f64 * 2.0;
        let waited = (blocks / MULTIPROCESSORS / beside).max(1.0) * alone;
        let longest = computed.max(moved).max(waited);
        // Few blocks beside each other do not move and compute at the same time.
        let all = longest + (computed + moved - longest).max(0.0) / beside / 2.0;
        // A warp alone has nothing to do at a barrier.
        if block < 64 { all * 1.1 } else { all }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn threads_side_by_side_read_from_different_banks_as_a_rule() {
        for image in [7, 14, 28, 56, 112] {
            for size in [3, 5, 7] {
                let before = size / 2;
                let axis = WindowAxis { image, out: image, size, stride: 1, dilation: 1, before };
                let types = [DType::BF16, DType::F32];
                let tile = WindowTile::of([axis; 2], types, 100_000).unwrap();
                let g = Geometry::new([axis; 2], types, tile);
                let best = g.read() * g.size * 32 / SERVED;
                let served = g.served(g.pitches().map(|p| p / g.access()));
                assert!(served <= 2 * best, "{image}: {served} of {best}, {tile:?}");
            }
        }
    }
}
