//! Gradients against central differences in f64, for every builtin op and every scalar of the
//! library.
#![allow(clippy::unwrap_used, missing_docs)]

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::source::SourceFile;
use hypatia_dsl::typing::TensorType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_tensor::tensor::Tensor;
use std::sync::{Arc, OnceLock};

fn library() -> Arc<Program> {
    static LIBRARY: OnceLock<Arc<Program>> = OnceLock::new();
    LIBRARY.get_or_init(|| hypatia_library::load(&[]).unwrap()).clone()
}

/// Numbers between -1 and 1 that look random.
fn number(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// A graph whose outputs are added to one loss, each element with a factor of its own.
struct Case {
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    seed: u64,
}

impl Case {
    fn new() -> Case {
        Case { graph: Graph::new(library()), inputs: Vec::new(), seed: 7 }
    }

    /// An input of f64, with numbers from `low` to `high`.
    fn between(&mut self, shape: &[usize], low: f64, high: f64) -> Value {
        let count = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|_| low + (high - low) * (number(&mut self.seed) + 1.0) / 2.0).collect();
        self.given(shape, &values)
    }

    fn given(&mut self, shape: &[usize], values: &[f64]) -> Value {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), Tensor::from_slice(shape, values).unwrap()));
        let shape = shape.iter().map(|d| Dim::from(*d as i64)).collect();
        self.graph.input(name, TensorType { dtype: DType::F64, shape })
    }

    fn input(&mut self, shape: &[usize]) -> Value {
        self.between(shape, -1.0, 1.0)
    }

    fn indices(&mut self, shape: &[usize], values: &[i64]) -> Value {
        self.graph.constant(Tensor::from_slice(shape, values).unwrap())
    }

    fn op(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Vec<Value> {
        self.graph.builtin(op, operands, attrs).unwrap()
    }

    /// Compares the gradients of all inputs with differences. Returns how many numbers.
    fn agrees(self, what: &str, results: &[Value]) -> usize {
        self.agrees_within(1e-7, what, results)
    }

    fn agrees_within(mut self, tolerance: f64, what: &str, results: &[Value]) -> usize {
        let mut loss = None;
        for result in results {
            let shape: Vec<usize> =
                self.graph.ty(*result).shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
            let count = shape.iter().product();
            let factors: Vec<f64> = (0..count).map(|_| number(&mut self.seed)).collect();
            let factors = self.graph.constant(Tensor::from_slice(&shape, &factors).unwrap());
            let product = self.graph.call("mul", &[*result, factors], &[]).unwrap()[0];
            let axes: Vec<i64> = (0..shape.len() as i64).collect();
            let sum = match axes.is_empty() {
                true => product,
                false => self.op(BuiltinOp::Sum, &[product], vec![ints(&axes), false.into()])[0],
            };
            loss = Some(match loss {
                Some(before) => self.graph.call("add", &[before, sum], &[]).unwrap()[0],
                None => sum,
            });
        }
        self.graph.output("loss", loss.unwrap());
        let names: Vec<&str> = self.inputs.iter().map(|(n, _)| n.as_str()).collect();
        let joint = self.graph.grad("loss", &names).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(joint.outputs.len(), 1 + names.len(), "{what}");
        let results = evaluate(&joint, &self.inputs, Mode::Exact).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut compared = 0;
        for (i, (name, tensor)) in self.inputs.iter().enumerate() {
            let found = results[1 + i].to_f64();
            for (j, found) in found.iter().enumerate() {
                let wanted = self.difference(i, j);
                let close = (found - wanted).abs() <= tolerance * (1.0 + wanted.abs());
                assert!(close, "{what}: {name}[{j}] of {:?}: {found}, by differences {wanted}", tensor.shape());
                compared += 1;
            }
        }
        compared
    }

    /// The slope of the loss by one element.
    fn difference(&self, input: usize, element: usize) -> f64 {
        let step = 1e-5;
        let at = |by: f64| {
            let mut inputs = self.inputs.clone();
            let mut values = inputs[input].1.to_f64();
            values[element] += by;
            inputs[input].1 = Tensor::from_slice(self.inputs[input].1.shape(), &values).unwrap();
            evaluate(&self.graph, &inputs, Mode::Exact).unwrap()[0].to_f64()[0]
        };
        (at(step) - at(-step)) / (2.0 * step)
    }
}

fn ints(values: &[i64]) -> AttrValue {
    values.into()
}

#[test]
fn products_have_the_slopes_of_their_factors() {
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[3, 4], &[4, 2]),
        (&[2, 3, 4], &[4, 2]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[3, 4], &[2, 4, 2]),
        (&[2, 1, 3, 4], &[3, 4, 2]),
        (&[2, 3, 1, 4], &[1, 3, 4, 2]),
        (&[1, 3, 4], &[4, 2]),
        (&[3, 0], &[0, 2]),
    ];
    for (a, b) in shapes {
        let mut c = Case::new();
        let (a, b) = (c.input(a), c.input(b));
        let y = c.op(BuiltinOp::Matmul, &[a, b], vec![]);
        c.agrees("matmul", &y);
    }
}

#[test]
fn epilogues_pass_gradients_on() {
    let text = "edition 1;\nuse core::*;\nuse nn::*;\n\
        op layer<T: float>(x: T[..s, m, k], w: T[k, n], b: T[n], r: T[m], q: T[m, n]) -> T[..s, m, n]\n\
          = gemm(x, w, gelu(acc + row(b)) * tanh(col(r)) + full(q) * acc, to = T);\n\
        op gated<T: float>(x: T[m, k], u: T[k, n], v: T[k, n]) -> T[m, n]\n\
          = gemm2(x, u, v, silu(acc) * acc1, to = T);\n\
        op filtered<T: float>(x: T[n, c, h, l], w: T[o, c, 2, 3], b: T[o, 1, 1]) -> T[n, o, h, l - 1]\n\
          = conv_gemm(x, w, tanh(acc + in(b)), strides = [1, 1], before = [1, 0], after = [0, 1],\n\
            dilations = [1, 1], to = T);\n";
    let file = SourceFile { name: "layers.hyp".into(), path: None, text: text.into(), embedded: false };
    let compiled = hypatia_library::compile_sources(vec![file]);
    let program = Arc::new(compiled.program.unwrap_or_else(|| panic!("{:?}", compiled.diagnostics)));
    let cases: [(&str, &[&[usize]]); 3] = [
        ("layer", &[&[3, 4], &[4, 2], &[2], &[3], &[3, 2]]),
        ("gated", &[&[3, 4], &[4, 2], &[4, 2]]),
        ("filtered", &[&[2, 3, 5, 4], &[2, 3, 2, 3], &[2, 1, 1]]),
    ];
    for (name, shapes) in cases {
        let mut c = Case { graph: Graph::new(program.clone()), inputs: Vec::new(), seed: 3 };
        let operands: Vec<Value> = shapes.iter().map(|s| c.input(s)).collect();
        let y = c.graph.call(name, &operands, &[]).unwrap();
        c.agrees(name, &y);
    }
}

/// Ops that are defined by a body, also inside one another.
#[test]
fn ops_of_the_library_have_gradients_through_their_bodies() {
    let ops: [(&str, &[&[usize]]); 8] = [
        ("softmax", &[&[2, 3, 4]]),
        ("safe_softmax", &[&[2, 5]]),
        ("log_softmax", &[&[3, 4]]),
        ("layer_norm", &[&[2, 3, 5], &[5], &[5]]),
        ("rms_norm", &[&[3, 4], &[4]]),
        ("attention", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 3], &[3, 5]]),
        ("swiglu", &[&[3, 4], &[5, 4], &[5, 4], &[2, 5]]),
        ("mlp", &[&[2, 3, 4], &[5, 4], &[5], &[2, 5], &[2]]),
    ];
    for (name, shapes) in ops {
        let mut c = Case::new();
        let operands: Vec<Option<Value>> = shapes.iter().map(|s| Some(c.input(s))).collect();
        let y = c.graph.named_op(name, &operands, &[], None).unwrap();
        assert!(c.agrees(name, &y) > 4);
    }
}

#[test]
fn convolutions_of_every_form_have_gradients() {
    // Sizes of x and w, strides, before, after, dilations, groups.
    type Form<'a> = (&'a [usize], &'a [usize], [&'a [i64]; 4], i64);
    let forms: [Form; 7] = [
        (&[2, 3, 5], &[4, 3, 3], [&[1], &[0], &[0], &[1]], 1),
        (&[2, 3, 7], &[4, 3, 3], [&[2], &[1], &[2], &[1]], 1),
        (&[1, 2, 9], &[2, 2, 3], [&[3], &[4], &[0], &[2]], 1),
        (&[2, 4, 6, 5], &[6, 2, 3, 2], [&[2, 1], &[1, 0], &[1, 1], &[1, 2]], 2),
        (&[2, 3, 4, 4], &[3, 1, 3, 3], [&[1, 2], &[1, 1], &[1, 1], &[1, 1]], 3),
        (&[1, 2, 4], &[3, 2, 1], [&[3], &[0], &[0], &[1]], 1),
        (&[1, 1, 3, 3, 3], &[2, 1, 2, 2, 2], [&[1, 1, 2], &[0, 1, 0], &[1, 0, 0], &[1, 1, 1]], 1),
    ];
    for (x, w, lists, groups) in forms {
        let mut c = Case::new();
        let (vx, vw) = (c.input(x), c.input(w));
        let mut attrs: Vec<AttrValue> = lists.iter().map(|l| ints(l)).collect();
        attrs.push(groups.into());
        let y = c.op(BuiltinOp::Conv, &[vx, vw], attrs);
        c.agrees(&format!("conv {x:?} {w:?} {lists:?} {groups}"), &y);
    }
}

#[test]
fn windows_that_overlap_add_up() {
    for (shape, lists) in [
        (&[2, 7][..], [&[3][..], &[2], &[1]]),
        (&[7], [&[2], &[1], &[3]]),
        (&[2, 3, 5, 6], [&[2, 3], &[2, 1], &[1, 2]]),
        (&[2, 3, 4, 4], [&[2, 2], &[2, 2], &[1, 1]]),
    ] {
        let mut c = Case::new();
        let x = c.input(shape);
        let y = c.op(BuiltinOp::Windows, &[x], lists.map(ints).to_vec());
        c.agrees(&format!("windows {shape:?} {lists:?}"), &y);
    }
}

#[test]
fn views_pass_gradients_back() {
    let at = |shape: &[usize], op: BuiltinOp, attrs: Vec<AttrValue>| {
        let mut c = Case::new();
        let x = c.input(shape);
        let y = c.op(op, &[x], attrs.clone());
        c.agrees(&format!("{} {shape:?} {attrs:?}", op.name()), &y);
    };
    at(&[2, 6], BuiltinOp::Reshape, vec![ints(&[3, 4])]);
    at(&[2, 3, 4], BuiltinOp::Transpose, vec![ints(&[2, 0, 1])]);
    at(&[3, 1], BuiltinOp::Expand, vec![ints(&[2, 3, 4])]);
    at(&[1, 1], BuiltinOp::Expand, vec![ints(&[1, 1])]);
    for (start, stop, step) in
        [(0, 7, 1), (2, 5, 1), (0, 7, 2), (1, 7, 3), (0, 7, 7), (6, -1, -1), (6, 0, -2), (5, 1, -3), (3, 3, 1)]
    {
        let attrs = vec![1.into(), start.into(), stop.into(), step.into()];
        at(&[2, 7, 3], BuiltinOp::Slice, attrs);
    }
    at(&[7, 2], BuiltinOp::Split, vec![0.into(), ints(&[1, 4, 2])]);
    at(&[3, 2], BuiltinOp::Cast, vec![DType::F64.into()]);
    let mut c = Case::new();
    let parts = [c.input(&[2, 3]), c.input(&[2, 1]), c.input(&[2, 2])];
    let y = c.op(BuiltinOp::Concat, &parts, vec![1.into()]);
    c.agrees("concat", &y);
    for (before, after) in [([1, 0], [2, 3]), ([-1, 2], [0, -1]), ([0, 0], [0, 0]), ([-1, -1], [-1, -1])] {
        let mut c = Case::new();
        let (x, value) = (c.input(&[3, 4]), c.input(&[]));
        let y = c.op(BuiltinOp::Pad, &[x, value], vec![ints(&before), ints(&after)]);
        c.agrees("pad", &y);
    }
}

/// One part of a split is not used.
#[test]
fn what_nothing_uses_has_no_gradient() {
    let mut c = Case::new();
    let (x, _) = (c.input(&[6]), c.input(&[2]));
    let parts = c.op(BuiltinOp::Split, &[x], vec![0.into(), ints(&[2, 1, 3])]);
    c.agrees("split", &parts[1..2]);
}

#[test]
fn reductions_have_gradients_at_ties_and_zeros() {
    for op in [BuiltinOp::Sum, BuiltinOp::Mean, BuiltinOp::Amax, BuiltinOp::Amin, BuiltinOp::Prod] {
        for (axes, keepdims) in [(&[0][..], true), (&[1], false), (&[-1, 0], false), (&[0, 1, 2], true)] {
            let mut c = Case::new();
            let x = c.input(&[2, 3, 2]);
            let y = c.op(op, &[x], vec![ints(axes), keepdims.into()]);
            c.agrees(op.name(), &y);
        }
    }
    let mut c = Case::new();
    let x = c.given(&[4, 3], &[0.0, 2.0, 3.0, 0.0, 0.0, 5.0, -0.0, 7.0, 0.5, 1.0, 2.0, 3.0]);
    let y = c.op(BuiltinOp::Prod, &[x], vec![ints(&[1]), false.into()]);
    c.agrees("prod with zeros", &y);
    for flags in 0..4 {
        let mut c = Case::new();
        let x = c.input(&[3, 4]);
        let y = c.op(BuiltinOp::Cumsum, &[x], vec![1.into(), (flags & 1 == 1).into(), (flags & 2 == 2).into()]);
        c.agrees("cumsum", &y);
    }
    // Equal largest elements have equal shares: differences do not tell.
    let mut g = Graph::new(library());
    let x = g.input("x", TensorType { dtype: DType::F64, shape: vec![Dim::from(4)] });
    let y = g.builtin(BuiltinOp::Amax, &[x], vec![ints(&[0]), false.into()]).unwrap()[0];
    g.output("loss", y);
    let x = Tensor::from_slice(&[4], &[1.0, 3.0, 3.0, 2.0]).unwrap();
    let got = evaluate(&g.grad("loss", &["x"]).unwrap(), &[("x".into(), x)], Mode::Exact).unwrap();
    assert_eq!(got[1].to_f64(), [0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn gathers_and_scatters_have_gradients() {
    for (axis, indices, of) in [(0, &[2, 0, 2, -1][..], &[2, 2][..]), (1, &[1, 1, -2], &[3]), (-1, &[0], &[])] {
        let mut c = Case::new();
        let (x, indices) = (c.input(&[3, 4, 2]), c.indices(of, indices));
        let y = c.op(BuiltinOp::Gather, &[x, indices], vec![AttrValue::from(axis)]);
        c.agrees("gather", &y);
    }
    for axis in [0, 1, -1] {
        let mut c = Case::new();
        let (x, indices) = (c.input(&[3, 3]), c.indices(&[2, 3], &[0, 2, -1, 0, 1, -3]));
        let y = c.op(BuiltinOp::GatherElements, &[x, indices], vec![axis.into()]);
        c.agrees("gather_elements", &y);
    }
    let mut c = Case::new();
    let (x, indices) = (c.input(&[3, 4]), c.indices(&[3, 1], &[2, 0, -1]));
    let y = c.op(BuiltinOp::GatherElements, &[x, indices], vec![1.into()]);
    c.agrees("one index for each row", &y);
    for (batch, shape, of, indices) in [
        (0, &[3, 4, 2][..], &[2, 2][..], &[0, 1, -1, -4][..]),
        (0, &[3, 4], &[3, 1], &[0, 0, -1]),
        (1, &[2, 3, 2], &[2, 2, 1], &[0, 0, -1, 1]),
    ] {
        let mut c = Case::new();
        let (x, indices) = (c.input(shape), c.indices(of, indices));
        let y = c.op(BuiltinOp::GatherNd, &[x, indices], vec![batch.into()]);
        c.agrees("gather_nd", &y);
    }
    for how in ["set", "add"] {
        let mut c = Case::new();
        let (x, updates) = (c.input(&[4, 2]), c.input(&[3, 2]));
        let indices = c.indices(&[3], &[1, -1, 3]);
        let y = c.op(BuiltinOp::Scatter, &[x, indices, updates], vec![how.into()]);
        c.agrees(&format!("scatter {how}"), &y);
    }
}

#[test]
fn every_scalar_of_the_library_has_its_slopes() {
    let program = library();
    let mut without = Vec::new();
    for scalar in program.scalars.iter().filter(|s| s.result == Kind::Number) {
        let mut compared = 0;
        for (low, high) in [(-2.0, -0.4), (0.3, 0.9), (1.1, 2.5)] {
            for at in 0..8 {
                let mut c = Case::new();
                c.seed = at;
                let operands: Vec<Value> = scalar
                    .params
                    .iter()
                    .map(|(_, kind)| match kind {
                        Kind::Number => c.between(&[], low, high),
                        Kind::Bool => c.graph.constant(Tensor::from_f64(DType::Bool, &[], &[(at % 2) as f64]).unwrap()),
                    })
                    .collect();
                let y = c.graph.call(&scalar.name, &operands, &[]).unwrap();
                let mut alone = c.graph.clone();
                alone.output("y", y[0]);
                let value = evaluate(&alone, &c.inputs, Mode::Exact).unwrap()[0].to_f64()[0];
                if value.is_finite() {
                    compared += c.agrees(&scalar.name, &y);
                }
            }
        }
        if compared < 8 {
            without.push(scalar.name.clone());
        }
    }
    assert_eq!(without, Vec::<String>::new());
}

/// Smooth functions whose formulas have a kink that cancels: a bias begins at 0.
#[test]
fn smooth_functions_have_their_slopes_at_zero() {
    for name in ["softplus", "log_sigmoid", "celu", "gelu", "silu", "mish", "softsign", "tanh"] {
        let mut c = Case::new();
        let x = c.given(&[2], &[0.0, -0.0]);
        let mut operands = vec![x];
        if name == "celu" {
            operands.push(c.given(&[2], &[1.5, 0.5]));
        }
        let y = c.graph.call(name, &operands, &[]).unwrap();
        // The slopes are continuous, not all of their slopes are: differences show that.
        assert!(c.agrees_within(1e-5, name, &y) >= 2);
    }
}

/// 0 times infinity does not arise where a branch was not chosen.
#[test]
fn infinite_slopes_that_were_not_chosen_do_not_spoil() {
    let mut g = Graph::new(library());
    let x = g.input("x", TensorType { dtype: DType::F64, shape: vec![Dim::from(3)] });
    let root = g.call("sqrt", &[x], &[]).unwrap()[0];
    let y = g.call("relu", &[root], &[]).unwrap()[0];
    let sum = g.builtin(BuiltinOp::Sum, &[y], vec![ints(&[0]), false.into()]).unwrap()[0];
    g.output("loss", sum);
    let x = Tensor::from_slice(&[3], &[0.0, 4.0, 1.0]).unwrap();
    let got = evaluate(&g.grad("loss", &["x"]).unwrap(), &[("x".into(), x)], Mode::Exact).unwrap();
    let got = got[1].to_f64();
    assert!(got[0].is_nan() || got[0] == 0.0, "{got:?}");
    assert_eq!(got[1..], [0.25, 0.5]);
}

/// Symbolic sizes: the same graph at two numbers of rows.
#[test]
fn sizes_may_be_symbols() {
    let mut g = Graph::new(library());
    let ty = |shape: Vec<Dim>| TensorType { dtype: DType::F64, shape };
    let x = g.input("x", ty(vec![Dim::symbol("rows"), Dim::from(3)]));
    let w = g.input("w", ty(vec![Dim::from(3), Dim::from(2)]));
    let h = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
    let h = g.call("softmax", &[h], &[("axis", (-1).into())]).unwrap()[0];
    let h = g.call("mul", &[h, h], &[]).unwrap()[0];
    let mean = g.builtin(BuiltinOp::Mean, &[h], vec![ints(&[0, 1]), false.into()]).unwrap()[0];
    g.output("loss", mean);
    let joint = g.grad("loss", &["w", "x"]).unwrap();
    for rows in [1, 4] {
        let mut c = Case::new();
        c.graph = Graph::new(library());
        let (x, w) = (c.input(&[rows, 3]), c.input(&[3, 2]));
        let inputs = vec![("x".to_string(), c.inputs[0].1.clone()), ("w".to_string(), c.inputs[1].1.clone())];
        let got = evaluate(&joint, &inputs, Mode::Exact).unwrap();
        let loss = |inputs: &[(String, Tensor)]| evaluate(&g, inputs, Mode::Exact).unwrap()[0].to_f64()[0];
        for (name, at) in [("w", 1), ("x", 2)] {
            for (j, found) in got[at].to_f64().iter().enumerate() {
                let moved = |by: f64| {
                    let mut inputs = inputs.clone();
                    let input = inputs.iter_mut().find(|(n, _)| n == name).unwrap();
                    let mut values = input.1.to_f64();
                    values[j] += by;
                    input.1 = Tensor::from_slice(input.1.shape(), &values).unwrap();
                    loss(&inputs)
                };
                let wanted = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((found - wanted).abs() < 1e-8, "{name}[{j}] with {rows} rows: {found}, {wanted}");
            }
        }
        let _ = (x, w);
    }
}

/// A vector-Jacobian product takes the gradient of any output.
#[test]
fn gradients_of_outputs_may_be_given() {
    let mut g = Graph::new(library());
    let ty = TensorType { dtype: DType::F64, shape: vec![Dim::from(2)] };
    let x = g.input("x", ty);
    let y = g.call("exp", &[x], &[]).unwrap()[0];
    let z = g.call("mul", &[x, x], &[]).unwrap()[0];
    g.output("y", y);
    g.output("z", z);
    let joint = g.vjp(&["y", "z"], &["x"]).unwrap();
    let of = |values: [f64; 2]| Tensor::from_slice(&[2], &values).unwrap();
    let inputs = [("x".into(), of([0.0, 1.0])), ("y.grad".into(), of([2.0, 1.0])), ("z.grad".into(), of([1.0, 3.0]))];
    let got = evaluate(&joint, &inputs, Mode::Exact).unwrap();
    assert_eq!(got[2].to_f64(), [2.0, 1f64.exp() + 6.0]);
}

/// f16 and bf16: one rounding of a derivative of several operations.
#[test]
fn narrow_types_round_derivatives_once() {
    for dtype in [DType::BF16, DType::F16] {
        let mut g = Graph::new(library());
        let x = g.input("x", TensorType { dtype, shape: vec![Dim::from(64)] });
        let y = g.call("gelu", &[x], &[]).unwrap()[0];
        g.output("y", y);
        let joint = g.vjp(&["y"], &["x"]).unwrap();
        let values: Vec<f64> = (0..64).map(|i| dtype.round(f64::from(i) / 9.0 - 3.5)).collect();
        let x = Tensor::from_f64(dtype, &[64], &values).unwrap();
        let ones = Tensor::from_f64(dtype, &[64], &[1.0; 64]).unwrap();
        let inputs = [("x".to_string(), x), ("y.grad".to_string(), ones)];
        let exact = evaluate(&joint, &inputs, Mode::Exact).unwrap()[1].to_f64();
        let rounded = evaluate(&joint, &inputs, Mode::Rounded).unwrap()[1].to_f64();
        for (exact, rounded) in exact.iter().zip(&rounded) {
            // Half a unit, and what f32 adds near a zero of the derivative.
            let bound = exact.abs() * dtype.epsilon() / 2.0 * 1.01 + 1e-6;
            assert!((exact - rounded).abs() <= bound, "{dtype}: {rounded} instead of {exact}");
        }
    }
}

/// The library as a file of a user extends it.
fn with(text: &str) -> Arc<Program> {
    let text = format!("edition 1;\nuse core::*;\nuse nn::*;\n{text}");
    let file = SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false };
    let checked = hypatia_library::check(vec![file]);
    Arc::new(checked.program.unwrap_or_else(|| panic!("{:?}", checked.diagnostics)))
}

/// A gradient that an op writes takes the place of its body's.
#[test]
fn ops_may_write_their_gradients() {
    // On purpose not the derivative, so that it is seen.
    let program = with(
        "op odd<T: float>(x: T[..s], w: T[..s]?, i: i64[..s]) -> (T[..s], T[..s])\n\
           = (x * 2, (w else 0) + 1)\n\
           grad(y, z, dy, dz) = (dy * y + 10, dz * 100);",
    );
    let mut g = Graph::new(program);
    let ty = |dtype| TensorType { dtype, shape: vec![Dim::from(2)] };
    let (x, w, i) = (g.input("x", ty(DType::F64)), g.input("w", ty(DType::F64)), g.input("i", ty(DType::I64)));
    let results = g.call("odd", &[x, w, i], &[]).unwrap();
    g.output("y", results[0]);
    g.output("z", results[1]);
    let of = |values: [f64; 2]| Tensor::from_slice(&[2], &values).unwrap();
    let inputs = [
        ("x".to_string(), of([1.0, 2.0])),
        ("w".to_string(), of([0.0, 0.0])),
        ("i".to_string(), Tensor::from_slice(&[2], &[0i64, 0]).unwrap()),
        ("y.grad".to_string(), of([1.0, -1.0])),
        ("z.grad".to_string(), of([3.0, 4.0])),
    ];
    let both = evaluate(&g.vjp(&["y", "z"], &["x", "w"]).unwrap(), &inputs, Mode::Exact).unwrap();
    assert_eq!((both[2].to_f64(), both[3].to_f64()), (vec![12.0, 6.0], vec![300.0, 400.0]));
    // Where nothing depends on the second result, its gradient is 0.
    let one = evaluate(&g.vjp(&["y"], &["w"]).unwrap(), &inputs[..4], Mode::Exact).unwrap();
    assert_eq!(one[2].to_f64(), [0.0, 0.0]);
}

/// A row that a mask hides as a whole has gradients of 0, and each narrow gradient is rounded once.
#[test]
fn softmax_has_a_gradient_of_its_own() {
    let mut g = Graph::new(library());
    let x = g.input("x", TensorType { dtype: DType::F64, shape: vec![Dim::from(2), Dim::from(3)] });
    let y = g.call("safe_softmax", &[x], &[("axis", (-1).into())]).unwrap()[0];
    g.output("y", y);
    let hidden = f64::NEG_INFINITY;
    let of = |values: [f64; 6]| Tensor::from_slice(&[2, 3], &values).unwrap();
    let inputs = [
        ("x".to_string(), of([hidden, hidden, hidden, 0.0, hidden, 0.0])),
        ("y.grad".to_string(), of([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])),
    ];
    let got = evaluate(&g.vjp(&["y"], &["x"]).unwrap(), &inputs, Mode::Exact).unwrap();
    assert_eq!(got[1].to_f64(), [0.0, 0.0, 0.0, -0.5, 0.0, 0.5]);

    for dtype in [DType::BF16, DType::F16] {
        let mut g = Graph::new(library());
        let x = g.input("x", TensorType { dtype, shape: vec![Dim::from(8), Dim::from(8)] });
        let y = g.call("standardize", &[x], &[]).unwrap()[0];
        g.output("y", y);
        let joint = g.vjp(&["y"], &["x"]).unwrap();
        let mut seed = 3;
        let mut random = || {
            let values: Vec<f64> = (0..64).map(|_| dtype.round(number(&mut seed))).collect();
            Tensor::from_f64(dtype, &[8, 8], &values).unwrap()
        };
        let inputs = [("x".to_string(), random()), ("y.grad".to_string(), random())];
        let exact = evaluate(&joint, &inputs, Mode::Exact).unwrap()[1].to_f64();
        let rounded = evaluate(&joint, &inputs, Mode::Rounded).unwrap()[1].to_f64();
        for (exact, rounded) in exact.iter().zip(&rounded) {
            // The result that it reads is rounded too; the sums around it average that.
            let bound = dtype.epsilon() * (exact.abs() / 2.0 + 4.0);
            assert!((exact - rounded).abs() <= bound, "{dtype}: {rounded} instead of {exact}");
        }
    }
}

#[test]
fn mistakes_say_what_is_wrong() {
    let mut g = Graph::new(library());
    let ty = |dtype, n: i64| TensorType { dtype, shape: vec![Dim::from(n)] };
    let (x, i) = (g.input("weight", ty(DType::F32, 3)), g.input("index", ty(DType::I64, 3)));
    g.output("wide", x);
    g.output("whole", i);
    let of = |loss: &str, by: &str| g.grad(loss, &[by]).unwrap_err().to_string();
    assert_eq!(
        of("wide", "weight"),
        "the loss `wide` is f32[3]: a loss is one number, for example a mean over all axes"
    );
    assert_eq!(of("loss", "weight"), "the graph has no output `loss`: it has wide, whole");
    let err = g.vjp(&["wide"], &["wieght"]).unwrap_err().to_string();
    assert_eq!(err, "the graph has no input `wieght`: it has weight, index; did you mean `weight`?");
    let err = g.vjp(&["wide"], &["index"]).unwrap_err().to_string();
    assert_eq!(err, "the input `index` is i64[3]: only floats have gradients");
    let err = g.vjp(&["whole"], &["weight"]).unwrap_err().to_string();
    assert_eq!(err, "the output `whole` is i64[3]: only floats have gradients");
    let mut g = Graph::new(library());
    let (x, u) = (g.input("x", ty(DType::F64, 3)), g.input("u", ty(DType::F64, 2)));
    let i = g.constant(Tensor::from_slice(&[2], &[0i64, 1]).unwrap());
    let y = g.builtin(BuiltinOp::Scatter, &[x, i, u], vec!["max".into()]).unwrap()[0];
    g.output("y", y);
    let err = g.vjp(&["y"], &["x"]).unwrap_err().to_string();
    assert_eq!(err, "`scatter` with how = \"max\" has no gradient");
}
