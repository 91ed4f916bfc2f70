//! Products and views of tests.
//!
//! In: sizes. Out: a step whose epilogue is its accumulator, and views of whole tensors.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::scalar::{Term, TermNode};

use hypatia_plan::{BufferId, GemmStep, View};

/// A product without an epilogue.
pub(crate) fn product(batch: &[usize], m: usize, n: usize, k: usize) -> GemmStep {
    let mut term = Term::empty();
    let acc = term.add(TermNode::Acc);
    term.roots.push(acc);
    GemmStep { batch: batch.to_vec(), m, n, k, acc: DType::F32, term, reduced: Vec::new() }
}

/// The view of a tensor of 16 bits an element.
pub(crate) fn whole(shape: &[usize]) -> View {
    View::whole(BufferId(0), DType::BF16, shape)
}
