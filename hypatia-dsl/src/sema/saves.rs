//! `saves 3 us`, `saves 4 * numel(x) bytes`: what a rule saves, where the cost model cannot know.
//!
//! In: the clauses of a rule. Out: an amount with its unit. Invariant: the amount is a number, and
//! not one that is known to be negative, infinite or NaN; the right side computes something.

use crate::ast::{self, Expr};
use crate::diag::Diagnostic;
use crate::ir::{AttrValue, Build, Saves, SavesUnit};
use crate::spell::closest;
use crate::typing::{Bindings, NoFacts, eval};

use super::code;
use super::context::Cx;
use super::guards::AKind;

/// The saving that a rule states, if any. The outer `None` means that an error was reported.
pub(super) fn saves<'a>(cx: &mut Cx<'a>, r: &'a ast::Rule, rhs: &[Build], right: &Expr) -> Option<Option<Saves>> {
    let Some(stated) = r.saves.first() else { return Some(None) };
    if let Some(second) = r.saves.get(1) {
        let d = Diagnostic::error(code::SAVES, "this rule says twice what it saves", second.unit.span)
            .label("the second `saves`")
            .also(stated.unit.span, "the first")
            .hint("add both up in one `saves`");
        return cx.report(d);
    }
    if r.both_ways {
        let said = "a rule with `<=>` cannot save anything: each side would be faster than the other";
        let d = Diagnostic::error(code::SAVES, said, stated.amount.span)
            .hint("write the rule with `=>`, in the direction that saves");
        return cx.report(d);
    }
    if rhs.iter().all(|b| matches!(b, Build::Var(_) | Build::Number(_) | Build::Absent)) {
        let d =
            Diagnostic::error(code::SAVES, "this rule leaves nothing to compute, so it needs no `saves`", right.span)
                .label("costs nothing as it is")
                .hint("remove `saves`: what the left side costs is saved anyway");
        return cx.report(d);
    }
    let unit = unit(cx, &stated.unit)?;
    let amount = cx.aexpr(&stated.amount)?;
    match cx.akind(&amount) {
        AKind::Number | AKind::Unknown => {}
        other => {
            let said = format!("`saves` takes a number, but this is {}", other.words());
            let d = Diagnostic::error(code::SAVES, said, stated.amount.span)
                .label("not a number")
                .hint("write an amount and its unit: `saves 3 us`, `saves 4 * numel(x) bytes`");
            return cx.report(d);
        }
    }
    let value = match eval(&amount, &Bindings::default(), &NoFacts) {
        Some(AttrValue::Dim(d)) => d.as_const().map(|c| c as f64),
        Some(AttrValue::Float(v)) => Some(v),
        _ => None,
    };
    if let Some(v) = value.filter(|v| !v.is_finite() || *v < 0.0) {
        let d = Diagnostic::error(code::SAVES, format!("a rule cannot save {v} {}", unit.name()), stated.amount.span)
            .label("expected a number that is at least 0")
            .hint("a rule that is slower where something holds says so in `prefer`");
        return cx.report(d);
    }
    Some(Some(Saves { amount, unit }))
}

fn unit(cx: &mut Cx<'_>, name: &ast::Name) -> Option<SavesUnit> {
    if let Some(unit) = SavesUnit::ALL.into_iter().find(|u| u.name() == name.node) {
        return Some(unit);
    }
    let d = Diagnostic::error(code::SAVES, format!("`{}` is no unit of a saving", name.node), name.span)
        .label("expected `us` (microseconds) or `bytes`");
    let hint = match name.node.as_str() {
        "ns" => "a nanosecond is 0.001 us".to_string(),
        "ms" => "a millisecond is 1000 us".to_string(),
        "s" | "sec" | "seconds" => "a second is 1000000 us".to_string(),
        "micros" | "microseconds" | "usec" => "write `us`".to_string(),
        "byte" | "b" | "B" => "write `bytes`".to_string(),
        "kb" | "KB" | "kB" | "KiB" => "write `1024 * ... bytes`".to_string(),
        "mb" | "MB" | "MiB" => "write `1048576 * ... bytes`".to_string(),
        "flops" | "flop" | "ops" => "say what time they take, `us`; an op states its own `flops`".to_string(),
        other => match closest(other, SavesUnit::ALL.into_iter().map(SavesUnit::name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "write `saves 3 us` or `saves 4 * numel(x) bytes`".to_string(),
        },
    };
    cx.report(d.hint(hint))
}
