//! Kernels: what they implement, how they are made, where they apply.
//!
//! In: `kernel` items. Out: [`Kernel`]s. Invariant: exactly one backend; the pattern's root is an
//! op.

use crate::ast::{self, ExprKind};
use crate::diag::Diagnostic;
use crate::ir::{
    AExpr, AttrValue, Backend, Build, BuildArg, Head, Kernel, NodePat, OpBody, OpDef, ParamKind, Pat, Program, Sort,
    TemplateFile, VarId,
};
use crate::spell::closest;
use hypatia_target::cublaslt::Epilogue;

use super::context::{AttrContext, Cx, ValueSort};
use super::guards::AKind;
use super::walk::pat_vars;
use super::{classes, code, tiled};

/// Maximum number of choices for one tuning parameter.
const MAX_CHOICES: usize = 64;

pub(super) fn kernel<'a>(cx: &mut Cx<'a>, k: &'a ast::Kernel, doc: &str) -> Option<Kernel> {
    cx.context = AttrContext::Pattern;
    cx.kernel_root = Some(k.pattern.span);
    let pattern = cx.pattern(&k.pattern, ValueSort::Tensor);
    let settled = cx.settle_deferred();
    let backend = backend(cx, k);
    let claims = classes::claims(cx, &k.classes);
    let (pattern, ()) = (pattern?, settled?);
    let mut pattern = cx.tidy(vec![pattern]).pop()?;
    let op = root(cx, &pattern, k)?;
    cx.context = AttrContext::Kernel;
    let mut good = true;
    let mut requires = std::mem::take(&mut cx.implied);
    let tune = tune(cx, k);
    for g in &k.requires {
        match cx.guard(g) {
            Some(g) => requires.push(g),
            None => good = false,
        }
    }
    let mut prefer = Vec::new();
    for g in &k.prefer {
        match cx.guard(g) {
            Some(g) => prefer.push(g),
            None => good = false,
        }
    }
    let launch = launch_settings(cx, k);
    let (backend, claims, tune) = (backend?, claims?, tune?);
    let closed = !has_free_term(cx, &pattern);
    if !good {
        return None;
    }
    let def = cx.s.program.op(op);
    generated_from(cx, k, def, &backend)?;
    if let (false, Some(first)) = (matches!(backend, Backend::Tiled), k.prefer.first()) {
        let what = "`prefer` is for a tiled kernel, which is timed beside library calls";
        let d = Diagnostic::error(code::BACKEND, what, first.span)
            .hint("write `requires` for what the kernel needs; among other kernels the cost decides");
        return cx.report(d);
    }
    if backend == Backend::Tiled {
        tiled::check(cx, k, (def, closed), &tune)?;
        requires.extend(tiled::limits(cx, def, &mut pattern, &tune));
    }
    Some(Kernel {
        name: k.name.node.clone(),
        doc: doc.to_string(),
        origin: cx.s.origin(k.name.span),
        vars: std::mem::take(&mut cx.vars),
        pattern,
        backend,
        requires,
        prefer,
        tune,
        launch: launch?,
        claims,
        closed,
        not_generated: None,
    })
}

/// The launch settings of a kernel.
fn launch_settings<'a>(cx: &mut Cx<'a>, k: &'a ast::Kernel) -> Option<Vec<(String, AExpr)>> {
    const KNOWN: &[&str] = &["grid", "block", "cluster", "shared", "stages", "workspace"];
    let mut good = true;
    let mut launch = Vec::new();
    // `tiled` says so itself.
    let chosen = !matches!(k.backend, None | Some(ast::Backend::Template(_) | ast::Backend::Tiled(_)));
    if let Some(s) = k.settings.first().filter(|_| chosen) {
        let d = Diagnostic::error(code::KERNEL_SETTING, "only a template has launch settings", s.key.span)
            .label("the launch of such a kernel is chosen for it")
            .hint("remove `launch`, or write the kernel yourself: `template \"file.cu.j2\";`");
        return cx.report(d);
    }
    for s in &k.settings {
        if !KNOWN.contains(&s.key.node.as_str()) {
            let what = format!("a kernel has no setting `{}`", s.key.node);
            let mut d = Diagnostic::error(code::KERNEL_SETTING, what, s.key.span)
                .note(format!("the launch settings are {}", KNOWN.join(", ")));
            if let Some(n) = closest(&s.key.node, KNOWN.iter().copied()) {
                d = d.hint(format!("did you mean `{n}`?"));
            }
            good = false;
            cx.report::<()>(d);
            continue;
        }
        match cx.aexpr(&s.value) {
            Some(e) => launch.push((s.key.node.clone(), e)),
            None => good = false,
        }
    }
    good.then_some(launch)
}

/// Checks that a kernel of that kind can be generated from the op.
fn generated_from(cx: &mut Cx<'_>, k: &ast::Kernel, def: &OpDef, backend: &Backend) -> Option<()> {
    let builtin = match &def.body {
        OpBody::Builtin(builtin) => *builtin,
        OpBody::Defined(body) => return called(cx, k, (def, body), backend),
    };
    if let Backend::Rowwise | Backend::Composed = backend {
        let word = if *backend == Backend::Rowwise { "rowwise" } else { "composed" };
        let what = format!("`{word}` generates a kernel from the op's body, but `{}` has no body", def.name);
        let d = Diagnostic::error(code::BACKEND, what, k.pattern.span)
            .hint("define an op with a body, and write the kernel for that op");
        return cx.with_declaration(d, def);
    }
    if builtin.is_pair() && *backend != Backend::Tiled {
        let message = format!("only a tiled kernel computes two products, as `{}` does", def.name);
        let d = Diagnostic::error(code::BACKEND, message, k.pattern.span)
            .hint("write `kernel name for gemm2(a, b, c, e, to = d) { tiled; ... }`, or a kernel for `gemm`");
        return cx.report(d);
    }
    Some(())
}

/// Checks that the body of an op that a library's call computes multiplies its first two operands.
fn called(cx: &mut Cx<'_>, k: &ast::Kernel, (def, body): (&OpDef, &[Build]), backend: &Backend) -> Option<()> {
    fn multiplies(program: &Program, b: &Build, factors: [VarId; 2]) -> bool {
        let within = |b: &Build| multiplies(program, b, factors);
        match b {
            Build::Else(_, b) | Build::Frozen(b) => within(b),
            Build::If(_, x, y) => within(x) || within(y),
            Build::Node(n) => {
                // A user's op multiplies in its own body.
                let product = matches!(n.head, Head::Op(op)
                    if !matches!(program.op(op).body, OpBody::Builtin(b) if !b.multiplies()));
                let own = factors.map(|v| BuildArg::One(Build::Var(v)));
                let operand = |a: &BuildArg| match a {
                    BuildArg::One(b) | BuildArg::Each { element: b, .. } => within(b),
                    BuildArg::Spread(_) => false,
                };
                (product && n.args.starts_with(&own)) || n.args.iter().any(operand)
            }
            _ => false,
        }
    }
    if !matches!(backend, Backend::Cublaslt(_)) {
        return Some(());
    }
    let operands: Vec<VarId> = def.operands().map(|(i, _)| VarId(i as u32)).take(2).collect();
    let factors = <[VarId; 2]>::try_from(operands).ok();
    if factors.is_some_and(|f| body.iter().any(|b| multiplies(&cx.s.program, b, f))) {
        return Some(());
    }
    let message = format!("cuBLASLt multiplies two matrices, but the body of `{}` has no such product", def.name);
    let d = Diagnostic::error(code::BACKEND, message, k.pattern.span)
        .label("no product of its first two operands")
        .hint("write it for `gemm(a, b, e, to = d)`, or for an op whose body has `matmul(a, b)` and work behind it");
    cx.with_declaration(d, def)
}

fn root(cx: &mut Cx<'_>, p: &Pat, k: &ast::Kernel) -> Option<crate::ir::OpId> {
    match p {
        Pat::Node(NodePat { head: Head::Op(id), .. }) => Some(*id),
        Pat::Bind(_, p) | Pat::Typed(p, _) => root(cx, p, k),
        _ => {
            let d = Diagnostic::error(code::KERNEL_PATTERN, "a kernel implements one op", k.pattern.span)
                .label("not an application of an op")
                .hint(
                    "write `kernel name for gemm(a, b, e, to = d) { ... }`; pointwise scalars need no kernel of \
                    their own",
                );
            cx.report(d)
        }
    }
}

fn has_free_term(cx: &Cx<'_>, p: &Pat) -> bool {
    let mut found = false;
    pat_vars(p, &mut |v| found |= cx.sort(v) == Sort::Term);
    if let Pat::Node(n) = p
        && let Head::Op(id) = n.head
    {
        // `_` for the whole epilogue is open too.
        let terms = cx.s.program.op(id).operands().map(|(_, p)| matches!(p.kind, ParamKind::Term));
        found |= n.args.iter().zip(terms).any(|(a, t)| t && *a == Pat::Any);
    }
    found
}

fn backend(cx: &mut Cx<'_>, k: &ast::Kernel) -> Option<Backend> {
    match &k.backend {
        Some(ast::Backend::Cublaslt(name)) => cublaslt(cx, name),
        Some(ast::Backend::Template(file)) => {
            let path = std::path::Path::new(&file.node);
            let plain = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
            if !plain || file.node.is_empty() {
                let d = Diagnostic::error(code::BACKEND, "`template` takes a file name only", file.span)
                    .hint("write `template \"gemm_sm90.cu.j2\";`");
                return cx.report(d);
            }
            Some(Backend::Template(TemplateFile { file: file.node.clone(), text: String::new() }))
        }
        Some(ast::Backend::Pointwise(_)) => Some(Backend::Pointwise),
        Some(ast::Backend::Rowwise(_)) => Some(Backend::Rowwise),
        Some(ast::Backend::Composed(_)) => Some(Backend::Composed),
        Some(ast::Backend::Tiled(_)) => Some(Backend::Tiled),
        None => {
            let d = Diagnostic::error(code::BACKEND, format!("kernel `{}` has no backend", k.name.node), k.name.span)
                .label("no backend")
                .hint(
                    "add one of `cublaslt BIAS;`, `template \"file.cu.j2\";`, `pointwise;`, `rowwise;`, \
                     `composed;`, `tiled;`",
                );
            cx.report(d)
        }
    }
}

/// A cuBLASLt call, if the library has an epilogue of that name.
fn cublaslt(cx: &mut Cx<'_>, name: &ast::Name) -> Option<Backend> {
    if let Some(epilogue) = Epilogue::named(&name.node) {
        return Some(Backend::Cublaslt(epilogue));
    }
    let names: Vec<&str> = Epilogue::ALL.iter().map(|e| e.name()).collect();
    let mut d = Diagnostic::error(code::BACKEND, format!("cuBLASLt has no epilogue `{}`", name.node), name.span)
        .label("unknown epilogue")
        .note(format!("the epilogues are {}", names.join(", ")));
    if let Some(s) = closest(&name.node, names.iter().copied()) {
        d = d.hint(format!("did you mean `{s}`?"));
    }
    cx.report(d)
}

fn tune<'a>(cx: &mut Cx<'a>, k: &'a ast::Kernel) -> Option<Vec<(String, Vec<i64>)>> {
    let mut out: Vec<(String, Vec<i64>)> = Vec::new();
    let mut good = true;
    for (name, e) in &k.tune {
        if out.iter().any(|(n, _)| *n == name.node) || cx.definition(&name.node).is_some() {
            good = false;
            cx.error::<()>(code::TUNE, format!("`{}` is declared twice", name.node), name.span);
            continue;
        }
        match choices(cx, e) {
            Some(list) => out.push((name.node.clone(), list)),
            None => good = false,
        }
        let v = cx.declare(&name.node, Sort::Attr, name.span);
        cx.info[v.index()].kind = Some(AKind::Number);
    }
    good.then_some(out)
}

fn choices<'a>(cx: &mut Cx<'a>, e: &'a ast::Expr) -> Option<Vec<i64>> {
    let bad = |cx: &mut Cx<'a>, span| {
        let d = Diagnostic::error(code::TUNE, "the values of a tuning parameter must be a set of integers", span)
            .hint("write `tune BM in {64, 128};`");
        cx.report(d)
    };
    let ExprKind::Set(items) = &e.kind else { return bad(cx, e.span) };
    if items.is_empty() || items.len() > MAX_CHOICES {
        let d = Diagnostic::error(
            code::TUNE,
            format!("a tuning parameter has 1 to {MAX_CHOICES} values, but this has {}", items.len()),
            e.span,
        );
        return cx.report(match items.is_empty() {
            true => d.hint("list the values: `tune BM in {64, 128};`"),
            false => d.hint("remove values that are never the best"),
        });
    }
    let mut out = Vec::new();
    for i in items {
        match cx.aexpr(i)? {
            AExpr::Value(AttrValue::Dim(d)) if d.as_const().is_some() => out.extend(d.as_const()),
            _ => return bad(cx, i.span),
        }
    }
    Some(out)
}
