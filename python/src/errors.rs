//! Errors as Python exceptions.
//!
//! In: [`hypatia_tensor::Error`]. Out: an exception of `hypatia_core.errors` whose text is what the
//! command `hypatia` prints. Invariant: each kind of error has one class, so that no text has to be
//! parsed.

use hypatia_tensor::Error;
use pyo3::{PyErr, Python};

mod classes {
    #![allow(missing_docs)]
    pyo3::import_exception!(hypatia_core.errors, ContractError);
    pyo3::import_exception!(hypatia_core.errors, DeviceError);
    pyo3::import_exception!(hypatia_core.errors, FileError);
    pyo3::import_exception!(hypatia_core.errors, HypatiaError);
    pyo3::import_exception!(hypatia_core.errors, InputError);
    pyo3::import_exception!(hypatia_core.errors, LimitError);
    pyo3::import_exception!(hypatia_core.errors, ModelError);
    pyo3::import_exception!(hypatia_core.errors, RulesError);
    pyo3::import_exception!(hypatia_core.errors, UnsupportedError);
}

/// The exception of an error.
pub fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Rules { json, .. } => classes::RulesError::new_err((text, json)),
        Error::Io { .. } => classes::FileError::new_err(text),
        Error::Model { .. } => classes::ModelError::new_err(text),
        Error::Unsupported { .. } => classes::UnsupportedError::new_err(text),
        Error::Input(_) | Error::Type(_) => classes::InputError::new_err(text),
        Error::Limit(_) => classes::LimitError::new_err(text),
        Error::Contract(_) => classes::ContractError::new_err(text),
        Error::Device(_) => classes::DeviceError::new_err(text),
        _ => classes::HypatiaError::new_err(text),
    }
}

/// An exception about what a caller passed.
pub fn wrong_input(text: impl Into<String>) -> PyErr {
    raised(Error::Input(text.into()))
}

/// Whether an exception is about what a caller passed, such as an index that is out of range.
pub fn is_wrong_input(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<classes::InputError>(py)
}
