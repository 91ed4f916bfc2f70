//! The time that a device's profile predicts for a step.
//!
//! In: a step and a device. Out: seconds. Invariant: the prediction depends on sizes and layouts
//! alone, never on which kernel the device measured as the fastest. The shares below are fitted to
//! 2,423 kernels of 26 models on an NVIDIA H200 (docs/benchmarks.md shows how far they are off).
//!
//! A launch has a fixed part; behind it, arithmetic and memory traffic overlap. Traffic that the
//! last cache holds is faster than memory. A product runs in tiles, in waves of one tile for each
//! multiprocessor: the last wave takes as long as a full one.

use hypatia_dsl::kernel::RowAccess;
use hypatia_target::device::Device;

use super::view::{View, collapse};
use super::{Action, CallStep, Called, GemmStep, Plan, Step};

/// Rows and columns of a product's tiles, and the share of the device's rate that they reach.
const TILES: [([usize; 2], f64); 5] =
    [([128, 256], 1.0), ([128, 128], 0.95), ([64, 256], 0.95), ([64, 128], 0.8), ([64, 64], 0.7)];
/// Parts of a sum that tiles may share, and the seconds that adding them up takes.
const SPLITS: [(usize, f64); 3] = [(1, 0.0), (2, 0.7e-6), (4, 0.7e-6)];
/// Bytes of an access of the copy engine. Rows that are no whole accesses take more instructions:
/// these shares of the rate and of the bandwidth are left.
const ACCESS: usize = 16;
const UNEVEN: [f64; 2] = [0.25, 0.4];
/// The shares of attention's rate: its exponentials run beside its products.
const ATTENTION: f64 = 0.5;
/// The share of the bandwidth with which elements are read that do not lie in the result's order,
/// by pointwise work and by other steps.
const STRIDED: [f64; 2] = [1.0 / 3.0, 0.5];
/// The share for parts of a launch whose rows lie side by side.
const BY_ROWS: f64 = 0.8;
/// The shares of the rate and of the bandwidth with which convolutions of single channels run.
const WINDOWS: [f64; 2] = [0.25, 0.5];
/// The share of the matrix units' rate that groups of many channels reach, and the channels of
/// groups that reach half of it: a multiplication has elements of 16 channels and 8 filters.
const GROUPS: [f64; 2] = [0.2, 16.0];
/// The same share for an image of few channels.
const FEW_CHANNELS: f64 = 0.11;

impl Step {
    /// Seconds on a device as its profile predicts them: a launch, and the arithmetic or the memory
    /// traffic, whichever takes longer.
    pub fn predicted(&self, device: &Device) -> f64 {
        let work = self.work();
        let operand = self.reads.first().map(|v| v.dtype);
        let matrix = operand.map_or(device.vector, |dtype| device.matrix_rate(dtype));
        let bandwidth = device.bandwidth_of(work.bytes);
        if device.is_host() {
            let multiplies = matches!(self.action, Action::Gemm(_) | Action::Call(_) | Action::Conv(_));
            let rate = if multiplies { matrix } else { device.vector };
            return device.launch + (work.flops / rate).max(work.bytes / bandwidth);
        }
        let (fixed, [rate, share]) = match &self.action {
            Action::Call(CallStep { called: Called::Attention(_) | Called::AttentionGrad(_), .. }) => {
                (device.ramp, [matrix * ATTENTION, 1.0])
            }
            Action::Call(CallStep { called: Called::Rows(_), fallback, .. }) => {
                let alone = |s: &Step| s.predicted(device) - device.launch;
                return device.launch + fallback.iter().map(alone).sum::<f64>();
            }
            Action::Gemm(_) | Action::Call(_) => {
                let Some(product) = self.product() else {
                    return device.launch + device.ramp + (work.flops / matrix).max(work.bytes / bandwidth);
                };
                let seconds = self.product_seconds(product, matrix / device.units, device.units);
                let [slower, share] = if self.rows_are_even() { [1.0, 1.0] } else { UNEVEN };
                let passes = if product.terms() > 0.0 { work.flops / product.terms() } else { 1.0 };
                let arithmetic = seconds * passes.max(1.0).floor() / slower;
                return self.launches() as f64 * device.launch
                    + device.ramp
                    + arithmetic.max(work.bytes / (bandwidth * share));
            }
            Action::Conv(c) => {
                let channels = self.reads.get(1).and_then(|w| w.shape.get(1)).map_or(1.0, |n| *n as f64);
                let rate = match c.channels_last {
                    true if c.groups == 1 => matrix * FEW_CHANNELS,
                    true if channels > 1.0 => matrix * GROUPS[0] * channels / (channels + GROUPS[1]),
                    _ => device.vector * WINDOWS[0],
                };
                (device.ramp, [rate, WINDOWS[1]])
            }
            Action::Pointwise(p) => (0.0, [device.vector, if p.kernel.is_flat() { 1.0 } else { self.strided_share() }]),
            Action::Horizontal(h) => {
                let share = match () {
                    () if h.is_flat() => 1.0,
                    () if h.is_by_rows() => BY_ROWS,
                    () => STRIDED[1],
                };
                (0.0, [device.vector, share])
            }
            Action::Rowwise(r) => {
                let apart = r.kernel.inputs.first().is_some_and(|i| i.1 == RowAccess::Strided);
                (0.0, [device.vector, if apart { STRIDED[1] } else { 1.0 }])
            }
            Action::Copy | Action::Concat(_) | Action::Pad(_) | Action::Reduce(..) => {
                (0.0, [device.vector, STRIDED[1]])
            }
            _ => (0.0, [device.vector, 1.0]),
        };
        device.launch + fixed + (work.flops / rate).max(work.bytes / (bandwidth * share))
    }

    /// Seconds of the arithmetic of a product in its best tiles, on so many multiprocessors.
    fn product_seconds(&self, product: &GemmStep, rate: f64, units: f64) -> f64 {
        let (matrices, rows) = match self.reads.as_slice() {
            [a, b, ..] if shares_right(product, a, b) => (1, product.batch.iter().product::<usize>() * product.m),
            _ => (product.batch.iter().product(), product.m),
        };
        let mut best = f64::INFINITY;
        for ([tile_rows, tile_columns], share) in TILES {
            let tiles = matrices * rows.div_ceil(tile_rows) * product.n.div_ceil(tile_columns);
            let of_tile = 2.0 * (tile_rows * tile_columns * product.k) as f64 / (rate * share);
            for (parts, joined) in SPLITS {
                let waves = ((tiles * parts) as f64 / units).ceil();
                best = best.min(waves * of_tile / parts as f64 + joined);
            }
        }
        best
    }

    /// True if both factors have rows, or columns, of whole accesses.
    fn rows_are_even(&self) -> bool {
        let even = |v: &View| {
            let bytes = |stride: &isize| stride.unsigned_abs() * v.dtype.size();
            let mut apart = v.strides.iter().zip(&v.shape).filter(|(stride, size)| **size > 1 && stride.abs() > 1);
            apart.all(|(stride, _)| bytes(stride).is_multiple_of(ACCESS))
        };
        self.reads.iter().take(2).chain(&self.writes).all(even)
    }

    /// The share of the bandwidth that pointwise work reaches whose operands lie apart.
    fn strided_share(&self) -> f64 {
        let apart = |v: &View| !v.strides.contains(&0) && !v.is_contiguous();
        if self.reads.iter().any(apart) { STRIDED[0] } else { 1.0 }
    }
}

impl GemmStep {
    /// Operations of its sums.
    fn terms(&self) -> f64 {
        2.0 * (self.batch.iter().product::<usize>() * self.m * self.n) as f64 * self.k as f64
    }
}

/// True if all matrices share the right factor, and the rows of the left ones are those of one.
fn shares_right(product: &GemmStep, a: &View, b: &View) -> bool {
    let lead = product.batch.len();
    let shared = b.strides.iter().zip(&b.shape).take(lead).all(|(stride, size)| *stride == 0 || *size == 1);
    a.shape.len() > lead && shared && collapse(&a.shape[..=lead], &[a.strides[..=lead].to_vec()]).0.len() == 1
}

impl Plan {
    /// Seconds on the plan's device as its profile predicts them.
    pub fn predicted(&self) -> f64 {
        self.steps.iter().map(|s| s.predicted(&self.device)).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;
    use hypatia_dsl::scalar::Term;

    use super::*;
    use crate::{BufferId, ConvStep};
    use hypatia_graph::prim::Window;

    fn h200() -> Device {
        Device::named("h200").unwrap()
    }

    fn whole(id: u32, shape: &[usize]) -> View {
        View::whole(BufferId(id), DType::BF16, shape)
    }

    fn step(action: Action, reads: Vec<View>, out: View) -> Step {
        Step { name: String::new(), action, reads, writes: vec![out], in_place: vec![None], kernel: None }
    }

    /// A product of that batch; all matrices share the right factor if it is a view of one.
    fn product(batch: usize, [m, n, k]: [usize; 3], shared: bool) -> Step {
        let g = GemmStep { batch: vec![batch], m, n, k, acc: DType::F32, term: Term::empty(), reduced: Vec::new() };
        let b = if shared { whole(1, &[k, n]).broadcast(&[batch, k, n]).unwrap() } else { whole(1, &[batch, k, n]) };
        step(Action::Gemm(g), vec![whole(0, &[batch, m, k]), b], whole(2, &[batch, m, n]))
    }

    #[test]
    fn a_product_takes_whole_waves() {
        let us = |tiles: usize| product(1, [128 * tiles, 256, 4096], true).predicted(&h200());
        // 132 tiles of 128 x 256 are one wave.
        assert!(us(132) < 1.1 * us(100), "{} {}", us(132), us(100));
        assert!(us(140) > 1.15 * us(132), "{} {}", us(140), us(132));
    }

    #[test]
    fn matrices_that_share_a_factor_are_one() {
        let us = |shared| product(64, [7, 512, 2048], shared).predicted(&h200());
        assert!(us(true) < us(false) / 2.0, "{} {}", us(true), us(false));
    }

    #[test]
    fn rows_that_are_no_whole_accesses_are_slow() {
        let us = |n| product(1, [4096, n, 4096], true).predicted(&h200());
        assert!(us(4095) > 2.0 * us(4096), "{} {}", us(4095), us(4096));
    }

    #[test]
    fn wide_groups_are_faster_than_as_many_products_of_narrow_ones() {
        let window = Window { size: 3, stride: 1, dilation: 1, before: 1 };
        let us = |groups: usize, channels: usize, side: usize| {
            let windows = vec![window; 2];
            let c = ConvStep { windows, groups, channels_last: true, acc: DType::F32, term: Term::empty() };
            let image = [32, side, side, groups * channels];
            let reads = vec![whole(0, &image), whole(1, &[groups * channels, channels, 3, 3])];
            step(Action::Conv(c), reads, whole(2, &image)).predicted(&h200()) * 1e6
        };
        // Groups of 4 took 33 us on an H200, of 32 channels 8 us.
        let [narrow, wide] = [us(32, 4, 56), us(32, 32, 7)];
        assert!((20.0..50.0).contains(&narrow) && (5.0..15.0).contains(&wide), "{narrow} {wide}");
    }

    #[test]
    fn images_of_colours_are_multiplied_by_warps() {
        let us = |filters: usize, size: usize| {
            let windows = vec![Window { size, stride: 2, dilation: 1, before: size / 2 }; 2];
            let c = ConvStep { windows, groups: 1, channels_last: true, acc: DType::F32, term: Term::empty() };
            let reads = vec![whole(0, &[32, 224, 224, 3]), whole(1, &[filters, 3, size, size])];
            step(Action::Conv(c), reads, whole(2, &[32, 112, 112, filters])).predicted(&h200()) * 1e6
        };
        // 64 filters of 7 x 7 took 70 us on an H200, 32 of 3 x 3 took 21.
        let [many, few] = [us(64, 7), us(32, 3)];
        assert!((50.0..90.0).contains(&many) && (14.0..28.0).contains(&few), "{many} {few}");
    }

    #[test]
    fn what_the_cache_holds_is_faster_than_memory() {
        let device = h200();
        let seconds = |elements| {
            let copy = step(Action::Copy, vec![whole(0, &[elements])], whole(1, &[elements]));
            (copy.predicted(&device) - device.launch) / elements as f64
        };
        assert!(seconds(1 << 20) < 0.9 * seconds(1 << 28));
    }

    #[test]
    fn a_host_counts_neither_tiles_nor_waves() {
        let cpu = Device::cpu();
        let product = product(1, [129, 65, 64], true);
        let work = product.work();
        let want = cpu.launch + (work.flops / cpu.matrix_rate(DType::BF16)).max(work.bytes / cpu.bandwidth);
        assert!((product.predicted(&cpu) / want - 1.0).abs() < 1e-9);
    }
}
