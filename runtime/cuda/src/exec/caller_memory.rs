//! Runs on the caller's memory: a framework's tensors, by their device addresses.
//!
//! In: a [`Resident`] and addresses of inputs and results. Out: the results at those addresses.
//! Invariant: a graph is captured once per set of addresses and cached, the [`KEPT`] most recently
//! used, so that a loop that swaps a few buffers captures nothing after its first rounds; a graph
//! is destroyed only when none of its work is running.
//!
//! Inputs are read in place, and results written in place if they are whole buffers. Algorithms
//! were chosen for addresses that are multiples of [`ALIGNMENT`]; other operands are copied.

use cudarc::driver::{result, sys};

use super::{Bases, Executor, Graph, Instance, Resident, failed};
use crate::address::Location;
use hypatia_tensor::error::{Error, Result};

/// Number of cached graphs.
const KEPT: usize = 16;
/// Operands with this alignment are read and written in place.
pub(super) const ALIGNMENT: u64 = 256;

/// Graphs over the caller's memory, the most recently used last.
#[derive(Default)]
pub(super) struct CallerGraphs {
    graphs: Vec<(Vec<u64>, Graph)>,
}

impl Resident<'_> {
    /// Starts a run on inputs and into results in the caller's memory, and returns immediately. The
    /// addresses are those of the first elements, in the plan's order; tensors are row-major.
    /// Nothing is copied over the bus. The first run over a set of addresses captures a graph for
    /// it (some milliseconds); the sixteen most recently used are cached. It is an error to pass
    /// fewer or more addresses than the plan has inputs and results, null, or an address that is
    /// not a multiple of its element's size.
    ///
    /// Work is submitted to [`stream`](Resident::stream): writes of the inputs must be ordered
    /// before it, reads of the results after it.
    ///
    /// # Safety
    /// Each address is that of memory of this device's primary context, as large as the plan's type
    /// says, and stays valid until the run is done. Results overlap neither inputs nor each other.
    pub unsafe fn run_at(&mut self, inputs: &[u64], outputs: &[u64]) -> Result<()> {
        self.executor.check_addresses(inputs, outputs)?;
        let key = [inputs, outputs].concat();
        let kept = &mut self.caller_graphs.graphs;
        if let Some(at) = kept.iter().position(|(k, _)| *k == key) {
            kept[at..].rotate_left(1);
        } else {
            let graph = self.executor.capture_at(&self.instance, inputs, outputs)?;
            if kept.len() == KEPT {
                self.instance.stream.synchronize().map_err(|e| failed("running the plan", e))?;
                kept.remove(0);
            }
            kept.push((key, graph));
        }
        kept.last().map_or(Ok(()), |(_, graph)| graph.launch())
    }
}

impl Executor {
    pub(super) fn check_addresses(&self, inputs: &[u64], outputs: &[u64]) -> Result<()> {
        let plan = &self.plan;
        if (inputs.len(), outputs.len()) != (plan.inputs.len(), plan.outputs.len()) {
            let (have, want) = ((inputs.len(), outputs.len()), (plan.inputs.len(), plan.outputs.len()));
            return Err(Error::Input(format!(
                "the plan has {} inputs and {} outputs, but {} and {} addresses were given",
                want.0, want.1, have.0, have.1
            )));
        }
        let ins = plan.inputs.iter().map(|i| (&i.name, i.dtype, i.shape.contains(&0)));
        let outs = plan.outputs.iter().map(|(name, view)| (name, view.dtype, view.is_empty()));
        for ((name, dtype, empty), address) in ins.chain(outs).zip(inputs.iter().chain(outputs)) {
            if !empty && (*address == 0 || address % dtype.size() as u64 != 0) {
                return Err(Error::Input(format!(
                    "`{name}` of type {dtype} cannot start at the address {address:#x}: pass a multiple of {}",
                    dtype.size()
                )));
            }
        }
        Ok(())
    }

    /// Captures the plan's graph over these addresses.
    fn capture_at(&self, instance: &Instance, inputs: &[u64], outputs: &[u64]) -> Result<Graph> {
        let placed = self.placed(self.bases(instance), inputs, outputs);
        let stream = instance.stream.cu_stream();
        // SAFETY: the caller of `run_at` guarantees its addresses, the plan's types the others.
        let copied = |copies: &[Copied]| unsafe { copy_all(copies, stream) };
        let (before, behind) = (|| copied(&placed.before), || copied(&placed.behind));
        self.capture_over(&instance.stream, &instance.sides, &placed.bases, before, behind)
    }

    /// The bases of a run on inputs and into results at these addresses. Misaligned inputs are
    /// copied to `own.inputs`.
    pub(super) fn placed(&self, own: Bases, inputs: &[u64], outputs: &[u64]) -> Placed {
        let (mut bases, mut before, mut behind) = (own, Vec::new(), Vec::new());
        for ((given, own), input) in inputs.iter().zip(&mut bases.inputs).zip(&self.plan.inputs) {
            let bytes = input.shape.iter().product::<usize>() * input.dtype.size();
            if given % ALIGNMENT == 0 && bytes > 0 {
                *own = *given;
            } else if bytes > 0 {
                before.push((*own, *given, bytes));
            }
        }
        let mut copied = Vec::new();
        for (i, ((_, view), to)) in self.plan.outputs.iter().zip(outputs).enumerate() {
            if to % ALIGNMENT == 0 && self.plan.outside(view.buffer) == Some(i) {
                bases.outputs[i] = *to;
            } else if !view.is_empty() {
                copied.push((view, *to));
            }
        }
        for (view, to) in copied {
            let from = bases.address(&Location::of(&self.plan, view));
            behind.push((to, from, view.len() * view.dtype.size()));
        }
        Placed { bases, before, behind }
    }
}

/// A copy: to, from, bytes.
pub(super) type Copied = (u64, u64, usize);

/// Where the operands of a run lie, and what has to be copied around it.
pub(super) struct Placed {
    /// Where the operands lie.
    pub bases: Bases,
    /// Copies of inputs, before the run.
    pub before: Vec<Copied>,
    /// Copies of results, after the run.
    pub behind: Vec<Copied>,
}

/// Submits copies to a stream.
///
/// # Safety
/// The addresses are those of memory that is large enough, valid until the stream is done.
pub(super) unsafe fn copy_all(copies: &[Copied], stream: sys::CUstream) -> Result<()> {
    copies.iter().try_for_each(|(to, from, bytes)| {
        // SAFETY: the caller guarantees the addresses.
        unsafe { result::memcpy_dtod_async(*to, *from, *bytes, stream) }.map_err(|e| failed("cuMemcpyDtoDAsync", e))
    })
}
