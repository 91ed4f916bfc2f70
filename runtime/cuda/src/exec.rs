//! The executor: a whole plan as one CUDA graph.
//!
//! In: a plan for a GPU, then tensors for its inputs. Out: tensors for its outputs. Invariant:
//! weights are uploaded once for all plans; runs may overlap, each on an instance of its own
//! (stream, arena, inputs, graph); after an instance's first run, its runs allocate nothing on the
//! device.

mod foreign;
mod resident;

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaEvent, CudaStream, result, sys};
use hypatia_dsl::dtype::DType;

use super::capture::Graph;
use super::constants::{Ahead, Constants};
use super::cubin::Origins;
use super::device::{Gpu, failed};
use super::launch::Bases;
use super::lists;
use super::lt::{Pointers, WORKSPACE};
use super::memory::{DeviceMemory, Pinned, bind};
use super::nvtx;
use super::steps::{Launch, Product, compile_ahead, prepare};
use super::tune::Tuner;
use crate::tuning::PACKED;
use hypatia_plan::{Note, Place, Plan, View};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

pub use resident::{OnDevice, Resident};

/// Runs a plan on a GPU.
pub struct Executor {
    plan: Arc<Plan>,
    gpu: Arc<Gpu>,
    /// Launches with the index of their step. Locked during a capture.
    launches: Mutex<Vec<(usize, Launch)>>,
    constants: Constants,
    origins: Origins,
    idle: Mutex<Vec<Instance>>,
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
    staging: Pinned,
    sides: Sides,
}

/// Side streams, for independent calls of one step.
pub(super) struct Sides {
    streams: Vec<Arc<CudaStream>>,
    fork: CudaEvent,
    joins: Vec<CudaEvent>,
}

/// Maximum number of concurrent calls of a step.
const AT_ONCE: usize = 8;

impl Sides {
    /// Side streams for steps of this many calls.
    pub(super) fn new(gpu: &Gpu, calls: usize) -> Result<Sides> {
        let count = calls.min(AT_ONCE).saturating_sub(1);
        let stream = |_| gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e));
        let event = |_| gpu.context().new_event(None).map_err(|e| failed("cuEventCreate", e));
        Ok(Sides {
            streams: (0..count).map(stream).collect::<Result<_>>()?,
            fork: event(0)?,
            joins: (0..count).map(event).collect::<Result<_>>()?,
        })
    }

    /// Makes `count` side streams wait for the work submitted to the main stream.
    fn fork(&self, stream: &Arc<CudaStream>, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.fork.record(stream).map_err(|e| failed("cuEventRecord", e))?;
        let mut sides = self.streams.iter().take(count);
        sides.try_for_each(|side| side.wait(&self.fork).map_err(|e| failed("cuStreamWaitEvent", e)))
    }

    /// Makes the main stream wait for `count` side streams.
    fn join(&self, stream: &Arc<CudaStream>, count: usize) -> Result<()> {
        self.streams.iter().zip(&self.joins).take(count).try_for_each(|(side, event)| {
            event.record(side).map_err(|e| failed("cuEventRecord", e))?;
            stream.wait(event).map_err(|e| failed("cuStreamWaitEvent", e))
        })
    }
}

impl Executor {
    /// Prepares a plan: compiles what is not cached, chooses algorithms, uploads the weights.
    pub fn new(plan: Arc<Plan>, gpu: Arc<Gpu>, tuner: &mut Tuner) -> Result<Executor> {
        if let Some(b) = plan.buffers.iter().find(|b| matches!(b.place, Place::Arena(o) if o % 64 != 0)) {
            return Err(Error::Internal(format!("a buffer at {:?}", b.place)));
        }
        // The weights are copied while algorithms are chosen.
        let (prepared, ahead) = std::thread::scope(|scope| {
            let ahead = scope.spawn(|| Ahead::upload(&gpu, &plan));
            (prepare(&gpu, &plan, tuner), ahead.join())
        });
        let ((launches, origins), ahead) =
            (prepared?, ahead.map_err(|_| Error::Internal("the uploading thread was lost".into()))??);
        let constants = Constants::upload(&gpu, &plan, launches.iter().map(|(_, launch)| launch), ahead)?;
        Ok(Executor {
            plan,
            gpu,
            launches: Mutex::new(launches),
            constants,
            origins,
            idle: Mutex::default(),
            poison: false,
        })
    }

    /// Compiles the kernels of the plan whose executor is created next, ahead of time.
    pub fn ahead(plan: &Plan, gpu: &Arc<Gpu>) -> Result<()> {
        compile_ahead(gpu, plan)
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
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Notes on steps: which of them read a weight transposed.
    pub fn notes(&self) -> Vec<Note> {
        let launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let packed = launches.iter().filter(|(_, l)| matches!(l, Launch::Product(p) if p.packed().is_some()));
        packed.map(|(step, _)| (*step, PACKED)).collect()
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
        self.start(instance, inputs)?;
        self.plan.outputs.iter().map(|(name, view)| self.output(instance, inputs, name, view)).collect()
    }

    /// Runs to completion.
    fn start(&self, instance: &mut Instance, inputs: &[Tensor]) -> Result<()> {
        if self.poison {
            instance.arena.fill(0xff)?;
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
        let given = match self.plan.buffers[view.buffer.index()].place {
            Place::Input(i) => inputs[i].bytes(),
            Place::Constant(i) => self.plan.constants[i].bytes(),
            Place::Arena(offset) => return instance.arena.download(offset + range.start, to),
        };
        let given = given.get(range).filter(|g| g.len() == to.len());
        to.copy_from_slice(given.ok_or_else(|| Error::Internal("a result lies outside of its buffer".into()))?);
        Ok(())
    }

    fn instance(&self) -> Result<Instance> {
        let stream = self.gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
        let bytes: Vec<usize> =
            self.plan.inputs.iter().map(|i| i.shape.iter().product::<usize>() * i.dtype.size()).collect();
        let inputs = bytes.iter().map(|b| DeviceMemory::new(&stream, *b)).collect::<Result<Vec<_>>>()?;
        let arena = DeviceMemory::new(&stream, self.plan.arena)?;
        let workspace = DeviceMemory::new(&stream, WORKSPACE)?;
        let staging = Pinned::new(&stream, bytes.iter().map(|b| b.next_multiple_of(64)).sum())?;
        let calls = self.launches.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, l)| l.calls()).max();
        let sides = Sides::new(&self.gpu, calls.unwrap_or(1))?;
        let mut instance = Instance { graph: Graph::empty(), stream, inputs, arena, workspace, staging, sides };
        instance.graph = self.capture(&instance)?;
        Ok(instance)
    }

    fn bases(&self, instance: &Instance) -> Bases {
        let [constants, packed] = self.constants.addresses();
        Bases {
            inputs: instance.inputs.iter().map(DeviceMemory::address).collect(),
            constants,
            packed,
            arena: instance.arena.address(),
            workspace: instance.workspace.address(),
            lists: 0,
        }
    }

    /// Captures the whole plan as one graph.
    fn capture(&self, instance: &Instance) -> Result<Graph> {
        if self.launches.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Ok(Graph::empty());
        }
        self.capture_over(instance, &self.bases(instance), || Ok(()), || Ok(()))
    }

    /// Captures the plan over these addresses, with additional work before and after it on the
    /// instance's stream.
    fn capture_over(
        &self,
        instance: &Instance,
        bases: &Bases,
        before: impl FnOnce() -> Result<()>,
        behind: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bases = bases.clone();
        let lists = lists::write(&instance.stream, launches.iter_mut().map(|(_, launch)| launch), &mut bases)?;
        let graph = Graph::capture(&instance.stream, || {
            before()?;
            launches.iter_mut().try_for_each(|(step, launch)| {
                // SAFETY: the bases are those of the instance whose graph this is, whose memory is
                // as large as the plan says and lives as long as the graph, or those that a caller
                // answers for.
                unsafe { put(&self.gpu, &instance.stream, &instance.sides, launch, &bases) }.map_err(|e| match e {
                    Error::Device(m) => Error::Device(format!("step `{}`: {m}", self.plan.steps[*step].name)),
                    e => e,
                })
            })?;
            behind()
        })?;
        Ok(graph.keeping(lists))
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
        let _lists = lists::write(&stream, launches.iter_mut().map(|(_, launch)| launch), &mut bases)?;
        drop(launches);
        for at in 0..count {
            let mut launches = executor.launches.lock().unwrap_or_else(PoisonError::into_inner);
            let (step, launch) = &mut launches[at];
            let step = *step;
            let _range = nvtx::range(&executor.plan.steps[step].name);
            let graph = Graph::capture(&stream, || {
                // SAFETY: the bases are those of this timer's instance, which outlives the graph.
                (0..REPEATS).try_for_each(|_| unsafe { put(&executor.gpu, &stream, sides, launch, &bases) })
            })?;
            drop(launches);
            graph.launch()?;
            let times = (0..rounds.max(1)).map(|_| self.elapsed(2, |_| graph.launch())).collect::<Result<Vec<_>>>();
            let mut times = times?;
            times.sort_by(f64::total_cmp);
            micros[step] += times[times.len() / 2] / REPEATS as f64;
        }
        Ok(micros)
    }
}

impl Instance {
    fn launch(&self) -> Result<()> {
        self.graph.launch()
    }
}

/// Submits a launch to a stream.
///
/// # Safety
/// As [`super::launch::KernelLaunch::launch`].
pub(super) unsafe fn put(
    gpu: &Gpu,
    stream: &Arc<CudaStream>,
    sides: &Sides,
    launch: &mut Launch,
    bases: &Bases,
) -> Result<()> {
    match launch {
        // SAFETY: the caller guarantees the bases.
        Launch::Kernel(kernel) => unsafe { kernel.launch(stream, bases) },
        Launch::Product(product) => {
            let packed = product.packed().map(|other| (other.side, bases.packed[other.constant]));
            let Product { matmul, algorithms, calls, lists, bias, aux, .. } = product.as_mut();
            let what = *matmul.product();
            let list = (what.outer * what.batch * size_of::<u64>()) as u64;
            let algorithm = algorithms.first().ok_or_else(|| Error::Internal("no algorithm".into()))?;
            let beside = (calls.len() - 1).min(sides.streams.len());
            sides.fork(stream, beside)?;
            for (i, [a, b, d]) in calls.iter().enumerate() {
                let on = match i % (beside + 1) {
                    0 => stream,
                    side => &sides.streams[side - 1],
                };
                let mut operands = match what.by_addresses() {
                    true => [0, 1, 2].map(|side| bases.lists + *lists + side * list),
                    false => [a, b, d].map(|side| bases.address(side)),
                };
                if let Some((side, address)) = packed {
                    operands[side] = address;
                }
                let [a, b, d] = operands;
                let at = Pointers {
                    a,
                    b,
                    d,
                    bias: bias.as_ref().map_or(0, |b| bases.address(b)),
                    aux: aux.as_ref().map_or(0, |a| bases.address(a)),
                    workspace: bases.workspace,
                };
                // SAFETY: as above; the places are those of the step's operands.
                unsafe { matmul.launch(gpu.lt(), on, algorithm, &at)? };
            }
            sides.join(stream, beside)
        }
        Launch::Zeros(at, bytes) => {
            bind(stream)?;
            // SAFETY: the place is that of a result with this many bytes.
            unsafe { result::memset_d8_async(bases.address(at), 0, *bytes, stream.cu_stream()) }
                .map_err(|e| failed("cuMemsetD8Async", e))
        }
    }
}
