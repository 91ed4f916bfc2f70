//! Gives independent row-wise steps one launch.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which row-wise
//! steps that do not depend on each other are one launch, with the steps as its fallback: the norms
//! of queries and keys, the sums of several gradients. Invariant: a step still runs after all that
//! it reads, and before all that read it; none adds up over rows, and rows lie element by element.

use hypatia_dsl::kernel::RowAccess;

use super::horizontal::Sharing;
use super::whole::joined_name;
use super::{Action, BufferId, CallStep, Called, Plan, RowwiseStep, Step, View};

/// Maximum number of parts of a launch, and of tensors.
const MOST_PARTS: usize = 16;
const MOST_TENSORS: usize = 120;
/// Longest row of a part, of one operand and of several: one block keeps it.
const LONGEST: [usize; 2] = [16_384, 8192];

/// Joins independent row-wise steps.
pub(super) fn cluster(plan: &mut Plan, sharing: Sharing) {
    // How threads share a row, which decides in which order it is added up, depends on the others.
    if plan.allowed.is_exact() || plan.allowed.batch_invariant {
        return;
    }
    let mut at = 1;
    while at < plan.steps.len() {
        // With the first one that it can join: sums in stages then share the launches of theirs.
        let mut near = at.saturating_sub(Sharing::FARTHEST)..at;
        let earlier = near.find_map(|i| Some((i, shared(plan, sharing, (i, at))?)));
        match earlier {
            // The later step is computed earlier, or the earlier one later.
            Some((i, (step, true))) => {
                plan.steps[i] = step;
                plan.steps.remove(at);
            }
            Some((i, (step, false))) => {
                plan.steps[at] = step;
                plan.steps.remove(i);
            }
            None => at += 1,
        }
    }
}

/// The launch of two steps, the first one before the other, and whether it runs where the first
/// one does.
fn shared(plan: &Plan, sharing: Sharing, (first, second): (usize, usize)) -> Option<(Step, bool)> {
    let steps = [&plan.steps[first], &plan.steps[second]];
    let [one, other] = steps.map(parts);
    let all = [one?, other?].concat();
    if !sharing.admits(steps, second - first) {
        return None;
    }
    let makes = |step: &Step, buffer: BufferId| step.writes.iter().any(|w| w.buffer == buffer);
    let reads = |step: &Step, of: &Step| step.reads.iter().any(|v| makes(of, v.buffer));
    let earlier = !plan.steps[first..second].iter().any(|s| reads(steps[1], s));
    let later = || !plan.steps[first + 1..=second].iter().any(|s| reads(s, steps[0]));
    let tensors: usize = steps.iter().map(|s| s.reads.len() + s.writes.len()).sum();
    if all.len() > MOST_PARTS || tensors > MOST_TENSORS || !(earlier || later()) {
        return None;
    }
    let views = |of: fn(&Step) -> &[View]| steps.iter().flat_map(|s| of(s).to_vec()).collect::<Vec<View>>();
    let fallback = steps.iter().flat_map(|s| alone(s)).collect();
    let (reads, writes) = (views(|s| &s.reads), views(|s| &s.writes));
    let name = joined_name(&steps.map(Step::clone));
    Some((Step::call(&name, Called::Rows(all), reads, writes, fallback), earlier))
}

/// The row-wise work of a step, if it may share a launch.
fn parts(step: &Step) -> Option<Vec<RowwiseStep>> {
    match &step.action {
        Action::Call(CallStep { called: Called::Rows(parts), .. }) => Some(parts.clone()),
        Action::Rowwise(r) => fits(r, step).then(|| vec![r.clone()]),
        _ => None,
    }
}

/// The steps of which a launch consists.
fn alone(step: &Step) -> Vec<Step> {
    match &step.action {
        Action::Call(call) => call.fallback.clone(),
        _ => vec![step.clone()],
    }
}

/// Whether a row-wise step reads rows element by element, of which one block keeps each.
fn fits(r: &RowwiseStep, step: &Step) -> bool {
    let of_outputs = r.kernel.outputs.iter().map(|o| o.1);
    let access = r.kernel.inputs.iter().map(|i| i.1).chain(of_outputs);
    let along =
        |(access, strides): (RowAccess, &Vec<isize>)| access != RowAccess::Strided || strides.last() == Some(&1);
    let by_rows = access.zip(&r.layout.strides).all(along);
    let full = r.rows > 0 && r.n > 0 && !step.writes.iter().any(View::is_empty);
    let longest = LONGEST[usize::from(r.kernel.inputs.len() > 1)];
    r.kernel.sums.is_empty() && r.lookups.is_empty() && full && r.n <= longest && by_rows
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use hypatia_dsl::builtin::BuiltinOp;
    use hypatia_dsl::dtype::DType;
    use hypatia_dsl::ir::AttrValue;
    use hypatia_graph::{Graph, Value};
    use hypatia_target::device::Device;
    use hypatia_testing::{list, ty};

    use crate::testing::planned;
    use crate::{Action, CallStep, Called, Options, Plan};

    fn plan(device: &str, build: impl FnOnce(&mut Graph)) -> Plan {
        let mut g = Graph::new(Arc::clone(&hypatia_testing::program()));
        build(&mut g);
        planned(&g, &Options::new(Device::named(device).unwrap())).unwrap()
    }

    fn norm(g: &mut Graph, x: Value) -> Value {
        let sums = g.builtin(BuiltinOp::Sum, &[x], vec![list(&[1]), AttrValue::Bool(true)]).unwrap()[0];
        g.call("sub", &[x, sums], &[]).unwrap()[0]
    }

    fn parts(plan: &Plan) -> Vec<usize> {
        let of = |s: &crate::Step| match &s.action {
            Action::Call(CallStep { called: Called::Rows(parts), .. }) => Some(parts.len()),
            Action::Rowwise(_) => Some(1),
            _ => None,
        };
        plan.steps.iter().filter_map(of).collect()
    }

    #[test]
    fn independent_rows_share_a_launch_and_dependent_ones_do_not() {
        let several = |g: &mut Graph| {
            for (i, shape) in [[6, 40], [300, 128], [1, 8]].iter().enumerate() {
                let x = g.input(format!("x{i}"), ty(DType::F32, shape));
                let y = norm(g, x);
                g.output(format!("y{i}"), y);
            }
        };
        let joint = plan("h200", several);
        assert_eq!((parts(&joint), joint.launches()), (vec![3], 1), "{joint}");
        joint.validate().unwrap();
        assert_eq!(parts(&plan("cpu", several)), [1, 1, 1]);
        let dependent = plan("h200", |g| {
            let (x, w) = (g.input("x", ty(DType::F32, &[6, 40])), g.input("w", ty(DType::F32, &[40, 40])));
            let y = norm(g, x);
            let y = g.builtin(BuiltinOp::Matmul, &[y, w], vec![]).unwrap()[0];
            let z = norm(g, y);
            g.output("z", z);
        });
        assert_eq!(parts(&dependent), [1, 1], "{dependent}");
        // Rows that one block does not keep.
        let long = plan("h200", |g| {
            for i in 0..2 {
                let x = g.input(format!("x{i}"), ty(DType::F32, &[6, 17000]));
                let y = norm(g, x);
                g.output(format!("y{i}"), y);
            }
        });
        assert_eq!(parts(&long), [1, 1], "{long}");
    }
}
