//! Attention by warps (mma.sync): how it is cut into tiles on GPUs from Ampere on.
//!
//! In: an attention of a plan, with the layout of its operands. Out: a [`WarpAttention`] that
//! `hypatia-templates` prints, for each [`WarpAttentionTiling`] that fits. Invariant: it needs
//! nothing that GPUs from Ampere on lack, whatever the alignment of its operands; every tiling sums
//! the same weights and values in f32, and in the same order in every run.
//!
//! Source: Dao, FlashAttention-2 (arXiv 2307.08691).

use super::attention::AttentionProblem;
use super::tune::{self, StoredTiling, Table};

/// Shared memory that a block may use on every GPU from Ampere on, in bytes.
const SHARED: usize = 101_376;
/// Bytes that pad a row in shared memory, so that eight rows begin in different banks.
const PADDING: usize = 16;
/// Threads of a warp.
const WARP: usize = 32;
/// Rows of queries that one multiplication takes.
const ROWS: usize = 16;
/// Registers of a multiprocessor, those that a thread may have, and those that it needs beside its
/// scores, sums and queries.
const REGISTERS: usize = 65_536;
const MOST: usize = 255;
const OTHERS: usize = 48;

/// How an attention is cut into tiles for warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpAttentionTiling {
    /// Rows of queries of a block.
    pub rows: usize,
    /// Keys of a tile.
    pub keys: usize,
    /// Warps of a block, which share its rows.
    pub warps: usize,
    /// Slots for tiles of keys, and as many for values.
    pub stages: usize,
}

/// The tuning parameters of a `tiled` kernel for attention by warps, each with its values.
pub const WARP_ATTENTION_TUNE: &Table =
    &[("tile_m", &[64, 128]), ("tile_n", &[32, 64, 96, 128]), ("warps", &[4, 8]), ("stages", &[1, 2])];

/// Marks the stored form of a tiling.
pub(super) const STORED: u64 = 6;

impl WarpAttentionTiling {
    /// The tiling that these tuning parameters name, if warps can share it. Parameters that are
    /// missing have a value that suits most lengths.
    pub fn named(values: &[(&str, i64)]) -> Option<WarpAttentionTiling> {
        let value = |name, otherwise| tune::value(WARP_ATTENTION_TUNE, values, name, otherwise);
        let (rows, keys) = (value("tile_m", 64)?, value("tile_n", 64)?);
        let (warps, stages) = (value("warps", 4)?, value("stages", 1)?);
        (rows >= warps * ROWS).then_some(WarpAttentionTiling { rows, keys, warps, stages })
    }

    /// The tilings that these tuning parameters of a kernel name, without combinations that do not
    /// fit. Parameters of other templates have no meaning here.
    pub fn all(tune: &[(String, Vec<i64>)]) -> Vec<WarpAttentionTiling> {
        tune::combinations(WARP_ATTENTION_TUNE, tune).iter().filter_map(|c| WarpAttentionTiling::named(c)).collect()
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        WARP * self.warps
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        tune::store(STORED, &[self.rows, self.keys, self.warps, self.stages])
    }

    /// The tiling that [`WarpAttentionTiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<WarpAttentionTiling> {
        WarpAttentionTiling::named(&tune::stored(STORED, WARP_ATTENTION_TUNE, words)?)
    }
}

/// An attention computed by warps.
#[derive(Clone, Debug, PartialEq)]
pub struct WarpAttention {
    /// What is computed.
    pub problem: AttentionProblem,
    /// Powers of two, at most 16: each row of queries, keys and values begins at a multiple of so
    /// many bytes; of results, it ends at one too.
    pub units: [usize; 4],
    /// The tiles.
    pub tiling: WarpAttentionTiling,
}

impl WarpAttention {
    /// Tiles of 16 rows that a warp owns.
    pub fn row_tiles(&self) -> usize {
        self.tiling.rows / self.tiling.warps / ROWS
    }

    /// Blocks that the registers of a multiprocessor suffice for, if a thread has this many for its
    /// queries; 0 if it would have too few.
    fn blocks_with(&self, queries: usize) -> usize {
        let own = self.row_tiles() * (self.tiling.keys / 2 + self.problem.padded_value() / 2) + queries + OTHERS;
        if own > MOST { 0 } else { REGISTERS / (own.next_multiple_of(8) * self.tiling.threads()) }
    }

    /// Blocks for threads that keep their queries, and for those that read them for each tile.
    fn both(&self) -> [usize; 2] {
        [self.blocks_with(self.row_tiles() * self.problem.padded_head() / 4), self.blocks_with(4 * self.row_tiles())]
    }

    /// True if a thread keeps its queries in registers: where that costs no block.
    pub fn keeps_queries(&self) -> bool {
        let [kept, read] = self.both();
        kept == read
    }

    /// Blocks that run beside each other on a multiprocessor, as far as registers go; 0 if a thread
    /// has too few.
    pub fn blocks(&self) -> usize {
        self.both()[1]
    }

    /// Bytes of a row of queries, of keys and of values in shared memory. Results take the place of
    /// the queries.
    pub fn row_bytes(&self) -> [usize; 3] {
        let (head, value) = (self.problem.padded_head(), self.problem.padded_value());
        [head.max(value), head, value].map(|elements| elements * 2 + PADDING)
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        let [queries, keys, values] = self.row_bytes();
        self.tiling.rows * queries + self.tiling.stages * self.tiling.keys * (keys + values)
    }

    /// Whether the tiling fits into shared memory and registers.
    pub fn fits(&self) -> bool {
        self.shared() <= SHARED && self.blocks() > 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dtype::DType;
    use crate::scalar::Term;

    fn of(head: usize, value: usize, values: &[(&str, i64)]) -> WarpAttention {
        let problem = AttentionProblem {
            name: "k".into(),
            doc: String::new(),
            dtype: DType::BF16,
            head,
            value,
            varies: [[true; 3]; 2],
            inputs: Vec::new(),
            along: Vec::new(),
            term: Term::empty(),
            safe: false,
            short: true,
            intervals: false,
            lse: false,
            finish: None,
        };
        WarpAttention { problem, units: [16; 4], tiling: WarpAttentionTiling::named(values).unwrap() }
    }

    #[test]
    fn a_tiling_survives_its_stored_form() {
        let some = WarpAttentionTiling::named(&[("tile_m", 128), ("warps", 8)]).unwrap();
        assert_eq!(WarpAttentionTiling::of_words(&some.words()), Some(some));
        assert_eq!(WarpAttentionTiling::of_words(&[1; 8]), None);
        // Eight warps cannot have 16 rows each.
        assert_eq!(WarpAttentionTiling::named(&[("tile_m", 64), ("warps", 8)]), None);
    }

    #[test]
    fn every_head_has_a_tiling_that_fits() {
        for head in [1, 16, 63, 64, 80, 128, 200, 256] {
            let small = of(head, head, &[]);
            assert!(small.fits(), "{head}: {} bytes", small.shared());
        }
        assert!(!of(256, 256, &[("stages", 2)]).fits());
        assert!(!of(256, 256, &[("tile_m", 128), ("tile_n", 32)]).fits());
        assert!(of(128, 128, &[("tile_m", 128)]).fits());
        assert!(!of(128, 128, &[("tile_m", 128), ("tile_n", 128)]).fits());
        // Queries of 64 elements stay in registers; those of 128 would cost a block.
        let (small, large) = (of(64, 64, &[]), of(128, 128, &[]));
        assert_eq!((small.keeps_queries(), small.blocks()), (true, 4));
        assert_eq!((large.keeps_queries(), large.blocks()), (false, 3));
        assert!(of(64, 64, &[("tile_m", 128)]).keeps_queries());
    }
}
