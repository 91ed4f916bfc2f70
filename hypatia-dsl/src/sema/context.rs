//! The state shared by all checks of one declaration: its variables, its scope, its diagnostics.
//!
//! In: the tables of [`Sema`] and the expressions of one declaration. Out: variables and
//! diagnostics. Invariant: a method that returns `None` has reported the reason.

use std::collections::HashMap;

use crate::ast::{Expr, ExprKind, Name, Path, TypeExpr};
use crate::builtin::BuiltinScalar;
use crate::diag::{Code, Diagnostic};
use crate::dtype::DType;
use crate::ir::{AExpr, AFn, Build, Head, ScalarId, Sort, Var, VarId};
use crate::resolve::{ItemRef, Space};
use crate::source::Span;
use crate::spell::closest;

use super::guards::AKind;
use super::{Decl, Sema, code};

/// Maximum nesting depth of expressions and of inlined patterns.
const MAX_DEPTH: usize = 200;
/// Maximum number of nodes in one declaration, with patterns inlined.
const MAX_SIZE: usize = 20_000;

/// Where an attribute expression occurs. Decides which facts it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AttrContext {
    /// An attribute or dimension of a left side.
    Pattern,
    /// An attribute of a right side.
    Right,
    /// An attribute of an op's body.
    Body,
    /// An attribute in a test.
    Test,
    /// `requires` of a rule or an op.
    Requires,
    /// `prefer`.
    Prefer,
    /// `let`.
    Let,
    /// `requires` and settings of a kernel.
    Kernel,
    /// A type or a cost formula of an op.
    Type,
}

/// Whether an expression stands for tensors or for epilogue terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueSort {
    /// A tensor.
    Tensor,
    /// A scalar term.
    Term,
}

impl From<ValueSort> for Sort {
    fn from(sort: ValueSort) -> Sort {
        match sort {
            ValueSort::Tensor => Sort::Tensor,
            ValueSort::Term => Sort::Term,
        }
    }
}

/// What is known of a variable besides its sort.
#[derive(Clone, Debug, Default)]
pub(super) struct VarInfo {
    /// The location of its first binding.
    pub span: Option<Span>,
    /// True if it may be absent.
    pub optional: bool,
    /// For pointwise work: the number of operands that the left side gives it.
    pub operands: Option<usize>,
    /// For a name of sizes: whether it was bound as one size or, by `..name`, as a list.
    pub several: Option<bool>,
    /// What kind of attribute it stands for, where that is known.
    pub kind: Option<AKind>,
    /// True for one of several operands, inside `[.. for x in xs]`: only its sizes are known.
    pub item: bool,
}

/// What a name means inside a declaration.
#[derive(Clone, Debug)]
pub(super) enum Definition<'a> {
    /// A variable.
    Var(VarId),
    /// A parameter of a named pattern that is being inlined: its argument, which belongs to the
    /// scope of that index.
    Param {
        /// The argument.
        expr: &'a Expr,
        /// The scope of the argument.
        scope: usize,
        /// The variable that holds what the parameter matched, for its second occurrence.
        var: Option<VarId>,
        /// True once it has matched.
        bound: bool,
    },
}

/// The names of a declaration, or of a pattern inlined into it.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    /// The file whose declarations are visible.
    pub file: usize,
    /// Variables and parameters.
    pub names: HashMap<String, Definition<'a>>,
}

/// The callee of an application.
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
    pub scopes: Vec<Scope<'a>>,
    /// The current scope.
    pub scope: usize,
    /// `[g in unary]`: the family member that `g` stands for.
    pub binders: HashMap<String, Head>,
    pub diags: Vec<Diagnostic>,
    /// Conditions of a left side that can only be checked once all of it has matched.
    pub deferred: Vec<(VarId, &'a Expr, usize)>,
    /// Guards that the inlined patterns imply.
    pub implied: Vec<AExpr>,
    pub context: AttrContext,
    /// The span of the pattern that a kernel implements, with all its results.
    pub kernel_root: Option<Span>,
    /// How many of the variables are parameters of an op.
    pub params: usize,
    /// The hint for an unbound name: how to bind it here, with `{}` for the name.
    pub bind_hint: &'static str,
    /// `[d in {f16, bf16}]`: the element type that `d` stands for.
    pub dtypes: HashMap<String, DType>,
    /// `where x: T[m, k]`: the types of variables by their names.
    pub types: HashMap<&'a str, &'a TypeExpr>,
    /// The `let`s that come after the one that is being read.
    pub later: &'a [(Name, Expr)],
    /// The applications built so far, operands first, with their spans.
    pub nodes: Vec<(Build, Span)>,
    depth: usize,
    size: usize,
    /// True once the size limit has been reported.
    too_large: bool,
}

impl<'a> Cx<'a> {
    pub(super) fn new(s: &'a Sema<'a>, file: usize) -> Cx<'a> {
        Cx {
            s,
            vars: Vec::new(),
            info: Vec::new(),
            scopes: vec![Scope { file, names: HashMap::new() }],
            scope: 0,
            binders: HashMap::new(),
            diags: Vec::new(),
            deferred: Vec::new(),
            implied: Vec::new(),
            context: AttrContext::Pattern,
            kernel_root: None,
            params: 0,
            bind_hint: "bind `{}` on the left side, or declare it",
            dtypes: HashMap::new(),
            types: HashMap::new(),
            later: &[],
            nodes: Vec::new(),
            depth: 0,
            size: 0,
            too_large: false,
        }
    }

    /// Reports a diagnostic and returns `None`, for use with `?`.
    pub(super) fn report<T>(&mut self, d: Diagnostic) -> Option<T> {
        if !self.diags.contains(&d) {
            self.diags.push(d);
        }
        None
    }

    /// Reports an error that has no notes or hints.
    pub(super) fn error<T>(&mut self, code: Code, message: impl Into<String>, span: Span) -> Option<T> {
        self.report(Diagnostic::error(code, message, span))
    }

    /// Counts a node and a nesting level. Pair it with [`Cx::leave`].
    pub(super) fn enter(&mut self, span: Span) -> Option<()> {
        self.size += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH || self.size > MAX_SIZE {
            if !self.too_large {
                self.too_large = true;
                let d =
                    Diagnostic::error(code::TOO_LARGE, "this is too large once its named patterns are inlined", span)
                        .label(format!("more than {MAX_SIZE} nodes, or nested deeper than {MAX_DEPTH}"))
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
        self.scopes[self.scope].file
    }

    pub(super) fn fresh(&mut self, name: impl Into<String>, sort: Sort, span: Option<Span>) -> VarId {
        self.vars.push(Var { name: name.into(), sort });
        self.info.push(VarInfo { span, ..VarInfo::default() });
        VarId(self.vars.len() as u32 - 1)
    }

    /// Declares a variable under a name of the current scope.
    pub(super) fn declare(&mut self, name: &str, sort: Sort, span: Span) -> VarId {
        // A variable that a named pattern binds for itself is not visible to the rule.
        let shown = if self.scope == 0 { name.to_string() } else { format!("_{name}") };
        let v = self.fresh(shown, sort, Some(span));
        let scope = self.scope;
        self.scopes[scope].names.insert(name.to_string(), Definition::Var(v));
        v
    }

    pub(super) fn definition(&self, name: &str) -> Option<&Definition<'a>> {
        self.scopes[self.scope].names.get(name)
    }

    /// The element type with that name, or the one that a binder with that name stands for.
    pub(super) fn dtype_named(&self, name: &str) -> Option<DType> {
        self.dtypes.get(name).copied().or_else(|| DType::from_name(name))
    }

    pub(super) fn sort(&self, v: VarId) -> Sort {
        self.vars[v.index()].sort
    }

    /// Looks up a variable by name and sort; declares it if it is new.
    pub(super) fn bind(&mut self, name: &str, sort: Sort, span: Span) -> Option<VarId> {
        match self.definition(name) {
            None => Some(self.declare(name, sort, span)),
            Some(Definition::Var(v)) => {
                let v = *v;
                if self.sort(v) == sort { Some(v) } else { self.wrong_sort(name, v, sort, span) }
            }
            Some(Definition::Param { .. }) => self.error(
                code::MISPLACED,
                format!("`{name}` is a parameter of this pattern and cannot be bound again"),
                span,
            ),
        }
    }

    /// Reports a variable whose sort differs from the sort wanted here.
    pub(super) fn wrong_sort<T>(&mut self, name: &str, v: VarId, wanted: Sort, span: Span) -> Option<T> {
        let have = self.sort(v);
        let mut d = Diagnostic::error(
            code::SORT,
            format!("expected {1}, but `{name}` is {0}", sort_words(have), sort_words(wanted)),
            span,
        )
        .label(format!("expected {}", sort_words(wanted)));
        if let Some(first) = self.info[v.index()].span.filter(|s| *s != span) {
            d = d.also(first, format!("`{name}` is {} here", sort_words(have)));
        }
        d = match (have, wanted) {
            (Sort::Tensor, Sort::Term) => d.hint(format!("to read a tensor in an epilogue, write `in({name})`")),
            (Sort::Term, Sort::Tensor) => {
                d.hint(format!("a term stands inside of an op that takes one: `gemm(a, b, f({name}), to = d)`"))
            }
            (Sort::Tensor, Sort::Attr | Sort::Shape) => d.hint(format!(
                "write `value({name})` for its number, `shape({name})` or `dim({name}, i)` for its sizes, \
                 `dtype({name})` for its type, `nonneg({name})` if none of its numbers is below 0"
            )),
            (Sort::Tensor, Sort::DType) => d.hint(format!("write `dtype({name})`")),
            (Sort::Tensors, Sort::Tensor) => d.hint(format!("write `..{name}` to pass all of them")),
            _ => d,
        };
        self.report(d)
    }

    /// Resolves a callee: a binder or a declaration.
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
                if self.kernel_root.is_some_and(|root| root.start == path.span.start) {
                    d.message = format!("there is no op `{}`", path.text());
                    for hint in d.hints.iter_mut().filter(|h| h.starts_with("declare it, `scalar")) {
                        let op = format!("op {name}(x: T[..s]) -> T[..s] = ...;");
                        *hint = format!("declare it, `{op}`, or add a `use` for the file that declares it");
                    }
                }
                if self.s.resolved.excused(self.file(), name) {
                    return None; // the declaration already has an error
                }
                if matches!(self.definition(name), Some(Definition::Var(_))) {
                    d = d.note(format!("`{name}` is a variable here and cannot be called"));
                } else if AFn::from_name(name).is_some() && BuiltinScalar::from_name(name).is_some() {
                    d.hints = vec![format!(
                        "add `use core::*;`: the function of numbers is declared there (of sizes and attributes, \
                         `{name}` is known everywhere)"
                    )];
                } else if AFn::from_name(name).is_some() && crate::foreign::function(name).is_none() {
                    d.hints = vec![format!(
                        "`{name}` computes sizes and numbers, no tensors: name what it gives, \
                         `let n = {name}(..)`, and write `n`"
                    )];
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

    /// The builtin scalar of an operator.
    pub(super) fn builtin(&mut self, b: BuiltinScalar, span: Span) -> Option<ScalarId> {
        match self.s.program.builtin_scalar(b) {
            Some(id) => Some(id),
            None => self.error(
                code::BUILTIN,
                format!("this operator stands for the builtin scalar `{}`, which no file declares", b.name()),
                span,
            ),
        }
    }

    /// Reports an expression that is not allowed in its place.
    pub(super) fn misplaced<T>(&mut self, e: &Expr, place: &str) -> Option<T> {
        let (what, hint) = kind_words(&e.kind);
        let mut d = Diagnostic::error(code::MISPLACED, format!("{what} is not allowed {place}"), e.span)
            .label("not allowed here");
        if let Some(h) = hint {
            d = d.hint(h);
        }
        self.report(d)
    }
}

/// A sort in words: "a tensor", "an attribute".
pub(super) fn sort_words(sort: Sort) -> &'static str {
    match sort {
        Sort::Tensor => "a tensor",
        Sort::Tensors => "a list of tensors",
        Sort::Term => "an epilogue term",
        Sort::Attr => "an attribute or size",
        Sort::Shape => "a list of sizes",
        Sort::DType => "an element type",
        Sort::Region => "pointwise operations",
    }
}

fn kind_words(kind: &ExprKind) -> (&'static str, Option<&'static str>) {
    match kind {
        ExprKind::Number { .. } => ("a number", None),
        ExprKind::Str(_) => ("a string", None),
        ExprKind::Bool(_) => ("a boolean", None),
        ExprKind::Path(_) => ("a name", None),
        ExprKind::Hole => ("`_`", Some("`_` matches anything on a left side; name the variable to use it elsewhere")),
        ExprKind::Absent => ("`none`", Some("use `none` only for an optional operand")),
        ExprKind::Optional(_) => ("an optional variable", Some("use `x?` only for an optional operand on a left side")),
        ExprKind::Call { .. } => ("an application", None),
        ExprKind::Result(..) => (
            "a choice of result",
            Some("`f(x).0` is the first result of an op with several; a number has one decimal point: `1.5`"),
        ),
        ExprKind::Index(..) => (
            "an index",
            Some(
                "attributes and lists of sizes have elements: `perm[0]`, `shape(x)[0]`; a part of a tensor is \
                 `slice(..)` or `gather(..)`",
            ),
        ),
        ExprKind::List(_) => ("a list", Some("use a list only for an attribute or for the operands of a variadic op")),
        ExprKind::Comprehension { .. } => (
            "a comprehension",
            Some("use a comprehension only for an attribute or for variadic operands on a right side"),
        ),
        ExprKind::Set(_) => ("a set", Some("use a set only after `in`")),
        ExprKind::Spread(_) => {
            ("`..`", Some("use `..xs` only among the operands of a variadic op, in a list, or in a type"))
        }
        ExprKind::Unary(..) | ExprKind::Binary(..) => ("this operator", None),
        ExprKind::Else(..) => ("`else`", Some("use `b else 0` only on a right side, for an optional operand `b`")),
        ExprKind::If(..) => ("`if`", Some("write two rules, each with a `requires`")),
        ExprKind::Bind(..) => ("`@`", Some("use `name @ pattern` only on a left side; a product is `matmul(x, w)`")),
        ExprKind::Typed(..) => {
            ("a type", Some("use `x: T[..]` only on a left side; `where x: T[..]` types both directions of `<=>`"))
        }
        ExprKind::Near(..) => ("`~`", Some("use `2.0 ~ 1e-3` only on a left side")),
        ExprKind::Alternatives(_) => ("`|`", Some("use alternatives only on a left side")),
        ExprKind::Tuple(_) => {
            ("a tuple", Some("write a list as `[1, 0]`; `(p, q)` holds the roots of a rule or the results of an op"))
        }
    }
}
