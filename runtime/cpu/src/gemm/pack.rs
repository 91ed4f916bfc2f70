//! Packing: reorders operands of products for the kernels.
//!
//! In: a matrix with any strides, also in f16 and bf16. Out: the right operand in panels of
//! columns, the left one in rows with unit stride. Invariant: a panel begins at `index * k *
//! panel`, is stored row by row, and is padded with zeros; a constant is packed once for all
//! executors that read it in the same layout.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hypatia_dsl::dtype::DType;

use super::kernel::Float;
use crate::interp::read;
use crate::memory::Bytes;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// An operand: a buffer, the offset of its element (0, 0), and its strides.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The buffer.
    pub bytes: &'a [u8],
    /// Its element type.
    pub dtype: DType,
    /// Element (0, 0).
    pub offset: isize,
    /// Row stride.
    pub row: isize,
    /// Column stride.
    pub column: isize,
}

impl Matrix<'_> {
    /// True if every element of a matrix of that size is inside the buffer.
    pub fn fits(&self, rows: usize, columns: usize) -> bool {
        if rows == 0 || columns == 0 {
            return true;
        }
        let ends = [(rows - 1) as isize * self.row, (columns - 1) as isize * self.column];
        let low = self.offset + ends.iter().filter(|e| **e < 0).sum::<isize>();
        let high = self.offset + ends.iter().filter(|e| **e > 0).sum::<isize>();
        low >= 0 && (high as usize) < self.bytes.len() / self.dtype.size()
    }

    fn at(&self, row: usize, column: usize) -> isize {
        self.offset + row as isize * self.row + column as isize * self.column
    }
}

/// Number of elements of `columns` columns and `k` rows in panels.
pub fn packed_len(k: usize, columns: usize, panel: usize) -> usize {
    columns.next_multiple_of(panel) * k
}

/// Packs rows `ks` and columns `columns` of a matrix into panels.
pub fn pack<T: Float>(b: Matrix<'_>, ks: Range<usize>, columns: Range<usize>, panel: usize, to: &mut [T]) {
    let k = ks.len();
    for (panel_to, first) in to.chunks_exact_mut((k * panel).max(1)).zip(columns.clone().step_by(panel)) {
        let count = panel.min(columns.end - first);
        if b.row == 1 && b.column != 1 && b.dtype == T::DTYPE {
            transpose(b, ks.start, first, (k, count), panel, panel_to);
            continue;
        }
        for (l, row) in panel_to.chunks_exact_mut(panel).enumerate() {
            let (values, fill) = row.split_at_mut(count);
            read(b.bytes, b.dtype, b.at(ks.start + l, first), b.column, T::dst(values));
            fill.fill(T::ZERO);
        }
    }
}

/// Packs a panel of a matrix with contiguous columns, by transposing square blocks.
fn transpose<T: Float>(b: Matrix<'_>, k0: usize, first: usize, (k, count): (usize, usize), panel: usize, to: &mut [T]) {
    let from: &[T] = bytemuck::cast_slice(b.bytes);
    if count < panel {
        to.fill(T::ZERO);
    }
    let squares = |n: usize| if b.column > 0 { n / 8 * 8 } else { 0 };
    for j in (0..squares(count)).step_by(8) {
        for l in (0..squares(k)).step_by(8) {
            let source = &from[b.at(k0 + l, first + j) as usize..];
            if !T::transpose8(source, b.column as usize, &mut to[l * panel + j..], panel) {
                one_by_one(b, from, (k0, l..l + 8), (first, j..j + 8), panel, to);
            }
        }
    }
    one_by_one(b, from, (k0, squares(k)..k), (first, 0..squares(count)), panel, to);
    one_by_one(b, from, (k0, 0..k), (first, squares(count)..count), panel, to);
}

fn one_by_one<T: Float>(
    b: Matrix<'_>,
    from: &[T],
    (k0, ks): (usize, Range<usize>),
    (first, js): (usize, Range<usize>),
    panel: usize,
    to: &mut [T],
) {
    for j in js {
        for l in ks.clone() {
            to[l * panel + j] = from[b.at(k0 + l, first + j) as usize];
        }
    }
}

/// Copies rows `rows` and columns `ks` of a matrix; row i goes to `i * stride`.
pub fn copy_rows<T: Float>(a: Matrix<'_>, rows: Range<usize>, ks: Range<usize>, stride: usize, to: &mut [T]) {
    for (i, row) in to.chunks_mut(stride).zip(rows).map(|(to, i)| (i, to)) {
        read(a.bytes, a.dtype, a.at(i, ks.start), a.column, T::dst(&mut row[..ks.len()]));
    }
}

/// A constant right operand in panels.
pub struct Packed {
    data: Bytes,
    /// Keeps the tensor alive, so that its address is not reused while it is a cache key.
    _source: Arc<Tensor>,
}

impl Packed {
    /// The elements.
    pub fn values<T: Float>(&self) -> &[T] {
        bytemuck::cast_slice(self.data.as_ref())
    }
}

/// Cache key of a packed constant: tensor, offset, strides, sizes, columns of a panel, taps.
type Key = (usize, usize, [isize; 2], [usize; 2], usize, usize);

static PACKED: Mutex<Option<HashMap<Key, Weak<Packed>>>> = Mutex::new(None);

/// The cached value of a key, or a new one if no executor holds it.
fn cached(key: Key, make: impl FnOnce() -> Result<Packed>) -> Result<Arc<Packed>> {
    let mut known = PACKED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(found) = known.get(&key).and_then(Weak::upgrade) {
        return Ok(found);
    }
    let new = Arc::new(make()?);
    known.retain(|_, p| p.strong_count() > 0);
    known.insert(key, Arc::downgrade(&new));
    Ok(new)
}

/// A constant `[k, n]` in panels. It is packed now unless an executor already holds it.
pub fn packed<T: Float>(
    tensor: &Arc<Tensor>,
    (offset, row, column): (usize, isize, isize),
    (k, n): (usize, usize),
    panel: usize,
) -> Result<Arc<Packed>> {
    cached((Arc::as_ptr(tensor) as usize, offset, [row, column], [k, n], panel, 0), || {
        let b = Matrix { bytes: tensor.bytes(), dtype: tensor.dtype(), offset: offset as isize, row, column };
        if !b.fits(k, n) {
            return Err(Error::Internal(format!("a product reaches beyond its constant of {:?}", tensor.shape())));
        }
        let mut data = Bytes::new(packed_len(k, n, panel) * size_of::<T>())?;
        pack(b, 0..k, 0..n, panel, bytemuck::cast_slice_mut::<u8, T>(data.as_mut()));
        Ok(Packed { data, _source: tensor.clone() })
    })
}

/// Filters of a convolution as stored: `[count, depth, taps]`.
#[derive(Clone, Copy, Debug)]
pub struct Filters {
    /// The first element.
    pub offset: usize,
    /// Number of filters.
    pub count: usize,
    /// Channels per filter.
    pub depth: usize,
    /// Taps per channel.
    pub taps: usize,
}

/// Constant filters as a matrix `[taps * depth, count]` in panels. They are packed now unless an
/// executor already holds them.
pub fn packed_filters<T: Float>(tensor: &Arc<Tensor>, f: Filters, panel: usize) -> Result<Arc<Packed>> {
    let (k, n) = (f.taps * f.depth, f.count);
    cached((Arc::as_ptr(tensor) as usize, f.offset, [0, 0], [k, n], panel, f.taps), || {
        if f.offset + k * n > tensor.len() {
            return Err(Error::Internal(format!("filters reach beyond their constant of {:?}", tensor.shape())));
        }
        let mut data = Bytes::new(packed_len(k, n, panel) * size_of::<T>())?;
        let to: &mut [T] = bytemuck::cast_slice_mut(data.as_mut());
        for (to, first) in to.chunks_exact_mut((k * panel).max(1)).zip((0..n).step_by(panel.max(1))) {
            let count = panel.min(n - first);
            for (row, to) in to.chunks_exact_mut(panel).enumerate() {
                let at = f.offset + first * k + row % f.depth * f.taps + row / f.depth;
                let (values, fill) = to.split_at_mut(count);
                read(tensor.bytes(), tensor.dtype(), at as isize, k as isize, T::dst(values));
                fill.fill(T::ZERO);
            }
        }
        Ok(Packed { data, _source: tensor.clone() })
    })
}
