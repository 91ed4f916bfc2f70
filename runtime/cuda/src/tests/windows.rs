//! Convolutions whose groups have one channel, against the reference: windows of 1 to 64 elements
//! and longer ones, strides, dilations, any padding, several filters of a group, planes of a few
//! elements and of several tiles, what follows in the same term, numbers that are not finite.
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

/// What stands behind the sums in the same term.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Behind {
    Nothing,
    /// A bias of channels, and an activation.
    Bias,
    /// Also a factor of each plane, an image of the result's shape, one of each position, a number.
    All,
}

/// Numbers that are not finite, and where they stand.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wild {
    None,
    /// At the borders of the image.
    Image,
    /// In a filter.
    Filter,
}

/// A batch of images, groups of one channel, filters of each, the window, and how it moves.
#[derive(Clone)]
struct Shape {
    batch: usize,
    groups: usize,
    filters: usize,
    size: Vec<usize>,
    window: Vec<usize>,
    stride: i64,
    dilation: i64,
    before: Vec<i64>,
    after: Vec<i64>,
    behind: Behind,
    wild: Wild,
}

/// A batch of two, five channels, a window of that size with half of it before and after.
fn shape(size: &[usize], window: &[usize]) -> Shape {
    let half: Vec<i64> = window.iter().map(|w| (w / 2) as i64).collect();
    Shape {
        batch: 2,
        groups: 5,
        filters: 1,
        size: size.to_vec(),
        window: window.to_vec(),
        stride: 1,
        dilation: 1,
        before: half.clone(),
        after: half,
        behind: Behind::Bias,
        wild: Wild::None,
    }
}

fn plain() -> Shape {
    shape(&[9, 16], &[3, 3])
}

fn shapes() -> Vec<Shape> {
    let of = shape;
    vec![
        plain(),
        Shape { stride: 2, ..plain() },
        of(&[9, 16], &[5, 5]),
        Shape { stride: 2, ..of(&[15, 13], &[7, 7]) },
        Shape { dilation: 2, before: vec![0, 2], after: vec![3, 0], ..plain() },
        Shape { before: vec![0, 0], after: vec![0, 0], ..of(&[9, 16], &[1, 1]) },
        of(&[9, 16], &[9, 9]),
        Shape { batch: 0, ..plain() },
        // Planes of a few elements, of which a block has several.
        Shape { batch: 3, groups: 270, ..of(&[7, 7], &[7, 7]) },
        Shape { batch: 1, groups: 531, ..of(&[14, 14], &[5, 5]) },
        Shape { batch: 1, groups: 600, stride: 2, ..of(&[6, 5], &[3, 3]) },
        // One element; windows that reach beyond both sides.
        of(&[1, 1], &[3, 3]),
        Shape { before: vec![9, 5], after: vec![1, 12], ..of(&[4, 3], &[3, 3]) },
        of(&[3, 4], &[8, 8]),
        // Several tiles of a plane along one axis and along both, in accesses of any width.
        Shape { batch: 1, groups: 2, ..of(&[70, 360], &[3, 3]) },
        Shape { batch: 1, groups: 1, stride: 3, ..of(&[150, 203], &[5, 2]) },
        Shape { batch: 1, groups: 2, dilation: 9, before: vec![20, 31], after: vec![25, 30], ..of(&[60, 92], &[7, 7]) },
        // One axis; an axis of columns that has one element.
        of(&[77], &[5]),
        Shape { batch: 1, groups: 2, ..of(&[2500], &[31]) },
        Shape { before: vec![2, 0], after: vec![2, 0], ..of(&[50, 1], &[5, 1]) },
        // What is read and stored beside the sums.
        Shape { behind: Behind::Nothing, ..plain() },
        Shape { behind: Behind::All, ..plain() },
        Shape { behind: Behind::All, stride: 2, ..of(&[15, 13], &[3, 5]) },
        Shape { behind: Behind::All, ..of(&[21], &[3]) },
        Shape { filters: 2, behind: Behind::All, ..plain() },
        Shape { filters: 3, groups: 200, ..of(&[5, 6], &[3, 3]) },
        // Padding is multiplied as zeros are.
        Shape { wild: Wild::Image, ..plain() },
        Shape { wild: Wild::Image, stride: 2, ..of(&[13, 13], &[5, 5]) },
        Shape { wild: Wild::Filter, ..plain() },
    ]
}

impl Shape {
    fn out(&self) -> Vec<usize> {
        let of = |a: usize| {
            let span = (self.window[a] - 1) * self.dilation as usize + 1;
            (self.size[a] + (self.before[a] + self.after[a]) as usize - span) / self.stride as usize + 1
        };
        (0..self.size.len()).map(of).collect()
    }
}

/// The convolution, and what stands behind it.
fn case(dtype: DType, shape: &Shape) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let mut values =
        |sizes: &[usize]| -> Vec<f64> { (0..sizes.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let channels = shape.groups * shape.filters;
    let ones = vec![1; shape.size.len()];
    let sizes = [
        [&[shape.batch, shape.groups], shape.size.as_slice()].concat(),
        [&[channels, 1], shape.window.as_slice()].concat(),
        [&[channels], ones.as_slice()].concat(),
        [&[shape.batch, channels], ones.as_slice()].concat(),
        [&[shape.batch, channels], shape.out().as_slice()].concat(),
        shape.out(),
        vec![1],
    ];
    let given = match shape.behind {
        Behind::Nothing => 2,
        Behind::Bias => 3,
        Behind::All => sizes.len(),
    };
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut inputs = Vec::new();
    for (i, sizes) in sizes.iter().take(given).enumerate() {
        let mut all = values(sizes);
        let last = all.len().saturating_sub(1);
        match (shape.wild, i) {
            (Wild::Image, 0) => (all[0], all[last], all[last / 2]) = (f64::INFINITY, f64::NAN, f64::NEG_INFINITY),
            (Wild::Filter, 1) => all[last / 2] = f64::INFINITY,
            _ => {}
        }
        inputs.push((format!("in{i}"), Tensor::from_f64(dtype, sizes, &all).unwrap()));
    }
    let read: Vec<_> = inputs.iter().map(|(name, t)| g.input(name.clone(), ty(dtype, t.shape()))).collect();
    let ints = |values: &[i64]| AttrValue::from(values);
    let attrs = [
        ("strides", ints(&vec![shape.stride; ones.len()])),
        ("before", ints(&shape.before)),
        ("after", ints(&shape.after)),
        ("dilations", ints(&vec![shape.dilation; ones.len()])),
        ("groups", (shape.groups as i64).into()),
    ];
    let mut y = g.call("conv", &read[..2], &attrs).unwrap()[0];
    for (i, other) in read.iter().enumerate().skip(2) {
        y = g.call(if i == 3 { "mul" } else { "add" }, &[y, *other], &[]).unwrap()[0];
        if i == 2 {
            y = g.call("hardswish", &[y], &[]).unwrap()[0];
        }
    }
    g.output("y", y);
    let what = format!("{dtype} {:?} of {:?}, stride {}", shape.window, shape.size, shape.stride);
    Case { what, graph: optimized(&g), inputs }
}

/// The graph with what the library's rules fuse.
pub(super) fn optimized(graph: &Graph) -> Graph {
    let device = Device::named("h200").unwrap();
    let options = hypatia_optimize::Options { device, ..hypatia_optimize::Options::default() };
    pipeline::optimize(graph, &options).unwrap().graph
}

/// A causal convolution of sequences whose channels lie last, with an activation: as in Mamba.
fn causal(dtype: DType, [batch, tokens, channels, window]: [usize; 4]) -> Case {
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let sizes = [vec![batch, tokens, channels], vec![channels, 1, window], vec![channels, 1]];
    let mut rng = ChaCha8Rng::seed_from_u64(29);
    let mut values = |sizes: &[usize]| {
        let all: Vec<f64> = (0..sizes.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::from_f64(dtype, sizes, &all).unwrap()
    };
    let [image, filters, bias] = sizes.map(|s| values(&s));
    let x = g.input("x", ty(dtype, image.shape()));
    let [w, b] = [filters, bias].map(|t| g.constant(t));
    let inputs = vec![("x".to_string(), image)];
    let turned = [("perm", AttrValue::from(&[0i64, 2, 1][..]))];
    let x = g.call("transpose", &[x], &turned).unwrap()[0];
    let ints = |value: i64| AttrValue::from(&[value][..]);
    let around = window as i64 - 1;
    let attrs = [
        ("strides", ints(1)),
        ("before", ints(around)),
        ("after", ints(around)),
        ("dilations", ints(1)),
        ("groups", (channels as i64).into()),
    ];
    let y = g.call("conv", &[x, w], &attrs).unwrap()[0];
    let y = g.call("add", &[y, b], &[]).unwrap()[0];
    let part = [("axis", 2i64.into()), ("start", 0i64.into()), ("stop", (tokens as i64).into())];
    let y = g.call("slice", &[y], &part).unwrap()[0];
    let y = g.call("silu", &[y], &[]).unwrap()[0];
    let y = g.call("transpose", &[y], &turned).unwrap()[0];
    g.output("y", y);
    let what = format!("{dtype} causal window of {window}, {batch} x {tokens} x {channels}");
    Case { what, graph: optimized(&g), inputs }
}

fn causals() -> Vec<Case> {
    let sizes = [[2, 33, 64, 4], [1, 5, 24, 3], [3, 8, 8, 1], [1, 1, 16, 4]];
    [DType::BF16, DType::F32].into_iter().flat_map(|d| sizes.map(|s| causal(d, s))).collect()
}

const TYPES: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];

fn all() -> Vec<Case> {
    let of = |dtype| shapes().into_iter().map(move |shape| case(dtype, &shape));
    TYPES.into_iter().flat_map(of).collect()
}

/// True if a plan computes the convolution by one kernel, and nothing else.
fn in_one_step(plan: &Plan) -> bool {
    matches!(plan.steps.as_slice(), [step] if matches!(step.action, Action::Conv(_)))
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
}

#[test]
fn windows_of_single_channels_are_one_step() {
    let device = Device::named("h200").unwrap();
    let plan = |shape: &Shape| pipeline::plan(&case(DType::BF16, shape).graph, &Options::new(device.clone())).unwrap();
    for shape in shapes().into_iter().filter(|s| s.window.iter().product::<usize>() <= 64) {
        let plan = plan(&shape);
        assert!(in_one_step(&plan), "{plan}");
    }
    for Case { what, graph, .. } in causals() {
        let plan = pipeline::plan(&graph, &Options::new(device.clone())).unwrap();
        assert!(in_one_step(&plan), "{what}\n{plan}");
    }
    // 81 elements are a row-wise step.
    let long = plan(&shape(&[9, 16], &[9, 9]));
    assert!(long.steps.iter().any(|s| matches!(s.action, Action::Rowwise(_))), "{long}");
}

/// Convolutions of single channels that follow each other, so that channels lie last: several
/// windows, dilations and paddings, and what follows each in the same term. The last has strides.
fn chain(dtype: DType, batch: usize, channels: usize, size: [usize; 2]) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64((channels + size[0]) as u64);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut filled = |shape: &[usize], scale: f64| {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|_| rng.random_range(-1.0..1.0) * scale).collect();
        Tensor::from_f64(dtype, shape, &values).unwrap()
    };
    let shapes = [vec![batch, channels, size[0] + 1, size[1]], vec![batch, channels, 1, 1], size.to_vec()];
    let mut inputs = Vec::new();
    for (name, shape) in ["x", "gate", "places"].iter().zip(&shapes) {
        inputs.push((name.to_string(), filled(shape, 1.0)));
    }
    let [x, gate, places] = [0, 1, 2].map(|i| g.input(inputs[i].0.clone(), ty(dtype, inputs[i].1.shape())));
    let mut y = x;
    // Each moves as many elements as it computes: one in eight may be moved for all of them.
    for i in 0..24 {
        let last = i == 23;
        // The window, its dilation, and the padding in front and behind.
        let (window, dilation, around) = match i % 4 {
            0 => ([3, 3], 1, [1, 1, 1, 1]),
            1 => ([5, 1], 1, [3, 0, 1, 0]),
            2 => ([1, 7], 1, [0, 2, 0, 4]),
            _ => ([3, 3], 2, [2, 2, 2, 2]),
        };
        let w = g.constant(filled(&[channels, 1, window[0], window[1]], 0.4));
        let stride = if last { 2i64 } else { 1 };
        let attrs = [
            ("strides", AttrValue::from([stride; 2])),
            ("before", AttrValue::from([around[0], around[1]])),
            ("after", AttrValue::from([around[2], around[3]])),
            ("dilations", AttrValue::from([dilation as i64; 2])),
            ("groups", (channels as i64).into()),
        ];
        let before = y;
        y = g.call("conv", &[y, w], &attrs).unwrap()[0];
        let bias = g.constant(filled(&[channels, 1, 1], 1.0));
        y = g.call("add", &[y, bias], &[]).unwrap()[0];
        y = g.call("hardswish", &[y], &[]).unwrap()[0];
        let half = g.number(dtype, 0.5).unwrap();
        y = match i % 5 {
            0 => y,
            1 if !last => g.call("add", &[y, before], &[]).unwrap()[0],
            2 => g.call("mul", &[y, gate], &[]).unwrap()[0],
            3 if !last => g.call("add", &[y, places], &[]).unwrap()[0],
            _ => g.call("mul", &[y, half], &[]).unwrap()[0],
        };
        // The first one reads the graph's input as it lies. Pooling stores channels last.
        if i == 0 {
            let lists = [("sizes", [2i64, 1]), ("strides", [1, 1]), ("dilations", [1, 1])];
            y = g.call("windows", &[y], &lists.map(|(name, list)| (name, list.into()))).unwrap()[0];
            let axes = [("axes", [4i64, 5].into()), ("keepdims", false.into())];
            y = g.call("amax", &[y], &axes).unwrap()[0];
        }
    }
    g.output("y", y);
    let what = format!("a chain in {dtype} of {batch} x {channels} channels, {size:?}");
    Case { what, graph: optimized(&g), inputs }
}

fn chains() -> Vec<Case> {
    vec![
        chain(DType::F32, 2, 24, [6, 9]),
        chain(DType::BF16, 1, 184, [5, 7]),
        chain(DType::F16, 3, 8, [9, 4]),
        chain(DType::F64, 1, 16, [1, 5]),
    ]
}

#[test]
fn channels_that_lie_last_are_convolved_as_they_lie() {
    for Case { what, graph, .. } in chains() {
        let plan = pipeline::plan(&graph, &Options::new(Device::named("h200").unwrap())).unwrap();
        let last = |s: &&hypatia_plan::Step| matches!(&s.action, Action::Conv(c) if c.channels_last);
        assert_eq!(plan.steps.iter().filter(last).count(), 23, "{what}\n{plan}");
        let copies = plan.steps.iter().filter(|s| matches!(s.action, Action::Copy)).count();
        assert!(copies <= 2 && plan.steps.len() == 25 + copies, "{what}\n{plan}");
    }
}

/// Of so many cases one is emulated, of each type others.
const EMULATED: usize = 3;

#[test]
fn emulated_windows_agree_with_the_reference() {
    // Compilation is slow.
    let cases: Vec<Case> = all().into_iter().step_by(EMULATED).chain(chains()).chain(causals()).collect();
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
    let cases: Vec<Case> = all().into_iter().chain(chains()).chain(causals()).collect();
    let Some(gpu) = gpu(cases.len()) else { return };
    for Case { what, graph, inputs } in cases {
        agrees(&gpu, &graph, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}
