//! Steps: what one launch computes, from which views to which.
//!
//! In: nothing; `lower` makes them. Out: what executors run. Invariant: a step reads only inputs,
//! constants and results of earlier steps; its results are whole buffers, or parts of one (see
//! [`HorizontalStep`]).

use hypatia_dsl::builtin::ScatterReduction;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, KernelId, Program};
use hypatia_dsl::kernel::{Access, Operand, PointwiseKernel, Reduced, Reduction, RowLayout, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermNode};

use super::view::{View, collapse};
use hypatia_graph::prim::{Cumsum, Window};
use hypatia_graph::{DeclaredLaunch, scale};

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
    /// The epilogue, with a root for each result; `acc` alone for a plain product. Only tiled
    /// kernels have several results.
    pub term: Term,
    /// What is reduced of the last roots, one for each, instead of being stored: the last results.
    /// Only tiled kernels for Hopper reduce anything.
    pub reduced: Vec<Reduced>,
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

/// The windows of `reads[0]`, `[n, c, image..]`, with zeros around it, as `[n, c, size..,
/// windows..]`. With the channels last: those of `[n, image.., c]` as `[n, windows.., size.., c]`.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfoldStep {
    /// The windows along each axis of the image.
    pub windows: Vec<Window>,
    /// True if the channels lie last.
    pub channels_last: bool,
}

impl UnfoldStep {
    /// The axes of the image, and those of the result that number the places in a window and the
    /// windows.
    pub fn axes(&self) -> [std::ops::Range<usize>; 3] {
        let n = self.windows.len();
        if self.channels_last { [1..1 + n, 1 + n..1 + 2 * n, 1..1 + n] } else { [2..2 + n, 2..2 + n, 2 + n..2 + 2 * n] }
    }

    /// The axis of the channels in an image and in a result of these ranks.
    pub fn channels(&self, ranks: [usize; 2]) -> [usize; 2] {
        if self.channels_last { ranks.map(|rank| rank.saturating_sub(1)) } else { [1, 1] }
    }
}

/// Windows of each channel of an image, reduced: of `[n, rows, columns, c]`, which is contiguous,
/// into `[n, windows.., c]`. What a window holds beside the image changes no result; a mean is
/// divided by all elements of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolStep {
    /// The windows along rows and columns.
    pub windows: Vec<Window>,
    /// Maximum, minimum, sum or mean.
    pub kind: Reduction,
}

/// A convolution with an epilogue. `reads[0]` is `[n, c, ..]`, or `[n, .., c]` if the channels are
/// last; `reads[1]` is `[o, c / groups, ..]`. Both are contiguous, but for few channels: such an
/// image may be a view of one whose channels come first. The operands of the term follow, broadcast
/// to the result.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvStep {
    /// The window of each spatial axis.
    pub windows: Vec<Window>,
    /// Groups of channels.
    pub groups: usize,
    /// True if the channels are the last axis of operand and result (NHWC). This requires constant
    /// filters, one or two spatial axes, and either one group or as many groups as channels and
    /// filters.
    pub channels_last: bool,
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
    let [root] = term.roots[..] else { return false };
    matches!(term.nodes.get(root.0 as usize), Some(TermNode::Acc))
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

impl PointwiseStep {
    /// A term over these reads, which have the shape of the contiguous first write. With `acc`, the
    /// last read is the accumulator, which the term calls `acc`.
    pub(super) fn of(term: Term, reads: &[View], writes: &[View], acc: Option<DType>) -> PointwiseStep {
        let strides: Vec<Vec<isize>> = reads.iter().chain(&writes[..1]).map(|v| v.strides.clone()).collect();
        let (shape, mut strides) = collapse(&writes[0].shape, &strides);
        let full = strides.pop().unwrap_or_default();
        let access = |s: &Vec<isize>| match s.as_slice() {
            _ if shape == [1] || *s == full => Access::Full,
            s if s.iter().all(|x| *x == 0) => Access::Splat,
            [0, 1] => Access::Row,
            [1, 0] => Access::Col,
            _ => Access::Strided,
        };
        let inputs = reads.iter().zip(&strides).map(|(v, s)| Operand { dtype: v.dtype, access: access(s) });
        let mut inputs: Vec<Operand> = inputs.collect();
        if acc.is_some() {
            inputs.pop();
        }
        let kernel = PointwiseKernel {
            name: String::new(),
            doc: String::new(),
            outputs: writes.iter().map(|v| v.dtype).collect(),
            rank: if inputs.iter().any(|i| i.access == Access::Strided) { shape.len() } else { 2 },
            inputs,
            term,
            acc,
        };
        PointwiseStep { kernel, shape, strides }
    }
}

/// Pointwise work of several index spaces in one launch (horizontal fusion). No part reads what
/// another one writes; results may be parts of one buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct HorizontalStep {
    /// The parts. Each takes the next of the step's reads and writes.
    pub parts: Vec<HorizontalPart>,
}

/// A part of a horizontal step.
#[derive(Clone, Debug, PartialEq)]
pub struct HorizontalPart {
    /// What is computed. Its inputs are full, one element, or strided.
    pub step: PointwiseStep,
    /// The strides of each write along the collapsed axes.
    pub stored: Vec<Vec<isize>>,
    /// What is read at computed places: the inputs of its terms from
    /// [`PICKED`](hypatia_dsl::kernel::PICKED) on.
    pub picks: Vec<Pick>,
}

/// An element of a table at a computed index (a gather). Beside the table it is 0 on a GPU, and an
/// error on a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The index along an axis of the table, as an integer. A negative one counts from the end. It
    /// may read earlier picks.
    pub index: Term,
    /// The read that is the table. Its view has the part's shape, and does not move along that
    /// axis.
    pub table: usize,
    /// Elements between neighbours along that axis.
    pub stride: usize,
    /// Elements along that axis.
    pub size: usize,
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
    /// Reads that hold places in a row, and the number of places.
    pub lookups: Vec<(usize, usize)>,
}

impl RowwiseStep {
    /// How many elements are read of a table: one for each element of the axes along which it or
    /// its index varies.
    pub(super) fn picked(&self, table: usize) -> usize {
        let Some(gathered) = self.kernel.gathers.iter().find(|g| g.table == table) else { return 0 };
        let of = [gathered.table, gathered.index].map(|i| &self.layout.strides[i]);
        let sizes = self.layout.sizes.iter().enumerate();
        sizes.filter(|(axis, _)| of.iter().any(|s| s[*axis] != 0)).map(|(_, size)| size).product()
    }
}

/// Attention over a batch of heads: finish(softmax(score(q k^T)) v). `reads[0]` is `batch +
/// [queries, head]`, `reads[1]` `batch + [keys, head]`, `reads[2]` `batch + [keys, value]`. The
/// operands of the score follow, broadcast to `batch + [queries, keys]`, then those of `finish`,
/// broadcast to `batch + [queries, value]`. The result is `batch + [queries, value]`; with `lse`,
/// `batch + [queries, 1]` is another one.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionStep {
    /// The leading axes.
    pub batch: Vec<usize>,
    /// Number of queries.
    pub queries: usize,
    /// Number of keys.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub head: usize,
    /// Elements of a value.
    pub value: usize,
    /// The score of a query and a key, from their product.
    pub term: Term,
    /// True if a row that the softmax makes NaN is 0.
    pub safe: bool,
    /// True if rules allow weights by the device's power of two, less precisely.
    pub short: bool,
    /// True if the log-sum-exp of each query's scores is a second result.
    pub lse: bool,
    /// What is stored of each element of the product with the values; the second accumulator is the
    /// log-sum-exp of its query's scores.
    pub finish: Term,
    /// How many of the reads, the last ones, that term reads.
    pub beside: usize,
}

impl AttentionStep {
    /// Whether each element of the product with the values is stored as it is.
    pub fn is_plain(&self) -> bool {
        self.finish.nodes.get(self.finish.root().0 as usize) == Some(&TermNode::Acc)
    }
}

/// The gradients of attention over a batch of heads: of queries, keys and values. With w a weight
/// and s the gradient of a score's product, these are s k, transpose(s) q and transpose(w) dy.
/// `reads[0]` is `batch + [queries, head]`, `reads[1]` `batch + [keys, head]`, `reads[2]` `batch +
/// [keys, value]`, `reads[3]`, `dy`, `batch + [queries, value]`. What the terms read follows,
/// broadcast to `batch + [queries, keys]`.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionGradStep {
    /// The leading axes.
    pub batch: Vec<usize>,
    /// Number of queries.
    pub queries: usize,
    /// Number of keys.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub head: usize,
    /// Elements of a value.
    pub value: usize,
    /// The weight of a query and a key, from their product.
    pub weight: Term,
    /// The gradient of that product, from it and from the product of `dy` and a value.
    pub slope: Term,
    /// True if rules allow weights by the device's power of two, less precisely.
    pub short: bool,
}

/// An op by a kernel from a user's template. `reads` are the op's operands as they lie, those that
/// are absent left out, and `writes` its results. Of a product, `reads` are those of a
/// [`GemmStep`].
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateStep {
    /// The product with its epilogue, if the op is one.
    pub product: Option<GemmStep>,
    /// The op's attributes by name.
    pub attrs: Vec<(String, AttrValue)>,
    /// How the kernel can be launched: once for each combination of tuning parameters that fits.
    pub launches: Vec<DeclaredLaunch>,
}

/// A product of a chain, with the number of its own operands: its right one, and what its term
/// reads.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainLayer {
    /// The product with its epilogue.
    pub product: GemmStep,
    /// The number of its reads, without the left operand.
    pub reads: usize,
}

/// How a factor of a product is computed, an element from those of its reads at the same place.
#[derive(Clone, Debug, PartialEq)]
pub struct FactorTerm {
    /// The element.
    pub term: Term,
    /// The type to which it is rounded.
    pub dtype: DType,
    /// Elements of k in a group; a read may have one element for all of them.
    pub group: usize,
    /// Number of its reads: of the left factor `[rows, groups, elements of a group]`, of a right
    /// one `[groups, elements of a group, columns]`.
    pub reads: usize,
}

/// Windows of an image, `[n, image.., c]` with the channels last or `[n, c, image..]`, as the rows
/// of a product's left factor or the columns of its right one. The products are those of all
/// images, and of all groups of channels that come first; the rows of one product may be those of
/// all images.
#[derive(Clone, Debug, PartialEq)]
pub struct FactorWindows {
    /// The windows.
    pub windows: UnfoldStep,
    /// Their number along each axis of the image.
    pub counts: Vec<usize>,
}

/// What a product reads for one of its factors.
#[derive(Clone, Debug, PartialEq)]
pub enum FactorFrom {
    /// The factor.
    Memory,
    /// What its elements are computed from.
    Term(FactorTerm),
    /// An image whose windows are its rows or its columns.
    Windows(FactorWindows),
}

impl FactorFrom {
    /// How its elements are computed, if they are.
    pub fn term(&self) -> Option<&FactorTerm> {
        match self {
            FactorFrom::Term(f) => Some(f),
            FactorFrom::Memory | FactorFrom::Windows(_) => None,
        }
    }

    /// Number of its reads.
    pub fn reads(&self) -> usize {
        self.term().map_or(1, |f| f.reads)
    }
}

/// A product, or two of one left operand, with factors that are computed where they are read, or
/// that are windows of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct PrologueStep {
    /// The product, or both.
    pub product: GemmStep,
    /// What is read for the left factor and for each right one.
    pub factors: Vec<FactorFrom>,
}

impl PrologueStep {
    /// Number of reads of each factor.
    pub fn reads(&self) -> impl Iterator<Item = usize> + '_ {
        self.factors.iter().map(FactorFrom::reads)
    }

    /// The windows that are a factor, if one consists of such.
    pub fn windows(&self) -> Option<&FactorWindows> {
        self.factors.iter().find_map(|f| match f {
            FactorFrom::Windows(w) => Some(w),
            FactorFrom::Memory | FactorFrom::Term(_) => None,
        })
    }

    /// True if it is two products of one left operand.
    pub fn is_pair(&self) -> bool {
        self.factors.len() > 2
    }
}

/// What a call computes in one launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Called {
    /// A product. Its accumulator is stored unchanged or, without a kernel, scaled. Of a tiled
    /// kernel it has the epilogue, with a result for each root.
    Product(GemmStep),
    /// A product that the library adds to a matrix: `reads` are both factors, the bias if the
    /// kernel's epilogue has one, and the matrix, which lies as the result does.
    Sum(GemmStep),
    /// Two products of one left operand, by a tiled kernel: `reads` are the left operand, the two
    /// right ones, and what the epilogue reads, broadcast to the result. The epilogue's
    /// accumulators are those of both products.
    Pair(GemmStep),
    /// Products whose left operand is the result of the one before, rounded as if it were stored,
    /// by a tiled kernel: `reads` are the first left operand, then those of each product.
    Chain(Vec<ChainLayer>),
    /// A product or a pair with factors that are computed where they are read, or windows of an
    /// image, by a tiled kernel:
    /// `reads` are those of each factor, then what the epilogue reads, broadcast to the result.
    Prologue(PrologueStep),
    /// Row-wise work of several tensors: `reads` and `writes` are those of the first part, then
    /// those of the next.
    Rows(Vec<RowwiseStep>),
    /// Attention, by a tiled kernel.
    Attention(AttentionStep),
    /// The gradients of attention, by a tiled kernel.
    AttentionGrad(AttentionGradStep),
    /// An op, by a kernel from a user's template.
    Template(TemplateStep),
}

/// One launch that the device may lack or that may be slower, and its fallback steps. `reads` begin
/// with the operands of the launch, and `writes` with its results. After them come the additional
/// reads and writes of the fallback steps. A product without a kernel is a batched one of matrices
/// in their present layout, which the fallback steps transpose first; its result is a whole buffer
/// whose axes may be permuted. Row-wise work of several tensors has no kernel either.
#[derive(Clone, Debug, PartialEq)]
pub struct CallStep {
    /// What the launch computes.
    pub called: Called,
    /// Number of reads that the launch uses.
    pub reads: usize,
    /// Number of writes that the launch stores.
    pub writes: usize,
    /// The fallback: the same results step by step. It defines the meaning, and runs where the
    /// device lacks the launch or is slower with it.
    pub fallback: Vec<Step>,
}

impl CallStep {
    /// The product, if that is what the launch computes.
    pub fn product(&self) -> Option<&GemmStep> {
        match &self.called {
            Called::Product(g) | Called::Sum(g) => Some(g),
            Called::Template(t) => t.product.as_ref(),
            Called::Pair(_) | Called::Chain(_) | Called::Prologue(_) | Called::Rows(_) => None,
            Called::Attention(_) | Called::AttentionGrad(_) => None,
        }
    }
}

/// What a step does with its reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A matrix product.
    Gemm(GemmStep),
    /// A product with more than an accumulator to store, attention, or a user's template; one
    /// launch if the device supports it and is not slower with it.
    Call(CallStep),
    /// A convolution.
    Conv(ConvStep),
    /// Pointwise.
    Pointwise(PointwiseStep),
    /// Pointwise, in several index spaces.
    Horizontal(HorizontalStep),
    /// Row by row.
    Rowwise(RowwiseStep),
    /// Row-major copy of its only read.
    Copy,
    /// Concatenates the reads along an axis.
    Concat(usize),
    /// Fills with `reads[1]`, then stores `reads[0]` at that offset along each axis.
    Pad(Vec<i64>),
    /// The windows of an image as the rows or the columns of a matrix (im2col).
    Unfold(UnfoldStep),
    /// The windows of each channel of an image, reduced.
    Pool(PoolStep),
    /// Slices of `reads[0]` along an axis, selected by `reads[1]`.
    Gather(usize),
    /// Elements of `reads[0]` along an axis, selected by `reads[1]`.
    GatherElements(usize),
    /// Slices of `reads[0]` selected by index tuples, after batch axes.
    GatherNd(usize),
    /// A copy of `reads[0]` in which the rows that `reads[1]` selects are combined with those of
    /// `reads[2]`.
    Scatter(ScatterReduction),
    /// The permutation that sorts along an axis; descending if true.
    Argsort(usize, bool),
    /// A reduction over these axes, which are ascending.
    Reduce(Reduction, Vec<usize>),
    /// A cumulative sum.
    Cumsum(Cumsum),
    /// Position of the maximum along the axis; of equal ones the last if true.
    Argmax(usize, bool),
}

impl Action {
    /// Its name in a message.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Gemm(_) => "gemm",
            Action::Call(_) => "call",
            Action::Conv(_) => "conv",
            Action::Pointwise(_) => "pointwise",
            Action::Horizontal(_) => "horizontal",
            Action::Rowwise(_) => "rowwise",
            Action::Copy => "copy",
            Action::Concat(_) => "concat",
            Action::Pad(_) => "pad",
            Action::Unfold(_) => "unfold",
            Action::Pool(_) => "pool",
            Action::Gather(_) => "gather",
            Action::GatherElements(_) => "gatherelements",
            Action::GatherNd(_) => "gathernd",
            Action::Scatter(_) => "scatter",
            Action::Argsort(..) => "argsort",
            Action::Reduce(..) => "reduce",
            Action::Cumsum(_) => "cumsum",
            Action::Argmax(..) => "argmax",
        }
    }
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
    /// A step that works in place nowhere, without a kernel of the Program.
    pub(super) fn new(name: String, action: Action, reads: Vec<View>, writes: Vec<View>) -> Step {
        let in_place = vec![None; writes.len()];
        Step { name, action, reads, writes, in_place, kernel: None }
    }

    /// A launch that stores `writes`, with its fallback steps. What else the fallback reads and
    /// writes is added to the step's reads and writes.
    pub(super) fn call(
        name: &str,
        called: Called,
        mut reads: Vec<View>,
        mut writes: Vec<View>,
        fallback: Vec<Step>,
    ) -> Step {
        let call = CallStep { called, reads: reads.len(), writes: writes.len(), fallback };
        for view in call.fallback.iter().flat_map(|s| &s.writes) {
            if !writes.iter().any(|w| w.buffer == view.buffer) {
                writes.push(view.clone());
            }
        }
        for view in call.fallback.iter().flat_map(|s| &s.reads) {
            if !writes.iter().any(|w| w.buffer == view.buffer) && !reads.contains(view) {
                reads.push(view.clone());
            }
        }
        let in_place = vec![None; writes.len()];
        Step { name: name.to_string(), action: Action::Call(call), reads, writes, in_place, kernel: None }
    }

    /// Number of launches of its first choice: the parts of each reduction that a product makes are
    /// joined by one of their own.
    pub fn launches(&self) -> usize {
        1 + match &self.action {
            Action::Call(CallStep { called: Called::Product(g) | Called::Pair(g), .. }) => g.reduced.len(),
            Action::Call(CallStep { called: Called::Prologue(p), .. }) => p.product.reduced.len(),
            _ => 0,
        }
    }

    /// What identifies the step in a message: its nodes, else what it makes.
    pub fn title(&self) -> String {
        match (self.name.is_empty(), self.writes.first()) {
            (true, Some(made)) => format!("what makes {}{:?}", made.dtype, made.shape),
            _ => self.name.clone(),
        }
    }

    /// The reads whose memory is reused by results.
    pub fn shared(&self) -> Vec<usize> {
        let mut out: Vec<usize> = self.in_place.iter().flatten().copied().collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}
