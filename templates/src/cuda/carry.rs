//! Values that a pass over a row computes for each element and the results need again, as softmax its exponentials.
//!
//! In: a kernel, which of its steps are worth it, and the bytes that there are for an element. Out: the kernel with results
//! that read the values which those steps reduce, and the steps. Holds always: these operands come after the inputs and
//! the results of all steps, one for each step; what they are is what the results computed.

use std::collections::HashMap;

use super::pointwise::reachable;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{RowAccess, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermId, TermNode};

/// The operand under which the results read the elements that `step` reduces.
pub(super) fn operand(kernel: &RowwiseKernel, step: usize) -> usize {
    kernel.inputs.len() + kernel.steps.len() + step
}

/// The kernel whose results read what steps reduce, where that is `worth` it and takes no more than `most` bytes an element,
/// the inputs included that the results read still; with the steps.
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

/// What an element takes whose results read so many values of steps.
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
    let own = |a: &RowAccess| matches!(a, RowAccess::Full | RowAccess::Strided);
    let inputs = kernel.inputs.iter().zip(read).filter(|((_, a), read)| *read && own(a));
    inputs.map(|((d, _), _)| d.size()).sum::<usize>() + values * DType::F32.size()
}

/// The kernel whose results read what `step` reduces, if any of them computes it again.
fn replaced(kernel: &RowwiseKernel, step: usize) -> Option<RowwiseKernel> {
    // Equal values have equal numbers, in whichever term they are.
    let mut numbers: HashMap<TermNode, u32> = HashMap::new();
    let term = &kernel.steps[step].1;
    let reduced = number(term, &mut numbers)[term.root().0 as usize];
    let mut out = kernel.clone();
    let mut found = false;
    for (_, access, term) in &mut out.outputs {
        if *access == RowAccess::PerRow {
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

/// The number of each node's value.
fn number(term: &Term, numbers: &mut HashMap<TermNode, u32>) -> Vec<u32> {
    let mut out: Vec<u32> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let node = node.map_args(|a| TermId(out[a.0 as usize]));
        let next = numbers.len() as u32;
        out.push(*numbers.entry(node).or_insert(next));
    }
    out
}
