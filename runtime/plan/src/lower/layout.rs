//! Stores the results of pointwise regions in the order of axes in which a GPU reads them.
//!
//! In: a region's results. Out: an order of their axes, if one saves copies. Invariant: an order is
//! taken only if every reader either needs it (it would copy the result into that order) or reads
//! any order as well (attention, and copies that are made anyway).

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_graph::prim::Prim;
use hypatia_graph::{Attention, AttentionGrad, Node, NodeId, NodeKind, Value, builtin};

use super::{Lower, View};
use crate::BufferId;
use crate::view::is_within;

/// What the readers of a value need.
#[derive(Default)]
struct Needs {
    /// Orders of axes into which readers would copy it.
    orders: Vec<Vec<usize>>,
    /// A reader needs it row by row.
    rows: bool,
}

impl Lower<'_> {
    /// The order in which the results of a region, all of one shape, are read.
    pub(super) fn read_order(&self, results: &[Value], shape: &[usize]) -> Option<Vec<usize>> {
        if self.plan.device.is_host() || shape.len() < 3 {
            return None;
        }
        let mut needs = Needs::default();
        for v in results {
            let whole = View::whole(BufferId(0), self.graph.ty(*v).dtype, shape);
            self.follow(*v, &whole, &whole, &mut needs);
        }
        let (first, rest) = needs.orders.split_first()?;
        (!needs.rows && rest.iter().all(|order| order == first)).then(|| first.clone())
    }

    /// Adds what the readers of a value need, which is that view of the region's result.
    fn follow(&self, v: Value, whole: &View, seen: &View, needs: &mut Needs) {
        let as_read = |needs: &mut Needs| match order_of(whole, seen) {
            Some(order) if !is_sorted(&order, &whole.shape) => needs.orders.push(order),
            _ => needs.rows = true,
        };
        if self.graph.outputs.iter().any(|(_, o)| *o == v) {
            as_read(needs);
        }
        for id in self.users[v.node.index()].iter().copied() {
            let node = self.graph.node(id);
            if !node.operands.contains(&Some(v)) {
                continue;
            }
            let result = Value { node: id, output: 0 };
            let (Some(op), Ok((_, shape))) = (builtin(self.graph, node), self.ty(result)) else {
                needs.rows |= !self.is_attention(id);
                continue;
            };
            let view = match op {
                BuiltinOp::Reshape => match seen.reshaped(&shape) {
                    Some(view) => view,
                    // An expanded value is copied from whatever order.
                    None if seen.strides.contains(&0) => continue,
                    None => {
                        as_read(needs);
                        continue;
                    }
                },
                BuiltinOp::Transpose => match self.permutation(node, &shape) {
                    Some(perm) => seen.transposed(&perm),
                    None => {
                        needs.rows = true;
                        continue;
                    }
                },
                BuiltinOp::Expand => match seen.broadcast(&shape) {
                    Some(view) => view,
                    None => continue,
                },
                _ => {
                    needs.rows = true;
                    continue;
                }
            };
            self.follow(result, whole, &view, needs);
        }
    }

    /// The permutation of a transposition.
    fn permutation(&self, node: &Node, shape: &[usize]) -> Option<Vec<usize>> {
        let NodeKind::Op { attrs, .. } = &node.kind else { return None };
        match Prim::read(BuiltinOp::Transpose, attrs, &|_| None, &[shape], shape).ok()? {
            Prim::Transpose(perm) => Some(perm),
            _ => None,
        }
    }

    /// True for attention and its gradients, whose kernels read heads as they lie.
    fn is_attention(&self, id: NodeId) -> bool {
        self.kernels.calls.get(&id).is_some_and(|call| {
            let graph = &call.fallback.graph;
            Attention::of(graph).is_some() || AttentionGrad::of(graph).is_some()
        })
    }
}

/// The axes of a whole row-major value in the order in which a view of it has them; `None` if an
/// axis of the value is not within one axis of the view.
fn order_of(whole: &View, seen: &View) -> Option<Vec<usize>> {
    let place = |(size, stride): (&usize, &isize)| match size {
        1 => Some((0, 0)),
        _ => {
            let within = |(n, s): (&usize, &isize)| *n > 1 && is_within((*size, *stride), (*n, *s));
            let axis = seen.shape.iter().zip(&seen.strides).position(within)?;
            Some((axis, isize::MAX - stride))
        }
    };
    let places: Option<Vec<(usize, isize)>> = whole.shape.iter().zip(&whole.strides).map(place).collect();
    let places = places?;
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|a| places[*a]);
    Some(order)
}

/// True if axes of more than one element are in their own order.
fn is_sorted(order: &[usize], shape: &[usize]) -> bool {
    order.iter().filter(|a| shape[**a] > 1).is_sorted()
}
