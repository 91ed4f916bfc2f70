//! `hypatia_core._native`: what the Python package is made of.
//!
//! In: paths, texts, and memory of NumPy arrays and PyTorch tensors, borrowed. Out: rules, models,
//! plans and reports as Python objects. Invariant: it uses the crate `hypatia` alone, links
//! neither PyTorch nor CUDA, and does not hold the interpreter's lock while it compiles, or runs on
//! the host, but for moments in which it captures CUDA graphs.

mod call;
mod dlpack;
mod entry;
mod errors;
mod graph;
mod guest;
mod memory;
mod model;
mod plan;
mod race;
mod rules;
mod sizes;

use pyo3::prelude::*;

/// What the package `hypatia_core` is made of; not for direct use.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::call::Call;
    #[pymodule_export]
    use super::dlpack::exchange;
    #[pymodule_export]
    use super::entry::{Entry, trust};
    #[pymodule_export]
    use super::graph::Graph;
    #[pymodule_export]
    use super::guest::release_scratch;
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::race::{Race, loaded_from};
    #[pymodule_export]
    use super::rules::Rules;
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::guest::hold_python();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
