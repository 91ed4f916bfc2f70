//! Matrix products: tiled among threads; each tile is multiplied and goes through the epilogue
//! while it is in the cache.
//!
//! [`step`] prepares a plan's gemm and iterates over its tiles, [`mod@pack`] reorders operands,
//! [`kernel`] computes blocks of a tile in registers, this module multiplies a tile; [`guard`]
//! checks one by the sums of [`checksum`]. Invariant: one thread writes a tile; its bits do not
//! depend on the tiling.

mod bytes;
mod checksum;
pub mod guard;
#[cfg(test)]
mod guard_tests;
mod int;
mod kernel;
mod pack;
mod step;
#[cfg(test)]
mod tests;

use std::ops::Range;

use hypatia_dsl::dtype::DType;

use super::im2col::{Patches, Windows};
use super::memory::Bytes;
use super::threads::Address;
use checksum::{Summed, Sums};
use hypatia_tensor::error::{Error, Result};
use kernel::{Block, Float, Kernel};
pub use pack::{Filters, Packed, packed_filters};
use pack::{Matrix, copy_rows, pack, packed_len};
pub use step::GemmCode;

/// Terms that are summed at once (k blocking): a panel with this many rows stays in the L1 cache.
/// Rounding errors grow with it: 256 terms at once have 1.4 times the errors of two blocks of 128,
/// which take up to 1.5 % longer.
const K_BLOCK: usize = 128;
/// Products of up to so many rows sum fewer terms at once if their order is free: they wait for
/// memory anyway, and other libraries sum such products in many parts, too.
const FEW_ROWS: usize = 12;
/// Terms that are then summed at once, a multiple of this.
const FEWEST_TERMS: usize = 4;
/// Rows of the left operand with a larger stride than this conflict in cache sets, or in pages:
/// they are copied to contiguous memory.
const FAR: usize = 2048;

/// The left operand of a tile.
#[derive(Clone, Copy)]
enum Left<'a> {
    /// As stored.
    Plain(Matrix<'a>),
    /// Gathered from images that begin at this element of a buffer.
    Patches(&'a Patches, (&'a [u8], DType, usize)),
}

/// The right operand of a tile.
#[derive(Clone, Copy)]
enum Right<'a, T> {
    /// In panels of the whole matrix.
    Packed(&'a [T]),
    /// As stored.
    Plain(Matrix<'a>),
    /// Gathered from an image that begins at this element of a buffer.
    Windows(&'a Windows, (&'a [u8], DType, usize)),
}

/// The destination of a tile's sums: row i of the tile begins at `i * row`.
#[derive(Clone, Copy)]
struct Target {
    base: Address,
    row: usize,
}

/// The product of a tile.
struct Tile<'a, T> {
    kernel: Kernel<T>,
    a: Left<'a>,
    b: Right<'a, T>,
    rows: Range<usize>,
    columns: Range<usize>,
    k: usize,
    /// Terms that are summed at once, at most [`K_BLOCK`].
    terms: usize,
}

/// How many terms of a product of `m` rows are summed at once if the order is free. Sums of
/// sqrt(k) terms, and then of these, have the smallest errors: in both, errors grow with the square
/// of the number of terms.
fn free_terms(m: usize, k: usize) -> usize {
    match m <= FEW_ROWS {
        true => ((k as f64).sqrt() as usize).next_multiple_of(FEWEST_TERMS).clamp(FEWEST_TERMS, K_BLOCK),
        false => K_BLOCK,
    }
}

/// The location from which the kernels read the right operand.
struct Panels<T> {
    base: *const T,
    b_k: usize,
    b_panel: usize,
}

impl<T: Float> Tile<'_, T> {
    /// Multiplies, with scratch memory for parts of the operands. `sums` are the tile's checksums.
    ///
    /// # Safety
    /// `to` has room for the rows and columns of the tile, and nothing else uses that room
    /// meanwhile.
    unsafe fn multiply(&self, to: Target, memory: [&mut Bytes; 2], mut sums: Option<&mut Sums<T>>) -> Result<()>
    where
        T: Summed,
    {
        let (kernel, rows) = (self.kernel, self.rows.len());
        if let Some(sums) = sums.as_deref_mut() {
            sums.start(rows, self.columns.len());
        }
        if self.k == 0 {
            for i in 0..rows {
                let row = to.base.0.cast::<T>().wrapping_add(i * to.row);
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts_mut(row, self.columns.len()) }.fill(T::ZERO);
            }
        }
        self.blocks(to, memory, |first, block| {
            // SAFETY: `blocks` gives rows and panels of the operands; the caller promises the
            // result.
            unsafe { blocks(kernel, rows, block) };
            if let Some(sums) = sums.as_deref_mut() {
                // SAFETY: as above.
                unsafe { sums.add(rows, first, kernel.panel, block) };
            }
        })
    }

    /// Gives each block of the tile with its first column, in the order in which they are added.
    /// Its operands can be read for all rows of the tile and all panels of the block.
    fn blocks(
        &self,
        to: Target,
        [a_memory, b_memory]: [&mut Bytes; 2],
        mut each: impl FnMut(usize, &Block<T>),
    ) -> Result<()> {
        let kernel = self.kernel;
        self.check(kernel.panel)?;
        let c = to.base.0.cast::<T>();
        let mut parts = |first: usize, block: &Block<T>| {
            for at in (0..block.k).step_by(self.terms) {
                let k = self.terms.min(block.k - at);
                let (a, b) = (block.a.wrapping_add(at), block.b.wrapping_add(at * block.b_k));
                each(first, &Block { k, a, b, add: block.add || at > 0, ..*block });
            }
        };
        for k0 in (0..self.k).step_by(K_BLOCK) {
            let ks = k0..self.k.min(k0 + K_BLOCK);
            let (a, a_row) = self.left(ks.clone(), a_memory)?;
            let (panels, whole) = self.right(ks.clone(), kernel, b_memory)?;
            let block = Block {
                k: ks.len(),
                a,
                a_row,
                b: panels.base,
                b_k: panels.b_k,
                b_panel: panels.b_panel,
                c,
                c_row: to.row,
                columns: whole,
                add: k0 > 0,
            };
            parts(0, &block);
            if whole < self.columns.len() {
                let rest = self.columns.start + whole..self.columns.end;
                let Right::Plain(b) = self.b else { return Err(Error::Internal("a panel that is not whole".into())) };
                let memory = b_memory.at_least(packed_len(ks.len(), rest.len(), kernel.panel) * size_of::<T>())?;
                let memory: &mut [T] = bytemuck::cast_slice_mut(memory);
                pack(b, ks.clone(), rest.clone(), kernel.panel, memory);
                let block = Block {
                    b: memory.as_ptr(),
                    b_k: kernel.panel,
                    b_panel: ks.len() * kernel.panel,
                    c: c.wrapping_add(whole),
                    columns: rest.len(),
                    ..block
                };
                parts(whole, &block);
            }
        }
        Ok(())
    }

    /// Checks that the operands have the rows and columns of the tile.
    fn check(&self, panel: usize) -> Result<()> {
        let right = match self.b {
            Right::Packed(values) => {
                self.columns.start.is_multiple_of(panel) && values.len() >= packed_len(self.k, self.columns.end, panel)
            }
            Right::Plain(b) => b.fits(self.k, self.columns.end),
            Right::Windows(w, (bytes, dtype, offset)) => {
                self.k == w.terms()
                    && self.columns.end <= w.positions()
                    && offset + w.image() <= bytes.len() / dtype.size()
            }
        };
        let left = match self.a {
            Left::Plain(a) => a.fits(self.rows.end, self.k),
            Left::Patches(p, (bytes, dtype, offset)) => {
                self.k == p.columns()
                    && self.rows.end <= p.rows()
                    && offset + p.elements() <= bytes.len() / dtype.size()
            }
        };
        if left && right {
            return Ok(());
        }
        let (m, k, n) = (self.rows.end, self.k, self.columns.end);
        Err(Error::Internal(format!("a product of {m}x{k} and {k}x{n} reaches beyond its operands")))
    }

    /// The left operand in rows with unit stride: as stored, or copied.
    fn left(&self, ks: Range<usize>, memory: &mut Bytes) -> Result<(*const T, usize)> {
        if let Left::Plain(a) = self.a {
            let near = a.row.unsigned_abs() * size_of::<T>() < FAR || self.columns.len() < 128;
            if a.column == 1 && a.dtype == T::DTYPE && a.row >= 0 && (near || self.rows.len() <= 2) {
                let values: &[T] = bytemuck::cast_slice(a.bytes);
                let first = a.offset + self.rows.start as isize * a.row + ks.start as isize;
                return Ok((values[first as usize..].as_ptr(), a.row as usize));
            }
        }
        // An odd number of cache lines, so that neighbouring rows use different cache sets.
        let stride = ks.len().next_multiple_of(32) + 16;
        let memory = memory.at_least(self.rows.len() * stride * size_of::<T>())?;
        let memory: &mut [T] = bytemuck::cast_slice_mut(memory);
        match self.a {
            Left::Plain(a) => copy_rows(a, self.rows.clone(), ks, stride, memory),
            Left::Patches(patches, image) => patches.copy(image, self.rows.clone(), ks, stride, memory),
        }
        Ok((memory.as_ptr(), stride))
    }

    /// The right operand in panels, and the number of columns that they cover.
    fn right(&self, ks: Range<usize>, kernel: Kernel<T>, memory: &mut Bytes) -> Result<(Panels<T>, usize)> {
        let (panel, count) = (kernel.panel, self.columns.len());
        match self.b {
            Right::Packed(values) => {
                let at = self.columns.start * self.k + ks.start * panel;
                Ok((Panels { base: values[at..].as_ptr(), b_k: panel, b_panel: self.k * panel }, count))
            }
            // With so few rows, packing would cost as much as multiplying.
            Right::Plain(b) if b.column == 1 && b.row >= 0 && b.dtype == T::DTYPE && self.rows.len() <= kernel.rows => {
                let values: &[T] = bytemuck::cast_slice(b.bytes);
                let at = b.offset + ks.start as isize * b.row + self.columns.start as isize;
                let base = values[at as usize..].as_ptr();
                Ok((Panels { base, b_k: b.row as usize, b_panel: panel }, count / panel * panel))
            }
            Right::Plain(b) => {
                let memory = memory.at_least(packed_len(ks.len(), count, panel) * size_of::<T>())?;
                let memory: &mut [T] = bytemuck::cast_slice_mut(memory);
                pack(b, ks.clone(), self.columns.clone(), panel, memory);
                Ok((Panels { base: memory.as_ptr(), b_k: panel, b_panel: ks.len() * panel }, count))
            }
            Right::Windows(windows, image) => {
                let memory = memory.at_least(packed_len(ks.len(), count, panel) * size_of::<T>())?;
                let memory: &mut [T] = bytemuck::cast_slice_mut(memory);
                windows.pack(image, ks.clone(), self.columns.clone(), panel, memory);
                Ok((Panels { base: memory.as_ptr(), b_k: panel, b_panel: ks.len() * panel }, count))
            }
        }
    }
}

/// Runs blocks of rows and panels, with columns in the outer loop.
///
/// # Safety
/// As [`Kernel::run`], for all rows and all panels that hold `block.columns` columns.
unsafe fn blocks<T: Float>(kernel: Kernel<T>, rows: usize, block: &Block<T>) {
    let count = rows.div_ceil(kernel.rows);
    let mut column = 0;
    while column < block.columns {
        let left = (block.columns - column).div_ceil(kernel.panel);
        let wide = kernel.panels(rows);
        let panels = if wide <= left { wide } else { 1 };
        let mut row = 0;
        for part in 0..count {
            // The blocks have nearly equal height.
            let height = (rows - row).div_ceil(count - part);
            let here = Block {
                a: block.a.wrapping_add(row * block.a_row),
                b: block.b.wrapping_add(column / kernel.panel * block.b_panel),
                c: block.c.wrapping_add(row * block.c_row + column),
                columns: block.columns - column,
                ..*block
            };
            // SAFETY: the caller's promise for these rows and panels.
            unsafe { kernel.run(height, panels, &here) };
            row += height;
        }
        column += panels * kernel.panel;
    }
}
