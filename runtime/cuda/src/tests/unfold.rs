//! Windows as the rows of a matrix (im2col), and convolutions that are products of them, against
//! the reference: strides, dilations, padding on one side, planes of a few elements, long rows,
//! groups, one spatial axis.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan, Step};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::ty;

use super::emulated::{self, Case};
use super::{agrees, gpu};
use crate::lowering::step_kernels;
use hypatia_eval::{Mode, evaluate};

/// A convolution: the image, filters and their window, groups, stride, dilation, padding before and
/// behind each axis.
struct Shape(&'static [usize], &'static [usize], [i64; 3], &'static [i64], &'static [i64]);

const SHAPES: [Shape; 11] = [
    Shape(&[2, 4, 9, 16], &[16, 4, 3, 3], [1, 1, 1], &[1, 1], &[1, 1]),
    Shape(&[2, 4, 14, 14], &[16, 4, 3, 3], [1, 1, 1], &[1, 1], &[1, 1]),
    Shape(&[3, 8, 7, 7], &[16, 8, 3, 3], [1, 1, 1], &[1, 1], &[1, 1]),
    Shape(&[1, 3, 31, 33], &[16, 3, 7, 7], [1, 2, 1], &[3, 3], &[3, 3]),
    Shape(&[2, 4, 12, 12], &[16, 4, 1, 1], [1, 2, 1], &[0, 0], &[0, 0]),
    Shape(&[2, 4, 12, 10], &[16, 4, 3, 3], [1, 1, 2], &[0, 2], &[3, 0]),
    Shape(&[2, 8, 9, 8], &[16, 4, 3, 3], [2, 1, 1], &[1, 1], &[1, 1]),
    Shape(&[2, 4, 40], &[16, 4, 5], [1, 1, 1], &[2], &[2]),
    Shape(&[1, 4, 1, 1], &[16, 4, 3, 3], [1, 1, 1], &[1, 1], &[1, 1]),
    Shape(&[1, 2, 300, 5], &[16, 2, 5, 2], [1, 3, 1], &[0, 1], &[4, 1]),
    Shape(&[1, 2, 8, 70], &[16, 2, 3, 3], [1, 1, 20], &[20, 20], &[20, 20]),
];

fn case(dtype: DType, Shape(image, filters, [groups, stride, dilation], before, after): &Shape) -> Case {
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut inputs = Vec::new();
    for (name, shape) in [("x", image), ("w", filters)] {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
        inputs.push((name.to_string(), Tensor::from_f64(dtype, shape, &values).unwrap()));
    }
    let read: Vec<_> = inputs.iter().map(|(name, t)| g.input(name.clone(), ty(dtype, t.shape()))).collect();
    let ints = |values: &[i64]| AttrValue::from(values);
    let axes = before.len();
    let attrs = [
        ("strides", ints(&vec![*stride; axes])),
        ("before", ints(before)),
        ("after", ints(after)),
        ("dilations", ints(&vec![*dilation; axes])),
        ("groups", (*groups).into()),
    ];
    let y = g.call("conv", &read, &attrs).unwrap()[0];
    g.output("y", y);
    Case { what: format!("{dtype}{image:?} by {filters:?} before {before:?}"), graph: g, inputs }
}

fn all() -> Vec<Case> {
    let types = [DType::BF16, DType::F32, DType::F16];
    SHAPES.iter().enumerate().map(|(i, shape)| case(types[i % 3], shape)).collect()
}

fn plan(case: &Case) -> Plan {
    pipeline::plan(&case.graph, &Options::new(Device::named("h200").unwrap())).unwrap()
}

fn unfold(plan: &Plan) -> Option<&Step> {
    plan.steps.iter().find(|s| matches!(s.action, Action::Unfold(_)))
}

#[test]
fn a_convolution_is_windows_and_a_product_on_a_gpu() {
    for case in all() {
        let plan = plan(&case);
        assert!(unfold(&plan).is_some(), "{}\n{plan}", case.what);
        let apart = |s: &Step| matches!(s.action, Action::Pad(_) | Action::Copy);
        assert!(!plan.steps.iter().any(apart), "{}\n{plan}", case.what);
    }
    // Windows that are a view need no copy.
    let patches = Shape(&[2, 4, 8, 8], &[16, 4, 1, 1], [1, 1, 1], &[0, 0], &[0, 0]);
    assert!(unfold(&plan(&case(DType::BF16, &patches))).is_none());
}

#[test]
fn convolutions_as_products_agree_with_the_reference_on_the_cpu() {
    for case in all() {
        let plan = std::sync::Arc::new(plan(&case));
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        let got = hypatia_cpu::Executor::new(plan, 2).unwrap().poisoned().run(&tensors).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&case.graph), &case.what);
    }
}

/// The kernel alone, its threads one after another: every element is that of the image, or 0.
#[test]
fn emulated_windows_of_convolutions_are_those_of_the_image() {
    for (Shape(image, filters, [_, stride, dilation], before, _), case) in SHAPES.iter().zip(all()) {
        let plan = plan(&case);
        let step = unfold(&plan).unwrap();
        let [(body, work)] = &step_kernels(step)[..] else { panic!("{}", case.what) };
        let source = body.emit(&plan.program).unwrap();
        let (x, size) = (case.inputs[0].1.bytes(), step.reads[0].dtype.size());
        let got = match emulated::alone(&source, work, &[("in0", x)], step.writes[0].len() * size) {
            Ok(got) => got,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        let (shape, window) = (&step.writes[0].shape, &filters[2..]);
        let axes = window.len();
        for (i, element) in got.chunks_exact(size).enumerate() {
            let mut rest = i;
            let mut index = vec![0; shape.len()];
            for (at, count) in index.iter_mut().zip(shape).rev() {
                (*at, rest) = (rest % count, rest / count);
            }
            let mut from = Some(index[0] * image[1] + index[1]);
            for a in 0..axes {
                let at = index[2 + axes + a] as i64 * stride + index[2 + a] as i64 * dilation - before[a];
                let at = usize::try_from(at).ok().filter(|at| *at < image[2 + a]);
                from = from.zip(at).map(|(from, at)| from * image[2 + a] + at);
            }
            let zero = vec![0; size];
            let want = from.map_or(&zero[..], |from| &x[from * size..][..size]);
            assert_eq!(element, want, "{} at {index:?}", case.what);
        }
    }
}

#[test]
fn convolutions_as_products_agree_with_the_reference_on_a_gpu() {
    let Some(gpu) = gpu(SHAPES.len()) else { return };
    for case in all() {
        agrees(&gpu, &case.graph, &case.inputs, &case.what).unwrap_or_else(|why| panic!("{}: {why}", case.what));
    }
}
