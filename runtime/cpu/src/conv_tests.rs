//! Convolutions, windows, sorting and scattering: the executor against the reference, on random
//! shapes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar, SCATTER_REDUCTIONS};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, InView};
use hypatia_dsl::scalar::{Term, TermNode};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::Executor;
use super::simd::{Isa, limit};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::{int, list, program, ty};

struct Net {
    rng: ChaCha8Rng,
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
}

impl Net {
    fn new(seed: u64) -> Net {
        Net { rng: ChaCha8Rng::seed_from_u64(seed), graph: Graph::new(program()), inputs: Vec::new() }
    }

    fn pick(&mut self, low: usize, high: usize) -> usize {
        self.rng.random_range(low..=high)
    }

    fn values(&mut self, dtype: DType, shape: &[usize], value: impl Fn(&mut ChaCha8Rng) -> f64) -> Value {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| value(&mut self.rng)).collect();
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), Tensor::from_f64(dtype, shape, &values).unwrap()));
        self.graph.input(name, ty(dtype, shape))
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> Value {
        self.values(dtype, shape, |rng| rng.random_range(-2.0..2.0))
    }

    /// Constant filters: the host puts channels last.
    fn constant(&mut self, dtype: DType, shape: &[usize]) -> Value {
        self.constant_of(dtype, shape, |rng| rng.random_range(-2.0..2.0))
    }

    fn constant_of(&mut self, dtype: DType, shape: &[usize], value: impl Fn(&mut ChaCha8Rng) -> f64) -> Value {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| value(&mut self.rng)).collect();
        self.graph.constant(Arc::new(Tensor::from_f64(dtype, shape, &values).unwrap()))
    }

    /// The executor's results, and that of the reference. The plan for a GPU, in which other steps
    /// replace convolutions, must agree.
    fn run(self, y: Value, threads: usize) -> ([Tensor; 2], Tensor) {
        let (have, want, _) = self.run_planned(y, threads);
        (have, want)
    }

    /// As [`Net::run`], and for each convolution whether its channels are last.
    fn run_planned(mut self, y: Value, threads: usize) -> ([Tensor; 2], Tensor, Vec<bool>) {
        self.graph.output("y", y);
        let want = evaluate(&self.graph, &self.inputs, Mode::Rounded).unwrap()[0].to_tensor().unwrap();
        let mut last = Vec::new();
        let have = ["cpu", "h200"].map(|device| {
            let plan = Arc::new(pipeline::plan(&self.graph, &Options::new(Device::named(device).unwrap())).unwrap());
            last.extend(plan.steps.iter().filter_map(|s| match &s.action {
                Action::Conv(c) => Some(c.channels_last),
                _ => None,
            }));
            let given = |n: &str| self.inputs.iter().find(|(i, _)| i == n).unwrap().1.clone();
            let inputs: Vec<Tensor> = plan.inputs.iter().map(|i| given(&i.name)).collect();
            Executor::new(plan, threads).unwrap().poisoned().run(&inputs).unwrap().remove(0)
        });
        (have, want, last)
    }
}

/// `gelu(acc + in(bias))`
fn epilogue(graph: &Graph) -> Term {
    let p = &graph.program;
    let mut t = Term::empty();
    let acc = t.add(TermNode::Acc);
    let read = t.add(TermNode::In { input: 0, view: InView::Broadcast });
    let sum = t.add(TermNode::Call { scalar: p.builtin_scalar(BuiltinScalar::Add).unwrap(), args: vec![acc, read] });
    let out = t.add(TermNode::Call { scalar: p.find_scalar("gelu").unwrap(), args: vec![sum] });
    t.roots.push(out);
    t
}

fn close(have: &Tensor, want: &Tensor, seed: u64) {
    assert_eq!((have.dtype(), have.shape()), (want.dtype(), want.shape()), "seed {seed}");
    let tolerance = match want.dtype() {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    };
    let want = want.to_f64();
    let scale = want.iter().filter(|v| v.is_finite()).fold(1.0f64, |a, v| a.max(v.abs()));
    for (i, (a, b)) in have.to_f64().into_iter().zip(want).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        assert!(same || (a - b).abs() <= tolerance * scale, "seed {seed}: element {i} is {a}, not {b}");
    }
}

/// Numbers, and if `special`, now and then an infinity or NaN.
fn number_or_special(special: bool) -> impl Fn(&mut ChaCha8Rng) -> f64 {
    move |rng| match rng.random_range(0..40) {
        0 if special => f64::NAN,
        1 if special => f64::INFINITY,
        2 if special => f64::NEG_INFINITY,
        _ => rng.random_range(-2.0..2.0),
    }
}

fn convolution(seed: u64) {
    let mut n = Net::new(seed);
    let dtype = [DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16][n.pick(0, 4)];
    let axes = n.pick(1, 3);
    let groups = [1, 1, 2, 3][n.pick(0, 3)];
    let (depth, filters) = ([1, 2, 5][n.pick(0, 2)], [1, 3, 4, 9][n.pick(0, 3)]);
    let (batch, largest) = (n.pick(0, 2), [30, 11, 6][axes - 1]);
    let mut lists = [const { Vec::new() }; 6];
    for _ in 0..axes {
        let (size, kernel) = (n.pick(1, largest), n.pick(1, 4));
        let (dilation, before) = (n.pick(1, 2), n.pick(0, 3));
        let reach = (kernel - 1) * dilation + 1;
        let after = n.pick(0, 3).max(reach.saturating_sub(size + before));
        for (list, v) in lists.iter_mut().zip([size, kernel, n.pick(1, 3), before, after, dilation]) {
            list.push(v);
        }
    }
    let [size, kernel, strides, before, after, dilations] = lists;
    let plain = n.rng.random_bool(0.3);
    let value = number_or_special(plain && n.rng.random_bool(0.5));
    let x = n.values(dtype, &[&[batch, groups * depth], &size[..]].concat(), &value);
    let w = n.values(dtype, &[&[groups * filters, depth], &kernel[..]].concat(), &value);
    let mut attrs = vec![list(&strides), list(&before), list(&after), list(&dilations), int(groups as i64)];
    let y = if plain {
        n.graph.builtin(BuiltinOp::Conv, &[x, w], attrs).unwrap()
    } else {
        let bias = n.input(dtype, &[&[groups * filters], &vec![1; axes][..]].concat());
        let to = [dtype, dtype, DType::F32, DType::BF16][n.pick(0, 3)];
        attrs.push(AttrValue::DType(to));
        let op = n.graph.program.builtin_op(BuiltinOp::ConvGemm).unwrap();
        let term = epilogue(&n.graph);
        n.graph.op(op, &[Some(x), Some(w), Some(bias)], attrs, Some(term)).unwrap()
    };
    let threads = n.pick(1, 3);
    let (have, want) = n.run(y[0], threads);
    have.iter().for_each(|have| close(have, &want, seed));
}

#[test]
fn convolutions_agree_with_the_reference() {
    (0..300).for_each(convolution);
}

/// Enough constant filters to put the channels last: dense and depthwise.
fn convolution_channels_last(seed: u64) -> bool {
    let mut n = Net::new(seed);
    let dtype = [DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16][n.pick(0, 4)];
    let axes = n.pick(1, 2);
    let (groups, depth, filters) = match n.pick(0, 1) {
        0 => (1, [1, 2, 5, 40][n.pick(0, 3)], [8, 9, 33, 70][n.pick(0, 3)]),
        _ => ([8, 9, 32, 45][n.pick(0, 3)], 1, 1),
    };
    let (batch, largest) = (n.pick(0, 2), [30, 9][axes - 1]);
    let mut lists = [const { Vec::new() }; 6];
    let one = n.rng.random_bool(0.3);
    for _ in 0..axes {
        let size = n.pick(1, largest);
        let (kernel, stride, dilation) = if one { (1, 1, 1) } else { (n.pick(1, 4), n.pick(1, 3), n.pick(1, 2)) };
        let before = if one { 0 } else { n.pick(0, 4) };
        let reach = (kernel - 1) * dilation + 1;
        let after = if one { 0 } else { n.pick(0, 4) }.max(reach.saturating_sub(size + before));
        for (list, v) in lists.iter_mut().zip([size, kernel, stride, before, after, dilation]) {
            list.push(v);
        }
    }
    let [size, kernel, strides, before, after, dilations] = lists;
    let shape = [&[batch, groups * depth], &size[..]].concat();
    let special = n.rng.random_bool(0.2);
    let value = number_or_special(special);
    let x = n.values(dtype, &shape, &value);
    // The zeros of the padding are factors like all others.
    let w = n.constant_of(dtype, &[&[groups * filters, depth], &kernel[..]].concat(), &value);
    let mut attrs = vec![list(&strides), list(&before), list(&after), list(&dilations), int(groups as i64)];
    let y = if special || n.rng.random_bool(0.3) {
        n.graph.builtin(BuiltinOp::Conv, &[x, w], attrs).unwrap()
    } else {
        let bias = n.input(dtype, &[&[groups * filters], &vec![1; axes][..]].concat());
        attrs.push(AttrValue::DType([dtype, dtype, DType::F32, DType::BF16][n.pick(0, 3)]));
        let op = n.graph.program.builtin_op(BuiltinOp::ConvGemm).unwrap();
        let term = epilogue(&n.graph);
        n.graph.op(op, &[Some(x), Some(w), Some(bias)], attrs, Some(term)).unwrap()
    };
    let threads = n.pick(1, 3);
    let (have, want, last) = n.run_planned(y[0], threads);
    have.iter().for_each(|have| close(have, &want, seed));
    last.contains(&true)
}

#[test]
fn convolutions_with_channels_last_agree_with_the_reference() {
    let last = (0..300).filter(|seed| convolution_channels_last(*seed)).count();
    assert!(last > 100, "only {last} of them had their channels last");
    for (isa, seeds) in [(Isa::Avx2, 300..350), (Isa::Portable, 350..400)] {
        limit(isa);
        seeds.for_each(|seed| {
            convolution_channels_last(seed);
        });
    }
}

/// The steps between convolutions keep the channels last: a mean per channel, its product with the
/// result, a residual, and steps that need the graph's order.
#[test]
fn work_between_convolutions_agrees_with_the_reference() {
    for seed in 0..40 {
        let mut n = Net::new(seed);
        let (channels, inner) = ([8, 12, 16, 33][n.pick(0, 3)], [8, 19, 40][n.pick(0, 2)]);
        let (batch, size) = (n.pick(1, 3), [n.pick(1, 9), n.pick(1, 9)]);
        let x = n.input(DType::F32, &[&[batch, channels], &size[..]].concat());
        let wide = n.constant(DType::F32, &[inner, channels, 1, 1]);
        let each = n.constant(DType::F32, &[inner, 1, 3, 3]);
        let squeeze = n.constant(DType::F32, &[8, inner, 1, 1]);
        let excite = n.constant(DType::F32, &[inner, 8, 1, 1]);
        let narrow = n.constant(DType::F32, &[channels, inner, 1, 1]);
        let conv = |n: &mut Net, x: Value, w: Value, pad: usize, groups: usize| {
            let attrs = vec![list(&[1, 1]), list(&[pad, pad]), list(&[pad, pad]), list(&[1, 1]), int(groups as i64)];
            n.graph.builtin(BuiltinOp::Conv, &[x, w], attrs).unwrap()[0]
        };
        let scalar = |n: &mut Net, f: BuiltinScalar, operands: &[Value]| n.graph.builtin_scalar(f, operands).unwrap();
        let y = conv(&mut n, x, wide, 0, 1);
        let y = scalar(&mut n, BuiltinScalar::Tanh, &[y]);
        let y = conv(&mut n, y, each, 1, inner);
        let mean = n.graph.builtin(BuiltinOp::Mean, &[y], vec![list(&[2, 3]), AttrValue::Bool(true)]).unwrap()[0];
        let scale = conv(&mut n, mean, squeeze, 0, 1);
        let scale = conv(&mut n, scale, excite, 0, 1);
        let scale = scalar(&mut n, BuiltinScalar::Tanh, &[scale]);
        let y = scalar(&mut n, BuiltinScalar::Mul, &[y, scale]);
        let y = conv(&mut n, y, narrow, 0, 1);
        // A residual in the graph's order.
        let y = scalar(&mut n, BuiltinScalar::Add, &[y, x]);
        let threads = n.pick(1, 2);
        let (have, want, last) = n.run_planned(y, threads);
        have.iter().for_each(|have| close(have, &want, seed));
        assert!(last.iter().filter(|l| **l).count() >= 4, "seed {seed}: {last:?}");
    }
}

/// Tiles of results, several threads, and sums longer than one panel.
#[test]
fn large_convolutions_agree_with_the_reference() {
    for (seed, dtype, shape, filters) in [
        (1, DType::F32, [1, 40, 45, 47], [9, 40, 5, 5]),
        (2, DType::BF16, [2, 24, 40, 41], [8, 12, 3, 3]),
        (3, DType::F32, [2, 33, 40, 40], [33, 1, 3, 3]),
        (4, DType::F16, [1, 33, 30, 30], [33, 1, 3, 3]),
        (5, DType::F32, [2, 64, 20, 20], [48, 64, 1, 1]),
    ] {
        let mut n = Net::new(seed);
        let (x, w) = (n.input(dtype, &shape), n.input(dtype, &filters));
        let bias = n.input(dtype, &[filters[0], 1, 1]);
        let pad = filters[2] / 2;
        let mut attrs = vec![list(&[1, 1]), list(&[pad, pad]), list(&[pad, pad]), list(&[1, 1])];
        attrs.extend([int((shape[1] / filters[1]) as i64), AttrValue::DType(dtype)]);
        let op = n.graph.program.builtin_op(BuiltinOp::ConvGemm).unwrap();
        let term = epilogue(&n.graph);
        let y = n.graph.op(op, &[Some(x), Some(w), Some(bias)], attrs, Some(term)).unwrap();
        let (have, want) = n.run(y[0], 2);
        have.iter().for_each(|have| close(have, &want, seed));
    }
}

#[test]
fn windows_sorting_and_scattering_agree_with_the_reference() {
    for seed in 0..200 {
        let mut n = Net::new(seed);
        let dtype = [DType::F32, DType::F16, DType::I64, DType::U8][n.pick(0, 3)];
        let shape = [n.pick(1, 5), n.pick(1, 6), n.pick(1, 4)];
        let special = |rng: &mut ChaCha8Rng| match rng.random_range(0..8) {
            0 if dtype.is_float() => f64::NAN,
            1 => 0.0,
            2 if dtype.is_float() => f64::INFINITY,
            _ => f64::from(rng.random_range(0..4)),
        };
        let x = n.values(dtype, &shape, special);
        let y = match seed % 3 {
            0 => {
                let (axis, descending) = (n.pick(0, 2) as i64, n.rng.random_bool(0.5));
                n.graph.builtin(BuiltinOp::Argsort, &[x], vec![int(axis), AttrValue::Bool(descending)]).unwrap()
            }
            1 => {
                let (a, b) = (n.pick(1, shape[1]), n.pick(1, shape[2]));
                let attrs = vec![list(&[a, b]), list(&[n.pick(1, 2), n.pick(1, 2)]), list(&[1, 1])];
                n.graph.builtin(BuiltinOp::Windows, &[x], attrs).unwrap()
            }
            _ => {
                let (rows, count) = (shape[0] as i64, n.pick(0, 5));
                let at = n.values(DType::I64, &[count], |rng| rng.random_range(-rows..rows) as f64);
                let updates = n.values(dtype, &[count, shape[1], shape[2]], special);
                let how = SCATTER_REDUCTIONS[n.pick(0, SCATTER_REDUCTIONS.len() - 1)].0.to_string();
                n.graph.builtin(BuiltinOp::Scatter, &[x, at, updates], vec![AttrValue::Str(how)]).unwrap()
            }
        };
        let (have, want) = n.run(y[0], 1);
        for have in have {
            assert_eq!((have.dtype(), have.shape()), (want.dtype(), want.shape()), "seed {seed}");
            let same = |(a, b): (f64, f64)| a == b || (a.is_nan() && b.is_nan());
            assert!(have.to_f64().into_iter().zip(want.to_f64()).all(same), "seed {seed}: {have:?} {want:?}");
        }
    }
}

/// Pools of every kind: windows along one and two axes with any strides, lines longer than one
/// block, NaN, infinities and zeros of both signs, several threads. The bits of zeros count if
/// nothing is rounded.
#[test]
fn pools_agree_with_the_reference() {
    for seed in 0..300 {
        let mut n = Net::new(1000 + seed);
        let dtype = [DType::F32, DType::F32, DType::F16, DType::BF16, DType::F64][n.pick(0, 4)];
        let wide = if seed % 10 == 0 { 2500 } else { 40 };
        let sizes = [n.pick(1, 4), n.pick(1, 3)];
        let dilations = [n.pick(1, 2), n.pick(1, 5)];
        let reach = [0, 1].map(|i| (sizes[i] - 1) * dilations[i] + 1);
        let shape = [n.pick(1, 3), reach[0] + n.pick(0, 9), reach[1] + n.pick(0, wide)];
        let kind = [BuiltinOp::Amax, BuiltinOp::Amin, BuiltinOp::Sum, BuiltinOp::Mean, BuiltinOp::Prod][n.pick(0, 4)];
        let special = seed % 2 == 0;
        let x = n.values(dtype, &shape, |rng| match rng.random_range(0..24) {
            0 if special => f64::NAN,
            1 if special => f64::INFINITY,
            2 if special => f64::NEG_INFINITY,
            3..8 if special => [0.0, -0.0][rng.random_range(0..2)],
            _ => rng.random_range(-2.0..2.0),
        });
        let strides = list(&[n.pick(1, 3), n.pick(1, 5)]);
        let windows = n.graph.builtin(BuiltinOp::Windows, &[x], vec![list(&sizes), strides, list(&dilations)]).unwrap();
        let axes = if n.rng.random_bool(0.8) { vec![-2, -1] } else { vec![-1] };
        let axes = AttrValue::List(axes.into_iter().map(int).collect());
        let y = n.graph.builtin(kind, &windows, vec![axes, AttrValue::Bool(false)]).unwrap();
        let (have, want) = n.run(y[0], 1 + seed as usize % 2);
        for have in &have {
            close(have, &want, 1000 + seed);
            if matches!(kind, BuiltinOp::Amax | BuiltinOp::Amin) {
                let signs =
                    |t: &Tensor| t.to_f64().iter().map(|v| *v == 0.0 && v.is_sign_negative()).collect::<Vec<_>>();
                assert_eq!(signs(have), signs(&want), "seed {seed}: zeros of {kind:?}");
            }
        }
    }
}
