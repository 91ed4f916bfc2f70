//! Lists of kernels: their contents, what sizes decide, and that the planner takes the first that
//! holds.

use crate::optimize;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_pipeline as pipeline;
use hypatia_pipeline::FOLDER;

use crate::Options;
use hypatia_graph::{Graph, Strategy};
use hypatia_library as library;
use hypatia_plan as plan;
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;

/// `y = gelu_tanh(x @ w + b)` and the gradient of such a layer, with `n` columns.
fn layers(n: Dim) -> Graph {
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = |shape: [Dim; 2]| TensorType { dtype: DType::BF16, shape: shape.to_vec() };
    let x = g.input("x", ty([128.into(), 64.into()]));
    let w = g.input("w", ty([64.into(), n.clone()]));
    let b = g.input("b", TensorType { dtype: DType::BF16, shape: vec![n.clone()] });
    let pre = g.input("pre", ty([128.into(), n]));
    let m = g.call("matmul", &[x, w], &[]).unwrap()[0];
    let biased = g.call("add", &[m, b], &[]).unwrap()[0];
    let y = g.call("gelu_tanh", &[biased], &[]).unwrap()[0];
    g.output("y", y);
    let slope = g.call("gelu_tanh_grad", &[pre], &[]).unwrap()[0];
    let u = g.input("u", TensorType { dtype: DType::BF16, shape: vec![128.into(), 32.into()] });
    let v = g.input("v", TensorType { dtype: DType::BF16, shape: vec![32.into(), g.ty(pre).shape[1].clone()] });
    let back = g.call("matmul", &[u, v], &[]).unwrap()[0];
    let grad = g.call("mul", &[back, slope], &[]).unwrap()[0];
    g.output("grad", grad);
    g
}

fn options() -> Options {
    Options { device: Device::named("h200").unwrap(), ..Options::default() }
}

#[test]
fn what_sizes_decide_is_listed_and_told() {
    let out = optimize(&layers(Dim::symbol("n")), &options(), &FOLDER).unwrap();
    let text = out.graph.to_text();
    let lines: Vec<&str> = text.lines().filter(|l| l.trim_start().starts_with("kernels: ")).collect();
    let wanted = [
        "    kernels: tiled product tiles if numel(%w) > 0 and (dtype(%x) in [i8, u8] or shape(%x)[-1] % 8 != 0 \
         or shape(%w)[-1] % 8 != 0 \
         or numel(%x) <= 16 * shape(%x)[-1] or numel(%x) * shape(%w)[-1] <= 8589934592) \
         and shape(%x)[-1] * shape(%w)[-1] >= 4096; \
         cublaslt GELU_BIAS if shape(%w)[-1] % 8 == 0; \
         tiled product tiles if numel(%w) > 0; cublaslt BIAS + pointwise; cublaslt DEFAULT + pointwise; \
         product + pointwise",
        "    kernels: tiled product tiles if numel(%v) > 0 and (dtype(%u) in [i8, u8] or shape(%u)[-1] % 8 != 0 \
         or shape(%v)[-1] % 8 != 0 \
         or numel(%u) <= 16 * shape(%u)[-1] or numel(%u) * shape(%v)[-1] <= 8589934592) \
         and shape(%u)[-1] * shape(%v)[-1] >= 4096; \
         cublaslt DGELU if shape(%v)[-1] % 8 == 0; \
         tiled product tiles if numel(%v) > 0; cublaslt DEFAULT + pointwise; product + pointwise",
    ];
    assert_eq!(lines, wanted, "{text}");
    assert_eq!(out.report.undecided.len(), lines.len(), "{}", out.report);
    assert!(out.report.to_string().contains("sizes that are not known yet decide these kernels"), "{}", out.report);
    // With fixed sizes no choice is open.
    let fixed = optimize(&layers(Dim::from(256)), &options(), &FOLDER).unwrap();
    assert!(!fixed.graph.to_text().contains("kernels: ") && fixed.report.undecided.is_empty(), "{}", fixed.graph);
}

/// The kernel lists of a graph on symbolic sizes give the same plan as the graph on those sizes.
#[test]
fn the_planner_takes_the_first_that_holds() {
    let symbolic = optimize(&layers(Dim::symbol("n")), &options(), &FOLDER).unwrap().graph;
    let plan_options = plan::Options::new(options().device);
    let mut kinds = Vec::new();
    // Factors that are large enough are multiplied by tiles, whatever the number of columns.
    for n in [56, 50] {
        let sized = symbolic.specialize(&[("n".into(), n)].into_iter().collect()).unwrap();
        let listed = pipeline::plan(&sized, &plan_options).unwrap();
        let fixed = optimize(&layers(Dim::from(n)), &options(), &FOLDER).unwrap().graph;
        let wanted = pipeline::plan(&fixed, &plan_options).unwrap();
        let kernels = |p: &plan::Plan| p.steps.iter().map(|s| s.kernel).collect::<Vec<_>>();
        // With its size known, an op that no call computes for 50 columns is not chosen at all.
        match n % 8 {
            0 => assert_eq!(kernels(&listed), kernels(&wanted), "{listed}\n{wanted}"),
            _ => assert!(listed.launches() >= wanted.launches(), "{listed}\n{wanted}"),
        }
        kinds.push(kernels(&listed));
    }
    assert_ne!(kinds[0], kinds[1], "sizes decide nothing");
}

/// An op that runs as several launches is printed as one node, and what these are after the graph.
#[test]
fn the_parts_of_an_op_are_printed_once() {
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = TensorType { dtype: DType::F16, shape: [1, 2, 64, 64].map(Dim::from).to_vec() };
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, ty.clone()));
    let scale = [("scale", hypatia_dsl::ir::AttrValue::Float(0.125))];
    for (name, operands) in [("y", [q, k, v]), ("z", [v, q, k])] {
        let y = g.call("attention", &operands, &scale).unwrap()[0];
        g.output(name, y);
    }
    let out = optimize(&g, &options(), &FOLDER).unwrap().graph;
    let text = out.bodies_to_text();
    let heads: Vec<&str> = text.lines().filter(|l| !l.starts_with(' ')).collect();
    let nodes: Vec<usize> = (0..out.nodes.len()).filter(|i| !out.nodes[*i].kernels.list.is_empty()).collect();
    let [y, z] = nodes.as_slice() else { panic!("{out}") };
    assert_eq!(heads, [format!("parts of %{y} = attention, %{z} = attention:")], "{out}");
    assert!(text.matches("matmul(").count() + text.matches("gemm(").count() == 2, "{text}");
    assert!(!out.to_text().contains("matmul(") && layers(64.into()).bodies_to_text().is_empty(), "{out}");
}

/// The last candidate has no guard, whatever the epilogue, and a split is explicit.
#[test]
fn the_last_candidate_is_unconditional() {
    let mut g = Graph::new(library::load(&[]).unwrap());
    let ty = |shape: [i64; 2]| TensorType { dtype: DType::F64, shape: shape.map(Dim::from).to_vec() };
    let (x, w) = (g.input("x", ty([32, 64])), g.input("w", ty([64, 16])));
    let bias: Vec<f64> = (0..16).map(f64::from).collect();
    let b = g.constant(Tensor::from_f64(DType::F64, &[16], &bias).unwrap());
    let m = g.call("matmul", &[x, w], &[]).unwrap()[0];
    let biased = g.call("add", &[m, b], &[]).unwrap()[0];
    let y = g.call("sin", &[biased], &[]).unwrap()[0];
    g.output("y", y);
    let out = optimize(&g, &options(), &FOLDER).unwrap();
    let listed: Vec<_> = out.graph.nodes.iter().filter(|n| !n.kernels.list.is_empty()).collect();
    let [product] = listed.as_slice() else { panic!("{}", out.graph) };
    let last = product.kernels.list.last().unwrap();
    assert!(last.matched.is_none() && matches!(last.strategy, Strategy::Split(_)), "{last:?}");
    let described = out.graph.describe_kernels(product).join("; ");
    assert!(described.starts_with("cublaslt BIAS"), "{described}\n{}", out.graph);
    assert!(described.ends_with("; cublaslt DEFAULT + pointwise; product + pointwise"), "{described}");
}

/// Rows that are not whole 16 bytes, which the library computes slowly, and products that take no
/// longer than launches do are timed on a tiled kernel although a library call has the whole
/// epilogue. Where the number of columns is open, so is that.
#[test]
fn a_tiled_product_is_preferred_for_odd_rows() {
    let of = |dtype: DType, [k, n]: [Dim; 2]| {
        let mut g = Graph::new(library::load(&[]).unwrap());
        let ty = |shape: [Dim; 2]| TensorType { dtype, shape: shape.to_vec() };
        let (x, w) = (g.input("x", ty([64.into(), k.clone()])), g.input("w", ty([k, n])));
        let y = g.call("matmul", &[x, w], &[]).unwrap()[0];
        g.output("y", y);
        let out = optimize(&g, &options(), &FOLDER).unwrap().graph;
        out.nodes.iter().flat_map(|n| out.describe_kernels(n)).collect::<Vec<String>>()
    };
    let fixed = |dtype: DType, k: i64, n: i64| of(dtype, [k.into(), n.into()]);
    assert_eq!(fixed(DType::BF16, 8192, 50_256), ["cublaslt DEFAULT", "tiled product tiles", "product"]);
    assert_eq!(fixed(DType::BF16, 768, 50_257), ["tiled product tiles", "cublaslt DEFAULT", "product"]);
    assert_eq!(fixed(DType::F16, 1001, 1024), ["tiled product tiles", "cublaslt DEFAULT", "product"]);
    // Small factors, and f32 that is not rounded.
    assert_eq!(fixed(DType::F16, 64, 10), ["cublaslt DEFAULT", "tiled product tiles", "product"]);
    assert_eq!(fixed(DType::F32, 768, 50_257), ["cublaslt DEFAULT", "tiled product tiles", "product"]);
    let open = of(DType::BF16, [768.into(), Dim::symbol("n")]);
    let [first, second, ..] = open.as_slice() else { panic!("{open:?}") };
    assert!(first.starts_with("tiled product tiles if ") && first.contains("shape(%w)[-1] % 8 != 0"), "{first}");
    assert_eq!(second, "cublaslt DEFAULT");
}
