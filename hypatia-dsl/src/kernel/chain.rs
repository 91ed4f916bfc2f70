//! Chains of matrix products: each product's result, with its epilogue, is the next one's left
//! factor, and stays in the multiprocessor.
//!
//! In: a chain of a plan, with the layout of its operands. Out: a [`ChainKernel`] that
//! `hypatia-templates` prints, for each [`ChainTiling`] that fits. Invariant: every tiling rounds
//! each intermediate to the factors' type, as if it were stored; sums over k may differ in order.

use crate::dtype::DType;
use crate::scalar::Term;

use super::tune::{self, StoredTiling, Table};
use super::{Access, Operand};

/// The most layers of a chain, and the widest.
pub const MAX_LAYERS: usize = 8;
/// The most columns of a layer, and elements of a row of the input.
pub const MAX_WIDTH: usize = 256;
/// Shared memory that a block may use on Hopper, and on every GPU from Ampere on, in bytes.
const SHARED: usize = 232_448;
const SHARED_AMPERE: usize = 101_376;
/// Registers of a multiprocessor; of a thread, at most, and those of a group beside a ring.
const REGISTERS: usize = 65_536;
const OF_THREAD: usize = 255;
const BESIDE_RING: usize = 232;
/// Registers for addresses and the epilogue, by the compiler's reports.
const OTHERS: usize = 26;
/// Bytes of a row of 64 elements, the widest swizzle of the copy engine.
const ROW: usize = 128;
/// Rows that a group of 128 threads takes at a time.
pub const GROUP_ROWS: usize = 64;
/// Elements of k that a warp multiplies.
const WARP_K: usize = 32;

/// The tuning parameters for Hopper, each with the values that the template has. No user names
/// them: a chain is found in a plan.
pub const CHAIN_TUNE: &Table = &[("groups", &[1, 2, 3, 4, 5]), ("stages", &[1, 2, 3]), ("ring", &[0, 3, 4, 5])];
/// The tuning parameters of the template of warps.
pub const WARP_CHAIN_TUNE: &Table = &[("rows", &[16, 32]), ("cluster", &[1, 2, 4, 8])];

/// Mark the stored forms of both kinds of tilings.
pub(super) const STORED: u64 = 7;
pub(super) const WARPS_STORED: u64 = 8;

/// How a chain is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainTiling {
    /// Groups of 128 threads that take 64 rows each.
    Groups {
        /// Groups of a block.
        groups: usize,
        /// Tiles of a group that are on their way or computed.
        stages: usize,
        /// Slots of a ring through which weights pass; 0 if all of them stay.
        ring: usize,
    },
    /// Clusters of blocks, each with a part of every layer's columns.
    Warps {
        /// Rows of a tile.
        rows: usize,
        /// Blocks of a cluster.
        cluster: usize,
    },
}

impl ChainTiling {
    /// All tilings.
    pub fn all() -> Vec<ChainTiling> {
        let values = |table: &Table, name: &str| -> Vec<usize> {
            let found = table.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, v)| v);
            found.iter().filter_map(|v| usize::try_from(*v).ok()).collect()
        };
        let mut out = Vec::new();
        for groups in values(CHAIN_TUNE, "groups") {
            for stages in values(CHAIN_TUNE, "stages") {
                let rings = values(CHAIN_TUNE, "ring");
                out.extend(rings.into_iter().map(|ring| ChainTiling::Groups { groups, stages, ring }));
            }
        }
        for rows in values(WARP_CHAIN_TUNE, "rows") {
            let clusters = values(WARP_CHAIN_TUNE, "cluster");
            out.extend(clusters.into_iter().map(|cluster| ChainTiling::Warps { rows, cluster }));
        }
        out
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        match *self {
            ChainTiling::Groups { groups, stages, ring } => tune::store(STORED, &[groups, stages, ring]),
            ChainTiling::Warps { rows, cluster } => tune::store(WARPS_STORED, &[rows, cluster]),
        }
    }

    /// The tiling that [`ChainTiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<ChainTiling> {
        ChainTiling::all().into_iter().find(|t| t.words() == *words)
    }

    /// True if only Hopper has its instructions.
    pub fn is_hopper(&self) -> bool {
        !matches!(self, ChainTiling::Warps { cluster: 1, .. })
    }
}

/// A product of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainLayer {
    /// Columns of its result.
    pub columns: usize,
    /// True if k is the dense axis of its weight: `[n, k]` in memory.
    pub by_k: bool,
    /// Elements between neighbours along the weight's other axis.
    pub stride: usize,
    /// Elements that one access may read: the weight's rows begin at multiples of this many.
    pub vector: usize,
    /// What the epilogue's `In` leaves read: rows and single numbers.
    pub inputs: Vec<Operand>,
    /// The epilogue.
    pub term: Term,
}

/// A chain of products with epilogues. The accumulators are f32.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the factors, of intermediates and of the result: f16 or bf16.
    pub factor: DType,
    /// Elements of a row of the input.
    pub width: usize,
    /// Elements between the input's rows.
    pub stride: usize,
    /// Elements that one access may read of the input.
    pub vector: usize,
    /// The products in order.
    pub layers: Vec<ChainLayer>,
    /// The tiles.
    pub tiling: ChainTiling,
}

/// Rounds up to whole steps of a multiplication.
pub fn padded(width: usize) -> usize {
    width.next_multiple_of(16)
}

impl ChainKernel {
    /// Length of the sums of a layer.
    pub fn depth(&self, layer: usize) -> usize {
        if layer == 0 { self.width } else { self.layers[layer - 1].columns }
    }

    /// Why no tiling computes this chain, if none does.
    pub fn refusal(&self) -> Option<&'static str> {
        let operands = || self.layers.iter().flat_map(|l| &l.inputs);
        let widths = || self.layers.iter().map(|l| l.columns).chain([self.width]);
        match () {
            () if !matches!(self.factor, DType::F16 | DType::BF16) => Some("its factors are not f16 or bf16"),
            () if !(2..=MAX_LAYERS).contains(&self.layers.len()) => Some("it has fewer than 2 layers or more than 8"),
            () if widths().any(|w| !(1..=MAX_WIDTH).contains(&w)) => Some("a layer is wider than 256"),
            () if operands().any(|o| o.dtype != self.factor && o.dtype != DType::F32) => {
                Some("an epilogue reads another type")
            }
            () if operands().any(|o| !matches!(o.access, Access::Row | Access::Splat)) => {
                Some("an epilogue reads more than rows and numbers")
            }
            () => None,
        }
    }

    /// The operands of a row of all layers, as layer and place.
    pub fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let of = |(l, layer): (usize, &ChainLayer)| {
            let rows = layer.inputs.iter().enumerate().filter(|(_, o)| o.access == Access::Row);
            rows.map(|(i, _)| (l, i)).collect::<Vec<_>>()
        };
        self.layers.iter().enumerate().flat_map(of)
    }

    /// Boxes of a weight, and bytes of each: columns of 64 elements along its dense axis.
    pub fn boxes(&self, layer: usize) -> [usize; 2] {
        let (k, n) = (padded(self.depth(layer)), padded(self.layers[layer].columns));
        if self.layers[layer].by_k { [k.div_ceil(64), n * ROW] } else { [n.div_ceil(64), k * ROW] }
    }

    /// Bytes of a slot of the ring: 64 elements of k of the widest weight.
    pub fn slot(&self) -> usize {
        let of = |l: &ChainLayer| if l.by_k { padded(l.columns) } else { l.columns.next_multiple_of(64) } * ROW;
        self.layers.iter().map(of).max().unwrap_or(0)
    }

    /// Columns of 64 elements of the input, and of the result.
    pub fn chunks(&self) -> [usize; 2] {
        let last = self.layers.last().map_or(0, |l| l.columns);
        [self.width.div_ceil(64), last.div_ceil(64)]
    }

    /// Bytes of all weights, or of the ring.
    pub fn weights(&self, ring: usize) -> usize {
        match ring {
            0 => (0..self.layers.len()).map(|l| self.boxes(l).iter().product::<usize>()).sum(),
            slots => slots * self.slot(),
        }
    }

    /// Columns of a layer that each block of a cluster has: a power of two, so that all blocks have
    /// whole groups of 32 elements of the next layer's k.
    pub fn columns_of_block(&self, layer: usize, cluster: usize) -> usize {
        let columns = self.layers[layer].columns.div_ceil(8 * cluster).next_power_of_two() * 8;
        columns.max(WARP_K / cluster)
    }

    /// Warps of a block: one for each 32 elements of the longest sum.
    pub fn warps(&self) -> usize {
        (0..self.layers.len()).map(|l| self.depth(l).div_ceil(WARP_K)).max().unwrap_or(0).max(4)
    }

    /// Bytes between rows of an intermediate of the template of warps, and elements between rows of
    /// its partial sums: spread over the banks.
    pub fn row_steps(&self, cluster: usize) -> [usize; 2] {
        let own_columns = |l: usize| self.columns_of_block(l, cluster);
        let inner = (0..self.layers.len() - 1).map(|l| own_columns(l) * cluster * 2).max().unwrap_or(0);
        let widest = (0..self.layers.len()).map(own_columns).max().unwrap_or(0);
        // Threads store two neighbouring sums, or four where weights are dense along columns.
        let spread = if self.layers[0].by_k { 8 } else { 4 };
        [inner.next_multiple_of(ROW) + 64, widest.next_multiple_of(32) + spread]
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        match self.tiling {
            ChainTiling::Groups { groups, ring, .. } => 128 * (groups + usize::from(ring > 0)),
            ChainTiling::Warps { .. } => 32 * self.warps(),
        }
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        let layers = self.layers.len();
        match self.tiling {
            ChainTiling::Groups { groups, stages, ring } => {
                let tile = self.chunks().into_iter().max().unwrap_or(0) * GROUP_ROWS * ROW;
                let rows: usize = self.rows().map(|(l, _)| padded(self.layers[l].columns) * 4).sum();
                let barriers = groups * stages + if ring > 0 { 2 * ring } else { layers };
                self.weights(ring) + groups * stages * tile + rows + 8 * barriers
            }
            ChainTiling::Warps { rows, cluster } => {
                let [left, sums] = self.row_steps(cluster);
                let columns: usize = self.rows().map(|(l, _)| self.columns_of_block(l, cluster) * 4).sum();
                2 * rows * left + self.warps() * rows * sums * 4 + 8 * layers + columns
            }
        }
    }

    /// Whether the tiling fits into registers and shared memory.
    pub fn fits(&self) -> bool {
        let of_block = |threads: usize| (REGISTERS / threads).min(OF_THREAD);
        match self.tiling {
            ChainTiling::Groups { groups, stages, ring } => {
                let sums = |l: usize| {
                    let (n, inner) = (padded(self.layers[l].columns), l > 0 && l + 1 < self.layers.len());
                    let left = if l == 0 { 0 } else { padded(self.depth(l)) / 4 };
                    // Beside a ring the compiler keeps more of the next left factor.
                    n / 2 + left + if ring > 0 && inner { n / 8 } else { 0 } + OTHERS
                };
                let registers = if ring > 0 { BESIDE_RING } else { of_block(self.threads()) };
                let needed = (0..self.layers.len()).map(sums).max().unwrap_or(0);
                // A ring serves layers that do not fit otherwise, and two groups have its
                // registers.
                let ring_fits = ring == 0 || groups == 2 && stages == 1 && self.weights(0) > SHARED / 2;
                needed <= registers && ring_fits && self.shared() <= SHARED
            }
            ChainTiling::Warps { rows, cluster } => {
                // Four registers for eight columns of each weight, sums of one layer.
                let all: usize = (0..self.layers.len()).map(|l| self.columns_of_block(l, cluster)).sum();
                let widest = (0..self.layers.len()).map(|l| self.columns_of_block(l, cluster)).max().unwrap_or(0);
                let needed = all / 2 + rows * widest / 32 + rows + 2 * OTHERS;
                let shared = if cluster == 1 { SHARED_AMPERE } else { SHARED };
                needed <= of_block(self.threads()) && self.shared() <= shared
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scalar::TermNode;

    fn kernel(widths: &[usize], by_k: bool, tiling: ChainTiling) -> ChainKernel {
        let mut term = Term::empty();
        let root = term.add(TermNode::Acc);
        term.roots.push(root);
        let layer = |columns: &usize| ChainLayer {
            columns: *columns,
            by_k,
            stride: 256,
            vector: 8,
            inputs: vec![Operand { dtype: DType::BF16, access: Access::Row }],
            term: term.clone(),
        };
        ChainKernel {
            name: "k".into(),
            doc: String::new(),
            factor: DType::BF16,
            width: widths[0],
            stride: widths[0],
            vector: 8,
            layers: widths[1..].iter().map(layer).collect(),
            tiling,
        }
    }

    #[test]
    fn a_tiling_survives_its_stored_form() {
        let all = ChainTiling::all();
        assert_eq!(all.len(), 5 * 3 * 4 + 2 * 4);
        assert!(all.iter().all(|t| ChainTiling::of_words(&t.words()) == Some(*t)));
        assert!(all.iter().all(|t| tune::parameters(&t.words()).is_some()));
        assert_eq!(ChainTiling::of_words(&[7; 8]), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let fits = |widths: &[usize], groups, stages, ring| {
            kernel(widths, true, ChainTiling::Groups { groups, stages, ring }).fits()
        };
        assert!(fits(&[64; 5], 4, 3, 0) && fits(&[128; 5], 4, 1, 0) && fits(&[128; 5], 3, 2, 0));
        // 128 KiB of weights and 8 tiles of 16 KiB.
        assert!(!fits(&[128; 5], 4, 2, 0));
        // 256 KiB of weights pass through a ring; 32 KiB need none.
        assert!(!fits(&[256; 3], 2, 1, 0) && fits(&[256; 3], 2, 1, 4) && !fits(&[64; 5], 2, 1, 4));
        // Registers of an inner layer.
        assert!(!fits(&[256; 4], 2, 1, 4));
        let warps =
            |widths: &[usize], rows, cluster| kernel(widths, false, ChainTiling::Warps { rows, cluster }).fits();
        assert!(warps(&[256; 3], 16, 8) && warps(&[64; 5], 16, 1) && !warps(&[256; 3], 16, 1));
    }

    #[test]
    fn parts_of_a_cluster_hold_whole_steps_of_the_next_layer() {
        let k = kernel(&[40, 23, 100, 200, 7], true, ChainTiling::Warps { rows: 16, cluster: 2 });
        assert_eq!([0, 1, 2, 3].map(|l| k.columns_of_block(l, 2)), [16, 64, 128, 16]);
        assert!([1, 2, 4, 8].iter().all(|c| (0..4).all(|l| (k.columns_of_block(l, *c) * c).is_multiple_of(32))));
        assert_eq!((k.warps(), k.boxes(1), k.boxes(2)), (7, [1, 112 * 128], [2, 208 * 128]));
    }

    #[test]
    fn other_types_and_operands_are_refused() {
        let tiling = ChainTiling::Warps { rows: 16, cluster: 1 };
        let of = |change: &dyn Fn(&mut ChainKernel)| {
            let mut k = kernel(&[64; 3], true, tiling);
            change(&mut k);
            k.refusal().is_some()
        };
        assert!(!of(&|_| ()));
        assert!(of(&|k| k.factor = DType::F32) && of(&|k| k.width = 257) && of(&|k| k.layers.truncate(1)));
        assert!(of(&|k| k.layers[0].inputs[0].access = Access::Full));
        assert!(of(&|k| k.layers[1].inputs[0].dtype = DType::F16));
    }
}
