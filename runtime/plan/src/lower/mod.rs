//! Lowers nodes to steps, views and constants.
//!
//! In: a prepared graph. Out: a plan whose buffers are not placed yet. Invariant: reshape,
//! transpose, expand, slice and split are views of their operand. A copy is made only where a step
//! needs its operand contiguous, or where strides cannot express a reshape.
//!
//! [`batch`] lowers batched products, [`row_order`] orders their rows, [`conv`] convolutions,
//! [`im2col`] those on devices without a kernel for them, [`fallback`] library calls; [`workspace`]
//! adds scratch memory.

mod batch;
mod conv;
mod fallback;
mod im2col;
mod layout;
mod pool;
mod row_order;
mod workspace;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Backend, InView, KernelId, Program};
use hypatia_dsl::kernel::RowAccess;
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_dsl::typing::TensorType;

use self::conv::feeds_convolution;
pub use self::workspace::ScanSplit;
use crate::prepare::{self, Prepared};
use crate::rows::Rows;
use crate::view::{View, inverse, row_major};
use crate::wrapping::wrap_integers;
use crate::{
    Action, Buffer, BufferId, Called, Checks, GemmStep, Options, Plan, PlanInput, PointwiseStep, Step, Storage,
    TemplateStep,
};
use hypatia_graph::fate::running;
use hypatia_graph::prim::{Prim, elements, sizes};
use hypatia_graph::{
    Candidate, DeclaredLaunch, Graph, Kernels, Known, Node, NodeId, NodeKind, Product, Region, RowsOperand,
    RowwiseRegion, Strategy, Value, builtin, is_pointwise, literal,
};
use hypatia_target::cublaslt::Epilogue;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// A plan being built.
pub(super) struct Lower<'a> {
    pub(super) graph: &'a Graph,
    kernels: &'a prepare::Kernels,
    pub(super) plan: Plan,
    pub(super) values: HashMap<Value, View>,
    /// Buffers of constants by the address of their tensor: shared initializers get one buffer.
    constants: HashMap<usize, BufferId>,
    /// Contiguous copies made so far.
    pub(super) copies: Vec<(View, View)>,
    /// True for nodes with a user outside of their group.
    leaves_group: Vec<bool>,
    /// Buffers of results stored with channels last (NHWC), while the channels are axis 1 of the
    /// graph's value.
    pub(super) channels_last: HashSet<BufferId>,
    /// True for nodes whose result reaches a convolution with its layout unchanged.
    pub(super) feeds_convolution: Vec<bool>,
    /// Nodes that become one launch, in order.
    groups: Vec<Region>,
    /// The users of each node.
    pub(super) users: Vec<Vec<NodeId>>,
    options: &'a Options,
}

/// An op's body, lowered on its own.
struct LoweredBody {
    steps: Vec<Step>,
    /// The views of its results, contiguous.
    results: Vec<View>,
    /// The views of all values.
    values: HashMap<Value, View>,
}

pub(super) fn lower(prepared: &Prepared, options: &Options) -> Result<Plan> {
    let mut l = Lower::new(prepared, options, empty(&prepared.graph, options))?;
    l.inputs()?;
    l.nodes()?;
    for (name, v) in &prepared.graph.outputs {
        let view = l.value(*v)?;
        let view = l.contiguous(&view, name)?;
        l.plan.outputs.push((name.clone(), view));
    }
    Ok(l.plan)
}

/// A plan without steps.
fn empty(graph: &Graph, options: &Options) -> Plan {
    Plan {
        program: graph.program.clone(),
        device: options.device.clone(),
        inputs: Vec::new(),
        constants: Vec::new(),
        buffers: Vec::new(),
        steps: Vec::new(),
        outputs: Vec::new(),
        arena: 0,
        checks: if options.device.is_host() { Checks::Off } else { options.checks },
        allowed: options.allowed.clone(),
        shortened: Vec::new(),
    }
}

fn at_node(e: Error, graph: &Graph, group: &[usize]) -> Error {
    let name = group.first().map_or("", |n| graph.nodes[*n].name.as_str());
    match e {
        Error::Limit(m) => Error::Limit(format!("node `{name}`: {m}")),
        Error::Type(m) => Error::Type(m.at(format_args!("node `{name}`"))),
        Error::Internal(m) => Error::Internal(format!("node `{name}`: {m}")),
        e => e,
    }
}

fn leaves_group(graph: &Graph, groups: &[Region]) -> Vec<bool> {
    let mut group_of = vec![0; graph.nodes.len()];
    for (g, region) in groups.iter().enumerate() {
        region.nodes.iter().for_each(|n| group_of[*n] = g);
    }
    let mut leaves = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        for v in node.operands.iter().flatten().filter(|v| group_of[v.node.index()] != group_of[i]) {
            leaves[v.node.index()] = true;
        }
    }
    graph.outputs.iter().for_each(|(_, v)| leaves[v.node.index()] = true);
    leaves
}

impl<'a> Lower<'a> {
    /// The state before the first node; steps are appended to `plan`.
    fn new(prepared: &'a Prepared, options: &'a Options, plan: Plan) -> Result<Lower<'a>> {
        let graph = &prepared.graph;
        let pointwise: Vec<bool> = graph.nodes.iter().map(|n| is_pointwise(graph, n)).collect();
        let groups = prepared.regions.clone();
        Ok(Lower {
            graph,
            kernels: &prepared.kernels,
            plan,
            values: HashMap::new(),
            constants: HashMap::new(),
            copies: Vec::new(),
            leaves_group: leaves_group(graph, &groups),
            channels_last: HashSet::new(),
            feeds_convolution: feeds_convolution(graph, &pointwise),
            groups,
            users: graph.users(),
            options,
        })
    }

    fn nodes(&mut self) -> Result<()> {
        let graph = self.graph;
        for group in std::mem::take(&mut self.groups) {
            match (group.nodes.as_slice(), &group.rows) {
                (_, Some(rows)) => self.rows(rows),
                ([node], _) if !is_pointwise(graph, &graph.nodes[*node]) => self.node(*node),
                (nodes, _) if nodes.iter().all(|n| is_pointwise(graph, &graph.nodes[*n])) => self.region(nodes),
                _ => Err(Error::Internal("a region of rows without a kernel".into())),
            }
            .map_err(|e| at_node(e, graph, &group.nodes))?;
        }
        Ok(())
    }

    /// The steps of a graph on these operands, without adding them to the plan.
    fn steps_of(&mut self, prepared: &Prepared, operands: &[View]) -> Result<LoweredBody> {
        let outer = std::mem::replace(&mut self.plan, empty(&prepared.graph, self.options));
        let first = outer.steps.len();
        let mut inner = Lower::new(prepared, self.options, outer)?;
        inner.constants = std::mem::take(&mut self.constants);
        // Copies made inside are not available outside.
        inner.copies.clone_from(&self.copies);
        for (id, view) in prepared.graph.inputs.iter().zip(operands) {
            inner.values.insert(Value { node: *id, output: 0 }, view.clone());
        }
        inner.nodes()?;
        let mut results = Vec::new();
        for (name, v) in &prepared.graph.outputs {
            let view = inner.value(*v)?;
            results.push(inner.contiguous(&view, name)?);
        }
        let steps = inner.plan.steps.split_off(first);
        let mut values = std::mem::take(&mut inner.values);
        for (i, node) in prepared.graph.nodes.iter().enumerate() {
            if let NodeKind::Const(t) = &node.kind {
                values.insert(Value { node: NodeId(i as u32), output: 0 }, inner.constant(t));
            }
        }
        (self.plan, self.constants) = (inner.plan, inner.constants);
        Ok(LoweredBody { steps, results, values })
    }
}

impl Lower<'_> {
    fn inputs(&mut self) -> Result<()> {
        for (i, id) in self.graph.inputs.iter().enumerate() {
            let node = &self.graph.nodes[id.index()];
            let (dtype, shape) = self.ty(Value { node: *id, output: 0 })?;
            let NodeKind::Input { name } = &node.kind else {
                return Err(Error::Internal("an input that is none".into()));
            };
            let buffer = self.buffer(dtype, elements(&shape)?, Storage::Input(i));
            self.values.insert(Value { node: *id, output: 0 }, View::whole(buffer, dtype, &shape));
            self.plan.inputs.push(PlanInput { name: name.clone(), dtype, shape });
        }
        Ok(())
    }

    pub(super) fn ty(&self, v: Value) -> Result<(DType, Vec<usize>)> {
        let ty = self.graph.ty(v);
        Ok((ty.dtype, sizes(&ty.shape, &|_| None)?))
    }

    fn buffer(&mut self, dtype: DType, len: usize, storage: Storage) -> BufferId {
        self.plan.buffers.push(Buffer { dtype, len, storage });
        BufferId(self.plan.buffers.len() as u32 - 1)
    }

    pub(super) fn fresh(&mut self, dtype: DType, shape: &[usize]) -> Result<View> {
        let len = elements(shape)?;
        // `buffers` sets the offset at the end.
        let buffer = self.buffer(dtype, len, Storage::Arena(0));
        Ok(View::whole(buffer, dtype, shape))
    }

    pub(super) fn constant(&mut self, tensor: &Arc<Tensor>) -> View {
        let key = Arc::as_ptr(tensor) as usize;
        let buffer = match self.constants.get(&key) {
            Some(b) => *b,
            None => {
                self.plan.constants.push(tensor.clone());
                let storage = Storage::Constant(self.plan.constants.len() - 1);
                let b = self.buffer(tensor.dtype(), tensor.len(), storage);
                self.constants.insert(key, b);
                b
            }
        };
        View::whole(buffer, tensor.dtype(), tensor.shape())
    }

    /// The view of a value.
    pub(super) fn value(&mut self, v: Value) -> Result<View> {
        if let Some(view) = self.values.get(&v) {
            return Ok(view.clone());
        }
        let graph = self.graph;
        match graph.nodes.get(v.node.index()).map(|n| &n.kind) {
            Some(NodeKind::Const(t)) => Ok(self.constant(t)),
            _ => Err(Error::Internal(format!("value {}.{} is used before it is made", v.node.0, v.output))),
        }
    }

    pub(super) fn step(&mut self, name: &str, action: Action, reads: Vec<View>, writes: Vec<View>) {
        let in_place = vec![None; writes.len()];
        self.plan.steps.push(Step { name: name.to_string(), action, reads, writes, in_place, kernel: None });
    }

    pub(super) fn contiguous(&mut self, view: &View, name: &str) -> Result<View> {
        if view.is_contiguous() {
            return Ok(View { strides: row_major(&view.shape), ..view.clone() });
        }
        if let Some((_, copy)) = self.copies.iter().find(|(v, _)| v == view) {
            return Ok(copy.clone());
        }
        let copy = self.fresh(view.dtype, &view.shape)?;
        self.step(name, Action::Copy, vec![view.clone()], vec![copy.clone()]);
        self.copies.push((view.clone(), copy.clone()));
        Ok(copy)
    }

    /// A batch of contiguous matrices, each keeping the axis that is dense already: libraries
    /// accept transposed matrices, and a transposing copy is slower.
    pub(super) fn dense_matrices(&mut self, view: &View, name: &str) -> Result<View> {
        let n = view.shape.len();
        if n < 2 || view.strides[n - 1] == 1 || view.strides[n - 2] != 1 {
            return self.contiguous(view, name);
        }
        let mut swapped: Vec<usize> = (0..n).collect();
        swapped.swap(n - 2, n - 1);
        Ok(self.contiguous(&view.transposed(&swapped), name)?.transposed(&swapped))
    }

    pub(super) fn broadcast(&mut self, v: Value, shape: &[usize]) -> Result<View> {
        let view = self.value(v)?;
        view.broadcast(shape)
            .ok_or_else(|| Error::Internal(format!("{:?} does not broadcast to {shape:?}", view.shape)))
    }

    fn node(&mut self, index: usize) -> Result<()> {
        let graph = self.graph;
        let (id, node) = (NodeId(index as u32), &graph.nodes[index]);
        let NodeKind::Op { attrs, term, .. } = &node.kind else { return Ok(()) };
        if let Some(kernel) = self.kernels.rowwise.get(&id) {
            return self.rowwise_node(id, node, kernel);
        }
        if let Some(call) = self.kernels.calls.get(&id) {
            return self.called(id, node, call);
        }
        let op = builtin(graph, node).ok_or_else(|| Error::Internal("an op without a kernel".into()))?;
        let (dtype, shape) = self.ty(Value { node: id, output: 0 })?;
        let operands: Vec<Value> = node.operands.iter().flatten().copied().collect();
        let shapes = operands.iter().map(|v| Ok(self.ty(*v)?.1)).collect::<Result<Vec<_>>>()?;
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let prim = Prim::read(op, attrs, &|_| None, &shapes, &shape)?;
        if op.multiplies() {
            let view = match prim {
                Prim::Conv { axes, groups } => {
                    self.conv(index, &operands, term.as_ref(), (axes, groups), (dtype, &shape))?
                }
                _ => self.gemm(id, node, &operands, term.as_ref(), (dtype, &shape))?,
            };
            self.values.insert(Value { node: id, output: 0 }, view);
            return Ok(());
        }
        let views = operands.iter().map(|v| self.value(*v)).collect::<Result<Vec<_>>>()?;
        if let Prim::Reduce(kind, axes) = &prim
            && let Some(view) = self.pool(index, (*kind, axes), (dtype, &shape))?
        {
            self.values.insert(Value { node: id, output: 0 }, view);
            return Ok(());
        }
        let results = self.views(node, &prim, &views, dtype, &shape)?;
        let results = match results {
            Some(results) => results,
            None => vec![self.moving(node, prim, &views, dtype, &shape)?],
        };
        for (output, view) in results.into_iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view);
        }
        Ok(())
    }

    /// Ops whose results are views of their operand; `None` for others.
    fn views(
        &mut self,
        node: &Node,
        prim: &Prim,
        x: &[View],
        dtype: DType,
        shape: &[usize],
    ) -> Result<Option<Vec<View>>> {
        if let Prim::Full(value) = prim {
            let one = Tensor::from_f64(dtype, &[], &[*value]).ok_or_else(|| Error::Internal("a number".into()))?;
            return Ok(self.constant(&Arc::new(one)).broadcast(shape).map(|v| vec![v]));
        }
        let Some(x) = x.first() else { return Ok(None) };
        Ok(Some(match prim {
            Prim::Reshape => {
                let view = match x.reshaped(shape) {
                    Some(view) => Some(view),
                    None => self.contiguous(x, &node.name)?.reshaped(shape),
                };
                vec![view.ok_or_else(|| Error::Internal(format!("reshape of {:?} to {shape:?}", x.shape)))?]
            }
            Prim::Transpose(perm) => vec![x.transposed(perm)],
            Prim::Expand => {
                let view = x.broadcast(shape);
                vec![view.ok_or_else(|| Error::Internal(format!("expand of {:?} to {shape:?}", x.shape)))?]
            }
            Prim::Slice { axis, start, step } => {
                let start = usize::try_from(*start).map_err(|_| Error::Internal("a slice from before 0".into()))?;
                vec![x.sliced(*axis, start, *step as isize, shape[*axis])]
            }
            Prim::Windows(axes) => {
                let lead = x.shape.len() - axes.len();
                vec![x.windowed(axes, &shape[lead..lead + axes.len()])]
            }
            Prim::Split { axis, sizes } => {
                let starts = sizes.iter().scan(0, |at, size| Some(std::mem::replace(at, *at + size)));
                starts.zip(sizes).map(|(start, size)| x.sliced(*axis, start, 1, *size)).collect()
            }
            // A reduction over no axes.
            Prim::Reduce(_, axes) if axes.is_empty() => vec![x.clone()],
            _ => return Ok(None),
        }))
    }

    /// Ops that move or reduce elements.
    fn moving(&mut self, node: &Node, prim: Prim, x: &[View], dtype: DType, shape: &[usize]) -> Result<View> {
        let mut reads = x.to_vec();
        let action = match prim {
            Prim::Concat(axis) => Action::Concat(axis),
            Prim::Pad(before) => Action::Pad(before),
            Prim::Gather(axis) => Action::Gather(axis),
            Prim::GatherElements(axis) => Action::GatherElements(axis),
            Prim::GatherNd(batch) => Action::GatherNd(batch),
            Prim::Scatter(reduction) => Action::Scatter(reduction),
            Prim::Argsort(axis, descending) => Action::Argsort(axis, descending),
            Prim::Reduce(kind, axes) => Action::Reduce(kind, axes),
            Prim::Cumsum(how) => Action::Cumsum(how),
            Prim::Argmax { axis, last } => Action::Argmax(axis, last),
            other => return Err(Error::Internal(format!("{other:?} cannot be planned"))),
        };
        let whole = matches!(
            action,
            Action::Gather(_)
                | Action::GatherElements(_)
                | Action::GatherNd(_)
                | Action::Scatter(_)
                | Action::Cumsum(_)
        );
        if whole {
            // A scatter begins with a copy of its operand, whatever its strides.
            let copied = usize::from(matches!(action, Action::Scatter(_)));
            for r in &mut reads[copied..] {
                *r = self.contiguous(r, &node.name)?;
            }
        }
        let out = self.fresh(dtype, shape)?;
        let mut writes = vec![out.clone()];
        writes.extend(self.workspace(&action, &reads, &out)?);
        self.step(&node.name, action, reads, writes);
        Ok(out)
    }

    fn gemm(
        &mut self,
        id: NodeId,
        node: &Node,
        operands: &[Value],
        term: Option<&Term>,
        (dtype, shape): (DType, &[usize]),
    ) -> Result<View> {
        let [a, b, reads @ ..] = operands else { return Err(Error::Internal("a product of one operand".into())) };
        let (mut a, b) = (self.value(*a)?, self.value(*b)?);
        let mut known = vec![self.known(&a), self.known(&b)];
        let order = self.row_order(&a, &b, shape).filter(|_| !self.graph.outputs.iter().any(|(_, v)| v.node == id));
        let order = order.unwrap_or_else(|| (0..shape.len()).collect());
        let stored: Vec<usize> = order.iter().map(|axis| shape[*axis]).collect();
        if !order.is_sorted() {
            let wide = a.broadcast(&[&shape[..shape.len() - 1], &a.shape[a.shape.len() - 1..]].concat());
            a = wide.ok_or_else(|| Error::Internal("rows that do not broadcast".into()))?.transposed(&order);
        }
        let (step, mut views) = self.operands(&node.name, [&a, &b], &stored)?;
        for r in reads {
            let view = self.value(*r)?;
            known.push(self.known(&view));
            views.push(self.broadcast(*r, shape)?.transposed(&order));
        }
        let step = GemmStep { term: term.cloned().unwrap_or_else(plain), ..step };
        let out = self.fresh(dtype, &stored)?;
        let copied = self.worth_copying(&step, &views);
        self.product(&node.name, step, (views, copied), (known, &node.kernels), out.clone())?;
        Ok(out.transposed(&inverse(&order)))
    }

    /// A product of two operands with result `shape`, and the two broadcast to it, as matrices that
    /// the device accepts.
    pub(super) fn operands(
        &mut self,
        name: &str,
        [a, b]: [&View; 2],
        shape: &[usize],
    ) -> Result<(GemmStep, Vec<View>)> {
        let (Some(k), Some((batch, [m, n]))) = (a.shape.last().copied(), shape.split_last_chunk::<2>()) else {
            return Err(Error::Internal("a product of rank below 2".into()));
        };
        let wide = |v: &View, rows: usize, columns: usize| {
            let view = v.broadcast(&[batch, &[rows, columns]].concat());
            view.ok_or_else(|| Error::Internal(format!("a product of {:?} into {shape:?}", v.shape)))
        };
        let mut views = vec![wide(a, *m, k)?, wide(b, k, *n)?];
        if !self.plan.device.is_host() && a.dtype.is_float() {
            // The library needs matrices with one dense axis; the kernels for integer products
            // accept any strides.
            for view in views.iter_mut().filter(|v| !v.is_empty() && !v.is_matrix()) {
                *view = self.contiguous(view, name)?;
            }
        }
        let acc = a.dtype.accumulator();
        Ok((GemmStep { batch: batch.to_vec(), m: *m, n: *n, k, acc, term: plain(), reduced: Vec::new() }, views))
    }

    /// A product with the first candidate that fits. `views` are a, b and the term's operands, all
    /// broadcast, and whether a and b should be copied; `known` holds the properties of each before
    /// it was broadcast.
    pub(super) fn product(
        &mut self,
        name: &str,
        step: GemmStep,
        (views, copied): (Vec<View>, [bool; 2]),
        (known, kernels): (Vec<Known>, &Kernels),
        out: View,
    ) -> Result<()> {
        let (program, device) = (self.plan.program.clone(), self.plan.device.clone());
        let product = Product { term: &step.term, from: views[0].dtype, to: out.dtype };
        let strategy = if device.is_host() { Strategy::Whole } else { product.without_kernel(&program) };
        let last = Candidate { strategy, matched: None };
        let listed = if kernels.device == device.name { kernels.list.as_slice() } else { &[] };
        let checked = self.plan.checks != Checks::Off;
        let fits = |c: &Candidate| {
            let lies = c.matched.as_ref().is_none_or(|m| {
                let reads = m.reads.iter().all(|(i, view)| views.get(*i).is_some_and(|v| reads_as(*view, v)));
                reads && !(checked && hides_accumulators(&program, m.kernel))
            });
            lies && c.refusal(&program, &|i| known.get(i).cloned(), &device).is_none()
        };
        let all: Vec<&Candidate> = listed.iter().chain([&last]).collect();
        let run: Vec<&Candidate> = running(&program, &all, &fits).into_iter().map(|at| all[at]).collect();
        self.first_of(name, &run, step, ((views, copied), &known), out)
    }

    /// A product with the first of these candidates, with the others as its fallback if it needs
    /// one.
    fn first_of(
        &mut self,
        name: &str,
        candidates: &[&Candidate],
        step: GemmStep,
        ((views, copied), known): ((Vec<View>, [bool; 2]), &[Known]),
        out: View,
    ) -> Result<()> {
        let Some((first, rest)) = candidates.split_first() else {
            return Err(Error::Internal("a product without a candidate".into()));
        };
        let (program, device) = (self.plan.program.clone(), self.plan.device.clone());
        let called = first.matched.as_ref().filter(|_| first.needs_fallback(&program));
        let Some(matched) = called else { return self.chosen(name, first, step, (views, copied), out) };
        let kernel = &program.kernels[matched.kernel.index()];
        let called = match kernel.backend {
            Backend::Template(_) => {
                let launches = DeclaredLaunch::all(kernel, matched, &|i| known.get(i).cloned(), &device);
                Called::Template(TemplateStep { product: Some(step.clone()), attrs: Vec::new(), launches })
            }
            Backend::Tiled => {
                let inputs: Vec<DType> = views[2..].iter().map(|v| v.dtype).collect();
                let term = wrap_integers(&program, &step.term, step.acc, &inputs)?;
                Called::Product(GemmStep { term, ..step.clone() })
            }
            // A library call has its epilogue from the kernel's name.
            _ => Called::Product(GemmStep { term: plain(), ..step.clone() }),
        };
        let first = self.plan.steps.len();
        let kept = self.copies.clone();
        self.first_of(name, rest, step, ((views.clone(), copied), known), out.clone())?;
        let fallback = self.plan.steps.split_off(first);
        self.copies = kept;
        self.call_or_fallback(name, Some(matched.kernel), called, views, vec![out], fallback);
        Ok(())
    }

    /// A product with that candidate.
    fn chosen(
        &mut self,
        name: &str,
        candidate: &Candidate,
        step: GemmStep,
        (views, copied): (Vec<View>, [bool; 2]),
        out: View,
    ) -> Result<()> {
        let Strategy::Split(split) = &candidate.strategy else {
            return self.multiply(name, candidate.kernel(), step, (views, copied), out);
        };
        let mid = self.fresh(split.between, &out.shape)?;
        let (head, head_reads) = narrow(&split.head, &views[2..]);
        let head_views = [&views[..2], &head_reads].concat();
        let head = GemmStep { term: head, ..step };
        self.multiply(name, candidate.kernel(), head, (head_views, copied), mid.clone())?;
        let inputs: Vec<DType> = views[2..].iter().map(|v| v.dtype).collect();
        let rest = wrap_integers(&self.plan.program, &split.rest, split.between, &inputs)?;
        let (rest, rest_reads) = narrow(&rest, &views[2..]);
        self.pass(name, rest, mid, rest_reads, out);
        Ok(())
    }

    /// The known properties of an operand with that view.
    pub(super) fn known(&self, view: &View) -> Known {
        let shape = view.shape.iter().map(|d| (*d as i64).into()).collect();
        let constant = matches!(self.plan.buffers[view.buffer.index()].storage, Storage::Constant(_));
        Known { ty: TensorType { dtype: view.dtype, shape }, constant }
    }

    pub(super) fn set_kernel(&mut self, kernel: Option<hypatia_dsl::ir::KernelId>) {
        if let Some(step) = self.plan.steps.last_mut() {
            step.kernel = kernel;
        }
    }

    /// A pointwise pass over the accumulator of a gemm.
    pub(super) fn pass(&mut self, name: &str, term: Term, acc: View, reads: Vec<View>, out: View) {
        let dtype = acc.dtype;
        let reads = [reads, vec![acc]].concat();
        self.pointwise(name, term, reads, vec![out], Some(dtype));
    }

    /// A pointwise step over the index space of `writes[0]`; reads are broadcast to it. With `acc`,
    /// the last read is the accumulator, which the term calls `acc`.
    fn pointwise(&mut self, name: &str, term: Term, reads: Vec<View>, writes: Vec<View>, acc: Option<DType>) {
        let mut step = PointwiseStep::of(term, &reads, &writes, acc);
        step.kernel.name = format!("pointwise_{}", self.plan.steps.len());
        step.kernel.doc = name.to_string();
        self.step(name, Action::Pointwise(step), reads, writes);
    }

    /// The term of a region, without roots, with the values that it computes and the views that it
    /// reads, broadcast to that shape.
    fn region_term(&mut self, nodes: &[usize], shape: &[usize]) -> Result<(Term, HashMap<Value, TermId>, Vec<View>)> {
        let graph = self.graph;
        let mut term = Term::empty();
        let mut inside: HashMap<Value, TermId> = HashMap::new();
        let mut reads: Vec<(Value, View)> = Vec::new();
        for index in nodes {
            let node = &graph.nodes[*index];
            let mut args = Vec::new();
            for v in node.operands.iter().flatten() {
                let arg = match inside.get(v) {
                    Some(id) => *id,
                    None => match literal(graph, node, *v) {
                        Some(number) => term.add(TermNode::Lit(Literal(number))),
                        None => {
                            let input = match reads.iter().position(|(w, _)| w == v) {
                                Some(i) => i,
                                None => {
                                    reads.push((*v, self.broadcast(*v, shape)?));
                                    reads.len() - 1
                                }
                            };
                            term.add(TermNode::In { input: input as u32, view: InView::Broadcast })
                        }
                    },
                };
                args.push(arg);
            }
            let id = match (&node.kind, args.first()) {
                (NodeKind::Scalar(scalar), _) => term.add(TermNode::Call { scalar: *scalar, args }),
                (_, Some(arg)) => term.add(TermNode::Cast { to: node.results[0].dtype, arg: *arg }),
                _ => return Err(Error::Internal("a cast of nothing".into())),
            };
            let dtype = node.results[0].dtype;
            // Generated code computes integers in 64 bits: each result wraps to its own width, as
            // if it were stored.
            let wraps = !self.plan.device.is_host() && dtype.is_int() && dtype != DType::I64;
            // Where results must be the bits of the plan without rules, each is rounded as it is
            // there.
            let rounds = self.plan.allowed.is_exact() && dtype.is_float() && dtype.compute() != dtype;
            let id = if wraps || rounds { term.add(TermNode::Cast { to: dtype, arg: id }) } else { id };
            inside.insert(Value { node: NodeId(*index as u32), output: 0 }, id);
        }
        Ok((term, inside, reads.into_iter().map(|(_, v)| v).collect()))
    }

    /// A region of pointwise nodes.
    fn region(&mut self, nodes: &[usize]) -> Result<()> {
        let graph = self.graph;
        let last = nodes.last().copied().ok_or_else(|| Error::Internal("an empty region".into()))?;
        let (_, shape) = self.ty(Value { node: NodeId(last as u32), output: 0 })?;
        let (mut term, inside, mut reads) = self.region_term(nodes, &shape)?;
        let stored = nodes.iter().filter(|n| self.leaves_group[**n]);
        let stored: Vec<Value> = stored.map(|n| Value { node: NodeId(*n as u32), output: 0 }).collect();
        let order = self.pointwise_order(&reads, &shape).or_else(|| self.read_order(&stored, &shape));
        if let Some(order) = &order {
            reads.iter_mut().for_each(|v| *v = v.transposed(order));
        }
        let mut writes = Vec::new();
        for value in stored {
            let [out, seen] = self.fresh_in(graph.ty(value).dtype, &shape, order.as_deref())?;
            term.roots.push(inside[&value]);
            self.values.insert(value, seen);
            writes.push(out);
        }
        if writes.is_empty() {
            return Ok(());
        }
        let mut known = HashSet::new();
        let names = nodes.iter().map(|n| graph.nodes[*n].name.as_str());
        let names: Vec<&str> = names.filter(|n| !n.is_empty() && known.insert(*n)).collect();
        self.pointwise(&names.join(" + "), term, reads, writes, None);
        Ok(())
    }

    /// A region with a row-wise kernel.
    fn rows(&mut self, region: &RowwiseRegion) -> Result<()> {
        let mut rows = Rows { kernel: region.kernel.clone(), space: region.space.clone() };
        let mut reads = Vec::new();
        for operand in &region.operands {
            reads.push(match operand {
                RowsOperand::Value(v) => self.value(*v)?,
                RowsOperand::Positions(dtype, count) => {
                    let places: Vec<f64> = (0..*count).map(|i| i as f64).collect();
                    let tensor = Tensor::from_f64(*dtype, &[*count], &places);
                    self.constant(&Arc::new(tensor.ok_or_else(|| Error::Internal("places of a row".into()))?))
                }
            });
        }
        for gathered in &mut rows.kernel.gathers {
            let (table, axis) = (&reads[gathered.table], gathered.axis);
            let apart = table.strides.get(axis).copied().unwrap_or(0);
            let in_place = match region.kernel.inputs[gathered.table].1 {
                RowAccess::Gathered => table.is_contiguous(),
                _ => apart > 0,
            };
            // Its first row stands for a table: the kernel finds the others itself.
            let table = if in_place { table.clone() } else { self.contiguous(table, &region.kernel.doc)? };
            gathered.width = usize::try_from(table.strides[axis]).unwrap_or(gathered.width);
            reads[gathered.table] = table.sliced(axis, 0, 1, 1);
            reads[gathered.index] = self.contiguous(&reads[gathered.index], &region.kernel.doc)?;
        }
        let place = |v: &Value| region.operands.iter().position(|o| matches!(o, RowsOperand::Value(w) if w == v));
        let lookups = region.lookups.iter().filter_map(|(v, count)| Some((place(v)?, *count))).collect();
        self.rowwise(&region.kernel.doc, &rows, reads, &region.results, lookups)
    }

    fn rowwise_node(&mut self, id: NodeId, node: &Node, rows: &Rows) -> Result<()> {
        let reads = node.operands.iter().flatten().map(|v| self.value(*v)).collect::<Result<Vec<View>>>()?;
        let results = (0..node.results.len()).map(|output| Value { node: id, output: output as u32 });
        self.rowwise(&node.name, rows, reads, &results.collect::<Vec<_>>(), Vec::new())
    }

    fn rowwise(
        &mut self,
        name: &str,
        rows: &Rows,
        reads: Vec<View>,
        results: &[Value],
        lookups: Vec<(usize, usize)>,
    ) -> Result<()> {
        let types = results.iter().map(|v| self.ty(*v)).collect::<Result<Vec<(DType, Vec<usize>)>>>()?;
        let shapes: Vec<Vec<usize>> = types.iter().map(|(_, shape)| shape.clone()).collect();
        let step = rows.step(&reads, &shapes);
        let mut step =
            step.ok_or_else(|| Error::Internal(format!("kernel {} does not fit its operands", rows.kernel.name)))?;
        let mut writes = Vec::new();
        for (value, (dtype, shape)) in results.iter().zip(types) {
            let out = self.fresh(dtype, &shape)?;
            self.values.insert(*value, out.clone());
            writes.push(out);
        }
        step.kernel.name = format!("{}_{}", step.kernel.name, self.plan.steps.len());
        step.lookups = lookups;
        let action = Action::Rowwise(step);
        if let Some(last) = writes.last().cloned() {
            writes.extend(self.workspace(&action, &reads, &last)?);
        }
        self.step(name, action, reads, writes);
        Ok(())
    }
}

/// The term of a plain product.
pub(super) fn plain() -> Term {
    Product::plain()
}

/// True if an operand, broadcast to the output, can be read with that view.
fn reads_as(view: InView, read: &View) -> bool {
    let Some((last, lead)) = read.strides.split_last() else { return true };
    let columns = read.shape.last().copied().unwrap_or(1);
    match view {
        InView::Broadcast => true,
        InView::Full => read.is_contiguous(),
        InView::Row => lead.iter().all(|s| *s == 0) && (*last == 1 || columns == 1),
        InView::Col => {
            let rows = View { shape: read.shape[..lead.len()].to_vec(), strides: lead.to_vec(), ..read.clone() };
            (*last == 0 || columns == 1) && rows.is_contiguous()
        }
    }
}

/// The term without its unused inputs, and the reads of the remaining ones.
fn narrow(term: &Term, reads: &[View]) -> (Term, Vec<View>) {
    let mut kept: Vec<u32> = Vec::new();
    let mut term = term.clone();
    for node in &mut term.nodes {
        if let TermNode::In { input, .. } = node {
            let at = kept.iter().position(|k| k == input).unwrap_or_else(|| {
                kept.push(*input);
                kept.len() - 1
            });
            *input = at as u32;
        }
    }
    let views = kept.iter().filter_map(|k| reads.get(*k as usize).cloned()).collect();
    (term, views)
}

/// True if a kernel stores something else than its accumulators, which nobody else sees.
fn hides_accumulators(program: &Program, kernel: KernelId) -> bool {
    matches!(&program.kernels[kernel.index()].backend, Backend::Cublaslt(epilogue) if *epilogue != Epilogue::Default)
}
