//! Joins products with the pointwise work that computes their factors, and with the copies of
//! windows that are their factors.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which a product
//! and the steps whose results only it reads, as its factors, are one step with these steps as its
//! fallback. Invariant: a factor is rounded as it would be stored; nothing is joined whose result
//! is a result of the plan, or is read by another step.
//!
//! Weights of 8 bits or with scales, casts of weights, activations in front, convolutions: like
//! pointwise regions and chains, these are clustered after extraction, since rules would need one
//! for each term.

use std::collections::HashMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::KernelId;
use hypatia_dsl::kernel::MOST_ROWS;

use super::whole::{Whole, join, joined_name};
use super::{
    Action, BufferId, Called, FactorFrom, FactorTerm, FactorWindows, GemmStep, Plan, PointwiseStep, PrologueStep, Step,
    UnfoldStep, View,
};
use hypatia_target::device::HOPPER;

/// The most rows of a product whose right factor is computed where it is read: each tile of rows
/// computes it again. With more of them, a pass over the factor was as quick on an H200 or quicker
/// (docs/gpu-tests.md). Each tile of columns computes the left factor again, so it is computed only
/// for the rows that the template of few rows takes.
const MOST_RIGHT_ROWS: usize = 64;

/// Joins products of a plan with what computes their factors.
pub(super) fn cluster(plan: &mut Plan) {
    let makers = makers(plan);
    join(plan, |plan, kernel, at, _| joined(plan, &makers, kernel, at));
}

/// The places of the steps that read each buffer; behind the last step for an output.
pub(super) type Readers = HashMap<BufferId, Vec<usize>>;

/// What reads each buffer.
pub(super) fn readers(plan: &Plan) -> Readers {
    let mut readers = Readers::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let mut own: Vec<BufferId> = step.reads.iter().map(|v| v.buffer).collect();
        own.sort_unstable_by_key(|b| b.0);
        own.dedup();
        own.into_iter().for_each(|b| readers.entry(b).or_default().push(i));
    }
    plan.outputs.iter().for_each(|(_, v)| readers.entry(v.buffer).or_default().push(plan.steps.len()));
    readers
}

/// The step that makes each buffer which one step alone reads, if that is pointwise or copies
/// windows.
pub(super) fn makers(plan: &Plan) -> HashMap<BufferId, usize> {
    let readers = readers(plan);
    let made = plan.steps.iter().enumerate().filter_map(|(i, step)| match (&step.action, step.writes.as_slice()) {
        (Action::Pointwise(p), [out]) if p.kernel.acc.is_none() => Some((out.buffer, i)),
        (Action::Unfold(_), [out]) => Some((out.buffer, i)),
        _ => None,
    });
    made.filter(|(buffer, _)| readers.get(buffer).is_some_and(|r| r.len() == 1)).collect()
}

/// A factor that another step makes: that step's place, what is read instead, and the reads.
type Made = (usize, FactorFrom, Vec<View>);

/// The step at that place with the steps that compute its factors, and the places of these.
fn joined(plan: &Plan, makers: &HashMap<BufferId, usize>, tiles: KernelId, at: usize) -> Option<(Step, Vec<usize>)> {
    let step = &plan.steps[at];
    let Whole { product: g, factors, reads: own } = Whole::of(&plan.program, step)?;
    if g.batch.iter().product::<usize>() * g.m * g.k * g.n == 0 {
        return None;
    }
    let found = made(plan, makers, g, own, factors);
    let mut of_factors: Vec<usize> = found.iter().flatten().map(|(maker, ..)| *maker).collect();
    if of_factors.is_empty() {
        return None;
    }
    of_factors.sort_unstable();
    let (mut reads, mut terms) = (Vec::new(), Vec::new());
    for (view, found) in own.iter().zip(found) {
        let (from, own) = found.map_or((FactorFrom::Memory, vec![view.clone()]), |(_, from, own)| (from, own));
        reads.extend(own);
        terms.push(from);
    }
    reads.extend(own[factors..].iter().cloned());
    let parts: Vec<Step> = of_factors.iter().chain([&at]).map(|i| plan.steps[*i].clone()).collect();
    let name = joined_name(&parts);
    let called = Called::Prologue(PrologueStep { product: g.clone(), factors: terms });
    let writes = step.writes[..g.term.roots.len()].to_vec();
    let joined = Step::call(&name, called, reads, writes, parts);
    let kernel = if factors == 3 { step.kernel? } else { tiles };
    Some((Step { kernel: Some(kernel), ..joined }, of_factors))
}

/// What is read for each factor of a product that another step makes for it alone. `own` are the
/// operands of its launch, of which the first ones are the factors.
fn made(
    plan: &Plan,
    makers: &HashMap<BufferId, usize>,
    g: &GemmStep,
    own: &[View],
    factors: usize,
) -> Vec<Option<Made>> {
    let of_factor = |(i, view): (usize, &View)| {
        // What the epilogue or the other factor reads too is computed once, and stored.
        let alone = own.iter().filter(|v| v.buffer == view.buffer).count() == 1;
        let maker = *makers.get(&view.buffer).filter(|_| alone)?;
        let p = match &plan.steps[maker].action {
            Action::Pointwise(p) => p,
            Action::Unfold(u) if factors == 2 => {
                let (windows, image) = windows(plan, (u, i == 0), &plan.steps[maker], view, g)?;
                return Some((maker, FactorFrom::Windows(windows), vec![image]));
            }
            _ => return None,
        };
        // Only products of windows have several results, or factors of f32.
        if g.term.roots.len() > 1 || !matches!(view.dtype, DType::F16 | DType::BF16) {
            return None;
        }
        let side = if i == 0 { Side::Left } else { Side::Right };
        let most = if side == Side::Left { MOST_ROWS } else { MOST_RIGHT_ROWS };
        if g.batch.iter().product::<usize>() * g.m > most {
            return None;
        }
        let (term, reads) = factor(p, &plan.steps[maker], view, side, g)?;
        Some((maker, FactorFrom::Term(term), reads))
    };
    let mut found: Vec<Option<Made>> = own[..factors].iter().enumerate().map(of_factor).collect();
    // Both right factors are computed alike, or neither is.
    if let [_, b, c] = found.as_mut_slice()
        && !alike(b.as_ref(), c.as_ref())
    {
        (*b, *c) = (None, None);
    }
    // No template computes a factor beside windows.
    let of_windows = |f: &Option<Made>| matches!(f, Some((_, FactorFrom::Windows(_), _)));
    if found.iter().any(of_windows) {
        found.iter_mut().filter(|f| !of_windows(f)).for_each(|f| *f = None);
    }
    found
}

/// The windows that a step copies and a product reads as the rows of its left factor, or as the
/// columns of its right one, and their image; `None` if the product reads other rows or columns, or
/// no template such windows.
fn windows(
    plan: &Plan,
    (u, left): (&UnfoldStep, bool),
    maker: &Step,
    view: &View,
    g: &GemmStep,
) -> Option<(FactorWindows, View)> {
    let ([image], [out]) = (maker.reads.as_slice(), maker.writes.as_slice()) else { return None };
    let windows = FactorWindows { windows: u.clone(), counts: out.shape[u.axes()[2].clone()].to_vec() };
    let seen = windows.of_product(g, left, image)?;
    // With the channels last, k is the dense axis, else windows lie side by side.
    let rank = view.shape.len();
    let turned: Vec<usize> = (0..rank.checked_sub(2)?).chain([rank - 1, rank - 2]).collect();
    let lies = if left == u.channels_last { view.clone() } else { view.transposed(&turned) };
    let whole = lies.is_contiguous() && view.offset == 0 && view.len() == out.len() && view.dtype == out.dtype;
    let by_copies = plan.device.sm == HOPPER && left && u.channels_last && seen.fits(view.dtype);
    // Only the template that copies windows reduces anything beside a product.
    let by_threads = g.reduced.is_empty() && is_multiplied(view.dtype) && seen.fits_threads();
    (whole && (by_copies || by_threads)).then(|| (windows, image.clone()))
}

/// Whether threads copy factors of that type.
fn is_multiplied(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
}

/// Whether both right factors are computed by one term, from operands that lie alike.
fn alike(b: Option<&Made>, c: Option<&Made>) -> bool {
    let (Some((_, b, of_b)), Some((_, c, of_c))) = (b, c) else { return false };
    let same = |v: &View, w: &View| v.dtype == w.dtype && v.shape == w.shape && v.strides == w.strides;
    b == c && of_b.iter().zip(of_c).all(|(v, w)| same(v, w))
}

/// Which factor of a product.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

/// The term of a factor that a pointwise step computes, and what it reads: of the left one `[rows,
/// groups of k, elements of a group]`, of a right one `[groups of k, elements of a group,
/// columns]`. `None` if the product does not read the whole result, or the operands cannot be seen
/// so.
fn factor(p: &PointwiseStep, maker: &Step, view: &View, side: Side, g: &GemmStep) -> Option<(FactorTerm, Vec<View>)> {
    let [out] = maker.writes.as_slice() else { return None };
    let (lead, [of_rows, of_columns]) = view.strides.split_last_chunk::<2>()?;
    let rows = g.batch.iter().product::<usize>() * g.m;
    // How the result lies: the sizes of its axes, outermost first, and which one is k.
    let shared = lead.iter().zip(&g.batch).all(|(s, n)| *s == 0 || *n == 1);
    let (k, n) = (g.k as isize, g.n as isize);
    let dense = |stride: isize, size: usize| stride == 1 || size == 1;
    let (lines, k_is_inner) = match side {
        Side::Left if view.is_contiguous() => (rows, true),
        Side::Right if shared && dense(*of_columns, g.n) && (*of_rows == n || g.k == 1) => (g.n, false),
        Side::Right if shared && dense(*of_rows, g.k) && (*of_columns == k || g.n == 1) => (g.n, true),
        _ => return None,
    };
    if view.offset != 0 || out.len() != lines * g.k || view.dtype != out.dtype {
        return None;
    }
    let reads: Vec<View> = maker.reads.iter().zip(&p.strides).map(|(v, s)| seen(v, &p.shape, s)).collect();
    let groups = groups(&p.shape, g.k, if k_is_inner { 1 } else { lines });
    let (group, reads) = groups.into_iter().find_map(|group| {
        let of_k = [g.k / group, group];
        let shape = if k_is_inner { [&[lines], &of_k[..]].concat() } else { [&of_k[..], &[lines]].concat() };
        let reads: Option<Vec<View>> = reads.iter().map(|v| v.reshaped(&shape)).collect();
        Some((group, reads?))
    })?;
    let order: &[usize] = match (side, k_is_inner) {
        (Side::Right, true) => &[1, 2, 0],
        _ => &[0, 1, 2],
    };
    let reads: Vec<View> = reads.iter().map(|v| v.transposed(order)).collect();
    let term = FactorTerm { term: p.kernel.term.clone(), dtype: out.dtype, group, reads: reads.len() };
    Some((term, reads))
}

/// An operand of a pointwise step over its collapsed index space.
pub(super) fn seen(view: &View, shape: &[usize], strides: &[isize]) -> View {
    View { shape: shape.to_vec(), strides: strides.to_vec(), ..view.clone() }
}

/// The sizes that groups of k may have, if `inner` elements lie between neighbours along k: all of
/// k, or where an axis of the index space ends within it.
fn groups(shape: &[usize], k: usize, inner: usize) -> Vec<usize> {
    let mut out = vec![k];
    let mut size = 1;
    for axis in shape.iter().rev() {
        size *= axis;
        let group = size / inner.max(1);
        if size.is_multiple_of(inner.max(1)) && group > 1 && group < k && k.is_multiple_of(group) {
            out.push(group);
        }
    }
    out
}
