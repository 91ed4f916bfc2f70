//! Products of integers of 8 bits, whose sums are i32, by the kernels of f32.
//!
//! In: a tile whose operands have bytes. Out: its sums. Invariant: the sums are exact, modulo 2^32.
//! A block has [`K_BLOCK`] terms, each at most 2^16 in magnitude: f32 holds their sum.

use super::checksum::Summed;
use super::{K_BLOCK, Target, Tile, blocks};
use crate::memory::Bytes;
use crate::threads::Address;
use hypatia_tensor::error::Result;

const _: () = assert!(K_BLOCK * 255 * 255 < 1 << f32::MANTISSA_DIGITS);

impl Tile<'_, f32>
where
    f32: Summed,
{
    /// Multiplies bytes, with scratch memory for parts of the operands and for the sums of a block.
    ///
    /// # Safety
    /// `to` has room for the rows and columns of the tile in i32, and nothing else uses that room
    /// meanwhile.
    pub(super) unsafe fn multiply_bytes(
        &self,
        to: Target,
        memory: [&mut Bytes; 2],
        of_block: &mut Bytes,
    ) -> Result<()> {
        let (kernel, rows, columns) = (self.kernel, self.rows.len(), self.columns.len());
        for i in 0..rows {
            // SAFETY: the caller's promise.
            unsafe { row_of(to, i, 0, columns) }.fill(0);
        }
        let of_block = of_block.at_least(rows * columns * size_of::<f32>())?;
        let sums = Target { base: Address(of_block.as_mut_ptr()), row: columns };
        self.blocks(sums, memory, |first, block| {
            let block = super::Block { add: false, ..*block };
            // SAFETY: `blocks` gives rows and panels of the operands; the sums have room in
            // `of_block`.
            unsafe { blocks(kernel, rows, &block) };
            for i in 0..rows {
                // SAFETY: the block has stored these sums, and nothing changes them meanwhile.
                let sums = unsafe { std::slice::from_raw_parts(block.c.add(i * block.c_row), block.columns) };
                // SAFETY: the caller's promise.
                let out = unsafe { row_of(to, i, first, block.columns) };
                out.iter_mut().zip(sums).for_each(|(o, sum)| *o = o.wrapping_add(*sum as i32));
            }
        })
    }
}

/// Columns of a row of a tile.
///
/// # Safety
/// They lie in `to`, and nothing else uses them while the slice lives.
unsafe fn row_of<'a>(to: Target, row: usize, first: usize, columns: usize) -> &'a mut [i32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(to.base.0.cast::<i32>().add(row * to.row + first), columns) }
}
