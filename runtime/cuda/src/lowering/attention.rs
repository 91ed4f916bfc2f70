//! Attention in tiles: the kernel of a step for a tiling, and its arguments.
//!
//! In: an attention and the views of its operands. Out: for each tiling, the kernel and its
//! [`Work`]; none if the copy engine cannot read or store the operands in place. Invariant: no
//! operand is copied. A constant mask whose rows are intervals is no operand: tiles of keys that it
//! hides are skipped.

use hypatia_dsl::kernel::attention::{Along, AttentionKernel, AttentionTiling, BATCH};
use hypatia_dsl::kernel::{Access, Operand};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_templates::instances::Body;

use super::intervals::{self, Interval, Mask};
use super::map_shape::MapShape;
use super::{Work, fastest_first};
use hypatia_plan::{AttentionStep, Plan, Storage, View, collapse};

/// Bytes of keys and values that stay in the L2 cache, beside what else is in it.
const CACHED: usize = 24 << 20;

/// Strides along the batch, the rows and the columns.
type Strides = [isize; BATCH + 2];

/// An attention that tiles can compute in place.
#[derive(Clone, Debug)]
pub struct TiledAttention {
    /// The batch, queries, keys.
    sizes: [usize; BATCH + 2],
    kernel: AttentionKernel,
    maps: Vec<(String, MapShape)>,
    strides: Vec<(String, Vec<i64>)>,
    /// What each input of the term reads, by its place among the step's operands.
    reads: Vec<(String, View)>,
    /// The keys of each query, if a mask hides some.
    intervals: Option<Vec<Interval>>,
}

impl TiledAttention {
    /// The attention of a step; `None` if an operand would have to be copied.
    pub fn of(plan: &Plan, step: &AttentionStep, reads: &[View], out: &View) -> Option<TiledAttention> {
        let [q, k, v, beside @ ..] = reads else { return None };
        let lead = step.batch.len();
        let all: Vec<&View> = [q, k, v, out].into_iter().chain(beside).collect();
        let sides: Vec<Vec<isize>> = all.iter().map(|v| v.strides[..lead].to_vec()).collect();
        let (axes, collapsed) = collapse(&step.batch, &sides);
        let before = BATCH.checked_sub(axes.len())?;
        let mut batch = [1; BATCH];
        batch[before..].copy_from_slice(&axes);
        let strides: Vec<Strides> = all
            .iter()
            .zip(collapsed)
            .map(|(view, own)| {
                let mut s = [0; BATCH + 2];
                s[before..BATCH].copy_from_slice(&own);
                s[BATCH..].copy_from_slice(&view.strides[lead..]);
                s
            })
            .collect();
        let [b0, b1, b2] = batch;
        let sizes = [b0, b1, b2, step.queries, step.keys];
        let varies = |s: &Strides| [0, 1, 2].map(|a| batch[a] > 1 && s[a] != 0);
        let full = |s: &Strides| [0, 1, 2].iter().all(|a| batch[*a] == 1 || s[*a] != 0);
        if !full(&strides[0]) || !full(&strides[3]) {
            return None;
        }
        let map = |i: usize, rows: usize, columns: usize| {
            let [s0, s1, s2, row, column] = strides[i];
            let size = |a: usize| if strides[i][a] == 0 { 1 } else { batch[a] };
            let steps: Option<Vec<usize>> = [row, s2, s1, s0].iter().map(|s| usize::try_from(*s).ok()).collect();
            let dense = column == 1 || columns == 1;
            let shape = [columns, rows, size(2), size(1), size(0)];
            dense.then(|| MapShape::of(all[i], &shape, &steps?)).flatten()
        };
        let maps = vec![
            ("q_map".to_string(), map(0, step.queries, step.head)?),
            ("k_map".to_string(), map(1, step.keys, step.head)?),
            ("v_map".to_string(), map(2, step.keys, step.value)?),
            ("out_map".to_string(), map(3, step.queries, step.value)?),
        ];
        let (term, intervals, kept) = shown(plan, &step.term, (beside, &strides[4..]), sizes);
        let mut inputs = Vec::new();
        let mut along = Vec::new();
        let mut of_inputs = Vec::new();
        let mut views = Vec::new();
        for (i, at) in kept.iter().enumerate() {
            let (view, own) = (&beside[*at], strides[at + 4]);
            let axes = std::array::from_fn(|axis| match own[axis] {
                _ if sizes[axis] == 1 => Along::Same,
                0 => Along::Same,
                1 if axis == BATCH + 1 => Along::Dense,
                _ => Along::Strided,
            });
            let splat = axes.iter().all(|a| *a == Along::Same);
            let access = if splat { Access::Splat } else { Access::Strided };
            inputs.push(Operand { dtype: view.dtype, access });
            along.push(axes);
            of_inputs.push((format!("in{}_strides", i + 3), own.map(|s| s as i64).to_vec()));
            views.push((format!("in{}", i + 3), view.clone()));
        }
        let kernel = AttentionKernel {
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
            intervals: intervals.is_some(),
            tiling: AttentionTiling::named(&[])?,
        };
        let alike = all[..4].iter().all(|v| v.dtype == q.dtype);
        let possible = alike && step.keys > 0 && kernel.refusal().is_none();
        possible.then_some(TiledAttention { sizes, kernel, maps, strides: of_inputs, reads: views, intervals })
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, tiling: AttentionTiling) -> Option<(Body, Work)> {
        let kernel = AttentionKernel { tiling, ..self.kernel.clone() };
        kernel.stages()?;
        let [b0, b1, b2, queries, keys] = self.sizes;
        let batches = b0 * b1 * b2;
        // Each head begins a new tile.
        let mut work = Work::new(batches * queries.next_multiple_of(tiling.rows()), 1);
        let cached = CACHED / (keys * (kernel.head + kernel.value) * kernel.dtype.size()).max(1);
        let section = cached.clamp(1, batches.max(1));
        let sizes = [("queries", queries), ("keys", keys), ("batch0", b0), ("batch1", b1), ("batch2", b2)];
        for (name, size) in sizes.into_iter().chain([("section", section)]) {
            work = work.sizes(name, &[size]);
        }
        work.maps.clone_from(&self.maps);
        work.strides.extend(self.strides.iter().cloned());
        work.views.extend(self.reads.iter().cloned());
        if let Some(rows) = &self.intervals {
            work.data.push(("ranges".into(), ranges(rows, tiling, keys)));
            work.data.push(("intervals".into(), rows.iter().flatten().copied().collect()));
        }
        Some((Body::Attention(kernel), work))
    }

    /// The tilings among these that fit, the one with the shortest predicted time first, for a
    /// device with that many multiprocessors.
    pub fn plausible(&self, tilings: &[AttentionTiling], multiprocessors: usize) -> Vec<AttentionTiling> {
        let fits = |t: &&AttentionTiling| AttentionKernel { tiling: **t, ..self.kernel.clone() }.stages().is_some();
        fastest_first(tilings.iter().filter(fits).copied(), |t| self.cycles(t, multiprocessors))
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, t: &AttentionTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle.
        const RATE: f64 = 2048.0 * 0.8;
        let [b0, b1, b2, queries, keys] = self.sizes;
        let blocks = queries.div_ceil(t.rows());
        let tiles: f64 = match &self.intervals {
            Some(rows) => ranges(rows, *t, keys).chunks(4).map(|r| f64::from(r[1] - r[0])).sum(),
            None => (blocks * keys.div_ceil(t.keys)) as f64,
        };
        let heads = (b0 * b1 * b2) as f64;
        let scores = (t.rows() * t.keys) as f64;
        let widths = (self.kernel.padded_head() + self.kernel.padded_value()) as f64;
        // The exponential, the maximum, the sum and the score, 128 lanes at half of the slots.
        let soft = scores * (6.0 + 3.0 * self.kernel.term.nodes.len() as f64) / 128.0 * 2.0 / t.consumers as f64;
        let product = scores * widths / RATE;
        // With one group, nothing overlaps.
        let of_tile = if t.consumers == 1 { soft + product } else { product.max(soft * 0.9) + 0.3 * soft.min(product) };
        let waves = (heads * blocks as f64 / multiprocessors as f64).ceil();
        let even = heads * tiles / multiprocessors as f64;
        let longest = tiles / blocks as f64 * waves;
        1500.0 + waves * 1200.0 + even.max(longest * 0.8) * (of_tile + 200.0)
    }

    /// Queries and keys of each head, its elements, and the number of heads.
    pub fn sizes(&self) -> [usize; 4] {
        let [b0, b1, b2, queries, keys] = self.sizes;
        [b0 * b1 * b2, queries, keys, self.kernel.head]
    }
}

/// The term without constant masks whose rows are intervals, these intervals, and the operands that
/// are left.
fn shown(
    plan: &Plan,
    term: &Term,
    (beside, strides): (&[View], &[Strides]),
    sizes: [usize; BATCH + 2],
) -> (Term, Option<Vec<Interval>>, Vec<usize>) {
    let mut term = term.clone();
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
        match mask.and_then(|mask| intervals::of(&plan.program, &term, at as u32, &mask)) {
            Some((rows, rest)) => {
                term = rest;
                all = Some(match all {
                    Some(others) => others.iter().zip(&rows).map(|(a, b)| common(*a, *b)).collect(),
                    None => rows,
                });
            }
            None => kept.push(at),
        }
    }
    // The inputs that are left, in order.
    for node in &mut term.nodes {
        if let TermNode::In { input, .. } = node {
            *input = kept.iter().position(|at| *at as u32 == *input).unwrap_or_default() as u32;
        }
    }
    (term, all, kept)
}

/// What two intervals have in common.
fn common([a, b]: Interval, [c, d]: Interval) -> Interval {
    let (first, end) = (a.max(c), b.min(d));
    if first < end { [first, end] } else { [0, 0] }
}

/// For each block of queries the tiles of keys that some of them attend to, and those that hide
/// none.
fn ranges(rows: &[Interval], tiling: AttentionTiling, keys: usize) -> Vec<i32> {
    let (tile, last) = (tiling.keys as i32, keys as i32);
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
    rows.chunks(tiling.rows()).flat_map(block).collect()
}
