//! Work along rows as models have it, from primitives: what should become one launch, and what
//! should not.
//!
//! In: nothing. Out: graphs with inputs, and the number of launches of each. Invariant: no case
//! uses a named op, so that whatever becomes one launch was clustered.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_graph::{Graph, Value};
use hypatia_tensor::Tensor;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::random::{coarsest, compare};
use super::{int, list, program, ty};
use BuiltinScalar::{Abs, Add, Div, Exp, Floor, Log, Lt, Max, Min, Mul, Neg, Round, Rsqrt, Select, Sub, Tanh};

/// A graph with inputs.
pub struct RowCase {
    /// What it is.
    pub name: String,
    /// The graph.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: Vec<(String, Tensor)>,
    /// Launches of its plan, on any device.
    pub launches: usize,
}

impl RowCase {
    /// Compares a result with the reference. An integer that was rounded from numbers within their
    /// tolerance may be the next one; a number and its scale, both rounded to a narrow type, may
    /// each be off by half a unit of it.
    pub fn compare(&self, got: &Tensor, want: &Tensor, what: &str) {
        if got.dtype().is_float() || got.dtype() == DType::Bool {
            return compare(got, want, want.dtype(), coarsest(&self.graph), what);
        }
        assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
        let bound = 1.0 + (127.0 * 2.0 * coarsest(&self.graph)).round();
        for (i, (g, w)) in got.to_f64().iter().zip(want.to_f64()).enumerate() {
            assert!((g - w).abs() <= bound, "{what} element {i}: {g} instead of {w}");
        }
    }
}

/// A graph under construction.
struct Rows {
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    rng: ChaCha8Rng,
    dtype: DType,
}

impl Rows {
    fn new(dtype: DType) -> Rows {
        Rows { graph: Graph::new(program()), inputs: Vec::new(), rng: ChaCha8Rng::seed_from_u64(7), dtype }
    }

    /// An input of the case's type.
    fn x(&mut self, shape: &[usize]) -> Value {
        self.input(self.dtype, shape, -2.0..2.0)
    }

    fn input(&mut self, dtype: DType, shape: &[usize], range: std::ops::Range<f64>) -> Value {
        let name = format!("x{}", self.inputs.len());
        let count = shape.iter().product();
        let values: Vec<f64> = (0..count)
            .map(|_| self.rng.random_range(range.clone()))
            .map(|v| if dtype.is_float() { v } else { v.floor() })
            .map(|v| if dtype == DType::U8 { v.abs() } else { v })
            .collect();
        self.inputs.push((name.clone(), Tensor::from_f64(dtype, shape, &values).unwrap()));
        self.graph.input(name, ty(dtype, shape))
    }

    fn n(&mut self, value: f64) -> Value {
        self.graph.number(self.dtype, value).unwrap()
    }

    fn f(&mut self, scalar: BuiltinScalar, operands: &[Value]) -> Value {
        self.graph.builtin_scalar(scalar, operands).unwrap()
    }

    fn op(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Value {
        self.graph.builtin(op, operands, attrs).unwrap()[0]
    }

    /// A reduction over the last axis, which stays.
    fn reduce(&mut self, op: BuiltinOp, x: Value) -> Value {
        let last = self.graph.ty(x).shape.len() - 1;
        self.op(op, &[x], vec![list(&[last]), true.into()])
    }

    fn cast(&mut self, x: Value, to: DType) -> Value {
        self.op(BuiltinOp::Cast, &[x], vec![AttrValue::DType(to)])
    }

    fn reshape(&mut self, x: Value, shape: &[usize]) -> Value {
        self.op(BuiltinOp::Reshape, &[x], vec![list(shape)])
    }

    fn square(&mut self, x: Value) -> Value {
        self.f(Mul, &[x, x])
    }

    /// x / sqrt(mean(x x) + eps) * w
    fn rms_norm(&mut self, x: Value, w: Value) -> Value {
        let (s, eps) = (self.square(x), self.n(1e-5));
        let m = self.reduce(BuiltinOp::Mean, s);
        let a = self.f(Add, &[m, eps]);
        let r = self.f(Rsqrt, &[a]);
        let y = self.f(Mul, &[x, r]);
        self.f(Mul, &[y, w])
    }

    /// Centred and scaled: the result, and the factor of each row.
    fn layer_norm(&mut self, x: Value) -> (Value, Value) {
        let m = self.reduce(BuiltinOp::Mean, x);
        let c = self.f(Sub, &[x, m]);
        let (s, eps) = (self.square(c), self.n(1e-5));
        let v = self.reduce(BuiltinOp::Mean, s);
        let a = self.f(Add, &[v, eps]);
        let r = self.f(Rsqrt, &[a]);
        (self.f(Mul, &[c, r]), r)
    }

    fn softmax(&mut self, x: Value) -> Value {
        let m = self.reduce(BuiltinOp::Amax, x);
        let d = self.f(Sub, &[x, m]);
        let e = self.f(Exp, &[d]);
        let s = self.reduce(BuiltinOp::Sum, e);
        self.f(Div, &[e, s])
    }

    fn log_softmax(&mut self, x: Value) -> Value {
        let m = self.reduce(BuiltinOp::Amax, x);
        let d = self.f(Sub, &[x, m]);
        let e = self.f(Exp, &[d]);
        let s = self.reduce(BuiltinOp::Sum, e);
        let l = self.f(Log, &[s]);
        self.f(Sub, &[d, l])
    }

    /// Rounded to 8 bits with a scale for each row: the numbers, and the scales.
    fn quantised(&mut self, x: Value) -> (Value, Value) {
        let a = self.f(Abs, &[x]);
        let m = self.reduce(BuiltinOp::Amax, a);
        let (top, bottom, least) = (self.n(127.0), self.n(-127.0), self.n(1e-6));
        let m = self.f(Max, &[m, least]);
        let s = self.f(Div, &[m, top]);
        let q = self.f(Div, &[x, s]);
        let q = self.f(Round, &[q]);
        let q = self.f(Min, &[q, top]);
        let q = self.f(Max, &[q, bottom]);
        (self.cast(q, DType::I8), s)
    }

    fn case(mut self, name: &str, outputs: &[Value], launches: usize) -> RowCase {
        for (i, v) in outputs.iter().enumerate() {
            self.graph.output(format!("y{i}"), *v);
        }
        RowCase { name: format!("{name} {}", self.dtype), graph: self.graph, inputs: self.inputs, launches }
    }
}

/// The cases for elements of that type.
pub fn row_cases(dtype: DType) -> Vec<RowCase> {
    let all = [before_and_behind(dtype), results(dtype), in_groups(dtype), backward(dtype), apart(dtype)];
    all.into_iter().flatten().collect()
}

/// Pointwise work before, between and after the reductions.
fn before_and_behind(dtype: DType) -> Vec<RowCase> {
    let norm_of_exp = {
        let mut r = Rows::new(dtype);
        let (x, w) = (r.x(&[5, 33]), r.x(&[33]));
        let e = r.f(Exp, &[x]);
        let y = r.rms_norm(e, w);
        r.case("norm of exp", &[y], 1)
    };
    let behind_softmax = {
        let mut r = Rows::new(dtype);
        let (x, mask) = (r.x(&[2, 3, 7, 40]), r.x(&[2, 1, 1, 40]));
        let a = r.f(Add, &[x, mask]);
        let s = r.softmax(a);
        let y = r.f(Tanh, &[s]);
        r.case("tanh of softmax of a sum", &[y], 1)
    };
    let dropout = {
        let mut r = Rows::new(dtype);
        let (x, keep) = (r.x(&[6, 31]), r.input(DType::Bool, &[6, 31], 0.0..2.0));
        let (s, scale, zero) = (r.softmax(x), r.n(1.25), r.n(0.0));
        let scaled = r.f(Mul, &[s, scale]);
        let y = r.f(Select, &[keep, scaled, zero]);
        r.case("softmax and dropout", &[y, s], 1)
    };
    let reshaped = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[4, 6, 8]);
        let e = r.f(Exp, &[x]);
        let rows = r.reshape(e, &[24, 8]);
        let m = r.op(BuiltinOp::Sum, &[rows], vec![list(&[1]), false.into()]);
        let m = r.reshape(m, &[4, 6, 1]);
        let y = r.f(Div, &[e, m]);
        r.case("views between", &[y], 1)
    };
    let long = {
        let mut r = Rows::new(dtype);
        let (x, w) = (r.x(&[3, 1500]), r.x(&[1500]));
        let e = r.f(Tanh, &[x]);
        let y = r.rms_norm(e, w);
        r.case("longer rows", &[y], 1)
    };
    vec![norm_of_exp, behind_softmax, dropout, reshaped, long]
}

/// Several reductions, several results, several users.
fn results(dtype: DType) -> Vec<RowCase> {
    let residual = {
        let mut r = Rows::new(dtype);
        let (x, y, w) = (r.x(&[9, 24]), r.x(&[9, 24]), r.x(&[24]));
        let s = r.f(Add, &[x, y]);
        let n = r.rms_norm(s, w);
        r.case("residual and norm", &[s, n], 1)
    };
    let quantised = {
        let mut r = Rows::new(dtype);
        let (x, w) = (r.x(&[7, 64]), r.x(&[64]));
        let n = r.rms_norm(x, w);
        let (q, s) = r.quantised(n);
        r.case("norm and quantise", &[q, s], 1)
    };
    let extremes = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[11, 17]);
        let e = r.f(Tanh, &[x]);
        let (most, least) = (r.reduce(BuiltinOp::Amax, e), r.reduce(BuiltinOp::Amin, e));
        let (d, p) = (r.f(Sub, &[most, least]), r.reduce(BuiltinOp::Prod, e));
        r.case("three reductions", &[d, p, most], 1)
    };
    let cross_entropy = {
        let mut r = Rows::new(dtype);
        let (x, index) = (r.x(&[9, 50]), r.input(DType::I64, &[9, 1], -50.0..50.0));
        let l = r.log_softmax(x);
        let y = r.op(BuiltinOp::GatherElements, &[l, index], vec![int(1)]);
        let y = r.f(Neg, &[y]);
        r.case("logarithm of softmax and a place", &[y], 1)
    };
    let embedding = {
        let mut r = Rows::new(dtype);
        let (table, places) = (r.x(&[20, 24]), r.input(DType::I64, &[3, 5], -20.0..20.0));
        let (positions, w) = (r.x(&[5, 24]), r.x(&[24]));
        let e = r.op(BuiltinOp::Gather, &[table, places], vec![int(0)]);
        let s = r.f(Add, &[e, positions]);
        let n = r.rms_norm(s, w);
        r.case("rows of a table, their sum and norm", &[n, s], 1)
    };
    let reversed = {
        let mut r = Rows::new(dtype);
        let (x, w, sin) = (r.x(&[3, 5, 2, 12]), r.x(&[2, 12]), r.x(&[5, 2, 12]));
        let back = vec![int(2), int(1), int(-1), int(-1)];
        let y = r.op(BuiltinOp::Slice, &[x], back);
        let s = r.square(x);
        let m = r.op(BuiltinOp::Sum, &[s], vec![list(&[2, 3]), true.into()]);
        let scale = r.f(Rsqrt, &[m]);
        let (a, b) = (r.f(Mul, &[x, w]), r.f(Mul, &[y, sin]));
        let sum = r.f(Add, &[a, b]);
        let out = r.f(Mul, &[sum, scale]);
        r.case("halves in the other order", &[out], 1)
    };
    vec![residual, quantised, extremes, cross_entropy, embedding, reversed]
}

/// What is one launch on a GPU alone.
pub fn gpu_cases(dtype: DType) -> Vec<RowCase> {
    let looked_up = {
        let mut r = Rows::new(dtype);
        let (words, places) = (r.x(&[20, 24]), r.x(&[7, 24]));
        let (at, place) = (r.input(DType::I64, &[3, 5], -20.0..20.0), r.input(DType::I64, &[3, 5], 0.0..7.0));
        let [a, b] = [(words, at), (places, place)].map(|(t, i)| r.op(BuiltinOp::Gather, &[t, i], vec![int(0)]));
        let two = r.n(2.0);
        let a = r.f(Mul, &[a, two]);
        let sum = r.f(Add, &[a, b]);
        r.case("rows of two tables", &[sum], 1)
    };
    let shared = {
        let mut r = Rows::new(dtype);
        let (x, scale, shift) = (r.x(&[2, 6, 40]), r.x(&[2, 1, 40]), r.x(&[2, 1, 40]));
        let one = r.n(1.0);
        let (normed, _) = r.layer_norm(x);
        let scale = r.f(Add, &[scale, one]);
        let y = r.f(Mul, &[normed, scale]);
        let shift = r.f(Exp, &[shift]);
        let out = r.f(Add, &[y, shift]);
        r.case("a norm with a scale of each sample", &[out], 1)
    };
    let searched = |latest: bool| {
        let mut r = Rows::new(dtype);
        let (x, two) = (r.x(&[9, 37]), r.n(2.0));
        // Whole numbers, of which many are the largest; a row with NaN.
        let steps = r.f(Floor, &[x]);
        let (row, nan) = (r.input(DType::Bool, &[9, 37], 0.0..1.02), r.n(f64::NAN));
        let steps = r.f(Select, &[row, nan, steps]);
        let scaled = r.f(Mul, &[steps, two]);
        let found = r.op(BuiltinOp::Argmax, &[scaled], vec![int(1), true.into(), latest.into()]);
        // As numbers, which are compared without tolerance for the next one.
        let place = r.cast(found, DType::F32);
        let second = r.f(Neg, &[place]);
        r.case(if latest { "the last largest element" } else { "the first largest element" }, &[place, second], 1)
    };
    vec![looked_up, shared, searched(false), searched(true)]
}

/// A sum, its norm, and the norm rounded to 8 bits with a scale for each group.
pub fn quantised_groups(dtype: DType, [rows, groups, size]: [usize; 3]) -> RowCase {
    let mut r = Rows::new(dtype);
    let n = groups * size;
    let (x, y, w) = (r.x(&[rows, n]), r.x(&[rows, n]), r.x(&[n]));
    let s = r.f(Add, &[x, y]);
    let normed = r.rms_norm(s, w);
    let apart = r.reshape(normed, &[rows, groups, size]);
    let (q, scale) = r.quantised(apart);
    let q = r.reshape(q, &[rows, n]);
    r.case(&format!("norm and quantise {groups} groups of {size}"), &[q, scale, s], 1)
}

/// Reductions over groups of a row, after those over the row.
fn in_groups(dtype: DType) -> Vec<RowCase> {
    let mut out = Vec::new();
    for sizes in [[7, 3, 128], [9, 5, 32], [5, 4, 12], [3, 16, 128], [33, 2, 2], [4, 3, 7], [2, 2, 1024]] {
        out.push(quantised_groups(dtype, sizes));
    }
    let twice = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[2, 6, 96]);
        let (normed, factor) = r.layer_norm(x);
        let apart = r.reshape(normed, &[2, 6, 3, 32]);
        let centred = r.reduce(BuiltinOp::Mean, apart);
        let d = r.f(Sub, &[apart, centred]);
        let p = r.softmax(d);
        r.case("softmax of centred groups of a norm", &[p, centred, factor], 1)
    };
    let scaled = {
        let mut r = Rows::new(dtype);
        let (q, scale, w) = (r.input(DType::I8, &[6, 4, 32], -99.0..99.0), r.x(&[6, 4, 1]), r.x(&[128]));
        let x = r.cast(q, dtype);
        let x = r.f(Mul, &[x, scale]);
        let x = r.reshape(x, &[6, 128]);
        let y = r.rms_norm(x, w);
        r.case("norm of what a scale of each group multiplies", &[y], 1)
    };
    out.extend([twice, scaled]);
    out
}

/// Reductions of integers, and of truth values as integers.
pub fn integer_cases(dtype: DType) -> Vec<RowCase> {
    let sums = {
        let mut r = Rows::new(dtype);
        let x = r.input(dtype, &[6, 21], -99.0..99.0);
        let s = r.square(x);
        let (sum, most, least) =
            (r.reduce(BuiltinOp::Sum, s), r.reduce(BuiltinOp::Amax, x), r.reduce(BuiltinOp::Amin, s));
        let d = r.f(Sub, &[x, most]);
        r.case("reductions of integers", &[sum, d, least], 1)
    };
    let truth = {
        let mut r = Rows::new(dtype);
        let (x, y) = (r.input(dtype, &[40, 3], -2.0..2.0), r.input(dtype, &[40, 3], -2.0..2.0));
        let (less, zero) = (r.f(Lt, &[x, y]), r.n(0.0));
        let less = r.cast(less, DType::U8);
        let (any, all) = (r.reduce(BuiltinOp::Amax, less), r.reduce(BuiltinOp::Amin, less));
        let none = r.graph.number(DType::U8, 0.0).unwrap();
        let any = r.f(Lt, &[none, any]);
        let z = r.f(Select, &[any, x, zero]);
        r.case("any and all", &[z, all], 1)
    };
    vec![sums, truth]
}

/// Derivatives.
fn backward(dtype: DType) -> Vec<RowCase> {
    let of_softmax = {
        let mut r = Rows::new(dtype);
        let (y, g) = (r.x(&[6, 40]), r.x(&[6, 40]));
        let p = r.f(Mul, &[g, y]);
        let s = r.reduce(BuiltinOp::Sum, p);
        let d = r.f(Sub, &[g, s]);
        let dx = r.f(Mul, &[y, d]);
        r.case("derivative of softmax", &[dx], 1)
    };
    let of_norm = {
        let mut r = Rows::new(dtype);
        let (x, g, w) = (r.x(&[5, 48]), r.x(&[5, 48]), r.x(&[48]));
        let (n, scale) = r.layer_norm(x);
        let gw = r.f(Mul, &[g, w]);
        let p = r.f(Mul, &[gw, n]);
        let (a, b) = (r.reduce(BuiltinOp::Mean, gw), r.reduce(BuiltinOp::Mean, p));
        let nb = r.f(Mul, &[n, b]);
        let d = r.f(Sub, &[gw, a]);
        let d = r.f(Sub, &[d, nb]);
        let dx = r.f(Mul, &[d, scale]);
        r.case("derivative of layer norm", &[dx], 1)
    };
    let of_log_softmax = {
        let mut r = Rows::new(dtype);
        let (x, g) = (r.x(&[8, 30]), r.x(&[8, 30]));
        let l = r.log_softmax(x);
        let (p, s) = (r.f(Exp, &[l]), r.reduce(BuiltinOp::Sum, g));
        let ps = r.f(Mul, &[p, s]);
        let dx = r.f(Sub, &[g, ps]);
        r.case("derivative of log softmax", &[dx, l], 1)
    };
    vec![of_softmax, of_norm, of_log_softmax]
}

/// Sums over all rows, beside what is computed in rows: a GPU's alone.
pub fn sum_cases(dtype: DType) -> Vec<RowCase> {
    let of_norm = |name: &str, lead: &[usize], n: usize| {
        let mut r = Rows::new(dtype);
        let shape = [lead, &[n]].concat();
        let axes: Vec<usize> = (0..lead.len()).collect();
        let (x, g, w) = (r.x(&shape), r.x(&shape), r.x(&[n]));
        let (normed, scale) = r.layer_norm(x);
        let gw = r.f(Mul, &[g, w]);
        let p = r.f(Mul, &[gw, normed]);
        let (a, b) = (r.reduce(BuiltinOp::Mean, gw), r.reduce(BuiltinOp::Mean, p));
        let nb = r.f(Mul, &[normed, b]);
        let d = r.f(Sub, &[gw, a]);
        let d = r.f(Sub, &[d, nb]);
        let dx = r.f(Mul, &[d, scale]);
        let gn = r.f(Mul, &[g, normed]);
        let of_scale = r.op(BuiltinOp::Sum, &[gn], vec![list(&axes), false.into()]);
        let of_bias = r.op(BuiltinOp::Sum, &[g], vec![list(&axes), false.into()]);
        r.case(&format!("gradients of a layer norm, {name}"), &[dx, of_scale, of_bias], 1)
    };
    let alone = |[rows, n]: [usize; 2]| {
        let mut r = Rows::new(dtype);
        let x = r.x(&[rows, n]);
        let s = r.op(BuiltinOp::Sum, &[x], vec![list(&[0]), true.into()]);
        let s = r.reshape(s, &[n]);
        r.case(&format!("the sum of {rows} rows of {n}"), &[s], 1)
    };
    let of_bias = {
        let mut r = Rows::new(dtype);
        let (x, y) = (r.x(&[16, 9, 40]), r.x(&[16, 9, 40]));
        let t = r.f(Tanh, &[y]);
        let z = r.f(Mul, &[x, t]);
        let s = r.op(BuiltinOp::Sum, &[z], vec![list(&[0, 1]), false.into()]);
        r.case("a product and the sum of its rows", &[z, s], 1)
    };
    let narrowed = {
        let mut r = Rows::new(dtype);
        let (y, g) = (r.x(&[150, 40]), r.x(&[150, 40]));
        let p = r.f(Mul, &[g, y]);
        let s = r.reduce(BuiltinOp::Sum, p);
        let d = r.f(Sub, &[g, s]);
        let dx = r.f(Mul, &[y, d]);
        let wide = if dtype == DType::F64 { dx } else { r.cast(dx, DType::F32) };
        let s = r.op(BuiltinOp::Sum, &[wide], vec![list(&[0]), false.into()]);
        let s = if dtype == DType::F64 { s } else { r.cast(s, dtype) };
        r.case("the sum of what depends on sums of rows, in fewer bits", &[s], 1)
    };
    let turned = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[10, 130, 24]);
        let t = r.op(BuiltinOp::Transpose, &[x], vec![list(&[1, 0, 2])]);
        let e = r.f(Exp, &[t]);
        let s = r.op(BuiltinOp::Sum, &[e], vec![list(&[0, 1]), false.into()]);
        r.case("the sum of rows in another order", &[s, e], 1)
    };
    let mut out = vec![of_bias, narrowed, turned];
    if dtype == DType::F64 {
        // Added up in f64, then rounded.
        let mut r = Rows::new(dtype);
        let x = r.x(&[150, 40]);
        let e = r.f(Exp, &[x]);
        let s = r.op(BuiltinOp::Sum, &[e], vec![list(&[0]), false.into()]);
        let s = r.cast(s, DType::F32);
        out.push(r.case("a sum that is stored in fewer bits than it is made of", &[s], 2));
    }
    out.extend([[300, 96], [129, 33], [2500, 17], [128, 1032]].map(alone));
    out.push(of_norm("short rows", &[200], 48));
    out.push(of_norm("several axes", &[4, 50], 136));
    out.push(of_norm("longer rows", &[140], 1500));
    out.extend(sums_of_images(dtype));
    out
}

/// Sums over rows of each image, operands that differ from image to image, and sums over axes that
/// lie apart.
fn sums_of_images(dtype: DType) -> Vec<RowCase> {
    let of_each = |[images, rows, n]: [usize; 3]| {
        let mut r = Rows::new(dtype);
        let (x, y) = (r.x(&[images, rows, n]), r.x(&[images, rows, n]));
        let p = r.f(Mul, &[x, y]);
        let s = r.op(BuiltinOp::Sum, &[p], vec![list(&[1]), true.into()]);
        r.case(&format!("a product and its sums over {rows} of {n} in each of {images} images"), &[p, s], 1)
    };
    let means = {
        let mut r = Rows::new(dtype);
        let (x, gate) = (r.x(&[5, 12, 13, 24]), r.x(&[5, 1, 1, 24]));
        let t = r.f(Mul, &[x, gate]);
        let m = r.op(BuiltinOp::Mean, &[t], vec![list(&[1, 2]), false.into()]);
        r.case("means of gated images", &[m], 1)
    };
    let gated = {
        let mut r = Rows::new(dtype);
        let (x, g) = (r.x(&[4, 50, 24]), r.x(&[4, 50, 24]));
        let (gate, of_image) = (r.x(&[4, 1, 24]), r.x(&[4, 1, 1]));
        let d = r.f(Mul, &[g, gate]);
        let d = r.f(Mul, &[d, of_image]);
        let t = r.f(Tanh, &[x]);
        let p = r.f(Mul, &[d, t]);
        let s = r.op(BuiltinOp::Sum, &[d], vec![list(&[0, 1]), false.into()]);
        let q = r.op(BuiltinOp::Sum, &[p], vec![list(&[0, 1]), false.into()]);
        r.case("sums over all rows, gated by image", &[d, s, q], 1)
    };
    let channels_first = {
        let mut r = Rows::new(dtype);
        let (x, g, c) = (r.x(&[6, 10, 14, 14]), r.x(&[6, 10, 14, 14]), r.x(&[10, 1, 1]));
        let d = r.f(Mul, &[g, c]);
        let centred = r.f(Sub, &[x, c]);
        let p = r.f(Mul, &[g, centred]);
        let s = r.op(BuiltinOp::Sum, &[g], vec![list(&[0, 2, 3]), false.into()]);
        let q = r.op(BuiltinOp::Sum, &[p], vec![list(&[0, 2, 3]), true.into()]);
        // The sums over images are launches of their own.
        r.case("sums over axes that lie apart", &[d, s, q], 3)
    };
    let mut out = vec![means, gated, channels_first];
    if dtype.size() == 2 {
        // What is converted for two readers, of which one needs it in memory, is converted once.
        let mut r = Rows::new(dtype);
        let (x, m) = (r.x(&[2, 150, 48]), r.x(&[48]));
        let (wide, small) = (r.cast(x, DType::F32), r.cast(m, DType::F32));
        let d = r.f(Sub, &[wide, small]);
        let y = r.cast(d, dtype);
        let t = r.f(Tanh, &[y]);
        let s = r.op(BuiltinOp::Mean, &[t], vec![list(&[1]), true.into()]);
        out.push(r.case("an operand that is converted for two readers", &[y, s], 1));
    }
    out.extend([[3, 150, 40], [7, 131, 17], [2, 700, 96], [40, 200, 64]].map(of_each));
    out
}

/// What stays apart.
fn apart(dtype: DType) -> Vec<RowCase> {
    let columns = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[24, 32]);
        let e = r.f(Exp, &[x]);
        let s = r.op(BuiltinOp::Sum, &[e], vec![list(&[0]), false.into()]);
        r.case("sums of columns", &[e, s], 2)
    };
    let shared = {
        let mut r = Rows::new(dtype);
        let (x, w) = (r.x(&[24, 32]), r.x(&[32]));
        let t = r.softmax(w);
        let y = r.rms_norm(x, t);
        r.case("a row that all rows share is computed once", &[y], 2)
    };
    let few = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[2, 70000]);
        let e = r.f(Exp, &[x]);
        let s = r.reduce(BuiltinOp::Sum, e);
        r.case("few long rows", &[s], 2)
    };
    let side_by_side = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[2, 100, 37]);
        let m = r.op(BuiltinOp::Mean, &[x], vec![list(&[1]), false.into()]);
        r.case("means of rows that lie side by side", &[m], 1)
    };
    let turned = {
        let mut r = Rows::new(dtype);
        let x = r.x(&[3, 70, 40]);
        let t = r.op(BuiltinOp::Transpose, &[x], vec![list(&[0, 2, 1])]);
        let s = r.softmax(t);
        let y = r.op(BuiltinOp::Transpose, &[s], vec![list(&[0, 2, 1])]);
        r.case("softmax of rows that lie side by side", &[y], 2)
    };
    let around = {
        let mut r = Rows::new(dtype);
        let (x, w) = (r.x(&[8, 8]), r.x(&[8]));
        let n = r.rms_norm(x, w);
        let t = r.op(BuiltinOp::Transpose, &[n], vec![list(&[1, 0])]);
        let s = r.softmax(t);
        let y = r.f(Add, &[n, s]);
        r.case("rows of another direction", &[y], 2)
    };
    vec![columns, shared, few, side_by_side, turned, around]
}
