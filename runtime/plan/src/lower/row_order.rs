//! Products whose rows lie in another order than the result's: PyTorch's layers of attention move
//! the batch behind the sequence first.
//!
//! In: the factors of a product. Out: an order of the result's axes in which the rows of the left
//! factor follow each other, so that one product of all rows is one matrix. Invariant: only rows
//! are moved, and only where a device would multiply few of them at a time otherwise; all matrices
//! share the right factor.

use super::Lower;
use crate::view::{View, collapse};

/// From so many rows on, a product of each matrix by itself is as fast (NVIDIA H200).
const MANY_ROWS: usize = 256;

impl Lower<'_> {
    /// The order of axes in which a product is stored; `None` for that of its result.
    pub(super) fn row_order(&self, a: &View, b: &View, shape: &[usize]) -> Option<Vec<usize>> {
        let few = shape.iter().rev().nth(1).is_some_and(|rows| *rows < MANY_ROWS);
        let open = !self.plan.device.is_host() && a.dtype.is_float() && few;
        if open { order(a, b, shape) } else { None }
    }
}

fn order(a: &View, b: &View, shape: &[usize]) -> Option<Vec<usize>> {
    let (rows, _) = shape.split_last().filter(|(_, rows)| rows.len() >= 2).map(|(n, rows)| (rows, n))?;
    let shared = b.shape.iter().rev().skip(2).all(|size| *size == 1);
    let wide = a.broadcast(&[rows, &[*a.shape.last()?]].concat())?;
    let strides = &wide.strides[..rows.len()];
    let repeated = strides.iter().zip(rows).any(|(stride, size)| *stride <= 0 && *size > 1);
    let one = |order: &[usize]| {
        let sizes: Vec<usize> = order.iter().map(|axis| rows[*axis]).collect();
        collapse(&sizes, &[order.iter().map(|axis| strides[*axis]).collect()]).0.len() == 1
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if !shared || repeated || wide.is_empty() || one(&order) {
        return None;
    }
    order.sort_by_key(|axis| std::cmp::Reverse(strides[*axis]));
    one(&order).then(|| [order.as_slice(), &[rows.len()]].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::BufferId;

    fn whole(shape: &[usize]) -> View {
        View::whole(BufferId(0), DType::BF16, shape)
    }

    #[test]
    fn rows_are_multiplied_in_the_order_in_which_they_lie() {
        let (x, w) = (whole(&[4, 5, 8]), whole(&[8, 6]));
        // Sequence and batch are exchanged; three axes, one of which has one element.
        assert_eq!(order(&x.transposed(&[1, 0, 2]), &w, &[5, 4, 6]), Some(vec![1, 0, 2]));
        let x = whole(&[4, 1, 5, 3, 8]);
        assert_eq!(order(&x.transposed(&[3, 1, 0, 2, 4]), &w, &[3, 1, 4, 5, 6]), Some(vec![2, 3, 0, 1, 4]));
    }

    #[test]
    fn what_is_one_matrix_or_cannot_be_one_stays() {
        let (x, w) = (whole(&[4, 5, 8]), whole(&[8, 6]));
        assert_eq!(order(&x, &w, &[4, 5, 6]), None);
        // Rows with a gap between batches, each matrix with its own right factor, a repeated row,
        // an empty batch.
        let part = x.sliced(1, 0, 3, 1).transposed(&[1, 0, 2]);
        assert_eq!(order(&part, &w, &[3, 4, 6]), None);
        let each = whole(&[5, 8, 6]);
        assert_eq!(order(&x.transposed(&[1, 0, 2]), &each, &[5, 4, 6]), None);
        let repeated = whole(&[4, 1, 8]).broadcast(&[4, 5, 8]).unwrap();
        assert_eq!(order(&repeated.transposed(&[1, 0, 2]), &w, &[5, 4, 6]), None);
        assert_eq!(order(&whole(&[0, 5, 8]).transposed(&[1, 0, 2]), &w, &[5, 0, 6]), None);
    }
}
