//! Sizes of tensors on both sides of the door.
//!
//! In: a shape, or numbers and names from Python. Out: the other. Invariant: a dynamic size is its
//! name.

use hypatia_dsl::shape::Dim;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// Sizes as Python sees them.
pub fn sizes<'py>(py: Python<'py>, shape: &[Dim]) -> PyResult<Bound<'py, PyTuple>> {
    let one = |d: &Dim| match d.as_const() {
        Some(n) => Ok(n.into_pyobject(py)?.into_any()),
        None => Ok(d.to_string().into_pyobject(py)?.into_any()),
    };
    PyTuple::new(py, shape.iter().map(one).collect::<PyResult<Vec<_>>>()?)
}

/// A size from Python: a number, or the name of a dynamic one.
pub fn size(value: &Bound<'_, PyAny>) -> PyResult<Dim> {
    match value.cast::<PyString>() {
        Ok(name) => Ok(Dim::symbol(name.to_string())),
        Err(_) => Ok(Dim::from(value.extract::<i64>()?)),
    }
}
