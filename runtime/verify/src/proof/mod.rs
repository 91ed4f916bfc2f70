//! Proofs for all sizes, without any values.
//!
//! In: a rule. Out: whether it is [`Proved`], bit for bit or over the reals. Invariant: `check` and
//! `place` alone decide. They replay what `search` and `cases` found, and trust nothing else of it.
//!
//! Scalar identities: `element` says what one element of each side is, a function of elements of
//! the rule's variables, and of ops that nothing is assumed about. Views: `symbolic` makes both
//! sides with symbolic sizes, for each choice of ranks, axes and orders, and `place` compares which
//! elements of the variables an element of each side reads, and what is computed of them. A proof
//! says nothing about types, guards, NaN and infinities, nor, over the reals, about rounding and
//! the wrapping of integers: a proved rule is tested like every other one.

mod cases;
mod check;
mod element;
mod place;
mod search;
mod symbolic;

use hypatia_dsl::ir::{Program, Rule};
use hypatia_dsl::kernel::short::is_short;

use crate::constants::Constants;

/// What was proved of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proved {
    /// Both sides do the same operations, up to those that change no bit of an ordinary number.
    Bits,
    /// Both sides are the same function of real numbers wherever both are defined.
    Reals,
}

/// What can be proved of a rule, whatever its instances show.
pub fn proved(program: &Program, rule: &Rule) -> Option<Proved> {
    if is_short(program, rule) {
        // It is about what a device computes, not about a body.
        return None;
    }
    by_elements(program, rule).or_else(|| by_places(program, rule))
}

/// What is proved where every op is unknown, for every rank.
fn by_elements(program: &Program, rule: &Rule) -> Option<Proved> {
    let pairs = element::pairs(program, rule)?;
    let one = |proved: Proved| {
        pairs.iter().all(|(left, right)| {
            let proof = search::proof(left, right, proved);
            check::holds(&proof, left, right, proved)
        })
    };
    [Proved::Bits, Proved::Reals].into_iter().find(|p| one(*p))
}

/// The largest ranks of operands: fewer axes where there are too many shapes.
const AXES: [usize; 2] = [4, 3];

/// What is proved with views as maps of indices, for every size.
fn by_places(program: &Program, rule: &Rule) -> Option<Proved> {
    let up_to = |axes: usize, proved: Proved| {
        symbolic::every_instance(program, rule, axes, &mut |made| {
            made.roots.iter().all(|sides| {
                let tree = cases::tree(program, &made.tensors, *sides, proved);
                tree.is_some_and(|tree| {
                    place::holds(program, &made.tensors, *sides, &tree, &Default::default(), proved)
                })
            })
        })
    };
    // A rule that asks for more axes may be another one there.
    let asks = Constants::of(program, rule).counts.into_iter().max().unwrap_or(0);
    let one = |proved: &Proved| AXES.into_iter().any(|axes| asks <= axes as i64 && up_to(axes, *proved));
    [Proved::Bits, Proved::Reals].into_iter().find(one)
}
