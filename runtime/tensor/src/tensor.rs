//! Concrete tensors in host memory: inputs, weights, results.
//!
//! Invariant: row-major and contiguous; the buffer holds exactly `product(shape)` elements and is
//! aligned to 8 bytes; bool elements are 0 or 1.

use std::sync::Arc;

use half::{bf16, f16};
use hypatia_dsl::dtype::{DType, F8E4M3, F8E5M2, to_bf16, to_f8e4m3, to_f8e5m2, to_f16};

/// A tensor. Cloning shares the data.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    /// The bytes, stored as words for alignment.
    words: Arc<Vec<u64>>,
    len: usize,
}

/// A Rust type that is an element type of tensors.
pub trait Element: bytemuck::Pod {
    /// Its element type.
    const DTYPE: DType;
}
macro_rules! elements {
    ($($t:ty = $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements!(f64 = F64, f32 = F32, f16 = F16, bf16 = BF16, F8E4M3 = F8E4M3, F8E5M2 = F8E5M2);
elements!(i64 = I64, i32 = I32, i8 = I8, u8 = U8);

impl Tensor {
    /// A tensor of zeros. `None` if the size overflows `usize`.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Option<Tensor> {
        let len = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d))?;
        let bytes = len.checked_mul(dtype.size())?;
        Some(Tensor { dtype, shape: shape.to_vec(), words: Arc::new(vec![0; bytes.div_ceil(8)]), len })
    }

    /// A tensor of these elements in row-major order. `None` if their number does not match the
    /// shape.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Option<Tensor> {
        let mut t = Tensor::zeros(T::DTYPE, shape)?;
        if t.len != data.len() {
            return None;
        }
        t.bytes_mut().copy_from_slice(bytemuck::cast_slice(data));
        Some(t)
    }

    /// A tensor of little-endian bytes. `None` if their number does not match the shape, or a bool
    /// is neither 0 nor 1.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Tensor> {
        let len = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        if len.checked_mul(dtype.size())? != bytes.len() || (dtype == DType::Bool && bytes.iter().any(|b| *b > 1)) {
            return None;
        }
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut words = Vec::with_capacity(bytes.len().div_ceil(8));
        words.extend(whole.iter().map(|word| u64::from_ne_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words.push(u64::from_ne_bytes(last));
        }
        Some(Tensor { dtype, shape: shape.to_vec(), words: Arc::new(words), len })
    }

    /// A tensor of `dtype` from f64 values, each rounded once.
    pub fn from_f64(dtype: DType, shape: &[usize], data: &[f64]) -> Option<Tensor> {
        let mut t = Tensor::zeros(dtype, shape)?;
        if t.len != data.len() {
            return None;
        }
        macro_rules! fill {
            ($t:ty, $f:expr) => {
                t.words_as::<$t>().iter_mut().zip(data).for_each(|(o, v)| *o = $f(*v))
            };
        }
        match dtype {
            DType::F64 => fill!(f64, |v| v),
            DType::F32 => fill!(f32, |v| v as f32),
            DType::F16 => fill!(f16, to_f16),
            DType::BF16 => fill!(bf16, to_bf16),
            DType::F8E4M3 => fill!(F8E4M3, to_f8e4m3),
            DType::F8E5M2 => fill!(F8E5M2, to_f8e5m2),
            DType::I64 => fill!(i64, |v| v as i64),
            DType::I32 => fill!(i32, |v| v as i32),
            DType::I8 => fill!(i8, |v| v as i8),
            DType::U8 => fill!(u8, |v| v as u8),
            DType::Bool => fill!(u8, |v: f64| (v != 0.0) as u8),
        }
        Some(t)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same elements with another shape; `None` if the number of elements differs.
    pub fn reshaped(&self, shape: &[usize]) -> Option<Tensor> {
        let len = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d))?;
        (len == self.len).then(|| Tensor { shape: shape.to_vec(), ..self.clone() })
    }

    /// The little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len * self.dtype.size()]
    }

    /// Mutable access to the bytes; copies if the data is shared.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.len * self.dtype.size();
        &mut bytemuck::cast_slice_mut(Arc::make_mut(&mut self.words).as_mut_slice())[..n]
    }

    fn words_as<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let n = self.len;
        &mut bytemuck::cast_slice_mut(Arc::make_mut(&mut self.words).as_mut_slice())[..n]
    }

    /// The elements, if they are of type `T` (`u8` also reads bool).
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let fits = T::DTYPE == self.dtype || (T::DTYPE == DType::U8 && self.dtype == DType::Bool);
        fits.then(|| &bytemuck::cast_slice(&self.words)[..self.len])
    }

    /// Mutable access to the elements, if they are of type `T`.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        let fits = T::DTYPE == self.dtype || (T::DTYPE == DType::U8 && self.dtype == DType::Bool);
        fits.then(|| self.words_as())
    }

    /// All elements as f64 (i64 loses digits beyond 2^53).
    pub fn to_f64(&self) -> Vec<f64> {
        macro_rules! read {
            ($t:ty, $f:expr) => {
                bytemuck::cast_slice::<u64, $t>(&self.words)[..self.len].iter().map($f).collect()
            };
        }
        match self.dtype {
            DType::F64 => read!(f64, |v| *v),
            DType::F32 => read!(f32, |v| *v as f64),
            DType::F16 => read!(f16, |v| v.to_f64()),
            DType::BF16 => read!(bf16, |v| v.to_f64()),
            DType::F8E4M3 => read!(F8E4M3, |v| v.to_f64()),
            DType::F8E5M2 => read!(F8E5M2, |v| v.to_f64()),
            DType::I64 => read!(i64, |v| *v as f64),
            DType::I32 => read!(i32, |v| *v as f64),
            DType::I8 => read!(i8, |v| *v as f64),
            DType::U8 | DType::Bool => read!(u8, |v| *v as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_each_dtype() {
        for dtype in DType::ALL {
            let t = Tensor::from_f64(dtype, &[3], &[0.0, 1.0, 1.0]).unwrap();
            assert_eq!(t.to_f64(), [0.0, 1.0, 1.0]);
            assert_eq!(t.bytes().len(), 3 * dtype.size());
            assert!(Tensor::from_bytes(dtype, &[3], t.bytes()).is_some());
            assert!(Tensor::from_bytes(dtype, &[4], t.bytes()).is_none());
        }
        assert!(Tensor::zeros(DType::F64, &[usize::MAX, 2]).is_none());
        assert_eq!(Tensor::zeros(DType::F32, &[0, 5]).unwrap().to_f64(), [0.0; 0]);
    }
}
