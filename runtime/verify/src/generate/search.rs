//! Choices that satisfy guards, found from choices that do not.
//!
//! In: the choices of a left side whose shapes or attributes refute a guard. Out: an instance that
//! satisfies all guards, if one was found. Invariant: each step changes one choice, and goes no
//! farther from what the guards require ([`Generator::unmet`]); the number of left sides that are
//! built is bounded.
//!
//! Chance rarely gives `dim(x, 0) == 3 * dim(i, 0)`, and no order in which the sizes are chosen
//! makes every such guard easy. Changing what was chosen knows nothing of ops or guards, so it
//! serves all of them.

use std::cell::Cell;
use std::sync::Arc;

use hypatia_dsl::ir::{Program, Rule};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Focus, Generator, Instance, Try, apart, elements, instance, left_side};
use crate::hints::Hints;
use crate::source::{ChoiceSequence, Source};

/// The number of left sides that one search builds at most.
const TRIES: usize = 100;

/// The number of left sides that all searches for one rule build before one succeeds, and for each
/// that did.
const FIRST: usize = 20_000;
const FURTHER: usize = 4_000;

/// Where chance needs more attempts than this for an instance, instances are searched for.
const RARE: usize = 50;

/// True if so many attempts gave so few instances that the next one is searched for.
pub fn is_rare(attempts: usize, found: usize) -> bool {
    attempts >= RARE * (found + 1)
}

/// What the searches for one rule have cost and found.
#[derive(Default)]
pub struct Effort {
    built: Cell<usize>,
    found: Cell<usize>,
}

impl Effort {
    /// Counts one left side; false if the searches find too little for another.
    fn spend(&self) -> bool {
        self.built.set(self.built.get() + 1);
        self.built.get() <= FIRST + FURTHER * self.found.get()
    }
}

/// An instance close to the one that `source` gave and that guards refuted, if one was found; the
/// choices of `source` are then its choices.
pub fn solved(
    program: &Arc<Program>,
    rule: &Rule,
    hints: &Hints<'_>,
    source: &mut Source,
    focus: Focus,
    effort: &Effort,
) -> Option<Instance> {
    let mut rng = ChaCha8Rng::seed_from_u64(source.seed()?);
    let seed = rng.random();
    let structure = Search { program, rule, hints, focus, effort, tries: TRIES, rng }.run(source.structure().0)?;
    let mut found = Source::continued(once(structure), seed);
    let made = instance(program, rule, hints, &mut found, focus, &|_, _| None).ok()?;
    effort.found.set(effort.found.get() + 1);
    *source = found;
    Some(made)
}

/// Structural choices of a left side. A search that changes one choice draws nothing again.
fn once(structure: Vec<u32>) -> ChoiceSequence {
    ChoiceSequence { structure, values: Vec::new(), once: true }
}

struct Search<'a> {
    program: &'a Arc<Program>,
    rule: &'a Rule,
    hints: &'a Hints<'a>,
    focus: Focus,
    effort: &'a Effort,
    tries: usize,
    rng: ChaCha8Rng,
}

/// A left side, by its choices.
struct Draft {
    structure: Vec<u32>,
    /// The number of alternatives of each choice.
    bounds: Vec<u32>,
    /// How far each guard is from holding, and all of them together.
    guards: Vec<f64>,
    unmet: f64,
}

impl Search<'_> {
    /// Choices that refute no guard; none if the guards are about values, or none were found.
    fn run(&mut self, start: &[u32]) -> Option<Vec<u32>> {
        let mut best = self.draft(start.to_vec()).ok()?;
        if best.unmet == 0.0 {
            return None;
        }
        while best.unmet > 0.0 {
            best = self.step(&best)?;
        }
        Some(best.structure)
    }

    /// The first change of one choice that comes closer; else one that exchanges what is met for as
    /// much of something else: `k == s, k == 3` lead from 2, 2 over 3, 2 to 3, 3. Choices of which
    /// one change makes no difference come last: most of them are about other things.
    fn step(&mut self, from: &Draft) -> Option<Draft> {
        let (mut telling, mut silent, mut sideways) = (Vec::new(), Vec::new(), Vec::new());
        // The way to satisfy the guards is the first choice, and stays.
        for at in self.shuffled(usize::from(!self.hints.ways.is_empty())..from.structure.len()) {
            let (choice, bound) = (from.structure[at], from.bounds[at]);
            let mut others = self.shuffled((0..bound).filter(|c| *c != choice));
            let Some(first) = others.pop() else { continue };
            let of = match self.changed(from, at, first)? {
                Ok(closer) if closer.unmet < from.unmet => return Some(closer),
                Ok(same) if same.guards == from.guards => &mut silent,
                Ok(_) | Err(_) => &mut telling,
            };
            of.extend(others.into_iter().map(|c| (at, c)));
        }
        for changes in [telling, silent] {
            for (at, choice) in self.shuffled(changes) {
                match self.changed(from, at, choice)? {
                    Ok(closer) if closer.unmet < from.unmet => return Some(closer),
                    Ok(other) if other.unmet == from.unmet && other.guards != from.guards => sideways.push(other),
                    Ok(_) | Err(_) => {}
                }
            }
            if !sideways.is_empty() {
                let at = self.rng.random_range(0..sideways.len());
                return Some(sideways.swap_remove(at));
            }
        }
        None
    }

    fn shuffled<T>(&mut self, items: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut items: Vec<T> = items.into_iter().collect();
        items.shuffle(&mut self.rng);
        items
    }

    /// The left side with one choice changed, or why there is none; nothing if the effort is spent.
    fn changed(&mut self, from: &Draft, at: usize, choice: u32) -> Option<Try<Draft>> {
        if self.tries == 0 || !self.effort.spend() {
            return None;
        }
        self.tries -= 1;
        let mut structure = from.structure.clone();
        structure[at] = choice;
        Some(self.draft(structure))
    }

    /// The left side that these choices give, if it type-checks.
    fn draft(&mut self, structure: Vec<u32>) -> Try<Draft> {
        let mut source = Source::continued(once(structure), self.rng.random());
        let (g, _) = left_side(self.program, self.rule, self.hints, &mut source, self.focus, &|_, _| None)?;
        let guards = g.unmet();
        let unmet = guards.iter().sum::<f64>() + g.emptiness() + g.equality();
        let (structure, bounds) = source.structure();
        Ok(Draft { structure: structure.to_vec(), bounds: bounds.to_vec(), guards, unmet })
    }
}

impl Generator<'_, '_> {
    /// Something for two axes that are to have different sizes, and have one size.
    fn equality(&self) -> f64 {
        self.unequal.map_or(0.0, |pair| if apart(&self.graph, &self.env, pair) { 0.0 } else { 0.75 })
    }

    /// Something for each input without elements: 0 is a multiple of everything, but says nothing.
    fn emptiness(&self) -> f64 {
        let empty = self.made.iter().filter(|m| elements(self.graph.ty(m.0)) == 0).count();
        if self.hints.constants.empty { 0.0 } else { empty as f64 * 0.5 }
    }
}
