//! Scalar terms: pure functions of an accumulator, parameters and operands.
//!
//! In: bodies of scalars, epilogues, pointwise regions. Out: evaluation in f64 and in a dtype,
//! types, derivatives, simplification, patterns, text. Invariant: a node's arguments precede it, so
//! a term is evaluated in one pass and shared subterms are computed once.

mod ac;
mod build;
mod derive;
pub mod device;
mod eval;
mod pattern;
mod print;
mod simplify;
#[cfg(test)]
pub(crate) mod testing;
pub mod typed;

pub use ac::{canonical_key, equal_modulo_ac, match_modulo_ac};
pub use build::{TermBuilder, expand, prune};
pub use derive::{derivative, derived_gradients, gradients};
pub use eval::{EvalError, Leaves, Precision, Value, apply, eval, eval_f64, float, int};
pub use pattern::{NotOneTerm, TermPattern};
pub use print::{show_number, show_term, show_term_with};
pub use simplify::simplify;

pub use crate::term::{Literal, Term, TermId, TermNode};
