//! Attributes on left sides, and the check of attribute values against their types.
//!
//! In: an expression and the attribute's type. Out: an [`AttrPat`], or a checked value. Invariant:
//! an expression over names that are bound further right is compared after the whole pattern has
//! matched.

use crate::ast::{Expr, ExprKind, Name};
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AExpr, AttrPat, AttrType, Sort, VarId};
use crate::source::Span;

use super::code;
use super::context::{Cx, Definition};
use super::guards::{AKind, coerce, is_like_element_type, kind_fits, kind_of_type};
use super::types::single;
use crate::typing::attr_type_words;

impl<'a> Cx<'a> {
    /// The pattern of an attribute.
    pub(super) fn attr_pat(&mut self, e: &'a Expr, ty: AttrType) -> Option<AttrPat> {
        self.enter(e.span)?;
        let r = self.attr_pat_inner(e, ty);
        self.leave();
        r
    }

    fn attr_pat_inner(&mut self, e: &'a Expr, ty: AttrType) -> Option<AttrPat> {
        if let ExprKind::Hole = e.kind {
            return Some(AttrPat::Any);
        }
        if let Some(name) = single(e)
            && self.dtype_named(&name.node).is_none()
        {
            match self.definition(&name.node).cloned() {
                Some(Definition::Param { expr, scope, .. }) => {
                    let here = std::mem::replace(&mut self.scope, scope);
                    let r = self.attr_pat(expr, ty);
                    self.scope = here;
                    return r;
                }
                Some(Definition::Var(v)) if self.sort(v) == Sort::Shape && kind_of_type(ty) != AKind::List => {
                    return self.several_sizes(&name.node, name.span);
                }
                Some(Definition::Var(v))
                    if matches!(self.sort(v), Sort::Attr | Sort::Shape) == (ty != AttrType::DType) =>
                {
                    if matches!(self.sort(v), Sort::Attr | Sort::Shape | Sort::DType) {
                        return Some(AttrPat::Var(v));
                    }
                }
                _ => {}
            }
            // `to = fp16` means a type, not a variable of that name.
            let meant = || DType::known_elsewhere_as(&name.node).is_some() || is_like_element_type(&name.node);
            if ty == AttrType::DType && meant() {
                return self.no_element_type(&name.node, name.span);
            }
            let sort = if ty == AttrType::DType { Sort::DType } else { Sort::Attr };
            let v = self.bind(&name.node, sort, name.span)?;
            self.info[v.index()].kind.get_or_insert(kind_of_type(ty));
            return Some(AttrPat::Var(v));
        }
        if let ExprKind::List(items) = &e.kind
            && !self.free_names(e).is_empty()
        {
            return self.attr_list(items, ty, e.span);
        }
        if !self.free_names(e).is_empty() {
            // A name is bound further right: compare after the whole pattern has matched.
            let v = self.fresh("_later", Sort::Attr, Some(e.span));
            self.info[v.index()].kind = Some(kind_of_type(ty));
            let scope = self.scope;
            self.deferred.push((v, e, scope));
            return Some(AttrPat::Var(v));
        }
        let x = self.aexpr(e)?;
        Some(AttrPat::Is(self.attr_value(x, ty, e.span)?))
    }

    /// `[n, d]` where a type has bound `..d`.
    pub(super) fn several_sizes<T>(&mut self, name: &str, span: Span) -> Option<T> {
        let message = format!("`{name}` stands for several sizes, so it cannot be one value");
        let d = Diagnostic::error(code::ATTRIBUTE_TYPE, message, span).label("expected one value");
        self.report(d.hint(format!("write `..{name}` in a list, or `{name}[0]` for the first of them")))
    }

    fn attr_list(&mut self, items: &'a [Expr], ty: AttrType, span: Span) -> Option<AttrPat> {
        let element = match ty {
            AttrType::Ints | AttrType::Axes => AttrType::Int,
            AttrType::Dims => AttrType::Dim,
            AttrType::Floats => AttrType::Float,
            _ => {
                let d = Diagnostic::error(code::ATTRIBUTE_TYPE, "found a list, expected one value", span)
                    .label(format!("expected {}", attr_type_words(ty)));
                return self.report(d);
            }
        };
        let mut out = Vec::new();
        let mut good = true;
        for item in items {
            let p = match &item.kind {
                ExprKind::Spread(None) => Some(AttrPat::Rest(None)),
                ExprKind::Spread(Some(x)) => match single(x) {
                    Some(n) => {
                        let v = self.bind_rest(n);
                        v.and_then(|v| self.counted(v, true, n.span)).map(|v| AttrPat::Rest(Some(v)))
                    }
                    None => self.misplaced(x, "in `..` on a left side"),
                },
                _ => match self.attr_pat(item, element) {
                    Some(AttrPat::Var(v)) if single(item).is_some() => {
                        self.counted(v, false, item.span).map(AttrPat::Var)
                    }
                    other => other,
                },
            };
            good &= p.is_some();
            out.extend(p);
        }
        if out.iter().filter(|p| matches!(p, AttrPat::Rest(_))).count() > 1 {
            return self.error(code::MISPLACED, "a list can contain at most one `..`", span);
        }
        good.then_some(AttrPat::List(out))
    }

    /// The variable of `..d`: new, or a list of sizes that a type has bound.
    fn bind_rest(&mut self, name: &'a Name) -> Option<VarId> {
        match self.definition(&name.node) {
            Some(Definition::Var(v)) if self.sort(*v) == Sort::Shape => Some(*v),
            _ => self.bind(&name.node, Sort::Attr, name.span),
        }
    }

    /// Checks an attribute's value against its type, as far as the value is known.
    pub(super) fn attr_value(&mut self, x: AExpr, ty: AttrType, span: Span) -> Option<AExpr> {
        let kind = self.akind(&x);
        let fit = match x {
            AExpr::Value(v) => coerce(ty, v).map(AExpr::Value),
            other => kind_fits(ty, kind).then_some(other),
        };
        if fit.is_some() {
            return fit;
        }
        let mut d = Diagnostic::error(
            code::ATTRIBUTE_TYPE,
            format!("this attribute must be {}, but is {}", attr_type_words(ty), kind.words()),
            span,
        )
        .label(format!("expected {}", attr_type_words(ty)));
        if kind == AKind::Number && matches!(ty, AttrType::Ints | AttrType::Axes | AttrType::Dims) {
            d = d.hint("put it in a list: `[...]`");
        }
        if kind == AKind::List && ty == AttrType::Axes {
            d = d.hint("write numbers: `[0]` is the first axis, `[-1]` the last one");
        }
        self.report(d)
    }
}
