//! Arguments of an application, in declaration order.
//!
//! In: the arguments as written. Out: one [`Argument`] for each parameter. Invariant: a required
//! operand is present; the caller decides whether an attribute without default may be omitted.

use crate::ast::{Arg, Expr, ExprKind, Name, Path};
use crate::diag::Diagnostic;
use crate::dtype::Kind;
use crate::foreign;
use crate::ir::{OpDef, OpId, Param, ParamKind, ScalarId};
use crate::source::Span;
use crate::spell::closest;

use super::code;
use super::context::Cx;

/// The argument of a parameter.
#[derive(Clone, Debug)]
pub(super) enum Argument<'a> {
    /// Nothing.
    Missing,
    /// One expression.
    One(&'a Expr),
    /// The operands of a variadic parameter.
    Many(Vec<&'a Expr>),
    /// `cast<f16>(x)`: the element type in angle brackets.
    Type(&'a Name),
}

impl<'a> Cx<'a> {
    /// Assigns the arguments to the parameters, in declaration order.
    pub(super) fn given(
        &mut self,
        op: OpId,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
        span: Span,
    ) -> Option<Vec<Argument<'a>>> {
        let def = self.s.program.op(op);
        let mut out: Vec<Argument<'a>> = vec![Argument::Missing; def.params.len()];
        let mut next = 0;
        let mut good = true;
        for arg in args {
            if let Some(name) = &arg.name {
                good &= self.named(def, &mut out, name, &arg.value).is_some();
                continue;
            }
            match def.params.get(next) {
                Some(p) if is_variadic(p) => match &mut out[next] {
                    Argument::Many(list) => splice(&arg.value, list),
                    param => {
                        let mut list = Vec::new();
                        splice(&arg.value, &mut list);
                        *param = Argument::Many(list);
                    }
                },
                Some(_) => {
                    if !matches!(out[next], Argument::Missing) {
                        self.twice(&def.params[next].name, arg.value.span)?;
                    }
                    out[next] = Argument::One(&arg.value);
                    next += 1;
                }
                None => return self.too_many(def, callee, args, span),
            }
        }
        self.element_type(def, types, &mut out)?;
        good &= self.required(def, &mut out, span);
        good.then_some(out)
    }

    /// Assigns the element type in `<>` to the parameter that takes one.
    fn element_type(&mut self, def: &OpDef, types: &'a [Name], out: &mut [Argument<'a>]) -> Option<()> {
        let t = match types {
            [] => return Some(()),
            [t] => t,
            [_, t, ..] => return self.error(code::ARITY, "at most one element type is allowed in `<>`", t.span),
        };
        let param =
            def.params.iter().position(|p| matches!(p.kind, ParamKind::Attr { ty: crate::ir::AttrType::DType, .. }));
        match param {
            Some(i) if matches!(out[i], Argument::Missing) => {
                out[i] = Argument::Type(t);
                Some(())
            }
            _ => self.error(code::ARITY, format!("`{}` takes no element type in `<>`", def.name), t.span),
        }
    }

    /// True if all required operands are there; a variadic parameter may have none.
    fn required(&mut self, def: &OpDef, out: &mut [Argument<'a>], span: Span) -> bool {
        let mut good = true;
        for (p, g) in def.params.iter().zip(out) {
            match (&p.kind, &g) {
                (ParamKind::Tensor { variadic: true, .. }, Argument::Missing) => *g = Argument::Many(Vec::new()),
                (ParamKind::Tensor { optional: false, .. } | ParamKind::Term, Argument::Missing) => {
                    let d = Diagnostic::error(
                        code::ARITY,
                        format!("operand `{}` of `{}` is missing", p.name, def.name),
                        span,
                    )
                    .label(format!("expected {}", signature(def)));
                    good = false;
                    self.with_declaration::<()>(d, def);
                }
                _ => {}
            }
        }
        good
    }

    fn named(&mut self, def: &OpDef, out: &mut [Argument<'a>], name: &'a Name, value: &'a Expr) -> Option<()> {
        let Some(i) = def.params.iter().position(|p| p.name == name.node) else {
            let mut d = Diagnostic::error(
                code::ARGUMENT_NAME,
                format!("`{}` has no parameter `{}`", def.name, name.node),
                name.span,
            )
            .label(format!("expected {}", signature(def)));
            let ours = || def.params.iter().map(|p| p.name.as_str());
            if let Some(s) = foreign::parameter(&name.node, ours()).or_else(|| closest(&name.node, ours())) {
                d = d.hint(format!("did you mean `{s}`?"));
            }
            return self.with_declaration(d, def);
        };
        if !matches!(out[i], Argument::Missing) {
            return self.twice(&name.node, name.span);
        }
        out[i] = if is_variadic(&def.params[i]) {
            let mut list = Vec::new();
            splice(value, &mut list);
            Argument::Many(list)
        } else {
            Argument::One(value)
        };
        Some(())
    }

    fn twice<T>(&mut self, name: &str, span: Span) -> Option<T> {
        self.error(code::ARGUMENT_NAME, format!("`{name}` is given twice"), span)
    }

    fn too_many<T>(&mut self, def: &OpDef, callee: &Path, args: &[Arg], span: Span) -> Option<T> {
        let positional = args.iter().filter(|a| a.name.is_none()).count();
        let most = def.params.len();
        let d = Diagnostic::error(
            code::ARITY,
            format!("`{}` takes at most {most} arguments, but {positional} are given", callee.text()),
            span,
        )
        .label(format!("expected {}", signature(def)))
        .hint("remove the extra arguments; pass attributes by name: `axis = 1`");
        self.with_declaration(d, def)
    }

    /// Reports `none` for an operand that is never absent.
    pub(super) fn never_absent<T>(&mut self, def: &OpDef, operand: &str, span: Span) -> Option<T> {
        let optional = def.params.iter().filter(|p| matches!(p.kind, ParamKind::Tensor { optional: true, .. }));
        let optional: Vec<String> = optional.map(|p| format!("`{}`", p.name)).collect();
        let said = format!("the operand `{operand}` of `{}` is never absent", def.name);
        let d = Diagnostic::error(code::OPTIONAL, said, span).label(format!("expected a tensor for `{operand}`"));
        let d = match optional.as_slice() {
            [] => d.hint("write a tensor here; the op has no optional operand"),
            list => d.hint(format!("write a tensor here; `none` may stand for {} only", list.join(" and "))),
        };
        self.with_declaration(d, def)
    }

    pub(super) fn with_declaration<T>(&mut self, d: Diagnostic, def: &OpDef) -> Option<T> {
        let d = match def.origin.span {
            Some(span) => d.also(span, format!("`{}` is declared here", def.name)),
            None => d,
        };
        self.report(d)
    }

    /// Checks the number of a scalar's arguments, and that none is named.
    pub(super) fn scalar_args(
        &mut self,
        id: crate::ir::ScalarId,
        args: &'a [Arg],
        span: Span,
    ) -> Option<Vec<&'a Expr>> {
        let def = self.s.program.scalar(id);
        if let Some(name) = args.iter().find_map(|a| a.name.as_ref()) {
            return self.error(
                code::ARGUMENT_NAME,
                format!("`{}` is a scalar and has no attributes", def.name),
                name.span,
            );
        }
        if args.len() != def.params.len() {
            let names: Vec<&str> = def.params.iter().map(|p| p.0.as_str()).collect();
            let n = def.params.len();
            let mut d = Diagnostic::error(
                code::ARITY,
                format!("`{}` takes {n} argument{}, not {}", def.name, if n == 1 { "" } else { "s" }, args.len()),
                span,
            )
            .label(format!("expected {}({})", def.name, names.join(", ")))
            .hint(as_many(&def.name, &names, args.len()));
            if let Some(s) = def.origin.span {
                d = d.also(s, format!("`{}` is declared here", def.name));
            }
            return self.report(d);
        }
        Some(args.iter().map(|a| &a.value).collect())
    }
}

/// The suggested fix for too few or too many arguments of a scalar.
pub(super) fn as_many(name: &str, params: &[&str], have: usize) -> String {
    match params.get(have..) {
        Some([missing]) => format!("add the argument `{missing}`"),
        Some([]) | None if params.is_empty() => format!("write `{name}()`"),
        Some([]) | None => format!("remove the arguments after `{}`", params.join(", ")),
        Some(missing) => format!("add the arguments `{}`", missing.join("`, `")),
    }
}

impl<'a> Cx<'a> {
    /// Checks that a scalar has no element type in `<>` and no result index: it has one result.
    pub(super) fn plain_call(&mut self, callee: &Path, types: &[Name], output: Option<(u32, Span)>) -> Option<()> {
        if let Some(t) = types.first() {
            let message = format!("`{}` takes no element type in `<>`", callee.text());
            return self.error(code::ARITY, message, t.span);
        }
        match output {
            Some((_, span)) => self.error(code::ARITY, format!("`{}` has one result", callee.text()), span),
            None => Some(()),
        }
    }

    /// Reads each argument of a scalar in its position, with its kind if that is known. It reads
    /// every argument, so that every error is reported.
    pub(super) fn read_scalar_args<T>(
        &mut self,
        id: ScalarId,
        args: &[&'a Expr],
        mut read: impl FnMut(&mut Self, &'a Expr) -> Option<(T, Option<Kind>)>,
    ) -> Option<Vec<T>> {
        let mut out = Vec::new();
        let mut good = true;
        for (i, arg) in args.iter().enumerate() {
            match read(self, arg) {
                Some((value, kind)) => {
                    good &= self.check_kind(id, i, kind, arg.span).is_some();
                    out.push(value);
                }
                None => good = false,
            }
        }
        good.then_some(out)
    }
}

/// Flattens a list among the operands of a variadic parameter: `[a, b]` means `a, b`.
fn splice<'a>(e: &'a Expr, out: &mut Vec<&'a Expr>) {
    match &e.kind {
        ExprKind::List(items) => out.extend(items),
        _ => out.push(e),
    }
}

fn is_variadic(p: &Param) -> bool {
    matches!(p.kind, ParamKind::Tensor { variadic: true, .. })
}

/// `transpose(x, perm)`, for messages.
pub(super) fn signature(def: &OpDef) -> String {
    let params: Vec<String> = def
        .params
        .iter()
        .map(|p| match &p.kind {
            ParamKind::Tensor { variadic: true, .. } => format!("*{}", p.name),
            ParamKind::Tensor { optional: true, .. } => format!("{}?", p.name),
            ParamKind::Attr { default: Some(v), .. } => format!("{} = {}", p.name, crate::typing::show_value(v)),
            _ => p.name.clone(),
        })
        .collect();
    format!("{}({})", def.name, params.join(", "))
}
