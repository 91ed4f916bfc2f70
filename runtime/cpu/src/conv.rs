//! Convolutions: the window matrix, which products read tile by tile, and direct sums if a group
//! has few filters.
//!
//! In: a [`ConvStep`] and its views. Out: [`Windows`], from which
//! [`GemmCode`](super::gemm::GemmCode) packs its right operand (im2col, never materialised as a
//! whole), or a [`DirectCode`]. Invariant: the operands are contiguous; results go through the
//! epilogue while they are in the cache.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::scalar::typed::Source;
use smallvec::SmallVec;

use super::gemm::Widen;
use super::interp::{BLOCK, Code, Dst, Feed, read};
use super::memory::Bytes;
use super::pointwise::{Input, gather};
use super::simd::dispatch;
use super::threads::{Local, Team};
use hypatia_graph::prim::Window;
use hypatia_plan::{ConvStep, View, collapse};
use hypatia_tensor::error::{Error, Result};

/// Groups with fewer filters than this use direct sums.
const FEW_FILTERS: usize = 4;
/// Minimum multiply-adds of a separate task.
const GRAIN: usize = 1 << 15;
/// Results that are gathered at once.
const LINE: usize = 1024;

/// The windows of one channel group of one image, as a matrix: a row per channel and tap, a column
/// per result.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Channels of a group.
    depth: usize,
    /// Sizes of the axes along which the windows move, and the numbers of windows.
    input: Vec<usize>,
    output: Vec<usize>,
    windows: Vec<Window>,
}

/// The geometry of a convolution.
pub struct Geometry {
    /// The window matrix of a group.
    pub windows: Windows,
    /// Number of images.
    pub batch: usize,
    /// Number of channel groups.
    pub groups: usize,
    /// Filters per group.
    pub filters: usize,
}

impl Geometry {
    /// The geometry of a step.
    pub fn new(step: &ConvStep, reads: &[View], out: &View) -> Result<Geometry> {
        let ([_, w, ..], [batch, channels, input @ ..]) = (reads, &reads.first().map_or(&[][..], |x| &x.shape)) else {
            return Err(Error::Internal("a convolution of too few operands".into()));
        };
        let groups = step.groups.max(1);
        let windows = Windows {
            depth: channels / groups,
            input: input.to_vec(),
            output: out.shape[2..].to_vec(),
            windows: step.windows.clone(),
        };
        Ok(Geometry { windows, batch: *batch, groups, filters: w.shape[0] / groups })
    }

    /// True if direct sums are faster than matrix products.
    pub fn is_direct(&self) -> bool {
        self.filters < FEW_FILTERS
    }
}

impl Windows {
    /// Results per image and filter.
    pub fn places(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements per channel.
    pub fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements per channel group.
    pub fn image(&self) -> usize {
        self.depth * self.plane()
    }

    fn taps(&self) -> usize {
        self.windows.iter().map(|w| w.size).product()
    }

    /// Length of the sums.
    pub fn terms(&self) -> usize {
        self.depth * self.taps()
    }

    /// True if the operand already is the window matrix.
    pub fn is_plain(&self) -> bool {
        let one = |(w, (i, o)): (&Window, (&usize, &usize))| w.size == 1 && w.stride == 1 && w.before == 0 && i == o;
        self.windows.iter().zip(self.input.iter().zip(&self.output)).all(one)
    }

    /// The elements of a plane that a tap reads.
    fn segments(&self, tap: usize) -> Vec<Segment> {
        let (mut all, mut done): (Vec<Segment>, usize) = (Vec::new(), 0);
        self.lines(tap, 0, self.places(), |at| {
            let to = done + at.skip;
            done += at.count;
            if at.read == 0 {
                return;
            }
            match all.last_mut() {
                // Contiguous lines are merged into one.
                Some(s) if s.step == 1 && at.step == 1 && s.to + s.len == to && s.from + s.len == at.start => {
                    s.len += at.read;
                }
                _ => all.push(Segment { to, from: at.start, step: at.step, len: at.read }),
            }
        });
        all
    }

    /// Packs rows `ks` and columns `columns` into panels; the image begins at element `offset` of
    /// `bytes`.
    pub fn pack<T: Widen>(
        &self,
        (bytes, dtype, offset): (&[u8], DType, usize),
        ks: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
        panel: usize,
        to: &mut [T],
    ) {
        let (k, taps) = (ks.len(), self.taps());
        let mut line = [T::ZERO; LINE];
        for (l, row) in ks.enumerate() {
            let plane = offset + row / taps * self.plane();
            for first in columns.clone().step_by(LINE / panel * panel) {
                let count = (LINE / panel * panel).min(columns.end - first);
                let mut done = 0;
                self.lines(row % taps, first, count, |at| {
                    let to = &mut line[done..done + at.count];
                    done += at.count;
                    to[..at.skip].fill(T::ZERO);
                    to[at.skip + at.read..].fill(T::ZERO);
                    let to = &mut to[at.skip..at.skip + at.read];
                    if !to.is_empty() {
                        read(bytes, dtype, (plane + at.start) as isize, at.step as isize, T::dst(to));
                    }
                });
                for (i, values) in line[..count].chunks(panel).enumerate() {
                    let at = ((first - columns.start) / panel + i) * k * panel + l * panel;
                    to[at..at + values.len()].copy_from_slice(values);
                    to[at + values.len()..at + panel].fill(T::ZERO);
                }
            }
        }
    }
}

/// Results of a plane that read evenly spaced elements: `len` results from `to` on read elements
/// from `from` on with stride `step`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    to: usize,
    from: usize,
    step: usize,
    len: usize,
}

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
    acc: DType,
    dtypes: [DType; 2],
    offsets: [usize; 2],
    /// The epilogue; `None` if the accumulator is the result.
    code: Option<Code>,
    shape: Vec<usize>,
    strides: Vec<Vec<isize>>,
    out: DType,
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
        let dtypes: Vec<DType> = inputs.iter().map(|v| v.dtype).collect();
        let code = if step.is_plain() && step.acc == out.dtype {
            None
        } else {
            Some(Code::new(program, &step.term, Some(step.acc), &dtypes, &[out.dtype])?)
        };
        let all: Vec<Vec<isize>> = inputs.iter().chain([out]).map(|v| v.strides.clone()).collect();
        let (shape, strides) = collapse(&out.shape, &all);
        let windows = geometry.windows;
        Ok(DirectCode {
            taps: (0..windows.taps()).map(|tap| windows.segments(tap)).collect(),
            windows,
            batch: geometry.batch,
            filters: geometry.filters * geometry.groups,
            per_group: geometry.filters,
            acc: step.acc,
            dtypes: [x.dtype, w.dtype],
            offsets: [x.offset, w.offset],
            code,
            shape,
            strides,
            out: out.dtype,
        })
    }

    fn planes(&self) -> usize {
        self.batch * self.filters
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self) -> bool {
        self.planes() * self.windows.places() * (self.windows.terms() + 1) > 2 * GRAIN
    }

    /// Runs the convolution. `operands` are whole buffers, `inputs` the whole buffers of the
    /// epilogue's operands.
    pub fn run(
        &self,
        team: &Team<'_>,
        operands: [&[u8]; 2],
        reads: &[View],
        inputs: &[&[u8]],
        out: &mut [u8],
    ) -> Result<()> {
        let places = self.windows.places();
        if out.len() != self.planes() * places * self.out.size() {
            return Err(Error::Internal(format!("{} planes of {places} into {} bytes", self.planes(), out.len())));
        }
        let inputs = inputs.iter().zip(reads).zip(&self.strides).map(|((bytes, v), strides)| Input {
            bytes,
            dtype: v.dtype,
            offset: v.offset,
            strides,
        });
        let inputs: SmallVec<[Input<'_>; 8]> = inputs.collect();
        let grain = GRAIN.div_ceil((places * (self.windows.terms() + 1)).max(1));
        let failed = std::sync::Mutex::new(None);
        team.chunks(&mut [out], &[places * self.out.size()], self.planes(), grain, |first, count, outs, local| {
            if let Some(code) = &self.code {
                code.start(&mut local.banks);
            }
            // Small planes are computed together, as many as fill a block.
            let together = (BLOCK / places.max(1)).max(1);
            for i in (0..count).step_by(together) {
                let planes = first + i..first + count.min(i + together);
                let size = places * self.out.size();
                let out = &mut outs[0][i * size..(i + planes.len()) * size];
                if let Err(e) = self.some(planes, operands, &inputs, out, local)
                    && let Ok(mut failed) = failed.lock()
                {
                    *failed = Some(e);
                }
            }
        });
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
        let Local { banks, a, b, c, .. } = local;
        let places = self.windows.places();
        let len = planes.len() * places;
        let sums = c.at_least(len * self.acc.size())?;
        for (index, sums) in planes.clone().zip(sums.chunks_exact_mut((places * self.acc.size()).max(1))) {
            match self.acc {
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
        let Some(code) = &self.code else {
            out.copy_from_slice(sums);
            return Ok(());
        };
        for at in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - at);
            let feed = PlaneFeed { code: self, inputs, sums, first: planes.start * places };
            code.run(banks, &feed, at, count);
            code.store(banks, 0, out, at, count);
        }
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

/// Elements of a plane of results: element 0 is element `first` of all results.
struct PlaneFeed<'a, 'b> {
    code: &'a DirectCode,
    inputs: &'a [Input<'b>],
    sums: &'a [u8],
    first: usize,
}

impl Feed for PlaneFeed<'_, '_> {
    fn direct(&self, source: Source, start: usize, len: usize) -> Option<&[f32]> {
        let sums = source == Source::Acc && self.code.acc == DType::F32;
        if sums { bytemuck::cast_slice(self.sums).get(start..start + len) } else { None }
    }

    fn load(&self, source: Source, start: usize, dst: Dst<'_>) {
        match source {
            Source::Acc => read(self.sums, self.code.acc, start as isize, 1, dst),
            Source::In(i) => {
                gather(&self.inputs[i as usize], &self.code.shape, self.first + start, dst);
            }
        }
    }
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

/// The elements that a tap reads for a run of results along the last axis.
struct Line {
    /// Number of results.
    count: usize,
    /// Leading results that read zeros of the padding.
    skip: usize,
    /// Results after these that read the operand; the remaining ones read zeros.
    read: usize,
    /// Index in the plane of the first element that is read.
    start: usize,
    /// Stride of the elements that are read.
    step: usize,
}

impl Windows {
    /// Calls `f` for each run along the last axis of the results `from..from + count`, in order.
    #[inline(always)]
    fn lines(&self, tap: usize, from: usize, count: usize, mut f: impl FnMut(Line)) {
        let Some((last, outer)) = self.windows.split_last() else { return };
        let (width, size) = (self.output[outer.len()], self.input[outer.len()]);
        let (mut rest, mut at) = (tap / last.size, from);
        let mut taps: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outer.len());
        for (t, w) in taps.iter_mut().zip(outer).rev() {
            (*t, rest) = (rest % w.size, rest / w.size);
        }
        // Of a whole line, results `low..high` read the operand.
        let shift = tap % last.size * last.dilation;
        let low = last.before.saturating_sub(shift).div_ceil(last.stride).min(width);
        let high = (size + last.before).saturating_sub(shift).div_ceil(last.stride).clamp(low, width);
        while at < from + count {
            let (row, column) = (at / width, at % width);
            let run = (width - column).min(from + count - at);
            at += run;
            let (begin, end) = (low.clamp(column, column + run), high.clamp(column, column + run));
            let line = self.line_start(row, &taps).filter(|_| begin < end);
            f(match line {
                Some(start) => Line {
                    count: run,
                    skip: begin - column,
                    read: end - begin,
                    start: start + begin * last.stride + shift - last.before,
                    step: last.stride,
                },
                None => Line { count: run, skip: run, read: 0, start: 0, step: 1 },
            });
        }
    }

    /// Index in the plane of the line that line `row` of results reads; `None` in the padding.
    fn line_start(&self, mut row: usize, taps: &[usize]) -> Option<usize> {
        let (mut start, mut step) = (0, self.input.last().copied()?);
        for (i, tap) in taps.iter().enumerate().rev() {
            let window = &self.windows[i];
            let index = (row % self.output[i] * window.stride + tap * window.dilation).checked_sub(window.before)?;
            start += Some(index).filter(|v| *v < self.input[i])? * step;
            (row, step) = (row / self.output[i], step * self.input[i]);
        }
        Some(start)
    }
}
