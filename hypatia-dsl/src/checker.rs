//! The interface between the front end and the crate that generates kernels.
//!
//! In: a checked kernel. Out: whether it can be generated, and the errors in a user's template. The
//! front end knows no CUDA: it takes a [`KernelChecker`], as it takes a
//! [`Loader`](crate::loader::Loader).

use crate::ir::{Kernel, Program};

/// Checks for the language that kernels are generated in.
pub trait KernelChecker {
    /// Why no kernel can be generated from the body of the op of a `rowwise` or `pointwise` kernel,
    /// in any element type and form; `None` if one can, or if the kernel has another backend.
    fn not_generated(&self, program: &Program, kernel: &Kernel) -> Option<String>;

    /// The errors in a kernel's template. Only if the program is `sound` are the kernel's types
    /// known, so that the template can be rendered.
    fn template_faults(&self, program: &Program, kernel: &Kernel, sound: bool) -> Vec<TemplateFault>;
}

/// An error in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFault {
    /// The line of the error, counted from 1, if it has one.
    pub line: Option<usize>,
    /// One sentence.
    pub message: String,
    /// Facts that help to understand.
    pub notes: Vec<String>,
    /// What to do.
    pub hints: Vec<String>,
}

/// Accepts everything: for programs of which no kernel is generated.
pub struct Unchecked;

impl KernelChecker for Unchecked {
    fn not_generated(&self, _: &Program, _: &Kernel) -> Option<String> {
        None
    }

    fn template_faults(&self, _: &Program, _: &Kernel, _: bool) -> Vec<TemplateFault> {
        Vec::new()
    }
}
