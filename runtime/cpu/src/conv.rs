//! Convolutions by direct sums, for groups of few filters.
//!
//! In: a [`ConvStep`] and its views. Out: a [`DirectCode`]. Other convolutions are products over
//! the windows ([`im2col`](super::im2col)). Invariant: the operands are contiguous; results go
//! through the epilogue while they are in the cache.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;

use super::epilogue::{Epilogue, Sums};
use super::im2col::{Geometry, Segment, Windows};
use super::interp::{BLOCK, read};
use super::memory::Bytes;
use super::pointwise::Input;
use super::simd::dispatch;
use super::threads::{Local, Workers};
use super::widen::Widen;
use hypatia_plan::{ConvStep, View};
use hypatia_tensor::error::{Error, Result};

/// Minimum multiply-adds of a separate task.
const GRAIN: usize = 1 << 15;

/// A prepared convolution by direct sums.
#[derive(Clone, Debug)]
pub struct DirectCode {
    windows: Windows,
    /// The segments that each tap reads.
    taps: Vec<Vec<Segment>>,
    batch: usize,
    /// Channels and filters of all groups, filters per group.
    filters: usize,
    per_group: usize,
    dtypes: [DType; 2],
    offsets: [usize; 2],
    epilogue: Epilogue,
}

impl DirectCode {
    /// Prepares a step.
    pub fn new(
        program: &Program,
        step: &ConvStep,
        geometry: Geometry,
        reads: &[View],
        out: &View,
    ) -> Result<DirectCode> {
        let [x, w, inputs @ ..] = reads else { return Err(Error::Internal("a convolution of one operand".into())) };
        let epilogue = Epilogue::of_conv(program, step, inputs, out)?;
        let windows = geometry.windows;
        Ok(DirectCode {
            taps: (0..windows.taps()).map(|tap| windows.segments(tap)).collect(),
            windows,
            batch: geometry.batch,
            filters: geometry.filters * geometry.groups,
            per_group: geometry.filters,
            dtypes: [x.dtype, w.dtype],
            offsets: [x.offset, w.offset],
            epilogue,
        })
    }

    fn planes(&self) -> usize {
        self.batch * self.filters
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self) -> bool {
        self.planes() * self.windows.positions() * (self.windows.terms() + 1) > 2 * GRAIN
    }

    /// Runs the convolution. `operands` are whole buffers, `inputs` the whole buffers of the
    /// epilogue's operands.
    pub fn run(
        &self,
        workers: &Workers<'_>,
        operands: [&[u8]; 2],
        reads: &[View],
        inputs: &[&[u8]],
        out: &mut [u8],
    ) -> Result<()> {
        let positions = self.windows.positions();
        if out.len() != self.planes() * positions * self.epilogue.out.size() {
            return Err(Error::Internal(format!("{} planes of {positions} into {} bytes", self.planes(), out.len())));
        }
        let inputs = self.epilogue.inputs(reads, inputs);
        let grain = GRAIN.div_ceil((positions * (self.windows.terms() + 1)).max(1));
        let failed = std::sync::Mutex::new(None);
        workers.chunks(
            &mut [out],
            &[positions * self.epilogue.out.size()],
            self.planes(),
            grain,
            |first, count, outs, local| {
                if let Some(code) = &self.epilogue.code {
                    code.start(&mut local.registers);
                }
                // Small planes are computed together, as many as fill a block.
                let together = (BLOCK / positions.max(1)).max(1);
                for i in (0..count).step_by(together) {
                    let planes = first + i..first + count.min(i + together);
                    let size = positions * self.epilogue.out.size();
                    let out = &mut outs[0][i * size..(i + planes.len()) * size];
                    if let Err(e) = self.some(planes, operands, &inputs, out, local)
                        && let Ok(mut failed) = failed.lock()
                    {
                        *failed = Some(e);
                    }
                }
            },
        );
        failed.into_inner().ok().flatten().map_or(Ok(()), Err)
    }

    /// Computes some planes of results.
    fn some(
        &self,
        planes: std::ops::Range<usize>,
        operands: [&[u8]; 2],
        inputs: &[Input<'_>],
        out: &mut [u8],
        local: &mut Local,
    ) -> Result<()> {
        let Local { registers, a, b, c, .. } = local;
        let positions = self.windows.positions();
        let len = planes.len() * positions;
        let sums = c.at_least(len * self.epilogue.acc.size())?;
        for (index, sums) in planes.clone().zip(sums.chunks_exact_mut((positions * self.epilogue.acc.size()).max(1))) {
            match self.epilogue.acc {
                DType::F64 => {
                    let (x, w) = self.values::<f64>(index, operands, [&mut *a, &mut *b])?;
                    sums_f64(&self.taps, self.windows.plane(), x, w, bytemuck::cast_slice_mut(sums));
                }
                _ => {
                    let (x, w) = self.values::<f32>(index, operands, [&mut *a, &mut *b])?;
                    sums_f32(&self.taps, self.windows.plane(), x, w, bytemuck::cast_slice_mut(sums));
                }
            }
        }
        Sums { epilogue: &self.epilogue, inputs, sums, first: planes.start * positions }.store(registers, out);
        Ok(())
    }

    /// Channels and filter of a plane of results, in the accumulator type.
    fn values<'a, T: Widen>(
        &self,
        index: usize,
        [x, w]: [&'a [u8]; 2],
        [a, b]: [&'a mut Bytes; 2],
    ) -> Result<(&'a [T], &'a [T])> {
        let (terms, image) = (self.windows.terms(), self.windows.image());
        let from = [index / self.per_group * image, index % self.filters * terms];
        let part = |bytes: &'a [u8], side: usize, len: usize, memory: &'a mut Bytes| -> Result<&'a [T]> {
            let (at, dtype) = (self.offsets[side] + from[side], self.dtypes[side]);
            if dtype == T::DTYPE {
                return Ok(&bytemuck::cast_slice(bytes)[at..at + len]);
            }
            let wide: &mut [T] = bytemuck::cast_slice_mut(memory.at_least(len * size_of::<T>())?);
            read(bytes, dtype, at as isize, 1, T::dst(wide));
            Ok(wide)
        };
        Ok((part(x, 0, image, a)?, part(w, 1, terms, b)?))
    }
}

/// Products of an infinity or NaN with the zeros of the padding, which the segments of a tap leave
/// out, are NaN.
fn meet_padding<T: Widen>(segments: &[Segment], sums: &mut [T]) {
    let mut done = 0;
    for s in segments {
        if s.to > done {
            sums[done..s.to].fill(T::NAN);
        }
        done = s.to + s.len;
    }
    sums[done..].fill(T::NAN);
}

macro_rules! sums {
    ($name:ident, $t:ty) => {
        dispatch! {
            /// Computes a plane of results: for each tap, a line of products is added to each line
            /// of sums.
            fn $name(taps: &[Vec<Segment>], plane: usize, x: &[$t], w: &[$t], sums: &mut [$t]) {
                sums.fill(0.0);
                for (row, weight) in w.iter().enumerate() {
                    let plane = &x[row / taps.len() * plane..(row / taps.len() + 1) * plane];
                    if !weight.is_finite() {
                        meet_padding(&taps[row % taps.len()], sums);
                    }
                    for s in &taps[row % taps.len()] {
                        let line = &mut sums[s.to..s.to + s.len];
                        if s.step == 1 {
                            let source = &plane[s.from..s.from + s.len];
                            for i in 0..s.len {
                                line[i] += weight * source[i];
                            }
                        } else {
                            for i in 0..s.len {
                                line[i] += weight * plane[s.from + i * s.step];
                            }
                        }
                    }
                }
            }
        }
    };
}
sums!(sums_f32, f32);
sums!(sums_f64, f64);
