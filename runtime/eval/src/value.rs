//! Tensors of the reference evaluator: floats of one kind, i64 or bool, whatever the element type's
//! width.

use half::{bf16, f16};
use hypatia_dsl::dtype::{DType, F8E4M3, F8E5M2};

use super::number::Number;
use hypatia_graph::prim::elements;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Elements of a [`RefTensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data<R = f64> {
    /// Floats of any width.
    F(Vec<R>),
    /// Integers of any width, each within the range of its element type.
    I(Vec<i64>),
    /// Truth values.
    B(Vec<bool>),
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Val<R = f64> {
    /// A float.
    F(R),
    /// An integer.
    I(i64),
    /// A truth value.
    B(bool),
}

impl<R: Number> Val<R> {
    /// As a float.
    pub fn f(self) -> R {
        match self {
            Val::F(v) => v,
            Val::I(v) => R::of_int(v),
            Val::B(v) => R::of_int(v.into()),
        }
    }

    /// As an integer: floats truncate and saturate, NaN is 0.
    pub fn i(self) -> i64 {
        match self {
            Val::F(v) => v.to_int(),
            Val::I(v) => v,
            Val::B(v) => v as i64,
        }
    }

    /// As a truth value: true unless it is 0.
    pub fn b(self) -> bool {
        match self {
            Val::F(v) => v != R::of(0.0),
            Val::I(v) => v != 0,
            Val::B(v) => v,
        }
    }
}

/// `v` reduced to the range of an integer type, as the hardware does (modulo 2^bits).
pub fn wrap(dtype: DType, v: i64) -> i64 {
    match dtype {
        DType::I32 => v as i32 as i64,
        DType::I8 => v as i8 as i64,
        DType::U8 => v as u8 as i64,
        _ => v,
    }
}

fn saturate(dtype: DType, v: i64) -> i64 {
    match dtype {
        DType::I32 => v.clamp(i32::MIN.into(), i32::MAX.into()),
        DType::I8 => v.clamp(i8::MIN.into(), i8::MAX.into()),
        DType::U8 => v.clamp(0, u8::MAX.into()),
        _ => v,
    }
}

/// A float rounded once to the type.
pub(super) fn rounded<R: Number>(dtype: DType, v: R) -> R {
    R::of(dtype.round(v.near()))
}

/// An integer as an f64 that narrower types round as they round the integer: where f64 does not
/// hold it, the last digit says that there was more, so that nothing is rounded twice.
fn to_odd(v: i64) -> f64 {
    let size = v.unsigned_abs();
    let more = (u64::BITS - size.leading_zeros()).saturating_sub(f64::MANTISSA_DIGITS);
    let rest = size & ((1 << more) - 1);
    let kept = (size - rest) | (u64::from(rest != 0) << more);
    if v < 0 { -(kept as f64) } else { kept as f64 }
}

/// Conversion of one element to another type. Floats are rounded to the type if `round` is set; to
/// integers they truncate and saturate; integers wrap; to bool everything but 0 is true.
pub fn convert<R: Number>(v: Val<R>, to: DType, round: bool) -> Val<R> {
    match to {
        DType::Bool => Val::B(v.b()),
        d if d.is_int() => match v {
            Val::F(x) => Val::I(saturate(d, x.to_int())),
            other => Val::I(wrap(d, other.i())),
        },
        d if round && d != DType::F64 => match v {
            Val::I(i) => Val::F(R::of(d.round(to_odd(i)))),
            other => Val::F(rounded(d, other.f())),
        },
        d if round => Val::F(rounded(d, v.f())),
        _ => Val::F(v.f()),
    }
}

/// A tensor whose elements are wide enough for the element type's values, and for what Exact mode
/// makes of them.
#[derive(Clone, Debug, PartialEq)]
pub struct RefTensor<R = f64> {
    /// The element type that it stands for.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data<R>,
}

impl<R: Number> RefTensor<R> {
    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<RefTensor<R>> {
        let n = elements(shape)?;
        let data = match dtype {
            DType::Bool => Data::B(vec![false; n]),
            d if d.is_int() => Data::I(vec![0; n]),
            _ => Data::F(vec![R::of(0.0); n]),
        };
        Ok(RefTensor { dtype, shape: shape.to_vec(), data })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::F(v) => v.len(),
            Data::I(v) => v.len(),
            Data::B(v) => v.len(),
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that it takes.
    pub fn bytes(&self) -> usize {
        let one = match self.data {
            Data::F(_) => size_of::<R>(),
            Data::I(_) => size_of::<i64>(),
            Data::B(_) => 1,
        };
        self.len() * one
    }

    /// Element `i` in row-major order.
    pub fn at(&self, i: usize) -> Val<R> {
        match &self.data {
            Data::F(v) => Val::F(v[i]),
            Data::I(v) => Val::I(v[i]),
            Data::B(v) => Val::B(v[i]),
        }
    }

    /// Writes element `i`, converted to the kind of the tensor but not rounded.
    pub fn set(&mut self, i: usize, v: Val<R>) {
        match &mut self.data {
            Data::F(d) => d[i] = v.f(),
            Data::I(d) => d[i] = wrap(self.dtype, v.i()),
            Data::B(d) => d[i] = v.b(),
        }
    }

    /// All elements, each as the nearest f64.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::F(v) => v.iter().map(|x| x.near()).collect(),
            Data::I(v) => v.iter().map(|x| *x as f64).collect(),
            Data::B(v) => v.iter().map(|x| *x as u8 as f64).collect(),
        }
    }

    /// The elements of a tensor, all of them exactly.
    pub fn from_tensor(t: &Tensor) -> RefTensor<R> {
        macro_rules! read {
            ($kind:ident, $t:ty, $f:expr) => {
                Data::$kind(t.as_slice::<$t>().unwrap_or_default().iter().map($f).collect())
            };
        }
        let data = match t.dtype() {
            DType::F64 => read!(F, f64, |v| R::of(*v)),
            DType::F32 => read!(F, f32, |v| R::of(f64::from(*v))),
            DType::F16 => read!(F, f16, |v| R::of(v.to_f64())),
            DType::BF16 => read!(F, bf16, |v| R::of(v.to_f64())),
            DType::F8E4M3 => read!(F, F8E4M3, |v| R::of(v.to_f64())),
            DType::F8E5M2 => read!(F, F8E5M2, |v| R::of(v.to_f64())),
            DType::I64 => read!(I, i64, |v| *v),
            DType::I32 => read!(I, i32, |v| *v as i64),
            DType::I8 => read!(I, i8, |v| *v as i64),
            DType::U8 => read!(I, u8, |v| *v as i64),
            DType::Bool => read!(B, u8, |v| *v != 0),
        };
        RefTensor { dtype: t.dtype(), shape: t.shape().to_vec(), data }
    }

    /// A tensor of the element type, each element rounded once.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let made = match &self.data {
            Data::F(_) => Tensor::from_f64(self.dtype, &self.shape, &self.to_f64()),
            Data::B(v) => Tensor::from_bytes(self.dtype, &self.shape, &v.iter().map(|b| *b as u8).collect::<Vec<_>>()),
            Data::I(v) => match self.dtype {
                DType::I32 => Tensor::from_slice(&self.shape, &v.iter().map(|x| *x as i32).collect::<Vec<_>>()),
                DType::I8 => Tensor::from_slice(&self.shape, &v.iter().map(|x| *x as i8).collect::<Vec<_>>()),
                DType::U8 => Tensor::from_slice(&self.shape, &v.iter().map(|x| *x as u8).collect::<Vec<_>>()),
                _ => Tensor::from_slice(&self.shape, v),
            },
        };
        made.ok_or_else(|| Error::Internal(format!("a {} result of shape {:?}", self.dtype, self.shape)))
    }
}
