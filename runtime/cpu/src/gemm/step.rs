//! Prepares a gemm step of a plan, or a convolution: folds leading axes into rows where the strides
//! allow, packs constants, compiles the epilogue and tiles the result.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::scalar::typed::Source;
use smallvec::SmallVec;

use super::checksum::Summed;
use super::guard::{self, Checks, Guard, Place};
use super::int::{self, Integer};
use super::kernel::{Float, Kernels};
use super::pack::{Filters, Matrix, Packed, packed, packed_filters};
use super::{K_BLOCK, Left, Right, Target, Tile, free_terms};
use crate::epilogue::Epilogue;
use crate::im2col::{Geometry, Patches, Windows};
use crate::interp::{BLOCK, Dst, Loader, read, repeat, slice_of};
use crate::pointwise::{Input, gather};
use crate::threads::{Address, Local, Workers};
use hypatia_plan::{ConvStep, GemmStep, View, collapse};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Maximum rows and columns of a tile: with [`super::K_BLOCK`], its operands stay in the L2 cache.
const TILE: [usize; 2] = [112, 256];
/// Minimum multiply-adds of a separate task. Steps with more than twice as many run on several
/// threads.
const MIN_TASK: usize = 1 << 16;
/// Tiles per thread if there is enough work, so that a delayed thread does not delay the others.
const TILES_A_THREAD: usize = 3;

/// One operand of the product.
#[derive(Clone, Debug)]
struct Operand {
    dtype: DType,
    offset: usize,
    row: isize,
    column: isize,
    /// Strides along the remaining leading axes.
    batch: Vec<isize>,
}

/// A prepared gemm.
#[derive(Clone)]
pub struct GemmCode {
    batch: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
    sides: [Operand; 2],
    /// The packed right operand, if it is one constant matrix.
    packed: Option<Arc<Packed>>,
    /// The windows that form the right operand, if it is an image.
    windows: Option<Windows>,
    /// The windows that form the left operand, if it is a batch of images.
    patches: Option<Patches>,
    epilogue: Epilogue,
    /// Rows and columns of a tile.
    tile: [usize; 2],
    /// Terms that are summed at once.
    terms: usize,
    kernels: Kernels,
    /// True once a checksum has found that the kernels are wrong.
    wrong: Arc<AtomicBool>,
}

/// The buffers of the two operands, each as a whole.
pub type Operands<'a> = [&'a [u8]; 2];

impl GemmCode {
    /// Prepares a step. `constant` is the right operand if it is a constant; `threads` may share
    /// the work.
    pub fn new(
        program: &Program,
        step: &GemmStep,
        reads: &[View],
        out: &View,
        constant: Option<&Arc<Tensor>>,
        threads: usize,
    ) -> Result<GemmCode> {
        let [a, b, inputs @ ..] = reads else { return Err(Error::Internal("a product of one operand".into())) };
        let lead = step.batch.len();
        let (mut batch, mut m) = (step.batch.clone(), step.m);
        let side = |v: &View| Operand {
            dtype: v.dtype,
            offset: v.offset,
            row: v.strides[lead],
            column: v.strides[lead + 1],
            batch: v.strides[..lead].to_vec(),
        };
        let mut sides = [side(a), side(b)];
        let one_right = sides[1].batch.iter().zip(&batch).all(|(s, size)| *s == 0 || *size == 1);
        // If one right operand serves all and the rows of the left operand are evenly spaced, the
        // leading axes become rows.
        if one_right {
            let (rows, strides) = collapse(&a.shape[..lead + 1], &[a.strides[..lead + 1].to_vec()]);
            if let ([rows], [strides]) = (rows.as_slice(), strides.as_slice()) {
                (batch, m) = (Vec::new(), *rows);
                sides[0].row = strides[0];
                sides.iter_mut().for_each(|s| s.batch.clear());
            }
        }
        let epilogue = Epilogue::of_product(program, step, inputs, out)?;
        let (n, k) = (step.n, step.k);
        let kernels = Kernels::best();
        let bytes = a.dtype.is_byte() && b.dtype.is_byte();
        let packed = match constant {
            Some(t) if one_right && m * n * k > 0 => {
                let view = (sides[1].offset, sides[1].row, sides[1].column);
                match step.acc {
                    // Bytes are multiplied in f32.
                    DType::I32 if bytes => Some(packed::<f32>(t, view, (k, n), f32::of(&kernels).panel)?),
                    DType::F32 => Some(packed::<f32>(t, view, (k, n), f32::of(&kernels).panel)?),
                    DType::F64 => Some(packed::<f64>(t, view, (k, n), f64::of(&kernels).panel)?),
                    _ => None,
                }
            }
            _ => None,
        };
        let mut g = GemmCode {
            batch,
            m,
            n,
            k,
            sides,
            packed,
            windows: None,
            patches: None,
            epilogue,
            tile: TILE,
            terms: K_BLOCK,
            kernels,
            wrong: Arc::default(),
        };
        g.tile = g.cut(threads);
        Ok(g)
    }

    /// The same with sums in an order that may depend on the number of rows: with few, the errors
    /// are smaller.
    pub fn in_any_order(mut self) -> GemmCode {
        self.terms = free_terms(self.m, self.k);
        self
    }

    /// Prepares a convolution: filters times the windows of each channel group of each image.
    pub fn conv(
        program: &Program,
        step: &ConvStep,
        geometry: Geometry,
        reads: &[View],
        out: &View,
        threads: usize,
    ) -> Result<GemmCode> {
        let [x, w, inputs @ ..] = reads else { return Err(Error::Internal("a convolution of one operand".into())) };
        let Geometry { windows, batch, groups, filters } = geometry;
        let (terms, image, positions) = (windows.terms(), windows.image(), windows.positions());
        let filter = Operand {
            dtype: w.dtype,
            offset: w.offset,
            row: terms as isize,
            column: 1,
            batch: vec![0, (filters * terms) as isize],
        };
        let plain = Operand {
            dtype: x.dtype,
            offset: x.offset,
            row: positions as isize,
            column: 1,
            batch: vec![(groups * image) as isize, image as isize],
        };
        let epilogue = Epilogue::of_conv(program, step, inputs, out)?;
        let mut g = GemmCode {
            batch: vec![batch, groups],
            m: filters,
            n: positions,
            k: terms,
            sides: [filter, plain],
            packed: None,
            windows: (!windows.is_plain()).then_some(windows),
            patches: None,
            epilogue,
            tile: TILE,
            terms: K_BLOCK,
            kernels: Kernels::best(),
            wrong: Arc::default(),
        };
        g.tile = g.cut(threads);
        Ok(g)
    }

    /// Prepares a channels-last convolution: the windows of all images times constant filters.
    pub fn conv_last(
        program: &Program,
        step: &ConvStep,
        reads: &[View],
        out: &View,
        filters: Option<&Arc<Tensor>>,
        threads: usize,
    ) -> Result<GemmCode> {
        let ([x, w, inputs @ ..], Some(tensor)) = (reads, filters) else {
            return Err(Error::Internal("a convolution without constant filters".into()));
        };
        let patches = Patches::new(step, x, out)?;
        let (m, n, k) = (patches.rows(), w.shape[0], patches.columns());
        let left = Operand { dtype: x.dtype, offset: x.offset, row: k as isize, column: 1, batch: Vec::new() };
        let epilogue = Epilogue::of_conv(program, step, inputs, out)?;
        let kernels = Kernels::best();
        let f = Filters { offset: w.offset, count: n, depth: patches.channels(), taps: patches.taps() };
        let packed = match step.acc {
            DType::F64 => packed_filters::<f64>(tensor, f, f64::of(&kernels).panel)?,
            _ => packed_filters::<f32>(tensor, f, f32::of(&kernels).panel)?,
        };
        let mut g = GemmCode {
            batch: Vec::new(),
            m,
            n,
            k,
            // The right operand is packed, so the second side is unused.
            sides: [left.clone(), left],
            packed: Some(packed),
            windows: None,
            patches: (!patches.is_plain()).then_some(patches),
            epilogue,
            tile: TILE,
            terms: K_BLOCK,
            kernels,
            wrong: Arc::default(),
        };
        g.tile = g.cut(threads);
        Ok(g)
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self) -> bool {
        self.work() > 2 * MIN_TASK
    }

    /// Multiply-adds, plus one per result for the epilogue.
    fn work(&self) -> usize {
        self.batches() * self.m * self.n * (self.k + 1)
    }

    fn batches(&self) -> usize {
        self.batch.iter().product()
    }

    /// Rows and columns of a tile: enough tiles to keep the threads busy, none too small to pay
    /// off.
    fn cut(&self, threads: usize) -> [usize; 2] {
        let (rows, panel) = match self.epilogue.acc {
            DType::F64 => (f64::of(&self.kernels).rows, f64::of(&self.kernels).panel),
            _ => (f32::of(&self.kernels).rows, f32::of(&self.kernels).panel),
        };
        let even = |n: usize, most: usize, unit: usize| {
            let parts = n.div_ceil(most).max(1);
            n.div_ceil(parts).next_multiple_of(unit).min(n.next_multiple_of(unit)).max(unit)
        };
        // If the right operand is packed for each tile, more rows amortise the packing; with few
        // rows, more columns pay off.
        let most_rows = TILE[0] * if self.packed.is_some() { 1 } else { 4 };
        let most_columns = if self.m <= rows && self.windows.is_none() { 4 * TILE[1] } else { TILE[1] };
        let mut tile = [even(self.m, most_rows / rows * rows, rows), even(self.n, most_columns, panel)];
        if threads == 1 || !self.is_shared() {
            return tile;
        }
        let count = |tile: [usize; 2]| self.batches() * self.m.div_ceil(tile[0]) * self.n.div_ceil(tile[1]);
        let wanted = (TILES_A_THREAD * threads).min(self.work() / MIN_TASK);
        while count(tile) < wanted {
            let by_rows = self.patches.is_some() || (self.windows.is_none() && tile[0] >= tile[1] / 4);
            if tile[0] > rows && (by_rows || tile[1] == panel) {
                tile[0] = (tile[0] / 2).next_multiple_of(rows);
            } else if tile[1] > panel {
                tile[1] = (tile[1] / 2).next_multiple_of(panel);
            } else {
                break;
            }
        }
        tile
    }

    /// Runs the product. `operands` are whole buffers, `inputs` the whole buffers of the epilogue's
    /// operands. With a `checks`, over the step of that index, accumulators are checked.
    pub fn run(
        &self,
        workers: &Workers<'_>,
        operands: Operands<'_>,
        reads: &[View],
        inputs: &[&[u8]],
        out: &mut [u8],
        checks: Option<(usize, &Checks)>,
    ) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        if out.len() != self.batches() * self.m * self.n * self.epilogue.out.size() {
            return Err(Error::Internal(format!("a product of {}x{} into {} bytes", self.m, self.n, out.len())));
        }
        let inputs = self.epilogue.inputs(reads, inputs);
        let guard = checks.map(|(step, checks)| Guard { step, checks, wrong: &self.wrong });
        let run = Run { code: self, operands, inputs, out: Address(out.as_mut_ptr()), guard };
        let per = [self.m.div_ceil(self.tile[0]), self.n.div_ceil(self.tile[1])];
        let failed = Mutex::new(None);
        let one = |index: usize, local: &mut Local| {
            let (batch, rest) = (index / (per[0] * per[1]), index % (per[0] * per[1]));
            // Consecutive tiles are vertical neighbours: they share the right operand.
            let (row, column) = (rest % per[0] * self.tile[0], rest / per[0] * self.tile[1]);
            let (rows, columns) = (row..self.m.min(row + self.tile[0]), column..self.n.min(column + self.tile[1]));
            // SAFETY: the ranges of different tiles do not overlap and lie in `out`, which `run`
            // borrows mutably; `tasks` gives each tile to one thread once.
            if let Err(e) = unsafe { run.tile(batch, rows, columns, local) }
                && let Ok(mut failed) = failed.lock()
            {
                *failed = Some(e);
            }
        };
        let count = self.batches() * per[0] * per[1];
        if self.is_shared() {
            workers.tasks(count, one);
        } else {
            Workers { pool: None, locals: workers.locals }.tasks(count, one);
        }
        failed.into_inner().ok().flatten().map_or(Ok(()), Err)
    }
}

/// A run of a step.
struct Run<'a> {
    code: &'a GemmCode,
    operands: Operands<'a>,
    inputs: SmallVec<[Input<'a>; 8]>,
    out: Address,
    guard: Option<Guard<'a>>,
}

/// Rows of a tile of the result.
struct Rows<'a, 'b> {
    run: &'a Run<'b>,
    /// Index of the first row among the rows of all matrices.
    row: usize,
    columns: Range<usize>,
    /// Accumulators of the rows.
    acc: Target,
}

impl Run<'_> {
    fn matrix(&self, side: usize, index: usize) -> Matrix<'_> {
        let s = &self.code.sides[side];
        let (mut offset, mut rest) = (s.offset as isize, index);
        for (size, stride) in self.code.batch.iter().zip(&s.batch).rev() {
            offset += (rest % size) as isize * stride;
            rest /= size;
        }
        Matrix { bytes: self.operands[side], dtype: s.dtype, offset, row: s.row, column: s.column }
    }

    /// The address of an element of the result.
    fn at(&self, row: usize, column: usize) -> Address {
        Address(self.out.0.wrapping_add((row * self.code.n + column) * self.code.epilogue.out.size()))
    }

    /// Computes a tile.
    ///
    /// # Safety
    /// The rows and columns lie in the result, and no one else uses them meanwhile.
    unsafe fn tile(&self, batch: usize, rows: Range<usize>, columns: Range<usize>, local: &mut Local) -> Result<()> {
        let g = self.code;
        let first = batch * g.m + rows.start;
        let height = rows.len();
        let Local { registers, a, b, c, of_block, .. } = local;
        let target = if g.epilogue.acc == g.epilogue.out {
            Target { base: self.at(first, columns.start), row: g.n }
        } else {
            let memory = c.at_least(height * columns.len() * g.epilogue.acc.size())?;
            Target { base: Address(memory.as_mut_ptr()), row: columns.len() }
        };
        let operands = [self.matrix(0, batch), self.matrix(1, batch)];
        let place = Place { first: first * g.n + columns.start, row: g.n };
        let guard = self.guard.map(|guard| (guard, place));
        // SAFETY: the caller's promise where the target is the result; else it is memory of this
        // thread, large enough for the tile.
        unsafe { self.product(operands, (rows, columns.clone()), target, ([a, b], of_block), guard)? };
        let Some(code) = &g.epilogue.code else { return Ok(()) };
        code.start(registers);
        let together = (BLOCK / columns.len().max(1)).max(1);
        for row in (0..height).step_by(together) {
            let count = together.min(height - row);
            for column in columns.clone().step_by(BLOCK) {
                let width = BLOCK.min(columns.end - column);
                let skip = row * target.row + column - columns.start;
                let base = Address(target.base.0.wrapping_add(skip * g.epilogue.acc.size()));
                let loader = Rows {
                    run: self,
                    row: first + row,
                    columns: column..column + width,
                    acc: Target { base, ..target },
                };
                code.run(registers, &loader, 0, count * width);
                if width == g.n {
                    let len = count * width * g.epilogue.out.size();
                    // SAFETY: whole rows of the tile, which the caller promises.
                    let to = unsafe { std::slice::from_raw_parts_mut(self.at(first + row, column).0, len) };
                    code.store_at(registers, 0, 0, to);
                    continue;
                }
                let narrow =
                    if g.epilogue.out == DType::F32 { code.root_f32(registers, 0, count * width) } else { None };
                for i in 0..count {
                    // SAFETY: a part of a row of the tile, which the caller promises.
                    let to = unsafe {
                        std::slice::from_raw_parts_mut(
                            self.at(first + row + i, column).0,
                            width * g.epilogue.out.size(),
                        )
                    };
                    match narrow {
                        Some(values) => to.copy_from_slice(bytemuck::cast_slice(&values[i * width..][..width])),
                        None => code.store_at(registers, 0, i * width, to),
                    }
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// `to` has room for the tile, and no one else uses that room meanwhile.
    unsafe fn product(
        &self,
        [a, b]: [Matrix<'_>; 2],
        (rows, columns): (Range<usize>, Range<usize>),
        to: Target,
        (memory, of_block): ([&mut super::Bytes; 2], &mut super::Bytes),
        guard: Option<(Guard<'_>, Place)>,
    ) -> Result<()> {
        let g = self.code;
        // SAFETY: the caller's promise.
        unsafe {
            match g.epilogue.acc {
                DType::I32 if a.dtype.is_byte() && b.dtype.is_byte() => {
                    byte_product(g, [a, b], (rows, columns), to, (memory, of_block), guard)
                }
                DType::F64 => float_product::<f64>(g, [a, b], (rows, columns), to, memory, guard),
                d if d.is_float() => float_product::<f32>(g, [a, b], (rows, columns), to, memory, guard),
                DType::I64 => integer_product::<i64>(g, [a, b], (rows, columns), to, guard),
                DType::I32 => integer_product::<i32>(g, [a, b], (rows, columns), to, guard),
                DType::I8 => integer_product::<i8>(g, [a, b], (rows, columns), to, guard),
                DType::U8 => integer_product::<u8>(g, [a, b], (rows, columns), to, guard),
                d => Err(Error::Type(format!("a product of {d}").into())),
            }
        }
    }
}

/// Multiplies a tile of floats.
///
/// # Safety
/// As [`Run::product`].
unsafe fn float_product<T: Summed>(
    g: &GemmCode,
    [a, b]: [Matrix<'_>; 2],
    (rows, columns): (Range<usize>, Range<usize>),
    to: Target,
    memory: [&mut super::Bytes; 2],
    guard: Option<(Guard<'_>, Place)>,
) -> Result<()> {
    let a = match &g.patches {
        Some(patches) => Left::Patches(patches, (a.bytes, a.dtype, a.offset as usize)),
        None => Left::Plain(a),
    };
    let b = match (&g.packed, &g.windows) {
        (Some(packed), _) => Right::Packed(packed.values::<T>()),
        (_, Some(windows)) => Right::Windows(windows, (b.bytes, b.dtype, b.offset as usize)),
        _ => Right::Plain(b),
    };
    let tile = Tile { kernel: T::of(&g.kernels), a, b, rows, columns, k: g.k, terms: g.terms };
    // SAFETY: the caller's promise.
    unsafe {
        match guard {
            Some(guard) => guard::multiply(&tile, to, memory, guard),
            None => tile.multiply(to, memory, None),
        }
    }
}

/// Multiplies a tile of bytes. Where it is checked, they are widened, and integers are multiplied.
///
/// # Safety
/// As [`Run::product`].
unsafe fn byte_product(
    g: &GemmCode,
    [a, b]: [Matrix<'_>; 2],
    (rows, columns): (Range<usize>, Range<usize>),
    to: Target,
    (memory, of_block): ([&mut super::Bytes; 2], &mut super::Bytes),
    guard: Option<(Guard<'_>, Place)>,
) -> Result<()> {
    if guard.is_none() {
        let b = g.packed.as_ref().map_or(Right::Plain(b), |packed| Right::Packed(packed.values::<f32>()));
        let (kernel, a) = (f32::of(&g.kernels), Left::Plain(a));
        let tile = Tile { kernel, a, b, rows, columns, k: g.k, terms: K_BLOCK };
        // SAFETY: the caller's promise.
        return unsafe { tile.multiply_bytes(to, memory, of_block) };
    }
    let (height, width) = (rows.len(), columns.len());
    let wide_a = int::widened(a, (rows, 0..g.k))?;
    let wide_b = int::widened(b, (0..g.k, columns))?;
    let factors = [int::by_rows(&wide_a, g.k), int::by_rows(&wide_b, width)];
    // SAFETY: the caller's promise.
    unsafe { integer_product::<i32>(g, factors, (0..height, 0..width), to, guard) }
}

/// Multiplies a tile of integers.
///
/// # Safety
/// As [`Run::product`].
unsafe fn integer_product<T: Integer + PartialEq>(
    g: &GemmCode,
    [a, b]: [Matrix<'_>; 2],
    (rows, columns): (Range<usize>, Range<usize>),
    to: Target,
    guard: Option<(Guard<'_>, Place)>,
) -> Result<()> {
    let b = Matrix { offset: b.offset + columns.start as isize * b.column, ..b };
    for (i, row) in rows.enumerate() {
        // SAFETY: a row of the tile, which the caller promises.
        let out = unsafe { std::slice::from_raw_parts_mut(to.base.0.cast::<T>().add(i * to.row), columns.len()) };
        let (acc, size) = (g.epilogue.acc, (row, g.k, columns.len()));
        match guard {
            Some((guard, place)) => {
                let place = Place { first: place.first + i * place.row, ..place };
                guard::multiply_integers(acc, size, [a, b], out, (guard, place))?;
            }
            None => int::multiply(acc, size, a, b, out)?,
        }
    }
    Ok(())
}

impl Loader for Rows<'_, '_> {
    /// The accumulators of consecutive rows, or of part of a row.
    fn direct(&self, source: Source, _start: usize, len: usize) -> Option<&[f32]> {
        let width = self.columns.len();
        if source != Source::Acc || self.run.code.epilogue.acc != DType::F32 || (len != width && self.acc.row != width)
        {
            return None;
        }
        // SAFETY: whole rows, or a part of one, of the tile's accumulators: all of them have been
        // written, and nothing is written before the term has run.
        Some(unsafe { std::slice::from_raw_parts(self.acc.base.0.cast::<f32>(), len) })
    }

    /// Element `i * width + j` is column j of row i.
    fn load(&self, source: Source, start: usize, mut dst: Dst<'_>) {
        let width = self.columns.len();
        let (g, len) = (self.run.code, dst.len());
        debug_assert!(start == 0 && len.is_multiple_of(width));
        // The operand has one row for all rows.
        if let Source::In(input) = source
            && let Some((&1, outer)) = self.run.inputs[input as usize].strides.split_last()
            && outer.iter().all(|s| *s == 0)
            && g.epilogue.shape.last() == Some(&g.n)
        {
            let first = self.row * g.n + self.columns.start;
            gather(&self.run.inputs[input as usize], &g.epilogue.shape, first, slice_of(&mut dst, 0, width));
            return repeat(dst, width);
        }
        // Consecutive contiguous rows are read at once.
        let together = match source {
            Source::Acc => self.acc.row == width,
            Source::In(_) => width == g.n,
        };
        let width = if together { len.max(1) } else { width };
        for i in 0..len / width {
            let dst = slice_of(&mut dst, i * width, (i + 1) * width);
            match source {
                Source::Acc => {
                    let size = g.epilogue.acc.size();
                    let at = self.acc.base.0.wrapping_add(i * self.acc.row * size);
                    // SAFETY: a part of a row, or whole rows, of the tile's accumulators: all of
                    // them have been written, and nothing is written while this slice lives.
                    let bytes = unsafe { std::slice::from_raw_parts(at, width * size) };
                    match dst {
                        Dst::F32(d) if g.epilogue.acc == DType::F32 => d.copy_from_slice(bytemuck::cast_slice(bytes)),
                        dst => read(bytes, g.epilogue.acc, 0, 1, dst),
                    }
                }
                Source::In(input) => {
                    let first = (self.row + i) * g.n + self.columns.start;
                    gather(&self.run.inputs[input as usize], &g.epilogue.shape, first, dst);
                }
            }
        }
    }
}
