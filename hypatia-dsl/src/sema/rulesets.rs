//! Rulesets: their budgets, and the order in which they run.
//!
//! Invariant: `fold`, which holds the derived rules, runs first; the others run in the order of
//! their files and lines, unless `after` or `before` says otherwise.

use std::collections::HashMap;

use crate::ast::{self, ExprKind, ItemKind, Setting};
use crate::diag::Diagnostic;
use crate::ir::{Origin, RuleSetDef, RuleSetId};
use crate::resolve::{ItemRef, Space};
use crate::source::Span;
use crate::spell::closest;

use super::{Sema, code};

/// The ruleset of derived rules.
pub(super) const FOLD: RuleSetId = RuleSetId(0);

const SETTINGS: &[&str] = &["until", "iterations", "nodes", "steps", "after", "before"];
/// The default node budget of a ruleset: a fixed part, and a part for each node of the graph.
const DEFAULT_NODES: (u64, u64) = (10_000, 50);

/// A ruleset, its item if it was written, and where it wants to run.
type Declared = (Option<ItemRef>, RuleSetDef, Order);

/// Adds the rulesets to the Program, in the order in which they run.
pub(super) fn collect(s: &mut Sema<'_>) {
    let fold = RuleSetDef {
        name: ast::FOLD.to_string(),
        doc: "Rules that the compiler derives: each replaces the body of an op by the op.".to_string(),
        origin: Origin::default(),
        iterations: None,
        nodes: DEFAULT_NODES,
        steps: None,
    };
    let mut sets: Vec<Declared> = vec![(None, fold, Order::default())];
    declared(s, &mut sets);
    for i in run_order(s, &sets) {
        let (at, def, _) = sets[i].clone();
        if let Some(at) = at {
            s.ruleset_ids.insert(at, RuleSetId(s.program.rulesets.len() as u32));
        }
        s.program.rulesets.push(def);
    }
}

/// Adds the rulesets of all files, with their settings, to `sets`.
fn declared(s: &mut Sema<'_>, sets: &mut Vec<Declared>) {
    for (at, item) in s.items() {
        let ItemKind::RuleSet(r) = &item.kind else { continue };
        let mut def = RuleSetDef {
            name: r.name.node.clone(),
            doc: item.doc.clone(),
            origin: s.origin(r.name.span),
            iterations: None,
            nodes: DEFAULT_NODES,
            steps: None,
        };
        let mut order = Order::default();
        let mut seen: HashMap<&str, ()> = HashMap::new();
        for setting in &r.settings {
            if seen.insert(&setting.key.node, ()).is_some() {
                s.diags.push(Diagnostic::error(
                    code::SETTING,
                    format!("`{}` is set twice", setting.key.node),
                    setting.key.span,
                ));
                continue;
            }
            if let Err(d) = apply(s, at.file, &mut def, &mut order, setting) {
                s.diags.push(*d);
            }
        }
        sets.push((Some(at), def, order));
    }
}

/// A stable topological order. A set that nothing holds back goes first, in the order of the files;
/// of sets in a circle, the first in the files.
fn run_order(s: &mut Sema<'_>, sets: &[Declared]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    while order.len() < sets.len() {
        let open = |i: &usize| !order.contains(i);
        let waits_for = |i: usize, j: usize| {
            let named = |a: Option<ItemRef>, at: usize| a.is_some() && a == sets[at].0;
            i != j && (named(sets[i].2.after, j) || named(sets[j].2.before, i))
        };
        let next = (0..sets.len()).filter(open).find(|i| !(0..sets.len()).filter(open).any(|j| waits_for(*i, j)));
        match next {
            Some(i) => order.push(i),
            None => {
                let Some(first) = (0..sets.len()).find(open) else { break };
                let circle = (0..sets.len()).filter(open).filter(|i| sets[*i].2.is_given());
                let spans = circle.filter_map(|i| Some(in_circle(&sets[i].1, sets[i].1.origin.span?)));
                s.diags.extend(spans.take(1));
                order.push(first);
            }
        }
    }
    order
}

/// Where a ruleset wants to run.
#[derive(Clone, Copy, Default)]
struct Order {
    /// Behind this one.
    after: Option<ItemRef>,
    /// Before this one.
    before: Option<ItemRef>,
}

impl Order {
    fn is_given(&self) -> bool {
        self.after.is_some() || self.before.is_some()
    }
}

fn in_circle(set: &RuleSetDef, span: Span) -> Diagnostic {
    let message = format!("`{}` would have to run both before and after another ruleset", set.name);
    Diagnostic::error(code::SETTING, message, span)
        .label("in a circle of `before` and `after`")
        .hint("remove one of the settings of the circle")
}

/// Whether a ruleset is the one whose name stands there.
fn is_at(s: &Sema<'_>, set: ItemRef, span: Option<Span>) -> bool {
    let item = &s.resolved.files[set.file].items[set.item];
    matches!(&item.kind, ItemKind::RuleSet(r) if Some(r.name.span) == span)
}

/// The ruleset behind or before which another one runs; `None` if an error about it was reported.
fn neighbour(
    s: &Sema<'_>,
    file: usize,
    def: &RuleSetDef,
    (key, path): (&str, &ast::Path),
) -> Result<Option<ItemRef>, Box<Diagnostic>> {
    match s.resolved.lookup(file, Space::RuleSet, path) {
        Ok(set) if is_at(s, set, def.origin.span) => {
            let said = format!("`{}` cannot run {key} itself", def.name);
            let d = Diagnostic::error(code::SETTING, said, path.span).label("the same ruleset");
            Err(Box::new(d.hint("name another ruleset, or remove the setting")))
        }
        Ok(set) => Ok(Some(set)),
        Err(_) if s.resolved.excused(file, &path.text()) => Ok(None),
        Err(d) => Err(d),
    }
}

fn apply(
    s: &Sema<'_>,
    file: usize,
    def: &mut RuleSetDef,
    order: &mut Order,
    setting: &Setting,
) -> Result<(), Box<Diagnostic>> {
    let at = setting.value.span;
    let wrong = |what: &str| Diagnostic::error(code::SETTING, format!("`{}` must be {what}", setting.key.node), at);
    let bad = |what: &str| Err(Box::new(wrong(what)));
    match setting.key.node.as_str() {
        "until" => match &setting.value.kind {
            ExprKind::Path(p) if p.text() == "fixpoint" => def.iterations = None,
            _ => {
                let d = wrong("`fixpoint`, and nothing else").label("not `fixpoint`");
                return Err(Box::new(
                    d.hint("write `until = fixpoint;`, or `iterations = 30;` for a number of rounds"),
                ));
            }
        },
        "iterations" => match whole(&setting.value) {
            Some(n) if n >= 1 => def.iterations = Some(u32::try_from(n).unwrap_or(u32::MAX)),
            _ => return bad("a whole number of at least 1"),
        },
        "steps" => match budget(&setting.value) {
            Some(n) if n != (0, 0) => def.steps = Some(n),
            _ => return bad("a number such as `2000 * graph`, `500000` or `500000 + 2000 * graph`"),
        },
        "time" => {
            let d = Diagnostic::error(code::SETTING, "a ruleset has no setting `time`", setting.key.span)
                .note("a result must not depend on the speed or the load of a machine")
                .hint("limit the work instead: `steps = 500000 + 2000 * graph;`");
            return Err(Box::new(d));
        }
        "nodes" => match budget(&setting.value) {
            Some(n) if n != (0, 0) => def.nodes = n,
            _ => return bad("a number such as `50 * graph`, `20000` or `20000 + 50 * graph`"),
        },
        key @ ("after" | "before") => {
            let ExprKind::Path(p) = &setting.value.kind else { return bad("the name of a ruleset") };
            let other = neighbour(s, file, def, (key, p))?;
            *(if key == "after" { &mut order.after } else { &mut order.before }) = other;
        }
        other => {
            let mut d =
                Diagnostic::error(code::SETTING, format!("a ruleset has no setting `{other}`"), setting.key.span)
                    .note(format!("the settings are {}", SETTINGS.join(", ")));
            d = match closest(other, SETTINGS.iter().copied()) {
                Some(n) => d.hint(format!("did you mean `{n}`?")),
                None => d.hint(
                    "write `iterations = 30;` for a fixed number of rounds, or `until = fixpoint;` for no limit on \
                     rounds",
                ),
            };
            return Err(Box::new(d));
        }
    }
    Ok(())
}

fn whole(e: &ast::Expr) -> Option<u64> {
    match e.kind {
        ExprKind::Number { value, integer: true } if (0.0..=1e15).contains(&value) => Some(value as u64),
        _ => None,
    }
}

/// Parses `fixed + per_node * graph`, in any order, as the two numbers.
fn budget(e: &ast::Expr) -> Option<(u64, u64)> {
    use ast::BinaryOp::{Add, Mul};
    match &e.kind {
        ExprKind::Path(p) if p.text() == "graph" => Some((0, 1)),
        ExprKind::Binary(Add, a, b) => {
            let (a, b) = (budget(a)?, budget(b)?);
            Some((a.0.saturating_add(b.0), a.1.saturating_add(b.1)))
        }
        ExprKind::Binary(Mul, a, b) => match (whole(a), whole(b)) {
            (Some(n), _) => budget(b).map(|b| (b.0.saturating_mul(n), b.1.saturating_mul(n))),
            (_, Some(n)) => budget(a).map(|a| (a.0.saturating_mul(n), a.1.saturating_mul(n))),
            _ => None,
        },
        _ => whole(e).map(|n| (n, 0)),
    }
}
