//! Ops on infinities, NaN and axes without elements, as ONNX defines them.

use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    attribute_proto::AttributeType,
};
use super::bad::value;
use super::masks::node;
use super::{execute, program};
use crate::import::{Options, load_bytes};
use hypatia_eval::{Mode, evaluate};
use hypatia_pipeline as pipeline;
use hypatia_pipeline::FOLDER;
use hypatia_tensor::tensor::Tensor;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn floats(name: &str, dims: &[i64], values: &[f64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(1),
        dims: dims.to_vec(),
        float_data: values.iter().map(|v| *v as f32).collect(),
        ..TensorProto::default()
    }
}

fn with(mut node: NodeProto, attributes: &[(&str, &[i64])]) -> NodeProto {
    let list = |(name, values): &(&str, &[i64])| AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(AttributeType::Ints as i32),
        ints: values.to_vec(),
        ..AttributeProto::default()
    };
    node.attribute = attributes.iter().map(list).collect();
    node
}

/// What a model of one node gives for `x`: by the reference, and by the executor with and without
/// rules.
fn results(node: NodeProto, constants: Vec<TensorProto>, shape: &[usize], x: &[f64]) -> Vec<Vec<f64>> {
    let dims: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
    let graph = GraphProto {
        node: vec![node],
        initializer: constants,
        input: vec![value("x", 1, &dims)],
        output: vec![ValueInfoProto { name: Some("y".into()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(20) };
    let model =
        ModelProto { graph: Some(graph), opset_import: vec![opset], ir_version: Some(8), ..ModelProto::default() };
    let graph = load_bytes(&model.encode_to_vec(), "m", program(), &Options::default(), &FOLDER).unwrap().graph;
    let fused = pipeline::optimize(&graph, &hypatia_optimize::Options::default()).unwrap().graph;
    let x: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    let inputs = [("x".to_string(), Tensor::from_slice(shape, &x).unwrap())];
    let run = |graph| execute(graph, &inputs).unwrap().remove(0).to_f64();
    vec![evaluate(&graph, &inputs, Mode::Rounded).unwrap().remove(0).to_f64(), run(&graph), run(&fused)]
}

fn near(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * b.abs().max(1.0)
}

fn assert_near(got: &[Vec<f64>], want: &[f64], what: &str) {
    for (got, who) in got.iter().zip(["reference", "unfused", "fused"]) {
        assert_eq!(got.len(), want.len(), "{what}, {who}");
        let same = got.iter().zip(want).all(|(g, w)| near(*g, *w));
        assert!(same, "{what}, {who}: {got:?} instead of {want:?}");
    }
}

#[test]
fn the_inverse_hyperbolic_cosine_has_no_value_below_1() {
    let x = [0.5, 0.0, -0.5, -1.0, -2.0, -4e3, -5e3, -1e6, -1e9, -3e38, -INF, 1.0, 1.0001, 2.0, 1e3, 1e20, 3e38, INF];
    let exact = |v: &f64| f64::from(*v as f32).acosh();
    let want: Vec<f64> = x.iter().map(exact).collect();
    assert!(want[..11].iter().all(|v| v.is_nan()));
    assert_near(&results(node("Acosh", &["x"], "y", None), vec![], &[x.len()], &x), &want, "Acosh");
}

#[test]
fn a_factor_of_zero_leaves_out_the_third_matrix() {
    let mut gemm = node("Gemm", &["x", "b", "c"], "y", None);
    gemm.attribute.push(AttributeProto {
        name: Some("beta".into()),
        r#type: Some(AttributeType::Float as i32),
        f: Some(0.0),
        ..AttributeProto::default()
    });
    let constants = vec![floats("b", &[2, 2], &[1.0, 0.0, 0.0, 2.0]), floats("c", &[2], &[INF, NAN])];
    assert_near(&results(gemm, constants, &[1, 2], &[3.0, 4.0]), &[3.0, 8.0], "Gemm");
}

#[test]
fn no_element_is_the_largest_of_none() {
    assert_near(&results(node("Hardmax", &["x"], "y", Some(1)), vec![], &[2, 0], &[]), &[], "Hardmax");
}

/// The elements, or a few odd numbers among them.
fn values(rng: &mut ChaCha8Rng, count: usize, odd: f64) -> Vec<f64> {
    let special = [INF, -INF, NAN];
    let mut one =
        || if rng.random_bool(odd) { special[rng.random_range(0..3)] } else { f64::from(rng.random_range(-2..3)) };
    (0..count).map(|_| one()).collect()
}

#[test]
fn filters_meet_the_zeros_of_the_padding() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for case in 0..60 {
        let [n, c, o, k] = [6, 1 + case % 2, [1, 5][case / 2 % 2], 3];
        let [stride, before, after] = [1 + case % 3, case / 4 % 3, case / 12 % 3];
        let (x, w) = (values(&mut rng, c * n, 0.1), values(&mut rng, o * c * k, 0.2));
        let places = (n + before + after - k) / stride + 1;
        let mut want = vec![0.0; o * places];
        for (at, sum) in want.iter_mut().enumerate() {
            for (i, w) in w[at / places * c * k..][..c * k].iter().enumerate() {
                let from = (at % places * stride + i % k).checked_sub(before).filter(|p| *p < n);
                *sum += from.map_or(0.0, |p| x[i / k * n + p]) * w;
            }
        }
        let [s, b, a] = [stride, before, after].map(|v| v as i64);
        let conv = with(node("Conv", &["x", "w"], "y", None), &[("strides", &[s]), ("pads", &[b, a])]);
        let filters = floats("w", &[o as i64, c as i64, k as i64], &w);
        let what = format!("case {case}: x {x:?}, w {w:?}, stride {stride}, pads {before} and {after}");
        assert_near(&results(conv, vec![filters], &[1, c, n], &x), &want, &what);
    }
}

#[test]
fn transposed_filters_meet_elements_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for case in 0..60 {
        let [n, c, o, k] = [4, 1 + case % 2, [1, 5][case / 2 % 2], 3];
        let [stride, before, after] = [1 + case % 3, case / 4 % 3, case / 12 % 3];
        let (x, w) = (values(&mut rng, c * n, 0.1), values(&mut rng, c * o * k, 0.2));
        let full = (n - 1) * stride + k;
        let mut all = vec![0.0; o * full];
        for (i, w) in w.iter().enumerate() {
            let (channel, filter, tap) = (i / k / o, i / k % o, i % k);
            for p in 0..n {
                all[filter * full + p * stride + tap] += x[channel * n + p] * w;
            }
        }
        let want: Vec<f64> = all.chunks(full).flat_map(|line| line[before..full - after].to_vec()).collect();
        let [s, b, a] = [stride, before, after].map(|v| v as i64);
        let conv = with(node("ConvTranspose", &["x", "w"], "y", None), &[("strides", &[s]), ("pads", &[b, a])]);
        let filters = floats("w", &[c as i64, o as i64, k as i64], &w);
        let what = format!("case {case}: x {x:?}, w {w:?}, stride {stride}, pads {before} and {after}");
        assert_near(&results(conv, vec![filters], &[1, c, n], &x), &want, &what);
    }
}

/// Tiles of both axes, of sizes that differ: each element times each filter, where it belongs.
#[test]
fn transposed_filters_of_whole_strides_are_tiles() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let ([c, o], [h, w], [p, q]) = ([3, 2], [4, 5], [2, 3]);
    let (x, filters) = (values(&mut rng, c * h * w, 0.1), values(&mut rng, c * o * p * q, 0.1));
    let mut want = vec![0.0; o * h * p * w * q];
    for (at, want) in want.iter_mut().enumerate() {
        let (filter, row, column) = (at / (h * p * w * q), at / (w * q) % (h * p), at % (w * q));
        for i in 0..c {
            let tap = ((i * o + filter) * p + row % p) * q + column % q;
            *want += x[(i * h + row / p) * w + column / q] * filters[tap];
        }
    }
    let conv = with(node("ConvTranspose", &["x", "w"], "y", None), &[("strides", &[p as i64, q as i64])]);
    let filters = floats("w", &[c as i64, o as i64, p as i64, q as i64], &filters);
    assert_near(&results(conv, vec![filters], &[1, c, h, w], &x), &want, "tiles");
}
