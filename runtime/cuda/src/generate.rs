//! Generates source files, machine code and a manifest from kernels of `.hyp` files and of models.
//!
//! In: kernel instances of a Program or of a plan, and the requested outputs (architectures,
//! sources). Out: files in a folder. Invariant: the same input gives the same bytes; a file appears
//! complete or not at all (it is written to a temporary file and renamed); `manifest.json` is
//! written last, so that it never names a missing file.

mod plan;
mod write;

pub use hypatia_templates::cuda::{CudaSource, EmitError};
pub use hypatia_templates::instances::{Body, Instance, Scope, Skipped, instantiate, of_program};
pub use plan::{PlanKernels, of_plan};
pub use write::{ChoiceEntry, Manifest, Request, StepEntry, Written, write};
