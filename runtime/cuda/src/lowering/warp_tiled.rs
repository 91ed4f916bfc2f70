//! Products of warps with their epilogue: the kernel of a step for a tiling, and its arguments.
//!
//! In: a product with its epilogue, and the views of its operands. Out: for each tiling, the kernel
//! and its [`Work`]; none if an operand would have to be copied. Invariant: rows may begin at any
//! element, only the width of accesses depends on it; leading axes become rows if one right operand
//! serves all of them, or up to two axes of a batch.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{Access, Factor, Operand, Prologue, RowSums, WarpGemm, WarpTiling};
use hypatia_templates::cuda::{ArgRole, SizeName};
use hypatia_templates::instances::Body;

use super::tiled::lie_alike;
use super::{Work, fastest_first};
use hypatia_plan::{FactorWindows, GemmStep, View, collapse, matrix_layout, row_major};

/// The widest access, in bytes.
const WIDEST: usize = 16;

/// Strides of an operand along both axes of the batch, the rows and the columns.
pub type Strides = [isize; 4];

/// A product that warps can compute in place.
#[derive(Clone, Debug)]
pub struct WarpProduct {
    /// Outer and inner products, and rows, columns and length of the sums of each.
    pub(super) sizes: [usize; 5],
    pub(super) kernel: WarpGemm,
    pub(super) strides: Vec<(ArgRole, Vec<i64>)>,
    /// Operands that the step reads at other places.
    pub(super) views: Vec<(ArgRole, View)>,
}

impl WarpProduct {
    /// The product of a step; `None` if an operand would have to be copied.
    pub fn of(step: &GemmStep, reads: &[View], outs: &[View]) -> Option<WarpProduct> {
        let ([a, b, beside @ ..], [out, ..]) = (reads, outs) else { return None };
        let all: Vec<&View> = [a, b, out].into_iter().chain(beside).collect();
        let (batch, m, strides) = product_strides(step, &all)?;
        WarpProduct::of_strides(step, (&all, outs), [batch[0], batch[1], m, step.n, step.k], &strides)
    }

    /// The product with f32 factors rounded to TF32, if that is wanted.
    pub fn rounded(mut self, tf32: bool) -> WarpProduct {
        self.kernel.exact &= !tf32;
        self
    }

    /// The product of which the left factor or the right one consists of windows of an image, which
    /// is read in its place. `None` if an operand would have to be copied.
    pub fn of_windows(
        step: &GemmStep,
        (w, left): (&FactorWindows, bool),
        reads: &[View],
        outs: &[View],
    ) -> Option<WarpProduct> {
        let (side, last) = (usize::from(!left), w.windows.channels_last);
        let image = reads.get(side).filter(|_| step.reduced.is_empty())?;
        let windows = w.of_product(step, left, image)?;
        // Threads count the places of a factor, and of all channels of one product, in 32 bits.
        let products = step.batch.iter().product::<usize>().max(1);
        let counted = image.len() / if last { windows.channels } else { products };
        let factor = as_if_stored(step, left, last, image);
        let ([first, second, beside @ ..], [out, ..]) = (reads, outs) else { return None };
        let factors = if left { [&factor, second] } else { [first, &factor] };
        let all: Vec<&View> = factors.into_iter().chain([out]).chain(beside).collect();
        // Only rows whose channels lie last go through all images.
        let (batch, m, strides) = match (left, last) {
            (true, true) => as_rows(step, &all)?,
            _ => as_batch(step, &all).or_else(|| as_rows(step, &all))?,
        };
        let sizes = [batch[0], batch[1], m, step.n, step.k];
        let product = WarpProduct::of_strides(step, (&all, outs), sizes, &strides);
        let mut product = product.filter(|_| i32::try_from(counted).is_ok())?;
        let of_image = windows.axes.iter().map(|a| a.out).product::<usize>();
        let [outer, inner, rows, columns, _] = product.sizes;
        let fits = match (left, last) {
            // Rows of one product go through all images.
            (true, true) => (outer, inner) == (1, 1),
            _ => (if left { rows } else { columns }) == of_image,
        };
        if !fits {
            return None;
        }
        let of_pixels = unit(image, &[(windows.channels as isize, 2)]);
        product.kernel.factors[side].unit = if last { of_pixels } else { image.dtype.size() };
        product.kernel.images[side] = Some(windows);
        product.kernel.refusal().is_none().then_some(product)
    }

    /// Two products of one left operand, which is the first read; the right ones follow. `None` if
    /// an operand would have to be copied, or if the right operands lie in different orders.
    pub fn of_pair(step: &GemmStep, reads: &[View], outs: &[View]) -> Option<WarpProduct> {
        let mut of = WarpProduct::with_second(step, reads, outs)?;
        of.kernel.pair = true;
        of.kernel.refusal().is_none().then_some(of)
    }

    /// The product of the left operand and the first right one, with arguments for another right
    /// one, which lies alike.
    pub(super) fn with_second(step: &GemmStep, reads: &[View], outs: &[View]) -> Option<WarpProduct> {
        let [a, b, c, beside @ ..] = reads else { return None };
        let first: Vec<View> = [a, b].into_iter().chain(beside).cloned().collect();
        let mut of = WarpProduct::of(step, &first, outs)?;
        let alike = (b.dtype, &b.shape, &b.strides) == (c.dtype, &c.shape, &c.strides);
        let [_, right] = of.kernel.factors;
        if !alike || !(c.offset * c.dtype.size()).is_multiple_of(right.unit) {
            return None;
        }
        let shifted = |(role, values): (ArgRole, Vec<i64>)| match role {
            ArgRole::Read(1) => vec![(ArgRole::Read(1), values.clone()), (ArgRole::Read(2), values)],
            ArgRole::Read(i) if i > 1 => vec![(ArgRole::Read(i + 1), values)],
            _ => vec![(role, values)],
        };
        of.strides = std::mem::take(&mut of.strides).into_iter().flat_map(shifted).collect();
        Some(of)
    }

    /// `all` are both factors, the first one of the results, and what the term reads.
    fn of_strides(
        step: &GemmStep,
        (all, outs): (&[&View], &[View]),
        sizes: [usize; 5],
        strides: &[Strides],
    ) -> Option<WarpProduct> {
        let [_, _, m, n, k] = sizes;
        let [a, b, out, beside @ ..] = all else { return None };
        let matrix = |i: usize, rows: usize, columns: usize| matrix_layout(rows, columns, strides[i][2], strides[i][3]);
        let ((a_by_m, a_ld), (b_by_k, b_ld)) = (matrix(0, m, k)?, matrix(1, k, n)?);
        let (out_by_m, out_ld) = matrix(2, m, n)?;
        if out_by_m || !lie_alike(outs) || sizes.contains(&0) || sizes.iter().any(|s| i32::try_from(*s).is_err()) {
            return None;
        }
        let lines = |i: usize, ld: usize, count: usize| {
            let [outer, inner, ..] = strides[i];
            let steps = [(outer, sizes[0]), (inner, sizes[1]), (ld as isize, count)];
            (unit(all[i], &steps), vec![outer as i64, inner as i64, ld as i64])
        };
        // A single row of a factor consists of whole units: memcheck takes a copy of a part of a
        // unit for one of all of it.
        let factor = |i: usize, ld: usize, [count, length]: [usize; 2]| match lines(i, ld, count) {
            (_, of_lines) if count == 1 => (lines(i, length, 2).0, of_lines),
            of_many => of_many,
        };
        let (a_unit, a_lines) = factor(0, a_ld, if a_by_m { [k, m] } else { [m, k] });
        let (b_unit, b_lines) = factor(1, b_ld, if b_by_k { [n, k] } else { [k, n] });
        let (out_unit, out_lines) = lines(2, out_ld, m);
        let mut accesses: Vec<Access> = (3..all.len()).map(|i| access(strides[i], sizes)).collect();
        let vector = vector(out.dtype, out_unit, beside, &accesses, &strides[3..], sizes);
        let mut of_all: Vec<(ArgRole, Vec<i64>)> =
            vec![(ArgRole::Read(0), a_lines), (ArgRole::Read(1), b_lines), (ArgRole::Written(0), out_lines)];
        for (i, (access, view)) in accesses.iter_mut().zip(beside).enumerate() {
            // A row that begins between two wide accesses is read element by element.
            if *access == Access::Row && unit(view, &[]) < wide(vector, view.dtype) {
                *access = Access::Strided;
            }
            of_all.push((ArgRole::Read(i + 2), strides[i + 3].map(|s| s as i64).to_vec()));
        }
        let inputs = accesses.into_iter().zip(beside).map(|(access, v)| Operand { dtype: v.dtype, access });
        let kernel = WarpGemm {
            name: "product".into(),
            doc: String::new(),
            multiplied: a.dtype,
            exact: a.dtype == DType::F32,
            pair: false,
            factors: [
                Factor { dtype: a.dtype, dense_k: !a_by_m, unit: a_unit },
                Factor { dtype: b.dtype, dense_k: b_by_k, unit: b_unit },
            ],
            prologues: [None, None],
            images: [None, None],
            inputs: inputs.collect(),
            outputs: outs.iter().map(|o| o.dtype).collect(),
            vector,
            term: step.term.clone(),
            row_sums: RowSums::Off,
            tiling: WarpTiling::named(&[])?,
        };
        kernel.refusal().is_none().then_some(WarpProduct { sizes, kernel, strides: of_all, views: Vec::new() })
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, tiling: WarpTiling) -> Option<(Body, Work)> {
        let kernel = WarpGemm { tiling, ..self.kernel.clone() };
        kernel.fits().then_some((Body::WarpGemm(kernel), self.work(tiling.rows)))
    }

    /// The arguments of a kernel whose tiles have that many rows.
    pub(super) fn work(&self, rows_of_tile: usize) -> Work {
        let [outer, inner, m, n, k] = self.sizes;
        // Each product begins a new tile.
        let mut work = Work::new(outer * inner * m.next_multiple_of(rows_of_tile), n).each_size([
            (SizeName::Rows, m),
            (SizeName::Columns, n),
            (SizeName::Depth, k),
            (SizeName::Outer, outer),
            (SizeName::Inner, inner),
        ]);
        work.strides.extend(self.strides.iter().cloned());
        work.views.extend(self.views.iter().cloned());
        work
    }

    /// The tilings among these that fit, each with its predicted cycles, for a device with that
    /// many multiprocessors.
    pub fn plausible(&self, tilings: &[WarpTiling], multiprocessors: usize) -> Vec<(WarpTiling, f64)> {
        let fits = |t: &&WarpTiling| WarpGemm { tiling: **t, ..self.kernel.clone() }.fits();
        let cycles = |t: &WarpTiling| self.cycles(t, multiprocessors);
        fastest_first(tilings.iter().filter(fits).copied(), cycles).into_iter().map(|t| (t, cycles(&t))).collect()
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, t: &WarpTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle of 16-bit types, bytes per cycle from shared memory and from
        /// the L2 cache, cycles from the request of a slice to its arrival.
        const RATE: f64 = 1024.0;
        /// Products and sums per cycle of threads.
        const EXACT: f64 = 105.0;
        const SHARED: f64 = 128.0;
        const BYTES: f64 = 56.0;
        const LATENCY: f64 = 900.0;
        /// Instructions of threads that are issued a cycle.
        const ISSUED: f64 = 128.0;
        /// Instructions of a unit of a window.
        const UNIT: f64 = 10.0;
        let [outer, inner, m, n, k] = self.sizes;
        let [warps_m, warps_n] = t.layout().unwrap_or([1, 1]);
        let kernel = WarpGemm { tiling: *t, ..self.kernel.clone() };
        let size = kernel.multiplied.size() as f64;
        let (rows, columns, depth) = (t.rows as f64, t.columns as f64, t.depth as f64);
        // Cycles that a slice keeps the units busy.
        let rate = if kernel.exact { EXACT } else { RATE * 2.0 / size };
        let product = rows * columns * depth / rate;
        let fragments = (columns * warps_m as f64 + rows * warps_n as f64) * depth * size / SHARED;
        let loaded = (rows + columns) * depth * size / BYTES;
        // Rows that begin at any element cost instructions.
        let narrow = |f: &Factor, side: f64| side * depth * size / f.unit.max(2) as f64 / 16.0;
        let [a, b] = &kernel.factors;
        // What threads find out of each unit of a window: whether it lies in the image, and where.
        let found = |i: usize, side: f64| match kernel.images[i] {
            Some(_) => side * depth * size / kernel.factors[i].unit as f64 * UNIT / ISSUED,
            None => 0.0,
        };
        let copies = narrow(a, rows) + narrow(b, columns) + found(0, rows) + found(1, columns);
        // What computes factors: elements of all threads.
        let of_terms =
            |i: usize, side: f64| kernel.prologues[i].as_ref().map_or(0.0, |p| side * depth * instructions(p) / ISSUED);
        let computed = of_terms(0, rows) + of_terms(1, columns);
        let busy = product.hypot(fragments).max(loaded) + copies + computed;
        let calls = kernel.term.nodes.len() as f64 * 3.0 + 16.0;
        let epilogue = rows * kernel.columns() as f64 * calls / 64.0 / kernel.vector.min(4) as f64 * 4.0 / 4.0;
        // Blocks that run beside each other on a multiprocessor.
        let sums = rows * columns / t.threads() as f64;
        let by_registers = (65_536.0 / ((sums * 1.3 + 80.0) * t.threads() as f64)).floor().max(1.0);
        let by_memory = (231_424 / (kernel.shared() + 1024)).max(1) as f64;
        let beside = by_registers.min(by_memory);
        let slices = k.div_ceil(t.depth) as f64;
        let tiles = (outer * inner * m.div_ceil(t.rows) * n.div_ceil(kernel.columns())) as f64;
        let share = (tiles / multiprocessors as f64).ceil();
        let ahead = (t.stages - 1) as f64;
        let alone = LATENCY + slices * busy.max(LATENCY / ahead).max(200.0) + epilogue * 2.0 + 1000.0;
        (share * (slices * busy + epilogue)).max((share / beside).ceil() * alone) + 1000.0
    }

    /// Products, rows, columns and length of the sums.
    pub fn sizes(&self) -> [usize; 4] {
        let [outer, inner, m, n, k] = self.sizes;
        [outer * inner, m, n, k]
    }
}

/// A factor of windows as it would lie in memory if an image had as many elements as its windows: a
/// product's part of the image begins where its windows would.
fn as_if_stored(step: &GemmStep, left: bool, channels_last: bool, image: &View) -> View {
    let sizes = if left { [step.m, step.k] } else { [step.k, step.n] };
    let shape = [&step.batch[..], &sizes].concat();
    // Rows of all images are those of one product, if all have one right factor.
    if left && channels_last {
        return View { strides: row_major(&shape), shape, ..image.clone() };
    }
    let of_product = image.len() / step.batch.iter().product::<usize>().max(1);
    let lead = row_major(&[&step.batch[..], &[of_product]].concat());
    let (k, lines) = (step.k as isize, if left { step.m } else { step.n } as isize);
    let own = match (left, channels_last) {
        (true, _) => [1, lines],
        (false, true) => [1, k],
        (false, false) => [lines, 1],
    };
    View { strides: [&lead[..step.batch.len()], &own].concat(), shape, ..image.clone() }
}

/// Instructions for an element of a computed factor. Rough, likewise.
pub(super) fn instructions(p: &Prologue) -> f64 {
    2.0 + 2.0 * p.term.nodes.len() as f64
}

/// The axes of a product's batch, its rows, and the strides of `all`: both factors, and others of
/// the result's shape. `None` if its batch has more than two axes that lie apart.
pub(super) fn product_strides(step: &GemmStep, all: &[&View]) -> Option<([usize; 2], usize, Vec<Strides>)> {
    as_rows(step, all).or_else(|| as_batch(step, all))
}

/// The axes of the batch, the rows, and the strides of every view, where one right operand serves
/// all products.
fn as_rows(step: &GemmStep, all: &[&View]) -> Option<([usize; 2], usize, Vec<Strides>)> {
    let lead = step.batch.len();
    let shared = all[1].strides[..lead].iter().zip(&step.batch).all(|(s, n)| *s == 0 || *n == 1);
    let rows = [&step.batch[..], &[step.m]].concat();
    let others: Vec<usize> = (0..all.len()).filter(|i| *i != 1).collect();
    let sides: Vec<Vec<isize>> = others.iter().map(|i| all[*i].strides[..=lead].to_vec()).collect();
    let (sizes, collapsed) = collapse(&rows, &sides);
    let ([rows], true) = (sizes.as_slice(), shared) else { return None };
    let mut strides: Vec<Strides> = all.iter().map(|v| [0, 0, v.strides[lead], v.strides[lead + 1]]).collect();
    others.iter().zip(collapsed).for_each(|(i, s)| strides[*i][2] = s[0]);
    Some(([1, 1], *rows, strides))
}

/// Likewise, where the batch has at most two axes.
fn as_batch(step: &GemmStep, all: &[&View]) -> Option<([usize; 2], usize, Vec<Strides>)> {
    let lead = step.batch.len();
    let sides: Vec<Vec<isize>> = all.iter().map(|v| v.strides[..lead].to_vec()).collect();
    let (sizes, collapsed) = collapse(&step.batch, &sides);
    let batch = match *sizes.as_slice() {
        [inner] => [1, inner],
        [outer, inner] => [outer, inner],
        _ => return None,
    };
    let of = |(v, c): (&&View, Vec<isize>)| {
        let [outer, inner] = if let [outer, inner] = *c { [outer, inner] } else { [0, c[0]] };
        [outer, inner, v.strides[lead], v.strides[lead + 1]]
    };
    Some((batch, step.m, all.iter().zip(collapsed).map(of).collect()))
}

/// Bytes at which each of a view's rows begins, which these steps of this many places reach: a
/// power of two.
pub(super) fn unit(view: &View, steps: &[(isize, usize)]) -> usize {
    let size = view.dtype.size();
    let offsets = steps.iter().filter(|(_, count)| *count > 1).map(|(step, _)| step.unsigned_abs());
    let bits = offsets.chain([view.offset]).fold(WIDEST, |bits, n| bits | (n * size));
    1 << bits.trailing_zeros()
}

/// Bytes of an access of this many elements; wider ones are several accesses.
fn wide(vector: usize, dtype: DType) -> usize {
    (vector * dtype.size()).min(WIDEST)
}

/// The most neighbours of a row that can be stored, and read from every operand of the result's
/// shape, in wide accesses.
fn vector(
    output: DType,
    unit_of_out: usize,
    beside: &[&View],
    accesses: &[Access],
    strides: &[Strides],
    sizes: [usize; 5],
) -> usize {
    let fits = |vector: usize| {
        let mut full = beside.iter().zip(accesses).zip(strides).filter(|((_, a), _)| **a == Access::Full);
        full.all(|((view, _), s)| {
            let steps = [(s[0], sizes[0]), (s[1], sizes[1]), (s[2], sizes[2])];
            unit(view, &steps) >= wide(vector, view.dtype)
        })
    };
    let mut vector = WarpGemm::widest(output, unit_of_out);
    while vector > 1 && !fits(vector) {
        vector /= 2;
    }
    vector
}

/// How an operand with these strides is read.
fn access(strides: Strides, [outer, inner, m, n, _]: [usize; 5]) -> Access {
    let fixed = |axis: usize, size: usize| strides[axis] == 0 || size == 1;
    let alike = fixed(0, outer) && fixed(1, inner) && fixed(2, m);
    match (alike, fixed(3, n), strides[3] == 1) {
        (true, true, _) => Access::Splat,
        (true, _, true) => Access::Row,
        (false, true, _) => Access::Col,
        (false, false, true) => Access::Full,
        _ => Access::Strided,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::lowering::fixtures::{product as step, whole};

    #[test]
    fn a_linear_layer_over_sequences_is_one_product() {
        let x = whole(&[2, 3, 65]);
        let w = whole(&[33, 65]).transposed(&[1, 0]).broadcast(&[2, 65, 33]).unwrap();
        let bias = whole(&[33]).broadcast(&[2, 3, 33]).unwrap();
        let p =
            WarpProduct::of(&step(&[2], 3, 33, 65), &[x, w, bias, whole(&[2, 3, 33])], &[whole(&[2, 3, 33])]).unwrap();
        assert_eq!((p.sizes(), p.kernel.vector), ([1, 6, 33, 65], 1));
        let factor = Factor { dtype: DType::BF16, dense_k: true, unit: 2 };
        assert_eq!(p.kernel.factors, [factor, factor]);
        let access: Vec<Access> = p.kernel.inputs.iter().map(|o| o.access.clone()).collect();
        assert_eq!(access, [Access::Row, Access::Full]);
    }

    #[test]
    fn heads_lie_between_rows() {
        // [batch, rows, heads, 64] read as [batch, heads, rows, 64].
        let heads = |v: View| v.transposed(&[0, 2, 1, 3]);
        let (q, k) = (heads(whole(&[2, 24, 3, 64])), heads(whole(&[2, 40, 3, 64])).transposed(&[0, 1, 3, 2]));
        let p = WarpProduct::of(&step(&[2, 3], 24, 40, 64), &[q, k], &[whole(&[2, 3, 24, 40])]).unwrap();
        assert_eq!(p.sizes, [2, 3, 24, 40, 64]);
        let strides = |of: ArgRole| p.strides.iter().find(|(role, _)| *role == of).unwrap().1.clone();
        assert_eq!(strides(ArgRole::Read(0)), [24 * 3 * 64, 64, 3 * 64]);
        assert_eq!(strides(ArgRole::Read(1)), [40 * 3 * 64, 64, 3 * 64]);
        assert_eq!(strides(ArgRole::Written(0)), [3 * 24 * 40, 24 * 40, 40]);
        assert_eq!((p.kernel.factors.map(|f| f.unit), p.kernel.vector), ([16, 16], 8));
    }

    #[test]
    fn the_width_of_accesses_follows_from_where_rows_begin() {
        let of = |x: View, n: usize, beside: View| {
            let k = x.shape[1];
            let p = WarpProduct::of(&step(&[], 16, n, k), &[x, whole(&[k, n]), beside], &[whole(&[16, n])]).unwrap();
            (p.kernel.factors.map(|f| f.unit), p.kernel.vector, p.kernel.inputs[0].access.clone())
        };
        let row = |n: usize, at: usize| whole(&[n + at]).sliced(0, at, 1, n).broadcast(&[16, n]).unwrap();
        assert_eq!(of(whole(&[16, 64]), 24, row(24, 8)), ([16, 16], 8, Access::Row));
        assert_eq!(of(whole(&[16, 66]), 20, row(20, 0)), ([4, 8], 4, Access::Row));
        assert_eq!(of(whole(&[16, 72]).sliced(1, 1, 1, 64), 24, row(24, 1)), ([2, 16], 8, Access::Strided));
        // A single row, of an odd length.
        assert_eq!(of(whole(&[16, 1]), 25, row(25, 0)).0, [2, 2]);
        // A residual whose rows begin at other places than those of the result.
        assert_eq!(of(whole(&[16, 64]), 24, whole(&[16, 26]).sliced(1, 0, 1, 24)), ([16, 16], 2, Access::Full));
        let column = whole(&[16, 1]).broadcast(&[16, 24]).unwrap();
        assert_eq!(of(whole(&[16, 64]), 24, column).2, Access::Col);
    }

    #[test]
    fn few_tiles_are_predicted_to_be_slower_than_many() {
        let p = |m: usize, n: usize, k: usize| {
            let (x, w) = (whole(&[m, k]), whole(&[n, k]).transposed(&[1, 0]));
            WarpProduct::of(&step(&[], m, n, k), &[x, w], &[whole(&[m, n])]).unwrap()
        };
        let of = |m: i64, n: i64, k: i64, split: i64| {
            WarpTiling::named(&[("tile_m", m), ("tile_n", n), ("tile_k", k), ("split_k", split)]).unwrap()
        };
        let all = [of(128, 128, 32, 1), of(64, 64, 64, 1), of(32, 32, 128, 2)];
        let best = |p: &WarpProduct| p.plausible(&all, 132)[0].0;
        assert_eq!(best(&p(4096, 4096, 4096)), all[0]);
        assert_eq!(best(&p(1024, 1024, 1024)), all[1]);
        assert_eq!(best(&p(256, 512, 256)), all[2]);
    }
}
