//! Sessions as a program runs them: shared by threads, as precise as promised, with packed weights.
//! Tests whose names end with `on_a_gpu` are counted as skipped where there is none.
#![allow(clippy::unwrap_used, missing_docs)]

mod packed;
mod precision;
mod threads;

use std::sync::Arc;

use hypatia_cuda::Gpu;
use hypatia_testing::gpu_or_skip;

/// The GPU; without one, reports how many cases are skipped.
fn gpu(cases: usize) -> Option<Arc<Gpu>> {
    gpu_or_skip(Gpu::open(0), cases)
}
