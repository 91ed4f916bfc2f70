//! `let`s of rules and of op bodies.
//!
//! In: a name and its expression. Out: the name in scope, or an attribute for the caller to bind.
//! Invariant: a tensor is built wherever its name occurs; equal nodes are one node of the graph, so
//! it is computed once.

use crate::ast::{Expr, ExprKind, Name, Path};
use crate::diag::Diagnostic;
use crate::ir::{AExpr, Head};

use super::code;
use super::context::{Callee, Cx, Definition, ValueSort};

/// What a `let` stands for.
pub(super) enum LetValue {
    /// A tensor: its name is in scope.
    Tensor,
    /// An attribute or a size, whose name is still to be bound.
    Attribute(AExpr),
}

impl<'a> Cx<'a> {
    /// Reads `let`s in order, each in the scope of those before it; `bind` takes what each stands
    /// for. False if an error was reported.
    pub(super) fn read_lets(
        &mut self,
        lets: &'a [(Name, Expr)],
        mut bind: impl FnMut(&mut Cx<'a>, &'a Name, &'a Expr, LetValue),
    ) -> bool {
        let mut good = true;
        for (i, (name, e)) in lets.iter().enumerate() {
            self.later = &lets[i + 1..];
            match self.bind_let(name, e) {
                Some(value) => bind(self, name, e, value),
                None => good = false,
            }
        }
        self.later = &[];
        good
    }

    /// The error for a name that a later `let` binds; `None` for any other name.
    pub(super) fn bound_later(&self, name: &Name) -> Option<Diagnostic> {
        let (later, _) = self.later.iter().find(|(n, _)| n.node == name.node)?;
        let said = format!("`{}` is not bound yet: a later `let` binds it", name.node);
        let d = Diagnostic::error(code::UNBOUND, said, name.span).label("not bound here");
        let d = d.also(later.span, format!("`{}` is bound here", name.node));
        Some(d.hint(format!("put `let {} = ...` before the `let` that uses it", name.node)))
    }

    /// Reads a `let`. `None` means that an error was reported.
    pub(super) fn bind_let(&mut self, name: &'a Name, e: &'a Expr) -> Option<LetValue> {
        if let Some(definition) = self.definition(&name.node).cloned() {
            let mut d = Diagnostic::error(code::DUPLICATE, format!("`{}` is already bound", name.node), name.span)
                .hint("give it another name");
            if let Definition::Var(v) = definition
                && let Some(first) = self.info[v.index()].span
            {
                d = d.also(first, "first bound here");
            }
            return self.report(d);
        }
        if !self.is_tensor(e) {
            return self.aexpr(e).map(LetValue::Attribute);
        }
        let before = self.nodes.len();
        let built = if self.has_results(e) { self.build_result(e, 0) } else { self.build(e, ValueSort::Tensor) };
        self.nodes.truncate(before);
        self.define(name, e);
        built.map(|_| LetValue::Tensor)
    }

    /// Makes a name stand for an expression of the present scope.
    pub(super) fn define(&mut self, name: &'a Name, expr: &'a Expr) {
        let scope = self.scope;
        let definition = Definition::Param { expr, scope, var: None, bound: true };
        self.scopes[scope].names.insert(name.node.clone(), definition);
    }

    /// What a path calls, without a report if it is unknown.
    pub(super) fn quiet_callee(&mut self, path: &Path) -> Option<Callee> {
        let reported = self.diags.len();
        let callee = self.callee(path);
        self.diags.truncate(reported);
        callee
    }

    /// True for an application of an op with several results: `.0` and so on select one where the
    /// name is used.
    fn has_results(&mut self, e: &Expr) -> bool {
        let ExprKind::Call { callee, optional: false, .. } = &e.kind else { return false };
        let Some(Callee::Head(Head::Op(id))) = self.quiet_callee(callee) else { return false };
        let def = self.s.program.op(id);
        def.variadic_result || def.results.len() > 1
    }
}
