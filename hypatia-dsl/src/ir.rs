//! The checked Program: what a set of `.hyp` files means, with every name resolved.
//!
//! In: made by `sema` from resolved files, and by the code that `hypatia_rules!` emits. Out: the
//! optimiser lowers its rules to e-graph rewrites, `emit` prints it as Rust and CUDA. Holds
//! always: ids index the tables of the same Program; families are expanded, patterns are inlined,
//! attributes stand in the order of the op's declaration, one entry for each.

use std::collections::HashMap;
use std::sync::Arc;

use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::diag::Code;
use crate::dtype::{DType, Kind};
use crate::scalar::Term;
use crate::shape::Dim;
use crate::source::Span;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u32);
        impl $name {
            /// As an index into the Program's table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
id!(
    /// A scalar function of a [`Program`].
    ScalarId
);
id!(
    /// An op of a [`Program`].
    OpId
);
id!(
    /// A ruleset of a [`Program`].
    RuleSetId
);
id!(
    /// A rule of a [`Program`].
    RuleId
);
id!(
    /// A kernel of a [`Program`].
    KernelId
);
id!(
    /// A variable of one rule, op, kernel or test: an index into its `vars`.
    VarId
);

/// Everything that a set of files declares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Scalar functions, builtin ones included.
    pub scalars: Vec<ScalarDef>,
    /// Ops, builtin ones included.
    pub ops: Vec<OpDef>,
    /// Rulesets in the order in which they run.
    pub rulesets: Vec<RuleSetDef>,
    /// Rules, families expanded, `<=>` as two.
    pub rules: Vec<Rule>,
    /// Kernels.
    pub kernels: Vec<Kernel>,
    /// Tests.
    pub tests: Vec<Test>,
    /// Named families of scalars.
    pub families: Vec<(String, Vec<ScalarId>)>,
}

impl Program {
    /// The scalar of that name.
    pub fn find_scalar(&self, name: &str) -> Option<ScalarId> {
        self.scalars.iter().position(|s| s.name == name).map(|i| ScalarId(i as u32))
    }

    /// The op of that name.
    pub fn find_op(&self, name: &str) -> Option<OpId> {
        self.ops.iter().position(|s| s.name == name).map(|i| OpId(i as u32))
    }

    /// The op that is that builtin.
    pub fn builtin_op(&self, op: BuiltinOp) -> Option<OpId> {
        self.ops.iter().position(|o| o.body == OpBody::Builtin(op)).map(|i| OpId(i as u32))
    }

    /// The scalar that is that builtin.
    pub fn builtin_scalar(&self, s: BuiltinScalar) -> Option<ScalarId> {
        self.scalars.iter().position(|o| o.body == ScalarBody::Builtin(s)).map(|i| ScalarId(i as u32))
    }

    /// The scalar of that id.
    pub fn scalar(&self, id: ScalarId) -> &ScalarDef {
        &self.scalars[id.index()]
    }

    /// The op of that id.
    pub fn op(&self, id: OpId) -> &OpDef {
        &self.ops[id.index()]
    }

    /// Ids by name, for callers that look up many.
    pub fn op_names(&self) -> HashMap<&str, OpId> {
        self.ops.iter().enumerate().map(|(i, o)| (o.name.as_str(), OpId(i as u32))).collect()
    }
}

/// Where a declaration stands, for messages at run time: `file:line:column`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Origin {
    /// The file's name as shown to users.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// The exact place, where the source map is still at hand.
    pub span: Option<Span>,
}

/// A scalar function.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarDef {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Where it stands.
    pub origin: Origin,
    /// Its parameters.
    pub params: Vec<(String, Kind)>,
    /// What it gives.
    pub result: Kind,
    /// Its meaning.
    pub body: ScalarBody,
    /// Derivative by each parameter as written, empty where not. Terms over the parameters.
    pub grads: Vec<Term>,
}

/// The meaning of a scalar function.
#[derive(Clone, Debug, PartialEq)]
pub enum ScalarBody {
    /// Built in.
    Builtin(BuiltinScalar),
    /// A term over `Param(i)`.
    Term(Term),
}

/// A variable of a rule, op body, kernel pattern or test.
#[derive(Clone, Debug, PartialEq)]
pub struct Var {
    /// As written; made-up ones start with `_`.
    pub name: String,
    /// What it stands for.
    pub sort: Sort,
}

/// What a variable stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sort {
    /// A tensor class. In a pointwise rule, lowered to the scalar sort too, a scalar class.
    Tensor,
    /// Several tensors: a variadic operand.
    Tensors,
    /// A scalar term (an epilogue).
    Term,
    /// An attribute value, a dimension, or a `let`.
    Attr,
    /// A rest of dimensions: a list.
    Shape,
    /// An element type.
    DType,
    /// Pointwise work: `[f: pointwise]`. It stands as a head, never as an operand.
    Region,
}

/// An op.
#[derive(Clone, Debug, PartialEq)]
pub struct OpDef {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Where it stands.
    pub origin: Origin,
    /// Variables of its types, attributes and body. Operand and attribute `i` of `params` is
    /// `VarId(i)`.
    pub vars: Vec<Var>,
    /// Operands and attributes in declaration order.
    pub params: Vec<Param>,
    /// Bounds on dtype variables.
    pub bounds: Vec<(VarId, Vec<DType>)>,
    /// Result types, over the variables.
    pub results: Vec<TypePat>,
    /// True if the only result is variadic (`split`).
    pub variadic_result: bool,
    /// Must hold of operands and attributes (soundness, three-valued).
    pub requires: Vec<Guard>,
    /// Its meaning.
    pub body: OpBody,
    /// Cost formulas, where written; over the variables, and `out` for the first result's shape.
    pub cost: CostFormulas,
}

impl OpDef {
    /// Tensor and term operands in order, with their index among `params`.
    pub fn operands(&self) -> impl Iterator<Item = (usize, &Param)> {
        self.params.iter().enumerate().filter(|(_, p)| !matches!(p.kind, ParamKind::Attr { .. }))
    }

    /// Attributes in order, with their index among `params`.
    pub fn attrs(&self) -> impl Iterator<Item = (usize, &Param)> {
        self.params.iter().enumerate().filter(|(_, p)| matches!(p.kind, ParamKind::Attr { .. }))
    }
}

/// `flops`, `read`, `write` of an op, derived from types where `None`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CostFormulas {
    /// Floating-point operations.
    pub flops: Option<AExpr>,
    /// Bytes read.
    pub read: Option<AExpr>,
    /// Bytes written.
    pub write: Option<AExpr>,
}

/// A parameter of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
}

/// Kinds of parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamKind {
    /// A tensor operand.
    Tensor {
        /// Its type.
        ty: TypePat,
        /// May be absent.
        optional: bool,
        /// Stands for any number of operands; only the last operand may.
        variadic: bool,
    },
    /// An epilogue term over `acc` and tensors.
    Term,
    /// An attribute.
    Attr {
        /// Its type.
        ty: AttrType,
        /// Its default.
        default: Option<AttrValue>,
    },
}

/// Types of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttrType {
    /// An integer.
    Int,
    /// An axis of the first tensor operand; negative ones count from the end and are normalised.
    Axis,
    /// A list of axes of the first tensor operand, normalised likewise.
    Axes,
    /// A list of integers.
    Ints,
    /// A number.
    Float,
    /// A list of numbers.
    Floats,
    /// A truth value.
    Bool,
    /// An element type.
    DType,
    /// A size, possibly symbolic.
    Dim,
    /// A list of sizes.
    Dims,
    /// A text.
    Str,
}

/// The meaning of an op.
#[derive(Clone, Debug, PartialEq)]
pub enum OpBody {
    /// Shape function and reference are built in.
    Builtin(BuiltinOp),
    /// One expression a result, over the params' variables.
    Defined(Vec<Build>),
}

/// A tensor type with variables.
#[derive(Clone, Debug, PartialEq)]
pub struct TypePat {
    /// The element type.
    pub dtype: DTypePat,
    /// Dimensions before the rest.
    pub prefix: Vec<DimPat>,
    /// The rest, at most one: a variable it binds, an expression that gives a list, or nameless.
    pub rest: Option<RestPat>,
    /// Dimensions behind the rest.
    pub suffix: Vec<DimPat>,
}

/// An element type in a type pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum DTypePat {
    /// `_`
    Any,
    /// `f32`
    Is(DType),
    /// `T`: binds, or must equal.
    Var(VarId),
    /// A dtype attribute or expression (result types only).
    Expr(AExpr),
}

/// A dimension in a type pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum DimPat {
    /// `_`
    Any,
    /// Binds, or must equal.
    Var(VarId),
    /// A number or a formula; compared, and solved for one unbound variable where it is linear.
    Expr(AExpr),
}

/// The rest in a type pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum RestPat {
    /// `..`
    Any,
    /// `..s`: binds a list, or must equal.
    Var(VarId),
    /// `..broadcast(s, t)`: a list.
    Expr(AExpr),
}

/// A value of an attribute, a guard or a `let`.
#[derive(Clone, Debug, PartialEq)]
pub enum AttrValue {
    /// An integer or a size.
    Dim(Dim),
    /// A number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// An element type.
    DType(DType),
    /// A text.
    Str(String),
    /// A list.
    List(Vec<AttrValue>),
}

macro_rules! attr_values {
    ($($t:ty: $v:ident => $e:expr),* $(,)?) => { $(
        impl From<$t> for AttrValue {
            fn from($v: $t) -> AttrValue {
                $e
            }
        }
    )* };
}
attr_values! {
    i64: v => AttrValue::Dim(Dim::from(v)),
    i32: v => AttrValue::Dim(Dim::from(i64::from(v))),
    f64: v => AttrValue::Float(v),
    bool: v => AttrValue::Bool(v),
    DType: v => AttrValue::DType(v),
    &str: v => AttrValue::Str(v.to_string()),
    Dim: v => AttrValue::Dim(v),
    Vec<Dim>: v => AttrValue::List(v.into_iter().map(AttrValue::Dim).collect()),
    &[i64]: v => AttrValue::List(v.iter().map(|i| AttrValue::from(*i)).collect()),
}

impl<const N: usize> From<[i64; N]> for AttrValue {
    fn from(v: [i64; N]) -> AttrValue {
        v.as_slice().into()
    }
}

/// An expression over attributes, sizes, element types and facts of tensors: guards, `let`s,
/// attribute values, cost formulas. Evaluation is three-valued: a fact that is not known makes the
/// result unknown, unless the other side decides (`false and ?` is false).
#[derive(Clone, Debug, PartialEq)]
pub enum AExpr {
    /// A value.
    Value(AttrValue),
    /// A variable of sort `Attr`, `Shape` or `DType`. A bound variable of a comprehension too.
    Var(VarId),
    /// A list; `Spread` entries are spliced.
    List(Vec<AExpr>),
    /// Splices a list into the surrounding list.
    Spread(Box<AExpr>),
    /// `list[i]`, negative from the end.
    Index(Box<AExpr>, Box<AExpr>),
    /// `[element for var in over if condition]`; `var` is bound inside.
    Comprehension {
        /// The element.
        element: Box<AExpr>,
        /// The variable.
        var: VarId,
        /// The list.
        over: Box<AExpr>,
        /// Keeps the elements for which it is true.
        condition: Option<Box<AExpr>>,
    },
    /// `-a`
    Neg(Box<AExpr>),
    /// `not a`
    Not(Box<AExpr>),
    /// `a op b`; `Pow` and arithmetic on numbers, comparisons, `and`, `or`, `in`, `not in`.
    Binary(crate::ast::BinaryOp, Box<AExpr>, Box<AExpr>),
    /// `if c then a else b`
    If(Box<AExpr>, Box<AExpr>, Box<AExpr>),
    /// A function of lists and numbers.
    Call(AFn, Vec<AExpr>),
    /// A fact of a tensor variable.
    Fact(Fact, VarId),
    /// `same_accumulator(t, a, b)`: the class of `t` holds a gemm over the same operands
    /// (`prefer` only).
    SameAccumulator(VarId, VarId, VarId),
    /// A property of the device: `sm`, `device` (kernels only).
    Device(DeviceFact),
}

/// A truth value over the variables of its rule.
pub type Guard = AExpr;

/// Functions of attribute expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AFn {
    /// `len(list)`
    Len,
    /// `prod(list)`
    Prod,
    /// `sum(list)`
    Sum,
    /// `min(a, b)` or `min(list)`
    Min,
    /// `max(a, b)` or `max(list)`
    Max,
    /// `abs(a)`
    Abs,
    /// `range(n)`
    Range,
    /// `broadcast(s, t)`: unknown where it does not exist.
    Broadcast,
    /// `permute(list, perm)`
    Permute,
    /// `reduce(shape, axes, keepdims)`: the shape after a reduction.
    Reduce,
    /// `is_permutation(list)`
    IsPermutation,
    /// `inverse(perm)`
    Inverse,
    /// `sort(list)`
    Sort,
    /// `reverse(list)`
    Reverse,
    /// `slice(list, from, to)`
    Slice,
    /// `float(a)`: a size as a number; unknown while symbolic.
    Float,
    /// `sqrt(a)`
    Sqrt,
    /// `size(dtype)`: bytes of an element.
    SizeOf,
    /// `is_float(dtype)`
    IsFloat,
    /// `floor(a)`: on sizes, of a quotient `a / b`, the floor division.
    Floor,
    /// `index(list, value)`: position of the first equal element.
    IndexOf,
    /// `finfo_min(dtype)`
    FloatMin,
    /// `finfo_max(dtype)`
    FloatMax,
}

/// Facts of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// `shape(x)`: a list.
    Shape,
    /// `dtype(x)`
    DType,
    /// `rank(x)`
    Rank,
    /// `const(x)`: computable at plan time (weights and what is built from them).
    Const,
    /// `value(x)`: the number, if all elements are that constant.
    Value,
    /// `nonneg(x)`: every element is known to be at least 0 and not NaN.
    NonNegative,
    /// `positive(x)`: every element is known to be above 0 and not NaN.
    Positive,
    /// `finite(x)`: no NaN, no infinity.
    Finite,
    /// `uses(x)`: how many distinct consumers (`prefer` only).
    Uses,
    /// `present(x)`: an optional operand is there.
    Present,
    /// `numel(x)`
    Numel,
    /// `count(xs)`: number of variadic operands.
    Count,
    /// `shapes(xs)`: the list of the shapes of variadic operands.
    Shapes,
    /// `uniform(x)`: whether all elements of a known constant are equal.
    Uniform,
}

/// Facts of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceFact {
    /// Compute capability as a number: 90 for sm_90.
    Sm,
    /// The profile's name.
    Name,
}

/// A pattern over the e-graph.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// How a tensor is read inside an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InView {
    /// Broadcast as numpy does.
    Broadcast,
    /// One value a column of the output: a vector along the last axis.
    Row,
    /// One value a row of the output.
    Col,
    /// The output's own shape.
    Full,
}

/// A pattern for an attribute.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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
    /// `build(e)`: computed once at plan time, in f64, and kept as a constant.
    Frozen(Box<Build>),
    /// An absent optional operand.
    Absent,
    /// `if guard then a else b`, decided when the node is built.
    If(Box<AExpr>, Box<Build>, Box<Build>),
}

/// An application on a right side.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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

/// A rounding class, from strongest to weakest.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Class {
    /// Bitwise equal.
    Exact,
    /// Bitwise equal unless a NaN or an infinity is involved.
    Finite,
    /// The same real function, rounded differently.
    Rounds,
    /// Within so many units in the last place of the output's dtype.
    Approx(f64),
}

/// A claimed class.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The class.
    pub class: Class,
    /// The dtypes it is claimed for; all where empty.
    pub dtypes: Vec<DType>,
}

/// A ruleset.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSetDef {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Where it stands.
    pub origin: Origin,
    /// Iterations at most; a fixpoint where `None`.
    pub iterations: Option<u32>,
    /// Node budget as `fixed + per_node * nodes of the graph`.
    pub nodes: (u64, u64),
    /// Milliseconds at most.
    pub time_ms: u64,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// `fuse::unary[relu]`: the written name, with the family's choice.
    pub name: String,
    /// `fuse::unary`.
    pub base_name: String,
    /// Its ruleset.
    pub ruleset: RuleSetId,
    /// Its doc comment.
    pub doc: String,
    /// Where it stands.
    pub origin: Origin,
    /// Its variables.
    pub vars: Vec<Var>,
    /// Left side: one pattern a root.
    pub lhs: Vec<Pat>,
    /// Right side: one a root.
    pub rhs: Vec<Build>,
    /// `let`s in order; computed after matching, before the guards.
    pub lets: Vec<(VarId, AExpr)>,
    /// Soundness guards: all must be known to be true.
    pub requires: Vec<Guard>,
    /// Profit guards.
    pub prefer: Vec<Guard>,
    /// Claims.
    pub claims: Vec<Claim>,
    /// True if both sides hold scalars only: lowered to tensors and to terms.
    pub pointwise: bool,
    /// True if the compiler made it (`body => op`, `body => scalar`).
    pub derived: bool,
}

impl Rule {
    /// A pattern as a rule that builds nothing and asks for nothing: to be matched, or to be filled in.
    pub fn of_pattern(name: &str, origin: &Origin, vars: Vec<Var>, pattern: Pat) -> Rule {
        Rule {
            name: name.into(),
            base_name: name.into(),
            ruleset: RuleSetId(0),
            doc: String::new(),
            origin: origin.clone(),
            vars,
            lhs: vec![pattern],
            rhs: Vec::new(),
            lets: Vec::new(),
            requires: Vec::new(),
            prefer: Vec::new(),
            claims: Vec::new(),
            pointwise: false,
            derived: true,
        }
    }
}

/// How a kernel is made.
#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    /// A cuBLASLt call with that epilogue.
    Cublaslt(String),
    /// A template of the user's.
    Template(TemplateFile),
    /// Generated: a pointwise region.
    Pointwise,
    /// Generated: a row-wise kernel from the op's body.
    Rowwise,
    /// The op's body, optimised by itself: several launches behind one name.
    Composed,
}

/// A template of the user's, beside the file that names it.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateFile {
    /// Its name, as it is written.
    pub file: String,
    /// Its text; empty where the file that names it is not on disk.
    pub text: String,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Where it stands.
    pub origin: Origin,
    /// Variables of its pattern.
    pub vars: Vec<Var>,
    /// What it implements. An epilogue that is a bare variable of sort `Term` matches any.
    pub pattern: Pat,
    /// How it is made.
    pub backend: Backend,
    /// Checked at plan time, on concrete shapes.
    pub requires: Vec<Guard>,
    /// Tuning parameters and their choices.
    pub tune: Vec<(String, Vec<i64>)>,
    /// Launch settings, over the variables and tuning parameters.
    pub launch: Vec<(String, AExpr)>,
    /// Claims against the op it implements.
    pub claims: Vec<Claim>,
    /// True if its epilogue has no free variable of sort `Term`: its source is a constant.
    pub closed: bool,
}

/// A test.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub origin: Origin,
    /// The device profile; the CPU where `None`.
    pub target: Option<String>,
    /// Inputs; input `i` is `VarId(i)`.
    pub inputs: Vec<TestInput>,
    /// What is given: one expression an output. Empty if it does not type-check, with the error
    /// in `error`.
    pub given: Vec<Build>,
    /// The error of `given`, if it has one.
    pub error: Option<(Code, String)>,
    /// What is expected.
    pub expect: Vec<Expect>,
}

/// An input of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestInput {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
    /// True if known at plan time.
    pub constant: bool,
    /// Values in row-major order, a single one for a splat; random where `None`.
    pub value: Option<Vec<f64>>,
}

/// What a test expects.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// Number of launches compares so.
    Launches(crate::ast::BinaryOp, i64),
    /// Number of nodes of that op or scalar in the optimised graph compares so.
    Count(Head, crate::ast::BinaryOp, i64),
    /// The given expression is rejected with this code.
    Error(Code),
    /// A rule whose written name is this fired, or did not.
    Fires(String, bool),
    /// Equal values, within the dtype's tolerance.
    Equal(Vec<Build>),
    /// The optimised graph has this form.
    Becomes(Vec<Build>),
}

/// A program that is shared by graphs, plans and threads.
pub type SharedProgram = Arc<Program>;
