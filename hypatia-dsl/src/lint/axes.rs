//! Lint for axes that a tensor of a written type does not have, for sizes in place of axes, and for
//! sizes below 0.
//!
//! In: the left sides and conditions of the user's rules. Out: a warning for each rule that can
//! therefore never match, or never apply. Invariant: nothing is said of a tensor whose number of
//! axes no type fixes.

use std::collections::HashMap;

use crate::ast::BinaryOp;
use crate::builtin::BuiltinOp;
use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{
    AExpr, AttrPat, AttrType, AttrValue, DimPat, Fact, Head, NodePat, OpBody, ParamKind, Pat, Program, Rule, TypePat,
    VarId,
};
use crate::resolve::Resolved;
use crate::source::Span;
use crate::typing::show_expr;

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for r in p.rules.iter().filter(|r| !r.derived && !resolved.trusts(r.origin.span)) {
        let Some(span) = r.origin.span else { continue };
        let mut known = Known { program: p, rule: r, ranks: HashMap::new(), sizes: Vec::new() };
        r.lhs.iter().for_each(|pat| known.learn(pat));
        let fault = r.lhs.iter().find_map(|pat| known.pattern(pat, span));
        out.extend(fault.or_else(|| known.conditions(span)));
    }
}

/// What types say of the tensors of a rule.
struct Known<'p> {
    program: &'p Program,
    rule: &'p Rule,
    /// The number of axes of tensors.
    ranks: HashMap<VarId, usize>,
    /// Variables that are bound as the size of an axis.
    sizes: Vec<VarId>,
}

impl Known<'_> {
    fn learn(&mut self, pat: &Pat) {
        match pat {
            Pat::Typed(inner, ty) => {
                let dims = ty.prefix.iter().chain(&ty.suffix);
                self.sizes.extend(dims.filter_map(|d| if let DimPat::Var(v) = d { Some(*v) } else { None }));
                if let (Pat::Var(v), Some(rank)) = (&**inner, rank(ty)) {
                    self.ranks.insert(*v, rank);
                }
                self.learn(inner);
            }
            Pat::Bind(v, inner) => {
                if let Pat::Typed(_, ty) = &**inner {
                    self.ranks.extend(rank(ty).map(|rank| (*v, rank)));
                }
                self.learn(inner);
            }
            Pat::Node(n) => n.operands().for_each(|a| self.learn(a)),
            // What one alternative says need not hold in another.
            _ => {}
        }
    }

    fn rank(&self, pat: &Pat) -> Option<usize> {
        match pat {
            Pat::Var(v) => self.ranks.get(v).copied(),
            Pat::Typed(_, ty) => rank(ty),
            Pat::Bind(_, inner) => self.rank(inner),
            // Operands of fewer axes are repeated along the others.
            Pat::Node(NodePat { head: Head::Scalar(_), args, .. }) => {
                let ranks = args.iter().filter(|a| !matches!(a, Pat::Lit { .. })).map(|a| self.rank(a));
                ranks.collect::<Option<Vec<usize>>>()?.into_iter().max()
            }
            _ => None,
        }
    }

    /// The first fault of a pattern.
    fn pattern(&self, pat: &Pat, span: Span) -> Option<Diagnostic> {
        match pat {
            Pat::Bind(_, inner) | Pat::Typed(inner, _) => self.pattern(inner, span),
            Pat::Node(n) => self.node(n, span).or_else(|| n.operands().find_map(|a| self.pattern(a, span))),
            _ => None,
        }
    }

    fn node(&self, n: &NodePat, span: Span) -> Option<Diagnostic> {
        let Head::Op(id) = n.head else { return None };
        let def = self.program.op(id);
        let rank = n.args.first().and_then(|a| self.rank(a));
        if let Some(d) = self.vector(n, span).or_else(|| self.below_zero(n, span)) {
            return Some(d);
        }
        for (attr, (_, param)) in n.attrs.iter().zip(def.attrs()) {
            let ParamKind::Attr { ty: AttrType::Axis | AttrType::Axes, .. } = param.kind else { continue };
            let (name, op) = (&param.name, &def.name);
            if let Some(v) = self.size(attr) {
                let size = &self.rule.vars[v.index()].name;
                return Some(
                    self.unmatchable(span)
                        .note(format!("`{name}` of `{op}` takes axes, but `{size}` is the size of one"))
                        .hint("write the number of the axis: 0 is the first, -1 the last"),
                );
            }
            let outside = |axis: &i64| rank.is_some_and(|rank| *axis >= rank as i64 || *axis < -(rank as i64));
            if let (Some(axis), Some(rank)) = (constants(attr).into_iter().find(outside), rank) {
                let said = format!("`{name}` of `{op}` names axis {axis}, but its operand has {}", count(rank));
                return Some(self.unmatchable(span).note(said).hint("0 is the first axis, -1 the last"));
            }
        }
        None
    }

    /// A factor of a product with fewer than two axes.
    fn vector(&self, n: &NodePat, span: Span) -> Option<Diagnostic> {
        const MATRIX: usize = 2;
        let Head::Op(id) = n.head else { return None };
        let def = self.program.op(id);
        let OpBody::Builtin(BuiltinOp::Matmul | BuiltinOp::Gemm) = def.body else { return None };
        let rank = n.args.iter().take(2).filter_map(|a| self.rank(a)).find(|rank| *rank < MATRIX)?;
        let said = format!("factors of `{}` have at least 2 axes, and one has {} here", def.name, count(rank));
        let hint = "a vector is a matrix of one row, `T[1, n]`; a product of vectors is `sum(x * y, axes = [-1])`";
        Some(self.unmatchable(span).note(said).hint(hint))
    }

    /// A size below 0 among those that an op makes.
    fn below_zero(&self, n: &NodePat, span: Span) -> Option<Diagnostic> {
        let Head::Op(id) = n.head else { return None };
        let def = self.program.op(id);
        let sizes = |p: &ParamKind| matches!(p, ParamKind::Attr { ty: AttrType::Dims, .. });
        let all = n.attrs.iter().zip(def.attrs()).filter(|(_, (_, p))| sizes(&p.kind));
        let (attr, (_, param)) = all.into_iter().find(|(a, _)| constants(a).iter().any(|n| *n < 0))?;
        let size = constants(attr).into_iter().find(|n| *n < 0)?;
        let said = format!("`{}` of `{}` has {size}, but a size is at least 0", param.name, def.name);
        let hint = format!("-1 does not stand for the size that is left: bind the sizes, `{} = s`", param.name);
        Some(self.unmatchable(span).note(said).hint(hint))
    }

    /// A variable of the attribute that is the size of an axis.
    fn size(&self, attr: &AttrPat) -> Option<VarId> {
        match attr {
            AttrPat::Var(v) | AttrPat::Is(AExpr::Var(v)) => self.sizes.contains(v).then_some(*v),
            AttrPat::Is(AExpr::List(items)) => {
                let var = |e: &AExpr| if let AExpr::Var(v) = e { Some(*v) } else { None };
                items.iter().filter_map(var).find(|v| self.sizes.contains(v))
            }
            AttrPat::List(items) => items.iter().find_map(|a| self.size(a)),
            _ => None,
        }
    }

    fn unmatchable(&self, span: Span) -> Diagnostic {
        let message = format!("`{}` can never match: its left side has no such tensor", self.rule.base_name);
        Diagnostic::warning(code::UNMATCHABLE, message, span)
    }

    /// The first condition that reads the size of an axis that a tensor does not have.
    fn conditions(&self, span: Span) -> Option<Diagnostic> {
        self.rule.requires.iter().find_map(|g| {
            let (v, axis, rank) = self.missing(g)?;
            let (guard, name) = (show_expr(&self.rule.vars, g), &self.rule.vars[v.index()].name);
            Some(
                Diagnostic::warning(
                    code::UNREACHABLE_GUARD,
                    format!("rule `{}` can never apply", self.rule.base_name),
                    span,
                )
                .note(format!("`{guard}` reads axis {axis} of `{name}`, which has {}", count(rank)))
                .hint("0 is the first axis, -1 the last"),
            )
        })
    }

    /// The tensor of which an expression reads an axis that it does not have, that axis, and how
    /// many it has.
    fn missing(&self, e: &AExpr) -> Option<(VarId, i64, usize)> {
        match e {
            AExpr::Index(list, i) => {
                if let (AExpr::Fact(Fact::Shape, v), AExpr::Value(AttrValue::Dim(d))) = (&**list, &**i)
                    && let (Some(rank), Some(axis)) = (self.ranks.get(v), d.as_const())
                    && (axis >= *rank as i64 || axis < -(*rank as i64))
                {
                    return Some((*v, axis, *rank));
                }
                self.missing(list).or_else(|| self.missing(i))
            }
            AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => self.missing(a),
            AExpr::Binary(BinaryOp::Or, ..) => None,
            AExpr::Binary(_, a, b) => self.missing(a).or_else(|| self.missing(b)),
            AExpr::List(items) | AExpr::Call(_, items) => items.iter().find_map(|e| self.missing(e)),
            // A branch of a choice need not be read, nor both sides of `or`.
            _ => None,
        }
    }
}

/// The number of axes, if the type has no `..`.
fn rank(ty: &TypePat) -> Option<usize> {
    ty.rest.is_none().then_some(ty.prefix.len() + ty.suffix.len())
}

fn count(rank: usize) -> String {
    format!("{rank} {}", if rank == 1 { "axis" } else { "axes" })
}

/// The numbers that are written in an attribute.
fn constants(attr: &AttrPat) -> Vec<i64> {
    fn of_value(value: &AttrValue) -> Vec<i64> {
        match value {
            AttrValue::List(items) => items.iter().flat_map(of_value).collect(),
            AttrValue::Dim(d) => d.as_const().into_iter().collect(),
            _ => Vec::new(),
        }
    }
    fn of_expr(e: &AExpr) -> Vec<i64> {
        match e {
            AExpr::Value(value) => of_value(value),
            AExpr::List(items) => items.iter().flat_map(of_expr).collect(),
            _ => Vec::new(),
        }
    }
    match attr {
        AttrPat::Is(e) => of_expr(e),
        AttrPat::List(items) => items.iter().flat_map(constants).collect(),
        _ => Vec::new(),
    }
}
