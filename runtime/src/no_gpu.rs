//! The twin of `gpu.rs` for builds without the feature `cuda`: there is never a GPU.

use std::sync::Arc;

use hypatia_plan::Plan;
use hypatia_target::device::Device;
use hypatia_tensor::Result;

/// A GPU that does not exist: this build has no CUDA.
#[derive(Clone, Debug)]
pub enum OnGpu {}

impl OnGpu {
    /// As with the feature `cuda`.
    pub fn untuned(&self) -> OnGpu {
        match *self {}
    }

    /// As with the feature `cuda`.
    pub fn profile(&self) -> Device {
        match *self {}
    }

    pub(crate) fn machine(&self) -> String {
        match *self {}
    }

    pub(crate) fn compile_ahead(&self, _: &Arc<Plan>) -> Result<()> {
        match *self {}
    }
}
