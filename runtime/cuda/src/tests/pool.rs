//! Pooling with the channels last or first, against the reference: the largest, smallest, sums and
//! means of windows; strides, dilations, padding on one side, windows that lie beside the image,
//! channels that are no whole accesses, NaN and infinities; one step, without a padded copy.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{list, ty};

use super::emulated::{self, Case};
use super::{agrees, gpu};
use hypatia_eval::{Mode, evaluate};

/// Images, rows, columns and channels; the window's rows and columns, stride and dilation; padding
/// before and behind rows and columns.
struct Shape([usize; 4], [i64; 2], [i64; 2], [i64; 2], [i64; 2]);

const SHAPES: [Shape; 9] = [
    Shape([2, 12, 12, 16], [3, 3], [2, 1], [1, 1], [1, 1]),
    Shape([3, 9, 10, 8], [2, 2], [2, 1], [0, 0], [0, 0]),
    Shape([1, 7, 11, 24], [3, 2], [1, 1], [0, 1], [2, 0]),
    Shape([2, 13, 9, 12], [3, 3], [1, 2], [2, 2], [2, 2]),
    Shape([1, 5, 5, 40], [5, 5], [1, 1], [0, 0], [0, 0]),
    Shape([2, 8, 30, 6], [1, 7], [1, 1], [0, 3], [0, 3]),
    Shape([4, 6, 6, 3], [2, 3], [3, 1], [1, 2], [2, 4]),
    Shape([1, 16, 16, 64], [8, 8], [4, 1], [3, 3], [3, 3]),
    Shape([2, 1, 9, 32], [1, 3], [2, 1], [0, 1], [0, 1]),
];
const KINDS: [&str; 4] = ["amax", "amin", "sum", "mean"];
const TYPES: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];

/// Pooling of an image whose channels lie last, or first. Padding changes no result if `neutral`
/// says so.
fn case(dtype: DType, shape: &Shape, kind: &str, [neutral, last]: [bool; 2]) -> Case {
    let Shape(image, sizes, [stride, dilation], before, after) = shape;
    let [n, rows, columns, channels] = *image;
    let image = &if last { *image } else { [n, channels, rows, columns] };
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let count: usize = image.iter().product();
    let mut values: Vec<f64> = (0..count).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
    if count > 50 {
        (values[7], values[count / 2], values[count - 3]) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
    }
    let x = g.input("x", ty(dtype, image));
    let turned = |g: &mut Graph, v, order: [usize; 4]| g.call("transpose", &[v], &[("perm", list(&order))]).unwrap()[0];
    let value = match kind {
        _ if !neutral => 0.25,
        "amax" => f64::NEG_INFINITY,
        "amin" => f64::INFINITY,
        _ => 0.0,
    };
    let value = g.number(dtype, value).unwrap();
    let around = |n: &[i64; 2]| AttrValue::from(if last { [0, n[0], n[1], 0] } else { [0, 0, n[0], n[1]] });
    let mut y = x;
    if [before, after].iter().any(|n| n.iter().any(|n| *n > 0)) {
        y = g.call("pad", &[x, value], &[("before", around(before)), ("after", around(after))]).unwrap()[0];
    }
    if last {
        y = turned(&mut g, y, [0, 3, 1, 2]);
    }
    let lists = [("sizes", *sizes), ("strides", [*stride; 2]), ("dilations", [*dilation; 2])];
    let y = g.call("windows", &[y], &lists.map(|(name, list)| (name, list.into()))).unwrap()[0];
    let kept = !last && *stride == 2;
    let y = g.call(kind, &[y], &[("axes", [4i64, 5].into()), ("keepdims", kept.into())]).unwrap()[0];
    let y = if last { turned(&mut g, y, [0, 2, 3, 1]) } else { y };
    g.output("y", y);
    let what = format!("{kind} {dtype} {image:?} by {sizes:?}, stride {stride}, before {before:?}");
    Case { what, graph: g, inputs: vec![("x".into(), Tensor::from_f64(dtype, image, &values).unwrap())] }
}

fn all() -> Vec<Case> {
    let of = |last: bool| {
        let kinds = move |(i, shape)| {
            KINDS.iter().enumerate().map(move |(k, kind)| case(TYPES[(i + k) % 4], shape, kind, [true, last]))
        };
        SHAPES.iter().enumerate().flat_map(kinds)
    };
    of(true).chain(of(false)).collect()
}

fn plan(case: &Case) -> Plan {
    pipeline::plan(&case.graph, &Options::new(Device::named("h200").unwrap())).unwrap()
}

#[test]
fn pooling_is_one_step() {
    for case in all() {
        let plan = plan(&case);
        assert!(matches!(plan.steps.as_slice(), [s] if matches!(s.action, Action::Pool(_))), "{}\n{plan}", case.what);
    }
    // What is no neutral element is stored.
    let apart = plan(&case(DType::F32, &SHAPES[0], "mean", [false, true]));
    let kinds: Vec<&str> = apart.steps.iter().map(|s| s.action.name()).collect();
    assert_eq!(kinds.last(), Some(&"pool"), "{apart}");
    assert_eq!(kinds.len(), 2, "{apart}");
    // Windows of 81 elements are no pooling.
    let long = plan(&case(DType::F32, &Shape([1, 16, 16, 8], [9, 9], [1, 1], [0, 0], [0, 0]), "amax", [true, true]));
    assert!(!long.steps.iter().any(|s| matches!(s.action, Action::Pool(_))), "{long}");
}

#[test]
fn pooling_agrees_with_the_reference_on_the_cpu() {
    for case in all().into_iter().chain([case(DType::F32, &SHAPES[0], "mean", [false, true])]) {
        let plan = Arc::new(plan(&case));
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        let got = hypatia_cpu::Executor::new(plan, 2).unwrap().poisoned().run(&tensors).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&case.graph), &case.what);
    }
}

/// The kernel, its threads one after another.
#[test]
fn emulated_pooling_agrees_with_the_reference() {
    let cases = all();
    let ran = match emulated::run(&cases) {
        Ok(ran) => ran,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    for (case, ran) in cases.iter().zip(ran) {
        let (_, got) = ran.unwrap_or_else(|| panic!("{} has no kernel", case.what));
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&case.graph), &case.what);
    }
}

#[test]
fn pooling_agrees_with_the_reference_on_a_gpu() {
    let cases = all();
    let Some(gpu) = gpu(cases.len()) else { return };
    for case in cases {
        agrees(&gpu, &case.graph, &case.inputs, &case.what).unwrap_or_else(|why| panic!("{}: {why}", case.what));
    }
}
