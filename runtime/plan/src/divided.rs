//! Products whose left factor or result lies with its axes in another order: heads.
//!
//! In: a product with one right factor, and the views of its operands; those of the left factor and
//! of the result may divide the product's axes further. Out: batches, rows, columns and terms, the
//! strides of each operand, and the parts into which k or the columns are divided. Invariant: no
//! operand is copied; an element has the same place as in a tensor whose axes are not divided.

use super::view::refined;
use super::{GemmStep, View, collapse};

/// A product as a batch of matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Divided {
    /// Batches, rows, columns, length of the sums.
    pub sizes: [usize; 4],
    /// The strides of the left factor, the right one, the result and the others along the batch,
    /// the rows and the columns; of the factors along k instead, as they are multiplied. Within a
    /// part, if the axis is divided.
    pub strides: Vec<[isize; 3]>,
    /// The parts of k in the left factor.
    pub depth: Option<Parts>,
    /// The parts of the columns in the result.
    pub columns: Option<Parts>,
}

/// An axis whose elements lie side by side in parts, such as the heads of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Elements of a part.
    pub size: usize,
    /// Elements between neighbouring parts.
    pub stride: usize,
}

impl Divided {
    /// `all` are the factors, the result, and what has its shape. `None` if strides cannot say it,
    /// or if several right factors are read.
    pub fn of(step: &GemmStep, all: &[&View]) -> Option<Divided> {
        let [a, b, out, beside @ ..] = all else { return None };
        let lead = step.batch.len();
        let shared = b.strides[..lead].iter().zip(&step.batch).all(|(s, n)| *s == 0 || *n == 1);
        if !shared || all.iter().any(|v| v.is_empty()) {
            return None;
        }
        let ([a_rows, a_inner], [out_rows, out_inner]) = (apart(a, step.k)?, apart(out, step.n)?);
        let others: Vec<View> = beside.iter().map(|v| leading(v, lead + 1)).collect();
        let rows: Vec<&View> = [&a_rows, &out_rows].into_iter().chain(&others).collect();
        let given = [&step.batch[..], &[step.m]].concat();
        let shape = rows.iter().try_fold(given, |shape, v| refined(&shape, &v.shape))?;
        let strides: Option<Vec<Vec<isize>>> = rows.iter().map(|v| Some(v.reshaped(&shape)?.strides)).collect();
        let (sizes, strides) = collapse(&shape, &strides?);
        let [batches, m] = match sizes[..] {
            [m] => [1, m],
            [batches, m] => [batches, m],
            _ => return None,
        };
        let along = |i: usize, column: isize| match strides[i][..] {
            [batch, row] => [batch, row, column],
            _ => [0, strides[i][0], column],
        };
        let ((depth, of_a), (columns, of_out)) = (parts(&a_inner)?, parts(&out_inner)?);
        let columns_of = |(i, v): (usize, &&View)| along(i + 2, v.strides[lead + 1]);
        let of_b = [0, b.strides[lead], b.strides[lead + 1]];
        let first = [along(0, of_a), of_b, along(1, of_out)];
        let strides = first.into_iter().chain(beside.iter().enumerate().map(columns_of)).collect();
        Some(Divided { sizes: [batches, m, step.n, step.k], strides, depth, columns })
    }
}

/// A view over its leading axes alone, at its first element along the others.
fn leading(v: &View, axes: usize) -> View {
    View { shape: v.shape[..axes].to_vec(), strides: v.strides[..axes].to_vec(), ..v.clone() }
}

/// The axes of a view in two: the last ones have so many elements.
fn apart(v: &View, inner: usize) -> Option<[View; 2]> {
    let mut cut = v.shape.len();
    let mut size = 1;
    while size < inner {
        cut = cut.checked_sub(1)?;
        size *= v.shape[cut];
    }
    let last = View { shape: v.shape[cut..].to_vec(), strides: v.strides[cut..].to_vec(), ..v.clone() };
    (size == inner).then(|| [leading(v, cut), last])
}

/// The parts of an axis of one or two, and the stride within one.
fn parts(v: &View) -> Option<(Option<Parts>, isize)> {
    let (sizes, strides) = collapse(&v.shape, std::slice::from_ref(&v.strides));
    match (&sizes[..], &strides[0][..]) {
        ([_], [stride]) => Some((None, *stride)),
        ([_, size], [far, stride]) => {
            let stride_of_parts = usize::try_from(*far).ok()?;
            Some((Some(Parts { size: *size, stride: stride_of_parts }), *stride))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;
    use hypatia_dsl::scalar::Term;

    use super::*;
    use crate::{BufferId, row_major};

    fn whole(shape: &[usize]) -> View {
        View::whole(BufferId(0), DType::BF16, shape)
    }

    fn product(batch: &[usize], [m, n, k]: [usize; 3]) -> GemmStep {
        let (acc, term) = (DType::F32, Term::empty());
        GemmStep { batch: batch.to_vec(), m, n, k, acc, term, reduced: Vec::new() }
    }

    #[test]
    fn heads_are_parts_of_k_or_of_the_columns() {
        // Two sequences of five tokens, three heads of eight: read, and stored.
        let heads = whole(&[2, 3, 5, 8]).transposed(&[0, 2, 1, 3]);
        let weight = whole(&[24, 24]).broadcast(&[2, 24, 24]).unwrap();
        let bias = whole(&[24]).broadcast(&[2, 5, 24]).unwrap();
        let rest = whole(&[2, 5, 24]);
        let step = product(&[2], [5, 24, 24]);
        let of = Divided::of(&step, &[&heads, &weight, &heads, &bias, &rest]).unwrap();
        let part = Some(Parts { size: 8, stride: 40 });
        assert_eq!((of.sizes, of.depth, of.columns), ([2, 5, 24, 24], part, part));
        assert_eq!(of.strides, [[120, 8, 1], [0, 24, 1], [120, 8, 1], [0, 0, 1], [120, 24, 1]]);
        // Of one sequence, rows are one axis.
        let one = whole(&[1, 3, 5, 8]).transposed(&[0, 2, 1, 3]);
        let weight = whole(&[24, 7]);
        let of = Divided::of(&product(&[], [5, 7, 24]), &[&one, &weight, &whole(&[5, 7])]).unwrap();
        assert_eq!((of.sizes, of.depth, of.columns), ([1, 5, 7, 24], part, None));
    }

    #[test]
    fn what_two_strides_cannot_say_is_none() {
        let weight = whole(&[24, 24]);
        let of = |a: View, out: View| Divided::of(&product(&[], [10, 24, 24]), &[&a, &weight, &out]).is_some();
        assert!(of(whole(&[10, 24]), whole(&[10, 24])));
        // Three parts of parts of k; rows in three.
        let k = View { strides: vec![1000, 100, 20, 1], ..whole(&[10, 2, 3, 4]) };
        assert!(!of(k, whole(&[10, 24])));
        let rows = View { strides: vec![1000, 300, 24, 1], ..whole(&[2, 5, 1, 24]) };
        assert!(of(rows.clone(), whole(&[10, 24])));
        // An axis that ends within a row.
        assert!(!of(View { shape: vec![5, 48], strides: vec![48, 1], ..rows }, whole(&[10, 24])));
        // A right factor of each batch.
        let batched = product(&[2], [5, 24, 24]);
        let each = whole(&[2, 24, 24]);
        assert!(Divided::of(&batched, &[&whole(&[2, 5, 24]), &each, &whole(&[2, 5, 24])]).is_none());
        assert!(
            row_major(&[0, 4]) == [4, 1]
                && Divided::of(&product(&[], [0, 4, 4]), &[&whole(&[0, 4]), &whole(&[4, 4]), &whole(&[0, 4])])
                    .is_none()
        );
    }
}
