//! Contracts: what `must` and `never` name.
//!
//! In: `contract` items, and all rules, derived ones included. Out: [`Contract`]s. Invariant: each
//! clause names a rule, a family of rules or a ruleset of the Program, and no two of one contract
//! contradict each other.

use std::collections::HashSet;

use crate::ast::{self, ItemKind};
use crate::diag::Diagnostic;
use crate::ir::{Clause, Contract, Demand};

use super::{Sema, code};

/// Adds the contracts to the Program.
pub(super) fn collect(s: &mut Sema<'_>) {
    let lost = s.declared_rules();
    let mut contracts = Vec::new();
    let mut found = Vec::new();
    for (at, item) in s.items() {
        let ItemKind::Contract(c) = &item.kind else { continue };
        let clauses = c.clauses.iter().filter_map(|clause| match check(s, at.file, clause, lost.as_ref()) {
            Ok(clause) => clause,
            Err(d) => {
                found.push(*d);
                None
            }
        });
        let clauses: Vec<Clause> = clauses.collect();
        found.extend(contradictions(c));
        let (name, origin) = (c.name.node.clone(), s.origin(c.name.span));
        contracts.push(Contract { name, doc: item.doc.clone(), origin, clauses });
    }
    s.diags.extend(found);
    s.program.contracts = contracts;
}

/// The clause; `None` if its rule may be missing because of another error.
fn check(
    s: &Sema<'_>,
    file: usize,
    clause: &ast::Clause,
    lost: Option<&HashSet<String>>,
) -> Result<Option<Clause>, Box<Diagnostic>> {
    let name = clause.rule.text();
    let in_sight = s.program.rules.iter().any(|r| r.is_named(&s.program, &name))
        || s.program.rulesets.iter().any(|r| r.name == name);
    // Contracts are about plans, which all rules of the library may make, used here or not.
    if !in_sight && !s.is_of_unused_module(&name) {
        if lost.is_some_and(|lost| s.may_be_lost(file, &name, lost)) {
            return Ok(None);
        }
        return Err(Box::new(s.no_rule(code::CONTRACT, &name, clause.rule.span)));
    }
    if let Some(zero) = clause.count.as_ref().filter(|n| n.node == 0) {
        let d = Diagnostic::error(code::CONTRACT, "`must` with no site demands nothing", zero.span);
        return Err(Box::new(d.hint(format!("write `never {name};`"))));
    }
    let count = clause.count.as_ref().map(|n| usize::try_from(n.node).unwrap_or(usize::MAX));
    let at = clause.at.as_ref().map(|n| n.node.clone());
    let demand = if clause.must { Demand::Must { count, at } } else { Demand::Never };
    Ok(Some(Clause { rule: name, demand, origin: Some(s.origin(clause.rule.span)) }))
}

/// Clauses of which one demands what another forbids.
fn contradictions(c: &ast::Contract) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for never in c.clauses.iter().filter(|c| !c.must) {
        let name = never.rule.text();
        // `never fuse::unary` forbids `fuse::unary[relu]` too.
        let below = |rule: &str| {
            rule == name || rule.strip_prefix(&name).is_some_and(|r| r.starts_with('[') || r.starts_with("::"))
        };
        for must in c.clauses.iter().filter(|c| c.must && below(&c.rule.text())) {
            let message = format!("this contract both demands and forbids `{}`", must.rule.text());
            let d = Diagnostic::error(code::CONTRACT, message, must.rule.span).label("demanded here");
            found.push(d.also(never.rule.span, "forbidden here").hint("remove one of the two"));
        }
    }
    for (i, clause) in c.clauses.iter().enumerate().filter(|(_, c)| c.must) {
        let same = |other: &&ast::Clause| {
            other.must && other.rule.text() == clause.rule.text() && other.count.is_some() && other.at.is_none()
        };
        let counted = clause.count.is_some() && clause.at.is_none();
        if let Some(other) = c.clauses[..i].iter().find(same).filter(|_| counted) {
            let message = format!("this contract says twice how often `{}` fires", clause.rule.text());
            let d = Diagnostic::error(code::CONTRACT, message, clause.rule.span).label("here");
            found.push(d.also(other.rule.span, "and here").hint("remove one of the two"));
        }
    }
    found
}
