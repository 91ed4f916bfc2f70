//! Near misses: the output of `explain --why-not`, one golden text each.

use std::collections::BTreeSet;
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Clause, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::source::SourceFile;
use hypatia_dsl::typing::TensorType;
use hypatia_pipeline::FOLDER;

use crate::Options;
use crate::explain::why_not;
use hypatia_graph::{Graph, Value};
use hypatia_library as library;
use hypatia_tensor::tensor::Tensor;

fn program() -> Arc<Program> {
    let text = include_str!("near.hyp");
    let file = SourceFile { name: "near.hyp".into(), path: None, text: text.into(), embedded: false };
    let compilation = library::check(vec![file]);
    let errors = library::rejected(&compilation).to_string();
    Arc::new(compilation.program.unwrap_or_else(|| panic!("{errors}")))
}

/// One graph in which every rule has a near miss.
fn graph() -> Graph {
    let mut g = Graph::new(program());
    let ty = |d, s: &[i64]| TensorType { dtype: d, shape: s.iter().map(|n| Dim::from(*n)).collect() };
    let x = g.input("x", ty(DType::F32, &[2, 32]));
    let y = g.input("y", ty(DType::F32, &[32]));
    let h = g.input("h", ty(DType::F16, &[4]));
    let data: Vec<f64> = (0..1024).map(|i| f64::from(i) / 512.0 - 1.0).collect();
    let w = g.constant(Tensor::from_f64(DType::F32, &[32, 32], &data).unwrap());
    g.name_node(w, "weight");
    let mut made: BTreeSet<String> = BTreeSet::new();
    let mut call = |g: &mut Graph, name: &str, f: &str, args: &[Value]| {
        let v = g.call(f, args, &[]).unwrap()[0];
        g.name_node(v, name);
        assert!(made.insert(name.to_string()));
        v
    };
    let number = |g: &mut Graph, v: f64| g.number(DType::F32, v).unwrap();
    let mut outs = Vec::new();
    let sum = call(&mut g, "sum", "add", &[x, y]);
    outs.push(call(&mut g, "head", "tanh", &[sum]));
    let scaled = call(&mut g, "scaled", "mul", &[x, y]);
    outs.push(call(&mut g, "weight_out", "exp", &[scaled]));
    outs.push(call(&mut g, "shape", "erf", &[sum]));
    let c = number(&mut g, 0.6);
    let c = call(&mut g, "six_tenths", "mul", &[c, x]);
    outs.push(call(&mut g, "half", "sin", &[c]));
    let wide = g
        .builtin(
            BuiltinOp::Reshape,
            &[x],
            vec![AttrValue::List([2, 4, 8].map(|n| AttrValue::Dim(Dim::from(n))).to_vec())],
        )
        .unwrap()[0];
    let perm = AttrValue::List([0, 2, 1].map(|n| AttrValue::Dim(Dim::from(n))).to_vec());
    let turned = g.builtin(BuiltinOp::Transpose, &[wide], vec![perm]).unwrap()[0];
    g.name_node(turned, "turned");
    outs.push(call(&mut g, "perm", "log", &[turned]));
    outs.push(call(&mut g, "square", "abs", &[scaled]));
    outs.push(call(&mut g, "single", "floor", &[sum]));
    outs.push(call(&mut g, "claim", "ceil", &[h]));
    outs.push(call(&mut g, "dear", "round", &[x]));
    let squares = call(&mut g, "squares", "mul", &[x, x]);
    let product = call(&mut g, "product", "mul", &[squares, y]);
    outs.push(call(&mut g, "positive", "sqrt", &[product]));
    let alone = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
    g.name_node(alone, "alone");
    outs.push(alone);
    for (i, v) in outs.into_iter().enumerate() {
        g.output(format!("out{i}"), v);
    }
    g.validate().unwrap();
    g
}

#[test]
fn golden_near_misses() {
    let g = graph();
    let mut all = String::new();
    for rule in
        ["head", "weight", "shape", "half", "perm", "square", "single", "claim", "dear", "positive", "pair", "nowhere"]
    {
        let node = match rule {
            "weight" => "weight_out",
            "pair" => "alone",
            other => other,
        };
        let node = (rule != "nowhere").then_some(node);
        let answer = why_not(&g, &Options::default(), (&FOLDER, &|_| None), &format!("near::{rule}"), node).unwrap();
        all.push_str(&format!("---- {rule}\n{answer}\n"));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn what_is_not_there_is_told() {
    let g = graph();
    let ask = |rule: &str, node: Option<&str>| {
        why_not(&g, &Options::default(), (&FOLDER, &|_| None), rule, node).unwrap_err().to_string()
    };
    assert!(ask("near::hed", None).contains("near::head"));
    assert!(ask("near::head", Some("hea")).contains("there are head"));
    let off = Options { disabled: ["near".to_string()].into(), ..Options::default() };
    let forbidden = Options { contract: vec![Clause::never("near")], ..Options::default() };
    let none = Options { no_rules: true, ..Options::default() };
    for (options, why) in [(off, "is disabled"), (forbidden, "`never near` forbids it"), (none, "are switched off")] {
        let answer = why_not(&g, &options, (&FOLDER, &|_| None), "near::head", None).unwrap().to_string();
        assert!(answer.contains(why), "{answer}");
    }
}
