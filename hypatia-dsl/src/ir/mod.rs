//! The checked Program: the meaning of a set of `.hyp` files, with every name resolved.
//!
//! In: what `sema` makes from resolved files, or the bytes that `hypatia_rules!` emits. Out: the
//! optimiser lowers its rules to e-graph rewrites, and `emit` prints it as Rust and CUDA.
//! Invariant: ids index the tables of the same Program; families are expanded; patterns are
//! inlined; attributes are in the order of the op's declaration, one entry for each.

mod attrs;
mod bytes;
mod contract;
mod sides;

use std::collections::HashMap;
use std::sync::Arc;

pub use attrs::{AExpr, AFn, AttrType, AttrValue, DTypePat, DeviceFact, DimPat, Fact, Guard, RestPat, TypePat};
pub use bytes::{VERSION, is_of_version};
pub use contract::{Clause, Contract, Demand};
pub use sides::{AttrPat, Build, BuildArg, BuildNode, Each, Head, NodePat, Pat, Rest, walk_build};

use hypatia_target::cublaslt::Epilogue;
use serde::{Deserialize, Serialize};

use crate::ast::FOLD;
use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::diag::Code;
use crate::dtype::{DType, Kind};
use crate::shape::Dim;
use crate::source::{Span, is_embedded};
use crate::term::Term;
pub use crate::term::{InView, ScalarId};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl $name {
            /// The index into the Program's table.
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

/// All declarations of a set of files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Scalar functions, builtin ones included.
    pub scalars: Vec<ScalarDef>,
    /// Ops, builtin ones included.
    pub ops: Vec<OpDef>,
    /// Rulesets in execution order.
    pub rulesets: Vec<RuleSetDef>,
    /// Rules, with families expanded and each `<=>` split into two.
    pub rules: Vec<Rule>,
    /// Kernels.
    pub kernels: Vec<Kernel>,
    /// Tests.
    pub tests: Vec<Test>,
    /// Contracts.
    pub contracts: Vec<Contract>,
    /// Named families of scalars.
    pub families: Vec<(String, Vec<ScalarId>)>,
}

impl Program {
    /// Makes the nodes of a custom domain of ONNX stand for the ops of a file, named as its origin
    /// names it. Returns how many ops these are.
    pub fn set_domain(&mut self, file: &str, domain: &str) -> usize {
        let own = self.ops.iter_mut().filter(|op| op.origin.file == file);
        own.map(|op| op.domain = Some(domain.to_string())).count()
    }

    /// The op that the nodes of a custom domain with that name stand for. An op whose name another
    /// file has too is called `module::name` in the Program.
    pub fn op_of_domain(&self, domain: &str, name: &str) -> Option<OpId> {
        let named = |op: &OpDef| op.name.rsplit("::").next().is_some_and(|n| n.split('\'').next() == Some(name));
        let of = |op: &OpDef| op.domain.as_deref() == Some(domain) && named(op);
        self.ops.iter().position(of).map(|i| OpId(i as u32))
    }

    /// Looks up a scalar by name.
    pub fn find_scalar(&self, name: &str) -> Option<ScalarId> {
        self.scalars.iter().position(|s| s.name == name).map(|i| ScalarId(i as u32))
    }

    /// Looks up an op by name.
    pub fn find_op(&self, name: &str) -> Option<OpId> {
        self.ops.iter().position(|s| s.name == name).map(|i| OpId(i as u32))
    }

    /// Looks up the op of a builtin.
    pub fn builtin_op(&self, op: BuiltinOp) -> Option<OpId> {
        self.ops.iter().position(|o| o.body == OpBody::Builtin(op)).map(|i| OpId(i as u32))
    }

    /// Looks up the scalar of a builtin.
    pub fn builtin_scalar(&self, s: BuiltinScalar) -> Option<ScalarId> {
        self.scalars.iter().position(|o| o.body == ScalarBody::Builtin(s)).map(|i| ScalarId(i as u32))
    }

    /// The scalar with that id.
    pub fn scalar(&self, id: ScalarId) -> &ScalarDef {
        &self.scalars[id.index()]
    }

    /// The op with that id.
    pub fn op(&self, id: OpId) -> &OpDef {
        &self.ops[id.index()]
    }

    /// Ids by name, for callers that look up many names.
    pub fn op_names(&self) -> HashMap<&str, OpId> {
        self.ops.iter().enumerate().map(|(i, o)| (o.name.as_str(), OpId(i as u32))).collect()
    }
}

/// The location of a declaration, for messages at run time: `file:line:column`.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The file's name as users see it.
    pub file: String,
    /// One-based.
    pub line: u32,
    /// One-based.
    pub column: u32,
    /// The exact span, if the source map is still available.
    pub span: Option<Span>,
}

impl Origin {
    /// True for declarations of the embedded library.
    pub fn is_embedded(&self) -> bool {
        is_embedded(&self.file)
    }
}

/// A scalar function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalarDef {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Its location.
    pub origin: Origin,
    /// Its parameters.
    pub params: Vec<(String, Kind)>,
    /// The kind of its result.
    pub result: Kind,
    /// Its definition.
    pub body: ScalarBody,
    /// Written derivatives, one for each parameter; empty if none is written. Terms over the
    /// parameters.
    pub grads: Vec<Term>,
    /// The fast device function that generated kernels call for it in f32.
    pub device: Option<String>,
}

/// The definition of a scalar function.
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
    /// As written; generated names start with `_`.
    pub name: String,
    /// Its sort.
    pub sort: Sort,
}

/// The sort of a variable: what it may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sort {
    /// A tensor e-class. A pointwise rule is also lowered to scalars; there it is a scalar e-class.
    Tensor,
    /// Several tensors: a variadic operand.
    Tensors,
    /// A scalar term (an epilogue).
    Term,
    /// An attribute value, a dimension, or a `let`.
    Attr,
    /// A rest of dimensions: a list of sizes.
    Shape,
    /// An element type.
    DType,
    /// Pointwise work: `[f: pointwise]`. It occurs as a head, never as an operand.
    Region,
}

/// An op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpDef {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Its location.
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
    /// Conditions on operands and attributes (soundness guards, three-valued).
    pub requires: Vec<Guard>,
    /// Its definition.
    pub body: OpBody,
    /// The gradients of its operands, if they are written; otherwise they follow from the body.
    pub grad: Option<Box<OpGrad>>,
    /// Cost formulas, if written, over the variables; `out` is the first result's shape.
    pub cost: CostFormulas,
    /// The custom domain of ONNX whose nodes of the op's name are this op. It is no part of a file:
    /// the caller says it.
    pub domain: Option<String>,
}

/// The gradients of an op's operands, as they are written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpGrad {
    /// The variables of the op's signature, then one for each result, then one for the gradient of
    /// each result.
    pub vars: Vec<Var>,
    /// The variable of the first result. Those of the other results follow, then the gradients.
    pub first: VarId,
    /// Operands (as indices of `params`) with their gradients, in order: all whose elements can be
    /// floats.
    pub of: Vec<(usize, Build)>,
}

impl OpDef {
    /// True if elements of this operand can be floats, so that it has a gradient.
    pub fn has_gradient(&self, operand: &Param) -> bool {
        let ParamKind::Tensor { ty, .. } = &operand.kind else { return false };
        match &ty.dtype {
            DTypePat::Is(d) => d.computes_in_floats(),
            DTypePat::Var(v) => match self.bounds.iter().find(|(of, _)| of == v) {
                Some((_, allowed)) => allowed.iter().any(|d| d.computes_in_floats()),
                None => true,
            },
            DTypePat::Any | DTypePat::Expr(_) => true,
        }
    }

    /// True if what a term of this op reads must broadcast to its first result. In an op with a
    /// body, the op that is handed the term decides.
    pub fn terms_read_results(&self) -> bool {
        matches!(self.body, OpBody::Builtin(_))
    }

    /// Tensor and term operands in order, with their indices in `params`.
    pub fn operands(&self) -> impl Iterator<Item = (usize, &Param)> {
        self.params.iter().enumerate().filter(|(_, p)| !matches!(p.kind, ParamKind::Attr { .. }))
    }

    /// Attributes in order, with their indices in `params`.
    pub fn attrs(&self) -> impl Iterator<Item = (usize, &Param)> {
        self.params.iter().enumerate().filter(|(_, p)| matches!(p.kind, ParamKind::Attr { .. }))
    }
}

/// The cost formulas `flops`, `read` and `write` of an op. `None` means derived from the types.
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
    /// Its kind.
    pub kind: ParamKind,
}

/// Kinds of parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ParamKind {
    /// A tensor operand.
    Tensor {
        /// Its type.
        ty: TypePat,
        /// True if it may be absent.
        optional: bool,
        /// True if it takes any number of operands. Only the last operand may be variadic.
        variadic: bool,
    },
    /// An epilogue term over `acc` and tensors.
    Term,
    /// An attribute.
    Attr {
        /// Its type.
        ty: AttrType,
        /// Its default value.
        default: Option<AttrValue>,
    },
}

/// The definition of an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OpBody {
    /// Shape function and reference are built in.
    Builtin(BuiltinOp),
    /// One expression for each result, over the variables of the parameters.
    Defined(Vec<Build>),
}

/// A rounding class, from strongest to weakest.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub enum Class {
    /// Bitwise equal.
    Exact,
    /// Bitwise equal unless a NaN or an infinity occurs.
    Finite,
    /// The same real function, rounded differently.
    Rounds,
    /// The same, but where rounding decides to which side of a step an integer falls, it may be
    /// that many steps off.
    Within(u32),
    /// The same, but an index may be that of another element of the same value.
    Ties,
    /// Off by at most `rel * |truth| + abs` beyond what `rounds` allows.
    Approx {
        /// The relative part.
        rel: f64,
        /// The absolute part.
        abs: f64,
    },
}

/// A claimed rounding class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The class.
    pub class: Class,
    /// The dtypes that it is claimed for; empty means all.
    pub dtypes: Vec<DType>,
}

/// A ruleset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleSetDef {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Its location.
    pub origin: Origin,
    /// The maximum number of iterations; `None` means until a fixpoint.
    pub iterations: Option<u32>,
    /// The node budget: `fixed + per_node * nodes of the graph`.
    pub nodes: (u64, u64),
    /// The maximum number of work steps in one run of the ruleset:
    /// `fixed + per_node * nodes of the graph`. `None` means that the ruleset has no limit of
    /// its own.
    pub steps: Option<(u64, u64)>,
}

/// What the right side of a rule saves beside the left side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saves {
    /// How much.
    pub amount: AExpr,
    /// Of what.
    pub unit: SavesUnit,
}

/// What [`Saves`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavesUnit {
    /// Microseconds.
    Micros,
    /// Bytes that are neither read nor written.
    Bytes,
}

impl SavesUnit {
    /// Every unit.
    pub const ALL: [SavesUnit; 2] = [SavesUnit::Micros, SavesUnit::Bytes];

    /// Its name in a file.
    pub fn name(self) -> &'static str {
        match self {
            SavesUnit::Micros => "us",
            SavesUnit::Bytes => "bytes",
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// `fuse::unary[relu]`: the written name with the chosen family member.
    pub name: String,
    /// `fuse::unary`.
    pub base_name: String,
    /// Its ruleset.
    pub ruleset: RuleSetId,
    /// Its doc comment.
    pub doc: String,
    /// Its location.
    pub origin: Origin,
    /// Its variables.
    pub vars: Vec<Var>,
    /// Left side: one pattern for each root.
    pub lhs: Vec<Pat>,
    /// Right side: one expression for each root.
    pub rhs: Vec<Build>,
    /// `let`s in order, computed after matching and before the guards.
    pub lets: Vec<(VarId, AExpr)>,
    /// Soundness guards: all must be known to be true.
    pub requires: Vec<Guard>,
    /// Profit guards (preferences).
    pub prefer: Vec<Guard>,
    /// What it saves, where the cost model cannot know.
    pub saves: Option<Saves>,
    /// Claimed rounding classes.
    pub claims: Vec<Claim>,
    /// True if both sides contain scalars only. Such a rule is lowered to tensors and to terms.
    pub pointwise: bool,
    /// True if the compiler derived it (`body => op`, `body => scalar`).
    pub derived: bool,
}

impl Rule {
    /// The name of the rule that is derived from the body of the declaration of that name.
    pub fn derived_name(declaration: &str) -> String {
        format!("{FOLD}::{declaration}")
    }

    /// The declaration from whose body a rule of that name would be derived. Users may write such
    /// names: whether a rule is derived, [`Rule::derived`] says.
    pub fn derived_from(rule: &str) -> Option<&str> {
        rule.strip_prefix(FOLD)?.strip_prefix("::")
    }

    /// Wraps a pattern in a rule without right side and guards, for matching or for instantiation.
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
            saves: None,
            claims: Vec::new(),
            pointwise: false,
            derived: true,
        }
    }
}

/// How a kernel is implemented.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Backend {
    /// A cuBLASLt call with this epilogue.
    Cublaslt(Epilogue),
    /// A user-supplied template.
    Template(TemplateFile),
    /// A generated kernel for a pointwise region.
    Pointwise,
    /// A generated row-wise kernel from the op's body.
    Rowwise,
    /// A composed kernel: several launches of the op's separately optimised body.
    Composed,
    /// A generated matrix product in tiles, with its epilogue on the accumulators.
    Tiled,
}

impl Backend {
    /// True for a kernel that is timed beside its fallback: nothing else says that it is faster.
    pub fn is_timed(&self) -> bool {
        matches!(self, Backend::Tiled | Backend::Template(_))
    }

    /// True for the launch of a product with its epilogue that the device may lack, or that may be
    /// slower than a product and a pass.
    pub fn needs_fallback(&self) -> bool {
        match self {
            Backend::Cublaslt(epilogue) => epilogue.needs_fallback(),
            _ => self.is_timed(),
        }
    }
}

/// A user-supplied template, next to the file that names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateFile {
    /// Its name as written.
    pub file: String,
    /// Its text; empty if the file that names it is not on disk.
    pub text: String,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Its location.
    pub origin: Origin,
    /// Variables of its pattern.
    pub vars: Vec<Var>,
    /// The pattern that it implements. An epilogue that is a bare variable of sort `Term` matches
    /// any epilogue.
    pub pattern: Pat,
    /// Its backend.
    pub backend: Backend,
    /// Guards that are checked at plan time, on concrete shapes.
    pub requires: Vec<Guard>,
    /// Where all of these hold, the kernel is timed although a library call computes the whole
    /// node.
    pub prefer: Vec<Guard>,
    /// Tuning parameters and their choices.
    pub tune: Vec<(String, Vec<i64>)>,
    /// Launch settings, over the variables and tuning parameters.
    pub launch: Vec<(String, AExpr)>,
    /// Claims relative to the op that it implements.
    pub claims: Vec<Claim>,
    /// True if its epilogue has no free variable of sort `Term`; then its source is constant.
    pub closed: bool,
    /// The reason why no `rowwise` or `pointwise` kernel can be generated from the op's body. The
    /// op then runs as the ops of its body.
    pub not_generated: Option<String>,
}

impl Kernel {
    /// True if a plan can launch it: a template's kernel declares its grid and its block, and takes
    /// nothing that a plan does not give.
    pub fn can_be_planned(&self) -> bool {
        let Backend::Template(template) = &self.backend else { return true };
        let sets = |key: &str| self.launch.iter().any(|(k, _)| k == key);
        !template.text.is_empty() && sets("grid") && sets("block") && !sets("cluster") && !sets("workspace")
    }
}

/// A test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Its location.
    pub origin: Origin,
    /// The device profile; `None` means the CPU.
    pub target: Option<String>,
    /// Inputs; input `i` is `VarId(i)`.
    pub inputs: Vec<TestInput>,
    /// The given expressions, one for each output. Empty if they do not type-check; `error` then
    /// holds the error.
    pub given: Vec<Build>,
    /// The type error of `given`, if there is one.
    pub error: Option<(Code, String)>,
    /// Its expectations.
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
    /// True if its value is known at plan time.
    pub constant: bool,
    /// Values in row-major order; a single value is a splat; `None` means random.
    pub value: Option<Vec<f64>>,
}

/// An expectation of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Expect {
    /// A comparison with the number of launches.
    Launches(crate::ast::BinaryOp, i64),
    /// A comparison with the number of nodes of that op or scalar in the optimised graph.
    Count(Head, crate::ast::BinaryOp, i64),
    /// The given expression is rejected with this code.
    Error(Code),
    /// Whether a rule with this written name fired: true if it must, false if it must not.
    Fires(String, bool),
    /// Whether a rule with this written name matched with its guards true, whatever became of it.
    Matches(String, bool),
    /// Values that must be equal within the dtype's tolerance.
    Equal(Vec<Build>),
    /// The expected form of the optimised graph.
    Becomes(Vec<Build>),
}

/// A Program shared by graphs, plans and threads.
pub type SharedProgram = Arc<Program>;
