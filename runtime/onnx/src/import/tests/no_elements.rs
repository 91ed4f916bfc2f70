//! Reductions over an axis of size 0.
//!
//! ONNX defines their results, except for the mean, which it leaves undefined. The reference of the
//! `onnx` package divides 0 by 0, and so does Hypatia. onnxruntime gives 0.

use prost::Message;

use super::super::onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto};
use super::bad::value;
use super::masks::{ints, node};
use super::{execute, program};
use crate::import::{Options, load_bytes};
use hypatia_eval::{Mode, evaluate};
use hypatia_pipeline::FOLDER;
use hypatia_tensor::tensor::Tensor;

/// A model of the op over the second axis of `x`.
fn model(op: &str) -> Vec<u8> {
    let graph = GraphProto {
        node: vec![node(op, &["x", "axes"], "y", None)],
        initializer: vec![ints("axes", &[1], &[1])],
        input: vec![value("x", 1, &[2, 0])],
        output: vec![ValueInfoProto { name: Some("y".into()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(20) };
    ModelProto { graph: Some(graph), opset_import: vec![opset], ir_version: Some(8), ..ModelProto::default() }
        .encode_to_vec()
}

#[test]
fn reductions_over_no_elements_are_those_of_the_standard() {
    let inf = f64::INFINITY;
    for (op, wanted) in [
        ("ReduceMean", f64::NAN),
        ("ReduceSum", 0.0),
        ("ReduceSumSquare", 0.0),
        ("ReduceL1", 0.0),
        ("ReduceL2", 0.0),
        ("ReduceProd", 1.0),
        ("ReduceMax", -inf),
        ("ReduceMin", inf),
        ("ReduceLogSum", -inf),
        ("ReduceLogSumExp", -inf),
    ] {
        let graph = load_bytes(&model(op), op, program(), &Options::default(), &FOLDER).unwrap().graph;
        let inputs = [("x".to_string(), Tensor::from_slice::<f32>(&[2, 0], &[]).unwrap())];
        let reference = evaluate(&graph, &inputs, Mode::Rounded).unwrap().remove(0).to_f64();
        let executed = execute(&graph, &inputs).unwrap().remove(0);
        assert_eq!(executed.shape(), [2, 1], "{op}");
        for got in [reference, executed.to_f64()] {
            let right = |v: &f64| *v == wanted || (v.is_nan() && wanted.is_nan());
            assert!(got.len() == 2 && got.iter().all(right), "{op}: {got:?} instead of {wanted}");
        }
    }
}
