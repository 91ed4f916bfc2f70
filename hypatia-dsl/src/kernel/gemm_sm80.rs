//! Matrix products of warps (mma.sync): the product, its epilogue, and how it is cut into tiles.
//!
//! In: a product of a plan, with the layout of its operands. Out: a [`WarpGemm`] that
//! `hypatia-templates` prints, for each [`WarpTiling`] that fits. Invariant: it needs nothing that
//! GPUs from Ampere on lack, whatever the alignment of its operands; every tiling computes the same
//! elements, and in the same order in every run.

use crate::dtype::DType;
use crate::scalar::Term;

use super::checksum::RowSums;
use super::image_windows::ImageWindows;
use super::prologue::{Prologue, UNIT};
use super::tune::{self, StoredTiling, Table};
use super::{Access, Operand};

/// Shared memory that a block may use on every GPU from Ampere on, in bytes.
const SHARED: usize = 101_376;
/// Floats that pad a row of sums in shared memory.
const PADDING: usize = 8;
/// Threads of a warp.
const WARP: usize = 32;
/// The widest access, in bytes.
const WIDEST: usize = 16;
/// The most sums of a thread that multiplies itself.
const EXACT_SUMS: usize = 64;

/// How a product is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpTiling {
    /// Rows of a block's tile.
    pub rows: usize,
    /// Columns of a block's tile.
    pub columns: usize,
    /// Elements of k in a slice.
    pub depth: usize,
    /// Warps of a block.
    pub warps: usize,
    /// Groups of warps that divide the elements of k of a slice among them.
    pub split: usize,
    /// Slices in shared memory.
    pub stages: usize,
    /// Tiles along the rows that are computed before the next column, for reuse in the L2 cache.
    pub group: usize,
}

/// The tuning parameters of a `tiled` kernel for products of warps, each with its values.
pub const WARP_TUNE: &Table = &[
    ("tile_m", &[16, 32, 64, 128]),
    ("tile_n", &[32, 64, 128, 256]),
    ("tile_k", &[32, 64, 128, 256]),
    ("warps", &[4, 8]),
    ("split_k", &[1, 2, 4, 8]),
    ("stages", &[2, 3, 4, 5, 6]),
    ("group", &[1, 2, 4, 8, 16, 32, 64]),
];

/// Marks the stored form of a tiling.
pub(super) const STORED: u64 = 5;

impl WarpTiling {
    /// The tiling that these tuning parameters name, if warps can share it. Parameters that are
    /// missing have a value that suits most products.
    pub fn named(values: &[(&str, i64)]) -> Option<WarpTiling> {
        let value = |name, otherwise| tune::value(WARP_TUNE, values, name, otherwise);
        let tiling = WarpTiling {
            rows: value("tile_m", 64)?,
            columns: value("tile_n", 64)?,
            depth: value("tile_k", 32)?,
            warps: value("warps", 4)?,
            split: value("split_k", 1)?,
            stages: value("stages", 4)?,
            group: value("group", 8)?,
        };
        tiling.is_possible().then_some(tiling)
    }

    /// The tilings that these tuning parameters of a kernel name, without combinations that do not
    /// fit. Parameters of other templates have no meaning here.
    pub fn all(tune: &[(String, Vec<i64>)]) -> Vec<WarpTiling> {
        tune::combinations(WARP_TUNE, tune).iter().filter_map(|c| WarpTiling::named(c)).collect()
    }

    /// Rows and columns of warps in a group. Of the divisions of the tile the one in which a warp
    /// reads the least; `None` if a warp would have less than 16 by 16 elements.
    pub fn layout(&self) -> Option<[usize; 2]> {
        let warps = self.warps.checked_div(self.split)?;
        let part = |m: &usize| [self.rows / m, self.columns / (warps / m)];
        let fits = |m: &usize| warps.is_multiple_of(*m) && part(m).iter().all(|size| *size >= 16);
        let m = (1..=warps).filter(fits).min_by_key(|m| part(m).iter().sum::<usize>())?;
        Some([m, warps / m])
    }

    fn is_possible(&self) -> bool {
        let Some([m, n]) = self.layout() else { return false };
        // A thread keeps the sums of its part of a tile in registers, at most 128 of 255. Each
        // group has an even number of steps of 16 or 8 elements in a slice.
        let sums = self.rows / m * (self.columns / n) / WARP;
        sums <= 128 && self.depth.is_multiple_of(32 * self.split)
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        WARP * self.warps
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        let all = [self.rows, self.columns, self.depth, self.warps, self.split, self.stages, self.group];
        tune::store(STORED, &all)
    }

    /// The tiling that [`WarpTiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<WarpTiling> {
        WarpTiling::named(&tune::stored(STORED, WARP_TUNE, words)?)
    }
}

/// A factor of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// Element type in memory: that of the multiplication, or i8, which is widened on the way to
    /// 16 bits.
    pub dtype: DType,
    /// True if k is its dense axis: `[m, k]` or `[n, k]` in memory.
    pub dense_k: bool,
    /// A power of two, at most 16: every row begins at a multiple of this many bytes.
    pub unit: usize,
}

/// A matrix product with an epilogue on its accumulators, computed by warps. The accumulators are
/// f32, or i32 of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct WarpGemm {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// What is multiplied: f16, bf16, f32, or i8 and u8, of which each factor is one.
    pub multiplied: DType,
    /// Whether f32 is multiplied as it is, by the arithmetic of threads; matrix units round it to
    /// TF32.
    pub exact: bool,
    /// True if it is two products of one left factor: the term has both accumulators. Half of the
    /// columns of a warp's part of a tile are of one right factor, half of the other, which lie
    /// alike.
    pub pair: bool,
    /// Both factors. Those that are computed where they are read lie as what has their size does.
    pub factors: [Factor; 2],
    /// How each factor is computed, if it does not lie in memory.
    pub prologues: [Option<Prologue>; 2],
    /// The windows of an image that are the rows of the left factor, or the columns of the right
    /// one. The channels of the image lie last if k is the factor's dense axis, else first.
    pub images: [Option<ImageWindows>; 2],
    /// What the epilogue's `In` leaves read. Of `Full` operands and of the result, every row begins
    /// at a multiple of `vector` elements; `Row` operands begin at one.
    pub inputs: Vec<Operand>,
    /// Element types of the results, one for each root of `term`.
    pub outputs: Vec<DType>,
    /// Neighbours in a row that are read and stored in one access.
    pub vector: usize,
    /// The epilogue.
    pub term: Term,
    /// What happens to the accumulators besides.
    pub row_sums: RowSums,
    /// The tiles.
    pub tiling: WarpTiling,
}

impl WarpGemm {
    /// The 16-bit type of its factors, result and operands, if there is one.
    pub fn half(&self) -> Option<DType> {
        let types = [self.multiplied]
            .into_iter()
            .chain(self.outputs.iter().copied())
            .chain(self.inputs.iter().map(|o| o.dtype));
        types.into_iter().find(|d| is_half(*d))
    }

    /// Element type of the accumulators.
    pub fn acc(&self) -> DType {
        self.multiplied.accumulator()
    }

    /// In which type the epilogue returns its values: i32 where sums of bytes stay integers.
    pub fn value(&self) -> DType {
        let whole = self.multiplied.is_byte() && self.outputs.iter().any(|o| o.is_int());
        if whole { DType::I32 } else { DType::F32 }
    }

    /// Columns of the result in a tile.
    pub fn columns(&self) -> usize {
        if self.pair { self.tiling.columns / 2 } else { self.tiling.columns }
    }

    /// Columns of a warp's part of a tile: a sum covers them.
    pub fn warp_columns(&self) -> usize {
        self.tiling.columns / self.tiling.layout().map_or(1, |[_, n]| n)
    }

    /// Why no tiling computes this product, if none does.
    pub fn refusal(&self) -> Option<&'static str> {
        use DType::{Bool, F32, I8, U8};
        let half = self.half();
        let other_half = |d: DType| is_half(d) && Some(d) != half;
        let [a, b] = self.factors;
        let integers = self.multiplied.is_byte();
        let bytes = |f: Factor| f.dtype == DType::I8 && !integers;
        let multiplied = |f: Factor| f.dtype == self.multiplied || integers && f.dtype.is_byte();
        let computed = self.prologues.iter().any(Option::is_some);
        match () {
            () if !is_half(self.multiplied) && self.multiplied != DType::F32 && !integers => {
                Some("its factors are not f16, bf16, f32, i8 or u8")
            }
            () if integers && self.factors.iter().any(|f| !f.dense_k || f.unit < 4) => {
                Some("bytes are multiplied only where k is the dense axis of both factors, in whole words")
            }
            () if integers && self.row_sums != RowSums::Off => Some("products of bytes are not checked"),
            () if !multiplied(a) || !multiplied(b) && !bytes(b) => {
                Some("its factors have types that it does not multiply")
            }
            () if bytes(b) && (self.multiplied == DType::F32 || !a.dense_k || !b.dense_k) => {
                Some("bytes are widened only to f16 and bf16, and where k is the dense axis of both factors")
            }
            () if self.pair && (integers || computed || bytes(b) || self.row_sums != RowSums::Off) => {
                Some("two products at once are of f16, bf16 or f32, of factors in memory, and not checked")
            }
            () if computed && (!is_half(self.multiplied) || bytes(b) || self.row_sums != RowSums::Off) => {
                Some("only products of f16 and bf16 that are not checked have computed factors")
            }
            () if self.factors.iter().any(|f| f.unit < f.dtype.size() || bytes(*f) && f.unit < 4) => {
                Some("the rows of a factor begin within an element or a word")
            }
            () if self.images.iter().flatten().any(|w| !w.fits_threads()) => {
                Some("a window has more than 32 rows or columns, or no element")
            }
            () if self.images.iter().any(Option::is_some)
                && (integers || computed || self.pair || bytes(b) || self.row_sums != RowSums::Off) =>
            {
                Some("windows of an image are multiplied by floats in memory, in one product that is not checked")
            }
            () if self.images.iter().all(Option::is_some) => Some("both factors are windows"),
            () if self.exact && self.multiplied != DType::F32 => Some("only f32 is multiplied by threads"),
            () if self.outputs.is_empty() || self.outputs.len() != self.term.roots.len() => {
                Some("its term does not have one value for each result")
            }
            () if integers && self.outputs.iter().any(|o| matches!(o, DType::F64 | DType::I64)) => {
                Some("a result has 64 bits")
            }
            () if integers && self.outputs.iter().any(|o| o.is_int() != self.outputs[0].is_int()) => {
                Some("its results are not all integers, or none is one")
            }
            () if !integers && !self.outputs.iter().all(|o| is_half(*o) || matches!(o, F32 | Bool | I8 | U8)) => {
                Some("a result is not f16, bf16, f32, i8, u8 or bool")
            }
            () if self.inputs.iter().map(|o| &o.dtype).chain(&self.outputs).any(|d| other_half(*d)) => {
                Some("it reads or stores both f16 and bf16")
            }
            () => None,
        }
    }

    /// Operands of both factors, which come before those of the epilogue.
    pub fn reads(&self) -> usize {
        let of_both: usize = self.prologues.iter().map(|p| p.as_ref().map_or(1, |p| p.inputs.len())).sum();
        of_both + usize::from(self.pair)
    }

    /// Bytes of what the computed factors of a slice are computed from: whole units of all threads.
    fn raw(&self) -> usize {
        let t = &self.tiling;
        let of = |(prologue, (factor, lines)): (&Option<Prologue>, (Factor, usize))| {
            let units = (lines * t.depth / UNIT).next_multiple_of(t.threads());
            prologue.as_ref().map_or(0, |p| p.unit_bytes(factor.dense_k) * units)
        };
        self.prologues.iter().zip(self.factors.into_iter().zip([t.rows, t.columns])).map(of).sum()
    }

    /// Bytes of a slice of each factor.
    fn stage(&self) -> usize {
        let [a, b] = self.factors.map(|f| f.dtype.size());
        (self.tiling.rows * a + self.tiling.columns * b) * self.tiling.depth
    }

    /// Bytes in which warps exchange their sums.
    fn staging(&self) -> usize {
        let columns = self.tiling.layout().map_or(0, |[_, n]| self.tiling.columns / n);
        self.tiling.warps * 16 * (columns + PADDING) * 4
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        (self.tiling.stages * (self.stage() + self.raw())).max(self.staging())
    }

    /// Whether the tiling fits: its slices into shared memory, and a row of a slice among the
    /// threads that copy it.
    pub fn fits(&self) -> bool {
        let t = &self.tiling;
        let row = |f: Factor, size: usize| (if f.dense_k { t.depth } else { size }) * f.dtype.size() / f.unit.max(4);
        let [a, b] = self.factors;
        // Each group has an even number of steps, of which each takes 32 bytes of k.
        let even = (t.depth * self.multiplied.size()).is_multiple_of(64 * t.split);
        // Beside its sums, a thread that multiplies holds the factors' elements of two steps.
        let sums = t.rows * t.columns * t.split / t.threads();
        let held = !self.exact || sums <= EXACT_SUMS;
        // A unit of the dense axis has elements of one right factor.
        let half = self.warp_columns() / 2;
        let halves = !self.pair || (half.is_multiple_of(UNIT) && half.is_multiple_of(self.vector));
        even && halves
            && held
            && self.shared() <= SHARED
            && [row(a, t.rows), row(b, t.columns)].iter().all(|units| *units <= t.threads())
    }

    /// The most neighbours that one access can take, if rows of the result begin at multiples of so
    /// many bytes.
    pub fn widest(output: DType, unit: usize) -> usize {
        unit.min(WIDEST) / output.size()
    }

    /// The operands that are read like the result: with wide accesses.
    pub fn aligned(access: &Access) -> bool {
        matches!(access, Access::Full | Access::Row)
    }
}

pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scalar::TermNode;

    fn kernel(tiling: WarpTiling) -> WarpGemm {
        let mut term = Term::empty();
        let root = term.add(TermNode::Acc);
        term.roots.push(root);
        WarpGemm {
            name: "k".into(),
            doc: String::new(),
            multiplied: DType::BF16,
            exact: false,
            pair: false,
            factors: [Factor { dtype: DType::BF16, dense_k: true, unit: 16 }; 2],
            prologues: [None, None],
            images: [None, None],
            inputs: Vec::new(),
            outputs: vec![DType::BF16],
            vector: 8,
            term,
            row_sums: RowSums::Off,
            tiling,
        }
    }

    #[test]
    fn a_tiling_survives_its_stored_form() {
        let some = WarpTiling::named(&[("tile_m", 128), ("warps", 8)]).unwrap();
        assert_eq!(WarpTiling::of_words(&some.words()), Some(some));
        assert_eq!(WarpTiling::of_words(&[1; 8]), None);
        let mut words = some.words();
        words[1] = u64::MAX;
        assert_eq!(WarpTiling::of_words(&words), None);
    }

    #[test]
    fn a_warp_owns_the_squarest_part_that_there_is() {
        let layout = |values: &[(&str, i64)]| WarpTiling::named(values).and_then(|t| t.layout());
        assert_eq!(layout(&[("tile_m", 128), ("tile_n", 128)]), Some([2, 2]));
        assert_eq!(layout(&[("tile_m", 128), ("tile_n", 256), ("warps", 8)]), Some([2, 4]));
        assert_eq!(layout(&[("tile_m", 16), ("tile_n", 64)]), Some([1, 4]));
        assert_eq!(
            layout(&[("tile_m", 16), ("tile_n", 32), ("tile_k", 256), ("warps", 8), ("split_k", 8)]),
            Some([1, 1])
        );
        // Axes of 16 by 8; 256 sums a thread; one step of 16 elements for each group.
        assert_eq!(layout(&[("tile_m", 16), ("tile_n", 32)]), None);
        assert_eq!(layout(&[("tile_m", 128), ("tile_n", 256)]), None);
        assert_eq!(layout(&[("tile_k", 32), ("split_k", 2)]), None);
    }

    #[test]
    fn a_tiling_fits_if_its_slices_do() {
        let of = |values: &[(&str, i64)]| kernel(WarpTiling::named(values).unwrap());
        let wide = of(&[("tile_m", 128), ("tile_n", 128), ("tile_k", 64), ("stages", 3)]);
        assert_eq!((wide.fits(), wide.shared()), (true, 3 * 32_768));
        assert!(!of(&[("tile_m", 128), ("tile_n", 128), ("tile_k", 64), ("stages", 4)]).fits());
        // 256 columns in words are more than 64 threads copy; 128 threads do.
        let mut by_n = of(&[("tile_m", 64), ("tile_n", 256)]);
        by_n.factors[1] = Factor { dtype: DType::BF16, dense_k: false, unit: 4 };
        assert!(by_n.fits());
        by_n.multiplied = DType::F32;
        by_n.factors = [DType::F32; 2].map(|dtype| Factor { dtype, dense_k: false, unit: 4 });
        assert!(!by_n.fits());
    }

    #[test]
    fn what_is_not_multiplied_is_refused() {
        let mut k = kernel(WarpTiling::named(&[]).unwrap());
        assert_eq!(k.refusal(), None);
        k.factors[1].dtype = DType::I8;
        assert_eq!(k.refusal(), None);
        k.factors[1].dense_k = false;
        assert!(k.refusal().is_some());
        k.factors[1] = Factor { dtype: DType::F16, dense_k: true, unit: 16 };
        assert!(k.refusal().is_some());
        let mixed = Operand { dtype: DType::F16, access: Access::Full };
        assert!(WarpGemm { inputs: vec![mixed], ..kernel(k.tiling) }.refusal().is_some());
    }
}
