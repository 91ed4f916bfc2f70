//! Convolutions, and the memory layout of their channels.
//!
//! In: a convolution and its operands. Out: a step, and a view of its result with the channels
//! where the graph has them. Invariant: the host computes with channels last (NHWC) if the filters
//! are constant, there are enough channels to fill vectors, and the result need not be transposed
//! back at once. Later steps read the result through strides, and pointwise work keeps the layout.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::scalar::Term;

use super::{Lower, plain};
use crate::view::{View, inverse, row_major};
use crate::{Action, ConvStep, Storage};
use hypatia_graph::prim::Window;
use hypatia_graph::{ConvSizes, Graph, Value, builtin, multiplies_groups};
use hypatia_tensor::error::{Error, Result};

/// Minimum number of filters for which channels last pays off.
const FEW: usize = 8;
/// For images with at most this many positions, transposing costs less than a product with so few
/// columns.
const SMALL: usize = 1 << 10;

/// The nodes read by a convolution, directly or through pointwise work.
pub(super) fn feeds_convolution(graph: &Graph, pointwise: &[bool]) -> Vec<bool> {
    let mut leads = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let convolves = matches!(builtin(graph, node), Some(BuiltinOp::Conv | BuiltinOp::ConvGemm));
        if convolves || (pointwise[i] && leads[i]) {
            node.operands.iter().flatten().for_each(|v| leads[v.node.index()] = true);
        }
    }
    leads
}

/// The permutation that moves the channels, axis 1, to the end.
pub(super) fn channels_last(rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).filter(|a| *a != 1).collect();
    order.push(1);
    order
}

/// An image whose channels lie last in memory, with its axes in that order; `None` for another.
pub(super) fn as_lies_last(x: &View) -> Option<View> {
    let last = (x.shape.len() == 4 && !x.is_empty()).then(|| x.transposed(&channels_last(4)))?;
    (last.is_contiguous() && !x.is_contiguous()).then_some(last)
}

impl Lower<'_> {
    /// The convolution of the graph's node `index`. The host runs it as one step, with any
    /// epilogue; other devices run the steps that [`super::im2col`] makes of it.
    pub(super) fn conv(
        &mut self,
        index: usize,
        operands: &[Value],
        term: Option<&Term>,
        (windows, groups): (Vec<Window>, usize),
        (dtype, shape): (DType, &[usize]),
    ) -> Result<View> {
        let (graph, follows) = (self.graph, self.feeds_convolution[index]);
        let node = &graph.nodes[index];
        let [x, w, reads @ ..] = operands else { return Err(Error::Internal("a convolution of one operand".into())) };
        let (x, w) = (self.value(*x)?, self.value(*w)?);
        let acc = x.dtype.compute();
        let small = shape[2..].iter().product::<usize>() <= SMALL;
        let stays = small || follows || self.channels_last.contains(&x.buffer);
        // The order of the sums must not depend on what surrounds a convolution.
        let last = stays && !self.plan.allowed.is_exact() && self.puts_channels_last(&x, &w, &windows, groups);
        let step = ConvStep { windows, groups, channels_last: last, acc, term: term.cloned().unwrap_or_else(plain) };
        if last {
            let order = channels_last(shape.len());
            let mut views = vec![self.contiguous(&x.transposed(&order), &node.name)?, w];
            for v in reads {
                views.push(self.broadcast(*v, shape)?.transposed(&order));
            }
            let sizes: Vec<usize> = order.iter().map(|a| shape[*a]).collect();
            let out = self.fresh(dtype, &sizes)?;
            self.channels_last.insert(out.buffer);
            self.step(&node.name, Action::Conv(step), views, vec![out.clone()]);
            return Ok(out.transposed(&inverse(&order)));
        }
        let reads = reads.iter().map(|v| self.broadcast(*v, shape)).collect::<Result<Vec<_>>>()?;
        if !self.plan.device.is_host() {
            let seen = match shape.len() {
                3 => self.of_sequence(index, &step, [&x, &w], &reads, (dtype, shape))?,
                _ => self.of_channels(index, &step, [&x, &w], &reads, (dtype, shape))?,
            };
            if let Some(out) = seen {
                return Ok(out);
            }
            let products = ConvSizes::new(groups, &w.shape, shape).is_some_and(|s| s.are_products() && s.groups == 1);
            let last = products && shape.len() == 4 && graph.is_read_channels_last(&self.users[index]);
            let [_, out] = self.fresh_in(dtype, shape, last.then(|| channels_last(shape.len())).as_deref())?;
            self.im2col(node, step, [x, w], reads, out.clone())?;
            return Ok(out);
        }
        let out = self.fresh(dtype, shape)?;
        let mut views = vec![self.contiguous(&x, &node.name)?, self.contiguous(&w, &node.name)?];
        views.extend(reads);
        self.step(&node.name, Action::Conv(step), views, vec![out.clone()]);
        Ok(out)
    }

    /// A convolution of sequences whose channels lie last, as one of images of one row; the view of
    /// its result.
    fn of_sequence(
        &mut self,
        index: usize,
        step: &ConvStep,
        [x, w]: [&View; 2],
        reads: &[View],
        (dtype, shape): (DType, &[usize]),
    ) -> Result<Option<View>> {
        if x.is_contiguous() {
            return Ok(None);
        }
        let row = |v: &View| {
            let mut v = v.clone();
            v.shape.insert(2, 1);
            v.strides.insert(2, 0);
            v
        };
        // A row lies where its only one would begin.
        let dense = |v: &View| {
            let mut v = row(v);
            v.strides[2] = v.strides[3] * v.shape[3] as isize;
            v
        };
        let one = Window { size: 1, stride: 1, dilation: 1, before: 0 };
        let windows = std::iter::once(one).chain(step.windows.iter().cloned()).collect();
        let step = ConvStep { windows, ..step.clone() };
        let reads: Vec<View> = reads.iter().map(row).collect();
        let image = [shape[0], shape[1], 1, shape[2]];
        let out = self.of_channels(index, &step, [&dense(x), &dense(w)], &reads, (dtype, &image))?;
        Ok(out.map(|mut out| {
            out.shape.remove(2);
            out.strides.remove(2);
            out
        }))
    }

    /// A convolution of single channels or of groups of them, if image and result lie with their
    /// channels last, or of few channels that come first; the view of its result.
    fn of_channels(
        &mut self,
        index: usize,
        step: &ConvStep,
        [x, w]: [&View; 2],
        reads: &[View],
        (dtype, shape): (DType, &[usize]),
    ) -> Result<Option<View>> {
        let (graph, order) = (self.graph, channels_last(shape.len()));
        let few = || (x.shape.len() == 4 && x.is_contiguous()).then(|| x.transposed(&order));
        let Some(x) = as_lies_last(x).or_else(few) else { return Ok(None) };
        let step = ConvStep { channels_last: true, ..step.clone() };
        let stored: Vec<usize> = order.iter().map(|a| shape[*a]).collect();
        let whole = View::whole(x.buffer, dtype, &stored);
        let grouped = multiplies_groups(&self.plan.device) && step.on_groups(&x, w, &whole).is_some();
        let fits = grouped || (x.is_contiguous() && w.is_contiguous() && step.on_channels(&x, w, &whole).is_some());
        if !fits || !graph.is_read_channels_last(&self.users[index]) {
            return Ok(None);
        }
        let [out, seen] = self.fresh_in(dtype, shape, Some(&order))?;
        let mut views = vec![x, w.clone()];
        views.extend(reads.iter().map(|v| v.transposed(&order)));
        self.step(&graph.nodes[index].name, Action::Conv(step), views, vec![out]);
        Ok(Some(seen))
    }

    /// True if a convolution is computed with channels last.
    fn puts_channels_last(&self, x: &View, w: &View, windows: &[Window], groups: usize) -> bool {
        let [filters, depth, ..] = w.shape[..] else { return false };
        let constant = matches!(self.plan.buffers[w.buffer.index()].storage, Storage::Constant(_)) && w.is_contiguous();
        // Filters that read all channels, or one channel each.
        let all = groups == 1 && filters >= FEW;
        let each = depth == 1 && filters == groups && filters >= FEW && x.dtype == x.dtype.compute();
        self.plan.device.is_host() && constant && (1..=2).contains(&windows.len()) && !x.is_empty() && (all || each)
    }

    /// The axis order of pointwise work on the host: that of an operand with channels last, if no
    /// operand of full size has another order. `None` if the axes keep their order.
    pub(super) fn pointwise_order(&self, reads: &[View], shape: &[usize]) -> Option<Vec<usize>> {
        if !self.plan.device.is_host() || shape.len() < 3 {
            return None;
        }
        let order = channels_last(shape.len());
        let full = |v: &&View| v.strides.iter().zip(shape).all(|(stride, size)| *stride != 0 || *size == 1);
        let mut any = false;
        for v in reads.iter().filter(full) {
            if v.is_contiguous() || !v.transposed(&order).is_contiguous() {
                return None;
            }
            any |= self.channels_last.contains(&v.buffer);
        }
        any.then_some(order)
    }

    /// A new buffer with its axes in that order in memory, as two views: as written, and as the
    /// graph sees it.
    pub(super) fn fresh_in(&mut self, dtype: DType, shape: &[usize], order: Option<&[usize]>) -> Result<[View; 2]> {
        let Some(order) = order else {
            let out = self.fresh(dtype, shape)?;
            return Ok([out.clone(), out]);
        };
        let sizes: Vec<usize> = order.iter().map(|a| shape[*a]).collect();
        let out = self.fresh(dtype, &sizes)?;
        if self.plan.device.is_host() {
            self.channels_last.insert(out.buffer);
        }
        debug_assert_eq!(out.strides, row_major(&sizes));
        Ok([out.clone(), out.transposed(&inverse(order))])
    }
}
