//! Matrix products of few rows: the product, its epilogue, and how it is cut among blocks.
//!
//! In: a product of a plan with at most [`MOST_ROWS`] rows, with the layout of its operands. Out: a
//! [`GemvKernel`] that `hypatia-templates` prints, for each [`GemvTiling`] that fits. Invariant: it
//! needs nothing that GPUs from Ampere on lack; every run adds up the elements of k in the same
//! order.
//!
//! Such a product does little work with each element of its right factor, so it takes as long as
//! that factor's way from memory. A tile of the other templates wastes most of its rows on it, and
//! its few blocks leave most of the device idle.

use crate::dtype::DType;
use crate::scalar::Term;

use super::Operand;
use super::gemm_sm80::{Factor, is_half};
use super::prologue::{Prologue, Walked};
use super::tune::{self, StoredTiling, Table};

/// Rows that a kernel has at most.
pub const MOST_ROWS: usize = 32;
/// Neighbours along k that a thread reads at a time, and those of bytes.
const NEIGHBOURS: usize = 8;
const NEIGHBOURS_OF_BYTES: usize = 16;
/// Threads of a warp that share the elements of k of a line.
const PARTS: usize = 4;
/// Shared memory of a block in bytes, at most: what a kernel may have without asking for more.
const SHARED: usize = 49_152;
/// Columns of a multiplication of a warp.
const NARROWEST: usize = 8;
/// Threads of a warp.
const WARP: usize = 32;
/// The widest access, in bytes.
const WIDEST: usize = 16;
/// Registers of words that a thread may have on their way, at most: the rest of 255 is for sums and
/// addresses.
const WORDS: usize = 128;

/// How a product of few rows is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemvTiling {
    /// Columns of a block.
    pub columns: usize,
    /// Warps of a block, which divide the elements of k among them.
    pub warps: usize,
    /// Steps along k whose elements a warp reads at a time.
    pub unroll: usize,
}

/// The tuning parameters of a `tiled` kernel for products of few rows, each with its values.
pub const GEMV_TUNE: &Table = &[("tile_n", &[8, 16, 32, 64]), ("warps", &[4, 8, 16, 32]), ("unroll", &[1, 2, 4, 8])];

/// Marks the stored form of a tiling.
pub(super) const STORED: u64 = 10;

impl GemvTiling {
    /// The tiling that these tuning parameters name, if it fits any product. Parameters that are
    /// missing have a value that suits most products.
    pub fn named(values: &[(&str, i64)]) -> Option<GemvTiling> {
        let value = |name, otherwise| tune::value(GEMV_TUNE, values, name, otherwise);
        let tiling =
            GemvTiling { columns: value("tile_n", 16)?, warps: value("warps", 8)?, unroll: value("unroll", 4)? };
        (tiling.words_ahead(8, 1) <= WORDS && tiling.shared(8, 1) <= SHARED).then_some(tiling)
    }

    /// Words that a thread reads at a time, for so many padded rows and right factors.
    fn words_ahead(&self, rows: usize, rights: usize) -> usize {
        self.unroll * (self.columns / NARROWEST * 4 * rights + rows / 2)
    }

    /// Bytes in which warps add up their sums, likewise.
    fn shared(&self, rows: usize, rights: usize) -> usize {
        self.warps * rows * self.columns * 4 * rights
    }

    /// The tilings that these tuning parameters of a kernel name. Parameters of other templates
    /// have no meaning here.
    pub fn all(tune: &[(String, Vec<i64>)]) -> Vec<GemvTiling> {
        tune::combinations(GEMV_TUNE, tune).iter().filter_map(|c| GemvTiling::named(c)).collect()
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        WARP * self.warps
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        tune::store(STORED, &[self.columns, self.warps, self.unroll])
    }

    /// The tiling that [`GemvTiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<GemvTiling> {
        GemvTiling::named(&tune::stored(STORED, GEMV_TUNE, words)?)
    }
}

/// A matrix product of few rows with an epilogue on its accumulators. The accumulators are f32.
#[derive(Clone, Debug, PartialEq)]
pub struct GemvKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Both factors, of one 16-bit type. k is the dense axis of the left one. Those that are
    /// computed where they are read lie as what has their size does.
    pub factors: [Factor; 2],
    /// How each factor is computed, if it does not lie in memory.
    pub prologues: [Option<Prologue>; 2],
    /// True if there is a second right factor, which is read as the first one is; its accumulator
    /// is the term's second.
    pub pair: bool,
    /// Rows of each product, at most [`MOST_ROWS`].
    pub rows: usize,
    /// Columns of each product.
    pub columns: usize,
    /// Length of the sums.
    pub depth: usize,
    /// What the epilogue's `In` leaves read.
    pub inputs: Vec<Operand>,
    /// Element type of the result.
    pub output: DType,
    /// The epilogue.
    pub term: Term,
    /// How it is cut.
    pub tiling: GemvTiling,
}

impl GemvKernel {
    /// Why no tiling computes this product, if none does.
    pub fn refusal(&self) -> Option<&'static str> {
        let [a, b] = self.factors;
        let other_half = |d: DType| is_half(d) && d != a.dtype;
        let prologues = || self.prologues.iter().flatten().find_map(|p| p.refusal(a.dtype));
        match () {
            () if !is_half(a.dtype) || a.dtype != b.dtype => Some("its factors are not both f16 or both bf16"),
            () if self.rows > MOST_ROWS => Some("it has too many rows"),
            () if !a.dense_k => Some("k is not the dense axis of its left factor"),
            () if a.unit < WIDEST || !self.depth.is_multiple_of(WIDEST / a.dtype.size()) => {
                Some("its sums are not whole accesses of 16 bytes")
            }
            () if b.dense_k && b.unit < WIDEST => Some("rows of its right factor do not begin at 16 bytes"),
            () if self.output != DType::F32 && !is_half(self.output) => Some("its result is not f16, bf16 or f32"),
            () if self.inputs.iter().any(|o| other_half(o.dtype)) || other_half(self.output) => {
                Some("it reads or stores both f16 and bf16")
            }
            () => prologues(),
        }
    }

    /// Rows that are multiplied: those that exist, up to whole multiplications.
    pub fn padded_rows(&self) -> usize {
        if self.rows <= 8 { 8 } else { self.rows.next_multiple_of(16) }
    }

    /// Dynamic shared memory of a block, in which warps add up their sums, in bytes.
    pub fn shared(&self) -> usize {
        self.tiling.shared(self.padded_rows(), self.rights())
    }

    /// Whether the tiling fits: the sums into shared memory, what is read at a time into registers,
    /// and the columns of a thread into one access.
    pub fn fits(&self) -> bool {
        let t = &self.tiling;
        let each = t.columns / NARROWEST;
        let [_, b] = self.factors;
        // Neighbours in a row of k, of which a thread reads two or more in one access.
        let access = each * b.dtype.size();
        let by_columns = each >= 2 && access <= WIDEST && b.unit >= access && self.columns.is_multiple_of(each);
        let walks = [0, 1].map(|factor| self.walked(factor));
        let mut fit = walks.into_iter().zip(&self.prologues).filter_map(|(walked, p)| Some(p.as_ref()?.fits(walked)));
        self.shared() <= SHARED && self.words() <= WORDS && (b.dense_k || by_columns) && fit.all(|fits| fits)
    }

    /// Words that a thread reads at a time, and what stays for all steps.
    pub fn words(&self) -> usize {
        let of = |factor: usize| match &self.prologues[factor] {
            Some(p) => p.words(self.walked(factor)),
            None => [self.walked(factor).lines * self.neighbours() / 2, 0],
        };
        let ([left, kept], [right, beside], unroll) = (of(0), of(1), self.tiling.unroll);
        unroll * (left + right * self.rights()) + kept + beside * self.rights()
    }

    /// How a thread walks the left or the right factor.
    pub fn walked(&self, factor: usize) -> Walked {
        let lines = [self.padded_rows(), self.tiling.columns][factor] / NARROWEST;
        Walked { by_k: self.factors[factor].dense_k, lines, neighbours: self.neighbours() }
    }

    /// Neighbours along k that a thread reads at a time: whole accesses of 16 bytes, where the
    /// right factor has bytes too.
    fn neighbours(&self) -> usize {
        let whole = |p: &Prologue| p.has_whole_groups(NEIGHBOURS_OF_BYTES);
        let wide = self.factors[1].dense_k
            && self.prologues[1].as_ref().is_some_and(Prologue::has_bytes)
            && self.prologues.iter().flatten().all(whole)
            && self.depth.is_multiple_of(NEIGHBOURS_OF_BYTES);
        if wide { NEIGHBOURS_OF_BYTES } else { NEIGHBOURS }
    }

    /// Elements of k that a warp multiplies at a time.
    pub fn step(&self) -> usize {
        PARTS * self.neighbours()
    }

    /// Bytes in memory of an element of the right factor.
    pub fn right_bytes(&self) -> usize {
        self.prologues[1].as_ref().map_or(self.half().size(), Prologue::bytes)
    }

    /// Operands of its factors, with those of the second right one.
    pub fn reads(&self) -> usize {
        let [left, right] = [0, 1].map(|i| self.prologues[i].as_ref().map_or(1, |p| p.inputs.len()));
        left + right * self.rights()
    }

    /// Right factors.
    pub fn rights(&self) -> usize {
        1 + usize::from(self.pair)
    }

    /// The 16-bit type of its factors.
    pub fn half(&self) -> DType {
        self.factors[0].dtype
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scalar::TermNode;

    fn kernel(rows: usize, dense_k: bool, values: &[(&str, i64)]) -> GemvKernel {
        let mut term = Term::empty();
        let root = term.add(TermNode::Acc);
        term.roots.push(root);
        let factor = |dense_k: bool| Factor { dtype: DType::BF16, dense_k, unit: 16 };
        GemvKernel {
            name: "k".into(),
            doc: String::new(),
            factors: [factor(true), factor(dense_k)],
            prologues: [None, None],
            pair: false,
            rows,
            columns: 512,
            depth: 256,
            inputs: Vec::new(),
            output: DType::BF16,
            term,
            tiling: GemvTiling::named(values).unwrap(),
        }
    }

    #[test]
    fn a_tiling_survives_its_stored_form() {
        let some = GemvTiling::named(&[("tile_n", 32), ("unroll", 2)]).unwrap();
        assert_eq!(GemvTiling::of_words(&some.words()), Some(some));
        let mut words = some.words();
        words[2] = 5;
        assert_eq!((GemvTiling::of_words(&[1; 8]), GemvTiling::of_words(&words)), (None, None));
    }

    #[test]
    fn rows_are_padded_to_whole_multiplications() {
        let rows = |rows: usize| kernel(rows, true, &[]).padded_rows();
        assert_eq!([1, 8, 9, 16, 17, 32].map(rows), [8, 8, 16, 16, 32, 32]);
        assert!(kernel(32, true, &[]).refusal().is_none() && kernel(33, true, &[]).refusal().is_some());
    }

    #[test]
    fn a_tiling_fits_if_its_sums_and_accesses_do() {
        assert!(kernel(1, true, &[("tile_n", 8)]).fits());
        // One element of a row of k is no access.
        assert!(!kernel(1, false, &[("tile_n", 8)]).fits() && kernel(1, false, &[("tile_n", 16)]).fits());
        // 16 warps of 16 rows and 64 columns have 64 KiB of sums.
        assert!(!kernel(16, true, &[("tile_n", 64), ("warps", 16), ("unroll", 1)]).fits());
        // Four steps of 16 columns and 32 rows are 96 words of a thread; eight steps of 64 columns
        // are 288, which is no tiling at all.
        assert!(kernel(32, true, &[]).fits() && !kernel(32, true, &[("unroll", 8)]).fits());
        assert_eq!(GemvTiling::named(&[("tile_n", 64), ("unroll", 8)]), None);
        let mut uneven = kernel(1, false, &[("tile_n", 32)]);
        assert!(uneven.fits());
        uneven.columns = 510;
        assert!(!uneven.fits());
    }

    #[test]
    fn what_is_not_read_in_whole_accesses_is_refused() {
        let mut k = kernel(1, true, &[]);
        assert_eq!(k.words(), k.tiling.words_ahead(8, 1));
        k.depth = 252;
        assert!(k.refusal().is_some());
        k.depth = 256;
        k.factors[0].dense_k = false;
        assert!(k.refusal().is_some());
    }
}
