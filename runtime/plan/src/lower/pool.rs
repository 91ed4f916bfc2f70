//! Pooling, for devices with a kernel for it.
//!
//! In: a reduction of windows. Out: a step, and a view of its result with the channels where the
//! graph has them; none if no kernel reduces such windows. Invariant: where what follows reads the
//! channels last, an image whose channels lie first is copied; elsewhere each channel of an image
//! that lies in its order is an image of one channel.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{PoolKernel, Reduction};

use super::Lower;
use super::conv::{as_lies_last, channels_last};
use crate::view::View;
use crate::windows::rows_and_columns;
use crate::{Action, PoolStep};
use hypatia_graph::prim::Prim;
use hypatia_graph::{NodeKind, Value, builtin};
use hypatia_tensor::error::Result;

impl Lower<'_> {
    /// The step of a reduction over these axes by the graph's node `index`, if it is pooling.
    pub(super) fn pool(
        &mut self,
        index: usize,
        (kind, axes): (Reduction, &[usize]),
        (dtype, shape): (DType, &[usize]),
    ) -> Result<Option<View>> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        // The axes of the windows may be kept, with one element each.
        let of_pixels = shape.len() == 4 || matches!(shape, [_, _, _, _, 1, 1]);
        let of_image = !self.plan.device.is_host() && axes == [4, 5] && of_pixels && !shape.contains(&0);
        let Some(windows) = node.operands.first().copied().flatten().filter(|_| of_image) else { return Ok(None) };
        let made = graph.node(windows.node);
        let (Some(BuiltinOp::Windows), NodeKind::Op { attrs, .. }) = (builtin(graph, made), &made.kind) else {
            return Ok(None);
        };
        let Some(image) = made.operands.first().copied().flatten() else { return Ok(None) };
        let (of_image, of_windows) = (self.ty(image)?.1, self.ty(windows)?.1);
        let prim = Prim::read(BuiltinOp::Windows, attrs, &|_| None, &[&of_image], &of_windows)?;
        let Prim::Windows(windows) = prim else { return Ok(None) };
        let Some((along, _)) = rows_and_columns(&windows, &of_image[2..], &shape[2..4]) else { return Ok(None) };
        let last = shape.len() == 4 && graph.is_read_channels_last(&self.users[index]);
        let fits = windows.len() == 2 && PoolKernel::fits(along, if last { of_image[1] } else { 1 }, dtype, kind);
        if !fits {
            return Ok(None);
        }
        if !last {
            let step = PoolStep { windows, kind };
            return self.pooled_planes(&node.name, step, image, (dtype, shape));
        }
        let x = self.value(image)?;
        let x = match as_lies_last(&x) {
            Some(x) => x,
            None => self.contiguous(&x.transposed(&channels_last(shape.len())), &node.name)?,
        };
        let [out, seen] = self.fresh_in(dtype, shape, Some(&channels_last(shape.len())))?;
        self.step(&node.name, Action::Pool(PoolStep { windows, kind }), vec![x], vec![out]);
        Ok(Some(seen))
    }

    /// The step of pooling where the channels come first; the view of its result, or none for a
    /// view of an image.
    fn pooled_planes(
        &mut self,
        name: &str,
        step: PoolStep,
        image: Value,
        (dtype, shape): (DType, &[usize]),
    ) -> Result<Option<View>> {
        let x = self.value(image)?;
        // A view is reduced as it lies, without a copy.
        if !x.is_contiguous() {
            return Ok(None);
        }
        let planes = |v: &View| v.reshaped(&[v.shape[0] * v.shape[1], v.shape[2], v.shape[3], 1]);
        let out = self.fresh(dtype, shape)?;
        let (Some(read), Some(written)) = (planes(&x), planes(&out)) else { return Ok(None) };
        self.step(name, Action::Pool(step), vec![read], vec![written]);
        Ok(Some(out))
    }
}
