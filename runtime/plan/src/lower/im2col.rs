//! Convolutions on devices with a kernel for those of single channels alone: products over the
//! windows (im2col), and plain sums where a group has few filters.
//!
//! In: a [`ConvStep`] and the views of its operands. Out: that step, if it is one on planes; else
//! steps of other actions. Invariant: windows that strides express as a matrix are a view. Others
//! of one or two spatial axes are copied by an `Unfold` step, which needs no padding before it. The
//! rest is padded by a `Pad` step, only where a window reaches the padding, and copied.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{Reduction, RowAccess, RowLayout, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermId, TermNode};

use super::Lower;
use super::conv::{as_lies_last, channels_last};
use crate::rows::fitted;
use crate::view::View;
use crate::windows::rows_and_columns;
use crate::{Action, ConvStep, GemmStep, UnfoldStep};
use hypatia_graph::prim::Window;
use hypatia_graph::{ConvSizes, Known, Node};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// The most elements of a window that are read one by one, and those that one pass adds up: each
/// takes the registers of two addresses.
const MOST_TAPS: usize = 64;
const TAPS: usize = 13;

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
        if !sizes.are_products() && step.on_planes(&x, &w, &out).is_some() {
            let mut views = vec![self.contiguous(&x, name)?, self.contiguous(&w, name)?];
            views.extend(reads);
            self.step(name, Action::Conv(step), views, vec![out]);
            return Ok(());
        }
        if let Some(rows) = self.unfolded_pixels(name, &step, &x, &sizes)? {
            let w = w.transposed(&channels_last(w.shape.len()));
            return self.filtered(node, step, (&sizes, rows, w), reads, out);
        }
        if sizes.are_products()
            && let Some(columns) = self.unfolded(name, &step, &x, &sizes)?
        {
            return self.filtered(node, step, (&sizes, columns, w), reads, out);
        }
        let x = self.padded(name, &step, x.clone(), &sizes)?;
        // [batch, channels, out.., taps..], with the channels split into groups.
        let windows = x.windowed(&step.windows, &sizes.out);
        let by_groups = sizes.behind_groups(&[&[sizes.channels], &sizes.out, &sizes.taps]);
        let windows = match windows.reshaped(&by_groups) {
            Some(view) => view,
            None => self.contiguous(&windows, name)?.reshaped(&by_groups).ok_or_else(odd)?,
        };
        if !sizes.are_products() {
            let few = sizes.depth() <= MOST_TAPS && windows.dtype.is_float() && !out.is_empty();
            return if few {
                self.taps(name, &step, &sizes, [windows, w], reads, out)
            } else {
                self.sums(name, &step, &sizes, [windows, w], reads, out)
            };
        }
        let columns = windows.transposed(&places_first(sizes.out.len()));
        let [_, matrix] = sizes.factors();
        let columns = match columns.reshaped(&matrix).filter(|v| v.is_empty() || v.is_matrix()) {
            Some(view) => view,
            None => self.contiguous(&columns, name)?.reshaped(&matrix).ok_or_else(odd)?,
        };
        self.filtered(node, step, (&sizes, columns, w), reads, out)
    }

    /// The windows of a convolution as the right operand of a product, by a kernel that needs no
    /// padding before it; `None` if they are a view, or not in rows and columns.
    fn unfolded(&mut self, name: &str, step: &ConvStep, x: &View, sizes: &ConvSizes) -> Result<Option<View>> {
        let (Some([n, c]), [_, matrix]) = (x.shape.first_chunk::<2>(), sizes.factors()) else { return Ok(None) };
        let image = &x.shape[2..];
        if x.is_empty() || sizes.out.contains(&0) || rows_and_columns(&step.windows, image, &sizes.out).is_none() {
            return Ok(None);
        }
        let inside = |((w, count), image): ((&Window, &usize), &usize)| w.before == 0 && w.span(*count) <= *image;
        if step.windows.iter().zip(&sizes.out).zip(image).all(inside) {
            let by_groups = sizes.behind_groups(&[&[sizes.channels], &sizes.out, &sizes.taps]);
            let windows = x.windowed(&step.windows, &sizes.out).reshaped(&by_groups);
            let columns = windows.and_then(|v| v.transposed(&places_first(sizes.out.len())).reshaped(&matrix));
            if columns.is_some_and(|v| v.is_matrix()) {
                return Ok(None);
            }
        }
        let from = self.contiguous(x, name)?;
        let out = self.fresh(x.dtype, &[&[*n, *c], sizes.taps.as_slice(), &sizes.out].concat())?;
        let windows = UnfoldStep { windows: step.windows.clone(), channels_last: false };
        self.step(name, Action::Unfold(windows), vec![from], vec![out.clone()]);
        Ok(out.reshaped(&matrix))
    }

    /// The windows of an image whose channels lie last, as the right operand of a product: a column
    /// for each, whose elements are side by side. `None` for another image.
    fn unfolded_pixels(&mut self, name: &str, step: &ConvStep, x: &View, sizes: &ConvSizes) -> Result<Option<View>> {
        let whole = sizes.groups == 1 && !sizes.out.contains(&0);
        let Some(from) = as_lies_last(x).filter(|_| whole) else { return Ok(None) };
        let shape = [&[sizes.batch], sizes.out.as_slice(), &sizes.taps, &[sizes.channels]].concat();
        let out = self.fresh(x.dtype, &shape)?;
        let windows = UnfoldStep { windows: step.windows.clone(), channels_last: true };
        self.step(name, Action::Unfold(windows), vec![from], vec![out.clone()]);
        let rows = out.reshaped(&[sizes.batch, 1, sizes.columns(), sizes.depth()]);
        Ok(rows.map(|v| v.transposed(&[0, 1, 3, 2])))
    }

    /// The product of filters and windows. The right operand has a row for each channel and place
    /// in a window, in the order of the axes of `w` behind the first.
    fn filtered(
        &mut self,
        node: &Node,
        step: ConvStep,
        (sizes, columns, w): (&ConvSizes, View, View),
        reads: Vec<View>,
        out: View,
    ) -> Result<()> {
        let name = &node.name;
        let odd = || Error::Internal(format!("a convolution with {:?}", w.shape));
        let (k, n) = (sizes.depth(), sizes.columns());
        let [rows, _] = sizes.factors();
        let filters = self.matrix_of_filters(name, &w, sizes)?.ok_or_else(odd)?;
        let filters = filters.broadcast(&rows).ok_or_else(odd)?;
        let result = sizes.behind_groups(&[&[sizes.filters, n]]);
        let mut views = vec![filters, columns];
        for read in &reads {
            views.push(self.as_shape(name, read, &result)?);
        }
        let mut out = out.reshaped(&result).ok_or_else(odd)?;
        let batch = vec![sizes.batch, sizes.groups];
        let mut product =
            GemmStep { batch, m: sizes.filters, n, k, acc: step.acc, term: step.term, reduced: Vec::new() };
        // Channels last: the result is that of the transposed product.
        if !out.is_contiguous() {
            views.swap(0, 1);
            views.iter_mut().chain([&mut out]).for_each(|v| *v = v.transposed(&[0, 1, 3, 2]));
            std::mem::swap(&mut product.m, &mut product.n);
        }
        let facts: Vec<Known> = views[..2].iter().chain(&reads).map(|v| self.known(v)).collect();
        self.product(name, product, (views, [false; 2]), (facts, &node.kernels), out)
    }

    /// The filters of each group as the rows of a matrix; where the elements of all filters at one
    /// place lie side by side, as its columns.
    fn matrix_of_filters(&mut self, name: &str, w: &View, sizes: &ConvSizes) -> Result<Option<View>> {
        let k = sizes.depth();
        let order: Vec<usize> = (1..w.shape.len()).chain([0]).collect();
        let by_place = w.transposed(&order);
        if sizes.groups == 1 && by_place.is_contiguous() {
            let columns = by_place.reshaped(&[1, k, sizes.filters]);
            return Ok(columns.map(|v| v.transposed(&[0, 2, 1])));
        }
        Ok(self.contiguous(w, name)?.reshaped(&[sizes.groups, sizes.filters, k]))
    }

    /// The operand with the padding that windows reach.
    fn padded(&mut self, name: &str, step: &ConvStep, x: View, sizes: &ConvSizes) -> Result<View> {
        let lead = x.shape.len() - step.windows.len();
        let mut shape = x.shape.clone();
        let mut before = vec![0i64; x.shape.len()];
        for (i, (w, count)) in step.windows.iter().zip(&sizes.out).enumerate() {
            shape[lead + i] = w.span(*count).max(w.before + x.shape[lead + i]);
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

    /// Each result as a pointwise term of the elements of its window: groups of few filters and few
    /// channels. Threads side by side read elements side by side. More than [`TAPS`] elements are
    /// added up in several passes.
    fn taps(
        &mut self,
        name: &str,
        step: &ConvStep,
        sizes: &ConvSizes,
        [windows, w]: [View; 2],
        reads: Vec<View>,
        out: View,
    ) -> Result<()> {
        let outer = sizes.behind_groups(&[&[sizes.filters], &sizes.out]);
        let pairs = self.elements(name, sizes, [&windows, &w], &outer)?;
        let out = out.reshaped(&outer).ok_or_else(|| Error::Internal("a convolution of few filters".into()))?;
        let passes: Vec<_> = pairs.chunks(TAPS).collect();
        let mut before: Option<View> = None;
        for (i, pass) in passes.iter().enumerate() {
            let last = i + 1 == passes.len();
            let mut views: Vec<View> = before.take().into_iter().collect();
            let (mut term, sum) = self.sum_of_products(views.len() as u32, pass.len() as u32)?;
            views.extend(pass.iter().flatten().cloned());
            let root = if last { then(&mut term, sum, &step.term, views.len() as u32)? } else { sum };
            term.roots.push(root);
            let target = if last { out.clone() } else { self.fresh(step.acc, &outer)? };
            if last {
                for read in &reads {
                    views.push(self.as_shape(name, read, &outer)?);
                }
            } else {
                before = Some(target.clone());
            }
            self.pointwise(name, term, views, vec![target], None);
        }
        Ok(())
    }

    /// For each element of a window, the operand's elements and the filters', both of that shape.
    fn elements(
        &mut self,
        name: &str,
        sizes: &ConvSizes,
        [windows, w]: [&View; 2],
        outer: &[usize],
    ) -> Result<Vec<[View; 2]>> {
        let axes = sizes.out.len();
        let row = [&[sizes.channels], sizes.taps.as_slice()].concat();
        let w = self.contiguous(w, name)?.reshaped(&[&[sizes.groups, sizes.filters], row.as_slice()].concat());
        let w = w.ok_or_else(|| Error::Internal("filters of another shape".into()))?;
        let of_x = [&windows.strides[..2], &[0], &windows.strides[3..3 + axes]].concat();
        let mut of_w = vec![0, w.strides[0], w.strides[1]];
        of_w.resize(outer.len(), 0);
        let in_x = [&[windows.strides[2]], &windows.strides[3 + axes..]].concat();
        let at = |view: &View, strides: &[isize], within: &[isize], index: &[usize]| -> Result<View> {
            let step: isize = within.iter().zip(index).map(|(stride, i)| stride * *i as isize).sum();
            let offset = view.offset.checked_add_signed(step);
            let offset = offset.ok_or_else(|| Error::Internal("a window before its operand".into()))?;
            Ok(View { offset, shape: outer.to_vec(), strides: strides.to_vec(), ..view.clone() })
        };
        let mut index = vec![0; row.len()];
        let mut pairs = Vec::with_capacity(sizes.depth());
        for _ in 0..sizes.depth() {
            pairs.push([at(windows, &of_x, &in_x, &index)?, at(&w, &of_w, &w.strides[2..], &index)?]);
            for (i, size) in index.iter_mut().zip(&row).rev() {
                *i = (*i + 1) % size;
                if *i != 0 {
                    break;
                }
            }
        }
        Ok(pairs)
    }

    /// The sum of `count` products of neighbouring inputs, behind `before` inputs, which are added
    /// first.
    fn sum_of_products(&self, before: u32, count: u32) -> Result<(Term, TermId)> {
        let scalar = |s: BuiltinScalar| {
            self.plan.program.builtin_scalar(s).ok_or_else(|| Error::Internal(format!("no scalar {s:?}")))
        };
        let (add, mul) = (scalar(BuiltinScalar::Add)?, scalar(BuiltinScalar::Mul)?);
        let mut term = Term::empty();
        let input = |term: &mut Term, input: u32| term.add(TermNode::In { input, view: InView::Broadcast });
        let mut parts: Vec<TermId> = (0..before).map(|i| input(&mut term, i)).collect();
        for i in 0..count {
            let args = [before + 2 * i, before + 2 * i + 1].map(|i| input(&mut term, i)).to_vec();
            parts.push(term.add(TermNode::Call { scalar: mul, args }));
        }
        let mut sum = *parts.first().ok_or_else(|| Error::Internal("a window of nothing".into()))?;
        for part in &parts[1..] {
            sum = term.add(TermNode::Call { scalar: add, args: vec![sum, *part] });
        }
        Ok((term, sum))
    }

    /// Each result as a sum over its window: groups of few filters.
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

/// The order of axes that makes `[batch, groups, channels, out.., taps..]` a matrix with a row for
/// each channel and place in a window.
fn places_first(axes: usize) -> Vec<usize> {
    (0..3).chain(3 + axes..3 + 2 * axes).chain(3..3 + axes).collect()
}

/// Adds the epilogue of a convolution to a term: its accumulator is `sum`, and its operands come
/// behind `inputs` others.
fn then(term: &mut Term, sum: TermId, epilogue: &Term, inputs: u32) -> Result<TermId> {
    let mut map: Vec<TermId> = Vec::with_capacity(epilogue.nodes.len());
    for node in &epilogue.nodes {
        let node = node.map_args(|a| map[a.0 as usize]);
        map.push(match node {
            TermNode::Acc => sum,
            TermNode::In { input, view } => term.add(TermNode::In { input: input + inputs, view }),
            other => term.add(other),
        });
    }
    let root = epilogue.roots.first().map(|root| map[root.0 as usize]);
    root.ok_or_else(|| Error::Internal("an epilogue without a result".into()))
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
