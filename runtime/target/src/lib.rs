//! Tables about the machines that Hypatia generates programs for; each table is independent of the
//! others.
//!
//! In: names, such as those after `on` and `cublaslt` in a `.hyp` file. Out: element types, device
//! profiles, the epilogues of cuBLASLt, and the costs of scalar functions. Invariant: this crate
//! uses nothing else of Hypatia.

pub mod cost;
pub mod cublaslt;
pub mod device;
pub mod dtype;
