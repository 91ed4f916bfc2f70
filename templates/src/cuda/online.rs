//! Sums of exponentials below the largest element of a row, in the pass that finds that element.
//!
//! In: a row-wise kernel. Out: for a step that adds up `exp(a - r)`, where `r` is the largest `a`
//! of the row, the step that finds `r`. Rows that threads do not keep are then read once for both:
//! a thread adds up below the largest element that it has seen, and scales the sum whenever it sees
//! a larger one (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//! Invariant: both steps read the same elements; NaN and infinities come out as in two passes.

use std::collections::HashMap;

use super::carry::number;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::{InView, Program, ScalarBody, ScalarId};
use hypatia_dsl::kernel::{Reduction, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermNode};

/// A sum whose elements are exponentials below a largest element.
pub(super) struct Below {
    /// The step that finds the largest element.
    pub top: usize,
    /// The exponential function.
    exponential: ScalarId,
}

impl Below {
    /// What a step adds up, if it is that.
    pub fn of(program: &Program, kernel: &RowwiseKernel, step: usize) -> Option<Below> {
        let (Reduction::Sum, term) = &kernel.steps[step] else { return None };
        let TermNode::Call { scalar: exponential, args } = &term.nodes[term.root().0 as usize] else { return None };
        let [difference] = args.as_slice() else { return None };
        let TermNode::Call { scalar: sub, args } = &term.nodes[difference.0 as usize] else { return None };
        let [of, below] = args.as_slice() else { return None };
        let TermNode::In { input, .. } = term.nodes[below.0 as usize] else { return None };
        let top = (input as usize).checked_sub(kernel.inputs.len()).filter(|i| *i < kernel.row_steps())?;
        let is_sub = program.scalar(*sub).body == ScalarBody::Builtin(BuiltinScalar::Sub);
        if !is_sub || !is_exponential(program, *exponential) || kernel.steps[top].0 != Reduction::Max {
            return None;
        }
        // Equal values have equal numbers, across both terms.
        let mut numbers = HashMap::new();
        let largest = &kernel.steps[top].1;
        let largest = number(largest, &mut numbers)[largest.root().0 as usize];
        let of = number(term, &mut numbers)[of.0 as usize];
        (of == largest && step < kernel.row_steps()).then_some(Below { top, exponential: *exponential })
    }

    /// What a sum below the operand 0 is multiplied by where it becomes one below the operand 1.
    pub fn factor(&self, program: &Program) -> Option<Term> {
        let mut term = Term::empty();
        let [from, to] = [0, 1].map(|input| term.add(TermNode::In { input, view: InView::Broadcast }));
        let sub = program.builtin_scalar(BuiltinScalar::Sub)?;
        let difference = term.add(TermNode::Call { scalar: sub, args: vec![from, to] });
        let factor = term.add(TermNode::Call { scalar: self.exponential, args: vec![difference] });
        term.roots.push(factor);
        Some(term)
    }
}

/// True for the exponential function, and for functions that are defined as it.
fn is_exponential(program: &Program, scalar: ScalarId) -> bool {
    match &program.scalar(scalar).body {
        ScalarBody::Builtin(f) => *f == BuiltinScalar::Exp,
        ScalarBody::Term(term) => match &term.nodes[term.root().0 as usize] {
            TermNode::Call { scalar, args } => {
                let of_param = |a: &hypatia_dsl::scalar::TermId| matches!(term.nodes[a.0 as usize], TermNode::Param(0));
                args.iter().all(of_param) && program.scalar(*scalar).body == ScalarBody::Builtin(BuiltinScalar::Exp)
            }
            _ => false,
        },
    }
}
