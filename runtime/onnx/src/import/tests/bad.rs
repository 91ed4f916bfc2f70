//! Damaged, contradictory or unsupported models: each gives an error that says what is wrong.

use prost::Message;
use rand::{Rng, SeedableRng};

use super::{models, program};
use crate::import::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType, tensor_shape_proto, type_proto,
};
use crate::import::{Options, load_bytes};
use hypatia_pipeline::FOLDER;
use hypatia_tensor::error::Error;

pub(super) fn value(name: &str, elem: i32, dims: &[i64]) -> ValueInfoProto {
    let dim = |d: &i64| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(*d)),
        ..Default::default()
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(elem), shape };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..Default::default() }
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("the_{op}")),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: outputs.iter().map(|s| s.to_string()).collect(),
        ..Default::default()
    }
}

pub(super) fn attribute(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(i),
        ..Default::default()
    }
}

pub(super) fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

/// A model with inputs x: f32[2, 3] and i: i64[2], and output y.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: vec![value("x", 1, &[2, 3]), value("i", 7, &[2])],
        output: vec![ValueInfoProto { name: Some("y".into()), ..Default::default() }],
        ..Default::default()
    };
    ModelProto { graph: Some(graph), opset_import: vec![opset("", 20)], ir_version: Some(8), ..Default::default() }
}

fn import(model: &ModelProto) -> Result<(), Error> {
    load_bytes(&model.encode_to_vec(), "m.onnx", program(), &Options::default(), &FOLDER).map(drop)
}

fn edited(nodes: Vec<NodeProto>, edit: impl FnOnce(&mut ModelProto)) -> ModelProto {
    let mut m = model(nodes);
    edit(&mut m);
    m
}

fn with(mut node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attributes;
    node
}

#[test]
fn errors_name_the_node_and_say_what_is_wrong() {
    let relu = || node("Relu", &["x"], &["y"]);
    let graph = |m: &mut ModelProto, f: fn(&mut GraphProto)| f(m.graph.as_mut().unwrap());
    let tensor = |name: &str, dims: &[i64]| TensorProto {
        name: Some(name.into()),
        data_type: Some(1),
        dims: dims.to_vec(),
        float_data: vec![1.0],
        ..Default::default()
    };
    let cases = [
        (model(vec![node("Relu", &["z"], &["y"])]), "node `the_Relu` (Relu): its input `z` does not exist"),
        (model(vec![node("Neg", &["z"], &["y"]), node("Neg", &["x"], &["z"])]), "`z` is computed later"),
        (model(vec![node("Neg", &["y"], &["y"])]), "depends on this node"),
        (model(vec![relu(), relu()]), "its output `y` has the name of another value"),
        (model(vec![]), "no node computes the output `y`"),
        (model(vec![node("Add", &["x", "i"], &["y"])]), "node `the_Add` (Add, opset 20): "),
        (model(vec![node("Relu", &["x", "x"], &["y"])]), "it has 2 inputs; 1 were expected"),
        (model(vec![node("Relu", &[], &["y"])]), "it has 0 inputs; 1 were expected"),
        (model(vec![node("Relu", &["x"], &["y", "z"])]), "it has an output number 2; there are 1"),
        (model(vec![with(node("Softmax", &["x"], &["y"]), vec![attribute("axis", 2)])]), "the axis 2 does not exist"),
        (model(vec![with(node("Softmax", &["x"], &["y"]), vec![attribute("axis", i64::MIN)])]), "does not exist"),
        (model(vec![with(node("Cast", &["x"], &["y"]), vec![attribute("to", 99)])]), "element type 99 is unknown"),
        (model(vec![with(relu(), vec![attribute("a", 1), attribute("a", 1)])]), "`a` is given twice"),
        (edited(vec![relu()], |m| m.opset_import.clear()), "no opset is imported"),
        (
            edited(vec![relu()], |m| m.opset_import.push(opset("ai.onnx", 19))),
            "the default opset is imported twice, as versions 20 and 19",
        ),
        (edited(vec![relu()], |m| m.graph = None), "it contains no graph"),
        (
            edited(vec![node("Div", &["i", "w"], &["y"])], |m| {
                let zero = TensorProto { data_type: Some(7), int64_data: vec![3, 0], ..tensor("w", &[2]) };
                m.graph.as_mut().unwrap().initializer = vec![TensorProto { float_data: vec![], ..zero }]
            }),
            "node `the_Div` (Div, opset 20): it divides integers by a constant that is 0",
        ),
        (
            edited(vec![node("Mod", &["i", "w"], &["y"])], |m| {
                let zero = TensorProto { data_type: Some(7), int64_data: vec![0], ..tensor("w", &[]) };
                m.graph.as_mut().unwrap().initializer = vec![TensorProto { float_data: vec![], ..zero }]
            }),
            "it divides integers by a constant that is 0",
        ),
        (edited(vec![relu()], |m| graph(m, |g| g.output.clear())), "no outputs"),
        (
            edited(vec![relu()], |m| graph(m, |g| g.output = vec![value("y", 1, &[2, 3, 1])])),
            "node `the_Relu` (Relu, opset 20): its output `y` is declared as f32[2, 3, 1], but is f32[2, 3]: the ranks",
        ),
        (
            edited(vec![node("Neg", &["x"], &["z"]), node("Neg", &["z"], &["y"])], |m| {
                graph(m, |g| g.value_info = vec![value("z", 1, &[2, 4])])
            }),
            "its output `z` is declared as f32[2, 4], but is f32[2, 3]: the sizes of axis 1 differ",
        ),
        (
            edited(vec![relu()], |m| graph(m, |g| g.value_info = vec![value("y", 11, &[2, 3])])),
            "the element types differ",
        ),
        (edited(vec![relu()], |m| graph(m, |g| g.input.push(value("x", 1, &[])))), "`x` has no name, or occurs twice"),
        (edited(vec![relu()], |m| graph(m, |g| g.input[0] = value("x", 1, &[-5]))), "a size is -5"),
        (
            edited(vec![node("Neg", &["w"], &["y"])], |m| {
                m.graph.as_mut().unwrap().initializer = vec![tensor("w", &[1 << 40])]
            }),
            "needs 1099511627776 elements",
        ),
        (
            edited(vec![relu()], |m| m.graph.as_mut().unwrap().initializer = vec![tensor("w", &[1]); 2]),
            "`w` is given twice",
        ),
    ];
    for (model, says) in cases {
        let error = import(&model).unwrap_err();
        assert!(matches!(error, Error::Model { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("m.onnx: ") && text.contains(says), "{text}\n  should say: {says}");
    }
}

/// Exporters leave the sizes of their example in declared outputs, and list a domain twice.
#[test]
fn harmless_contradictions_are_accepted() {
    let m = edited(vec![node("Relu", &["x"], &["y"])], |m| {
        m.opset_import.push(opset("ai.onnx", 20));
        m.graph.as_mut().unwrap().output = vec![value("y", 1, &[7, 3])];
    });
    let import = load_bytes(&m.encode_to_vec(), "m.onnx", program(), &Options::default(), &FOLDER).unwrap();
    let declared = "the output `y` is declared as f32[7, 3], but is f32[2, 3]: the sizes of axis 0 differ ([7, 2])";
    assert_eq!(import.warnings, [format!("m.onnx: {declared}; the declared sizes are ignored")]);
    assert_eq!(import.graph.ty(import.graph.outputs[0].1).to_string(), "f32[2, 3]");
}

#[test]
fn what_is_not_supported_says_so() {
    let relu = || node("Relu", &["x"], &["y"]);
    let domain = |n: NodeProto, d: &str| NodeProto { domain: Some(d.into()), ..n };
    let cases = [
        (
            edited(vec![relu()], |m| m.opset_import = vec![opset("", 6)]),
            "m.onnx: the model is of opset 6, which is not supported: opsets 13 to 28 are, and of those from 7 on",
        ),
        (
            edited(vec![relu()], |m| m.opset_import = vec![opset("ai.onnx", 29)]),
            "the model is of opset 29, which is not supported",
        ),
        (
            model(vec![node("LSTM", &["x", "x", "x"], &["y"]), node("Unique", &["x"], &["z"])]),
            "node `the_LSTM`: LSTM (opset 20) is not supported: export the model without it; docs/onnx-ops.md lists \
             the supported ops; other unsupported ops of this model: Unique",
        ),
        (model(vec![node("GRU", &["x", "x", "x"], &["y"])]), "node `the_GRU`: GRU (opset 20) is not supported"),
        (model(vec![node("DFT", &["x"], &["y"])]), "node `the_DFT`: DFT (opset 20) is not supported"),
        (model(vec![node("NonMaxSuppression", &["x", "x"], &["y"])]), "node `the_NonMaxSuppression`: NonMaxSup"),
        (
            model(vec![node("Loop", &["x"], &["y"])]),
            "node `the_Loop`: Loop (opset 20) is not supported: control flow is not imported; export",
        ),
        (model(vec![node("If", &["x"], &["y"])]), "control flow"),
        (
            model(vec![domain(node("FusedMatMul", &["x", "x"], &["y"]), "com.microsoft")]),
            "com.microsoft.FusedMatMul (opset 20) is not supported",
        ),
        (
            edited(vec![domain(node("FusedMatMul", &["x", "x"], &["y"]), "com.microsoft")], |m| {
                m.opset_import.push(opset("com.microsoft", 1))
            }),
            "com.microsoft.FusedMatMul (opset 1) is not supported",
        ),
        (
            edited(vec![relu()], |m| m.opset_import = vec![opset("", 9)]),
            "Relu (opset 9) is not supported: only its definitions from opset 13 on are known",
        ),
        (model(vec![with(relu(), vec![attribute("odd", 1)])]), "it has no attribute `odd`, nor any other"),
        (model(vec![node("Reshape", &["x", "i"], &["y"])]), "must be known when the model is imported"),
        (model(vec![with(node("Cast", &["x"], &["y"]), vec![attribute("to", 4)])]), "element type UINT16"),
        (
            edited(vec![node("Gelu", &["x"], &["y"])], |m| m.opset_import = vec![opset("", 19)]),
            "this op exists only from opset 20 on",
        ),
        (edited(vec![relu()], |m| m.graph.as_mut().unwrap().input.push(value("s", 8, &[]))), "element type STRING"),
        (
            edited(vec![relu()], |m| {
                let input = &mut m.graph.as_mut().unwrap().input[0];
                let Some(type_proto::Value::TensorType(t)) = &mut input.r#type.as_mut().unwrap().value else { return };
                t.shape = None;
            }),
            "its rank is not declared",
        ),
    ];
    for (model, says) in cases {
        let error = import(&model).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(says), "{text}\n  should say: {says}");
    }
}

#[test]
fn functions_that_never_end_are_refused() {
    let call = |f: &str, x: &str, y: &str| NodeProto { domain: Some("f".into()), ..node(f, &[x], &[y]) };
    let function = |name: &str, nodes: Vec<NodeProto>| FunctionProto {
        name: Some(name.into()),
        domain: Some("f".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: nodes,
        opset_import: vec![opset("", 20)],
        ..Default::default()
    };
    let own = edited(vec![call("f0", "x", "y")], |m| m.functions = vec![function("f0", vec![call("f0", "a", "b")])]);
    assert!(import(&own).unwrap_err().to_string().contains("calls are nested more than"));
    // Each function calls the next forty times: 40^10 nodes.
    let many = edited(vec![call("f0", "x", "y")], |m| {
        m.functions = (0..10)
            .map(|i| {
                let next = format!("f{}", i + 1);
                let mut nodes: Vec<NodeProto> = (0..40).map(|k| call(&next, "a", &format!("b{k}"))).collect();
                nodes[39].output[0] = "b".into();
                function(&format!("f{i}"), nodes)
            })
            .collect();
        m.functions.push(function("f10", vec![node("Neg", &["a"], &["b"])]));
    });
    assert!(matches!(import(&many).unwrap_err(), Error::Limit(_)));
}

#[test]
fn shape_arithmetic_without_end_is_refused() {
    // Squares the shape of x again and again, which doubles the complexity each time.
    let mut nodes = vec![node("Shape", &["x"], &["s0"])];
    for k in 0..200 {
        nodes.push(node("Mul", &[&format!("s{k}"), &format!("s{k}")], &[&format!("s{}", k + 1)]));
    }
    nodes.push(node("ConstantOfShape", &["s200"], &["y"]));
    let dynamic = edited(nodes, |m| {
        let input = &mut m.graph.as_mut().unwrap().input[0];
        let Some(type_proto::Value::TensorType(t)) = &mut input.r#type.as_mut().unwrap().value else { return };
        for (i, d) in t.shape.as_mut().unwrap().dim.iter_mut().enumerate() {
            d.value = Some(tensor_shape_proto::dimension::Value::DimParam(format!("n{i}")));
        }
    });
    assert!(import(&dynamic).is_err());
    // Inserts axes until there are too many.
    let axes = TensorProto {
        name: Some("a".into()),
        data_type: Some(7),
        dims: vec![40],
        int64_data: (0..40).collect(),
        ..Default::default()
    };
    let deep =
        edited(vec![node("Unsqueeze", &["x", "a"], &["y"])], |m| m.graph.as_mut().unwrap().initializer = vec![axes]);
    assert!(import(&deep).unwrap_err().to_string().contains("the limit is 32"));
}

/// Truncated files and files with flipped bits give an error or a graph, never a panic.
#[test]
fn mutated_files_never_panic() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(22);
    let mut files: Vec<Vec<u8>> = Vec::new();
    for (name, tensor) in hypatia_tensor::npz::read(&models().join("ops.npz")).unwrap() {
        if name.ends_with("/model") {
            files.push(tensor.bytes().to_vec());
        }
    }
    let go = |bytes: &[u8]| drop(load_bytes(bytes, "m.onnx", program(), &Options::default(), &FOLDER));
    for file in &files {
        for _ in 0..12 {
            let mut bad = file.clone();
            match rng.random_range(0..3) {
                0 => bad.truncate(rng.random_range(0..bad.len())),
                1 => {
                    let at = rng.random_range(0..bad.len());
                    bad.insert(at, rng.random());
                }
                _ => {
                    for _ in 0..rng.random_range(1..5) {
                        let at = rng.random_range(0..bad.len());
                        bad[at] = rng.random();
                    }
                }
            }
            go(&bad);
        }
    }
    let digits = std::fs::read(models().join("digits/model.onnx")).unwrap();
    for _ in 0..60 {
        let mut bad = digits.clone();
        // The model's structure is at both ends of the file, the weights in between.
        let window = rng.random_range(0..2) * (bad.len() - 3000);
        let at = window + rng.random_range(0..3000);
        bad[at] ^= 1 << rng.random_range(0..8);
        go(&bad);
        go(&bad[..at]);
    }
}

#[test]
fn files_of_other_formats_are_named() {
    for (bytes, says) in
        [(&b"PK\x03\x04\x14\0"[..], "this is a zip archive, such as an .npz"), (b"\x93NUMPY\x01\0", "an .npy file")]
    {
        let error = load_bytes(bytes, "m.onnx", program(), &Options::default(), &FOLDER).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}
