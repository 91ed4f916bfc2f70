//! Pointwise work over a linear range of a collapsed index space, block by block, on all threads.
//!
//! Invariant: the block that computes output element `i` of the range is the only one to write it,
//! so an operand that shares memory with an output is read before it is overwritten.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::scalar::typed::Source;
use smallvec::SmallVec;

use super::interp::{BLOCK, Code, Dst, Loader, read, repeat, slice_of};
use super::threads::Workers;

/// An operand that is read along an index space.
pub struct Input<'a> {
    /// The whole buffer.
    pub bytes: &'a [u8],
    /// Element type.
    pub dtype: DType,
    /// Offset of the element at index 0.
    pub offset: usize,
    /// Strides along the collapsed axes.
    pub strides: &'a [isize],
}

/// The pointwise work of a step.
pub struct Work<'a> {
    /// The compiled term.
    pub code: &'a Code,
    /// The collapsed sizes.
    pub shape: &'a [usize],
    /// The operands; an accumulator, if there is one, is the last.
    pub inputs: SmallVec<[Input<'a>; 8]>,
    /// For each operand, the output whose memory it shares element by element.
    pub in_place: SmallVec<[Option<usize>; 8]>,
    /// Element size of each output in bytes.
    pub sizes: SmallVec<[usize; 4]>,
}

impl Work<'_> {
    /// Computes all `len` elements.
    pub fn run(&self, workers: &Workers<'_>, outs: &mut [&mut [u8]], len: usize) {
        let grain = self.code.grain().next_multiple_of(BLOCK);
        workers.chunks(outs, &self.sizes, len, grain, |first, len, outs, local| {
            self.code.start(&mut local.registers);
            for at in (0..len).step_by(BLOCK) {
                let count = BLOCK.min(len - at);
                let loader = BlockLoader { work: self, outs: &*outs, first };
                self.code.run(&mut local.registers, &loader, first + at, count);
                for (i, out) in outs.iter_mut().enumerate() {
                    self.code.store(&local.registers, i, out, at, count);
                }
            }
        });
    }
}

struct BlockLoader<'a, 'b, 'c> {
    work: &'a Work<'b>,
    outs: &'a [&'c mut [u8]],
    /// Linear index of the outputs' first element.
    first: usize,
}

impl Loader for BlockLoader<'_, '_, '_> {
    /// Contiguous operands.
    fn direct(&self, source: Source, start: usize, len: usize) -> Option<&[f32]> {
        let i = match source {
            Source::In(i) => i as usize,
            Source::Acc => self.work.inputs.len() - 1,
        };
        let input = &self.work.inputs[i];
        if input.dtype != DType::F32 || input.strides != [1] {
            return None;
        }
        match self.work.in_place[i] {
            Some(out) => bytemuck::cast_slice(self.outs[out]).get(start - self.first..start - self.first + len),
            None => bytemuck::cast_slice(input.bytes).get(input.offset + start..input.offset + start + len),
        }
    }

    fn load(&self, source: Source, start: usize, dst: Dst<'_>) {
        let i = match source {
            Source::In(i) => i as usize,
            Source::Acc => self.work.inputs.len() - 1,
        };
        let input = &self.work.inputs[i];
        match self.work.in_place[i] {
            Some(out) => read(self.outs[out], input.dtype, (start - self.first) as isize, 1, dst),
            None => gather(input, self.work.shape, start, dst),
        }
    }
}

/// Reads linear indices from `start` on of an operand with its own strides.
pub fn gather(input: &Input<'_>, shape: &[usize], start: usize, mut dst: Dst<'_>) {
    let (Some((inner, outer)), Some((step, steps))) = (shape.split_last(), input.strides.split_last()) else { return };
    let len = dst.len();
    if outer.is_empty() {
        return read(input.bytes, input.dtype, input.offset as isize + start as isize * step, *step, dst);
    }
    let (mut row, mut column) = (start / inner, start % inner);
    let mut done = 0;
    // A row that repeats along the outer axis.
    let same = if steps.last() == Some(&0) { outer.last().copied().unwrap_or(1) } else { 1 };
    while done < len {
        let count = (inner - column).min(len - done);
        let again = ((same - row % same) * inner - column).min(len - done);
        if same > 1 && again > *inner {
            let mut at = input.offset as isize;
            let mut rest = row;
            for (size, stride) in outer.iter().zip(steps).rev() {
                at += (rest % size) as isize * stride;
                rest /= size;
            }
            read(input.bytes, input.dtype, at + column as isize * step, *step, slice_of(&mut dst, done, done + count));
            read(input.bytes, input.dtype, at, *step, slice_of(&mut dst, done + count, done + inner));
            repeat(slice_of(&mut dst, done, done + again), *inner);
            done += again;
            (row, column) = ((column + again + row * inner) / inner, (column + again) % inner);
            continue;
        }
        let mut at = input.offset as isize + column as isize * step;
        let mut rest = row;
        for (size, stride) in outer.iter().zip(steps).rev() {
            at += (rest % size) as isize * stride;
            rest /= size;
        }
        read(input.bytes, input.dtype, at, *step, slice_of(&mut dst, done, done + count));
        done += count;
        (row, column) = (row + 1, 0);
    }
}
