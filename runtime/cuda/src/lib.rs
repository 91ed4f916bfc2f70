//! The CUDA backend: libraries found at run time, kernels compiled with NVRTC, plans run as CUDA
//! graphs.
//!
//! Invariant: nothing here is linked; on a machine without CUDA every entry point reports what is
//! missing. Almost all `unsafe` of the workspace is in this crate.

mod address;
mod capture;
mod compare;
mod constants;
pub mod cubin;
mod device;
mod driver;
mod exec;
mod fallback;
pub mod find;
pub mod gemm;
pub mod generate;
mod kernel;
mod launch;
pub mod lowering;
pub mod lt;
mod memory;
pub mod nvrtc;
pub mod nvtx;
mod pointer_arrays;
pub mod probe;
pub mod quarantine;
mod steps;
mod submit;
mod tensor_map;
#[cfg(test)]
mod tests;
mod tiled;
mod transpose;
pub mod trial;
pub mod tune;
pub mod tuner;
pub mod tuning;
mod weight_layout;

pub use capture::{HoldHost, hold_host_with};
pub use cubin::Origins;
pub use device::{Gpu, profile};
pub use driver::MINIMUM_DRIVER;
pub use exec::{Disturbance, Executor, GUEST_ALIGNMENT, Guest, OnDevice, Resident, Suspicion, Timer};
