//! Values that a pass over a row computes per element and that the results need again, such as the
//! exponentials of softmax.
//!
//! In: a kernel, which of its steps are worth carrying, and the bytes available per element. Out:
//! the kernel whose results read the values that those steps reduce, and the steps. Invariant: the
//! carried operands come after the inputs and the results of all steps, one per step; their values
//! are what the results computed before.

use std::collections::HashMap;

use super::pointwise::reachable;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{RowAccess, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermId, TermNode};

/// The operand through which the results read the elements that `step` reduces.
pub(super) fn operand(kernel: &RowwiseKernel, step: usize) -> usize {
    kernel.inputs.len() + kernel.steps.len() + step
}

/// Rewrites the kernel so that its results read the values that steps reduce, if that is `worth` it
/// and takes at most `most` bytes per element, including the inputs that the results still read.
/// Returns the kernel and the steps.
pub(super) fn carry(kernel: &RowwiseKernel, worth: impl Fn(usize) -> bool, most: usize) -> (RowwiseKernel, Vec<usize>) {
    let mut out = (kernel.clone(), Vec::new());
    for step in (0..kernel.steps.len()).filter(|i| worth(*i)) {
        if let Some(with) = replaced(&out.0, step)
            && bytes(&with, out.1.len() + 1) <= most
        {
            out.0 = with;
            out.1.push(step);
        }
    }
    out
}

/// Bytes per element if the results read this many values of steps.
fn bytes(kernel: &RowwiseKernel, values: usize) -> usize {
    let mut read = vec![false; kernel.inputs.len()];
    for (_, _, term) in &kernel.outputs {
        for (node, live) in term.nodes.iter().zip(reachable(term)) {
            if let (TermNode::In { input, .. }, true) = (node, live)
                && let Some(read) = read.get_mut(*input as usize)
            {
                *read = true;
            }
        }
    }
    use RowAccess::{Full, Gathered, Picked, Strided};
    let own = |a: &RowAccess| matches!(a, Full | Strided | Gathered | Picked);
    let inputs = kernel.inputs.iter().zip(read).filter(|((_, a), read)| *read && own(a));
    inputs.map(|((d, _), _)| d.size()).sum::<usize>() + values * DType::F32.size()
}

/// The kernel whose results read what `step` reduces; `None` if no result recomputes it.
fn replaced(kernel: &RowwiseKernel, step: usize) -> Option<RowwiseKernel> {
    // Equal values have equal numbers, across all terms.
    let mut numbers: HashMap<TermNode, u32> = HashMap::new();
    let term = &kernel.steps[step].1;
    let reduced = number(term, &mut numbers)[term.root().0 as usize];
    let mut out = kernel.clone();
    let mut found = false;
    for (_, access, term) in &mut out.outputs {
        if matches!(access, RowAccess::PerRow | RowAccess::PerGroup) {
            continue;
        }
        let input = operand(kernel, step) as u32;
        let live = reachable(term);
        for (i, n) in number(term, &mut numbers).into_iter().enumerate() {
            if n == reduced && live[i] {
                term.nodes[i] = TermNode::In { input, view: InView::Broadcast };
                found = true;
            }
        }
    }
    found.then_some(out)
}

/// The value number of each node.
pub(super) fn number(term: &Term, numbers: &mut HashMap<TermNode, u32>) -> Vec<u32> {
    let mut out: Vec<u32> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let node = node.map_args(|a| TermId(out[a.0 as usize]));
        let next = numbers.len() as u32;
        out.push(*numbers.entry(node).or_insert(next));
    }
    out
}
