//! Matches the attributes of a node.
//!
//! In: the attribute patterns of an application and the values of a node. Out: bindings of their
//! variables. Invariant: an attribute computed from variables that are bound later in the pattern
//! is deferred and compared at the end.

use std::borrow::Cow;

use hypatia_dsl::dtype::DType;

use super::*;

/// An attribute of a node, and the pattern that it must match.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'r, 'e> {
    pat: &'r AttrPat,
    ty: AttrType,
    value: AttrRef<'e>,
    /// The rank of the node's first operand, which resolves negative axes.
    rank: Option<usize>,
    /// The node's head and class, and the index of the attribute.
    at: (Head, usize, Id),
}

/// An attribute of a node, or a part of one.
#[derive(Clone, Copy)]
enum AttrRef<'e> {
    Value(&'e AttrValue),
    /// Adjacent entries of a list.
    Part(&'e [AttrValue]),
    Type(DType),
}

impl<'e> AttrRef<'e> {
    fn value(self) -> Cow<'e, AttrValue> {
        match self {
            AttrRef::Value(v) => Cow::Borrowed(v),
            AttrRef::Part(items) => Cow::Owned(AttrValue::List(items.to_vec())),
            AttrRef::Type(t) => Cow::Owned(AttrValue::DType(t)),
        }
    }
}

impl Attribute<'_, '_> {
    /// Whether it equals that value; `None` if that depends on symbols.
    pub(super) fn equals(&self, wanted: &AttrValue) -> Option<bool> {
        attr_equal(&self.value.value(), &normal_attr(self.ty, wanted.clone(), self.rank))
    }
}

/// The types of an op's attributes.
fn attr_types(op: &OpDef) -> impl Iterator<Item = AttrType> {
    op.attrs().filter_map(|(_, p)| match &p.kind {
        ParamKind::Attr { ty, .. } => Some(*ty),
        _ => None,
    })
}

impl<'r, 'e, H: Host> Matcher<'r, 'e, '_, H> {
    /// Pushes the goals for a node's attributes before others.
    pub(super) fn attribute_goals(&mut self, n: &'r NodePat, node: &Node, class: Id, mut goals: Goals) -> Goals {
        if n.attrs.iter().all(|a| *a == AttrPat::Any) {
            return goals;
        }
        let rank = node.children.first().and_then(|c| self.type_of(*c)).map(|t| t.shape.len());
        let at = |i: usize| (n.head, i, class);
        let host = self.host;
        match node.payload {
            Payload::Op(op, attrs) => {
                let types: SmallVec<[AttrType; 8]> = attr_types(host.program().op(op)).collect();
                let values = host.attrs(attrs);
                for (i, pat) in n.attrs.iter().enumerate().rev() {
                    if let (Some(ty), Some(value)) = (types.get(i), values.get(i))
                        && *pat != AttrPat::Any
                    {
                        let value = AttrRef::Value(value);
                        goals = self.push(Goal::Attr(Attribute { pat, ty: *ty, value, rank, at: at(i) }), goals);
                    }
                }
            }
            Payload::TermCast(to) => {
                if let Some(pat) = n.attrs.first() {
                    let (ty, value) = (AttrType::DType, AttrRef::Type(to));
                    goals = self.push(Goal::Attr(Attribute { pat, ty, value, rank, at: at(0) }), goals);
                }
            }
            _ => {}
        }
        goals
    }

    /// Records a near miss: an attribute has another value than the pattern expects.
    pub(super) fn missed(&mut self, attribute: Attribute<'_, '_>) -> Flow {
        let (head, i, class) = attribute.at;
        self.miss(class, || MissReason::Attr(head, i, attribute.value.value().into_owned()))
    }

    /// Matches one attribute.
    pub(super) fn attr(&mut self, attribute: Attribute<'r, 'e>, next: Goals) -> Flow {
        match attribute.pat {
            AttrPat::Any | AttrPat::Rest(None) => self.advance(next),
            AttrPat::Var(v) | AttrPat::Rest(Some(v)) => match self.values.values.get(v) {
                Some(bound) if attribute.equals(bound) == Some(true) => self.advance(next),
                Some(_) => self.missed(attribute),
                None => {
                    let before = self.values.values.mark();
                    self.values.values.insert(*v, attribute.value.value().into_owned());
                    let flow = self.advance(next);
                    self.values.values.forget_since(before);
                    flow
                }
            },
            AttrPat::Is(want) => {
                match self.eval(want) {
                    Some(w) if attribute.equals(&w) == Some(true) => self.advance(next),
                    Some(_) => self.missed(attribute),
                    // It may use variables bound later.
                    None => {
                        self.deferred.push((want, attribute));
                        let flow = self.advance(next);
                        self.deferred.pop();
                        flow
                    }
                }
            }
            AttrPat::List(pats) => self.attr_list(pats, attribute, next),
        }
    }

    fn attr_list(&mut self, pats: &'r [AttrPat], list: Attribute<'r, 'e>, mut next: Goals) -> Flow {
        let items = match list.value {
            AttrRef::Value(AttrValue::List(items)) => items.as_slice(),
            AttrRef::Part(items) => items,
            _ => return self.missed(list),
        };
        let element = match list.ty {
            AttrType::Axes => AttrType::Axis,
            AttrType::Ints => AttrType::Int,
            AttrType::Floats => AttrType::Float,
            AttrType::Dims => AttrType::Dim,
            other => other,
        };
        let rest = pats.iter().position(|p| matches!(p, AttrPat::Rest(_)));
        let fixed = pats.len() - usize::from(rest.is_some());
        if items.len() < fixed || (rest.is_none() && items.len() != fixed) {
            return self.missed(list);
        }
        let spread = items.len() - fixed;
        let mut from = items.len();
        let mark = self.goals.len();
        for pat in pats.iter().rev() {
            let (ty, value) = if matches!(pat, AttrPat::Rest(_)) {
                from -= spread;
                (list.ty, AttrRef::Part(&items[from..from + spread]))
            } else {
                from -= 1;
                (element, AttrRef::Value(&items[from]))
            };
            next = self.push(Goal::Attr(Attribute { pat, ty, value, ..list }), next);
        }
        self.solve_and_forget(next, mark)
    }
}
