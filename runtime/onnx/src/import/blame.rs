//! Decides whether dynamic sizes caused an import failure, or whether no number for them would
//! help.
//!
//! In: the failure, the node that failed, and the numbers in that node. Out: candidate numbers to
//! try for the dynamic sizes. Invariant: two failures are equal if they have the same kind and the
//! same node, whatever their messages are.

use hypatia_dsl::diag::Code;
use hypatia_dsl::typing::TensorType;

use super::context::{Bound, Fail};
use super::onnx::proto::AttributeProto;
use hypatia_tensor::error::Error;

/// A failure of a node of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeFailure {
    /// The node's name.
    node: String,
    kind: Kind,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Damaged,
    Unsupported,
    Type(Option<Code>),
    Other,
}

impl NodeFailure {
    pub fn of(fail: &Fail, node: &str) -> NodeFailure {
        let kind = match fail {
            Fail::Model(_) => Kind::Damaged,
            Fail::Unsupported(_) => Kind::Unsupported,
            Fail::Other(e @ Error::Type(_)) => Kind::Type(e.code()),
            Fail::Other(_) => Kind::Other,
        };
        NodeFailure { node: node.into(), kind }
    }
}

/// A failure on operands of dynamic sizes.
pub(super) struct Undecided {
    /// The error to report if the dynamic sizes are not its cause.
    pub plain: Error,
    /// The numbers of the node that failed.
    pub numbers: Numbers,
}

/// A failure on operands of these dynamic sizes, with a hint about them. `None` if they are not its
/// cause.
pub(super) fn with_hint(fail: &Fail, dynamic: &[String]) -> Option<Fail> {
    let first = dynamic.first()?;
    let hint = |m: &str| {
        let all = dynamic.join(", ");
        format!(
            "{m}; its operands have the dynamic sizes {all}: give them numbers (--dim {first}=1), or the actual \
             inputs (--inputs FILE.npz)"
        )
    };
    match fail {
        // What does not type-check for all sizes may type-check for the actual ones.
        Fail::Unsupported(m) => Some(Fail::Unsupported(hint(m))),
        Fail::Other(Error::Type(fault)) => Some(Fail::Unsupported(hint(&fault.message))),
        _ => None,
    }
}

/// Numbers that are always tried for dynamic sizes: small ones, and one that any window fits into.
const ALWAYS: [i64; 3] = [1, 2, 64];
/// Maximum number of a node that is tried.
const LARGEST: i64 = 4096;
/// Maximum count of numbers tried: each attempt is a whole import.
const MOST: usize = 32;

/// The numbers of a node that a dynamic size might have to match: the sizes and elements of its
/// operands and its attributes, their sums and products, and the quotients of the products.
#[derive(Debug, Default)]
pub(super) struct Numbers(Vec<Vec<i64>>);

impl Numbers {
    /// The numbers of a node.
    pub fn of<'a>(
        operands: impl IntoIterator<Item = (&'a Bound, TensorType)>,
        attributes: impl IntoIterator<Item = &'a AttributeProto>,
    ) -> Numbers {
        let mut lists = Vec::new();
        for (operand, ty) in operands {
            lists.push(ty.shape.iter().filter_map(|d| d.as_const()).collect());
            lists.push(operand.sym.iter().flat_map(|s| &s.items).filter_map(|d| d.as_const()).collect());
        }
        for attribute in attributes {
            lists.push(attribute.i.into_iter().chain(attribute.ints.iter().copied()).collect());
        }
        Numbers(lists)
    }

    /// The numbers to try; the numbers of the node come first.
    pub fn tried(&self) -> Vec<i64> {
        let sum = |list: &Vec<i64>| list.iter().try_fold(0i64, |sum, n| sum.checked_add(*n));
        // A size of -1 is inferred from the others.
        let product = |list: &Vec<i64>| list.iter().filter(|n| **n > 0).try_fold(1i64, |all, n| all.checked_mul(*n));
        let products: Vec<i64> = self.0.iter().filter_map(product).collect();
        let quotient = |a: &i64| products.iter().filter(|b| a % **b == 0).map(|b| a / b).collect::<Vec<i64>>();
        let mut all: Vec<i64> = ALWAYS.to_vec();
        let single = self.0.iter().flatten().copied();
        let sums = self.0.iter().filter_map(sum);
        let combined = sums.chain(products.iter().copied()).chain(products.iter().flat_map(quotient));
        for n in single.chain(combined).filter(|n| (0..=LARGEST).contains(n)) {
            if !all.contains(&n) && all.len() < MOST {
                all.push(n);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_could_fit_are_tried() {
        // A reshape of [n, 3] to [2, 6] fits for n = 4; a split of n into 3 and 7 fits for n = 10.
        let reshape = Numbers(vec![vec![3], vec![2, 6]]).tried();
        assert!([2, 3, 6, 12, 4].iter().all(|n| reshape.contains(n)), "{reshape:?}");
        assert!(Numbers(vec![vec![3, 7]]).tried().contains(&10));
        let many = Numbers(vec![(0..1000).collect()]).tried();
        assert_eq!(many.len(), MOST);
        assert!(Numbers(vec![vec![-1, i64::MAX, 8]]).tried().contains(&8));
    }

    #[test]
    fn failures_are_the_same_by_kind_and_node() {
        let unsupported = |m: &str| Fail::Unsupported(m.into());
        let blame = |fail: &Fail, node: &str| NodeFailure::of(fail, node);
        assert_eq!(blame(&unsupported("of 3"), "a"), blame(&unsupported("of 4"), "a"));
        assert_ne!(blame(&unsupported("of 3"), "a"), blame(&unsupported("of 3"), "b"));
        assert_ne!(blame(&unsupported("of 3"), "a"), blame(&Fail::Model("of 3".into()), "a"));
    }
}
