//! Calls: a plan as a function of PyTorch's tensors.
//!
//! In: a plan, the sizes, strides and types of its results, and functions of PyTorch that allocate.
//! Out: tensors. Invariant: what depends on sizes alone is decided when a call is made; a run works
//! on what differs from run to run, the addresses.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{raised, wrong_input};
use crate::guest::{self, Order};
use crate::memory::{Inputs, Outputs};
use crate::plan::Plan;

/// Sizes, strides and element type of a tensor, as PyTorch's functions take them.
type Described = (Py<PyTuple>, Py<PyTuple>, Py<PyAny>);

/// A result: what PyTorch allocates for it.
struct Made {
    sizes: Py<PyTuple>,
    strides: Py<PyTuple>,
    dtype: Py<PyAny>,
}

/// Results of one element type that share an allocation: one address is the same in each step of
/// training, where many are not, and graphs are made for addresses.
struct Shared {
    /// What is allocated.
    whole: Made,
    /// The results in it, each with its first element.
    parts: Vec<(usize, usize)>,
}

/// PyTorch's own functions.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Torch {
    /// Of sizes, strides and an element type: a tensor on the plan's device.
    empty: Py<PyAny>,
    /// Of a tensor: a copy whose rows are those of its axes in a given order, or in their own.
    copy: Py<PyAny>,
    /// Of bytes and a GPU's ordinal: scratch memory.
    scratch: Py<PyAny>,
    /// Of a tensor: its memory as a tuple, where tensors are not borrowed.
    describe: Option<Py<PyAny>>,
    /// Of a tensor, sizes, strides and a first element: a tensor in the same memory.
    within: Option<Py<PyAny>>,
}

/// A plan with all that PyTorch needs to call it. Threads may share it.
#[pyclass(frozen, module = "hypatia_core._native")]
pub struct Call {
    plan: Py<Plan>,
    results: Vec<Made>,
    shared: Vec<Shared>,
    /// In which order the axes of each input lie; empty if all are in their own.
    orders: Vec<Order>,
    torch: Torch,
}

#[pymethods]
impl Call {
    /// A call of a plan. `results` are sizes, strides and element type of each; strides leave no
    /// gaps, and the plan's results are in the order of memory. `torch` are functions of PyTorch.
    /// `shared` are results that share an allocation: sizes, strides and type of that, and for each
    /// result its index and its first element. `orders` are orders of axes in which inputs lie in
    /// memory: there the plan's input has its axes in that order. A plan for the host takes none.
    #[new]
    fn new(
        plan: Py<Plan>,
        results: Vec<Described>,
        shared: Vec<(Described, Vec<(usize, usize)>)>,
        orders: Vec<Order>,
        torch: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        let permutes = |o: &Vec<usize>| {
            let mut axes = o.clone();
            axes.sort_unstable();
            axes.into_iter().eq(0..o.len())
        };
        if !orders.iter().flatten().all(permutes) {
            return Err(wrong_input("an order of axes that is no permutation"));
        }
        if orders.iter().any(Option::is_some) && plan.get().compiled.executor.cuda().is_none() {
            return Err(wrong_input("a plan for the host takes inputs row by row"));
        }
        let made = |(sizes, strides, dtype): Described| Made { sizes, strides, dtype };
        let results: Vec<Made> = results.into_iter().map(made).collect();
        let torch: Torch = torch.extract()?;
        let known = shared.iter().flat_map(|(_, parts)| parts).all(|(i, _)| *i < results.len());
        if !shared.is_empty() && (!known || torch.within.is_none()) {
            return Err(wrong_input("results cannot share memory"));
        }
        let shared = shared.into_iter().map(|(whole, parts)| Shared { whole: made(whole), parts }).collect();
        Ok(Call { plan, results, shared, orders, torch })
    }

    /// Runs once on the plan's inputs. On a GPU its context is the thread's current one.
    fn run<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyTuple>> {
        self.over(py, inputs.iter().collect())
    }
}

impl Call {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.plan.get()
    }

    /// Runs once on the plan's inputs.
    pub fn over<'py>(&self, py: Python<'py>, inputs: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyTuple>> {
        let results = PyTuple::new(py, self.allocated(py)?)?;
        if self.plan().compiled.executor.cuda().is_some() {
            self.on_gpu(py, inputs, &results)?;
        } else {
            self.on_host(py, inputs, &results)?;
        }
        Ok(results)
    }

    /// Memory for the results.
    fn allocated<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let empty = self.torch.empty.bind(py);
        let new = |r: &Made| empty.call1((&r.sizes, &r.strides, &r.dtype));
        let mut made: Vec<Option<Bound<'py, PyAny>>> = vec![None; self.results.len()];
        if let Some(within) = self.torch.within.as_ref().map(|f| f.bind(py)) {
            for shared in &self.shared {
                let whole = new(&shared.whole)?;
                for (i, first) in &shared.parts {
                    let part = &self.results[*i];
                    made[*i] = Some(within.call1((&whole, &part.sizes, &part.strides, *first))?);
                }
            }
        }
        made.into_iter().zip(&self.results).map(|(made, r)| made.map_or_else(|| new(r), Ok)).collect()
    }

    fn on_host<'py>(
        &self,
        py: Python<'py>,
        mut inputs: Vec<Bound<'py, PyAny>>,
        results: &Bound<'py, PyTuple>,
    ) -> PyResult<()> {
        let plan = self.plan();
        let mut own = None;
        if let Some(describe) = self.torch.describe.as_ref().map(|d| d.bind(py)) {
            for input in &mut inputs {
                *input = describe.call1((input.call_method0("contiguous")?,))?;
            }
            own = Some(PyTuple::new(py, results.iter().map(|t| describe.call1((t,))).collect::<PyResult<Vec<_>>>()?)?);
        }
        let results = own.as_ref().unwrap_or(results);
        let given = Inputs::of(&inputs, &plan.inputs)?;
        let odd = given.odd();
        let copies =
            odd.iter().map(|i| self.torch.copy.bind(py).call1((&inputs[*i],))).collect::<PyResult<Vec<_>>>()?;
        let from = given.with(&odd, &copies)?.slices()?;
        let mut to = Outputs::fresh(results, &plan.outputs)?;
        let mut to = to.slices();
        py.detach(|| plan.compiled.run_in_place(&from, &mut to)).map_err(raised)
    }

    fn on_gpu<'py>(
        &self,
        py: Python<'py>,
        mut inputs: Vec<Bound<'py, PyAny>>,
        results: &Bound<'py, PyTuple>,
    ) -> PyResult<()> {
        let results: Vec<Bound<'py, PyAny>> = results.iter().collect();
        let scratch = self.torch.scratch.bind(py);
        let odd = guest::run(py, self.plan(), [&inputs, &results], &self.orders, scratch)?;
        if odd.is_empty() {
            return Ok(());
        }
        for i in odd {
            let order = self.orders.get(i).cloned().flatten();
            inputs[i] = self.torch.copy.bind(py).call1((&inputs[i], order))?;
        }
        match guest::run(py, self.plan(), [&inputs, &results], &self.orders, scratch)?.first() {
            Some(i) => Err(wrong_input(format!("a copy of `{}` is not row-major", self.plan().inputs[*i].0))),
            None => Ok(()),
        }
    }
}
