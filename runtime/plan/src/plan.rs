//! The plan: what an executor runs.
//!
//! In: nothing; `build` makes it. Out: buffers, steps in order, and checks of what a caller passes.
//! Invariant: see [`Plan::validate`].

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Program, RuleId};
use hypatia_dsl::numerics::Allowed;

use super::buffer::Buffer;
use super::options::Checks;
use super::step::Step;
use super::view::View;
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// An input that the caller must supply.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
}

/// A rule that fired in a generated kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortened {
    /// The step's name: the nodes of the model that it computes.
    pub step: String,
    /// The rule.
    pub rule: RuleId,
}

/// What an executor runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The Program that defines the scalars of the terms.
    pub program: Arc<Program>,
    /// The device that it was made for.
    pub device: Device,
    /// Inputs in the order of the model.
    pub inputs: Vec<PlanInput>,
    /// Weights, and constants computed from them.
    pub constants: Vec<Arc<Tensor>>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Name and view of each output; contiguous.
    pub outputs: Vec<(String, View)>,
    /// Bytes of the arena.
    pub arena: usize,
    /// How products on a GPU are checked.
    pub checks: Checks,
    /// Which approximations generated kernels may use.
    pub allowed: Allowed,
    /// Where rules replaced functions with short ones.
    pub shortened: Vec<Shortened>,
}

impl Plan {
    /// Fails unless the number, types and shapes of the inputs are those of the plan, in its order.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let (got, wanted) = (inputs.len(), self.inputs.len());
            return Err(Error::Input(format!("the plan takes {wanted} inputs, but {got} inputs were given")));
        }
        for (t, i) in inputs.iter().zip(&self.inputs) {
            if t.dtype() != i.dtype || t.shape() != i.shape {
                let got = format!("{}{:?}", t.dtype(), t.shape());
                return Err(Error::Input(format!("input `{}` must be {}{:?}, but is {got}", i.name, i.dtype, i.shape)));
            }
        }
        Ok(())
    }

    /// Fails unless the tensors have the types and shapes of the plan's outputs, in its order.
    pub fn check_outputs(&self, outputs: &[Tensor]) -> Result<()> {
        if outputs.len() != self.outputs.len() {
            let (got, wanted) = (outputs.len(), self.outputs.len());
            return Err(Error::Input(format!("the plan has {wanted} outputs, but {got} tensors were given for them")));
        }
        for (t, (name, view)) in outputs.iter().zip(&self.outputs) {
            if t.dtype() != view.dtype || t.shape() != view.shape {
                let (got, wanted) =
                    (format!("{}{:?}", t.dtype(), t.shape()), format!("{}{:?}", view.dtype, view.shape));
                return Err(Error::Input(format!("output `{name}` is {wanted}, but the tensor for it is {got}")));
            }
        }
        Ok(())
    }

    /// The nodes that a step computes. A step that rules made from parts of several nodes has no
    /// name of its own: its readers identify it.
    pub fn step_name(&self, i: usize) -> String {
        let step = &self.steps[i];
        if !step.name.is_empty() {
            return step.name.clone();
        }
        let written = |view: &View| step.writes.iter().any(|w| w.buffer == view.buffer);
        if let Some((name, _)) = self.outputs.iter().find(|(_, view)| written(view)) {
            return format!("output {name}");
        }
        match (i + 1..self.steps.len()).find(|j| self.steps[*j].reads.iter().any(written)) {
            Some(j) if self.steps[j].name.is_empty() => self.step_name(j),
            Some(j) => format!("what {} reads", self.steps[j].name),
            None => format!("step {i}"),
        }
    }

    /// Number of launches, where each step takes its first choice.
    pub fn launches(&self) -> usize {
        self.steps.iter().map(Step::launches).sum()
    }
}
