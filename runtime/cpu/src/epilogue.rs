//! Epilogues: what becomes of the sums of a product or a convolution.
//!
//! In: the term of a step, the views of its operands and of its result. Out: an [`Epilogue`], its
//! operands, and the [`Sums`] that its code reads. Invariant: without code, the sums are the
//! result.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::scalar::Term;
use hypatia_dsl::scalar::typed::Source;
use smallvec::SmallVec;

use super::interp::{BLOCK, Code, Dst, Loader, Registers, read};
use super::pointwise::{Input, gather};
use hypatia_plan::{ConvStep, GemmStep, View, collapse};
use hypatia_tensor::error::Result;

/// The epilogue of a step.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// `None` if the sums are the result.
    pub code: Option<Code>,
    /// Collapsed sizes of the result.
    pub shape: Vec<usize>,
    /// Strides of each operand along them.
    strides: Vec<Vec<isize>>,
    /// Type of the sums.
    pub acc: DType,
    /// Type of the result.
    pub out: DType,
}

impl Epilogue {
    /// That of a product, whose operands are `inputs`.
    pub fn of_product(program: &Program, step: &GemmStep, inputs: &[View], out: &View) -> Result<Epilogue> {
        Epilogue::new(program, (&step.term, step.is_plain(), step.acc), inputs, out)
    }

    /// That of a convolution.
    pub fn of_conv(program: &Program, step: &ConvStep, inputs: &[View], out: &View) -> Result<Epilogue> {
        Epilogue::new(program, (&step.term, step.is_plain(), step.acc), inputs, out)
    }

    fn new(
        program: &Program,
        (term, is_plain, acc): (&Term, bool, DType),
        inputs: &[View],
        out: &View,
    ) -> Result<Epilogue> {
        let dtypes: Vec<DType> = inputs.iter().map(|v| v.dtype).collect();
        let code = if is_plain && acc == out.dtype {
            None
        } else {
            Some(Code::new(program, term, Some(acc), &dtypes, &[out.dtype])?)
        };
        let all: Vec<Vec<isize>> = inputs.iter().chain([out]).map(|v| v.strides.clone()).collect();
        let (shape, strides) = collapse(&out.shape, &all);
        Ok(Epilogue { code, shape, strides, acc, out: out.dtype })
    }

    /// The operands, from their views and whole buffers.
    pub fn inputs<'a>(&'a self, reads: &'a [View], buffers: &'a [&'a [u8]]) -> SmallVec<[Input<'a>; 8]> {
        let all = buffers.iter().zip(reads).zip(&self.strides);
        all.map(|((bytes, v), strides)| Input { bytes, dtype: v.dtype, offset: v.offset, strides }).collect()
    }
}

/// Sums of consecutive elements of the result: element 0 is element `first` of all.
pub struct Sums<'a, 'b> {
    pub epilogue: &'a Epilogue,
    pub inputs: &'a [Input<'b>],
    pub sums: &'a [u8],
    pub first: usize,
}

impl Sums<'_, '_> {
    /// Stores the results of these sums.
    pub fn store(&self, registers: &mut Registers, out: &mut [u8]) {
        let Some(code) = &self.epilogue.code else { return out.copy_from_slice(self.sums) };
        let len = out.len() / self.epilogue.out.size();
        for at in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - at);
            code.run(registers, self, at, count);
            code.store(registers, 0, out, at, count);
        }
    }
}

impl Loader for Sums<'_, '_> {
    fn direct(&self, source: Source, start: usize, len: usize) -> Option<&[f32]> {
        let sums = source == Source::Acc && self.epilogue.acc == DType::F32;
        if sums { bytemuck::cast_slice(self.sums).get(start..start + len) } else { None }
    }

    fn load(&self, source: Source, start: usize, dst: Dst<'_>) {
        match source {
            Source::Acc => read(self.sums, self.epilogue.acc, start as isize, 1, dst),
            Source::In(i) => {
                gather(&self.inputs[i as usize], &self.epilogue.shape, self.first + start, dst);
            }
        }
    }
}
