//! Lint for rules that feed each other forever: the replacement of one rule matches another, until
//! the first one matches again, on a larger term.
//!
//! In: the rules as written. Out: one warning for each cycle of rules. A rule that feeds itself is
//! reported by `rules`. Invariant: rules with guards or types are skipped, since these may end the
//! cycle; a cycle is at most [`MAX_RULES`] rules long.

use std::collections::{HashMap, HashSet};

use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{AExpr, Build, BuildArg, BuildNode, Head, NodePat, Pat, Program, Rule, walk_build};
use crate::resolve::Resolved;
use crate::sema::hygiene::{Match, closed, matches, unguarded};

/// Maximum number of rules in a cycle.
const MAX_RULES: usize = 4;
/// Maximum number of subexpressions of what successive rules build; larger ones are not followed.
const MAX_SUBEXPRESSIONS: usize = 64;
/// Maximum number of matching steps, over all rules.
const MAX_STEPS: usize = 100_000;

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    // One member represents its family.
    let mut names = HashSet::new();
    let written = p.rules.iter().filter(|r| !r.derived && unguarded(r) && names.insert(r.base_name.as_str()));
    let rules: Vec<&Rule> = written.collect();
    let mut by_head: HashMap<Head, Vec<usize>> = HashMap::new();
    for (i, r) in rules.iter().enumerate() {
        if let Some(head) = root(&r.lhs[0]) {
            by_head.entry(head).or_default().push(i);
        }
    }
    let mut told: HashSet<Vec<usize>> = HashSet::new();
    let mut steps = 0;
    for first in (0..rules.len()).filter(|i| !resolved.trusts(rules[*i].origin.span)) {
        let mut search = Search { rules: &rules, by_head: &by_head, steps: &mut steps };
        let Some(circle) = search.circle(first) else { continue };
        let mut members = circle.clone();
        members.sort_unstable();
        if told.insert(members) {
            report(&circle.iter().map(|i| rules[*i]).collect::<Vec<_>>(), out);
        }
    }
}

fn report(circle: &[&Rule], out: &mut Vec<Diagnostic>) {
    let [first, others @ ..] = circle else { return };
    let Some(span) = first.origin.span else { return };
    let names: Vec<String> = others.iter().map(|r| format!("`{}`", r.base_name)).collect();
    let message = format!(
        "`{}` matches again in what {} produces from its right side",
        first.base_name,
        names.join(" and then ")
    );
    let mut d = Diagnostic::warning(code::GROWS, message, span)
        .label("can be applied without end")
        .hint("reverse one of them, or add a `requires` that is false for its own result");
    for other in others {
        if let Some(s) = other.origin.span {
            d = d.also(s, "through this rule");
        }
    }
    out.push(d);
}

/// The head of a pattern's root.
fn root(p: &Pat) -> Option<Head> {
    match p {
        Pat::Node(n) => Some(n.head),
        Pat::Bind(_, p) => root(p),
        _ => None,
    }
}

struct Search<'s> {
    rules: &'s [&'s Rule],
    by_head: &'s HashMap<Head, Vec<usize>>,
    steps: &'s mut usize,
}

impl Search<'_> {
    /// The shortest cycle from a rule back to itself, if the rule matches again on a larger term
    /// than before.
    fn circle(&mut self, first: usize) -> Option<Vec<usize>> {
        let start = self.rules[first];
        let mut now: Vec<(Build, Vec<usize>)> = vec![(start.rhs[0].clone(), vec![first])];
        for _ in 1..MAX_RULES {
            let mut next = Vec::new();
            for (build, path) in &now {
                for (made, by) in self.rewritten(build) {
                    if path.contains(&by) {
                        continue;
                    }
                    let path = [path.as_slice(), &[by]].concat();
                    if grows_from(&start.lhs[0], &made) {
                        return Some(path);
                    }
                    next.push((made, path));
                }
                if *self.steps > MAX_STEPS {
                    return None;
                }
            }
            now = next;
        }
        None
    }

    /// All results of applying one rule to one subexpression.
    fn rewritten(&mut self, build: &Build) -> Vec<(Build, usize)> {
        let mut out = Vec::new();
        let mut places: Vec<(usize, &Build)> = Vec::new();
        let mut n = 0;
        walk_build(
            build,
            &mut |b, _| {
                places.push((n, b));
                n += 1;
            },
            true,
        );
        let plain = |b: &Build| match b {
            Build::Node(n) => n.args.iter().all(|a| matches!(a, BuildArg::One(_))),
            Build::Var(_) | Build::Number(_) | Build::Absent => true,
            _ => false,
        };
        if n > MAX_SUBEXPRESSIONS || !places.iter().all(|(_, b)| plain(b)) {
            return out;
        }
        for (at, found) in places {
            let Build::Node(BuildNode { head, .. }) = found else { continue };
            for by in self.by_head.get(head).into_iter().flatten() {
                *self.steps += 1;
                let rule = self.rules[*by];
                let mut m = Match::default();
                if matches(&rule.lhs[0], found, &mut m)
                    && let Some(with) = filled(&rule.rhs[0], &m)
                {
                    out.push((replaced(build, at, &with, &mut 0), *by));
                }
            }
        }
        out
    }
}

/// Whether the pattern matches some subexpression such that a variable stands for more than a
/// variable or a number.
fn grows_from(lhs: &Pat, build: &Build) -> bool {
    let mut found = false;
    walk_build(
        build,
        &mut |b, _| {
            let mut m = Match::default();
            found |=
                matches(lhs, b, &mut m) && m.builds.values().any(|b| !matches!(b, Build::Var(_) | Build::Number(_)));
        },
        true,
    );
    // A match may be a regrouping of the pattern's own root: `a + (b + c)` contains `b + c`.
    found && root(lhs).is_some() && !only_regrouped(lhs, build)
}

/// Whether a result has no more functions than the pattern: regrouping terms terminates.
fn only_regrouped(lhs: &Pat, build: &Build) -> bool {
    fn nodes(p: &Pat) -> usize {
        match p {
            Pat::Node(NodePat { args, .. }) => 1 + args.iter().map(nodes).sum::<usize>(),
            Pat::Bind(_, p) | Pat::Typed(p, _) => nodes(p),
            Pat::OneOf(l) => l.iter().map(nodes).min().unwrap_or(0),
            _ => 0,
        }
    }
    let mut made = 0;
    walk_build(build, &mut |b, _| made += usize::from(matches!(b, Build::Node(_))), true);
    made <= nodes(lhs)
}

/// Instantiates a right side with a match; `None` if it contains forms that are not plain
/// applications.
fn filled(b: &Build, m: &Match) -> Option<Build> {
    let attr = |e: &AExpr| match e {
        AExpr::Var(v) => m.attrs.get(v).cloned(),
        e => closed(e).then(|| e.clone()),
    };
    Some(match b {
        Build::Var(v) => m.builds.get(v)?.clone(),
        Build::Number(e) => Build::Number(attr(e)?),
        Build::Absent => Build::Absent,
        Build::Node(n) => {
            let arg = |a: &BuildArg| match a {
                BuildArg::One(b) => Some(BuildArg::One(filled(b, m)?)),
                _ => None,
            };
            Build::Node(BuildNode {
                head: n.head,
                args: n.args.iter().map(arg).collect::<Option<_>>()?,
                attrs: n.attrs.iter().map(attr).collect::<Option<_>>()?,
                output: n.output,
            })
        }
        _ => return None,
    })
}

/// Replaces the subexpression at an index, counted as `walk_build` counts them.
fn replaced(b: &Build, at: usize, with: &Build, next: &mut usize) -> Build {
    let here = *next;
    *next += 1;
    if here == at {
        // Do not count those inside.
        *next = usize::MAX / 2;
        return with.clone();
    }
    match b {
        Build::Node(n) => {
            let arg = |a: &BuildArg, next: &mut usize| match a {
                BuildArg::One(b) => BuildArg::One(replaced(b, at, with, next)),
                BuildArg::Each { .. } | BuildArg::Spread(_) => a.clone(),
            };
            Build::Node(BuildNode { args: n.args.iter().map(|a| arg(a, next)).collect(), ..n.clone() })
        }
        _ => b.clone(),
    }
}
