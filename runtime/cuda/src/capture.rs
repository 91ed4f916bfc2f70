//! CUDA graphs captured from work on a stream.
//!
//! In: a stream and work for it. Out: a [`Graph`] that replays that work in one launch. Invariant:
//! every capture that begins also ends, even after a failure; the graph refers to memory without
//! owning it, except for memory passed to `keeping`.

use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaStream, result, sys};

use super::driver::failed;
use super::memory::{DeviceMemory, bind};
use hypatia_tensor::error::{Error, Result};

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

    /// Replays the graph on that stream of the same context, behind its earlier replays.
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
