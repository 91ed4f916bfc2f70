//! Descriptors of tensors for the copy engine (`CUtensorMap`).
//!
//! In: an address, an element type, the shape and the box that a kernel moves at a time. Out: the
//! 128 bytes that the kernel takes by value. Invariant: rows of a box are 128 bytes, swizzled;
//! elements outside of the tensor are read as zero and never written.
//!
//! Source: CUDA driver API, section "Tensor Map Object Management".

use std::mem::MaybeUninit;

use cudarc::driver::sys;
use hypatia_dsl::dtype::DType;

use super::driver::failed;
use crate::lowering::map_shape::MapShape;
use hypatia_tensor::error::{Error, Result};

/// The words of a descriptor.
pub(super) const WORDS: usize = 16;

/// Encodes the descriptor of a tensor at that address.
pub(super) fn encode(address: u64, dtype: DType, shape: &MapShape, inner: [u32; 2]) -> Result<[u64; WORDS]> {
    use sys::CUtensorMapDataType as T;
    let kind = match dtype {
        DType::F16 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::BF16 => T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::F32 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        other => return Err(Error::Internal(format!("a tensor map of {other}"))),
    };
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
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(|e| failed("cuTensorMapEncodeTiled", e))?;
    // SAFETY: the call succeeded, and the descriptor is 128 bytes of plain data.
    Ok(unsafe { map.assume_init() }.opaque)
}
