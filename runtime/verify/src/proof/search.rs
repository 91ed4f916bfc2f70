//! The search for proofs: laws, applied where they apply, until none does.
//!
//! In: both terms. Out: the steps. Invariant: nothing here decides; a wrong step is refused by the
//! checker.

use super::Proved;
use super::check::{Law, Proof, Step, Term, step};

/// The limit of a side's steps.
const MOST_STEPS: usize = 200;

/// Steps that bring both sides into normal form.
pub(super) fn proof(left: &Term, right: &Term, sense: Proved) -> Proof {
    Proof { left: steps(left, sense), right: steps(right, sense) }
}

fn steps(term: &Term, sense: Proved) -> Vec<Step> {
    let (mut term, mut out) = (term.clone(), Vec::new());
    while out.len() < MOST_STEPS {
        let Some(next) = next(&term, sense, &mut Vec::new()) else { break };
        let Some(made) = step(&term, &next, sense) else { break };
        out.push(next);
        term = made;
    }
    out
}

/// The first law that applies, innermost first.
fn next(term: &Term, sense: Proved, place: &mut Vec<usize>) -> Option<Step> {
    let parts: Vec<&Term> = match term {
        Term::Call(_, args) => args.iter().collect(),
        Term::Apply(_, x) | Term::Sum(_, _, x) => vec![x],
        Term::Leaf(_) | Term::Number(_) => Vec::new(),
    };
    for (i, part) in parts.into_iter().enumerate() {
        place.push(i);
        let found = next(part, sense, place);
        place.pop();
        if found.is_some() {
            return found;
        }
    }
    let fits = |law: &Law| (sense == Proved::Reals || law.keeps_bits()) && law.apply(term).is_some();
    Law::ALL.into_iter().find(fits).map(|law| Step { law, place: place.clone() })
}
