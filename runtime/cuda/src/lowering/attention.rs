//! Generated attention: what is read and written where, and which template computes it.
//!
//! In: an attention and the views of its operands, the device. Out: the tilings of a template that
//! can compute it in place, the one with the shortest predicted time first; for each, the kernels
//! and their [`Work`]. Invariant: no operand is copied. This is the one place that chooses among
//! templates: Hopper's (wgmma, the copy engine) where it can move the operands, that of warps
//! (mma.sync) elsewhere, for rows that begin anywhere. A constant mask whose rows are intervals is
//! no operand: tiles of keys that it hides are skipped. Queries of heads that share keys and values
//! are rows of one tile.

use hypatia_dsl::ir::Kernel;
use hypatia_dsl::kernel::attention::{Along, AttentionProblem, AttentionTiling, BATCH, Finish, QUERY_ROWS};
use hypatia_dsl::kernel::attention_sm80::WarpAttentionTiling;
use hypatia_dsl::kernel::{Access, Operand, StoredTiling};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_templates::cuda::{ArgRole, SizeName};
use hypatia_templates::instances::Body;

use super::Work;
use super::intervals::{self, Interval, Mask};
use super::tiled_attention::TiledAttention;
use super::warp_attention::WarpedAttention;
use hypatia_plan::{AttentionStep, Plan, Storage, View, collapse};
use hypatia_target::device::HOPPER;

/// Bytes of keys and values that stay in the L2 cache, beside what else is in it.
const CACHED: usize = 24 << 20;

/// Strides along the batch, the rows and the columns.
pub(super) type Strides = [isize; BATCH + 2];

/// An attention that some template computes in place.
#[derive(Clone, Debug)]
pub enum GeneratedAttention {
    /// Hopper's.
    Hopper(TiledAttention),
    /// That of warps.
    Warps(WarpedAttention),
}

impl GeneratedAttention {
    /// The attention of a step; `None` if an operand would have to be copied.
    pub fn of(plan: &Plan, step: &AttentionStep, reads: &[View], writes: &[View]) -> Option<GeneratedAttention> {
        let attended = Attended::of(plan, step, reads, writes)?;
        let hopper = if plan.device.sm == HOPPER { TiledAttention::of(attended.clone()) } else { None };
        let warps = || WarpedAttention::of(attended).map(GeneratedAttention::Warps);
        hopper.map(GeneratedAttention::Hopper).or_else(warps)
    }

    /// The tilings that a kernel declares and that fit, the one with the best prediction first.
    pub fn plausible(&self, kernel: &Kernel, multiprocessors: usize) -> Vec<StoredTiling> {
        match self {
            GeneratedAttention::Hopper(a) => {
                let all = a.plausible(&AttentionTiling::all(&kernel.tune), multiprocessors);
                all.iter().map(AttentionTiling::words).collect()
            }
            GeneratedAttention::Warps(a) => {
                let all = a.plausible(&WarpAttentionTiling::all(&kernel.tune), multiprocessors);
                all.iter().map(WarpAttentionTiling::words).collect()
            }
        }
    }

    /// The kernels of a stored tiling in launch order, and their arguments; empty if it does not
    /// fit.
    pub fn launches(&self, words: &StoredTiling) -> Vec<(Body, Work)> {
        match self {
            GeneratedAttention::Hopper(a) => {
                AttentionTiling::of_words(words).map_or_else(Vec::new, |tiling| a.tiled(tiling))
            }
            GeneratedAttention::Warps(a) => {
                WarpAttentionTiling::of_words(words).and_then(|tiling| a.tiled(tiling)).into_iter().collect()
            }
        }
    }

    /// Queries and keys of each head, its elements, and the number of heads.
    pub fn sizes(&self) -> [usize; 4] {
        match self {
            GeneratedAttention::Hopper(a) => a.attended.heads(),
            GeneratedAttention::Warps(a) => a.attended.heads(),
        }
    }
}

/// What an attention reads and writes, and where.
#[derive(Clone, Debug)]
pub(super) struct Attended {
    /// The batch, queries, keys.
    pub sizes: [usize; BATCH + 2],
    pub problem: AttentionProblem,
    /// Queries, keys, values, results.
    pub factors: [(View, Strides); 4],
    /// The strides of what the terms read.
    strides: Vec<(ArgRole, Vec<i64>)>,
    /// What each input of the term reads, by its place among the step's operands.
    reads: Vec<(ArgRole, View)>,
    /// The keys of each query, if a mask hides some.
    intervals: Option<Vec<Interval>>,
    /// The strides of the log-sum-exp, if it is a result.
    lse: Option<Strides>,
    /// Whether each sum is added up in one order, however many queries and heads there are.
    pub in_order: bool,
}

impl Attended {
    /// Of a step; `None` if no template computes it.
    fn of(plan: &Plan, step: &AttentionStep, reads: &[View], writes: &[View]) -> Option<Attended> {
        let ([q, k, v, beside @ ..], [out, lse @ ..]) = (reads, writes) else { return None };
        let all: Vec<&View> = [q, k, v, out].into_iter().chain(beside).chain(lse).collect();
        let heads = Heads::of(&step.batch, [step.queries, step.keys], &all)?;
        let (masked, finished) = beside.split_at_checked(beside.len().checked_sub(step.beside)?)?;
        let masks = &heads.strides[4..][..masked.len()];
        let (terms, intervals, kept) = shown(plan, [&step.term, &step.term], (masked, masks), heads.sizes);
        let [term, _] = terms;
        let read: Vec<usize> = kept.iter().map(|at| at + 4).collect();
        let after: Vec<usize> = (0..finished.len()).map(|i| 4 + masked.len() + i).collect();
        let placed: Vec<usize> = (0..lse.len()).map(|i| 4 + beside.len() + i).collect();
        let (Heads { sizes, strides }, each) = heads.packed(&[read.as_slice(), &after, &placed].concat());
        let Beside { inputs, along, mut of_inputs, mut views } = Beside::of(&all, &strides, &read, (sizes, 3));
        let [b0, b1, b2, queries, _] = sizes;
        let of_results = [b0, b1, b2, queries, step.value];
        let after = Beside::of(&all, &strides, &after, (of_results, 3 + read.len()));
        of_inputs.extend(after.of_inputs);
        views.extend(after.views);
        let finish =
            (!step.is_plain()).then(|| Finish { inputs: after.inputs, along: after.along, term: step.finish.clone() });
        let varies = |s: &Strides| [0, 1, 2].map(|a| sizes[a] > 1 && s[a] != 0);
        let problem = AttentionProblem {
            name: "tiled_attention".into(),
            doc: String::new(),
            dtype: q.dtype,
            head: step.head,
            value: step.value,
            varies: [varies(&strides[1]), varies(&strides[2])],
            inputs,
            along,
            term,
            safe: step.safe,
            short: step.short,
            intervals: intervals.is_some(),
            lse: step.lse,
            finish,
        };
        let alike = all[..4].iter().all(|v| v.dtype == q.dtype);
        let stored = [0, 1, 2].iter().all(|a| sizes[*a] == 1 || strides[3][*a] != 0);
        if !alike || !stored || step.keys == 0 || problem.refusal().is_some() {
            return None;
        }
        let factors = std::array::from_fn(|i| (all[i].clone(), strides[i]));
        let intervals = intervals.map(|rows| rows.repeat(each));
        let lse = placed.first().map(|at| strides[*at]);
        let in_order = plan.allowed.batch_invariant;
        Some(Attended { sizes, problem, factors, strides: of_inputs, reads: views, intervals, lse, in_order })
    }

    /// The arguments that all templates have, for blocks of this many queries and tiles of this
    /// many keys; and the rows of all blocks.
    pub fn work(&self, [rows, of_tile]: [usize; 2]) -> Work {
        let [b0, b1, b2, queries, keys] = self.sizes;
        let (batches, problem) = (b0 * b1 * b2, &self.problem);
        // Each head begins a new tile.
        let mut work = Work::new(batches * queries.next_multiple_of(rows), 1);
        let cached = CACHED / (keys * (problem.head + problem.value) * problem.dtype.size()).max(1);
        let section = cached.clamp(1, batches.max(1));
        work = work.size(SizeName::Queries, queries).size(SizeName::Keys, keys).size(SizeName::Section, section);
        work = work.size(SizeName::Batch0, b0).size(SizeName::Batch1, b1).size(SizeName::Batch2, b2);
        self.read_by(&mut work);
        work.strides.extend(self.results());
        if let Some(intervals) = &self.intervals {
            work.data.push((ArgRole::Ranges, ranges(intervals, [rows, of_tile], keys)));
            work.data.push((ArgRole::Intervals, intervals.iter().flatten().copied().collect()));
        }
        work
    }

    /// Says where what the terms read lies.
    pub fn read_by(&self, work: &mut Work) {
        work.strides.extend(self.strides.iter().cloned());
        work.views.extend(self.reads.iter().cloned());
    }

    /// The strides of the results.
    pub fn results(&self) -> Vec<(ArgRole, Vec<i64>)> {
        let all = [Some(self.factors[3].1), self.lse];
        let result = |(i, s): (usize, Strides)| (ArgRole::Written(i), s.map(|s| s as i64).to_vec());
        all.into_iter().flatten().enumerate().map(result).collect()
    }

    /// Tiles of keys that the blocks of a head visit.
    pub fn tiles(&self, [rows, of_tile]: [usize; 2]) -> f64 {
        let [_, _, _, queries, keys] = self.sizes;
        match &self.intervals {
            Some(all) => ranges(all, [rows, of_tile], keys).chunks(4).map(|r| f64::from(r[1] - r[0])).sum(),
            None => (queries.div_ceil(rows) * keys.div_ceil(of_tile)) as f64,
        }
    }

    /// Queries and keys of each head, its elements, and the number of heads.
    fn heads(&self) -> [usize; 4] {
        let [b0, b1, b2, queries, keys] = self.sizes;
        [b0 * b1 * b2, queries, keys, self.problem.head]
    }
}

/// The axes of an attention, and what is read and written along them.
pub(super) struct Heads {
    /// The batch, queries, keys.
    pub sizes: [usize; BATCH + 2],
    /// Strides of queries, keys, values, results, and what the scores read.
    pub strides: Vec<Strides>,
}

impl Heads {
    /// Those of a step; `None` if its batch has too many axes.
    pub fn of(batch: &[usize], [queries, keys]: [usize; 2], all: &[&View]) -> Option<Heads> {
        let lead = batch.len();
        let sides: Vec<Vec<isize>> = all.iter().map(|v| v.strides[..lead].to_vec()).collect();
        let (axes, collapsed) = collapse(batch, &sides);
        let before = BATCH.checked_sub(axes.len())?;
        let mut sizes = [1, 1, 1, queries, keys];
        sizes[before..BATCH].copy_from_slice(&axes);
        let strides = all.iter().zip(collapsed).map(|(view, own)| {
            let mut s = [0; BATCH + 2];
            s[before..BATCH].copy_from_slice(&own);
            s[BATCH..].copy_from_slice(&view.strides[lead..]);
            s
        });
        Some(Heads { sizes, strides: strides.collect() })
    }

    /// Few queries of heads that share keys and values, as those of one head, which reads these
    /// once; and how many heads became one. `read` are the places of what the scores still read.
    fn packed(self, read: &[usize]) -> (Heads, usize) {
        let [b0, b1, each, queries, keys] = self.sizes;
        let shared = each > 1 && queries < QUERY_ROWS && [1, 2].iter().all(|i| self.strides[*i][2] == 0);
        let in_line = |i: &usize| queries == 1 || self.strides[*i][2] == self.strides[*i][3] * queries as isize;
        if !shared || ![0, 3].iter().chain(read).all(in_line) {
            return (self, 1);
        }
        let strides = self.strides.iter().enumerate().map(|(i, [s0, s1, s2, row, column])| {
            let row = if queries == 1 && ![1, 2].contains(&i) { s2 } else { row };
            [0, *s0, *s1, *row, *column]
        });
        (Heads { sizes: [1, b0, b1, each * queries, keys], strides: strides.collect() }, each)
    }
}

/// What the scores read.
#[derive(Default)]
pub(super) struct Beside {
    pub inputs: Vec<Operand>,
    pub along: Vec<[Along; BATCH + 2]>,
    /// The strides of each.
    pub of_inputs: Vec<(ArgRole, Vec<i64>)>,
    pub views: Vec<(ArgRole, View)>,
}

impl Beside {
    /// The views at these places, along axes of these sizes. They come after the factors.
    pub fn of(
        all: &[&View],
        strides: &[Strides],
        places: &[usize],
        (sizes, factors): ([usize; BATCH + 2], usize),
    ) -> Beside {
        let mut out = Beside::default();
        for (i, at) in places.iter().enumerate() {
            let (view, own) = (all[*at], strides[*at]);
            let axes = std::array::from_fn(|axis| match own[axis] {
                _ if sizes[axis] == 1 => Along::Same,
                0 => Along::Same,
                1 if axis >= BATCH => Along::Dense,
                _ => Along::Strided,
            });
            let splat = axes.iter().all(|a| *a == Along::Same);
            let access = if splat { Access::Splat } else { Access::Strided };
            out.inputs.push(Operand { dtype: view.dtype, access });
            out.along.push(axes);
            let place = i + factors;
            out.of_inputs.push((ArgRole::Read(place), own.map(|s| s as i64).to_vec()));
            out.views.push((ArgRole::Read(place), view.clone()));
        }
        out
    }
}

/// A score, and a term that is 0 wherever the score's weight is, without constant masks whose rows
/// are intervals; these intervals, and the operands that are left.
pub(super) fn shown(
    plan: &Plan,
    [score, term]: [&Term; 2],
    (beside, strides): (&[View], &[Strides]),
    sizes: [usize; BATCH + 2],
) -> ([Term; 2], Option<Vec<Interval>>, Vec<usize>) {
    let program = &plan.program;
    let mut terms = [score.clone(), term.clone()];
    let mut all: Option<Vec<Interval>> = None;
    let mut kept = Vec::new();
    for (at, (view, own)) in beside.iter().zip(strides).enumerate() {
        let constant = match plan.buffers[view.buffer.index()].storage {
            Storage::Constant(i) => plan.constants.get(i),
            _ => None,
        };
        let mask = constant.filter(|_| view.len() > 1).map(|tensor| Mask {
            tensor,
            offset: view.offset,
            strides: std::array::from_fn(|axis| if sizes[axis] == 1 { 0 } else { own[axis] }),
            sizes,
        });
        let input = at as u32;
        let found = mask.and_then(|mask| {
            let hidden = intervals::of(program, &terms[0], input, &mask)?;
            let zero = |n: &f64| intervals::is_zero(program, &terms[1], input, *n);
            (score == term || hidden.hidden.iter().all(zero)).then_some(())?;
            let rest = |term| intervals::without(program, term, input, hidden.shown);
            Some((hidden.rows, [rest(&terms[0])?, rest(&terms[1])?]))
        });
        match found {
            Some((rows, rest)) => {
                terms = rest;
                all = Some(match all {
                    Some(others) => others.iter().zip(&rows).map(|(a, b)| common(*a, *b)).collect(),
                    None => rows,
                });
            }
            None => kept.push(at),
        }
    }
    // The inputs that are left, in order.
    for node in terms.iter_mut().flat_map(|t| &mut t.nodes) {
        if let TermNode::In { input, .. } = node {
            *input = kept.iter().position(|at| *at as u32 == *input).unwrap_or_default() as u32;
        }
    }
    (terms, all, kept)
}

/// What two intervals have in common.
fn common([a, b]: Interval, [c, d]: Interval) -> Interval {
    let (first, end) = (a.max(c), b.min(d));
    if first < end { [first, end] } else { [0, 0] }
}

/// For each block of this many queries the tiles of this many keys that some of them attend to, and
/// those that hide none.
pub(super) fn ranges(rows: &[Interval], [of_block, of_tile]: [usize; 2], keys: usize) -> Vec<i32> {
    let (tile, last) = (of_tile as i32, keys as i32);
    let block = |rows: &[Interval]| {
        let used = || rows.iter().filter(|[first, end]| first < end);
        let first = used().map(|r| r[0] / tile).min().unwrap_or(0);
        let end = used().map(|r| (r[1] + tile - 1) / tile).max().unwrap_or(0);
        let clear = rows.iter().map(|r| (r[0] + tile - 1) / tile).max().unwrap_or(0).max(first);
        let clear_end = match rows.iter().all(|[first, end]| first < end) {
            true => rows.iter().map(|r| r[1].min(last) / tile).min().unwrap_or(0).min(end),
            false => clear,
        };
        [first, end, clear, clear_end.max(clear)]
    };
    rows.chunks(of_block).flat_map(block).collect()
}
