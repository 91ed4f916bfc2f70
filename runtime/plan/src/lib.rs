//! Plans: which kernel computes what, in which order, and where the results lie.
//!
//! In: a graph on concrete sizes and a device. Out: a [`Plan`], that an executor runs as it stands:
//! [`prepare`] computes what no input changes and decides what stays an op, [`lower`] turns nodes into steps and views ([`conv`] convolutions, [`unrolled`] what a device has no
//! kernel for, [`wrapped`] integers narrower than it counts in, [`workspace`] memory that it works in) by the kernels that
//! the optimiser listed, [`short`] puts short functions into generated ones, [`either`] keeps a way to do without a library's call, [`copies`]
//! spares and joins copies, [`buffers`] places results in one arena. Holds always: a step reads only inputs, constants
//! and results of earlier steps; a view costs nothing; results that are alive at the same time do not overlap, except
//! where a step says that it works in place. [`Plan::validate`] checks all of it.

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

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The input of that index.
    Input(usize),
    /// The constant of that index.
    Constant(usize),
    /// So many bytes into the arena, a multiple of [`ALIGNMENT`].
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
    /// Where.
    pub place: Place,
}

/// An input, as the caller must give it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
}

/// A matrix product with an epilogue. `reads[0]` is `batch + [m, k]`, `reads[1]` is `batch + [k, n]`, the
/// term's operands follow, broadcast to `batch + [m, n]`.
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
    /// True if the accumulator is stored as it is.
    pub fn is_plain(&self) -> bool {
        is_plain(&self.term)
    }

    /// What the accumulator is multiplied by before it is stored, if no more is done with it: libraries do that in the
    /// product. Not 0, which would hide NaN and infinities.
    pub fn scale(&self, program: &Program) -> Option<f64> {
        scale(program, &self.term, self.acc)
    }
}

/// A convolution with an epilogue. `reads[0]` is `[n, c, ..]`, or `[n, .., c]` if the channels are last;
/// `reads[1]` is `[o, c / groups, ..]`, both contiguous; the term's operands follow, broadcast to the result.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvStep {
    /// How the windows lie, for each axis behind the channels.
    pub windows: Vec<Window>,
    /// Groups of channels.
    pub groups: usize,
    /// True if the channels are the last axis of operand and result, which is so for constant filters only,
    /// one or two axes, and one group or as many as there are channels and filters.
    pub last: bool,
    /// Element type of the accumulator: f32, or f64 for f64.
    pub acc: DType,
    /// The epilogue; `acc` alone for a plain convolution.
    pub term: Term,
}

impl ConvStep {
    /// True if the accumulator is stored as it is.
    pub fn is_plain(&self) -> bool {
        is_plain(&self.term)
    }
}

/// True if the term is the accumulator alone.
fn is_plain(term: &Term) -> bool {
    matches!(term.nodes.get(term.root().0 as usize), Some(TermNode::Acc))
}

/// Pointwise work on a collapsed index space.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseStep {
    /// What is computed.
    pub kernel: PointwiseKernel,
    /// The collapsed sizes, at least one; `kernel.rank` of them if an operand is strided.
    pub shape: Vec<usize>,
    /// For each read, its strides along these axes.
    pub strides: Vec<Vec<isize>>,
}

/// Row-wise work.
#[derive(Clone, Debug, PartialEq)]
pub struct RowwiseStep {
    /// What is computed.
    pub kernel: RowwiseKernel,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub n: usize,
    /// Where the elements of each read, then of each write, lie; at least one axis numbers the rows, and at
    /// least one makes a row.
    pub layout: RowLayout,
}

/// One call of a library, and the steps that do without it. `reads` begin with the operands of the product and what the
/// call's epilogue reads, `writes` with what it stores; behind them stands what the steps read and write beside. A step
/// without a kernel is a product of many matrices as they lie, where the steps bring them into order; its result is a
/// whole buffer whose axes may lie in another order.
#[derive(Clone, Debug, PartialEq)]
pub struct EitherStep {
    /// The product of the call, its accumulator stored as it is or, without a kernel, scaled.
    pub product: GemmStep,
    /// How many of the reads the call reads.
    pub reads: usize,
    /// How many of the writes the call stores.
    pub writes: usize,
    /// The same results step by step: the meaning, and what runs where the library has no such call or is slower.
    pub apart: Vec<Step>,
}

/// What a step does with its reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A matrix product.
    Gemm(GemmStep),
    /// A product with more than its result, or with more than a vector beside its operands, in one launch if the device can.
    Either(EitherStep),
    /// A convolution.
    Conv(ConvStep),
    /// Pointwise.
    Pointwise(PointwiseStep),
    /// Row by row.
    Rowwise(RowwiseStep),
    /// Row-major copy of the one read.
    Copy,
    /// The reads side by side along an axis.
    Concat(usize),
    /// `reads[1]` everywhere, then `reads[0]` that many elements from the start of each axis.
    Pad(Vec<i64>),
    /// Slices of `reads[0]` along an axis, named by `reads[1]`.
    Gather(usize),
    /// Elements of `reads[0]` along an axis, named by `reads[1]`.
    GatherElements(usize),
    /// Slices of `reads[0]` named by index tuples, after batch axes.
    GatherNd(usize),
    /// A copy of `reads[0]` whose rows that `reads[1]` names are joined with those of `reads[2]`.
    Scatter(Joining),
    /// Positions in ascending order along an axis, in descending order if true.
    Argsort(usize, bool),
    /// A reduction over these axes, ascending.
    Reduce(Reduction, Vec<usize>),
    /// Sums of all elements up to each.
    Cumsum(Cumsum),
    /// Position of the largest along the axis; the last of equal ones if true.
    Argmax(usize, bool),
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it is for: the names of the model's nodes that it computes.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// What it reads.
    pub reads: Vec<View>,
    /// What it writes, each a whole buffer: its results, then memory that it works in.
    pub writes: Vec<View>,
    /// For each write, the read whose memory it takes over.
    pub in_place: Vec<Option<usize>>,
    /// The kernel of the Program that implements it; the executor's own where `None`.
    pub kernel: Option<KernelId>,
}

impl Step {
    /// The reads whose memory results take over.
    pub fn shared(&self) -> Vec<usize> {
        let mut out: Vec<usize> = self.in_place.iter().flatten().copied().collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}

/// How a plan is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The device it is for.
    pub device: Device,
    /// Cluster pointwise work; without it every scalar node is a launch of its own.
    pub cluster: bool,
    /// Bytes that the arena and the outputs may take; a plan that needs more is an error.
    pub memory: usize,
    /// Let a GPU round the operands of f32 products to TF32: 10 bits of mantissa, up to seven times the speed.
    pub tf32: bool,
    /// Which approximations may stand in generated kernels.
    pub allowed: Allowed,
}

impl Options {
    /// Clustered, for that device, within [`memory::budget`], f32 as f32.
    pub fn new(device: Device) -> Options {
        Options { device, cluster: true, memory: memory::budget(), tf32: false, allowed: Allowed::default() }
    }
}

/// What an executor runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The Program whose scalars the terms call.
    pub program: Arc<Program>,
    /// The device it was made for.
    pub device: Device,
    /// Inputs in the model's order.
    pub inputs: Vec<PlanInput>,
    /// Weights, and what was computed from them.
    pub constants: Vec<Arc<Tensor>>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Name and place of each output; contiguous.
    pub outputs: Vec<(String, View)>,
    /// Bytes of the arena.
    pub arena: usize,
    /// Products of f32 may round their operands to TF32.
    pub tf32: bool,
    /// Which approximations may stand in generated kernels.
    pub allowed: Allowed,
    /// Where rules put short functions.
    pub shortened: Vec<Shortened>,
}

impl Plan {
    /// Plans a graph whose sizes are all numbers, with the constants that earlier plans of the model have computed.
    pub fn build(graph: &Graph, options: &Options, constants: &mut Constants) -> Result<Plan> {
        Plan::of(&prepare::prepare(graph, options, constants)?, options)
    }

    /// Plans a graph of builtin ops, constant work with the rest: what computes constants is planned so.
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

    /// Fails unless these are the inputs that the plan was made for, in its order.
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

    /// Fails unless results of the plan fit into these tensors, in its order.
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
