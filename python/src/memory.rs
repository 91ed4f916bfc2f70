//! Memory that a Python object holds, as slices.
//!
//! In: a tensor of PyTorch, or a tuple (address, element type, sizes, owner) that `hypatia_core`
//! makes of an array. Out: bytes to read or to write. Invariant: a slice does not outlive the tuple
//! of arguments that it was made from; such a tuple cannot change, so it keeps the owners alive.

use std::marker::PhantomData;
use std::ops::Range;

use hypatia_dsl::dtype::DType;
use hypatia_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dlpack::{self, Place};
use crate::errors::wrong_input;

/// The element type of that name.
pub fn dtype(name: &str) -> PyResult<DType> {
    DType::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.into_iter().map(DType::name).collect();
        wrong_input(format!("there is no element type `{name}`; there are {}", known.join(", ")))
    })
}

/// Memory of an argument.
struct Memory {
    address: *mut u8,
    dtype: DType,
    len: usize,
    row_major: bool,
}

impl Memory {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        if let Some(b) = dlpack::borrow(object)? {
            if b.place != Place::Host {
                return Err(wrong_input("a tensor on another device than the CPU was handed in"));
            }
            return Ok(Memory { address: b.address, dtype: b.dtype, len: b.len, row_major: b.row_major });
        }
        let (address, name, shape, _owner): (usize, String, Vec<usize>, Bound<'_, PyAny>) = object.extract()?;
        let len = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let len = len.ok_or_else(|| wrong_input("an array is too large"))?;
        let address = std::ptr::with_exposed_provenance_mut(address);
        Ok(Memory { address, dtype: dtype(&name)?, len, row_major: true })
    }

    fn bytes(&self) -> usize {
        if self.address.is_null() { 0 } else { self.len.saturating_mul(self.dtype.size()) }
    }

    fn range(&self) -> Range<usize> {
        self.address.addr()..self.address.addr() + self.bytes()
    }

    fn overlaps(&self, other: Range<usize>) -> bool {
        let own = self.range();
        own.start < other.end && other.start < own.end
    }

    fn must_be_row_major(&self) -> PyResult<()> {
        if self.row_major { Ok(()) } else { Err(wrong_input("a tensor that is not row-major was handed in")) }
    }

    fn must_be(&self, name: &str, wanted: DType) -> PyResult<()> {
        if self.dtype == wanted {
            return Ok(());
        }
        Err(wrong_input(format!("`{name}` must be {wanted}, but its memory is {}", self.dtype)))
    }
}

/// Memory of arguments to read.
pub struct Inputs<'a> {
    memory: Vec<Memory>,
    _owners: PhantomData<&'a Bound<'a, PyAny>>,
}

impl<'a> Inputs<'a> {
    /// The memory of arguments, each of the element type that is wanted.
    pub fn of(objects: &'a [Bound<'a, PyAny>], wanted: &[(String, DType)]) -> PyResult<Inputs<'a>> {
        let mut memory = Vec::with_capacity(objects.len());
        for (i, object) in objects.iter().enumerate() {
            let one = Memory::of(object)?;
            if let Some((name, dtype)) = wanted.get(i) {
                one.must_be(name, *dtype)?;
            }
            memory.push(one);
        }
        Ok(Inputs { memory, _owners: PhantomData })
    }

    /// The indices of those that are not row-major.
    pub fn odd(&self) -> Vec<usize> {
        (0..self.memory.len()).filter(|i| !self.memory[*i].row_major).collect()
    }

    /// The same with copies of some.
    pub fn with(mut self, at: &[usize], copies: &'a [Bound<'a, PyAny>]) -> PyResult<Inputs<'a>> {
        for (i, copy) in at.iter().zip(copies) {
            let copy = Memory::of(copy)?;
            copy.must_be("a copy", self.memory[*i].dtype)?;
            self.memory[*i] = copy;
        }
        Ok(self)
    }

    /// The bytes.
    ///
    /// # Errors
    /// If one of them is not row-major.
    pub fn slices(&self) -> PyResult<Vec<&'a [u8]>> {
        self.memory.iter().try_for_each(Memory::must_be_row_major)?;
        let all = self.memory.iter().map(|m| match m.bytes() {
            0 => &[][..],
            // SAFETY: the tensor, or the owner in the tuple, is alive while the objects are
            // borrowed, for tuples do not change, and holds that many bytes from that address.
            // Python code that resizes an array during a call, or writes to it from another thread,
            // breaks this, as it does for NumPy and PyTorch themselves; docs/python.md says so.
            n => unsafe { std::slice::from_raw_parts(m.address, n) },
        });
        Ok(all.collect())
    }
}

/// An error unless arguments are of the element types that are wanted, on any device.
pub fn check(objects: &[Bound<'_, PyAny>], wanted: &[(String, DType)]) -> PyResult<()> {
    for (object, (name, dtype)) in objects.iter().zip(wanted) {
        match dlpack::borrow(object)? {
            Some(b) if b.dtype == *dtype => {}
            Some(b) => return Err(wrong_input(format!("`{name}` must be {dtype}, but its memory is {}", b.dtype))),
            None => Memory::of(object)?.must_be(name, *dtype)?,
        }
    }
    Ok(())
}

/// Memory of arguments to write, which do not overlap.
pub struct Outputs<'a> {
    memory: Vec<Memory>,
    _owners: PhantomData<&'a Bound<'a, PyTuple>>,
}

impl<'a> Outputs<'a> {
    /// The memory of arguments, each of the element type that is wanted. The caller has just
    /// allocated them, and nobody else has seen them.
    pub fn of(objects: &'a Bound<'a, PyTuple>, wanted: &[(String, DType)]) -> PyResult<Outputs<'a>> {
        let outputs = Outputs::fresh(objects, wanted)?;
        outputs.memory.iter().try_for_each(Memory::must_be_row_major)?;
        Ok(outputs)
    }

    /// As [`Outputs::of`]; the elements may lie in another order than that of rows, without gaps.
    pub fn fresh(objects: &'a Bound<'a, PyTuple>, wanted: &[(String, DType)]) -> PyResult<Outputs<'a>> {
        let mut memory: Vec<Memory> = Vec::with_capacity(objects.len());
        for (i, object) in objects.iter_borrowed().enumerate() {
            let one = Memory::of(&object)?;
            if let Some((name, dtype)) = wanted.get(i) {
                one.must_be(name, *dtype)?;
            }
            if memory.iter().any(|other| other.overlaps(one.range())) {
                return Err(wrong_input("two outputs overlap"));
            }
            memory.push(one);
        }
        Ok(Outputs { memory, _owners: PhantomData })
    }

    /// True if one of these bytes is written.
    pub fn overlap(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr().addr();
        self.memory.iter().any(|m| m.overlaps(start..start + bytes.len()))
    }

    /// The bytes.
    pub fn slices(&mut self) -> Vec<&mut [u8]> {
        let all = self.memory.iter_mut().map(|m| match m.bytes() {
            0 => &mut [][..],
            // SAFETY: as in `inputs`; `of` has seen that no two overlap, and `self` is borrowed
            // mutably, so that these are the only slices.
            n => unsafe { std::slice::from_raw_parts_mut(m.address, n) },
        });
        all.collect()
    }
}

/// A copy of an argument as a tensor of that shape.
pub fn tensor(object: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<Tensor> {
    let memory = Memory::of(object)?;
    memory.must_be_row_major()?;
    let bytes: &[u8] = match memory.bytes() {
        0 => &[],
        // SAFETY: the caller holds the object; the slice is copied before this returns.
        n => unsafe { std::slice::from_raw_parts(memory.address, n) },
    };
    let made = Tensor::from_bytes(memory.dtype, shape, bytes);
    made.ok_or_else(|| {
        let len = memory.len;
        wrong_input(format!("{len} elements of type {} are no tensor of shape {shape:?}", memory.dtype))
    })
}
