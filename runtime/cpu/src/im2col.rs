//! The windows of a convolution as a matrix (im2col), which is never materialised as a whole.
//!
//! In: a [`ConvStep`] and its views. Out: [`Windows`], the right operand of a product, packed tile
//! by tile; with the channels last [`Patches`], the left operand, copied row by row. Invariant: the
//! operands are contiguous; what a window reads outside of them is zero.

use std::ops::Range;

use hypatia_dsl::dtype::DType;
use smallvec::SmallVec;

use super::interp::read;
use super::widen::Widen;
use hypatia_graph::prim::Window;
use hypatia_plan::{ConvStep, View};
use hypatia_tensor::error::{Error, Result};

/// Groups with fewer filters than this use direct sums.
const FEW_FILTERS: usize = 4;
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
    pub fn positions(&self) -> usize {
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

    /// Elements of a window.
    pub fn taps(&self) -> usize {
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
    pub fn segments(&self, tap: usize) -> Vec<Segment> {
        let (mut all, mut done): (Vec<Segment>, usize) = (Vec::new(), 0);
        self.lines(tap, 0, self.positions(), |at| {
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
        ks: Range<usize>,
        columns: Range<usize>,
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
pub struct Segment {
    /// The first result.
    pub to: usize,
    /// The first element.
    pub from: usize,
    /// Stride of the elements.
    pub step: usize,
    /// Number of results.
    pub len: usize,
}

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

/// How windows move along an axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Size of the operand.
    pub input: usize,
    /// Size of the result.
    pub output: usize,
    /// The window.
    pub window: Window,
}

impl Axis {
    /// The taps that read the operand for a result; the other taps read the zero padding.
    #[inline(always)]
    pub fn taps(&self, result: usize) -> Range<usize> {
        let w = &self.window;
        let at = result * w.stride;
        let low = w.before.saturating_sub(at).div_ceil(w.dilation).min(w.size);
        let high = (self.input + w.before).saturating_sub(at).div_ceil(w.dilation).clamp(low, w.size);
        low..high
    }

    /// The index that a tap reads; the tap must be one of [`Axis::taps`].
    #[inline(always)]
    pub fn at(&self, result: usize, tap: usize) -> usize {
        result * self.window.stride + tap * self.window.dilation - self.window.before
    }
}

/// The windows of a batch of images as a matrix: a row per result, a column per tap and channel.
#[derive(Clone, Debug)]
pub struct Patches {
    images: usize,
    channels: usize,
    axes: [Axis; 2],
}

impl Patches {
    /// The patches of a step.
    pub fn new(step: &ConvStep, x: &View, out: &View) -> Result<Patches> {
        let (Some((input, [images, spatial @ ..])), Some((_, [_, output @ ..]))) =
            (x.shape.split_last(), out.shape.split_last())
        else {
            return Err(Error::Internal("a convolution of too few axes".into()));
        };
        let alone = Axis { input: 1, output: 1, window: Window { size: 1, stride: 1, dilation: 1, before: 0 } };
        let axis = |i: usize| Axis { input: spatial[i], output: output[i], window: step.windows[i] };
        let axes = match (step.windows.len(), spatial.len(), output.len()) {
            (1, 1, 1) => [alone, axis(0)],
            (2, 2, 2) => [axis(0), axis(1)],
            (n, ..) => return Err(Error::Internal(format!("a convolution along {n} axes, channels last"))),
        };
        Ok(Patches { images: *images, channels: *input, axes })
    }

    /// Number of results per filter.
    pub fn rows(&self) -> usize {
        self.images * self.axes.iter().map(|a| a.output).product::<usize>()
    }

    /// Number of taps of a window.
    pub fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.window.size).product()
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.taps() * self.channels
    }

    /// How windows move along both axes.
    pub fn axes(&self) -> &[Axis; 2] {
        &self.axes
    }

    /// Channels of the operand.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Elements of the operand.
    pub fn elements(&self) -> usize {
        self.images * self.axes.iter().map(|a| a.input).product::<usize>() * self.channels
    }

    /// True if the operand already is the matrix.
    pub fn is_plain(&self) -> bool {
        let one = |a: &Axis| {
            let w = &a.window;
            w.size == 1 && w.stride == 1 && w.before == 0 && a.input == a.output
        };
        self.axes.iter().all(one)
    }

    /// Image of a result, and its index along both axes.
    #[inline(always)]
    pub fn position(&self, row: usize) -> (usize, [usize; 2]) {
        let [y, x] = &self.axes;
        let (line, column) = (row / x.output, row % x.output);
        (line / y.output, [line % y.output, column])
    }

    /// Copies rows `rows` and columns `ks`; row i goes to `i * stride`. The operand begins at
    /// element `offset` of `bytes`.
    pub fn copy<T: Widen>(
        &self,
        (bytes, dtype, offset): (&[u8], DType, usize),
        rows: Range<usize>,
        ks: Range<usize>,
        stride: usize,
        to: &mut [T],
    ) {
        let same: &[T] = if dtype == T::DTYPE { bytemuck::cast_slice(bytes) } else { &[] };
        let [y, x] = &self.axes;
        // Taps of a line that are contiguous in memory are copied at once.
        let (line, together) = (x.window.size * self.channels, x.window.dilation == 1);
        for (row, to) in rows.zip(to.chunks_mut(stride)) {
            let (image, [oy, ox]) = self.position(row);
            let (lines, taps) = (y.taps(oy), x.taps(ox));
            for tap in ks.start / line..ks.end.div_ceil(line) {
                let own = ks.start.max(tap * line)..ks.end.min((tap + 1) * line);
                let to = &mut to[own.start - ks.start..own.end - ks.start];
                if !lines.contains(&tap) || taps.is_empty() {
                    to.fill(T::ZERO);
                    continue;
                }
                let at = offset + (image * y.input + y.at(oy, tap)) * x.input * self.channels;
                let (from, to_end) = (own.start - tap * line, own.end - tap * line);
                let mut segment = |taps: Range<usize>| {
                    // The columns of the line that these taps fill, clipped to the requested ones.
                    let (low, high) = (taps.start * self.channels, taps.end * self.channels);
                    let (a, b) = (low.clamp(from, to_end), high.clamp(from, to_end));
                    if a == b {
                        return;
                    }
                    let source = at + x.at(ox, taps.start) * self.channels + a - low;
                    let to = &mut to[a - from..b - from];
                    match same.get(source..source + to.len()) {
                        Some(values) => to.copy_from_slice(values),
                        None => read(bytes, dtype, source as isize, 1, T::dst(to)),
                    }
                };
                if together {
                    segment(taps.clone());
                } else {
                    taps.clone().for_each(|tap| segment(tap..tap + 1));
                }
                let inside = |tap: usize| (tap * self.channels).clamp(from, to_end) - from;
                to[..inside(taps.start)].fill(T::ZERO);
                to[inside(taps.end)..].fill(T::ZERO);
            }
        }
    }
}
