//! Hypatia: a declarative fusion compiler for neural networks.
//!
//! One way through the house: rules (`.hyp`) become a [`Program`](hypatia_dsl::ir::Program); a model
//! becomes a [`graph::Graph`], an e-graph, a better [`graph::Graph`], a plan, and results.

pub mod cache;
pub mod compare;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod error;
pub mod executor;
mod folded;
pub mod generate;
#[doc(hidden)]
pub mod generated;
pub mod graph;
pub mod library;
pub mod memory;
pub mod npz;
pub mod optimize;
pub mod plan;
pub mod precision;
pub mod session;
#[cfg(test)]
mod session_tests;
pub mod tensor;
pub mod test_runner;
#[cfg(test)]
mod testing;
pub mod tuner;
pub mod tuning;
pub mod verdict;
pub mod verify;
pub mod weights;

pub use error::Error;
pub use graph::Graph;
#[doc(no_inline)]
pub use hypatia_dsl as dsl;
pub use hypatia_macros::hypatia_rules;
pub use tensor::Tensor;
