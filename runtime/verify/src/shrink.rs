//! Shrinking of counterexamples.
//!
//! In: the choice sequence of a failing instance, and a test that says whether a choice sequence
//! still fails the same way. Out: the simplest failing choice sequence that was found. Invariant:
//! the result fails; the number of tries is bounded.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::source::ChoiceSequence;

/// The largest number of tries.
const TRIES: usize = 6000;
/// Fresh sets of values that are tried with each simpler structure. Many are tried once nothing
/// else helps, because rounding shows in few elements, and a smaller tensor has fewer.
const FILLS: usize = 3;
const MANY_FILLS: usize = 60;

/// The simplest choice sequence for which `fails` holds, starting from one for which it does.
/// `fails` returns the choice sequence as it was read (cut after the last choice).
pub fn shrink(
    start: ChoiceSequence,
    fails: &mut dyn FnMut(&ChoiceSequence) -> Option<ChoiceSequence>,
) -> ChoiceSequence {
    let mut s = Shrinker { best: start, fails, left: TRIES, fills: FILLS, rng: ChaCha8Rng::seed_from_u64(1) };
    loop {
        let before = s.best.clone();
        s.cut_structure();
        s.lower(true);
        s.zero_blocks();
        s.lower(false);
        match (s.best == before, s.fills) {
            _ if s.left == 0 => return s.best,
            (true, MANY_FILLS) => return s.best,
            (true, _) => s.fills = MANY_FILLS,
            (false, _) => s.fills = FILLS,
        }
    }
}

struct Shrinker<'a> {
    best: ChoiceSequence,
    fails: &'a mut dyn FnMut(&ChoiceSequence) -> Option<ChoiceSequence>,
    left: usize,
    fills: usize,
    rng: ChaCha8Rng,
}

impl Shrinker<'_> {
    /// Tries a choice sequence with a simpler structure, first with the same values, then with
    /// fresh ones: the differing element may be elsewhere in a smaller tensor.
    fn attempt_structure(&mut self, choices: ChoiceSequence) -> bool {
        if self.attempt(choices.clone()) {
            return true;
        }
        if choices.values.is_empty() {
            return false;
        }
        (0..self.fills).any(|fill| {
            let mut other = choices.clone();
            for v in &mut other.values {
                // Any code of `values`, simple or not; every other set mixes in codes that are
                // known to fail together.
                *v = match self.rng.random_range(0..3) {
                    0 => self.rng.random_range(0..10),
                    _ if fill % 2 == 1 => self.best.values[self.rng.random_range(0..self.best.values.len())],
                    _ => self.rng.random_range(0..4200),
                };
            }
            self.attempt(other)
        })
    }

    fn attempt(&mut self, choices: ChoiceSequence) -> bool {
        if self.left == 0 || choices == self.best {
            return false;
        }
        // Large instances take longer, so they count for more tries.
        self.left = self.left.saturating_sub(1 + choices.values.len() / 1024);
        match (self.fails)(&choices) {
            Some(read) if simpler(&read, &self.best) => {
                self.best = read;
                true
            }
            _ => false,
        }
    }

    /// Sets all values, then halves, quarters, ... of them, to the simplest.
    fn zero_blocks(&mut self) {
        let mut size = self.best.values.len();
        while size > 0 {
            let mut at = 0;
            while at < self.best.values.len() {
                let end = (at + size).min(self.best.values.len());
                let mut choices = self.best.clone();
                choices.values[at..end].fill(0);
                self.attempt(choices);
                at += size;
            }
            size /= 2;
        }
    }

    /// Removes choices; the following ones move up.
    fn cut_structure(&mut self) {
        for size in [8, 3, 2, 1] {
            let mut at = 0;
            while at + size <= self.best.structure.len() {
                let mut choices = self.best.clone();
                choices.structure.drain(at..at + size);
                if !self.attempt_structure(choices) {
                    at += 1;
                }
            }
        }
    }

    /// Lowers single choices: to 0, to a half, by one.
    fn lower(&mut self, structure: bool) {
        let mut at = 0;
        while at < half(&self.best, structure).len() {
            let now = half(&self.best, structure)[at];
            let lower = |this: &mut Self, v: u32| {
                let mut choices = this.best.clone();
                let half = if structure { &mut choices.structure } else { &mut choices.values };
                half[at] = v;
                if structure { this.attempt_structure(choices) } else { this.attempt(choices) }
            };
            if now > 0 && !lower(self, 0) {
                let mut small = 1;
                while small < now && small <= 4 && !lower(self, small) {
                    small += 1;
                }
                if small > 4 && now / 2 > 4 {
                    lower(self, now / 2);
                }
            }
            at += 1;
        }
    }
}

fn half(choices: &ChoiceSequence, structure: bool) -> &[u32] {
    if structure { &choices.structure } else { &choices.values }
}

/// True if `a` is simpler: fewer choices, then smaller ones.
fn simpler(a: &ChoiceSequence, b: &ChoiceSequence) -> bool {
    let key = |t: &ChoiceSequence| (t.structure.len() + t.values.len(), t.structure.clone(), t.values.clone());
    key(a) < key(b)
}
