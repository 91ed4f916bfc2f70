//! Normalisations whose definition changed with an opset.

use prost::Message;

use super::bad::{attribute, node, opset, value};
use super::{execute, program};
use crate::import::onnx::proto::{GraphProto, ModelProto, ValueInfoProto};
use crate::import::{Options, load_bytes};
use hypatia_pipeline::FOLDER;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// GroupNormalization of two groups of two channels, with these scales and biases.
fn grouped(version: i64, scale: &[f32], bias: &[f32]) -> Result<Vec<f64>> {
    let mut group = node("GroupNormalization", &["x", "s", "b"], &["y"]);
    group.attribute.push(attribute("num_groups", 2));
    let count = scale.len() as i64;
    let graph = GraphProto {
        node: vec![group],
        input: vec![value("x", 1, &[1, 4, 3]), value("s", 1, &[count]), value("b", 1, &[count])],
        output: vec![ValueInfoProto { name: Some("y".into()), ..Default::default() }],
        ..Default::default()
    };
    let opset_import = vec![opset("", version)];
    let model = ModelProto { graph: Some(graph), opset_import, ir_version: Some(8), ..Default::default() };
    let options = Options::default();
    let graph = load_bytes(&model.encode_to_vec(), "m.onnx", program(), &options, &FOLDER)?.graph;
    let x: Vec<f32> = (0..12).map(|i| (i * i % 7) as f32).collect();
    let tensor = |shape: &[usize], data: &[f32]| Tensor::from_slice(shape, data).unwrap();
    let inputs = [
        ("x".to_string(), tensor(&[1, 4, 3], &x)),
        ("s".to_string(), tensor(&[scale.len()], scale)),
        ("b".to_string(), tensor(&[bias.len()], bias)),
    ];
    Ok(execute(&graph, &inputs)?[0].to_f64())
}

/// Before opset 21, each group has a scale and a bias; since then, each channel.
#[test]
fn groups_are_scaled_before_opset_21_and_channels_since() {
    let (of_groups, of_channels) = (grouped(18, &[2.0, -1.0], &[0.5, 3.0]), [2.0, 2.0, -1.0, -1.0]);
    let since = grouped(21, &of_channels, &[0.5, 0.5, 3.0, 3.0]).unwrap();
    assert_eq!(of_groups.unwrap(), since);
    assert!(since.iter().any(|v| *v > 3.5) && since.iter().any(|v| *v < 0.0), "{since:?}");
    let refused = grouped(18, &of_channels, &of_channels).unwrap_err().to_string();
    assert!(refused.contains("should be a vector over the 2 groups of channels"), "{refused}");
    assert!(grouped(21, &[1.0, 1.0], &[0.0, 0.0]).unwrap_err().to_string().contains("over the 4 channels"));
}
