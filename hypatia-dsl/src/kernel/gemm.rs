//! Tiled matrix products: the product, its epilogue, and how it is cut into tiles.
//!
//! In: a product of a plan, with the layout of its operands. Out: a [`GemmKernel`] that
//! `hypatia-templates` prints, for each [`Tiling`] that fits. Invariant: every tiling computes the
//! same elements, each summed over k in ascending order, or in one order for each part of k where
//! that is split; but for that the tiling decides only the speed.

use crate::dtype::DType;
use crate::scalar::Term;

use super::checksum::RowSums;
use super::gemm_sm80::is_half;
use super::image_windows::ImageWindows;
use super::prologue::{Prologue, UNIT};
use super::reduced::{Along, Reduced};
use super::tune::{self, StoredTiling, Table};
use super::{Access, Operand};

/// Elements of k of a 16-bit type that one stage holds: 128 bytes, the widest swizzle of the copy
/// engine.
pub const TILE_K: usize = 64;
/// Shared memory that a block may use on Hopper, in bytes.
const SHARED: usize = 232_448;
/// Alignment of the stages, in bytes: the swizzle repeats with this period.
const ALIGNMENT: usize = 1024;
/// Bytes of a row of a stage or of a part of the result.
const ROW: usize = 128;
/// Operands of the result's shape that the copy engine fetches; more are read directly.
const MAX_FETCHED: usize = 2;
/// Slots from which a result is stored in turn, and rows of a slot.
const SLOTS: usize = 2;
const SLOT_ROWS: usize = 64;
/// Threads of a group.
const GROUP: usize = 128;
/// Units of a stage that a thread computes at most: each takes four registers.
const UNITS: usize = 12;
/// Bytes that are on their way to where factors are computed, and stages of them at most.
const ON_THEIR_WAY: usize = 32_768;
const MAX_AHEAD: usize = 4;
/// More stages than this hide no more latency.
const MAX_STAGES: usize = 12;

/// How a product is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Rows of the result that one group of consumers (128 threads) owns: 64 or 128.
    pub rows: usize,
    /// Columns of a tile: a multiple of 32, at most 256.
    pub columns: usize,
    /// Groups of consumers in a block: 1 or 2.
    pub consumers: usize,
    /// True if each group owns a whole tile, so that one group's epilogue overlaps with the other's
    /// product. Otherwise the groups share a tile.
    pub pingpong: bool,
    /// Blocks along the rows and along the columns that load shared operands once.
    pub cluster: [usize; 2],
    /// Tiles along the rows that are computed before the next column, for reuse in the L2 cache.
    pub group: usize,
    /// Blocks that divide k among them: a cluster, which then shares no loads.
    pub split: usize,
}

/// The tuning parameters of a `tiled` kernel for Hopper, each with the values that the hardware
/// has.
pub const TUNE: &Table = &[
    ("tile_m", &[64, 128]),
    ("tile_n", &[32, 64, 96, 128, 160, 192, 256]),
    ("consumers", &[1, 2]),
    ("pingpong", &[0, 1]),
    ("cluster_m", &[1, 2]),
    ("cluster_n", &[1, 2]),
    ("group", &[1, 2, 4, 8, 16, 32, 64]),
    ("split_k", &[1, 2, 4]),
];

/// Marks the stored form of a tiling.
pub(super) const STORED: u64 = 3;

impl Tiling {
    /// The tiling that these tuning parameters name, if the hardware can run it. Parameters that
    /// are missing have the value of the first choice that makes sense for any product.
    pub fn named(values: &[(&str, i64)]) -> Option<Tiling> {
        let value = |name, otherwise| tune::value(TUNE, values, name, otherwise);
        let tiling = Tiling {
            rows: value("tile_m", 64)?,
            columns: value("tile_n", 128)?,
            consumers: value("consumers", 2)?,
            pingpong: value("pingpong", 0)? != 0,
            cluster: [value("cluster_m", 1)?, value("cluster_n", 1)?],
            group: value("group", 8)?,
            split: value("split_k", 1)?,
        };
        tiling.is_possible().then_some(tiling)
    }

    /// The tilings that these tuning parameters of a kernel name, without combinations that the
    /// hardware cannot run. Parameters of other templates have no meaning here.
    pub fn all(tune: &[(String, Vec<i64>)]) -> Vec<Tiling> {
        tune::combinations(TUNE, tune).iter().filter_map(|c| Tiling::named(c)).collect()
    }

    fn is_possible(&self) -> bool {
        // A thread keeps the sums of its part of a tile in registers, at most 128 of 232.
        let sums = self.rows * self.columns / 128;
        let splits = self.split == 1 || (!self.pingpong && self.cluster == [1, 1]);
        sums <= 128 && (!self.pingpong || self.consumers == 2) && splits
    }

    /// Rows of a block's tile.
    pub fn block_rows(&self) -> usize {
        self.rows * if self.pingpong { 1 } else { self.consumers }
    }

    /// True if two products can share its columns, half of them each: parts of 64 columns.
    pub fn has_pairs(&self) -> bool {
        self.columns.is_multiple_of(128)
    }

    /// Blocks of a cluster.
    pub fn blocks(&self) -> usize {
        self.cluster[0] * self.cluster[1] * self.split
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        let [m, n] = self.cluster;
        let pingpong = usize::from(self.pingpong);
        tune::store(STORED, &[self.rows, self.columns, self.consumers, pingpong, m, n, self.group, self.split])
    }

    /// The tiling that [`Tiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<Tiling> {
        Tiling::named(&tune::stored(STORED, TUNE, words)?)
    }
}

/// A matrix product with an epilogue on its accumulators, in tiles. The accumulators are f32, or
/// i32 of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element types of the left factor and of the right ones: f16, bf16, or f32, which is rounded
    /// to TF32, alike; or i8 and u8, of which each is one.
    pub types: [DType; 2],
    /// True if it is two products of one left factor: the term has both accumulators. The right
    /// factors lie side by side in a tile, half of its columns each.
    pub pair: bool,
    /// For the left and the right factors, true if k is the dense axis: `[m, k]` or `[n, k]` in
    /// memory.
    pub dense_k: [bool; 2],
    /// For the left and the right factors, true if all products of a batch have the same one, which
    /// lies in memory once.
    pub shared: [bool; 2],
    /// Elements of k that lie side by side in the left factor, and columns in the results, if other
    /// axes lie between such parts: heads.
    pub parts: [Option<usize>; 2],
    /// How the left factor and the right ones are computed, if they do not lie in memory.
    pub prologues: [Option<Prologue>; 2],
    /// The windows that are the rows of the left factor, if that is an image.
    pub windows: Option<ImageWindows>,
    /// What the epilogue's `In` leaves read.
    pub inputs: Vec<Operand>,
    /// Element types of the stored results, one for each of the first roots of `term`.
    pub outputs: Vec<DType>,
    /// What is reduced of the other roots.
    pub reduced: Vec<Reduced>,
    /// The epilogue.
    pub term: Term,
    /// What happens to the accumulators besides.
    pub row_sums: RowSums,
    /// The tiles.
    pub tiling: Tiling,
}

impl GemmKernel {
    /// Factors of the products, which come before the epilogue's operands.
    pub fn factors(&self) -> usize {
        if self.pair { 3 } else { 2 }
    }

    /// Whether integers of 8 bits are multiplied.
    pub fn of_bytes(&self) -> bool {
        self.types.iter().all(|t| t.is_byte())
    }

    /// The 16-bit type of its factors, results and operands, if there is one.
    pub fn half(&self) -> Option<DType> {
        let beside = self.outputs.iter().copied().chain(self.inputs.iter().map(|o| o.dtype));
        self.types.into_iter().chain(beside).find(|d| is_half(*d))
    }

    /// Element type of the accumulators.
    pub fn acc(&self) -> DType {
        self.types[0].accumulator()
    }

    /// In which type the epilogue returns its values: i32 where sums of bytes stay integers.
    pub fn value(&self) -> DType {
        if self.of_bytes() && self.outputs.iter().any(|o| o.is_int()) { DType::I32 } else { DType::F32 }
    }

    /// Operands of all factors, which come before those of the epilogue.
    pub fn reads(&self) -> usize {
        let [left, right] = [0, 1].map(|i| self.prologues[i].as_ref().map_or(1, |p| p.inputs.len()));
        left + right * (self.factors() - 1)
    }

    /// True if a factor is computed where it is read.
    pub fn computes(&self) -> bool {
        self.prologues.iter().any(Option::is_some)
    }

    /// Groups of the producer: one warp of one loads, two compute.
    pub fn producers(&self) -> usize {
        if self.computes() { 2 } else { 1 }
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        GROUP * (self.tiling.consumers + self.producers())
    }

    /// Registers of a thread of the producer and of a consumer, where they differ from the share
    /// of a thread: all groups together have no more than at first.
    pub fn registers(&self) -> Option<[usize; 2]> {
        match (self.tiling.consumers, self.computes()) {
            (1, false) => None,
            (_, false) => Some([40, 232]),
            (1, true) => Some([128, 240]),
            (_, true) => Some([72, 184]),
        }
    }

    /// Whether registers hold what a thread computes: units of a stage, and the sums of one
    /// multiplication in the share of a thread in all registers.
    fn computes_in_registers(&self) -> bool {
        let t = &self.tiling;
        let lines = [t.block_rows(), t.columns];
        let of = |(p, lines): (&Option<Prologue>, usize)| if p.is_some() { lines * TILE_K / (UNIT * GROUP) } else { 0 };
        let units: usize = self.prologues.iter().zip(lines).map(of).sum();
        units <= UNITS && (t.consumers == 1 || t.columns <= 128)
    }

    /// Bytes of what the computed factors of a stage are computed from.
    fn raw(&self) -> usize {
        let t = &self.tiling;
        let of = |i: usize, lines: usize| {
            let bytes = |p: &Prologue| p.unit_bytes(self.dense_k[i]) * lines * TILE_K / UNIT;
            self.prologues[i].as_ref().map_or(0, bytes)
        };
        of(0, t.block_rows()) + of(1, t.columns)
    }

    /// Stages of a group of producers for which that is on its way.
    pub fn ahead(&self) -> usize {
        (ON_THEIR_WAY / (self.producers() * self.raw()).max(1)).clamp(2, MAX_AHEAD)
    }

    /// Columns of the result in a tile.
    pub fn columns(&self) -> usize {
        if self.pair { self.tiling.columns / 2 } else { self.tiling.columns }
    }

    /// The operands of the result's shape that the copy engine fetches ahead of the epilogue.
    pub fn fetched(&self) -> Vec<usize> {
        let fits = |o: &Operand| o.access == Access::Full && o.dtype == self.outputs[0] && !o.dtype.is_int();
        let all = self.inputs.iter().enumerate().filter(|(_, o)| fits(o)).map(|(i, _)| i);
        all.take(MAX_FETCHED).collect()
    }

    /// The operands of a row that are copied to shared memory during the product.
    pub fn staged_rows(&self) -> Vec<usize> {
        let fits = |o: &Operand| o.access == Access::Row && (is_half(o.dtype) || o.dtype == DType::F32);
        self.inputs.iter().enumerate().filter(|(_, o)| fits(o)).map(|(i, _)| i).collect()
    }

    /// Why no tiling computes this product, if none does.
    pub fn refusal(&self) -> Option<&'static str> {
        use DType::{BF16, F16, F32, I8, I32, U8};
        let [factor, right] = self.types;
        let (single, bytes) = (factor == F32, self.of_bytes());
        let other_half = |o: &Operand| is_half(o.dtype) && (single || Some(o.dtype) != self.half());
        let stored: &[DType] = if bytes { &[F16, BF16, F32, I32, I8, U8] } else { &[factor, F32, I8, U8] };
        let prologues = || self.prologues.iter().flatten().find_map(|p| p.refusal(factor));
        match () {
            () if self.computes() && self.row_sums != RowSums::Off => {
                Some("a product with computed factors is not checked")
            }
            () if self.windows.is_some() && self.row_sums != RowSums::Off => {
                Some("a product of windows is not checked")
            }
            () if self.windows.is_some() && (self.pair || self.computes() || !self.dense_k[0]) => {
                Some("its windows are not the rows of one left factor")
            }
            () if self.parts != [None, None] && (self.pair || self.windows.is_some() || self.computes()) => {
                Some("its heads are those of one product whose factors lie in memory")
            }
            () if self.parts[0].is_some_and(|p| !self.dense_k[0] || !p.is_multiple_of(self.depth())) => {
                Some("a slice of k has parts of several heads")
            }
            () if self.windows.is_some_and(|w| !w.fits(factor)) => Some("the copy engine does not read such windows"),
            () if !is_half(factor) && !single && !bytes => Some("its factors are not f16, bf16, f32, i8 or u8"),
            () if factor != right && !bytes => Some("its factors have types that it does not multiply"),
            () if (single || bytes) && self.dense_k != [true, true] => {
                Some("in TF32, and of bytes, the matrix units multiply factors whose dense axis is k")
            }
            () if (single || bytes) && (self.computes() || self.windows.is_some()) => {
                Some("in TF32, and of bytes, its factors are not computed, nor windows")
            }
            () if (single || bytes) && self.row_sums != RowSums::Off => {
                Some("in TF32, and of bytes, it is not checked")
            }
            () if bytes && self.pair => Some("two products at once are not of bytes"),
            () if self.outputs.is_empty() || self.outputs.len() + self.reduced.len() != self.term.roots.len() => {
                Some("its term does not have one value for each result")
            }
            // No plan was seen that needs it, so nothing tests it.
            () if !self.reduced.is_empty() && (self.outputs[0] != factor || bytes) => {
                Some("its reductions are of results of another type than its factors, or of integers")
            }
            () if !self.reduced.iter().all(|r| Reduced::joins(r.kind)) => Some("no parts of its reductions are joined"),
            () if !self.reduced.is_empty() && self.row_sums != RowSums::Off => {
                Some("a product with reductions is not checked")
            }
            () if !stored.contains(&self.outputs[0]) => Some("it does not store results of that type"),
            () if self.outputs.iter().any(|o| *o != self.outputs[0]) => Some("its results have several types"),
            () if self.inputs.iter().any(other_half) => {
                Some("its epilogue reads a type of 16 bits that is not that of its factors or results")
            }
            () => prologues(),
        }
    }

    /// Columns of the result that a block finishes.
    pub fn kept(&self) -> usize {
        self.columns() / self.tiling.split
    }

    /// Columns of the result that one store of the copy engine takes: 128 bytes, or the largest
    /// part of them that divides the columns.
    pub fn chunk(&self) -> usize {
        let widest = ROW / self.outputs[0].size();
        [widest, widest / 2, widest / 4].into_iter().find(|c| self.is_cut_by(*c)).unwrap_or(widest)
    }

    /// Whether so many columns divide a block's, and the parts of a result.
    fn is_cut_by(&self, chunk: usize) -> bool {
        self.kept().is_multiple_of(chunk) && self.parts[1].is_none_or(|p| p.is_multiple_of(chunk))
    }

    /// Elements of k in a slice: 128 bytes.
    pub fn depth(&self) -> usize {
        ROW / self.types[0].size()
    }

    /// Slices of sums of that length.
    pub fn slices(&self, k: usize) -> usize {
        self.windows.map_or(k.div_ceil(self.depth()), |w| w.slices())
    }

    /// Bytes of one stage: a slice of each factor.
    fn stage(&self) -> usize {
        (self.tiling.block_rows() + self.tiling.columns) * ROW
    }

    /// Operands and results that have memory for a whole tile: a result is stored from where an
    /// operand was fetched.
    pub fn whole(&self) -> usize {
        self.fetched().len().max(usize::from(self.outputs.len() == 1))
    }

    /// The other results, which are stored from two slots in turn: stages of the factors are worth
    /// more than memory for several results.
    pub fn in_turn(&self) -> usize {
        self.outputs.len().saturating_sub(self.whole())
    }

    /// Bytes from which one group of consumers stores, and into which its operands are fetched.
    fn staging(&self) -> usize {
        let (chunks, row) = (self.kept().div_ceil(self.chunk()), self.chunk() * self.outputs[0].size());
        row * (self.tiling.rows * chunks * self.whole() + SLOT_ROWS * SLOTS * self.in_turn())
    }

    /// Bytes in which the warps of a group join what they reduced over their rows: two chunks of
    /// columns in turn.
    fn reduced_room(&self) -> usize {
        let over_rows = self.reduced.iter().filter(|r| r.along == Along::Rows).count();
        over_rows * 2 * 4 * self.chunk() * size_of::<f32>()
    }

    /// Bytes of the sums that other blocks send to a group of consumers.
    fn exchanged(&self) -> usize {
        let t = &self.tiling;
        (t.split - 1) * t.rows * (t.columns / t.split) * size_of::<f32>()
    }

    /// Bytes other than the stages: the staging of all groups, alignment, barriers.
    fn overhead(&self) -> usize {
        let barriers = 8 * (2 * MAX_STAGES + 3 * self.tiling.consumers);
        let rows = self.staged_rows().len() * self.kept() * 4 + self.exchanged();
        let raw = if self.computes() { self.producers() * self.ahead() * self.raw() } else { 0 };
        self.tiling.consumers * (self.staging() + rows + self.reduced_room()) + raw + ALIGNMENT + barriers
    }

    /// Stages that fit into shared memory; `None` if fewer than two do, or if a factor whose dense
    /// axis is not k cannot be cut for the cluster.
    pub fn stages(&self) -> Option<usize> {
        let [a, b] = self.dense_k;
        let [m, n] = self.tiling.cluster;
        let cut = |dense: bool, size: usize, parts: usize| dense || (size / parts).is_multiple_of(64);
        let cut = cut(a, self.tiling.block_rows(), n) && cut(b, self.tiling.columns, m);
        let cut = cut && (!self.pair || self.tiling.has_pairs()) && self.is_cut_by(self.chunk());
        // Each block computes what it multiplies.
        let cut = cut && (!self.computes() || (self.tiling.blocks() == 1 && self.computes_in_registers()));
        let stages = SHARED.checked_sub(self.overhead())? / self.stage();
        (cut && stages >= 2).then_some(stages.min(MAX_STAGES))
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        self.stages().unwrap_or(0) * self.stage() + self.overhead()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scalar::TermNode;

    const WIDE: Tiling =
        Tiling { rows: 128, columns: 128, consumers: 2, pingpong: true, cluster: [2, 1], group: 8, split: 1 };

    fn kernel(tiling: Tiling, fulls: usize) -> GemmKernel {
        let mut term = Term::empty();
        let root = term.add(TermNode::Acc);
        term.roots.push(root);
        let full = Operand { dtype: DType::BF16, access: Access::Full };
        GemmKernel {
            name: "k".into(),
            doc: String::new(),
            types: [DType::BF16; 2],
            pair: false,
            dense_k: [true, true],
            shared: [false, false],
            parts: [None, None],
            prologues: [None, None],
            windows: None,
            inputs: vec![full; fulls],
            reduced: Vec::new(),
            outputs: vec![DType::BF16],
            term,
            row_sums: RowSums::Off,
            tiling,
        }
    }

    #[test]
    fn a_tiling_survives_its_stored_form() {
        let split = Tiling { pingpong: false, cluster: [1, 1], split: 4, ..WIDE };
        assert_eq!([WIDE, split].map(|t| Tiling::of_words(&t.words())), [Some(WIDE), Some(split)]);
        assert_eq!(Tiling::of_words(&[1; 8]), None);
        let mut words = WIDE.words();
        words[2] = 1 << 40;
        assert_eq!(Tiling::of_words(&words), None);
        words[2] = u64::MAX;
        assert_eq!(Tiling::of_words(&words), None);
    }

    #[test]
    fn tilings_that_the_hardware_cannot_run_are_refused() {
        let named = |name: &str, value: i64| Tiling::named(&[(name, value)]);
        assert!(named("tile_n", 96).is_some() && named("tile_n", 100).is_none() && named("tile_n", 320).is_none());
        assert!(named("consumers", 3).is_none() && named("cluster_m", 4).is_none() && named("group", 0).is_none());
        assert!(named("tile_m", -64).is_none());
        assert_eq!(named("pingpong", 2), None);
        // 128 x 256 sums are 256 registers a thread.
        assert_eq!(Tiling::named(&[("tile_m", 128), ("tile_n", 256)]), None);
        assert_eq!(Tiling::named(&[("consumers", 1), ("pingpong", 1)]), None);
        // A cluster either splits k or shares loads.
        assert_eq!(Tiling::named(&[("split_k", 2), ("cluster_n", 2)]), None);
        assert_eq!(Tiling::named(&[("split_k", 2), ("pingpong", 1)]), None);
        assert_eq!(Tiling::named(&[("split_k", 4)]).map(|t| t.blocks()), Some(4));
    }

    #[test]
    fn declared_tilings_are_those_that_the_hardware_can_run() {
        let tune =
            |list: &[(&str, &[i64])]| -> Vec<_> { list.iter().map(|(n, v)| (n.to_string(), v.to_vec())).collect() };
        let of =
            |list: &[(&str, &[i64])]| Tiling::all(&tune(list)).iter().map(|t| (t.rows, t.columns)).collect::<Vec<_>>();
        assert_eq!(of(&[("tile_m", &[64, 128, 96, 64]), ("tile_n", &[256])]), [(64, 256)]);
        assert_eq!(of(&[("tile_m", &[128]), ("tile_n", &[256])]), []);
        assert_eq!(of(&[]), [(64, 128)]);
    }

    #[test]
    fn stages_fill_what_the_epilogue_leaves_of_shared_memory() {
        for (fulls, stages) in [(0, 5), (1, 5), (2, 3), (3, 3)] {
            let k = kernel(WIDE, fulls);
            assert_eq!((k.stages(), k.fetched().len()), (Some(stages), fulls.min(2)), "{fulls} operands");
            assert!(k.shared() <= SHARED);
        }
        // Two results are stored in turn, or the second one beside an operand.
        let two = |fulls: usize| {
            let mut k = kernel(WIDE, fulls);
            k.outputs.push(DType::BF16);
            k.term.roots.push(k.term.root());
            (k.stages(), k.whole(), k.in_turn())
        };
        assert_eq!([two(0), two(1), two(2)], [(Some(5), 0, 2), (Some(4), 1, 1), (Some(3), 2, 0)]);
        // Two products store half the columns.
        let pair = |columns: usize| GemmKernel { pair: true, ..kernel(Tiling { columns, ..WIDE }, 0) };
        assert_eq!((pair(128).stages(), pair(192).stages()), (Some(6), None));
        assert_eq!((pair(128).columns(), pair(128).factors()), (64, 3));
        // Rows of n cannot be cut into halves of 32 columns.
        let narrow = Tiling { columns: 64, ..WIDE };
        let by_n = GemmKernel { dense_k: [true, false], ..kernel(narrow, 0) };
        assert_eq!((by_n.stages(), kernel(narrow, 0).stages().is_some()), (None, true));
    }
}
