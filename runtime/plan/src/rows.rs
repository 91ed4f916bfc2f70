//! Row-wise kernels on operands in their present layout.
//!
//! In: a row-wise kernel, how the axes of its operands make up rows, and views of the operands.
//! Out: a step. Invariant: axes that are contiguous for every operand are collapsed, so that every
//! operand that can be read as `[rows, n]`, as one row or as one column is read in that way, and
//! only the rest uses strides.

use hypatia_dsl::kernel::{RowAccess, RowLayout, RowSpace, RowwiseKernel};

use super::RowwiseStep;
use super::view::{View, collapse, row_major};
use hypatia_dsl::shape::Dim;
use hypatia_graph::prim::sizes;
use hypatia_tensor::error::{Error, Result};

/// A row-wise kernel whose operands have no views yet.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// The computation.
    pub kernel: RowwiseKernel,
    /// The axes of the operands.
    pub space: RowSpace,
}

impl Rows {
    /// The same with the sizes that `lookup` knows.
    pub(super) fn specialized(&self, lookup: &dyn Fn(&str) -> Option<Dim>) -> Result<Rows> {
        let size = |d: &Dim| d.substitute(lookup).ok_or_else(|| Error::Internal(format!("a row of size {d}")));
        let sizes = self.space.sizes.iter().map(size).collect::<Result<_>>()?;
        Ok(Rows { space: RowSpace { sizes, ..self.space.clone() }, kernel: self.kernel.clone() })
    }

    /// The step for operands with these views; `outputs` are the shapes of its results, which are
    /// row-major. `None` if an operand does not have the shape that the kernel was made for, or if
    /// a size is still a symbol.
    pub(super) fn step(&self, reads: &[View], outputs: &[Vec<usize>]) -> Option<RowwiseStep> {
        let sizes = sizes(&self.space.sizes, &|_| None).ok()?;
        let shapes = reads.iter().map(|v| &v.shape).chain(outputs);
        for (shape, axes) in shapes.zip(&self.space.tensors) {
            let made: Vec<usize> = axes.iter().map(|a| a.iter().map(|i| sizes[*i]).product()).collect();
            // An operand that the kernel does not read has no axes.
            if *shape != made && axes.iter().any(|a| !a.is_empty()) {
                return None;
            }
        }
        if reads.len() + outputs.len() != self.space.tensors.len() {
            return None;
        }
        let strides: Vec<Vec<isize>> =
            reads.iter().map(|v| v.strides.clone()).chain(outputs.iter().map(|s| row_major(s))).collect();
        Some(fitted(self.kernel.clone(), &self.space.layout(&sizes, &strides)))
    }
}

/// The step of a kernel for that layout: each operand gets the simplest access that is correct.
pub(super) fn fitted(mut kernel: RowwiseKernel, layout: &RowLayout) -> RowwiseStep {
    let layout = joined(layout);
    let inputs = kernel.inputs.len();
    let known = |a: RowAccess| matches!(a, RowAccess::Gathered | RowAccess::Picked | RowAccess::Position);
    for (i, (_, access)) in kernel.inputs.iter_mut().enumerate().filter(|(_, input)| !known(input.1)) {
        *access = layout.access(i);
    }
    kernel.read_indexes_apart();
    for (i, (_, access, _)) in kernel.outputs.iter_mut().enumerate() {
        // One element a row, or a group, stays so.
        if !matches!(access, RowAccess::PerRow | RowAccess::PerGroup) {
            let full = layout.access(inputs + i) == RowAccess::Full;
            *access = if full { RowAccess::Full } else { RowAccess::Strided };
        }
    }
    let strided = kernel.strided();
    kernel.axes = if strided { [layout.outer, layout.sizes.len() - layout.outer] } else { [1, 1] };
    RowwiseStep { kernel, rows: layout.rows(), n: layout.n(), layout, lookups: Vec::new() }
}

/// Collapses axes that are contiguous for all operands, separately for those across rows and those
/// within a row.
fn joined(layout: &RowLayout) -> RowLayout {
    let half = |range: std::ops::Range<usize>| {
        let strides: Vec<Vec<isize>> = layout.strides.iter().map(|s| s[range.clone()].to_vec()).collect();
        collapse(&layout.sizes[range], &strides)
    };
    let (mut sizes, mut strides) = half(0..layout.outer);
    let outer = sizes.len();
    let (row, of_row) = half(layout.outer..layout.sizes.len());
    sizes.extend(row);
    for (all, own) in strides.iter_mut().zip(of_row) {
        all.extend(own);
    }
    RowLayout { sizes, outer, strides }
}
