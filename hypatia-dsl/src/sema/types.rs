//! Types with variables: `T[..s, m, k]` in op declarations and on left sides.
//!
//! In: a type as written. Out: a [`TypePat`]. Invariant: in a type that binds, the first occurrence
//! of a name makes it a variable; in a result type every name must already be bound.

use crate::ast::{DimExpr, Expr, ExprKind, Name, TypeExpr};
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AExpr, DTypePat, DimPat, RestPat, Sort, TypePat, VarId};
use crate::source::Span;
use crate::spell::closest;

use super::code;
use super::context::{Cx, Definition};
use super::guards::AKind;

/// Whether a type binds its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TypeMode {
    /// An operand type: new names become variables.
    Bind,
    /// A result type: all names are bound.
    Result,
}

impl<'a> Cx<'a> {
    /// A type as written.
    pub(super) fn type_pat(&mut self, t: &'a TypeExpr, mode: TypeMode) -> Option<TypePat> {
        let dtype = self.dtype_pat(&t.dtype, mode);
        let (mut prefix, mut suffix, mut rest) = (Vec::new(), Vec::new(), None);
        let mut good = true;
        for d in &t.dims {
            match d {
                DimExpr::Rest(e, span) => {
                    if rest.is_some() {
                        let d = Diagnostic::error(code::BAD_TYPE, "a shape can contain at most one `..`", *span)
                            .label("a second `..`")
                            .hint(
                                "split the pattern, or match the whole shape with one `..s` and index `s` in \
                                 `requires`",
                            );
                        self.report::<()>(d);
                        good = false;
                        continue;
                    }
                    let r = match e {
                        None => Some(RestPat::Any),
                        Some(e) => self.rest_pat(e, mode),
                    };
                    good &= r.is_some();
                    rest = Some(r.unwrap_or(RestPat::Any));
                }
                DimExpr::Dim(e) => match self.dim_pat(e, mode) {
                    Some(p) if rest.is_some() => suffix.push(p),
                    Some(p) => prefix.push(p),
                    None => good = false,
                },
            }
        }
        let dtype = dtype?;
        good.then_some(TypePat { dtype, prefix, rest, suffix })
    }

    fn dtype_pat(&mut self, name: &Name, mode: TypeMode) -> Option<DTypePat> {
        if name.node == "_" {
            return Some(DTypePat::Any);
        }
        if let Some(d) = self.dtype_named(&name.node) {
            return Some(DTypePat::Is(d));
        }
        match self.definition(&name.node).cloned() {
            Some(Definition::Var(v)) if self.sort(v) == Sort::DType => {
                let is_attribute = mode == TypeMode::Result && v.index() < self.params;
                Some(if is_attribute { DTypePat::Expr(AExpr::Var(v)) } else { DTypePat::Var(v) })
            }
            Some(Definition::Var(v)) => self.wrong_sort(&name.node, v, Sort::DType, name.span),
            Some(Definition::Param { .. }) => {
                self.error(code::MISPLACED, "a parameter of a pattern cannot be an element type", name.span)
            }
            None => {
                // `fp16` is a typing mistake, `T` is a variable.
                let variable = name.node.starts_with(|c: char| c.is_ascii_uppercase());
                // `FP16` and `F32` are types in other spellings.
                let small = name.node.to_ascii_lowercase();
                if variable && DType::from_name(&small).or(DType::known_elsewhere_as(&small)).is_some() {
                    return self.no_element_type(&name.node, name.span);
                }
                if mode == TypeMode::Bind && variable {
                    return Some(DTypePat::Var(self.declare(&name.node, Sort::DType, name.span)));
                }
                let mut d =
                    Diagnostic::error(code::BAD_TYPE, format!("there is no element type `{}`", name.node), name.span)
                        .label("unknown element type");
                if variable {
                    d.message = format!("no operand binds the element type `{}`", name.node);
                    d = d
                        .label("not bound")
                        .hint("use the element type of an operand, or an attribute of type `dtype`");
                } else {
                    d = element_type_hint(d, &name.node);
                    if name.node.len() <= 2 {
                        d = d.hint(format!(
                            "a variable for an element type starts with a capital: `{}`",
                            name.node.to_uppercase()
                        ));
                    }
                }
                self.report(d)
            }
        }
    }

    fn dim_pat(&mut self, e: &'a Expr, mode: TypeMode) -> Option<DimPat> {
        if let ExprKind::Hole = e.kind {
            return Some(DimPat::Any);
        }
        if let Some(name) = single(e) {
            match self.definition(&name.node).cloned() {
                None if mode == TypeMode::Bind && self.dtype_named(&name.node).is_none() => {
                    let v = self.declare(&name.node, Sort::Attr, name.span);
                    return self.counted(v, false, name.span).map(DimPat::Var);
                }
                Some(Definition::Var(v)) if self.sort(v) == Sort::Attr => {
                    return self.counted(v, false, name.span).map(DimPat::Var);
                }
                Some(Definition::Var(v)) if self.sort(v) == Sort::Shape => {
                    let d = Diagnostic::error(
                        code::BAD_TYPE,
                        format!("`{}` stands for several sizes, not for one", name.node),
                        e.span,
                    )
                    .hint(format!("write `..{}`", name.node));
                    return self.report(d);
                }
                _ => {}
            }
        }
        if mode == TypeMode::Bind {
            // `2 * n` with an unbound `n` is solved for `n`.
            let free = self.free_names(e);
            if let [one] = free.as_slice() {
                let v = self.declare(&one.node, Sort::Attr, one.span);
                self.info[v.index()].kind = Some(AKind::Number);
            }
        }
        Some(DimPat::Expr(self.aexpr(e)?))
    }

    fn rest_pat(&mut self, e: &'a Expr, mode: TypeMode) -> Option<RestPat> {
        if let Some(name) = single(e) {
            match self.definition(&name.node).cloned() {
                None if mode == TypeMode::Bind => {
                    let v = self.declare(&name.node, Sort::Shape, name.span);
                    return self.counted(v, true, name.span).map(RestPat::Var);
                }
                Some(Definition::Var(v)) if matches!(self.sort(v), Sort::Shape | Sort::Attr) => {
                    return self.counted(v, true, name.span).map(RestPat::Var);
                }
                _ => {}
            }
        }
        Some(RestPat::Expr(self.aexpr(e)?))
    }

    /// Notes that a name stands for one size, or for several. Reports a name that stands for both.
    pub(super) fn counted(&mut self, v: VarId, several: bool, span: Span) -> Option<VarId> {
        let info = &mut self.info[v.index()];
        let (before, first) = (*info.several.get_or_insert(several), info.span);
        if before == several {
            return Some(v);
        }
        let name = self.vars[v.index()].name.clone();
        let words = |several| if several { "a list of sizes" } else { "one size" };
        let said = format!("`{name}` is {} here, but {} elsewhere", words(several), words(before));
        let mut d = Diagnostic::error(code::BAD_TYPE, said, span).label(format!("{} here", words(several)));
        if let Some(first) = first.filter(|f| *f != span) {
            d = d.also(first, format!("{} here", words(before)));
        }
        self.report(d.hint(format!("write `..{name}` in both places for a list, or give one of them another name")))
    }

    /// Reports an element type that other languages call so.
    pub(super) fn no_element_type<T>(&mut self, name: &str, span: Span) -> Option<T> {
        let d = Diagnostic::error(code::BAD_TYPE, format!("there is no element type `{name}`"), span);
        self.report(element_type_hint(d.label("unknown element type"), name))
    }

    /// Unbound names in an attribute expression.
    pub(super) fn free_names(&self, e: &'a Expr) -> Vec<&'a Name> {
        let mut out = Vec::new();
        self.collect_free(e, &mut Vec::new(), &mut out);
        out
    }

    fn collect_free(&self, e: &'a Expr, bound: &mut Vec<&'a str>, out: &mut Vec<&'a Name>) {
        match &e.kind {
            ExprKind::Path(_) => {
                if let Some(n) = single(e) {
                    let known = self.definition(&n.node).is_some() || bound.contains(&n.node.as_str());
                    if !known && self.dtype_named(&n.node).is_none() && !out.iter().any(|o| o.node == n.node) {
                        out.push(n);
                    }
                }
            }
            ExprKind::Call { args, .. } => args.iter().for_each(|a| self.collect_free(&a.value, bound, out)),
            ExprKind::List(l) | ExprKind::Set(l) | ExprKind::Tuple(l) => {
                l.iter().for_each(|x| self.collect_free(x, bound, out))
            }
            ExprKind::Spread(Some(x)) | ExprKind::Unary(_, x) | ExprKind::Result(x, _) => {
                self.collect_free(x, bound, out)
            }
            ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => {
                self.collect_free(a, bound, out);
                self.collect_free(b, bound, out);
            }
            ExprKind::If(a, b, c) => [a, b, c].into_iter().for_each(|x| self.collect_free(x, bound, out)),
            ExprKind::Comprehension { element, name, over, condition } => {
                self.collect_free(over, bound, out);
                bound.push(&name.node);
                self.collect_free(element, bound, out);
                if let Some(c) = condition {
                    self.collect_free(c, bound, out);
                }
                bound.pop();
            }
            _ => {}
        }
    }
}

/// The name, if the expression is a bare name.
pub(super) fn single(e: &Expr) -> Option<&Name> {
    match &e.kind {
        ExprKind::Path(p) => match p.parts.as_slice() {
            [one] => Some(one),
            _ => None,
        },
        _ => None,
    }
}

/// Adds a hint that lists the element types and suggests the closest one.
pub(super) fn element_type_hint(d: Diagnostic, name: &str) -> Diagnostic {
    let names = || DType::ALL.iter().map(|d| d.name());
    let d = d.note(format!("the element types are {}", names().collect::<Vec<_>>().join(", ")));
    let small = name.to_ascii_lowercase();
    if small == "float" {
        return d.hint("for any float type, write `is_float(dtype(x))`, or bound a type variable: `<T: float>`");
    }
    let known = DType::known_elsewhere_as(&small).or(DType::from_name(&small));
    let meant = known.map(DType::name).or_else(|| closest(name, names()));
    match meant {
        Some(s) => d.hint(format!("did you mean `{s}`?")),
        None => d,
    }
}
