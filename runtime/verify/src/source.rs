//! Random choices that can be replayed and simplified.
//!
//! In: a seed, or recorded choices. Out: choices. Invariant: replaying choices gives the same
//! instance; a choice sequence that was cut or changed still gives an instance, because missing
//! choices read as 0 and large ones are clamped. The generators list the simplest alternative
//! first, so smaller numbers mean a simpler instance. The shrinker needs to know nothing else.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Recorded choices: shapes, attributes and types in one list, elements of tensors in the other, so
/// that a smaller shape does not shift the values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceSequence {
    /// Choices that determine the structure of the instance.
    pub structure: Vec<u32>,
    /// Elements of its tensors.
    pub values: Vec<u32>,
}

/// The source of a generator's choices.
pub struct Source {
    choices: ChoiceSequence,
    at: (usize, usize),
    rng: Option<ChaCha8Rng>,
}

impl Source {
    /// Fresh choices, recorded.
    pub fn random(seed: u64) -> Source {
        Source { choices: ChoiceSequence::default(), at: (0, 0), rng: Some(ChaCha8Rng::seed_from_u64(seed)) }
    }

    /// Replays recorded choices.
    pub fn replay(choices: ChoiceSequence) -> Source {
        Source { choices, at: (0, 0), rng: None }
    }

    /// The recorded choices.
    pub fn into_choices(mut self) -> ChoiceSequence {
        if self.rng.is_none() {
            self.choices.structure.truncate(self.at.0);
            self.choices.values.truncate(self.at.1);
        }
        self.choices
    }

    /// One of `n` alternatives, all equally likely.
    pub fn pick(&mut self, n: usize) -> usize {
        self.choose(n, |rng| rng.random_range(0..n as u32))
    }

    /// One of the alternatives, with probability proportional to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u32 = weights.iter().sum();
        self.choose(weights.len(), |rng| {
            let mut left = rng.random_range(0..total.max(1));
            let found = weights.iter().position(|w| {
                let here = left < *w;
                left = left.saturating_sub(*w);
                here
            });
            found.unwrap_or(0) as u32
        })
    }

    /// One of `n` alternatives: the preferred one, unless a choice sequence says otherwise.
    pub fn prefer(&mut self, n: usize, preferred: usize) -> usize {
        self.choose(n, |_| preferred as u32)
    }

    fn choose(&mut self, n: usize, fresh: impl FnOnce(&mut ChaCha8Rng) -> u32) -> usize {
        if n <= 1 {
            return 0;
        }
        let choice = match &mut self.rng {
            Some(rng) => {
                let c = fresh(rng);
                self.choices.structure.push(c);
                c
            }
            None => self.choices.structure.get(self.at.0).copied().unwrap_or(0),
        };
        self.at.0 += 1;
        (choice as usize).min(n - 1)
    }

    /// An element's code among the values.
    pub fn element(&mut self, n: u32, fresh: impl FnOnce(&mut ChaCha8Rng) -> u32) -> u32 {
        let choice = match &mut self.rng {
            Some(rng) => {
                let c = fresh(rng);
                self.choices.values.push(c);
                c
            }
            None => self.choices.values.get(self.at.1).copied().unwrap_or(0),
        };
        self.at.1 += 1;
        choice.min(n.saturating_sub(1))
    }
}
