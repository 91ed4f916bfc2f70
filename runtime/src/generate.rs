//! Kernels of `.hyp` files and of models as source files, machine code and a manifest.
//!
//! In: a Program, or a plan, and what is wanted of it (element types, architectures). Out: files in a
//! folder. Holds always: the same input gives the same bytes; a file appears whole or not at all (it
//! is written beside and renamed); `manifest.json` is written last, so that it never names a file that
//! is not there.

mod describe;
mod op;
mod write;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::emit::cuda::{self, CudaSource, EmitError};
use hypatia_dsl::ir::{Origin, Program};
use hypatia_dsl::kernel::{PointwiseKernel, RowwiseKernel};

pub use describe::{Skipped, of_program};
pub use write::{Manifest, Request, Written, write};

/// Which declarations are generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All, the standard library included.
    All,
    /// Those of the files of these names.
    Files(Vec<String>),
}

impl Scope {
    fn holds(&self, origin: &Origin) -> bool {
        match self {
            Scope::All => true,
            Scope::Files(names) => names.contains(&origin.file),
        }
    }
}

/// A kernel with its element types chosen.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The name of the declaration, or of the plan's step.
    pub kernel: String,
    /// `pointwise`, `epilogue` or `rowwise`.
    pub kind: &'static str,
    /// Where it is declared: `file:line`; empty for a plan's kernels.
    pub origin: String,
    /// The element type that it was made for.
    pub dtype: DType,
    /// What it computes.
    pub body: Body,
}

/// What an [`Instance`] computes.
#[derive(Clone, Debug)]
pub enum Body {
    /// Element by element.
    Pointwise(PointwiseKernel),
    /// Row by row.
    Rowwise(RowwiseKernel),
}

impl Body {
    /// Name and comment of the description.
    fn labels(&mut self) -> (&mut String, &mut String) {
        match self {
            Body::Pointwise(k) => (&mut k.name, &mut k.doc),
            Body::Rowwise(k) => (&mut k.name, &mut k.doc),
        }
    }
}

impl Instance {
    /// Its CUDA C++.
    pub fn emit(&self, program: &Program) -> Result<CudaSource, EmitError> {
        match &self.body {
            Body::Pointwise(k) => cuda::pointwise(program, k),
            Body::Rowwise(k) => cuda::rowwise(program, k),
        }
    }
}
