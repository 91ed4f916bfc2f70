//! A gemm step as cuBLASLt calls.
//!
//! In: a [`GemmStep`] and the views of its operands. Out: a [`Product`] and the locations of its
//! operands, one set per call. Invariant: no operand is copied. If one right operand serves all,
//! leading axes become rows; if strides can express it, they become one strided batch; otherwise
//! one call over matrix addresses, if requested, or one call per outer matrix.

use super::address::WORKSPACE;
use super::lt::{Layout, Product};
use hypatia_plan::{GemmStep, View, collapse, matrix_layout};
use hypatia_target::cublaslt::Epilogue;
use hypatia_tensor::error::{Error, Result};

/// Calls of one step.
pub struct Calls {
    /// The product that each call computes.
    pub product: Product,
    /// Offset of each call's operands in elements from the operand's first element: A, B, D.
    pub offsets: Vec<[isize; 3]>,
}

/// Alignment in bytes of all addresses of a matrix operand: base, offset, and batch strides.
pub fn alignment(view: &View, batch: &[isize]) -> u32 {
    let size = view.dtype.size();
    let steps = std::iter::once(view.offset).chain(batch.iter().map(|s| s.unsigned_abs()));
    // Bases are aligned to 256 bytes on the device and to 64 in the arena.
    let bits = steps.fold(64usize, |all, elements| all | (elements * size));
    1 << bits.trailing_zeros().min(6)
}

/// Maximum number of matrices of one call over addresses.
const MOST_ADDRESSES: usize = 1 << 15;

/// Options of the calls.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The library's epilogue.
    pub epilogue: Epilogue,
    /// Whether to round f32 operands to TF32.
    pub tf32: bool,
    /// Whether to express batches with irregular strides as lists of addresses.
    pub addresses: bool,
    /// Whether each sum is added up in one order, whatever the number of rows.
    pub in_order: bool,
}

/// The matrices of a product as the library sees them: strides of the left operand, of the right
/// one and of the result.
struct Batches {
    /// Rows of each matrix.
    m: usize,
    /// Strides between rows of the left operand and of the result.
    rows: [isize; 2],
    /// Matrices that the library counts.
    count: usize,
    inner: [isize; 3],
    /// Lists of addresses, each for `count` matrices.
    lists: usize,
    between: [isize; 3],
    /// Where each separate call begins.
    offsets: Vec<[isize; 3]>,
    /// Strides along the leading axes of the operands, and along those of the result that are not
    /// of size 1.
    a: Vec<isize>,
    b: Vec<isize>,
    d: Vec<isize>,
}

impl Batches {
    fn of(step: &GemmStep, [a, b, d]: [&View; 3], addresses: bool) -> Batches {
        let lead = step.batch.len();
        let (mut batch, mut m) = (step.batch.clone(), step.m);
        let [mut a_batch, mut b_batch, mut d_batch] = [a, b, d].map(|v| v.strides[..lead].to_vec());
        let mut rows = [a.strides[lead], d.strides[lead]];
        // If one right operand serves all and the rows of the left operand are evenly spaced, the
        // leading axes become rows.
        if b_batch.iter().zip(&batch).all(|(s, n)| *s == 0 || *n == 1) {
            let sides = [a, d].map(|v| v.strides[..lead + 1].to_vec());
            let (sizes, strides) = collapse(&a.shape[..lead + 1], &sides);
            if let ([all], [a_rows, d_rows]) = (sizes.as_slice(), strides.as_slice()) {
                (batch, m, rows) = (Vec::new(), *all, [a_rows[0], d_rows[0]]);
                (a_batch, b_batch, d_batch) = (Vec::new(), Vec::new(), Vec::new());
            }
        }
        let (axes, strides) = collapse(&batch, &[a_batch.clone(), b_batch.clone(), d_batch]);
        // The innermost leading axis is the library's batch, the others are separate calls. A batch
        // requires the results to be in order, which they are.
        let (count, inner) = match axes.last() {
            Some(count) if !batch.is_empty() => (*count, [0, 1, 2].map(|i| strides[i].last().copied().unwrap_or(0))),
            _ => (1, [0; 3]),
        };
        let outer = if batch.is_empty() { &[] as &[usize] } else { &axes[..axes.len() - 1] };
        let forward = strides.iter().flatten().all(|stride| *stride >= 0);
        let listed = addresses && forward && matches!(outer, [one] if one * count <= MOST_ADDRESSES);
        let (lists, between) = match listed {
            true => (outer[0], [0, 1, 2].map(|i| strides[i][0])),
            false => (1, [0; 3]),
        };
        let mut offsets = vec![[0isize; 3]];
        for (axis, size) in outer.iter().enumerate().filter(|_| !listed) {
            let step = |side: usize| strides[side][axis];
            let moved = |at: [isize; 3], i: isize| std::array::from_fn(|side| at[side] + i * step(side));
            offsets = offsets.iter().flat_map(|at| (0..*size as isize).map(move |i| moved(*at, i))).collect();
        }
        let many = strides[2].iter().zip(&axes).filter(|(_, size)| **size > 1).map(|(stride, _)| *stride);
        let d_batch = many.collect();
        Batches { m, rows, count, inner, lists, between, offsets, a: a_batch, b: b_batch, d: d_batch }
    }
}

/// The calls of a step with operands `reads` and result `d`.
pub fn calls(step: &GemmStep, reads: &[View], d: &View, terms: Terms) -> Result<Calls> {
    let [a, b, rest @ ..] = reads else { return Err(Error::Internal("a product of one operand".into())) };
    let Terms { epilogue, tf32, addresses, in_order } = terms;
    let (lead, out) = (step.batch.len(), d.dtype);
    let batches = Batches::of(step, [a, b, d], addresses);
    let (m, [a_row, d_row]) = (batches.m, batches.rows);
    let layout = |what: &str, side: usize, v: &View, (rows, columns, row): (usize, usize, isize), batch: &[isize]| {
        let no = || Error::Internal(format!("{what} of a product has shape {:?} and strides {:?}", v.shape, v.strides));
        let (transposed, ld) = matrix_layout(rows, columns, row, v.strides[lead + 1]).ok_or_else(no)?;
        if transposed && side == 2 {
            return Err(no());
        }
        Ok(Layout {
            transposed,
            ld: ld as i64,
            batch_stride: batches.inner[side] as i64,
            outer_stride: batches.between[side] as i64,
            alignment: alignment(v, batch),
        })
    };
    let product = Product {
        m,
        n: step.n,
        k: step.k,
        batch: batches.count,
        outer: batches.lists,
        dtype: a.dtype,
        out,
        tf32,
        a: layout("the left operand", 0, a, (m, step.k, a_row), &batches.a)?,
        b: layout("the right operand", 1, b, (step.k, step.n, b.strides[lead]), &batches.b)?,
        d: layout("the result", 2, d, (m, step.n, d_row), &batches.d)?,
        epilogue,
        bias: rest.first().filter(|_| epilogue.has_bias()).map_or(out, |v| v.dtype),
        // Calls of one step run concurrently and cannot share a workspace.
        workspace: if batches.offsets.len() > 1 { 0 } else { WORKSPACE },
        in_order,
        added: None,
    };
    Ok(Calls { product, offsets: batches.offsets })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::lowering::fixtures::product as step;
    use hypatia_plan::BufferId;

    fn whole(shape: &[usize]) -> View {
        View::whole(BufferId(0), DType::F32, shape)
    }

    const PLAIN: Terms = Terms { epilogue: Epilogue::Default, tf32: false, addresses: false, in_order: false };
    const LISTS: Terms = Terms { addresses: true, ..PLAIN };

    #[test]
    fn a_weight_that_all_rows_share_makes_one_product() {
        let w = whole(&[16, 8]).transposed(&[1, 0]).broadcast(&[2, 3, 8, 16]).unwrap();
        let (x, y) = (whole(&[2, 3, 4, 8]), whole(&[2, 3, 4, 16]));
        let c = calls(&step(&[2, 3], 4, 16, 8), &[x, w], &y, LISTS).unwrap();
        let p = c.product;
        assert_eq!((p.m, p.n, p.k, p.batch, c.offsets.len()), (24, 16, 8, 1, 1));
        assert_eq!((p.a.transposed, p.a.ld, p.b.transposed, p.b.ld), (false, 8, true, 8));
    }

    #[test]
    fn heads_that_lie_side_by_side_are_a_strided_batch_for_each_sequence() {
        // [b, s, h, d] viewed as [b, h, s, d], times its transpose.
        let q = whole(&[2, 5, 3, 8]).transposed(&[0, 2, 1, 3]);
        let k = q.transposed(&[0, 1, 3, 2]);
        let (step, d) = (step(&[2, 3], 5, 5, 8), whole(&[2, 3, 5, 5]));
        let c = calls(&step, &[q.clone(), k.clone()], &d, PLAIN).unwrap();
        let p = c.product;
        assert_eq!((p.m, p.n, p.k, p.batch), (5, 5, 8, 3));
        assert_eq!((p.a.ld, p.a.batch_stride, p.b.ld, p.b.batch_stride), (24, 8, 24, 8));
        assert!(!p.a.transposed && p.b.transposed);
        assert_eq!((c.offsets, p.outer, p.d.alignment), (vec![[0, 0, 0], [120, 120, 75]], 1, 4));
        // Alternatively one call over addresses, also if the result has the layout of the operands.
        let heads = whole(&[2, 5, 3, 5]).transposed(&[0, 2, 1, 3]);
        for (d, strides, ld) in [(d, [25, 75], 5), (heads, [5, 75], 15)] {
            let c = calls(&step, &[q.clone(), k.clone()], &d, LISTS).unwrap();
            let p = c.product;
            assert_eq!((p.batch, p.outer, c.offsets), (3, 2, vec![[0, 0, 0]]));
            assert_eq!(([p.d.batch_stride, p.d.outer_stride], p.d.ld, p.is_dense()), (strides, ld, ld == 5));
            let at = p.addresses([1000, 2000, 9000]);
            assert_eq!(at[..6], [1000, 1032, 1064, 1480, 1512, 1544]);
            assert_eq!(at[6..12], [2000, 2032, 2064, 2480, 2512, 2544]);
            assert_eq!(
                at[12..],
                [0, 1, 2, 3, 4, 5].map(|i| 9000 + 4 * (i / 3 * strides[1] + i % 3 * strides[0]) as u64)
            );
        }
    }

    #[test]
    fn one_sequence_whose_result_lies_by_heads_is_a_strided_batch() {
        let q = whole(&[1, 5, 3, 8]).transposed(&[0, 2, 1, 3]);
        let d = whole(&[1, 5, 3, 5]).transposed(&[0, 2, 1, 3]);
        let c = calls(&step(&[1, 3], 5, 5, 8), &[q.clone(), q.transposed(&[0, 1, 3, 2])], &d, LISTS).unwrap();
        assert_eq!((c.product.outer, c.product.batch, c.product.d.batch_stride, c.product.d.ld), (1, 3, 5, 15));
        // The library cannot write a result whose columns are strided.
        let d = whole(&[1, 3, 5, 5]).transposed(&[0, 1, 3, 2]);
        assert!(calls(&step(&[1, 3], 5, 5, 8), &[q.clone(), q.transposed(&[0, 1, 3, 2])], &d, LISTS).is_err());
    }

    #[test]
    fn alignment_follows_offsets_and_batches() {
        let x = whole(&[4, 5, 6]);
        assert_eq!(alignment(&x, &[30]), 8);
        assert_eq!(alignment(&x.sliced(2, 1, 1, 4), &[30]), 4);
        assert_eq!(alignment(&whole(&[4, 8, 8]), &[64]), 64);
    }
}
