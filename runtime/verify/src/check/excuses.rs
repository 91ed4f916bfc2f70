//! Which side leaves the range of its types.
//!
//! In: both sides on one instance. Out: whether the left side keeps its range and the right side
//! does not, and whether operands are infinite already. Invariant: what the right side alone makes
//! is no excuse.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::{ScalarBody, ScalarId};
use hypatia_graph::{Graph, Node, NodeKind, Value};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::{Job, infinite, special};
use crate::range::{leaves_range, lost_by_cast, lost_by_step};

impl Job<'_> {
    /// Whether the left side's values stay in the ranges of their types, and a cast of the right
    /// side leaves its type's.
    pub(super) fn only_right_loses(&self) -> Result<bool> {
        Ok(lost_by_cast(self.graph, self.inputs, self.roots)? && self.left_keeps()?)
    }

    /// The same of any step of the right side: an integer is none that overflow excuses.
    pub(super) fn only_right_overflows(&self) -> Result<bool> {
        Ok(lost_by_step(self.graph, self.inputs, self.roots)? && self.left_keeps()?)
    }

    fn left_keeps(&self) -> Result<bool> {
        Ok(!self.any_operand(special) && !leaves_range(&self.left_alone(), self.inputs)?)
    }

    /// The graph of the left side.
    fn left_alone(&self) -> Graph {
        let mut left = self.graph.clone();
        left.outputs.truncate(self.roots);
        left.pruned()
    }

    /// Whether an operand is infinite.
    pub(super) fn operands_are_infinite(&self) -> bool {
        self.any_operand(infinite)
    }

    /// Whether an operand is such, or a number of the left side that its type does not hold. Other
    /// numbers are what they are written as.
    fn any_operand(&self, such: fn(&Tensor) -> bool) -> bool {
        let left = self.left_alone();
        let of_left = |t: &Arc<Tensor>| {
            left.nodes.iter().any(|n| matches!(&n.kind, NodeKind::Const(other) if Arc::ptr_eq(t, other)))
        };
        let operand = |n: &Node| match &n.kind {
            NodeKind::Const(t) if such(t) => match self.numbers.get(&(Arc::as_ptr(t) as usize)) {
                Some(number) => number.is_finite() && of_left(t),
                None => true,
            },
            _ => false,
        };
        self.inputs.iter().any(|i| such(&i.1)) || self.graph.nodes.iter().any(operand)
    }

    /// The infinities that the left side compares with: of values that a mask hides. Such an
    /// operand is no excuse.
    pub(super) fn named_infinities(&self) -> Vec<f64> {
        infinities_compared(&self.left_alone())
    }

    /// Whether the left side asks where values left their range: then that is no excuse.
    pub(super) fn left_asks_for_infinities(&self) -> bool {
        let asks = |s: &ScalarId| {
            let body = &self.graph.program.scalar(*s).body;
            matches!(body, ScalarBody::Builtin(BuiltinScalar::IsInf | BuiltinScalar::IsNan))
        };
        self.left_alone().nodes.iter().any(|n| matches!(&n.kind, NodeKind::Scalar(s) if asks(s)))
    }
}

/// The infinities with which a graph compares.
pub(crate) fn infinities_compared(graph: &Graph) -> Vec<f64> {
    let compares = |s: &ScalarId| matches!(graph.program.scalar(*s).body, ScalarBody::Builtin(BuiltinScalar::Eq));
    let asked = graph.nodes.iter().filter(|n| matches!(&n.kind, NodeKind::Scalar(s) if compares(s)));
    let number = |v: Value| match &graph.node(v.node).kind {
        NodeKind::Const(t) if t.len() == 1 => t.to_f64().first().copied().filter(|x| x.is_infinite()),
        _ => None,
    };
    asked.flat_map(|n| n.operands.iter().flatten()).filter_map(|v| number(*v)).collect()
}
