//! Runs whose operands stay on the device, and runs into existing tensors.
//!
//! In: an executor. Out: device memory that holds inputs and outputs, and runs that neither copy
//! nor allocate. Invariant: a [`Resident`] owns an instance, so that its addresses are stable for
//! its lifetime and no other run writes there.

use super::caller_memory::CallerGraphs;
use super::{Executor, Instance, failed};
use hypatia_plan::{Storage, View};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// The location of a tensor on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// The address of its first element.
    pub address: u64,
    /// Its size in bytes; it is row-major.
    pub bytes: usize,
}

/// A plan with its own device memory.
pub struct Resident<'a> {
    pub(super) executor: &'a Executor,
    // Dropped before the instance: the graphs refer to its memory.
    pub(super) caller_graphs: CallerGraphs,
    pub(super) instance: Instance,
}

impl Executor {
    /// Allocates device memory for inputs and results, and captures the plan's graph over it.
    pub fn resident(&self) -> Result<Resident<'_>> {
        Ok(Resident { executor: self, caller_graphs: CallerGraphs::default(), instance: self.instance()? })
    }

    /// Runs once into tensors of the plan's types that have no other owner. From the second run on,
    /// nothing is allocated on the device or the host.
    pub fn run_into(&self, inputs: &[Tensor], outputs: &mut [Tensor]) -> Result<()> {
        self.plan.check_inputs(inputs)?;
        self.plan.check_outputs(outputs)?;
        let mut instance = self.take()?;
        self.checked(&mut instance, inputs)?;
        for ((_, view), out) in self.plan.outputs.iter().zip(outputs) {
            self.read(&instance, inputs, view, out.bytes_mut())?;
        }
        self.give(instance);
        Ok(())
    }
}

impl Resident<'_> {
    /// The location of an input, by its index in the plan's order. The next run reads the data
    /// written there.
    pub fn input(&self, index: usize) -> Option<OnDevice> {
        let memory = self.instance.inputs.get(index)?;
        let input = self.executor.plan.inputs.get(index)?;
        let bytes = input.shape.iter().product::<usize>() * input.dtype.size();
        Some(OnDevice { address: memory.address(), bytes })
    }

    /// The location of a result, by its index in the plan's order. It is valid after a run; the
    /// next run overwrites it.
    pub fn output(&self, index: usize) -> Option<OnDevice> {
        let (_, view) = self.executor.plan.outputs.get(index)?;
        let base = match self.executor.plan.buffers[view.buffer.index()].storage {
            Storage::Input(i) => self.instance.inputs.get(i)?.address(),
            Storage::Constant(i) => self.executor.constants.given(i)?.memory.address(),
            Storage::Arena(offset) => self.instance.arena.address() + offset as u64,
        };
        let size = view.dtype.size();
        Some(OnDevice { address: base + (view.offset * size) as u64, bytes: view.len() * size })
    }

    /// The CUDA stream of the runs as a driver handle, so that other work can be ordered with it.
    pub fn stream(&self) -> *mut std::ffi::c_void {
        self.instance.stream.cu_stream().cast()
    }

    /// Copies the inputs from the host.
    pub fn upload(&mut self, inputs: &[Tensor]) -> Result<()> {
        self.executor.plan.check_inputs(inputs)?;
        self.executor.upload(&mut self.instance, inputs)?;
        // The staging memory may be written again once this returns.
        self.synchronize()
    }

    /// Starts a run on the inputs on the device, and returns immediately: one graph launch.
    pub fn run_on_device(&mut self) -> Result<()> {
        self.instance.launch()
    }

    /// Waits for the started work.
    pub fn synchronize(&self) -> Result<()> {
        self.instance.stream.synchronize().map_err(|e| failed("running the plan", e))
    }

    /// Waits, then copies a result to the host.
    pub fn download(&self, index: usize) -> Result<Tensor> {
        let plan = &self.executor.plan;
        let (name, view) = plan
            .outputs
            .get(index)
            .ok_or_else(|| Error::Input(format!("there is no output {index}: the plan has {}", plan.outputs.len())))?;
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
        match self.executor.plan.buffers[view.buffer.index()].storage {
            Storage::Input(i) => self.instance.inputs[i].download(from, to),
            Storage::Constant(i) => {
                let lost = || Error::Internal("a result that was not uploaded".into());
                self.executor.constants.given(i).ok_or_else(lost)?.memory.download(from, to)
            }
            Storage::Arena(offset) => self.instance.arena.download(offset + from, to),
        }
    }
}
