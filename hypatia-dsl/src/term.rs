//! Scalar terms as data: DAGs of operations.
//!
//! In: built by `scalar` from bodies of scalars, epilogues and pointwise regions. Out: parts of a
//! Program and of kernel descriptions. Invariant: a node's arguments precede it. The functions on
//! terms are in [`scalar`](crate::scalar).

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// How a tensor is read inside an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InView {
    /// Broadcast with numpy's rules.
    Broadcast,
    /// One value per column of the output: a vector along the last axis.
    Row,
    /// One value per row of the output.
    Col,
    /// The same shape as the output.
    Full,
}

/// A scalar function of a [`Program`](crate::ir::Program).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ScalarId(pub u32);

impl ScalarId {
    /// As an index into the Program's table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node of a [`Term`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TermId(pub u32);

/// A DAG of scalar operations with one or more results.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Term {
    /// Nodes; arguments precede their users.
    pub nodes: Vec<TermNode>,
    /// The results.
    pub roots: Vec<TermId>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TermNode {
    /// A parameter of the scalar whose body this is.
    Param(u32),
    /// The accumulator of the gemm whose epilogue this is; of two products, the first one's.
    Acc,
    /// The accumulator of the second of two products.
    Second,
    /// An element of operand `input`.
    In {
        /// The index of the operand of the kernel or node.
        input: u32,
        /// How it is read.
        view: InView,
    },
    /// A number. Compares by bits.
    Lit(Literal),
    /// A function call.
    Call {
        /// The function.
        scalar: ScalarId,
        /// Its arguments.
        args: Vec<TermId>,
    },
    /// Rounds (floats) or converts (integers, bool) to a type.
    Cast {
        /// The type.
        to: DType,
        /// The value.
        arg: TermId,
    },
}

/// A number that compares by bits: -0 and +0 differ, NaN equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Literal(pub f64);

impl PartialEq for Literal {
    fn eq(&self, other: &Literal) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for Literal {}
impl std::hash::Hash for Literal {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl TermNode {
    /// Its arguments, in order.
    pub fn args(&self) -> &[TermId] {
        match self {
            TermNode::Call { args, .. } => args,
            TermNode::Cast { arg, .. } => std::slice::from_ref(arg),
            TermNode::Param(_) | TermNode::Acc | TermNode::Second | TermNode::In { .. } | TermNode::Lit(_) => &[],
        }
    }

    /// The same operation with each argument mapped by `f`.
    pub fn map_args(&self, mut f: impl FnMut(TermId) -> TermId) -> TermNode {
        match self {
            TermNode::Call { scalar, args } => {
                TermNode::Call { scalar: *scalar, args: args.iter().map(|a| f(*a)).collect() }
            }
            TermNode::Cast { to, arg } => TermNode::Cast { to: *to, arg: f(*arg) },
            leaf => leaf.clone(),
        }
    }
}

impl Term {
    /// The only result of a term that has one.
    pub fn root(&self) -> TermId {
        self.roots[0]
    }

    /// The node with that id.
    pub fn node(&self, id: TermId) -> &TermNode {
        &self.nodes[id.0 as usize]
    }

    /// Appends a node, or returns the equal existing one.
    /// [`TermBuilder`](crate::scalar::TermBuilder) is faster for long terms.
    pub fn add(&mut self, node: TermNode) -> TermId {
        if let Some(i) = self.nodes.iter().position(|n| *n == node) {
            return TermId(i as u32);
        }
        self.nodes.push(node);
        TermId(self.nodes.len() as u32 - 1)
    }

    /// Adds the term of that node with the second accumulator in place of the first.
    pub fn over_second(&mut self, root: TermId) -> TermId {
        let end = root.0 as usize + 1;
        let mut needed = vec![false; end];
        needed[end - 1] = true;
        for at in (0..end).rev().filter(|at| *at < self.nodes.len()) {
            if needed[at] {
                self.nodes[at].args().iter().for_each(|a| needed[a.0 as usize] = true);
            }
        }
        let mut moved: Vec<TermId> = (0..end as u32).map(TermId).collect();
        for at in (0..end).filter(|at| needed[*at]) {
            moved[at] = match &self.nodes[at] {
                TermNode::Acc => self.add(TermNode::Second),
                node => {
                    let node = node.map_args(|a| moved[a.0 as usize]);
                    self.add(node)
                }
            };
        }
        moved[end - 1]
    }

    /// The term with operand `input`, which has the shape of the result, in place of the second
    /// accumulator.
    pub fn reading_second(&self, input: u32) -> Term {
        let replaced = |n: &TermNode| match n {
            TermNode::Second => TermNode::In { input, view: InView::Full },
            other => other.clone(),
        };
        Term { nodes: self.nodes.iter().map(replaced).collect(), roots: self.roots.clone() }
    }

    /// A scalar applied to operands 0, 1, ...
    pub fn call(scalar: ScalarId, arity: u32) -> Term {
        let mut t = Term::empty();
        let args = (0..arity).map(|input| t.add(TermNode::In { input, view: InView::Broadcast })).collect();
        let root = t.add(TermNode::Call { scalar, args });
        t.roots.push(root);
        t
    }

    /// A term without nodes and results, to be built with [`Term::add`].
    pub fn empty() -> Term {
        Term { nodes: Vec::new(), roots: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_over_the_second_accumulator_shares_what_reads_no_accumulator() {
        let mut t = Term::empty();
        let (acc, input) = (t.add(TermNode::Acc), t.add(TermNode::In { input: 0, view: InView::Row }));
        let rounded = t.add(TermNode::Cast { to: DType::F16, arg: input });
        let sum = t.add(TermNode::Call { scalar: ScalarId(0), args: vec![acc, rounded] });
        let second = t.over_second(sum);
        let TermNode::Call { args, .. } = t.node(second).clone() else { panic!("{t:?}") };
        assert_eq!((t.node(args[0]), args[1]), (&TermNode::Second, rounded));
        assert_eq!((t.over_second(second), t.over_second(rounded), t.nodes.len()), (second, rounded, 6));
        t.roots.push(second);
        let read = t.reading_second(1);
        assert_eq!(read.node(args[0]), &TermNode::In { input: 1, view: InView::Full });
        assert!(!read.nodes.contains(&TermNode::Second) && read.nodes.contains(&TermNode::Acc));
    }
}
