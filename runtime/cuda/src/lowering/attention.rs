//! Attention in tiles: the kernel of a step for a tiling, and its arguments.
//!
//! In: an attention and the views of its operands. Out: for each tiling, the kernels and their
//! [`Work`]; none if the copy engine cannot read or store the operands in place. Invariant: no
//! operand is copied. A constant mask whose rows are intervals is no operand: tiles of keys that it
//! hides are skipped. Queries of heads that share keys and values are rows of one tile. Where few
//! queries leave the device idle, chunks of keys are summed by blocks of their own, and a second
//! kernel joins them; the sums lie in the workspace in between.

use hypatia_dsl::kernel::attention::{Along, AttentionKernel, AttentionTiling, BATCH, QUERY_ROWS};
use hypatia_dsl::kernel::{Access, Operand};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_templates::instances::Body;

use super::intervals::{self, Interval, Mask};
use super::map_shape::MapShape;
use super::{Work, fastest_first};
use crate::address::WORKSPACE;
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
        let all: Vec<&View> = [q, k, v, out].into_iter().chain(beside).collect();
        let heads = Heads::of(step, &all)?;
        let (term, intervals, kept) = shown(plan, &step.term, (beside, &heads.strides[4..]), heads.sizes);
        let read: Vec<usize> = kept.iter().map(|at| at + 4).collect();
        let (Heads { sizes, strides }, each) = heads.packed(&read);
        let full = |s: &Strides| [0, 1, 2].iter().all(|a| sizes[*a] == 1 || s[*a] != 0);
        if !full(&strides[0]) || !full(&strides[3]) {
            return None;
        }
        let map = |i: usize, columns: usize| {
            let [s0, s1, s2, row, column] = strides[i];
            let size = |a: usize| if strides[i][a] == 0 { 1 } else { sizes[a] };
            let steps: Option<Vec<usize>> = [row, s2, s1, s0].iter().map(|s| usize::try_from(*s).ok()).collect();
            let dense = column == 1 || columns == 1;
            let rows = if [1, 2].contains(&i) { sizes[BATCH + 1] } else { sizes[BATCH] };
            let shape = [columns, rows, size(2), size(1), size(0)];
            dense.then(|| MapShape::of(all[i], &shape, &steps?)).flatten()
        };
        let maps = vec![
            ("q_map".to_string(), map(0, step.head)?),
            ("k_map".to_string(), map(1, step.head)?),
            ("v_map".to_string(), map(2, step.value)?),
            ("out_map".to_string(), map(3, step.value)?),
        ];
        let Beside { inputs, along, mut of_inputs, views } = Beside::of(&all, &strides, &read, sizes);
        of_inputs.push(("out0_strides".into(), strides[3].map(|s| s as i64).to_vec()));
        let varies = |s: &Strides| [0, 1, 2].map(|a| sizes[a] > 1 && s[a] != 0);
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
        let intervals = intervals.map(|rows| rows.repeat(each));
        let alike = all[..4].iter().all(|v| v.dtype == q.dtype);
        let possible = alike && step.keys > 0 && kernel.refusal().is_none();
        possible.then_some(TiledAttention { sizes, kernel, maps, strides: of_inputs, reads: views, intervals })
    }

    /// The kernels with that tiling in launch order, and their arguments; empty if it does not fit.
    pub fn tiled(&self, tiling: AttentionTiling) -> Vec<(Body, Work)> {
        let kernel = AttentionKernel { tiling, ..self.kernel.clone() };
        let [b0, b1, b2, queries, keys] = self.sizes;
        let rows = b0 * b1 * b2 * queries;
        let chunks = tiling.chunks(keys);
        // The sums of the chunks, and behind them the largest scores and the sums of weights.
        let tops = rows * chunks.unwrap_or(0) * kernel.padded_value() * size_of::<f32>();
        let room = tops + rows * chunks.unwrap_or(0) * 2 * size_of::<f32>();
        if kernel.stages().is_none() || room > WORKSPACE {
            return Vec::new();
        }
        let work = self.work(&kernel, chunks);
        let Some(chunks) = chunks else { return vec![(Body::Attention(kernel), work)] };
        let rooms = vec![("sums".to_string(), 0), ("tops".to_string(), tops)];
        let mut join = Work::new(rows, 1).sizes("queries", &[queries]).sizes("chunks", &[chunks]);
        join = join.sizes("batch1", &[b1]).sizes("batch2", &[b2]);
        join.strides.extend(self.strides.iter().cloned());
        join.rooms.clone_from(&rooms);
        vec![(Body::Attention(kernel.clone()), Work { rooms, ..work }), (Body::AttentionJoin(kernel), join)]
    }

    /// The arguments of the kernel that walks over keys.
    fn work(&self, kernel: &AttentionKernel, chunks: Option<usize>) -> Work {
        let [b0, b1, b2, queries, keys] = self.sizes;
        let batches = b0 * b1 * b2;
        // Each head begins a new tile.
        let rows = batches * queries.next_multiple_of(kernel.tiling.rows());
        let mut work = Work::new(rows * chunks.unwrap_or(1), 1);
        let cached = CACHED / (keys * (kernel.head + kernel.value) * kernel.dtype.size()).max(1);
        let section = cached.clamp(1, batches.max(1));
        let sizes = [("queries", queries), ("keys", keys), ("batch0", b0), ("batch1", b1), ("batch2", b2)];
        let more = [Some(("section", section)), chunks.map(|n| ("chunks", n))];
        for (name, size) in sizes.into_iter().chain(more.into_iter().flatten()) {
            work = work.sizes(name, &[size]);
        }
        work.maps.clone_from(&self.maps);
        work.strides.extend(self.strides.iter().cloned());
        work.views.extend(self.reads.iter().cloned());
        if let Some(rows) = &self.intervals {
            work.data.push(("ranges".into(), ranges(rows, kernel.tiling, keys)));
            work.data.push(("intervals".into(), rows.iter().flatten().copied().collect()));
        }
        work
    }

    /// The tilings among these that fit, the one with the shortest predicted time first, for a
    /// device with that many multiprocessors. Where queries leave some of these idle, the keys may
    /// be split, and the best tiling that does the other thing comes second, so that both are
    /// timed.
    pub fn plausible(&self, tilings: &[AttentionTiling], multiprocessors: usize) -> Vec<AttentionTiling> {
        let [b0, b1, b2, queries, _] = self.sizes;
        let idle = b0 * b1 * b2 * queries.div_ceil(QUERY_ROWS) < multiprocessors;
        let fits = |t: &&AttentionTiling| (t.chunk == 0 || idle) && !self.tiled(**t).is_empty();
        let mut out = fastest_first(tilings.iter().filter(fits).copied(), |t| self.cycles(t, multiprocessors));
        if let Some(first) = out.first().copied()
            && let Some(at) = out.iter().position(|t| (t.chunk > 0) != (first.chunk > 0))
        {
            out[1..=at].rotate_right(1);
        }
        out
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, t: &AttentionTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle.
        const RATE: f64 = 2048.0 * 0.8;
        /// Bytes of keys and values per cycle, if all multiprocessors read.
        const BYTES: f64 = 20.0;
        /// Cycles of a launch that joins chunks, and for each chunk.
        const JOIN: [f64; 2] = [3000.0, 20.0];
        let [b0, b1, b2, queries, keys] = self.sizes;
        let (chunks, heads) = (t.chunks(keys), (b0 * b1 * b2) as f64);
        let blocks = queries.div_ceil(t.rows()) * chunks.unwrap_or(1);
        let tiles: f64 = match &self.intervals {
            Some(rows) => ranges(rows, *t, keys).chunks(4).map(|r| f64::from(r[1] - r[0])).sum(),
            None => (queries.div_ceil(t.rows()) * keys.div_ceil(t.keys)) as f64,
        };
        let scores = (t.rows() * t.keys) as f64;
        let widths = (self.kernel.padded_head() + self.kernel.padded_value()) as f64;
        // The exponential, the maximum, the sum and the score, 128 lanes at half of the slots.
        let soft = scores * (6.0 + 3.0 * self.kernel.term.nodes.len() as f64) / 128.0 * 2.0 / t.consumers as f64;
        let product = scores * widths / RATE;
        // With one group, nothing overlaps.
        let of_tile = if t.consumers == 1 { soft + product } else { product.max(soft * 0.9) + 0.3 * soft.min(product) };
        let read = t.keys as f64 * widths * self.kernel.dtype.size() as f64 / BYTES;
        let of_tile = if queries < QUERY_ROWS { of_tile.max(read) } else { of_tile };
        let waves = (heads * blocks as f64 / multiprocessors as f64).ceil();
        let even = heads * tiles / multiprocessors as f64;
        let longest = tiles / blocks as f64 * waves;
        let joined = chunks.map_or(0.0, |n| JOIN[0] + JOIN[1] * n as f64);
        1500.0 + joined + waves * 1200.0 + even.max(longest * 0.8) * (of_tile + 200.0)
    }

    /// Queries and keys of each head, its elements, and the number of heads.
    pub fn sizes(&self) -> [usize; 4] {
        let [b0, b1, b2, queries, keys] = self.sizes;
        [b0 * b1 * b2, queries, keys, self.kernel.head]
    }
}

/// The axes of an attention, and what is read and written along them.
struct Heads {
    /// The batch, queries, keys.
    sizes: [usize; BATCH + 2],
    /// Strides of queries, keys, values, results, and what the scores read.
    strides: Vec<Strides>,
}

impl Heads {
    /// Those of a step; `None` if its batch has too many axes.
    fn of(step: &AttentionStep, all: &[&View]) -> Option<Heads> {
        let lead = step.batch.len();
        let sides: Vec<Vec<isize>> = all.iter().map(|v| v.strides[..lead].to_vec()).collect();
        let (axes, collapsed) = collapse(&step.batch, &sides);
        let before = BATCH.checked_sub(axes.len())?;
        let mut sizes = [1, 1, 1, step.queries, step.keys];
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
struct Beside {
    inputs: Vec<Operand>,
    along: Vec<[Along; BATCH + 2]>,
    of_inputs: Vec<(String, Vec<i64>)>,
    views: Vec<(String, View)>,
}

impl Beside {
    /// The views at these places, along axes of these sizes.
    fn of(all: &[&View], strides: &[Strides], places: &[usize], sizes: [usize; BATCH + 2]) -> Beside {
        let mut out = Beside::default();
        for (i, at) in places.iter().enumerate() {
            let (view, own) = (all[*at], strides[*at]);
            let axes = std::array::from_fn(|axis| match own[axis] {
                _ if sizes[axis] == 1 => Along::Same,
                0 => Along::Same,
                1 if axis == BATCH + 1 => Along::Dense,
                _ => Along::Strided,
            });
            let splat = axes.iter().all(|a| *a == Along::Same);
            let access = if splat { Access::Splat } else { Access::Strided };
            out.inputs.push(Operand { dtype: view.dtype, access });
            out.along.push(axes);
            out.of_inputs.push((format!("in{}_strides", i + 3), own.map(|s| s as i64).to_vec()));
            out.views.push((format!("in{}", i + 3), view.clone()));
        }
        out
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
