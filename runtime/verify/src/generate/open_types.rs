//! Types for operands whose type is still undetermined.
//!
//! In: the constraints from sibling operands, or from the declaration of the op. Out: element types
//! and sizes that satisfy them, from a pool of few sizes.

use std::collections::BTreeSet;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, DTypePat, DimPat, RestPat, TypePat, VarId};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Bindings, NoFacts, TensorType, eval, match_type};

use super::{Generator, Reject, Try, ints, reject};
use crate::hints::variables;

/// A search for guards that hold tries all numbers from 1 to this one.
const SEARCHED: usize = 24;

/// The constraints on an operand whose type is still undetermined.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenType {
    pub dtype: Option<DType>,
    pub shape: OpenShape,
}

#[derive(Clone, Debug, Default)]
pub(super) enum OpenShape {
    /// Anything.
    #[default]
    Free,
    /// Anything of this rank.
    Rank(usize),
    /// Exactly this.
    Is(Vec<i64>),
    /// Broadcasts with this, in either direction.
    With(Vec<i64>),
    /// Broadcasts to this without enlarging it.
    Into(Vec<i64>),
}

impl Generator<'_, '_> {
    pub(super) fn size(&mut self) -> i64 {
        let i = self.source.pick_or_beyond(self.pool.len(), self.beyond());
        if i < self.pool.len() { self.pool[i] } else { self.far_number(i - self.pool.len()) }
    }

    /// A size that is at most this one, unless a search wants another.
    pub(super) fn size_upto(&mut self, most: i64) -> i64 {
        let i = self.source.pick_or_beyond(self.pool.len(), self.beyond());
        if i < self.pool.len() { self.pool[i].min(most) } else { self.far_number(i - self.pool.len()) }
    }

    /// One of these numbers with these weights, or one that a search wants.
    pub(super) fn number(&mut self, usual: &[i64], weights: &[u32]) -> i64 {
        let i = self.source.weighted_or_beyond(weights, self.beyond());
        usual.get(i).copied().unwrap_or_else(|| self.far_number(i - usual.len()))
    }

    /// One of these numbers, or one that a search wants.
    pub(super) fn one_of(&mut self, usual: &[i64]) -> i64 {
        let i = self.source.pick_or_beyond(usual.len(), self.beyond());
        usual.get(i).copied().unwrap_or_else(|| self.far_number(i - usual.len()))
    }

    /// How many numbers a search may choose in addition to the usual ones.
    fn beyond(&self) -> usize {
        SEARCHED + self.hints.constants.sizes.len()
    }

    /// Number `i` of those that only a search chooses: small ones, and those of the rule.
    fn far_number(&self, i: usize) -> i64 {
        match i.checked_sub(SEARCHED) {
            None => i as i64 + 1,
            Some(i) => self.hints.constants.sizes.get(i).copied().unwrap_or(1),
        }
    }

    /// A size for a variable that a guard refutes: one of the pool first, then any other.
    fn any_size(&mut self, tries: usize) -> i64 {
        if tries < 4 { self.size() } else { self.source.pick(33) as i64 }
    }

    pub(super) fn sizes(&mut self, rank: usize) -> Vec<i64> {
        (0..rank).map(|_| self.size()).collect()
    }

    /// A shape that broadcasts with this one.
    pub(super) fn with_shape(&mut self, shape: &[i64]) -> Vec<i64> {
        if self.around && shape.len() > 2 {
            let (at, also) = (self.source.pick(shape.len()), self.source.pick(shape.len()));
            return shape.iter().enumerate().map(|(i, d)| if i == at || i == also { *d } else { 1 }).collect();
        }
        match self.source.weighted(&[38, 14, 11, 22, 10, 5]) {
            0 => shape.to_vec(),
            1 => Vec::new(),
            2 => shape[shape.len().saturating_sub(1)..].to_vec(),
            3 if self.source.pick(3) == 0 => {
                let at = self.source.pick(shape.len() + 1);
                let ones = |(i, d): (usize, &i64)| if i == at { 1 } else { *d };
                shape.iter().enumerate().map(ones).collect()
            }
            3 => {
                // Some of the last axes: `[n, 1]` with `[b, n, k]`.
                let skip = self.source.pick(shape.len() + 1);
                shape[skip..].iter().map(|d| if self.source.pick(2) == 1 { 1 } else { *d }).collect()
            }
            4 => {
                // Where this one has an axis of size 1, the other may be larger.
                let larger = self.size();
                shape.iter().map(|d| if *d == 1 { larger } else { *d }).collect()
            }
            _ => {
                let mut s = vec![self.size()];
                s.extend(shape);
                s
            }
        }
    }

    /// A shape that broadcasts to this one without enlarging it.
    pub(super) fn wide_into(&mut self, shape: &[i64]) -> Vec<i64> {
        let skip = self.source.pick(shape.len() + 1);
        let mut s = shape[skip..].to_vec();
        if !s.is_empty() && self.source.pick(3) == 2 {
            let at = self.source.pick(s.len());
            s[at] = 1;
        }
        s
    }

    /// The constraints on an undetermined operand with a type pattern: those of the enclosing op if
    /// they match the pattern, else any type of the pattern.
    pub(super) fn typed_want(&mut self, ty: &TypePat, outer: &OpenType) -> Try<OpenType> {
        if let OpenShape::Is(shape) = &outer.shape {
            let dtype = match ty.dtype {
                // A long sum of operands of a stated type.
                DTypePat::Is(stated) if self.long > 0 => stated,
                _ => outer.dtype.unwrap_or(self.main),
            };
            let needed = TensorType { dtype, shape: shape.iter().copied().map(Dim::from).collect() };
            if match_type(ty, &needed, &mut self.env.attrs.clone()) == Some(true) {
                return Ok(OpenType { dtype: Some(dtype), shape: outer.shape.clone() });
            }
        }
        let dims =
            ty.prefix.iter().chain(&ty.suffix).filter_map(|d| if let DimPat::Var(v) = d { Some(*v) } else { None });
        let rest = ty.rest.iter().filter_map(|r| if let RestPat::Var(v) = r { Some(*v) } else { None });
        let dims: Vec<VarId> = dims.collect();
        let mut scope = self.guarded_sizes(&dims);
        for v in dims.into_iter().chain(rest) {
            if !scope.values.contains_key(&v)
                && let Some(value) = self.chosen_var(v)
            {
                scope.values.insert(v, value);
            }
        }
        self.solving = true;
        let want = self.want_of(ty, &mut scope, &[], outer);
        self.solving = false;
        let want = want?;
        self.env.attrs = scope;
        Ok(want)
    }

    /// What is bound, and sizes of one type that guards compute from each other: `a == 3 * b` gives
    /// `a` once `b` is chosen, whichever comes first in the type.
    fn guarded_sizes(&mut self, dims: &[VarId]) -> Bindings {
        let given = self.env.attrs.clone();
        while let Some(first) = self.first_size(dims) {
            match self.chosen_var(first) {
                Some(size) => self.env.attrs.values.insert(first, size),
                None => {
                    let mut scope = self.env.attrs.clone();
                    self.drawn_size(first, &mut scope, true);
                    self.env.attrs = scope;
                }
            }
        }
        std::mem::replace(&mut self.env.attrs, given)
    }

    /// The size to choose next: one that others are computed from, or one that is computed.
    fn first_size(&self, dims: &[VarId]) -> Option<VarId> {
        if self.hints.equal_var.is_empty() {
            return None;
        }
        let free = |v: &VarId| !self.env.attrs.values.contains_key(v);
        let reads = |v: &VarId| -> Vec<VarId> {
            let mut read = BTreeSet::new();
            let equations = self.hints.equal_var.iter().filter(|(of, _)| of == v);
            equations.for_each(|(_, e)| variables(e, &mut read));
            read.into_iter().filter(|r| r != v && dims.contains(r)).collect()
        };
        // Those of equations between the sizes of this type.
        let is_related = |v: &&VarId| free(v) && (!reads(v).is_empty() || dims.iter().any(|o| reads(o).contains(v)));
        let open: Vec<VarId> = dims.iter().filter(is_related).copied().collect();
        let waits = |v: &&VarId| reads(v).iter().any(free);
        open.iter().find(|v| !waits(v)).or(open.first()).copied()
    }

    /// A size for a variable, drawn again while guards refute it, and bound.
    fn drawn_size(&mut self, v: VarId, scope: &mut Bindings, again: bool) -> i64 {
        let mut d = self.size();
        scope.values.insert(v, AttrValue::Dim(Dim::from(d)));
        let mut tries = 0;
        while again && tries < self.redraws() && self.refuted_by(v, scope) {
            d = self.any_size(tries);
            scope.values.insert(v, AttrValue::Dim(Dim::from(d)));
            tries += 1;
        }
        d
    }

    /// The constraints that a type pattern expresses; its unbound variables are chosen and bound.
    pub(super) fn want_of(
        &mut self,
        ty: &TypePat,
        scope: &mut Bindings,
        bounds: &[(VarId, Vec<DType>)],
        outer: &OpenType,
    ) -> Try<OpenType> {
        let dtype = match &ty.dtype {
            DTypePat::Is(d) => Some(*d),
            DTypePat::Any => outer.dtype.or(Some(self.main)),
            DTypePat::Expr(e) => match eval(e, scope, &NoFacts) {
                Some(AttrValue::DType(d)) => Some(d),
                _ => outer.dtype,
            },
            DTypePat::Var(v) => match scope.values.get(v) {
                Some(AttrValue::DType(d)) => Some(*d),
                _ => {
                    let main = outer.dtype.unwrap_or(self.main);
                    let allowed = bounds.iter().find(|b| b.0 == *v).map(|b| &b.1[..]).unwrap_or(&DType::ALL);
                    let chosen = if allowed.contains(&main) { main } else { allowed[self.source.pick(allowed.len())] };
                    scope.values.insert(*v, AttrValue::DType(chosen));
                    // `T == f16` says which type it is.
                    let refuted = self.solving && self.refuted_by(*v, scope);
                    let chosen = match if refuted { self.chosen_var(*v) } else { None } {
                        Some(AttrValue::DType(other)) => other,
                        _ => chosen,
                    };
                    scope.values.insert(*v, AttrValue::DType(chosen));
                    Some(chosen)
                }
            },
        };
        if ty.prefix.is_empty() && ty.suffix.is_empty() {
            match &ty.rest {
                Some(RestPat::Any) => return Ok(OpenType { dtype, shape: outer.shape.clone() }),
                Some(RestPat::Var(v)) if scope.values.is_empty() || !has_list(scope) => {
                    if !scope.values.contains_key(v) {
                        return Ok(OpenType { dtype, shape: outer.shape.clone() });
                    }
                }
                _ => {}
            }
        }
        let mut shape = self.dims_of(&ty.prefix, scope)?;
        let suffix = self.dims_of(&ty.suffix, scope)?;
        let rest = match &ty.rest {
            None => Vec::new(),
            Some(RestPat::Any) => {
                let n = self.source.weighted(&[50, 35, 15]);
                self.sizes(n)
            }
            Some(RestPat::Expr(e)) => match eval(e, scope, &NoFacts) {
                Some(AttrValue::List(l)) => ints(&l).unwrap_or_default(),
                _ => return reject("a shape of a type has no value yet"),
            },
            Some(RestPat::Var(v)) => match scope.values.get(v) {
                Some(AttrValue::List(l)) => ints(l).unwrap_or_default(),
                _ => {
                    let rest = self.rest_list(scope);
                    let list = rest.iter().map(|d| AttrValue::Dim(Dim::from(*d))).collect();
                    scope.values.insert(*v, AttrValue::List(list));
                    rest
                }
            },
        };
        shape.extend(rest);
        shape.extend(suffix);
        Ok(OpenType { dtype, shape: OpenShape::Is(shape) })
    }

    /// Leading sizes that nothing determines yet; they are likely to broadcast with those of a
    /// sibling's type.
    pub(super) fn rest_list(&mut self, scope: &Bindings) -> Vec<i64> {
        let mut others: Vec<(VarId, Vec<i64>)> = scope
            .values
            .iter()
            .filter_map(|(v, value)| match value {
                AttrValue::List(l) => ints(l).map(|l| (*v, l)),
                _ => None,
            })
            .collect();
        others.sort();
        match others.first() {
            Some((_, other)) => {
                let other = other.clone();
                match self.source.weighted(&[40, 40, 20]) {
                    0 => other,
                    1 => Vec::new(),
                    _ => self.with_shape(&other),
                }
            }
            None => {
                let n = self.source.weighted(&[50, 35, 15]);
                self.sizes(n)
            }
        }
    }

    pub(super) fn dims_of(&mut self, pats: &[DimPat], scope: &mut Bindings) -> Try<Vec<i64>> {
        let mut out = Vec::with_capacity(pats.len());
        for pat in pats {
            out.push(match pat {
                DimPat::Any => self.size(),
                DimPat::Var(v) => match scope.values.get(v) {
                    Some(AttrValue::Dim(d)) => d.as_const().ok_or_else(|| Reject("a symbolic size".into()))?,
                    _ => self.drawn_size(*v, scope, self.solving),
                },
                DimPat::Expr(e) => match eval(e, scope, &NoFacts) {
                    Some(AttrValue::Dim(d)) => d.as_const().ok_or_else(|| Reject("a symbolic size".into()))?,
                    _ => self.size(),
                },
            });
        }
        Ok(out)
    }
}

fn has_list(scope: &Bindings) -> bool {
    scope.values.values().any(|v| matches!(v, AttrValue::List(_)))
}
