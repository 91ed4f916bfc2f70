//! Pooling of images whose channels lie last, for devices with a kernel for it.
//!
//! In: a reduction of windows. Out: a step, and a view of its result with the channels where the
//! graph has them; none if what follows reads them first, or no kernel reduces such windows.
//! Invariant: an image whose channels lie first is copied.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{PoolKernel, Reduction};

use super::Lower;
use super::conv::{as_lies_last, channels_last};
use crate::view::View;
use crate::windows::rows_and_columns;
use crate::{Action, PoolStep};
use hypatia_graph::prim::Prim;
use hypatia_graph::{NodeKind, builtin};
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
        let of_image = !self.plan.device.is_host() && axes == [4, 5] && shape.len() == 4 && !shape.contains(&0);
        let Some(windows) = node.operands.first().copied().flatten().filter(|_| of_image) else { return Ok(None) };
        let made = graph.node(windows.node);
        let (Some(BuiltinOp::Windows), NodeKind::Op { attrs, .. }) = (builtin(graph, made), &made.kind) else {
            return Ok(None);
        };
        let Some(image) = made.operands.first().copied().flatten() else { return Ok(None) };
        let (of_image, of_windows) = (self.ty(image)?.1, self.ty(windows)?.1);
        let prim = Prim::read(BuiltinOp::Windows, attrs, &|_| None, &[&of_image], &of_windows)?;
        let Prim::Windows(windows) = prim else { return Ok(None) };
        let Some((along, _)) = rows_and_columns(&windows, &of_image[2..], &shape[2..]) else { return Ok(None) };
        let fits = windows.len() == 2 && PoolKernel::fits(along, of_image[1], dtype, kind);
        if !fits || !graph.is_read_channels_last(&self.users[index]) {
            return Ok(None);
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
}
