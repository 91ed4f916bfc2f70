//! Kernels of `.hyp` files and of models as source files, machine code and a manifest.
//!
//! In: kernel instances of a Program or of a plan, and what is wanted of them (architectures, sources).
//! Out: files in a folder. Holds always: the same input gives the same bytes; a file appears whole or
//! not at all (it is written beside and renamed); `manifest.json` is written last, so that it never
//! names a file that is not there.

mod plan;
mod write;

pub use hypatia_templates::cuda::{CudaSource, EmitError};
pub use hypatia_templates::instances::{Body, Instance, Scope, Skipped, instantiate, of_program};
pub use plan::{OfPlan, of_plan};
pub use write::{Manifest, Request, StepEntry, Written, write};
