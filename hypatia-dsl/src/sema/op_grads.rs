//! `grad` of an op: the gradients of its operands.
//!
//! In: `grad(y, dy) = ...` after the body of an op. Out: an [`OpGrad`], with an expression for
//! each operand whose elements can be floats. Invariant: its variables are those of the op's
//! signature, then one for each result and one for the gradient of each result, then those of its
//! `let`s.

use crate::ast;
use crate::diag::Diagnostic;
use crate::ir::{Build, OpDef, OpGrad, Param, ParamKind, Sort};

use super::code;
use super::context::{Cx, ValueSort};
use super::ops;

/// The gradients that an op writes. `None` if it writes none, or if an error was reported.
pub(super) fn read<'a>(cx: &mut Cx<'a>, op: &'a ast::Op, def: &OpDef) -> Option<OpGrad> {
    let written = op.grad.as_ref()?;
    let (first, last) = written.names.first().zip(written.names.last())?;
    let names_at = first.span.to(last.span);
    let operands = operands(cx, op, def)?;
    if written.names.len() != 2 * op.results.len() {
        let wanted = match op.results.len() {
            1 => "the result and its gradient: `grad(y, dy) = ...`".to_string(),
            2 => "both results, then their gradients: `grad(y, z, dy, dz) = ...`".to_string(),
            n => format!("the {n} results, then the gradient of each"),
        };
        let (have, need) = (written.names.len(), 2 * op.results.len());
        let message = format!("`grad` of `{}` needs {need} names, not {have}", op.name.node);
        let d = Diagnostic::error(code::GRAD, message, names_at).label("the wrong number of names");
        return cx.report(d.also(op.results[0].ty.span, "the results").hint(format!("name {wanted}")));
    }
    ops::declare_signature(cx, op, def);
    for name in &written.names {
        if let Some(already) = op.params.iter().find(|p| p.name.node == name.node) {
            let d = Diagnostic::error(code::DUPLICATE, format!("`{}` is already bound", name.node), name.span);
            return cx.report(d.also(already.name.span, "first bound here").hint("give it another name"));
        }
    }
    let declared: Vec<_> = written.names.iter().map(|n| cx.declare(&n.node, Sort::Tensor, n.span)).collect();
    let (vars, first) = (cx.vars.clone(), *declared.first()?);
    ops::bind_lets(cx, &op.lets)?;
    ops::bind_lets(cx, &written.lets)?;
    let roots = ops::roots(&written.body);
    if roots.len() != operands.len() {
        let names: Vec<String> = operands.iter().map(|(_, p)| format!("`{}`", p.name)).collect();
        let message = format!(
            "`grad` of `{}` needs one expression for each operand that can be floats: {}, not {}",
            op.name.node,
            operands.len(),
            roots.len()
        );
        let d = Diagnostic::error(code::GRAD, message, written.body.span)
            .label("several stand in parentheses: `(a, b)`")
            .hint(format!("write the gradients of {}, in this order", names.join(", ")));
        return cx.report(d);
    }
    let built: Vec<Option<Build>> = roots.iter().map(|e| cx.build(e, ValueSort::Tensor)).collect();
    let built: Option<Vec<Build>> = built.into_iter().collect();
    let of = operands.iter().map(|(i, _)| *i).zip(built?).collect();
    Some(OpGrad { vars, first, of })
}

/// The operands that have a gradient, with their indices in `params`.
fn operands<'d>(cx: &mut Cx<'_>, op: &ast::Op, def: &'d OpDef) -> Option<Vec<(usize, &'d Param)>> {
    let several = |p: &&Param| matches!(p.kind, ParamKind::Term | ParamKind::Tensor { variadic: true, .. });
    let mut unfit = def.params.iter().filter(several).map(|p| format!("operand `{}`", p.name));
    let unfit = unfit.next().or(def.variadic_result.then(|| "result".to_string()));
    if let Some(unfit) = unfit {
        let message = format!("`{}` cannot have `grad`, because of its {unfit}", op.name.node);
        let d = Diagnostic::error(code::GRAD, message, op.name.span);
        return cx.report(
            d.note("an op with `grad` has neither a variadic operand, nor a term, nor a variadic result")
                .hint("remove `grad`: the gradient follows from the body"),
        );
    }
    Some(def.operands().filter(|(_, p)| def.has_gradient(p)).collect())
}
