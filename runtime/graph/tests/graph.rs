//! Tests of the graph core over the embedded library.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;
use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, OpBody, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;

use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, NodeKind};
use hypatia_tensor::tensor::Tensor;

fn library() -> Arc<Program> {
    static LIBRARY: std::sync::LazyLock<Arc<Program>> =
        std::sync::LazyLock::new(|| hypatia_library::load(&[]).unwrap());
    LIBRARY.clone()
}

fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|d| Dim::from(*d)).collect() }
}

fn dims(d: &[i64]) -> AttrValue {
    AttrValue::List(d.iter().map(|d| AttrValue::Dim(Dim::from(*d))).collect())
}

fn normed() -> Graph {
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[2, 3]));
    let scale = g.input("scale", ty(DType::F32, &[3]));
    let bias = g.input("bias", ty(DType::F32, &[3]));
    let y = g.call("layer_norm", &[x, scale, bias], &[]).unwrap()[0];
    g.output("y", y);
    g
}

#[test]
fn inlining_shares_what_a_body_repeats() {
    let g = normed();
    g.validate().unwrap();
    let u = g.inlined().unwrap();
    u.validate().unwrap();
    let means = u.nodes.iter().filter(|n| match &n.kind {
        NodeKind::Op { op, .. } => u.program.op(*op).name == "mean",
        _ => false,
    });
    assert_eq!(means.count(), 2, "{u}");
    assert!(u.nodes.iter().all(|n| match &n.kind {
        NodeKind::Op { op, .. } => matches!(u.program.op(*op).body, OpBody::Builtin(_)),
        _ => true,
    }));
    // (1, 2, 3) has mean 2 and variance 2/3.
    let inputs = [
        ("x".to_string(), Tensor::from_f64(DType::F32, &[2, 3], &[1., 2., 3., 3., 2., 1.]).unwrap()),
        ("scale".to_string(), Tensor::from_f64(DType::F32, &[3], &[1.0, 1.0, 2.0]).unwrap()),
        ("bias".to_string(), Tensor::from_f64(DType::F32, &[3], &[0.0, 5.0, 0.0]).unwrap()),
    ];
    let y = evaluate(&u, &inputs, Mode::Exact).unwrap()[0].to_f64();
    let s = (2.0f64 / 3.0 + 1e-5).sqrt();
    for (got, wanted) in y.iter().zip([-1.0 / s, 5.0, 2.0 / s, 1.0 / s, 5.0, -2.0 / s]) {
        assert!((got - wanted).abs() < 1e-9, "{y:?}");
    }
}

#[test]
fn absent_operands_take_the_other_branch() {
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[2, 4]));
    let w = g.input("w", ty(DType::F32, &[3, 4]));
    let op = g.program.find_op("linear").unwrap();
    let y = g.op(op, &[Some(x), Some(w), None], Vec::new(), None).unwrap()[0];
    g.output("y", y);
    let u = g.inlined().unwrap();
    u.validate().unwrap();
    assert_eq!(u.ty(u.outputs[0].1).to_string(), "f32[2, 3]");
}

#[test]
fn failing_builders_leave_the_graph_alone() {
    let mut g = Graph::new(library());
    let a = g.input("a", ty(DType::F32, &[2, 3]));
    let before = g.nodes.len();
    let e = g.call("matmul", &[a, a], &[]).unwrap_err().to_string();
    assert!(e.contains("H0304"), "{e}");
    assert!(g.call("transpose", &[a], &[]).is_err());
    assert!(g.call("transpose", &[a], &[("perm", dims(&[0, 0]))]).is_err());
    assert!(g.call("transpose", &[a], &[("prem", dims(&[1, 0]))]).is_err());
    assert!(g.call("no_such_op", &[a], &[]).is_err());
    assert_eq!(g.nodes.len(), before);
}

#[test]
fn validation_notices_damage() {
    let good = normed();
    let mut g = good.clone();
    g.nodes[3].results[0].shape[0] = Dim::from(7);
    assert!(g.validate().is_err());
    let mut g = good.clone();
    g.nodes.swap(0, 3);
    assert!(g.validate().is_err());
    let mut g = good.clone();
    g.inputs.pop();
    assert!(g.validate().is_err());
}

#[test]
fn symbols_bind_and_specialise() {
    let mut g = Graph::new(library());
    let batch = Dim::symbol("batch");
    let x = g.input("x", TensorType { dtype: DType::F32, shape: vec![batch.clone(), Dim::from(4)] });
    let t = g.input("t", TensorType { dtype: DType::F32, shape: vec![batch] });
    let y = g.call("transpose", &[x], &[("perm", dims(&[1, 0]))]).unwrap()[0];
    let y = g.call("add", &[y, t], &[]).unwrap()[0];
    g.output("y", y);
    let tensors = |a: usize, b: usize| -> HashMap<String, Tensor> {
        HashMap::from([
            ("x".to_string(), Tensor::zeros(DType::F32, &[a, 4]).unwrap()),
            ("t".to_string(), Tensor::zeros(DType::F32, &[b]).unwrap()),
        ])
    };
    let symbols = g.bind_symbols(&tensors(3, 3)).unwrap();
    let s = g.specialize(&symbols).unwrap();
    s.validate().unwrap();
    assert_eq!(s.ty(s.outputs[0].1).to_string(), "f32[4, 3]");
    let e = g.bind_symbols(&tensors(3, 2)).unwrap_err().to_string();
    assert!(e.contains("`t`") && e.contains("axis 0") && e.contains('2') && e.contains('3'), "{e}");
    let mut missing = tensors(3, 3);
    missing.remove("t");
    assert!(g.bind_symbols(&missing).unwrap_err().to_string().contains("missing"));
    missing.insert("u".into(), Tensor::zeros(DType::F32, &[1]).unwrap());
    assert!(g.bind_symbols(&missing).unwrap_err().to_string().contains("`u`"));
}

#[test]
fn graphs_print_one_line_a_node() {
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[2, 3]));
    let y = g.call("softmax", &[x], &[("axis", AttrValue::Dim(Dim::from(-1)))]).unwrap()[0];
    let two = g.number(DType::F32, 2.0).unwrap();
    let y = g.call("mul", &[y, two], &[]).unwrap()[0];
    g.output("y", y);
    let text = "input %x : f32[2, 3]\n%1 = softmax(%x, axis = 1) : f32[2, 3]\nconst %2 : f32[] = 2\n\
                %3 = mul(%1, %2) : f32[2, 3]\noutput y = %3\n";
    assert_eq!(g.to_text(), text);
    assert!(g.to_dot().starts_with("digraph {"));
    assert_eq!(g.to_json()["nodes"].as_array().unwrap().len(), 4);
}
