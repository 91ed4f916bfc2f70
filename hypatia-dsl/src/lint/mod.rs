//! Lints: warnings about declarations that are legal and probably not meant.
//!
//! In: a checked Program and the trees it came from. Out: warnings, one for each written rule however
//! many rules its families came to. Holds always: nothing here decides whether a Program is accepted, and
//! files that are taken as checked are not looked at.

mod growth;
mod guards;
mod kernels;
mod rules;
mod unused;

use crate::diag::Diagnostic;
use crate::ir::Program;
use crate::resolve::Resolved;
use crate::source::SourceMap;

/// All warnings about a program.
pub fn lint(program: &Program, resolved: &Resolved, sources: &SourceMap) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    rules::lint(program, resolved, &mut out);
    growth::lint(program, resolved, &mut out);
    guards::lint(program, resolved, &mut out);
    kernels::lint(program, resolved, &mut out);
    unused::lint(program, resolved, sources, &mut out);
    // A rule that its families write out many times is warned about once.
    let mut seen = std::collections::HashSet::new();
    out.retain(|d| seen.insert((d.code, d.primary.span)));
    out
}
