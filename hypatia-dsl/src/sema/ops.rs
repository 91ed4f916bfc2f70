//! Ops: signatures and bodies.
//!
//! In: `op` items. Out: [`OpDef`]s. Invariant: operand and attribute `i` is `VarId(i)`; a result
//! mentions bound variables only; no op is recursive.

use std::collections::HashMap;

use crate::ast::{self, Expr, ExprKind, ParamType};
use crate::builtin::BuiltinOp;
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{
    AExpr, AttrType, AttrValue, Build, CostFormulas, OpBody, OpDef, Param, ParamKind, RestPat, Sort, TypePat, VarId,
};
use crate::spell::closest;

use super::code;
use super::context::{AttrContext, Cx, ValueSort};
use super::guards::{AKind, coerce, kind_of_type};
use super::lets::LetValue;
use super::types::TypeMode;
use crate::typing::attr_type_words;

const TERM_WORD: &str = "scalar";
const ATTR_TYPES: &[(&str, AttrType)] = &[
    ("int", AttrType::Int),
    ("axis", AttrType::Axis),
    ("axes", AttrType::Axes),
    ("ints", AttrType::Ints),
    ("float", AttrType::Float),
    ("floats", AttrType::Floats),
    ("bool", AttrType::Bool),
    ("dtype", AttrType::DType),
    ("dim", AttrType::Dim),
    ("dims", AttrType::Dims),
    ("string", AttrType::Str),
];

/// The signature of an op. The body is read later, once all signatures are known.
pub(super) fn signature<'a>(cx: &mut Cx<'a>, op: &'a ast::Op) -> Option<OpDef> {
    cx.context = AttrContext::Type;
    let bounds = declare(cx, op);
    let params = params(cx, op);
    let variadic_result = op.results.iter().any(|r| r.variadic);
    let results = results(cx, op);
    cx.context = AttrContext::Requires;
    let requires: Vec<Option<AExpr>> = op.requires.iter().map(|g| cx.guard(g)).collect();
    let requires: Option<Vec<AExpr>> = requires.into_iter().collect();
    let cost = costs(cx, op);
    let body = match (&op.body, op.builtin) {
        (None, true) => builtin(cx, op, params.as_deref().unwrap_or_default()),
        (Some(_), false) => Some(OpBody::Defined(Vec::new())),
        (Some(b), true) => {
            let d =
                Diagnostic::error(code::BUILTIN, format!("`{}` has both a body and `builtin`", op.name.node), b.span);
            cx.report(d.hint("remove one of the two"))
        }
        (None, false) => {
            let d = Diagnostic::error(code::BUILTIN, format!("`{}` has no definition", op.name.node), op.name.span)
                .label("neither a body nor `builtin`")
                .hint("add a body, such as `= matmul(x, w);`");
            cx.report(d)
        }
    };
    let (bounds, params, results, requires) = (bounds?, params?, results?, requires?);
    Some(OpDef {
        name: op.name.node.clone(),
        doc: String::new(),
        origin: Default::default(),
        vars: std::mem::take(&mut cx.vars),
        params,
        bounds,
        results,
        variadic_result,
        requires,
        body: body?,
        grad: None,
        cost: cost?,
        domain: None,
    })
}

/// Declares the parameters and the element types of an op. Returns the bounds of those types.
fn declare<'a>(cx: &mut Cx<'a>, op: &'a ast::Op) -> Option<Vec<(VarId, Vec<DType>)>> {
    let mut good = true;
    let mut seen = HashMap::new();
    for p in &op.params {
        if let Some(first) = seen.insert(p.name.node.as_str(), p.name.span) {
            let what = format!("parameter `{}` is declared twice", p.name.node);
            let d = Diagnostic::error(code::DUPLICATE, what, p.name.span);
            cx.report::<()>(d.also(first, "first declared here"));
            good = false;
        }
        let v = cx.declare(&p.name.node, param_sort(p), p.name.span);
        cx.info[v.index()].optional = p.optional;
        cx.info[v.index()].kind = param_kind(p);
    }
    cx.params = op.params.len();
    let mut bounds = Vec::new();
    for g in &op.generics {
        if let Some(first) = seen.insert(g.name.node.as_str(), g.name.span) {
            let d = Diagnostic::error(code::DUPLICATE, format!("`{}` is declared twice", g.name.node), g.name.span);
            cx.report::<()>(d.also(first, "first declared here").hint("give it another name"));
            good = false;
            continue;
        }
        let v = cx.declare(&g.name.node, Sort::DType, g.name.span);
        if let Some(b) = &g.bound {
            match bound(cx, b) {
                Some(list) => bounds.push((v, list)),
                None => good = false,
            }
        }
    }
    good.then_some(bounds)
}

/// The parameters of an op.
fn params<'a>(cx: &mut Cx<'a>, op: &'a ast::Op) -> Option<Vec<Param>> {
    let mut good = true;
    let mut params = Vec::new();
    let last_tensor = op.params.iter().rposition(|p| matches!(p.ty, ParamType::Tensor(_)));
    for (i, p) in op.params.iter().enumerate() {
        if p.variadic && last_tensor != Some(i) {
            let what = format!("variadic operand `{}` must be last", p.name.node);
            let d = Diagnostic::error(code::BAD_TYPE, what, p.name.span);
            good &= cx.report::<()>(d.hint("move it after the other operands")).is_some();
        }
        match param(cx, p) {
            Some(kind) => params.push(Param { name: p.name.node.clone(), kind }),
            None => good = false,
        }
    }
    good &= one_term(cx, op).is_some();
    good.then_some(params)
}

/// A node has one term, so an op has at most one operand that is one.
fn one_term<'a>(cx: &mut Cx<'a>, op: &'a ast::Op) -> Option<()> {
    let mut terms = op.params.iter().filter(|p| param_sort(p) == Sort::Term);
    let (Some(first), Some(second)) = (terms.next(), terms.next()) else { return Some(()) };
    let name = &second.name.node;
    let d = Diagnostic::error(
        code::BAD_TYPE,
        format!("`{name}` is a second operand of type `{TERM_WORD}`: an op has one at most"),
        second.name.span,
    );
    let hint = format!("make two ops with a `{TERM_WORD}` operand each, and combine their results in a third one");
    cx.report(d.also(first.name.span, "the first one").hint(hint))
}

/// The types of an op's results.
fn results<'a>(cx: &mut Cx<'a>, op: &'a ast::Op) -> Option<Vec<TypePat>> {
    let mut good = true;
    if op.results.len() > 1 && op.results.iter().any(|r| r.variadic) {
        let what = "a variadic result must be the only result";
        good &= cx.error::<()>(code::BAD_TYPE, what, op.results[0].ty.span).is_some();
    }
    let mut results = Vec::new();
    for r in &op.results {
        match cx.type_pat(&r.ty, TypeMode::Result) {
            Some(t) => {
                good &= named(cx, &t, r, op).is_some();
                results.push(t);
            }
            None => good = false,
        }
    }
    good.then_some(results)
}

fn param_sort(p: &ast::OpParam) -> Sort {
    match &p.ty {
        ParamType::Tensor(_) if p.variadic => Sort::Tensors,
        ParamType::Tensor(_) => Sort::Tensor,
        ParamType::Named(n) if n.node == TERM_WORD => Sort::Term,
        ParamType::Named(n) if n.node == "dtype" => Sort::DType,
        ParamType::Named(_) => Sort::Attr,
    }
}

/// The kind of an attribute, if it is one and its type exists.
fn param_kind(p: &ast::OpParam) -> Option<AKind> {
    let ParamType::Named(n) = &p.ty else { return None };
    ATTR_TYPES.iter().find(|(w, _)| *w == n.node).map(|(_, ty)| kind_of_type(*ty))
}

fn param<'a>(cx: &mut Cx<'a>, p: &'a ast::OpParam) -> Option<ParamKind> {
    match &p.ty {
        ParamType::Tensor(t) => {
            let ty = cx.type_pat(t, TypeMode::Bind);
            if let Some(d) = &p.default {
                let d = Diagnostic::error(
                    code::MISPLACED,
                    format!("operand `{}` cannot have a default", p.name.node),
                    d.span,
                )
                .hint(format!("make it optional with `?`, and write `({} else ...)` in the body", p.name.node));
                return cx.report(d);
            }
            if p.optional && p.variadic {
                return cx.error(code::BAD_TYPE, "a variadic operand can already be empty", p.name.span);
            }
            Some(ParamKind::Tensor { ty: ty?, optional: p.optional, variadic: p.variadic })
        }
        ParamType::Named(n) => {
            if p.optional || p.variadic {
                let d = Diagnostic::error(
                    code::BAD_TYPE,
                    format!("`{}` is not a tensor: only tensors can be optional or variadic", p.name.node),
                    p.name.span,
                );
                return cx.report(d.hint("give the attribute a default instead: `= 0`"));
            }
            if n.node == TERM_WORD {
                return Some(ParamKind::Term);
            }
            let Some((_, ty)) = ATTR_TYPES.iter().find(|(w, _)| *w == n.node) else {
                let mut d =
                    Diagnostic::error(code::BAD_TYPE, format!("there is no attribute type `{}`", n.node), n.span)
                        .label("unknown type")
                        .note(format!(
                            "the attribute types are {}; write a tensor as `T[..s]`",
                            ATTR_TYPES.iter().map(|t| t.0).collect::<Vec<_>>().join(", ")
                        ));
                if DType::from_name(&n.node).or(DType::known_elsewhere_as(&n.node)).is_some() {
                    let name = &n.node;
                    d = d.hint(format!(
                        "`{name}[]` is a tensor of one number, `{name}[..s]` any; `float` is an attribute"
                    ));
                } else if let Some(s) = closest(&n.node, ATTR_TYPES.iter().map(|t| t.0)) {
                    d = d.hint(format!("did you mean `{s}`?"));
                }
                return cx.report(d);
            };
            let default = match &p.default {
                None => None,
                Some(e) => Some(constant(cx, e, *ty)?),
            };
            Some(ParamKind::Attr { ty: *ty, default })
        }
    }
}

fn constant<'a>(cx: &mut Cx<'a>, e: &'a Expr, ty: AttrType) -> Option<AttrValue> {
    match cx.aexpr(e)? {
        AExpr::Value(v) => match coerce(ty, v) {
            Some(v) => Some(v),
            None => {
                let d =
                    Diagnostic::error(code::ATTRIBUTE_TYPE, "the default does not have the attribute's type", e.span)
                        .label(format!("expected {}", attr_type_words(ty)));
                let d = match (ty, &e.kind) {
                    (AttrType::Int, ExprKind::Number { integer: false, .. }) => {
                        d.hint("declare it as `float`, or write a whole number")
                    }
                    _ => d,
                };
                cx.report(d)
            }
        },
        _ => cx.error(code::ATTRIBUTE_TYPE, "a default must be a constant", e.span),
    }
}

/// The element types that a bound allows.
fn bound<'a>(cx: &mut Cx<'a>, e: &'a Expr) -> Option<Vec<DType>> {
    let all = |f: fn(DType) -> bool| Some(DType::ALL.into_iter().filter(|d| f(*d)).collect());
    match &e.kind {
        ExprKind::Path(p) => match p.text().as_str() {
            "float" => all(DType::computes_in_floats),
            "int" => all(DType::is_int),
            "number" => all(|d| d.computes_in_floats() || d.is_int()),
            "any" => all(|_| true),
            other => match DType::from_name(other) {
                Some(d) => Some(vec![d]),
                None => {
                    let mut d = Diagnostic::error(
                        code::BAD_TYPE,
                        format!("there is no class of element types `{other}`"),
                        e.span,
                    )
                    .label("unknown bound")
                    .note("a bound is float, int, number, any, or a set such as {f16, bf16}");
                    let known = DType::known_elsewhere_as(other);
                    if known.is_some_and(DType::only_stored) {
                        let all = DType::ALL.into_iter().filter(|d| d.only_stored());
                        let names: Vec<&str> = all.map(DType::name).collect();
                        return cx.report(d.hint(format!("write `{{{}}}` for both", names.join(", "))));
                    }
                    let meant = known.map(DType::name);
                    let meant = meant.or_else(|| closest(other, ["float", "int", "number", "any"].into_iter()));
                    if let Some(s) = meant {
                        d = d.hint(format!("did you mean `{s}`?"));
                    }
                    cx.report(d)
                }
            },
        },
        ExprKind::Set(items) => {
            let lists: Vec<Option<Vec<DType>>> = items.iter().map(|i| bound(cx, i)).collect();
            Some(lists.into_iter().collect::<Option<Vec<_>>>()?.concat())
        }
        _ => cx.misplaced(e, "in a bound"),
    }
}

/// Checks that a defined op's result type names all its sizes: nothing else determines them.
fn named(cx: &mut Cx<'_>, t: &TypePat, r: &ast::ResultType, op: &ast::Op) -> Option<()> {
    let open = matches!(t.rest, Some(RestPat::Any))
        || t.prefix.iter().chain(&t.suffix).any(|d| matches!(d, crate::ir::DimPat::Any))
        || matches!(t.dtype, crate::ir::DTypePat::Any);
    if op.body.is_some() && open {
        let d = Diagnostic::error(code::BAD_TYPE, "a result with a body must name all of its sizes", r.ty.span)
            .label("`_` and `..` without a name are not allowed here")
            .hint("use the variables of the operands: `T[..s, n]`");
        return cx.report(d);
    }
    Some(())
}

fn costs<'a>(cx: &mut Cx<'a>, op: &'a ast::Op) -> Option<CostFormulas> {
    let mut cost = CostFormulas::default();
    if op.settings.is_empty() {
        return Some(cost);
    }
    cx.context = AttrContext::Type;
    let at = op.name.span;
    cx.declare("out", Sort::Shape, at);
    let mut good = true;
    for s in &op.settings {
        let slot = match s.key.node.as_str() {
            "flops" => &mut cost.flops,
            "read" => &mut cost.read,
            "write" => &mut cost.write,
            other => {
                let mut d = Diagnostic::error(code::SETTING, format!("an op has no setting `{other}`"), s.key.span)
                    .note(
                        "the settings are flops, read and write; a block can also contain `builtin;` and \
                        `requires ...;`",
                    );
                if let Some(n) = closest(other, ["flops", "read", "write", "builtin", "requires"].into_iter()) {
                    d = d.hint(format!("did you mean `{n}`?"));
                }
                good = false;
                cx.report::<()>(d);
                continue;
            }
        };
        match cx.aexpr(&s.value) {
            Some(AExpr::Value(v)) if !matches!(v, AttrValue::Dim(_) | AttrValue::Float(_)) => {
                let d = Diagnostic::error(code::SETTING, format!("`{}` is a number", s.key.node), s.value.span)
                    .label("this is none")
                    .hint("write a formula over the sizes of operands and results: `2 * prod(out)`");
                good = false;
                cx.report::<()>(d);
            }
            Some(e) => *slot = Some(e),
            None => good = false,
        }
    }
    good.then_some(cost)
}

fn builtin(cx: &mut Cx<'_>, op: &ast::Op, params: &[Param]) -> Option<OpBody> {
    let Some(b) = BuiltinOp::from_name(&op.name.node) else {
        let mut d =
            Diagnostic::error(code::BUILTIN, format!("there is no builtin op `{}`", op.name.node), op.name.span)
                .label("not built in")
                .hint("give it a body: `op f(x: T[..s]) -> T[..s] = ...;`");
        if let Some(n) = closest(&op.name.node, BuiltinOp::ALL.iter().map(|b| b.name())) {
            d = d.hint(format!("did you mean `{n}`?"));
        }
        return cx.report(d);
    };
    let (operands, attrs) = b.arity();
    let have_attrs = params.iter().filter(|p| matches!(p.kind, ParamKind::Attr { .. })).count();
    if params.len() - have_attrs != operands || have_attrs != attrs {
        let d = Diagnostic::error(
            code::BUILTIN,
            format!("the declaration of the builtin `{}` does not match it", b.name()),
            op.name.span,
        )
        .label(format!("it has {operands} operands and {attrs} attributes"))
        .hint("copy the declaration from the library's `core`");
        return cx.report(d);
    }
    Some(OpBody::Builtin(b))
}

/// Declares the variables of an op's signature, in the same order, for its body or its `grad`.
pub(super) fn declare_signature<'a>(cx: &mut Cx<'a>, op: &'a ast::Op, def: &OpDef) {
    for (i, v) in def.vars.iter().enumerate() {
        let span = op.params.get(i).map_or(op.name.span, |p| p.name.span);
        cx.declare(&v.name, v.sort, span);
    }
    for (i, p) in op.params.iter().enumerate() {
        cx.info[i].optional = p.optional;
    }
    cx.params = op.params.len();
    cx.context = AttrContext::Body;
    cx.bind_hint = "declare it as an operand, `{}: T[..]`, or as an attribute, `{}: float = 1.0`";
}

/// The expressions of `(a, b)`, or the only one.
pub(super) fn roots(body: &Expr) -> Vec<&Expr> {
    match &body.kind {
        ExprKind::Tuple(items) => items.iter().collect(),
        _ => vec![body],
    }
}

/// The body of an op: one expression for each result, and the variables, including new ones.
pub(super) fn body<'a>(cx: &mut Cx<'a>, op: &'a ast::Op, def: &OpDef) -> Option<Vec<Build>> {
    declare_signature(cx, op, def);
    let body = op.body.as_ref()?;
    let roots = roots(body);
    if roots.len() != op.results.len() {
        let d = Diagnostic::error(
            code::BODY_TYPE,
            format!("`{}` declares {} results, but its body has {}", op.name.node, op.results.len(), roots.len()),
            body.span,
        )
        .label("write one expression per result, in parentheses")
        .also(op.results[0].ty.span, "declared here");
        return cx.report(d);
    }
    bind_lets(cx, &op.lets)?;
    let built: Vec<Option<Build>> = roots.iter().map(|e| cx.build(e, ValueSort::Tensor)).collect();
    built.into_iter().collect()
}

/// Puts the `let`s of a body in scope.
pub(super) fn bind_lets<'a>(cx: &mut Cx<'a>, lets: &'a [(ast::Name, Expr)]) -> Option<()> {
    let good = cx.read_lets(lets, |cx, name, e, value| match value {
        LetValue::Tensor => {}
        // Like a tensor, it is written out wherever its name occurs.
        LetValue::Attribute(_) => cx.define(name, e),
    });
    good.then_some(())
}

/// The variables of an op's attributes.
pub(super) fn attr_vars(def: &OpDef) -> Vec<VarId> {
    def.attrs().map(|(i, _)| VarId(i as u32)).collect()
}
