//! Lint for cost formulas and savings that give no cost: negative numbers, or NaN.
//!
//! In: the formulas of the user's ops and rules. Out: a warning for each that fails at some sample
//! sizes. Invariant: sizes are those of real operands, at least 1; a size of 0 costs nothing
//! anyway.

use super::guards::says_all;
use crate::code;
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AExpr, AttrType, AttrValue, Fact, OpDef, ParamKind, Program, Sort, VarId};
use crate::resolve::Resolved;
use crate::shape::Dim;
use crate::typing::{Bindings, Facts, eval, show_expr};

/// Sizes that formulas are tried with.
const SIZES: [i64; 3] = [1, 64, 4096];
/// The rank of the tensors that savings are tried with.
const RANK: u32 = 4;

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    savings(p, resolved, out);
    for op in p.ops.iter().filter(|op| !resolved.trusts(op.origin.span)) {
        let formulas = [("flops", &op.cost.flops), ("read", &op.cost.read), ("write", &op.cost.write)];
        let faults = formulas.iter().filter_map(|(name, formula)| {
            let formula = formula.as_ref()?;
            let (size, value) = SIZES.iter().find_map(|size| Some((size, fault(op, formula, *size)?)))?;
            let shown = show_expr(&op.vars, formula);
            Some(format!("`{name} = {shown}` is {value} where sizes are {size}"))
        });
        let faults: Vec<String> = faults.collect();
        let Some(span) = op.origin.span.filter(|_| !faults.is_empty()) else { continue };
        let mut d = Diagnostic::warning(code::COST, format!("a cost of `{}` is negative or no number", op.name), span);
        for fault in faults {
            d = d.note(fault);
        }
        out.push(
            d.note("such a cost counts as if it were not written")
                .hint("write a formula that is at least 0 for all sizes, or remove it: types give a cost too"),
        );
    }
}

/// What rules save.
fn savings(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for rule in p.rules.iter().filter(|r| !resolved.trusts(r.origin.span)) {
        let Some((saves, span)) = rule.saves.as_ref().zip(rule.origin.span) else { continue };
        let value = |size: i64| {
            let mut bindings = Bindings::default();
            let sizes = rule.vars.iter().enumerate().filter(|(_, v)| v.sort == Sort::Attr);
            bindings.values.extend(sizes.map(|(i, _)| (VarId(i as u32), AttrValue::Dim(Dim::from(size)))));
            no_cost(eval(&saves.amount, &bindings, &OfSize(size))?)
        };
        let Some((size, value)) = SIZES.iter().find_map(|size| Some((size, value(*size)?))) else { continue };
        let (shown, unit) = (show_expr(&rule.vars, &saves.amount), saves.unit.name());
        let said = format!("what `{}` saves is negative or no number", rule.base_name);
        out.push(
            Diagnostic::warning(code::COST, said, span)
                .note(format!("`saves {shown} {unit}` is {value} where sizes are {size}"))
                .note("there the estimate of the cost model counts, as if it were not written")
                .hint("write a formula that is at least 0 for all sizes, or say in `prefer` where the rule pays"),
        );
    }
}

/// Tensors of four axes of one size.
struct OfSize(i64);

impl Facts for OfSize {
    fn fact(&self, fact: Fact, _: VarId) -> Option<AttrValue> {
        let dim = || AttrValue::Dim(Dim::from(self.0));
        match fact {
            Fact::Shape => Some(AttrValue::List((0..RANK).map(|_| dim()).collect())),
            Fact::Rank => Some(AttrValue::from(i64::from(RANK))),
            Fact::Numel => Some(AttrValue::Dim(Dim::from(self.0.pow(RANK)))),
            Fact::DType => Some(AttrValue::DType(DType::F32)),
            _ => None,
        }
    }
}

/// The value of a formula that is no cost, if it is none with all sizes equal to `size`.
fn fault(op: &OpDef, formula: &AExpr, size: i64) -> Option<String> {
    let dim = || AttrValue::Dim(Dim::from(size));
    let mut bindings = Bindings::default();
    for (i, var) in op.vars.iter().enumerate() {
        let attr = op.params.get(i).map(|p| &p.kind);
        let value = match (var.sort, attr) {
            (_, Some(ParamKind::Attr { default: Some(v), .. })) => v.clone(),
            (_, Some(ParamKind::Attr { ty: AttrType::Float, .. })) => AttrValue::Float(1.0),
            (_, Some(ParamKind::Attr { ty: AttrType::Int | AttrType::Dim, .. })) => AttrValue::from(1),
            (Sort::Attr, None) => dim(),
            (Sort::Shape, None) => AttrValue::List(vec![dim(), dim()]),
            _ => continue,
        };
        bindings.values.insert(VarId(i as u32), value);
    }
    match eval(formula, &bindings, &OfSize(size)) {
        None => says_all(formula).then(|| "no number".to_string()),
        Some(value) => no_cost(value),
    }
}

/// A value that is no cost.
fn no_cost(value: AttrValue) -> Option<String> {
    match value {
        AttrValue::Dim(d) => d.as_const().filter(|c| *c < 0).map(|c| c.to_string()),
        AttrValue::Float(v) if v.is_nan() => Some("no number".to_string()),
        AttrValue::Float(v) if v < 0.0 || v.is_infinite() => Some(v.to_string()),
        _ => None,
    }
}
