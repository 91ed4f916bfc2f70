//! The two sides of a rule: what is matched, and what is built.
//!
//! In: made by `sema`; bodies of ops and tests' `given` are right sides too. Out: the optimiser matches and builds them.
//! Holds always: operands and attributes stand in the order of the declaration.

use serde::{Deserialize, Serialize};

use super::{AExpr, InView, OpId, ScalarId, TypePat, VarId};

/// A pattern over the e-graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pat {
    /// `_`
    Any,
    /// Binds a class, or must be the same class.
    Var(VarId),
    /// `v @ p`
    Bind(VarId, Box<Pat>),
    /// `p: T[..s, k]`: the class has that type.
    Typed(Box<Pat>, TypePat),
    /// A constant whose elements all are round_T(value), or within `near` relative to it.
    Lit {
        /// The number.
        value: f64,
        /// Relative tolerance.
        near: Option<f64>,
    },
    /// An application.
    Node(NodePat),
    /// Any of them; each binds the same variables.
    OneOf(Vec<Pat>),
    /// An absent optional operand.
    Absent,
    /// An optional operand that may be absent or present, bound either way.
    Optional(VarId),
}

/// An application in a pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePat {
    /// What is applied.
    pub head: Head,
    /// Operands in declaration order (absent optional ones as `Pat::Absent`).
    pub args: Vec<Pat>,
    /// Binds all further operands of a variadic parameter, to a variable of sort `Tensors`.
    pub rest: Option<VarId>,
    /// One for each attribute, in declaration order.
    pub attrs: Vec<AttrPat>,
    /// Which result.
    pub output: u32,
}

/// What a node applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Head {
    /// An op.
    Op(OpId),
    /// A scalar: on tensors the pointwise operation with broadcasting, on terms the function.
    Scalar(ScalarId),
    /// `acc` (terms only).
    Acc,
    /// `in(t)` and its checked forms (terms only); the one operand is a tensor.
    In(InView),
    /// `cast<T>(e)` or `round<T>(e)` inside a term: rounds to the dtype of the one attribute.
    TermCast,
    /// A variable of sort `Region`: on a left side any pointwise work over its operands and other tensors, on a right
    /// side the same work over other operands, tensors or terms.
    Region(VarId),
}

/// A pattern for an attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttrPat {
    /// `_`, or the attribute was not mentioned and has no default.
    Any,
    /// Binds, or must equal.
    Var(VarId),
    /// Must equal a value computed from what is already bound. For attributes of type `Axis` and
    /// `Axes` both sides are normalised first.
    Is(AExpr),
    /// A list, element by element.
    List(Vec<AttrPat>),
    /// Inside a list: any number of elements, bound to a variable if there is one.
    Rest(Option<VarId>),
}

/// The right side of a rule, an op's body, a test's `given`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Build {
    /// A variable of sort `Tensor` or `Term`.
    Var(VarId),
    /// A number: a splat constant of rank 0 with the dtype of the operand beside it (the first
    /// sibling operand that has one, else the replaced class).
    Number(AExpr),
    /// An application.
    Node(BuildNode),
    /// The variable, or the other if it is absent.
    Else(VarId, Box<Build>),
    /// `build(e)`: computed once when the plan is made, as a run would, and kept as a constant.
    Frozen(Box<Build>),
    /// An absent optional operand.
    Absent,
    /// `if guard then a else b`, decided when the node is built.
    If(Box<AExpr>, Box<Build>, Box<Build>),
}

/// An application on a right side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildNode {
    /// What is applied.
    pub head: Head,
    /// Operands.
    pub args: Vec<BuildArg>,
    /// One for each attribute.
    pub attrs: Vec<AExpr>,
    /// Which result.
    pub output: u32,
}

/// An operand on a right side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BuildArg {
    /// One operand.
    One(Build),
    /// Splices a variable of sort `Tensors`.
    Spread(VarId),
    /// `..[e for x in xs]`: one operand for each of a variadic operand; `item` is of sort Tensor.
    Each {
        /// The element, over `item`.
        element: Build,
        /// Bound to each in turn.
        item: VarId,
        /// The variable of sort `Tensors`.
        over: VarId,
    },
}

/// Every part of a right side, the whole first.
pub fn parts<'b>(b: &'b Build, f: &mut dyn FnMut(&'b Build, bool), root: bool) {
    f(b, root);
    match b {
        Build::Node(n) => {
            for a in &n.args {
                match a {
                    BuildArg::One(b) | BuildArg::Each { element: b, .. } => parts(b, f, false),
                    BuildArg::Spread(_) => {}
                }
            }
        }
        Build::Else(_, b) | Build::Frozen(b) => parts(b, f, false),
        Build::If(_, a, b) => {
            parts(a, f, false);
            parts(b, f, false);
        }
        Build::Var(_) | Build::Number(_) | Build::Absent => {}
    }
}
