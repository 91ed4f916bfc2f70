//! The executor of a plan, wherever it runs.
//!
//! In: a plan, and the device that it was made for. Out: results of runs. Invariant: the CPU and
//! the GPU take the same [`Plan`] type and return tensors of the host.

use std::sync::Arc;
use std::time::Duration;

use crate::gpu::OnGpu;
use hypatia_cpu as cpu;
#[cfg(feature = "cuda")]
use hypatia_cuda as cuda;
use hypatia_plan::{Note, Plan};
#[cfg(feature = "cuda")]
use hypatia_tensor::error::Error;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// Runs a plan.
pub enum Executor {
    /// On the host.
    Cpu(Box<cpu::Executor>),
    /// On a GPU.
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Executor>),
}

impl Executor {
    /// An executor on that GPU, or on the host with this many threads (0 means one for each core).
    pub fn new(plan: Arc<Plan>, gpu: Option<&OnGpu>, threads: usize) -> Result<Executor> {
        Ok(match gpu {
            #[cfg(feature = "cuda")]
            Some(on) => Executor::Cuda(Box::new(on.executor(plan)?)),
            #[cfg(not(feature = "cuda"))]
            Some(on) => match *on {},
            None => Executor::Cpu(Box::new(cpu::Executor::new(plan, threads)?)),
        })
    }

    /// On the host, the accumulators of products are checked by checksums from now on, and computed
    /// again where they are wrong. On a GPU the plan says so: [`Checks`](hypatia_plan::Checks).
    pub fn strict(self) -> Executor {
        match self {
            Executor::Cpu(e) => Executor::Cpu(Box::new(e.strict())),
            #[cfg(feature = "cuda")]
            other => other,
        }
    }

    /// Disturbs the runs of a strict executor of the host as a test wants it. Executors of a GPU
    /// have their own way: `hypatia_cuda::Disturbance`.
    #[doc(hidden)]
    pub fn disturb(&self, faults: Vec<cpu::Fault>) {
        match self {
            Executor::Cpu(e) => e.disturb(faults),
            #[cfg(feature = "cuda")]
            Executor::Cuda(_) => {}
        }
    }

    /// What checksums have found since this was last called.
    pub fn findings(&self) -> Vec<Finding> {
        match self {
            Executor::Cpu(e) => e.mismatches().into_iter().map(Finding::of_host).collect(),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.suspicions().into_iter().map(Finding::of_gpu).collect(),
        }
    }

    /// The results were right in spite of a suspicion: as much raises none from now on.
    pub fn accept(&self, finding: &Finding) {
        match (self, &finding.found) {
            #[cfg(feature = "cuda")]
            (Executor::Cuda(e), Found::Suspicion { times }) => e.accept(finding.step, *times),
            _ => {}
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        match self {
            Executor::Cpu(e) => e.plan(),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.plan(),
        }
    }

    /// The plan, for another executor of it.
    pub fn shared_plan(&self) -> Arc<Plan> {
        match self {
            Executor::Cpu(e) => e.shared_plan(),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => Arc::new(e.plan().clone()),
        }
    }

    /// The name of the first step whose results on the host have other bits than those of another
    /// executor of the same plan; `None` if all are the same, or on a GPU.
    pub fn first_difference(&self, other: &Executor, inputs: &[Tensor]) -> Result<Option<String>> {
        #[cfg_attr(not(feature = "cuda"), expect(irrefutable_let_patterns))]
        let (Executor::Cpu(one), Executor::Cpu(two)) = (self, other) else { return Ok(None) };
        let pairs = one.digests(inputs)?.into_iter().zip(two.digests(inputs)?);
        let first = pairs.enumerate().find(|(_, (x, y))| x != y);
        Ok(first.map(|(step, _)| one.plan().step_name(step)))
    }

    /// Remarks on steps, shown beside the plan.
    pub fn notes(&self) -> Vec<Note> {
        match self {
            Executor::Cpu(_) => Vec::new(),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.notes(),
        }
    }

    /// Runs once. The inputs are in the plan's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match self {
            Executor::Cpu(e) => e.run(inputs),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.run(inputs),
        }
    }

    /// Runs once and writes the results into tensors of the plan's types that have no other owner.
    /// On a GPU, runs after the first allocate nothing; the host allocates what
    /// [`run`](Executor::run) does.
    ///
    /// # Errors
    /// If inputs or outputs are not of the plan's types, in its order.
    pub fn run_into(&self, inputs: &[Tensor], outputs: &mut [Tensor]) -> Result<()> {
        match self {
            Executor::Cpu(e) => {
                e.plan().check_inputs(inputs)?;
                e.plan().check_outputs(outputs)?;
                let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
                let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(Tensor::bytes_mut).collect();
                e.run_in_place(&inputs, &mut outputs)
            }
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.run_into(inputs, outputs),
        }
    }

    /// Runs once on memory of the host that the caller holds: the little-endian, row-major elements
    /// of the plan's inputs and outputs, in its order. On the host nothing is copied but an output
    /// that is an input or a constant; a GPU copies all of it.
    ///
    /// # Errors
    /// If the number or a length of the slices is not the plan's, or a slice is not aligned to its
    /// element type.
    pub fn run_in_place(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        match self {
            Executor::Cpu(e) => e.run_in_place(inputs, outputs),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => {
                let plan = e.plan();
                let owned = inputs.iter().zip(&plan.inputs).map(|(b, i)| Tensor::from_bytes(i.dtype, &i.shape, b));
                let owned: Option<Vec<Tensor>> = owned.collect();
                let wrong = || Error::Input("the memory of an input is not as long as the plan says".into());
                let results = e.run(&owned.ok_or_else(wrong)?)?;
                for (result, out) in results.iter().zip(outputs) {
                    let wrong = || Error::Input("the memory of an output is not as long as the plan says".into());
                    out.get_mut(..)
                        .filter(|o| o.len() == result.bytes().len())
                        .ok_or_else(wrong)?
                        .copy_from_slice(result.bytes());
                }
                Ok(())
            }
        }
    }

    /// The executor on a GPU, for runs in a framework's memory; `None` on the host.
    #[cfg(feature = "cuda")]
    pub fn cuda(&self) -> Option<&cuda::Executor> {
        match self {
            Executor::Cpu(_) => None,
            Executor::Cuda(e) => Some(e),
        }
    }

    /// Memory on the device for runs whose operands stay there; `None` on the host.
    #[cfg(feature = "cuda")]
    pub fn resident(&self) -> Result<Option<cuda::Resident<'_>>> {
        match self {
            Executor::Cpu(_) => Ok(None),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.resident().map(Some),
        }
    }

    /// Runs once on the host, and adds the time of each step to `times`. A GPU runs all steps as
    /// one; there, its [`Timer`](cuda::Timer) times each step separately.
    pub fn run_timed(&self, inputs: &[Tensor], times: &mut [Duration]) -> Result<Vec<Tensor>> {
        match self {
            Executor::Cpu(e) => e.run_timed(inputs, times),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.run(inputs),
        }
    }

    /// A stopwatch for replays on the device; `None` on the host.
    #[cfg(feature = "cuda")]
    pub fn timer(&self, inputs: &[Tensor]) -> Result<Option<cuda::Timer<'_>>> {
        match self {
            Executor::Cpu(_) => Ok(None),
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.timer(inputs).map(Some),
        }
    }

    /// Threads of the host that share the work.
    pub fn threads(&self) -> usize {
        match self {
            Executor::Cpu(e) => e.threads(),
            #[cfg(feature = "cuda")]
            Executor::Cuda(_) => 1,
        }
    }

    /// The place as text: `CPU, 2 threads`, or the GPU's name.
    pub fn device_name(&self) -> String {
        match self {
            Executor::Cpu(e) => match e.threads() {
                1 => "CPU, 1 thread".to_string(),
                n => format!("CPU, {n} threads"),
            },
            #[cfg(feature = "cuda")]
            Executor::Cuda(e) => e.gpu().describe(),
        }
    }
}

/// What checksums have found in the product of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The step of the plan.
    pub step: usize,
    /// What it is.
    pub found: Found,
    /// What was wrong, in words.
    pub detail: String,
}

/// How much a finding says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// The same work was right the second time, and its results are used.
    Transient,
    /// The kernel is wrong. Its step is computed in another way, now and later.
    Kernel,
    /// Sums are apart, in a second run too: the results may be wrong.
    Suspicion {
        /// How many times what rounding usually explains.
        times: f32,
    },
}

impl Finding {
    fn of_host(mismatch: cpu::Mismatch) -> Finding {
        let cpu::Mismatch { step, element, got, want, cause } = mismatch;
        let found = match cause {
            cpu::Cause::Transient => Found::Transient,
            cpu::Cause::Kernel => Found::Kernel,
        };
        Finding { step, found, detail: format!("element {element} was {got:e} before the epilogue, not {want:e}") }
    }

    #[cfg(feature = "cuda")]
    fn of_gpu(suspicion: cuda::Suspicion) -> Finding {
        let cuda::Suspicion { step, at: [row, column], got, want, allowed, repeated } = suspicion;
        let found = if repeated { Found::Suspicion { times: suspicion.excess() } } else { Found::Transient };
        let detail = format!(
            "a sum of row {row} from column {column} on was {got:e} before the epilogue, not {want:e}; rounding \
             explains {allowed:e}"
        );
        Finding { step, found, detail }
    }
}
