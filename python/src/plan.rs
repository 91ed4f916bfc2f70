//! Plans: what runs for inputs of some shapes.
//!
//! In: a compiled model, then borrowed memory of inputs and outputs. Out: the outputs, filled.
//! Invariant: memory that does not fit the plan is an error before anything runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hypatia::session::Compiled;
use hypatia_dsl::dtype::DType;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{raised, wrong_input};
use crate::guest;
use crate::memory::{self, Inputs, Outputs};

/// A plan for inputs of some shapes, ready to run. Threads may share it.
#[pyclass(frozen, module = "hypatia_core._native")]
pub struct Plan {
    /// What runs.
    pub compiled: Arc<Compiled>,
    /// Name and element type of each input.
    pub inputs: Vec<(String, DType)>,
    /// Name and element type of each output.
    pub outputs: Vec<(String, DType)>,
    /// Runs that entries have taken since the count was last reset.
    taken: AtomicUsize,
    /// True if the plan lives as long as the process.
    kept: AtomicBool,
}

#[pymethods]
impl Plan {
    /// Name, element type and sizes of each output.
    #[getter]
    fn outputs(&self) -> Vec<(&str, &'static str, Vec<usize>)> {
        let all = &self.compiled.executor.plan().outputs;
        all.iter().map(|(name, view)| (name.as_str(), view.dtype.name(), view.shape.to_vec())).collect()
    }

    /// Number of launches.
    #[getter]
    fn launches(&self) -> usize {
        self.compiled.executor.plan().launches()
    }

    /// Why the fused plan is not used, if it is not: it differs from the unfused one.
    #[getter]
    fn refusal(&self) -> Option<String> {
        self.compiled.refusal.as_ref().map(ToString::to_string)
    }

    /// What strict runs have found wrong so far, in words.
    #[getter]
    fn incidents(&self) -> Vec<String> {
        self.compiled.incidents().iter().map(ToString::to_string).collect()
    }

    /// The rules that contributed, with how often.
    #[getter]
    fn fired(&self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for firing in self.compiled.report.firings.iter().filter(|f| f.kept) {
            match counts.iter_mut().find(|(rule, _)| *rule == firing.rule) {
                Some((_, n)) => *n += 1,
                None => counts.push((firing.rule.clone(), 1)),
            }
        }
        counts
    }

    /// The number of runs that entries have taken since `reset`.
    #[getter]
    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Sets `taken` to 0.
    fn reset(&self) {
        self.taken.store(0, Ordering::Relaxed);
    }

    /// The steps as text.
    fn text(&self) -> String {
        self.compiled.executor.plan().to_string()
    }

    /// Borrows the inputs as a run does.
    ///
    /// # Errors
    /// If one is not of the plan's element type.
    fn check(&self, inputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        let inputs: Vec<Bound<'_, PyAny>> = inputs.iter().collect();
        memory::check(&inputs, &self.inputs)
    }

    /// Runs once: reads the memory of `inputs`, writes that of `outputs`. Both are in the plan's
    /// order; see `memory`. Nobody else may use the outputs meanwhile.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        let inputs: Vec<Bound<'_, PyAny>> = inputs.iter().collect();
        let from = Inputs::of(&inputs, &self.inputs)?.slices()?;
        let mut outputs = Outputs::of(outputs, &self.outputs)?;
        if from.iter().any(|bytes| outputs.overlap(bytes)) {
            return Err(wrong_input("an output overlaps an input"));
        }
        let mut to = outputs.slices();
        py.detach(|| self.compiled.run_in_place(&from, &mut to)).map_err(raised)
    }

    /// Submits a run on a GPU to PyTorch's current stream. Returns the indices of inputs that have
    /// to be copied first; if there are any, nothing ran. `allocate` makes scratch memory of a
    /// number of bytes on the GPU of an ordinal.
    fn run_as_guest<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        outputs: &Bound<'py, PyTuple>,
        allocate: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let [inputs, outputs] = [inputs, outputs].map(|all| all.iter().collect::<Vec<_>>());
        guest::run(py, self, [&inputs, &outputs], &[], allocate)
    }
}

impl Plan {
    /// A plan that was compiled.
    pub fn of(compiled: Arc<Compiled>) -> Plan {
        let plan = compiled.executor.plan();
        let inputs = plan.inputs.iter().map(|i| (i.name.clone(), i.dtype)).collect();
        let outputs = plan.outputs.iter().map(|(name, view)| (name.clone(), view.dtype)).collect();
        Plan { compiled, inputs, outputs, taken: AtomicUsize::new(0), kept: AtomicBool::new(false) }
    }

    /// Lets the plan live as long as the process: a graph of PyTorch repeats its launches.
    pub fn keep(&self) {
        if !self.kept.swap(true, Ordering::Relaxed) {
            std::mem::forget(self.compiled.clone());
        }
    }

    /// Counts a run that an entry has taken.
    pub fn count(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// True if this thread can run the plan as it is: on the host, or on the GPU whose context is
    /// the thread's current one.
    pub fn is_reachable(&self) -> bool {
        self.compiled.executor.cuda().is_none_or(|e| e.is_current())
    }
}
