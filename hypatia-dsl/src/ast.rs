//! The syntax tree of a `.hyp` file as written: no name is resolved and nothing is checked.
//!
//! In: what the parser found. Out: input of `fmt` and of name resolution. Invariant: every node has
//! the span of its text. Patterns, right sides, guards, bodies and epilogues share one expression
//! type; `sema` decides which expressions are legal in which context.

use serde::{Deserialize, Serialize};

use crate::source::{FileId, Span};

mod bytes;

/// A value with its source span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spanned<T> {
    /// The value.
    pub node: T,
    /// Its span.
    pub span: Span,
}

/// An identifier with its span.
pub type Name = Spanned<String>;

/// The ruleset of the rules that the compiler derives, which no file declares.
pub const FOLD: &str = "fold";

/// `a::b::c`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// The parts, at least one.
    pub parts: Vec<Name>,
    /// From the first part to the last.
    pub span: Span,
}

impl Path {
    /// Turns the path of a family into the path of one of its rules: `fuse::unary` becomes
    /// `fuse::unary[relu]`, which ends at `end`.
    pub fn choose(&mut self, members: &[Name], end: u32) {
        let names: Vec<&str> = members.iter().map(|m| m.node.as_str()).collect();
        if let Some(last) = self.parts.last_mut() {
            last.node.push_str(&format!("[{}]", names.join(", ")));
        }
        self.span.end = end;
    }

    /// The parts joined by `::`.
    pub fn text(&self) -> String {
        self.parts.iter().map(|p| p.node.as_str()).collect::<Vec<_>>().join("::")
    }
}

/// Placeholder for an item with a syntax error whose kind is unknown.
pub const UNKNOWN_ITEM: &str = "?";

/// A whole file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct File {
    /// Which file.
    pub id: FileId,
    /// `edition N;`, required as the first item (`None` was reported by the parser).
    pub edition: Option<Spanned<u32>>,
    /// `//!` lines at the top, joined, without the marker.
    pub doc: String,
    /// The items in file order. Items with syntax errors have been reported and are left out.
    pub items: Vec<Item>,
    /// Names that the left-out items would have declared, so that a use of them is not reported as
    /// a second error. `*` stands for a left-out `use`, [`UNKNOWN_ITEM`] for an item of unknown
    /// kind.
    pub broken: Vec<String>,
    /// All ordinary comments with their spans, for the formatter.
    pub comments: Vec<Spanned<String>>,
}

impl File {
    /// An empty file.
    pub fn empty(id: FileId) -> File {
        let (items, broken, comments) = (Vec::new(), Vec::new(), Vec::new());
        File { id, edition: None, doc: String::new(), items, broken, comments }
    }
}

/// One top-level item.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Item {
    /// `///` lines before it, joined, without the marker.
    pub doc: String,
    /// The kind of item.
    pub kind: ItemKind,
    /// The span of the whole item without its doc comment.
    pub span: Span,
}

/// The items of the language.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ItemKind {
    /// `use core::*;` or `use core::gelu;`
    Use(Use),
    /// `ruleset fuse { until = fixpoint; nodes = 50 * graph; }`
    RuleSet(RuleSet),
    /// `scalar relu(x) = max(x, 0);`
    Scalar(Scalar),
    /// `op linear(...) -> ... = ...;`
    Op(Op),
    /// `pattern sq(x) = mul(x, x) | pow(x, 2.0);`
    Pattern(Pattern),
    /// `rule fuse::start: ... => ...;`
    Rule(Rule),
    /// `kernel lt_gelu for gemm(...) { ... }`
    Kernel(Kernel),
    /// `test "..." on h200 { ... }`
    Test(Test),
    /// `family unary = {relu, gelu};`: a named list of scalars or ops for `[g in unary]`.
    Family(Family),
    /// `contract bert { must fold::softmax count = 12; never fuse::both; }`
    Contract(Contract),
}

/// `use path::*;` or `use path::name;`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Use {
    /// The file. `core` is the embedded library's file, or `core.hyp` in this file's folder; `a::b`
    /// is `a/b.hyp`.
    pub path: Path,
    /// True for `::*`. Otherwise the last part of `path` is the one imported name.
    pub glob: bool,
}

/// `ruleset NAME { key = value; ... }`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RuleSet {
    /// Its name, the first part of its rules' names.
    pub name: Name,
    /// `until`, `nodes`, `steps`, `iterations`, `after`.
    pub settings: Vec<Setting>,
}

/// `key = value;`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// The key.
    pub key: Name,
    /// The value.
    pub value: Expr,
}

/// A parameter of a scalar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScalarParam {
    /// Its name.
    pub name: Name,
    /// `: bool` or `: number`; a number if absent.
    pub kind: Option<Name>,
}

/// `scalar NAME(params) [-> kind] = body [device "name"] [grad e1, e2];` or `scalar NAME(params)
/// builtin ...;`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scalar {
    /// Its name.
    pub name: Name,
    /// Its parameters.
    pub params: Vec<ScalarParam>,
    /// `-> bool`.
    pub result: Option<Name>,
    /// The body, `None` for `builtin`.
    pub body: Option<Expr>,
    /// `device "name"`: the device function that computes it in f32.
    pub device: Option<Spanned<String>>,
    /// Derivatives in parameter order: `grad dx, dy`. Empty if not written.
    pub grads: Vec<Expr>,
}

/// `<T: float, U>`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generic {
    /// The type variable.
    pub name: Name,
    /// `float`, `int`, `number`, `any`, or a dtype set `{f16, bf16}`.
    pub bound: Option<Expr>,
}

/// A parameter of an op.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpParam {
    /// `*xs: T[..]`: any number of operands.
    pub variadic: bool,
    /// Its name.
    pub name: Name,
    /// A tensor type, `scalar` for an epilogue term, or an attribute type.
    pub ty: ParamType,
    /// `?`: the operand may be absent.
    pub optional: bool,
    /// `= -1`: the default of an attribute.
    pub default: Option<Expr>,
}

/// The type of a parameter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ParamType {
    /// `T[..s, k]`
    Tensor(TypeExpr),
    /// `int`, `ints`, `axis`, `axes`, `float`, `floats`, `bool`, `dtype`, `dim`, `dims`, `string`,
    /// or `scalar` (an epilogue term).
    Named(Name),
}

/// `T[..s, m, k]`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TypeExpr {
    /// A dtype, a dtype variable, or `_`.
    pub dtype: Name,
    /// The dimensions; at most one rest.
    pub dims: Vec<DimExpr>,
    /// Its place.
    pub span: Span,
}

/// One entry of a shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DimExpr {
    /// `m`, `128`, `2 * n`, `_`.
    Dim(Expr),
    /// `..s`, `..broadcast(s, t)`, `..` (nameless).
    Rest(Option<Expr>, Span),
}

/// `grad(y, dy) = body` after the body of an op: the gradients of its operands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpGrad {
    /// One for each result of the op, then one for the gradient of each.
    pub names: Vec<Name>,
    /// One expression for each operand whose elements can be floats; `(a, b)` for two.
    pub body: Expr,
    /// `let name = e` after the body, in order.
    pub lets: Vec<(Name, Expr)>,
}

/// `op NAME<generics>(params) -> result { builtin; ... }` or `... = body [grad(...) = ...]
/// [{ costs }];`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Op {
    /// Its name.
    pub name: Name,
    /// Its generics.
    pub generics: Vec<Generic>,
    /// Operands and attributes.
    pub params: Vec<OpParam>,
    /// One type, or several in parentheses; `*T[..]` for a variadic result.
    pub results: Vec<ResultType>,
    /// The body, one expression per result (`(a, b)` for two); `None` for a builtin.
    pub body: Option<Expr>,
    /// `let name = e` after the body, in order.
    pub lets: Vec<(Name, Expr)>,
    /// The gradients of the operands, if they are written.
    pub grad: Option<OpGrad>,
    /// True if the block says `builtin;`.
    pub builtin: bool,
    /// `flops = ...; read = ...; write = ...;`
    pub settings: Vec<Setting>,
    /// `requires` clauses: conditions on the operands and attributes of the op.
    pub requires: Vec<Expr>,
}

/// The type of a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResultType {
    /// `*`: any number of results of this type.
    pub variadic: bool,
    /// The type.
    pub ty: TypeExpr,
}

/// `pattern NAME(params) = alternatives;`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pattern {
    /// Its name.
    pub name: Name,
    /// Its parameters, bound at each use.
    pub params: Vec<Name>,
    /// The pattern; `a | b` for alternatives.
    pub body: Expr,
}

/// A binder of a rule: `[g in unary]` or `[f: pointwise]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binder {
    /// The variable.
    pub name: Name,
    /// The family: a name, or a set `{relu, gelu}`.
    pub family: Expr,
}

/// A rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// `fuse::start`.
    pub path: Path,
    /// `[g in unary, h in binary]`.
    pub binders: Vec<Binder>,
    /// The left side; a tuple for several roots.
    pub lhs: Expr,
    /// True for `<=>`.
    pub both_ways: bool,
    /// The right side.
    pub rhs: Expr,
    /// `where x: T[m, k]`: types of variables, on whichever side matches.
    pub types: Vec<(Name, TypeExpr)>,
    /// `let name = e`, in order.
    pub lets: Vec<(Name, Expr)>,
    /// `requires a, b`.
    pub requires: Vec<Expr>,
    /// `prefer e`.
    pub prefer: Vec<Expr>,
    /// `saves 3 us`, as often as it is written.
    pub saves: Vec<Saves>,
    /// `class exact`, `class rounds for bf16, exact for f32`, `class approx(1e-6, 0)`.
    pub classes: Vec<ClassExpr>,
}

/// What a rule saves, where the cost model cannot know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saves {
    /// How much.
    pub amount: Expr,
    /// `us` or `bytes`.
    pub unit: Name,
}

/// A claimed rounding class.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassExpr {
    /// `exact`, `finite`, `rounds`, `within`, `ties` or `approx`.
    pub class: Name,
    /// The numbers between parentheses: `approx(rel, abs)`, `within(steps)`.
    pub bounds: Vec<Spanned<f64>>,
    /// `for bf16, f16`; all dtypes if empty.
    pub dtypes: Vec<Name>,
}

/// Whether the one number of an `approx` counts units in the last place, the old spelling. Nobody
/// claimed a small part of a unit: such a number is a relative bound.
pub fn counts_units(bound: f64) -> bool {
    bound == 0.0 || bound >= 0.125
}

/// A kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub name: Name,
    /// What it implements: a pattern.
    pub pattern: Expr,
    /// `cublaslt GELU_BIAS;`, `template "file";`, `pointwise;`, `rowwise;`, `composed;`.
    pub backend: Option<Backend>,
    /// `requires ...;`
    pub requires: Vec<Expr>,
    /// `prefer ...;`
    pub prefer: Vec<Expr>,
    /// `tune BM in {64, 128};`
    pub tune: Vec<(Name, Expr)>,
    /// `launch grid = ..., block = ...;` and other settings.
    pub settings: Vec<Setting>,
    /// `class ...;`
    pub classes: Vec<ClassExpr>,
}

/// How a kernel is generated or called.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Backend {
    /// `cublaslt EPILOGUE;`
    Cublaslt(Name),
    /// `template "file.cu.j2";`
    Template(Spanned<String>),
    /// `pointwise;`
    Pointwise(Span),
    /// `rowwise;`
    Rowwise(Span),
    /// `composed;`
    Composed(Span),
    /// `tiled;`
    Tiled(Span),
}

/// `family NAME = {a, b};`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Family {
    /// Its name.
    pub name: Name,
    /// A set of names, or another family.
    pub members: Expr,
}

/// `contract NAME { must RULE; never RULE; }`: the fusions that a model's plan must have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contract {
    /// Its name.
    pub name: Name,
    /// Its clauses in order.
    pub clauses: Vec<Clause>,
}

/// A clause of a contract.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Clause {
    /// True for `must`, false for `never`.
    pub must: bool,
    /// A rule, a family of rules, one of those, or a ruleset.
    pub rule: Path,
    /// `count = N`: exactly this many sites.
    pub count: Option<Spanned<u64>>,
    /// `at "NODE"`: a site at this node of the model.
    pub at: Option<Spanned<String>>,
}

/// A test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Test {
    /// The string in quotes.
    pub name: Spanned<String>,
    /// `on h200`.
    pub target: Option<Name>,
    /// Its statements in order.
    pub statements: Vec<TestStatement>,
}

/// A statement of a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TestStatement {
    /// `input x: bf16[128, 256];`, `const w: f32[2] = [1.0, 2.0];`
    Input {
        /// True for `const`: the value is known when the plan is made.
        constant: bool,
        /// The name.
        name: Name,
        /// The type; dimensions are numbers or symbols.
        ty: TypeExpr,
        /// The values: one number for all elements, or a nested list.
        value: Option<Expr>,
    },
    /// `given e;` or `given e1, e2;`
    Given(Vec<Expr>),
    /// `expect launches == 1;`, `expect error H0304;`, `expect fires fuse::unary;`,
    /// `expect not fires r;`, `expect equal e;`, `expect becomes e;`
    Expect(Expect),
}

/// What a test expects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Expect {
    /// A comparison of `launches`, `cost` or `count(op)`.
    Compare(Expr),
    /// `error H0304`
    Error(Name),
    /// `fires rule`; false for `not fires rule`.
    Fires(Path, bool),
    /// `matches rule`; false for `not matches rule`.
    Matches(Path, bool),
    /// `equal e`: same values as `given`.
    Equal(Expr),
    /// `becomes e`: the optimised graph equals this one.
    Becomes(Expr),
}

/// An expression.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Its place.
    pub span: Span,
}

/// An argument of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arg {
    /// `axis = e`.
    pub name: Option<Name>,
    /// The value.
    pub value: Expr,
}

/// The kinds of expressions, from loosest to tightest binding where that matters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ExprKind {
    /// `1`, `2.0`, `1e-5`, `inf`, `nan`.
    Number {
        /// The value.
        value: f64,
        /// True if it was written without `.` and without an exponent.
        integer: bool,
    },
    /// `"text"`
    Str(String),
    /// `true`, `false`
    Bool(bool),
    /// A name, possibly qualified.
    Path(Path),
    /// `_`
    Hole,
    /// `none`: an absent optional operand.
    Absent,
    /// `bias?`: an optional operand of a pattern, bound whether it is present or absent.
    Optional(Name),
    /// `f(args)`, `cast?(x)`, `round<f16>(x)`.
    Call {
        /// The callee.
        callee: Path,
        /// `?` after the name: the node is optional.
        optional: bool,
        /// `<f16>`.
        types: Vec<Name>,
        /// The arguments.
        args: Vec<Arg>,
    },
    /// `e.0`: one of several results.
    Result(Box<Expr>, u32),
    /// `e[i]`
    Index(Box<Expr>, Box<Expr>),
    /// `[a, b, ..rest]`
    List(Vec<Expr>),
    /// `[e for x in list if cond]`
    Comprehension {
        /// The element.
        element: Box<Expr>,
        /// The variable.
        name: Name,
        /// The list it iterates over.
        over: Box<Expr>,
        /// `if cond`.
        condition: Option<Box<Expr>>,
    },
    /// `{a, b}`
    Set(Vec<Expr>),
    /// `..xs` splices a list or a rest variable; plain `..` has no operand.
    Spread(Option<Box<Expr>>),
    /// `-e`, `not e`
    Unary(UnaryOp, Box<Expr>),
    /// `a + b` and the other operators.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `b else 0`: `b`, or the fallback if `b` is absent.
    Else(Box<Expr>, Box<Expr>),
    /// `if c then a else b`
    If(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `name @ pattern`
    Bind(Name, Box<Expr>),
    /// `x: T[..s, k]`
    Typed(Box<Expr>, TypeExpr),
    /// `2.0 ~ 1e-3`: a constant within a relative tolerance.
    Near(Box<Expr>, Box<Expr>),
    /// `p | q`
    Alternatives(Vec<Expr>),
    /// `(a, b)`
    Tuple(Vec<Expr>),
}

/// Prefix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnaryOp {
    /// `-`
    Neg,
    /// `not`
    Not,
}

/// Infix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BinaryOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Rem,
    /// `**`
    Pow,
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `and`
    And,
    /// `or`
    Or,
    /// `in`
    In,
    /// `not in`
    NotIn,
}
