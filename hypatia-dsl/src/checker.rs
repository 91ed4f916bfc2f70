//! What the front end asks of the crate that generates kernels.
//!
//! In: a checked kernel. Out: whether it can be generated, and what is wrong with a user's template. The front end knows no
//! CUDA: it is handed a [`KernelChecker`], as it is handed a [`Loader`](crate::loader::Loader).

use crate::ir::{Kernel, Program};

/// Answers for the language that kernels are generated in.
pub trait KernelChecker {
    /// Why no kernel can be generated from the body of the op that a `rowwise` or `pointwise` kernel is for, in any element
    /// type and form; `None` if one can, or if it is no such kernel.
    fn not_generated(&self, program: &Program, kernel: &Kernel) -> Option<String>;

    /// What is wrong with the template of a kernel. Only where the program is `sound` are the kernel's types known, so that
    /// the template can be filled in.
    fn template_faults(&self, program: &Program, kernel: &Kernel, sound: bool) -> Vec<TemplateFault>;
}

/// One thing that is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFault {
    /// The line, counted from 1, if it is about one.
    pub line: Option<usize>,
    /// One sentence.
    pub message: String,
    /// Facts that help to understand.
    pub notes: Vec<String>,
    /// What to do.
    pub hints: Vec<String>,
}

/// Finds nothing wrong: for programs of which no kernel is generated.
pub struct Unchecked;

impl KernelChecker for Unchecked {
    fn not_generated(&self, _: &Program, _: &Kernel) -> Option<String> {
        None
    }

    fn template_faults(&self, _: &Program, _: &Kernel, _: bool) -> Vec<TemplateFault> {
        Vec::new()
    }
}
