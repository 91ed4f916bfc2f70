//! What every declaration needs while it is checked: its variables, its scope, its diagnostics.
//!
//! In: the tables of [`Sema`] and the expressions of one declaration. Out: variables and
//! diagnostics. Holds always: `None` from any method means that the reason was reported.

use std::collections::HashMap;

use crate::ast::{Expr, ExprKind, Path};
use crate::builtin::BuiltinScalar;
use crate::diag::{Code, Diagnostic};
use crate::dtype::DType;
use crate::ir::{AExpr, Build, Head, ScalarId, Sort, Var, VarId};
use crate::resolve::{ItemRef, Space};
use crate::source::Span;
use crate::spell::closest;

use super::{Decl, Sema, code};

/// Nesting of expressions and of inlined patterns at most.
const MAX_DEPTH: usize = 200;
/// Nodes that one declaration may come to, patterns inlined.
const MAX_SIZE: usize = 20_000;

/// Where an attribute expression stands: decides which facts it may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// An attribute or dimension of a left side.
    Pattern,
    /// An attribute of a right side.
    Right,
    /// An attribute of an op's body.
    Body,
    /// An attribute of a test.
    Test,
    /// `requires` of a rule or an op.
    Requires,
    /// `prefer`.
    Prefer,
    /// `let`.
    Let,
    /// `requires` and settings of a kernel.
    Kernel,
    /// A type or cost of an op.
    Type,
}

/// Whether tensors or epilogue terms are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pos {
    /// A tensor.
    Tensor,
    /// A scalar term.
    Term,
}

impl Pos {
    pub(super) fn sort(self) -> Sort {
        match self {
            Pos::Tensor => Sort::Tensor,
            Pos::Term => Sort::Term,
        }
    }
}

/// What is known of a variable beside its sort.
#[derive(Clone, Debug, Default)]
pub(super) struct VarInfo {
    /// Where it was bound first.
    pub span: Option<Span>,
    /// May be absent.
    pub optional: bool,
    /// Of pointwise work: how many operands the left side gives it.
    pub operands: Option<usize>,
    /// One of several operands, inside `[.. for x in xs]`: only its sizes are known.
    pub item: bool,
}

/// What a name means inside a declaration.
#[derive(Clone, Debug)]
pub(super) enum Slot<'a> {
    /// A variable.
    Var(VarId),
    /// A parameter of a named pattern that is being inlined: its argument, in the scope `frame`.
    Param {
        /// The argument.
        expr: &'a Expr,
        /// The scope that it belongs to.
        frame: usize,
        /// The variable that remembers what it matched, for its second mention.
        var: Option<VarId>,
        /// True once it was matched.
        bound: bool,
    },
}

/// The names of a declaration, or of a pattern that is inlined into it.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// The file whose declarations are in reach.
    pub file: usize,
    /// Variables and parameters.
    pub names: HashMap<String, Slot<'a>>,
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Callee {
    /// A scalar or an op.
    Head(Head),
    /// A named pattern.
    Pattern(ItemRef),
}

/// The state of one declaration.
pub(super) struct Cx<'a> {
    pub s: &'a Sema<'a>,
    pub vars: Vec<Var>,
    pub info: Vec<VarInfo>,
    pub frames: Vec<Frame<'a>>,
    /// The current scope.
    pub frame: usize,
    /// `[g in unary]`: what `g` stands for.
    pub binders: HashMap<String, Head>,
    pub diags: Vec<Diagnostic>,
    /// Conditions of a left side that could only be checked after all of it was matched.
    pub deferred: Vec<(VarId, &'a Expr, usize)>,
    /// Guards that patterns imply.
    pub implied: Vec<AExpr>,
    pub place: Place,
    /// The pattern that a kernel implements, with all its results.
    pub kernel_root: Option<Span>,
    /// How many of the variables are parameters of an op.
    pub params: usize,
    /// How a name gets a value here, with the name for `{}`.
    pub bind_hint: &'static str,
    /// `[d in {f16, bf16}]`: what `d` stands for.
    pub dtypes: HashMap<String, DType>,
    /// Applications that were built, operands first, with their places.
    pub nodes: Vec<(Build, Span)>,
    depth: usize,
    size: usize,
    /// True once the size limit was reported.
    too_large: bool,
}

impl<'a> Cx<'a> {
    pub(super) fn new(s: &'a Sema<'a>, file: usize) -> Cx<'a> {
        Cx {
            s,
            vars: Vec::new(),
            info: Vec::new(),
            frames: vec![Frame { file, names: HashMap::new() }],
            frame: 0,
            binders: HashMap::new(),
            diags: Vec::new(),
            deferred: Vec::new(),
            implied: Vec::new(),
            place: Place::Pattern,
            kernel_root: None,
            params: 0,
            bind_hint: "bind `{}` on the left side, or declare it",
            dtypes: HashMap::new(),
            nodes: Vec::new(),
            depth: 0,
            size: 0,
            too_large: false,
        }
    }

    /// Reports, and gives `None` for `?`.
    pub(super) fn report<T>(&mut self, d: Diagnostic) -> Option<T> {
        if !self.diags.contains(&d) {
            self.diags.push(d);
        }
        None
    }

    /// Reports an error without further words.
    pub(super) fn error<T>(&mut self, code: Code, message: impl Into<String>, span: Span) -> Option<T> {
        self.report(Diagnostic::error(code, message, span))
    }

    /// Counts a node and a level; to be paired with [`Cx::leave`].
    pub(super) fn enter(&mut self, span: Span) -> Option<()> {
        self.size += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH || self.size > MAX_SIZE {
            if !self.too_large {
                self.too_large = true;
                let d = Diagnostic::error(
                    code::TOO_LARGE,
                    "this grows too large once its named patterns are written out",
                    span,
                )
                .label(format!("past {MAX_SIZE} nodes, or nested deeper than {MAX_DEPTH}"))
                .hint("split it into several rules, or use fewer alternatives");
                self.report::<()>(d);
            }
            self.depth -= 1;
            return None;
        }
        Some(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn file(&self) -> usize {
        self.frames[self.frame].file
    }

    pub(super) fn fresh(&mut self, name: impl Into<String>, sort: Sort, span: Option<Span>) -> VarId {
        self.vars.push(Var { name: name.into(), sort });
        self.info.push(VarInfo { span, ..VarInfo::default() });
        VarId(self.vars.len() as u32 - 1)
    }

    /// A variable with a name of the current scope.
    pub(super) fn declare(&mut self, name: &str, sort: Sort, span: Span) -> VarId {
        // What a named pattern binds for itself is out of the rule's reach.
        let shown = if self.frame == 0 { name.to_string() } else { format!("_{name}") };
        let v = self.fresh(shown, sort, Some(span));
        let frame = self.frame;
        self.frames[frame].names.insert(name.to_string(), Slot::Var(v));
        v
    }

    pub(super) fn slot(&self, name: &str) -> Option<&Slot<'a>> {
        self.frames[self.frame].names.get(name)
    }

    /// The element type of that name, or that a binder of that name stands for.
    pub(super) fn dtype_named(&self, name: &str) -> Option<DType> {
        self.dtypes.get(name).copied().or_else(|| DType::from_name(name))
    }

    pub(super) fn sort(&self, v: VarId) -> Sort {
        self.vars[v.index()].sort
    }

    /// The variable of that name with that sort, made if it is new.
    pub(super) fn bind(&mut self, name: &str, sort: Sort, span: Span) -> Option<VarId> {
        match self.slot(name) {
            None => Some(self.declare(name, sort, span)),
            Some(Slot::Var(v)) => {
                let v = *v;
                if self.sort(v) == sort { Some(v) } else { self.wrong_sort(name, v, sort, span) }
            }
            Some(Slot::Param { .. }) => self.error(
                code::MISPLACED,
                format!("`{name}` is a parameter of this pattern and cannot be bound again"),
                span,
            ),
        }
    }

    /// Reports that a variable is of another sort than its place needs.
    pub(super) fn wrong_sort<T>(&mut self, name: &str, v: VarId, wanted: Sort, span: Span) -> Option<T> {
        let have = self.sort(v);
        let mut d = Diagnostic::error(
            code::SORT,
            format!("`{name}` is {}, but {} is needed here", sort_words(have), sort_words(wanted)),
            span,
        )
        .label(format!("expected {}", sort_words(wanted)));
        if let Some(first) = self.info[v.index()].span.filter(|s| *s != span) {
            d = d.also(first, format!("`{name}` is {} here", sort_words(have)));
        }
        d = match (have, wanted) {
            (Sort::Tensor, Sort::Term) => d.hint(format!("an epilogue reads a tensor with `in({name})`")),
            (Sort::Tensor, Sort::Attr | Sort::Shape) => {
                d.hint(format!("its number is `value({name})`, its sizes are `shape({name})` and `dim({name}, i)`"))
            }
            (Sort::Tensor, Sort::DType) => d.hint(format!("write `dtype({name})`")),
            (Sort::Tensors, Sort::Tensor) => d.hint(format!("splice all of them with `..{name}`")),
            _ => d,
        };
        self.report(d)
    }

    /// The scalar or op that a binder or declaration of that name is.
    pub(super) fn callee(&mut self, path: &Path) -> Option<Callee> {
        if let [one] = path.parts.as_slice()
            && let Some(head) = self.binders.get(&one.node)
        {
            return Some(Callee::Head(*head));
        }
        let item = match self.s.resolved.lookup(self.file(), Space::Value, path) {
            Ok(item) => item,
            Err(d) => {
                let mut d = *d;
                let name = path.parts.last().map_or("", |p| p.node.as_str());
                if self.s.resolved.excused(self.file(), name) {
                    return None; // its declaration was reported
                }
                if matches!(self.slot(name), Some(Slot::Var(_))) {
                    d = d.note(format!("`{name}` is a variable here, and cannot be called"));
                } else if let Some(s) = closest(name, self.binders.keys().map(String::as_str)) {
                    d.hints = vec![format!("did you mean `{s}`?")];
                }
                return self.report(d);
            }
        };
        match self.s.decls.get(&item)? {
            Decl::Scalar(id) => Some(Callee::Head(Head::Scalar(*id))),
            Decl::Op(id) if self.s.poisoned_ops.contains(id) => None,
            Decl::Op(id) => Some(Callee::Head(Head::Op(*id))),
            Decl::Pattern => Some(Callee::Pattern(item)),
            Decl::Family => {
                let d = Diagnostic::error(
                    code::WRONG_KIND,
                    format!("`{}` is a family, not one function", path.text()),
                    path.span,
                )
                .label("cannot be applied")
                .hint(format!("bind a member: `rule name[g in {}]: g(...) => ...`", path.text()));
                self.report(d)
            }
        }
    }

    /// The builtin scalar that an operator means.
    pub(super) fn builtin(&mut self, b: BuiltinScalar, span: Span) -> Option<ScalarId> {
        match self.s.program.builtin_scalar(b) {
            Some(id) => Some(id),
            None => self.error(
                code::BUILTIN,
                format!("this operator means the builtin scalar `{}`, which no file declares", b.name()),
                span,
            ),
        }
    }

    /// Says that an expression has no meaning where it stands.
    pub(super) fn misplaced<T>(&mut self, e: &Expr, place: &str) -> Option<T> {
        let (what, hint) = kind_words(&e.kind);
        let mut d = Diagnostic::error(code::MISPLACED, format!("{what} has no meaning in {place}"), e.span)
            .label("not possible here");
        if let Some(h) = hint {
            d = d.hint(h);
        }
        self.report(d)
    }
}

/// "a tensor", "an attribute".
pub(super) fn sort_words(sort: Sort) -> &'static str {
    match sort {
        Sort::Tensor => "a tensor",
        Sort::Tensors => "a list of tensors",
        Sort::Term => "an epilogue term",
        Sort::Attr => "an attribute or size",
        Sort::Shape => "a list of sizes",
        Sort::DType => "an element type",
        Sort::Region => "pointwise work",
    }
}

fn kind_words(kind: &ExprKind) -> (&'static str, Option<&'static str>) {
    match kind {
        ExprKind::Number { .. } => ("a number", None),
        ExprKind::Str(_) => ("a text", None),
        ExprKind::Bool(_) => ("a truth value", None),
        ExprKind::Path(_) => ("a name", None),
        ExprKind::Hole => ("`_`", Some("`_` matches anything on a left side; name the variable to use it elsewhere")),
        ExprKind::Absent => ("`none`", Some("`none` may stand for an optional operand only")),
        ExprKind::Optional(_) => {
            ("an optional variable", Some("`x?` may stand for an optional operand of a left side only"))
        }
        ExprKind::Call { .. } => ("an application", None),
        ExprKind::Result(..) => (
            "the choice of a result",
            Some("`f(x).0` is the first result of an op of several; a number has one point: `1.5`"),
        ),
        ExprKind::Index(..) => {
            ("an index", Some("attributes and lists of sizes have elements: `perm[0]`, `shape(x)[0]`"))
        }
        ExprKind::List(_) => {
            ("a list", Some("a list may stand for an attribute, or for the operands of a variadic op"))
        }
        ExprKind::Comprehension { .. } => (
            "a comprehension",
            Some("a comprehension may stand for an attribute, or for variadic operands of a right side"),
        ),
        ExprKind::Set(_) => ("a set", Some("sets stand behind `in`")),
        ExprKind::Spread(_) => {
            ("`..`", Some("`..xs` may stand among the operands of a variadic op, in a list, or in a type"))
        }
        ExprKind::Unary(..) | ExprKind::Binary(..) => ("this operator", None),
        ExprKind::Else(..) => ("`else`", Some("`b else 0` may stand on a right side, for an optional operand `b`")),
        ExprKind::If(..) => ("`if`", Some("write two rules with a `requires` each")),
        ExprKind::Bind(..) => ("`@`", Some("`name @ pattern` may stand on a left side only")),
        ExprKind::Typed(..) => ("a type", Some("`x: T[..]` may stand on a left side only")),
        ExprKind::Near(..) => ("`~`", Some("`2.0 ~ 1e-3` may stand on a left side only")),
        ExprKind::Alternatives(_) => ("`|`", Some("alternatives may stand on a left side only")),
        ExprKind::Tuple(_) => ("a tuple", Some("several roots or results stand in parentheses at the outside only")),
    }
}
