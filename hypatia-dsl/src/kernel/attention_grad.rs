//! The gradients of attention, without stored scores: how they are cut into tiles of warps
//! (mma.sync), on GPUs from Ampere on.
//!
//! In: the gradients of an attention of a plan, with the layout of its operands. Out: for each
//! [`AttentionGradTiling`] that fits, two [`AttentionGradKernel`]s that `hypatia-templates` prints:
//! one whose blocks own queries and walk over keys, and one whose blocks own keys and walk over
//! queries. Invariant: every sum is f32 and made by one block in a fixed order, so that results do
//! not change from run to run.
//!
//! Source: Dao, FlashAttention-2 (arXiv 2307.08691). It adds the gradients of queries up in memory,
//! in any order; here a second kernel computes the weights again.

use crate::dtype::DType;
use crate::scalar::Term;

use super::Operand;
use super::attention::{Along, BATCH};
use super::tune::{self, StoredTiling, Table};

/// The largest size of a head: a thread has the sums of keys and of values in registers.
pub const MAX_GRAD_HEAD: usize = 128;
/// Shared memory that a block may use on every GPU from Ampere on, in bytes.
const SHARED: usize = 101_376;
/// Bytes that pad a row in shared memory, so that eight rows begin in different banks.
const PADDING: usize = 16;
/// Threads of a warp.
const WARP: usize = 32;
/// Rows that one multiplication takes.
const ROWS: usize = 16;
/// Registers of a multiprocessor.
const REGISTERS: usize = 65_536;
/// Registers that a thread may have.
const MAX_REGISTERS_PER_THREAD: usize = 255;
/// Registers that a thread needs besides weights and sums.
const OTHER_REGISTERS: usize = 60;

/// How the gradients of attention are cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradTiling {
    /// Rows that a block owns: queries, or keys.
    pub rows: usize,
    /// Rows of a tile that it walks over: keys, or queries.
    pub columns: usize,
    /// Warps of a block, which share its rows.
    pub warps: usize,
    /// Slots for tiles.
    pub stages: usize,
}

/// The tuning parameters of a `tiled` kernel for the gradients of attention, with their values.
pub const ATTENTION_GRAD_TUNE: &Table =
    &[("tile_m", &[64, 128]), ("tile_n", &[16, 32, 64, 128]), ("warps", &[4, 8]), ("stages", &[1, 2])];

/// Marks the stored form of a tiling.
pub(super) const STORED: u64 = 9;

impl AttentionGradTiling {
    /// The tiling that these tuning parameters name, if warps can share it. Parameters that are
    /// missing have a value that suits most lengths.
    pub fn named(values: &[(&str, i64)]) -> Option<AttentionGradTiling> {
        let value = |name, otherwise| tune::value(ATTENTION_GRAD_TUNE, values, name, otherwise);
        let (rows, columns) = (value("tile_m", 64)?, value("tile_n", 32)?);
        let (warps, stages) = (value("warps", 4)?, value("stages", 1)?);
        (rows >= warps * ROWS).then_some(AttentionGradTiling { rows, columns, warps, stages })
    }

    /// The tilings that these tuning parameters of a kernel name, without combinations that do not
    /// fit.
    pub fn all(tune: &[(String, Vec<i64>)]) -> Vec<AttentionGradTiling> {
        let all = tune::combinations(ATTENTION_GRAD_TUNE, tune);
        all.iter().filter_map(|c| AttentionGradTiling::named(c)).collect()
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        WARP * self.warps
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        tune::store(STORED, &[self.rows, self.columns, self.warps, self.stages])
    }

    /// The tiling that [`AttentionGradTiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<AttentionGradTiling> {
        AttentionGradTiling::named(&tune::stored(STORED, ATTENTION_GRAD_TUNE, words)?)
    }
}

/// The gradients of attention over a batch of heads. With w a weight and s the gradient of a
/// product of a query and a key, those of queries, keys and values are s k, transpose(s) q and
/// transpose(w) dy.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionGradProblem {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of queries, keys, values, `dy` and results: f16 or bf16.
    pub dtype: DType,
    /// Elements of a query and a key.
    pub head: usize,
    /// Elements of a value.
    pub value: usize,
    /// What the `In` leaves of the terms read, each `Splat` or `Strided`.
    pub inputs: Vec<Operand>,
    /// For each input, how it varies along the axes: those of the batch, queries, keys.
    pub along: Vec<[Along; BATCH + 2]>,
    /// Maps the product of a query and a key to their weight, or to its logarithm if `exponential`.
    pub weight: Term,
    /// True if `weight` gives the logarithm.
    pub exponential: bool,
    /// True if the weight is then computed by the device's power of two, less precisely.
    pub short: bool,
    /// The gradient of that product, in terms of it, of the product of `dy` and a value, and of the
    /// weight, which is the last input.
    pub slope: Term,
    /// True if each query attends to the keys of an interval, which the kernel is given.
    pub intervals: bool,
}

impl AttentionGradProblem {
    /// Why no tiling computes these gradients, if none does.
    pub fn refusal(&self) -> Option<&'static str> {
        let half = |d: DType| matches!(d, DType::F16 | DType::BF16);
        match () {
            () if !half(self.dtype) => Some("its operands are not f16 or bf16"),
            () if self.head == 0 || self.value == 0 => Some("its heads are empty"),
            () if self.head.max(self.value) > MAX_GRAD_HEAD => Some("its heads have more than 128 elements"),
            () if self.inputs.iter().any(|o| half(o.dtype) && o.dtype != self.dtype) => {
                Some("its scores read both f16 and bf16")
            }
            () => None,
        }
    }

    /// Elements of a query and of a value, as the matrix units take them.
    pub fn padded(&self) -> [usize; 2] {
        [self.head, self.value].map(|n| n.next_multiple_of(16))
    }
}

/// What the blocks of a kernel own, and whose gradients it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GradSide {
    /// Queries.
    Queries,
    /// Keys, and values.
    Keys,
}

/// One of the two kernels that compute the gradients of an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionGradKernel {
    /// What is computed.
    pub problem: AttentionGradProblem,
    /// Which gradients.
    pub side: GradSide,
    /// Alignment in bytes of the rows of queries, keys, values and `dy`: powers of two, at most 16.
    pub units: [usize; 4],
    /// The same for the gradients of queries, keys and values, whose rows also end at such a
    /// boundary.
    pub stored: [usize; 3],
    /// The tiles.
    pub tiling: AttentionGradTiling,
}

impl AttentionGradKernel {
    /// Tiles of 16 rows that a warp owns.
    pub fn row_tiles(&self) -> usize {
        self.tiling.rows / self.tiling.warps / ROWS
    }

    /// Elements of a row of results in all, as the matrix units take them.
    fn results(&self) -> usize {
        let [head, value] = self.problem.padded();
        match self.side {
            GradSide::Queries => head,
            GradSide::Keys => head + value,
        }
    }

    /// Blocks that run beside each other on a multiprocessor, as far as registers go; 0 if a thread
    /// has too few.
    pub fn blocks(&self) -> usize {
        let own = self.row_tiles() * (self.tiling.columns + self.results() / 2 + 8) + OTHER_REGISTERS;
        if own > MAX_REGISTERS_PER_THREAD { 0 } else { REGISTERS / (own.next_multiple_of(8) * self.tiling.threads()) }
    }

    /// Bytes of a row of queries or keys, and of a row of values or `dy`, in shared memory. Results
    /// take the place of the rows that a block owns.
    pub fn row_bytes(&self) -> [usize; 2] {
        self.problem.padded().map(|n| n * 2 + PADDING)
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        let row: usize = self.row_bytes().iter().sum();
        (self.tiling.rows + self.tiling.stages * self.tiling.columns) * row
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

    fn of(head: usize, side: GradSide, values: &[(&str, i64)]) -> AttentionGradKernel {
        let problem = AttentionGradProblem {
            name: "k".into(),
            doc: String::new(),
            dtype: DType::BF16,
            head,
            value: head,
            inputs: Vec::new(),
            along: Vec::new(),
            weight: Term::empty(),
            exponential: true,
            short: true,
            slope: Term::empty(),
            intervals: false,
        };
        let tiling = AttentionGradTiling::named(values).unwrap();
        AttentionGradKernel { problem, side, units: [16; 4], stored: [16; 3], tiling }
    }

    #[test]
    fn a_tiling_survives_its_stored_form() {
        let some = AttentionGradTiling::named(&[("tile_m", 128), ("warps", 8), ("stages", 2)]).unwrap();
        assert_eq!(AttentionGradTiling::of_words(&some.words()), Some(some));
        assert_eq!(AttentionGradTiling::of_words(&[1; 8]), None);
        assert_eq!(AttentionGradTiling::named(&[("tile_m", 64), ("warps", 8)]), None);
    }

    #[test]
    fn heads_of_up_to_128_elements_have_a_tiling_that_fits() {
        for head in [1, 16, 63, 64, 80, 128] {
            for side in [GradSide::Queries, GradSide::Keys] {
                let small = of(head, side, &[]);
                assert!(small.fits(), "{head} {side:?}: {} bytes, {} blocks", small.shared(), small.blocks());
            }
        }
        // The sums of keys and values need too many registers.
        assert!(!of(256, GradSide::Keys, &[]).fits());
        assert!(of(64, GradSide::Keys, &[("tile_n", 64)]).fits());
    }
}
