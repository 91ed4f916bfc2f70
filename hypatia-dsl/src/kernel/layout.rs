//! Memory layout of a row-wise kernel's operands.
//!
//! In: how the axes of operands make up rows, then sizes and strides. Out: a stride for each
//! operand along each axis of the kernel. Invariant: a layout has one list of strides for each
//! input and each output, in this order, and each list has one stride for each size.

use crate::shape::Dim;

use super::{RowAccess, RowwiseKernel};

/// The axes of a row-wise kernel. Sizes may still be symbolic.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSpace {
    /// Sizes of the axes that number the rows, then of those that make up a row.
    pub sizes: Vec<Dim>,
    /// How many axes number the rows.
    pub outer: usize,
    /// For each input, then each output: the kernel axes that each axis of its shape is made of,
    /// outermost first; none for an axis of size 1.
    pub tensors: Vec<Vec<Vec<usize>>>,
}

/// The concrete counterpart of [`RowSpace`], with numbers: what a launch needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLayout {
    /// Sizes of the axes that number the rows, then of those that make up a row.
    pub sizes: Vec<usize>,
    /// How many axes number the rows.
    pub outer: usize,
    /// Strides in elements along each axis, for each input, then each output.
    pub strides: Vec<Vec<isize>>,
}

impl RowSpace {
    /// How many groups of rows have sums of their own; `None` if a size is unknown. `tensors` ends
    /// with the kernel's sums.
    pub fn groups_of_sums(&self) -> Option<usize> {
        let kept = self.tensors.last()?.iter().flatten().filter(|a| **a < self.outer);
        kept.map(|a| self.sizes[*a].as_const()).try_fold(1usize, |n, d| n.checked_mul(usize::try_from(d?).ok()?))
    }

    /// The layout for concrete sizes. `strides` has, for each input, then each output, one stride
    /// for each axis of its shape.
    pub fn layout(&self, sizes: &[usize], strides: &[Vec<isize>]) -> RowLayout {
        let mut out = Vec::with_capacity(self.tensors.len());
        for (axes, of_tensor) in self.tensors.iter().zip(strides) {
            let mut own = vec![0isize; sizes.len()];
            for (own_axes, stride) in axes.iter().zip(of_tensor) {
                let mut step = *stride;
                for axis in own_axes.iter().rev() {
                    own[*axis] = step;
                    step *= sizes[*axis] as isize;
                }
            }
            out.push(own);
        }
        RowLayout { sizes: sizes.to_vec(), outer: self.outer, strides: out }
    }
}

/// The strides of a row-major tensor with these sizes.
fn row_major(sizes: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i].max(1) as isize;
    }
    strides
}

impl RowLayout {
    /// The layout of `rows` rows of `n` elements, with operands indexed by their access modes.
    /// Correct for kernels without strided operands.
    pub fn flat(kernel: &RowwiseKernel, rows: usize, n: usize) -> RowLayout {
        let of = |access: RowAccess| match access {
            RowAccess::Full | RowAccess::Strided | RowAccess::Picked => vec![n as isize, 1],
            RowAccess::PerColumn | RowAccess::Gathered | RowAccess::Position => vec![0, 1],
            RowAccess::PerRow => vec![1, 0],
            // A stride within the row cannot say it: such kernels have a layout of their own.
            RowAccess::PerGroup => vec![0, 0],
            RowAccess::Splat => vec![0, 0],
        };
        let all = kernel.inputs.iter().map(|i| i.1).chain(kernel.outputs.iter().map(|o| o.1));
        RowLayout { sizes: vec![rows, n], outer: 1, strides: all.map(of).collect() }
    }

    /// How many groups of rows have sums of their own: as many as the axes in front number along
    /// which sums, the last tensors, vary.
    pub fn groups_of_sums(&self) -> usize {
        let varies = |s: &Vec<isize>| (0..self.outer).filter(|a| s[*a] != 0).map(|a| self.sizes[a]).product();
        self.strides.last().map_or(1, varies)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.sizes[..self.outer].iter().product()
    }

    /// Length of a row.
    pub fn n(&self) -> usize {
        self.sizes[self.outer..].iter().product()
    }

    /// The offset of an element from the first one; `index` is row-major over some of the axes.
    fn along(&self, tensor: usize, axes: std::ops::Range<usize>, index: usize) -> isize {
        let (mut rest, mut at) = (index, 0);
        for axis in axes.rev() {
            let size = self.sizes[axis].max(1);
            at += (rest % size) as isize * self.strides[tensor][axis];
            rest /= size;
        }
        at
    }

    /// How many elements of memory lie before the first element: some, where strides are negative.
    pub fn before(&self, tensor: usize) -> usize {
        let behind = |(size, s): (&usize, &isize)| size.saturating_sub(1) * s.min(&0).unsigned_abs();
        self.sizes.iter().zip(&self.strides[tensor]).map(behind).sum()
    }

    /// The offset at which a row of an operand begins, from the lowest element in memory.
    pub fn row(&self, tensor: usize, row: usize) -> isize {
        self.before(tensor) as isize + self.along(tensor, 0..self.outer, row)
    }

    /// The offset of an element, from the lowest one in memory.
    pub fn index(&self, tensor: usize, row: usize, column: usize) -> usize {
        (self.row(tensor, row) + self.along(tensor, self.outer..self.sizes.len(), column)) as usize
    }

    /// The number of elements of memory that an operand spans.
    pub fn extent(&self, tensor: usize) -> usize {
        if self.sizes.contains(&0) {
            return 0;
        }
        let last =
            self.sizes.iter().zip(&self.strides[tensor]).map(|(size, s)| (*size - 1) * s.unsigned_abs()).sum::<usize>();
        last + 1
    }

    /// The cheapest access mode for reading an operand or writing a result.
    pub fn access(&self, tensor: usize) -> RowAccess {
        let strides = &self.strides[tensor];
        let like = |range: std::ops::Range<usize>, wanted: &[isize]| {
            range.zip(wanted).all(|(i, w)| self.sizes[i] == 1 || strides[i] == *w)
        };
        let zero = |range: std::ops::Range<usize>| range.into_iter().all(|i| self.sizes[i] == 1 || strides[i] == 0);
        let (outer, all) = (self.outer, self.sizes.len());
        if like(0..all, &row_major(&self.sizes)) {
            RowAccess::Full
        } else if zero(0..all) {
            RowAccess::Splat
        } else if zero(0..outer) && like(outer..all, &row_major(&self.sizes[outer..])) {
            RowAccess::PerColumn
        } else if zero(outer..all) && like(0..outer, &row_major(&self.sizes[..outer])) {
            RowAccess::PerRow
        } else {
            RowAccess::Strided
        }
    }
}
