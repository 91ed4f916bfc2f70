//! Joins generated products with copies that only put axes in another order.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which a product
//! reads its left factor, or stores its result, where such a copy would have read or stored it,
//! with the copies as part of its fallback: heads that are cut out of rows or put into them, a
//! transposed result. Invariant: a result is stored elsewhere only if nothing but the copy reads
//! it; the other way round for the left factor.
//!
//! Only Hopper's template reads and stores such tensors ([`Divided`]).

use std::collections::HashMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Backend;
use hypatia_target::device::HOPPER;

use super::divided::{Divided, Parts};
use super::prologue::{Readers, readers};
use super::whole::joined_name;
use super::{Action, BufferId, CallStep, Called, Checks, GemmStep, Plan, Step, View};

/// Bytes that the copy engine moves at least, and of a slice of k.
const LEAST: usize = 32;
const SLICE: usize = 128;
/// Rows of products that have a template of their own, at most.
const FEW: usize = 32;
/// What the copy engine moves lies at multiples of so many bytes.
const UNIT: isize = 16;

/// Joins each such product with the copies around it.
pub(super) fn cluster(plan: &mut Plan) {
    // Which steps are joined depends on their sizes; a transposed product may be cut otherwise.
    let free = !plan.allowed.is_exact() && !plan.allowed.batch_invariant;
    if plan.device.sm != HOPPER || plan.checks != Checks::Off || !free {
        return;
    }
    let readers = readers(plan);
    let copies = |s: &Step| matches!(s.action, Action::Copy) && s.kernel.is_none();
    let makers: HashMap<BufferId, usize> =
        plan.steps.iter().enumerate().filter(|(_, s)| copies(s)).map(|(i, s)| (s.writes[0].buffer, i)).collect();
    let mut gone = vec![false; plan.steps.len()];
    for at in 0..plan.steps.len() {
        if let Some((step, with)) = stored(plan, &readers, at) {
            plan.steps[at] = step;
            gone[with] = true;
        }
        if let Some((step, with)) = read(plan, (&readers, &makers), at).filter(|(_, with)| !gone[*with]) {
            plan.steps[at] = step;
            gone[with] = true;
        }
    }
    let mut gone = gone.into_iter();
    plan.steps.retain(|_| gone.next() != Some(true));
}

/// The product of a generated kernel with one result.
fn product<'p>(plan: &Plan, step: &'p Step) -> Option<(&'p GemmStep, &'p CallStep)> {
    let Action::Call(call @ CallStep { called: Called::Product(g), .. }) = &step.action else { return None };
    let tiled = matches!(plan.program.kernels[step.kernel?.index()].backend, Backend::Tiled);
    let generated = tiled && plan.device.has_wgmma_of(step.reads.first()?.dtype);
    (generated && call.writes == 1 && g.reduced.is_empty()).then_some((g, call))
}

/// The product at that place that stores its result where a copy would, and the copy's place.
fn stored(plan: &Plan, readers: &Readers, at: usize) -> Option<(Step, usize)> {
    let step = &plan.steps[at];
    let (g, call) = product(plan, step)?;
    let out = &step.writes[0];
    let [reader] = readers.get(&out.buffer)?.as_slice() else { return None };
    let copy = plan.steps.get(*reader)?;
    let there = moved(copy, out)?;
    let fallback = [&call.fallback[..], std::slice::from_ref(copy)].concat();
    let parts = [step.clone(), copy.clone()];
    let own = step.reads[..call.reads].to_vec();
    joined(g, step, &joined_name(&parts), own, there, fallback).map(|step| (step, *reader))
}

/// The product at that place that reads its left factor where a copy would, and the copy's place.
fn read(plan: &Plan, (readers, makers): (&Readers, &HashMap<BufferId, usize>), at: usize) -> Option<(Step, usize)> {
    let step = &plan.steps[at];
    let (g, call) = product(plan, step)?;
    let own = &step.reads[..call.reads];
    let left = own.first()?;
    let place = *makers.get(&left.buffer)?;
    let copy = plan.steps.get(place)?;
    let whole = left.is_contiguous() && left.offset == 0 && left.len() == copy.writes[0].len();
    let alone = readers.get(&left.buffer)?.as_slice() == [at] && own[1..].iter().all(|v| v.buffer != left.buffer);
    let from = copy.reads.first()?;
    let kept = || plan.steps[place + 1..at].iter().flat_map(|s| &s.writes).all(|w| w.buffer != from.buffer);
    if !whole || !alone || place >= at || !kept() {
        return None;
    }
    let reads: Vec<View> = std::iter::once(from.clone()).chain(own[1..].iter().cloned()).collect();
    let fallback = [std::slice::from_ref(copy), &call.fallback[..]].concat();
    let parts = [copy.clone(), step.clone()];
    joined(g, step, &joined_name(&parts), reads, step.writes[0].clone(), fallback).map(|step| (step, place))
}

/// The product with these operands, if Hopper's template reads and stores them.
fn joined(g: &GemmStep, step: &Step, name: &str, reads: Vec<View>, out: View, fallback: Vec<Step>) -> Option<Step> {
    let [a, b, beside @ ..] = &reads[..] else { return None };
    let all: Vec<&View> = [a, b, &out].into_iter().chain(beside).collect();
    let divided = Divided::of(g, &all)?;
    let whole = |parts: Option<Parts>, bytes: usize, v: &View| {
        parts.is_none_or(|p| (p.size * v.dtype.size()).is_multiple_of(bytes))
    };
    let dense = divided.strides[0][2] == 1;
    // The right factor's rows become those of a transposed product.
    let turned = divided.strides[2][1] == 1 && divided.depth.is_none() && divided.columns.is_none();
    let fits = whole(divided.depth, SLICE, a) && whole(divided.columns, LEAST, &out);
    let stored = turned || divided.strides[2][2] == 1;
    let lies = |i: usize, v: &View, parts: Option<Parts>| {
        let far = parts.map(|p| p.stride as isize);
        let strides = divided.strides[i].into_iter().chain(far).filter(|s| *s != 1);
        strides.chain([v.offset as isize]).all(|s| (s * v.dtype.size() as isize) % UNIT == 0)
    };
    let lie = lies(0, a, divided.depth) && lies(1, b, None) && lies(2, &out, divided.columns);
    // In TF32, and of bytes, the matrix units take factors whose dense axis is k.
    let [by_k, by_n] = [divided.strides[1][1] == 1, divided.strides[1][2] == 1];
    let multiplied = by_k || by_n && matches!(a.dtype, DType::F16 | DType::BF16);
    // Few rows have a template of their own.
    let [batches, m, ..] = divided.sizes;
    if !dense || !stored || !fits || !lie || !multiplied || batches * m <= FEW {
        return None;
    }
    let called = Called::Product(g.clone());
    Some(Step { kernel: step.kernel, ..Step::call(name, called, reads, vec![out], fallback) })
}

/// The elements of a whole buffer in their order, where a copy that only permutes axes puts them.
fn moved(copy: &Step, out: &View) -> Option<View> {
    let (Action::Copy, [from], [to]) = (&copy.action, copy.reads.as_slice(), copy.writes.as_slice()) else {
        return None;
    };
    let alike = from.offset == 0 && from.len() == out.len() && out.is_contiguous() && out.offset == 0;
    if !alike || from.is_empty() || !to.is_contiguous() || to.shape != from.shape {
        return None;
    }
    let axes = from.shape.iter().zip(&from.strides).zip(&to.strides).filter(|((size, _), _)| **size > 1);
    let mut axes: Vec<(usize, isize, isize)> = axes.map(|((size, from), to)| (*size, *from, *to)).collect();
    axes.sort_by_key(|(_, from, _)| std::cmp::Reverse(*from));
    let permuted =
        View { shape: axes.iter().map(|a| a.0).collect(), strides: axes.iter().map(|a| a.1).collect(), ..from.clone() };
    permuted.is_contiguous().then(|| View {
        strides: axes.iter().map(|a| a.2).collect(),
        shape: permuted.shape,
        ..to.clone()
    })
}
