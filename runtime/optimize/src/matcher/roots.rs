//! Candidates for the second and later roots of a rule.
//!
//! In: the bindings of the roots so far. Out: values that may be the next root. Invariant: a root
//! that shares a variable with earlier ones is searched among the users of the variable's value,
//! never among all values.

use super::*;

impl<H: Host> Matcher<'_, '_, '_, H> {
    /// Classes that may be the next root: ancestors of its bound variables.
    pub(super) fn next_candidates(&self) -> Vec<Id> {
        let pat = &self.what.rule.lhs[self.roots.len()];
        let program = self.host.program();
        let mut wanted = Some(Vec::new());
        heads(program, pat, self.what.terms, &mut wanted);
        let anchor = self.anchor(pat, 0, 0);
        let mut ids: Vec<Id> = match (anchor, &wanted) {
            (Some((class, least, most)), _) => {
                let mut level = vec![class];
                let mut out = Vec::new();
                for depth in 0..=most {
                    if depth >= least {
                        out.extend(&level);
                    }
                    let mut above: Vec<Id> = level.iter().flat_map(|c| self.host.users(*c)).collect();
                    above.sort();
                    above.dedup();
                    level = above;
                }
                out
            }
            (None, heads) => self.host.everywhere(heads.as_deref()),
        };
        if let Some(heads) = wanted {
            ids.retain(|c| self.host.nodes(*c).iter().any(|n| heads.contains(&n.payload.discriminant())));
        }
        ids.sort();
        ids.dedup();
        ids
    }

    /// The bound variable nearest to the top of a pattern: its class, and its minimum and maximum
    /// depth (the terms of a sum occur at several depths). Ties are broken by the fewest parents.
    fn anchor(&self, pat: &Pat, least: usize, most: usize) -> Option<(Id, usize, usize)> {
        match pat {
            Pat::Var(v) => match self.bindings.get(v.index()) {
                Some(Binding::Class(id)) => Some((self.host.find(*id), least, most)),
                _ => None,
            },
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.anchor(p, least, most),
            // Its operands may be anywhere below it.
            Pat::Node(n) if matches!(n.head, Head::Region(_)) => None,
            Pat::Node(n) => {
                // A result of an op with several is two nodes above the op's operands.
                let program = self.host.program();
                let step = match n.head {
                    Head::Op(op) if has_several_results(program.op(op)) => 2,
                    _ => 1,
                };
                let spread = step.max(prepare::width(program, n) - 1);
                n.args
                    .iter()
                    .filter_map(|a| self.anchor(a, least + step, most + spread))
                    .min_by_key(|(id, _, d)| (*d, self.host.use_count(*id)))
            }
            // Alternatives may have the variable at different depths.
            Pat::OneOf(_) | Pat::Any | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => None,
        }
    }
}
