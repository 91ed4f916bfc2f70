//! Shape arithmetic: small integer tensors whose elements are symbolic sizes.
//!
//! Exporters compute shapes with ordinary nodes (Shape, Gather, Mul, Concat, ...).
//!
//! In: their operands as [`Sym`]s. Out: results as [`Sym`]s, or `None` if a result is unknown; the
//! node is then imported as an ordinary node. Invariant: an element is what the node gives for
//! every value of the symbols. A `Sym` has at most [`LARGEST`] elements of complexity at most
//! [`COMPLEX`], and constants within its dtype.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::shape::Dim;

use hypatia_tensor::tensor::Tensor;

/// A tensor with more elements than this is data, not a shape.
pub(super) const LARGEST: usize = 1024;

/// A limit on `Dim::complexity`, against files that multiply sizes without end.
pub(super) const COMPLEX: usize = 64;

/// An integer or bool tensor whose elements are sizes (bools as 0 and 1).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Sym {
    /// `I64`, `I32` or `Bool`.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements in row-major order.
    pub items: Vec<Dim>,
}

impl Sym {
    /// Creates one, if it is within the limits.
    pub fn new(dtype: DType, shape: Vec<usize>, items: Vec<Dim>) -> Option<Sym> {
        let len = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d))?;
        let fits = |d: &Dim| match (dtype, d.as_const()) {
            (DType::I64, _) => d.complexity() <= COMPLEX,
            (DType::I32, Some(c)) => i32::try_from(c).is_ok(),
            (DType::I32, None) => d.complexity() <= COMPLEX,
            (DType::Bool, Some(0 | 1)) => true,
            _ => false,
        };
        (len == items.len() && len <= LARGEST && shape.len() <= 8 && items.iter().all(fits)).then_some(Sym {
            dtype,
            shape,
            items,
        })
    }

    /// A vector of i64.
    pub fn vector(items: Vec<Dim>) -> Option<Sym> {
        Sym::new(DType::I64, vec![items.len()], items)
    }

    /// The elements of a small tensor of integers or bools.
    pub fn from_tensor(t: &Tensor) -> Option<Sym> {
        if t.len() > LARGEST {
            return None;
        }
        let items = match t.dtype() {
            DType::I64 => t.as_slice::<i64>()?.iter().map(|v| Dim::from(*v)).collect(),
            DType::I32 => t.as_slice::<i32>()?.iter().map(|v| Dim::from(i64::from(*v))).collect(),
            DType::Bool => t.as_slice::<u8>()?.iter().map(|v| Dim::from(i64::from(*v))).collect(),
            _ => return None,
        };
        Sym::new(t.dtype(), t.shape().to_vec(), items)
    }

    /// All elements, if they are numbers.
    pub fn consts(&self) -> Option<Vec<i64>> {
        self.items.iter().map(Dim::as_const).collect()
    }

    /// As a tensor, if all elements are numbers.
    pub fn to_tensor(&self) -> Option<Tensor> {
        let values = self.consts()?;
        match self.dtype {
            DType::I64 => Tensor::from_slice(&self.shape, &values),
            DType::I32 => Tensor::from_slice(&self.shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>()),
            _ => Tensor::from_bytes(DType::Bool, &self.shape, &values.iter().map(|v| *v as u8).collect::<Vec<_>>()),
        }
    }

    /// Reshape.
    pub fn reshaped(&self, shape: Vec<usize>) -> Option<Sym> {
        Sym::new(self.dtype, shape, self.items.clone())
    }

    /// Cast to another integer type; `None` if an element may not fit. A symbolic size is assumed
    /// to fit in 32 bits.
    pub fn cast(&self, to: DType) -> Option<Sym> {
        let items = match to {
            DType::Bool => {
                self.items.iter().map(|d| known_eq(d, &Dim::from(0)).map(|z| bool_dim(!z))).collect::<Option<_>>()?
            }
            _ => self.items.clone(),
        };
        Sym::new(to, self.shape.clone(), items)
    }

    /// Gathers elements: `from` turns an index of the result into an index of this tensor. `None`
    /// for an index out of range.
    fn picked(&self, shape: Vec<usize>, from: impl Fn(&mut [usize])) -> Option<Sym> {
        let len = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d)).filter(|len| *len <= LARGEST)?;
        let mut items = Vec::with_capacity(len);
        for flat in 0..len {
            let (mut rest, mut index) = (flat, vec![0; shape.len()]);
            for (at, size) in index.iter_mut().zip(&shape).rev() {
                (*at, rest) = (rest % size, rest / size);
            }
            from(&mut index);
            let inside = index.iter().zip(&self.shape).all(|(at, size)| at < size);
            let flat = index.iter().zip(&self.shape).fold(0, |flat, (at, size)| flat * size + at);
            items.push(self.items.get(flat).filter(|_| inside && index.len() == self.shape.len())?.clone());
        }
        Sym::new(self.dtype, shape, items)
    }

    /// Gathers the slices `indices` of an axis; negative indices count from the end.
    pub fn gather(&self, indices: &Sym, axis: usize) -> Option<Sym> {
        let (before, size, inner) = around(&self.shape, axis)?;
        let rows = indices.consts()?.into_iter().map(|i| usize::try_from(if i < 0 { i + size as i64 } else { i }).ok());
        let rows: Vec<usize> = rows.collect::<Option<_>>()?;
        // Isolates the axis, and flattens the axes of the indices into one.
        let flat = self.reshaped(vec![before, size, inner])?;
        let picked = flat.picked(vec![before, rows.len(), inner], |index| index[1] = rows[index[1]])?;
        picked.reshaped([&self.shape[..axis], &indices.shape, &self.shape[axis + 1..]].concat())
    }

    /// Transpose.
    pub fn transposed(&self, perm: &[usize]) -> Option<Sym> {
        let shape = perm.iter().map(|p| self.shape.get(*p).copied()).collect::<Option<Vec<_>>>()?;
        self.picked(shape, |index| {
            let old = index.to_vec();
            perm.iter().zip(old).for_each(|(p, at)| index[*p] = at);
        })
    }

    /// Tiles: this many copies along each axis.
    pub fn tiled(&self, repeats: &[usize]) -> Option<Sym> {
        let shape = self.shape.iter().zip(repeats).map(|(d, r)| d.checked_mul(*r)).collect::<Option<Vec<_>>>()?;
        self.picked(shape, |index| index.iter_mut().zip(&self.shape).for_each(|(at, size)| *at %= size))
    }

    /// Concatenates along an axis.
    pub fn concat(parts: &[&Sym], axis: usize) -> Option<Sym> {
        let first = parts.first()?;
        let (before, _, inner) = around(&first.shape, axis)?;
        let apart =
            |s: &Sym| (s.shape.get(..axis).map(<[usize]>::to_vec), s.shape.get(axis + 1..).map(<[usize]>::to_vec));
        if !parts.iter().all(|p| p.dtype == first.dtype && apart(p) == apart(first)) {
            return None;
        }
        let mut shape = first.shape.clone();
        shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
        let mut items = Vec::new();
        for outer in 0..before {
            for p in parts {
                let run = p.shape[axis] * inner;
                items.extend_from_slice(p.items.get(outer * run..(outer + 1) * run)?);
            }
        }
        Sym::new(first.dtype, shape, items)
    }

    /// Slices `start`, `start + step`, ... of an axis; `start` and `stop` are normalised.
    pub fn slice(&self, axis: usize, start: i64, stop: i64, step: i64) -> Option<Sym> {
        let size = *self.shape.get(axis)? as i64;
        let mut places: Vec<usize> = Vec::new();
        let mut at = start;
        while (step > 0 && at < stop) || (step < 0 && at > stop) {
            places.push(usize::try_from(at).ok().filter(|_| at < size)?);
            at = at.checked_add(step)?;
        }
        let mut shape = self.shape.clone();
        shape[axis] = places.len();
        self.picked(shape, |index| index[axis] = places[index[axis]])
    }

    /// Broadcasts as numpy does.
    pub fn expand(&self, shape: &[usize]) -> Option<Sym> {
        if shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d))? > LARGEST || shape.len() < self.shape.len() {
            return None;
        }
        let lead = shape.len() - self.shape.len();
        if self.shape.iter().zip(&shape[lead..]).any(|(a, b)| a != b && *a != 1) {
            return None;
        }
        let wide = self.reshaped([&vec![1; lead], self.shape.as_slice()].concat())?;
        wide.picked(shape.to_vec(), |index| {
            index.iter_mut().zip(&wide.shape).filter(|(_, size)| **size == 1).for_each(|(at, _)| *at = 0);
        })
    }
}

/// The number of elements before an axis, its size, and the number of elements after it.
fn around(shape: &[usize], axis: usize) -> Option<(usize, usize, usize)> {
    let size = *shape.get(axis)?;
    Some((shape[..axis].iter().product(), size, shape[axis + 1..].iter().product()))
}

fn bool_dim(b: bool) -> Dim {
    Dim::from(i64::from(b))
}

/// Whether two sizes are equal; `None` if uncertain. Unlike `Dim::known_eq` this uses that symbols
/// are not negative, so `batch` is not -1.
pub(super) fn known_eq(a: &Dim, b: &Dim) -> Option<bool> {
    a.known_eq(b).or_else(|| {
        let apart = |x: &Dim, y: &Dim| x.checked_sub(y).and_then(|d| d.lower_bound()).is_some_and(|l| l > 0);
        (apart(a, b) || apart(b, a)).then_some(false)
    })
}

/// `a < b`; `None` if uncertain.
fn known_lt(a: &Dim, b: &Dim) -> Option<bool> {
    let bound = |x: &Dim, y: &Dim| x.checked_sub(y).and_then(|d| d.lower_bound());
    if bound(b, a) >= Some(1) {
        return Some(true);
    }
    (bound(a, b) >= Some(0)).then_some(false)
}

/// One element of a builtin scalar function.
fn element(f: BuiltinScalar, args: &[&Dim]) -> Option<Dim> {
    use BuiltinScalar::*;
    let natural = |d: &Dim, least| d.lower_bound() >= Some(least);
    Some(match (f, args) {
        (Add, [a, b]) => a.checked_add(b)?,
        (Sub, [a, b]) => a.checked_sub(b)?,
        (Mul, [a, b]) => a.checked_mul(b)?,
        // Truncating division equals floor division if nothing is negative.
        (Div, [a, b]) => match (a.as_const(), b.as_const()) {
            (Some(a), Some(b)) => Dim::from(a.checked_div(b)?),
            _ if natural(a, 0) && natural(b, 1) => a.floor_div(b)?,
            _ => return None,
        },
        (Fmod, [a, b]) => match (a.as_const(), b.as_const()) {
            (Some(a), Some(b)) => Dim::from(a.checked_rem(b)?),
            _ if natural(a, 0) && natural(b, 1) => a.rem(b)?,
            _ => return None,
        },
        (Neg, [a]) => Dim::from(0).checked_sub(a)?,
        (Abs, [a]) if natural(a, 0) => (*a).clone(),
        (Abs, [a]) => Dim::from(a.as_const()?.checked_abs()?),
        (Max, [a, b]) => (if known_lt(a, b)? { b } else { a }).to_owned().clone(),
        (Min, [a, b]) => (if known_lt(a, b)? { a } else { b }).to_owned().clone(),
        (Eq, [a, b]) => bool_dim(known_eq(a, b)?),
        (Lt, [a, b]) => bool_dim(known_lt(a, b)?),
        (Le, [a, b]) => bool_dim(!known_lt(b, a)?),
        (Not, [a]) => bool_dim(a.as_const()? == 0),
        (And, [a, b]) => bool_dim(a.as_const()? & b.as_const()? == 1),
        (Or, [a, b]) => bool_dim(a.as_const()? | b.as_const()? == 1),
        (Xor, [a, b]) => bool_dim(a.as_const()? ^ b.as_const()? == 1),
        (Select, [c, a, b]) => (if c.as_const()? == 1 { a } else { b }).to_owned().clone(),
        _ => return None,
    })
}

/// A builtin scalar function, element-wise with broadcasting.
pub(super) fn pointwise(f: BuiltinScalar, operands: &[&Sym]) -> Option<Sym> {
    if operands.len() != f.params().len() {
        return None;
    }
    let wide = broadcast(operands)?;
    let numbers: Vec<DType> =
        wide.iter().zip(f.params()).filter(|(_, k)| **k == Kind::Number).map(|(s, _)| s.dtype).collect();
    if numbers.windows(2).any(|w| w[0] != w[1]) {
        return None;
    }
    let dtype = match f.result() {
        Kind::Bool => DType::Bool,
        Kind::Number => *numbers.first()?,
    };
    elementwise(dtype, &wide, |args| element(f, args))
}

/// Remainders with the sign of the divisor.
pub(super) fn modulo(a: &Sym, b: &Sym) -> Option<Sym> {
    let wide = broadcast(&[a, b])?;
    let certain = |d: &Dim| d.as_const().is_some_and(|c| c != 0) || d.lower_bound() >= Some(1);
    if a.dtype != b.dtype || a.dtype == DType::Bool || !b.items.iter().all(certain) {
        return None;
    }
    elementwise(a.dtype, &wide, |args| args[0].rem(args[1]))
}

/// The maximum or the minimum of a vector, if it is certain.
pub(super) fn extreme(f: BuiltinScalar, of: &[Dim]) -> Option<Dim> {
    let (first, rest) = of.split_first()?;
    rest.iter().try_fold(first.clone(), |best, d| element(f, &[&best, d]))
}

fn elementwise(dtype: DType, operands: &[Sym], f: impl Fn(&[&Dim]) -> Option<Dim>) -> Option<Sym> {
    let first = operands.first()?;
    let items = (0..first.items.len()).map(|i| f(&operands.iter().map(|s| &s.items[i]).collect::<Vec<_>>()));
    Sym::new(dtype, first.shape.clone(), items.collect::<Option<_>>()?)
}

/// Broadcasts all operands to one shape.
fn broadcast(operands: &[&Sym]) -> Option<Vec<Sym>> {
    let rank = operands.iter().map(|s| s.shape.len()).max()?;
    let mut shape = vec![1usize; rank];
    for s in operands {
        for (i, d) in s.shape.iter().enumerate() {
            let at = &mut shape[rank - s.shape.len() + i];
            match (*at, *d) {
                (1, d) => *at = d,
                (a, d) if a == d || d == 1 => {}
                _ => return None,
            }
        }
    }
    operands.iter().map(|s| s.expand(&shape)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sym(items: &[Dim]) -> Sym {
        Sym::vector(items.to_vec()).unwrap()
    }

    #[test]
    fn shapes_are_computed_with_symbols() {
        let (b, n) = (Dim::symbol("b"), Dim::from(12));
        let shape = sym(&[b.clone(), n.clone()]);
        let minus = sym(&[Dim::from(-1)]);
        // Expand's idiom: where(shape == -1, ones, shape).
        let is = pointwise(BuiltinScalar::Eq, &[&shape, &minus]).unwrap();
        assert_eq!(is.consts().unwrap(), [0, 0]);
        let picked = pointwise(BuiltinScalar::Select, &[&is, &sym(&[Dim::from(1)]), &shape]).unwrap();
        assert_eq!(picked, shape);
        let half = pointwise(BuiltinScalar::Div, &[&shape, &sym(&[Dim::from(2)])]).unwrap();
        assert_eq!(half.items[1], Dim::from(6));
        assert_eq!(half.items[0], b.floor_div(&Dim::from(2)).unwrap());
        // b - 12 may be negative: truncation is not the floor.
        let diff = pointwise(BuiltinScalar::Sub, &[&shape, &sym(&[n])]).unwrap();
        assert!(pointwise(BuiltinScalar::Div, &[&diff, &sym(&[Dim::from(2)])]).is_none());
        assert!(pointwise(BuiltinScalar::Eq, &[&shape, &sym(&[Dim::from(3)])]).is_none());
        assert_eq!(shape.gather(&Sym::new(DType::I64, vec![], vec![Dim::from(-2)]).unwrap(), 0).unwrap().items, [b]);
        assert_eq!(shape.slice(0, 1, -1, -1).unwrap().items.len(), 2);
        assert!(shape.slice(0, 0, 3, 1).is_none());
    }

    #[test]
    fn elements_are_arranged() {
        let of = |shape: &[usize], v: std::ops::Range<i64>| {
            Sym::new(DType::I64, shape.to_vec(), v.map(Dim::from).collect()).unwrap()
        };
        let consts = |s: Option<Sym>| s.map(|s| (s.shape.clone(), s.consts().unwrap()));
        let x = of(&[2, 3], 0..6);
        assert_eq!(consts(x.transposed(&[1, 0])).unwrap(), (vec![3, 2], vec![0, 3, 1, 4, 2, 5]));
        let cube = of(&[2, 3, 2], 0..12);
        assert_eq!(consts(cube.transposed(&[2, 0, 1])).unwrap().1, [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]);
        assert_eq!(consts(x.slice(0, 1, -1, -1)).unwrap(), (vec![2, 3], vec![3, 4, 5, 0, 1, 2]));
        assert_eq!(consts(x.slice(1, 2, -1, -2)).unwrap(), (vec![2, 2], vec![2, 0, 5, 3]));
        assert_eq!(consts(x.slice(1, 1, 1, 1)).unwrap(), (vec![2, 0], vec![]));
        assert!(x.slice(1, 0, 4, 1).is_none());
        assert_eq!(consts(x.tiled(&[1, 2])).unwrap(), (vec![2, 6], vec![0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]));
        let at = sym(&[Dim::from(-1), Dim::from(0)]);
        assert_eq!(consts(x.gather(&at, 1)).unwrap(), (vec![2, 2], vec![2, 0, 5, 3]));
        assert!(x.gather(&sym(&[Dim::from(3)]), 1).is_none());
        let y = of(&[2, 1], 7..9);
        assert_eq!(consts(Sym::concat(&[&x, &y], 1)).unwrap(), (vec![2, 4], vec![0, 1, 2, 7, 3, 4, 5, 8]));
        assert!(Sym::concat(&[&x, &y], 0).is_none());
    }

    #[test]
    fn remainders_have_the_sign_of_the_divisor() {
        let w = Dim::symbol("w");
        let four = sym(&[Dim::from(4)]);
        // The padding that rounds a size up to the next multiple of 4.
        let over = modulo(&sym(&[w]), &four).unwrap();
        let missing = modulo(&pointwise(BuiltinScalar::Sub, &[&four, &over]).unwrap(), &four).unwrap();
        for (w, pad) in [(0, 0), (3, 1), (4, 0), (30, 2)] {
            assert_eq!(missing.items[0].eval(&|_| Some(w)), Some(pad));
        }
        assert_eq!(modulo(&sym(&[Dim::from(-3)]), &four).unwrap().consts().unwrap(), [1]);
        assert!(modulo(&four, &sym(&[Dim::from(0)])).is_none());
        assert!(modulo(&four, &sym(&[Dim::symbol("w")])).is_none());
    }

    #[test]
    fn limits_hold() {
        let mut s = sym(&[Dim::symbol("b").checked_add(&Dim::symbol("c")).unwrap()]);
        let mut steps = 0;
        while let Some(next) = pointwise(BuiltinScalar::Mul, &[&s, &s]) {
            s = next;
            steps += 1;
        }
        assert!(steps < 8);
        let big = Sym::new(DType::I32, vec![], vec![Dim::from(i64::from(i32::MAX))]).unwrap();
        assert!(pointwise(BuiltinScalar::Add, &[&big, &big]).is_none());
        assert!(s.expand(&[LARGEST + 1]).is_none());
    }

    #[test]
    fn expand_broadcasts() {
        let s = Sym::new(DType::I64, vec![2, 1], vec![Dim::from(1), Dim::from(2)]).unwrap();
        assert_eq!(s.expand(&[3, 2, 2]).unwrap().consts().unwrap(), [1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2]);
    }
}
