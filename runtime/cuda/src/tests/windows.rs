//! Convolutions whose groups have few filters, against the reference: windows of 1 to 49 elements
//! and longer ones, strides, dilations, padding on one side, several filters of a group, what
//! follows in the same term, no batch.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::ty;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::emulated::{self, Case};
use super::{agrees, gpu};
use hypatia_dsl::ir::AttrValue;
use hypatia_eval::{Mode, evaluate};

/// A batch of images, groups of one channel, filters of each, the window, and how it moves.
struct Shape {
    batch: usize,
    groups: usize,
    filters: usize,
    size: [usize; 2],
    window: [usize; 2],
    stride: i64,
    dilation: i64,
    before: [i64; 2],
    after: [i64; 2],
}

const PLAIN: Shape = Shape {
    batch: 2,
    groups: 5,
    filters: 1,
    size: [9, 16],
    window: [3, 3],
    stride: 1,
    dilation: 1,
    before: [1, 1],
    after: [1, 1],
};

fn shapes() -> Vec<Shape> {
    vec![
        PLAIN,
        Shape { stride: 2, ..PLAIN },
        Shape { window: [5, 5], before: [2, 2], after: [2, 2], ..PLAIN },
        Shape { window: [7, 7], before: [3, 3], after: [3, 3], stride: 2, size: [15, 13], ..PLAIN },
        Shape { dilation: 2, before: [0, 2], after: [3, 0], ..PLAIN },
        Shape { window: [1, 1], before: [0, 0], after: [0, 0], ..PLAIN },
        Shape { window: [9, 9], before: [4, 4], after: [4, 4], ..PLAIN },
        Shape { batch: 0, ..PLAIN },
    ]
}

/// The convolution with a bias of channels and an activation behind it.
fn case(dtype: DType, shape: &Shape) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let mut tensor = |sizes: &[usize]| {
        let values: Vec<f64> = (0..sizes.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::from_f64(dtype, sizes, &values).unwrap()
    };
    let channels = shape.groups * shape.filters;
    let x = tensor(&[shape.batch, shape.groups, shape.size[0], shape.size[1]]);
    let w = tensor(&[channels, 1, shape.window[0], shape.window[1]]);
    let bias = tensor(&[channels, 1, 1]);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let inputs = vec![("x".to_string(), x), ("w".to_string(), w), ("bias".to_string(), bias)];
    let [x, w, bias] = [0, 1, 2].map(|i: usize| g.input(inputs[i].0.clone(), ty(dtype, inputs[i].1.shape())));
    let ints = |values: [i64; 2]| AttrValue::from(&values[..]);
    let attrs = [
        ("strides", ints([shape.stride; 2])),
        ("before", ints(shape.before)),
        ("after", ints(shape.after)),
        ("dilations", ints([shape.dilation; 2])),
        ("groups", (shape.groups as i64).into()),
    ];
    let y = g.call("conv", &[x, w], &attrs).unwrap()[0];
    let y = g.call("add", &[y, bias], &[]).unwrap()[0];
    let y = g.call("hardswish", &[y], &[]).unwrap()[0];
    g.output("y", y);
    let what = format!("{dtype} {:?} of {:?}, stride {}", shape.window, shape.size, shape.stride);
    Case { what, graph: g, inputs }
}

const TYPES: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];

fn all() -> Vec<Case> {
    let of = |dtype| shapes().into_iter().map(move |shape| case(dtype, &shape));
    let two = Shape { filters: 2, ..PLAIN };
    TYPES.into_iter().flat_map(of).chain([case(DType::BF16, &two), case(DType::F32, &two)]).collect()
}

/// The pointwise steps of a plan.
fn pointwise(plan: &Plan) -> usize {
    plan.steps.iter().filter(|s| matches!(s.action, Action::Pointwise(_))).count()
}

#[test]
fn windows_agree_with_the_reference_on_the_cpu() {
    let device = Device::named("h200").unwrap();
    for Case { what, graph, inputs } in all() {
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let plan = Arc::new(pipeline::plan(&graph, &Options::new(device.clone())).unwrap());
        let executor = hypatia_cpu::Executor::new(plan.clone(), 2).unwrap().poisoned();
        for (got, w) in executor.run(&tensors).unwrap().iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &format!("{what}\n{plan}"));
        }
    }
    // 25 elements take a pass more than 9, and 81 are a row-wise step.
    let plan = |shape: &Shape| pipeline::plan(&case(DType::BF16, shape).graph, &Options::new(device.clone())).unwrap();
    assert_eq!(pointwise(&plan(&Shape { window: [5, 5], ..PLAIN })), pointwise(&plan(&PLAIN)) + 1);
    let long = plan(&Shape { window: [9, 9], ..PLAIN });
    assert!(long.steps.iter().any(|s| matches!(s.action, Action::Rowwise(_))), "{long}");
}

#[test]
fn emulated_windows_agree_with_the_reference() {
    // Compilation is slow.
    let cases: Vec<Case> = all().into_iter().step_by(7).collect();
    let results = match emulated::run(&cases) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED {} emulated cases: {why}", cases.len()),
    };
    for (Case { what, graph, inputs }, ran) in cases.iter().zip(results) {
        let (plan, got) = ran.unwrap_or_else(|| panic!("{what}: a step has no generated kernel"));
        let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
        for (got, w) in got.iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(graph), &format!("{what}\n{plan}"));
        }
    }
}

#[test]
fn windows_agree_with_the_reference_on_a_gpu() {
    let cases = all();
    let Some(gpu) = gpu(cases.len()) else { return };
    for Case { what, graph, inputs } in cases {
        agrees(&gpu, &graph, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}
