//! A gemm step of a plan, made ready: leading axes folded into rows where memory allows, narrow floats
//! widened, the epilogue compiled.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use smallvec::SmallVec;

use super::gemm::{Integer, Library, Matrix, multiply, multiply_int, panel_rows};
use super::interp::Code;
use super::pointwise::{Acc, Input, Memory, Work, Workers, split_outs};
use crate::error::{Error, Result};
use crate::plan::{GemmStep, View, collapse};

/// One operand of the product.
#[derive(Clone, Debug)]
struct Side {
    dtype: DType,
    offset: usize,
    row: isize,
    column: isize,
    /// Strides along the leading axes that are left.
    batch: Vec<isize>,
}

/// A gemm that is ready to run.
#[derive(Clone, Debug)]
pub struct GemmCode {
    batch: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
    acc: DType,
    sides: [Side; 2],
    /// The epilogue; `None` if the accumulator is the result.
    code: Option<Code>,
    shape: Vec<usize>,
    strides: Vec<Vec<isize>>,
    out: DType,
}

/// Memory of the two operands, whole buffers in the type that is multiplied.
pub type Operands<'a> = [&'a [u8]; 2];

impl GemmCode {
    /// Prepares a step.
    pub fn new(program: &Program, step: &GemmStep, reads: &[View], out: &View) -> Result<GemmCode> {
        let [a, b, inputs @ ..] = reads else { return Err(Error::Internal("a product of one operand".into())) };
        let lead = step.batch.len();
        let (mut batch, mut m) = (step.batch.clone(), step.m);
        let side = |v: &View| Side {
            dtype: v.dtype,
            offset: v.offset,
            row: v.strides[lead],
            column: v.strides[lead + 1],
            batch: v.strides[..lead].to_vec(),
        };
        let mut sides = [side(a), side(b)];
        // One right operand for all: if the rows of the left one lie evenly, the leading axes are rows.
        if sides[1].batch.iter().all(|s| *s == 0) {
            let (rows, strides) = collapse(&a.shape[..lead + 1], &[a.strides[..lead + 1].to_vec()]);
            if let ([rows], [strides]) = (rows.as_slice(), strides.as_slice()) {
                (batch, m) = (Vec::new(), *rows);
                sides[0].row = strides[0];
                sides.iter_mut().for_each(|s| s.batch.clear());
            }
        }
        let dtypes: Vec<DType> = inputs.iter().map(|v| v.dtype).collect();
        let code = if step.is_plain() && step.acc == out.dtype {
            None
        } else {
            Some(Code::new(program, &step.term, Some(step.acc), &dtypes, &[out.dtype])?)
        };
        let all: Vec<Vec<isize>> = inputs.iter().chain([out]).map(|v| v.strides.clone()).collect();
        let (shape, strides) = collapse(&out.shape, &all);
        Ok(GemmCode { batch, m, n: step.n, k: step.k, acc: step.acc, sides, code, shape, strides, out: out.dtype })
    }

    /// Which operands must be widened before they are multiplied.
    pub fn widens(&self, side: usize) -> bool {
        self.sides[side].dtype != self.acc
    }

    /// Bytes for accumulators that are not the result itself.
    pub fn panel_bytes(&self) -> usize {
        if self.acc == self.out { 0 } else { panel_rows(self.m, self.n, self.acc.size()) * self.n * self.acc.size() }
    }

    fn batches(&self) -> usize {
        self.batch.iter().product()
    }

    /// Runs. `operands` are whole buffers, widened where [`GemmCode::widens`] says so; `inputs` the whole
    /// buffers of the epilogue's operands.
    pub fn run(
        &self,
        workers: &Workers,
        operands: Operands<'_>,
        reads: &[View],
        inputs: &[&[u8]],
        out: &mut [u8],
        panel: &mut [u8],
    ) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let inputs: SmallVec<[Input<'_>; 8]> = inputs
            .iter()
            .zip(reads)
            .zip(&self.strides)
            .map(|((bytes, v), strides)| Input {
                memory: Memory::Bytes(bytes),
                dtype: v.dtype,
                offset: v.offset,
                strides,
            })
            .collect();
        let work = self.code.as_ref().map(|code| Work {
            code,
            shape: &self.shape,
            inputs,
            acc: self.acc,
            sizes: SmallVec::from_slice(&[self.out.size()]),
        });
        let run = Run { code: self, workers, operands, work };
        // Small products: whole matrices to each thread. Large ones: each is shared among the threads.
        let small = self.m * self.n * self.k < 1 << 21;
        if self.acc == self.out && workers.shared() && self.batches() > 1 && small {
            return run.halves(0, self.batches(), out);
        }
        run.panels(0, self.batches(), out, panel, workers.banks.len())
    }
}

struct Run<'a> {
    code: &'a GemmCode,
    workers: &'a Workers,
    operands: Operands<'a>,
    work: Option<Work<'a>>,
}

impl Run<'_> {
    /// Matrices `from..to`, whose results `out` holds, one thread to each.
    fn halves(&self, from: usize, to: usize, out: &mut [u8]) -> Result<()> {
        let g = self.code;
        if to - from <= 1 || (to - from) * g.m * g.n * g.k < 1 << 15 {
            return self.panels(from, to, out, &mut [], 1);
        }
        let mid = (from + to) / 2;
        let mut outs = [out];
        let (mut a, mut b) = split_outs(&mut outs, &[g.m * g.n * g.out.size()], mid - from);
        let (x, y) = rayon::join(|| self.halves(from, mid, a[0]), || self.halves(mid, to, b[0]));
        x.and(y)
    }

    fn offset(&self, side: usize, index: usize) -> isize {
        let s = &self.code.sides[side];
        let (mut at, mut rest) = (s.offset as isize, index);
        for (size, stride) in self.code.batch.iter().zip(&s.batch).rev() {
            at += (rest % size) as isize * stride;
            rest /= size;
        }
        at
    }

    /// Matrices `from..to` in panels of rows; each goes through the epilogue at once.
    fn panels(&self, from: usize, to: usize, out: &mut [u8], panel: &mut [u8], threads: usize) -> Result<()> {
        let g = self.code;
        let height = panel_rows(g.m, g.n, g.acc.size());
        let (in_place, size) = (g.acc == g.out, g.out.size());
        let mut done = 0;
        for index in from..to {
            let at = [self.offset(0, index), self.offset(1, index)];
            for row in (0..g.m).step_by(height) {
                let rows = height.min(g.m - row);
                let count = rows * g.n;
                let mine = &mut out[done * size..(done + count) * size];
                done += count;
                let a_at = at[0] + row as isize * g.sides[0].row;
                let acc = if in_place { &mut *mine } else { &mut panel[..count * g.acc.size()] };
                self.product(rows, [a_at, at[1]], acc, threads)?;
                if let Some(work) = &self.work {
                    let first = (index * g.m + row) * g.n;
                    let acc = if in_place { Acc::InPlace } else { Acc::Bytes(&*panel, first) };
                    work.run(self.workers, acc, &mut [mine], first, count);
                }
            }
        }
        Ok(())
    }

    fn product(&self, rows: usize, at: [isize; 2], acc: &mut [u8], threads: usize) -> Result<()> {
        let g = self.code;
        let size = (rows, g.k, g.n);
        fn matrix<'a, T: bytemuck::Pod>(side: &Side, bytes: &'a [u8], offset: isize) -> Matrix<'a, T> {
            Matrix { data: bytemuck::cast_slice(bytes), offset, row: side.row, column: side.column }
        }
        fn float<T: Library>(
            r: &Run<'_>,
            size: (usize, usize, usize),
            at: [isize; 2],
            acc: &mut [u8],
            threads: usize,
        ) -> Result<()> {
            let a = matrix::<T>(&r.code.sides[0], r.operands[0], at[0]);
            let b = matrix::<T>(&r.code.sides[1], r.operands[1], at[1]);
            multiply(size, a, b, bytemuck::cast_slice_mut(acc), threads)
        }
        fn int<T: Integer>(r: &Run<'_>, size: (usize, usize, usize), at: [isize; 2], acc: &mut [u8]) -> Result<()> {
            let a = matrix::<T>(&r.code.sides[0], r.operands[0], at[0]);
            let b = matrix::<T>(&r.code.sides[1], r.operands[1], at[1]);
            multiply_int(r.code.acc, size, a, b, bytemuck::cast_slice_mut(acc))
        }
        match g.acc {
            DType::F64 => float::<f64>(self, size, at, acc, threads),
            d if d.is_float() => float::<f32>(self, size, at, acc, threads),
            DType::I64 => int::<i64>(self, size, at, acc),
            DType::I32 => int::<i32>(self, size, at, acc),
            DType::I8 => int::<i8>(self, size, at, acc),
            DType::U8 => int::<u8>(self, size, at, acc),
            d => Err(Error::Type(format!("a product of {d}"))),
        }
    }
}
