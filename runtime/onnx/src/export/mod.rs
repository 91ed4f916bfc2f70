//! Exports graphs as ONNX files, with fusions as model-local functions.
//!
//! In: a [`Graph`], usually an optimised one. Out: an ONNX model (opset 20) with the same inputs,
//! outputs and dynamic sizes, which any runtime can run. Every fused kernel
//! ([`hypatia_graph::fusions`]) is a function of the domain `hypatia` whose body uses standard ops.
//! Everything else is written directly in standard ops. Invariant: equal kernels are one function,
//! so the number of functions is the number of fusions that `explain` reports. Element-wise work
//! computes in f32 where Hypatia does (f16, bf16) and in i32 for bytes. A graph that ONNX cannot
//! express gives an error that names the node.
//!
//! `graph::fusions` groups nodes; `body` is the list of ONNX nodes; `ops` writes one node of a
//! graph into it, `term` an epilogue or scalar, `model` the whole; `file` writes it to disk, with
//! external data if a file would exceed 2 GiB.

mod body;
mod custom;
mod file;
mod model;
mod ops;
mod term;
#[cfg(test)]
mod tests;

pub use file::write;
pub use hypatia_graph::fusions::Fusion;
pub use model::{Export, export};

use hypatia_graph::{ConstantFolder, Graph};
use hypatia_tensor::error::Result;

/// The fused kernels of a graph: those that do the work of more than one operation, deduplicated.
pub fn fusions(graph: &Graph, folder: &'static dyn ConstantFolder) -> Result<Vec<Fusion>> {
    Ok(export(graph, folder)?.fusions)
}
