//! Runs on a GPU as a guest of PyTorch: in its memory, on its stream.
//!
//! In: a plan, tensors of PyTorch on one GPU. Out: work on PyTorch's current stream of that GPU.
//! Invariant: all plans that run on one stream share its scratch memory, a tensor of PyTorch's that
//! grows with the largest of them; while PyTorch captures the stream, each run has scratch memory
//! of its own, which PyTorch keeps for the captured graph.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hypatia::cuda::{Executor, GUEST_ALIGNMENT, Guest};
use hypatia::dsl::dtype::DType;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dlpack::{self, Borrowed, Place};
use crate::errors::{raised, wrong_input};

/// Scratch memory by GPU and stream.
static SCRATCH: Mutex<Option<HashMap<(i32, usize), Scratch>>> = Mutex::new(None);

/// A tensor of PyTorch's.
struct Scratch {
    _tensor: Py<PyAny>,
    address: u64,
    bytes: usize,
}

/// Tensors, and the names and element types that they must have.
pub type Operands<'a> = (&'a Bound<'a, PyTuple>, &'a [(String, DType)]);

/// How a run reaches PyTorch's allocator.
pub struct Allocator<'py> {
    /// A function of a number of bytes and a GPU's ordinal that makes a tensor.
    pub allocate: Bound<'py, PyAny>,
    /// True if PyTorch captures the current stream.
    pub captures: bool,
}

/// Gives all scratch memory back to PyTorch.
#[pyfunction]
pub fn release_scratch() {
    let released = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(released);
}

/// Submits a run. Returns the indices of inputs that have to be copied first, since they are not
/// row-major or misaligned; if there are any, nothing ran.
pub fn run(
    py: Python<'_>,
    executor: &Executor,
    [inputs, outputs]: [Operands<'_>; 2],
    allocator: &Allocator<'_>,
) -> PyResult<Vec<usize>> {
    let mut gpu = None;
    let from = borrowed(inputs.0, inputs.1, &mut gpu)?;
    let odd = |b: &Borrowed| b.len > 0 && !(b.row_major && (b.address.addr() as u64).is_multiple_of(GUEST_ALIGNMENT));
    let copied: Vec<usize> = (0..from.len()).filter(|i| odd(&from[*i])).collect();
    if !copied.is_empty() {
        return Ok(copied);
    }
    let to = borrowed(outputs.0, outputs.1, &mut gpu)?;
    sized(executor, &from, &to)?;
    let gpu = gpu.ok_or_else(|| wrong_input("a run on a GPU needs tensors on it"))?;
    let stream = dlpack::current_stream(py, gpu)?;
    let addresses = |all: &[Borrowed]| all.iter().map(|b| b.address.addr() as u64).collect::<Vec<u64>>();
    let (inputs, outputs) = (addresses(&from), addresses(&to));
    let submit = |scratch: u64| {
        let guest = Guest { stream, inputs: &inputs, outputs: &outputs, scratch };
        // SAFETY: the tensors are on this GPU, in PyTorch's memory, of the plan's types and sizes;
        // they are alive, and PyTorch reuses their memory only behind the work on its stream. The
        // outputs were just allocated. Only this thread submits over this scratch memory: it is
        // new, or its lock is held.
        unsafe { executor.run_as_guest(&guest) }.map_err(raised)
    };
    let wanted = executor.scratch();
    if allocator.captures {
        // PyTorch keeps the memory for its graph, and gives it to what it captures next.
        let own = allocate(allocator, wanted, gpu)?;
        return submit(own.address).map(|()| Vec::new());
    }
    let key = (gpu, stream.addr());
    let enough = |s: &Scratch| s.bytes >= wanted;
    let known = |all: &Option<HashMap<_, Scratch>>| all.as_ref().and_then(|m| m.get(&key)).is_some_and(enough);
    if !known(&SCRATCH.lock().unwrap_or_else(PoisonError::into_inner)) {
        // The lock is not held while Python runs.
        let made = allocate(allocator, wanted, gpu)?;
        let mut all = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = all.get_or_insert_default().insert(key, made);
        drop(all);
        drop(replaced);
    }
    let all = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = all.as_ref().and_then(|m| m.get(&key)).filter(|s| enough(s));
    let scratch = scratch.ok_or_else(|| wrong_input("scratch memory was released during a run"))?;
    submit(scratch.address).map(|()| Vec::new())
}

fn allocate(allocator: &Allocator<'_>, bytes: usize, gpu: i32) -> PyResult<Scratch> {
    let tensor = allocator.allocate.call1((bytes, gpu))?;
    let made = dlpack::borrow(&tensor)?.filter(|b| b.place == Place::Gpu(gpu) && b.len >= bytes);
    let made = made.ok_or_else(|| wrong_input("no scratch memory was allocated"))?;
    Ok(Scratch { address: made.address.addr() as u64, bytes: made.len, _tensor: tensor.unbind() })
}

/// Tensors of the element types that are wanted, all on one GPU.
fn borrowed(
    tensors: &Bound<'_, PyTuple>,
    wanted: &[(String, DType)],
    gpu: &mut Option<i32>,
) -> PyResult<Vec<Borrowed>> {
    let mut all = Vec::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter_borrowed().enumerate() {
        let name = || wanted.get(i).map_or("", |(name, _)| name.as_str());
        let one = dlpack::borrow(&tensor)?;
        let one = one.ok_or_else(|| wrong_input(format!("`{}` is not a tensor of PyTorch's own", name())))?;
        match (one.place, *gpu) {
            (Place::Gpu(id), None) => *gpu = Some(id),
            (Place::Gpu(id), Some(known)) if id == known => {}
            _ => return Err(wrong_input(format!("`{}` is on another device", name()))),
        }
        if let Some((name, dtype)) = wanted.get(i)
            && one.dtype != *dtype
        {
            return Err(wrong_input(format!("`{name}` must be {dtype}, but its memory is {}", one.dtype)));
        }
        all.push(one);
    }
    Ok(all)
}

/// An error unless the tensors are as large as the plan says.
fn sized(executor: &Executor, from: &[Borrowed], to: &[Borrowed]) -> PyResult<()> {
    let plan = executor.plan();
    let inputs = plan.inputs.iter().map(|i| (&i.name, i.shape.iter().product::<usize>())).zip(from);
    let outputs = plan.outputs.iter().map(|(name, view)| (name, view.len())).zip(to);
    if let Some(((name, wanted), b)) = inputs.chain(outputs).find(|((_, wanted), b)| b.len != *wanted) {
        return Err(wrong_input(format!("`{name}` has {} elements, but the plan needs {wanted}", b.len)));
    }
    Ok(())
}
