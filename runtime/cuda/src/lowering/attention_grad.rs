//! Gradients of attention: what is read and written where, and the two kernels of a tiling.
//!
//! In: the gradients of an attention and the views of their operands. Out: for each tiling, the
//! kernel of queries and that of keys and values, and their [`Work`]. Invariant: no operand is
//! copied; rows may begin at any element, only the width of accesses depends on it. A constant mask
//! whose rows are intervals is no operand: tiles that it hides are skipped on both sides.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::{InView, Kernel, Program};
use hypatia_dsl::kernel::StoredTiling;
use hypatia_dsl::kernel::attention::BATCH;
use hypatia_dsl::kernel::attention_grad::{AttentionGradKernel, AttentionGradProblem, AttentionGradTiling, GradSide};
use hypatia_dsl::scalar::{Term, TermBuilder, TermNode, prune};
use hypatia_templates::cuda::{ArgRole, SizeName};
use hypatia_templates::instances::Body;

use super::attention::{Beside, Heads, Strides, ranges, shown};
use super::intervals::Interval;
use super::warp_tiled::unit;
use super::{Work, fastest_first};
use hypatia_plan::{AttentionGradStep, Plan, View};

/// Queries, keys, values and the gradient of the result.
const FACTORS: usize = 4;
/// Gradients of queries, keys and values.
const RESULTS: usize = 3;

/// The gradients of an attention, computed in place.
#[derive(Clone, Debug)]
pub struct GeneratedAttentionGrad {
    /// The batch, queries, keys.
    sizes: [usize; BATCH + 2],
    problem: AttentionGradProblem,
    /// The strides of the factors, and of the results.
    factors: [Strides; FACTORS],
    results: [Strides; RESULTS],
    /// The strides of what the terms read.
    strides: Vec<(ArgRole, Vec<i64>)>,
    /// What each input of the terms reads, by its place among the step's operands.
    reads: Vec<(ArgRole, View)>,
    /// The keys of each query, if a mask hides some.
    intervals: Option<Vec<Interval>>,
    units: [usize; FACTORS],
    stored: [usize; RESULTS],
}

impl GeneratedAttentionGrad {
    /// The gradients of a step; `None` if no template computes them in place.
    pub fn of(
        plan: &Plan,
        step: &AttentionGradStep,
        reads: &[View],
        writes: &[View],
    ) -> Option<GeneratedAttentionGrad> {
        let ([q, k, v, dy, beside @ ..], [_, _, _]) = (reads, writes) else { return None };
        let all: Vec<&View> = [q, k, v, dy].into_iter().chain(writes).chain(beside).collect();
        let Heads { sizes, strides } = Heads::of(&step.batch, [step.queries, step.keys], &all)?;
        let masks = &strides[FACTORS + RESULTS..];
        let score = exponent(&plan.program, &step.weight);
        let ([weight, slope], intervals, kept) = match &score {
            // The weight is 0 where the score is low.
            Some(score) => shown(plan, [score, &step.slope], (beside, masks), sizes),
            None => ([step.weight.clone(), step.slope.clone()], None, (0..beside.len()).collect()),
        };
        let exponential = score.is_some();
        let slope = with_weight(&plan.program, (&weight, exponential), &slope, kept.len() as u32)?;
        let read: Vec<usize> = kept.iter().map(|at| at + FACTORS + RESULTS).collect();
        let Beside { inputs, along, of_inputs, views } = Beside::of(&all, &strides, &read, (sizes, FACTORS));
        let problem = AttentionGradProblem {
            name: "tiled_attention_grad".into(),
            doc: String::new(),
            dtype: q.dtype,
            head: step.head,
            value: step.value,
            inputs,
            along,
            weight,
            exponential,
            short: step.short,
            slope,
            intervals: intervals.is_some(),
        };
        let widths = [step.head, step.head, step.value, step.value, step.head, step.head, step.value];
        if !fits((&all, &strides, widths), sizes) || problem.refusal().is_some() {
            return None;
        }
        let unit_of = |i: usize| unit_of(i, all[i], (&strides[i], widths[i]), sizes);
        Some(GeneratedAttentionGrad {
            sizes,
            problem,
            factors: std::array::from_fn(|i| strides[i]),
            results: std::array::from_fn(|i| strides[FACTORS + i]),
            strides: of_inputs,
            reads: views,
            intervals,
            units: std::array::from_fn(unit_of),
            stored: std::array::from_fn(|i| unit_of(FACTORS + i)),
        })
    }

    /// Queries and keys of each head, its elements, and the number of heads.
    pub fn sizes(&self) -> [usize; 4] {
        let [b0, b1, b2, queries, keys] = self.sizes;
        [b0 * b1 * b2, queries, keys, self.problem.head]
    }

    /// Whether tiles that a mask hides are skipped.
    pub fn skips(&self) -> bool {
        self.intervals.is_some()
    }

    fn kernel(&self, side: GradSide, tiling: AttentionGradTiling) -> AttentionGradKernel {
        let (problem, units, stored) = (self.problem.clone(), self.units, self.stored);
        AttentionGradKernel { problem, side, units, stored, tiling }
    }

    /// The kernels of a stored tiling in launch order, and their arguments; empty if it does not
    /// fit.
    pub fn launches(&self, words: &StoredTiling) -> Vec<(Body, Work)> {
        let Some(tiling) = AttentionGradTiling::of_words(words) else { return Vec::new() };
        let kernels = [GradSide::Queries, GradSide::Keys].map(|side| self.kernel(side, tiling));
        if kernels.iter().any(|k| !k.fits()) {
            return Vec::new();
        }
        kernels.map(|k| (Body::AttentionGrad(k.clone()), self.work(&k))).into()
    }

    fn work(&self, kernel: &AttentionGradKernel) -> Work {
        let [b0, b1, b2, queries, keys] = self.sizes;
        let AttentionGradTiling { rows, columns, .. } = kernel.tiling;
        let of_keys = kernel.side == GradSide::Keys;
        let own = if of_keys { keys } else { queries };
        // Each head begins a new tile.
        let mut work = Work::new(b0 * b1 * b2 * own.next_multiple_of(rows), 1).each_size([
            (SizeName::Queries, queries),
            (SizeName::Keys, keys),
            (SizeName::Batch0, b0),
            (SizeName::Batch1, b1),
            (SizeName::Batch2, b2),
        ]);
        for (i, s) in self.factors.iter().enumerate() {
            work = work.strides(ArgRole::Read(i), s);
        }
        for i in if of_keys { 1..RESULTS } else { 0..1 } {
            work = work.strides(ArgRole::Written(i), &self.results[i]);
        }
        work.strides.extend(self.strides.iter().cloned());
        work.views.extend(self.reads.iter().cloned());
        if let Some(intervals) = &self.intervals {
            let ranges = match kernel.side {
                GradSide::Queries => ranges(intervals, [rows, columns], keys),
                GradSide::Keys => met(intervals, [rows, columns], keys),
            };
            work.data.push((ArgRole::Ranges, ranges));
            work.data.push((ArgRole::Intervals, intervals.iter().flatten().copied().collect()));
        }
        work
    }

    /// The tilings that a kernel declares and that fit, the one with the best prediction first.
    pub fn plausible(&self, kernel: &Kernel, multiprocessors: usize) -> Vec<StoredTiling> {
        let all = AttentionGradTiling::all(&kernel.tune).into_iter();
        let fits = |t: &AttentionGradTiling| {
            [GradSide::Queries, GradSide::Keys].iter().all(|side| self.kernel(*side, *t).fits())
        };
        let found = fastest_first(all.filter(fits), |t| self.cycles(t, multiprocessors));
        found.iter().map(AttentionGradTiling::words).collect()
    }

    /// Predicted cycles of a multiprocessor for both kernels. Rough: it only ranks tilings.
    fn cycles(&self, t: &AttentionGradTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle, bytes per cycle from shared memory, cycles in which a
        /// tile's copies arrive if nothing else is on its way.
        const RATE: f64 = 1024.0;
        const SHARED: f64 = 128.0;
        const LATENCY: f64 = 800.0;
        /// Bytes of shared memory of a multiprocessor, for all blocks on it.
        const MEMORY: usize = 163_840;
        let [b0, b1, b2, queries, keys] = self.sizes;
        let heads = (b0 * b1 * b2) as f64;
        let [head, value] = self.problem.padded().map(|n| n as f64);
        let scores = (t.rows * t.columns) as f64;
        let of_side = |side: GradSide| {
            let kernel = self.kernel(side, *t);
            let (own, across) = if side == GradSide::Keys { (keys, queries) } else { (queries, keys) };
            let results = if side == GradSide::Keys { head + value } else { head };
            let product = scores * (head + value + results) / RATE;
            let calls = self.problem.weight.nodes.len() + self.problem.slope.nodes.len();
            let soft = scores * (8.0 + 2.0 * calls as f64) / 128.0;
            // Each warp reads all columns, and its own rows again for each tile.
            let read = (t.warps * t.columns) as f64 * (head + value + results) + t.rows as f64 * (head + value);
            let fragments = read * 2.0 / SHARED;
            let busy = product.max(soft).max(fragments);
            let alone = product + soft + fragments * 0.5 + LATENCY / t.stages as f64;
            let beside = kernel.blocks().min(MEMORY / (kernel.shared() + 1024)).max(1) as f64;
            let blocks = heads * own.div_ceil(t.rows) as f64;
            let visited = if self.intervals.is_some() { 0.55 } else { 1.0 };
            let tiles = blocks * across.div_ceil(t.columns) as f64 * visited;
            let share = (blocks / multiprocessors as f64).ceil();
            let of_tile = busy.max(alone / share.min(beside).max(1.0));
            1500.0 + share * 600.0 + tiles / multiprocessors as f64 * of_tile
        };
        of_side(GradSide::Queries) + of_side(GradSide::Keys)
    }
}

/// Whether a template can address the factors and the results, with rows of these widths: all have
/// one type and dense rows, and no two elements of a result are one.
fn fits((all, strides, widths): (&[&View], &[Strides], [usize; FACTORS + RESULTS]), sizes: [usize; BATCH + 2]) -> bool {
    let alike = |((view, s), width): ((&&View, &Strides), usize)| {
        view.dtype == all[0].dtype && (s[BATCH + 1] == 1 || width == 1)
    };
    let stored = |s: &Strides| [0, 1, 2].iter().all(|a| sizes[*a] == 1 || s[*a] != 0);
    let counted = sizes.iter().chain(&widths).all(|s| i32::try_from(*s).is_ok());
    let distinct = strides[FACTORS..][..RESULTS].iter().all(stored);
    let some = sizes[BATCH] > 0 && sizes[BATCH + 1] > 0;
    all.iter().zip(strides).zip(widths).all(alike) && counted && distinct && some
}

/// How many elements of a factor or of a result are accessed at once: `i` is its place among them.
fn unit_of(
    i: usize,
    view: &View,
    ([s0, s1, s2, row, _], width): (&Strides, usize),
    sizes: [usize; BATCH + 2],
) -> usize {
    let rows = if [0, 3, 4].contains(&i) { sizes[BATCH] } else { sizes[BATCH + 1] };
    let steps = [(*s0, sizes[0]), (*s1, sizes[1]), (*s2, sizes[2]), (*row, rows)];
    // Results are stored in whole units.
    let end = (i >= FACTORS).then_some((width as isize, 2));
    unit(view, &steps.into_iter().chain(end).collect::<Vec<_>>())
}

/// What a weight is the exponential of.
fn exponent(program: &Program, weight: &Term) -> Option<Term> {
    match weight.nodes.get(weight.root().0 as usize)? {
        TermNode::Call { scalar, args } if program.builtin_scalar(BuiltinScalar::Exp) == Some(*scalar) => {
            let roots = vec![*args.first()?];
            Some(prune(&Term { nodes: weight.nodes.clone(), roots }))
        }
        _ => None,
    }
}

/// A slope that reads the weight as this input instead of computing it.
fn with_weight(program: &Program, (weight, exponential): (&Term, bool), slope: &Term, input: u32) -> Option<Term> {
    let mut terms = TermBuilder::new();
    let mut own = *terms.append(weight, &[]).first()?;
    if exponential {
        own = terms.builtin(program, BuiltinScalar::Exp, vec![own])?;
    }
    let root = terms.append(slope, &[]);
    let mut both = terms.finish(root);
    if let Some(node) = both.nodes.get_mut(own.0 as usize) {
        *node = TermNode::In { input, view: InView::Broadcast };
    }
    Some(prune(&both))
}

/// For each block of this many keys the tiles of this many queries that attend to some of them, and
/// those of which each query attends to all: `[first, end, clear, clear_end]`.
fn met(queries: &[Interval], [of_block, of_tile]: [usize; 2], keys: usize) -> Vec<i32> {
    let tiles: Vec<&[Interval]> = queries.chunks(of_tile).collect();
    let mut out = Vec::with_capacity(keys.div_ceil(of_block) * 4);
    for from in (0..keys).step_by(of_block) {
        let (a, b) = (from as i32, (from + of_block).min(keys) as i32);
        let meets = |t: &&[Interval]| t.iter().any(|[first, end]| *first < b && a < *end);
        let clear = |t: &[Interval]| t.len() == of_tile && t.iter().all(|[first, end]| *first <= a && b <= *end);
        let first = tiles.iter().position(meets).unwrap_or(0);
        let end = tiles.iter().rposition(meets).map_or(first, |last| last + 1);
        let begin = (first..end).find(|t| clear(tiles[*t])).unwrap_or(first);
        let stop = (begin..end).find(|t| !clear(tiles[*t])).unwrap_or(end);
        out.extend([first, end, begin, stop].map(|n| n as i32));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_meet_the_queries_that_attend_to_them() {
        // Causal: query i attends to the keys 0..=i.
        let causal: Vec<Interval> = (0..10).map(|i| [0, i + 1]).collect();
        assert_eq!(met(&causal, [4, 4], 10), [0, 3, 1, 2, 1, 3, 1, 1, 2, 3, 2, 2]);
        // Nobody attends to the last keys, and one query to none.
        let some: Vec<Interval> = vec![[0, 4], [0, 0], [0, 4], [0, 4], [0, 4], [0, 4]];
        assert_eq!(met(&some, [4, 2], 8), [0, 3, 1, 3, 0, 0, 0, 0]);
    }
}
