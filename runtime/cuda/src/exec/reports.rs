//! What checksums report, and what is made of it.
//!
//! In: memory of the host into which the comparisons of a run write. Out: [`Suspicion`]s.
//! Invariant: a run that reports nothing changes nothing here, and costs the host a glance. A
//! suspicion is no fault yet: a run is repeated first, and what both runs report is judged by
//! whoever knows the results that other kernels give.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaStream;

use super::Executor;
use crate::address::{FAULT, REPORT, REPORTS};
use crate::memory::Pinned;
use hypatia_plan::{Checks, Plan};
use hypatia_tensor::error::Result;

/// A sum of accumulators that rounding rarely takes so far from what it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspicion {
    /// The step of the plan.
    pub step: usize,
    /// The row of its product, through all products of a batch, and the first column of the sum.
    pub at: [usize; 2],
    /// The sum.
    pub got: f32,
    /// What it should have been.
    pub want: f32,
    /// The difference that rounding explains.
    pub allowed: f32,
    /// True if a second run with the same operands reported the step again.
    pub repeated: bool,
}

/// What a test does to the products of a plan with [`Checks::Disturbed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Nothing any more.
    Nothing,
    /// Inverts a bit of one element, once: of all products, the first one that is so large.
    Flip {
        /// Row and column.
        at: [usize; 2],
        /// The bit of its accumulator, or of its result if a library computes it; from the lowest.
        bit: u32,
    },
    /// Doubles one element in this many (a power of two), of every product, in every run.
    Double(usize),
}

/// Memory of the host that kernels of a run write to.
pub(super) struct Reports {
    memory: Option<Pinned>,
    steps: usize,
}

impl Reports {
    /// For the runs of an instance.
    pub fn new(stream: &Arc<CudaStream>, plan: &Plan) -> Result<Reports> {
        let steps = plan.steps.len();
        let memory = match plan.checks {
            Checks::Off => None,
            Checks::On | Checks::Disturbed => Some(Pinned::new(stream, REPORTS + REPORT * steps)?),
        };
        Ok(Reports { memory, steps })
    }

    /// Its address for kernels; 0 if nothing is checked.
    pub fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, Pinned::address)
    }

    /// What the last run reported. No run may be in progress.
    fn take(&mut self) -> Vec<Suspicion> {
        let Some(memory) = &mut self.memory else { return Vec::new() };
        let (_, reports) = memory.bytes_mut().split_at_mut(REPORTS);
        let mut out = Vec::new();
        for (step, report) in reports.chunks_exact_mut(REPORT).take(self.steps).enumerate() {
            let word =
                |i: usize| report.get(i * 4..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b));
            let Some(row) = (word(0) as usize).checked_sub(1) else { continue };
            let [got, want, allowed] = [2, 3, 4].map(|i| f32::from_bits(word(i)));
            out.push(Suspicion { step, at: [row, word(1) as usize], got, want, allowed, repeated: false });
            report.fill(0);
        }
        out
    }

    /// Disturbs the next runs.
    fn disturb(&mut self, how: Disturbance) {
        let Some(memory) = &mut self.memory else { return };
        let words: [u32; 4] = match how {
            Disturbance::Nothing => [0; 4],
            Disturbance::Flip { at: [row, column], bit } => [1, row as u32, column as u32, bit],
            Disturbance::Double(one_in) => [2, 0, 0, one_in as u32],
        };
        for (to, word) in memory.bytes_mut()[FAULT..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// What the runs of an executor have reported.
#[derive(Default)]
pub(super) struct Suspicions {
    found: Mutex<Vec<Suspicion>>,
    /// Steps whose sums were found to be right though far away, and by how many times what is
    /// allowed.
    accepted: Mutex<Vec<(usize, f32)>>,
}

impl Suspicions {
    /// What a run has reported that was not found to be right before.
    pub fn of(&self, reports: &mut Reports) -> Vec<Suspicion> {
        let mut found = reports.take();
        if !found.is_empty() {
            let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
            let usual = |s: &Suspicion| accepted.iter().any(|(step, times)| *step == s.step && s.excess() <= *times);
            found.retain(|s| !usual(s));
        }
        found
    }

    /// Keeps what two runs with the same operands have reported, the one after the other.
    pub fn decide(&self, first: Vec<Suspicion>, second: Vec<Suspicion>) {
        let again = |s: &Suspicion| second.iter().any(|t| t.step == s.step);
        let once: Vec<Suspicion> = first.into_iter().filter(|s| !again(s)).collect();
        let twice = second.into_iter().map(|s| Suspicion { repeated: true, ..s });
        self.found.lock().unwrap_or_else(PoisonError::into_inner).extend(once.into_iter().chain(twice));
    }
}

impl Suspicion {
    /// How many times the allowed difference it is; infinite for NaN.
    pub fn excess(&self) -> f32 {
        let times = (self.got - self.want).abs() / self.allowed;
        if times.is_nan() { f32::INFINITY } else { times }
    }
}

impl Executor {
    /// What checksums have found since this was last called. What is not `repeated` was computed
    /// again, and is right.
    pub fn suspicions(&self) -> Vec<Suspicion> {
        std::mem::take(&mut *self.suspicions.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The results were right though a step's sums were that many times the allowed difference
    /// apart: twice as much raises no suspicion from now on.
    pub fn accept(&self, step: usize, times: f32) {
        self.suspicions.accepted.lock().unwrap_or_else(PoisonError::into_inner).push((step, times * 2.0));
    }

    /// Disturbs the next run, or the runs, of an idle instance as a test wants it.
    ///
    /// # Errors
    /// If no instance can be made.
    #[doc(hidden)]
    pub fn disturb(&self, how: Disturbance) -> Result<()> {
        let mut instance = self.take()?;
        instance.reports.disturb(how);
        self.give(instance);
        Ok(())
    }
}
