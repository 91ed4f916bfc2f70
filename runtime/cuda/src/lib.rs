//! The CUDA backend: libraries found at run time, kernels compiled with NVRTC, plans run as CUDA
//! graphs.
//!
//! Invariant: nothing here is linked; on a machine without CUDA every entry point reports what is
//! missing. Almost all `unsafe` of the workspace is in this crate.

mod capture;
mod constants;
pub mod cubin;
mod device;
mod either;
#[cfg(test)]
mod emulated;
mod exec;
pub mod find;
pub mod gemm;
pub mod generate;
#[cfg(test)]
mod heads_tests;
mod launch;
#[cfg(test)]
mod lines_tests;
mod lists;
pub mod lowering;
pub mod lt;
mod memory;
pub mod nvrtc;
pub mod nvtx;
mod packed;
#[cfg(test)]
mod packed_tests;
#[cfg(test)]
mod precision_tests;
pub mod probe;
#[cfg(test)]
mod scalar_tests;
mod steps;
mod tensor_map;
#[cfg(test)]
mod tests;
mod tiled;
#[cfg(test)]
mod tiled_tests;
#[cfg(test)]
mod train_tests;
pub mod tune;
pub mod tuner;
pub mod tuning;
mod turn;

pub use cubin::Origins;
pub use device::{Gpu, MINIMUM_DRIVER, profile};
pub use exec::{Executor, OnDevice, Resident, Timer};
