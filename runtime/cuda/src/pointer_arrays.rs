//! Address lists (pointer arrays) for products whose batches no single stride can describe.
//!
//! In: launches and the addresses of their memory. Out: the lists on the device. Invariant: lists
//! are written before the graph that reads them is captured, and live as long as it does.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::address::Bases;
use super::launch::Launch;
use super::memory::DeviceMemory;
use hypatia_tensor::error::Result;

/// Writes the lists of these launches for memory at `bases`, and records their address there;
/// `None` if no launch has one.
pub(super) fn write<'a>(
    stream: &Arc<CudaStream>,
    launches: impl Iterator<Item = &'a mut Launch>,
    bases: &mut Bases,
) -> Result<Option<DeviceMemory>> {
    let mut all: Vec<u64> = Vec::new();
    for launch in launches {
        let Launch::Product(product) = launch else { continue };
        let what = *product.matmul.product();
        if let (true, Some(first)) = (what.uses_pointer_arrays(), product.calls.first()) {
            product.lists = (all.len() * size_of::<u64>()) as u64;
            all.extend(what.addresses([0, 1, 2].map(|side| bases.address(&first[side]))));
        }
    }
    if all.is_empty() {
        return Ok(None);
    }
    let memory = DeviceMemory::new(stream, all.len() * size_of::<u64>())?;
    memory.upload(bytemuck::cast_slice(&all))?;
    bases.lists = memory.address();
    Ok(Some(memory))
}
