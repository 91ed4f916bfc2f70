//! Row-wise kernels: reductions over a row, then outputs that use them.
//!
//! In: a kernel and the length of a row, which may have groups. Out: [`RowCode`], which processes
//! short rows together, as many as fill a block, and keeps shared values in registers. Rows too
//! long for that are computed in pieces, each reduction and output separately. Invariant: float
//! sums are computed in f64, in [`STRANDS`] strands, and rounded once to the compute type.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{GatheredRows, Reduction, RowAccess, RowLayout};
use hypatia_dsl::scalar::typed::{Source, inlined};
use hypatia_dsl::scalar::{Term, TermNode};

use super::interp::{BLOCK, Code, Dst, Loader, Registers, read, slice_of};
use super::math;
use super::simd::dispatch;
use super::threads::Workers;
use hypatia_plan::RowwiseStep;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Work with fewer elements than this runs on one thread.
const GRAIN: usize = 1 << 12;
/// The longest row that is kept entirely in registers.
const WHOLE: usize = 1 << 13;
/// Number of independent partial sums of a reduction.
pub const STRANDS: usize = 16;

/// A prepared row-wise kernel.
#[derive(Clone, Debug)]
pub struct RowCode {
    reductions: Vec<Reduction>,
    /// Elements that each of them reduces: a row, or a group of a row.
    extents: Vec<usize>,
    /// Reductions, then outputs: for rows that fit into registers.
    whole: Code,
    /// The same, each compiled separately.
    pieces: Vec<Code>,
    accesses: Vec<RowAccess>,
    inputs: Vec<(DType, RowAccess)>,
    gathers: Vec<GatheredRows>,
    /// The type of each reduction's result.
    results: Vec<DType>,
    layout: RowLayout,
    /// Values per row of each output, and their bytes.
    stored: Vec<usize>,
    sizes: Vec<usize>,
    /// True if an output is not a sequence of contiguous rows.
    scattered: bool,
    n: usize,
    /// The types of sums over rows. What is added up is the last outputs, in f64.
    sums: Vec<DType>,
    /// How many groups of rows have sums of their own.
    groups: usize,
}

/// The step with what is added up over all rows as outputs, in f64.
fn with_summands(step: &RowwiseStep) -> RowwiseStep {
    let mut step = step.clone();
    let sums = std::mem::take(&mut step.kernel.sums);
    let mut dense = vec![1isize; step.layout.sizes.len()];
    for i in (1..dense.len()).rev() {
        dense[i - 1] = dense[i] * step.layout.sizes[i] as isize;
    }
    let first = step.layout.strides.len() - sums.len();
    step.layout.strides[first..].fill(dense);
    step.kernel.outputs.extend(sums.into_iter().map(|(_, term)| (DType::F64, RowAccess::Full, term)));
    step
}

impl RowCode {
    /// Compiles a step.
    pub fn new(program: &Program, step: &RowwiseStep) -> Result<RowCode> {
        let sums: Vec<DType> = step.kernel.sums.iter().map(|s| s.0).collect();
        let groups = if sums.is_empty() { 1 } else { step.layout.groups_of_sums() };
        let stored = if sums.is_empty() { None } else { Some(with_summands(step)) };
        let step = stored.as_ref().unwrap_or(step);
        let (kernel, n) = (&step.kernel, step.n);
        let mut dtypes: Vec<DType> = kernel.inputs.iter().map(|(d, _)| *d).collect();
        let mut results = Vec::new();
        for (_, term) in &kernel.steps {
            let compute = compute_type(program, term, &dtypes)?;
            dtypes.push(compute);
            results.push(compute);
        }
        let mut terms: Vec<&Term> = kernel.steps.iter().map(|(_, t)| t).collect();
        terms.extend(kernel.outputs.iter().map(|(_, _, t)| t));
        let mut outs = results.clone();
        outs.extend(kernel.outputs.iter().map(|(d, _, _)| *d));
        let pieces = terms.iter().zip(&outs).map(|(t, out)| Code::new(program, t, None, &dtypes, &[*out]));
        Ok(RowCode {
            reductions: kernel.steps.iter().map(|(kind, _)| *kind).collect(),
            extents: (0..kernel.steps.len()).map(|i| kernel.extent(i, n)).collect(),
            whole: Code::staged(program, &terms, &dtypes, &outs)?,
            pieces: pieces.collect::<Result<_>>()?,
            accesses: kernel.outputs.iter().map(|(_, access, _)| *access).collect(),
            inputs: kernel.inputs.clone(),
            gathers: kernel.gathers.clone(),
            results,
            layout: step.layout.clone(),
            stored: kernel.outputs.iter().map(|(_, access, _)| kernel.stored(*access, n)).collect(),
            sizes: kernel.outputs.iter().map(|(d, access, _)| d.size() * kernel.stored(*access, n)).collect(),
            scattered: kernel.outputs.iter().any(|o| o.1 == RowAccess::Strided),
            n,
            sums,
            groups,
        })
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self, rows: usize) -> bool {
        rows * self.n > 2 * GRAIN
    }

    /// Computes all rows, and sums over them.
    pub fn run(&self, workers: &Workers<'_>, inputs: &[&[u8]], outs: &mut [&mut [u8]], rows: usize) -> Result<()> {
        if self.sums.is_empty() {
            self.rows(workers, inputs, outs, rows);
            return Ok(());
        }
        // Only plans for GPUs have such sums; here they run to be checked.
        let (stored, summed) = outs.split_at_mut(self.accesses.len() - self.sums.len());
        let mut summands = vec![vec![0u8; rows * self.n * size_of::<f64>()]; self.sums.len()];
        let mut all: Vec<&mut [u8]> = stored.iter_mut().map(|o| &mut **o).collect();
        all.extend(summands.iter_mut().map(Vec::as_mut_slice));
        self.rows(workers, inputs, &mut all, rows);
        for ((summands, dtype), out) in summands.iter().zip(&self.sums).zip(summed) {
            let mut sums = vec![0.0; self.groups * self.n];
            let numbers = summands.chunks_exact(size_of::<f64>()).filter_map(|b| b.try_into().ok());
            let of_group = (rows * self.n / self.groups.max(1)).max(1);
            let place = |i: usize| i / of_group * self.n + i % self.n;
            numbers.map(f64::from_ne_bytes).enumerate().for_each(|(i, x)| sums[place(i)] += x);
            let sums = Tensor::from_f64(*dtype, &[sums.len()], &sums);
            let sums = sums.ok_or_else(|| Error::Internal("sums over rows without a type".into()))?;
            out.copy_from_slice(sums.bytes());
        }
        Ok(())
    }

    fn rows(&self, workers: &Workers<'_>, inputs: &[&[u8]], outs: &mut [&mut [u8]], rows: usize) {
        // Scattered outputs are not divided among threads.
        let grain = if self.scattered { rows } else { GRAIN.div_ceil(self.n.max(1)) };
        workers.chunks(outs, &self.sizes, rows, grain, |first, count, outs, local| {
            let mut results = std::mem::take(&mut local.rows);
            if self.n == 0 || self.n > WHOLE {
                results.resize(self.results_of(1), 0.0);
                for row in 0..count {
                    self.in_pieces(&mut local.registers, &mut results, inputs, outs, first + row, row);
                }
            } else {
                let together = (BLOCK / self.n).max(1);
                results.resize(self.results_of(together), 0.0);
                self.whole.start_wide(&mut local.registers, BLOCK.max(self.n));
                for row in (0..count).step_by(together) {
                    let rows = together.min(count - row);
                    self.together(&mut local.registers, &mut results, inputs, outs, (first + row, row, rows));
                }
            }
            local.rows = results;
        });
    }

    /// The number of results of a reduction in each row.
    fn each(&self, reduction: usize) -> usize {
        // An empty row has one result, too.
        self.n.checked_div(self.extents[reduction]).unwrap_or(1)
    }

    /// The number of results of all reductions of this many rows.
    fn results_of(&self, rows: usize) -> usize {
        (0..self.reductions.len()).map(|i| self.each(i) * rows).sum()
    }

    /// Computes rows that together fill a block, from `first` on, which is row `at` of the outputs'
    /// slices.
    fn together(
        &self,
        registers: &mut Registers,
        results: &mut [f64],
        inputs: &[&[u8]],
        outs: &mut [&mut [u8]],
        (first, at, rows): (usize, usize, usize),
    ) {
        let (n, len) = (self.n, rows * self.n);
        let mut known = 0;
        for i in 0..self.reductions.len() {
            let (done, mine) = results.split_at_mut(known);
            let count = rows * self.each(i);
            known += count;
            let loader = RowLoader { code: self, inputs, results: done, first, rows, column: 0 };
            self.whole.run_root(registers, &loader, i, 0, len);
            self.reduce(registers, i, len, &mut mine[..count]);
        }
        let steps = self.reductions.len();
        let loader = RowLoader { code: self, inputs, results: &results[..known], first, rows, column: 0 };
        for (i, access) in self.accesses.iter().enumerate() {
            self.whole.run_root(registers, &loader, steps + i, 0, len);
            match access {
                RowAccess::PerRow | RowAccess::PerGroup => {
                    let (each, of_row) = (self.stored[i], self.sizes[i]);
                    let size = of_row / each.max(1);
                    for place in 0..rows * each {
                        let to = at * of_row + place * size;
                        let to = &mut outs[i][to..to + size];
                        self.whole.store_at(registers, steps + i, place * (n / each), to);
                    }
                }
                RowAccess::Strided => {
                    for row in 0..rows {
                        let from = (first + row, 0, row * n);
                        self.scatter((&self.whole, steps + i), registers, outs[i], i, from, n);
                    }
                }
                _ => self.whole.store(registers, steps + i, outs[i], at * n, len),
            }
        }
    }

    /// The results of a reduction whose `len` operands are in the registers.
    fn reduce(&self, registers: &Registers, reduction: usize, len: usize, out: &mut [f64]) {
        let (kind, extent) = (self.reductions[reduction], self.extents[reduction]);
        let lane = (self.whole.root_f32(registers, reduction, len), self.whole.root_int(registers, reduction, len));
        match lane {
            (Some(values), _) => reduce_rows(kind, values, extent, out),
            (_, Some(values)) => {
                let rows = values
                    .chunks_exact(extent)
                    .map(|row| row.iter().fold(int_identity(kind), |a, b| join_ints(kind, a, *b)));
                out.iter_mut().zip(rows).for_each(|(to, v)| *to = held(v));
            }
            _ => {
                let (mut at, mut strands) = (0, [identity(kind); STRANDS]);
                self.whole.root_f64(registers, reduction, len, |v| {
                    let column = at % extent;
                    strands[column % STRANDS] = join(kind, strands[column % STRANDS], v);
                    if column + 1 == extent {
                        out[at / extent] = finished(kind, total(kind, &strands), extent);
                        strands = [identity(kind); STRANDS];
                    }
                    at += 1;
                });
            }
        }
        let ty = self.results[reduction];
        if ty.is_float() {
            out.iter_mut().for_each(|v| *v = ty.round(*v));
        }
    }

    /// Computes one row, which is row `at` of the outputs' slices.
    fn in_pieces(
        &self,
        registers: &mut Registers,
        results: &mut [f64],
        inputs: &[&[u8]],
        outs: &mut [&mut [u8]],
        row: usize,
        at: usize,
    ) {
        let steps = self.reductions.len();
        let mut known = 0;
        for (i, extent) in self.extents.iter().enumerate() {
            let (done, mine) = results.split_at_mut(known);
            let mut loader = RowLoader { code: self, inputs, results: done, first: row, rows: 1, column: 0 };
            self.pieces[i].start(registers);
            for (group, result) in mine[..self.each(i)].iter_mut().enumerate() {
                *result = self.reduced(registers, &mut loader, i, group * extent..(group + 1) * extent);
            }
            known += self.each(i);
        }
        let mut loader = RowLoader { code: self, inputs, results, first: row, rows: 1, column: 0 };
        for (i, access) in self.accesses.iter().enumerate() {
            let code = &self.pieces[steps + i];
            code.start(registers);
            if matches!(access, RowAccess::PerRow | RowAccess::PerGroup) {
                let each = self.stored[i];
                for place in 0..each {
                    loader.column = place * (self.n / each);
                    code.run(registers, &loader, 0, 1);
                    code.store(registers, 0, outs[i], at * each + place, 1);
                }
                continue;
            }
            let (base, len) = (at * self.n, self.n);
            for start in (0..len).step_by(BLOCK) {
                let count = BLOCK.min(len - start);
                loader.column = start;
                code.run(registers, &loader, 0, count);
                match access {
                    RowAccess::Strided => self.scatter((code, 0), registers, outs[i], i, (row, start, 0), count),
                    _ => code.store(registers, 0, outs[i], base + start, count),
                }
            }
        }
    }

    /// The result of a reduction over these columns of the loader's row.
    fn reduced(
        &self,
        registers: &mut Registers,
        loader: &mut RowLoader<'_>,
        reduction: usize,
        columns: std::ops::Range<usize>,
    ) -> f64 {
        let (kind, code) = (self.reductions[reduction], &self.pieces[reduction]);
        let (mut strands, mut ints) = ([identity(kind); STRANDS], int_identity(kind));
        for start in columns.clone().step_by(BLOCK) {
            let count = BLOCK.min(columns.end - start);
            loader.column = start;
            code.run(registers, loader, 0, count);
            match (code.root_f32(registers, 0, count), code.root_int(registers, 0, count)) {
                (Some(values), _) => accumulate(kind, &mut strands, values),
                (_, Some(values)) => ints = values.iter().fold(ints, |a, b| join_ints(kind, a, *b)),
                _ => {
                    let mut i = 0;
                    code.root_f64(registers, 0, count, |v| {
                        strands[i % STRANDS] = join(kind, strands[i % STRANDS], v);
                        i += 1;
                    });
                }
            }
        }
        match self.results[reduction].is_float() {
            true => self.results[reduction].round(finished(kind, total(kind, &strands), columns.len())),
            false => held(ints),
        }
    }

    /// Stores `count` elements of a strided row, run by run, from `(row, column, element of the
    /// block)` on.
    fn scatter(
        &self,
        (code, root): (&Code, usize),
        registers: &Registers,
        out: &mut [u8],
        output: usize,
        (row, column, element): (usize, usize, usize),
        count: usize,
    ) {
        let tensor = self.inputs.len() + output;
        let base = self.layout.row(tensor, row);
        runs(&self.layout, tensor, column, count, |from, to, at, stride| {
            let which = element + from..element + to;
            code.store_strided(registers, root, out, which, (base + at) as usize, stride as usize);
        });
    }
}

/// The type in which the result of a reduction of these terms is kept: f32, f64 or i64.
fn compute_type(program: &Program, term: &Term, dtypes: &[DType]) -> Result<DType> {
    let typed = inlined(program, term, None, dtypes)?;
    let root = typed.roots.first().and_then(|r| typed.nodes.get(*r as usize)).map(|n| n.ty);
    Ok(match root {
        Some(ty) if !ty.is_float() => DType::I64,
        _ if is_wide(term, dtypes) => DType::F64,
        _ => DType::F32,
    })
}

/// An integer among the results of reductions, which are f64: its bits.
fn held(value: i64) -> f64 {
    f64::from_bits(value as u64)
}

/// The identity of a reduction of integers.
fn int_identity(kind: Reduction) -> i64 {
    match kind {
        Reduction::Sum | Reduction::Mean => 0,
        Reduction::Prod => 1,
        Reduction::Max => i64::MIN,
        Reduction::Min => i64::MAX,
    }
}

/// One step of a reduction of integers, in 64 bits.
fn join_ints(kind: Reduction, a: i64, b: i64) -> i64 {
    match kind {
        Reduction::Sum | Reduction::Mean => a.wrapping_add(b),
        Reduction::Prod => a.wrapping_mul(b),
        Reduction::Max => a.max(b),
        Reduction::Min => a.min(b),
    }
}

/// True if a term computes in f64.
fn is_wide(term: &Term, dtypes: &[DType]) -> bool {
    term.nodes.iter().any(|n| match n {
        TermNode::In { input, .. } => dtypes.get(*input as usize) == Some(&DType::F64),
        TermNode::Cast { to, .. } => *to == DType::F64,
        _ => false,
    })
}

/// The elements `start..start + count` of a row as runs along its last axis: their indices, the
/// distance of the first from the row's first element, and their stride.
fn runs(layout: &RowLayout, tensor: usize, start: usize, count: usize, mut f: impl FnMut(usize, usize, isize, isize)) {
    let (sizes, strides) = (&layout.sizes[layout.outer..], &layout.strides[tensor][layout.outer..]);
    let (last, stride) = (sizes.last().copied().unwrap_or(1).max(1), strides.last().copied().unwrap_or(0));
    let mut done = 0;
    while done < count {
        let column = start + done;
        let len = (last - column % last).min(count - done);
        let (mut rest, mut at) = (column, 0);
        for (size, stride) in sizes.iter().zip(strides).rev() {
            at += (rest % size.max(&1)) as isize * stride;
            rest /= size.max(&1);
        }
        f(done, done + len, at, stride);
        done += len;
    }
}

/// The identity of a reduction.
pub fn identity(kind: Reduction) -> f64 {
    match kind {
        Reduction::Sum | Reduction::Mean => 0.0,
        Reduction::Prod => 1.0,
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
    }
}

/// One step of a reduction; NaN propagates.
#[inline(always)]
pub fn join(kind: Reduction, a: f64, b: f64) -> f64 {
    match kind {
        Reduction::Sum | Reduction::Mean => a + b,
        Reduction::Prod => a * b,
        Reduction::Max => {
            if a > b || a.is_nan() || (a == b && a.is_sign_positive()) {
                a
            } else {
                b
            }
        }
        Reduction::Min => {
            if a < b || a.is_nan() || (a == b && a.is_sign_negative()) {
                a
            } else {
                b
            }
        }
    }
}

/// The final value of a reduction from the joined values of `n` elements.
fn finished(kind: Reduction, value: f64, n: usize) -> f64 {
    if kind == Reduction::Mean { value / n as f64 } else { value }
}

/// Joins the strands pairwise, by halves.
macro_rules! halves {
    ($strands:expr, $join:expr) => {{
        let mut width = STRANDS / 2;
        while width > 0 {
            for i in 0..width {
                $strands[i] = $join($strands[i], $strands[i + width]);
            }
            width /= 2;
        }
        $strands[0]
    }};
}

/// Joins the strands of a reduction.
#[inline(always)]
pub fn total(kind: Reduction, strands: &[f64; STRANDS]) -> f64 {
    let mut own = *strands;
    match kind {
        Reduction::Sum | Reduction::Mean => halves!(own, |a: f64, b: f64| a + b),
        kind => halves!(own, |a: f64, b: f64| join(kind, a, b)),
    }
}

/// Joins values to independent strands, so that the loop vectorises.
macro_rules! strands {
    ($strands:expr, $values:expr, $convert:expr, $join:expr) => {{
        let (chunks, rest) = $values.as_chunks::<STRANDS>();
        for chunk in chunks {
            for i in 0..STRANDS {
                $strands[i] = $join($strands[i], $convert(chunk[i]));
            }
        }
        for i in 0..rest.len() {
            $strands[i] = $join($strands[i], $convert(rest[i]));
        }
    }};
}

/// The maximum or minimum of f32 values is an f32, so no widening is needed.
#[inline(always)]
fn extreme(kind: Reduction, values: &[f32]) -> f32 {
    if kind == Reduction::Max {
        let mut own = [f32::NEG_INFINITY; STRANDS];
        strands!(own, values, |v: f32| v, math::max);
        halves!(own, math::max)
    } else {
        let mut own = [f32::INFINITY; STRANDS];
        strands!(own, values, |v: f32| v, math::min);
        halves!(own, math::min)
    }
}

#[inline(always)]
fn accumulate_inline(kind: Reduction, strands: &mut [f64; STRANDS], values: &[f32]) {
    match kind {
        Reduction::Sum | Reduction::Mean => strands!(strands, values, |v: f32| v as f64, |a: f64, b: f64| a + b),
        Reduction::Prod => strands!(strands, values, |v: f32| v as f64, |a: f64, b: f64| a * b),
        _ => strands[0] = join(kind, strands[0], extreme(kind, values) as f64),
    }
}

dispatch! {
    /// Adds values to independent strands.
    pub fn accumulate(kind: Reduction, strands: &mut [f64; STRANDS], values: &[f32]) {
        accumulate_inline(kind, strands, values);
    }
}

dispatch! {
    /// Reduces rows of `n` values each.
    pub fn reduce_rows(kind: Reduction, values: &[f32], n: usize, results: &mut [f64]) {
        for (row, result) in values.chunks_exact(n).zip(results) {
            if matches!(kind, Reduction::Max | Reduction::Min) {
                *result = extreme(kind, row) as f64;
                continue;
            }
            let mut strands = [identity(kind); STRANDS];
            accumulate_inline(kind, &mut strands, row);
            *result = finished(kind, total(kind, &strands), n);
        }
    }
}

/// The operands of a range of rows.
struct RowLoader<'a> {
    code: &'a RowCode,
    inputs: &'a [&'a [u8]],
    /// Results of reductions, those of each for all rows.
    results: &'a [f64],
    first: usize,
    rows: usize,
    /// The column at which a row that is computed in pieces continues.
    column: usize,
}

impl Loader for RowLoader<'_> {
    /// Operands whose rows are contiguous in memory.
    fn direct(&self, source: Source, _start: usize, len: usize) -> Option<&[f32]> {
        let Source::In(i) = source else { return None };
        let (DType::F32, RowAccess::Full) = self.code.inputs.get(i as usize)? else { return None };
        let at = self.first * self.code.n + self.column;
        bytemuck::cast_slice(self.inputs[i as usize]).get(at..at + len)
    }

    fn load(&self, source: Source, _start: usize, mut dst: Dst<'_>) {
        let Source::In(i) = source else { return };
        let (i, len) = (i as usize, dst.len());
        let width = len / self.rows.max(1);
        let Some((dtype, access)) = self.code.inputs.get(i) else {
            return self.load_result(i - self.code.inputs.len(), width, dst);
        };
        let bytes = self.inputs[i];
        let n = self.code.n;
        match access {
            // The rows of a block are contiguous in memory.
            RowAccess::Full => read(bytes, *dtype, (self.first * n + self.column) as isize, 1, dst),
            RowAccess::Splat => read(bytes, *dtype, 0, 0, dst),
            _ => {
                for row in 0..self.rows {
                    let dst = slice_of(&mut dst, row * width, (row + 1) * width);
                    let at = self.first + row;
                    match access {
                        RowAccess::PerColumn | RowAccess::Position => read(bytes, *dtype, self.column as isize, 1, dst),
                        RowAccess::Strided => self.load_strided(i, at, dst),
                        RowAccess::Gathered => {
                            let from = self.picked(i, at) * n + self.column;
                            read(bytes, *dtype, from as isize, 1, dst);
                        }
                        RowAccess::Picked => self.load_picked(i, at, dst),
                        _ => read(bytes, *dtype, at as isize, 0, dst),
                    }
                }
            }
        }
    }
}

impl RowLoader<'_> {
    /// Repeats results of a reduction for the elements that it reduced, `width` of each row.
    fn load_result(&self, reduction: usize, width: usize, mut dst: Dst<'_>) {
        let code = self.code;
        let at: usize = (0..reduction).map(|i| code.each(i) * self.rows).sum();
        let (extent, each) = (code.extents[reduction].max(1), code.each(reduction));
        let is_int = code.results.get(reduction) == Some(&DType::I64);
        for row in 0..self.rows {
            let mut done = 0;
            while done < width {
                let column = self.column + done;
                let count = (extent - column % extent).min(width - done);
                let v = self.results.get(at + row * each + column / extent).copied().unwrap_or(f64::NAN);
                let from = row * width + done;
                match slice_of(&mut dst, from, from + count) {
                    Dst::F32(d) => d.fill(v as f32),
                    Dst::F64(d) => d.fill(v),
                    Dst::Int(d) if is_int => d.fill(v.to_bits() as i64),
                    Dst::Int(d) => d.fill(v as i64),
                    Dst::Bool(d) => d.fill((v != 0.0) as u8),
                }
                done += count;
            }
        }
    }

    /// Loads the elements of a row, each in the row of a table that its index names.
    fn load_picked(&self, table: usize, row: usize, mut dst: Dst<'_>) {
        let (bytes, dtype, layout) = (self.inputs[table], self.code.inputs[table].0, &self.code.layout);
        let Some(gathered) = self.code.gathers.iter().find(|g| g.table == table) else { return };
        for i in 0..dst.len() {
            let column = self.column + i;
            let of_table = self.picked(table, layout.index(gathered.index, row, column));
            let from = of_table * gathered.width + layout.index(table, row, column);
            read(bytes, dtype, from as isize, 1, slice_of(&mut dst, i, i + 1));
        }
    }

    /// The row of a table that the index at that place names. It was looked at before the step.
    fn picked(&self, table: usize, at: usize) -> usize {
        let Some(gathered) = self.code.gathers.iter().find(|g| g.table == table) else { return 0 };
        let (mut index, dtype) = ([0i64], self.code.inputs[gathered.index].0);
        read(self.inputs[gathered.index], dtype, at as isize, 1, Dst::Int(&mut index));
        let index = if index[0] < 0 { index[0] + gathered.rows as i64 } else { index[0] };
        index.clamp(0, gathered.rows as i64 - 1) as usize
    }

    /// Loads the elements of a strided row.
    fn load_strided(&self, input: usize, row: usize, mut dst: Dst<'_>) {
        let (bytes, dtype, layout) = (self.inputs[input], self.code.inputs[input].0, &self.code.layout);
        let base = layout.row(input, row);
        let count = dst.len();
        runs(layout, input, self.column, count, |from, to, at, stride| {
            read(bytes, dtype, base + at, stride, slice_of(&mut dst, from, to));
        });
    }
}
