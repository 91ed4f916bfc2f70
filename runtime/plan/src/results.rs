//! Joins products with work on their results, so that one launch has several results.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which a product
//! and the steps that need only its accumulators and its result, element by element, are one step
//! with these steps as its fallback: pointwise work, products of the same factors, and on Hopper
//! reductions over rows, columns or both, of which each tile makes a part. Invariant:
//! what a part would have read from memory is rounded as if it had been stored; a result that
//! nothing else reads is not stored.
//!
//! A value that is kept beside what follows (training), two functions of one product: like chains,
//! these are clustered after extraction, since rules would need one for each number of users.

use std::collections::{HashMap, HashSet};

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{InView, KernelId};
use hypatia_dsl::kernel::{Along, Reduced, Reduction, RowAccess, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};
use hypatia_dsl::term::Literal;

use super::whole::{Whole, join, joined_name, substituted};
use super::{Action, BufferId, Called, GemmStep, Plan, PointwiseStep, RowwiseStep, Step, View};

/// Results of a launch: each takes shared memory for a tile.
const MOST_RESULTS: usize = 3;
/// Reductions of a launch: each takes registers.
const MOST_REDUCED: usize = 2;
/// Steps behind a product that may become part of it. What is far away is needed late: computed
/// early, it would take memory for longer.
const NEAR: usize = 8;

/// Joins products of a plan with work on their results.
pub(super) fn cluster(plan: &mut Plan) {
    let makers = makers(plan);
    join(plan, |plan, kernel, at, gone| {
        let mut joint = Joint::of(plan, &makers, kernel, at)?;
        let behind = (at + 1..plan.steps.len()).take(NEAR);
        behind.filter(|i| !gone[*i]).for_each(|i| _ = joint.absorb(i, gone));
        joint.finish(gone)
    });
}

/// The step that makes each buffer.
fn makers(plan: &Plan) -> HashMap<BufferId, usize> {
    let written = |(i, step): (usize, &Step)| step.writes.iter().map(|v| (v.buffer, i)).collect::<Vec<_>>();
    plan.steps.iter().enumerate().flat_map(written).collect()
}

/// The product of a step, if its accumulators may be those of several results: no template reads
/// other types, and what has several results already is left alone.
fn alone<'p>(plan: &'p Plan, step: &'p Step) -> Option<Whole<'p>> {
    let whole = Whole::of(&plan.program, step)?;
    let generated = matches!(whole.reads[0].dtype, DType::F16 | DType::BF16 | DType::F32);
    let g = whole.product;
    (generated && g.k > 0 && g.term.roots.len() == 1 && g.reduced.is_empty()).then_some(whole)
}

impl Whole<'_> {
    /// Whether it has the same accumulators as another one.
    fn same_accumulators(&self, other: &Whole<'_>) -> bool {
        let sizes = |g: &'_ GemmStep| (g.batch.clone(), [g.m, g.n, g.k], g.acc);
        self.factors == other.factors
            && sizes(self.product) == sizes(other.product)
            && self.reads[..self.factors] == other.reads[..other.factors]
    }
}

/// A result: where it is stored, and its value in the term.
struct Made {
    view: View,
    value: TermId,
}

/// What is reduced of a value, and where the results are stored.
struct Aside {
    reduced: Reduced,
    view: View,
    value: TermId,
}

/// A product and what became part of it.
struct Joint<'p> {
    plan: &'p Plan,
    makers: &'p HashMap<BufferId, usize>,
    kernel: KernelId,
    whole: Whole<'p>,
    /// The shape of all results.
    shape: Vec<usize>,
    beside: Vec<View>,
    terms: TermBuilder,
    made: Vec<Made>,
    asides: Vec<Aside>,
    /// The places of its parts, ascending.
    parts: Vec<usize>,
}

impl<'p> Joint<'p> {
    /// The product at that place alone.
    fn of(plan: &'p Plan, makers: &'p HashMap<BufferId, usize>, tiles: KernelId, at: usize) -> Option<Joint<'p>> {
        let step = &plan.steps[at];
        let whole = alone(plan, step)?;
        let g = whole.product;
        let shape = [g.batch.as_slice(), &[g.m, g.n]].concat();
        let kernel = if whole.factors == 3 { step.kernel? } else { tiles };
        let (terms, made, asides, beside) = (TermBuilder::new(), Vec::new(), Vec::new(), Vec::new());
        let mut joint = Joint { plan, makers, kernel, whole, shape, beside, terms, made, asides, parts: vec![at] };
        joint.product(at)?;
        Some(joint)
    }

    /// Makes the step at that place a part, if it only needs what the product has and there are
    /// not too many results.
    fn absorb(&mut self, at: usize, gone: &[bool]) -> Option<()> {
        let (before, reduced) = (self.made.len(), self.asides.len());
        match &self.plan.steps[at].action {
            Action::Pointwise(p) => self.pointwise(p, at)?,
            Action::Rowwise(r) if self.reduces() => self.rowwise(r, at)?,
            Action::Reduce(kind, axes) if self.reduces() => self.reduce(*kind, axes, at)?,
            _ => self.product(at)?,
        }
        self.parts.push(at);
        if self.kept(gone).len() > MOST_RESULTS || self.asides.len() > MOST_REDUCED {
            self.made.truncate(before);
            self.asides.truncate(reduced);
            self.parts.pop();
        }
        Some(())
    }

    /// Whether a template reduces something beside the product: Hopper's alone.
    fn reduces(&self) -> bool {
        self.plan.device.has_wgmma_of(self.whole.reads[0].dtype)
    }

    /// The results that others read. `gone` are steps that are parts of others.
    fn kept(&self, gone: &[bool]) -> Vec<&Made> {
        let inside = |i: &usize| self.parts.contains(i) || gone[*i];
        let others = (0..self.plan.steps.len()).filter(|i| !inside(i)).map(|i| &self.plan.steps[i]);
        let outputs = self.plan.outputs.iter().map(|(_, v)| v.buffer);
        let read: HashSet<BufferId> = others.flat_map(|s| &s.reads).map(|v| v.buffer).chain(outputs).collect();
        self.made.iter().filter(|m| read.contains(&m.view.buffer)).collect()
    }

    /// A product of the same factors: its epilogue has the same accumulators.
    fn product(&mut self, at: usize) -> Option<()> {
        let step = &self.plan.steps[at];
        let other = alone(self.plan, step).filter(|other| self.whole.same_accumulators(other))?;
        let [out, ..] = step.writes.as_slice() else { return None };
        let beside = &other.reads[other.factors..];
        let first = self.parts[0];
        if !beside.iter().all(|v| self.is_there(v, first)) || !self.is_result(out) {
            return None;
        }
        let values: Vec<TermId> = beside.iter().map(|v| self.operand(v.clone())).collect();
        self.add(&other.product.term, &values, std::slice::from_ref(out));
        Some(())
    }

    /// Pointwise work on results.
    fn pointwise(&mut self, p: &PointwiseStep, at: usize) -> Option<()> {
        let step = &self.plan.steps[at];
        if p.kernel.acc.is_some() || !step.writes.iter().all(|v| self.is_result(v)) {
            return None;
        }
        let values = self.operands(step, &p.shape, &p.strides)?;
        self.add(&p.kernel.term, &values, &step.writes);
        Some(())
    }

    /// Reductions of results, and pointwise work beside them.
    fn rowwise(&mut self, r: &RowwiseStep, at: usize) -> Option<()> {
        let (kernel, step, g) = (&r.kernel, &self.plan.steps[at], self.whole.product);
        let rows = g.batch.iter().product::<usize>() * g.m;
        let along = match (r.rows, r.n) {
            _ if kernel.groups.is_some() || !kernel.gathers.is_empty() || !r.lookups.is_empty() => return None,
            (of, n) if (of, n) == (rows, g.n) => Along::Columns,
            (1, n) if n == rows * g.n && kernel.sums.is_empty() => Along::All,
            _ => return None,
        };
        if !kernel.sums.is_empty() && r.layout.groups_of_sums() != 1 {
            return None;
        }
        let (own, rest) = step.writes.split_at_checked(kernel.outputs.len())?;
        let mut reduced: Vec<(Reduced, &View, &Term)> = Vec::new();
        let mut stored: Vec<(&View, &Term)> = Vec::new();
        for (view, (_, access, term)) in own.iter().zip(&kernel.outputs) {
            match (access, reduction(kernel, term)) {
                (RowAccess::PerRow, Some(i)) => {
                    let (kind, term) = &kernel.steps[i];
                    reduced.push((Reduced { kind: *kind, along }, view, term));
                }
                (RowAccess::Full, None) if self.is_result(view) => stored.push((view, term)),
                _ => return None,
            }
        }
        for (view, (_, term)) in rest.iter().zip(&kernel.sums) {
            reduced.push((Reduced { kind: Reduction::Sum, along: Along::Rows }, view, term));
        }
        let dense = |v: &View| v.dtype.is_float() && v.is_contiguous();
        let fits =
            |(r, view, term): &(Reduced, &View, &Term)| joins(r.kind) && dense(view) && !reads_steps(kernel, term);
        if !reduced.iter().all(fits) || stored.iter().any(|(_, term)| reads_steps(kernel, term)) {
            return None;
        }
        let inputs = r.layout.strides.get(..step.reads.len())?;
        let values = self.operands(step, &r.layout.sizes, inputs)?;
        for (view, term) in stored {
            self.add(term, &values, std::slice::from_ref(view));
        }
        for (reduced, view, term) in reduced {
            let value = *substituted(&mut self.terms, term, &values).first()?;
            self.aside(reduced, view.clone(), value)?;
        }
        Some(())
    }

    /// Reduces a value. A mean is the sum of what each element contributes.
    fn aside(&mut self, reduced: Reduced, view: View, value: TermId) -> Option<()> {
        let Reduced { kind: Reduction::Mean, along } = reduced else {
            self.asides.push(Aside { reduced, view, value });
            return Some(());
        };
        let g = self.whole.product;
        let batches: usize = g.batch.iter().product();
        let count = batches * g.m * g.n / reduced.results(batches, g.m, g.n).max(1);
        let share = self.terms.add(TermNode::Lit(Literal(1.0 / count as f64)));
        let scalar = self.plan.program.builtin_scalar(BuiltinScalar::Mul)?;
        let value = self.terms.add(TermNode::Call { scalar, args: vec![value, share] });
        self.asides.push(Aside { reduced: Reduced { kind: Reduction::Sum, along }, view, value });
        Some(())
    }

    /// A reduction of a result alone.
    fn reduce(&mut self, kind: Reduction, axes: &[usize], at: usize) -> Option<()> {
        let step = &self.plan.steps[at];
        let ([from], [view]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
        let last = from.shape.len().checked_sub(1).filter(|last| from.shape[*last] == self.whole.product.n)?;
        let removed = |axis: usize| axes.contains(&axis) || from.shape[axis] == 1;
        let along = match ((0..last).all(removed), axes.contains(&last)) {
            (true, true) => Along::All,
            (true, false) => Along::Rows,
            (false, true) if (0..last).all(|axis| !axes.contains(&axis)) => Along::Columns,
            _ => return None,
        };
        if !joins(kind) || !view.dtype.is_float() || !view.is_contiguous() || self.result(from).is_none() {
            return None;
        }
        let value = self.operand(from.clone());
        self.aside(Reduced { kind, along }, view.clone(), value)
    }

    /// The elements that a step with such axes reads, if it reads a result and nothing that is not
    /// there yet.
    fn operands(&mut self, step: &Step, sizes: &[usize], strides: &[Vec<isize>]) -> Option<Vec<TermId>> {
        let seen = |(v, strides): (&View, &Vec<isize>)| {
            View { shape: sizes.to_vec(), strides: strides.clone(), ..v.clone() }.reshaped(&self.shape)
        };
        let reads: Vec<View> = step.reads.iter().zip(strides).map(seen).collect::<Option<_>>()?;
        let first = self.parts[0];
        let inside: Vec<bool> = reads.iter().map(|v| self.result(v).is_some()).collect();
        let known = reads.iter().zip(&inside).all(|(v, inside)| *inside || self.is_there(v, first));
        (known && inside.contains(&true)).then(|| reads.into_iter().map(|v| self.operand(v)).collect())
    }

    /// Whether the step at that place can read the view.
    fn is_there(&self, view: &View, at: usize) -> bool {
        self.makers.get(&view.buffer).is_none_or(|maker| *maker < at)
    }

    /// Whether a template stores results like this one.
    fn is_result(&self, out: &View) -> bool {
        let stored = matches!(out.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::Bool);
        let other_half = |d: DType| matches!(d, DType::F16 | DType::BF16) && d != self.whole.reads[0].dtype;
        let len: usize = self.shape.iter().product();
        stored && !other_half(out.dtype) && len > 0 && out.len() == len && out.is_contiguous() && out.offset == 0
    }

    /// The result of which a view of the results' shape is each element.
    fn result(&self, view: &View) -> Option<&Made> {
        let each = view.is_contiguous() && view.offset == 0 && view.len() == self.shape.iter().product::<usize>();
        self.made.iter().find(|m| each && m.view.buffer == view.buffer && m.view.dtype == view.dtype)
    }

    /// The element of an operand: of a result as it is stored.
    fn operand(&mut self, view: View) -> TermId {
        if let Some(made) = self.result(&view) {
            let node = TermNode::Cast { to: view.dtype, arg: made.value };
            return self.terms.add(node);
        }
        let input = self.beside.iter().position(|v| *v == view).unwrap_or_else(|| {
            self.beside.push(view);
            self.beside.len() - 1
        });
        self.terms.add(TermNode::In { input: input as u32, view: InView::Broadcast })
    }

    /// Adds a term over these operands, whose values are these results.
    fn add(&mut self, term: &Term, operands: &[TermId], results: &[View]) {
        let values = substituted(&mut self.terms, term, operands);
        let views = results.iter().map(|v| View::whole(v.buffer, v.dtype, &self.shape));
        self.made.extend(values.into_iter().zip(views).map(|(value, view)| Made { view, value }));
    }

    /// The step of all parts, and the places of those behind the first one; `None` if there are
    /// none.
    fn finish(self, gone: &[bool]) -> Option<(Step, Vec<usize>)> {
        let [_, behind @ ..] = self.parts.as_slice() else { return None };
        if behind.is_empty() {
            return None;
        }
        // A launch stores something, though all that is wanted is reduced.
        let mut kept = self.kept(gone);
        if kept.is_empty() {
            kept.extend(self.made.last());
        }
        let (mut writes, mut roots) =
            kept.into_iter().map(|m| (m.view.clone(), m.value)).unzip::<_, _, Vec<View>, Vec<TermId>>();
        writes.extend(self.asides.iter().map(|a| a.view.clone()));
        roots.extend(self.asides.iter().map(|a| a.value));
        let reduced = self.asides.iter().map(|a| a.reduced).collect();
        let parts: Vec<Step> = self.parts.iter().map(|i| self.plan.steps[*i].clone()).collect();
        let name = joined_name(&parts);
        // Operands that only dropped values read are no longer there.
        let (term, beside) = without_unread(self.terms.finish(roots), self.beside);
        let reads = [&self.whole.reads[..self.whole.factors], &beside].concat();
        let product = GemmStep { term, reduced, ..self.whole.product.clone() };
        let called = if self.whole.factors == 3 { Called::Pair(product) } else { Called::Product(product) };
        let step = Step::call(&name, called, reads, writes, parts);
        Some((Step { kernel: Some(self.kernel), ..step }, behind.to_vec()))
    }
}

/// The step of a row-wise kernel whose result a term is, but for casts.
fn reduction(kernel: &RowwiseKernel, term: &Term) -> Option<usize> {
    let mut at = term.root();
    loop {
        match term.nodes.get(at.0 as usize)? {
            TermNode::Cast { arg, .. } => at = *arg,
            TermNode::In { input, .. } => return (*input as usize).checked_sub(kernel.inputs.len()),
            _ => return None,
        }
    }
}

/// Whether tiles reduce in that way, or it is a mean, which is a sum.
fn joins(kind: Reduction) -> bool {
    Reduced::joins(kind) || kind == Reduction::Mean
}

/// Whether a term reads what a step of a row-wise kernel reduced.
fn reads_steps(kernel: &RowwiseKernel, term: &Term) -> bool {
    term.nodes.iter().any(|n| matches!(n, TermNode::In { input, .. } if *input as usize >= kernel.inputs.len()))
}

/// The term with the operands that it reads.
fn without_unread(mut term: Term, operands: Vec<View>) -> (Term, Vec<View>) {
    let mut places: HashMap<u32, u32> = HashMap::new();
    let mut kept = Vec::new();
    for node in &mut term.nodes {
        if let TermNode::In { input, .. } = node {
            let of = *input;
            *input = *places.entry(of).or_insert_with(|| {
                kept.push(operands[of as usize].clone());
                kept.len() as u32 - 1
            });
        }
    }
    (term, kept)
}
