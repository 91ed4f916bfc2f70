//! Attention in tiles of Hopper's template: the kernels of a tiling, and their arguments.
//!
//! In: what an attention reads and writes. Out: for each tiling, the kernels and their [`Work`];
//! none if the copy engine cannot read or store the operands in place. Invariant: where few queries
//! leave the device idle, chunks of keys are summed by blocks of their own, and a second kernel
//! joins them; the sums lie in the workspace in between.

use hypatia_dsl::kernel::attention::{AttentionKernel, AttentionTiling, BATCH, QUERY_ROWS};
use hypatia_templates::cuda::{ArgRole, SizeName};
use hypatia_templates::instances::Body;

use super::attention::{Attended, Strides};
use super::map_shape::MapShape;
use super::{Work, fastest_first};
use crate::address::WORKSPACE;

/// Where sums are added up in one order: keys of a tile (the first number that fits) and of a
/// chunk.
const KEYS_IN_ORDER: [usize; 2] = [128, 64];
const CHUNK_IN_ORDER: usize = 512;

/// An attention whose operands the copy engine moves.
#[derive(Clone, Debug)]
pub struct TiledAttention {
    pub(super) attended: Attended,
    maps: Vec<(ArgRole, MapShape)>,
}

impl TiledAttention {
    /// `None` if an operand would have to be copied.
    pub(super) fn of(attended: Attended) -> Option<TiledAttention> {
        let (sizes, problem) = (attended.sizes, &attended.problem);
        let full = |s: &Strides| [0, 1, 2].iter().all(|a| sizes[*a] == 1 || s[*a] != 0);
        if !full(&attended.factors[0].1) {
            return None;
        }
        let map = |i: usize, columns: usize| {
            let (view, strides) = &attended.factors[i];
            let [s0, s1, s2, row, column] = *strides;
            let size = |a: usize| if strides[a] == 0 { 1 } else { sizes[a] };
            let steps: Option<Vec<usize>> = [row, s2, s1, s0].iter().map(|s| usize::try_from(*s).ok()).collect();
            let dense = column == 1 || columns == 1;
            let rows = if [1, 2].contains(&i) { sizes[BATCH + 1] } else { sizes[BATCH] };
            let shape = [columns, rows, size(2), size(1), size(0)];
            dense.then(|| MapShape::of(view, &shape, &steps?)).flatten()
        };
        let maps = vec![
            (ArgRole::Read(0), map(0, problem.head)?),
            (ArgRole::Read(1), map(1, problem.head)?),
            (ArgRole::Read(2), map(2, problem.value)?),
            (ArgRole::Written(0), map(3, problem.value)?),
        ];
        Some(TiledAttention { attended, maps })
    }

    /// The kernels with that tiling in launch order, and their arguments; empty if it does not fit.
    pub fn tiled(&self, tiling: AttentionTiling) -> Vec<(Body, Work)> {
        let kernel = AttentionKernel { problem: self.attended.problem.clone(), tiling };
        let [b0, b1, b2, queries, keys] = self.attended.sizes;
        let rows = b0 * b1 * b2 * queries;
        let chunks = tiling.chunks(keys);
        // The sums of the chunks, and after them the largest scores and the sums of weights.
        let tops = rows * chunks.unwrap_or(0) * kernel.problem.padded_value() * size_of::<f32>();
        let room = tops + rows * chunks.unwrap_or(0) * 2 * size_of::<f32>();
        if kernel.stages().is_none() || room > WORKSPACE {
            return Vec::new();
        }
        let work = self.work(&kernel, chunks);
        let Some(chunks) = chunks else { return vec![(Body::Attention(kernel), work)] };
        let rooms = vec![(ArgRole::Sums, 0), (ArgRole::Tops, tops)];
        let mut join = Work::new(rows, 1).size(SizeName::Queries, queries).size(SizeName::Chunks, chunks);
        join = join.size(SizeName::Batch1, b1).size(SizeName::Batch2, b2);
        join.strides.extend(self.attended.results());
        self.attended.read_by(&mut join);
        join.rooms.clone_from(&rooms);
        vec![(Body::Attention(kernel.clone()), Work { rooms, ..work }), (Body::AttentionJoin(kernel), join)]
    }

    /// The arguments of the kernel that walks over keys.
    fn work(&self, kernel: &AttentionKernel, chunks: Option<usize>) -> Work {
        let t = &kernel.tiling;
        let mut work = self.attended.work([t.rows(), t.keys]);
        work.maps.clone_from(&self.maps);
        if let Some(chunks) = chunks {
            work.rows *= chunks;
            work = work.size(SizeName::Chunks, chunks);
        }
        work
    }

    /// The tilings among these that fit, the one with the shortest predicted time first, for a
    /// device with that many multiprocessors. Where queries leave some of these idle, the keys may
    /// be split, and the best tiling that does the other thing comes second, so that both are
    /// timed.
    pub fn plausible(&self, tilings: &[AttentionTiling], multiprocessors: usize) -> Vec<AttentionTiling> {
        if self.attended.in_order {
            let in_order = self.in_order(tilings);
            return fastest_first(in_order.into_iter(), |t| self.cycles(t, multiprocessors));
        }
        let [b0, b1, b2, queries, _] = self.attended.sizes;
        let idle = b0 * b1 * b2 * queries.div_ceil(QUERY_ROWS) < multiprocessors;
        let fits = |t: &&AttentionTiling| (t.chunk == 0 || idle) && !self.tiled(**t).is_empty();
        let mut out = fastest_first(tilings.iter().filter(fits).copied(), |t| self.cycles(t, multiprocessors));
        if let Some(first) = out.first().copied()
            && let Some(at) = out.iter().position(|t| (t.chunk > 0) != (first.chunk > 0))
        {
            out[1..=at].rotate_right(1);
        }
        out
    }

    /// The tilings that add up keys in one order: by tiles of the same number of keys, in chunks
    /// where queries are few and keys are many. How many heads there are does not matter, nor how
    /// many queries, as long as they are few or many.
    fn in_order(&self, tilings: &[AttentionTiling]) -> Vec<AttentionTiling> {
        let [_, _, _, queries, keys] = self.attended.sizes;
        let chunk = if queries < QUERY_ROWS && keys > CHUNK_IN_ORDER { CHUNK_IN_ORDER } else { 0 };
        let fits = |t: &&AttentionTiling| {
            let problem = self.attended.problem.clone();
            t.chunk == chunk && AttentionKernel { problem, tiling: **t }.stages().is_some()
        };
        let fitting: Vec<AttentionTiling> = tilings.iter().filter(fits).copied().collect();
        let of = |keys: usize| fitting.iter().copied().filter(|t| t.keys == keys).collect::<Vec<_>>();
        KEYS_IN_ORDER.into_iter().map(of).find(|all| !all.is_empty()).unwrap_or_default()
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, t: &AttentionTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle.
        const RATE: f64 = 2048.0 * 0.8;
        /// Bytes of keys and values per cycle, if all multiprocessors read.
        const BYTES: f64 = 20.0;
        /// Cycles of a launch that joins chunks, and for each chunk.
        const JOIN: [f64; 2] = [3000.0, 20.0];
        let [b0, b1, b2, queries, keys] = self.attended.sizes;
        let (chunks, heads) = (t.chunks(keys), (b0 * b1 * b2) as f64);
        let blocks = queries.div_ceil(t.rows()) * chunks.unwrap_or(1);
        let tiles = self.attended.tiles([t.rows(), t.keys]);
        let problem = &self.attended.problem;
        let scores = (t.rows() * t.keys) as f64;
        let widths = (problem.padded_head() + problem.padded_value()) as f64;
        // The exponential, the maximum, the sum and the score, 128 lanes at half of the slots.
        let soft = scores * (6.0 + 3.0 * problem.term.nodes.len() as f64) / 128.0 * 2.0 / t.consumers as f64;
        let product = scores * widths / RATE;
        // With one group, nothing overlaps.
        let of_tile = if t.consumers == 1 { soft + product } else { product.max(soft * 0.9) + 0.3 * soft.min(product) };
        let read = t.keys as f64 * widths * problem.dtype.size() as f64 / BYTES;
        let of_tile = if queries < QUERY_ROWS { of_tile.max(read) } else { of_tile };
        let waves = (heads * blocks as f64 / multiprocessors as f64).ceil();
        let even = heads * tiles / multiprocessors as f64;
        let longest = tiles / blocks as f64 * waves;
        let joined = chunks.map_or(0.0, |n| JOIN[0] + JOIN[1] * n as f64);
        1500.0 + joined + waves * 1200.0 + even.max(longest * 0.8) * (of_tile + 200.0)
    }
}
