//! An operand of a step: a buffer and a view of it.
//!
//! In: the bytes of a buffer, and a view of the plan. Out: single elements, and the offsets of a
//! shape's indices in row-major order. Invariant: an offset counts elements, not bytes.

use hypatia_dsl::dtype::DType;
use smallvec::SmallVec;

use super::interp::{Dst, read};
use hypatia_eval::Val;
use hypatia_plan::View;

/// A buffer and a view of it.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// The whole buffer.
    pub bytes: &'a [u8],
    /// The view.
    pub view: &'a View,
}

impl Operand<'_> {
    /// One element of any type.
    pub fn element(&self, at: isize) -> Val {
        let (mut f, mut d, mut i, mut b) = ([0f32], [0f64], [0i64], [0u8]);
        match self.view.dtype {
            DType::F64 => {
                read(self.bytes, DType::F64, at, 1, Dst::F64(&mut d));
                Val::F(d[0])
            }
            DType::Bool => {
                read(self.bytes, DType::Bool, at, 1, Dst::Bool(&mut b));
                Val::B(b[0] != 0)
            }
            dtype if dtype.is_int() => {
                read(self.bytes, dtype, at, 1, Dst::Int(&mut i));
                Val::I(i[0])
            }
            dtype => {
                read(self.bytes, dtype, at, 1, Dst::F32(&mut f));
                Val::F(f[0] as f64)
            }
        }
    }
}

/// Iterates over the offsets of a shape's indices, in row-major order.
pub(super) struct Offsets<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    index: SmallVec<[usize; 6]>,
    /// The current offset.
    pub at: isize,
}

impl<'a> Offsets<'a> {
    /// Starts at the first index, whose element is at offset `at`.
    pub fn new(shape: &'a [usize], strides: &'a [isize], at: isize) -> Offsets<'a> {
        Offsets { shape, strides, index: SmallVec::from_elem(0, shape.len()), at }
    }

    /// Starts at the index at position `first` of the order.
    pub fn from(shape: &'a [usize], strides: &'a [isize], at: isize, first: usize) -> Offsets<'a> {
        let mut o = Offsets::new(shape, strides, at);
        let mut rest = first;
        for (axis, size) in shape.iter().enumerate().rev() {
            o.index[axis] = rest % size;
            o.at += (rest % size) as isize * strides[axis];
            rest /= size;
        }
        o
    }

    /// Advances to the next index.
    pub fn step(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.at += self.strides[axis];
            if self.index[axis] < self.shape[axis] {
                return;
            }
            self.at -= self.strides[axis] * self.shape[axis] as isize;
            self.index[axis] = 0;
        }
    }
}
