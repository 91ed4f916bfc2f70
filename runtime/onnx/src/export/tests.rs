//! Round trips: exported models are imported again and evaluated by the reference, and must give
//! the same results.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use prost::Message;

use super::*;
use crate::import::{self, load_bytes};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, shape};
use hypatia_graph::{GraphBuilder, Var};
use hypatia_library as library;
use hypatia_optimize::Options;
use hypatia_pipeline as pipeline;
use hypatia_pipeline::FOLDER;
use hypatia_tensor::{Tensor, npz};
use hypatia_testing::random::{Random, coarsest};

/// Exports a graph and imports it again.
fn back(graph: &Graph) -> (Export, Graph) {
    let export = export(graph, &FOLDER).unwrap();
    if let Some(main) = &export.model.graph {
        let named: Vec<&String> = main.node.iter().filter_map(|n| n.name.as_ref()).collect();
        let different: std::collections::HashSet<&&String> = named.iter().collect();
        assert_eq!(named.len(), different.len(), "two nodes are called alike: {named:?}");
    }
    let bytes = export.model.encode_to_vec();
    let read = load_bytes(&bytes, "exported", graph.program.clone(), &import::Options::default(), &FOLDER).unwrap();
    (export, read.graph)
}

fn equal(a: &Graph, b: &Graph, inputs: &[(String, Tensor)], tolerance: f64) {
    let (x, y) = (evaluate(a, inputs, Mode::Rounded).unwrap(), evaluate(b, inputs, Mode::Rounded).unwrap());
    for ((name, _), (x, y)) in a.outputs.iter().zip(x.iter().zip(&y)) {
        let (x, y) = (x.to_tensor().unwrap(), y.to_tensor().unwrap());
        assert_eq!((x.dtype(), x.shape()), (y.dtype(), y.shape()), "{name}");
        let scale = x.to_f64().iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
        for (x, y) in x.to_f64().iter().zip(y.to_f64()) {
            let same = *x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * scale;
            assert!(same, "{name}: {x} became {y}");
        }
    }
}

fn optimized(graph: &Graph) -> Graph {
    pipeline::optimize(graph, &Options::default()).unwrap().graph
}

#[test]
fn models_survive_with_their_fusions_as_functions() {
    for name in ["digits", "bert"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models").join(name);
        let graph = import::load_with(
            &folder.join("model.onnx"),
            library::load(&[]).unwrap(),
            &import::Options::default(),
            &FOLDER,
        )
        .unwrap()
        .graph;
        let better = optimized(&graph);
        let (export, read) = back(&better);
        assert!(!export.fusions.is_empty(), "{name}");
        assert_eq!(export.model.functions.len(), fusions(&better, &FOLDER).unwrap().len(), "{name}");
        let names = |g: &Graph| (g.inputs.len(), g.outputs.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>());
        assert_eq!(names(&graph), names(&read), "{name}");
        for (id, was) in read.inputs.iter().zip(&graph.inputs) {
            assert_eq!(read.node(*id).results, graph.node(*was).results, "{name}: dynamic sizes stay");
        }
        let calls = export.model.graph.unwrap().node.iter().filter(|n| n.domain() == "hypatia").count();
        assert_eq!(calls, export.fusions.iter().map(|f| f.calls).sum::<usize>());
        let inputs = npz::read(&folder.join("inputs.npz")).unwrap();
        equal(&graph, &read, &inputs, 1e-5);
    }
}

/// Two products of one operand are written as two products.
#[test]
fn two_products_and_their_term() {
    for seed in 0..12 {
        let mut r = Random::new(seed);
        r.pair();
        let (_, read) = back(&r.graph);
        equal(&r.graph, &read, &r.inputs, coarsest(&r.graph) * 8.0);
    }
}

fn numbers(shape: &[usize], from: f64, step: f64) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_f64(DType::F32, shape, &(0..n).map(|i| from + step * i as f64).collect::<Vec<_>>()).unwrap()
}

/// Every builtin op on a dynamic batch, and the result of its round trip.
#[test]
fn every_op_on_dynamic_sizes() {
    type Make = for<'g> fn(&'g GraphBuilder, Var<'g>) -> Vec<Var<'g>>;
    let cases: &[(&str, Make)] = &[
        ("reshape", |_, x| vec![x.reshape(shape!["batch", 2, 6]), x.reshape(shape![12, "batch"])]),
        ("transpose", |_, x| vec![x.transpose(&[2, 0, 1])]),
        ("expand", |g, x| vec![g.tensor(&[1, 3, 1], &[1.0f32, 2.0, 3.0]).expand(x.shape())]),
        ("slice", |g, x| {
            let back = [("axis", 1.into()), ("start", 2.into()), ("stop", (-1).into()), ("step", (-2).into())];
            vec![x.slice(0, 1, "batch"), x.slice(2, 1, 3), g.call("slice", &[x], &back)]
        }),
        ("concat", |g, x| vec![g.concat(&[x, x * 2.0], 0)]),
        ("split", |g, x| {
            let sizes = AttrValue::from([1, 2]);
            g.call_all("split", &[x], &[("axis", 1.into()), ("sizes", sizes)])
        }),
        ("pad", |g, x| {
            let value = g.tensor(&[], &[7.0f32]);
            vec![g.call("pad", &[x, value], &[("before", [0, 1, -1].into()), ("after", [0, 0, 2].into())])]
        }),
        ("gather", |g, x| vec![x.gather(g.tensor(&[2], &[2i64, -1]), 1)]),
        ("gather_elements", |g, x| {
            let at = g.tensor(&[1, 3, 4], &[0i64; 12]).expand(x.shape());
            vec![g.call("gather_elements", &[x, at], &[("axis", 2.into())])]
        }),
        ("gather_nd", |g, x| vec![g.call("gather_nd", &[x, g.tensor(&[2, 1], &[1i64, 0])], &[])]),
        ("reductions", |g, x| {
            let all =
                [x.sum(&[1, 2], false), x.mean(&[-1], true), x.amax(&[0], true), x.amin(&[1], false), x.sum(&[], true)];
            all.into_iter().chain([g.call("prod", &[x], &[("axes", [2].into())])]).collect()
        }),
        ("cumsum", |g, x| {
            let back =
                g.call("cumsum", &[x], &[("axis", 2.into()), ("exclusive", true.into()), ("reverse", true.into())]);
            vec![g.call("cumsum", &[x], &[("axis", 1.into())]), back]
        }),
        ("argmax", |g, x| vec![g.call("argmax", &[x], &[("axis", 1.into()), ("last", true.into())])]),
        ("generated", |g, x| {
            let iota = [("shape", x.shape().into()), ("axis", 1.into()), ("to", DType::I32.into())];
            let full = [("shape", x.shape().into()), ("value", 2.5.into()), ("to", DType::F32.into())];
            let size = g.call("size", &[], &[("value", (Dim::symbol("batch")).into())]);
            vec![g.call("iota", &[], &iota), g.call("full", &[], &full), size]
        }),
        ("casts", |_, x| vec![x.cast(DType::I32), x.cast(DType::Bool), x.cast(DType::F16), x.cast(DType::I8)]),
        ("matmul", |g, x| vec![x.matmul(g.tensor(&[4, 2], &[0.5f32; 8])), x.matmul(x.transpose(&[0, 2, 1]))]),
        ("windows", |g, x| {
            let sizes = [("sizes", [2, 3].into()), ("strides", [1, 1].into()), ("dilations", [1, 1].into())];
            vec![g.call("windows", &[x], &sizes)]
        }),
        ("halves", |g, x| {
            let x = x.cast(DType::F16);
            vec![g.call("gelu", &[x + 1.0], &[]), x.matmul(x.transpose(&[0, 2, 1])), x.mean(&[-1], false)]
        }),
        ("integers", |g, x| {
            let x = x.cast(DType::I8);
            vec![x / 3.0, -x, g.call("max", &[x, x * 2.0], &[]), x % 2.0]
        }),
        ("defined ops", |g, x| vec![g.call("softmax", &[x], &[]), g.call("log_softmax", &[x], &[("axis", 1.into())])]),
    ];
    let program = library::load(&[]).unwrap();
    let inputs = [("x".to_string(), numbers(&[2, 3, 4], -2.1, 0.37))];
    for (name, make) in cases {
        let g = GraphBuilder::new(program.clone());
        let x = g.input("x", DType::F32, shape!["batch", 3, 4]);
        for (i, v) in make(&g, x).into_iter().enumerate() {
            g.output(&format!("{name} {i}"), v);
        }
        let graph = g.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
        for graph in [&graph.inlined().unwrap(), &optimized(&graph)] {
            let (_, read) = back(graph);
            equal(graph, &read, &inputs, 2e-6);
        }
    }
}

/// Every scalar of the library, alone and therefore as a function, on the values where scalars
/// differ.
#[test]
fn every_scalar() {
    let program = library::load(&[]).unwrap();
    let values = [-3.5f32, -1.0, -0.25, 0.0, 0.25, 0.5, 2.0, 1e6, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 4.0];
    let inputs: Vec<(String, Tensor)> = (0..3)
        .map(|i| {
            let turned: Vec<f32> = (0..12).map(|k| values[(k + 5 * i) % 12]).collect();
            (format!("x{i}"), Tensor::from_slice(&[12], &turned).unwrap())
        })
        .collect();
    for def in &program.scalars {
        let g = GraphBuilder::new(program.clone());
        let xs: Vec<Var> = (0..3).map(|i| g.input(&format!("x{i}"), DType::F32, shape![12])).collect();
        let args: Vec<Var> = def
            .params
            .iter()
            .enumerate()
            .map(|(i, (_, kind))| match kind {
                hypatia_dsl::dtype::Kind::Bool => xs[i].cast(DType::Bool),
                hypatia_dsl::dtype::Kind::Number => xs[i],
            })
            .collect();
        g.output("y", g.call(&def.name, &args, &[]));
        let graph = g.finish().unwrap_or_else(|e| panic!("{}: {e}", def.name));
        let (_, read) = back(&graph);
        let y = evaluate(&graph, &inputs, Mode::Exact).unwrap()[0].to_tensor().unwrap().to_f64();
        let z = evaluate(&read, &inputs, Mode::Exact).unwrap()[0].to_tensor().unwrap().to_f64();
        for (i, (y, z)) in y.iter().zip(&z).enumerate() {
            let same = y == z || (y.is_nan() && z.is_nan()) || (y - z).abs() <= 1e-6 * y.abs().max(1.0);
            assert!(same, "{} at {i}: {y} became {z}", def.name);
        }
    }
}

#[test]
fn equal_kernels_are_one_function_and_outputs_keep_their_names() {
    let g = GraphBuilder::new(library::load(&[]).unwrap());
    let x = g.input("v0", DType::F32, shape!["n", 8]);
    let once = g.call("softmax", &[x], &[]);
    let twice = g.call("softmax", &[once.matmul(once.transpose(&[1, 0]))], &[]);
    g.output("same", twice);
    g.output("v1", twice);
    g.output("input", x);
    g.output("weight", g.tensor(&[2], &[1.0f32, 2.0]));
    let graph = g.finish().unwrap();
    let (export, read) = back(&optimized(&graph));
    assert_eq!(export.fusions.len(), 1);
    assert_eq!((export.fusions[0].name.as_str(), export.fusions[0].calls), ("softmax", 2));
    let names: Vec<&str> = read.outputs.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["same", "v1", "input", "weight"]);
    equal(&graph, &read, &[("v0".into(), numbers(&[3, 8], -1.0, 0.1))], 1e-6);
}

#[test]
fn large_weights_go_to_a_file_of_their_own() {
    let g = GraphBuilder::new(library::load(&[]).unwrap());
    let x = g.input("x", DType::F32, shape![2, 64]);
    let w = numbers(&[64, 32], -1.0, 0.001);
    g.output("y", x.matmul(g.constant(w)) + g.constant(numbers(&[32], 0.0, 1.0)));
    let graph = g.finish().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let files = file::write_with(export(&graph, &FOLDER).unwrap().model, &path, 1000).unwrap();
    assert_eq!(files, [path.clone(), folder.path().join("m.onnx.data")]);
    assert_eq!(std::fs::metadata(&files[1]).unwrap().len(), 64 * 32 * 4);
    let read = import::load_with(&path, graph.program.clone(), &import::Options::default(), &FOLDER).unwrap().graph;
    equal(&graph, &read, &[("x".into(), numbers(&[2, 64], 0.0, 0.01))], 0.0);
    // No temporary file is left beside them.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_size_that_no_input_tells_is_an_error_that_names_it() {
    let g = GraphBuilder::new(library::load(&[]).unwrap());
    let x = g.input("x", DType::F32, vec![Dim::symbol("n").checked_mul(&Dim::from(2)).unwrap()]);
    g.output("y", g.tensor(&[1], &[1.0f32]).expand(x.shape()));
    let e = export(&g.finish().unwrap(), &FOLDER).err().unwrap().to_string();
    assert!(e.contains("`n`") && e.contains("--inputs"), "{e}");
}

/// A reshape to computed sizes becomes several nodes; `back` checks that node names are unique.
#[test]
fn nodes_of_one_name_are_told_apart() {
    let mut g = Graph::new(library::load(&[]).unwrap());
    let shape = vec![Dim::symbol("batch"), Dim::symbol("seq"), 8.into()];
    let x = g.input("x", TensorType { dtype: DType::F32, shape: shape.clone() });
    let split = vec![shape[0].clone(), shape[1].clone(), 2.into(), 4.into()];
    let to = AttrValue::List(split.into_iter().map(AttrValue::Dim).collect());
    let y = g.builtin(BuiltinOp::Reshape, &[x], vec![to]).unwrap()[0];
    g.name_node(y, "split_heads");
    g.output("y", y);
    let (export, read) = back(&g);
    let nodes = export.model.graph.unwrap().node;
    assert!(nodes.iter().filter(|n| n.name().starts_with("split_heads")).count() > 1);
    equal(&g, &read, &[("x".to_string(), numbers(&[2, 3, 8], 0.0, 1.0))], 0.0);
    // A size of 0 is taken literally, and does not mean that an axis keeps its size.
    for empty in [[2, 0, 8], [0, 3, 8]] {
        equal(&g, &read, &[("x".to_string(), numbers(&empty, 0.0, 1.0))], 0.0);
    }
}

/// The library and a file whose ops are those of `com.acme`.
fn acme() -> std::sync::Arc<hypatia_dsl::ir::Program> {
    let text = "edition 1;\nuse core::*;\n\
        op UnitRows<T: float>(x: T[..s, n], g: T[n]?, eps: float = 1e-6) -> T[..s, n]\n\
          = x * rsqrt(sum(x * x, axes = [-1]) + eps) * (g else 1);\n\
        kernel rows for UnitRows(x, g?, eps = e) { rowwise; }\n\
        op Twice<T: float>(x: T[..s]) -> T[..s] = x + x;\n";
    let file =
        hypatia_dsl::source::SourceFile { name: "acme.hyp".into(), path: None, text: text.into(), embedded: false };
    let mut program = library::compile_sources(vec![file]).program.unwrap();
    assert_eq!(program.set_domain("acme.hyp", "com.acme"), 2);
    std::sync::Arc::new(program)
}

#[test]
fn ops_of_a_custom_domain_are_its_nodes() {
    let mut g = Graph::new(acme());
    let x = g.input("x", TensorType { dtype: DType::F32, shape: shape!["batch", 6] });
    let scale = g.constant(numbers(&[6], 0.5, 0.25));
    let unit = g.named_op("UnitRows", &[Some(x), Some(scale)], &[("eps", AttrValue::Float(0.5))], None).unwrap()[0];
    let plain = g.named_op("UnitRows", &[Some(x), None], &[], None).unwrap()[0];
    let twice = g.named_op("Twice", &[Some(unit)], &[], None).unwrap()[0];
    g.output("twice", twice);
    g.output("plain", plain);
    let inputs = [("x".to_string(), numbers(&[2, 6], -1.0, 0.3))];
    for (graph, kept) in [(g.clone(), vec!["UnitRows", "UnitRows", "Twice"]), (optimized(&g), vec!["UnitRows"; 2])] {
        let (export, read) = back(&graph);
        let main = export.model.graph.as_ref().unwrap();
        let own = main.node.iter().filter(|n| n.domain() == "com.acme").map(|n| n.op_type());
        let mut own: Vec<&str> = own.collect();
        own.sort_by_key(|n| std::cmp::Reverse(*n));
        assert_eq!(own, kept);
        assert!(export.model.opset_import.iter().any(|o| o.domain() == "com.acme"));
        equal(&g, &read, &inputs, 1e-6);
    }
}

#[test]
fn nodes_of_a_custom_domain_that_do_not_fit_are_errors() {
    let mut g = Graph::new(acme());
    let x = g.input("x", TensorType { dtype: DType::F32, shape: shape![4, 6] });
    let unit = g.named_op("UnitRows", &[Some(x), None], &[], None).unwrap()[0];
    g.output("y", unit);
    let model = export(&g, &FOLDER).unwrap().model;
    let import = |change: &dyn Fn(&mut crate::import::onnx::proto::NodeProto), program| {
        let mut model = model.clone();
        change(&mut model.graph.as_mut().unwrap().node[0]);
        let bytes = model.encode_to_vec();
        load_bytes(&bytes, "m", program, &import::Options::default(), &FOLDER).err().map(|e| e.to_string()).unwrap()
    };
    let says = |change: &dyn Fn(&mut crate::import::onnx::proto::NodeProto), what: &str| {
        let error = import(change, acme());
        assert!(error.contains(what), "{error}");
    };
    says(&|n| n.op_type = Some("UnitColumns".into()), "declares no op `UnitColumns`; it has UnitRows, Twice");
    says(&|n| n.input.extend(["x".to_string(), "x".to_string()]), "takes 2 operands, but 3 are given");
    says(&|n| n.input.clear(), "operand `x` is absent");
    says(&|n| n.attribute[0].name = Some("epsilon".into()), "it has no attribute `epsilon`; it has `eps`");
    says(&|n| n.attribute[0].r#type = Some(2), "should be FLOAT");
    let error = import(&|_| {}, library::load(&[]).unwrap());
    assert!(error.contains("`--domain com.acme=FILE.hyp`"), "{error}");
}

/// A kernel keeps what lies between operands and results in f32; so does the function that stands
/// for it in another runtime. Squares of 300 are no f16.
#[test]
fn a_norm_in_16_bits_is_exported_in_f32() {
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = |shape: &[i64]| TensorType { dtype: DType::F16, shape: shape.iter().map(|d| Dim::from(*d)).collect() };
    let [x, scale, bias] =
        [("x", ty(&[2, 64])), ("scale", ty(&[64])), ("bias", ty(&[64]))].map(|(name, ty)| g.input(name, ty));
    let y = g.call("layer_norm", &[x, scale, bias], &[]).unwrap()[0];
    g.output("y", y);
    let row = |i: usize| ((i * 37 % 101) as f64 - 50.0) * if i < 64 { 0.02 } else { 12.0 };
    let tensor = |shape: &[usize], values: Vec<f64>| Tensor::from_f64(DType::F16, shape, &values).unwrap();
    let inputs = vec![
        ("x".to_string(), tensor(&[2, 64], (0..128).map(row).collect())),
        ("scale".to_string(), tensor(&[64], vec![1.0; 64])),
        ("bias".to_string(), tensor(&[64], vec![0.0; 64])),
    ];
    let (export, read) = back(&optimized(&g));
    assert_eq!(export.fusions.len(), 1, "{:?}", export.fusions);
    let exact = evaluate(&g, &inputs, Mode::Exact).unwrap()[0].to_tensor().unwrap().to_f64();
    let got = evaluate(&read, &inputs, Mode::Rounded).unwrap()[0].to_tensor().unwrap();
    assert_eq!(got.dtype(), DType::F16);
    for (got, exact) in got.to_f64().iter().zip(exact) {
        assert!((got - exact).abs() <= 0.002 * exact.abs().max(1.0), "{exact} became {got}");
    }
}
