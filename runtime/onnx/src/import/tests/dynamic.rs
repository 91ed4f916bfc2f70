//! Dynamic sizes that stay dynamic.

use prost::Message;

use super::super::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    attribute_proto::AttributeType, tensor_shape_proto::dimension::Value as Size, type_proto,
};
use super::bad::value;
use super::{execute, program};
use crate::import::{Options, load_bytes};
use hypatia_graph::Graph;
use hypatia_pipeline::FOLDER;
use hypatia_tensor::error::Error;
use hypatia_tensor::tensor::Tensor;

fn text(name: &str, s: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::String as i32),
        s: Some(s.as_bytes().to_vec()),
        ..AttributeProto::default()
    }
}

/// y = Resize(x: f32[1, h], scales), nearest.
fn resized(scales: [f32; 2], place: &str, rounding: &str) -> Result<Graph, Error> {
    let mut x = value("x", 1, &[1, 0]);
    if let Some(type_proto::Value::TensorType(t)) = x.r#type.as_mut().and_then(|t| t.value.as_mut())
        && let Some(shape) = t.shape.as_mut()
    {
        shape.dim[1].value = Some(Size::DimParam("h".into()));
    }
    let node = NodeProto {
        op_type: Some("Resize".into()),
        input: vec!["x".into(), String::new(), "scales".into()],
        output: vec!["y".into()],
        attribute: vec![
            text("mode", "nearest"),
            text("coordinate_transformation_mode", place),
            text("nearest_mode", rounding),
        ],
        ..NodeProto::default()
    };
    let scales = TensorProto {
        name: Some("scales".into()),
        data_type: Some(1),
        dims: vec![2],
        float_data: scales.to_vec(),
        ..TensorProto::default()
    };
    let graph = GraphProto {
        node: vec![node],
        initializer: vec![scales],
        input: vec![x],
        output: vec![ValueInfoProto { name: Some("y".into()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(19) };
    let model =
        ModelProto { graph: Some(graph), opset_import: vec![opset], ir_version: Some(8), ..ModelProto::default() };
    load_bytes(&model.encode_to_vec(), "resize", program(), &Options::default(), &FOLDER).map(|i| i.graph)
}

#[test]
fn whole_scales_repeat_elements_of_a_dynamic_axis() {
    for (place, rounding) in
        [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")]
    {
        let graph = resized([1.0, 3.0], place, rounding).unwrap();
        assert!(graph.to_text().contains("[1, 3*h]"), "{}", graph.to_text());
        let x = Tensor::from_slice(&[1, 2], &[5.0f32, 7.0]).unwrap();
        let symbols = graph.bind_symbols(&[("x".to_string(), x.clone())].into()).unwrap();
        let y = execute(&graph.specialize(&symbols).unwrap(), &[("x".to_string(), x)]).unwrap().remove(0);
        assert_eq!((y.shape(), y.to_f64()), (&[1, 6][..], vec![5.0, 5.0, 5.0, 7.0, 7.0, 7.0]));
    }
}

#[test]
fn other_scales_of_a_dynamic_axis_are_refused() {
    for (scale, place, rounding) in [
        (1.5, "asymmetric", "floor"),
        (0.5, "asymmetric", "floor"),
        (2.0, "asymmetric", "ceil"),
        (2.0, "align_corners", "floor"),
        (2.0, "half_pixel", "floor"),
    ] {
        let refused = resized([1.0, scale], place, rounding).err();
        assert!(matches!(refused, Some(Error::Unsupported { .. })), "{scale} {place} {rounding}: {refused:?}");
    }
}

/// y = op(x: f32[n, 8], w: f32[shape]) with these integer attributes.
fn with_rows(op: &str, shape: &[i64], attributes: &[(&str, i64)]) -> Result<(), Error> {
    let mut x = value("x", 1, &[0, 8]);
    if let Some(type_proto::Value::TensorType(t)) = x.r#type.as_mut().and_then(|t| t.value.as_mut())
        && let Some(shape) = t.shape.as_mut()
    {
        shape.dim[0].value = Some(Size::DimParam("n".into()));
    }
    let attribute = |(name, i): &(&str, i64)| AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(*i),
        ..AttributeProto::default()
    };
    let inputs = if shape.is_empty() { vec!["x".to_string()] } else { vec!["x".into(), "w".into()] };
    let node = NodeProto {
        op_type: Some(op.into()),
        input: inputs,
        output: vec!["y".into()],
        attribute: attributes.iter().map(attribute).collect(),
        ..NodeProto::default()
    };
    let graph = GraphProto {
        node: vec![node],
        input: vec![x, value("w", 1, shape)],
        output: vec![ValueInfoProto { name: Some("y".into()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(19) };
    let model =
        ModelProto { graph: Some(graph), opset_import: vec![opset], ir_version: Some(8), ..ModelProto::default() };
    load_bytes(&model.encode_to_vec(), "rows", program(), &Options::default(), &FOLDER).map(drop)
}

#[test]
fn dynamic_sizes_are_blamed_only_where_some_number_would_help() {
    let wrong = with_rows("MatMul", &[9, 8], &[]).unwrap_err();
    assert!(matches!(&wrong, Error::Model { .. }), "{wrong:?}");
    assert!(wrong.to_string().contains("8 and 9") && !wrong.to_string().contains("--dim"), "{wrong}");
    let unknown = with_rows("Softmax", &[], &[("axes", 1)]).unwrap_err();
    assert!(matches!(&unknown, Error::Unsupported { .. }), "{unknown:?}");
    assert!(unknown.to_string().contains("`axes`") && !unknown.to_string().contains("--dim"), "{unknown}");
    // These fit for n = 17 and for n = 3.
    for (op, shape) in [("Add", [17, 8]), ("Mul", [3, 8])] {
        let open = with_rows(op, &shape, &[]).unwrap_err();
        assert!(matches!(&open, Error::Unsupported { .. }), "{open:?}");
        assert!(open.to_string().contains("--dim n=1"), "{open}");
    }
}
