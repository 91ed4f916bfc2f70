//! The CUDA side: libraries found at run time, kernels compiled with NVRTC.
//!
//! Holds always: nothing here is linked; on a machine without CUDA every entry says what is missing.
//! All `unsafe` of the crate is in this folder.

pub mod find;
pub mod nvrtc;
pub mod probe;
