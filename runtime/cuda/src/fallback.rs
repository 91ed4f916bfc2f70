//! Measured choice between a library call and its fallback steps.
//!
//! In: a step with both variants, both ready to launch. Out: the launches of the faster variant. A
//! [`Tuner`] caches the result like the choice of an algorithm. Invariant: both variants run on the
//! same memory, in CUDA graphs, in alternation; the median counts; without a measurement the call
//! is used, since the library reports that it supports it. What a run of the plan evicts from the
//! L2 cache, such as the weights of a large model, is read from memory here too: launches rotate
//! through several copies of it.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use hypatia_dsl::dtype::DType;

use super::address::{Bases, Location, REPORT, REPORTS, WORKSPACE, outputs_in};
use super::capture::{Graph, holding_host};
use super::device::Gpu;
use super::driver::failed;
use super::launch::Launch;
use super::memory::{DeviceMemory, bind};
use super::pointer_arrays;
use super::submit::{LastWork, SideStreams, submit};
use super::tune::{MAX_OPERANDS, Tuner, WARM, copies, footprint, machine, problem, random};
use crate::lowering::checksum::EXCHANGED;
use crate::tuner::Measured;
use crate::tuning::Choice;
use hypatia_plan::{Checks, Plan, Step, Storage, View};
use hypatia_tensor::error::{Error, Result};

/// The stored form of the choice for the call, in the field of a product's algorithm.
const CALL: [u64; 8] = [1; 8];
pub(super) const FALLBACK: [u64; 8] = [2; 8];
/// Launches of a variant per graph, at least, and rounds in which the variants alternate.
const REPEATS: usize = 16;
const ROUNDS: usize = 11;
/// Maximum number of copies of inputs and constants.
const MAX_COPIES: usize = 64;

/// The launches of the faster variant.
pub(super) fn faster(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    step: &Step,
    call: Launch,
    fallback: Vec<Launch>,
    tuner: &mut Tuner,
) -> Result<Vec<Launch>> {
    let Launch::Product(product) = &call else { return Ok(vec![call]) };
    let what = problem(product.matmul.product(), footprint(plan) > WARM);
    let problem = format!("one call or {} launches, {what}", fallback.len());
    let guess = Measured { algorithm: CALL, workspace: 0, us: None, first_us: None, candidates: 2 };
    let known = |choice: &Choice, _| [CALL, FALLBACK].contains(&choice.algorithm);
    let mut variants = [vec![call], fallback];
    let measure = || {
        let Some(times) = time(gpu, plan, step, &mut variants)? else { return Ok(None) };
        let [call, fallback] = times.as_slice() else { return Ok(None) };
        let algorithm = if fallback < call { FALLBACK } else { CALL };
        let us = Some(call.min(*fallback));
        Ok(Some(Measured { algorithm, workspace: 0, us, first_us: Some(*call), candidates: 2 }))
    };
    let choice = tuner.choose(&machine(gpu), &problem, guess, known, measure)?;
    let [call, fallback] = variants;
    Ok(if choice.is_some_and(|c| c.algorithm == FALLBACK) { fallback } else { call })
}

/// Memory in which a step can run in isolation: whole buffers of random numbers.
pub(crate) struct Scratch {
    stream: Arc<CudaStream>,
    bases: Bases,
    /// Inputs and constants, with their elements.
    given: Vec<(Storage, DType, usize)>,
    // Keeps the memory at `bases` alive.
    memory: Vec<DeviceMemory>,
}

impl Scratch {
    /// `None` if the buffers are too large to be allocated a second time.
    pub(crate) fn of(stream: &Arc<CudaStream>, plan: &Plan, step: &Step) -> Result<Option<Scratch>> {
        let mut sizes: HashMap<Storage, (DType, usize)> = HashMap::new();
        let mut arena = 0;
        for view in step.reads.iter().chain(&step.writes) {
            let buffer = &plan.buffers[view.buffer.index()];
            match buffer.storage {
                Storage::Arena(offset) => arena = arena.max(offset + buffer.len * buffer.dtype.size()),
                place => drop(sizes.insert(place, (buffer.dtype, buffer.len))),
            }
        }
        if arena + sizes.values().map(|(dtype, len)| dtype.size() * len).sum::<usize>() > MAX_OPERANDS {
            return Ok(None);
        }
        let mut memory = Vec::new();
        let mut take = |dtype: DType, len: usize| -> Result<u64> {
            memory.push(random(stream, dtype, len)?);
            Ok(memory.last().map_or(0, DeviceMemory::address))
        };
        let dtype = step.reads.first().map_or(DType::F32, |v| v.dtype);
        let arena = take(dtype, arena.div_ceil(dtype.size()))?;
        let mut bases = Bases {
            inputs: vec![0; plan.inputs.len()],
            constants: vec![0; plan.constants.len()],
            transposed: vec![0; plan.constants.len()],
            outputs: outputs_in(plan, arena),
            arena,
            workspace: take(DType::U8, WORKSPACE)?,
            sums: 0,
            lists: 0,
            reports: 0,
        };
        if plan.checks != Checks::Off {
            bases.reports = take(DType::U8, REPORTS + REPORT * plan.steps.len())?;
            bases.sums = take(DType::U8, EXCHANGED)?;
        }
        let given: Vec<_> = sizes.into_iter().map(|(place, (dtype, len))| (place, dtype, len)).collect();
        for (place, dtype, len) in &given {
            place_at(&mut bases, *place, take(*dtype, *len)?);
        }
        Ok(Some(Scratch { stream: stream.clone(), bases, given, memory }))
    }

    /// The bases, and those of so many further copies of inputs and constants.
    fn rotated(&mut self, further: usize) -> Result<Vec<Bases>> {
        /// Every copy begins at a multiple of this.
        const APART: usize = 256;
        let mut all = vec![self.bases.clone(); further + 1];
        for (place, dtype, len) in self.given.iter().filter(|_| further > 0) {
            let apart = (len * dtype.size()).next_multiple_of(APART);
            let memory = random(&self.stream, *dtype, (apart * further).div_ceil(dtype.size()))?;
            for (i, bases) in all[1..].iter_mut().enumerate() {
                place_at(bases, *place, memory.address() + (i * apart) as u64);
            }
            self.memory.push(memory);
        }
        Ok(all)
    }

    /// Bytes of inputs and constants.
    fn given_bytes(&self) -> usize {
        self.given.iter().map(|(_, dtype, len)| dtype.size() * len).sum()
    }

    /// The address of the buffer of a view, and its bytes.
    fn buffer(&self, plan: &Plan, view: &View) -> (u64, usize) {
        let buffer = &plan.buffers[view.buffer.index()];
        let at = Location { storage: buffer.storage, outside: None, bytes: 0 };
        (self.bases.address(&at), buffer.len * buffer.dtype.size())
    }

    /// The contents of the buffer of a view that the step reads or writes.
    pub(crate) fn read(&self, plan: &Plan, view: &View) -> Result<Vec<u8>> {
        let (address, bytes) = self.buffer(plan, view);
        let mut out = vec![0; bytes];
        if bytes > 0 {
            bind(&self.stream)?;
            // SAFETY: the buffer is in the scratch and has that many bytes; the host's vector lives
            // until the synchronisation below.
            unsafe { result::memcpy_dtoh_async(&mut out, address, self.stream.cu_stream()) }
                .map_err(|e| failed("cuMemcpyDtoHAsync", e))?;
        }
        self.stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))?;
        Ok(out)
    }

    /// Replaces the contents of the buffer of a view that the step reads.
    pub(crate) fn write(&self, plan: &Plan, view: &View, contents: &[u8]) -> Result<()> {
        let (address, bytes) = self.buffer(plan, view);
        if contents.len() != bytes {
            return Err(Error::Internal(format!("{} bytes into a buffer of {bytes}", contents.len())));
        }
        if bytes > 0 {
            bind(&self.stream)?;
            // SAFETY: the buffer is in the scratch and has that many bytes. Pageable memory is
            // staged before the call returns.
            unsafe { result::memcpy_htod_async(address, contents, self.stream.cu_stream()) }
                .map_err(|e| failed("cuMemcpyHtoDAsync", e))?;
        }
        Ok(())
    }

    /// Runs launches of the step once, to completion.
    pub(crate) fn run(&mut self, gpu: &Arc<Gpu>, launches: &mut [Launch]) -> Result<()> {
        guess(gpu, launches.iter_mut())?;
        let _lists = pointer_arrays::write(&self.stream, launches.iter_mut(), &mut self.bases)?;
        let sides = SideStreams::new(gpu, launches.iter().map(Launch::calls).max().unwrap_or(1))?;
        let mut last = LastWork::default();
        launches.iter_mut().try_for_each(|launch| {
            // SAFETY: every buffer that the step reads or writes is in the scratch, as large as the
            // plan says, and lives until the stream is done, below.
            unsafe { submit(gpu, (&self.stream, &mut last), &sides, launch, &self.bases) }
        })?;
        self.stream.synchronize().map_err(|e| failed("running a step", e))
    }
}

/// Records where an input or a constant lies. Random numbers can stand for their transpose.
fn place_at(bases: &mut Bases, place: Storage, address: u64) {
    match place {
        Storage::Input(i) => bases.inputs[i] = address,
        Storage::Constant(i) => {
            bases.constants[i] = address;
            bases.transposed[i] = address;
        }
        Storage::Arena(_) => {}
    }
}

/// Gives products that have no algorithm yet the library's first guess; false if it has none.
fn guess<'a>(gpu: &Gpu, launches: impl Iterator<Item = &'a mut Launch>) -> Result<bool> {
    for launch in launches {
        if let Launch::Product(product) = launch
            && product.guessed
        {
            product.algorithms = product.matmul.algorithms(gpu.lt(), 1)?;
            if product.algorithms.is_empty() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The median time of each variant in microseconds; `None` if they cannot be timed.
pub(super) fn time(gpu: &Arc<Gpu>, plan: &Plan, step: &Step, variants: &mut [Vec<Launch>]) -> Result<Option<Vec<f64>>> {
    let stream = gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
    if !guess(gpu, variants.iter_mut().flatten())? {
        return Ok(None);
    }
    let Some(mut scratch) = Scratch::of(&stream, plan, step)? else { return Ok(None) };
    let copies = copies(footprint(plan) > WARM, scratch.given_bytes(), MAX_COPIES);
    let mut rotated = scratch.rotated(copies - 1)?;
    let mut listed = |bases| pointer_arrays::write(&stream, variants.iter_mut().flatten(), bases);
    let _lists = rotated.iter_mut().map(&mut listed).collect::<Result<Vec<_>>>()?;
    let sides = SideStreams::new(gpu, variants.iter().flatten().map(Launch::calls).max().unwrap_or(1))?;
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let event = || gpu.context().new_event(flags).map_err(|e| failed("cuEventCreate", e));
    let (start, stop) = (event()?, event()?);
    let run = |variant: &mut Vec<Launch>, last: &mut LastWork, turn: Option<usize>| {
        let (first, bases) = (turn.is_none(), &rotated[turn.unwrap_or(0) % copies]);
        let mut launches = variant.iter_mut().filter(|launch| first || !matches!(launch, Launch::Once(_)));
        // SAFETY: every buffer that the step reads or writes is in the scratch, as large as the
        // plan says, and lives until the stream is done, below.
        launches.try_for_each(|launch| unsafe { submit(gpu, (&stream, last), &sides, launch, bases) })
    };
    // The first launch loads code, which is not allowed during a capture.
    variants.iter_mut().try_for_each(|variant| run(variant, &mut LastWork::default(), None))?;
    stream.synchronize().map_err(|e| failed("timing a step", e))?;
    let repeats = REPEATS.max(copies);
    let mut repeated = |variant: &mut Vec<Launch>| {
        let mut last = LastWork::default();
        Graph::capture(&stream, || (0..repeats).try_for_each(|turn| run(variant, &mut last, Some(turn))))
    };
    let graphs = holding_host(|| variants.iter_mut().map(&mut repeated).collect::<Result<Vec<_>>>())?;
    let mut times = vec![Vec::with_capacity(ROUNDS); graphs.len()];
    for round in 0..=ROUNDS {
        for (graph, times) in graphs.iter().zip(&mut times) {
            start.record(&stream).map_err(|e| failed("cuEventRecord", e))?;
            graph.launch()?;
            stop.record(&stream).map_err(|e| failed("cuEventRecord", e))?;
            stream.synchronize().map_err(|e| failed("timing a step", e))?;
            let ms = start.elapsed_ms(&stop).map_err(|e| failed("cuEventElapsedTime", e))?;
            // The first round warms up.
            if round > 0 {
                times.push(f64::from(ms) * 1e3 / repeats as f64);
            }
        }
    }
    let medians: Vec<f64> = times
        .into_iter()
        .map(|mut t| {
            t.sort_by(f64::total_cmp);
            t.get(t.len() / 2).copied().unwrap_or(f64::INFINITY)
        })
        .collect();
    Ok(Some(medians))
}
