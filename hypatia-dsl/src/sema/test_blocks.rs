//! Tests: inputs, given expressions, expectations.
//!
//! In: `test` items. Out: [`Test`]s. Invariant: input `i` is `VarId(i)`; `given` is empty exactly
//! if it does not type-check, and then `error` holds the reason.

use crate::ast::{self, BinaryOp, DimExpr, Expr, ExprKind, TestStatement};
use crate::diag::{Code, Diagnostic, Severity};
use crate::dtype::DType;
use crate::ir::{AExpr, AttrValue, Build, Expect, Head, Sort, Test, TestInput};
use crate::shape::Dim;
use crate::spell::closest;
use crate::typing::TensorType;
use hypatia_target::device::Device;

use super::code;
use super::context::{AttrContext, Callee, Cx, ValueSort};
use super::contradictions::contradiction;
use super::types::element_type_hint;

/// Maximum number of elements of a written value.
const MAX_VALUES: usize = 65_536;

pub(super) fn test<'a>(cx: &mut Cx<'a>, t: &'a ast::Test) -> Option<Test> {
    let mut good = true;
    cx.bind_hint = "declare it in the test: `input {}: f32[2, 3];`";
    if let Some(target) = &t.target
        && Device::named(&target.node).is_none()
    {
        let mut d =
            Diagnostic::error(code::TARGET, format!("there is no device profile `{}`", target.node), target.span)
                .label("unknown target")
                .note(format!("the profiles are {}", Device::names().collect::<Vec<_>>().join(", ")));
        if let Some(s) = closest(&target.node, Device::names()) {
            d = d.hint(format!("did you mean `{s}`?"));
        }
        if matches!(target.node.as_str(), "gpu" | "cuda" | "nvidia") {
            d.hints = vec!["name a GPU: `on h200`".into()];
        }
        cx.report::<()>(d);
        good = false;
    }
    let mut inputs = Vec::new();
    for st in &t.statements {
        if let TestStatement::Input { constant, name, ty, value } = st {
            if cx.definition(&name.node).is_some() {
                cx.error::<()>(code::DUPLICATE, format!("input `{}` is declared twice", name.node), name.span);
                good = false;
                continue;
            }
            cx.declare(&name.node, Sort::Tensor, name.span);
            match input(cx, *constant, name, ty, value.as_ref()) {
                Some(i) => inputs.push(i),
                None => good = false,
            }
        }
    }
    if !good {
        return None;
    }
    let expected_error = t.statements.iter().find_map(|s| match s {
        TestStatement::Expect(ast::Expect::Error(n)) => Some(n),
        _ => None,
    });
    let (given, error) = given(cx, t, &inputs, expected_error.is_some())?;
    let mut expect = Vec::new();
    for st in &t.statements {
        if let TestStatement::Expect(e) = st {
            match expectation(cx, e, &inputs) {
                Some(read) => expect.push((e, read)),
                None => good = false,
            }
        }
    }
    if !t.statements.iter().any(|s| matches!(s, TestStatement::Expect(_))) {
        let said = "this test expects nothing, so it cannot fail";
        let d = Diagnostic::warning(code::EXPECTATION, said, t.name.span).label("no `expect`");
        cx.report::<()>(d.hint("say what must hold, such as `expect launches == 1;` or `expect equal e;`"));
    }
    if !t.statements.iter().any(|s| matches!(s, TestStatement::Given(_))) {
        let d = Diagnostic::error(code::EXPECTATION, "this test has no `given`", t.name.span).hint("add `given f(x);`");
        return cx.report(d);
    }
    if let Some(d) = contradiction(&expect) {
        cx.report::<()>(d);
        good = false;
    }
    good.then(|| Test {
        name: t.name.node.clone(),
        origin: cx.s.origin(t.name.span),
        target: t.target.as_ref().map(|n| n.node.clone()),
        inputs,
        given,
        error,
        expect: expect.into_iter().map(|(_, read)| read).collect(),
    })
}

type Given = (Vec<Build>, Option<(Code, String)>);

/// The given expressions. Their errors belong to the test if it expects one.
fn given<'a>(cx: &mut Cx<'a>, t: &'a ast::Test, inputs: &[TestInput], expects_error: bool) -> Option<Given> {
    let before = cx.diags.len();
    cx.context = AttrContext::Test;
    let mut out = Vec::new();
    for st in &t.statements {
        let TestStatement::Given(list) = st else { continue };
        for e in list {
            cx.nodes.clear();
            let built = cx.build(e, ValueSort::Tensor);
            if let Some(b) = &built {
                typed(cx, b, e, inputs);
            }
            out.extend(built);
        }
    }
    let first = cx.diags[before..].iter().find(|d| d.severity == Severity::Error).cloned();
    match first {
        None => Some((out, None)),
        Some(d) if expects_error => {
            cx.diags.truncate(before);
            Some((Vec::new(), Some((d.code, d.message))))
        }
        Some(_) => None,
    }
}

/// Reports a given expression that has no type.
fn typed(cx: &mut Cx<'_>, b: &Build, e: &Expr, inputs: &[TestInput]) {
    let types: Vec<TensorType> = inputs.iter().map(|i| TensorType { dtype: i.dtype, shape: i.shape.clone() }).collect();
    let lookup = |v: crate::ir::VarId| types.get(v.index()).cloned();
    let infer = super::infer::Infer::new(&cx.s.program, &lookup);
    if let Err(err) = infer.build(b) {
        // The innermost failing application is the location of the error.
        let (err, span) = super::instances::locate(&infer, &cx.nodes).unwrap_or((err, e.span));
        let mut d = Diagnostic::error(err.code, err.message, span);
        if let Some(h) = err.hint {
            d = d.hint(h);
        }
        cx.report::<()>(d);
    }
}

fn input<'a>(
    cx: &mut Cx<'a>,
    constant: bool,
    name: &'a ast::Name,
    ty: &'a ast::TypeExpr,
    value: Option<&'a Expr>,
) -> Option<TestInput> {
    let Some(dtype) = DType::from_name(&ty.dtype.node) else {
        let d =
            Diagnostic::error(code::TEST_INPUT, format!("there is no element type `{}`", ty.dtype.node), ty.dtype.span)
                .label("the type of an input must be known");
        return cx.report(element_type_hint(d, &ty.dtype.node));
    };
    let mut shape = Vec::new();
    for d in &ty.dims {
        match d {
            DimExpr::Dim(e) => shape.push(size(cx, e)?),
            DimExpr::Rest(_, span) => {
                return cx.error(
                    code::TEST_INPUT,
                    "the rank of an input must be known: `..` is not allowed here",
                    *span,
                );
            }
        }
    }
    let value = match value {
        None => None,
        Some(e) => {
            let values = values(cx, e, &shape)?;
            Some(held(cx, e, dtype, values)?)
        }
    };
    Some(TestInput { name: name.node.clone(), dtype, shape, constant, value })
}

/// A size: a number, a symbol, or a formula over them.
fn size(cx: &mut Cx<'_>, e: &Expr) -> Option<Dim> {
    let found = size_of(e, 0);
    if let Some(d) = &found
        && d.as_const().is_none_or(|c| (0..=1 << 40).contains(&c))
    {
        return found;
    }
    let d = Diagnostic::error(
        code::TEST_INPUT,
        "a size is a number of at least 0, a symbol, or a formula such as `2 * n`",
        e.span,
    );
    cx.report(d.hint("write a name for a size that only a run knows: `x: f32[batch, 4]`"))
}

fn size_of(e: &Expr, depth: usize) -> Option<Dim> {
    if depth > 100 {
        return None;
    }
    match &e.kind {
        ExprKind::Number { value, integer: true } if value.abs() < 1e15 => Some(Dim::from(*value as i64)),
        ExprKind::Path(_) => super::types::single(e).map(|n| Dim::symbol(n.node.as_str())),
        ExprKind::Binary(op, a, b) => {
            let (a, b) = (size_of(a, depth + 1)?, size_of(b, depth + 1)?);
            match op {
                BinaryOp::Add => a.checked_add(&b),
                BinaryOp::Sub => a.checked_sub(&b),
                BinaryOp::Mul => a.checked_mul(&b),
                BinaryOp::Div => a.floor_div(&b),
                BinaryOp::Rem => a.rem(&b),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The values, if the element type holds them: an integer as it is, a float after rounding.
fn held(cx: &mut Cx<'_>, e: &Expr, dtype: DType, values: Vec<f64>) -> Option<Vec<f64>> {
    let (least, most) = match dtype {
        DType::Bool => (0.0, 1.0),
        DType::U8 => (0.0, f64::from(u8::MAX)),
        DType::I8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        // 2^63 itself is what f64 makes of the largest.
        DType::I64 => (i64::MIN as f64, i64::MAX as f64),
        // What rounds to the largest is less than half a unit above it.
        _ => (-dtype.largest() * (1.0 + 0.5 * dtype.epsilon()), dtype.largest() * (1.0 + 0.5 * dtype.epsilon())),
    };
    let fits = |v: &f64| match dtype.is_float() || dtype.only_stored() {
        true => !v.is_finite() || (least..=most).contains(v),
        false => v.fract() == 0.0 && (least..=most).contains(v),
    };
    let Some(v) = values.iter().find(|v| !fits(v)) else { return Some(values) };
    let d = Diagnostic::error(code::TEST_INPUT, format!("{dtype} does not hold {v}"), e.span)
        .label("a value of another type");
    let [from, to] = match dtype {
        DType::I64 => [i64::MIN.to_string(), i64::MAX.to_string()],
        _ if dtype.is_float() => [(-dtype.largest()).to_string(), dtype.largest().to_string()],
        _ => [least.to_string(), most.to_string()],
    };
    cx.report(match dtype.is_int() && v.fract() != 0.0 {
        true => d.hint(format!("{dtype} holds whole numbers, {from} to {to}; declare a float: `f32[..]`")),
        false => d.hint(format!("{dtype} holds {from} to {to}")),
    })
}

/// The values of an input: one number for all elements, or a list nested as deep as the shape.
fn values(cx: &mut Cx<'_>, e: &Expr, shape: &[Dim]) -> Option<Vec<f64>> {
    if let Some(v) = number(e) {
        return Some(vec![v]);
    }
    let mut sizes = Vec::new();
    for d in shape {
        match d.as_const() {
            Some(c) => sizes.push(c as usize),
            None => return cx.error(code::TEST_INPUT, "values need a shape without symbolic sizes", e.span),
        }
    }
    let mut out = Vec::new();
    fill(cx, e, &sizes, &mut out)?;
    Some(out)
}

fn number(e: &Expr) -> Option<f64> {
    match &e.kind {
        ExprKind::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => super::patterns::literal(e),
    }
}

fn fill(cx: &mut Cx<'_>, e: &Expr, sizes: &[usize], out: &mut Vec<f64>) -> Option<()> {
    let Some((n, rest)) = sizes.split_first() else {
        return match number(e) {
            Some(v) if out.len() < MAX_VALUES => {
                out.push(v);
                Some(())
            }
            Some(_) => cx.error(code::TEST_INPUT, format!("more than {MAX_VALUES} values"), e.span),
            None => cx.error(code::TEST_INPUT, "expected a number", e.span),
        };
    };
    match &e.kind {
        ExprKind::List(items) if items.len() == *n => items.iter().try_for_each(|i| fill(cx, i, rest, out)),
        ExprKind::List(items) => {
            let d = Diagnostic::error(code::TEST_INPUT, format!("expected {n} elements, not {}", items.len()), e.span)
                .label("does not fit the declared shape");
            cx.report(match items.len() > *n {
                true => d.hint(format!("remove {}, or change the declared shape", items.len() - n)),
                false => d.hint(format!("add {}, or give a single number to fill the whole tensor", n - items.len())),
            })
        }
        _ => {
            let shape: Vec<String> = sizes.iter().map(usize::to_string).collect();
            let d = Diagnostic::error(
                code::TEST_INPUT,
                format!(
                    "expected a list of {n} numbers, but this is {}",
                    if number(e).is_some() { "one number" } else { "none" }
                ),
                e.span,
            )
            .label(format!("this is a part of shape [{}]", shape.join(", ")))
            .hint(
                "nest the values as the shape is: an input of shape [2, 2] is `[[1, 2], [3, 4]]`; a single number \
                fills the whole tensor",
            );
            cx.report(d)
        }
    }
}

fn expectation<'a>(cx: &mut Cx<'a>, e: &'a ast::Expect, inputs: &[TestInput]) -> Option<Expect> {
    cx.context = AttrContext::Test;
    let build = |cx: &mut Cx<'a>, e: &'a Expr| -> Option<Vec<Build>> {
        let parts: Vec<&'a Expr> = match &e.kind {
            ExprKind::Tuple(l) => l.iter().collect(),
            _ => vec![e],
        };
        let mut out = Vec::new();
        for p in parts {
            if let ExprKind::List(_) = p.kind {
                let d = Diagnostic::error(code::EXPECTATION, "values must follow the name of an input", p.span)
                    .label("not a value")
                    .hint("declare them, `const y: f32[3] = [1, 2, 3];`, and write `expect equal y;`");
                return cx.report(d);
            }
            cx.nodes.clear();
            let b = cx.build(p, ValueSort::Tensor)?;
            typed(cx, &b, p, inputs);
            out.push(b);
        }
        Some(out)
    };
    match e {
        ast::Expect::Error(n) => match Code::parse(&n.node) {
            Some(c) if crate::codes::find(c).is_some() => Some(Expect::Error(c)),
            Some(_) => {
                let d = Diagnostic::error(code::EXPECTATION, format!("no error has the code `{}`", n.node), n.span)
                    .label("unknown code")
                    .hint("`hypatia check` prints the code of an error; `hypatia explain H0304` explains a code");
                cx.report(d)
            }
            None => {
                let d = Diagnostic::error(code::EXPECTATION, format!("`{}` is not an error code", n.node), n.span)
                    .hint("an error code looks like `H0304`; `hypatia explain H0304` explains it");
                cx.report(d)
            }
        },
        ast::Expect::Fires(path, yes) => Some(Expect::Fires(path.text(), *yes)),
        ast::Expect::Matches(path, yes) => Some(Expect::Matches(path.text(), *yes)),
        ast::Expect::Equal(e) => Some(Expect::Equal(build(cx, e)?)),
        ast::Expect::Becomes(e) => Some(Expect::Becomes(build(cx, e)?)),
        ast::Expect::Compare(e) => compare(cx, e),
    }
}

/// `launches == 1`, `count(gemm) <= 2`.
fn compare<'a>(cx: &mut Cx<'a>, e: &'a Expr) -> Option<Expect> {
    use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
    let counts = |e: &Expr| match &e.kind {
        ExprKind::Path(p) => p.text() == "launches",
        ExprKind::Call { callee, .. } => callee.text() == "count",
        _ => false,
    };
    if let ExprKind::Binary(op @ (Eq | Ne | Lt | Le | Gt | Ge), a, b) = &e.kind
        && counts(a)
        && let Some(AExpr::Value(AttrValue::Dim(n))) = cx.aexpr(b)
        && let Some(n) = n.as_const()
    {
        if n < 0 {
            let d = Diagnostic::error(code::EXPECTATION, "a count is never negative", b.span)
                .label("no number of launches or nodes")
                .hint("compare with a number of at least 0");
            return cx.report(d);
        }
        match &a.kind {
            ExprKind::Path(p) if p.text() == "launches" => return Some(Expect::Launches(*op, n)),
            ExprKind::Call { callee, optional: false, args, .. } if callee.text() == "count" => {
                if let [arg] = args.as_slice()
                    && let ExprKind::Path(p) = &arg.value.kind
                {
                    return match cx.callee(p)? {
                        Callee::Head(h @ (Head::Op(_) | Head::Scalar(_))) => Some(Expect::Count(h, *op, n)),
                        _ => cx.error(code::EXPECTATION, "`count` counts an op or a scalar", p.span),
                    };
                }
            }
            _ => {}
        }
    }
    let d = Diagnostic::error(code::EXPECTATION, "unknown expectation", e.span).note(
        "write `launches == 1`, `count(gemm) <= 2`, `error H0304`, `fires fuse::unary`, `not fires r`, \
         `matches r`, `equal e` or `becomes e`",
    );
    cx.report(match &e.kind {
        ExprKind::Binary(Eq, ..) => d.hint("`given a; expect equal b;` tests that a and b have the same values"),
        ExprKind::Path(p) if p.text() == "launches" => d.hint("compare it: `expect launches == 1;`"),
        ExprKind::Call { callee, .. } if callee.text() == "count" => d.hint("compare it: `expect count(gemm) == 1;`"),
        ExprKind::Path(p) if matches!(p.text().as_str(), "fuses" | "fused" | "matches" | "fires") => {
            d.hint("name the rule: `expect fires fuse::unary;`, or count launches: `expect launches == 1;`")
        }
        _ => d.hint("`expect becomes e;` tests what the rules produce, `expect equal e;` tests the values"),
    })
}
