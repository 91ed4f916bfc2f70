//! Random graphs of builtin ops, and how close results over them must be.
//!
//! In: a seed. Out: a graph and its inputs: ragged sizes, 0, 1, NaN, infinities, every element
//! type. Invariant: equal seeds give equal graphs, on every host.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar, SCATTER_REDUCTIONS};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{AttrValue, InView};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_graph::{Graph, Value};
use hypatia_tensor::Tensor;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{int, list, program, ty};

/// A random graph with its inputs.
pub struct Random {
    rng: ChaCha8Rng,
    /// The graph.
    pub graph: Graph,
    /// A tensor for each input, by name.
    pub inputs: Vec<(String, Tensor)>,
    values: Vec<Value>,
}

/// Types of floating-point numbers.
pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

impl Random {
    /// An empty graph.
    pub fn new(seed: u64) -> Random {
        let graph = Graph::new(program());
        Random { rng: ChaCha8Rng::seed_from_u64(seed), graph, inputs: Vec::new(), values: Vec::new() }
    }

    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank)
            .map(|_| *[0, 1, 1, 1, 2, 2, 3, 3, 5, 5, 7, 7, 16, 16, 33, 33].choose(&mut self.rng).unwrap())
            .collect()
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize], wild: bool) -> Tensor {
        let n = shape.iter().product();
        let rng = &mut self.rng;
        let values: Vec<f64> = (0..n)
            .map(|_| match rng.random_range(0..40) {
                0 if wild => f64::NAN,
                1 if wild => f64::INFINITY,
                2 if wild => f64::NEG_INFINITY,
                3 if wild => -0.0,
                _ if dtype == DType::Bool => rng.random_range(0..2) as f64,
                _ if dtype.is_int() => rng.random_range(-9..9) as f64,
                _ => rng.random_range(-2.0..2.0),
            })
            .collect();
        Tensor::from_f64(dtype, shape, &values).unwrap()
    }

    fn input(&mut self, dtype: DType, shape: &[usize], wild: bool) -> Value {
        let tensor = self.tensor(dtype, shape, wild);
        let value = if self.rng.random_bool(0.2) {
            self.graph.constant(tensor)
        } else {
            let name = format!("x{}", self.inputs.len());
            self.inputs.push((name.clone(), tensor));
            self.graph.input(name, ty(dtype, shape))
        };
        self.values.push(value);
        value
    }

    fn shape_of(&self, v: Value) -> Vec<usize> {
        self.graph.ty(v).shape.iter().map(|d| d.as_const().unwrap() as usize).collect()
    }

    fn dtype_of(&self, v: Value) -> DType {
        self.graph.ty(v).dtype
    }

    fn pick(&mut self) -> Value {
        *self.values.choose(&mut self.rng).unwrap()
    }

    fn builtin(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) {
        if let Ok(v) = self.graph.builtin(op, operands, attrs) {
            self.values.extend(v);
        }
    }

    fn scalar(&mut self) {
        let f = *BuiltinScalar::ALL.choose(&mut self.rng).unwrap();
        // These lose all digits on values that grow, or have no defined last bit.
        let unstable = [BuiltinScalar::Fmod, BuiltinScalar::Pow, BuiltinScalar::Sin, BuiltinScalar::Cos];
        let steps = [BuiltinScalar::Floor, BuiltinScalar::Ceil, BuiltinScalar::Round, BuiltinScalar::Trunc];
        let first = self.pick();
        let float = self.dtype_of(first).is_float();
        if unstable.contains(&f) || (float && (steps.contains(&f) || f == BuiltinScalar::Sign)) {
            return;
        }
        let mut operands = Vec::new();
        for kind in f.params() {
            let fits = |r: &Random, v: Value| match kind {
                Kind::Bool => r.dtype_of(v) == DType::Bool,
                Kind::Number => r.dtype_of(v) == r.dtype_of(first) && r.dtype_of(v) != DType::Bool,
            };
            let all: Vec<Value> = self.values.iter().copied().filter(|v| fits(self, *v)).collect();
            let Some(v) = all.choose(&mut self.rng) else { return };
            operands.push(*v);
        }
        // Comparisons of floats that were rounded differently may differ, and so may the sign of a
        // float that cancelled to 0.
        let signed = [BuiltinScalar::Log, BuiltinScalar::Sqrt, BuiltinScalar::Rsqrt].contains(&f);
        if (f.result() == Kind::Bool || signed) && float && !operands.iter().all(|v| self.is_leaf(*v)) {
            return;
        }
        if let Ok(v) = self.graph.builtin_scalar(f, &operands) {
            self.values.push(v);
        }
    }

    fn is_leaf(&self, v: Value) -> bool {
        self.graph.node(v.node).operands.is_empty()
    }

    fn view(&mut self) {
        let x = self.pick();
        let shape = self.shape_of(x);
        match self.rng.random_range(0..6) {
            0 => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                perm.shuffle(&mut self.rng);
                self.builtin(BuiltinOp::Transpose, &[x], vec![list(&perm)]);
            }
            1 => {
                let n: usize = shape.iter().product();
                let d = (1..=n.max(1)).filter(|d| n.is_multiple_of(*d)).choose(&mut self.rng).unwrap();
                self.builtin(BuiltinOp::Reshape, &[x], vec![list(&[d, n / d])]);
            }
            2 if !shape.is_empty() => {
                let axis = self.rng.random_range(0..shape.len());
                let size = shape[axis] as i64;
                let (a, b) = (self.rng.random_range(0..=size), self.rng.random_range(0..=size));
                let step = self.rng.random_range(1..3);
                let back = self.rng.random_bool(0.3);
                let attrs = if back { [b.max(a) - 1, a.min(b) - 1, -step] } else { [a.min(b), a.max(b), step] };
                let attrs = vec![int(axis as i64), int(attrs[0]), int(attrs[1]), int(attrs[2])];
                self.builtin(BuiltinOp::Slice, &[x], attrs);
            }
            3 => {
                let wide: Vec<usize> = [vec![2], shape.iter().map(|d| if *d == 1 { 3 } else { *d }).collect()].concat();
                self.builtin(BuiltinOp::Expand, &[x], vec![list(&wide)]);
            }
            4 if !shape.is_empty() => {
                let axis = self.rng.random_range(0..shape.len());
                let at = self.rng.random_range(0..=shape[axis]);
                let sizes = list(&[at, shape[axis] - at]);
                self.builtin(BuiltinOp::Split, &[x], vec![int(axis as i64), sizes]);
            }
            _ => {
                let all: Vec<Value> =
                    self.values.iter().copied().filter(|v| self.dtype_of(*v) == self.dtype_of(x)).collect();
                let y = *all.choose(&mut self.rng).unwrap();
                if !shape.is_empty() {
                    let axis = self.rng.random_range(0..shape.len());
                    self.builtin(BuiltinOp::Concat, &[x, y], vec![int(axis as i64)]);
                }
            }
        }
    }

    fn move_or_reduce(&mut self) {
        let x = self.pick();
        let (shape, dtype) = (self.shape_of(x), self.dtype_of(x));
        if shape.is_empty() {
            return;
        }
        let axis = self.rng.random_range(0..shape.len());
        match self.rng.random_range(0..8) {
            0 => {
                let before: Vec<i64> = shape.iter().map(|_| self.rng.random_range(-1..3)).collect();
                let after: Vec<i64> = shape.iter().map(|_| self.rng.random_range(-1..3)).collect();
                let value = self.tensor(dtype, &[], true);
                let value = self.graph.constant(value);
                let dims = |v: &[i64]| AttrValue::List(v.iter().map(|x| int(*x)).collect());
                self.builtin(BuiltinOp::Pad, &[x, value], vec![dims(&before), dims(&after)]);
            }
            1 | 2 if shape[axis] > 0 => {
                let elements = self.rng.random_bool(0.5);
                let at = if elements { shape.clone() } else { self.shape(2) };
                let n = at.iter().product::<usize>();
                let size = shape[axis] as i64;
                let ids: Vec<i64> = (0..n).map(|_| self.rng.random_range(-size..size)).collect();
                let ids = self.graph.constant(Tensor::from_slice(&at, &ids).unwrap());
                let op = if elements { BuiltinOp::GatherElements } else { BuiltinOp::Gather };
                self.builtin(op, &[x, ids], vec![int(axis as i64)]);
            }
            3 if shape[axis] > 0 && self.is_leaf(x) => {
                let attrs =
                    vec![int(axis as i64), AttrValue::Bool(self.rng.random()), AttrValue::Bool(self.rng.random())];
                self.builtin(BuiltinOp::Argmax, &[x], attrs);
            }
            4 => {
                let attrs =
                    vec![int(axis as i64), AttrValue::Bool(self.rng.random()), AttrValue::Bool(self.rng.random())];
                self.builtin(BuiltinOp::Cumsum, &[x], attrs);
            }
            // Elements that were rounded differently may stand in another order.
            5 if self.is_leaf(x) || !dtype.is_float() => {
                let attrs = vec![int(axis as i64), AttrValue::Bool(self.rng.random())];
                self.builtin(BuiltinOp::Argsort, &[x], attrs);
            }
            6 if shape[0] > 0 => self.scatter(x, &shape),
            _ => {
                let op = *[BuiltinOp::Sum, BuiltinOp::Mean, BuiltinOp::Amax, BuiltinOp::Amin, BuiltinOp::Prod]
                    .choose(&mut self.rng)
                    .unwrap();
                if op == BuiltinOp::Mean && !dtype.is_float() {
                    return;
                }
                let axes: Vec<usize> = (0..shape.len()).filter(|_| self.rng.random()).collect();
                let keep = AttrValue::Bool(self.rng.random());
                self.builtin(op, &[x], vec![list(&axes), keep]);
            }
        }
    }

    /// Rows of `x` joined with others, some of them several times.
    fn scatter(&mut self, x: Value, shape: &[usize]) {
        let count = self.shape(1)[0];
        let updates = [&[count], &shape[1..]].concat();
        let updates = self.input(self.dtype_of(x), &updates, false);
        let most = shape[0] as i64;
        let ids: Vec<i64> = (0..count).map(|_| self.rng.random_range(-most..most)).collect();
        let ids = self.graph.constant(Tensor::from_slice(&[count], &ids).unwrap());
        let how = SCATTER_REDUCTIONS.choose(&mut self.rng).unwrap().0;
        self.builtin(BuiltinOp::Scatter, &[x, ids, updates], vec![AttrValue::Str(how.into())]);
    }

    fn gemm(&mut self) {
        let lead = self.rng.random_range(0..3);
        let ints = [DType::I64, DType::I32, DType::I8, DType::U8];
        let dtype = match self.rng.random_range(0..7) {
            0 | 1 => *ints.choose(&mut self.rng).unwrap(),
            2 | 3 => DType::F32,
            _ => *FLOATS.choose(&mut self.rng).unwrap(),
        };
        let (mut a, mut b) = (self.shape(lead), self.shape(lead));
        for (x, y) in a.iter_mut().zip(&mut b) {
            match self.rng.random_range(0..3) {
                0 => *x = 1,
                1 => *y = 1,
                _ => *y = *x,
            }
        }
        if self.rng.random_bool(0.4) {
            b.clear();
        }
        let (m, k, n) = (self.shape(1)[0], self.rng.random_range(0..40), self.shape(1)[0]);
        let turned = self.rng.random_bool(0.5);
        a.extend(if turned { [k, m] } else { [m, k] });
        b.extend([k, n]);
        // Bytes may be signed on one side and unsigned on the other.
        let plain = self.rng.random_bool(0.4);
        let right = if dtype.is_byte() && !plain && self.rng.random() { DType::U8 } else { dtype };
        let (mut x, y) = (self.input(dtype, &a, false), self.input(right, &b, false));
        if turned {
            let mut perm: Vec<usize> = (0..a.len()).collect();
            perm.swap(a.len() - 2, a.len() - 1);
            x = self.graph.builtin(BuiltinOp::Transpose, &[x], vec![list(&perm)]).unwrap()[0];
        }
        if plain {
            return self.builtin(BuiltinOp::Matmul, &[x, y], vec![]);
        }
        let row = self.input(if dtype.is_byte() { DType::I32 } else { dtype }, &[n], false);
        let p = self.graph.program.clone();
        let mut t = Term::empty();
        let acc = t.add(TermNode::Acc);
        let read = t.add(TermNode::In { input: 0, view: InView::Broadcast });
        let sum =
            t.add(TermNode::Call { scalar: p.builtin_scalar(BuiltinScalar::Add).unwrap(), args: vec![acc, read] });
        let name = if dtype.is_float() { p.find_scalar("gelu").unwrap() } else { p.find_scalar("abs").unwrap() };
        let out = t.add(TermNode::Call { scalar: name, args: vec![sum] });
        let to = match dtype {
            d if d.is_float() => *FLOATS.choose(&mut self.rng).unwrap(),
            d if d.is_byte() => *[DType::I32, DType::I8, DType::U8].choose(&mut self.rng).unwrap(),
            d => d,
        };
        let stored = if dtype.is_byte() { t.add(TermNode::Cast { to, arg: out }) } else { out };
        t.roots.push(stored);
        let id = p.builtin_op(BuiltinOp::Gemm).unwrap();
        let v = self.graph.op(id, &[Some(x), Some(y), Some(row)], vec![AttrValue::DType(to)], Some(t)).unwrap();
        self.values.extend(v);
    }

    /// Adds two products of one left operand with a term of both accumulators, and an output.
    pub fn pair(&mut self) {
        let p = self.graph.program.clone();
        let dtype = *[DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32].choose(&mut self.rng).unwrap();
        let [m, n, k] = [0; 3].map(|_| self.rng.random_range(1..70));
        let lead: &[usize] = if self.rng.random_bool(0.3) { &[3] } else { &[] };
        let x = self.input(dtype, &[lead, &[m, k]].concat(), false);
        let shared = self.rng.random_bool(0.5);
        let of_right: &[usize] = if shared { &[] } else { lead };
        let [b, c] = [0; 2].map(|_| {
            let turned = self.rng.random_bool(0.5);
            let sides = if turned { [n, k] } else { [k, n] };
            let w = self.input(dtype, &[of_right, &sides].concat(), false);
            let mut perm: Vec<usize> = (0..of_right.len() + 2).collect();
            perm.swap(of_right.len(), of_right.len() + 1);
            if turned { self.graph.builtin(BuiltinOp::Transpose, &[w], vec![list(&perm)]).unwrap()[0] } else { w }
        });
        let row = self.input(dtype, &[n], false);
        let full = self.input(dtype, &[lead, &[m, n]].concat(), false);
        let [add, mul] = [BuiltinScalar::Add, BuiltinScalar::Mul].map(|s| p.builtin_scalar(s).unwrap());
        let function = p.find_scalar(if dtype.is_float() { "gelu" } else { "abs" }).unwrap();
        let mut t = Term::empty();
        let [acc, bias, other] = [
            TermNode::Acc,
            TermNode::In { input: 0, view: InView::Row },
            TermNode::In { input: 1, view: InView::Full },
        ]
        .map(|node| t.add(node));
        let biased = t.add(TermNode::Call { scalar: add, args: vec![acc, bias] });
        let gate = t.add(TermNode::Call { scalar: function, args: vec![biased] });
        // The same bias after the second product.
        let up = t.over_second(biased);
        let both = t.add(TermNode::Call { scalar: mul, args: vec![gate, up] });
        let root = t.add(TermNode::Call { scalar: add, args: vec![both, other] });
        t.roots.push(root);
        let to = if dtype.is_float() { *FLOATS.choose(&mut self.rng).unwrap() } else { dtype };
        let op = p.builtin_op(BuiltinOp::Gemm2).unwrap();
        let operands = [x, b, c, row, full].map(Some);
        let y = self.graph.op(op, &operands, vec![AttrValue::DType(to)], Some(t)).unwrap()[0];
        self.graph.output("y", y);
    }

    /// Adds random nodes and outputs; `wild` inputs hold NaN, infinities and -0.
    pub fn build(&mut self, wild: bool) {
        for _ in 0..4 {
            let dtype = *[
                DType::F32,
                DType::F32,
                DType::F32,
                DType::F64,
                DType::BF16,
                DType::I64,
                DType::I32,
                DType::U8,
                DType::Bool,
            ]
            .choose(&mut self.rng)
            .unwrap();
            let rank = self.rng.random_range(0..4);
            let mut shape = self.shape(rank);
            if self.rng.random_bool(0.05) && rank > 0 {
                shape[0] = 0;
            }
            self.input(dtype, &shape, wild);
            self.input(dtype, &shape, wild);
            // A row of the same: something to broadcast.
            self.input(dtype, &shape[rank.saturating_sub(1)..], wild);
        }
        for _ in 0..14 {
            match self.rng.random_range(0..10) {
                0 => self.gemm(),
                1 | 2 => self.view(),
                3 => self.move_or_reduce(),
                4 => {
                    let x = self.pick();
                    let to =
                        if self.dtype_of(x).is_float() { *FLOATS.choose(&mut self.rng).unwrap() } else { DType::I32 };
                    self.builtin(BuiltinOp::Cast, &[x], vec![AttrValue::DType(to)]);
                }
                _ => self.scalar(),
            }
        }
        let outputs: Vec<Value> = self.values.iter().rev().take(6).copied().collect();
        for (i, v) in outputs.into_iter().enumerate() {
            self.graph.output(format!("y{i}"), v);
        }
    }
}

/// Compares with a tolerance that is relative to the largest finite value; NaN and infinities must
/// agree.
pub fn compare(got: &Tensor, want: &Tensor, dtype: DType, epsilon: f64, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    if !dtype.is_float() {
        if got.bytes() != want.bytes() {
            let first = got.to_f64().into_iter().zip(want.to_f64()).enumerate().find(|(_, (g, w))| g != w);
            panic!("{what}: the first element that differs, what it is and should be: {first:?}");
        }
        return;
    }
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().filter(|v| v.is_finite()).fold(0.0f64, |a, v| a.max(v.abs()));
    let bound = largest * if epsilon > 1e-6 { 40.0 * epsilon } else { 1e-5 } + 1e-30;
    // One is infinite, and the other next to it.
    let overflows = |g: f64, w: f64| {
        let (finite, infinite) = if g.is_finite() { (g, w) } else { (w, g) };
        infinite.is_infinite() && finite * infinite > 0.0 && finite.abs() >= dtype.largest() * (1.0 - 40.0 * epsilon)
    };
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        if g.is_finite() != w.is_finite() && overflows(*g, *w) {
            continue;
        }
        if w.is_nan() || g.is_nan() || w.is_infinite() || g.is_infinite() {
            assert!(g == w || (g.is_nan() && w.is_nan()), "{what} element {i}: {g} instead of {w}");
        } else {
            assert!((g - w).abs() <= bound, "{what} element {i}: {g} instead of {w} (bound {bound})");
        }
    }
}

/// Fusion keeps f32 where the graph says bf16: the coarsest type decides how close results can be.
pub fn coarsest(graph: &Graph) -> f64 {
    graph.nodes.iter().flat_map(|n| &n.results).fold(0.0f64, |a, t| a.max(t.dtype.epsilon()))
}
