//! CUDA graphs captured from work on a stream.
//!
//! In: a stream and work for it. Out: a [`Graph`] that replays that work in one launch. Invariant:
//! every capture that begins also ends, even after a failure; the graph refers to memory without
//! owning it, except for memory passed to `keeping`.
//!
//! While any stream of a device is captured, CUDA refuses to synchronise the device
//! (`cuCtxSynchronize`, `cudaDeviceSynchronize`), in every thread and whatever the mode of the
//! capture, and the capture fails too. So a program whose other threads may do that says how to
//! hold them: [`hold_host_with`].

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaGraph, CudaStream, result, sys};

use super::driver::failed;
use super::memory::{DeviceMemory, bind};
use hypatia_tensor::error::{Error, Result};

/// Calls the closure, once, while no other thread of the program synchronises a device. It may
/// leave that out if the program is ending.
pub type HoldHost = fn(&mut dyn FnMut());

static HOLD: OnceLock<HoldHost> = OnceLock::new();

thread_local! {
    /// This thread holds the program already.
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// Says how captures hold the other threads of this program. The first call counts; without one,
/// captures hold nothing.
///
/// The function may wait for other threads. A thread that it waits for must not itself wait for a
/// lock of this crate, or for a plan that another thread makes: that would be a deadlock.
pub fn hold_host_with(hold: HoldHost) {
    let _ = HOLD.set(hold);
}

/// While it lives, this thread holds the program.
struct Held;

impl Held {
    fn new() -> Held {
        HELD.set(true);
        Held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Does work, mostly captures, while no other thread synchronises a device. The work does not wait
/// for the device.
pub(super) fn holding_host<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (Some(hold), false) = (HOLD.get(), HELD.get()) else { return work() };
    let (mut work, mut done) = (Some(work), None);
    hold(&mut || {
        let _held = Held::new();
        done = work.take().map(|work| work());
    });
    // A program that is ending holds nothing and calls nothing.
    let late = || work.map_or_else(|| Err(Error::Internal("work without a result".into())), |work| work());
    done.unwrap_or_else(late)
}

/// A captured graph; an empty one replays nothing.
pub(super) struct Graph {
    graph: Option<CudaGraph>,
    // Dropped after the graph, which refers to it.
    _kept: Option<DeviceMemory>,
}

// SAFETY: a graph is used by one run at a time, behind its owner; it has no ties to a thread.
unsafe impl Send for Graph {}

impl Graph {
    /// A graph that replays nothing.
    pub fn empty() -> Graph {
        Graph { graph: None, _kept: None }
    }

    /// Captures the work that `work` submits to the stream.
    pub fn capture(stream: &Arc<CudaStream>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        holding_host(|| Graph::capture_held(stream, work))
    }

    fn capture_held(stream: &Arc<CudaStream>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(|e| failed("cuStreamBeginCapture", e))?;
        let done = work();
        let flags = sys::CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags);
        done?;
        let graph = graph.map_err(|e| failed("cuStreamEndCapture", e))?;
        let graph = graph.ok_or_else(|| Error::Internal("an empty graph".into()))?;
        graph.upload().map_err(|e| failed("cuGraphUpload", e))?;
        Ok(Graph { graph: Some(graph), _kept: None })
    }

    /// The same graph, owning memory that it refers to.
    pub fn keeping(self, memory: Option<DeviceMemory>) -> Graph {
        Graph { _kept: memory, ..self }
    }

    /// Replays the graph on that stream of the same context, after its earlier replays.
    pub fn launch_on(&self, stream: &CudaStream) -> Result<()> {
        let Some(graph) = &self.graph else { return Ok(()) };
        bind(stream)?;
        // SAFETY: the graph is alive, and its owner answers for the memory that it refers to.
        unsafe { result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }
            .map_err(|e| failed("cuGraphLaunch", e))
    }

    /// Replays the graph on the stream of its capture.
    pub fn launch(&self) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.launch().map_err(|e| failed("cuGraphLaunch", e)),
            None => Ok(()),
        }
    }
}

/// While it lives, this thread's calls may do what a strict capture of some stream forbids.
pub(super) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub fn new() -> Result<Relaxed> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is valid; the call exchanges this thread's mode for the one given.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }
            .result()
            .map_err(|e| failed("cuThreadExchangeStreamCaptureMode", e))?;
        Ok(Relaxed(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above. It can fail only as the exchange before it did.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}
