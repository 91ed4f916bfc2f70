//! Verification: is every rewrite true, and as precise as it claims?
//!
//! In: a Program, and which of its declarations to check. Out: a [`Report`], one entry per
//! declaration, with a shrunk counterexample for each false one. Invariant: the same seed gives the
//! same report; a rule for which no legal instance could be made is reported as not exercised,
//! never as verified.
//!
//! `constants` collects the numbers that a rule depends on. `generate` makes instances of its left
//! side. `check` compares both sides on them, with `explode` to tell rounding from error, `range`
//! to detect overflow, and `folds` to detect lost constants. `shrink` and `block` turn a failure
//! into a test that can be pasted. `epilogue` moves lifted rules into epilogues. `short` checks
//! rules that put a device's short functions into kernels. `scalars`, `ops` and `kernels` check
//! derivatives, op bodies with their kernels, and library kernels. `mutate` breaks rules on
//! purpose, to show that verification notices.

mod attributes;
pub mod block;
pub mod check;
mod constants;
pub mod differ;
mod epilogue;
mod explode;
mod folds;
mod generate;
mod hints;
mod kernels;
pub mod mutate;
mod ops;
pub mod range;
pub mod report;
mod rules;
mod scalars;
mod short;
mod shrink;
mod skips;
mod source;
mod terms;
pub mod test_runner;
mod values;
mod wants;

use std::sync::Arc;

use hypatia_dsl::ir::{Origin, Program};

pub use report::{Counterexample, Entry, Report, Status, Subject};
pub use rules::{first_failure, verify_rule};

/// How thorough the search is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Legal instances of each rule.
    pub cases: usize,
    /// The seed of the random choices.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { cases: 100, seed: 0 }
    }
}

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

/// A separate seed for each declaration, so that an additional rule does not change the cases of
/// the others.
fn seed_of(options: &Options, name: &str) -> u64 {
    // FNV-1a: stable across versions, unlike `DefaultHasher`.
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for b in name.bytes() {
        h = (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h
}
