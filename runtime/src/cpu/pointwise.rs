//! Pointwise work over a linear range of a collapsed index space, block by block, on all threads.
//!
//! Holds always: output element `i` of the range is written by the one block that computes it, so an
//! operand that shares its memory with an output is read before it is overwritten.

use std::sync::{Mutex, PoisonError};

use hypatia_dsl::dtype::DType;
use smallvec::SmallVec;

use super::flat::Source;
use super::interp::{BLOCK, Banks, Code, Dst, Feed, part, read};
use super::memory::Outs;

/// Elements below which work is not shared among threads.
const GRAIN: usize = 16 * BLOCK;

/// Threads and their registers.
pub struct Workers {
    /// Registers by thread.
    pub banks: Vec<Mutex<Banks>>,
}

impl Workers {
    /// Runs `f` with the registers of the calling thread.
    pub fn with_banks<R>(&self, f: impl FnOnce(&mut Banks) -> R) -> R {
        let at = if self.banks.len() > 1 { rayon::current_thread_index().unwrap_or(0) } else { 0 };
        let mut banks = self.banks[at % self.banks.len()].lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut banks)
    }

    /// True if there are other threads to share work with.
    pub fn shared(&self) -> bool {
        self.banks.len() > 1
    }
}

/// Cuts outputs, `sizes` bytes for each unit of work, behind `units` units.
pub fn split_outs<'a>(outs: &'a mut [&mut [u8]], sizes: &[usize], units: usize) -> (Outs<'a>, Outs<'a>) {
    outs.iter_mut().zip(sizes).map(|(o, size)| o.split_at_mut(units * size)).unzip()
}

/// Memory of an operand.
#[derive(Clone, Copy)]
pub enum Memory<'a> {
    /// Bytes of a whole buffer.
    Bytes(&'a [u8]),
    /// The output of that index, at the index that is written.
    Out(usize),
}

/// An operand of pointwise work.
pub struct Input<'a> {
    /// Where.
    pub memory: Memory<'a>,
    /// Element type.
    pub dtype: DType,
    /// The element of index 0.
    pub offset: usize,
    /// Strides along the collapsed axes.
    pub strides: &'a [isize],
}

/// The accumulator of a gemm.
#[derive(Clone, Copy)]
pub enum Acc<'a> {
    /// There is none.
    None,
    /// It lies in output 0, which is overwritten with the result.
    InPlace,
    /// It lies in these bytes, element 0 being that of this linear index.
    Bytes(&'a [u8], usize),
}

/// One step's pointwise work.
pub struct Work<'a> {
    /// What is computed.
    pub code: &'a Code,
    /// The collapsed sizes.
    pub shape: &'a [usize],
    /// Operands.
    pub inputs: SmallVec<[Input<'a>; 8]>,
    /// Element type of the accumulator.
    pub acc: DType,
    /// Bytes of an element of each output.
    pub sizes: SmallVec<[usize; 4]>,
}

impl Work<'_> {
    /// Computes the elements from `start` on that `outs` hold.
    pub fn run(&self, workers: &Workers, acc: Acc<'_>, outs: &mut [&mut [u8]], start: usize, len: usize) {
        if len > GRAIN && workers.shared() {
            let half = (len / 2).next_multiple_of(BLOCK);
            let (mut first, mut second) = split_outs(outs, &self.sizes, half);
            rayon::join(
                || self.run(workers, acc, &mut first, start, half),
                || self.run(workers, acc, &mut second, start + half, len - half),
            );
            return;
        }
        workers.with_banks(|banks| {
            self.code.start(banks);
            for at in (0..len).step_by(BLOCK) {
                let count = BLOCK.min(len - at);
                let feed = BlockFeed { work: self, acc, outs: &*outs, first: start };
                self.code.run(banks, &feed, start + at, count);
                for (i, out) in outs.iter_mut().enumerate() {
                    self.code.store(banks, i, out, at, count);
                }
            }
        });
    }
}

struct BlockFeed<'a, 'b, 'c> {
    work: &'a Work<'b>,
    acc: Acc<'a>,
    outs: &'a [&'c mut [u8]],
    /// Linear index of the outputs' first element.
    first: usize,
}

impl Feed for BlockFeed<'_, '_, '_> {
    fn load(&self, source: Source, start: usize, dst: Dst<'_>) {
        let own = (start - self.first) as isize;
        match source {
            Source::Acc => match self.acc {
                Acc::InPlace => read(self.outs[0], self.work.acc, own, 1, dst),
                Acc::Bytes(bytes, first) => read(bytes, self.work.acc, (start - first) as isize, 1, dst),
                Acc::None => {}
            },
            Source::In(i) => {
                let input = &self.work.inputs[i as usize];
                match input.memory {
                    Memory::Out(o) => read(self.outs[o], input.dtype, own, 1, dst),
                    Memory::Bytes(bytes) => gather(bytes, input, self.work.shape, start, dst),
                }
            }
        }
    }
}

/// Reads linear indices from `start` on of an operand that walks the index space with its own strides.
fn gather(bytes: &[u8], input: &Input<'_>, shape: &[usize], start: usize, mut dst: Dst<'_>) {
    let (Some((inner, outer)), Some((step, steps))) = (shape.split_last(), input.strides.split_last()) else { return };
    let len = dst.len();
    let (mut row, mut column) = (start / inner, start % inner);
    let mut done = 0;
    while done < len {
        let count = (inner - column).min(len - done);
        let mut at = input.offset as isize + column as isize * step;
        let mut rest = row;
        for (size, stride) in outer.iter().zip(steps).rev() {
            at += (rest % size) as isize * stride;
            rest /= size;
        }
        read(bytes, input.dtype, at, *step, part(&mut dst, done, done + count));
        done += count;
        (row, column) = (row + 1, 0);
    }
}
