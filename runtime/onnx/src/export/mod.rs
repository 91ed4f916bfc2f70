//! Graphs as ONNX files, what was fused as model-local functions.
//!
//! In: a [`Graph`], as a rule an optimised one. Out: an ONNX model (opset 20) of the same inputs, outputs and dynamic
//! sizes, that any runtime runs: every fused kernel ([`hypatia_graph::fusions`]) is a function of the domain `hypatia` whose body is
//! written in standard ops, and everything else is standard ops at once. Holds always: equal kernels are one function,
//! so the number of functions is the number of fusions that `explain` tells; element-wise work computes in f32 where
//! Hypatia does (f16, bf16) and in i32 for bytes; a graph that ONNX cannot say gives an error that names the node.
//!
//! `graph::fusions` groups nodes, `body` is a list of ONNX nodes that grows, `ops` writes one node of a graph into it, `term`
//! an epilogue or scalar, `model` the whole, `file` puts it on disk, with external data where a file would pass 2 GiB.

mod body;
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

/// The fused kernels of a graph: those that do the work of more than one operation, equal ones once.
pub fn fusions(graph: &Graph, folder: &'static dyn ConstantFolder) -> Result<Vec<Fusion>> {
    Ok(export(graph, folder)?.fusions)
}
