//! Evaluation of attribute expressions: guards, `let`s, sizes of results, cost formulas.
//!
//! In: an expression, values of its variables, and facts of tensors and of the device. Out: its
//! value, or `None` if that is unknown or undefined. Invariant: evaluation of any expression takes
//! bounded time and memory (lists are capped, work is counted), and it never panics.

use crate::ast::BinaryOp;
use crate::ir::{AExpr, AFn, AttrValue, Fact, VarId};
use crate::shape::{self, Dim};

use super::{Bindings, Facts};

/// Maximum length of a list.
const MAX_LIST: usize = 1 << 16;
/// Maximum number of steps (nodes visited, list elements copied) in one evaluation.
const MAX_STEPS: usize = 1 << 20;
/// Maximum nesting depth; the parser allows less.
const MAX_DEPTH: u32 = 512;
/// Maximum exponent of a size.
const MAX_POWER: i64 = 64;

/// Evaluates an attribute expression; `None` if it is unknown or undefined (index out of range,
/// division by zero, overflow, limit exceeded). Integers are `AttrValue::Dim`; a float literal, or
/// `/` on numbers that do not divide, gives `Float`. Equality of sizes is `Dim::known_eq`; floats
/// compare as numbers (`-0 == 0`).
pub fn eval(expr: &AExpr, bindings: &Bindings, facts: &dyn Facts) -> Option<AttrValue> {
    Evaluator { bindings, facts, locals: Vec::new(), steps: MAX_STEPS, depth: 0 }.expr(expr)
}

/// Evaluates a guard; `None` if it is unknown.
pub fn eval_guard(guard: &AExpr, bindings: &Bindings, facts: &dyn Facts) -> Option<bool> {
    match eval(guard, bindings, facts)? {
        AttrValue::Bool(b) => Some(b),
        _ => None,
    }
}

/// Whether two values are the same: sizes by `Dim::known_eq`, floats by bits, an integer and a
/// float as numbers, lists element by element. `None` if it depends on a symbol.
pub fn same_value(a: &AttrValue, b: &AttrValue) -> Option<bool> {
    equal(a, b, |x, y| x.to_bits() == y.to_bits())
}

fn equal(a: &AttrValue, b: &AttrValue, floats: fn(f64, f64) -> bool) -> Option<bool> {
    use AttrValue::*;
    match (a, b) {
        (Dim(a), Dim(b)) => a.known_eq(b),
        (Float(a), Float(b)) => Some(floats(*a, *b)),
        (Dim(d), Float(f)) | (Float(f), Dim(d)) => Some(d.as_const()? as f64 == *f),
        (Bool(a), Bool(b)) => Some(a == b),
        (DType(a), DType(b)) => Some(a == b),
        (Str(a), Str(b)) => Some(a == b),
        (List(a), List(b)) if a.len() == b.len() => all(a.iter().zip(b).map(|(a, b)| equal(a, b, floats))),
        _ => Some(false),
    }
}

/// Three-valued conjunction: a single false decides.
fn all(values: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = Some(true);
    for value in values {
        match value {
            Some(false) => return Some(false),
            Some(true) => {}
            None => known = None,
        }
    }
    known
}

struct Evaluator<'a> {
    bindings: &'a Bindings,
    facts: &'a dyn Facts,
    /// Variables of the enclosing comprehensions, innermost last.
    locals: Vec<(VarId, AttrValue)>,
    steps: usize,
    depth: u32,
}

impl Evaluator<'_> {
    fn spend(&mut self, steps: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(steps)?;
        Some(())
    }

    fn expr(&mut self, expr: &AExpr) -> Option<AttrValue> {
        self.spend(1)?;
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let value = self.node(expr);
        self.depth -= 1;
        value
    }

    fn node(&mut self, expr: &AExpr) -> Option<AttrValue> {
        match expr {
            AExpr::Value(v) => self.copy(v),
            AExpr::Var(v) => self.var(*v),
            AExpr::List(items) => self.list(items),
            AExpr::Spread(inner) => self.expr(inner),
            AExpr::Index(list, index) => {
                let list = self.expect_list(list)?;
                let i = self.int(index)?;
                list.get(position(i, list.len())?).cloned()
            }
            AExpr::Comprehension { element, var, over, condition } => {
                self.comprehension(element, *var, over, condition.as_deref())
            }
            AExpr::Neg(a) => match self.expr(a)? {
                AttrValue::Dim(d) => Some(AttrValue::Dim(d.checked_mul(&Dim::from(-1))?)),
                AttrValue::Float(f) => Some(AttrValue::Float(-f)),
                _ => None,
            },
            AExpr::Not(a) => Some(AttrValue::Bool(!self.truth(a)?)),
            AExpr::Binary(op, a, b) => self.binary(*op, a, b),
            AExpr::If(condition, then, otherwise) => match self.truth(condition) {
                Some(true) => self.expr(then),
                Some(false) => self.expr(otherwise),
                None => {
                    let (a, b) = (self.expr(then)?, self.expr(otherwise)?);
                    (same_value(&a, &b)?).then_some(a)
                }
            },
            AExpr::Call(f, args) => self.call(*f, args),
            AExpr::Fact(fact, var) => self.facts.fact(*fact, *var),
            AExpr::SameAccumulator(t, a, b) => self.facts.same_accumulator(*t, *a, *b).map(AttrValue::Bool),
            AExpr::Device(fact) => self.facts.device(*fact),
        }
    }

    fn copy(&mut self, value: &AttrValue) -> Option<AttrValue> {
        if let AttrValue::List(items) = value {
            self.spend(items.len())?;
        }
        Some(value.clone())
    }

    fn var(&mut self, var: VarId) -> Option<AttrValue> {
        let bindings = self.bindings;
        if let Some(i) = self.locals.iter().rposition(|(v, _)| *v == var) {
            let value = self.locals[i].1.clone();
            return self.copy(&value);
        }
        self.copy(bindings.values.get(&var)?)
    }

    fn truth(&mut self, expr: &AExpr) -> Option<bool> {
        match self.expr(expr)? {
            AttrValue::Bool(b) => Some(b),
            _ => None,
        }
    }

    fn dim(&mut self, expr: &AExpr) -> Option<Dim> {
        match self.expr(expr)? {
            AttrValue::Dim(d) => Some(d),
            _ => None,
        }
    }

    fn int(&mut self, expr: &AExpr) -> Option<i64> {
        self.dim(expr)?.as_const()
    }

    fn expect_list(&mut self, expr: &AExpr) -> Option<Vec<AttrValue>> {
        match self.expr(expr)? {
            AttrValue::List(items) => Some(items),
            _ => None,
        }
    }

    fn dims(&mut self, expr: &AExpr) -> Option<Vec<Dim>> {
        as_dims(&self.expect_list(expr)?)
    }

    fn list(&mut self, items: &[AExpr]) -> Option<AttrValue> {
        let mut out = Vec::new();
        for item in items {
            match item {
                AExpr::Spread(inner) => out.extend(self.expect_list(inner)?),
                item => out.push(self.expr(item)?),
            }
            if out.len() > MAX_LIST {
                return None;
            }
        }
        Some(AttrValue::List(out))
    }

    fn comprehension(
        &mut self,
        element: &AExpr,
        var: VarId,
        over: &AExpr,
        condition: Option<&AExpr>,
    ) -> Option<AttrValue> {
        let mut out = Vec::new();
        for item in self.expect_list(over)? {
            self.locals.push((var, item));
            let value = match condition.map_or(Some(true), |c| self.truth(c)) {
                Some(true) => self.expr(element).map(Some),
                Some(false) => Some(None),
                None => None,
            };
            self.locals.pop();
            out.extend(value?);
        }
        Some(AttrValue::List(out))
    }

    fn binary(&mut self, op: BinaryOp, a: &AExpr, b: &AExpr) -> Option<AttrValue> {
        use BinaryOp::*;
        let truth = match op {
            And | Or => {
                // One operand decides, even if the other is unknown.
                let decides = op == Or;
                let left = self.truth(a);
                if left == Some(decides) {
                    Some(decides)
                } else {
                    match (left, self.truth(b)) {
                        (_, Some(right)) if right == decides => Some(decides),
                        (Some(_), Some(_)) => Some(!decides),
                        _ => None,
                    }
                }
            }
            Add | Sub | Mul | Div | Rem | Pow => {
                let (a, b) = (self.expr(a)?, self.expr(b)?);
                return arithmetic(op, &a, &b);
            }
            Eq | Ne if self.differs_from_every_number(a, b) || self.differs_from_every_number(b, a) => Some(op == Ne),
            Eq | Ne | Lt | Le | Gt | Ge => {
                let (a, b) = (self.expr(a)?, self.expr(b)?);
                compare(op, &a, &b)
            }
            In | NotIn => {
                let a = self.expr(a)?;
                let list = self.expect_list(b)?;
                self.spend(list.len())?;
                let absent = all(list.iter().map(|x| equal(&a, x, |x, y| x == y).map(|e| !e)));
                absent.map(|absent| absent == (op == NotIn))
            }
        };
        truth.map(AttrValue::Bool)
    }

    /// True for `value(x)` compared with a number, if the elements of the constant `x` are known to
    /// differ: then no number is its value. Zero stays undecided, since elements may differ as -0
    /// and 0 do.
    fn differs_from_every_number(&mut self, a: &AExpr, b: &AExpr) -> bool {
        let AExpr::Fact(Fact::Value, x) = a else { return false };
        self.facts.fact(Fact::Uniform, *x) == Some(AttrValue::Bool(false))
            && self.expr(b).as_ref().and_then(as_number).is_some_and(|n| n != 0.0)
    }

    /// The value of a function of numbers, lists or shapes.
    fn call(&mut self, f: AFn, args: &[AExpr]) -> Option<AttrValue> {
        if let (AFn::Floor, [AExpr::Binary(BinaryOp::Div, a, b)]) = (f, args) {
            return match (self.expr(a)?, self.expr(b)?) {
                (AttrValue::Dim(a), AttrValue::Dim(b)) => Some(AttrValue::Dim(a.floor_div(&b)?)),
                (a, b) => number_function(f, &arithmetic(BinaryOp::Div, &a, &b)?),
            };
        }
        match (f, args) {
            (AFn::Len, [a]) => Some(int(self.expect_list(a)?.len() as i64)),
            (AFn::Prod | AFn::Sum, [a]) => {
                let (op, start) = if f == AFn::Prod { (BinaryOp::Mul, 1) } else { (BinaryOp::Add, 0) };
                let items = self.expect_list(a)?;
                self.spend(items.len())?;
                items.iter().try_fold(int(start), |acc, x| arithmetic(op, &acc, x))
            }
            (AFn::Min | AFn::Max, _) => self.extremum(f, args),
            (AFn::Range, _) => self.range(args),
            (AFn::Broadcast, [first, rest @ ..]) => {
                let mut shape = self.dims(first)?;
                for other in rest {
                    shape = shape::broadcast(&shape, &self.dims(other)?)?;
                }
                Some(dims(shape))
            }
            (AFn::Reduce, [shape, axes, keep]) => {
                let (shape, axes, keep) = (self.dims(shape)?, self.expect_list(axes)?, self.truth(keep)?);
                let axes: Option<Vec<usize>> =
                    axes.iter().map(|a| position(as_dim(a)?.as_const()?, shape.len())).collect();
                Some(dims(reduce(&shape, &axes?, keep)))
            }
            (AFn::Permute | AFn::IsPermutation | AFn::Inverse, _) => self.permutations(f, args),
            (AFn::Sort, [list]) => sorted(self.expect_list(list)?),
            (AFn::Reverse, [list]) => {
                let mut list = self.expect_list(list)?;
                list.reverse();
                Some(AttrValue::List(list))
            }
            (AFn::Slice, [list, from, to]) => {
                let list = self.expect_list(list)?;
                let (from, to) = (clamp(self.int(from)?, list.len()), clamp(self.int(to)?, list.len()));
                Some(AttrValue::List(list.get(from..to).unwrap_or(&[]).to_vec()))
            }
            (AFn::IndexOf, [list, value]) => {
                let (list, value) = (self.expect_list(list)?, self.expr(value)?);
                self.spend(list.len())?;
                for (i, item) in list.iter().enumerate() {
                    if equal(item, &value, |x, y| x == y)? {
                        return Some(int(i as i64));
                    }
                }
                None
            }
            (_, [a]) => number_function(f, &self.expr(a)?),
            _ => None,
        }
    }

    /// The value of a function that takes a permutation.
    fn permutations(&mut self, f: AFn, args: &[AExpr]) -> Option<AttrValue> {
        match (f, args) {
            (AFn::Permute, [list, perm]) => {
                let (list, perm) = (self.expect_list(list)?, self.expect_list(perm)?);
                self.spend(perm.len())?;
                let perm = permutation(&perm).filter(|p| p.len() == list.len())?;
                Some(AttrValue::List(perm.into_iter().map(|i| list[i].clone()).collect()))
            }
            (AFn::IsPermutation, [list]) => {
                let list = self.expect_list(list)?;
                as_dims(&list)?.iter().try_for_each(|d| d.as_const().map(|_| ()))?;
                Some(AttrValue::Bool(permutation(&list).is_some()))
            }
            (AFn::Inverse, [list]) => {
                let perm = permutation(&self.expect_list(list)?)?;
                let mut inverse = vec![int(0); perm.len()];
                for (i, p) in perm.into_iter().enumerate() {
                    inverse[p] = int(i as i64);
                }
                Some(AttrValue::List(inverse))
            }
            _ => None,
        }
    }

    fn extremum(&mut self, f: AFn, args: &[AExpr]) -> Option<AttrValue> {
        let items = match args {
            [list] => self.expect_list(list)?,
            _ => args.iter().map(|a| self.expr(a)).collect::<Option<Vec<_>>>()?,
        };
        self.spend(items.len())?;
        let mut items = items.into_iter();
        let first = items.next()?;
        items.try_fold(first, |best, x| {
            let first =
                if f == AFn::Min { compare(BinaryOp::Le, &best, &x)? } else { compare(BinaryOp::Le, &x, &best)? };
            Some(if first { best } else { x })
        })
    }

    /// `range(stop)`, `range(start, stop)`, `range(start, stop, step)`.
    fn range(&mut self, args: &[AExpr]) -> Option<AttrValue> {
        let args = args.iter().map(|a| self.int(a)).collect::<Option<Vec<_>>>()?;
        let (start, stop, step) = match args[..] {
            [stop] => (0, stop, 1),
            [start, stop] => (start, stop, 1),
            [start, stop, step] => (start, stop, step),
            _ => return None,
        };
        // Longer lists have no value: nothing is made of them first.
        let count = (i128::from(stop) - i128::from(start)) / i128::from(if step == 0 { 1 } else { step });
        if count > MAX_LIST as i128 {
            return None;
        }
        let mut out = Vec::new();
        let mut i = start;
        while if step > 0 { i < stop } else { i > stop } {
            if step == 0 || out.len() >= MAX_LIST {
                return None;
            }
            self.spend(1)?;
            out.push(int(i));
            match i.checked_add(step) {
                Some(next) => i = next,
                None => break,
            }
        }
        Some(AttrValue::List(out))
    }
}

fn int(value: i64) -> AttrValue {
    AttrValue::Dim(Dim::from(value))
}

fn dims(shape: Vec<Dim>) -> AttrValue {
    AttrValue::List(shape.into_iter().map(AttrValue::Dim).collect())
}

/// The size in a value, if it is a size.
pub(super) fn as_dim(value: &AttrValue) -> Option<&Dim> {
    match value {
        AttrValue::Dim(d) => Some(d),
        _ => None,
    }
}

/// The sizes in a list of values.
pub(super) fn as_dims(list: &[AttrValue]) -> Option<Vec<Dim>> {
    list.iter().map(|v| as_dim(v).cloned()).collect()
}

/// The offset of an index that may count from the end; `None` if it is out of range.
pub(super) fn position(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(index).ok().filter(|i| *i < len)
}

fn clamp(index: i64, len: usize) -> usize {
    let index = if index < 0 { index.saturating_add(len as i64) } else { index };
    index.clamp(0, len as i64) as usize
}

/// The shape after a reduction over `axes`.
pub(super) fn reduce(shape: &[Dim], axes: &[usize], keepdims: bool) -> Vec<Dim> {
    let keep = |(i, d): (usize, &Dim)| match (axes.contains(&i), keepdims) {
        (false, _) => Some(d.clone()),
        (true, true) => Some(Dim::from(1)),
        (true, false) => None,
    };
    shape.iter().enumerate().filter_map(keep).collect()
}

/// The list as a permutation of `0..len`; `None` if it is not a permutation.
pub(super) fn permutation(list: &[AttrValue]) -> Option<Vec<usize>> {
    let mut seen = vec![false; list.len()];
    let mut out = Vec::with_capacity(list.len());
    for item in list {
        let i = usize::try_from(as_dim(item)?.as_const()?).ok().filter(|i| *i < seen.len())?;
        if std::mem::replace(&mut seen[i], true) {
            return None;
        }
        out.push(i);
    }
    Some(out)
}

fn sorted(mut list: Vec<AttrValue>) -> Option<AttrValue> {
    let keys = list.iter().map(as_number).collect::<Option<Vec<f64>>>()?;
    if keys.iter().any(|k| k.is_nan()) {
        return None;
    }
    let exact = as_dims(&list).and_then(|d| d.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>());
    match exact {
        Some(mut ints) => {
            ints.sort_unstable();
            list = ints.into_iter().map(int).collect();
        }
        None => list.sort_by(|a, b| as_number(a).partial_cmp(&as_number(b)).unwrap_or(std::cmp::Ordering::Equal)),
    }
    Some(AttrValue::List(list))
}

/// The value as a float; `None` if it is not a number, or is symbolic.
pub(super) fn as_number(value: &AttrValue) -> Option<f64> {
    match value {
        AttrValue::Dim(d) => Some(d.as_const()? as f64),
        AttrValue::Float(f) => Some(*f),
        _ => None,
    }
}

fn arithmetic(op: BinaryOp, a: &AttrValue, b: &AttrValue) -> Option<AttrValue> {
    if let (AttrValue::Dim(a), AttrValue::Dim(b)) = (a, b) {
        let exact = match op {
            BinaryOp::Add => Some(a.checked_add(b)?),
            BinaryOp::Sub => Some(a.checked_sub(b)?),
            BinaryOp::Mul => Some(a.checked_mul(b)?),
            BinaryOp::Rem => Some(a.rem(b)?),
            BinaryOp::Div => a.div_exact(b),
            BinaryOp::Pow => match b.as_const()? {
                n @ 0..=MAX_POWER => Some((0..n).try_fold(Dim::from(1), |acc, _| acc.checked_mul(a))?),
                n if n > 0 => Some(Dim::from(a.as_const()?.checked_pow(u32::try_from(n).ok()?)?)),
                _ => None,
            },
            _ => return None,
        };
        if let Some(d) = exact {
            return Some(AttrValue::Dim(d));
        }
    }
    let (a, b) = (as_number(a)?, as_number(b)?);
    let value = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div | BinaryOp::Rem if b == 0.0 => return None,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a - b * (a / b).floor(),
        BinaryOp::Pow => libm::pow(a, b),
        _ => return None,
    };
    Some(AttrValue::Float(value))
}

fn compare(op: BinaryOp, a: &AttrValue, b: &AttrValue) -> Option<bool> {
    match op {
        BinaryOp::Eq => return equal(a, b, |x, y| x == y),
        BinaryOp::Ne => return equal(a, b, |x, y| x == y).map(|e| !e),
        _ => {}
    }
    if let (AttrValue::Dim(a), AttrValue::Dim(b)) = (a, b) {
        return match op {
            BinaryOp::Le => a.known_le(b),
            BinaryOp::Ge => b.known_le(a),
            BinaryOp::Lt => b.known_le(a).map(|le| !le),
            BinaryOp::Gt => a.known_le(b).map(|le| !le),
            _ => None,
        };
    }
    let (a, b) = (as_number(a)?, as_number(b)?);
    match op {
        BinaryOp::Lt => Some(a < b),
        BinaryOp::Le => Some(a <= b),
        BinaryOp::Gt => Some(a > b),
        BinaryOp::Ge => Some(a >= b),
        _ => None,
    }
}

fn number_function(f: AFn, a: &AttrValue) -> Option<AttrValue> {
    match (f, a) {
        (AFn::Abs, AttrValue::Dim(d)) => match d.as_const() {
            Some(c) => Some(int(c.checked_abs()?)),
            None => d.lower_bound().filter(|b| *b >= 0).map(|_| a.clone()),
        },
        (AFn::Abs, AttrValue::Float(f)) => Some(AttrValue::Float(f.abs())),
        (AFn::Float, _) => Some(AttrValue::Float(as_number(a)?)),
        (AFn::Sqrt, _) => Some(AttrValue::Float(as_number(a)?.sqrt())),
        (AFn::Floor, AttrValue::Dim(_)) => Some(a.clone()),
        (AFn::Floor, AttrValue::Float(f)) => {
            let floor = f.floor();
            // Beyond 2^53 a float does not identify a single integer.
            (floor.abs() < 9_007_199_254_740_992.0).then(|| int(floor as i64))
        }
        (AFn::SizeOf, AttrValue::DType(d)) => Some(int(d.size() as i64)),
        (AFn::IsFloat, AttrValue::DType(d)) => Some(AttrValue::Bool(d.computes_in_floats())),
        (AFn::FloatMin, AttrValue::DType(d)) if d.is_float() => Some(AttrValue::Float(-d.largest())),
        (AFn::FloatMax, AttrValue::DType(d)) if d.is_float() => Some(AttrValue::Float(d.largest())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::NoFacts;
    use super::*;
    use AExpr::{Binary, Call, Value, Var};

    fn n(i: i64) -> AExpr {
        Value(int(i))
    }
    fn sym(name: &str) -> AExpr {
        Value(AttrValue::Dim(Dim::symbol(name)))
    }
    fn bin(op: BinaryOp, a: AExpr, b: AExpr) -> AExpr {
        Binary(op, Box::new(a), Box::new(b))
    }
    fn list(items: &[i64]) -> AExpr {
        AExpr::List(items.iter().map(|i| n(*i)).collect())
    }
    fn ev(e: &AExpr) -> Option<AttrValue> {
        eval(e, &Bindings::default(), &NoFacts)
    }
    fn truth(b: bool) -> Option<AttrValue> {
        Some(AttrValue::Bool(b))
    }

    #[test]
    fn three_valued_logic() {
        let unknown = || Var(VarId(0));
        let (t, f) = (|| Value(AttrValue::Bool(true)), || Value(AttrValue::Bool(false)));
        assert_eq!(ev(&bin(BinaryOp::And, f(), unknown())), truth(false));
        assert_eq!(ev(&bin(BinaryOp::And, unknown(), f())), truth(false));
        assert_eq!(ev(&bin(BinaryOp::And, t(), unknown())), None);
        assert_eq!(ev(&bin(BinaryOp::Or, unknown(), t())), truth(true));
        assert_eq!(ev(&bin(BinaryOp::Or, f(), unknown())), None);
        assert_eq!(ev(&bin(BinaryOp::Or, f(), f())), truth(false));
        assert_eq!(ev(&AExpr::Not(Box::new(unknown()))), None);
        assert_eq!(ev(&bin(BinaryOp::Eq, sym("b"), sym("n"))), None);
        assert_eq!(ev(&bin(BinaryOp::In, n(2), list(&[1, 2]))), truth(true));
        assert_eq!(ev(&bin(BinaryOp::NotIn, n(2), list(&[1, 2]))), truth(false));
        assert_eq!(ev(&bin(BinaryOp::In, sym("b"), list(&[1, 2]))), None);
        assert_eq!(ev(&bin(BinaryOp::Eq, list(&[1]), list(&[1, 2]))), truth(false));
    }

    #[test]
    fn arithmetic_is_exact_or_float() {
        assert_eq!(ev(&bin(BinaryOp::Div, n(6), n(3))), Some(int(2)));
        assert_eq!(ev(&bin(BinaryOp::Div, n(1), n(4))), Some(AttrValue::Float(0.25)));
        assert_eq!(ev(&bin(BinaryOp::Div, n(1), n(0))), None);
        assert_eq!(ev(&bin(BinaryOp::Rem, n(-7), n(4))), Some(int(1)));
        assert_eq!(ev(&bin(BinaryOp::Pow, n(2), n(10))), Some(int(1024)));
        assert_eq!(ev(&bin(BinaryOp::Pow, n(10), n(64))), None);
        assert_eq!(ev(&bin(BinaryOp::Mul, n(i64::MAX), n(2))), None);
        assert_eq!(ev(&AExpr::Neg(Box::new(n(i64::MIN)))), None);
        let floor = Call(AFn::Floor, vec![bin(BinaryOp::Div, n(-7), n(2))]);
        assert_eq!(ev(&floor), Some(int(-4)));
        let halves = bin(BinaryOp::Mul, n(2), Call(AFn::Floor, vec![bin(BinaryOp::Div, sym("n"), n(2))]));
        assert_eq!(ev(&bin(BinaryOp::Eq, halves.clone(), halves)), truth(true));
    }

    #[test]
    fn lists() {
        let inverse = Call(AFn::Inverse, vec![list(&[2, 0, 1])]);
        assert_eq!(ev(&inverse), ev(&list(&[1, 2, 0])));
        assert_eq!(ev(&Call(AFn::Permute, vec![list(&[5, 6, 7]), inverse])), ev(&list(&[6, 7, 5])));
        assert_eq!(ev(&Call(AFn::Inverse, vec![list(&[0, 0])])), None);
        assert_eq!(ev(&AExpr::Index(Box::new(list(&[5, 6])), Box::new(n(-1)))), Some(int(6)));
        assert_eq!(ev(&AExpr::Index(Box::new(list(&[5, 6])), Box::new(n(2)))), None);
        assert_eq!(ev(&Call(AFn::Slice, vec![list(&[1, 2, 3]), n(1), n(-1)])), ev(&list(&[2])));
        assert_eq!(ev(&Call(AFn::Sort, vec![list(&[3, -1, 2])])), ev(&list(&[-1, 2, 3])));
        let keep = Value(AttrValue::Bool(false));
        assert_eq!(ev(&Call(AFn::Reduce, vec![list(&[4, 5, 6]), list(&[-1, 0]), keep])), ev(&list(&[5])));
        let squares = AExpr::Comprehension {
            element: Box::new(bin(BinaryOp::Mul, Var(VarId(9)), Var(VarId(9)))),
            var: VarId(9),
            over: Box::new(Call(AFn::Range, vec![n(5)])),
            condition: Some(Box::new(bin(BinaryOp::Gt, Var(VarId(9)), n(2)))),
        };
        assert_eq!(ev(&squares), ev(&list(&[9, 16])));
    }

    #[test]
    fn absurd_expressions_end() {
        assert_eq!(ev(&Call(AFn::Range, vec![n(1_000_000_000)])), None);
        let nested = |inner: AExpr| AExpr::Comprehension {
            element: Box::new(inner),
            var: VarId(0),
            over: Box::new(Call(AFn::Range, vec![n(60_000)])),
            condition: None,
        };
        assert_eq!(ev(&nested(nested(nested(n(1))))), None);
        let mut deep = n(1);
        for _ in 0..2000 {
            deep = AExpr::Neg(Box::new(deep));
        }
        assert_eq!(ev(&deep), None);
    }
}
