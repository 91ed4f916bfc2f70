//! Row-wise kernels of ops of all kinds, run on the CPU, against the f64 reference: ragged sizes, 0
//! and 1, NaN and infinities, operands after views.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::source::SourceFile;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::Executor;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::ty;

const FILE: &str = "edition 1;
use core::*;
use nn::*;

/// A mask that broadcasts over leading axes.
op attend<T: float>(x: T[..s], mask: T[..t], scale: float = 0.5) -> T[..broadcast(s, t)]
  = softmax(x * scale + mask);
kernel attend_row for attend(x, mask, scale = scale) { rowwise; }

/// A mask of truth values.
op where_attend<T: float>(x: T[..s], mask: bool[..t]) -> T[..broadcast(s, t)] = softmax(select(mask, x, -inf));
kernel where_row for where_attend(x, mask) { rowwise; }

/// Any axis.
op soft_axis<T: float>(x: T[..s], axis: axis) -> T[..s] = softmax(x, axis = axis);
kernel soft_axis_row for soft_axis(x, axis = a) { rowwise; }

/// Mean 0 and variance 1 over the channels, which are not the last axis.
op channel_norm<T: float>(x: T[b, c, n], scale: T[c], eps: float = 1e-5) -> T[b, c, n]
  = (x - mean(x, axes = [1])) * rsqrt(mean((x - mean(x, axes = [1])) * (x - mean(x, axes = [1])), axes = [1]) + eps)
    * reshape(scale, shape = [c, 1]);
kernel channel_norm_row for channel_norm(x, scale, eps = eps) { rowwise; }

/// Groups of channels: rows of two axes that the operand has as one.
op group_norm<T: float>(x: T[b, c, n], scale: T[c], bias: T[c], groups: int, eps: float = 1e-5) -> T[b, c, n]
  = reshape(
      (reshape(x, shape = [b, groups, c / groups, n])
        - mean(reshape(x, shape = [b, groups, c / groups, n]), axes = [2, 3]))
      * rsqrt(
        mean(
          reshape(x, shape = [b, groups, c / groups, n]) * reshape(x, shape = [b, groups, c / groups, n]),
          axes = [2, 3]
        ) + eps
      ),
      shape = [b, c, n]) * reshape(scale, shape = [c, 1]) + reshape(bias, shape = [c, 1]);
kernel group_norm_row for group_norm(x, scale, bias, groups = g, eps = eps) { rowwise; }

/// The sum and its norm.
op add_norm<T: float>(x: T[..s, n], r: T[..s, n], scale: T[n], eps: float = 1e-6) -> (T[..s, n], T[..s, n])
  = (x + r, rms_norm(x + r, scale, eps = eps));
kernel add_norm_row for add_norm(x, r, scale, eps = eps) { rowwise; }

/// Two element types, and casts.
op rows<T: float>(x: T[..s, n], w: f32[n]) -> T[..s, n]
  = cast(cast(x, to = f32) * rsqrt(mean(cast(x, to = f32) * cast(x, to = f32), axes = [-1]) + 1e-6) * w, to = dtype(x));
kernel rows_row for rows(x, w) { rowwise; }

/// Sums in f64 of values in f32.
op wide(x: f32[..s, n]) -> f32[..s, n]
  = x - cast(mean(cast(x, to = f64), axes = [-1]), to = f32);
kernel wide_row for wide(x) { rowwise; }

/// A value for each row and one for each element, through a transposed view.
op turned<T: float>(x: T[m, n], r: T[n]) -> (T[n, m], T[n])
  = (transpose(x, perm = [1, 0]) - amax(transpose(x, perm = [1, 0]), axes = [1]),
     sum(transpose(x, perm = [1, 0]), axes = [1], keepdims = false) * r);
kernel turned_row for turned(x, r) { rowwise; }

/// Two extents: a row, and groups within it.
op in_groups<T: float>(x: T[m, g, c]) -> (T[m, g * c], T[m, g], T[m])
  = (reshape(
      x * rsqrt(mean(x * x, axes = [1, 2]) + 1e-6)
        - mean(x * rsqrt(mean(x * x, axes = [1, 2]) + 1e-6), axes = [2]),
      shape = [m, g * c]),
     amax(x * rsqrt(mean(x * x, axes = [1, 2]) + 1e-6), axes = [2], keepdims = false),
     amax(x, axes = [1, 2], keepdims = false));
kernel in_groups_row for in_groups(x) { rowwise; }
";

fn program() -> Arc<Program> {
    let file = SourceFile { name: "rows.hyp".into(), path: None, text: FILE.into(), embedded: false };
    let c = hypatia_library::check(vec![file]);
    Arc::new(c.program.unwrap_or_else(|| panic!("{:#?}", c.diagnostics)))
}

struct Case {
    rng: ChaCha8Rng,
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    wild: bool,
}

impl Case {
    fn new(program: &Arc<Program>, seed: u64, wild: bool) -> Case {
        let graph = Graph::new(program.clone());
        Case { rng: ChaCha8Rng::seed_from_u64(seed), graph, inputs: Vec::new(), wild }
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let rng = &mut self.rng;
        let wild = self.wild;
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|_| match rng.random_range(0..60) {
                0 if wild => f64::NAN,
                1 if wild => f64::INFINITY,
                2 if wild => f64::NEG_INFINITY,
                _ if dtype == DType::Bool => rng.random_range(0..2) as f64,
                _ => rng.random_range(-2.0..2.0),
            })
            .collect();
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), Tensor::from_f64(dtype, shape, &values).unwrap()));
        self.graph.input(name, ty(dtype, shape))
    }

    /// Checks that the op on these operands is one row-wise launch, and agrees with the reference.
    fn check(mut self, op: &str, operands: &[Value], attrs: &[(&str, AttrValue)], dtype: DType) {
        let results = self.graph.call(op, operands, attrs).unwrap();
        for (i, v) in results.into_iter().enumerate() {
            self.graph.output(format!("y{i}"), v);
        }
        let want = evaluate(&self.graph, &self.inputs, Mode::Exact).unwrap();
        let options = Options::new(Device::named("cpu").unwrap());
        let plan = Arc::new(pipeline::plan(&self.graph, &options).unwrap());
        let row = plan.steps.iter().filter(|s| matches!(s.action, Action::Rowwise(_))).count();
        assert!(row == 1 && plan.launches() == 1, "{op} is no row-wise launch:\n{plan}");
        let inputs: Vec<Tensor> = self.inputs.iter().map(|(_, t)| t.clone()).collect();
        for threads in [1, 3] {
            let got = Executor::new(plan.clone(), threads).unwrap().poisoned().run(&inputs).unwrap();
            for (g, w) in got.iter().zip(&want) {
                let what = format!("{op}, {threads} threads\n{plan}");
                compare(g, &w.to_tensor().unwrap(), dtype, &what);
            }
        }
    }
}

fn compare(got: &Tensor, want: &Tensor, dtype: DType, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    let epsilon = dtype.epsilon().max(1e-6) * 8.0;
    for (i, (g, w)) in got.to_f64().iter().zip(&want.to_f64()).enumerate() {
        let close = (g - w).abs() <= epsilon * (1.0 + w.abs()) || (g.is_nan() && w.is_nan()) || g == w;
        assert!(close, "{what}\nelement {i}: {g} instead of {w}");
    }
}

fn axis(a: i64) -> AttrValue {
    AttrValue::Dim(Dim::from(a))
}

const SIZES: [usize; 7] = [1, 2, 3, 5, 8, 17, 33];

fn each(f: impl Fn(&Arc<Program>, u64, bool, DType, [usize; 4])) {
    let program = program();
    for seed in 0..24 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut sizes = [0; 4].map(|_| *SIZES.choose(&mut rng).unwrap());
        if seed % 8 == 7 {
            sizes[rng.random_range(0..4)] = 0;
        }
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::F16][seed as usize % 4];
        f(&program, seed, seed % 3 == 0, dtype, sizes);
    }
}

#[test]
fn masks_broadcast_over_leading_axes() {
    each(|p, seed, wild, dtype, [b, h, q, k]| {
        let k = k.max(1);
        for mask in [vec![q, k], vec![b, 1, 1, k], vec![b, 1, q, k], vec![h, 1, k], vec![b, h, q, 1], vec![k], vec![]] {
            let mut c = Case::new(p, seed, wild);
            let x = c.input(dtype, &[b, h, q, k]);
            let m = c.input(dtype, &mask);
            c.check("attend", &[x, m], &[], dtype);
            let mut c = Case::new(p, seed, false);
            let x = c.input(dtype, &[b, h, q, k]);
            let m = c.input(DType::Bool, &mask);
            c.check("where_attend", &[x, m], &[], dtype);
        }
    });
}

#[test]
fn any_axis_is_reduced() {
    each(|p, seed, wild, dtype, sizes| {
        for a in 0..4 {
            let mut c = Case::new(p, seed, wild);
            let x = c.input(dtype, &sizes);
            c.check("soft_axis", &[x], &[("axis", axis(a))], dtype);
        }
        let mut c = Case::new(p, seed, wild);
        let x = c.input(dtype, &sizes[..3]);
        let s = c.input(dtype, &[sizes[1]]);
        c.check("channel_norm", &[x, s], &[], dtype);
    });
}

#[test]
fn groups_of_an_axis_are_rows() {
    each(|p, seed, wild, dtype, [b, g, c, n]| {
        let (b, g, c, n) = (b.max(1), g.max(1), c.max(1), n.max(1));
        let mut case = Case::new(p, seed, wild);
        let x = case.input(dtype, &[b, g * c, n]);
        let (s, t) = (case.input(dtype, &[g * c]), case.input(dtype, &[g * c]));
        case.check("group_norm", &[x, s, t], &[("groups", axis(g as i64))], dtype);
    });
}

/// Short rows, which are computed together, and rows that are computed in pieces, with groups that
/// are shorter and longer than a piece.
#[test]
fn groups_within_a_row_are_reduced() {
    each(|p, seed, wild, dtype, [m, g, c, _]| {
        let mut case = Case::new(p, seed, wild);
        // A group of one element is no group.
        let x = case.input(dtype, &[m.max(1), g.max(2), c.max(2)]);
        case.check("in_groups", &[x], &[], dtype);
    });
    let program = program();
    for (seed, (dtype, shape)) in [
        (DType::F32, [3, 72, 128]),
        (DType::F64, [2, 72, 128]),
        (DType::BF16, [2, 3000, 3]),
        (DType::F32, [2, 3, 4099]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut case = Case::new(&program, seed as u64, seed == 3);
        let x = case.input(dtype, &shape);
        case.check("in_groups", &[x], &[], dtype);
    }
}

#[test]
fn several_results_and_element_types() {
    each(|p, seed, wild, dtype, [b, m, n, _]| {
        let mut c = Case::new(p, seed, wild);
        let (x, r, s) = (c.input(dtype, &[b, m, n]), c.input(dtype, &[b, m, n]), c.input(dtype, &[n]));
        c.check("add_norm", &[x, r, s], &[], dtype);
        let mut c = Case::new(p, seed, wild);
        let (x, w) = (c.input(dtype, &[b, m, n]), c.input(DType::F32, &[n]));
        c.check("rows", &[x, w], &[], dtype.max_epsilon(DType::F32));
        let mut c = Case::new(p, seed, wild);
        let x = c.input(DType::F32, &[m, n]);
        c.check("wide", &[x], &[], DType::F32);
        let mut c = Case::new(p, seed, wild);
        let (x, r) = (c.input(dtype, &[m, n]), c.input(dtype, &[n]));
        c.check("turned", &[x, r], &[], dtype);
    });
}

trait Coarser {
    fn max_epsilon(self, other: DType) -> DType;
}

impl Coarser for DType {
    /// The element type with the larger epsilon.
    fn max_epsilon(self, other: DType) -> DType {
        if self.epsilon() > other.epsilon() { self } else { other }
    }
}

#[test]
fn large_rows_are_shared_among_threads() {
    let p = program();
    let mut c = Case::new(&p, 1, false);
    let (x, m) = (c.input(DType::F32, &[2, 3, 64, 257]), c.input(DType::F32, &[64, 257]));
    c.check("attend", &[x, m], &[], DType::F32);
    let mut c = Case::new(&p, 2, false);
    let x = c.input(DType::F32, &[4, 130, 67]);
    c.check("soft_axis", &[x], &[("axis", axis(1))], DType::F32);
}
