//! Races, for Python: times of a plan and of PyTorch that an earlier process measured.
//!
//! In: texts that say what was timed. Out: seconds. Invariant: as [`internal::Race`].

use std::path::PathBuf;

use hypatia::internal;
use pyo3::prelude::*;

/// Times of a plan and of PyTorch's ops, in the user's cache.
#[pyclass(frozen, module = "hypatia_core._native")]
pub struct Race {
    race: Option<internal::Race>,
}

#[pymethods]
impl Race {
    /// The race that these texts describe.
    #[new]
    fn new(parts: Vec<String>) -> Race {
        Race { race: internal::Race::of(&parts) }
    }

    /// Seconds of the plan and of PyTorch, if an earlier process measured them.
    fn times(&self) -> Option<(f64, f64)> {
        self.race.as_ref()?.times().map(|[plan, pytorch]| (plan, pytorch))
    }

    /// Stores them.
    fn keep(&self, plan: f64, pytorch: f64) {
        if let Some(race) = &self.race {
            race.keep([plan, pytorch]);
        }
    }
}

/// Says from which file this module was loaded: it tells builds apart in caches.
#[pyfunction]
pub fn loaded_from(file: PathBuf) {
    internal::loaded_from(file);
}
