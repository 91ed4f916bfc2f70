//! Pointwise work of several index spaces, part by part.
//!
//! In: a step that a GPU does in one launch. Out: its results. Plans for a host have no such step;
//! a host runs those of a GPU to check them. Invariant: a part is computed into memory of its own,
//! then stored where its strides say.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::picks_behind;
use smallvec::SmallVec;

use super::interp::Code;
use super::memory::Bytes;
use super::operand::Offsets;
use super::pointwise::{Input, Work};
use super::threads::Workers;
use hypatia_plan::{HorizontalPart, HorizontalStep, Pick, Step, View, row_major};
use hypatia_tensor::error::{Error, Result};

/// The compiled parts of a step.
pub struct HorizontalCode {
    parts: Vec<CompiledPart>,
}

/// A part, with the code of its values and of the index of each pick.
struct CompiledPart {
    part: HorizontalPart,
    code: Code,
    indices: Vec<Code>,
}

/// The first result in each buffer that a step writes.
pub fn buffers(step: &Step) -> impl Iterator<Item = &View> {
    let first = |(i, w): &(usize, &View)| !step.writes[..*i].iter().any(|v| v.buffer == w.buffer);
    step.writes.iter().enumerate().filter(first).map(|(_, w)| w)
}

impl HorizontalCode {
    /// Compiles each part.
    pub fn new(program: &Program, h: &HorizontalStep) -> Result<HorizontalCode> {
        let part = |p: &HorizontalPart| {
            let k = &p.step.kernel;
            let reads = k.inputs.len();
            let picked = p.picks.iter().filter_map(|pick| k.inputs.get(pick.table));
            let inputs: Vec<DType> = k.inputs.iter().chain(picked).map(|o| o.dtype).collect();
            let index =
                |pick: &Pick| Code::new(program, &picks_behind(&pick.index, reads), None, &inputs, &[DType::I64]);
            Ok(CompiledPart {
                part: p.clone(),
                code: Code::new(program, &picks_behind(&k.term, reads), None, &inputs, &k.outputs)?,
                indices: p.picks.iter().map(index).collect::<Result<_>>()?,
            })
        };
        Ok(HorizontalCode { parts: h.parts.iter().map(part).collect::<Result<_>>()? })
    }

    /// Runs all parts. `outs` are the [`buffers`] that the step writes.
    pub fn run(&self, step: &Step, workers: &Workers<'_>, reads: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<()> {
        let (mut views, mut writes) = (step.reads.iter().zip(reads), step.writes.iter());
        for CompiledPart { part, code, indices } in &self.parts {
            let (shape, dense) = (&part.step.shape, row_major(&part.step.shape));
            let own: Vec<(&View, &[u8])> =
                views.by_ref().take(part.step.strides.len()).map(|(v, bytes)| (v, *bytes)).collect();
            let mut picked: Vec<(DType, Bytes)> = Vec::new();
            for (pick, index) in part.picks.iter().zip(indices) {
                let at = values(workers, index, part, (&own, &picked, &dense), &[DType::I64])?;
                let (table, strides) = (own[pick.table], &part.step.strides[pick.table]);
                let at = at[0].as_ref().chunks_exact(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap_or_default()));
                picked.push((table.0.dtype, picks(table, (shape, strides), pick, at.take(part.len()))?));
            }
            let made = values(workers, code, part, (&own, &picked, &dense), &part.step.kernel.outputs)?;
            for ((made, strides), to) in made.iter().zip(&part.stored).zip(writes.by_ref()) {
                let at = buffers(step).position(|w| w.buffer == to.buffer).and_then(|i| outs.get_mut(i));
                let out = at.ok_or_else(|| Error::Internal("a part without memory".into()))?;
                store(&made.as_ref()[..to.dtype.size() * part.len()], out, (shape, strides), to);
            }
        }
        Ok(())
    }
}

/// What a part reads: views with their memory, what was picked, and the strides of that.
type Operands<'a> = (&'a [(&'a View, &'a [u8])], &'a [(DType, Bytes)], &'a [isize]);

/// The values of a term of a part, of these types, each row-major.
fn values(
    workers: &Workers<'_>,
    code: &Code,
    part: &HorizontalPart,
    (own, picked, dense): Operands<'_>,
    types: &[DType],
) -> Result<Vec<Bytes>> {
    let read = own.iter().zip(&part.step.strides);
    let read = read.map(|((v, bytes), strides)| Input { bytes, dtype: v.dtype, offset: v.offset, strides });
    let picked =
        picked.iter().map(|(dtype, bytes)| Input { bytes: bytes.as_ref(), dtype: *dtype, offset: 0, strides: dense });
    let inputs: SmallVec<[Input<'_>; 8]> = read.chain(picked).collect();
    let sizes: SmallVec<[usize; 4]> = types.iter().map(|d| d.size()).collect();
    let in_place = inputs.iter().map(|_| None).collect();
    let work = Work { code, shape: &part.step.shape, inputs, in_place, sizes: sizes.clone() };
    let mut made = sizes.iter().map(|size| Bytes::new(size * part.len())).collect::<Result<Vec<Bytes>>>()?;
    let mut outs: Vec<&mut [u8]> =
        made.iter_mut().zip(&sizes).map(|(b, size)| &mut b.as_mut()[..size * part.len()]).collect();
    work.run(workers, &mut outs, part.len());
    Ok(made)
}

/// The elements of a table at these indices; an error beside it.
fn picks(
    (table, bytes): (&View, &[u8]),
    (shape, strides): (&[usize], &[isize]),
    pick: &Pick,
    indices: impl Iterator<Item = i64>,
) -> Result<Bytes> {
    let size = table.dtype.size();
    let mut made = Bytes::new(size * shape.iter().product::<usize>())?;
    let mut place = Offsets::new(shape, strides, table.offset as isize);
    for (element, index) in made.as_mut().chunks_exact_mut(size).zip(indices) {
        let from_front = if index < 0 { index.saturating_add(pick.size as i64) } else { index };
        let inside = usize::try_from(from_front).ok().filter(|i| *i < pick.size);
        let at = inside.ok_or_else(|| Error::outside(index, pick.size))?;
        let at = (place.at as usize + at * pick.stride) * size;
        element.copy_from_slice(&bytes[at..at + size]);
        place.step();
    }
    Ok(made)
}

/// Stores elements, which lie row-major, along these strides.
fn store(made: &[u8], out: &mut [u8], (shape, strides): (&[usize], &[isize]), to: &View) {
    let size = to.dtype.size();
    let mut place = Offsets::new(shape, strides, to.offset as isize);
    for element in made.chunks_exact(size) {
        let at = place.at as usize * size;
        out[at..at + size].copy_from_slice(element);
        place.step();
    }
}
