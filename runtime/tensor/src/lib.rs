//! Host tensors, how near two are, their file formats, result files, the memory budget, and Hypatia's single error
//! type.
//!
//! In: numbers, `.npz` and safetensors files. Out: [`Tensor`]s. Invariant: nothing here depends on
//! a graph, a rule or a device.

pub mod compare;
pub mod error;
pub mod file;
pub mod memory;
pub mod npz;
pub mod tensor;
pub mod weights;

pub use error::{Error, Result};
pub use tensor::Tensor;
