//! The single error type of the library.
//!
//! Invariant: a message names what the user gave (file, node, input), what was expected, and, if it
//! helps, what to do.

use std::path::PathBuf;

use std::fmt;

use hypatia_dsl::diag::Code;
use hypatia_dsl::scalar::typed::Untypable;
use hypatia_dsl::typing::TypeError;

/// Any error between a user's file and a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Rules did not compile.
    #[error("{rendered}")]
    Rules {
        /// Rendered diagnostics.
        rendered: String,
        /// The same in machine-readable form: one JSON object per line, as `check --output-format
        /// json` prints them.
        json: String,
    },
    /// A model is damaged or inconsistent.
    #[error("{file}: {message}")]
    Model {
        /// The model's file.
        file: String,
        /// The error, with the node's name if there is one.
        message: String,
    },
    /// A model uses something that Hypatia does not support.
    #[error("{}", unsupported(.file, .node, .op, *.opset, .message))]
    Unsupported {
        /// The model's file.
        file: String,
        /// The node's name, or `#index` if it has none; empty if the error is about the whole
        /// model.
        node: String,
        /// Its op, with the domain if it is not the default one.
        op: String,
        /// The opset version that the model imports for the op's domain.
        opset: i64,
        /// What exactly is unsupported, and possible workarounds.
        message: String,
    },
    /// An input is missing or unknown, or has the wrong type or shape.
    #[error("{0}")]
    Input(String),
    /// Type error in a graph.
    #[error("{0}")]
    Type(TypeFault),
    /// A limit was exceeded: memory, size, time.
    #[error("{0}")]
    Limit(String),
    /// The plan has not the fusions that the contract demands: see `optimize::Options::contract`.
    #[error("{0}")]
    Contract(String),
    /// No device, or a failed device call.
    #[error("{0}")]
    Device(String),
    /// A broken invariant of Hypatia itself: a bug to report.
    #[error("internal error: {0}; please report this with the model and the rules")]
    Internal(String),
}

impl Error {
    /// Out-of-bounds index into an axis of that size.
    pub fn outside(index: i64, size: usize) -> Error {
        let takes = match size.checked_sub(1) {
            Some(last) => format!("gather takes -{size} to {last}"),
            None => "it has no elements".to_string(),
        };
        Error::Input(format!("index {index} is out of range for an axis of size {size} ({takes})"))
    }

    /// The diagnostic code of a type error, if it has one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Type(fault) => fault.code,
            _ => None,
        }
    }
}

/// A type error in a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeFault {
    /// The diagnostic code; `None` if the error is not about the type of an application.
    pub code: Option<Code>,
    /// The message. It ends with the code if there is one.
    pub message: String,
}

impl TypeFault {
    /// The same error, prefixed with its location.
    pub fn at(&self, place: impl fmt::Display) -> TypeFault {
        TypeFault { code: self.code, message: format!("{place}: {}", self.message) }
    }
}

impl fmt::Display for TypeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<String> for TypeFault {
    fn from(message: String) -> TypeFault {
        TypeFault { code: None, message }
    }
}

impl From<&str> for TypeFault {
    fn from(message: &str) -> TypeFault {
        message.to_string().into()
    }
}

impl From<TypeError> for TypeFault {
    fn from(e: TypeError) -> TypeFault {
        TypeFault { code: Some(e.code), message: e.to_string() }
    }
}

impl From<TypeError> for Error {
    fn from(e: TypeError) -> Error {
        Error::Type(e.into())
    }
}

impl From<Untypable> for Error {
    fn from(e: Untypable) -> Error {
        match e {
            Untypable::Mixed { .. } => Error::Type(e.to_string().into()),
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
    fn a_type_error_keeps_its_code_wherever_it_is_met() {
        let code = hypatia_dsl::typing::codes::DTYPE;
        let error = Error::from(TypeError::new(code, "`x` must contain numbers, but is bool[2]"));
        let Error::Type(fault) = error else { panic!("{error}") };
        let placed = Error::Type(fault.at("node `n`"));
        assert_eq!(placed.code(), Some(code));
        assert_eq!(placed.to_string(), format!("node `n`: `x` must contain numbers, but is bool[2] [{code}]"));
        // Text that only looks like a code is not one.
        assert_eq!(Error::Type(format!("odd [{code}]").into()).code(), None);
    }

    #[test]
    fn indices_outside_are_told_what_there_is() {
        let told = |size| Error::outside(7, size).to_string();
        assert_eq!(told(3), "index 7 is out of range for an axis of size 3 (gather takes -3 to 2)");
        assert_eq!(told(0), "index 7 is out of range for an axis of size 0 (it has no elements)");
    }
}
