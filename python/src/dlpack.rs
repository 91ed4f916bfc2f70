//! DLPack's C exchange API, version 1: how tensors of PyTorch 2.10 and newer are borrowed.
//!
//! In: the type of a tensor, which carries the API in a capsule. Out: address, element type and
//! sizes of its tensors. Invariant: nothing is linked. The layout is that of `dlpack.h` 1.3
//! (<https://github.com/dmlc/dlpack>); a capsule of another major version is refused.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;

use hypatia_dsl::dtype::DType;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::wrong_input;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

type Borrow = unsafe extern "C" fn(*mut c_void, *mut RawTensor) -> i32;
type Stream = unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> i32;

/// `DLPackExchangeAPI`. The functions that are not called are pointers.
#[repr(C)]
struct Api {
    version: Version,
    previous: *const c_void,
    allocate: *const c_void,
    from_object: *const c_void,
    to_object: *const c_void,
    borrow: Option<Borrow>,
    stream: Option<Stream>,
}

/// How tensors of one type are borrowed.
struct Exchange {
    /// The addresses of the type and of `Parameter`. They are never freed: `exchange` keeps
    /// references. Other subclasses may compute their values.
    owners: [usize; 2],
    borrow: Borrow,
    stream: Option<Stream>,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the host's memory.
    Host,
    /// In the memory of the GPU of that ordinal.
    Gpu(i32),
}

/// DLPack's numbers of devices: `kDLCPU`, `kDLCUDA`.
const HOST: i32 = 1;
const GPU: i32 = 2;

static EXCHANGE: OnceLock<Exchange> = OnceLock::new();

/// A borrowed tensor.
pub struct Borrowed {
    /// The first element.
    pub address: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// Where it lies.
    pub place: Place,
    /// True if its elements lie row by row, in the order of axes that was asked for, without gaps.
    pub row_major: bool,
}

/// Lets tensors of a type, and parameters, be borrowed through the exchange API that the type
/// carries. Returns the API's version, or None if the type carries none that is known: then tensors
/// are handed in by their addresses.
#[pyfunction]
pub fn exchange(tensor_type: &Bound<'_, PyAny>, parameter: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
    let Ok(capsule) = tensor_type.getattr("__dlpack_c_exchange_api__") else { return Ok(None) };
    let capsule = capsule.cast_into::<PyCapsule>()?;
    let api: NonNull<Api> = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?.cast();
    // SAFETY: a capsule of that name holds a `DLPackExchangeAPI` that lives as long as the process
    // (so the specification says). Its head, the version, has the same layout in all versions; the
    // rest is read only if the major version is the one that this file declares.
    let (version, borrow, stream) = unsafe {
        let api = api.as_ptr();
        let version = ((*api).version.major, (*api).version.minor);
        let known = version.0 == 1;
        (version, if known { (*api).borrow } else { None }, if known { (*api).stream } else { None })
    };
    let Some(borrow) = borrow else { return Ok(None) };
    let owners = [tensor_type, parameter].map(|t| t.as_ptr().addr());
    let known = EXCHANGE.get_or_init(|| {
        std::mem::forget([tensor_type, parameter].map(|t| t.clone().unbind()));
        Exchange { owners, borrow, stream }
    });
    Ok((known.owners == owners).then_some(version))
}

/// The stream on which the framework works now on a GPU, as a driver handle.
pub fn current_stream(py: Python<'_>, gpu: i32) -> PyResult<*mut c_void> {
    let Some(get) = EXCHANGE.get().and_then(|e| e.stream) else {
        return Err(wrong_input("this version of PyTorch does not say on which stream it works"));
    };
    let mut stream = std::ptr::null_mut();
    // SAFETY: the function writes a handle to the pointer, or returns an error code with a Python
    // exception set.
    match unsafe { get(GPU, gpu, &raw mut stream) } {
        0 => Ok(stream),
        _ => Err(PyErr::fetch(py)),
    }
}

/// The exchange's description of a tensor, if objects of its type are borrowed this way.
fn described(object: &Bound<'_, PyAny>) -> PyResult<Option<RawTensor>> {
    let Some(exchange) = EXCHANGE.get() else { return Ok(None) };
    if !exchange.owners.contains(&object.get_type_ptr().addr()) {
        return Ok(None);
    }
    let mut raw = MaybeUninit::<RawTensor>::uninit();
    // SAFETY: the object is an instance of a type that carries the API, whose function fills the
    // `DLTensor` or returns an error code with a Python exception set.
    let code = unsafe { (exchange.borrow)(object.as_ptr().cast(), raw.as_mut_ptr()) };
    if code != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    // SAFETY: the function has returned 0, so the struct is filled.
    Ok(Some(unsafe { raw.assume_init() }))
}

/// Sizes or strides of a described tensor.
fn list(raw: &RawTensor, of: *const i64) -> &[i64] {
    match usize::try_from(raw.ndim).unwrap_or(0) {
        0 => &[],
        // SAFETY: `shape` and `strides` of a borrowed tensor have `ndim` elements and live as long
        // as the tensor, which the caller holds. `strides` is not null since version 1.2; null is
        // tested for nevertheless.
        rank if !of.is_null() => unsafe { std::slice::from_raw_parts(of, rank) },
        _ => &[],
    }
}

/// True if an object is a tensor that can be borrowed, of that shape.
pub fn has_shape(object: &Bound<'_, PyAny>, shape: &[i64]) -> PyResult<bool> {
    Ok(described(object)?.is_some_and(|raw| list(&raw, raw.shape) == shape))
}

/// Borrows a tensor for as long as the caller keeps the object alive and its
/// memory in place. None if objects of its type are not borrowed this way.
pub fn borrow(object: &Bound<'_, PyAny>) -> PyResult<Option<Borrowed>> {
    borrow_in(object, None)
}

/// The same of a tensor whose rows are those of its axes in that order.
pub fn borrow_in(object: &Bound<'_, PyAny>, order: Option<&[usize]>) -> PyResult<Option<Borrowed>> {
    let Some(raw) = described(object)? else { return Ok(None) };
    let place = match raw.device.kind {
        HOST => Place::Host,
        GPU => Place::Gpu(raw.device.id),
        _ => return Err(wrong_input("a tensor is neither on the CPU nor on a CUDA device")),
    };
    let (shape, strides) = (list(&raw, raw.shape), list(&raw, raw.strides));
    let mut len = 1i64;
    let mut row_major = usize::try_from(raw.ndim).is_ok_and(|rank| rank == shape.len());
    let order = order.filter(|o| o.len() == shape.len());
    for place in (0..shape.len()).rev() {
        let i = order.map_or(place, |o| o[place]);
        let size = shape.get(i).copied().unwrap_or(0);
        row_major &= size == 1 || strides.get(i).is_none_or(|s| *s == len);
        len = len.saturating_mul(size);
    }
    let dtype = match (raw.dtype.code, raw.dtype.bits, raw.dtype.lanes) {
        (2, 64, 1) => DType::F64,
        (2, 32, 1) => DType::F32,
        (2, 16, 1) => DType::F16,
        (4, 16, 1) => DType::BF16,
        (10, 8, 1) => DType::F8E4M3,
        (12, 8, 1) => DType::F8E5M2,
        (0, 64, 1) => DType::I64,
        (0, 32, 1) => DType::I32,
        (0, 8, 1) => DType::I8,
        (1, 8, 1) => DType::U8,
        (6, 8, 1) => DType::Bool,
        _ => return Err(wrong_input("a tensor of an element type that Hypatia lacks was handed in")),
    };
    let offset = usize::try_from(raw.byte_offset).unwrap_or(0);
    let address = raw.data.cast::<u8>().wrapping_add(offset);
    let row_major = row_major || len == 0;
    Ok(Some(Borrowed { address, dtype, len: usize::try_from(len).unwrap_or(0), place, row_major }))
}
