//! Convolutions of groups of channels that lie last, and of images of few channels that lie first,
//! against the reference: every width of a group,
//! ragged tiles and blocks, strides, dilations, any padding, what follows in the same term, numbers
//! that are not finite in one group beside others.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_eval::{Mode, evaluate};
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
use super::windows::{Behind, Wild, optimized};
use super::{agrees, cases, gpu};

/// Images, groups with their channels and filters, the window, and how it moves.
#[derive(Clone)]
struct Shape {
    batch: usize,
    groups: [usize; 3],
    size: [usize; 2],
    window: [usize; 2],
    stride: i64,
    dilation: i64,
    before: [i64; 2],
    after: [i64; 2],
    behind: Behind,
    wild: Wild,
}

fn of(groups: [usize; 3], size: [usize; 2], window: [usize; 2]) -> Shape {
    let half = window.map(|w| (w / 2) as i64);
    let (behind, wild) = (Behind::Bias, Wild::None);
    Shape { batch: 2, groups, size, window, stride: 1, dilation: 1, before: half, after: half, behind, wild }
}

impl Shape {
    /// True for an image of few channels, which lie first.
    fn is_few(&self) -> bool {
        self.groups[0] == 1
    }
}

/// Images of few channels.
fn few() -> Vec<Shape> {
    let colours = |filters, size, window| of([1, 3, filters], size, window);
    vec![
        Shape { stride: 2, ..colours(64, [21, 38], [7, 7]) },
        Shape { stride: 2, after: [0, 0], ..colours(32, [24, 24], [3, 3]) },
        Shape { batch: 5, ..colours(8, [6, 5], [3, 3]) },
        Shape { stride: 4, before: [0, 0], after: [0, 0], ..colours(96, [16, 12], [4, 4]) },
        Shape { behind: Behind::All, ..colours(40, [9, 7], [3, 5]) },
        Shape { dilation: 3, before: [2, 4], after: [5, 0], ..of([1, 2, 24], [11, 10], [3, 3]) },
        Shape { behind: Behind::Nothing, ..of([1, 1, 16], [7, 70], [5, 5]) },
        Shape { wild: Wild::Image, ..colours(48, [9, 9], [3, 3]) },
        Shape { wild: Wild::Filter, ..colours(16, [9, 9], [3, 3]) },
        colours(32, [9, 1], [3, 1]),
        Shape { batch: 0, ..colours(8, [6, 5], [3, 3]) },
    ]
}

fn shapes() -> Vec<Shape> {
    let mut all = of_groups();
    all.extend(few());
    all
}

fn of_groups() -> Vec<Shape> {
    let small = |groups| of(groups, [5, 7], [3, 3]);
    let wild = |groups, wild| Shape { wild, ..small(groups) };
    vec![
        // Widths: the same number of channels and filters, and others; the last block has a part.
        small([8, 4, 4]),
        small([10, 4, 4]),
        small([5, 8, 8]),
        small([4, 12, 12]),
        small([6, 12, 12]),
        small([3, 16, 16]),
        small([2, 24, 24]),
        small([2, 32, 32]),
        small([2, 48, 48]),
        small([2, 64, 64]),
        small([4, 4, 16]),
        small([8, 20, 4]),
        small([2, 28, 12]),
        small([4, 8, 12]),
        small([2, 36, 32]),
        // Windows that move by more, lie apart, reach far beyond the image, or are one element.
        Shape { stride: 2, ..of([4, 8, 8], [9, 11], [3, 3]) },
        Shape { stride: 3, ..of([2, 24, 24], [9, 11], [2, 5]) },
        Shape { stride: 2, ..of([2, 16, 16], [9, 10], [3, 3]) },
        Shape { dilation: 2, before: [0, 2], after: [3, 0], ..of([8, 4, 4], [9, 8], [3, 3]) },
        Shape { before: [4, 1], after: [0, 5], ..of([2, 32, 32], [4, 3], [3, 3]) },
        of([4, 16, 16], [6, 5], [1, 1]),
        of([4, 4, 4], [6, 5], [7, 7]),
        // Tiles of a part of an image, several images of a tile, columns of one element, one pixel.
        Shape { batch: 1, ..of([2, 8, 8], [21, 70], [3, 3]) },
        Shape { batch: 7, ..of([2, 8, 8], [4, 4], [3, 3]) },
        of([4, 8, 8], [9, 1], [3, 1]),
        of([4, 8, 8], [1, 2], [3, 3]),
        Shape { batch: 0, ..small([5, 8, 8]) },
        // What is read and stored beside the sums.
        Shape { behind: Behind::Nothing, ..small([8, 4, 4]) },
        Shape { behind: Behind::All, ..small([10, 4, 4]) },
        Shape { behind: Behind::All, stride: 2, ..of([2, 24, 24], [7, 9], [3, 3]) },
        Shape { behind: Behind::All, ..of([4, 8, 8], [9, 1], [3, 1]) },
        // An element meets the filters of its own group alone; padding is multiplied.
        wild([8, 4, 4], Wild::Image),
        wild([4, 12, 12], Wild::Image),
        wild([5, 8, 8], Wild::Image),
        wild([2, 48, 48], Wild::Image),
        wild([8, 4, 4], Wild::Filter),
        wild([4, 12, 12], Wild::Filter),
    ]
}

/// The convolution with what stands behind it, and one of single pixels in the same groups. The
/// model itself has its channels last, so that nothing is moved.
fn case(dtype: DType, shape: &Shape) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64(29);
    let mut filled = |sizes: &[usize], scale: f64, wild: bool| -> Tensor {
        let count = sizes.iter().product::<usize>();
        let mut all: Vec<f64> = (0..count).map(|_| rng.random_range(-1.0..1.0) * scale).collect();
        if wild && count > 0 {
            (all[0], all[count / 2]) = (f64::INFINITY, f64::NEG_INFINITY);
            all[count - 1] = f64::NAN;
        }
        Tensor::from_f64(dtype, sizes, &all).unwrap()
    };
    let [groups, channels, filters] = shape.groups;
    let all = groups * filters;
    let out = [0, 1].map(|a| {
        let span = (shape.window[a] - 1) * shape.dilation as usize + 1;
        (shape.size[a] + (shape.before[a] + shape.after[a]) as usize - span) / shape.stride as usize + 1
    });
    let ([high, wide], all_channels) = (shape.size, groups * channels);
    let image = match shape.is_few() {
        true => [shape.batch, all_channels, high, wide],
        false => [shape.batch, high, wide, all_channels],
    };
    let mut given = vec![
        filled(&image, 1.0, shape.wild == Wild::Image),
        filled(&[shape.batch, all, 1, 1], 1.0, false),
        filled(&[shape.batch, out[0], out[1], all], 1.0, false),
        filled(&out, 1.0, false),
    ];
    given.truncate(if shape.behind == Behind::All { 4 } else { 1 });
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let inputs: Vec<_> = given.into_iter().enumerate().map(|(i, t)| (format!("in{i}"), t)).collect();
    let read: Vec<_> = inputs.iter().map(|(name, t)| g.input(name.clone(), ty(dtype, t.shape()))).collect();
    let order = |g: &mut Graph, v, order: [i64; 4]| g.call("transpose", &[v], &[("perm", order.into())]).unwrap()[0];
    let [first, last] = [[0, 3, 1, 2], [0, 2, 3, 1]];
    let w = filled(&[all, channels, shape.window[0], shape.window[1]], 0.3, shape.wild == Wild::Filter);
    let w = g.constant(w);
    let attrs = |groups: usize, [stride, dilation]: [i64; 2], before: [i64; 2], after: [i64; 2]| {
        [
            ("strides", AttrValue::from([stride; 2])),
            ("before", before.into()),
            ("after", after.into()),
            ("dilations", AttrValue::from([dilation; 2])),
            ("groups", (groups as i64).into()),
        ]
    };
    let x = if shape.is_few() { read[0] } else { order(&mut g, read[0], first) };
    let own = attrs(groups, [shape.stride, shape.dilation], shape.before, shape.after);
    let mut y = g.call("conv", &[x, w], &own).unwrap()[0];
    if shape.behind != Behind::Nothing {
        let bias = g.constant(filled(&[all, 1, 1], 1.0, false));
        y = g.call("add", &[y, bias], &[]).unwrap()[0];
        y = g.call("hardswish", &[y], &[]).unwrap()[0];
    }
    if let [_, gate, image, places] = read[..] {
        let image = order(&mut g, image, first);
        let half = g.number(dtype, 0.5).unwrap();
        for (op, other) in [("mul", gate), ("add", image), ("add", places), ("mul", half)] {
            y = g.call(op, &[y, other], &[]).unwrap()[0];
        }
    }
    // Behind few channels, one of single channels.
    let (groups, depth) = if shape.is_few() { (all, 1) } else { (groups, filters) };
    let points = g.constant(filled(&[all, depth, 1, 1], 0.5, false));
    y = g.call("conv", &[y, points], &attrs(groups, [1, 1], [0, 0], [0, 0])).unwrap()[0];
    let y = order(&mut g, y, last);
    g.output("y", y);
    let what = format!("{dtype}, groups {:?}, {:?} of {:?}", shape.groups, shape.window, shape.size);
    Case { what, graph: optimized(&g), inputs }
}

fn all() -> Vec<Case> {
    let of = |(i, shape): (usize, Shape)| case([DType::BF16, DType::F16][i % 2], &shape);
    shapes().into_iter().enumerate().map(of).collect()
}

fn plan(graph: &Graph, device: &Device) -> Plan {
    pipeline::plan(graph, &Options::new(device.clone())).unwrap()
}

/// A plan whose kernels have shared memory and one correct grid.
pub(super) fn plans() -> Vec<Plan> {
    vec![plan(&case(DType::BF16, &shapes()[0]).graph, &Device::named("h200").unwrap())]
}

/// Convolutions of groups that lie last, of how many steps.
fn grouped(plan: &Plan) -> [usize; 2] {
    let last = |s: &&hypatia_plan::Step| match &s.action {
        Action::Conv(c) => c.channels_last && c.on_groups(&s.reads[0], &s.reads[1], &s.writes[0]).is_some(),
        _ => false,
    };
    [plan.steps.iter().filter(last).count(), plan.steps.len()]
}

#[test]
fn groups_of_channels_are_convolved_as_they_lie() {
    let device = Device::named("h200").unwrap();
    for (Case { what, graph, .. }, shape) in all().into_iter().zip(shapes()) {
        let plan = plan(&graph, &device);
        // Behind few channels, the convolution of single pixels has single channels.
        let steps = if shape.is_few() { [1, 2] } else { [2, 2] };
        assert!(shape.batch == 0 || grouped(&plan) == steps, "{what}\n{plan}");
    }
    // GPUs before Ampere have no such multiplication, nor have wide types.
    let case_of = |dtype| case(dtype, &shapes()[0]).graph;
    let mut older = device.clone();
    older.sm = 75;
    let older = plan(&case_of(DType::F16), &older);
    assert_eq!(grouped(&older)[0], 0, "{older}");
    let wide = plan(&case_of(DType::F32), &device);
    assert_eq!(grouped(&wide)[0], 0, "{wide}");
}

#[test]
fn emulated_groups_agree_with_the_reference() {
    let cases = all();
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
fn groups_agree_with_the_reference_on_a_gpu() {
    let of = |dtype| shapes().into_iter().map(move |shape| case(dtype, &shape));
    let all: Vec<Case> = [DType::BF16, DType::F16].into_iter().flat_map(of).collect();
    let count = cases(all.len() as u64) as usize;
    let Some(gpu) = gpu(count) else { return };
    for Case { what, graph, inputs } in all.into_iter().rev().take(count) {
        agrees(&gpu, &graph, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}
