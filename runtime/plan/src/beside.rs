//! Joins products with the pointwise work on what their epilogues read: a mask made by a
//! comparison, a gate with its activation.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which a product
//! and the pointwise steps whose results only its epilogue reads are one step with these steps as
//! its fallback. Invariant: such a result is rounded as it would be stored; what each element of
//! the product would compute again is light.

use std::collections::HashMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{InView, KernelId, Program, ScalarBody};
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};

use super::prologue::makers;
use super::view::row_major;
use super::whole::{Whole, join, joined_name, substituted};
use super::{Action, BufferId, Called, GemmStep, Plan, PointwiseStep, Step, View};

/// Operands of an epilogue, the factors apart: each takes registers or shared memory.
const MOST: usize = 8;
/// Functions that are computed again for each element of a smaller operand.
const LIGHT: usize = 4;

/// Joins products of a plan with the work on their operands.
pub(super) fn cluster(plan: &mut Plan) {
    let makers = makers(plan);
    join(plan, |plan, kernel, at, _| joined(plan, &makers, kernel, at));
}

/// The step at that place with the steps that make what its epilogue reads, and their places.
fn joined(plan: &Plan, makers: &HashMap<BufferId, usize>, tiles: KernelId, at: usize) -> Option<(Step, Vec<usize>)> {
    let step = &plan.steps[at];
    let Whole { product: g, factors, reads } = Whole::of(&plan.program, step)?;
    let generated = matches!(reads[0].dtype, DType::F16 | DType::BF16 | DType::F32);
    if !generated || !g.reduced.is_empty() || g.batch.iter().product::<usize>() * g.m * g.k * g.n == 0 {
        return None;
    }
    let shape = [g.batch.as_slice(), &[g.m, g.n]].concat();
    let mut epilogue = Epilogue { program: &plan.program, terms: TermBuilder::new(), beside: Vec::new() };
    let mut places: Vec<usize> = Vec::new();
    let mut values: Vec<TermId> = Vec::new();
    for view in &reads[factors..] {
        // What a factor is, too, is stored in any case.
        let alone = reads.iter().filter(|v| v.buffer == view.buffer).count() == 1;
        let maker = makers.get(&view.buffer).copied().filter(|_| alone);
        let made = maker.and_then(|i| match &plan.steps[i].action {
            Action::Pointwise(p) => Some((i, epilogue.computed(p, &plan.steps[i], view, &shape)?)),
            _ => None,
        });
        values.push(match made {
            Some((place, value)) => {
                places.push(place);
                value
            }
            None => epilogue.read(view.clone()),
        });
    }
    if places.is_empty() || epilogue.beside.len() > MOST {
        return None;
    }
    places.sort_unstable();
    let roots = substituted(&mut epilogue.terms, &g.term, &values);
    let Epilogue { terms, beside, .. } = epilogue;
    let product = GemmStep { term: terms.finish(roots), ..g.clone() };
    let called = if factors == 3 { Called::Pair(product) } else { Called::Product(product) };
    let parts: Vec<Step> = places.iter().chain([&at]).map(|i| plan.steps[*i].clone()).collect();
    let name = joined_name(&parts);
    let writes = step.writes[..g.term.roots.len()].to_vec();
    let joined = Step::call(&name, called, [&reads[..factors], &beside].concat(), writes, parts);
    let kernel = if factors == 3 { step.kernel? } else { tiles };
    Some((Step { kernel: Some(kernel), ..joined }, places))
}

/// The epilogue that is made, and what it reads.
struct Epilogue<'p> {
    program: &'p Program,
    terms: TermBuilder,
    beside: Vec<View>,
}

impl Epilogue<'_> {
    /// An element of an operand.
    fn read(&mut self, view: View) -> TermId {
        let input = self.beside.iter().position(|v| *v == view).unwrap_or_else(|| {
            self.beside.push(view);
            self.beside.len() - 1
        });
        self.terms.add(TermNode::In { input: input as u32, view: InView::Broadcast })
    }

    /// An element of what a pointwise step makes, as results of that shape read it by `view`.
    fn computed(&mut self, p: &PointwiseStep, step: &Step, view: &View, shape: &[usize]) -> Option<TermId> {
        let [out] = step.writes.as_slice() else { return None };
        // The axes along which it is repeated have one element.
        let axes = view.shape.iter().zip(&view.strides);
        let own: Vec<usize> = axes.map(|(size, stride)| if *stride == 0 { 1 } else { *size }).collect();
        let dense = |((size, stride), want): ((&usize, &isize), &isize)| *size == 1 || stride == want;
        let whole = own.iter().product::<usize>() == out.len()
            && view.offset == out.offset
            && view.dtype == out.dtype
            && own.iter().zip(&view.strides).zip(&row_major(&own)).all(dense);
        let term = &p.kernel.term;
        let again = out.len() < shape.iter().product::<usize>();
        if !whole || !out.is_contiguous() || term.roots.len() != 1 || (again && !self.is_light(term)) {
            return None;
        }
        let seen = |(v, strides): (&View, &Vec<isize>)| {
            let own = View { shape: p.shape.clone(), strides: strides.clone(), ..v.clone() }.reshaped(&own)?;
            let readable = matches!(v.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::Bool);
            own.broadcast(shape).filter(|_| readable)
        };
        let reads: Vec<View> = step.reads.iter().zip(&p.strides).map(seen).collect::<Option<_>>()?;
        let values: Vec<TermId> = reads.into_iter().map(|v| self.read(v)).collect();
        let value = *substituted(&mut self.terms, term, &values).first()?;
        Some(match out.dtype {
            // A truth value is not rounded.
            DType::Bool => value,
            to => self.terms.add(TermNode::Cast { to, arg: value }),
        })
    }

    /// Whether each element may compute it again.
    fn is_light(&self, term: &Term) -> bool {
        let calls = || {
            term.nodes.iter().filter_map(|n| if let TermNode::Call { scalar, .. } = n { Some(*scalar) } else { None })
        };
        let one = |s| match self.program.scalar(s).body {
            ScalarBody::Builtin(b) => b.cost().instructions == 1,
            ScalarBody::Term(_) => false,
        };
        calls().count() <= LIGHT && calls().all(one)
    }
}
