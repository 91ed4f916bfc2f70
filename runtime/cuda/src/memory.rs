//! Device memory, and pinned host memory for transfers.
//!
//! In: sizes and streams. Out: RAII owners of memory. Invariant: device memory is allocated from
//! the stream-ordered pool of its stream and freed to it; a copy stays within the bounds of both
//! ends; every base address is a multiple of 256 bytes.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

use super::driver::failed;
use hypatia_tensor::error::{Error, Result};

/// An allocation on the device.
pub struct DeviceMemory {
    stream: Arc<CudaStream>,
    pointer: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates this many bytes with undefined contents. An empty allocation has a valid address
    /// too.
    pub fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<DeviceMemory> {
        bind(stream)?;
        // SAFETY: the stream is alive; the size is not 0.
        let pointer = unsafe { result::malloc_async(stream.cu_stream(), bytes.max(1)) }
            .map_err(|e| failed(&format!("cuMemAllocAsync of {} MiB", bytes.div_ceil(1 << 20)), e))?;
        Ok(DeviceMemory { stream: stream.clone(), pointer, bytes })
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// Copies from the host, ordered on the stream. The host's bytes may be modified once it
    /// returns.
    pub fn upload(&self, from: &[u8]) -> Result<()> {
        if from.len() > self.bytes {
            return Err(Error::Internal(format!("{} bytes into {}", from.len(), self.bytes)));
        }
        if from.is_empty() {
            return Ok(());
        }
        bind(&self.stream)?;
        // SAFETY: both ranges are valid and long enough. Pageable memory is staged before the call
        // returns.
        unsafe { result::memcpy_htod_async(self.pointer, from, self.stream.cu_stream()) }
            .map_err(|e| failed("cuMemcpyHtoDAsync", e))
    }

    /// Copies `to.len()` bytes from `offset` to the host and waits for completion.
    pub fn download(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        if offset.checked_add(to.len()).is_none_or(|end| end > self.bytes) {
            return Err(Error::Internal(format!("{} bytes at {offset} of {}", to.len(), self.bytes)));
        }
        if !to.is_empty() {
            bind(&self.stream)?;
            // SAFETY: both ranges are valid; the host's lives until the synchronisation below.
            unsafe { result::memcpy_dtoh_async(to, self.pointer + offset as u64, self.stream.cu_stream()) }
                .map_err(|e| failed("cuMemcpyDtoHAsync", e))?;
        }
        self.stream.synchronize().map_err(|e| failed("cuStreamSynchronize", e))
    }

    /// Fills the memory with a byte, ordered on the stream.
    pub fn fill(&self, byte: u8) -> Result<()> {
        bind(&self.stream)?;
        // SAFETY: the range is valid.
        unsafe { result::memset_d8_async(self.pointer, byte, self.bytes, self.stream.cu_stream()) }
            .map_err(|e| failed("cuMemsetD8Async", e))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if bind(&self.stream).is_ok() {
            // SAFETY: the memory was allocated from this stream's pool and is freed once. A
            // failure leaks it: the context is lost then.
            let _ = unsafe { result::free_async(self.pointer, self.stream.cu_stream()) };
        }
    }
}

/// Makes the stream's context current on this thread.
pub(super) fn bind(stream: &CudaStream) -> Result<()> {
    stream.context().bind_to_thread().map_err(|e| failed("cuCtxSetCurrent", e))
}

/// Page-locked host memory: transfers run at full speed and concurrently with the host.
pub struct Pinned {
    stream: Arc<CudaStream>,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to its owner alone; the driver's calls may come from any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates this many bytes, zeroed.
    pub fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Pinned> {
        bind(stream)?;
        // SAFETY: the size is not 0; the flag says nothing.
        let pointer = unsafe { result::malloc_host(bytes.max(1), 0) }
            .map_err(|e| failed(&format!("cuMemAllocHost of {} MiB", bytes.div_ceil(1 << 20)), e))?;
        // SAFETY: this many bytes were just allocated.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes.max(1)) };
        Ok(Pinned { stream: stream.clone(), pointer: pointer.cast(), bytes })
    }

    /// The address of the first byte, which the device shares with the host.
    pub fn address(&self) -> u64 {
        self.pointer as u64
    }

    /// The bytes, for writing. No copy from them may be in progress.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is valid, initialised and borrowed exclusively; the executor waits for
        // its stream before it writes again.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if bind(&self.stream).is_ok() {
            // SAFETY: allocated by cuMemAllocHost, freed once.
            let _ = unsafe { result::free_host(self.pointer.cast()) };
        }
    }
}
