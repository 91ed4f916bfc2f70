//! What Hypatia knows of the machines that it writes programs for: tables, each of which stands here alone.
//!
//! In: names, such as those behind `on` and `cublaslt` in a `.hyp` file. Out: element types, device profiles, the epilogues of
//! cuBLASLt, and what scalar functions cost. Holds always: this crate uses nothing else of Hypatia.

pub mod cost;
pub mod cublaslt;
pub mod device;
pub mod dtype;
