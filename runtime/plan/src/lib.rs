//! Plans: which kernel computes what, in which order, and where the results are stored.
//!
//! In: a graph on concrete sizes and a device. Out: a [`Plan`] that an executor runs without
//! further decisions. [`prepare`] computes everything that does not depend on an input and decides
//! which ops are kept. [`lower`] turns nodes into steps and views, with the kernels that the
//! optimiser listed. It uses [`conv`] for convolutions, [`unrolled`] for ops without a kernel on
//! the device, [`wrapped`] for integers narrower than those the device computes in, and
//! [`workspace`] for scratch memory. [`short`] puts short functions into generated kernels,
//! [`either`] keeps the fallback of a library call, [`copies`] removes and merges copies, and
//! [`buffers`] places results in one arena.
//!
//! Invariant: a step reads only inputs, constants and results of earlier steps; a view costs
//! nothing; results that are live at the same time do not overlap, except where a step declares
//! that it works in place. [`Plan::validate`] checks all of it.

mod batch;
mod buffers;
mod conv;
mod copies;
mod either;
mod lower;
mod prepare;
mod print;
mod rows;
mod short;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod unrolled;
mod validate;
mod view;
mod work;
mod workspace;
mod wrapped;

use std::sync::Arc;

use hypatia_dsl::builtin::Joining;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{KernelId, Program};
use hypatia_dsl::kernel::short::Allowed;
use hypatia_dsl::kernel::{PointwiseKernel, Reduction, RowLayout, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermNode};

use hypatia_graph::prim::{Cumsum, Window};
use hypatia_graph::{Constants, Graph, scale};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::memory;
use hypatia_tensor::tensor::Tensor;
pub use print::{Note, Noted, note};
pub use short::Shortened;
pub use view::{View, collapse, matrix_layout, row_major};
pub use work::StepWork;
pub use workspace::Parting;

/// A buffer of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// As an index into `Plan::buffers`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a buffer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The input with that index.
    Input(usize),
    /// The constant with that index.
    Constant(usize),
    /// Byte offset into the arena, a multiple of [`ALIGNMENT`].
    Arena(usize),
}

/// Alignment of buffers in the arena, in bytes.
pub const ALIGNMENT: usize = 64;

/// Memory for one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// Where it is stored.
    pub place: Place,
}

/// An input that the caller must supply.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
}

/// A matrix product with an epilogue. `reads[0]` is `batch + [m, k]` and `reads[1]` is `batch + [k,
/// n]`. The operands of the term follow, broadcast to `batch + [m, n]`.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmStep {
    /// The leading axes.
    pub batch: Vec<usize>,
    /// Rows.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Element type of the accumulator: f32 (f64 for f64; integers accumulate in their own type).
    pub acc: DType,
    /// The epilogue; `acc` alone for a plain product.
    pub term: Term,
}

impl GemmStep {
    /// True if the accumulator is stored unchanged.
    pub fn is_plain(&self) -> bool {
        is_plain(&self.term)
    }

    /// The factor by which the accumulator is multiplied before it is stored, if the epilogue does
    /// nothing else: libraries apply it within the product. Never 0, which would hide NaN and
    /// infinities.
    pub fn scale(&self, program: &Program) -> Option<f64> {
        scale(program, &self.term, self.acc)
    }
}

/// A convolution with an epilogue. `reads[0]` is `[n, c, ..]`, or `[n, .., c]` if the channels are
/// last; `reads[1]` is `[o, c / groups, ..]`. Both are contiguous. The operands of the term follow,
/// broadcast to the result.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvStep {
    /// The window of each spatial axis.
    pub windows: Vec<Window>,
    /// Groups of channels.
    pub groups: usize,
    /// True if the channels are the last axis of operand and result (NHWC). This requires constant
    /// filters, one or two spatial axes, and either one group or as many groups as channels and
    /// filters.
    pub last: bool,
    /// Element type of the accumulator: f32, or f64 for f64.
    pub acc: DType,
    /// The epilogue; `acc` alone for a plain convolution.
    pub term: Term,
}

impl ConvStep {
    /// True if the accumulator is stored unchanged.
    pub fn is_plain(&self) -> bool {
        is_plain(&self.term)
    }
}

/// True if the term is only the accumulator.
fn is_plain(term: &Term) -> bool {
    matches!(term.nodes.get(term.root().0 as usize), Some(TermNode::Acc))
}

/// A pointwise step on a collapsed index space.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseStep {
    /// The computation.
    pub kernel: PointwiseKernel,
    /// The collapsed sizes: at least one, and `kernel.rank` of them if an operand is strided.
    pub shape: Vec<usize>,
    /// The strides of each read along these axes.
    pub strides: Vec<Vec<isize>>,
}

/// A row-wise step.
#[derive(Clone, Debug, PartialEq)]
pub struct RowwiseStep {
    /// The computation.
    pub kernel: RowwiseKernel,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub n: usize,
    /// The layout of the elements of each read, then of each write. At least one axis numbers the
    /// rows, and at least one makes up a row.
    pub layout: RowLayout,
}

/// A library call and its fallback steps. `reads` begin with the operands of the product and the
/// operands of the call's epilogue; `writes` begin with the results of the call. After them come
/// the additional reads and writes of the fallback steps. A step without a kernel is a batched
/// product of matrices in their present layout, which the fallback steps transpose first; its
/// result is a whole buffer whose axes may be permuted.
#[derive(Clone, Debug, PartialEq)]
pub struct EitherStep {
    /// The product of the call. Its accumulator is stored unchanged or, without a kernel, scaled. Of
    /// a tiled kernel it has the epilogue.
    pub product: GemmStep,
    /// Number of reads that the call uses.
    pub reads: usize,
    /// Number of writes that the call stores.
    pub writes: usize,
    /// The fallback: the same results step by step. It defines the meaning, and runs where the
    /// library lacks the call or is slower.
    pub apart: Vec<Step>,
}

/// What a step does with its reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A matrix product.
    Gemm(GemmStep),
    /// A product that has more results than one, or more epilogue operands than a vector; one
    /// launch if the device supports it.
    Either(EitherStep),
    /// A convolution.
    Conv(ConvStep),
    /// Pointwise.
    Pointwise(PointwiseStep),
    /// Row by row.
    Rowwise(RowwiseStep),
    /// Row-major copy of its only read.
    Copy,
    /// Concatenates the reads along an axis.
    Concat(usize),
    /// Fills with `reads[1]`, then stores `reads[0]` at that offset along each axis.
    Pad(Vec<i64>),
    /// Slices of `reads[0]` along an axis, selected by `reads[1]`.
    Gather(usize),
    /// Elements of `reads[0]` along an axis, selected by `reads[1]`.
    GatherElements(usize),
    /// Slices of `reads[0]` selected by index tuples, after batch axes.
    GatherNd(usize),
    /// A copy of `reads[0]` in which the rows that `reads[1]` selects are combined with those of
    /// `reads[2]`.
    Scatter(Joining),
    /// The permutation that sorts along an axis; descending if true.
    Argsort(usize, bool),
    /// A reduction over these axes, which are ascending.
    Reduce(Reduction, Vec<usize>),
    /// A cumulative sum.
    Cumsum(Cumsum),
    /// Position of the maximum along the axis; of equal ones the last if true.
    Argmax(usize, bool),
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Label: the names of the model's nodes that it computes.
    pub name: String,
    /// The operation.
    pub action: Action,
    /// The operands.
    pub reads: Vec<View>,
    /// The results, then scratch memory; each is a whole buffer.
    pub writes: Vec<View>,
    /// For each write, the read whose memory it reuses.
    pub in_place: Vec<Option<usize>>,
    /// The kernel of the Program that implements it; `None` for the executor's own.
    pub kernel: Option<KernelId>,
}

impl Step {
    /// The reads whose memory is reused by results.
    pub fn shared(&self) -> Vec<usize> {
        let mut out: Vec<usize> = self.in_place.iter().flatten().copied().collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}

/// Settings of planning.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The target device.
    pub device: Device,
    /// Cluster pointwise work; otherwise every scalar node is a launch of its own.
    pub cluster: bool,
    /// Limit in bytes of the arena and the outputs; a plan that needs more is an error.
    pub memory: usize,
    /// Let a GPU round the operands of f32 products to TF32: 10 bits of mantissa, up to seven times
    /// the speed.
    pub tf32: bool,
    /// Which approximations generated kernels may use.
    pub allowed: Allowed,
}

impl Options {
    /// Clustered, for that device, within [`memory::budget`], f32 without TF32.
    pub fn new(device: Device) -> Options {
        Options { device, cluster: true, memory: memory::budget(), tf32: false, allowed: Allowed::default() }
    }
}

/// What an executor runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The Program that defines the scalars of the terms.
    pub program: Arc<Program>,
    /// The device that it was made for.
    pub device: Device,
    /// Inputs in the order of the model.
    pub inputs: Vec<PlanInput>,
    /// Weights, and constants computed from them.
    pub constants: Vec<Arc<Tensor>>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Name and view of each output; contiguous.
    pub outputs: Vec<(String, View)>,
    /// Bytes of the arena.
    pub arena: usize,
    /// f32 products may round their operands to TF32.
    pub tf32: bool,
    /// Which approximations generated kernels may use.
    pub allowed: Allowed,
    /// Where rules replaced functions with short ones.
    pub shortened: Vec<Shortened>,
}

impl Plan {
    /// Plans a graph whose sizes are all numbers. Reuses the constants that earlier plans of the
    /// model have computed.
    pub fn build(graph: &Graph, options: &Options, constants: &mut Constants) -> Result<Plan> {
        Plan::of(&prepare::prepare(graph, options, constants)?, options)
    }

    /// Plans a graph of builtin ops without constant folding. Constant expressions themselves are
    /// planned this way.
    pub fn unfolded(graph: &Graph, options: &Options) -> Result<Plan> {
        let prepared = prepare::Prepared { graph: graph.clone(), kernels: prepare::Kernels::default() };
        Plan::of(&prepared, options)
    }

    fn of(prepared: &prepare::Prepared, options: &Options) -> Result<Plan> {
        let mut plan = lower::lower(prepared, options)?;
        if !plan.device.is_host() {
            copies::spare(&mut plan);
            copies::join(&mut plan);
            short::shorten(&mut plan);
        }
        buffers::place(&mut plan, options.memory)?;
        if cfg!(debug_assertions) {
            plan.validate()?;
        }
        Ok(plan)
    }

    /// Fails unless the number, types and shapes of the inputs are those of the plan, in its order.
    pub fn check_inputs(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let (got, wanted) = (inputs.len(), self.inputs.len());
            return Err(Error::Input(format!("{got} inputs were given, the plan has {wanted}")));
        }
        for (t, i) in inputs.iter().zip(&self.inputs) {
            if t.dtype() != i.dtype || t.shape() != i.shape {
                let got = format!("{}{:?}", t.dtype(), t.shape());
                return Err(Error::Input(format!("input `{}` must be {}{:?}, but is {got}", i.name, i.dtype, i.shape)));
            }
        }
        Ok(())
    }

    /// Fails unless the tensors have the types and shapes of the plan's outputs, in its order.
    pub fn check_outputs(&self, outputs: &[Tensor]) -> Result<()> {
        if outputs.len() != self.outputs.len() {
            let (got, wanted) = (outputs.len(), self.outputs.len());
            return Err(Error::Input(format!("{got} tensors were given for the outputs, the plan has {wanted}")));
        }
        for (t, (name, view)) in outputs.iter().zip(&self.outputs) {
            if t.dtype() != view.dtype || t.shape() != view.shape {
                let (got, wanted) =
                    (format!("{}{:?}", t.dtype(), t.shape()), format!("{}{:?}", view.dtype, view.shape));
                return Err(Error::Input(format!("output `{name}` is {wanted}, but the tensor for it is {got}")));
            }
        }
        Ok(())
    }

    /// Number of launches.
    pub fn launches(&self) -> usize {
        self.steps.len()
    }
}
