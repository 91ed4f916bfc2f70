//! Lints: warnings about declarations that are valid but probably not intended.
//!
//! In: a checked Program and its syntax trees. Out: warnings, one for each written rule, however
//! many rules its families expand to. Invariant: lints never decide whether a Program is accepted,
//! and trusted files are not linted.

mod axes;
mod costs;
mod growth;
mod guards;
mod kernels;
mod rules;
mod unused;

use std::collections::HashSet;

use crate::checker::KernelChecker;
use crate::code;
use crate::diag::Diagnostic;
use crate::ir::Program;
use crate::resolve::Resolved;
use crate::source::SourceMap;

/// All warnings about a program.
pub fn lint(
    program: &Program,
    resolved: &Resolved,
    sources: &SourceMap,
    checker: &dyn KernelChecker,
) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    rules::lint(program, resolved, &mut out);
    growth::lint(program, resolved, &mut out);
    guards::lint(program, resolved, &mut out);
    axes::lint(program, resolved, &mut out);
    kernels::lint(program, resolved, checker, &mut out);
    costs::lint(program, resolved, &mut out);
    unused::lint(program, resolved, sources, &mut out);
    // A kernel that no device admits can never apply, of course.
    let refused: HashSet<_> = out.iter().filter(|d| d.code == code::NEVER_ADMITTED).map(|d| d.primary.span).collect();
    out.retain(|d| d.code != code::UNREACHABLE_GUARD || !refused.contains(&d.primary.span));
    // Warn once about a rule that its families expand many times.
    let mut seen = HashSet::new();
    out.retain(|d| seen.insert((d.code, d.primary.span)));
    out
}
