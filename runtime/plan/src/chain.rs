//! Joins products in turn into one launch, in which intermediates are never stored.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which products
//! whose result only the next product reads, as its left operand, are one step with these products
//! as its fallback. Invariant: every epilogue reads rows and single numbers, and each intermediate
//! has the type of the factors, to which both ways round it.
//!
//! Chains are clustered after extraction, as pointwise regions are: rules for pairs of products
//! would need one for each pair of epilogues.

use std::collections::HashMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{KernelId, Program};
use hypatia_dsl::kernel::chain::{MAX_LAYERS, MAX_WIDTH};

use super::view::{collapse, matrix_layout};
use super::whole::{Whole, joined_name, tiles};
use super::{Action, BufferId, Called, ChainLayer, GemmStep, Plan, Step, View};

/// Joins products of a plan.
pub(super) fn cluster(plan: &mut Plan) {
    let Some(kernel) =
        tiles(&plan.program, &plan.device).filter(|_| !plan.allowed.is_exact() && !plan.allowed.batch_invariant)
    else {
        return;
    };
    let mut chains = chains(plan);
    // From the last one on, so that the places of the others stay.
    chains.sort_unstable_by_key(|chain| std::cmp::Reverse(chain.last().copied()));
    let mut gone = vec![false; plan.steps.len()];
    for chain in chains {
        let [.., last] = chain.as_slice() else { continue };
        let steps: Vec<Step> = chain.iter().map(|i| plan.steps[*i].clone()).collect();
        if let Some(step) = joined(&plan.program, steps, kernel) {
            chain.iter().filter(|i| *i != last).for_each(|i| gone[*i] = true);
            plan.steps[*last] = step;
        }
    }
    let mut gone = gone.into_iter();
    plan.steps.retain(|_| gone.next() != Some(true));
}

/// The steps of each chain, in order.
fn chains(plan: &Plan) -> Vec<Vec<usize>> {
    // How often each buffer is read, outputs included, and the step that stores it.
    let mut readers: HashMap<BufferId, usize> = HashMap::new();
    let mut makers: HashMap<BufferId, usize> = HashMap::new();
    for (i, step) in plan.steps.iter().enumerate() {
        step.reads.iter().for_each(|v| *readers.entry(v.buffer).or_default() += 1);
        step.writes.iter().for_each(|v| _ = makers.insert(v.buffer, i));
    }
    plan.outputs.iter().for_each(|(_, v)| *readers.entry(v.buffer).or_default() += 1);
    let mut out: Vec<Vec<usize>> = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let Some(g) = link(&plan.program, step) else { continue };
        let left = &step.reads[0];
        let before = makers.get(&left.buffer).copied().filter(|j| {
            let maker = &plan.steps[*j];
            let whole = left.is_contiguous() && left.offset == 0 && left.len() == maker.writes[0].len();
            let next = link(&plan.program, maker).is_some_and(|h| h.n == g.k) && maker.writes[0].buffer == left.buffer;
            whole && next && left.dtype == maker.reads[0].dtype && readers.get(&left.buffer) == Some(&1)
        });
        match before.and_then(|j| out.iter_mut().find(|c| c.last() == Some(&j) && c.len() < MAX_LAYERS)) {
            Some(chain) => chain.push(i),
            None => out.push(vec![i]),
        }
    }
    out.retain(|chain| chain.len() > 1);
    out
}

/// The product of a step that can be part of a chain.
fn link<'s>(program: &Program, step: &'s Step) -> Option<&'s GemmStep> {
    let Whole { product: g, factors: 2, reads } = Whole::of(program, step)? else { return None };
    let ([x, weight, beside @ ..], [out, ..]) = (reads, step.writes.as_slice()) else { return None };
    let half = |d: DType| matches!(d, DType::F16 | DType::BF16);
    let types = half(x.dtype) && weight.dtype == x.dtype && out.dtype == x.dtype;
    let sizes = [g.k, g.n].iter().all(|s| (1..=MAX_WIDTH).contains(s)) && g.m * g.batch.iter().product::<usize>() > 0;
    let lead = g.batch.len();
    let shared = weight.strides[..lead].iter().zip(&g.batch).all(|(s, n)| *s == 0 || *n == 1);
    let [.., k, n] = weight.strides.as_slice() else { return None };
    let right = matrix_layout(g.k, g.n, *k, *n).is_some();
    let reads = |v: &View| (v.dtype == x.dtype || v.dtype == DType::F32) && (is_row(v) || is_number(v));
    (types && sizes && shared && right && rows(x).is_some() && beside.iter().all(reads)).then_some(g)
}

/// The number of rows of a matrix with leading axes, and the elements between them; `None` if the
/// rows do not lie at equal distances or their elements not side by side.
pub fn rows(view: &View) -> Option<(usize, usize)> {
    let (width, lead) = view.shape.split_last()?;
    let (row, strides) = view.strides.split_last()?;
    let (sizes, steps) = collapse(lead, &[strides.to_vec()]);
    let ([count], [step]) = (sizes.as_slice(), steps[0].as_slice()) else { return None };
    let step = if *count == 1 { *width } else { usize::try_from(*step).ok()? };
    ((*row == 1 || *width == 1) && step >= *width).then_some((*count, step))
}

fn leading_zero(view: &View) -> bool {
    let lead = view.shape.len().saturating_sub(1);
    view.strides[..lead].iter().zip(&view.shape).all(|(s, n)| *s == 0 || *n == 1)
}

/// True for one element a column.
pub fn is_row(view: &View) -> bool {
    leading_zero(view) && view.strides.last() == Some(&1)
}

/// True for one element.
pub fn is_number(view: &View) -> bool {
    leading_zero(view) && (view.strides.last() == Some(&0) || view.shape.last() == Some(&1))
}

/// The step of a chain; its parts are its fallback.
fn joined(program: &Program, steps: Vec<Step>, kernel: KernelId) -> Option<Step> {
    let mut reads = vec![steps.first()?.reads[0].clone()];
    let mut layers = Vec::with_capacity(steps.len());
    for step in &steps {
        let count = match &step.action {
            Action::Call(call) => call.reads,
            _ => step.reads.len(),
        };
        reads.extend(step.reads[1..count].iter().cloned());
        layers.push(ChainLayer { product: link(program, step)?.clone(), reads: count - 1 });
    }
    let name = joined_name(&steps);
    let out = steps.last()?.writes[0].clone();
    let step = Step::call(&name, Called::Chain(layers), reads, vec![out], steps);
    Some(Step { kernel: Some(kernel), ..step })
}
