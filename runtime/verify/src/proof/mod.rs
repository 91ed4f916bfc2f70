//! Proofs of scalar identities: for every size and rank, without any values.
//!
//! In: a rule. Out: whether it is [`Proved`], bit for bit or over the reals. Invariant: `check`
//! alone decides. It replays the steps that `search` found, and trusts nothing else of it.
//!
//! `element` says what one element of each side is: a function of elements of the rule's variables,
//! and of ops that nothing is assumed about. A proof says nothing about types, guards, NaN and
//! infinities, nor, over the reals, about rounding and the wrapping of integers: a proved rule is
//! tested like every other one.

mod check;
mod element;
mod search;

use hypatia_dsl::ir::{Program, Rule};

/// What was proved of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proved {
    /// Both sides do the same operations, up to those that change no bit of an ordinary number.
    Bits,
    /// Both sides are the same function of real numbers wherever both are defined.
    Reals,
}

/// What can be proved of a rule.
pub(super) fn proved(program: &Program, rule: &Rule) -> Option<Proved> {
    let pairs = element::pairs(program, rule)?;
    let one = |proved: Proved| {
        pairs.iter().all(|(left, right)| {
            let proof = search::proof(left, right, proved);
            check::holds(&proof, left, right, proved)
        })
    };
    [Proved::Bits, Proved::Reals].into_iter().find(|p| one(*p))
}
