//! Sessions as a program runs them: shared by threads, as precise as promised, with packed weights.
//! Tests whose names end with `on_a_gpu` are counted as skipped where there is none.
#![allow(clippy::unwrap_used, missing_docs)]

mod packed;
mod precision;
mod threads;

use std::sync::Arc;

use hypatia_cuda::Gpu;

/// The GPU; without one, so many cases are skipped, or fail if `HYPATIA_NEED_GPU` is set.
fn gpu(cases: usize) -> Option<Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(e) if std::env::var_os("HYPATIA_NEED_GPU").is_some() => panic!("{e}"),
        Err(e) => {
            let why = e.to_string();
            eprintln!("SKIPPED {cases} cases on a GPU: {}", why.lines().next().unwrap_or_default());
            None
        }
    }
}
