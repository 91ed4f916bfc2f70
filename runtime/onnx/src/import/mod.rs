//! Imports ONNX files as typed graphs.
//!
//! In: an `.onnx` file (opsets 13 to 28, and of earlier ones the ops that have not changed since)
//! and a Program, whose ops and scalars the graph uses. Out: a [`Graph`] in which each ONNX node
//! has become one or a few nodes of the same meaning. Invariant: what is not handled exactly is
//! rejected, with an error that names the node, its op, the opset and the file. Declared types are
//! checked against inferred ones; other sizes of an output are only a warning. No file causes a
//! panic or a disproportionate use of memory.
//!
//! How a node is imported: `model` finds its row in `tables`, and the row's handler (in `ops`)
//! works on a `context::Ctx`. Shape arithmetic is symbolic (`symbolic`), so a Reshape by computed
//! sizes has a typed result, with the names that the model gives its dynamic sizes.

mod attrs;
mod blame;
mod context;
mod dynamic;
mod external;
mod model;
pub mod onnx;
mod ops;
mod symbolic;
mod tables;
mod tensor;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hypatia_dsl::ir::Program;
use hypatia_dsl::typing::TensorType;

use hypatia_graph::{ConstantFolder, Graph};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

pub use tables::{Supported, supported};

/// What a caller specifies about a model beyond its file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Concrete shapes of inputs, by name. A model whose dynamic sizes leave a shape undecided can
    /// be imported with the shapes of the actual inputs. Inputs not listed here keep their symbols,
    /// except those that a listed input binds.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Numbers for dynamic sizes, by the names that the model gives them.
    pub dims: BTreeMap<String, i64>,
    /// Inputs to replace by constants, by name: for operands that decide shapes.
    pub constants: BTreeMap<String, Tensor>,
}

/// An imported model.
pub struct Import {
    /// The graph, without dead nodes.
    pub graph: Graph,
    /// Name and inferred type of every value of the model's main graph, in the order of its nodes.
    pub types: Vec<(String, TensorType)>,
    /// Contradictions in the model that do not change what it computes.
    pub warnings: Vec<String>,
}

/// Imports a model file with what the caller specifies about its inputs. The folder evaluates sizes
/// that the model computes from constants.
pub fn load_with(
    path: &Path,
    program: Arc<Program>,
    options: &Options,
    folder: &'static dyn ConstantFolder,
) -> Result<Import> {
    let model = onnx::read(path)?;
    let dir = match path.parent() {
        Some(p) if p.as_os_str().is_empty() => Path::new("."),
        Some(p) => p,
        None => Path::new("."),
    };
    dynamic::import(&model, &path.display().to_string(), Some(dir), (program, folder), options)
}

/// Imports a model from memory; `name` stands for the file in messages. External data cannot be
/// read.
pub fn load_bytes(
    bytes: &[u8],
    name: &str,
    program: Arc<Program>,
    options: &Options,
    folder: &'static dyn ConstantFolder,
) -> Result<Import> {
    let model = onnx::decode(prost::bytes::Bytes::copy_from_slice(bytes), name)?;
    dynamic::import(&model, name, None, (program, folder), options)
}
