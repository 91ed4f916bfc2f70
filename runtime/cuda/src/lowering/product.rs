//! Generated products with their epilogue: which of the templates compute one, and how.
//!
//! In: a product with its epilogue, the views of its operands, the device. Out: the tilings of all
//! templates that can compute it in place, the one with the shortest predicted time first, and for
//! each the kernel and its [`Work`]. Invariant: this is the one place that chooses among templates:
//! Hopper's (wgmma, the copy engine) takes whole 16 bytes; that of warps (mma.sync) takes any rows
//! on every GPU from Ampere on, and f32 that is not rounded; that of few rows takes these, where
//! nothing is checked.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Kernel;
use hypatia_dsl::kernel::{GemvTiling, StoredTiling, Tiling, WarpTiling};
use hypatia_templates::instances::Body;

use super::Work;
use super::checksum::{Checksum, Seen};
use super::gemv::GemvProduct;
use super::prologue::Computed;
use super::tiled::{TiledProduct, lies_whole};
use super::warp_tiled::WarpProduct;
use hypatia_plan::{Checks, GemmStep, Plan, PrologueStep, View};

/// The prediction of the template of warps must be better by this factor beside Hopper's: it rarely
/// is the fastest there, and each candidate is compiled.
const PENALTY_OF_WARPS: f64 = 1.5;
/// Of few rows, how many tilings of warps come first.
const FIRST_OF_FEW: usize = 4;

/// A product that some template computes in place.
#[derive(Clone, Debug)]
pub struct GeneratedProduct {
    hopper: Option<TiledProduct>,
    warps: Option<WarpProduct>,
    few_rows: Option<GemvProduct>,
    /// How it is checked, if it is.
    checksum: Option<Checksum>,
    /// Whether each sum is added up in one order, however many rows there are.
    in_order: bool,
}

impl GeneratedProduct {
    /// The product of a step of that plan; `None` if an operand would have to be copied.
    /// Its results are the values of the step's term.
    pub fn of(plan: &Plan, step: &GemmStep, reads: &[View], outs: &[View]) -> Option<GeneratedProduct> {
        let ([a, b, ..], [out, ..]) = (reads, outs) else { return None };
        let hopper = if plan.device.has_wgmma_of(a.dtype) { TiledProduct::of(step, reads, outs) } else { None };
        // Only Hopper's template reduces anything beside a product, and none checks that; it alone
        // takes heads apart.
        let of_warps = step.reduced.is_empty() && lies_whole(step, a, out);
        let warps = if of_warps { WarpProduct::of(step, reads, outs) } else { None };
        let warps = warps.map(|p| p.rounded(plan.device.tf32));
        let checksum = Checksum::of(plan, step, [a, b, out], None);
        if checksum.is_some() && !step.reduced.is_empty() {
            return None;
        }
        // In TF32 only the template of warps stores sums for a checksum.
        let hopper = hopper.filter(|_| checksum.is_none() || a.dtype != DType::F32);
        // The template of few rows stores no sums for a checksum.
        let few_rows = warps.as_ref().filter(|_| checksum.is_none()).and_then(GemvProduct::of);
        let any = hopper.is_some() || warps.is_some();
        let product = GeneratedProduct { hopper, warps, few_rows, checksum, in_order: plan.allowed.batch_invariant };
        any.then(|| product.settled())
    }

    /// Where the order of sums must not depend on the number of rows, one template is left, which
    /// is chosen by everything else: each adds up in an order of its own, whatever its tiling.
    fn settled(mut self) -> GeneratedProduct {
        if self.in_order {
            self.few_rows = None;
            self.warps = self.warps.filter(|_| self.hopper.is_none());
        }
        self
    }

    /// Two products of one left operand; `None` if an operand would have to be copied.
    pub fn of_pair(plan: &Plan, step: &GemmStep, reads: &[View], outs: &[View]) -> Option<GeneratedProduct> {
        let ([a, b, c, ..], [out, ..]) = (reads, outs) else { return None };
        let hopper = if plan.device.has_wgmma_of(a.dtype) { TiledProduct::of_pair(step, reads, outs) } else { None };
        let checksum = Checksum::of(plan, step, [a, b, out], Some(c));
        if checksum.is_some() && (!step.reduced.is_empty() || a.dtype == DType::F32) {
            return None;
        }
        let few_rows =
            if checksum.is_none() && step.reduced.is_empty() { GemvProduct::of_pair(step, reads, outs) } else { None };
        // Only Hopper's template reduces anything beside products, or stores sums for a checksum of
        // two.
        let alone = checksum.is_none() && step.reduced.is_empty();
        let warps = if alone { WarpProduct::of_pair(step, reads, outs) } else { None };
        let warps = warps.map(|p| p.rounded(plan.device.tf32));
        let product = GeneratedProduct { hopper, warps, few_rows, checksum, in_order: plan.allowed.batch_invariant };
        Some(product.settled()).filter(|p| p.hopper.is_some() || p.warps.is_some() || p.few_rows.is_some())
    }

    /// A product, or two of one left operand, with factors that are computed where they are read.
    /// `None` if an operand would have to be copied, or where sums are checked.
    pub fn of_prologue(plan: &Plan, step: &PrologueStep, reads: &[View], outs: &[View]) -> Option<GeneratedProduct> {
        let in_order = plan.allowed.batch_invariant;
        let wanted = plan.checks == Checks::Off && !in_order;
        let Computed { hopper, warps, few_rows } = Computed::of(plan, step, reads, outs).filter(|_| wanted)?;
        Some(GeneratedProduct { hopper, warps, few_rows, checksum: None, in_order })
    }

    /// The tilings that a kernel declares and that fit, the one with the best prediction first.
    pub fn plausible(&self, kernel: &Kernel, multiprocessors: usize) -> Vec<StoredTiling> {
        let mut of_hopper = Tiling::all(&kernel.tune);
        of_hopper.retain(|t| !self.in_order || t.split == 1);
        let hopper = self.hopper.iter().flat_map(|p| p.plausible(&of_hopper, multiprocessors));
        let mut of_warps = WarpTiling::all(&kernel.tune);
        of_warps.retain(|t| !self.in_order || t.split == 1);
        let warps = self.warps.iter().flat_map(|p| p.plausible(&of_warps, multiprocessors));
        let penalty = if self.hopper.is_some() && !self.few() { PENALTY_OF_WARPS } else { 1.0 };
        let hopper = hopper.map(|(t, cycles)| (t.words(), cycles));
        let warps = warps.map(|(t, cycles)| (t.words(), cycles * penalty));
        let few = self.few_rows.iter().flat_map(|p| p.plausible(&GemvTiling::all(&kernel.tune), multiprocessors));
        let few = few.map(|(t, cycles)| (t.words(), cycles));
        let mut all: Vec<(StoredTiling, f64)> = hopper.chain(warps).chain(few).collect();
        // Few rows have a template of their own: it is among those that are compiled, whatever the
        // prediction of one template is beside that of another.
        let own = |words: &StoredTiling| GemvTiling::of_words(words).is_some();
        all.sort_by(|x, y| x.1.total_cmp(&y.1));
        if self.few() {
            // Half of the tiles of Hopper's template would be empty, which its prediction ignores.
            let of_warps = |(words, _): &(StoredTiling, f64)| WarpTiling::of_words(words).is_some();
            let first: Vec<_> = all.iter().filter(|t| of_warps(t)).take(FIRST_OF_FEW).copied().collect();
            all.retain(|t| !first.iter().any(|(words, _)| *words == t.0));
            all.splice(0..0, first);
        }
        if let Some(best) = all.iter().position(|(words, _)| own(words)) {
            all[..=best].rotate_right(1);
        }
        all.into_iter().map(|(words, _)| words).collect()
    }

    /// Whether a tile of Hopper's template has twice the rows that there are, and no template is
    /// for few rows alone.
    fn few(&self) -> bool {
        let half_a_tile = |p: &TiledProduct| p.sizes()[1] <= 32;
        self.few_rows.is_none() && self.hopper.as_ref().is_some_and(half_a_tile)
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, words: &StoredTiling) -> Option<(Body, Work)> {
        if let Some(tiling) = Tiling::of_words(words) {
            return self.hopper.as_ref()?.tiled(tiling);
        }
        if let Some(tiling) = WarpTiling::of_words(words) {
            return self.warps.as_ref()?.tiled(tiling);
        }
        self.few_rows.as_ref()?.tiled(GemvTiling::of_words(words)?)
    }

    /// The kernel with that tiling and what checks it, in launch order, each with its arguments;
    /// empty if the tiling does not fit.
    pub fn launches(&self, words: &StoredTiling) -> Vec<(Body, Work)> {
        let Some((mut body, work)) = self.tiled(words) else { return Vec::new() };
        let Some(checksum) = &self.checksum else {
            let joins = match (&body, &self.hopper) {
                (Body::Gemm(kernel), Some(product)) => product.joins(kernel, &work),
                _ => Vec::new(),
            };
            return [vec![(body, work)], joins].concat();
        };
        let (row_sums, columns, addends) = match &mut body {
            Body::Gemm(k) => {
                let columns = k.kept();
                (&mut k.row_sums, columns, 1)
            }
            Body::WarpGemm(k) => {
                let columns = k.warp_columns();
                (&mut k.row_sums, columns, k.tiling.split)
            }
            _ => return Vec::new(),
        };
        *row_sums = checksum.row_sums();
        let behind = checksum.launches(Seen::Sums { columns, addends });
        behind.map(|behind| [vec![(body, checksum.with_row_sums(work))], behind].concat()).unwrap_or_default()
    }

    /// Products, rows, columns and length of the sums.
    pub fn sizes(&self) -> [usize; 4] {
        let warps = || self.warps.as_ref().map(WarpProduct::sizes);
        let few = || self.few_rows.as_ref().map(GemvProduct::sizes);
        self.hopper.as_ref().map(TiledProduct::sizes).or_else(warps).or_else(few).unwrap_or_default()
    }
}
