//! What a step reads for the elements of its result that a view reads.
//!
//! In: a view of a result, and the operands that are read at the same index. Out: the views of the
//! operands. Invariant: the view reads each of its places from one place of the result; what
//! strides cannot say is `None`.

use super::pieces::cut;
use crate::view::{View, ends};

/// A view of a result that is stored in row-major order.
pub(super) struct Through<'v> {
    view: &'v View,
    /// The sizes of axes into which the result is divided, so that the view takes a range of each.
    sizes: Vec<usize>,
    /// The range of each.
    region: Vec<(usize, usize)>,
    /// The axis of the view that goes along each of them, if one does.
    axes: Vec<Option<usize>>,
}

impl<'v> Through<'v> {
    /// That view of `out`, whose elements lie row-major.
    pub(super) fn of(view: &'v View, out: &View) -> Option<Through<'v>> {
        if view.dtype != out.dtype || view.is_empty() {
            return None;
        }
        let strides: Vec<usize> = view.strides.iter().map(|s| s.unsigned_abs()).collect();
        let mut axes: Vec<usize> = (0..strides.len()).filter(|a| view.shape[*a] > 1 && strides[*a] > 0).collect();
        axes.sort_by_key(|a| std::cmp::Reverse(strides[*a]));
        // An axis in reverse order ends where it would begin.
        let reversed = axes.iter().filter(|a| view.strides[**a] < 0).map(|a| (view.shape[*a] - 1) * strides[*a]);
        let mut left = view.offset.checked_sub(out.offset + reversed.sum::<usize>())?;
        let (mut sizes, mut region, mut along) = (Vec::new(), Vec::new(), Vec::new());
        // Elements that one place of the last axis so far holds.
        let mut holds = out.len();
        let ranges = axes.iter().map(|a| (strides[*a], view.shape[*a], Some(*a)));
        let ends = ends(&out.shape);
        // What lies between neighbours of the innermost axis.
        for (stride, count, axis) in ranges.chain([(1, 1, None)]) {
            // Of an axis of the result, the view may have one place.
            for end in ends.iter().rev().filter(|e| **e > stride && e.is_multiple_of(stride)) {
                if *end < holds && holds.is_multiple_of(*end) && left % end / stride + count <= end / stride {
                    sizes.push(holds / end);
                    region.push((left / end, 1));
                    along.push(None);
                    (left, holds) = (left % end, *end);
                }
            }
            if !holds.is_multiple_of(stride) || left / stride + count > holds / stride {
                return None;
            }
            sizes.push(holds / stride);
            region.push((left / stride, count));
            along.push(axis);
            (left, holds) = (left % stride, stride);
        }
        Some(Through { view, sizes, region, axes: along })
    }

    /// What is read of an operand, which has the shape of the result.
    pub(super) fn seen(&self, operand: &View) -> Option<View> {
        let mut part = cut(&operand.reshaped(&self.sizes)?, &self.region);
        let mut strides = vec![0; self.view.shape.len()];
        for (place, axis) in self.axes.iter().enumerate().filter_map(|(i, a)| Some((i, a.as_ref()?))) {
            if self.view.strides[*axis] < 0 {
                part = part.sliced(place, self.view.shape[*axis] - 1, -1, self.view.shape[*axis]);
            }
            strides[*axis] = part.strides[place];
        }
        Some(View { shape: self.view.shape.clone(), strides, ..part })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::BufferId;

    /// The elements that a view reads, in order.
    fn elements(v: &View) -> Vec<usize> {
        let mut out = vec![v.offset as isize];
        for (size, stride) in v.shape.iter().zip(&v.strides) {
            out = out.iter().flat_map(|o| (0..*size as isize).map(move |i| o + i * stride)).collect();
        }
        out.into_iter().map(|i| i as usize).collect()
    }

    #[test]
    fn operands_are_read_where_the_result_is() {
        let out = View::whole(BufferId(1), DType::F32, &[120]);
        let of = |shape: &[usize]| View::whole(BufferId(1), DType::F32, shape);
        // The same elements as the result, the first six of each row of ten again and again, a
        // single one, and the columns of a matrix.
        let same = View { offset: 7, ..View::whole(BufferId(0), DType::F32, &[120]) };
        let rows = View::whole(BufferId(0), DType::F32, &[10]).broadcast(&[12, 10]).unwrap();
        let single = View::whole(BufferId(0), DType::F32, &[1]).broadcast(&[120]).unwrap();
        let turned = View::whole(BufferId(0), DType::F32, &[8, 15]).transposed(&[1, 0]);
        let views = [
            of(&[120]),
            of(&[4, 30]).transposed(&[1, 0]),
            of(&[12, 10]).sliced(1, 3, 1, 5),
            of(&[12, 10]).sliced(0, 2, 1, 7).sliced(1, 0, 2, 4),
            of(&[2, 60]).sliced(0, 1, 1, 1),
            of(&[2, 3, 4, 5]).transposed(&[2, 0, 3, 1]),
            of(&[120]).sliced(0, 17, 1, 1).broadcast(&[3, 4]).unwrap(),
            of(&[1, 12, 1, 10]).sliced(3, 9, 1, 1),
            of(&[12, 10]).sliced(1, 7, -2, 4),
            of(&[4, 30]).sliced(0, 3, -1, 4).transposed(&[1, 0]),
            of(&[15, 8]).sliced(1, 1, 2, 3),
        ];
        let mut said = 0;
        for view in &views {
            let through = Through::of(view, &out).unwrap();
            for operand in [&same, &rows, &single, &turned] {
                let Some(seen) = through.seen(operand) else { continue };
                let all = elements(operand);
                let want: Vec<usize> = elements(view).iter().map(|i| all[*i]).collect();
                assert_eq!((elements(&seen), &seen.shape), (want, &view.shape), "{view:?} of {operand:?}");
                said += 1;
            }
        }
        assert!(said >= 20, "{said}");
        // Windows that overlap.
        assert!(Through::of(&View { shape: vec![5, 3], strides: vec![1, 1], ..out.clone() }, &out).is_none());
    }
}
