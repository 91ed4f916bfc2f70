//! The executor: a whole plan as one CUDA graph.
//!
//! In: a plan for a GPU, then tensors for its inputs. Out: tensors for its outputs. Invariant:
//! weights are uploaded once for all plans; runs may overlap, each on an instance of its own
//! (stream, arena, inputs, graph); after an instance's first run, its runs allocate nothing on the
//! device.

mod caller_memory;
mod guest;
mod reports;
mod resident;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaEvent, CudaStream, sys};
use hypatia_dsl::dtype::DType;

use super::address::{Bases, WORKSPACE, outputs_in};
use super::capture::{Graph, Relaxed, holding_host};
use super::compare;
use super::constants::{Constants, Prefetch};
use super::cubin::Origins;
use super::device::Gpu;
use super::driver::failed;
use super::launch::Launch;
use super::memory::{DeviceMemory, Pinned};
use super::steps::{precompile, prepare};
use super::submit::{LastWork, SideStreams, submit};
use super::tune::Tuner;
use super::{nvtx, pointer_arrays};
use crate::tuning::PACKED;
use hypatia_plan::{Note, Plan, Step, Storage, View};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use guest::Guests;
pub use guest::{GUEST_ALIGNMENT, Guest};
pub use reports::{Disturbance, Suspicion};
use reports::{Reports, Suspicions};
pub use resident::{OnDevice, Resident};

/// Runs a plan on a GPU.
pub struct Executor {
    plan: Arc<Plan>,
    gpu: Arc<Gpu>,
    /// Launches with the index of their step. Locked during a capture.
    launches: Mutex<Vec<(usize, Launch)>>,
    /// Bytes that products and their comparisons exchange in a run.
    exchanged: usize,
    constants: Constants,
    origins: Origins,
    idle: Mutex<Vec<Instance>>,
    guests: Mutex<Guests>,
    suspicions: Suspicions,
    poison: bool,
}

/// Memory and graph of one run in progress.
struct Instance {
    // Dropped first, since it refers to the memory.
    graph: Graph,
    stream: Arc<CudaStream>,
    inputs: Vec<DeviceMemory>,
    arena: DeviceMemory,
    workspace: DeviceMemory,
    sums: DeviceMemory,
    staging: Pinned,
    reports: Reports,
    sides: SideStreams,
}

impl Executor {
    /// Prepares a plan: compiles what is not cached, chooses algorithms, uploads the weights.
    pub fn new(plan: Arc<Plan>, gpu: Arc<Gpu>, tuner: &mut Tuner) -> Result<Executor> {
        if let Some(b) = plan.buffers.iter().find(|b| matches!(b.storage, Storage::Arena(o) if o % 64 != 0)) {
            return Err(Error::Internal(format!("a buffer at {:?}", b.storage)));
        }
        // The program may capture a stream of its own meanwhile.
        let _relaxed = Relaxed::new()?;
        // The weights are copied while algorithms are chosen.
        let (prepared, prefetched) = std::thread::scope(|scope| {
            let uploading = scope.spawn(|| {
                let _relaxed = Relaxed::new()?;
                Prefetch::upload(&gpu, &plan)
            });
            (prepare(&gpu, &plan, tuner), uploading.join())
        });
        let ((launches, origins), prefetched) =
            (prepared?, prefetched.map_err(|_| Error::Internal("the uploading thread was lost".into()))??);
        let constants = Constants::upload(&gpu, &plan, launches.iter().map(|(_, launch)| launch), prefetched)?;
        let (once, launches) = launches.into_iter().partition(|(_, launch)| matches!(launch, Launch::Once(_)));
        let (launches, exchanged) = compare::gather(&plan, launches);
        let executor = Executor {
            plan,
            gpu,
            launches: Mutex::new(launches),
            exchanged,
            constants,
            origins,
            idle: Mutex::default(),
            guests: Mutex::default(),
            suspicions: Suspicions::default(),
            poison: false,
        };
        executor.launch_once(once)?;
        Ok(executor)
    }

    /// Launches what is done once for all runs: it reads constants alone.
    fn launch_once(&self, mut launches: Vec<(usize, Launch)>) -> Result<()> {
        if launches.is_empty() {
            return Ok(());
        }
        let stream = self.gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
        let sides = SideStreams::new(&self.gpu, 1)?;
        let [constants, transposed] = self.constants.addresses();
        let (inputs, outputs) = (vec![0; self.plan.inputs.len()], outputs_in(&self.plan, 0));
        let bases =
            Bases { inputs, constants, transposed, outputs, arena: 0, workspace: 0, sums: 0, lists: 0, reports: 0 };
        // SAFETY: these launches read constants, which are there, and write into memory of their
        // own, which they keep alive.
        unsafe { self.submit_all(&mut launches, &stream, &sides, &bases)? };
        stream.synchronize().map_err(|e| failed("summing up the weights", e))
    }

    /// Compiles the kernels of the plan whose executor is created next, ahead of time.
    pub fn precompile(plan: &Plan, gpu: &Arc<Gpu>) -> Result<()> {
        precompile(gpu, plan)
    }

    /// Poisons the arena with NaN before each run, so that reads of unwritten memory show.
    pub fn poisoned(mut self) -> Executor {
        self.poison = true;
        self
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The origin of the kernels' machine code.
    pub fn origins(&self) -> Origins {
        self.origins
    }

    /// Launches per run: more than the plan's steps if a step takes several calls.
    pub fn launches(&self) -> usize {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, launch)| launch.kernels()).sum()
    }

    /// Notes on steps: which of them read a weight transposed, and which are held against
    /// checksums.
    pub fn notes(&self) -> Vec<Note> {
        let launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of: BTreeMap<usize, [bool; 2]> = BTreeMap::new();
        for (step, launch) in launches.iter() {
            match launch {
                Launch::Product(p) if p.transposed_weight().is_some() => of.entry(*step).or_default()[0] = true,
                Launch::Checks(checks) => checks.steps.iter().for_each(|step| of.entry(*step).or_default()[1] = true),
                _ => {}
            }
        }
        let note = |(step, of): (usize, [bool; 2])| match of {
            [true, true] => Some((step, "packed, checked")),
            [true, false] => Some((step, PACKED)),
            [false, true] => Some((step, "checked")),
            [false, false] => None,
        };
        of.into_iter().filter_map(note).collect()
    }

    /// Runs once. The inputs are in the plan's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.plan.check_inputs(inputs)?;
        let mut instance = self.take()?;
        let outputs = self.run_on(&mut instance, inputs)?;
        self.give(instance);
        Ok(outputs)
    }

    /// An idle instance, or a new one.
    fn take(&self) -> Result<Instance> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.instance(), Ok)
    }

    /// Returns an instance to the pool. One whose run failed is dropped, since its context may be
    /// lost.
    fn give(&self, instance: Instance) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    fn run_on(&self, instance: &mut Instance, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.checked(instance, inputs)?;
        self.plan.outputs.iter().map(|(name, view)| self.output(instance, inputs, name, view)).collect()
    }

    /// Runs to completion; once more if a checksum is not what it should be.
    fn checked(&self, instance: &mut Instance, inputs: &[Tensor]) -> Result<()> {
        self.start(instance, inputs)?;
        let first = self.suspicions.of(&mut instance.reports);
        if first.is_empty() {
            return Ok(());
        }
        self.start(instance, inputs)?;
        let second = self.suspicions.of(&mut instance.reports);
        self.suspicions.decide(first, second);
        Ok(())
    }

    /// Runs to completion.
    fn start(&self, instance: &mut Instance, inputs: &[Tensor]) -> Result<()> {
        if self.poison {
            instance.arena.fill(0xff)?;
            instance.workspace.fill(0xff)?;
        }
        self.upload(instance, inputs)?;
        instance.launch()?;
        instance.stream.synchronize().map_err(|e| failed("running the plan", e))
    }

    /// Copies the inputs to the device, ordered on the stream.
    fn upload(&self, instance: &mut Instance, inputs: &[Tensor]) -> Result<()> {
        let mut at = 0;
        for (memory, tensor) in instance.inputs.iter().zip(inputs) {
            let bytes = tensor.bytes();
            let staged = &mut instance.staging.bytes_mut()[at..at + bytes.len()];
            staged.copy_from_slice(bytes);
            memory.upload(staged)?;
            at += bytes.len().next_multiple_of(64);
        }
        Ok(())
    }

    fn output(&self, instance: &Instance, inputs: &[Tensor], name: &str, view: &View) -> Result<Tensor> {
        let wrong = || Error::Internal(format!("output `{name}` of shape {:?}", view.shape));
        let mut tensor = Tensor::zeros(view.dtype, &view.shape).ok_or_else(wrong)?;
        self.read(instance, inputs, view, tensor.bytes_mut())?;
        // A bool that is neither 0 nor 1 was never written.
        match view.dtype {
            DType::Bool => Tensor::from_bytes(view.dtype, &view.shape, tensor.bytes()).ok_or_else(wrong),
            _ => Ok(tensor),
        }
    }

    /// Copies the contents of a view to the host after a run.
    fn read(&self, instance: &Instance, inputs: &[Tensor], view: &View, to: &mut [u8]) -> Result<()> {
        if view.is_empty() {
            return Ok(());
        }
        let size = view.dtype.size();
        let range = view.offset * size..(view.offset + view.len()) * size;
        let given = match self.plan.buffers[view.buffer.index()].storage {
            Storage::Input(i) => inputs[i].bytes(),
            Storage::Constant(i) => self.plan.constants[i].bytes(),
            Storage::Arena(offset) => return instance.arena.download(offset + range.start, to),
        };
        let given = given.get(range).filter(|g| g.len() == to.len());
        to.copy_from_slice(given.ok_or_else(|| Error::Internal("a result lies outside of its buffer".into()))?);
        Ok(())
    }

    fn instance(&self) -> Result<Instance> {
        let _relaxed = Relaxed::new()?;
        let stream = self.gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
        let bytes: Vec<usize> =
            self.plan.inputs.iter().map(|i| i.shape.iter().product::<usize>() * i.dtype.size()).collect();
        let inputs = bytes.iter().map(|b| DeviceMemory::new(&stream, *b)).collect::<Result<Vec<_>>>()?;
        let arena = DeviceMemory::new(&stream, self.plan.arena).map_err(|e| self.too_much(e))?;
        let workspace = DeviceMemory::new(&stream, WORKSPACE)?;
        let sums = DeviceMemory::new(&stream, self.exchanged)?;
        let staging = Pinned::new(&stream, bytes.iter().map(|b| b.next_multiple_of(64)).sum())?;
        let sides = self.side_streams()?;
        let reports = Reports::new(&stream, &self.plan)?;
        let mut instance =
            Instance { graph: Graph::empty(), stream, inputs, arena, workspace, sums, staging, reports, sides };
        instance.graph = self.capture(&instance)?;
        Ok(instance)
    }

    /// Side streams for all steps.
    fn side_streams(&self) -> Result<SideStreams> {
        let calls = self.launches.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, l)| l.calls()).max();
        SideStreams::new(&self.gpu, calls.unwrap_or(1))
    }

    /// The error for an arena that the device cannot hold, with the largest result in it.
    fn too_much(&self, error: Error) -> Error {
        let Error::Device(why) = error else { return error };
        let bytes = |step: &Step| step.writes.iter().map(|w| w.len() * w.dtype.size()).max().unwrap_or(0);
        match self.plan.steps.iter().enumerate().max_by_key(|(_, s)| bytes(s)) {
            Some((at, step)) => Error::Device(format!(
                "{why}: intermediate results need {} MiB of the device's memory; the largest is of `{}`, {} MiB",
                self.plan.arena.div_ceil(1 << 20),
                self.plan.step_name(at),
                bytes(step).div_ceil(1 << 20)
            )),
            None => Error::Device(why),
        }
    }

    fn bases(&self, instance: &Instance) -> Bases {
        let [constants, transposed] = self.constants.addresses();
        Bases {
            inputs: instance.inputs.iter().map(DeviceMemory::address).collect(),
            constants,
            transposed,
            outputs: outputs_in(&self.plan, instance.arena.address()),
            arena: instance.arena.address(),
            workspace: instance.workspace.address(),
            sums: instance.sums.address(),
            lists: 0,
            reports: instance.reports.address(),
        }
    }

    /// Captures the whole plan as one graph.
    fn capture(&self, instance: &Instance) -> Result<Graph> {
        if self.launches.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Ok(Graph::empty());
        }
        self.capture_over(&instance.stream, &instance.sides, &self.bases(instance), || Ok(()), || Ok(()))
    }

    /// Captures the plan over these addresses, with additional work before and after it on the
    /// stream.
    fn capture_over(
        &self,
        stream: &Arc<CudaStream>,
        sides: &SideStreams,
        bases: &Bases,
        before: impl FnOnce() -> Result<()>,
        behind: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        // First the host, then the lock: a thread that runs the plan may hold the host.
        holding_host(|| {
            let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
            let mut bases = bases.clone();
            let lists = pointer_arrays::write(stream, launches.iter_mut().map(|(_, launch)| launch), &mut bases)?;
            let graph = Graph::capture(stream, || {
                before()?;
                // SAFETY: the bases are those of the instance whose graph this is, whose memory is
                // as large as the plan says and lives as long as the graph, or those that a caller
                // answers for.
                unsafe { self.submit_all(&mut launches, stream, sides, &bases)? };
                behind()
            })?;
            Ok(graph.keeping(lists))
        })
    }

    /// Submits all launches to a stream.
    ///
    /// # Safety
    /// As [`super::kernel::KernelLaunch::launch`].
    unsafe fn submit_all(
        &self,
        launches: &mut [(usize, Launch)],
        stream: &Arc<CudaStream>,
        sides: &SideStreams,
        bases: &Bases,
    ) -> Result<()> {
        let mut last = LastWork::default();
        launches.iter_mut().try_for_each(|(step, launch)| {
            // SAFETY: the caller guarantees the bases.
            unsafe { submit(&self.gpu, (stream, &mut last), sides, launch, bases) }.map_err(|e| match e {
                Error::Device(m) => Error::Device(format!("step `{}`: {m}", self.plan.steps[*step].name)),
                e => e,
            })
        })
    }

    /// A stopwatch for this plan: an instance of its own with its inputs on the device.
    pub fn timer(&self, inputs: &[Tensor]) -> Result<Timer<'_>> {
        self.plan.check_inputs(inputs)?;
        let mut instance = self.instance()?;
        self.run_on(&mut instance, inputs)?;
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || self.gpu.context().new_event(flags).map_err(|e| failed("cuEventCreate", e));
        Ok(Timer { executor: self, instance, start: event()?, stop: event()? })
    }
}

/// Times replays with events on the device, without host copies.
pub struct Timer<'a> {
    executor: &'a Executor,
    instance: Instance,
    start: CudaEvent,
    stop: CudaEvent,
}

/// Launches of a step that its profile times together: enough to hide the few microseconds of a
/// graph launch.
const REPEATS: usize = 32;

impl Timer<'_> {
    /// Microseconds of one replay of the plan: the mean of `count` consecutive replays.
    pub fn replays(&mut self, count: usize) -> Result<f64> {
        self.elapsed(count, |timer| timer.instance.launch())
    }

    fn elapsed(&self, count: usize, launch: impl Fn(&Self) -> Result<()>) -> Result<f64> {
        let stream = self.instance.stream.clone();
        self.start.record(&stream).map_err(|e| failed("cuEventRecord", e))?;
        for _ in 0..count.max(1) {
            launch(self)?;
        }
        self.stop.record(&stream).map_err(|e| failed("cuEventRecord", e))?;
        stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))?;
        let ms = self.start.elapsed_ms(&self.stop).map_err(|e| failed("cuEventElapsedTime", e))?;
        Ok(f64::from(ms) * 1e3 / count.max(1) as f64)
    }

    /// Microseconds of each step of the plan in isolation: many launches in one graph, the median
    /// of several rounds. The operands are warm, and in-place steps overwrite their own results.
    pub fn steps(&mut self, rounds: usize) -> Result<Vec<f64>> {
        let executor = self.executor;
        let mut micros = vec![0.0; executor.plan.steps.len()];
        let mut bases = executor.bases(&self.instance);
        let stream = self.instance.stream.clone();
        let sides = &self.instance.sides;
        let mut launches = executor.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let count = launches.len();
        let _lists = pointer_arrays::write(&stream, launches.iter_mut().map(|(_, launch)| launch), &mut bases)?;
        drop(launches);
        for at in 0..count {
            let (graph, of) = holding_host(|| {
                let mut launches = executor.launches.lock().unwrap_or_else(PoisonError::into_inner);
                let (step, launch) = &mut launches[at];
                let _range = nvtx::range(&executor.plan.steps[*step].name);
                let of = launch.steps(*step);
                let mut last = LastWork::default();
                let graph = Graph::capture(&stream, || {
                    // SAFETY: the bases are those of this timer's instance, which outlives the
                    // graph.
                    let mut once = || unsafe { submit(&executor.gpu, (&stream, &mut last), sides, launch, &bases) };
                    (0..REPEATS).try_for_each(|_| once())
                })?;
                Ok((graph, of))
            })?;
            graph.launch()?;
            let times = (0..rounds.max(1)).map(|_| self.elapsed(2, |_| graph.launch())).collect::<Result<Vec<_>>>();
            let mut times = times?;
            times.sort_by(f64::total_cmp);
            let us = times[times.len() / 2] / REPEATS as f64;
            of.iter().for_each(|step| micros[*step] += us / of.len() as f64);
        }
        Ok(micros)
    }
}

impl Instance {
    fn launch(&self) -> Result<()> {
        self.graph.launch()
    }
}
