//! Runs on a GPU as a guest of PyTorch: in its memory, on its stream.
//!
//! In: a plan, tensors of PyTorch on one GPU. Out: work on PyTorch's current stream of that GPU.
//! Invariant: all plans that run on one stream share its scratch memory, a tensor of PyTorch's that
//! grows with the largest of them; while PyTorch captures the stream, each run has scratch memory
//! of its own, which PyTorch keeps for the captured graph.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypatia::session::{Compiled, Pending};
use hypatia_cuda::{Executor, GUEST_ALIGNMENT, Guest, hold_host_with};
use hypatia_dsl::dtype::DType;
use hypatia_tensor::Error;
use pyo3::prelude::*;

use crate::dlpack::{self, Borrowed, Place};
use crate::errors::{raised, wrong_input};
use crate::plan::Plan;

/// Scratch memory by GPU and stream.
type ScratchMemory = Option<HashMap<(i32, usize), Scratch>>;

/// The scratch memory of this process.
static SCRATCH: Mutex<ScratchMemory> = Mutex::new(None);

/// How long a thread that released the interpreter's lock to synchronise a device needs to begin,
/// with much to spare: from then on a capture does not disturb it.
const BEGUN: Duration = Duration::from_micros(200);

/// Lets captures hold the other threads of Python: `torch.cuda.synchronize()` fails while a stream
/// is captured, in whatever thread.
pub fn hold_python() {
    hold_host_with(|work| {
        // Nothing runs if the interpreter is ending.
        let _ = Python::try_attach(|_| {
            std::thread::sleep(BEGUN);
            work();
        });
    });
}

/// A tensor of PyTorch's.
struct Scratch {
    _tensor: Py<PyAny>,
    address: u64,
    bytes: usize,
}

/// Gives all scratch memory back to PyTorch.
#[pyfunction]
pub fn release_scratch() {
    let released = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(released);
}

/// All scratch memory, locked, after that of a GPU and a stream was grown to `wanted` bytes.
fn locked_scratch(
    allocate: &Bound<'_, PyAny>,
    key: (i32, usize),
    wanted: usize,
) -> PyResult<MutexGuard<'static, ScratchMemory>> {
    let all = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if all.as_ref().and_then(|m| m.get(&key)).is_some_and(|s| s.bytes >= wanted) {
        return Ok(all);
    }
    // The lock is not held while Python runs.
    drop(all);
    let made = allocated(allocate, wanted, key.0)?;
    let mut all = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let replaced = all.get_or_insert_default().insert(key, made);
    drop(all);
    drop(replaced);
    Ok(SCRATCH.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The order in which the axes of an input lie in memory, where that is not their own.
pub type Order = Option<Vec<usize>>;

/// Submits a run on inputs, each with its order of axes, and into outputs. Returns the indices of
/// inputs that have to be copied first, since they do not lie so or are misaligned; if there are
/// any, nothing ran. `allocate` is a function of a number of bytes and a GPU's ordinal that makes a
/// tensor.
pub fn run<'py>(
    py: Python<'py>,
    plan: &Plan,
    [inputs, outputs]: [&[Bound<'py, PyAny>]; 2],
    orders: &[Order],
    allocate: &Bound<'py, PyAny>,
) -> PyResult<Vec<usize>> {
    let executor = plan.compiled.executor.cuda().ok_or_else(|| wrong_input("the plan runs on the CPU"))?;
    let mut gpu = None;
    let from = borrowed(inputs, (&plan.inputs, orders), &mut gpu)?;
    let odd = |b: &Borrowed| b.len > 0 && !(b.row_major && (b.address.addr() as u64).is_multiple_of(GUEST_ALIGNMENT));
    if from.iter().any(odd) {
        return Ok((0..from.len()).filter(|i| odd(&from[*i])).collect());
    }
    let to = borrowed(outputs, (&plan.outputs, &[]), &mut gpu)?;
    sized(executor, &from, &to)?;
    let gpu = gpu.ok_or_else(|| wrong_input("a run on a GPU needs tensors on it"))?;
    let stream = dlpack::current_stream(py, gpu)?;
    // SAFETY: PyTorch's current stream is alive, and one of the primary context, as is the plan's.
    let captures = unsafe { executor.captures(stream) }.map_err(raised)?;
    let addresses = |all: &[Borrowed]| all.iter().map(|b| b.address.addr() as u64).collect::<Vec<u64>>();
    let (inputs, outputs) = (addresses(&from), addresses(&to));
    let guest = |scratch: u64| Guest { stream, captures, inputs: &inputs, outputs: &outputs, scratch };
    let submit = |scratch: u64| {
        // SAFETY: the tensors are on this GPU, in PyTorch's memory, of the plan's types and sizes;
        // they are alive, and PyTorch reuses their memory only after the work on its stream. The
        // outputs were just allocated. Only this thread submits over this scratch memory: it is
        // new, or its lock is held. Plans that PyTorch captures live as long as the process.
        unsafe { executor.run_as_guest(&guest(scratch)) }.map_err(raised)
    };
    let wanted = executor.scratch();
    if captures {
        plan.keep();
        // PyTorch keeps the memory for its graph, and gives it to what it captures next.
        let own = allocated(allocate, wanted, gpu)?;
        return submit(own.address).map(|()| Vec::new());
    }
    let later = Later { compiled: &plan.compiled, executor, guest: guest(0) };
    if plan.compiled.is_replaced() {
        // SAFETY: as above; no scratch memory is used.
        return py.detach(move || unsafe { later.replaced() }).map_err(raised).map(|()| Vec::new());
    }
    let key = (gpu, stream.addr());
    let all = locked_scratch(allocate, key, wanted)?;
    let scratch = all.as_ref().and_then(|m| m.get(&key)).filter(|s| s.bytes >= wanted);
    let scratch = scratch.ok_or_else(|| wrong_input("scratch memory was released during a run"))?;
    submit(scratch.address)?;
    drop(all);
    if let Some(pending) = plan.compiled.watch().map_err(raised)? {
        // SAFETY: as above; no scratch memory is used.
        py.detach(move || unsafe { later.judged(&pending) }).map_err(raised)?;
    }
    Ok(Vec::new())
}

/// What a strict run may have to do besides: it makes plans and waits for locks, so that the
/// interpreter's lock must not be held.
struct Later<'a> {
    compiled: &'a Compiled,
    executor: &'a Executor,
    guest: Guest<'a>,
}

// SAFETY: of a guest only the stream's handle is no plain data, and it is tied to a context, not to
// a thread.
unsafe impl Send for Later<'_> {}

impl Later<'_> {
    /// Runs what replaces the plan.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    unsafe fn replaced(self) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            let [inputs, _] = self.executor.operands_of_guest(&self.guest)?;
            self.executor.replace_results_of_guest(&self.guest, &self.compiled.run(&inputs)?)
        }
    }

    /// Judges a run that was waited for, and replaces its results if they are wrong.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    unsafe fn judged(self, pending: &Pending) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let [inputs, got] = unsafe { self.executor.operands_of_guest(&self.guest)? };
        let right = self.compiled.judged(pending, &inputs, got.clone())?;
        if right.iter().zip(&got).any(|(r, g)| r.bytes() != g.bytes()) {
            // SAFETY: the caller's promise.
            unsafe { self.executor.replace_results_of_guest(&self.guest, &right)? };
        }
        Ok(())
    }
}

fn allocated(allocate: &Bound<'_, PyAny>, bytes: usize, gpu: i32) -> PyResult<Scratch> {
    let tensor = allocate.call1((bytes, gpu))?;
    let made = dlpack::borrow(&tensor)?.filter(|b| b.place == Place::Gpu(gpu) && b.len >= bytes);
    let made = made.ok_or_else(|| wrong_input("no scratch memory was allocated"))?;
    Ok(Scratch { address: made.address.addr() as u64, bytes: made.len, _tensor: tensor.unbind() })
}

/// Tensors of the element types that are wanted, all on one GPU, with their orders of axes.
fn borrowed(
    tensors: &[Bound<'_, PyAny>],
    (wanted, orders): (&[(String, DType)], &[Order]),
    gpu: &mut Option<i32>,
) -> PyResult<Vec<Borrowed>> {
    let mut all = Vec::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        let name = || wanted.get(i).map_or("", |(name, _)| name.as_str());
        let one = dlpack::borrow_in(tensor, orders.get(i).and_then(Option::as_deref))?;
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
