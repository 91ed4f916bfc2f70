//! Tensors of the host, the files that hold them, the memory budget, and Hypatia's one error type.
//!
//! In: numbers, `.npz` and safetensors files. Out: [`Tensor`]s. Holds always: nothing here knows a
//! graph, a rule or a device.

pub mod error;
pub mod memory;
pub mod npz;
pub mod tensor;
pub mod weights;

pub use error::{Error, Result};
pub use tensor::Tensor;
