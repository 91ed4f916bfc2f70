//! The one error type of the library.
//!
//! Holds always: a message names what the user gave (file, node, input), what was expected, and
//! where it helps, what to do.

use std::path::PathBuf;

use hypatia_dsl::diag::Code;
use hypatia_dsl::scalar::typed::Untypable;

/// Anything that can go wrong between a user's file and a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Rules did not compile; the text is the rendered diagnostics.
    #[error("{rendered}")]
    Rules {
        /// Rendered diagnostics.
        rendered: String,
        /// The same for programs: one JSON object a line, as `check --output-format json` prints them.
        json: String,
    },
    /// A model is damaged or says something impossible.
    #[error("{file}: {message}")]
    Model {
        /// The model's file.
        file: String,
        /// What is wrong, naming the node where there is one.
        message: String,
    },
    /// A model uses something that Hypatia does not support.
    #[error("{}", unsupported(.file, .node, .op, *.opset, .message))]
    Unsupported {
        /// The model's file.
        file: String,
        /// The node's name, or `#index` if it has none; empty where it is the whole model.
        node: String,
        /// Its op, with the domain if that is not the default one.
        op: String,
        /// The opset version that the model imports for the op's domain.
        opset: i64,
        /// What exactly, and what could be done.
        message: String,
    },
    /// An input is missing, unknown or of a wrong type or shape.
    #[error("{0}")]
    Input(String),
    /// A graph does not type-check.
    #[error("{0}")]
    Type(String),
    /// A limit was hit: memory, size, time.
    #[error("{0}")]
    Limit(String),
    /// No device, or a failing device call.
    #[error("{0}")]
    Device(String),
    /// A broken invariant of Hypatia itself: a bug worth reporting.
    #[error("internal error: {0}; please report this with the model and the rules")]
    Internal(String),
}

impl Error {
    /// An index that is outside of an axis of that size.
    pub(crate) fn outside(index: i64, size: usize) -> Error {
        let takes = match size.checked_sub(1) {
            Some(last) => format!("gather takes -{size} to {last}"),
            None => "it has no elements".to_string(),
        };
        Error::Input(format!("index {index} is outside an axis of size {size} ({takes})"))
    }

    /// True if a type error has this code: its message ends with it, `[H0302]`, whatever is said before it of the place.
    pub(crate) fn has_code(&self, code: Code) -> bool {
        matches!(self, Error::Type(m) if m.ends_with(&format!("[{code}]")))
    }
}

impl From<Untypable> for Error {
    fn from(e: Untypable) -> Error {
        match e {
            Untypable::Mixed { .. } => Error::Type(e.to_string()),
            Untypable::TooLarge(why) => Error::Limit(why),
            Untypable::Malformed(why) => Error::Internal(why),
        }
    }
}

/// Results of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn unsupported(file: &str, node: &str, op: &str, opset: i64, message: &str) -> String {
    match node {
        "" => format!("{file}: {op} is of opset {opset}, which is not supported: {message}"),
        _ => format!("{file}: node `{node}`: {op} (opset {opset}) is not supported: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_outside_are_told_what_there_is() {
        let told = |size| Error::outside(7, size).to_string();
        assert_eq!(told(3), "index 7 is outside an axis of size 3 (gather takes -3 to 2)");
        assert_eq!(told(0), "index 7 is outside an axis of size 0 (it has no elements)");
    }
}
