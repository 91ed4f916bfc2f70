//! Runs as a guest of a framework: on its stream, in its memory, in its captures.
//!
//! In: an executor, a stream, addresses of operands and of scratch memory. Out: work on that
//! stream. Invariant: only graphs belong to Hypatia, so that the framework's allocator counts and
//! orders all memory.
//!
//! A run over a new set of addresses is launched step by step and costs no capture. A graph is made
//! when one of the last [`KEPT`] sets comes back. While the framework captures the stream, steps
//! are launched one by one, and become part of what it captures.

use std::ffi::c_void;
use std::sync::{Arc, PoisonError};

use cudarc::driver::{CudaStream, result, sys};

use super::caller_memory::{ALIGNMENT, Placed, copy_all};
use super::reports::{Reports, Suspicion};
use super::{
    Bases, DeviceMemory, Executor, Graph, Relaxed, SideStreams, WORKSPACE, failed, outputs_in, pointer_arrays,
};
use hypatia_dsl::dtype::DType;
use hypatia_plan::Checks;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Number of graphs, and of sets of addresses that were seen once.
const KEPT: usize = 16;
/// Inputs and scratch memory of a [`Guest`] start at multiples of this.
pub const GUEST_ALIGNMENT: u64 = ALIGNMENT;

/// One run as a guest. Addresses are those of first elements, in the plan's order; tensors are
/// row-major.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// The stream, as a driver handle; null is the default stream.
    pub stream: *mut c_void,
    /// True if the framework captures the stream; see [`Executor::captures`].
    pub captures: bool,
    /// The inputs.
    pub inputs: &'a [u64],
    /// Where the results are written.
    pub outputs: &'a [u64],
    /// Scratch memory of [`Executor::scratch`] bytes. Its contents do not matter.
    pub scratch: u64,
}

impl Guest<'_> {
    /// All addresses, in one order.
    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.inputs.iter().chain(self.outputs).copied().chain([self.scratch])
    }
}

/// What guests left behind.
#[derive(Default)]
pub(super) struct Guests {
    /// Graphs by their addresses, the most recently used last.
    graphs: Vec<(Vec<u64>, Graph)>,
    /// Addresses without a graph, the latest last.
    seen: Vec<Vec<u64>>,
    own: Option<Own>,
    /// What graphs of the framework refer to.
    captured: Vec<(SideStreams, Option<DeviceMemory>)>,
}

/// Streams of Hypatia's own.
struct Own {
    /// For captures.
    stream: Arc<CudaStream>,
    sides: SideStreams,
    /// Of all guests: runs that are checked follow one another.
    reports: Reports,
}

impl Guests {
    fn own(&mut self, executor: &Executor) -> Result<&Own> {
        if self.own.is_none() {
            let stream = executor.gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
            let reports = Reports::new(&stream, &executor.plan)?;
            self.own = Some(Own { stream, sides: executor.side_streams()?, reports });
        }
        self.own.as_ref().ok_or_else(|| Error::Internal("streams that were made are missing".into()))
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        // The graphs may be running. A failure means that the context is lost.
        let _ = self.own.as_ref().map(|own| own.stream.context().synchronize());
    }
}

impl Executor {
    /// Bytes of scratch memory that a run as a guest needs.
    pub fn scratch(&self) -> usize {
        self.plan.arena.next_multiple_of(ALIGNMENT as usize) + WORKSPACE + self.exchanged
    }

    /// True if the executor's context is the thread's current one: then its runs need no switch,
    /// which a framework would not expect.
    pub fn is_current(&self) -> bool {
        result::ctx::get_current().is_ok_and(|current| current == Some(self.gpu.context().cu_ctx()))
    }

    /// True if a stream is being captured.
    ///
    /// # Safety
    /// The stream belongs to this device's primary context and is alive.
    pub unsafe fn captures(&self, stream: *mut c_void) -> Result<bool> {
        // SAFETY: the caller says that the stream is one of this context and alive.
        let stream = unsafe { self.gpu.context().wrap_borrowed_stream(stream.cast()) };
        let status = stream.capture_status().map_err(|e| failed("cuStreamIsCapturing", e))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Submits a run to a framework's stream and returns. Nothing is copied over the bus, and no
    /// memory is allocated but for lists of addresses that irregular products need.
    ///
    /// # Errors
    /// If the number of addresses is not the plan's, or one is null or misaligned: inputs and
    /// scratch memory start at multiples of [`GUEST_ALIGNMENT`].
    ///
    /// # Safety
    /// The stream and the memory belong to this device's primary context. The memory is as large as
    /// the plan's types say and valid until the stream has done the work. Nothing that is not
    /// ordered with the stream uses it meanwhile, neither do other threads that submit runs over
    /// the same scratch memory. Results overlap neither inputs nor each other. A graph that the
    /// framework captures from the stream is not replayed once the executor is dropped.
    pub unsafe fn run_as_guest(&self, guest: &Guest<'_>) -> Result<()> {
        if self.plan.checks == Checks::Off {
            // SAFETY: the caller's promise.
            return unsafe { self.submit_as_guest(guest) };
        }
        if guest.captures {
            return Err(Error::Input(
                "a strict run ends with a look at its checksums, which a captured graph cannot take: \
                 use safety `check`, or run without a capture"
                    .into(),
            ));
        }
        let reported = || -> Result<Vec<Suspicion>> {
            // SAFETY: the caller's promise.
            unsafe { self.submit_as_guest(guest)? };
            // SAFETY: the caller says that the stream is one of this context and alive.
            let stream = unsafe { self.gpu.context().wrap_borrowed_stream(guest.stream.cast()) };
            stream.synchronize().map_err(|e| failed("running the plan", e))?;
            let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(guests.own.as_mut().map_or_else(Vec::new, |own| self.suspicions.of(&mut own.reports)))
        };
        let first = reported()?;
        if !first.is_empty() {
            self.suspicions.decide(first, reported()?);
        }
        Ok(())
    }

    /// The inputs and the results of a run that was submitted, on the host.
    ///
    /// # Errors
    /// If they cannot be copied.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    pub unsafe fn operands_of_guest(&self, guest: &Guest<'_>) -> Result<[Vec<Tensor>; 2]> {
        self.check_addresses(guest.inputs, guest.outputs)?;
        // SAFETY: the caller says that the stream is one of this context and alive.
        let stream = unsafe { self.gpu.context().wrap_borrowed_stream(guest.stream.cast()) };
        let copied = |address: u64, dtype: DType, shape: &[usize]| -> Result<Tensor> {
            let len = shape.iter().product::<usize>() * dtype.size();
            let mut bytes = vec![0; len];
            if len > 0 {
                // SAFETY: the tensor is at that address; the vector lives until the
                // synchronisation below.
                unsafe { result::memcpy_dtoh_async(&mut bytes, address, stream.cu_stream()) }
                    .map_err(|e| failed("cuMemcpyDtoHAsync", e))?;
                stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))?;
            }
            let wrong = || Error::Input("an operand on the device is no tensor of its type".into());
            Tensor::from_bytes(dtype, shape, &bytes).ok_or_else(wrong)
        };
        let inputs = self.plan.inputs.iter().zip(guest.inputs).map(|(i, at)| copied(*at, i.dtype, &i.shape));
        let outputs = self.plan.outputs.iter().zip(guest.outputs).map(|((_, v), at)| copied(*at, v.dtype, &v.shape));
        Ok([inputs.collect::<Result<_>>()?, outputs.collect::<Result<_>>()?])
    }

    /// Replaces the results of a run.
    ///
    /// # Errors
    /// If they are not of the plan's types, or cannot be copied.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    pub unsafe fn replace_results_of_guest(&self, guest: &Guest<'_>, results: &[Tensor]) -> Result<()> {
        self.plan.check_outputs(results)?;
        // SAFETY: the caller says that the stream is one of this context and alive.
        let stream = unsafe { self.gpu.context().wrap_borrowed_stream(guest.stream.cast()) };
        for (to, from) in guest.outputs.iter().zip(results).filter(|(_, from)| !from.bytes().is_empty()) {
            // SAFETY: the result is as large as the plan says, as the tensor is. Pageable memory is
            // staged before the call returns.
            unsafe { result::memcpy_htod_async(*to, from.bytes(), stream.cu_stream()) }
                .map_err(|e| failed("cuMemcpyHtoDAsync", e))?;
        }
        stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))
    }

    /// Submits a run, whatever its checksums say.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    unsafe fn submit_as_guest(&self, guest: &Guest<'_>) -> Result<()> {
        self.check_addresses(guest.inputs, guest.outputs)?;
        let empty = |i: usize| self.plan.inputs[i].shape.contains(&0);
        let odd = guest.inputs.iter().enumerate().find(|(i, a)| **a % GUEST_ALIGNMENT != 0 && !empty(*i));
        if let Some((i, address)) = odd {
            let name = &self.plan.inputs[i].name;
            return Err(Error::Input(format!("`{name}` starts at {address:#x}: pass a multiple of {GUEST_ALIGNMENT}")));
        }
        if guest.scratch == 0 || !guest.scratch.is_multiple_of(GUEST_ALIGNMENT) {
            return Err(Error::Input(format!("scratch memory cannot start at {:#x}", guest.scratch)));
        }
        // SAFETY: the caller says that the stream is one of this context and alive.
        let stream = unsafe { self.gpu.context().wrap_borrowed_stream(guest.stream.cast()) };
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        if guest.captures {
            // SAFETY: the caller guarantees the addresses.
            return unsafe { self.step_into_capture(&mut guests, &stream, guest) };
        }
        let same = |key: &[u64]| guest.addresses().eq(key.iter().copied());
        // The set that came last comes next, as a rule.
        if let Some(at) = guests.graphs.iter().rposition(|(key, _)| same(key)) {
            guests.graphs[at..].rotate_left(1);
        } else if let Some(at) = guests.seen.iter().position(|key| same(key)) {
            let graph = self.capture_as_guest(guests.own(self)?, guest)?;
            let key = guests.seen.remove(at);
            if guests.graphs.len() == KEPT {
                // It may be running, on any stream.
                self.gpu.context().synchronize().map_err(|e| failed("cuCtxSynchronize", e))?;
                guests.graphs.remove(0);
            }
            guests.graphs.push((key, graph));
        } else {
            if guests.seen.len() == KEPT {
                guests.seen.remove(0);
            }
            guests.seen.push(guest.addresses().collect());
            let own = guests.own(self)?;
            // SAFETY: the caller guarantees the addresses. The lists are freed after the run.
            return unsafe { self.step_by_step(&stream, &own.sides, (guest, own.reports.address()), &stream) }
                .map(drop);
        }
        guests.graphs.last().map_or(Ok(()), |(_, graph)| graph.launch_on(&stream))
    }

    fn guest_bases(&self, guest: &Guest<'_>, reports: u64) -> Placed {
        let [constants, transposed] = self.constants.addresses();
        let workspace = guest.scratch + self.plan.arena.next_multiple_of(ALIGNMENT as usize) as u64;
        let own = Bases {
            inputs: vec![0; self.plan.inputs.len()],
            constants,
            transposed,
            outputs: outputs_in(&self.plan, guest.scratch),
            arena: guest.scratch,
            workspace,
            sums: workspace + WORKSPACE as u64,
            lists: 0,
            reports,
        };
        self.placed(own, guest.inputs, guest.outputs)
    }

    fn capture_as_guest(&self, own: &Own, guest: &Guest<'_>) -> Result<Graph> {
        let placed = self.guest_bases(guest, own.reports.address());
        // SAFETY: the caller of `run_as_guest` guarantees the addresses.
        let behind = || unsafe { copy_all(&placed.behind, own.stream.cu_stream()) };
        let graph = self.capture_over(&own.stream, &own.sides, &placed.bases, || Ok(()), behind)?;
        // The graph and its lists are on the device before another stream runs it.
        own.stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))?;
        Ok(graph)
    }

    /// Launches the steps on a stream. The lists of addresses that they read are written on the
    /// stream `lists` and returned.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    unsafe fn step_by_step(
        &self,
        stream: &Arc<CudaStream>,
        sides: &SideStreams,
        (guest, reports): (&Guest<'_>, u64),
        lists: &Arc<CudaStream>,
    ) -> Result<Option<DeviceMemory>> {
        let mut placed = self.guest_bases(guest, reports);
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let all = launches.iter_mut().map(|(_, launch)| launch);
        let memory = pointer_arrays::write(lists, all, &mut placed.bases)?;
        if memory.is_some() && lists != stream {
            lists.synchronize().map_err(|e| failed("cuStreamSynchronize", e))?;
        }
        // SAFETY: the caller guarantees the addresses.
        unsafe {
            self.submit_all(&mut launches, stream, sides, &placed.bases)?;
            copy_all(&placed.behind, stream.cu_stream())?;
        }
        Ok(memory)
    }

    /// Launches the steps on a stream that the framework captures. What its graph refers to is kept
    /// as long as the executor.
    ///
    /// # Safety
    /// As [`Executor::run_as_guest`].
    unsafe fn step_into_capture(&self, guests: &mut Guests, stream: &Arc<CudaStream>, guest: &Guest<'_>) -> Result<()> {
        // A strict capture forbids what is done here on other streams: memory for the lists.
        let _relaxed = Relaxed::new()?;
        let (sides, lists) = (self.side_streams()?, self.gpu.context().new_stream());
        let lists = lists.map_err(|e| failed("cuStreamCreate", e))?;
        // SAFETY: the caller guarantees the addresses.
        let memory = unsafe { self.step_by_step(stream, &sides, (guest, 0), &lists)? };
        guests.captured.push((sides, memory));
        Ok(())
    }
}
