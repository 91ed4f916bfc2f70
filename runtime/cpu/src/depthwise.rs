//! Depthwise convolutions (one filter per channel) with the channels last, by direct sums.
//!
//! In: a [`ConvStep`] with `channels_last` and its views. Out: a [`DepthwiseCode`]. Other such
//! convolutions are products over [`Patches`]. Invariant: neighbours in memory are channels of one
//! position, so that sums are long even for small images.

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;

use super::epilogue::{Epilogue, Sums};
use super::gemm::{Filters, Packed, packed_filters};
use super::im2col::Patches;
use super::interp::BLOCK;
use super::pointwise::Input;
use super::simd::dispatch;
use super::threads::{Local, Workers};
use super::widen::Widen;
use hypatia_plan::{ConvStep, View};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Minimum multiply-adds of a separate task.
const GRAIN: usize = 1 << 15;

/// A prepared depthwise convolution.
#[derive(Clone)]
pub struct DepthwiseCode {
    patches: Patches,
    /// A row of channels per tap.
    filters: Arc<Packed>,
    /// False if a filter holds an infinity or NaN: their products with the padding are NaN.
    finite: bool,
    offset: usize,
    epilogue: Epilogue,
}

impl DepthwiseCode {
    /// Prepares a step with constant filters.
    pub fn new(
        program: &Program,
        step: &ConvStep,
        reads: &[View],
        out: &View,
        filters: Option<&Arc<Tensor>>,
    ) -> Result<DepthwiseCode> {
        let ([x, w, inputs @ ..], Some(tensor)) = (reads, filters) else {
            return Err(Error::Internal("a convolution without constant filters".into()));
        };
        let epilogue = Epilogue::of_conv(program, step, inputs, out)?;
        let patches = Patches::new(step, x, out)?;
        let filters = Filters { offset: w.offset, count: patches.channels(), depth: 1, taps: patches.taps() };
        let filters = match step.acc {
            DType::F64 => packed_filters::<f64>(tensor, filters, patches.channels())?,
            _ => packed_filters::<f32>(tensor, filters, patches.channels())?,
        };
        let finite = match step.acc {
            DType::F64 => filters.values::<f64>().iter().all(|v| v.is_finite()),
            _ => filters.values::<f32>().iter().all(|v| v.is_finite()),
        };
        Ok(DepthwiseCode { patches, filters, finite, offset: x.offset, epilogue })
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self) -> bool {
        self.patches.rows() * self.cost() > 2 * GRAIN
    }

    /// Multiply-adds per position, plus one per channel for the epilogue.
    fn cost(&self) -> usize {
        self.patches.channels() * (self.patches.taps() + 1)
    }

    /// Runs the convolution. `x` is the whole buffer of the operand, `inputs` those of the
    /// epilogue's operands.
    pub fn run(&self, workers: &Workers<'_>, x: &[u8], reads: &[View], inputs: &[&[u8]], out: &mut [u8]) -> Result<()> {
        let (rows, channels) = (self.patches.rows(), self.patches.channels());
        let operand = x.len() / self.epilogue.acc.size();
        if out.len() != rows * channels * self.epilogue.out.size() || self.offset + self.patches.elements() > operand {
            return Err(Error::Internal(format!("{rows} positions of {channels} into {} bytes", out.len())));
        }
        let inputs = self.epilogue.inputs(reads, inputs);
        let failed = std::sync::Mutex::new(None);
        let (size, grain) = (channels * self.epilogue.out.size(), GRAIN.div_ceil(self.cost().max(1)));
        workers.chunks(&mut [out], &[size], rows, grain, |first, count, outs, local| {
            if let Some(code) = &self.epilogue.code {
                code.start(&mut local.registers);
            }
            // Positions are computed together, as many as fill a block.
            let together = (BLOCK / channels.max(1)).max(1);
            for i in (0..count).step_by(together) {
                let positions = i..count.min(i + together);
                let out = &mut outs[0][positions.start * size..positions.end * size];
                if let Err(e) = self.some(first + i, x, &inputs, out, local)
                    && let Ok(mut failed) = failed.lock()
                {
                    *failed = Some(e);
                }
            }
        });
        failed.into_inner().ok().flatten().map_or(Ok(()), Err)
    }

    /// Computes all channels of the positions from `first` on, as many as `out` holds.
    fn some(&self, first: usize, x: &[u8], inputs: &[Input<'_>], out: &mut [u8], local: &mut Local) -> Result<()> {
        let Local { registers, c, .. } = local;
        let len = out.len() / self.epilogue.out.size();
        let sums = c.at_least(len * self.epilogue.acc.size())?;
        match self.epilogue.acc {
            DType::F64 => {
                let x = &bytemuck::cast_slice(x)[self.offset..];
                let (w, sums) = (self.filters.values(), bytemuck::cast_slice_mut(sums));
                depthwise_f64(&self.patches, x, w, first, sums);
                if !self.finite {
                    meet_padding::<f64>(&self.patches, w, first, sums);
                }
            }
            _ => {
                let x = &bytemuck::cast_slice(x)[self.offset..];
                let (w, sums) = (self.filters.values(), bytemuck::cast_slice_mut(sums));
                depthwise_f32(&self.patches, x, w, first, sums);
                if !self.finite {
                    meet_padding::<f32>(&self.patches, w, first, sums);
                }
            }
        }
        let first = first * self.patches.channels();
        Sums { epilogue: &self.epilogue, inputs, sums, first }.store(registers, out);
        Ok(())
    }
}

/// Products of an infinity or NaN with the zeros of the padding, which the sums leave out, are NaN.
fn meet_padding<T: Widen>(p: &Patches, w: &[T], first: usize, out: &mut [T]) {
    let ([ay, ax], channels) = (p.axes(), p.channels());
    for (i, out) in out.chunks_exact_mut(channels).enumerate() {
        let (_, [oy, ox]) = p.position(first + i);
        let (lines, taps) = (ay.taps(oy), ax.taps(ox));
        for (tap, weights) in w.chunks_exact(channels).enumerate().take(p.taps()) {
            if lines.contains(&(tap / ax.window.size)) && taps.contains(&(tap % ax.window.size)) {
                continue;
            }
            for (out, weight) in out.iter_mut().zip(weights) {
                if !weight.is_finite() {
                    *out = T::NAN;
                }
            }
        }
    }
}

macro_rules! depthwise {
    ($name:ident, $part:ident, $t:ty) => {
        /// Sums of `N` channels from `at` on, in registers; `x` and `w` begin at the first tap.
        #[inline(always)]
        fn $part<const N: usize>(
            x: &[$t],
            w: &[$t],
            [lines, taps]: [usize; 2],
            x_steps: [usize; 2],
            w_steps: [usize; 2],
            out: &mut [$t],
        ) {
            let mut sums = [0.0; N];
            for line in 0..lines {
                for tap in 0..taps {
                    let values = &x[line * x_steps[0] + tap * x_steps[1]..][..N];
                    let weights = &w[line * w_steps[0] + tap * w_steps[1]..][..N];
                    for i in 0..N {
                        sums[i] += values[i] * weights[i];
                    }
                }
            }
            out[..N].copy_from_slice(&sums);
        }

        dispatch! {
            /// Computes all channels of the positions from `first` on, as many as `out` holds.
            fn $name(p: &Patches, x: &[$t], w: &[$t], first: usize, out: &mut [$t]) {
                let ([ay, ax], channels) = (p.axes(), p.channels());
                let x_steps = [ay.window.dilation * ax.input * channels, ax.window.dilation * channels];
                let w_steps = [ax.window.size * channels, channels];
                for (i, out) in out.chunks_exact_mut(channels).enumerate() {
                    let (image, [oy, ox]) = p.position(first + i);
                    let (lines, taps) = (ay.taps(oy), ax.taps(ox));
                    if lines.is_empty() || taps.is_empty() {
                        out.fill(0.0);
                        continue;
                    }
                    let line = image * ay.input + ay.at(oy, lines.start);
                    let x = &x[(line * ax.input + ax.at(ox, taps.start)) * channels..];
                    let w = &w[(lines.start * ax.window.size + taps.start) * channels..];
                    let counts = [lines.len(), taps.len()];
                    let mut at = 0;
                    while at + 32 <= channels {
                        $part::<32>(&x[at..], &w[at..], counts, x_steps, w_steps, &mut out[at..]);
                        at += 32;
                    }
                    while at + 8 <= channels {
                        $part::<8>(&x[at..], &w[at..], counts, x_steps, w_steps, &mut out[at..]);
                        at += 8;
                    }
                    while at < channels {
                        $part::<1>(&x[at..], &w[at..], counts, x_steps, w_steps, &mut out[at..]);
                        at += 1;
                    }
                }
            }
        }
    };
}
depthwise!(depthwise_f32, part_f32, f32);
depthwise!(depthwise_f64, part_f64, f64);
