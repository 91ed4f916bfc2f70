//! Random choices that can be replayed and simplified.
//!
//! In: a seed, or recorded choices. Out: choices. Invariant: replaying choices gives the same
//! instance; a choice sequence that was cut or changed still gives an instance, because missing
//! choices read as 0 and large ones are clamped. The generators list the simplest alternative
//! first, so smaller numbers mean a simpler instance. The shrinker needs to know nothing else.
//! Behind the alternatives that chance takes may stand others, which a search for instances that
//! satisfy guards takes.

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
    /// Each value was drawn once: what a guard refuted was not drawn again.
    pub once: bool,
}

/// The source of a generator's choices.
pub struct Source {
    choices: ChoiceSequence,
    /// Of each structural choice that was read, the number of alternatives.
    bounds: Vec<u32>,
    at: (usize, usize),
    rng: Option<ChaCha8Rng>,
}

impl Source {
    /// Fresh choices, recorded.
    pub fn random(seed: u64) -> Source {
        Source::continued(ChoiceSequence::default(), seed)
    }

    /// Replays these choices, then goes on with fresh ones; all are recorded.
    pub fn continued(choices: ChoiceSequence, seed: u64) -> Source {
        Source { choices, bounds: Vec::new(), at: (0, 0), rng: Some(ChaCha8Rng::seed_from_u64(seed)) }
    }

    /// Replays recorded choices.
    pub fn replay(choices: ChoiceSequence) -> Source {
        Source { choices, bounds: Vec::new(), at: (0, 0), rng: None }
    }

    /// Whether a value that a guard refutes is drawn again.
    pub fn draws_again(&self) -> bool {
        !self.choices.once
    }

    /// A number that a fresh source goes on with; none where choices are replayed only. It is no
    /// choice, and it is not recorded.
    pub fn seed(&mut self) -> Option<u64> {
        self.rng.as_mut().map(|rng| rng.random())
    }

    /// The structural choices that were read, each with the number of its alternatives.
    pub fn structure(&self) -> (&[u32], &[u32]) {
        let read = self.bounds.len().min(self.choices.structure.len());
        (&self.choices.structure[..read], &self.bounds[..read])
    }

    /// The recorded choices.
    pub fn into_choices(mut self) -> ChoiceSequence {
        self.choices.structure.truncate(self.at.0);
        self.choices.values.truncate(self.at.1);
        self.choices
    }

    /// One of `n` alternatives, all equally likely.
    pub fn pick(&mut self, n: usize) -> usize {
        self.pick_or_beyond(n, 0)
    }

    /// The same; beyond these are alternatives that chance never takes, but that a choice sequence
    /// may name.
    pub fn pick_or_beyond(&mut self, n: usize, beyond: usize) -> usize {
        self.choose(n + beyond, |rng| if n <= 1 { 0 } else { rng.random_range(0..n as u32) })
    }

    /// One of the alternatives, with probability proportional to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        self.weighted_or_beyond(weights, 0)
    }

    /// The same, with alternatives beyond these as in [`Self::pick_or_beyond`].
    pub fn weighted_or_beyond(&mut self, weights: &[u32], beyond: usize) -> usize {
        let total: u32 = weights.iter().sum();
        self.choose(weights.len() + beyond, |rng| {
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
        let choice = match (self.choices.structure.get(self.at.0), &mut self.rng) {
            (Some(choice), _) => *choice,
            (None, Some(rng)) => {
                let c = fresh(rng);
                self.choices.structure.push(c);
                c
            }
            (None, None) => 0,
        };
        self.at.0 += 1;
        self.bounds.push(n as u32);
        (choice as usize).min(n - 1)
    }

    /// An element's code among the values.
    pub fn element(&mut self, n: u32, fresh: impl FnOnce(&mut ChaCha8Rng) -> u32) -> u32 {
        let choice = match (self.choices.values.get(self.at.1), &mut self.rng) {
            (Some(choice), _) => *choice,
            (None, Some(rng)) => {
                let c = fresh(rng);
                self.choices.values.push(c);
                c
            }
            (None, None) => 0,
        };
        self.at.1 += 1;
        choice.min(n.saturating_sub(1))
    }
}
