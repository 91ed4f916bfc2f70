//! Checksums of products: the launches that hold a product's accumulators against sums of its
//! factors.
//!
//! In: a product of a plan that is checked, and how its accumulators can be seen. Out: the kernels
//! and their [`Work`], in launch order: the sums of the right factor, then the comparison.
//! Invariant: sums of a constant are computed once, in memory of their own; everything else lies in
//! memory
//! that nothing else uses (`Work::sums`).

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{
    BlockSumsKernel, ChecksumKernel, Compared, DisturbKernel, RowSums, bytes_of_sum, sum_type, sums_in_memory,
};
use hypatia_templates::cuda::{ArgRole, CHECKSUM_SLICE, SizeName, compared_at_a_time};
use hypatia_templates::instances::Body;

use super::warp_tiled::{Strides, product_strides};
use super::{Kept, Work};
use crate::address::{FAULT, REPORTS};
use hypatia_plan::{Checks, GemmStep, Plan, Storage, View};

/// Columns of a block whose sums of accumulators are compared: at least, and at most.
const NARROWEST: usize = 512;
const WIDEST: usize = 2048;
/// Blocks of a row, unless they would be too wide: each costs as much as a column of the product.
const BLOCKS: usize = 16;
/// Columns of a block where a result is compared, of or from a 16-bit type and of others: the
/// rounding of more elements would hide what is wrong with one.
const OF_HALF: usize = 128;
const OF_RESULT: usize = 32;
/// Bytes that a product and its comparison exchange, at most.
pub const EXCHANGED: usize = 32 << 20;
/// Alignment of what they exchange.
const ALIGNMENT: usize = 256;

/// How the accumulators of a product can be seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen {
    /// The product stores their sums in memory that it shares with the comparison.
    Sums {
        /// Columns of a sum.
        columns: usize,
        /// Addends of a sum, one after another.
        addends: usize,
    },
    /// The result is the accumulators times this factor, rounded.
    Result(f64),
}

/// A product that can be checked.
#[derive(Clone, Debug)]
pub struct Checksum {
    /// Outer and inner products, rows, columns, length of the sums.
    sizes: [usize; 5],
    /// Strides of both factors and of the result.
    strides: [Strides; 3],
    /// Those of a second right factor.
    second: Option<Strides>,
    /// Element types of both factors and of the result.
    types: [DType; 3],
    tf32: bool,
    /// A name of the right factors, if they are constant.
    constant: Option<String>,
    disturbed: bool,
    has_units: bool,
    /// True if eight neighbours of a row of the left factor lie side by side in whole 16 bytes.
    packs: bool,
}

impl Checksum {
    /// The checksums of a product with these factors and that result. `second` is a second right
    /// factor, whose products are added to the first one's. `None` if the plan is not checked, if
    /// nothing is added up, or if the batch has more than two axes that lie apart.
    pub fn of(plan: &Plan, step: &GemmStep, [a, b, out]: [&View; 3], second: Option<&View>) -> Option<Checksum> {
        let empty = step.k == 0 || [a, b, out].iter().any(|v| v.is_empty());
        if plan.checks == Checks::Off || !a.dtype.is_float() || empty {
            return None;
        }
        let (batch, m, strides) = product_strides(step, &[a, b, out])?;
        // Kernels count with 32 bits.
        if [batch[0] * batch[1] * m, step.n, step.k].iter().any(|size| i32::try_from(*size).is_err()) {
            return None;
        }
        let second_strides = match second {
            Some(c) => {
                Some(product_strides(step, &[a, c, out]).filter(|(of, rows, _)| (*of, *rows) == (batch, m))?.2[1])
            }
            None => None,
        };
        let constant = |v: &View| match plan.buffers[v.buffer.index()].storage {
            Storage::Constant(i) => Some(format!("{i} + {} {:?} {:?}", v.offset, v.shape, v.strides)),
            Storage::Input(_) | Storage::Arena(_) => None,
        };
        let names: Option<Vec<String>> = [b].into_iter().chain(second).map(constant).collect();
        Some(Checksum {
            sizes: [batch[0], batch[1], m, step.n, step.k],
            strides: [strides[0], strides[1], strides[2]],
            second: second_strides,
            types: [a.dtype, b.dtype, out.dtype],
            tf32: plan.device.tf32 && a.dtype == DType::F32,
            constant: names.map(|n| n.join(" and ")),
            disturbed: plan.checks == Checks::Disturbed,
            has_units: plan.device.sm >= AMPERE,
            packs: step.k.is_multiple_of(PACK) && packs(a, &strides[0]),
        })
    }

    /// What happens to the accumulators of a generated product.
    pub fn row_sums(&self) -> RowSums {
        if self.disturbed { RowSums::Disturbed } else { RowSums::Stored }
    }

    /// What a generated product that stores sums gets besides its own arguments.
    pub fn with_row_sums(&self, mut work: Work) -> Work {
        work.sums.push((ArgRole::RowSums, 0));
        work.reports.push((ArgRole::Fault, FAULT));
        work
    }

    /// The launches after a product; `None` if their sums are too many.
    pub fn launches(&self, seen: Seen) -> Option<Vec<(Body, Work)>> {
        let [outer, inner, m, n, _] = self.sizes;
        let (width, row_sums) = match seen {
            // What 16-bit factors give is no more exact than a 16-bit result.
            Seen::Result(_) if self.types[0].size() == 2 || self.types[2].size() == 2 => (OF_HALF, 0),
            Seen::Result(_) => (OF_RESULT, 0),
            Seen::Sums { columns, addends } => {
                let wanted = n.div_ceil(BLOCKS).clamp(NARROWEST, WIDEST).next_multiple_of(columns);
                (wanted, n.div_ceil(columns) * addends * outer * inner * m * size_of::<f32>())
            }
        };
        let of_b = self.of_right(width);
        let room = row_sums.next_multiple_of(ALIGNMENT);
        let used = if self.constant.is_some() { row_sums } else { room + of_b.bytes };
        if used > EXCHANGED {
            return None;
        }
        let place = |mut work: Work| {
            match &self.constant {
                Some(name) => {
                    let name = format!("{name} by {width} for {}", self.types[0]);
                    work.kept = Some(Kept { role: ArgRole::Sums, name, bytes: of_b.bytes });
                }
                None => work.sums.push((ArgRole::Sums, room)),
            }
            (work.compares, work.exchanged) = (!work.once, used);
            work
        };
        let (compare, compared) = self.comparison(seen, width, &of_b);
        let mut out = vec![(of_b.body, place(of_b.work)), (compare, place(compared))];
        if let (true, Seen::Result(_)) = (self.disturbed, seen) {
            out.insert(0, self.disturbance());
        }
        Some(out)
    }

    /// The sums of the right factor over blocks of that many columns.
    fn of_right(&self, width: usize) -> OfRight {
        let [outer, inner, _, n, k] = self.sizes;
        let [a_type, b_type, _] = self.types;
        let blocks = n.div_ceil(width);
        // One right factor may serve all products.
        let differs = |axis: usize| self.strides[1][axis] != 0 || self.second.is_some_and(|s| s[axis] != 0);
        let [outer, inner] = [if differs(0) { outer } else { 1 }, if differs(1) { inner } else { 1 }];
        let tiles = outer * inner * blocks * k.div_ceil(CHECKSUM_SLICE);
        let mut work = Work::new(1, tiles * THREADS).each_size([
            (SizeName::Depth, k),
            (SizeName::Blocks, blocks),
            (SizeName::Width, width),
        ]);
        work = work.each_size([(SizeName::Columns, n), (SizeName::Outer, outer), (SizeName::Inner, inner)]);
        work = work.strides(ArgRole::Read(1), &self.strides[1]);
        if let Some(second) = &self.second {
            work = work.strides(ArgRole::Read(2), second);
        }
        work.once = self.constant.is_some();
        let pair = self.second.is_some();
        let sums = sum_type(a_type);
        let (name, doc, by_units) = ("block_sums".into(), String::new(), self.by_units());
        let kernel = BlockSumsKernel { name, doc, factor: b_type, sums, by_units, pair };
        let bytes = bytes_of_sum(sums, by_units);
        // Elements of all sums of a product.
        let step = blocks * k * bytes / sums_in_memory(sums, by_units).size();
        OfRight {
            strides: [if differs(0) { inner * step } else { 0 }, if differs(1) { step } else { 0 }],
            bytes: outer * inner * blocks * k * bytes,
            body: Body::BlockSums(kernel),
            work,
        }
    }

    /// The comparison of what is seen with the left factor times these sums.
    fn comparison(&self, seen: Seen, width: usize, of_b: &OfRight) -> (Body, Work) {
        let [outer, inner, m, n, k] = self.sizes;
        let [factor, _, out_type] = self.types;
        let blocks = n.div_ceil(width);
        let mut work =
            Work::new(0, 0).each_size([(SizeName::Depth, k), (SizeName::Blocks, blocks), (SizeName::Width, width)]);
        work = work.each_size([(SizeName::Rows, m), (SizeName::Outer, outer), (SizeName::Inner, inner)]);
        work = work.strides(ArgRole::Read(0), &self.strides[0]);
        work = work.strides(ArgRole::Sums, &of_b.strides.map(|s| s as isize));
        work.reports.push((ArgRole::Report, REPORTS));
        let compared = match seen {
            Seen::Sums { columns, addends } => {
                work.sums.push((ArgRole::RowSums, 0));
                let parts = n.div_ceil(columns) * addends;
                work = work.each_size([(SizeName::Parts, parts), (SizeName::PartsOfBlock, width / columns * addends)]);
                Compared::Accumulators
            }
            Seen::Result(scale) => {
                work = work.size(SizeName::Columns, n).strides(ArgRole::Written(0), &self.strides[2]);
                Compared::Result { dtype: out_type, scale, width }
            }
        };
        let (name, doc, by_units, tf32) = ("checksum".into(), String::new(), self.by_units(), self.tf32);
        let kernel = ChecksumKernel { name, doc, factor, by_units, packs: by_units && self.packs, tf32, compared };
        let ([rows, columns], threads) = compared_at_a_time(&kernel);
        (work.rows, work.n) = (1, outer * inner * m.div_ceil(rows) * blocks.div_ceil(columns) * threads as usize);
        (Body::Checksum(kernel), work)
    }

    /// True if matrix units multiply the rows by the sums: those of every GPU from Ampere on
    /// multiply bf16.
    fn by_units(&self) -> bool {
        self.types[0] == DType::BF16 && self.has_units
    }

    /// The launch by which a test changes the result.
    fn disturbance(&self) -> (Body, Work) {
        let [outer, inner, m, n, _] = self.sizes;
        let mut work = Work::new(1, outer * inner * m * n).each_size([(SizeName::Rows, m), (SizeName::Columns, n)]);
        work = work
            .each_size([(SizeName::Outer, outer), (SizeName::Inner, inner)])
            .strides(ArgRole::Written(0), &self.strides[2]);
        work.reports.push((ArgRole::Fault, FAULT));
        (Body::Disturb(DisturbKernel { name: "disturb".into(), doc: String::new(), dtype: self.types[2] }), work)
    }
}

/// Elements of 16 bits that are read at once.
const PACK: usize = 8;

/// True if the rows of a factor lie in whole packs. Memory begins at multiples of more than one.
fn packs(view: &View, [batches @ .., along]: &Strides) -> bool {
    let whole = |s: &isize| s.unsigned_abs().is_multiple_of(PACK);
    *along == 1 && view.offset.is_multiple_of(PACK) && batches.iter().all(whole)
}

/// The compute capability of the first GPUs whose matrix units multiply bf16.
const AMPERE: u32 = 80;
/// Threads of a block.
const THREADS: usize = 256;

/// The sums of the right factor: the launch that computes them, their strides along both axes of
/// the batch, and their bytes.
struct OfRight {
    strides: [usize; 2],
    bytes: usize,
    body: Body,
    work: Work,
}
