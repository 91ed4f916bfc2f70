//! Views of buffers: reshape, transpose, slice and broadcast without a copy.
//!
//! Invariant: every index of the shape addresses an element of the buffer that the view was made
//! for, as each method stays within the elements of the view it started from.

use hypatia_dsl::dtype::DType;

use super::BufferId;
use hypatia_graph::prim::Window;

/// Elements of a buffer, addressed by `offset + sum(index[i] * strides[i])`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Its element type.
    pub dtype: DType,
    /// The offset of the first element.
    pub offset: usize,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Strides along each axis, in elements; 0 where broadcast, negative where reversed.
    pub strides: Vec<isize>,
}

/// Strides of a contiguous tensor.
pub fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}

impl View {
    /// A view of a whole buffer.
    pub fn whole(buffer: BufferId, dtype: DType, shape: &[usize]) -> View {
        View { buffer, dtype, offset: 0, shape: shape.to_vec(), strides: row_major(shape) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// True if the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != expected {
                return self.is_empty();
            }
            expected *= *size as isize;
        }
        true
    }

    /// True if the last two axes are a matrix with one dense axis, as BLAS libraries accept it.
    pub fn is_matrix(&self) -> bool {
        let Some((_, [rows, columns])) = self.shape.split_last_chunk::<2>() else { return false };
        let Some((_, [row, column])) = self.strides.split_last_chunk::<2>() else { return false };
        matrix_layout(*rows, *columns, *row, *column).is_some()
    }

    /// The axes permuted.
    pub fn transposed(&self, perm: &[usize]) -> View {
        View {
            shape: perm.iter().map(|p| self.shape[*p]).collect(),
            strides: perm.iter().map(|p| self.strides[*p]).collect(),
            ..self.clone()
        }
    }

    /// A slice of `count` elements along `axis` from `start` with that `step`. `start` and the last
    /// element must be in range.
    pub fn sliced(&self, axis: usize, start: usize, step: isize, count: usize) -> View {
        let mut v = self.clone();
        if count > 0 {
            v.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        v.shape[axis] = count;
        v.strides[axis] = self.strides[axis] * step;
        v
    }

    /// Sliding windows over the last axes: these axes become the window counts, then the axes of
    /// one window. The windows must fit.
    pub fn windowed(&self, windows: &[Window], counts: &[usize]) -> View {
        let mut v = self.clone();
        let lead = self.shape.len() - windows.len();
        for (i, (w, count)) in windows.iter().zip(counts).enumerate() {
            let stride = self.strides[lead + i];
            v.shape[lead + i] = *count;
            v.strides[lead + i] = stride * w.stride as isize;
            v.shape.push(w.size);
            v.strides.push(stride * w.dilation as isize);
        }
        v
    }

    /// Broadcast to a shape; `None` if that is impossible.
    pub fn broadcast(&self, shape: &[usize]) -> Option<View> {
        let skip = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; shape.len()];
        for (i, (size, stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            match (*size, shape[skip + i]) {
                (a, b) if a == b => strides[skip + i] = if a == 1 { 0 } else { *stride },
                (1, _) => {}
                _ => return None,
            }
        }
        Some(View { shape: shape.to_vec(), strides, ..self.clone() })
    }

    /// The same elements in row-major order with another shape, if strides can express it.
    pub fn reshaped(&self, shape: &[usize]) -> Option<View> {
        if shape.iter().product::<usize>() != self.len() {
            return None;
        }
        if self.is_empty() || self.is_contiguous() {
            return Some(View { shape: shape.to_vec(), strides: row_major(shape), ..self.clone() });
        }
        // Merge axes that are contiguous in memory into runs, then split the runs into the new
        // axes.
        let mut runs: Vec<(usize, isize)> = Vec::new();
        for (size, stride) in self.shape.iter().zip(&self.strides).filter(|(size, _)| **size != 1) {
            match runs.last_mut() {
                Some((n, s)) if *s == *stride * *size as isize => (*n, *s) = (*n * size, *stride),
                _ => runs.push((*size, *stride)),
            }
        }
        let mut strides = vec![0; shape.len()];
        let mut runs = runs.into_iter().rev();
        let (mut left, mut stride) = runs.next().unwrap_or((1, 1));
        for (axis, size) in shape.iter().enumerate().rev() {
            if *size == 1 {
                continue;
            }
            if left == 1 {
                (left, stride) = runs.next()?;
            }
            if left % size != 0 {
                return None;
            }
            strides[axis] = stride;
            stride *= *size as isize;
            left /= size;
        }
        Some(View { shape: shape.to_vec(), strides, ..self.clone() })
    }
}

/// Whether an axis, of this many elements with that distance, is part of another one of the same
/// elements.
pub fn is_within((size, stride): (usize, isize), (of, step): (usize, isize)) -> bool {
    let last = isize::try_from(size).ok().and_then(|n| n.checked_mul(stride));
    let end = isize::try_from(of).ok().and_then(|n| n.checked_mul(step));
    step > 0 && step <= stride && stride % step == 0 && last.zip(end).is_some_and(|(last, end)| last <= end)
}

/// Whether the columns of a matrix are contiguous (otherwise the rows are), and its leading
/// dimension: the distance from one row (or column) to the next. `None` if neither is contiguous,
/// or neighbours overlap.
pub fn matrix_layout(rows: usize, columns: usize, row: isize, column: isize) -> Option<(bool, usize)> {
    let dense = |count: usize, stride: isize| count <= 1 || stride == 1;
    let apart = |count: usize, stride: isize, least: usize| match usize::try_from(stride) {
        _ if count <= 1 => Some(least.max(1)),
        Ok(stride) => (stride >= least).then_some(stride),
        Err(_) => None,
    };
    let by_rows = || if dense(columns, column) { apart(rows, row, columns) } else { None };
    let by_columns = || if dense(rows, row) { apart(columns, column, rows) } else { None };
    by_rows().map(|ld| (false, ld)).or_else(|| by_columns().map(|ld| (true, ld)))
}

/// The inverse permutation.
pub fn inverse(order: &[usize]) -> Vec<usize> {
    (0..order.len()).map(|axis| order.iter().position(|a| *a == axis).unwrap_or(axis)).collect()
}

/// Collapses axes that are contiguous for every operand: a shape of lower rank, and strides for
/// each operand. Axes of size 1 are dropped; the result has at least rank 1.
pub fn collapse(shape: &[usize], strides: &[Vec<isize>]) -> (Vec<usize>, Vec<Vec<isize>>) {
    let mut out: Vec<usize> = Vec::new();
    let mut steps: Vec<Vec<isize>> = vec![Vec::new(); strides.len()];
    for (axis, size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
        let joins = !out.is_empty()
            && strides.iter().zip(&steps).all(|(s, t)| t.last().is_some_and(|t| *t == s[axis] * *size as isize));
        match out.last_mut() {
            Some(last) if joins => {
                *last *= size;
                for (s, t) in strides.iter().zip(&mut steps) {
                    if let Some(t) = t.last_mut() {
                        *t = s[axis];
                    }
                }
            }
            _ => {
                out.push(*size);
                for (s, t) in strides.iter().zip(&mut steps) {
                    t.push(s[axis]);
                }
            }
        }
    }
    if out.is_empty() {
        return (vec![1], vec![vec![0]; strides.len()]);
    }
    (out, steps)
}

/// Elements between neighbours along each axis of a tensor that lies row-major, the last one first.
pub(super) fn ends(shape: &[usize]) -> Vec<usize> {
    shape.iter().rev().scan(1usize, |n, size| Some(std::mem::replace(n, *n * size))).collect()
}

/// The axes of two shapes of as many elements, as far as both divide them alike: those of one are
/// products of these, and those of the other.
pub(super) fn refined(one: &[usize], other: &[usize]) -> Option<Vec<usize>> {
    let total: usize = one.iter().product();
    let mut all = [ends(one), ends(other), vec![total]].concat();
    all.sort_unstable();
    all.dedup();
    let apart = all.windows(2).all(|w| w[1].is_multiple_of(w[0]));
    let same = total == other.iter().product::<usize>() && total > 0;
    (same && apart).then(|| all.windows(2).rev().map(|w| w[1] / w[0]).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn elements(v: &View) -> Vec<isize> {
        let mut out = vec![v.offset as isize];
        for (size, stride) in v.shape.iter().zip(&v.strides) {
            out = out.iter().flat_map(|o| (0..*size as isize).map(move |i| o + i * stride)).collect();
        }
        out
    }

    #[test]
    fn reshape_of_a_transpose_is_a_view_only_where_strides_can_say_it() {
        let v = View::whole(BufferId(0), DType::F32, &[2, 3, 4, 5]);
        let t = v.transposed(&[0, 2, 1, 3]);
        assert!(t.reshaped(&[2, 4, 15]).is_none());
        let r = t.reshaped(&[2, 2, 2, 3, 5]).unwrap();
        assert_eq!(elements(&r), elements(&t));
        let u = v.transposed(&[2, 3, 0, 1]);
        let r = u.reshaped(&[20, 6]).unwrap();
        assert_eq!(elements(&r), elements(&u));
        assert!(u.reshaped(&[6, 20]).is_none());
    }

    #[test]
    fn slices_and_broadcasts_keep_to_their_elements() {
        let v = View::whole(BufferId(0), DType::F32, &[4, 3]);
        assert_eq!(elements(&v.sliced(0, 3, -2, 2)), [9, 10, 11, 3, 4, 5]);
        assert_eq!(elements(&v.sliced(1, 1, 1, 1).broadcast(&[4, 2]).unwrap()), [1, 1, 4, 4, 7, 7, 10, 10]);
        assert!(v.broadcast(&[3, 4]).is_none());
        assert!(v.sliced(0, 4, 1, 0).is_contiguous());
        assert!(v.sliced(0, 1, 1, 2).is_contiguous());
        assert!(!v.sliced(1, 0, 1, 2).is_contiguous());
    }

    #[test]
    fn what_has_no_dense_axis_is_no_matrix() {
        let whole = |shape: &[usize]| View::whole(BufferId(0), DType::F32, shape);
        assert!(whole(&[4, 6]).is_matrix());
        assert!(whole(&[4, 6]).transposed(&[1, 0]).is_matrix());
        assert!(whole(&[4, 6]).sliced(1, 1, 1, 3).is_matrix());
        assert!(!whole(&[4, 6]).sliced(1, 0, 2, 3).is_matrix());
        assert!(!whole(&[1, 1]).broadcast(&[4, 6]).unwrap().is_matrix());
        assert!(whole(&[4, 1]).is_matrix());
        assert!(!View { strides: vec![1, 1], ..whole(&[4, 6]) }.is_matrix());
        assert!(!View { strides: vec![-6, 1], ..whole(&[4, 6]) }.is_matrix());
        assert_eq!(matrix_layout(4, 6, 6, 1), Some((false, 6)));
        assert_eq!(matrix_layout(4, 6, 1, 4), Some((true, 4)));
    }

    #[test]
    fn windows_overlap_in_memory() {
        let v = View::whole(BufferId(0), DType::F32, &[2, 5]);
        let w = v.windowed(&[Window { size: 2, stride: 1, dilation: 2, before: 0 }], &[3]);
        assert_eq!(elements(&w), [0, 2, 1, 3, 2, 4, 5, 7, 6, 8, 7, 9]);
        assert!(!w.is_contiguous());
    }

    #[test]
    fn axes_that_all_operands_walk_as_one_collapse() {
        let shape = [2, 1, 3, 4];
        let full = row_major(&shape);
        let row = vec![0, 0, 0, 1];
        assert_eq!(collapse(&shape, &[full.clone(), row]), (vec![6, 4], vec![vec![4, 1], vec![0, 1]]));
        assert_eq!(collapse(&shape, &[full]), (vec![24], vec![vec![1]]));
        assert_eq!(collapse(&[], &[vec![]]), (vec![1], vec![vec![0]]));
    }

    #[test]
    fn axes_are_divided_as_both_shapes_are() {
        assert_eq!(refined(&[12, 100], &[2, 6, 100]), Some(vec![2, 6, 100]));
        assert_eq!(refined(&[12, 100], &[1200]), Some(vec![12, 100]));
        assert_eq!(refined(&[4, 6], &[6, 4]), None);
        assert_eq!(refined(&[4, 6], &[4, 5]), None);
        assert_eq!(refined(&[1], &[1, 1]), Some(vec![]));
    }
}
