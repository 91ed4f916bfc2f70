//! Products with leading axes as one batch of matrices.
//!
//! In: a product and the views of its operands, broadcast. Out: the numbers of batches, rows,
//! columns and terms, and for each view its strides along batch, rows and columns. Invariant: no
//! operand is copied; leading axes become rows if one right operand serves all of them.

use hypatia_plan::{GemmStep, View, collapse};

/// The strides of an operand along the batch, the rows and the columns.
pub type Strides = [isize; 3];

/// The sizes of a product (batches, rows, columns, length of the sums) and the strides of `all`: a,
/// b, and others of the result's shape. `None` if one batch axis cannot express the leading axes.
pub fn batched(step: &GemmStep, all: &[&View]) -> Option<([usize; 4], Vec<Strides>)> {
    let [_, b, ..] = all else { return None };
    let lead = step.batch.len();
    let (mut batches, mut m) = (1, step.m);
    let mut strides: Vec<Strides> = all.iter().map(|v| [0, v.strides[lead], v.strides[lead + 1]]).collect();
    let shared = b.strides[..lead].iter().zip(&step.batch).all(|(s, n)| *s == 0 || *n == 1);
    let leading = |v: &View, axes: usize| v.strides[..axes].to_vec();
    if shared && lead > 0 {
        let rows = [&step.batch[..], &[m]].concat();
        let others: Vec<usize> = (0..all.len()).filter(|i| *i != 1).collect();
        let sides: Vec<Vec<isize>> = others.iter().map(|i| leading(all[*i], lead + 1)).collect();
        let (sizes, collapsed) = collapse(&rows, &sides);
        let [rows] = sizes.as_slice() else { return None };
        m = *rows;
        others.iter().zip(collapsed).for_each(|(i, s)| strides[*i][1] = s[0]);
    } else if lead > 0 {
        let sides: Vec<Vec<isize>> = all.iter().map(|v| leading(v, lead)).collect();
        let (sizes, collapsed) = collapse(&step.batch, &sides);
        let [size] = sizes.as_slice() else { return None };
        batches = *size;
        strides.iter_mut().zip(collapsed).for_each(|(s, c)| s[0] = c[0]);
    }
    Some(([batches, m, step.n, step.k], strides))
}
