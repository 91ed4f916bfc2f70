//! Attention without stored scores: finish(softmax(score(q k^T)) v), and how it is cut into tiles.
//!
//! In: an attention of a plan, with the layout of its operands; a row-wise kernel that may be a
//! softmax. Out: an [`AttentionProblem`], and for each [`AttentionTiling`] that fits an
//! [`AttentionKernel`] that `hypatia-templates` prints; the term whose softmax a kernel is.
//! Invariant: every tiling sums the same weights and values in f32; the tiling decides the order of
//! the sums and the speed.
//!
//! Source: Dao et al., FlashAttention (arXiv 2205.14135) and FlashAttention-3 (arXiv 2407.08608).

use std::collections::HashMap;

use crate::builtin::BuiltinScalar;
use crate::dtype::DType;
use crate::ir::{InView, Program};
use crate::scalar::{Term, TermBuilder, TermId, TermNode, prune};

use super::tune::{self, StoredTiling, Table};
use super::{Operand, Reduction, RowAccess, RowwiseKernel};

/// Rows of queries that a group of 128 threads owns.
pub const QUERY_ROWS: usize = 64;
/// Columns of 16 bits in the 128 bytes that the copy engine moves for each row.
const CHUNK: usize = 64;
/// Bytes of a row of a chunk.
const ROW: usize = 128;
/// Shared memory that a block may use on Hopper, in bytes.
const SHARED: usize = 232_448;
/// Alignment of tiles, in bytes: the swizzle repeats with this period.
const ALIGNMENT: usize = 1024;
/// The largest size of a head: the sums of 64 rows are 128 registers a thread.
pub const MAX_HEAD: usize = 256;
/// Axes of the batch that a kernel counts.
pub const BATCH: usize = 3;
/// Slots for keys and values; more hide no more latency.
const MAX_STAGES: usize = 2;
/// Keys of a chunk, where keys are split: 0 for all keys. Lengths do not depend on the problem, so
/// that with one tiling the order of a query's sums does not depend on what else is computed.
pub const CHUNKS: &[i64] = &[0, 128, 256, 512, 1024, 2048];

/// How an attention is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionTiling {
    /// Keys of a tile: a multiple of 16.
    pub keys: usize,
    /// Groups of consumers in a block, each with 64 rows of queries: 1 to 3.
    pub consumers: usize,
    /// Keys of a chunk that blocks of their own sum: a multiple of `keys`; 0 if a block sums all
    /// keys of its queries. A second launch joins the chunks.
    pub chunk: usize,
}

/// The tuning parameters of a `tiled` kernel for attention, with the values that the hardware has.
pub const ATTENTION_TUNE: &Table = &[
    ("tile_n", &[16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208]),
    ("consumers", &[1, 2, 3]),
    ("chunk", CHUNKS),
];

/// Marks the stored form of a tiling.
pub(super) const STORED: u64 = 4;

impl AttentionTiling {
    /// The tiling that these tuning parameters name, if the hardware can run it. Parameters that
    /// are missing have a value that suits most lengths.
    pub fn named(values: &[(&str, i64)]) -> Option<AttentionTiling> {
        let value = |name, otherwise| tune::value(ATTENTION_TUNE, values, name, otherwise);
        let (keys, consumers, chunk) = (value("tile_n", 128)?, value("consumers", 2)?, value("chunk", 0)?);
        Some(AttentionTiling { keys, consumers, chunk })
    }

    /// The tilings that these tuning parameters of a kernel name.
    pub fn all(tune: &[(String, Vec<i64>)]) -> Vec<AttentionTiling> {
        tune::combinations(ATTENTION_TUNE, tune).iter().filter_map(|c| AttentionTiling::named(c)).collect()
    }

    /// Rows of queries of a block.
    pub fn rows(&self) -> usize {
        QUERY_ROWS * self.consumers
    }

    /// Threads of a block: the producer's group and the consumers'.
    pub fn threads(&self) -> usize {
        128 * (self.consumers + 1)
    }

    /// The number of chunks of that many keys; `None` if a block sums all keys.
    pub fn chunks(&self, keys: usize) -> Option<usize> {
        (self.chunk > 0).then(|| keys.div_ceil(self.chunk))
    }

    /// True if its chunks, if it has any, are whole tiles. They are for few queries, of which one
    /// group of consumers has enough.
    fn is_whole(&self) -> bool {
        self.chunk == 0 || self.consumers == 1 && self.chunk.is_multiple_of(self.keys)
    }

    /// As eight numbers, for a tuning file.
    pub fn words(&self) -> StoredTiling {
        tune::store(STORED, &[self.keys, self.consumers, self.chunk])
    }

    /// The tiling that [`AttentionTiling::words`] gave, if it is one.
    pub fn of_words(words: &StoredTiling) -> Option<AttentionTiling> {
        AttentionTiling::named(&tune::stored(STORED, ATTENTION_TUNE, words)?)
    }
}

/// How an operand of the scores varies along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Along {
    /// It does not.
    Same,
    /// Neighbours are adjacent in memory.
    Dense,
    /// By a stride, which is an argument.
    Strided,
}

/// A function of each element of the result, and what it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// What the term's `In` leaves read, each `Splat` or `Strided`.
    pub inputs: Vec<Operand>,
    /// For each input, how it varies along the axes: those of the batch, queries, a value.
    pub along: Vec<[Along; BATCH + 2]>,
    /// What is stored, from the quotient of the sums; the second accumulator is the log-sum-exp of
    /// the query's scores.
    pub term: Term,
}

impl Finish {
    /// Whether the term reads the log-sum-exp.
    pub fn reads_lse(&self) -> bool {
        self.term.nodes.contains(&TermNode::Second)
    }
}

/// softmax(score(q k^T)) v for a batch of heads, or a function of its elements. Sums and scores are
/// f32.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionProblem {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of queries, keys, values and results: f16 or bf16.
    pub dtype: DType,
    /// Elements of a query and a key.
    pub head: usize,
    /// Elements of a value.
    pub value: usize,
    /// For keys and for values, whether they vary along each axis of the batch.
    pub varies: [[bool; BATCH]; 2],
    /// What the term's `In` leaves read, each `Splat` or `Strided`.
    pub inputs: Vec<Operand>,
    /// For each input, how it varies along the axes: those of the batch, queries, keys.
    pub along: Vec<[Along; BATCH + 2]>,
    /// The score of a query and a key, from the accumulator.
    pub term: Term,
    /// True if a row that the softmax makes NaN is 0.
    pub safe: bool,
    /// True if the weights are computed by the device's power of two, less precisely.
    pub short: bool,
    /// True if each row attends to the keys of an interval, which the kernel is given.
    pub intervals: bool,
    /// True if the log-sum-exp of each query's scores is a second result, f32; that of a row whose
    /// weights are all 0 is infinity.
    pub lse: bool,
    /// What is stored of each element, if it is not the element itself; there is no `lse` then.
    pub finish: Option<Finish>,
}

impl AttentionProblem {
    /// Why no tiling computes this attention, if none does.
    pub fn refusal(&self) -> Option<&'static str> {
        let half = |d: DType| matches!(d, DType::F16 | DType::BF16);
        match () {
            () if !half(self.dtype) => Some("its operands are not f16 or bf16"),
            () if self.head == 0 || self.value == 0 => Some("its heads are empty"),
            () if self.head > MAX_HEAD || self.value > MAX_HEAD => Some("its heads have more than 256 elements"),
            () if self.all_inputs().any(|o| half(o.dtype) && o.dtype != self.dtype) => {
                Some("its terms read both f16 and bf16")
            }
            () => None,
        }
    }

    /// What its terms read: the score's, then the result's.
    fn all_inputs(&self) -> impl Iterator<Item = &Operand> {
        self.inputs.iter().chain(self.finish.iter().flat_map(|f| &f.inputs))
    }

    /// Elements of a query as the matrix units take them.
    pub fn padded_head(&self) -> usize {
        self.head.next_multiple_of(16)
    }

    /// Elements of a value as the matrix units take them.
    pub fn padded_value(&self) -> usize {
        self.value.next_multiple_of(16)
    }
}

/// An attention in tiles of Hopper's template.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionKernel {
    /// What is computed.
    pub problem: AttentionProblem,
    /// The tiles.
    pub tiling: AttentionTiling,
}

impl AttentionKernel {
    /// Bytes of a tile of queries, of keys, of values and of results.
    fn tile_bytes(&self) -> [usize; 4] {
        let (head, value) = (self.problem.padded_head().div_ceil(CHUNK), self.problem.padded_value().div_ceil(CHUNK));
        let (rows, keys) = (self.tiling.rows() * ROW, self.tiling.keys * ROW);
        [head * rows, head * keys, value * keys, value * rows]
    }

    /// Slots for keys and values; `None` if not even two fit, or a thread has too few registers.
    pub fn stages(&self) -> Option<usize> {
        let [queries, keys, values, _] = self.tile_bytes();
        // A thread keeps the scores and the weights of a tile, and the sums, in registers.
        let registers = self.tiling.keys / 2 + self.tiling.keys / 4 + self.problem.padded_value() / 2;
        let most = if self.tiling.consumers == 3 { 136 } else { 208 };
        let fits = self.overhead() + queries + MAX_STAGES * (keys + values) <= SHARED;
        // Results take the place of queries if they have no memory of their own.
        let placed =
            self.has_staging() || self.tiling.chunk > 0 || self.problem.padded_value() <= self.problem.padded_head();
        (fits && registers <= most && placed && self.tiling.is_whole()).then_some(MAX_STAGES)
    }

    /// True if results are stored from memory of their own. Those of a chunk are stored from
    /// registers.
    pub fn has_staging(&self) -> bool {
        let [queries, keys, values, results] = self.tile_bytes();
        self.tiling.chunk == 0 && self.overhead() + queries + MAX_STAGES * (keys + values) + results <= SHARED
    }

    /// Bytes of barriers and alignment.
    fn overhead(&self) -> usize {
        ALIGNMENT + 8 * (2 + 4 * MAX_STAGES)
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared(&self) -> usize {
        let [queries, keys, values, results] = self.tile_bytes();
        let staging = if self.has_staging() { results } else { 0 };
        self.overhead() + queries + MAX_STAGES * (keys + values) + staging
    }
}

/// What a row-wise kernel takes the softmax of, and whether rows of NaN become 0; `None` if it
/// computes something else. The term reads the kernel's inputs.
pub fn softmax_of(program: &Program, kernel: &RowwiseKernel) -> Option<(Term, bool)> {
    let [(_, RowAccess::Full | RowAccess::Strided, out)] = kernel.outputs.as_slice() else { return None };
    let mut e = Exponentials::of(program, kernel)?;
    let quotient = e.terms.builtin(program, BuiltinScalar::Div, vec![e.exponential, e.sum])?;
    let safe = e.is_stored(program, out, quotient, 0.0)?;
    Some((prune(e.term), safe))
}

/// What a row-wise kernel takes the log-sum-exp of, and whether that of rows of NaN is infinity;
/// `None` if it computes something else. The term reads the kernel's inputs.
pub fn logsumexp_of(program: &Program, kernel: &RowwiseKernel) -> Option<(Term, bool)> {
    let [(DType::F32, RowAccess::PerRow, out)] = kernel.outputs.as_slice() else { return None };
    let mut e = Exponentials::of(program, kernel)?;
    let log = e.terms.builtin(program, BuiltinScalar::Log, vec![e.sum])?;
    let total = e.terms.builtin(program, BuiltinScalar::Add, vec![log, e.max])?;
    let safe = e.is_stored(program, out, total, f64::INFINITY)?;
    // Terms of kernels compute in f32.
    let mut term = e.term.clone();
    for at in 0..term.nodes.len() {
        if let TermNode::Cast { to: DType::F32, arg } = &term.nodes[at]
            && let TermNode::In { input, .. } = &term.nodes[arg.0 as usize]
            && kernel.inputs.get(*input as usize).is_some_and(|(d, _)| d.compute() == DType::F32)
        {
            term.nodes[at] = term.nodes[arg.0 as usize].clone();
        }
    }
    Some((prune(&term), safe))
}

/// The sum of the exponentials of a row, less its maximum: how a softmax and a log-sum-exp begin.
struct Exponentials<'k> {
    /// What the exponentials are of, and what the kernel sums.
    term: &'k Term,
    weight: &'k Term,
    terms: TermBuilder,
    exponential: TermId,
    max: TermId,
    sum: TermId,
}

impl<'k> Exponentials<'k> {
    fn of(program: &Program, kernel: &'k RowwiseKernel) -> Option<Exponentials<'k>> {
        let [(Reduction::Max, term), (Reduction::Sum, weight)] = kernel.steps.as_slice() else { return None };
        let step = |i: usize| TermNode::In { input: (kernel.inputs.len() + i) as u32, view: InView::Broadcast };
        let mut terms = TermBuilder::new();
        let score = copied(term, &mut terms);
        let (max, sum) = (terms.add(step(0)), terms.add(step(1)));
        let shifted = terms.builtin(program, BuiltinScalar::Sub, vec![score, max])?;
        let exponential = terms.builtin(program, BuiltinScalar::Exp, vec![shifted])?;
        Some(Exponentials { term, weight, terms, exponential, max, sum })
    }

    /// Whether the kernel sums the exponentials and stores `plain`: as it is if false, with
    /// `otherwise` in place of NaN if true; `None` if it does anything else.
    fn is_stored(&mut self, program: &Program, out: &Term, plain: TermId, otherwise: f64) -> Option<bool> {
        let terms = &mut self.terms;
        let is_nan = terms.builtin(program, BuiltinScalar::IsNan, vec![plain])?;
        let other = terms.lit(otherwise);
        let safe = terms.builtin(program, BuiltinScalar::Select, vec![is_nan, other, plain])?;
        let all = std::mem::take(terms).finish(vec![self.exponential, plain, safe]);
        let is = |term: &Term, root: TermId| same(term, term.root(), &all, root, &mut HashMap::new());
        match () {
            () if !is(self.weight, self.exponential) => None,
            () if is(out, plain) => Some(false),
            () if is(out, safe) => Some(true),
            () => None,
        }
    }
}

/// Copies a term's nodes; returns its root.
fn copied(term: &Term, terms: &mut TermBuilder) -> TermId {
    let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        map.push(terms.add(node.map_args(|a| map[a.0 as usize])));
    }
    map[term.root().0 as usize]
}

/// Whether two terms have the same structure. How an operand broadcasts does not matter: the rows
/// decide. `seen` holds pairs of nodes that were compared before.
fn same(a: &Term, at: TermId, b: &Term, bt: TermId, seen: &mut HashMap<(TermId, TermId), bool>) -> bool {
    if let Some(known) = seen.get(&(at, bt)) {
        return *known;
    }
    let equal = match (&a.nodes[at.0 as usize], &b.nodes[bt.0 as usize]) {
        (TermNode::In { input: x, .. }, TermNode::In { input: y, .. }) => x == y,
        (TermNode::Call { scalar: x, args: xs }, TermNode::Call { scalar: y, args: ys }) => {
            x == y && xs.len() == ys.len() && xs.iter().zip(ys.iter()).all(|(p, q)| same(a, *p, b, *q, seen))
        }
        (TermNode::Cast { to: x, arg: p }, TermNode::Cast { to: y, arg: q }) => x == y && same(a, *p, b, *q, seen),
        (x, y) => x == y,
    };
    seen.insert((at, bt), equal);
    equal
}
