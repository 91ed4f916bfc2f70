//! Transposes a matrix on the device.
//!
//! In: a row-major matrix. Out: its transpose, row-major. Invariant: the bits of each element are
//! unchanged, except that a NaN may become a different NaN.
//!
//! cuBLASLt does this, since it is loaded anyway; a kernel of our own would have to be compiled
//! before the first result.

use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::CudaStream;
use hypatia_dsl::dtype::DType;

use super::lt::{Lt, data_type, failed};
use super::memory::bind;
use hypatia_tensor::error::Result;

/// A `cublasLtMatrixTransformDesc_t`.
struct Transform(sys::cublasLtMatrixTransformDesc_t);

impl Drop for Transform {
    fn drop(&mut self) {
        // SAFETY: created in `transpose`, destroyed once.
        let _ = unsafe { sys::cublasLtMatrixTransformDescDestroy(self.0) };
    }
}

/// A `cublasLtMatrixLayout_t`.
struct Matrix(sys::cublasLtMatrixLayout_t);

impl Matrix {
    /// A row-major matrix. The library is column-major, and sees the transpose.
    fn new(dtype: DType, [rows, columns]: [usize; 2]) -> Result<Matrix> {
        let layout = result::create_matrix_layout(data_type(dtype)?, columns as u64, rows as u64, columns as i64);
        layout.map(Matrix).map_err(|e| failed("cublasLtMatrixLayoutCreate", e))
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// Writes the transpose of a matrix of floats, ordered on the stream.
///
/// # Safety
/// Both addresses must be those of memory for that many elements, must not overlap, and must stay
/// valid until the stream is done.
pub(super) unsafe fn transpose(
    lt: &Lt,
    stream: &CudaStream,
    dtype: DType,
    [rows, columns]: [usize; 2],
    [from, to]: [u64; 2],
) -> Result<()> {
    use sys::cublasLtMatrixTransformDescAttributes_t::CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA;
    bind(stream)?;
    let scale = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (one32, zero32, one64, zero64) = (1f32, 0f32, 1f64, 0f64);
    let (one, zero): (*const c_void, *const c_void) = match scale {
        DType::F64 => ((&raw const one64).cast(), (&raw const zero64).cast()),
        _ => ((&raw const one32).cast(), (&raw const zero32).cast()),
    };
    let [given, result] = [Matrix::new(dtype, [rows, columns])?, Matrix::new(dtype, [columns, rows])?];
    let transposed = 1i32; // CUBLAS_OP_T
    let mut raw = std::ptr::null_mut();
    // SAFETY: the place for the handle is valid.
    let status = unsafe { sys::cublasLtMatrixTransformDescCreate(&raw mut raw, data_type(scale)?) };
    status.result().map_err(|e| failed("cublasLtMatrixTransformDescCreate", e))?;
    let transform = Transform(raw);
    // SAFETY: the description is alive; the value has the type that cublasLt.h gives the attribute.
    let status = unsafe {
        sys::cublasLtMatrixTransformDescSetAttribute(
            transform.0,
            CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA,
            (&raw const transposed).cast(),
            size_of::<i32>(),
        )
    };
    status.result().map_err(|e| failed("cublasLtMatrixTransformDescSetAttribute", e))?;
    // SAFETY: handles and scales are alive; there is no second matrix; the caller guarantees the
    // addresses.
    let status = unsafe {
        sys::cublasLtMatrixTransform(
            lt.handle(),
            transform.0,
            one,
            from as *const c_void,
            given.0,
            zero,
            std::ptr::null(),
            std::ptr::null_mut(),
            to as *mut c_void,
            result.0,
            stream.cu_stream().cast(),
        )
    };
    status.result().map_err(|e| failed("cublasLtMatrixTransform", e))
}
