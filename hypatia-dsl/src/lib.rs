//! The Hypatia language: text to a checked [`ir::Program`].
//!
//! Start at [`compile`]: the whole pipeline on one page.

pub mod ast;
pub mod builtin;
pub mod checker;
pub mod code;
pub mod codes;
pub mod compile;
pub mod diag;
pub mod fmt;
mod foreign;
pub mod ident;
pub mod interpret;
pub mod ir;
pub mod kernel;
pub mod lint;
pub mod loader;
pub mod neutral;
pub mod numerics;
pub mod parallel;
pub mod parse;
pub mod program_print;
pub mod regions;
pub mod render;
pub mod resolve;
pub mod scalar;
pub mod sema;
pub mod shape;
pub mod source;
pub mod spell;
mod templates;
pub mod term;
pub mod typing;

pub use hypatia_target::dtype;
