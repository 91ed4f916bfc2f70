//! Left sides: expressions as patterns over the e-graph.
//!
//! In: an expression. Out: a [`Pat`] with named patterns inlined; `applications` reads the
//! applications. Invariant: every alternative binds the same variables, except those that are local
//! to a named pattern (their names start with `_`).

use std::collections::{BTreeSet, HashMap};

use crate::ast::{Arg, BinaryOp, Expr, ExprKind, ItemKind, Name, Path, UnaryOp};
use crate::builtin::{BuiltinScalar, SECOND};
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AExpr, Head, NodePat, Pat, ScalarId, VarId};
use crate::resolve::{ItemRef, Space};
use crate::source::Span;

use super::code;
use super::context::{Cx, Definition, Scope, ValueSort};
use super::types::{TypeMode, single};
use super::walk::{pat_vars, visit_pat};

impl<'a> Cx<'a> {
    /// A pattern.
    pub(super) fn pattern(&mut self, e: &'a Expr, sort: ValueSort) -> Option<Pat> {
        self.enter(e.span)?;
        let r = self.pattern_inner(e, sort);
        self.leave();
        r
    }

    fn pattern_inner(&mut self, e: &'a Expr, sort: ValueSort) -> Option<Pat> {
        match &e.kind {
            ExprKind::Hole => Some(Pat::Any),
            ExprKind::Number { .. } => Some(Pat::Lit { value: literal(e)?, near: None }),
            ExprKind::Unary(UnaryOp::Neg, inner) if literal(inner).is_some() => {
                Some(Pat::Lit { value: literal(e)?, near: None })
            }
            ExprKind::Near(value, tolerance) => self.near(value, tolerance),
            ExprKind::Path(p) => self.pattern_path(p, sort),
            ExprKind::Bind(name, inner) => {
                let v = self.bind(&name.node, sort.into(), name.span);
                let inner = self.pattern(inner, sort);
                let bound = Pat::Bind(v?, Box::new(inner?));
                self.typed_by_where(&name.node, bound, sort)
            }
            ExprKind::Typed(inner, ty) => {
                if sort == ValueSort::Term {
                    return self.misplaced(e, "in an epilogue term");
                }
                let inner = self.pattern(inner, sort);
                let ty = self.type_pat(ty, TypeMode::Bind);
                Some(Pat::Typed(Box::new(inner?), ty?))
            }
            ExprKind::Alternatives(list) => self.one_of(list, sort, e.span),
            ExprKind::Optional(name) => self.maybe_bound(name, sort),
            ExprKind::Call { callee, optional, types, args } => {
                self.pattern_call(e, callee, *optional, types, args, sort)
            }
            ExprKind::Result(inner, n) => {
                let p = self.pattern_output(inner, sort, Some((*n, e.span)))?;
                Some(p)
            }
            ExprKind::Unary(UnaryOp::Neg, a) => self.scalar_pattern(BuiltinScalar::Neg, &[a], sort, e.span),
            ExprKind::Unary(UnaryOp::Not, a) => self.scalar_pattern(BuiltinScalar::Not, &[a], sort, e.span),
            ExprKind::Binary(BinaryOp::Ne, a, b) => {
                let eq = self.scalar_pattern(BuiltinScalar::Eq, &[a, b], sort, e.span)?;
                let not = self.builtin(BuiltinScalar::Not, e.span)?;
                Some(scalar_node(not, vec![eq]))
            }
            ExprKind::Binary(op, a, b) => match operator(*op) {
                Some((s, false)) => self.scalar_pattern(s, &[a, b], sort, e.span),
                Some((s, true)) => self.scalar_pattern(s, &[b, a], sort, e.span),
                None => self.misplaced(e, "in a pattern"),
            },
            _ => self.misplaced(e, "in a pattern"),
        }
    }

    /// `name?`: bound if this alternative matches, absent otherwise.
    fn maybe_bound(&mut self, name: &'a Name, sort: ValueSort) -> Option<Pat> {
        if let Some(Definition::Param { expr, scope, .. }) = self.definition(&name.node).cloned() {
            // A parameter of a named pattern: use the name of its argument.
            let Some(given) = single(expr) else {
                return self.error(code::MISPLACED, "only a name can be optional", expr.span);
            };
            let here = std::mem::replace(&mut self.scope, scope);
            let made = self.maybe_bound(given, sort);
            self.scope = here;
            return made;
        }
        let v = self.bind(&name.node, sort.into(), name.span)?;
        self.info[v.index()].optional = true;
        Some(Pat::Optional(v))
    }

    fn near(&mut self, value: &'a Expr, tolerance: &'a Expr) -> Option<Pat> {
        let (Some(v), Some(t)) = (literal(value), literal(tolerance)) else {
            return self.error(
                code::MISPLACED,
                "write a number on each side of `~`: `2.0 ~ 1e-3`",
                value.span.to(tolerance.span),
            );
        };
        if !(t >= 0.0 && t.is_finite()) {
            let d = Diagnostic::error(code::MISPLACED, "a tolerance must be a number of at least 0", tolerance.span);
            return self.report(d.hint("it is relative: `2.0 ~ 0.001` matches from 1.998 to 2.002"));
        }
        Some(Pat::Lit { value: v, near: Some(t) })
    }

    fn pattern_path(&mut self, p: &'a Path, sort: ValueSort) -> Option<Pat> {
        let [one] = p.parts.as_slice() else {
            // This reports an unknown name. A known name must be applied.
            self.callee(p)?;
            return self.not_applied(p);
        };
        let name = one.node.as_str();
        if sort == ValueSort::Term && name == "acc" {
            return Some(head_node(Head::Acc, vec![]));
        }
        if sort == ValueSort::Term && name == SECOND {
            return Some(head_node(Head::Second, vec![head_node(Head::Acc, vec![])]));
        }
        if self.binders.contains_key(name) {
            return self.not_applied(p);
        }
        if DType::from_name(name).is_some() {
            return self.error(code::SORT, format!("expected a tensor, but `{name}` is an element type"), p.span);
        }
        match self.definition(name).cloned() {
            Some(Definition::Param { expr, scope, var, bound }) => {
                self.pattern_param(name, expr, scope, var, bound, sort)
            }
            _ => {
                let bound = Pat::Var(self.bind(name, sort.into(), one.span)?);
                self.typed_by_where(name, bound, sort)
            }
        }
    }

    /// A variable with the type that `where` gives it.
    fn typed_by_where(&mut self, name: &str, bound: Pat, sort: ValueSort) -> Option<Pat> {
        // Variables of named patterns are their own.
        match self.types.get(name).copied() {
            Some(ty) if self.scope == 0 && sort == ValueSort::Tensor => {
                Some(Pat::Typed(Box::new(bound), self.type_pat(ty, TypeMode::Bind)?))
            }
            _ => Some(bound),
        }
    }

    pub(super) fn not_applied<T>(&mut self, p: &Path) -> Option<T> {
        let d =
            Diagnostic::error(code::WRONG_KIND, format!("`{}` is a function and needs arguments", p.text()), p.span)
                .hint(format!("write `{}(...)`", p.text()));
        self.report(d)
    }

    /// A parameter of the pattern that is being inlined: its argument, stored in a variable so that
    /// a second occurrence matches the same e-class.
    fn pattern_param(
        &mut self,
        name: &str,
        expr: &'a Expr,
        scope: usize,
        var: Option<VarId>,
        bound: bool,
        sort: ValueSort,
    ) -> Option<Pat> {
        if let (true, Some(v)) = (bound, var) {
            return Some(Pat::Var(v));
        }
        let here = std::mem::replace(&mut self.scope, scope);
        let inner = self.pattern(expr, sort);
        self.scope = here;
        let inner = inner?;
        if let Pat::Var(_) = inner {
            return Some(inner);
        }
        let v = match var {
            Some(v) => v,
            None => self.fresh(format!("_{name}"), sort.into(), Some(expr.span)),
        };
        if self.sort(v) != sort.into() {
            return self.wrong_sort(name, v, sort.into(), expr.span);
        }
        self.scopes[here].names.insert(name.to_string(), Definition::Param { expr, scope, var: Some(v), bound: true });
        Some(Pat::Bind(v, Box::new(inner)))
    }

    /// Alternatives: each starts from the same state, and all bind the same names.
    fn one_of(&mut self, list: &'a [Expr], sort: ValueSort, span: Span) -> Option<Pat> {
        let mut out = Vec::new();
        let mut good = true;
        for e in list {
            let before = self.bound_params();
            match self.pattern(e, sort) {
                Some(Pat::OneOf(inner)) => out.extend(inner.into_iter().map(|p| (p, e.span))),
                Some(p) => out.push((p, e.span)),
                None => good = false,
            }
            self.restore_params(&before);
        }
        if !good {
            return None;
        }
        self.mark_params_bound(&out);
        let sets: Vec<BTreeSet<VarId>> = out.iter().map(|(p, _)| self.named_vars(p)).collect();
        let all: BTreeSet<VarId> = sets.iter().flatten().copied().collect();
        for (set, (_, at)) in sets.iter().zip(&out) {
            // An optional variable is absent if another alternative matches.
            if let Some(missing) = all.difference(set).find(|v| !self.info[v.index()].optional) {
                let name = self.vars[missing.index()].name.clone();
                let mut d =
                    Diagnostic::error(code::ALTERNATIVES, format!("this alternative does not bind `{name}`"), *at)
                        .label(format!("does not bind `{name}`"))
                        .hint(
                            "bind the same variables in every alternative, write `_` where the value is not used, \
                            or `name?` for what \
                         may be absent",
                        );
                if let Some(first) = self.info[missing.index()].span {
                    d = d.also(first, "bound here");
                }
                return self.report(d);
            }
        }
        let mut pats: Vec<Pat> = Vec::new();
        for (p, _) in out {
            if !pats.contains(&p) {
                pats.push(p);
            }
        }
        match pats.len() {
            0 => self.error(code::MISPLACED, "no alternatives", span),
            1 => pats.pop(),
            _ => Some(Pat::OneOf(pats)),
        }
    }

    pub(super) fn named_vars(&self, p: &Pat) -> BTreeSet<VarId> {
        let mut set = BTreeSet::new();
        pat_vars(p, &mut |v| {
            if !self.vars[v.index()].name.starts_with('_') {
                set.insert(v);
            }
        });
        set
    }

    /// The parameters of inlined patterns that have matched.
    pub(super) fn bound_params(&self) -> Vec<(usize, String)> {
        let mut out = Vec::new();
        for (i, f) in self.scopes.iter().enumerate() {
            for (name, definition) in &f.names {
                if let Definition::Param { bound: true, .. } = definition {
                    out.push((i, name.clone()));
                }
            }
        }
        out
    }

    pub(super) fn restore_params(&mut self, before: &[(usize, String)]) {
        for (i, f) in self.scopes.iter_mut().enumerate() {
            for (name, definition) in &mut f.names {
                if let Definition::Param { bound, .. } = definition {
                    *bound = before.iter().any(|(b, n)| *b == i && n == name);
                }
            }
        }
    }

    /// After alternatives: marks a parameter as matched if all alternatives matched it.
    pub(super) fn mark_params_bound(&mut self, alternatives: &[(Pat, Span)]) {
        let mut common: Option<BTreeSet<VarId>> = None;
        for (p, _) in alternatives {
            let mut set = BTreeSet::new();
            pat_vars(p, &mut |v| {
                set.insert(v);
            });
            common = Some(match common {
                None => set,
                Some(c) => c.intersection(&set).copied().collect(),
            });
        }
        let common = common.unwrap_or_default();
        for f in &mut self.scopes {
            for definition in f.names.values_mut() {
                if let Definition::Param { bound, var: Some(v), .. } = definition {
                    *bound |= common.contains(v);
                }
            }
        }
    }

    /// Inlines a named pattern.
    pub(super) fn inline(
        &mut self,
        item: ItemRef,
        callee: &Path,
        args: &'a [Arg],
        sort: ValueSort,
        span: Span,
    ) -> Option<Pat> {
        if self.s.poisoned_items.contains(&item) {
            return None;
        }
        let ItemKind::Pattern(def) = &self.s.resolved.files[item.file].items[item.item].kind else { return None };
        if args.len() != def.params.len() || args.iter().any(|a| a.name.is_some()) {
            let names: Vec<&str> = def.params.iter().map(|p| p.node.as_str()).collect();
            let d = Diagnostic::error(
                code::ARITY,
                format!("pattern `{}` takes {} arguments", callee.text(), names.len()),
                span,
            )
            .label(format!("expected {}({})", def.name.node, names.join(", ")))
            .also(def.name.span, format!("`{}` is declared here", def.name.node));
            return self.report(d);
        }
        let here = self.scope;
        let names: HashMap<String, Definition<'a>> = def
            .params
            .iter()
            .zip(args)
            .map(|(p, a)| (p.node.clone(), Definition::Param { expr: &a.value, scope: here, var: None, bound: false }))
            .collect();
        // The variable of a parameter is created before alternatives branch, so that they share it.
        self.scopes.push(Scope { file: item.file, names });
        self.scope = self.scopes.len() - 1;
        if let ExprKind::Alternatives(_) = def.body.kind {
            for (p, a) in def.params.iter().zip(args) {
                let needed = !matches!(a.value.kind, ExprKind::Path(_));
                if needed && mentions_as_operand(&def.body, &p.node) {
                    let v = self.fresh(format!("_{}", p.node), sort.into(), Some(a.value.span));
                    let definition = Definition::Param { expr: &a.value, scope: here, var: Some(v), bound: false };
                    let scope = self.scope;
                    self.scopes[scope].names.insert(p.node.clone(), definition);
                }
            }
        }
        let r = self.pattern(&def.body, sort);
        self.scope = here;
        r
    }

    /// Compares deferred conditions, now that everything is bound.
    pub(super) fn settle_deferred(&mut self) -> Option<()> {
        let mut good = true;
        for (v, e, scope) in std::mem::take(&mut self.deferred) {
            let here = std::mem::replace(&mut self.scope, scope);
            match self.aexpr(e) {
                Some(x) => {
                    self.implied.push(AExpr::Binary(BinaryOp::Eq, Box::new(AExpr::Var(v)), Box::new(x)));
                }
                None => good = false,
            }
            self.scope = here;
        }
        good.then_some(())
    }

    /// Removes bindings of generated names that nothing else mentions.
    pub(super) fn tidy(&self, pats: Vec<Pat>) -> Vec<Pat> {
        let mut count: HashMap<VarId, usize> = HashMap::new();
        for p in &pats {
            pat_vars(p, &mut |v| *count.entry(v).or_default() += 1);
        }
        pats.into_iter()
            .map(|p| {
                visit_pat(p, &mut |p| match p {
                    Pat::Bind(v, inner)
                        if self.vars[v.index()].name.starts_with('_') && count.get(&v).copied() == Some(1) =>
                    {
                        *inner
                    }
                    other => other,
                })
            })
            .collect()
    }

    /// True if the name is declared as something that could be applied.
    pub(super) fn is_function(&self, name: &Name) -> bool {
        let path = Path { parts: vec![name.clone()], span: name.span };
        self.s.resolved.is_declared(self.file(), Space::Value, &path)
    }
}

fn mentions_as_operand(e: &Expr, name: &str) -> bool {
    match &e.kind {
        ExprKind::Path(_) => single(e).is_some_and(|n| n.node == name),
        ExprKind::Call { args, .. } => args.iter().any(|a| a.name.is_none() && mentions_as_operand(&a.value, name)),
        ExprKind::Unary(_, x) | ExprKind::Bind(_, x) | ExprKind::Typed(x, _) | ExprKind::Result(x, _) => {
            mentions_as_operand(x, name)
        }
        ExprKind::Binary(_, a, b) => mentions_as_operand(a, name) || mentions_as_operand(b, name),
        ExprKind::Alternatives(l) | ExprKind::List(l) => l.iter().any(|x| mentions_as_operand(x, name)),
        _ => false,
    }
}

pub(super) fn scalar_node(id: ScalarId, args: Vec<Pat>) -> Pat {
    head_node(Head::Scalar(id), args)
}

/// An application without attributes.
pub(super) fn head_node(head: Head, args: Vec<Pat>) -> Pat {
    Pat::Node(NodePat { head, args, rest: None, attrs: vec![], output: 0 })
}

/// The number of a literal, with its sign.
pub(super) fn literal(e: &Expr) -> Option<f64> {
    match &e.kind {
        ExprKind::Number { value, .. } => Some(*value),
        ExprKind::Unary(UnaryOp::Neg, inner) => match &inner.kind {
            ExprKind::Number { value, .. } => Some(-value),
            _ => None,
        },
        _ => None,
    }
}

/// The builtin scalar of an operator on tensors and terms, and whether its operands are swapped.
/// `!=` is the negation of `==`.
pub(super) fn operator(op: BinaryOp) -> Option<(BuiltinScalar, bool)> {
    Some(match op {
        BinaryOp::Add => (BuiltinScalar::Add, false),
        BinaryOp::Sub => (BuiltinScalar::Sub, false),
        BinaryOp::Mul => (BuiltinScalar::Mul, false),
        BinaryOp::Div => (BuiltinScalar::Div, false),
        BinaryOp::Rem => (BuiltinScalar::Fmod, false),
        BinaryOp::Pow => (BuiltinScalar::Pow, false),
        BinaryOp::Eq => (BuiltinScalar::Eq, false),
        BinaryOp::Lt => (BuiltinScalar::Lt, false),
        BinaryOp::Le => (BuiltinScalar::Le, false),
        BinaryOp::Gt => (BuiltinScalar::Lt, true),
        BinaryOp::Ge => (BuiltinScalar::Le, true),
        BinaryOp::And => (BuiltinScalar::And, false),
        BinaryOp::Or => (BuiltinScalar::Or, false),
        BinaryOp::Ne | BinaryOp::In | BinaryOp::NotIn => return None,
    })
}
