//! Launches with a fallback, for calls that the library may lack, and kernels that may be slower.
//!
//! In: an op with a body and the kernel that computes it in one call, or a product with such an
//! epilogue. Out: one step with the call and its fallback steps. Invariant: the fallback computes
//! what the call does, into the same buffers, so that an executor may run either. Additional memory
//! of the fallback is workspace of the step.

use std::collections::{HashMap, HashSet};

use hypatia_dsl::ir::{Backend, KernelId};

use super::{Lower, LoweredBody};
use crate::prepare::Call;
use crate::view::row_major;
use crate::{AttentionGradStep, AttentionStep, BufferId, Called, GemmStep, Step, Storage, TemplateStep, View};
use hypatia_graph::{Attention, AttentionGrad, DeclaredLaunch, Known, Node, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};

impl Lower<'_> {
    /// A node that the library computes in one call. Its first two operands are those of a product,
    /// the others are read by the epilogue. The first result is that of the product, the other one
    /// is an additional result of the epilogue.
    pub(super) fn called(&mut self, id: NodeId, node: &Node, call: &Call) -> Result<()> {
        let operands = node.operands.iter().flatten().map(|v| self.value(*v)).collect::<Result<Vec<View>>>()?;
        match self.plan.program.kernels[call.matched.kernel.index()].backend {
            Backend::Tiled if self.graph.is_pair(node) => return self.paired(id, node, call, &operands),
            Backend::Tiled => return self.attended(id, node, call, &operands),
            Backend::Template(_) => return self.by_template(id, node, call, operands),
            _ => {}
        }
        let [a, b, beside @ ..] = operands.as_slice() else {
            return Err(Error::Internal("a product of one operand".into()));
        };
        let (_, shape) = self.ty(Value { node: id, output: 0 })?;
        let (product, mut reads) = self.factors(&node.name, [a, b], &shape)?;
        for view in beside {
            reads.push(self.contiguous(view, &node.name)?);
        }
        let LoweredBody { steps: fallback, results, .. } = self.steps_of(&call.fallback, &operands)?;
        for (output, view) in results.iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view.clone());
        }
        if self.own_buffers(&results, &fallback) {
            let called = Called::Product(product);
            self.call_or_fallback(&node.name, Some(call.matched.kernel), called, reads, results, fallback);
        } else {
            self.plan.steps.extend(fallback);
        }
        Ok(())
    }

    /// Whether these steps store each result in a whole buffer of its own, as one launch does.
    fn own_buffers(&self, results: &[View], steps: &[Step]) -> bool {
        let own = |(i, v): (usize, &View)| {
            let buffer = &self.plan.buffers[v.buffer.index()];
            let whole = v.offset == 0 && v.len() == buffer.len && v.strides == row_major(&v.shape);
            let alone = results[..i].iter().all(|w| w.buffer != v.buffer);
            let written = steps.iter().any(|s| s.writes.iter().any(|w| w.buffer == v.buffer));
            matches!(buffer.storage, Storage::Arena(_)) && whole && alone && written
        };
        results.iter().enumerate().all(own)
    }

    /// A node that is two products of one left operand: one launch, or both products in turn.
    fn paired(&mut self, id: NodeId, node: &Node, call: &Call, operands: &[View]) -> Result<()> {
        let (NodeKind::Op { term: Some(term), .. }, [a, b, c, beside @ ..]) = (&node.kind, operands) else {
            return Err(Error::Internal("two products without their operands".into()));
        };
        let (_, shape) = self.ty(Value { node: id, output: 0 })?;
        let (step, mut reads) = self.operands(&node.name, [a, b], &shape)?;
        let (_, mut second) = self.operands(&node.name, [a, c], &shape)?;
        reads.extend(second.pop());
        for view in beside {
            let wide = view.broadcast(&shape);
            reads.push(wide.ok_or_else(|| Error::Internal(format!("{:?} is read as {shape:?}", view.shape)))?);
        }
        let LoweredBody { steps: fallback, results, .. } = self.steps_of(&call.fallback, operands)?;
        for (output, view) in results.iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view.clone());
        }
        if self.own_buffers(&results, &fallback) {
            let called = Called::Pair(GemmStep { term: term.clone(), ..step });
            self.call_or_fallback(&node.name, Some(call.matched.kernel), called, reads, results, fallback);
        } else {
            self.plan.steps.extend(fallback);
        }
        Ok(())
    }

    /// A node that is attention, or its gradients: one kernel, or its parts.
    fn attended(&mut self, id: NodeId, node: &Node, call: &Call, operands: &[View]) -> Result<()> {
        let LoweredBody { steps, results, values } = self.steps_of(&call.fallback, operands)?;
        for (output, view) in results.iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view.clone());
        }
        let graph = &call.fallback.graph;
        let attention = Attention::of(graph).and_then(|a| attention(&a, &values, results.first()?));
        let called = attention.map(|(step, reads)| (Called::Attention(step), reads)).or_else(|| {
            let (step, reads) = attention_grad(&AttentionGrad::of(graph)?, &values)?;
            Some((Called::AttentionGrad(step), reads))
        });
        match called {
            Some((called, reads)) if self.own_buffers(&results, &steps) => {
                // What computes the operands runs in any case.
                let (before, fallback) = split(steps, &reads);
                self.plan.steps.extend(before);
                let kernel = Some(call.matched.kernel);
                self.call_or_fallback(&node.name, kernel, called, reads, results, fallback);
            }
            _ => self.plan.steps.extend(steps),
        }
        Ok(())
    }

    /// A node that a user's template computes: one launch, or the next of its candidates.
    fn by_template(&mut self, id: NodeId, node: &Node, call: &Call, operands: Vec<View>) -> Result<()> {
        let NodeKind::Op { op, attrs, .. } = &node.kind else {
            return Err(Error::Internal("a template for something that is no op".into()));
        };
        let (program, device) = (self.plan.program.clone(), self.plan.device.clone());
        let kernel = &program.kernels[call.matched.kernel.index()];
        let views = node.operands.iter().map(|v| v.map(|v| self.value(v)).transpose());
        let views = views.collect::<Result<Vec<Option<View>>>>()?;
        let known: Vec<Option<Known>> = views.iter().map(|v| v.as_ref().map(|v| self.known(v))).collect();
        let known = |i: usize| known.get(i).cloned().flatten();
        let launches = DeclaredLaunch::all(kernel, &call.matched, &known, &device);
        let LoweredBody { steps: fallback, results, .. } = self.steps_of(&call.fallback, &operands)?;
        for (output, view) in results.iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view.clone());
        }
        if launches.is_empty() || !self.own_buffers(&results, &fallback) {
            self.plan.steps.extend(fallback);
            return Ok(());
        }
        let names = program.op(*op).attrs().map(|(_, p)| p.name.clone());
        let attrs = names.zip(attrs.iter().cloned()).collect();
        let called = Called::Template(TemplateStep { product: None, attrs, launches });
        self.call_or_fallback(&node.name, Some(call.matched.kernel), called, operands, results, fallback);
        Ok(())
    }

    /// Adds a step that is either one call, which stores `writes`, or the fallback steps
    /// `fallback`.
    pub(super) fn call_or_fallback(
        &mut self,
        name: &str,
        kernel: Option<KernelId>,
        called: Called,
        reads: Vec<View>,
        writes: Vec<View>,
        fallback: Vec<Step>,
    ) {
        let step = Step::call(name, called, reads, writes, fallback);
        self.plan.steps.push(Step { kernel, ..step });
    }
}

/// The step of an attention and its operands, broadcast.
fn attention(a: &Attention, values: &HashMap<Value, View>, out: &View) -> Option<(AttentionStep, Vec<View>)> {
    let [q, k, v] = a.factors.map(|f| values.get(&f));
    let (q, k, v) = (q?, k?, v?);
    let (batch, [queries, value]) = out.shape.split_last_chunk::<2>()?;
    let [head, keys] = *k.shape.last_chunk::<2>()?;
    let of = |rows: usize, columns: usize| [batch, &[rows, columns]].concat();
    let mut reads = vec![q.broadcast(&of(*queries, head))?];
    let k = k.broadcast(&of(head, keys))?;
    let mut swapped: Vec<usize> = (0..batch.len() + 2).collect();
    swapped.swap(batch.len(), batch.len() + 1);
    reads.push(k.transposed(&swapped));
    reads.push(v.broadcast(&of(keys, *value))?);
    for read in &a.reads {
        reads.push(values.get(read)?.broadcast(&of(*queries, keys))?);
    }
    for read in &a.beside {
        reads.push(values.get(read)?.broadcast(&of(*queries, *value))?);
    }
    let step = AttentionStep {
        batch: batch.to_vec(),
        queries: *queries,
        keys,
        head,
        value: *value,
        term: a.term.clone(),
        safe: a.safe,
        short: false,
        lse: a.lse,
        finish: a.finish.clone(),
        beside: a.beside.len(),
    };
    Some((step, reads))
}

/// The step of the gradients of an attention and its operands, broadcast.
fn attention_grad(a: &AttentionGrad, values: &HashMap<Value, View>) -> Option<(AttentionGradStep, Vec<View>)> {
    let [q, k, v, dy] = a.factors.map(|f| values.get(&f));
    let (q, k, v, dy) = (q?, k?, v?, dy?);
    let (batch, [queries, head]) = q.shape.split_last_chunk::<2>()?;
    let [value, keys] = *v.shape.last_chunk::<2>()?;
    let mut swapped: Vec<usize> = (0..batch.len() + 2).collect();
    swapped.swap(batch.len(), batch.len() + 1);
    let scores = [batch, &[*queries, keys]].concat();
    let mut reads = vec![q.clone(), k.clone(), v.transposed(&swapped), dy.clone()];
    for read in &a.reads {
        reads.push(values.get(read)?.broadcast(&scores)?);
    }
    let (weight, slope) = (a.weight.clone(), a.slope.clone());
    let step = AttentionGradStep {
        batch: batch.to_vec(),
        queries: *queries,
        keys,
        head: *head,
        value,
        weight,
        slope,
        short: false,
    };
    Some((step, reads))
}

/// Divides steps into those that these views need, and the others.
fn split(steps: Vec<Step>, reads: &[View]) -> (Vec<Step>, Vec<Step>) {
    let mut needed: HashSet<BufferId> = reads.iter().map(|v| v.buffer).collect();
    let mut early = vec![false; steps.len()];
    for (i, step) in steps.iter().enumerate().rev() {
        early[i] = step.writes.iter().any(|w| needed.contains(&w.buffer));
        if early[i] {
            needed.extend(step.reads.iter().map(|v| v.buffer));
        }
    }
    let mut early = early.into_iter();
    steps.into_iter().partition(|_| early.next() == Some(true))
}
