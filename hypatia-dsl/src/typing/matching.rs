//! Matching of concrete types against type patterns.
//!
//! In: a pattern such as `T[..s, 2 * k]`, a type, and the bindings so far. Out: whether the type
//! matches, with its variables bound, or why it does not. Invariant: existing bindings never
//! change; a size that depends on a symbol's value is "unknown", never a match.

use crate::dtype::DType;
use crate::ir::{AExpr, AttrValue, DTypePat, DimPat, RestPat, TypePat, VarId};
use crate::shape::Dim;

use super::eval::{as_dim, as_dims};
use super::{Bindings, NoFacts, TensorType, eval, same_value};

/// Why a type does not match a pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// It has too few or too many axes.
    Rank,
    /// The element type differs. Holds the wanted type, if it is known.
    DType(Option<DType>),
    /// The size of an axis differs, or may differ.
    Size {
        /// The axis.
        axis: usize,
        /// The wanted size, if it is known.
        wanted: Option<Dim>,
        /// True if it certainly differs, false if that depends on symbols.
        certain: bool,
    },
    /// The sizes of the rest differ, or may differ.
    Rest {
        /// The wanted sizes, if they are known.
        wanted: Option<Vec<Dim>>,
        /// True if they certainly differ.
        certain: bool,
    },
}

impl Mismatch {
    /// True if it mismatches for all values of the symbols.
    pub fn is_certain(&self) -> bool {
        match self {
            Mismatch::Rank | Mismatch::DType(_) => true,
            Mismatch::Size { certain, .. } | Mismatch::Rest { certain, .. } => *certain,
        }
    }
}

/// Matches a concrete type against a type pattern. Binds its variables, or compares those that are
/// bound. `Some(true)`: matched; `Some(false)`: cannot match; `None`: unknown for some value of a
/// symbol.
pub fn match_type(pat: &TypePat, ty: &TensorType, bindings: &mut Bindings) -> Option<bool> {
    match match_type_or_why(pat, ty, bindings) {
        Ok(()) => Some(true),
        Err(why) if why.is_certain() => Some(false),
        Err(_) => None,
    }
}

/// Like [`match_type`], but with the reason for a mismatch.
pub fn match_type_or_why(pat: &TypePat, ty: &TensorType, bindings: &mut Bindings) -> Result<(), Mismatch> {
    let wanted = match &pat.dtype {
        DTypePat::Any => None,
        DTypePat::Is(d) => Some(*d),
        DTypePat::Var(v) => match bindings.values.get(v) {
            Some(AttrValue::DType(d)) => Some(*d),
            Some(_) => return Err(Mismatch::DType(None)),
            None => {
                bindings.values.insert(*v, AttrValue::DType(ty.dtype));
                None
            }
        },
        DTypePat::Expr(e) => match eval(e, bindings, &NoFacts) {
            Some(AttrValue::DType(d)) => Some(d),
            _ => return Err(Mismatch::DType(None)),
        },
    };
    if wanted.is_some_and(|w| w != ty.dtype) {
        return Err(Mismatch::DType(wanted));
    }
    match_dims(pat, &ty.shape, bindings)
}

/// Matches the shape only.
pub fn match_dims(pat: &TypePat, shape: &[Dim], bindings: &mut Bindings) -> Result<(), Mismatch> {
    let fixed = pat.prefix.len() + pat.suffix.len();
    if shape.len() < fixed || (pat.rest.is_none() && shape.len() > fixed) {
        return Err(Mismatch::Rank);
    }
    let tail = shape.len() - pat.suffix.len();
    let axes = (0..pat.prefix.len()).chain(tail..shape.len());
    let pairs: Vec<(usize, &DimPat)> = axes.zip(pat.prefix.iter().chain(&pat.suffix)).collect();
    // Bind plain variables first, so that a formula before them finds them bound.
    let mut unsure = None;
    let mut note = |why: Mismatch| {
        if why.is_certain() {
            return Err(why);
        }
        unsure.get_or_insert(why);
        Ok(())
    };
    for (axis, dim) in &pairs {
        if let DimPat::Var(v) = dim {
            let size = &shape[*axis];
            match bindings.values.get(v) {
                None => {
                    bindings.values.insert(*v, AttrValue::Dim(size.clone()));
                }
                Some(bound) => compare(*axis, as_dim(bound), size).or_else(&mut note)?,
            }
        }
    }
    match_rest(pat, &shape[pat.prefix.len()..tail], bindings).or_else(&mut note)?;
    for (axis, dim) in &pairs {
        if let DimPat::Expr(e) = dim {
            let size = &shape[*axis];
            match eval(e, bindings, &NoFacts) {
                Some(AttrValue::Dim(d)) => compare(*axis, Some(&d), size).or_else(&mut note)?,
                Some(_) => return Err(Mismatch::Size { axis: *axis, wanted: None, certain: true }),
                None => solve(e, *axis, size, bindings).or_else(&mut note)?,
            }
        }
    }
    unsure.map_or(Ok(()), Err)
}

fn compare(axis: usize, wanted: Option<&Dim>, size: &Dim) -> Result<(), Mismatch> {
    match wanted.map(|w| w.known_eq(size)) {
        Some(Some(true)) => Ok(()),
        Some(known) => Err(Mismatch::Size { axis, wanted: wanted.cloned(), certain: known == Some(false) }),
        None => Err(Mismatch::Size { axis, wanted: None, certain: true }),
    }
}

fn match_rest(pat: &TypePat, sizes: &[Dim], bindings: &mut Bindings) -> Result<(), Mismatch> {
    let unknown = Mismatch::Rest { wanted: None, certain: false };
    let wanted = match &pat.rest {
        None | Some(RestPat::Any) => return Ok(()),
        Some(RestPat::Var(v)) => match bindings.values.get(v) {
            None => {
                let list = sizes.iter().cloned().map(AttrValue::Dim).collect();
                bindings.values.insert(*v, AttrValue::List(list));
                return Ok(());
            }
            Some(bound) => bound.clone(),
        },
        Some(RestPat::Expr(e)) => eval(e, bindings, &NoFacts).ok_or(unknown)?,
    };
    let got = AttrValue::List(sizes.iter().cloned().map(AttrValue::Dim).collect());
    match same_value(&wanted, &got) {
        Some(true) => Ok(()),
        known => {
            let wanted = match &wanted {
                AttrValue::List(items) => as_dims(items),
                _ => None,
            };
            Err(Mismatch::Rest { wanted, certain: known == Some(false) })
        }
    }
}

/// Solves `expr == size` for the single unbound variable of `expr`, if the equation is linear.
fn solve(expr: &AExpr, axis: usize, size: &Dim, bindings: &mut Bindings) -> Result<(), Mismatch> {
    let unsolved = || Mismatch::Size { axis, wanted: None, certain: false };
    let mut free = Vec::new();
    free_vars(expr, bindings, &mut free);
    let [var] = free[..] else { return Err(unsolved()) };
    let solution = linear(expr, var, size, bindings);
    let Some((solution, slope)) = solution else { return Err(unsolved()) };
    match solution {
        Some(value) if value.known_le(&Dim::from(-1)) != Some(true) => {
            bindings.values.insert(var, AttrValue::Dim(value));
            Ok(())
        }
        // Numbers that do not divide have no solution; with symbols it depends on their values.
        None if !slope || size.as_const().is_none() => Err(unsolved()),
        _ => Err(Mismatch::Size { axis, wanted: None, certain: true }),
    }
}

/// `(solution, whether all coefficients were numbers)` of `expr == size`; `None` if it is not
/// linear.
fn linear(expr: &AExpr, var: VarId, size: &Dim, bindings: &Bindings) -> Option<(Option<Dim>, bool)> {
    // Identifiers cannot contain a space, so this name cannot clash.
    const UNKNOWN: &str = "the unknown";
    let mut trial = bindings.clone();
    trial.values.insert(var, AttrValue::Dim(Dim::symbol(UNKNOWN)));
    let AttrValue::Dim(line) = eval(expr, &trial, &NoFacts)? else { return None };
    let at = |x: i64| line.substitute(&|s| (s == UNKNOWN).then(|| Dim::from(x)));
    let (offset, one) = (at(0)?, at(1)?);
    let slope = one.checked_sub(&offset)?;
    let rebuilt = slope.checked_mul(&Dim::symbol(UNKNOWN))?.checked_add(&offset)?;
    if rebuilt != line || slope.as_const() == Some(0) {
        return None;
    }
    let rise = size.checked_sub(&offset)?;
    let numbers = rise.as_const().is_some() && slope.as_const().is_some();
    Some((rise.div_exact(&slope), numbers))
}

/// The unbound variables of an expression, each once.
fn free_vars(expr: &AExpr, bindings: &Bindings, out: &mut Vec<VarId>) {
    let mut each = |items: &[&AExpr]| items.iter().for_each(|e| free_vars(e, bindings, out));
    match expr {
        AExpr::Var(v) => {
            if !bindings.values.contains_key(v) && !out.contains(v) {
                out.push(*v);
            }
        }
        AExpr::Value(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => {}
        AExpr::List(items) | AExpr::Call(_, items) => items.iter().for_each(|e| free_vars(e, bindings, out)),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => each(&[a]),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => each(&[a, b]),
        AExpr::If(a, b, c) => each(&[a, b, c]),
        AExpr::Comprehension { element, var, over, condition } => {
            each(&[over]);
            let mut inside = Vec::new();
            free_vars(element, bindings, &mut inside);
            if let Some(c) = condition {
                free_vars(c, bindings, &mut inside);
            }
            for v in inside.into_iter().filter(|v| v != var) {
                if !out.contains(&v) {
                    out.push(v);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ast::BinaryOp;

    fn ty(shape: &[i64]) -> TensorType {
        TensorType { dtype: DType::F32, shape: shape.iter().map(|d| Dim::from(*d)).collect() }
    }
    fn pat(prefix: Vec<DimPat>, rest: Option<RestPat>, suffix: Vec<DimPat>) -> TypePat {
        TypePat { dtype: DTypePat::Var(VarId(0)), prefix, rest, suffix }
    }
    fn var(i: u32) -> DimPat {
        DimPat::Var(VarId(i))
    }
    fn times(c: i64, v: u32, plus: i64) -> DimPat {
        let num = |c: i64| Box::new(AExpr::Value(AttrValue::Dim(Dim::from(c))));
        let product = AExpr::Binary(BinaryOp::Mul, num(c), Box::new(AExpr::Var(VarId(v))));
        DimPat::Expr(AExpr::Binary(BinaryOp::Add, Box::new(product), num(plus)))
    }

    #[test]
    fn binds_prefix_rest_and_suffix() {
        let p = pat(vec![var(1)], Some(RestPat::Var(VarId(2))), vec![var(3), var(3)]);
        let mut b = Bindings::default();
        assert_eq!(match_type(&p, &ty(&[2, 3, 4, 5, 5]), &mut b), Some(true));
        assert_eq!(b.values.get(&VarId(0)), Some(&AttrValue::DType(DType::F32)));
        assert_eq!(b.values.get(&VarId(1)), Some(&AttrValue::Dim(Dim::from(2))));
        assert_eq!(match_type(&p, &ty(&[2, 3, 4, 5, 5]), &mut b), Some(true));
        assert_eq!(match_type(&p, &ty(&[2, 9, 4, 5, 5]), &mut b), Some(false));
        assert_eq!(match_type(&p, &ty(&[2, 4, 5]), &mut Bindings::default()), Some(false));
        assert_eq!(match_type(&p, &ty(&[2, 5]), &mut Bindings::default()), Some(false));
        let half = TensorType { dtype: DType::F16, shape: ty(&[2, 3, 4, 5, 5]).shape };
        assert_eq!(match_type_or_why(&p, &half, &mut b), Err(Mismatch::DType(Some(DType::F32))));
    }

    #[test]
    fn formulas_are_solved() {
        let p = pat(vec![times(3, 1, 1)], None, vec![]);
        let mut b = Bindings::default();
        assert_eq!(match_type(&p, &ty(&[13]), &mut b), Some(true));
        assert_eq!(b.values.get(&VarId(1)), Some(&AttrValue::Dim(Dim::from(4))));
        assert_eq!(match_type(&p, &ty(&[12]), &mut Bindings::default()), Some(false));
        assert_eq!(match_type(&p, &ty(&[-5]), &mut Bindings::default()), Some(false));
        let symbolic = TensorType { dtype: DType::F32, shape: vec![Dim::symbol("n")] };
        assert_eq!(match_type(&p, &symbolic, &mut Bindings::default()), None);
        assert_eq!(match_type(&p, &symbolic, &mut b), None);
        // A formula before the variable that it needs.
        let p = pat(vec![times(2, 1, 0), var(1)], None, vec![]);
        assert_eq!(match_type(&p, &ty(&[6, 3]), &mut Bindings::default()), Some(true));
        assert_eq!(match_type(&p, &ty(&[6, 4]), &mut Bindings::default()), Some(false));
        let n = Dim::symbol("n");
        let twice = vec![n.checked_mul(&Dim::from(2)).unwrap(), n];
        let symbolic = TensorType { dtype: DType::F32, shape: twice };
        assert_eq!(match_type(&p, &symbolic, &mut Bindings::default()), Some(true));
    }
}
