//! Row-wise kernels: reductions over a row, then outputs that use them, one row after the other.
//!
//! Holds always: sums of floats run in f64, in eight strands, and are rounded once to the compute type.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Reduction, RowAccess, RowwiseKernel};
use smallvec::SmallVec;

use super::flat::Source;
use super::interp::{BLOCK, Banks, Code, Dst, Feed, read};
use super::pointwise::{Workers, split_outs};
use crate::error::Result;

/// Elements below which work is not shared among threads.
const GRAIN: usize = 16 * BLOCK;

/// A row-wise kernel that is ready to run.
#[derive(Clone, Debug)]
pub struct RowCode {
    steps: Vec<(Reduction, Code)>,
    outputs: Vec<(RowAccess, Code)>,
    inputs: Vec<(DType, RowAccess)>,
    compute: DType,
    /// Bytes of each output for a row.
    sizes: Vec<usize>,
    n: usize,
}

impl RowCode {
    /// Compiles a kernel for rows of `n`.
    pub fn new(program: &Program, kernel: &RowwiseKernel, n: usize) -> Result<RowCode> {
        let compute = if kernel.inputs.iter().any(|(d, _)| *d == DType::F64) { DType::F64 } else { DType::F32 };
        let mut dtypes: Vec<DType> = kernel.inputs.iter().map(|(d, _)| *d).collect();
        dtypes.extend(kernel.steps.iter().map(|_| compute));
        let mut steps = Vec::new();
        for (kind, term) in &kernel.steps {
            steps.push((*kind, Code::new(program, term, None, &dtypes, &[compute])?));
        }
        let mut outputs = Vec::new();
        let mut sizes = Vec::new();
        for (dtype, access, term) in &kernel.outputs {
            outputs.push((*access, Code::new(program, term, None, &dtypes, &[*dtype])?));
            sizes.push(dtype.size() * if *access == RowAccess::Full { n } else { 1 });
        }
        Ok(RowCode { steps, outputs, inputs: kernel.inputs.clone(), compute, sizes, n })
    }

    /// Computes the rows from `first` on that `outs` hold.
    pub fn run(&self, workers: &Workers, inputs: &[&[u8]], outs: &mut [&mut [u8]], first: usize, rows: usize) {
        if rows > 1 && rows * self.n > GRAIN && workers.shared() {
            let half = rows / 2;
            let (mut a, mut b) = split_outs(outs, &self.sizes, half);
            rayon::join(
                || self.run(workers, inputs, &mut a, first, half),
                || self.run(workers, inputs, &mut b, first + half, rows - half),
            );
            return;
        }
        workers.with_banks(|banks| {
            for row in 0..rows {
                self.row(banks, inputs, outs, first + row, row);
            }
        });
    }

    /// One row, which is row `at` of the outputs' slices.
    fn row(&self, banks: &mut Banks, inputs: &[&[u8]], outs: &mut [&mut [u8]], row: usize, at: usize) {
        let mut feed = RowFeed { code: self, inputs, results: SmallVec::new(), row };
        for (kind, code) in &self.steps {
            let result = reduce(*kind, code, banks, &feed, self.n);
            feed.results.push(self.compute.round(result));
        }
        for (i, (access, code)) in self.outputs.iter().enumerate() {
            code.start(banks);
            let (base, len) = if *access == RowAccess::Full { (at * self.n, self.n) } else { (at, 1) };
            for start in (0..len).step_by(BLOCK) {
                let count = BLOCK.min(len - start);
                code.run(banks, &feed, start, count);
                code.store(banks, 0, outs[i], base + start, count);
            }
        }
    }
}

fn reduce(kind: Reduction, code: &Code, banks: &mut Banks, feed: &RowFeed<'_>, n: usize) -> f64 {
    code.start(banks);
    let mut strands = [identity(kind); 8];
    for start in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - start);
        code.run(banks, feed, start, count);
        match code.root_f32(banks, 0, count) {
            Some(values) => accumulate(kind, &mut strands, values),
            None => {
                let mut i = 0;
                code.root_f64(banks, 0, count, |v| {
                    strands[i % 8] = join(kind, strands[i % 8], v);
                    i += 1;
                });
            }
        }
    }
    let total = strands.into_iter().fold(identity(kind), |a, b| join(kind, a, b));
    if kind == Reduction::Mean { total / n as f64 } else { total }
}

/// What a reduction starts from.
pub fn identity(kind: Reduction) -> f64 {
    match kind {
        Reduction::Sum | Reduction::Mean => 0.0,
        Reduction::Prod => 1.0,
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
    }
}

/// One step of a reduction; NaN stays.
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

/// Eight independent strands, so that the loop vectorises.
pub fn accumulate(kind: Reduction, strands: &mut [f64; 8], values: &[f32]) {
    macro_rules! each {
        ($kind:expr) => {{
            let (chunks, rest) = values.as_chunks::<8>();
            for chunk in chunks {
                for (s, v) in strands.iter_mut().zip(chunk) {
                    *s = join($kind, *s, *v as f64);
                }
            }
            for (s, v) in strands.iter_mut().zip(rest) {
                *s = join($kind, *s, *v as f64);
            }
        }};
    }
    match kind {
        Reduction::Sum | Reduction::Mean => each!(Reduction::Sum),
        Reduction::Prod => each!(Reduction::Prod),
        Reduction::Max => each!(Reduction::Max),
        Reduction::Min => each!(Reduction::Min),
    }
}

struct RowFeed<'a> {
    code: &'a RowCode,
    inputs: &'a [&'a [u8]],
    results: SmallVec<[f64; 8]>,
    row: usize,
}

impl Feed for RowFeed<'_> {
    fn load(&self, source: Source, start: usize, dst: Dst<'_>) {
        let Source::In(i) = source else { return };
        let i = i as usize;
        let Some((dtype, access)) = self.code.inputs.get(i) else {
            let v = self.results.get(i - self.code.inputs.len()).copied().unwrap_or(f64::NAN);
            match dst {
                Dst::F32(d) => d.fill(v as f32),
                Dst::F64(d) => d.fill(v),
                Dst::Int(d) => d.fill(v as i64),
                Dst::Bool(d) => d.fill((v != 0.0) as u8),
            }
            return;
        };
        let (at, stride) = match access {
            RowAccess::Full => (self.row * self.code.n + start, 1),
            RowAccess::PerColumn => (start, 1),
            RowAccess::PerRow => (self.row, 0),
            RowAccess::Splat => (0, 0),
        };
        read(self.inputs[i], *dtype, at as isize, stride, dst);
    }
}
