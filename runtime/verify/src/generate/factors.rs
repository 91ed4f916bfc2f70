//! Sizes of a reshape that are factors of what is there.
//!
//! In: a list pattern and the number of elements. Out: a list of sizes that matches, with as many
//! elements. Invariant: free factors are above 1 where that is possible, and no guard refutes them;
//! each list that is possible is as likely as the others.

use hypatia_dsl::ir::{AttrPat, AttrValue, VarId};
use hypatia_dsl::shape::Dim;

use super::Generator;

/// Lists that are looked at.
const MOST: usize = 400;

/// A free size, and how often it stands in the list.
struct Free {
    var: Option<VarId>,
    times: u32,
}

impl Generator<'_, '_> {
    /// Sizes of this pattern for so many elements, if no rest of the pattern takes any number.
    pub(super) fn factors(&mut self, items: &[AttrPat], elements: i64) -> Option<Vec<AttrValue>> {
        let mut known: i64 = 1;
        let mut free: Vec<Free> = Vec::new();
        // For each place, its size or the free one that it has.
        let mut places: Vec<Result<i64, usize>> = Vec::new();
        for item in items {
            let (var, size) = match item {
                AttrPat::Is(e) => (None, Some(self.size_of(&self.eval(e)?)?)),
                AttrPat::Var(v) => {
                    let bound = self.env.attrs.values.get(v).cloned().or_else(|| self.hinted_var(*v));
                    (Some(*v), bound.and_then(|v| self.size_of(&v)))
                }
                AttrPat::Any => (None, None),
                AttrPat::List(_) | AttrPat::Rest(_) => return None,
            };
            if let Some(size) = size {
                known = known.checked_mul(size)?;
                places.push(Ok(size));
                continue;
            }
            let at = free.iter().position(|f| var.is_some() && f.var == var);
            if at.is_none() {
                free.push(Free { var, times: 0 });
            }
            let at = at.unwrap_or(free.len() - 1);
            free[at].times += 1;
            places.push(Err(at));
        }
        if known <= 0 || elements <= 0 || elements % known != 0 {
            return None;
        }
        let chosen = self.chosen_factors(&free, elements / known)?;
        let size = |place: &Result<i64, usize>| place.as_ref().copied().unwrap_or_else(|at| chosen[*at]);
        Some(places.iter().map(|p| AttrValue::Dim(Dim::from(size(p)))).collect())
    }

    fn size_of(&self, v: &AttrValue) -> Option<i64> {
        if let AttrValue::Dim(d) = v { d.as_const() } else { None }
    }

    /// Numbers whose product, each as often as it stands in the list, is `product`.
    fn chosen_factors(&mut self, free: &[Free], product: i64) -> Option<Vec<i64>> {
        let mut all = Vec::new();
        factorings(free, product, &mut Vec::new(), &mut all);
        let holds = |list: &Vec<i64>| {
            let mut bindings = self.env.attrs.clone();
            let named = free.iter().zip(list).filter_map(|(f, n)| Some((f.var?, *n)));
            for (v, n) in named.clone() {
                bindings.values.insert(v, AttrValue::Dim(Dim::from(n)));
            }
            !named.into_iter().any(|(v, _)| self.refuted_by(v, &bindings))
        };
        all.retain(holds);
        let ones = |list: &Vec<i64>| list.iter().filter(|n| **n == 1).count();
        let fewest = all.iter().map(ones).min()?;
        all.retain(|list| ones(list) == fewest);
        let at = self.source.pick(all.len());
        all.into_iter().nth(at)
    }
}

/// All lists of numbers from 1 with this product.
fn factorings(free: &[Free], product: i64, before: &mut Vec<i64>, out: &mut Vec<Vec<i64>>) {
    let Some(next) = free.get(before.len()) else {
        if product == 1 && out.len() < MOST {
            out.push(before.clone());
        }
        return;
    };
    for n in 1..=product {
        let Some(power) = n.checked_pow(next.times).filter(|p| *p <= product) else { break };
        if product % power == 0 && out.len() < MOST {
            before.push(n);
            factorings(free, product / power, before, out);
            before.pop();
        }
    }
}
