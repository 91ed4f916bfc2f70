//! Removes copies, and merges copies of parts of one tensor into one launch.
//!
//! In: a plan whose buffers are not placed yet. Out: the same plan with fewer steps. A product
//! stores its result where a copy would move it, if that is measured to be faster; one copy
//! transposes the queries, keys and values of one product into heads. Invariant: a result is stored
//! elsewhere only if nothing but the copy reads it. (`concat` does so for concatenations.) Parts
//! are merged if they are at equal distances and have one shape and strides. Each part is aligned
//! in the merged copy as in a buffer of its own. Outputs of the plan keep their buffers.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::view::{is_within, matrix_layout};
use super::{ALIGNMENT, Action, Buffer, BufferId, Called, Plan, Step, Storage, View};

/// Fewer queries may be computed together with those of other heads.
const FEW: usize = 64;

/// Merges each product with the copy of its whole result into one step that can omit the copy.
pub(super) fn remove(plan: &mut Plan) {
    let mut readers: HashMap<BufferId, usize> = HashMap::new();
    let mut makers: HashMap<BufferId, (usize, usize)> = HashMap::new();
    for (i, step) in plan.steps.iter().enumerate() {
        step.reads.iter().for_each(|v| *readers.entry(v.buffer).or_insert(0) += 1);
        let stored = match &step.action {
            Action::Call(e) => e.writes,
            _ => 1,
        };
        makers.extend(step.writes.iter().take(stored).enumerate().map(|(at, v)| (v.buffer, (i, at))));
    }
    plan.outputs.iter().for_each(|(_, v)| *readers.entry(v.buffer).or_insert(0) += 1);
    let mut gone: HashSet<usize> = HashSet::new();
    for at in 0..plan.steps.len() {
        let ([from], [to], Action::Copy) =
            (plan.steps[at].reads.as_slice(), plan.steps[at].writes.as_slice(), &plan.steps[at].action)
        else {
            continue;
        };
        let of = makers.get(&from.buffer).copied().filter(|_| readers.get(&from.buffer) == Some(&1));
        let Some((maker, result)) = of else { continue };
        if let Some(step) = stored_there(plan, (&plan.steps[maker], result), &plan.steps[at], to) {
            plan.steps[maker] = step;
            gone.insert(at);
        }
    }
    let mut at = 0..;
    plan.steps.retain(|_| at.next().is_none_or(|i| !gone.contains(&i)));
}

/// A product and the copy of one of its results as one step; `None` if the library cannot store the
/// result there.
fn stored_there(plan: &Plan, (maker, result): (&Step, usize), copy: &Step, to: &View) -> Option<Step> {
    let (called, reads, stored, fallback): (Called, usize, usize, Vec<Step>) = match &maker.action {
        Action::Gemm(g) => (Called::Product(g.clone()), 2, 1, vec![maker.clone()]),
        Action::Call(e) => (e.called.clone(), e.reads, e.writes, e.fallback.clone()),
        _ => return None,
    };
    let out = maker.writes.get(result)?;
    if to.is_empty() || out.len() != to.len() {
        return None;
    }
    let there = placed(out, &copy.reads[0], to)?;
    let (_, [row, column]) = there.strides.split_last_chunk::<2>()?;
    match &called {
        Called::Product(g) => {
            let plain = g.scale(&plan.program).filter(|_| g.acc.is_float() && g.k > 0);
            plain.filter(|_| {
                reads == 2 && stored == 1 && (matches!(maker.action, Action::Gemm(_)) || maker.kernel.is_none())
            })?;
            matrix_layout(g.m, g.n, *row, *column).filter(|(transposed, _)| !transposed)?;
        }
        // The kernel stores whole rows of values.
        Called::Attention(_) | Called::AttentionGrad(_) if *column != 1 => return None,
        // Few queries of heads that share keys are rows of one tile, which are stored side by side.
        Called::Attention(a) if a.queries < FEW && axes(out).len() != axes(&copy.reads[0]).len() => return None,
        // The kernel stores one number a row.
        Called::Attention(_) if result > 0 => return None,
        // The kernel's results are row-major.
        Called::Template(_) | Called::Sum(_) | Called::Pair(_) | Called::Chain(_) | Called::Prologue(_) => return None,
        Called::Rows(_) => return None,
        Called::Attention(_) | Called::AttentionGrad(_) => {}
    }
    let kernel = maker.kernel.filter(|_| matches!(called, Called::Attention(_) | Called::AttentionGrad(_)));
    let fallback = [fallback, vec![copy.clone()]].concat();
    let mut writes = maker.writes[..stored].to_vec();
    writes[result] = there;
    let step = Step::call(&maker.name, called, maker.reads[..reads].to_vec(), writes, fallback);
    Some(Step { kernel, ..step })
}

/// The elements of `out`, a whole buffer, in the layout that copying its view `from` into the whole
/// buffer `to` gives. `None` if the copy does more than permute axes; those of `out` may be parts
/// of the view's.
fn placed(out: &View, from: &View, to: &View) -> Option<View> {
    let (seen, stored) = (axes(from), axes(to));
    if from.offset != 0 || seen.len() != stored.len() {
        return None;
    }
    let place = |(size, stride): (&usize, &isize)| match size {
        1 => Some(0),
        _ => {
            let axis = seen.iter().position(|(n, s)| is_within((*size, *stride), (*n, *s)))?;
            Some(stored[axis].1 * (stride / seen[axis].1))
        }
    };
    let strides: Option<Vec<isize>> = out.shape.iter().zip(&out.strides).map(place).collect();
    Some(View { strides: strides?, shape: out.shape.clone(), ..to.clone() })
}

/// Sizes and strides of the axes of more than one element.
fn axes(v: &View) -> Vec<(usize, isize)> {
    v.shape.iter().copied().zip(v.strides.iter().copied()).filter(|(size, _)| *size > 1).collect()
}

/// What mergeable copies have in common: buffer, shape and strides.
type Key = (BufferId, Vec<usize>, Vec<isize>);

/// Merges copies of parts of one buffer.
pub(super) fn join(plan: &mut Plan) {
    let kept: HashSet<BufferId> = plan.outputs.iter().map(|(_, v)| v.buffer).collect();
    let mut alike: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut first: HashMap<Key, usize> = HashMap::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let ([from], [to], Action::Copy) = (step.reads.as_slice(), step.writes.as_slice(), &step.action) else {
            continue;
        };
        if kept.contains(&to.buffer) || !(to.len() * to.dtype.size()).is_multiple_of(ALIGNMENT) || to.is_empty() {
            continue;
        }
        let key = (from.buffer, from.shape.clone(), from.strides.clone());
        alike.entry(*first.entry(key).or_insert(i)).or_default().push(i);
    }
    let mut moved: HashMap<BufferId, (BufferId, usize)> = HashMap::new();
    let mut gone: HashSet<usize> = HashSet::new();
    for steps in alike.into_values() {
        joined(plan, &steps, &mut moved, &mut gone);
    }
    if moved.is_empty() {
        return;
    }
    let mut at = 0..;
    plan.steps.retain(|_| at.next().is_none_or(|i| !gone.contains(&i)));
    plan.steps.iter_mut().for_each(|s| rename(s, &moved));
}

/// Turns the first of these steps into the copy of all parts, if they are at equal distances.
fn joined(
    plan: &mut Plan,
    steps: &[usize],
    moved: &mut HashMap<BufferId, (BufferId, usize)>,
    gone: &mut HashSet<usize>,
) {
    let mut parts: Vec<usize> = steps.to_vec();
    let offset = |i: &usize| plan.steps[*i].reads[0].offset;
    parts.sort_by_key(offset);
    let [one, two, ..] = parts.as_slice() else { return };
    let distance = offset(two) - offset(one);
    if distance == 0 || parts.windows(2).any(|w| offset(&w[1]) - offset(&w[0]) != distance) {
        return;
    }
    let from = &plan.steps[*one].reads[0];
    let shape = [&[parts.len()], from.shape.as_slice()].concat();
    let Ok(distance) = isize::try_from(distance) else { return };
    let read = View { shape: shape.clone(), strides: [&[distance], from.strides.as_slice()].concat(), ..from.clone() };
    let (dtype, len) = (from.dtype, from.len());
    let names: Vec<&str> = steps.iter().map(|i| plan.steps[*i].name.as_str()).collect();
    let name = names.join(", ");
    let buffer = BufferId(plan.buffers.len() as u32);
    plan.buffers.push(Buffer { dtype, len: len * parts.len(), storage: Storage::Arena(0) });
    for (place, step) in parts.iter().enumerate() {
        moved.insert(plan.steps[*step].writes[0].buffer, (buffer, place * len));
    }
    let step = &mut plan.steps[steps[0]];
    (step.name, step.reads, step.writes) = (name, vec![read], vec![View::whole(buffer, dtype, &shape)]);
    gone.extend(&steps[1..]);
}

/// Redirects reads of separate copies to the merged ones.
fn rename(step: &mut Step, moved: &HashMap<BufferId, (BufferId, usize)>) {
    for view in &mut step.reads {
        if let Some((buffer, offset)) = moved.get(&view.buffer) {
            view.buffer = *buffer;
            view.offset += offset;
        }
    }
    if let Action::Call(call) = &mut step.action {
        call.fallback.iter_mut().for_each(|s| rename(s, moved));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use hypatia_dsl::builtin::BuiltinOp;
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::Options;
    use crate::testing::planned;
    use hypatia_graph::{Graph, Value};
    use hypatia_target::device::Device;
    use hypatia_testing::{int, list, ty};

    /// Parts of one input, each transposed and flattened, which takes a copy.
    fn plan(parts: &[(i64, i64)], device: &str) -> Plan {
        let mut g = Graph::new(Arc::clone(&hypatia_testing::program()));
        let x = g.input("x", ty(DType::F32, &[4, 96]));
        for (k, (start, stop)) in parts.iter().enumerate() {
            let cut = g.builtin(BuiltinOp::Slice, &[x], vec![int(1), int(*start), int(*stop), int(1)]).unwrap()[0];
            let turned = g.builtin(BuiltinOp::Transpose, &[cut], vec![list(&[1, 0])]).unwrap()[0];
            let flat = g.builtin(BuiltinOp::Reshape, &[turned], vec![list(&[(stop - start) as usize * 4])]).unwrap()[0];
            let y = g.call("exp", &[flat], &[]).unwrap()[0];
            g.output(format!("y{k}"), y);
        }
        // Nothing is joined with the copies.
        planned(&g, &Options { cluster: false, ..Options::new(Device::named(device).unwrap()) }).unwrap()
    }

    /// Products of queries, keys and values that are adjacent, as one product leaves them.
    fn attention(g: &mut Graph) -> Vec<Value> {
        let all = g.input("qkv", ty(DType::BF16, &[8, 128, 3 * 768]));
        let mut heads = |k: i64| {
            let attrs = vec![int(2), int(768 * k), int(768 * (k + 1)), int(1)];
            let cut = g.builtin(BuiltinOp::Slice, &[all], attrs).unwrap()[0];
            let apart = g.builtin(BuiltinOp::Reshape, &[cut], vec![list(&[8, 128, 12, 64])]).unwrap()[0];
            g.builtin(BuiltinOp::Transpose, &[apart], vec![list(&[0, 2, 1, 3])]).unwrap()[0]
        };
        let [q, k, v] = [heads(0), heads(1), heads(2)];
        let k = g.builtin(BuiltinOp::Transpose, &[k], vec![list(&[0, 1, 3, 2])]).unwrap()[0];
        let scores = g.builtin(BuiltinOp::Matmul, &[q, k], vec![]).unwrap()[0];
        g.builtin(BuiltinOp::Matmul, &[scores, v], vec![]).unwrap()
    }

    #[test]
    fn heads_are_multiplied_as_they_lie_and_stored_where_they_are_read() {
        let mut g = Graph::new(hypatia_testing::program());
        let y = attention(&mut g)[0];
        let y = g.builtin(BuiltinOp::Transpose, &[y], vec![list(&[0, 2, 1, 3])]).unwrap()[0];
        let y = g.builtin(BuiltinOp::Reshape, &[y], vec![list(&[8 * 128, 768])]).unwrap()[0];
        g.output("y", y);
        let plan = planned(&g, &Options::new(Device::named("h200").unwrap())).unwrap();
        assert_eq!((copies(&plan), plan.launches()), (0, 2), "{plan}");
        let kinds = |step: &Step| match &step.action {
            Action::Call(e) => e.fallback.iter().map(|s| matches!(s.action, Action::Copy)).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        // The copies omitted: first both transposed operands, then the values and the result.
        assert_eq!(kinds(&plan.steps[0]), [true, true, false], "{plan}");
        assert_eq!(kinds(&plan.steps[1]), [true, false, true], "{plan}");
        // The matrices of the keys are transposed when they are read.
        assert_eq!(plan.steps[0].reads[1].strides, [128 * 2304, 64, 1, 2304]);
        assert_eq!(plan.steps[1].writes[0].strides, [128 * 768, 64, 768, 1]);
        assert_eq!(plan.steps[1].writes[0].buffer, plan.outputs[0].1.buffer);
        assert!(plan.to_string().contains("gemm without copies (fallback: copy; gemm; copy)"), "{plan}");
        // A result with other readers keeps its layout, and so does one whose columns would not be
        // contiguous.
        let with = |turned: &[usize], also: bool| {
            let mut g = Graph::new(hypatia_testing::program());
            let y = attention(&mut g)[0];
            let t = g.builtin(BuiltinOp::Transpose, &[y], vec![list(turned)]).unwrap()[0];
            let t = g.builtin(BuiltinOp::Reshape, &[t], vec![list(&[8 * 128 * 768])]).unwrap()[0];
            g.output("t", t);
            if also {
                g.output("y", y);
            }
            copies(&planned(&g, &Options::new(Device::named("h200").unwrap())).unwrap())
        };
        assert_eq!([with(&[0, 2, 1, 3], true), with(&[0, 1, 3, 2], false), with(&[2, 0, 1, 3], false)], [1, 1, 0]);
    }

    fn copies(plan: &Plan) -> usize {
        plan.steps.iter().filter(|s| s.action == Action::Copy).count()
    }

    #[test]
    fn parts_at_even_distances_are_one_copy_on_a_gpu() {
        let three = [(0, 32), (32, 64), (64, 96)];
        let joint = plan(&three, "h200");
        assert_eq!((copies(&joint), copies(&plan(&three, "cpu"))), (1, 3), "{joint}");
        let copy = joint.steps.iter().find(|s| s.action == Action::Copy).unwrap();
        assert_eq!((copy.reads[0].shape[0], copy.reads[0].strides[0]), (3, 32));
        // Each part is read from its offset in the merged copy.
        let mut offsets: Vec<usize> = joint
            .steps
            .iter()
            .flat_map(|s| &s.reads)
            .filter(|r| r.buffer == copy.writes[0].buffer)
            .map(|r| r.offset)
            .collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 128, 256], "{joint}");
        // Different widths, unequal distances, parts that are not aligned.
        assert_eq!(copies(&plan(&[(0, 32), (32, 48)], "h200")), 2);
        assert_eq!(copies(&plan(&[(0, 16), (16, 32), (64, 80)], "h200")), 3);
        assert_eq!(copies(&plan(&[(0, 3), (3, 6)], "h200")), 2);
    }
}
