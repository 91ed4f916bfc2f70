//! Constants that a rule folds before any run, and what their element type loses (range loss).
//!
//! In: a scalar function of constants, its result's type, and where the result is used. Out: a
//! description of the loss, or nothing. Invariant: a function of finite operands that is reported
//! as kept is finite; every nonzero constant that can spoil the result as a factor keeps its
//! digits. Functions of integers lose nothing that they do not lose in a run.
//!
//! `(x * c) * d` is `x * (c * d)` as real numbers, but 1e-4 * 3e-4 is half of the smallest f16, and
//! 300 * 300 exceeds the largest, where `x * c * d` may well be an ordinary number. Nothing later
//! can detect the loss, because the graph then holds the folded constant. So the check is made
//! where a constant is folded.
//!
//! * Overflow is a loss wherever the constant is used.
//! * A *summand* that underflows loses what any sum of that type loses: either way, the error of
//!   the result is about one unit of the smallest numbers.
//! * A *factor* scales results, so each of its elements must keep its digits: an element that is
//!   subnormal and rounded is lost.
//! * A *weight*, an operand of a product or a convolution, is summed with others. Of f16 weights
//!   around 0.02 some are always subnormal, scaled or not, without harm. Rounding them costs at
//!   most half a unit of the smallest normal number, which is negligible as long as one of the
//!   weights in the sum is normal: so the largest in each sum must be. Which weights are summed is
//!   not known, but those along an axis that one of the operands lacks are summed together: a
//!   scale that differed along a sum could not have been moved into it.
//!
//! A *product* of constants, as `build(matmul(v, w))` computes it, is a weight: the largest element
//! of each of its rows and columns counts.
//!
//! A subnormal operand has already lost its digits, so its products are not checked: dead channels
//! after training hold subnormal numbers.

use std::sync::Arc;

use egg::Id;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{AExpr, AttrValue, Fact, Head, OpBody, OpId, Program, Rule, ScalarBody, ScalarId};
use hypatia_dsl::scalar;

use super::facts::asks_for;
use super::language::AttrsId;
use hypatia_graph::{ConstantFolder, Graph, constant_value, show_number};
use hypatia_tensor::tensor::Tensor;

/// The role of a constant in the expression that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperandRole {
    /// It is added.
    Summand,
    /// It scales, or is an operand of another function.
    Factor,
    /// It is an operand of an op that sums its products.
    Weight,
}

impl OperandRole {
    /// The role of an operand of `head`, where the application itself has the role `self`.
    pub fn under(self, program: &Program, head: Head) -> OperandRole {
        match head {
            Head::Op(op) => match &program.op(op).body {
                OpBody::Builtin(b) if b.multiplies() => OperandRole::Weight,
                // Views and similar ops pass on the role.
                OpBody::Builtin(_) => self,
                OpBody::Defined(_) => OperandRole::Factor,
            },
            Head::Scalar(s) => match program.scalar(s).body {
                ScalarBody::Builtin(BuiltinScalar::Add | BuiltinScalar::Sub) => OperandRole::Summand,
                // Functions of a weight are still summed.
                _ if self == OperandRole::Weight => OperandRole::Weight,
                _ => OperandRole::Factor,
            },
            Head::Acc | Head::Second | Head::In(_) | Head::TermCast | Head::Region(_) => OperandRole::Factor,
        }
    }
}

/// A constant operand.
#[derive(Clone)]
pub enum Operand {
    /// All elements are this number in that type.
    Number(DType, f64),
    /// A tensor.
    Tensor(Arc<Tensor>),
}

impl Operand {
    fn dtype(&self) -> DType {
        match self {
            Operand::Number(d, _) => *d,
            Operand::Tensor(t) => t.dtype(),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Operand::Number(..) => &[],
            Operand::Tensor(t) => t.shape(),
        }
    }

    fn elements(&self) -> Vec<f64> {
        match self {
            Operand::Number(_, v) => vec![*v],
            Operand::Tensor(t) => t.to_f64(),
        }
    }
}

/// What is computed of constants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Folded {
    /// A scalar function.
    Scalar(ScalarId),
    /// An op that sums products, with its attributes.
    Product(OpId, AttrsId),
}

/// A function of constants, at a place where a rule wants to compute it before any run.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fold {
    /// The function.
    pub function: Folded,
    /// The classes of its operands.
    pub operands: Vec<Id>,
    /// The type of the result.
    pub dtype: DType,
    /// The shape of the result.
    pub shape: Vec<usize>,
    /// Where it is used.
    pub role: OperandRole,
}

/// An op of constants that sums products.
pub struct FoldedProduct<'a> {
    /// The Program of the op.
    pub program: &'a Arc<Program>,
    /// The op.
    pub op: OpId,
    /// Its attributes.
    pub attrs: &'a [AttrValue],
    /// Its operands.
    pub operands: &'a [Arc<Tensor>],
}

impl FoldedProduct<'_> {
    /// A description of what is lost. The sums in which the result is used are not known: those
    /// over its last axis, or over the one before. So the largest element of each row and of each
    /// column must be normal, if any of its elements is lost.
    pub fn loss(&self, folder: &dyn ConstantFolder) -> Option<String> {
        let numbers: Vec<Vec<f64>> = self.operands.iter().map(|t| t.to_f64()).collect();
        let dtype = self.operands.first().map(|t| t.dtype()).filter(|d| d.is_float())?;
        if numbers.iter().flatten().any(|v| !v.is_finite()) {
            return None;
        }
        let wide = self.operands.iter().zip(&numbers).map(|(t, n)| Tensor::from_f64(DType::F64, t.shape(), n));
        let exact = self.result(wide.map(|t| t.map(Arc::new)).collect::<Option<Vec<_>>>()?, folder);
        let Some(exact) = exact else { return Some("what `build(...)` computes is not known".to_string()) };
        let lost = |x: f64| match x.abs() {
            v if v.is_infinite() => true,
            v if dtype == DType::F64 => v > 0.0 && v < f64::MIN_POSITIVE,
            v => holds(dtype, v) == Representable::TooSmall,
        };
        let mut elements = exact.to_f64();
        if dtype == DType::F64 {
            self.mark_vanished(&numbers, &mut elements, folder);
        }
        let too_large = |x: &&f64| x.is_infinite() || !dtype.round(**x).is_finite();
        let spoiled = |group: &Vec<f64>| {
            let largest = group.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            group.iter().copied().find(|x| lost(*x)).filter(|_| largest < smallest_normal(dtype))
        };
        let found = elements.iter().find(too_large).copied();
        let found = found.or_else(|| groups(&elements, exact.shape()).iter().find_map(spoiled))?;
        let name = &self.program.op(self.op).name;
        let (shown, kept) = (show_number(found), show_number(dtype.round(found)));
        Some(format!(
            "a constant would leave the range of {dtype}: `{name}` of constants is {shown}, of which \
             {dtype} keeps {kept}"
        ))
    }

    /// Nothing is wider than f64: what is 0 there only because it is too small becomes the smallest
    /// number. The same operands, scaled to be around 1, show it.
    fn mark_vanished(&self, numbers: &[Vec<f64>], elements: &mut [f64], folder: &dyn ConstantFolder) {
        let exponent = |n: &Vec<f64>| n.iter().fold(0.0f64, |m, v| m.max(v.abs())).log2().floor();
        let scales: Vec<f64> = numbers.iter().map(exponent).collect();
        if scales.iter().any(|s| !s.is_finite()) {
            return;
        }
        let scaled = self.operands.iter().zip(numbers).zip(&scales).map(|((t, n), s)| {
            // In two steps: 2^1074 is no f64.
            let half = (-s / 2.0).floor();
            let n: Vec<f64> = n.iter().map(|v| v * half.exp2() * (-s - half).exp2()).collect();
            Tensor::from_f64(DType::F64, t.shape(), &n).map(Arc::new)
        });
        let Some(found) = scaled.collect::<Option<Vec<_>>>().and_then(|all| self.result(all, folder)) else { return };
        let scale: f64 = scales.iter().sum();
        for (element, v) in elements.iter_mut().zip(found.to_f64()) {
            if v != 0.0 && v.abs().log2() + scale < -1022.0 {
                *element = 5e-324;
            }
        }
    }

    /// For each element the largest that may be summed with it.
    pub fn beside(elements: &[f64], shape: &[usize]) -> Vec<f64> {
        let last = shape.last().copied().unwrap_or(1).max(1);
        let all = groups(elements, shape);
        let largest: Vec<f64> = all.iter().map(|g| g.iter().fold(0.0f64, |m, x| m.max(x.abs()))).collect();
        let rows = elements.len() / last;
        (0..elements.len())
            .map(|i| {
                let column = rows + column_of(i, shape);
                largest[i / last].max(largest.get(column).copied().unwrap_or(0.0))
            })
            .collect()
    }

    fn result(&self, operands: Vec<Arc<Tensor>>, folder: &dyn ConstantFolder) -> Option<Tensor> {
        let mut graph = Graph::new(self.program.clone());
        let operands: Vec<_> = operands.into_iter().map(|t| Some(graph.constant(t))).collect();
        let result = graph.op(self.op, &operands, self.attrs.to_vec(), None).ok()?;
        constant_value(folder, &graph, *result.first()?)
    }
}

/// The number of the column of an element: its place without the last axis but one.
fn column_of(index: usize, shape: &[usize]) -> usize {
    let last = shape.last().copied().unwrap_or(1).max(1);
    let height = shape.iter().rev().nth(1).copied().unwrap_or(1).max(1);
    index / (last * height) * last + index % last
}

/// The rows, then the columns.
fn groups(elements: &[f64], shape: &[usize]) -> Vec<Vec<f64>> {
    let last = shape.last().copied().unwrap_or(1).max(1);
    let mut groups: Vec<Vec<f64>> = elements.chunks(last).map(<[f64]>::to_vec).collect();
    let rows = groups.len();
    for (i, x) in elements.iter().enumerate() {
        let column = rows + column_of(i, shape);
        if groups.len() <= column {
            groups.resize(column + 1, Vec::new());
        }
        groups[column].push(*x);
    }
    groups
}

/// A scalar function of constants.
pub struct FoldedCall<'a> {
    /// The Program of the scalar.
    pub program: &'a Program,
    /// The function.
    pub scalar: ScalarId,
    /// Its operands.
    pub operands: &'a [Operand],
    /// The type of the result.
    pub dtype: DType,
    /// The shape of the result: the operands' shapes, broadcast.
    pub shape: &'a [usize],
}

impl FoldedCall<'_> {
    /// A description of what is lost at that place.
    pub fn loss(&self, role: OperandRole) -> Option<String> {
        let floats = self.dtype.is_float() && self.operands.iter().all(|o| o.dtype().is_float());
        if !floats || self.product_is_kept() {
            return None;
        }
        // For each group the largest element, and one that is lost.
        let mut groups: Vec<(f64, Option<f64>)> = vec![(0.0, None); self.groups().1];
        let mut too_large = None;
        self.each(|group, x, kept| {
            if kept == Representable::TooLarge {
                too_large = Some(x);
            }
            if let Some((largest, lost)) = groups.get_mut(group) {
                *largest = largest.max(x.abs());
                *lost = lost.or((kept == Representable::TooSmall).then_some(x));
            }
        });
        let least = smallest_normal(self.dtype);
        let spoils = |(largest, lost): &(f64, Option<f64>)| match role {
            OperandRole::Summand => None,
            OperandRole::Factor => *lost,
            OperandRole::Weight => lost.filter(|_| *largest < least),
        };
        too_large.or_else(|| groups.iter().find_map(spoils)).map(|x| self.message(x))
    }

    /// For each element the largest element that is known to be summed with it: its loss is
    /// relative to that one.
    pub fn beside(&self) -> Vec<f64> {
        let (mut of, mut largest) = (Vec::new(), vec![0.0f64; self.groups().1]);
        self.each(|group, x, _| {
            of.push(group);
            largest[group] = largest[group].max(x.abs());
        });
        of.into_iter().map(|g| largest[g]).collect()
    }

    /// The stride of the group number along each axis, and the number of groups.
    fn groups(&self) -> (Vec<usize>, usize) {
        let whole = |axis: usize, size: usize| {
            let has = |o: &Operand| o.shape().iter().rev().nth(self.shape.len() - 1 - axis) == Some(&size);
            size == 1 || self.operands.iter().all(has)
        };
        let mut strides = vec![0; self.shape.len()];
        let mut count = 1;
        for (axis, size) in self.shape.iter().enumerate().rev().filter(|(axis, size)| whole(*axis, **size)) {
            strides[axis] = count;
            count *= size;
        }
        (strides, count)
    }

    /// Calls `f` for all elements in order with the group, the exact value, and what is kept of it.
    fn each(&self, mut f: impl FnMut(usize, f64, Representable)) {
        let elements: Vec<Vec<f64>> = self.operands.iter().map(Operand::elements).collect();
        let mut steps: Vec<Vec<usize>> = self.operands.iter().map(|o| strides(o.shape(), self.shape)).collect();
        steps.push(self.groups().0);
        let mut at = Odometer::new(self.shape, steps);
        let mut args = vec![0.0; elements.len()];
        for _ in 0..self.shape.iter().product::<usize>() {
            let (group, offsets) = at.offsets.split_last().map_or((0, &[][..]), |(g, o)| (*g, o));
            for ((arg, of), offset) in args.iter_mut().zip(&elements).zip(offsets) {
                *arg = of.get(*offset).copied().unwrap_or(f64::NAN);
            }
            let x = self.value(&args);
            f(group, x, self.keeps(x, &args));
            at.step();
        }
    }

    /// True if it is the product of two operands, and no product of two of their elements leaves
    /// the range of normal numbers. This holds for nearly all weights in f32, and takes one pass
    /// over their bits to check.
    fn product_is_kept(&self) -> bool {
        let ScalarBody::Builtin(BuiltinScalar::Mul) = self.program.scalar(self.scalar).body else { return false };
        let [a, b] = self.operands else { return false };
        let (Some(a), Some(b)) = (extent(a), extent(b)) else { return false };
        a.0 * b.0 >= smallest_normal(self.dtype) && a.1 * b.1 <= self.dtype.largest()
    }

    /// An element as a real number; NaN if it is not known.
    fn value(&self, args: &[f64]) -> f64 {
        match &self.program.scalar(self.scalar).body {
            ScalarBody::Builtin(f) if f.result() == Kind::Number && f.params().iter().all(|k| *k == Kind::Number) => {
                let at = |i: usize| args.get(i).copied().unwrap_or(0.0);
                scalar::float(*f, at(0), at(1))
            }
            ScalarBody::Builtin(f) => {
                let args: Vec<scalar::Value> = args.iter().map(|v| scalar::Value::F(*v)).collect();
                scalar::apply(*f, &args, scalar::Precision::F64).to_f64()
            }
            ScalarBody::Term(term) => scalar::eval_f64(self.program, term, args).unwrap_or(f64::NAN),
        }
    }

    fn keeps(&self, x: f64, args: &[f64]) -> Representable {
        if args.iter().any(|v| !v.is_finite()) {
            return Representable::AsWell;
        }
        // Nothing is wider than f64: a product or quotient of nonzero numbers there is assumed to
        // be rounded.
        let product = matches!(
            self.program.scalar(self.scalar).body,
            ScalarBody::Builtin(BuiltinScalar::Mul | BuiltinScalar::Div)
        );
        let kept = match x.abs() {
            v if !(self.dtype == DType::F64 && product && args.iter().all(|v| *v != 0.0)) => holds(self.dtype, v),
            v if v.is_infinite() => Representable::TooLarge,
            v if v < f64::MIN_POSITIVE => Representable::TooSmall,
            _ => Representable::AsWell,
        };
        let poor = || args.iter().zip(self.operands).any(|(v, o)| is_subnormal(o.dtype(), *v));
        if kept == Representable::TooSmall && poor() { Representable::AsWell } else { kept }
    }

    /// The reason for a rejection: what the constant is, and what its type keeps of it.
    fn message(&self, x: f64) -> String {
        let name = &self.program.scalar(self.scalar).name;
        match self.dtype {
            DType::F64 => {
                format!("a constant would leave the range of f64: `{name}` of constants is {}", show_number(x))
            }
            d => format!(
                "a constant would leave the range of {d}: `{name}` of constants is {}, of which {d} keeps {}",
                show_number(x),
                show_number(d.round(x))
            ),
        }
    }
}

/// What a type keeps of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Representable {
    /// Full precision.
    AsWell,
    TooLarge,
    TooSmall,
}

/// True if an expression of a rule's right side computes a number from the values of constants.
/// Other numbers come from the text or from attributes, and mean what they are rounded to.
pub fn is_of_values(rule: &Rule, e: &AExpr) -> bool {
    let asks = |e: &AExpr| asks_for(e, &|fact| fact == Fact::Value);
    !matches!(e, AExpr::Value(_)) && (asks(e) || rule.lets.iter().any(|(_, e)| asks(e)))
}

/// A description of what is lost of a number that a rule computed from these constants.
pub fn number_loss(dtype: DType, x: f64, of: &[(DType, f64)]) -> Option<String> {
    if !dtype.is_float() || of.iter().any(|(_, v)| !v.is_finite()) {
        return None;
    }
    let lost = match holds(dtype, x) {
        _ if !x.is_finite() => true,
        // Nothing is wider than f64: whether it was rounded is not known.
        _ if dtype == DType::F64 && x.abs() < f64::MIN_POSITIVE => of.iter().all(|(_, v)| v.is_normal()),
        Representable::AsWell => false,
        Representable::TooLarge => true,
        Representable::TooSmall => !of.iter().any(|(d, v)| is_subnormal(*d, *v)),
    };
    lost.then(|| {
        let kept = show_number(dtype.round(x));
        format!("a number would leave the range of {dtype}: of {} it keeps {kept}", show_number(x))
    })
}

/// True for subnormal numbers of a float type: nonzero, with fewer than all of its digits.
fn is_subnormal(dtype: DType, v: f64) -> bool {
    v != 0.0 && v.abs() < smallest_normal(dtype)
}

fn holds(dtype: DType, x: f64) -> Representable {
    if x.abs() >= smallest_normal(dtype) && x.abs() <= dtype.largest() {
        return Representable::AsWell;
    }
    let rounded = dtype.round(x);
    match () {
        () if !x.is_finite() => Representable::AsWell,
        () if !rounded.is_finite() => Representable::TooLarge,
        () if is_subnormal(dtype, x) && rounded != x => Representable::TooSmall,
        () => Representable::AsWell,
    }
}

/// The smallest normal number of a float type.
pub fn smallest_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 | DType::F8E5M2 => 2f64.powi(-14),
        DType::F8E4M3 => 2f64.powi(-6),
        DType::F32 | DType::BF16 => f64::from(f32::MIN_POSITIVE),
        _ => 0.0,
    }
}

/// The smallest and the largest magnitude of the normal numbers among the elements; `None` if there
/// are none.
fn extent(operand: &Operand) -> Option<(f64, f64)> {
    macro_rules! scan {
        ($t:ty, $of:expr, $bits:ty, $fraction:expr, $exponent:expr) => {{
            let (mut least, mut largest) = (<$bits>::MAX, 0);
            for bits in $of {
                let magnitude: $bits = bits & (<$bits>::MAX >> 1);
                let normal = (1 << $fraction..$exponent << $fraction).contains(&magnitude);
                least = least.min(if normal { magnitude } else { <$bits>::MAX });
                largest = largest.max(if normal { magnitude } else { 0 });
            }
            (largest > 0).then(|| (f64::from(<$t>::from_bits(least)), f64::from(<$t>::from_bits(largest))))
        }};
    }
    let tensor = match operand {
        Operand::Number(dtype, v) => {
            return (*v != 0.0 && v.is_finite() && !is_subnormal(*dtype, *v)).then(|| (v.abs(), v.abs()));
        }
        Operand::Tensor(t) => t,
    };
    if let Some(of) = tensor.as_slice::<f32>() {
        scan!(f32, of.iter().map(|v| v.to_bits()), u32, 23, 0xff)
    } else if let Some(of) = tensor.as_slice::<half::f16>() {
        scan!(half::f16, of.iter().map(|v| v.to_bits()), u16, 10, 0x1f)
    } else if let Some(of) = tensor.as_slice::<half::bf16>() {
        scan!(half::bf16, of.iter().map(|v| v.to_bits()), u16, 7, 0xff)
    } else {
        scan!(f64, tensor.as_slice::<f64>()?.iter().map(|v| v.to_bits()), u64, 52, 0x7ff)
    }
}

/// The strides of an operand, broadcast to the shape of the result.
fn strides(shape: &[usize], out: &[usize]) -> Vec<usize> {
    let missing = out.len().saturating_sub(shape.len());
    let mut stride = 1;
    let mut strides = vec![0; out.len()];
    for (axis, size) in shape.iter().enumerate().rev() {
        if *size != 1
            && let Some(s) = strides.get_mut(axis + missing)
        {
            *s = stride;
        }
        stride *= size;
    }
    strides
}

/// The offsets into all operands for each element of the result in turn.
struct Odometer<'a> {
    shape: &'a [usize],
    index: Vec<usize>,
    strides: Vec<Vec<usize>>,
    offsets: Vec<usize>,
}

impl<'a> Odometer<'a> {
    fn new(shape: &'a [usize], strides: Vec<Vec<usize>>) -> Odometer<'a> {
        Odometer { shape, index: vec![0; shape.len()], offsets: vec![0; strides.len()], strides }
    }

    fn step(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            let carry = self.index[axis] == self.shape[axis];
            for (offset, strides) in self.offsets.iter_mut().zip(&self.strides) {
                *offset += strides[axis];
                if carry {
                    *offset -= strides[axis] * self.shape[axis];
                }
            }
            if !carry {
                return;
            }
            self.index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::LazyLock;

    use super::*;
    use DType::{BF16, F16, F32, F64, I32};

    fn tensor(dtype: DType, shape: &[usize], elements: &[f64]) -> Operand {
        Operand::Tensor(Arc::new(Tensor::from_f64(dtype, shape, elements).unwrap()))
    }

    fn loses(f: BuiltinScalar, dtype: DType, operands: &[Operand], shape: &[usize], role: OperandRole) -> bool {
        static PROGRAM: LazyLock<Arc<Program>> = LazyLock::new(|| hypatia_library::load(&[]).unwrap());
        let program = &**PROGRAM;
        let scalar = program.builtin_scalar(f).unwrap();
        FoldedCall { program, scalar, operands, dtype, shape }.loss(role).is_some()
    }

    /// Numbers at the range limits of the types. What f32, f16 and bf16 keep of a product is found
    /// by multiplying in f64 and rounding.
    #[test]
    fn factors_are_lost_where_rounding_takes_their_digits() {
        let numbers = [0.0, 1e-4, -3e-4, 0.3, 1.0, 250.0, -300.0, 1e-25, 1e15, 3e37, 6.1e-5];
        let mut lost = 0;
        for dtype in [F16, BF16, F32] {
            for (a, b) in numbers.iter().flat_map(|a| numbers.iter().map(move |b| (dtype.round(*a), dtype.round(*b)))) {
                if !a.is_finite() || !b.is_finite() || [a, b].iter().any(|v| is_subnormal(dtype, *v)) {
                    continue;
                }
                let (x, r) = (a * b, dtype.round(a * b));
                // Rounding costs any normal number half a unit of the type.
                let kept = r.is_finite() && (r - x).abs() <= 0.5 * dtype.epsilon() * x.abs();
                let operands = [tensor(dtype, &[1], &[a]), tensor(dtype, &[1], &[b])];
                let found = loses(BuiltinScalar::Mul, dtype, &operands, &[1], OperandRole::Factor);
                assert!(!found || !kept || x.abs() < smallest_normal(dtype), "{dtype}: {a} * {b} is kept");
                assert!(found || kept, "{dtype}: {a} * {b} is lost");
                lost += usize::from(found);
            }
        }
        assert!(lost > 20, "{lost}");
    }

    #[test]
    fn f64_has_nothing_wider_to_compare_with() {
        let of = |a: f64, b: f64| [Operand::Number(F64, a), Operand::Number(F64, b)];
        for (a, b, wanted) in [
            (1e-200, 1e-200, true),
            (1e200, -1e200, true),
            (1e-200, 0.0, false),
            (1e-200, 1e150, false),
            (1e-160, 1e-150, true),
        ] {
            assert_eq!(loses(BuiltinScalar::Mul, F64, &of(a, b), &[], OperandRole::Factor), wanted, "{a} * {b}");
        }
        assert!(loses(BuiltinScalar::Div, F64, &of(1e-200, 1e200), &[], OperandRole::Factor));
    }

    #[test]
    fn summands_may_be_small_but_not_too_large() {
        let of = |a: f64, b: f64| [tensor(F16, &[2], &[a, 1.0]), tensor(F16, &[2], &[b, 1.0])];
        assert!(!loses(BuiltinScalar::Mul, F16, &of(1e-4, 3e-4), &[2], OperandRole::Summand));
        assert!(loses(BuiltinScalar::Mul, F16, &of(300.0, 300.0), &[2], OperandRole::Summand));
        assert!(loses(BuiltinScalar::Add, F16, &of(6e4, 6e4), &[2], OperandRole::Summand));
        // The difference of neighbours is small but exact.
        assert!(!loses(BuiltinScalar::Sub, F16, &of(6.2e-5, 6.15e-5), &[2], OperandRole::Factor));
    }

    #[test]
    fn the_largest_weight_of_those_that_share_a_scale_decides() {
        let scale = tensor(F16, &[3], &[1.0, 3e-4, 0.0]);
        let weights = |column: [f64; 2]| {
            let elements = [1.0, column[0], 1.0, 1.0, column[1], 1.0];
            [tensor(F16, &[2, 3], &elements), scale.clone()]
        };
        let lost = |column| loses(BuiltinScalar::Mul, F16, &weights(column), &[2, 3], OperandRole::Weight);
        assert!(!lost([1.0, 1e-4]));
        assert!(lost([1e-4, 2e-4]));
        assert!(lost([0.0, 2e-4]));
        assert!(!lost([0.0, 0.0]));
        // As factors, each element counts.
        assert!(loses(BuiltinScalar::Mul, F16, &weights([1.0, 1e-4]), &[2, 3], OperandRole::Factor));
        // Filters: the scale has an axis of its own, and the axes of size 1 are summed over.
        let filters =
            |small: f64| [tensor(F16, &[2, 1, 2], &[1.0, 1.0, 1e-4, small]), tensor(F16, &[2, 1, 1], &[1.0, 3e-4])];
        assert!(loses(BuiltinScalar::Mul, F16, &filters(1e-4), &[2, 1, 2], OperandRole::Weight));
        assert!(!loses(BuiltinScalar::Mul, F16, &filters(1.0), &[2, 1, 2], OperandRole::Weight));
        // In a single row, each weight has its own scale.
        let row = [tensor(F16, &[1, 2], &[1.0, 1e-4]), tensor(F16, &[2], &[1.0, 3e-4])];
        assert!(loses(BuiltinScalar::Mul, F16, &row, &[1, 2], OperandRole::Weight));
    }

    #[test]
    fn what_was_lost_before_is_no_loss() {
        let with = |v: f64| [tensor(F16, &[2], &[v, 1.0]), tensor(F16, &[2], &[0.3, 1.0])];
        for v in [1e-5, f64::INFINITY, f64::NAN, 0.0, -0.0] {
            assert!(!loses(BuiltinScalar::Mul, F16, &with(v), &[2], OperandRole::Factor), "{v}");
        }
        // But dividing by a small number may overflow.
        let inverse = [Operand::Number(F32, 1.0), tensor(F32, &[1], &[1e-40])];
        assert!(loses(BuiltinScalar::Div, F32, &inverse, &[1], OperandRole::Factor));
        assert!(!loses(
            BuiltinScalar::Mul,
            I32,
            &[tensor(I32, &[1], &[1e9]), tensor(I32, &[1], &[9.0])],
            &[1],
            OperandRole::Factor
        ));
    }

    #[test]
    fn numbers_are_lost_as_tensors_are() {
        assert!(number_loss(F16, 1e-5, &[(F16, 60000.0)]).is_some());
        assert!(number_loss(F16, 1e-5, &[(F16, 1e-5)]).is_none());
        assert!(number_loss(F32, f64::INFINITY, &[(F32, 0.0)]).is_some());
        assert!(number_loss(F32, f64::INFINITY, &[(F32, f64::INFINITY)]).is_none());
        assert!(number_loss(F32, 1e39, &[(F32, 1e-40)]).is_some());
        assert!(number_loss(F64, 0.0, &[(F64, 1e-200)]).is_some());
        assert!(number_loss(F64, 0.0, &[(F64, 0.0)]).is_none());
        assert!(number_loss(I32, 1e39, &[]).is_none());
    }

    /// The pass over bits agrees with the values.
    #[test]
    fn extents_are_those_of_normal_numbers() {
        for dtype in [F64, F32, F16, BF16] {
            let least = smallest_normal(dtype);
            let elements = [0.0, -0.0, 2.0 * least, -3.0, least / 2.0, f64::INFINITY, f64::NAN];
            assert_eq!(extent(&tensor(dtype, &[7], &elements)), Some((2.0 * least, 3.0)), "{dtype}");
            assert_eq!(extent(&tensor(dtype, &[2], &[0.0, least / 2.0])), None, "{dtype}");
        }
    }
}
