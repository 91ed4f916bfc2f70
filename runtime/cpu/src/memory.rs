//! Memory of a run: aligned bytes, and the slices of them that a step may access.
//!
//! In: an arena, and the memory of outputs. Out: slices. Invariant: the slices that a step writes
//! are disjoint from each other and from those that it reads; the borrow checker enforces this.

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;

use hypatia_tensor::error::{Error, Result};

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Line([u64; 8]);

/// Bytes aligned to a cache line.
#[derive(Default)]
pub struct Bytes {
    lines: Vec<Line>,
}

impl Bytes {
    /// Allocates this many bytes, zeroed.
    pub fn new(len: usize) -> Result<Bytes> {
        let count = len.div_ceil(64);
        let mut lines = Vec::new();
        let full = || Error::Limit(format!("no memory for {} MiB of intermediate results", len >> 20));
        lines.try_reserve_exact(count).map_err(|_| full())?;
        lines.resize(count, Line([0; 8]));
        Ok(Bytes { lines })
    }

    /// At least this many bytes with arbitrary contents; allocates only if the present memory is
    /// smaller.
    pub fn at_least(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.lines.len() * 64 < len {
            *self = Bytes::new(len)?;
        }
        Ok(&mut self.as_mut()[..len])
    }

    /// The bytes, for reading.
    pub fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    /// The bytes, for writing.
    pub fn as_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }

    /// Fills every byte (poison): an executor must not read what it has not written.
    pub fn poison(&mut self, byte: u8) {
        self.as_mut().fill(byte);
    }
}

/// Slices that a step writes, in the order of its writes.
pub type Outs<'a> = SmallVec<[&'a mut [u8]; 4]>;

/// An arena split into the slices that a step writes, and the rest.
pub struct SplitArena<'a> {
    /// The slices that the step writes.
    pub outs: Outs<'a>,
    /// The rest, with offsets.
    rest: SmallVec<[(usize, &'a [u8]); 5]>,
}

/// Splits an arena. `writes` are offsets and lengths in bytes, in the order of the step's writes.
pub fn split_arena<'a>(arena: &'a mut [u8], writes: &[(usize, usize)]) -> Result<SplitArena<'a>> {
    let mut order: SmallVec<[usize; 4]> = (0..writes.len()).collect();
    order.sort_unstable_by_key(|i| writes[*i].0);
    let mut outs: SmallVec<[Option<&'a mut [u8]>; 4]> = writes.iter().map(|_| None).collect();
    let mut rest = SmallVec::new();
    let (mut left, mut at) = (arena, 0);
    for i in order {
        let (offset, len) = writes[i];
        let bad = || Error::Internal("writes of a step overlap".into());
        let gap = offset.checked_sub(at).ok_or_else(bad)?;
        let (before, tail) = left.split_at_mut_checked(gap).ok_or_else(bad)?;
        let (mine, tail) = tail.split_at_mut_checked(len).ok_or_else(bad)?;
        rest.push((at, &*before));
        outs[i] = Some(mine);
        (left, at) = (tail, offset + len);
    }
    rest.push((at, &*left));
    let outs: Option<Outs<'a>> = outs.into_iter().collect();
    Ok(SplitArena { outs: outs.ok_or_else(|| Error::Internal("a write without memory".into()))?, rest })
}

impl<'a> SplitArena<'a> {
    /// Bytes that the step does not write.
    pub fn read(&self, offset: usize, len: usize) -> Result<&'a [u8]> {
        if len == 0 {
            return Ok(empty());
        }
        let found = self.rest.iter().find_map(|(at, bytes)| bytes.get(offset.checked_sub(*at)?..)?.get(..len));
        found.ok_or_else(|| Error::Internal("a step reads what it writes".into()))
    }
}

/// No bytes, aligned for any element type, unlike `&[]`.
pub fn empty() -> &'static [u8] {
    bytemuck::cast_slice::<u64, u8>(&[])
}

/// The memory of outputs during a step: slices that the step writes, and slices that it may read.
pub struct Outside<'a> {
    /// Outputs that the step writes, by index; `None` where it does not, and where one was taken.
    outs: SmallVec<[Option<&'a mut [u8]>; 4]>,
    /// The other outputs, by index; `None` where the step writes.
    rest: SmallVec<[Option<&'a [u8]>; 4]>,
}

impl<'a> Outside<'a> {
    /// Divides outputs by which of them a step writes.
    pub fn split(outputs: &'a mut [&mut [u8]], writes: &[usize]) -> Outside<'a> {
        let mut outside = Outside { outs: SmallVec::new(), rest: SmallVec::new() };
        for (i, output) in outputs.iter_mut().enumerate() {
            let (out, rest) = match writes.contains(&i) {
                true => (Some(&mut **output), None),
                false => (None, Some(&**output)),
            };
            outside.outs.push(out);
            outside.rest.push(rest);
        }
        outside
    }

    /// The memory of an output that the step writes; `None` if it was taken already.
    pub fn take(&mut self, output: usize) -> Option<&'a mut [u8]> {
        self.outs.get_mut(output)?.take()
    }

    /// An output that an earlier step wrote.
    pub fn read(&self, output: usize) -> Result<&'a [u8]> {
        let bytes = self.rest.get(output).copied().flatten();
        bytes.ok_or_else(|| Error::Internal("a step reads the output that it writes".into()))
    }
}
