//! Decodes `TensorProto`s: every ONNX encoding of the supported element types.
//!
//! In: a `TensorProto`. Out: a [`Tensor`], or what is wrong. Invariant: the number of elements in
//! the data is compared with the shape before any allocation. A value that its type cannot
//! represent is an error.

use std::path::Path;

use half::{bf16, f16};
use hypatia_dsl::dtype::DType;

use super::onnx::proto::TensorProto;
use super::onnx::proto::tensor_proto::{DataLocation, DataType};
use hypatia_tensor::tensor::Tensor;

/// Why a tensor could not be read.
pub(super) enum TensorFault {
    /// It is malformed.
    Damaged(String),
    /// Its kind is not supported.
    Unsupported(String),
}

impl From<String> for TensorFault {
    fn from(s: String) -> TensorFault {
        TensorFault::Damaged(s)
    }
}

/// Converts an ONNX element type.
pub(super) fn dtype(code: i32) -> Result<DType, TensorFault> {
    let ty = DataType::try_from(code).map_err(|_| format!("element type {code} is unknown"))?;
    Ok(match ty {
        DataType::Float => DType::F32,
        DataType::Double => DType::F64,
        DataType::Float16 => DType::F16,
        DataType::Bfloat16 => DType::BF16,
        DataType::Float8e4m3fn => DType::F8E4M3,
        DataType::Float8e5m2 => DType::F8E5M2,
        DataType::Int64 => DType::I64,
        DataType::Int32 => DType::I32,
        DataType::Int8 => DType::I8,
        DataType::Uint8 => DType::U8,
        DataType::Bool => DType::Bool,
        DataType::Undefined => return Err(TensorFault::Damaged("the element type is missing".into())),
        other => {
            let have: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            return Err(TensorFault::Unsupported(format!(
                "element type {} (supported: {})",
                other.as_str_name(),
                have.join(", ")
            )));
        }
    })
}

/// Reads a tensor. `dir` is the model's folder, for external data.
pub(super) fn read(t: &TensorProto, dir: Option<&Path>) -> Result<Tensor, TensorFault> {
    let dtype = dtype(t.data_type())?;
    if t.segment.is_some() {
        return Err(TensorFault::Unsupported("a tensor in segments".into()));
    }
    let shape: Vec<usize> = t
        .dims
        .iter()
        .map(|&d| usize::try_from(d).map_err(|_| format!("the shape {:?} has a negative size", t.dims)))
        .collect::<Result<_, _>>()?;
    let len = shape
        .iter()
        .try_fold(1usize, |a, &d| a.checked_mul(d))
        .filter(|n| n.checked_mul(dtype.size()).is_some_and(|b| b < isize::MAX as usize))
        .ok_or_else(|| format!("the shape {shape:?} is too large"))?;
    let bytes = len * dtype.size();
    let wrong = |have: usize, what: &str| {
        TensorFault::Damaged(format!(
            "the shape {shape:?} of {dtype} needs {len} elements ({bytes} bytes), but there are {have} {what}"
        ))
    };
    let build = |raw: &[u8]| {
        Tensor::from_bytes(dtype, &shape, raw).ok_or_else(|| TensorFault::Damaged("a bool is neither 0 nor 1".into()))
    };
    if t.data_location() == DataLocation::External {
        return build(&super::external::read(&t.external_data, dir, bytes)?);
    }
    if let Some(raw) = &t.raw_data {
        if raw.len() != bytes {
            return Err(wrong(raw.len(), "bytes"));
        }
        return build(raw);
    }
    typed(t, dtype, &shape, len, &wrong)
}

/// Reads data from the typed fields.
fn typed(
    t: &TensorProto,
    dtype: DType,
    shape: &[usize],
    len: usize,
    wrong: &dyn Fn(usize, &str) -> TensorFault,
) -> Result<Tensor, TensorFault> {
    let whole =
        |tensor: Option<Tensor>| tensor.ok_or_else(|| TensorFault::Damaged("the data does not match the shape".into()));
    let counted = |have: usize, what: &str| if have == len { Ok(()) } else { Err(wrong(have, what)) };
    // int32_data holds all types narrower than 32 bits.
    let narrow = |low: i64, high: i64| -> Result<(), TensorFault> {
        counted(t.int32_data.len(), "numbers")?;
        match t.int32_data.iter().find(|v| !(low..=high).contains(&i64::from(**v))) {
            Some(v) => Err(TensorFault::Damaged(format!("{v} is not a value of {dtype}"))),
            None => Ok(()),
        }
    };
    match dtype {
        DType::F32 => {
            counted(t.float_data.len(), "numbers")?;
            whole(Tensor::from_slice(shape, &t.float_data))
        }
        DType::F64 => {
            counted(t.double_data.len(), "numbers")?;
            whole(Tensor::from_slice(shape, &t.double_data))
        }
        DType::I64 => {
            counted(t.int64_data.len(), "numbers")?;
            whole(Tensor::from_slice(shape, &t.int64_data))
        }
        DType::I32 => {
            counted(t.int32_data.len(), "numbers")?;
            whole(Tensor::from_slice(shape, &t.int32_data))
        }
        DType::F16 | DType::BF16 => {
            narrow(0, 0xffff)?;
            let bits = t.int32_data.iter().map(|v| *v as u16);
            whole(if dtype == DType::F16 {
                Tensor::from_slice(shape, &bits.map(f16::from_bits).collect::<Vec<_>>())
            } else {
                Tensor::from_slice(shape, &bits.map(bf16::from_bits).collect::<Vec<_>>())
            })
        }
        DType::I8 => {
            narrow(-128, 127)?;
            whole(Tensor::from_slice(shape, &t.int32_data.iter().map(|v| *v as i8).collect::<Vec<_>>()))
        }
        DType::F8E4M3 | DType::F8E5M2 | DType::U8 | DType::Bool => {
            narrow(0, if dtype == DType::Bool { 1 } else { 255 })?;
            whole(Tensor::from_bytes(dtype, shape, &t.int32_data.iter().map(|v| *v as u8).collect::<Vec<_>>()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ok(t: &TensorProto) -> Vec<f64> {
        match read(t, None) {
            Ok(t) => t.to_f64(),
            Err(TensorFault::Damaged(m) | TensorFault::Unsupported(m)) => panic!("{m}"),
        }
    }

    #[test]
    fn typed_fields_of_every_type() {
        let make = |ty: DataType, dims: &[i64]| TensorProto {
            data_type: Some(ty as i32),
            dims: dims.to_vec(),
            ..Default::default()
        };
        let int = |ty, v: &[i32]| TensorProto { int32_data: v.to_vec(), ..make(ty, &[v.len() as i64]) };
        assert_eq!(ok(&TensorProto { float_data: vec![1.5, -2.0], ..make(DataType::Float, &[2]) }), [1.5, -2.0]);
        assert_eq!(ok(&TensorProto { double_data: vec![0.1], ..make(DataType::Double, &[]) }), [0.1]);
        assert_eq!(ok(&TensorProto { int64_data: vec![-7], ..make(DataType::Int64, &[1, 1]) }), [-7.0]);
        assert_eq!(ok(&int(DataType::Float16, &[0x3c00, 0xc000])), [1.0, -2.0]);
        assert_eq!(ok(&int(DataType::Bfloat16, &[0x3f80])), [1.0]);
        assert_eq!(ok(&int(DataType::Int8, &[-128])), [-128.0]);
        assert_eq!(ok(&int(DataType::Uint8, &[255])), [255.0]);
        assert_eq!(ok(&int(DataType::Bool, &[1, 0])), [1.0, 0.0]);
        assert!(matches!(read(&int(DataType::Bool, &[2]), None), Err(TensorFault::Damaged(_))));
        assert!(matches!(read(&int(DataType::Uint8, &[-1]), None), Err(TensorFault::Damaged(_))));
        assert!(matches!(read(&int(DataType::Int16, &[1]), None), Err(TensorFault::Unsupported(_))));
        assert!(matches!(read(&make(DataType::Float, &[1 << 40]), None), Err(TensorFault::Damaged(_))));
        assert!(matches!(read(&make(DataType::Float, &[1 << 62, 8]), None), Err(TensorFault::Damaged(_))));
        assert!(matches!(read(&make(DataType::Float, &[-1]), None), Err(TensorFault::Damaged(_))));
        assert_eq!(ok(&make(DataType::Float, &[0, 3])), [0.0; 0]);
    }
}
