//! Rewriting one term by rules about terms.
//!
//! In: a term, what is known of its leaves, and rules. Out: the term with right sides where left
//! sides matched, and the rules that fired. Invariant: matches do not overlap; the outermost one
//! wins, then the first rule. A term without a match is unchanged; its scalars stay calls.

use crate::dtype::DType;
use crate::ir::{Program, RuleId, ScalarBody, ScalarId};
use crate::scalar::typed::{LeafType, types};
use crate::scalar::{Term, TermBuilder, TermId, TermNode, expand, prune};

use super::rule::TermRule;
use super::subject::{Leaves, Subject};

/// Maximum nesting depth of definitions.
const MAX_DEPTH: usize = 200;

/// The rules that may fire in a term.
pub(super) struct Rewriter<'s, 'p> {
    pub program: &'p Program,
    pub rules: Vec<&'s (RuleId, TermRule<'p>)>,
}

/// A match: the rule, and what the holes of its left side stand for.
type Found<'s, 'p> = (&'s (RuleId, TermRule<'p>), Vec<TermId>);

impl<'s, 'p> Rewriter<'s, 'p> {
    /// Rewrites a term. An ill-typed term is left to the printer, which reports the error.
    pub fn rewrite(&self, term: &mut Term, number: DType, leaves: &Leaves<'_>) -> Vec<RuleId> {
        let Some(open) = self.opened(term, number, leaves.types) else { return Vec::new() };
        let Some(subject) = Subject::of(self.program, &open, number, leaves) else { return Vec::new() };
        let mut found = self.matches(&open, &subject);
        let mut fired = Vec::new();
        let mut out = TermBuilder::new();
        let mut map: Vec<TermId> = Vec::with_capacity(open.nodes.len());
        for (i, node) in open.nodes.iter().enumerate() {
            let built = found[i].take().and_then(|((id, rule), bound)| {
                let bound: Vec<TermId> = bound.iter().map(|t| map[t.0 as usize]).collect();
                let new = *out.append(&rule.right, &bound).first()?;
                fired.push(*id);
                Some(new)
            });
            map.push(built.unwrap_or_else(|| out.add(node.map_args(|a| map[a.0 as usize]))));
        }
        if !fired.is_empty() {
            *term = out.finish(open.roots.iter().map(|r| map[r.0 as usize]).collect());
        }
        fired
    }

    /// The match at each node, from the roots inwards: a node inside a match is not rewritten
    /// separately.
    fn matches(&self, term: &Term, subject: &Subject<'_>) -> Vec<Option<Found<'s, 'p>>> {
        let mut found: Vec<Option<Found<'s, 'p>>> = vec![None; term.nodes.len()];
        let mut needed = vec![false; term.nodes.len()];
        term.roots.iter().for_each(|r| needed[r.0 as usize] = true);
        for (i, node) in term.nodes.iter().enumerate().rev() {
            if !needed[i] {
                continue;
            }
            found[i] = self.rules.iter().find_map(|r| Some((*r, subject.find(&r.1, TermId(i as u32))?)));
            match &found[i] {
                Some(((_, rule), bound)) => rule.read(bound).for_each(|t| needed[t.0 as usize] = true),
                None => node.args().iter().for_each(|t| needed[t.0 as usize] = true),
            }
        }
        found
    }

    /// The term, with a defined scalar inlined if a rule fires in its body.
    fn opened(&self, term: &Term, number: DType, leaf: LeafType<'_>) -> Option<Term> {
        let mut term = prune(term);
        for _ in 0..MAX_DEPTH {
            let types = types(self.program, &term, number, leaf).ok()?;
            let mut out = TermBuilder::new();
            let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
            let mut changed = false;
            for (node, ty) in term.nodes.iter().zip(types) {
                let body = match node {
                    TermNode::Call { scalar, .. } if ty == Some(DType::F32) => self.body_with_match(*scalar),
                    _ => None,
                };
                let args: Vec<TermId> = node.args().iter().map(|a| map[a.0 as usize]).collect();
                map.push(match body {
                    Some(body) => {
                        changed = true;
                        *out.append(body, &args).first()?
                    }
                    None => out.add(node.map_args(|a| map[a.0 as usize])),
                });
            }
            if !changed {
                return Some(term);
            }
            term = out.finish(term.roots.iter().map(|r| map[r.0 as usize]).collect());
        }
        None
    }

    /// The body of a defined scalar, if a rule fires somewhere in it.
    fn body_with_match(&self, scalar: ScalarId) -> Option<&'p Term> {
        let def = self.program.scalars.get(scalar.index()).filter(|d| d.device.is_none())?;
        let ScalarBody::Term(body) = &def.body else { return None };
        let whole = expand(self.program, body).ok()?;
        let leaf = |_: &TermNode| Some(DType::F32);
        let subject = Subject::of(self.program, &whole, DType::F32, &Leaves { types: &leaf, elements: &|_| None })?;
        let at = |i: usize| {
            let fires =
                |rule: &TermRule<'_>| rule.rule.prefer.is_empty() && subject.find(rule, TermId(i as u32)).is_some();
            self.rules.iter().any(|(_, rule)| fires(rule))
        };
        (0..whole.nodes.len()).any(at).then_some(body)
    }
}
