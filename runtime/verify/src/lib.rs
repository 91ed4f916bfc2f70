//! Verification: is every rewrite true, and as precise as it claims?
//!
//! In: a Program, and which of its declarations to check. Out: a [`Report`], one entry per
//! declaration, with a shrunk counterexample for each false one. Invariant: the same seed gives the
//! same report; a rule for which no legal instance could be made is reported as not exercised,
//! never as verified.
//!
//! `constants` collects the numbers that a rule depends on. `generate` makes instances of its left
//! side, and `sides` puts both sides into one graph. `check` compares them, with `noise` and
//! `scatter` to tell rounding from error, `range` to detect overflow, and `range_loss` to detect
//! lost constants. `shrink` and `block` turn a failure into a test that can be pasted. `epilogue`
//! moves lifted rules into epilogues. `short` checks rules that put a device's short functions into
//! kernels. `scalars`, `ops` and `kernels` check derivatives, op bodies with their kernels, and
//! library kernels. `mutate` breaks rules on purpose, to show that verification notices.

pub mod block;
pub mod check;
mod constants;
pub mod differ;
mod epilogue;
mod folded_call;
mod generate;
mod hints;
mod kernels;
pub mod mutate;
mod noise;
mod ops;
mod options;
pub mod range;
mod range_loss;
pub mod report;
mod rules;
mod scalars;
mod scatter;
mod short;
mod shrink;
mod sides;
mod skips;
mod source;
pub mod test_runner;
mod values;

use std::sync::Arc;

use hypatia_dsl::ir::{Origin, Program};

pub use options::Options;
pub use report::{Counterexample, Entry, Report, Status, Subject};
pub use rules::{first_failure, verify_rule};

/// Verifies every declaration whose origin `wanted` accepts. `progress` receives each name before
/// its check starts.
pub fn verify(
    program: &Arc<Program>,
    wanted: &dyn Fn(&Origin) -> bool,
    options: &Options,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Report {
    let rules: Vec<_> = program.rules.iter().filter(|r| wanted(&r.origin)).collect();
    let scalars: Vec<_> = program.scalars.iter().enumerate().filter(|(_, s)| wanted(&s.origin)).collect();
    let ops: Vec<_> = program.ops.iter().enumerate().filter(|(_, o)| wanted(&o.origin)).collect();
    let kernels: Vec<_> = program.kernels.iter().filter(|k| wanted(&k.origin)).collect();
    let total = rules.len() + scalars.len() + ops.len() + kernels.len();
    let mut entries = Vec::new();
    for (i, scalar) in scalars {
        progress(&scalar.name, entries.len(), total);
        entries.push(scalars::verify_scalar(program, i, options));
    }
    for (i, op) in ops {
        progress(&op.name, entries.len(), total);
        entries.push(ops::verify_op(program, i, options));
    }
    for kernel in kernels {
        progress(&kernel.name, entries.len(), total);
        entries.push(kernels::verify_kernel(program, kernel, options));
    }
    for rule in rules {
        progress(&rule.name, entries.len(), total);
        entries.push(verify_rule(program, rule, options));
    }
    Report { options: options.clone(), entries: entries.into_iter().flatten().collect() }
}
