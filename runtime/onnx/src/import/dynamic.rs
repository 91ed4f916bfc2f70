//! Imports a model, and finds out whether dynamic sizes are the cause of a failure.
//!
//! In: a decoded model. Out: an [`Import`], or an error. Invariant: an error blames dynamic sizes only
//! if fixing them to some number would help.

use std::path::Path;
use std::sync::Arc;

use hypatia_dsl::ir::Program;
use hypatia_graph::ConstantFolder;
use hypatia_tensor::error::{Error, Result, TypeFault};

use super::blame::Undecided;
use super::model::{Attempt, Failure, attempt};
use super::onnx::proto::ModelProto;
use super::{Import, Options};

/// Imports a decoded model.
pub(super) fn import(
    model: &ModelProto,
    file: &str,
    dir: Option<&Path>,
    program: (Arc<Program>, &'static dyn ConstantFolder),
    options: &Options,
) -> Result<Import> {
    let Failure { error, blame, undecided, symbols } = match attempt(model, file, dir, program.clone(), options)? {
        Attempt::Done(import) => return Ok(*import),
        Attempt::Failed(f) => *f,
    };
    let Some(Undecided { plain, numbers }) = undecided else { return Err(with_dims(error, options)) };
    let same = |n: &i64| {
        let dims = options.dims.clone().into_iter().chain(symbols.iter().map(|s| (s.clone(), *n))).collect();
        let options = Options { dims, ..options.clone() };
        match attempt(model, file, dir, program.clone(), &options) {
            Ok(Attempt::Failed(f)) => f.blame == blame,
            _ => false,
        }
    };
    // If every number gives the same failure at the same node, the dynamic sizes are not its cause.
    let regardless = !symbols.is_empty() && numbers.tried().iter().all(same);
    Err(with_dims(if regardless { plain } else { error }, options))
}

/// Adds the numbers given to dynamic sizes to an error, because they may be its cause.
fn with_dims(error: Error, options: &Options) -> Error {
    let given: Vec<String> = options.dims.iter().map(|(name, n)| format!("{name} = {n}")).collect();
    let told = |m: String| if given.is_empty() { m } else { format!("{m} (with {}, as given)", given.join(", ")) };
    match error {
        Error::Unsupported { file, node, op, opset, message } => {
            Error::Unsupported { file, node, op, opset, message: told(message) }
        }
        Error::Type(fault) => Error::Type(TypeFault { message: told(fault.message), ..fault }),
        Error::Model { file, message } => Error::Model { file, message: told(message) },
        e => e,
    }
}
