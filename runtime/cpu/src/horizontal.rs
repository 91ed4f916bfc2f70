//! Pointwise work of several index spaces, part by part.
//!
//! In: a step that a GPU does in one launch. Out: its results. Plans for a host have no such step;
//! a host runs those of a GPU to check them. Invariant: a part is computed into memory of its own,
//! then stored where its strides say.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;

use super::interp::Code;
use super::memory::Bytes;
use super::operand::Offsets;
use super::pointwise::{Input, Work};
use super::threads::Workers;
use hypatia_plan::{HorizontalPart, HorizontalStep, Step, View};
use hypatia_tensor::error::{Error, Result};

/// The compiled parts of a step.
pub struct HorizontalCode {
    parts: Vec<(HorizontalPart, Code)>,
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
            let inputs: Vec<DType> = k.inputs.iter().map(|o| o.dtype).collect();
            Ok((p.clone(), Code::new(program, &k.term, None, &inputs, &k.outputs)?))
        };
        Ok(HorizontalCode { parts: h.parts.iter().map(part).collect::<Result<_>>()? })
    }

    /// Runs all parts. `outs` are the [`buffers`] that the step writes.
    pub fn run(&self, step: &Step, workers: &Workers<'_>, reads: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<()> {
        let (mut views, mut writes) = (step.reads.iter().zip(reads), step.writes.iter());
        for (part, code) in &self.parts {
            let own = views.by_ref().take(part.step.strides.len()).zip(&part.step.strides);
            let inputs = own.map(|((v, bytes), strides)| Input { bytes, dtype: v.dtype, offset: v.offset, strides });
            let inputs = inputs.collect();
            let sizes: Vec<usize> = part.step.kernel.outputs.iter().map(|d| d.size()).collect();
            let work = Work {
                code,
                shape: &part.step.shape,
                inputs,
                in_place: part.step.strides.iter().map(|_| None).collect(),
                sizes: sizes.iter().copied().collect(),
            };
            let mut own = sizes.iter().map(|size| Bytes::new(size * part.len())).collect::<Result<Vec<Bytes>>>()?;
            let mut made: Vec<&mut [u8]> =
                own.iter_mut().zip(&sizes).map(|(b, size)| &mut b.as_mut()[..size * part.len()]).collect();
            work.run(workers, &mut made, part.len());
            for ((made, strides), to) in made.iter().zip(&part.stored).zip(writes.by_ref()) {
                let at = buffers(step).position(|w| w.buffer == to.buffer).and_then(|i| outs.get_mut(i));
                let out = at.ok_or_else(|| Error::Internal("a part without memory".into()))?;
                store(made, out, (&part.step.shape, strides), to);
            }
        }
        Ok(())
    }
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
