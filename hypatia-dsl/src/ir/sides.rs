//! The two sides of a rule: the pattern and the replacement.
//!
//! In: what `sema` makes; bodies of ops and tests' `given` are right sides too. Out: the optimiser
//! matches and builds them. Invariant: operands and attributes are in declaration order.

use serde::{Deserialize, Serialize};

use super::{AExpr, InView, OpId, ScalarId, TypePat, VarId};

/// A pattern over the e-graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pat {
    /// `_`
    Any,
    /// Binds an e-class, or must be the same e-class.
    Var(VarId),
    /// `v @ p`
    Bind(VarId, Box<Pat>),
    /// `p: T[..s, k]`: the e-class has that type.
    Typed(Box<Pat>, TypePat),
    /// A constant whose elements all equal round_T(value), or are within the relative tolerance
    /// `near` of it.
    Lit {
        /// The number.
        value: f64,
        /// Relative tolerance.
        near: Option<f64>,
    },
    /// An application.
    Node(NodePat),
    /// Alternatives: each binds the same variables.
    OneOf(Vec<Pat>),
    /// An absent optional operand.
    Absent,
    /// An optional operand, bound whether it is absent or present.
    Optional(VarId),
}

/// An application in a pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePat {
    /// The applied op or scalar.
    pub head: Head,
    /// Operands in declaration order (absent optional operands are `Pat::Absent`).
    pub args: Vec<Pat>,
    /// What all remaining operands of a variadic parameter match.
    pub rest: Option<Rest>,
    /// One for each attribute, in declaration order.
    pub attrs: Vec<AttrPat>,
    /// Index of the result.
    pub output: u32,
}

impl NodePat {
    /// The patterns of its operands; one that each of several operands matches is one of them.
    pub fn operands(&self) -> impl Iterator<Item = &Pat> {
        let each = self.rest.iter().filter_map(|rest| rest.each.as_ref()).map(|each| &each.element);
        self.args.iter().chain(each)
    }

    /// The same, to be changed.
    pub fn operands_mut(&mut self) -> impl Iterator<Item = &mut Pat> {
        let each = self.rest.iter_mut().filter_map(|rest| rest.each.as_mut()).map(|each| &mut each.element);
        self.args.iter_mut().chain(each)
    }
}

/// The remaining operands in a pattern of an op with any number of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    /// The variable of sort `Tensors` that they bind.
    pub var: VarId,
    /// `..[p for x in xs]`: each operand matches `p`, and the variable binds what `x` stands for in
    /// each. Without it, it binds the operands themselves.
    pub each: Option<Box<Each>>,
}

/// A pattern for each of several operands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Each {
    /// The pattern.
    pub element: Pat,
    /// Its variable of sort `Tensor`, which is another one for each operand. All other variables
    /// are the same for all operands.
    pub item: VarId,
}

/// The head of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Head {
    /// An op.
    Op(OpId),
    /// A scalar: on tensors the pointwise operation with broadcasting, on terms the function
    /// itself.
    Scalar(ScalarId),
    /// `acc` (terms only).
    Acc,
    /// `second(e)` (terms only): its single operand with the second accumulator in place of the
    /// first. `acc1` is `second(acc)`.
    Second,
    /// `in(t)` and its checked forms (terms only). Its single operand is a tensor.
    In(InView),
    /// `cast<T>(e)` or `round<T>(e)` inside a term: rounds to the dtype that its single attribute
    /// names.
    TermCast,
    /// A variable of sort `Region`. On a left side: any pointwise work over its operands and other
    /// tensors. On a right side: the same work over other operands, tensors or terms.
    Region(VarId),
}

/// A pattern for an attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttrPat {
    /// `_`, or an attribute that is not mentioned and has no default.
    Any,
    /// Binds, or must equal.
    Var(VarId),
    /// Must equal a value computed from variables that are already bound. For attributes of type
    /// `Axis` and `Axes` both values are normalised first.
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
    /// A number: a splat constant of rank 0. Its dtype is that of the first sibling operand that
    /// has one, else that of the replaced e-class.
    Number(AExpr),
    /// An application.
    Node(BuildNode),
    /// The variable, or the fallback expression if the variable is absent.
    Else(VarId, Box<Build>),
    /// `build(e)`: computed once at plan time, as a run would compute it, and kept as a constant.
    Frozen(Box<Build>),
    /// An absent optional operand.
    Absent,
    /// `if guard then a else b`, decided when the node is built.
    If(Box<AExpr>, Box<Build>, Box<Build>),
}

/// An application on a right side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildNode {
    /// The applied op or scalar.
    pub head: Head,
    /// Operands.
    pub args: Vec<BuildArg>,
    /// One for each attribute.
    pub attrs: Vec<AExpr>,
    /// Index of the result.
    pub output: u32,
}

/// An operand on a right side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BuildArg {
    /// One operand.
    One(Build),
    /// Splices a variable of sort `Tensors`.
    Spread(VarId),
    /// `..[e for x in xs]`: one operand for each operand of a variadic one; `item` is of sort
    /// `Tensor`.
    Each {
        /// The element, over `item`.
        element: Build,
        /// The variable that is bound to each of them in turn.
        item: VarId,
        /// The variable of sort `Tensors`.
        over: VarId,
    },
}

/// Calls `f` for every subexpression of a right side in preorder. The flag passed to `f` is true
/// for the root only, if `root` is.
pub fn walk_build<'b>(b: &'b Build, f: &mut dyn FnMut(&'b Build, bool), root: bool) {
    f(b, root);
    match b {
        Build::Node(n) => {
            for a in &n.args {
                match a {
                    BuildArg::One(b) | BuildArg::Each { element: b, .. } => walk_build(b, f, false),
                    BuildArg::Spread(_) => {}
                }
            }
        }
        Build::Else(_, b) | Build::Frozen(b) => walk_build(b, f, false),
        Build::If(_, a, b) => {
            walk_build(a, f, false);
            walk_build(b, f, false);
        }
        Build::Var(_) | Build::Number(_) | Build::Absent => {}
    }
}
