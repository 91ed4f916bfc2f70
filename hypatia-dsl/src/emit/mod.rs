//! What a Program is printed as: CUDA C++ for kernels, Rust for a whole program.
//!
//! In: a checked [`Program`](crate::ir::Program) and kernel descriptions. Out: text and tokens.
//! Holds always: the same input gives the same bytes, and no text of the user reaches the output
//! except through the expression grammar, as a mangled name, or inside a comment made harmless.

pub mod cuda;
pub mod instances;
pub mod rust;
