//! Verification: is every rewrite true, and as precise as it claims?
//!
//! In: a Program, and which of its declarations to check. Out: a [`Report`], one entry per
//! declaration, with a shrunk counterexample for each false one. Invariant: the same seed gives the
//! same report; a rule for which no legal instance could be made is reported as not exercised,
//! never as verified.
//!
//! `constants` collects the numbers that a rule depends on. `generate` makes instances of its left
//! side, and `sides` puts both sides into one graph. `check` compares them, with `noise` and
//! `scatter` to tell rounding from error, `choice` for indices at ties,
//! `range` to detect overflow, and `range_loss` to detect
//! lost constants. `ensemble` judges precision over thousands of elements, with ops as `inside` has
//! their kernels compute them. `shrink` and `block` turn a failure into a test that can be pasted.
//! `epilogue` moves lifted rules into epilogues. `short` checks rules that put a device's short
//! functions into kernels. `scalars`, `ops` and `kernels` check derivatives, op bodies with their
//! kernels, and library kernels. `mutate` breaks rules on purpose, and `vacuous` reports right
//! sides whose changes nobody notices. `proof` proves identities of functions and of views for all
//! sizes.

pub mod block;
pub mod check;
mod choice;
mod claim;
mod constants;
mod copies;
pub mod differ;
mod elements;
mod ensemble;
mod epilogue;
mod folded_call;
mod generate;
mod hints;
mod inside;
mod kernels;
pub mod mutate;
mod noise;
mod op_grads;
mod ops;
mod options;
mod proof;
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
mod units;
mod vacuous;
mod values;
mod ways;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use hypatia_dsl::ir::{Kernel, Origin, Program, Rule};

pub use options::Options;
pub use proof::{Proved, proved};
pub use report::{Counterexample, Entry, Report, Status, Subject};
pub use rules::{Need, first_failure, guard_need, verify_rule};

/// Verifies every declaration whose origin `wanted` accepts. `progress` receives each name after
/// its check, with the number of those before it.
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
    let scalars = scalars.into_iter().map(|(i, s)| (s.name.as_str(), Job::Scalar(i)));
    let ops = ops.into_iter().map(|(i, o)| (o.name.as_str(), Job::Op(i)));
    let kernels = kernels.into_iter().map(|k| (k.name.as_str(), Job::Kernel(k)));
    let rules = rules.into_iter().map(|r| (r.name.as_str(), Job::Rule(r)));
    let jobs: Vec<(&str, Job<'_>)> = scalars.chain(ops).chain(kernels).chain(rules).collect();
    let mut entries = in_parallel(&jobs, &|job| job.run(program, options), progress);
    of_all_members(&mut entries);
    Report { options: options.clone(), entries }
}

/// Keeps the warnings that all members of a family give: a guard that one of them needs is written
/// for the others, too.
fn of_all_members(entries: &mut [Entry]) {
    let family = |e: &Entry| e.name.split('[').next().unwrap_or_default().to_string();
    let mut members: HashMap<String, usize> = HashMap::new();
    let mut warned: HashMap<(String, String), usize> = HashMap::new();
    for e in entries.iter() {
        *members.entry(family(e)).or_default() += 1;
        e.warnings.iter().for_each(|w| *warned.entry((family(e), w.clone())).or_default() += 1);
    }
    for e in entries.iter_mut() {
        let name = family(e);
        e.warnings.retain(|w| warned.get(&(name.clone(), w.clone())) == members.get(&name));
    }
}

/// A declaration to verify.
enum Job<'a> {
    Scalar(usize),
    Op(usize),
    Kernel(&'a Kernel),
    Rule(&'a Rule),
}

impl Job<'_> {
    fn run(&self, program: &Arc<Program>, options: &Options) -> Vec<Entry> {
        match self {
            Job::Scalar(i) => scalars::verify_scalar(program, *i, options),
            Job::Op(i) => ops::verify_op(program, *i, options),
            Job::Kernel(kernel) => kernels::verify_kernel(program, kernel, options),
            Job::Rule(rule) => verify_rule(program, rule, options),
        }
    }
}

/// The entries of all jobs, in their order, whichever finishes first.
fn in_parallel(
    jobs: &[(&str, Job<'_>)],
    run: &(dyn Fn(&Job<'_>) -> Vec<Entry> + Sync),
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Vec<Entry> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let next = AtomicUsize::new(0);
    let (sender, receiver) = channel();
    let mut entries: Vec<Vec<Entry>> = vec![Vec::new(); jobs.len()];
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, job)) = jobs.get(i) else { break };
                    // The receiver lives until all senders are gone.
                    let _ = sender.send((i, run(job)));
                }
            });
        }
        drop(sender);
        for (done, (i, found)) in receiver.into_iter().enumerate() {
            progress(jobs[i].0, done, jobs.len());
            entries[i] = found;
        }
    });
    entries.into_iter().flatten().collect()
}
