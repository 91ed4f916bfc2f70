//! Lints: warnings about rules that are legal and probably not meant.
//!
//! In: a checked Program. Out: warnings. Holds always: nothing here decides whether a Program is
//! accepted.

use crate::diag::Diagnostic;
use crate::ir::Program;
use crate::resolve::Resolved;

/// All warnings about a program.
pub fn lint(_program: &Program, _resolved: &Resolved) -> Vec<Diagnostic> {
    Vec::new()
}
