//! Products of few rows with their epilogue, and pairs of them: the kernel of a step for a tiling,
//! and its arguments.
//!
//! In: a product that warps can compute in place. Out: for each tiling, the kernel and its
//! [`Work`]; none if it has too many rows, or rows that are not whole accesses. Invariant: its
//! arguments are those of the template of warps.

use hypatia_dsl::kernel::{GemvKernel, GemvTiling, Prologue};
use hypatia_plan::{GemmStep, View};
use hypatia_templates::instances::Body;

use super::warp_tiled::WarpProduct;
use super::{Work, fastest_first};

/// A product of few rows.
#[derive(Clone, Debug)]
pub struct GemvProduct {
    product: WarpProduct,
    kernel: GemvKernel,
}

impl GemvProduct {
    /// The same product by the template of few rows, if that computes it: it has one result.
    pub fn of(product: &WarpProduct) -> Option<GemvProduct> {
        let [_, _, rows, columns, depth] = product.sizes;
        let of = &product.kernel;
        let [output] = of.outputs[..] else { return None };
        let kernel = GemvKernel {
            name: of.name.clone(),
            doc: String::new(),
            factors: of.factors,
            prologues: [None, None],
            pair: false,
            rows,
            columns,
            depth,
            inputs: of.inputs.clone(),
            output,
            term: of.term.clone(),
            tiling: GemvTiling::named(&[])?,
        };
        kernel.refusal().is_none().then(|| GemvProduct { product: product.clone(), kernel })
    }

    /// Two products of one left operand, which is the first read; the right ones follow. `None` if
    /// an operand would have to be copied, or if the right operands lie in different orders.
    pub fn of_pair(step: &GemmStep, reads: &[View], outs: &[View]) -> Option<GemvProduct> {
        let product = WarpProduct::with_second(step, reads, outs)?;
        let mut of = GemvProduct::of(&product)?;
        of.kernel.pair = true;
        of.kernel.refusal().is_none().then_some(of)
    }

    /// A product, or two of one left operand, whose factors are computed so. The arguments are
    /// those of the kernel; `None` if the template does not compute it.
    pub(super) fn with_prologues(
        product: &WarpProduct,
        pair: bool,
        prologues: [Option<Prologue>; 2],
    ) -> Option<GemvProduct> {
        let mut of = GemvProduct::of(product)?;
        (of.kernel.pair, of.kernel.prologues) = (pair, prologues);
        of.kernel.refusal().is_none().then_some(of)
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, tiling: GemvTiling) -> Option<(Body, Work)> {
        let kernel = GemvKernel { tiling, ..self.kernel.clone() };
        let work = self.product.work(kernel.padded_rows());
        kernel.fits().then_some((Body::Gemv(kernel), work))
    }

    /// The tilings among these that fit, each with its predicted cycles, for a device with that
    /// many multiprocessors.
    pub fn plausible(&self, tilings: &[GemvTiling], multiprocessors: usize) -> Vec<(GemvTiling, f64)> {
        let fits = |t: &&GemvTiling| GemvKernel { tiling: **t, ..self.kernel.clone() }.fits();
        let cycles = |t: &GemvTiling| self.cycles(t, multiprocessors);
        fastest_first(tilings.iter().filter(fits).copied(), cycles).into_iter().map(|t| (t, cycles(&t))).collect()
    }

    /// Products, rows, columns and length of the sums.
    pub fn sizes(&self) -> [usize; 4] {
        self.product.sizes()
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings. Its constants are those
    /// that rank the tilings of seven shapes best, as measured on an H200 (docs/gpu-tests.md).
    fn cycles(&self, t: &GemvTiling, multiprocessors: usize) -> f64 {
        /// Bytes per cycle from memory at best, cycles from a request to its arrival while many are
        /// on their way, sums per cycle, threads and registers of a multiprocessor, instructions
        /// that it issues a cycle for terms, bytes per cycle from the L2 cache.
        const BYTES: f64 = 24.0;
        const LATENCY: f64 = 1500.0;
        const SUMS: f64 = 8.0;
        const THREADS: usize = 2048;
        const REGISTERS: usize = 65_536;
        const ISSUED: f64 = 100.0;
        const OF_L2: f64 = 40.0;
        let [outer, inner, m, n, k] = self.product.sizes;
        let rights = self.kernel.rights();
        let rows = self.kernel.padded_rows();
        let tiles = outer * inner * n.div_ceil(t.columns);
        let share = tiles.div_ceil(multiprocessors);
        // What a thread has on its way, and its sums.
        let words = GemvKernel { tiling: *t, ..self.kernel.clone() }.words();
        let registers = 48 + words + rights * rows * t.columns / 32;
        let beside = (THREADS.min(REGISTERS / registers) / t.threads()).clamp(1, share);
        let (step, size) = (self.kernel.step(), self.kernel.right_bytes());
        let steps = k.div_ceil(step).div_ceil(t.warps);
        let at_once = (beside * t.warps * t.unroll.min(steps) * rights * t.columns * step * size) as f64;
        let bytes = (share * rights * t.columns * k * size) as f64;
        // A block waits for its first elements, for each group of steps, and for its sums.
        let waits = (share.div_ceil(beside) * (steps.div_ceil(t.unroll) + 1)) as f64 * LATENCY;
        let sums = (share * t.warps * rights * rows * t.columns) as f64 / SUMS;
        // What computes factors: elements of all threads, instructions that are issued a cycle.
        let of_terms = |factor: usize, elements: usize| {
            let term = self.kernel.prologues[factor].as_ref().map(|p| p.term.nodes.len() + 2);
            (elements * term.unwrap_or(0)) as f64 / ISSUED
        };
        let computed = of_terms(0, share * rows * k) + of_terms(1, share * rights * t.columns * k);
        // Each block reads all of the left factor, from the L2 cache.
        let of_all = bytes + (share * m * k * 2) as f64;
        let moved = (bytes / BYTES.min(at_once / LATENCY)).max(of_all / OF_L2);
        moved.max(waits).max(computed) + sums + 1500.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::lowering::fixtures::{product as step, whole};

    fn product(m: usize, n: usize, k: usize, transposed: bool) -> Option<GemvProduct> {
        let w = if transposed { whole(&[n, k]).transposed(&[1, 0]) } else { whole(&[k, n]) };
        GemvProduct::of(&WarpProduct::of(&step(&[], m, n, k), &[whole(&[m, k]), w], &[whole(&[m, n])]).unwrap())
    }

    #[test]
    fn few_rows_of_whole_accesses_are_computed() {
        assert!(product(1, 100, 64, true).is_some() && product(32, 100, 64, false).is_some());
        // Too many rows; rows of 15 bytes more than whole accesses.
        assert!(product(33, 100, 64, true).is_none() && product(1, 100, 65, true).is_none());
    }

    #[test]
    fn tilings_keep_the_device_busy() {
        let names = [("tile_n", vec![8, 16, 32]), ("warps", vec![4, 8, 16]), ("unroll", vec![2, 4])];
        let all = GemvTiling::all(&names.map(|(name, values)| (name.to_string(), values)));
        let best = |n: usize, k: usize| product(1, n, k, true).unwrap().plausible(&all, 132)[0];
        // Few columns: narrow blocks of many warps.
        let (few, _) = best(512, 2048);
        assert!(few.columns == 8 && few.warps == 16, "{few:?}");
        // Many columns take as long as their way from memory.
        let (many, cycles) = best(32_000, 2048);
        let bytes = 32_000.0 * 2048.0 * 2.0;
        assert!(cycles < 1.2 * bytes / 132.0 / 24.0, "{many:?} {cycles}");
    }
}
