//! The GPU that a session runs on.
//!
//! In: an open device and a tuner. Out: executors of plans. Invariant: this file and its twin
//! `no_gpu.rs`, for builds without the feature `cuda`, are the only places of the crate that know
//! whether there may be a GPU.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hypatia_cuda as cuda;
use hypatia_cuda::Gpu;
use hypatia_cuda::nvrtc::Nvrtc;
use hypatia_cuda::tune::machine;
use hypatia_cuda::tuner::Tuner;
use hypatia_plan::Plan;
use hypatia_target::device::Device;
use hypatia_tensor::Result;

/// A GPU, and how algorithms are chosen on it.
#[derive(Clone, Debug)]
pub struct OnGpu {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// Chooses the algorithms of products.
    pub tuner: Arc<Mutex<Tuner>>,
}

impl OnGpu {
    /// That GPU, with that choice of algorithms.
    pub fn new(gpu: Arc<Gpu>, tuner: Tuner) -> OnGpu {
        OnGpu { gpu, tuner: Arc::new(Mutex::new(tuner)) }
    }

    /// The same GPU with the algorithms that the library guesses: for plans that run once.
    pub fn untuned(&self) -> OnGpu {
        OnGpu::new(self.gpu.clone(), Tuner::without_cache(Duration::ZERO))
    }

    /// The profile by which work on the GPU is costed.
    pub fn profile(&self) -> Device {
        self.gpu.profile()
    }

    /// What results on the GPU depend on: device, driver and libraries, in words.
    pub(crate) fn machine(&self) -> String {
        let compiler = Nvrtc::get().map_or_else(|_| "none".to_string(), |n| format!("{:?}", n.version()));
        format!("{}; NVRTC {compiler}", machine(&self.gpu))
    }

    pub(crate) fn executor(&self, plan: Arc<Plan>) -> Result<cuda::Executor> {
        let mut tuner = self.tuner.lock().unwrap_or_else(PoisonError::into_inner);
        cuda::Executor::new(plan, self.gpu.clone(), &mut tuner)
    }

    /// Compiles a plan's kernels for the executor that is made next.
    pub(crate) fn compile_ahead(&self, plan: &Arc<Plan>) -> Result<()> {
        cuda::Executor::precompile(plan, &self.gpu).map(drop)
    }
}
