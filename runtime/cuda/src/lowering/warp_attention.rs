//! Attention by warps: the kernel of a tiling, and its arguments.
//!
//! In: what an attention reads and writes. Out: for each tiling, the kernel and its [`Work`]; none
//! if an operand would have to be copied. Invariant: rows may begin at any element, only the width
//! of accesses depends on it.

use hypatia_dsl::kernel::attention::BATCH;
use hypatia_dsl::kernel::attention_sm80::{WarpAttention, WarpAttentionTiling};
use hypatia_templates::cuda::ArgRole;
use hypatia_templates::instances::Body;

use super::attention::Attended;
use super::warp_tiled::unit;
use super::{Work, fastest_first};

/// Keys of a tile, where sums are added up in one order.
const KEYS_IN_ORDER: usize = 64;

/// An attention that warps compute in place.
#[derive(Clone, Debug)]
pub struct WarpedAttention {
    pub(super) attended: Attended,
    units: [usize; 4],
}

impl WarpedAttention {
    /// `None` if an operand would have to be copied.
    pub(super) fn of(attended: Attended) -> Option<WarpedAttention> {
        let Attended { sizes, problem, factors, .. } = &attended;
        let widths = [problem.head, problem.head, problem.value, problem.value];
        let dense = |((_, s), width): (&(_, [isize; BATCH + 2]), usize)| s[BATCH + 1] == 1 || width == 1;
        let counted = sizes.iter().chain(&widths).all(|s| i32::try_from(*s).is_ok());
        if !factors.iter().zip(widths).all(dense) || !counted {
            return None;
        }
        let units = std::array::from_fn(|i| {
            let (view, [s0, s1, s2, row, _]) = &factors[i];
            let rows = if [1, 2].contains(&i) { sizes[BATCH + 1] } else { sizes[BATCH] };
            let steps = [(*s0, sizes[0]), (*s1, sizes[1]), (*s2, sizes[2]), (*row, rows)];
            // Results are stored in whole units.
            let end = (i == 3).then_some((widths[i] as isize, 2));
            unit(view, &steps.into_iter().chain(end).collect::<Vec<_>>())
        });
        Some(WarpedAttention { attended, units })
    }

    fn kernel(&self, tiling: WarpAttentionTiling) -> WarpAttention {
        WarpAttention { problem: self.attended.problem.clone(), units: self.units, tiling }
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, tiling: WarpAttentionTiling) -> Option<(Body, Work)> {
        let kernel = self.kernel(tiling);
        if !kernel.fits() {
            return None;
        }
        let mut work = self.attended.work([tiling.rows, tiling.keys]);
        for (i, (_, strides)) in self.attended.factors.iter().enumerate().take(3) {
            work = work.strides(ArgRole::Read(i), strides);
        }
        Some((Body::WarpAttention(kernel), work))
    }

    /// The tilings among these that fit, the one with the shortest predicted time first, for a
    /// device with that many multiprocessors.
    pub fn plausible(&self, tilings: &[WarpAttentionTiling], multiprocessors: usize) -> Vec<WarpAttentionTiling> {
        // Tiles of another number of keys add up in another order.
        let in_order = |t: &WarpAttentionTiling| !self.attended.in_order || t.keys == KEYS_IN_ORDER;
        let fits = |t: &&WarpAttentionTiling| in_order(t) && self.kernel(**t).fits();
        fastest_first(tilings.iter().filter(fits).copied(), |t| self.cycles(t, multiprocessors))
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, t: &WarpAttentionTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle, bytes per cycle from shared memory, cycles in which a
        /// tile's copies arrive if nothing else is on its way.
        const RATE: f64 = 1024.0;
        const SHARED: f64 = 128.0;
        const LATENCY: f64 = 800.0;
        /// Bytes of shared memory of a multiprocessor, for all blocks on it.
        const MEMORY: usize = 163_840;
        let kernel = self.kernel(*t);
        let problem = &kernel.problem;
        let [b0, b1, b2, queries, _] = self.attended.sizes;
        let heads = (b0 * b1 * b2) as f64;
        let scores = (t.rows * t.keys) as f64;
        let widths = (problem.padded_head() + problem.padded_value()) as f64;
        let product = scores * widths / RATE;
        // The exponential, the maximum, the sum and the score.
        let soft = scores * (8.0 + 3.0 * problem.term.nodes.len() as f64) / 128.0;
        // Each warp reads all keys and values, and its queries if it does not keep them.
        let queried = if kernel.keeps_queries() { 0 } else { t.rows * problem.padded_head() };
        let fragments = ((t.warps * t.keys) as f64 * widths + queried as f64) * 2.0 / SHARED;
        let narrow = |i: usize, width: usize| (t.keys * width) as f64 * 2.0 / self.units[i].max(2) as f64 / 16.0;
        let copies = narrow(1, problem.padded_head()) + narrow(2, problem.padded_value());
        let busy = product.max(soft).max(fragments) + copies;
        let alone = product + soft + fragments * 0.5 + copies + LATENCY / t.stages as f64;
        // Blocks that run beside each other on a multiprocessor.
        let beside = kernel.blocks().min(MEMORY / (kernel.shared() + 1024)).max(1) as f64;
        let blocks = heads * queries.div_ceil(t.rows) as f64;
        let tiles = heads * self.attended.tiles([t.rows, t.keys]);
        let share = (blocks / multiprocessors as f64).ceil();
        let together = share.min(beside).max(1.0);
        let of_tile = busy.max(alone / together);
        let longest = (blocks / (multiprocessors as f64 * beside)).ceil() * tiles / blocks.max(1.0) * alone;
        1500.0 + share * 600.0 + (tiles / multiprocessors as f64 * of_tile).max(longest * 0.8)
    }
}
