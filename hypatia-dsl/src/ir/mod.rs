//! The checked Program: what a set of `.hyp` files means, with every name resolved.
//!
//! In: made by `sema` from resolved files, and read from the bytes that `hypatia_rules!` emits. Out: the
//! optimiser lowers its rules to e-graph rewrites, `emit` prints it as Rust and CUDA. Holds
//! always: ids index the tables of the same Program; families are expanded, patterns are inlined,
//! attributes stand in the order of the op's declaration, one entry for each.

mod attrs;
mod bytes;
mod sides;

use std::collections::HashMap;
use std::sync::Arc;

pub use attrs::{AExpr, AFn, AttrType, AttrValue, DTypePat, DeviceFact, DimPat, Fact, Guard, RestPat, TypePat};
pub use bytes::{VERSION, is_of_version};
pub use sides::{AttrPat, Build, BuildArg, BuildNode, Head, NodePat, Pat, parts};

use serde::{Deserialize, Serialize};

use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::diag::Code;
use crate::dtype::{DType, Kind};
use crate::shape::Dim;
use crate::source::Span;
use crate::term::Term;
pub use crate::term::{InView, ScalarId};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
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

impl Origin {
    /// True for what the embedded library declares: its files are named `<library>/...`.
    pub fn is_embedded(&self) -> bool {
        self.file.starts_with("<library>/")
    }
}

/// A scalar function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The short function of the device that generated kernels call for it in f32.
    pub device: Option<String>,
}

/// The meaning of a scalar function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ScalarBody {
    /// Built in.
    Builtin(BuiltinScalar),
    /// A term over `Param(i)`.
    Term(Term),
}

/// A variable of a rule, op body, kernel pattern or test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Var {
    /// As written; made-up ones start with `_`.
    pub name: String,
    /// What it stands for.
    pub sort: Sort,
}

/// What a variable stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct CostFormulas {
    /// Floating-point operations.
    pub flops: Option<AExpr>,
    /// Bytes read.
    pub read: Option<AExpr>,
    /// Bytes written.
    pub write: Option<AExpr>,
}

/// A parameter of an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
}

/// Kinds of parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// The meaning of an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OpBody {
    /// Shape function and reference are built in.
    Builtin(BuiltinOp),
    /// One expression a result, over the params' variables.
    Defined(Vec<Build>),
}

/// A rounding class, from strongest to weakest.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The class.
    pub class: Class,
    /// The dtypes it is claimed for; all where empty.
    pub dtypes: Vec<DType>,
}

/// A ruleset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Steps of work at most in one run of the stage, as `fixed + per_node * nodes of the graph`; no bound of its own where
    /// `None`.
    pub steps: Option<(u64, u64)>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateFile {
    /// Its name, as it is written.
    pub file: String,
    /// Its text; empty where the file that names it is not on disk.
    pub text: String,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Why no kernel can be generated from the body of its op, where a `rowwise` or `pointwise` kernel cannot be. The op then
    /// runs as the parts of its body.
    pub not_generated: Option<String>,
}

/// A test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
