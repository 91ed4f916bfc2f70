//! Descriptors of tensors for the copy engine (`CUtensorMap`).
//!
//! In: an address, an element type, the shape and the box that a kernel moves at a time, or where
//! windows of an image begin. Out: the 128 bytes that the kernel takes by value. Invariant: rows of
//! a box are 128, 64 or 32 bytes, swizzled with that span; elements outside of the tensor are read
//! as zero and never written.
//!
//! Source: CUDA driver API, section "Tensor Map Object Management".

use std::mem::MaybeUninit;

use cudarc::driver::sys;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::WindowBounds;

use super::driver::failed;
use crate::lowering::map_shape::MapShape;
use hypatia_tensor::error::{Error, Result};

/// The words of a descriptor.
pub(super) const WORDS: usize = 16;
/// The axes of an image: channels, columns, rows, images.
const IMAGE_AXES: usize = 4;

/// Encodes the descriptor of a tensor at that address. What is loaded of f32 is rounded to TF32 if
/// that is wanted.
pub(super) fn encode(
    address: u64,
    (dtype, tf32): (DType, bool),
    shape: &MapShape,
    inner: [u32; 2],
) -> Result<[u64; WORDS]> {
    let kind = if tf32 { sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 } else { element(dtype)? };
    let (sizes, strides) = (shape.sizes(), shape.strides());
    let mut boxes = [1u32; 5];
    boxes[..2].copy_from_slice(&inner);
    let steps = [1u32; 5];
    let mut map: MaybeUninit<sys::CUtensorMap> = MaybeUninit::zeroed();
    // SAFETY: all arrays have an entry for each axis, at most five (strides: one less), and live
    // during the call, which writes the descriptor and reads no device memory.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            kind,
            sizes.len() as u32,
            address as *mut std::ffi::c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle(inner[0] as usize * dtype.size()),
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(|e| failed("cuTensorMapEncodeTiled", e))?;
    // SAFETY: the call succeeded, and the descriptor is 128 bytes of plain data.
    Ok(unsafe { map.assume_init() }.opaque)
}

/// Encodes the descriptor of an image at that address, whose axes are channels, columns, rows and
/// images, for loads of `inner` channels and windows.
pub(super) fn encode_windows(
    address: u64,
    dtype: DType,
    shape: &MapShape,
    inner: [u32; 2],
    windows: &WindowBounds,
) -> Result<[u64; WORDS]> {
    let kind = element(dtype)?;
    let (sizes, strides) = (shape.sizes(), shape.strides());
    if sizes.len() != IMAGE_AXES {
        return Err(Error::Internal(format!("windows of a tensor of {} axes", sizes.len())));
    }
    let [x, y] = windows.steps;
    let steps = [1, x, y, 1];
    let mut map: MaybeUninit<sys::CUtensorMap> = MaybeUninit::zeroed();
    // SAFETY: sizes and steps have an entry for each of four axes, strides one less, corners two
    // less; all live during the call, which writes the descriptor and reads no device memory.
    let status = unsafe {
        sys::cuTensorMapEncodeIm2col(
            map.as_mut_ptr(),
            kind,
            IMAGE_AXES as u32,
            address as *mut std::ffi::c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            windows.lower.as_ptr(),
            windows.upper.as_ptr(),
            inner[0],
            inner[1],
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(|e| failed("cuTensorMapEncodeIm2col", e))?;
    // SAFETY: the call succeeded, and the descriptor is 128 bytes of plain data.
    Ok(unsafe { map.assume_init() }.opaque)
}

/// The swizzle of boxes whose rows have so many bytes.
fn swizzle(row: usize) -> sys::CUtensorMapSwizzle {
    use sys::CUtensorMapSwizzle as S;
    match row {
        32 => S::CU_TENSOR_MAP_SWIZZLE_32B,
        64 => S::CU_TENSOR_MAP_SWIZZLE_64B,
        _ => S::CU_TENSOR_MAP_SWIZZLE_128B,
    }
}

/// What the driver calls an element type.
fn element(dtype: DType) -> Result<sys::CUtensorMapDataType> {
    use sys::CUtensorMapDataType as T;
    match dtype {
        // Bits are moved as they are.
        DType::I8 | DType::U8 => Ok(T::CU_TENSOR_MAP_DATA_TYPE_UINT8),
        DType::I32 => Ok(T::CU_TENSOR_MAP_DATA_TYPE_INT32),
        DType::F16 => Ok(T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        DType::BF16 => Ok(T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
        DType::F32 => Ok(T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
        other => Err(Error::Internal(format!("a tensor map of {other}"))),
    }
}
