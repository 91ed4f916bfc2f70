//! Masks as exporters write them: gathers whose index tuples are iotas.

use std::collections::BTreeMap;

use hypatia_dsl::builtin::BuiltinOp;
use prost::Message;

use super::super::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    attribute_proto::AttributeType,
};
use super::bad::value;
use super::{execute, program};
use crate::import::{Options, load_bytes};
use hypatia_pipeline::FOLDER;
use hypatia_tensor::tensor::Tensor;

pub(super) fn node(op: &str, inputs: &[&str], output: &str, axis: Option<i64>) -> NodeProto {
    let attribute = axis.map(|i| AttributeProto {
        name: Some("axis".into()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(i),
        ..AttributeProto::default()
    });
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: vec![output.into()],
        attribute: attribute.into_iter().collect(),
        ..NodeProto::default()
    }
}

pub(super) fn ints(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(7),
        dims: dims.to_vec(),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// y = x[i, j] at `[i, 0, j]`, where `i` and `j` are iotas of these lengths, or with `i` and `j`
/// swapped.
fn model(shape: [i64; 2], counts: [i64; 2], swapped: bool) -> Vec<u8> {
    let [b, n] = counts;
    let order = if swapped { ["j", "i"] } else { ["i", "j"] };
    let graph = GraphProto {
        node: vec![
            node("Range", &["zero", "b", "one"], "ib", None),
            node("Range", &["zero", "n", "one"], "jn", None),
            node("Reshape", &["ib", "column"], "i4", None),
            node("Reshape", &["jn", "line"], "j4", None),
            node("Expand", &["i4", "all"], "i", None),
            node("Expand", &["j4", "all"], "j", None),
            node("Concat", &order, "at", Some(-1)),
            node("GatherND", &["x", "at"], "y", None),
        ],
        initializer: vec![
            ints("zero", &[], &[0]),
            ints("one", &[], &[1]),
            ints("b", &[], &[b]),
            ints("n", &[], &[n]),
            ints("column", &[4], &[-1, 1, 1, 1]),
            ints("line", &[4], &[1, 1, -1, 1]),
            ints("all", &[4], &[b, 1, n, 1]),
        ],
        input: vec![value("x", 1, &shape)],
        output: vec![ValueInfoProto { name: Some("y".into()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(20) };
    ModelProto { graph: Some(graph), opset_import: vec![opset], ir_version: Some(8), ..ModelProto::default() }
        .encode_to_vec()
}

/// The number of remaining gathers, and the result for x = 0, 1, 2, ...
fn gathers(shape: [i64; 2], counts: [i64; 2], swapped: bool) -> (usize, Vec<usize>, Vec<f64>) {
    let bytes = model(shape, counts, swapped);
    let graph = load_bytes(&bytes, "mask", program(), &Options::default(), &FOLDER).unwrap().graph;
    let text = graph.to_text();
    let sizes = shape.map(|d| d as usize);
    let x: Vec<f32> = (0..sizes[0] * sizes[1]).map(|v| v as f32).collect();
    let inputs = BTreeMap::from([("x".to_string(), Tensor::from_slice(&sizes, &x).unwrap())]);
    let y = execute(&graph, &inputs.into_iter().collect::<Vec<_>>()).unwrap().remove(0);
    (text.matches(BuiltinOp::GatherNd.name()).count(), y.shape().to_vec(), y.to_f64())
}

#[test]
fn a_gather_at_tuples_that_count_is_the_operand() {
    let all = |n: usize| (0..n).map(|v| v as f64).collect::<Vec<_>>();
    assert_eq!(gathers([2, 3], [2, 3], false), (0, vec![2, 1, 3], all(6)));
    // The indices stay in the graph, because they are too many to be folded to constants at import.
    assert_eq!(gathers([40, 50], [40, 50], false), (0, vec![40, 1, 50], all(2000)));
    // One sequence.
    assert_eq!(gathers([1, 3], [1, 3], false), (0, vec![1, 1, 3], all(3)));
    assert_eq!(gathers([1, 2000], [1, 2000], false), (0, vec![1, 1, 2000], all(2000)));
}

#[test]
fn a_gather_at_one_known_place_is_a_slice() {
    assert_eq!(gathers([3, 4], [1, 1], false), (0, vec![1, 1, 1], vec![0.0]));
}

#[test]
fn another_gather_is_one() {
    let at = |i: usize, j: usize, n: usize| (i * n + j) as f64;
    // Only a part of the operand.
    let part: Vec<f64> = (0..2).flat_map(|i| (0..3).map(move |j| at(i, j, 4))).collect();
    assert_eq!(gathers([3, 4], [2, 3], false), (1, vec![2, 1, 3], part));
    // Transposed.
    let turned: Vec<f64> = (0..3).flat_map(|i| (0..3).map(move |j| at(j, i, 3))).collect();
    assert_eq!(gathers([3, 3], [3, 3], true), (1, vec![3, 1, 3], turned));
}
