//! Windows as the rows of a matrix (im2col), and convolutions that are products of them, against
//! the reference: strides, dilations, padding on one side, planes of a few elements, long rows,
//! groups, one spatial axis.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, CallStep, Called, Options, Plan, Step};
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

/// A network for images: a convolution of three channels, pooling, convolutions of points, of
/// windows and of single channels, a residual, a concatenation, gates of channels, and means.
/// `image` is its input.
fn network(dtype: DType, image: [usize; 4], [stride, dilation, after]: [i64; 3]) -> Case {
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut inputs = vec![("x".to_string(), filled(dtype, &image, 37))];
    let x = g.input("x", ty(dtype, &image));
    let mut seed = 11;
    let mut conv = |g: &mut Graph, x, [o, i, k]: [usize; 3], attrs: [i64; 4]| {
        seed += 2;
        let w = g.constant(filled(dtype, &[o, i, k, k], seed));
        let [stride, before, after, dilation] = attrs;
        let [stride, dilation] = [stride, dilation].map(|a| AttrValue::from([a, a]));
        // Rows and columns are padded on different sides.
        let [before, after] = [[before, after], [after, before]].map(AttrValue::from);
        let groups = if i == 1 { o as i64 } else { 1 };
        let around = [("strides", stride), ("before", before), ("after", after), ("dilations", dilation)];
        let attrs = [around.as_slice(), &[("groups", groups.into())]].concat();
        let y = g.call("conv", &[x, w], &attrs).unwrap()[0];
        let bias = g.constant(filled(dtype, &[o, 1, 1], seed + 40));
        let y = g.call("add", &[y, bias], &[]).unwrap()[0];
        g.call("relu", &[y], &[]).unwrap()[0]
    };
    let y = conv(&mut g, x, [16, 3, 5], [2, 2, 2, 1]);
    let lowest = g.number(dtype, f64::NEG_INFINITY).unwrap();
    let around = |n: i64| AttrValue::from([0, 0, n, n]);
    let y = g.call("pad", &[y, lowest], &[("before", around(1)), ("after", around(1))]).unwrap()[0];
    let windows = |g: &mut Graph, y, n: i64, s: i64, how: &str| {
        let lists = [("sizes", [n, n]), ("strides", [s, s]), ("dilations", [1, 1])];
        let y = g.call("windows", &[y], &lists.map(|(name, list)| (name, list.into()))).unwrap()[0];
        g.call(how, &[y], &[("axes", [4i64, 5].into()), ("keepdims", false.into())]).unwrap()[0]
    };
    let pooled = windows(&mut g, y, 3, 2, "amax");
    let y = conv(&mut g, pooled, [8, 16, 1], [1, 0, 0, 1]);
    let y = conv(&mut g, y, [16, 8, 3], [1, 1, 1, 1]);
    let y = conv(&mut g, y, [16, 1, 5], [1, 2, 2, 1]);
    let y = g.call("add", &[y, pooled], &[]).unwrap()[0];
    let y = conv(&mut g, y, [16, 1, 3], [1, dilation, dilation, dilation]);
    let wide = conv(&mut g, y, [24, 16, 3], [stride, dilation, after, dilation]);
    let other = conv(&mut g, y, [16, 16, 1], [stride, 0, 0, 1]);
    let of = |g: &Graph, v, axis: usize| g.ty(v).shape[axis].as_const().unwrap();
    // As far as both reach.
    let mut parts = [wide, other];
    for axis in [2usize, 3] {
        let size = parts.iter().map(|v| of(&g, *v, axis)).min().unwrap();
        for v in &mut parts {
            let attrs = [("axis", (axis as i64).into()), ("start", 0i64.into()), ("stop", size.into())];
            *v = g.call("slice", &[*v], &attrs).unwrap()[0];
        }
    }
    let y = g.call("concat", &parts, &[("axis", 1i64.into())]).unwrap()[0];
    let means = g.call("mean", &[y], &[("axes", [2i64, 3].into())]).unwrap()[0];
    let gate = conv(&mut g, means, [40, 40, 1], [1, 0, 0, 1]);
    let y = g.call("mul", &[y, gate], &[]).unwrap()[0];
    let y = conv(&mut g, y, [8, 40, 1], [1, 0, 0, 1]);
    g.output("image", y);
    let y = windows(&mut g, y, 1, 1, "mean");
    let y = g.call("mean", &[y], &[("axes", [2i64, 3].into()), ("keepdims", false.into())]).unwrap()[0];
    g.output("means", y);
    inputs.truncate(1);
    Case { what: format!("a network in {dtype} of {image:?}, {stride}, {dilation}, {after}"), graph: g, inputs }
}

/// Numbers between -1 and 1 that differ.
fn filled(dtype: DType, shape: &[usize], factor: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let depth: usize = shape.iter().skip(1).product();
    let scale = if shape.len() == 4 { (depth as f64).sqrt().min(4.0) } else { 1.0 };
    let values: Vec<f64> = (0..count).map(|i| ((i * factor % 101) as f64 / 50.0 - 1.0) / scale).collect();
    Tensor::from_f64(dtype, shape, &values).unwrap()
}

/// The image of a network, and its stride, dilation and padding behind.
const NETWORKS: [([usize; 4], [i64; 3]); 3] =
    [([2, 3, 23, 18], [1, 1, 1]), ([1, 3, 40, 33], [2, 1, 0]), ([3, 3, 16, 16], [1, 2, 3])];

fn networks() -> Vec<Case> {
    let types = [DType::BF16, DType::F16, DType::F32, DType::F64];
    let all = types.into_iter().flat_map(|t| NETWORKS.map(|(image, attrs)| network(t, image, attrs)));
    all.collect()
}

fn all() -> Vec<Case> {
    let types = [DType::BF16, DType::F32, DType::F16];
    SHAPES.iter().enumerate().map(|(i, shape)| case(types[i % 3], shape)).collect()
}

fn plan(case: &Case) -> Plan {
    plan_of(&case.graph)
}

fn plan_of(graph: &Graph) -> Plan {
    pipeline::plan(graph, &Options::new(Device::named("h200").unwrap())).unwrap()
}

/// A plan for a GPU whose copy engine reads no windows from an image.
fn stored(case: &Case) -> Plan {
    pipeline::plan(&case.graph, &Options::new(Device::named("a100").unwrap())).unwrap()
}

/// The steps of a plan; for a product that reads windows from an image, those that it is timed
/// beside.
fn steps(plan: &Plan) -> Vec<&Step> {
    plan.steps.iter().flat_map(beside).collect()
}

fn beside(step: &Step) -> Vec<&Step> {
    match &step.action {
        Action::Call(CallStep { called: Called::Prologue(_), fallback, .. }) => fallback.iter().collect(),
        _ => vec![step],
    }
}

fn unfold(plan: &Plan) -> Option<&Step> {
    steps(plan).into_iter().find(|s| matches!(s.action, Action::Unfold(_)))
}

#[test]
fn a_convolution_is_windows_and_a_product_on_a_gpu() {
    for case in all() {
        let plan = plan(&case);
        assert!(unfold(&plan).is_some(), "{}\n{plan}", case.what);
        let apart = |s: &Step| matches!(s.action, Action::Pad(_) | Action::Copy);
        assert!(!steps(&plan).into_iter().any(apart), "{}\n{plan}", case.what);
    }
    // Windows that are a view need no copy.
    let patches = Shape(&[2, 4, 8, 8], &[16, 4, 1, 1], [1, 1, 1], &[0, 0], &[0, 0]);
    assert!(unfold(&plan(&case(DType::BF16, &patches))).is_none());
}

/// Convolutions that follow each other compute with channels last, without a copy.
#[test]
fn a_network_for_images_keeps_its_channels_last() {
    for (case, (_, [stride, ..])) in networks().into_iter().zip(NETWORKS.into_iter().cycle()) {
        let plan = stored(&case);
        let last = |s: &&Step| matches!(&s.action, Action::Unfold(u) if u.channels_last);
        let strided = usize::from(stride > 1);
        assert_eq!(steps(&plan).iter().filter(|s| last(s)).count(), 2 + strided, "{}\n{plan}", case.what);
        let first = |s: &&Step| matches!(&s.action, Action::Unfold(u) if !u.channels_last);
        // Warps multiply three channels of 16 bits where they lie.
        let colours = usize::from(case.inputs[0].1.dtype().size() == 2);
        assert_eq!(steps(&plan).iter().filter(|s| first(s)).count(), 1 - colours, "{}\n{plan}", case.what);
        let single = |s: &&Step| matches!(&s.action, Action::Conv(c) if c.channels_last);
        assert_eq!(plan.steps.iter().filter(single).count(), 2 + colours, "{}\n{plan}", case.what);
        // Only the results of the graph are copied into its order.
        let copied = |s: &&Step| matches!(s.action, Action::Copy);
        assert!(plan.steps.iter().filter(copied).count() <= 1, "{}\n{plan}", case.what);
        // Pooling is one step, and reads the image without its padding.
        let pooled = |s: &&Step| matches!(s.action, Action::Pool(_));
        assert_eq!(plan.steps.iter().filter(pooled).count(), 2, "{}\n{plan}", case.what);
        let padded = |s: &&Step| matches!(s.action, Action::Pad(_));
        assert_eq!(plan.steps.iter().filter(padded).count(), 0, "{}\n{plan}", case.what);
    }
}

/// Windows that no kernel for single channels holds are none of its steps, in whatever order.
#[test]
fn long_windows_of_single_channels_are_sums() {
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let x = g.input("x", ty(DType::F32, &[1, 3, 12, 12]));
    let mut y = x;
    // The second window has 81 elements.
    for (i, [o, channels, k]) in [[16, 3, 3], [16, 1, 9], [64, 16, 1], [64, 64, 1]].into_iter().enumerate() {
        let w = g.constant(filled(DType::F32, &[o, channels, k, k], 13 + 2 * i));
        let (ones, around) = (AttrValue::from([1i64, 1]), AttrValue::from([k as i64 / 2; 2]));
        let groups = if channels == 1 { o as i64 } else { 1 };
        let attrs = [
            ("strides", ones.clone()),
            ("before", around.clone()),
            ("after", around),
            ("dilations", ones),
            ("groups", groups.into()),
        ];
        y = g.call("conv", &[y, w], &attrs).unwrap()[0];
    }
    g.output("y", y);
    let plan = pipeline::plan(&g, &Options::new(Device::named("h200").unwrap())).unwrap();
    assert!(!plan.steps.iter().any(|s| matches!(s.action, Action::Conv(_))), "{plan}");
    let inputs = vec![("x".to_string(), filled(DType::F32, &[1, 3, 12, 12], 37))];
    let want = evaluate(&g, &inputs, Mode::Rounded).unwrap();
    let executor = hypatia_cpu::Executor::new(std::sync::Arc::new(plan), 2).unwrap().poisoned();
    let got = executor.run(&[inputs[0].1.clone()]).unwrap();
    compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&g), "long windows");
}

/// What has other axes than an image reads channels first.
#[test]
fn images_among_other_axes_agree_with_the_reference() {
    let dtype = DType::F32;
    let Case { what, mut graph, inputs } = network(dtype, [1, 3, 40, 33], [2, 1, 0]);
    let (_, image) = graph.outputs[0].clone();
    let shape: Vec<usize> = graph.ty(image).shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
    // Two volumes of numbers, a row of them, and the image's own axes in another order.
    let volume = graph.constant(filled(dtype, &[&[2], shape.as_slice()].concat(), 7));
    let row = graph.constant(filled(dtype, &shape[3..], 5));
    let sum = graph.call("add", &[image, volume], &[]).unwrap()[0];
    let with_row = graph.call("mul", &[image, row], &[]).unwrap()[0];
    let flat = graph.call("reshape", &[with_row], &[("shape", [1, shape.iter().product::<usize>() as i64].into())]);
    let turned = graph.call("transpose", &[image], &[("perm", [0i64, 3, 1, 2].into())]).unwrap()[0];
    for (name, v) in [("sum", sum), ("flat", flat.unwrap()[0]), ("turned", turned)] {
        graph.output(name, v);
    }
    let plan = plan_of(&graph);
    assert!(steps(&plan).iter().any(|s| matches!(&s.action, Action::Unfold(u) if u.channels_last)), "{plan}");
    let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let got = hypatia_cpu::Executor::new(std::sync::Arc::new(plan), 2).unwrap().poisoned().run(&tensors).unwrap();
    for (got, want) in got.iter().zip(&want) {
        compare(got, &want.to_tensor().unwrap(), want.dtype, coarsest(&graph), &what);
    }
}

#[test]
fn convolutions_as_products_agree_with_the_reference_on_the_cpu() {
    // The host has no convolution of single channels that lie last in 16 bits.
    let wide = |case: &Case| case.inputs[0].1.dtype().compute() == case.inputs[0].1.dtype();
    for case in all().into_iter().chain(networks().into_iter().filter(wide)) {
        let plan = std::sync::Arc::new(plan(&case));
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        let got = hypatia_cpu::Executor::new(plan, 2).unwrap().poisoned().run(&tensors).unwrap();
        for (got, want) in got.iter().zip(&want) {
            compare(got, &want.to_tensor().unwrap(), want.dtype, coarsest(&case.graph), &case.what);
        }
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

/// The kernel for channels that lie last, alone: wide and narrow accesses, strides, dilations.
#[test]
fn emulated_windows_of_channels_that_lie_last_are_those_of_the_image() {
    let mut accesses = Vec::new();
    for case in networks() {
        let plan = stored(&case);
        for step in &plan.steps {
            let Action::Unfold(how) = &step.action else { continue };
            if !how.channels_last {
                continue;
            }
            let [(body, work)] = &step_kernels(step)[..] else { panic!("{}", case.what) };
            let source = body.emit(&plan.program).unwrap();
            let size = step.reads[0].dtype.size();
            let x: Vec<u8> = (0..step.reads[0].len() * size).map(|i| (i * 131 % 251) as u8).collect();
            let got = match emulated::alone(&source, work, &[("in0", &x)], step.writes[0].len() * size) {
                Ok(got) => got,
                Err(why) => return eprintln!("SKIPPED: {why}"),
            };
            let ([n, rows, columns, c], to) = (step.reads[0].shape[..].try_into().unwrap(), &step.writes[0].shape);
            let [n_out, y, x_out, i, j, c_out]: [usize; 6] = to[..].try_into().unwrap();
            assert_eq!([n, c], [n_out, c_out]);
            accesses.push(c * size % 16);
            for (at, element) in got.chunks_exact(size).enumerate() {
                let (pixel, channel) = (at / c, at % c);
                let (window, place) = (pixel / (i * j), [pixel / j % i, pixel % j]);
                let window_at = [window / x_out % y, window % x_out];
                let from: Vec<Option<usize>> = (0..2)
                    .map(|a| {
                        let w = how.windows[a];
                        let at = (window_at[a] * w.stride + place[a] * w.dilation).checked_sub(w.before)?;
                        (at < [rows, columns][a]).then_some(at)
                    })
                    .collect();
                let image = window / (y * x_out);
                let want = match from[..] {
                    [Some(row), Some(column)] => {
                        let at = ((image * rows + row) * columns + column) * c + channel;
                        x[at * size..][..size].to_vec()
                    }
                    _ => vec![0; size],
                };
                assert_eq!(element, want, "{} at {at}", case.what);
            }
        }
    }
    assert!(accesses.contains(&0), "no whole accesses");
}

#[test]
fn convolutions_as_products_agree_with_the_reference_on_a_gpu() {
    let Some(gpu) = gpu(SHAPES.len() + networks().len()) else { return };
    for case in all().into_iter().chain(networks()) {
        agrees(&gpu, &case.graph, &case.inputs, &case.what).unwrap_or_else(|why| panic!("{}: {why}", case.what));
    }
}
