//! Submits launches to streams.
//!
//! In: a launch, and the addresses of its operands. Out: work on a stream; independent calls of one
//! step run on side streams. Invariant: work submitted after a step waits for all of its calls.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result};

use super::address::Bases;
use super::device::Gpu;
use super::driver::failed;
use super::launch::{Launch, Product};
use super::lt::Pointers;
use super::memory::bind;
use hypatia_tensor::error::{Error, Result};

/// Side streams, for independent calls of one step.
pub(super) struct SideStreams {
    streams: Vec<Arc<CudaStream>>,
    fork: CudaEvent,
    joins: Vec<CudaEvent>,
}

/// Maximum number of concurrent calls of a step.
const AT_ONCE: usize = 8;

impl SideStreams {
    /// Side streams for steps of this many calls.
    pub(super) fn new(gpu: &Gpu, calls: usize) -> Result<SideStreams> {
        let count = calls.min(AT_ONCE).saturating_sub(1);
        let stream = |_| gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e));
        let event = |_| gpu.context().new_event(None).map_err(|e| failed("cuEventCreate", e));
        Ok(SideStreams {
            streams: (0..count).map(stream).collect::<Result<_>>()?,
            fork: event(0)?,
            joins: (0..count).map(event).collect::<Result<_>>()?,
        })
    }

    /// Makes `count` side streams wait for the work submitted to the main stream.
    fn fork(&self, stream: &Arc<CudaStream>, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.fork.record(stream).map_err(|e| failed("cuEventRecord", e))?;
        let mut sides = self.streams.iter().take(count);
        sides.try_for_each(|side| side.wait(&self.fork).map_err(|e| failed("cuStreamWaitEvent", e)))
    }

    /// The stream of a call, where that many side streams take part.
    fn of<'a>(&'a self, stream: &'a Arc<CudaStream>, call: usize, count: usize) -> &'a Arc<CudaStream> {
        match call % (count + 1) {
            0 => stream,
            side => &self.streams[side - 1],
        }
    }

    /// Makes the main stream wait for `count` side streams.
    fn join(&self, stream: &Arc<CudaStream>, count: usize) -> Result<()> {
        self.streams.iter().zip(&self.joins).take(count).try_for_each(|(side, event)| {
            event.record(side).map_err(|e| failed("cuEventRecord", e))?;
            stream.wait(event).map_err(|e| failed("cuStreamWaitEvent", e))
        })
    }
}

/// What a stream's last work is, which the next launch may overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LastWork {
    /// Anything: what others submitted, copies, several kernels at once.
    #[default]
    Any,
    /// One kernel of the same run.
    Kernel,
}

impl LastWork {
    /// The last work once that launch was submitted.
    fn then(launch: &Launch) -> LastWork {
        match launch {
            Launch::Kernel(_) | Launch::Once(_) => LastWork::Kernel,
            Launch::Product(product) if product.calls.len() == 1 => LastWork::Kernel,
            Launch::Product(_) | Launch::Checks(_) | Launch::Zeros(..) => LastWork::Any,
        }
    }
}

/// Submits a launch to a stream. A kernel behind another one of its run is launched while that
/// still runs, where the device can: its blocks then stand ready when the last result is written.
///
/// # Safety
/// As [`super::kernel::KernelLaunch::launch`].
pub(super) unsafe fn submit(
    gpu: &Gpu,
    (stream, last): (&Arc<CudaStream>, &mut LastWork),
    sides: &SideStreams,
    launch: &mut Launch,
    bases: &Bases,
) -> Result<()> {
    let early = *last == LastWork::Kernel && gpu.overlaps_kernels();
    *last = LastWork::then(launch);
    match launch {
        // SAFETY: the caller guarantees the bases.
        Launch::Kernel(kernel) | Launch::Once(kernel) => unsafe { kernel.launch(stream, bases, early) },
        Launch::Checks(checks) => {
            for kernels in [&checks.sums, &checks.kernels] {
                let extra = kernels.len().saturating_sub(1).min(sides.streams.len());
                sides.fork(stream, extra)?;
                for (i, kernel) in kernels.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { kernel.launch(sides.of(stream, i, extra), bases, false)? };
                }
                sides.join(stream, extra)?;
            }
            Ok(())
        }
        Launch::Product(product) => {
            let transposed = product.transposed_weight().map(|t| (t.side, bases.transposed[t.constant]));
            let Product { matmul, algorithms, calls, lists, bias, aux, added, .. } = product.as_mut();
            let what = *matmul.product();
            let list = (what.outer * what.batch * size_of::<u64>()) as u64;
            let algorithm = algorithms.first().ok_or_else(|| Error::Internal("no algorithm".into()))?;
            let extra = (calls.len() - 1).min(sides.streams.len());
            sides.fork(stream, extra)?;
            for (i, [a, b, d]) in calls.iter().enumerate() {
                let on = sides.of(stream, i, extra);
                let mut operands = match what.uses_pointer_arrays() {
                    true => [0, 1, 2].map(|side| bases.lists + *lists + side * list),
                    false => [a, b, d].map(|side| bases.address(side)),
                };
                if let Some((side, address)) = transposed {
                    operands[side] = address;
                }
                let [a, b, d] = operands;
                let at = Pointers {
                    a,
                    b,
                    d,
                    c: added.as_ref().map_or(0, |c| bases.address(c)),
                    bias: bias.as_ref().map_or(0, |b| bases.address(b)),
                    aux: aux.as_ref().map_or(0, |a| bases.address(a)),
                    workspace: bases.workspace,
                };
                // SAFETY: as above; the places are those of the step's operands.
                unsafe { matmul.launch(gpu.lt(), on, algorithm, &at)? };
            }
            sides.join(stream, extra)
        }
        Launch::Zeros(at, bytes) => {
            bind(stream)?;
            // SAFETY: the place is that of a result with this many bytes.
            unsafe { result::memset_d8_async(bases.address(at), 0, *bytes, stream.cu_stream()) }
                .map_err(|e| failed("cuMemsetD8Async", e))
        }
    }
}
