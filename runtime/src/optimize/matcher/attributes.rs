//! Attributes of a node against those of a pattern.
//!
//! In: the attribute patterns of an application and the values that a node has. Out: what their variables stand for. Holds
//! always: what a value is computed from may be bound further on in the pattern; such a value is compared in the end.

use super::*;

/// The types of an op's attributes.
fn attr_types(op: &OpDef) -> impl Iterator<Item = AttrType> {
    op.attrs().filter_map(|(_, p)| match &p.kind {
        ParamKind::Attr { ty, .. } => Some(*ty),
        _ => None,
    })
}

impl<'r> Matcher<'r, '_, '_> {
    /// The goals that a node's attributes are.
    pub(super) fn attribute_goals(&self, n: &'r NodePat, node: &Node, class: Id, mut goals: Goals<'r>) -> Goals<'r> {
        if n.attrs.iter().all(|a| *a == AttrPat::Any) {
            return goals;
        }
        let rank = node.children.first().and_then(|c| self.type_of(*c)).map(|t| t.shape.len());
        let at = |i: usize| (n.head, i, class);
        match node.payload {
            Payload::Op(op, attrs) => {
                let types: SmallVec<[AttrType; 8]> = attr_types(self.egraph.analysis.program.op(op)).collect();
                let values = self.egraph.analysis.attrs(attrs);
                for (i, pat) in n.attrs.iter().enumerate().rev() {
                    if let (Some(ty), Some(value)) = (types.get(i), values.get(i))
                        && *pat != AttrPat::Any
                    {
                        goals = push(Goal::Attr { pat, ty: *ty, value: value.clone(), rank, at: at(i) }, goals);
                    }
                }
            }
            Payload::TermCast(to) => {
                if let Some(pat) = n.attrs.first() {
                    let value = AttrValue::DType(to);
                    goals = push(Goal::Attr { pat, ty: AttrType::DType, value, rank, at: at(0) }, goals);
                }
            }
            _ => {}
        }
        goals
    }

    /// Matches one attribute.
    pub(super) fn attr(
        &mut self,
        pat: &'r AttrPat,
        ty: AttrType,
        value: &AttrValue,
        rank: Option<usize>,
        at: (Head, usize, Id),
        next: Goals<'r>,
    ) -> Flow {
        let fail = || MissReason::Attr(at.0, at.1, value.clone());
        match pat {
            AttrPat::Any | AttrPat::Rest(None) => self.advance(next),
            AttrPat::Var(v) | AttrPat::Rest(Some(v)) => match self.values.values.get(v) {
                Some(bound) if attr_equal(value, &normal_attr(ty, bound.clone(), rank)) == Some(true) => {
                    self.advance(next)
                }
                Some(_) => self.miss(at.2, fail),
                None => {
                    self.values.values.insert(*v, value.clone());
                    let flow = self.advance(next);
                    self.values.values.remove(v);
                    flow
                }
            },
            AttrPat::Is(want) => {
                let facts = MatchFacts { egraph: self.egraph, slots: &self.slots, device: None };
                match typing::eval(want, &self.values, &facts).map(|w| normal_attr(ty, w, rank)) {
                    Some(w) if attr_equal(value, &w) == Some(true) => self.advance(next),
                    Some(_) => self.miss(at.2, fail),
                    // It may use what is bound further on.
                    None => {
                        self.deferred.push((want, ty, value.clone(), rank, at));
                        let flow = self.advance(next);
                        self.deferred.pop();
                        flow
                    }
                }
            }
            AttrPat::List(pats) => self.attr_list(pats, ty, value, rank, at, next),
        }
    }

    fn attr_list(
        &mut self,
        pats: &'r [AttrPat],
        ty: AttrType,
        value: &AttrValue,
        rank: Option<usize>,
        at: (Head, usize, Id),
        mut next: Goals<'r>,
    ) -> Flow {
        let AttrValue::List(items) = value else {
            return self.miss(at.2, || MissReason::Attr(at.0, at.1, value.clone()));
        };
        let element = match ty {
            AttrType::Axes => AttrType::Axis,
            AttrType::Ints => AttrType::Int,
            AttrType::Floats => AttrType::Float,
            AttrType::Dims => AttrType::Dim,
            other => other,
        };
        let rest = pats.iter().position(|p| matches!(p, AttrPat::Rest(_)));
        let fixed = pats.len() - usize::from(rest.is_some());
        if items.len() < fixed || (rest.is_none() && items.len() != fixed) {
            return self.miss(at.2, || MissReason::Attr(at.0, at.1, value.clone()));
        }
        let spread = items.len() - fixed;
        let mut from = items.len();
        for pat in pats.iter().rev() {
            let (ty, value) = if matches!(pat, AttrPat::Rest(_)) {
                from -= spread;
                (ty, AttrValue::List(items[from..from + spread].to_vec()))
            } else {
                from -= 1;
                (element, items[from].clone())
            };
            next = push(Goal::Attr { pat, ty, value, rank, at }, next);
        }
        self.solve(next)
    }
}
