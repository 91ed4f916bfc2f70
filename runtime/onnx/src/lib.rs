//! ONNX models in and out: [`import`] makes a graph of a model file, [`export`] a model file of a graph.
//!
//! Holds always: what is not supported is an error that names the node, its op and its opset; nothing
//! is executed here, constants are computed by the folder that the caller hands in.

pub mod export;
pub mod import;
