//! Plans: what runs for inputs of some shapes.
//!
//! In: a compiled model, then borrowed memory of inputs and outputs. Out: the outputs, filled.
//! Invariant: memory that does not fit the plan is an error before anything runs.

use std::sync::Arc;

use hypatia::dsl::dtype::DType;
use hypatia::session::Compiled;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{raised, wrong_input};
use crate::guest::{self, Allocator};
use crate::memory::{self, Outputs};

/// A plan for inputs of some shapes, ready to run. Threads may share it.
#[pyclass(frozen, module = "hypatia_core._native")]
pub struct Plan {
    compiled: Arc<Compiled>,
    /// Name and element type of each input, and of each output.
    inputs: Vec<(String, DType)>,
    outputs: Vec<(String, DType)>,
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

    /// The steps as text.
    fn text(&self) -> String {
        self.compiled.executor.plan().to_string()
    }

    /// Runs once: reads the memory of `inputs`, writes that of `outputs`. Both are in the plan's
    /// order; see `memory`. Nobody else may use the outputs meanwhile.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyTuple>, outputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        let from = memory::inputs(inputs, &self.inputs)?;
        let mut outputs = Outputs::of(outputs, &self.outputs)?;
        if from.iter().any(|bytes| outputs.overlap(bytes)) {
            return Err(wrong_input("an output overlaps an input"));
        }
        let mut to = outputs.slices();
        py.detach(|| self.compiled.executor.run_in_place(&from, &mut to)).map_err(raised)
    }

    /// Submits a run on a GPU to PyTorch's current stream. Returns the indices of inputs that have
    /// to be copied first; if there are any, nothing ran. `allocate` makes scratch memory of a
    /// number of bytes on the GPU of an ordinal; `captures` says that PyTorch captures the stream.
    fn run_as_guest(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyTuple>,
        outputs: &Bound<'_, PyTuple>,
        allocate: Bound<'_, PyAny>,
        captures: bool,
    ) -> PyResult<Vec<usize>> {
        let executor = self.compiled.executor.cuda();
        let executor = executor.ok_or_else(|| wrong_input("the plan runs on the CPU"))?;
        guest::run(py, executor, [(inputs, &self.inputs), (outputs, &self.outputs)], &Allocator { allocate, captures })
    }
}

impl Plan {
    /// A plan that was compiled.
    pub fn of(compiled: Arc<Compiled>) -> Plan {
        let plan = compiled.executor.plan();
        let inputs = plan.inputs.iter().map(|i| (i.name.clone(), i.dtype)).collect();
        let outputs = plan.outputs.iter().map(|(name, view)| (name.clone(), view.dtype)).collect();
        Plan { compiled, inputs, outputs }
    }
}
