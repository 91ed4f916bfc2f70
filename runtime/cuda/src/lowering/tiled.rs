//! Tiled products with their epilogue: the kernel of a step for a tiling, and its arguments.
//!
//! In: a product with its epilogue, and the views of its operands. Out: for each tiling, the kernel
//! and its [`Work`]; none if the copy engine cannot read the operands in place. Invariant: no
//! operand is copied.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{Access, GemmKernel, JoinSumsKernel, Operand, RowSums, TILE_K, Tiling};
use hypatia_dsl::scalar::Term;
use hypatia_templates::cuda::{ArgRole, JOIN_COLUMNS, SizeName};
use hypatia_templates::instances::Body;

use super::batched::{Strides, batched};
use super::map_shape::MapShape;
use super::warp_tiled::instructions;
use super::{Work, fastest_first};
use crate::address::WORKSPACE;
use hypatia_plan::{Divided, FactorWindows, GemmStep, Parts, View, matrix_layout, row_major};

/// Alignment of what lies in the workspace, in bytes.
const ALIGNMENT: usize = 256;

/// A product that tiles can compute in place.
#[derive(Clone, Debug)]
pub struct TiledProduct {
    /// Products, and rows, columns and length of the sums of each.
    pub(super) sizes: [usize; 4],
    pub(super) kernel: GemmKernel,
    pub(super) maps: Vec<(ArgRole, MapShape)>,
    pub(super) strides: Vec<(ArgRole, Vec<i64>)>,
    /// Operands that the step reads at other places.
    pub(super) views: Vec<(ArgRole, View)>,
    /// The results of its reductions.
    pub(super) reduced: Vec<View>,
}

impl TiledProduct {
    /// The product of a step; `None` if an operand would have to be copied.
    pub fn of(step: &GemmStep, reads: &[View], outs: &[View]) -> Option<TiledProduct> {
        let ([a, b, beside @ ..], [out, ..]) = (reads, outs) else { return None };
        let all: Vec<&View> = [a, b, out].into_iter().chain(beside).collect();
        let whole = lies_whole(step, a, out).then(|| batched(step, &all)).flatten();
        let lies = whole.map(|(sizes, strides)| Divided { sizes, strides, depth: None, columns: None });
        TiledProduct::of_strides(step, (&all, outs), &lies.or_else(|| Divided::of(step, &all))?, None)
    }

    /// Two products of one left operand, which is the first read; the right ones follow. `None` if
    /// an operand would have to be copied, or if the right operands lie in different orders.
    pub fn of_pair(step: &GemmStep, reads: &[View], outs: &[View]) -> Option<TiledProduct> {
        let ([a, b, c, beside @ ..], [out, ..]) = (reads, outs) else { return None };
        let with = |right| -> Vec<&View> { [a, right, out].into_iter().chain(beside).collect() };
        let (sizes, strides) = batched(step, &with(b))?;
        let (of_second, second) = batched(step, &with(c))?;
        let same = of_second == sizes && (strides[1][0] == 0) == (second[1][0] == 0);
        let second = same.then_some((c, second[1]))?;
        let lies = Divided { sizes, strides, depth: None, columns: None };
        TiledProduct::of_strides(step, (&with(b), outs), &lies, Some(second))
    }

    /// The product whose left factor's rows are windows of an image, which is the first read.
    /// `None` if an operand would have to be copied.
    pub fn of_windows(step: &GemmStep, w: &FactorWindows, reads: &[View], outs: &[View]) -> Option<TiledProduct> {
        let [image, rest @ ..] = reads else { return None };
        let windows = w.of_product(step, true, image).filter(|_| w.windows.channels_last)?;
        // The factor as it would lie in memory.
        let shape = [&step.batch[..], &[step.m, step.k]].concat();
        let factor = View { offset: 0, strides: row_major(&shape), shape, ..image.clone() };
        let mut product = TiledProduct::of(step, &[&[factor], rest].concat(), outs)?;
        let (n, channels, [rows, columns]) = (image.shape.first()?, windows.channels, windows.axes.map(|a| a.image));
        let row = columns * channels;
        let of_image = MapShape::of(image, &[channels, columns, rows, *n], &[channels, row, rows * row])?;
        // Of a right factor, the axis of the sums is cut into places and channels.
        let [batches, _, filters, _] = product.sizes;
        let ld = rest.first().and_then(|b| {
            let lead = step.batch.len();
            matrix_layout(step.k, step.n, b.strides[lead], b.strides[lead + 1])
        });
        let (by_k, ld) = ld.filter(|_| batches == 1)?;
        let (sizes, strides) = if by_k {
            ([channels, filters, windows.places()], [ld, channels])
        } else {
            ([filters, channels, windows.places()], [ld, ld * channels])
        };
        let right = MapShape::of(rest.first()?, &sizes, &strides)?;
        for (role, map) in &mut product.maps {
            match role {
                ArgRole::Read(0) => *map = of_image,
                ArgRole::Read(1) => *map = right,
                _ => {}
            }
        }
        product.kernel.windows = Some(windows);
        product.kernel.refusal().is_none().then_some(product)
    }

    /// `all` are the operands of [`TiledProduct::of`], with the first one of the results; `second`
    /// is a second right operand.
    fn of_strides(
        step: &GemmStep,
        (all, outs): (&[&View], &[View]),
        lies: &Divided,
        second: Option<(&View, Strides)>,
    ) -> Option<TiledProduct> {
        let (outs, reduced) = outs.split_at_checked(outs.len().checked_sub(step.reduced.len())?)?;
        let Divided { sizes, strides, depth, columns } = lies;
        let [batches, m, n, k] = *sizes;
        let [a, b, _, beside @ ..] = all else { return None };
        let factors = if second.is_some() { 3 } else { 2 };
        // True if k is the dense axis, and the distance between neighbours along the other one.
        let matrix = |i: usize, rows: usize, columns: usize| matrix_layout(rows, columns, strides[i][1], strides[i][2]);
        let (a_by_m, a_ld) = matrix(0, m, depth.map_or(k, |p| p.size))?;
        let (b_by_k, b_ld) = matrix(1, k, n)?;
        let (out_by_m, out_ld) = matrix(2, m, columns.map_or(n, |p| p.size))?;
        if out_by_m && second.is_none() {
            return TiledProduct::turned(step, (all, outs), lies);
        }
        if out_by_m || (a_by_m && depth.is_some()) || !lie_alike(outs) {
            return None;
        }
        // Of what all products share, the copy engine sees one matrix.
        let shared = [0, 1].map(|i| batches > 1 && strides[i][0] == 0);
        let map = |view: &View, inner: usize, outer: usize, ld: usize, of: &Strides| {
            let count = if of[0] == 0 { 1 } else { batches };
            MapShape::of(view, &[inner, outer, count], &[ld, usize::try_from(of[0]).ok()?])
        };
        // With an axis for the parts of the dense one.
        let in_parts = |view: &View, p: Parts, inner: usize, ld: usize, of: &Strides| {
            let strides = [ld, p.stride, usize::try_from(of[0]).ok()?];
            MapShape::of(view, &[p.size, m, inner / p.size, batches], &strides)
        };
        let (a_inner, a_outer) = if a_by_m { (m, k) } else { (k, m) };
        let (b_inner, b_outer) = if b_by_k { (k, n) } else { (n, k) };
        let of_a = match depth {
            Some(p) => in_parts(a, *p, k, a_ld, &strides[0]),
            None => map(a, a_inner, a_outer, a_ld, &strides[0]),
        };
        let of_b = map(b, b_inner, b_outer, b_ld, &strides[1]);
        let mut maps = vec![(ArgRole::Read(0), of_a?), (ArgRole::Read(1), of_b?)];
        for (i, out) in outs.iter().enumerate() {
            let of_out = match columns {
                Some(p) => in_parts(out, *p, n, out_ld, &strides[2]),
                None => map(out, n, m, out_ld, &strides[2]),
            };
            maps.push((ArgRole::Written(i), of_out?));
        }
        if let Some((c, of)) = &second {
            let (_, c_ld) = matrix_layout(k, n, of[1], of[2]).filter(|(by_k, _)| *by_k == b_by_k)?;
            maps.push((ArgRole::Read(2), map(c, b_inner, b_outer, c_ld, of)?));
        }
        let mut inputs = Vec::new();
        let mut of_inputs = Vec::new();
        for (i, view) in beside.iter().enumerate() {
            let own = strides[i + 3];
            let mut access = access(own, *sizes);
            // Operands of a row are copied in words of four bytes.
            if access == Access::Row && !(view.offset * view.dtype.size()).is_multiple_of(4) {
                access = Access::Strided;
            }
            let shape = map(view, n, m, usize::try_from(own[1]).unwrap_or(0), &own);
            match (&access, shape) {
                (Access::Full, Some(shape)) => maps.push((ArgRole::Read(i + factors), shape)),
                (Access::Full, None) => access = Access::Strided,
                _ => {}
            }
            of_inputs.push((ArgRole::Read(i + factors), own.map(|s| s as i64).to_vec()));
            inputs.push(Operand { dtype: view.dtype, access });
        }
        let kernel = GemmKernel {
            name: "product".into(),
            doc: String::new(),
            types: [a.dtype, b.dtype],
            pair: second.is_some(),
            dense_k: [!a_by_m, b_by_k],
            shared,
            parts: [depth.map(|p| p.size), columns.map(|p| p.size)],
            prologues: [None, None],
            windows: None,
            inputs,
            outputs: outs.iter().map(|o| o.dtype).collect(),
            reduced: step.reduced.clone(),
            term: step.term.clone(),
            row_sums: RowSums::Off,
            tiling: Tiling::named(&[])?,
        };
        kernel.refusal().is_none().then_some(TiledProduct {
            sizes: *sizes,
            kernel,
            maps,
            strides: of_inputs,
            views: Vec::new(),
            reduced: reduced.to_vec(),
        })
    }

    /// The product whose result is that of [`TiledProduct::of_strides`] transposed: its factors are
    /// the transposed ones, each in the other's place.
    fn turned(step: &GemmStep, (all, outs): (&[&View], &[View]), lies: &Divided) -> Option<TiledProduct> {
        let ([a, b, others @ ..], [of_a, of_b, of_others @ ..]) = (all, &lies.strides[..]) else { return None };
        let whole = lies.depth.is_none() && lies.columns.is_none() && step.reduced.is_empty();
        let turn = |[batch, row, column]: Strides| [batch, column, row];
        let strides = [*of_b, *of_a].into_iter().chain(of_others.iter().copied()).map(turn).collect();
        let [batches, m, n, k] = lies.sizes;
        let lies = whole.then_some(Divided { sizes: [batches, n, m, k], strides, depth: None, columns: None })?;
        let all: Vec<&View> = [*b, *a].into_iter().chain(others.iter().copied()).collect();
        let mut product = TiledProduct::of_strides(step, (&all, outs), &lies, None)?;
        product.views = vec![(ArgRole::Read(0), (*b).clone()), (ArgRole::Read(1), (*a).clone())];
        Some(product)
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, tiling: Tiling) -> Option<(Body, Work)> {
        let kernel = self.fitting(tiling)?;
        let [batches, m, n, k] = self.sizes;
        let of_cluster = tiling.block_rows() * tiling.cluster[0];
        // Each product begins a new tile.
        let mut work = Work::new(batches * m.next_multiple_of(of_cluster), n).each_size([
            (SizeName::Batches, batches),
            (SizeName::Rows, m),
            (SizeName::Columns, n),
            (SizeName::Depth, k),
        ]);
        work.maps.clone_from(&self.maps);
        work.rooms = self.rooms(&kernel)?;
        work.strides.extend(self.strides.iter().cloned());
        work.views.extend(self.views.iter().cloned());
        Some((Body::Gemm(kernel), work))
    }

    /// Where the parts of each reduction lie in the workspace; `None` if it is too small.
    fn rooms(&self, kernel: &GemmKernel) -> Option<Vec<(ArgRole, usize)>> {
        let mut room = 0;
        let mut rooms = Vec::new();
        for i in 0..kernel.reduced.len() {
            let [parts, results] = self.parts(kernel, i);
            rooms.push((ArgRole::Part(i), room));
            room += (parts * results * size_of::<f32>()).next_multiple_of(ALIGNMENT);
        }
        (room <= WORKSPACE).then_some(rooms)
    }

    /// The parts of a reduction, and its results.
    fn parts(&self, kernel: &GemmKernel, i: usize) -> [usize; 2] {
        let ([batches, m, n, _], r) = (self.sizes, kernel.reduced[i]);
        [r.parts([batches, m, n], [kernel.tiling.rows, kernel.kept()]), r.results(batches, m, n)]
    }

    /// The launches behind the kernel with that tiling: each joins the parts of a reduction.
    pub fn joins(&self, kernel: &GemmKernel, work: &Work) -> Vec<(Body, Work)> {
        let join = |(i, result): (usize, &View)| {
            let [parts, results] = self.parts(kernel, i);
            let mut joined = Work::new(results.div_ceil(JOIN_COLUMNS), results)
                .size(SizeName::Parts, parts)
                .size(SizeName::Columns, results)
                .view(ArgRole::Written(0), result);
            let room = work.rooms.iter().find(|(role, _)| *role == ArgRole::Part(i)).map(|(_, room)| *room);
            joined.rooms = room.map(|room| (ArgRole::Sums, room)).into_iter().collect();
            let name = format!("join_{i}");
            let (outputs, kind) = (vec![result.dtype], kernel.reduced[i].kind);
            let body = JoinSumsKernel { name, doc: String::new(), sums: DType::F32, outputs, kind };
            (Body::JoinSums(body), joined)
        };
        self.reduced.iter().enumerate().map(join).collect()
    }

    /// The kernel with that tiling; `None` if that does not fit.
    fn fitting(&self, tiling: Tiling) -> Option<GemmKernel> {
        let kernel = GemmKernel { tiling, ..self.kernel.clone() };
        // Each block that shares a tile has a slice at least.
        let shares = tiling.split <= kernel.slices(self.sizes[3]);
        (shares && kernel.stages().is_some()).then_some(kernel)
    }

    /// The tilings among these that fit, each with its predicted cycles, the shortest first, for a
    /// device with that many multiprocessors.
    pub fn plausible(&self, tilings: &[Tiling], multiprocessors: usize) -> Vec<(Tiling, f64)> {
        let fits = |t: &&Tiling| self.fitting(**t).is_some();
        let cycles = |t: &Tiling| self.cycles(t, multiprocessors);
        fastest_first(tilings.iter().filter(fits).copied(), cycles).into_iter().map(|t| (t, cycles(&t))).collect()
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, t: &Tiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle, and bytes per cycle from the L2 cache.
        const RATE: f64 = 2048.0 * 0.85;
        const BYTES: f64 = 56.0;
        /// Instructions of the threads that compute factors that are issued a cycle, and cycles
        /// of a slice besides.
        const PRODUCED: f64 = 85.0;
        const SLICE: f64 = 300.0;
        /// Bytes per cycle that a block receives from others, and cycles of an exchange besides.
        const SENT: f64 = 20.0;
        const EXCHANGE: f64 = 1000.0;
        let [batches, m, n, k] = self.sizes;
        let [cluster_m, cluster_n] = t.cluster;
        let (rows, columns) = (t.block_rows(), t.columns);
        let out_columns = if self.kernel.pair { columns / 2 } else { columns };
        let clusters = m.div_ceil(rows * cluster_m) * n.div_ceil(out_columns * cluster_n) * batches;
        let waves = clusters.div_ceil(multiprocessors / t.blocks()) as f64;
        let k = (self.kernel.slices(k).div_ceil(t.split) * TILE_K) as f64;
        let elements = (rows * columns) as f64;
        // Clusters load less, but were measured to gain nothing.
        let bytes = (rows + columns) as f64 * k * 2.0;
        // What producers compute; it overlaps with little.
        let of_terms = |i: usize, lines: usize| {
            self.kernel.prologues[i]
                .as_ref()
                .map_or(0.0, |p| k / 64.0 * (SLICE + (lines * 64) as f64 * instructions(p) / PRODUCED))
        };
        let product = (elements * k / RATE).max(bytes / BYTES) + of_terms(0, rows) + of_terms(1, columns);
        // Operations of the epilogue: 128 threads each, half of the issue slots.
        let values = self.kernel.term.roots.len() as f64;
        let calls = self.kernel.term.nodes.len() as f64 * 3.0 + 8.0 * values;
        let groups = if t.pingpong { 1.0 } else { t.consumers as f64 };
        let stored = (rows * out_columns / t.split) as f64;
        let sent = elements * 4.0 * (t.split - 1) as f64 / t.split as f64 / SENT;
        let exchange = if t.split > 1 { sent + EXCHANGE } else { 0.0 };
        let epilogue = stored * calls / (128.0 * groups * 0.5) + 1000.0 + exchange;
        let start = 1500.0 + if cluster_m * cluster_n > 1 { 2000.0 } else { 0.0 };
        match t.pingpong {
            true => start + waves * product.max(epilogue / 2.0) + epilogue,
            false => start + waves * (product + epilogue),
        }
    }

    /// What the kernel computes, without its tiling.
    pub fn term(&self) -> &Term {
        &self.kernel.term
    }

    /// Batches, rows, columns and length of the sums.
    pub fn sizes(&self) -> [usize; 4] {
        self.sizes
    }
}

/// Whether the axes of the left factor and of the result are those of the product.
pub(super) fn lies_whole(step: &GemmStep, a: &View, out: &View) -> bool {
    let shaped = |v: &View, column: usize| v.shape == [&step.batch[..], &[step.m, column]].concat();
    shaped(a, step.k) && shaped(out, step.n)
}

/// Whether these results have the same elements at the same places.
pub(super) fn lie_alike(outs: &[View]) -> bool {
    let same = |v: &View, w: &View| (v.offset, &v.shape, &v.strides) == (w.offset, &w.shape, &w.strides);
    outs.windows(2).all(|pair| same(&pair[0], &pair[1]))
}

/// How an operand with these strides is read.
pub(super) fn access([batch, row, column]: Strides, [batches, m, n, _]: [usize; 4]) -> Access {
    let fixed = |stride: isize, size: usize| stride == 0 || size == 1;
    let along = |stride: isize, size: usize, expected: usize| size == 1 || stride == expected as isize;
    match () {
        () if fixed(batch, batches) && fixed(row, m) && fixed(column, n) => Access::Splat,
        () if fixed(batch, batches) && fixed(row, m) && column == 1 => Access::Row,
        () if along(batch, batches, m) && along(row, m, 1) && fixed(column, n) => Access::Col,
        () if along(batch, batches, m * n) && along(row, m, n) && along(column, n, 1) => Access::Full,
        () => Access::Strided,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::lowering::fixtures::{product as step, whole};

    #[test]
    fn a_linear_layer_over_sequences_is_one_product() {
        let x = whole(&[2, 3, 64]);
        let w = whole(&[32, 64]).transposed(&[1, 0]).broadcast(&[2, 64, 32]).unwrap();
        let bias = whole(&[32]).broadcast(&[2, 3, 32]).unwrap();
        let residual = whole(&[2, 3, 32]);
        let t = TiledProduct::of(&step(&[2], 3, 32, 64), &[x, w, bias, residual], &[whole(&[2, 3, 32])]).unwrap();
        assert_eq!((t.sizes(), t.kernel.dense_k), ([1, 6, 32, 64], [true, true]));
        let access: Vec<Access> = t.kernel.inputs.iter().map(|o| o.access.clone()).collect();
        assert_eq!(access, [Access::Row, Access::Full]);
        let shape = |sizes: [u64; 3], strides: [u64; 2]| MapShape::new(&sizes, &strides);
        let maps: Vec<MapShape> = t.maps.iter().map(|(_, m)| *m).collect();
        let full = shape([32, 6, 1], [64, 384]);
        assert_eq!(maps, [shape([64, 6, 1], [128, 768]), shape([64, 32, 1], [128, 4096]), full, full]);
        let (_, work) = t.tiled(Tiling::named(&[("tile_m", 64)]).unwrap()).unwrap();
        assert_eq!((work.rows, work.n), (128, 32));
    }

    #[test]
    fn a_batch_keeps_its_axis_and_a_weight_its_order() {
        let (x, w) = (whole(&[4, 16, 64]), whole(&[4, 64, 24]));
        let t = TiledProduct::of(&step(&[4], 16, 24, 64), &[x, w], &[whole(&[4, 16, 24])]).unwrap();
        assert_eq!((t.sizes(), t.kernel.dense_k), ([4, 16, 24, 64], [true, false]));
        assert_eq!(t.maps[1].1, MapShape::new(&[24, 64, 4], &[48, 3072]));
    }

    #[test]
    fn what_the_copy_engine_cannot_move_is_refused() {
        let of = |x: View, k: usize, n: usize| {
            let w = whole(&[k, n]);
            TiledProduct::of(&step(&[], 16, n, k), &[x, w], &[whole(&[16, n])]).is_some()
        };
        assert!(of(whole(&[16, 64]), 64, 24));
        // Rows of 65 elements, a result with rows of 20, an offset of one element.
        assert!(!of(whole(&[16, 65]), 65, 24) && !of(whole(&[16, 64]), 64, 20));
        assert!(!of(whole(&[16, 72]).sliced(1, 1, 1, 64), 64, 24) && of(whole(&[16, 72]).sliced(1, 8, 1, 64), 64, 24));
    }

    #[test]
    fn few_tiles_are_predicted_to_be_slower_than_many() {
        let (x, w) = (whole(&[1024, 1024]), whole(&[1024, 1024]));
        let t = TiledProduct::of(&step(&[], 1024, 1024, 1024), &[x, w], &[whole(&[1024, 1024])]).unwrap();
        let tiling = |rows: i64, columns: i64, pingpong: i64| {
            Tiling::named(&[("tile_m", rows), ("tile_n", columns), ("pingpong", pingpong)]).unwrap()
        };
        let all = [tiling(64, 256, 0), tiling(64, 128, 1), tiling(128, 128, 0)];
        assert_eq!(t.plausible(&all, 132)[0].0, all[1]);
    }
}
