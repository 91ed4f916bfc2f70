//! Runs whose operands stay on the device, and runs into tensors that are there already.
//!
//! In: an executor. Out: memory on the device that holds inputs and outputs, and runs that neither copy nor allocate.
//! Holds always: a [`Resident`] has an instance of its own, so that its addresses stay the same as long as it lives and
//! no other run writes there.

use super::foreign::Foreign;
use super::{Executor, Instance, failed};
use hypatia_plan::{Place, View};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Where a tensor lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// The address of its first element.
    pub address: u64,
    /// Its size; it is row-major.
    pub bytes: usize,
}

/// A plan with memory of its own on the device.
pub struct Resident<'a> {
    pub(super) executor: &'a Executor,
    // Before the instance: the graphs name its memory.
    pub(super) foreign: Foreign,
    pub(super) instance: Instance,
}

impl Executor {
    /// Memory for inputs and results that stay on the device, and the plan's graph over it.
    pub fn resident(&self) -> Result<Resident<'_>> {
        Ok(Resident { executor: self, foreign: Foreign::default(), instance: self.instance()? })
    }

    /// Runs once, into tensors of the plan's types that nobody else holds. From the second run on nothing is allocated,
    /// on the device or on the host.
    pub fn run_into(&self, inputs: &[Tensor], outputs: &mut [Tensor]) -> Result<()> {
        self.plan.check_inputs(inputs)?;
        self.plan.check_outputs(outputs)?;
        let mut instance = self.take()?;
        self.start(&mut instance, inputs)?;
        for ((_, view), out) in self.plan.outputs.iter().zip(outputs) {
            self.read(&instance, inputs, view, out.bytes_mut())?;
        }
        self.give(instance);
        Ok(())
    }
}

impl Resident<'_> {
    /// Where an input lies, by its place in the plan's order. What is written there is read by the next run.
    pub fn input(&self, index: usize) -> Option<OnDevice> {
        let memory = self.instance.inputs.get(index)?;
        let input = self.executor.plan.inputs.get(index)?;
        let bytes = input.shape.iter().product::<usize>() * input.dtype.size();
        Some(OnDevice { address: memory.address(), bytes })
    }

    /// Where a result lies, by its place in the plan's order, once a run is done; the next one overwrites it.
    pub fn output(&self, index: usize) -> Option<OnDevice> {
        let (_, view) = self.executor.plan.outputs.get(index)?;
        let base = match self.executor.plan.buffers[view.buffer.index()].place {
            Place::Input(i) => self.instance.inputs.get(i)?.address(),
            Place::Constant(i) => self.executor.constants.given(i)?.memory.address(),
            Place::Arena(offset) => self.instance.arena.address() + offset as u64,
        };
        let size = view.dtype.size();
        Some(OnDevice { address: base + (view.offset * size) as u64, bytes: view.len() * size })
    }

    /// The CUDA stream that runs are put on, as the driver's handle: other work is ordered by it.
    pub fn stream(&self) -> *mut std::ffi::c_void {
        self.instance.stream.cu_stream().cast()
    }

    /// Copies the inputs from the host.
    pub fn upload(&mut self, inputs: &[Tensor]) -> Result<()> {
        self.executor.plan.check_inputs(inputs)?;
        self.executor.upload(&mut self.instance, inputs)?;
        // The staging memory may be written again when this returns.
        self.synchronize()
    }

    /// Starts a run on the inputs as they lie on the device, and returns at once: one launch of a graph.
    pub fn run_on_device(&mut self) -> Result<()> {
        self.instance.launch()
    }

    /// Waits for what was started.
    pub fn synchronize(&self) -> Result<()> {
        self.instance.stream.synchronize().map_err(|e| failed("running the plan", e))
    }

    /// Waits, and copies a result to the host.
    pub fn download(&self, index: usize) -> Result<Tensor> {
        let plan = &self.executor.plan;
        let (name, view) =
            plan.outputs.get(index).ok_or_else(|| Error::Input(format!("output {index} of {}", plan.outputs.len())))?;
        let mut tensor = Tensor::zeros(view.dtype, &view.shape)
            .ok_or_else(|| Error::Internal(format!("output `{name}` of shape {:?}", view.shape)))?;
        if view.is_empty() {
            self.synchronize()?;
        } else {
            self.copy(view, tensor.bytes_mut())?;
        }
        Ok(tensor)
    }

    fn copy(&self, view: &View, to: &mut [u8]) -> Result<()> {
        let from = view.offset * view.dtype.size();
        match self.executor.plan.buffers[view.buffer.index()].place {
            Place::Input(i) => self.instance.inputs[i].download(from, to),
            Place::Constant(i) => {
                let lost = || Error::Internal("a result that was not uploaded".into());
                self.executor.constants.given(i).ok_or_else(lost)?.memory.download(from, to)
            }
            Place::Arena(offset) => self.instance.arena.download(offset + from, to),
        }
    }
}
