//! A convolution as products of matrices, on devices without a kernel for it (im2col).
//!
//! In: the sizes of the filters and of the result. Out: the sizes of the products: one for each
//! group of each image, of a group's filters and the matrix of its windows. Invariant: the planner
//! makes these products, so guards of kernels ask about these matrices.

use crate::graph::kernels::Known;
use crate::graph::{Graph, Node, NodeKind};
use crate::kinds::builtin;
use crate::prim::{Prim, sizes};
use hypatia_dsl::typing::TensorType;

/// With fewer filters in a group, each result is a separate sum: a product with so few rows leaves
/// matrix units idle.
const FEW_FILTERS: usize = 4;

/// Sizes of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSizes {
    /// Images.
    pub batch: usize,
    /// Groups.
    pub groups: usize,
    /// Filters of a group.
    pub filters: usize,
    /// Channels of a group.
    pub channels: usize,
    /// Windows along each axis.
    pub out: Vec<usize>,
    /// Elements of a window along each axis.
    pub taps: Vec<usize>,
}

impl ConvSizes {
    /// Of filters and a result of these shapes.
    pub fn new(groups: usize, filters: &[usize], out: &[usize]) -> Option<ConvSizes> {
        let ([batch, all, counts @ ..], [_, channels, taps @ ..]) = (out, filters) else { return None };
        let groups = groups.max(1);
        Some(ConvSizes {
            batch: *batch,
            groups,
            filters: all / groups,
            channels: *channels,
            out: counts.to_vec(),
            taps: taps.to_vec(),
        })
    }

    /// `[batch, groups]` followed by these axes.
    pub fn behind_groups(&self, rest: &[&[usize]]) -> Vec<usize> {
        let mut shape = vec![self.batch, self.groups];
        rest.iter().for_each(|r| shape.extend_from_slice(r));
        shape
    }

    /// True if the convolution becomes products, and not sums.
    pub fn are_products(&self) -> bool {
        self.filters >= FEW_FILTERS
    }

    /// Length of the sums: the channels and taps of a window.
    pub fn depth(&self) -> usize {
        self.channels * self.taps.iter().product::<usize>()
    }

    /// Columns of the products: the windows of an image.
    pub fn columns(&self) -> usize {
        self.out.iter().product()
    }

    /// The shapes of the factors: the filters, and the matrix of the windows.
    pub fn factors(&self) -> [Vec<usize>; 2] {
        [self.behind_groups(&[&[self.filters, self.depth()]]), self.behind_groups(&[&[self.depth(), self.columns()]])]
    }
}

impl Graph {
    /// The sizes of a node that is a convolution on sizes that are known.
    pub fn conv_sizes(&self, node: &Node) -> Option<ConvSizes> {
        let (op, NodeKind::Op { attrs, .. }) = (builtin(self, node)?, &node.kind) else { return None };
        let shape = |v: usize| sizes(&self.ty(node.operands.get(v).copied().flatten()?).shape, &|_| None).ok();
        let (x, filters, out) = (shape(0)?, shape(1)?, sizes(&node.results.first()?.shape, &|_| None).ok()?);
        match Prim::read(op, attrs, &|_| None, &[&x, &filters], &out).ok()? {
            Prim::Conv { groups, .. } => ConvSizes::new(groups, &filters, &out),
            _ => None,
        }
    }

    /// What the guards of kernels may ask about a node's operand. The factors of a convolution are
    /// those of its products, the filters first.
    pub fn seen_by_kernels(&self, node: &Node, operand: usize) -> Option<Known> {
        let Some(conv) = self.conv_sizes(node) else { return self.known(node, operand) };
        let [filters, windows] = conv.factors();
        let (of, shape) = match operand {
            0 => (self.known(node, 1)?, filters),
            1 => (Known { constant: false, ..self.known(node, 0)? }, windows),
            _ => return self.known(node, operand),
        };
        let shape = shape.into_iter().map(|d| (d as i64).into()).collect();
        Some(Known { ty: TensorType { shape, ..of.ty }, ..of })
    }
}
