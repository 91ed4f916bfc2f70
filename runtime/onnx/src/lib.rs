//! ONNX models in and out: [`import`] turns a model file into a graph, [`export`] turns a graph
//! into a model file.
//!
//! Invariant: an unsupported feature is an error that names the node, its op and its opset. Nothing
//! is executed here: constants are computed by the folder that the caller passes in.

pub mod export;
pub mod import;
