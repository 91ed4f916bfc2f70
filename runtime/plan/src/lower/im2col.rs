//! Convolutions on devices without a kernel for them: products over the windows (im2col), and plain
//! sums where a group has few filters.
//!
//! In: a [`ConvStep`] and the views of its operands. Out: steps of other actions. Invariant:
//! padding of the operand is a `Pad` step, made only where a window reaches the padding. Windows
//! that tile the operand without overlaps or gaps are a view. The matrix of the windows (im2col) is
//! copied only where strides cannot express it.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{Reduction, RowAccess, RowLayout, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermNode};

use super::Lower;
use crate::rows::fitted;
use crate::view::View;
use crate::{Action, ConvStep, GemmStep};
use hypatia_graph::{ConvSizes, Known, Node};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

impl Lower<'_> {
    /// The steps of a convolution. `reads` are the operands of its term, broadcast to `out`.
    pub(super) fn im2col(
        &mut self,
        node: &Node,
        step: ConvStep,
        [x, w]: [View; 2],
        reads: Vec<View>,
        out: View,
    ) -> Result<()> {
        let name = &node.name;
        let odd = || Error::Internal(format!("a convolution of {:?} with {:?}", x.shape, w.shape));
        let sizes = ConvSizes::new(step.groups, &w.shape, &out.shape).ok_or_else(odd)?;
        let x = self.padded(name, &step, x.clone(), &sizes)?;
        // [batch, channels, out.., taps..], with the channels split into groups.
        let windows = x.windowed(&step.windows, &sizes.out);
        let by_groups = sizes.behind_groups(&[&[sizes.channels], &sizes.out, &sizes.taps]);
        let windows = match windows.reshaped(&by_groups) {
            Some(view) => view,
            None => self.contiguous(&windows, name)?.reshaped(&by_groups).ok_or_else(odd)?,
        };
        if !sizes.are_products() {
            return self.sums(name, &step, &sizes, [windows, w], reads, out);
        }
        // [batch, groups, channels, taps.., out..] is the right operand: a row for each channel and
        // tap.
        let axes = sizes.out.len();
        let mut order: Vec<usize> = vec![0, 1, 2];
        order.extend(3 + axes..3 + 2 * axes);
        order.extend(3..3 + axes);
        let (k, n) = (sizes.depth(), sizes.columns());
        let columns = windows.transposed(&order);
        let [rows, matrix] = sizes.factors();
        let columns = match columns.reshaped(&matrix).filter(|v| v.is_empty() || v.is_matrix()) {
            Some(view) => view,
            None => self.contiguous(&columns, name)?.reshaped(&matrix).ok_or_else(odd)?,
        };
        let filters = self.contiguous(&w, name)?.reshaped(&[sizes.groups, sizes.filters, k]).ok_or_else(odd)?;
        let filters = filters.broadcast(&rows).ok_or_else(odd)?;
        let result = sizes.behind_groups(&[&[sizes.filters, n]]);
        let mut facts: Vec<Known> = vec![self.known(&filters), self.known(&columns)];
        let mut views = vec![filters, columns];
        for read in &reads {
            facts.push(self.known(read));
            views.push(self.as_shape(name, read, &result)?);
        }
        let batch = vec![sizes.batch, sizes.groups];
        let product = GemmStep { batch, m: sizes.filters, n, k, acc: step.acc, term: step.term };
        let out = out.reshaped(&result).ok_or_else(odd)?;
        self.product(name, product, (views, [false; 2]), (facts, &node.kernels), out)
    }

    /// The operand with the padding that windows reach.
    fn padded(&mut self, name: &str, step: &ConvStep, x: View, sizes: &ConvSizes) -> Result<View> {
        let lead = x.shape.len() - step.windows.len();
        let mut shape = x.shape.clone();
        let mut before = vec![0i64; x.shape.len()];
        for (i, (w, count)) in step.windows.iter().zip(&sizes.out).enumerate() {
            let end = count.saturating_sub(1) * w.stride + w.size.saturating_sub(1) * w.dilation + 1;
            shape[lead + i] = end.max(w.before + x.shape[lead + i]);
            before[lead + i] = w.before as i64;
        }
        if shape == x.shape || sizes.out.contains(&0) {
            return Ok(x);
        }
        let zero = Tensor::from_f64(x.dtype, &[], &[0.0]).ok_or_else(|| Error::Internal("a zero".into()))?;
        let zero = self.constant(&Arc::new(zero));
        let out = self.fresh(x.dtype, &shape)?;
        self.step(name, Action::Pad(before), vec![x, zero], vec![out.clone()]);
        Ok(out)
    }

    fn as_shape(&mut self, name: &str, view: &View, shape: &[usize]) -> Result<View> {
        let reshaped = match view.reshaped(shape) {
            Some(v) => Some(v),
            None => self.contiguous(view, name)?.reshaped(shape),
        };
        reshaped.ok_or_else(|| Error::Internal(format!("{:?} as {shape:?}", view.shape)))
    }

    /// Each result as a sum over its window: depthwise convolutions.
    fn sums(
        &mut self,
        name: &str,
        step: &ConvStep,
        sizes: &ConvSizes,
        [windows, w]: [View; 2],
        reads: Vec<View>,
        out: View,
    ) -> Result<()> {
        let odd = || Error::Internal("a convolution of few filters".into());
        // Rows: batch, group, filter, out.. Elements of a row: channel, taps..
        let outer = sizes.behind_groups(&[&[sizes.filters], &sizes.out]);
        let row = [&[sizes.channels], sizes.taps.as_slice()].concat();
        let mut of_x = windows.strides[..2].to_vec();
        let axes = sizes.out.len();
        of_x.push(0);
        of_x.extend(&windows.strides[3..3 + axes]);
        of_x.push(windows.strides[2]);
        of_x.extend(&windows.strides[3 + axes..]);
        let w = self.contiguous(&w, name)?;
        let w_row = w.reshaped(&[&[sizes.groups, sizes.filters], row.as_slice()].concat()).ok_or_else(odd)?;
        let mut of_w = vec![0, w_row.strides[0], w_row.strides[1]];
        of_w.resize(outer.len(), 0);
        of_w.extend(&w_row.strides[2..]);
        let mut strides = vec![of_x, of_w];
        let mut views = vec![windows, w];
        for read in &reads {
            let view = self.as_shape(name, read, &outer)?;
            strides.push([view.strides.as_slice(), &vec![0; row.len()]].concat());
            views.push(view);
        }
        let result = out.reshaped(&outer).ok_or_else(odd)?;
        strides.push([result.strides.as_slice(), &vec![0; row.len()]].concat());
        let layout = RowLayout { sizes: [outer.as_slice(), &row].concat(), outer: outer.len(), strides };
        let mul = self.plan.program.builtin_scalar(BuiltinScalar::Mul).ok_or_else(odd)?;
        let mut product = Term::empty();
        let args = [0, 1].map(|input| product.add(TermNode::In { input, view: InView::Broadcast }));
        let root = product.add(TermNode::Call { scalar: mul, args: args.to_vec() });
        product.roots.push(root);
        let kernel = RowwiseKernel {
            name: "conv".into(),
            doc: name.to_string(),
            inputs: views.iter().map(|v| (v.dtype, RowAccess::Strided)).collect(),
            steps: vec![(Reduction::Sum, product)],
            outputs: vec![(out.dtype, RowAccess::PerRow, epilogue(&step.term, views.len() as u32))],
            axes: [1, 1],
            gathers: Vec::new(),
            sums: Vec::new(),
            groups: None,
        };
        let step = fitted(kernel, &layout);
        self.step(name, Action::Rowwise(step), views, vec![out]);
        Ok(())
    }
}

/// The term for a row-wise kernel: the kernel's inputs are those of the sum, whose result is input
/// `sum`, then the term's own.
fn epilogue(term: &Term, sum: u32) -> Term {
    let mut term = term.clone();
    for node in &mut term.nodes {
        match node {
            TermNode::In { input, .. } => *input += 2,
            TermNode::Acc => *node = TermNode::In { input: sum, view: InView::Broadcast },
            _ => {}
        }
    }
    term
}
