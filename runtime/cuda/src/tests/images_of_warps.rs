//! Convolutions as products of warps that read their windows from the image, against the reference:
//! channels that come first, in groups too, or lie last; f32 as it is and rounded, f16, bf16;
//! strides, dilations, padding on one side, rows of windows alone, channels that fill no access,
//! windows that end within a tile, epilogues, tilings; what keeps the windows stored.
#![allow(clippy::unwrap_used)]
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{StoredTiling, WarpTiling};
use hypatia_graph::{Graph, Value};
use hypatia_plan::Options;
use hypatia_target::device::Device;
use hypatia_testing::list;

use super::emulated;
use super::image_windows::implicit;
use super::tiled::{Case, Inputs, agrees_by, all_tilings, source, spread, tiled_step};
use super::{cases, gpu, planned};
use crate::nvrtc::{Nvrtc, NvrtcError};

/// Images, channels, rows and columns (none of one axis alone); filters and groups; the rows and
/// columns of a window; stride, dilation; padding before and behind them.
struct Shape(&'static [usize], [usize; 2], &'static [usize], [i64; 2], [i64; 2]);

const SHAPES: [Shape; 9] = [
    Shape(&[2, 16, 9, 11], [24, 1], &[3, 3], [1, 1], [1, 1]),
    Shape(&[1, 3, 21, 17], [32, 1], &[7, 7], [2, 1], [3, 3]),
    Shape(&[2, 24, 7, 7], [36, 3], &[3, 3], [1, 1], [1, 1]),
    Shape(&[2, 10, 13, 10], [70, 1], &[2, 5], [1, 2], [2, 1]),
    Shape(&[3, 20, 37], [33, 1], &[4], [1, 1], [0, 3]),
    Shape(&[1, 8, 3, 40], [17, 1], &[1, 7], [3, 1], [3, 0]),
    Shape(&[2, 32, 8, 8], [16, 1], &[1, 1], [2, 1], [0, 0]),
    Shape(&[1, 5, 2, 3], [7, 1], &[3, 3], [1, 1], [2, 2]),
    Shape(&[9, 72, 5, 4], [128, 1], &[3, 3], [1, 1], [1, 1]),
];
const EPILOGUES: [&str; 4] = ["", "bias, silu", "bias, residual, relu", "gate"];
const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// How an image and a result lie in memory: with their channels last, or first.
#[derive(Clone, Copy, Debug)]
struct Lasts {
    image: bool,
    result: bool,
}

const FIRST: Lasts = Lasts { image: false, result: false };

/// A convolution.
fn case(dtype: DType, shape: &Shape, last: Lasts, epilogue: &str) -> (Graph, Inputs) {
    let Shape(image, [filters, groups], window, [stride, dilation], [before, after]) = shape;
    let mut c = Case::new(dtype);
    let axes = window.len();
    let to_last: Vec<usize> = [0].into_iter().chain(2..axes + 2).chain([1]).collect();
    let to_first: Vec<usize> = [0, axes + 1].into_iter().chain(1..=axes).collect();
    let x = lying(&mut c, image, last.image, (&to_last, &to_first));
    let of_filters = [&[*filters, image[1] / groups], *window].concat();
    let w = lying(&mut c, &of_filters, last.image, (&to_last, &to_first));
    let depth = of_filters[1..].iter().product::<usize>() as f64;
    // Sums stay near 1.
    let scale = c.graph.number(dtype, 1.0 / depth.sqrt()).unwrap();
    let each = |n: i64| AttrValue::from(vec![n; axes].as_slice());
    let attrs = [
        ("strides", each(*stride)),
        ("before", each(*before)),
        ("after", each(*after)),
        ("dilations", each(*dilation)),
        ("groups", (*groups as i64).into()),
    ];
    let y = c.graph.call("conv", &[x, w], &attrs).unwrap()[0];
    let mut y = c.graph.call("mul", &[y, scale], &[]).unwrap()[0];
    let size: Vec<usize> = c.graph.ty(y).shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
    for part in epilogue.split(", ").filter(|p| !p.is_empty()) {
        y = match part {
            "bias" => {
                let bias = c.input(&[&[*filters], &vec![1; axes][..]].concat());
                c.call("add", &[y, bias])
            }
            "residual" | "gate" => {
                let r = lying(&mut c, &size, last.result, (&to_last, &to_first));
                c.call(if part == "gate" { "mul" } else { "add" }, &[y, r])
            }
            name => c.call(name, &[y]),
        };
    }
    if last.result {
        y = c.graph.builtin(BuiltinOp::Transpose, &[y], vec![list(&to_last)]).unwrap()[0];
    }
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

/// An input of that shape, which lies with its second axis last in memory or as it is.
fn lying(c: &mut Case, shape: &[usize], last: bool, (to_last, to_first): (&[usize], &[usize])) -> Value {
    if !last {
        return c.input(shape);
    }
    let lies: Vec<usize> = to_last.iter().map(|a| shape[*a]).collect();
    let v = c.input(&lies);
    c.graph.builtin(BuiltinOp::Transpose, &[v], vec![list(to_first)]).unwrap()[0]
}

fn numbered(at: usize) -> (String, (Graph, Inputs)) {
    let (shape, dtype) = (&SHAPES[at % SHAPES.len()], TYPES[at % TYPES.len()]);
    // Groups of channels that lie last have a kernel of their own, and one axis is copied first.
    let may = shape.1[1] == 1 && shape.2.len() == 2;
    let round = at / SHAPES.len();
    let last = Lasts { image: may && round.is_multiple_of(2), result: may && (round / 2).is_multiple_of(2) };
    let epilogue = EPILOGUES[at % EPILOGUES.len()];
    let Shape(image, filters, window, ..) = shape;
    let what = format!("{dtype} {image:?} {filters:?} {window:?} {last:?} {epilogue}");
    (what, case(dtype, shape, last, epilogue))
}

fn device(name: &str) -> Device {
    Device::named(name).unwrap()
}

fn tilings() -> Vec<StoredTiling> {
    let some = planned(&device("a100"), &case(DType::BF16, &SHAPES[0], FIRST, "").0);
    let [_, warps] = all_tilings(&some);
    warps
}

#[test]
fn a_convolution_alone_is_one_launch_from_ampere_on() {
    for device in ["h200", "a100"].map(device) {
        for at in 0..4 * SHAPES.len() {
            let (what, (graph, _)) = numbered(at);
            let plan = planned(&device, &graph);
            assert_eq!((plan.steps.len(), implicit(&plan)), (1, 1), "{what} {}\n{plan}", device.name);
        }
    }
}

#[test]
fn windows_that_threads_do_not_find_are_stored() {
    let tall = Shape(&[1, 8, 40, 40], [16, 1], &[33, 2], [1, 1], [0, 0]);
    let plan = planned(&device("a100"), &case(DType::BF16, &tall, FIRST, "").0);
    assert!(implicit(&plan) == 0 && plan.steps.len() == 2, "{plan}");
}

#[test]
fn convolutions_of_warps_read_as_one_would_write_them() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let plan = planned(&device("a100"), &case(DType::F32, &SHAPES[0], FIRST, "bias, silu").0);
    insta::assert_snapshot!(source(&plan, &WarpTiling::named(&[]).unwrap().words()).unwrap().text);
}

/// NVRTC accepts them; it needs no GPU.
#[test]
fn convolutions_of_warps_compile() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(NvrtcError::NotFound(_)) => return eprintln!("SKIPPED: no NVRTC"),
        Err(e) => panic!("{e}"),
    };
    let tilings = tilings();
    let mut compiled = 0;
    for at in 0..4 * SHAPES.len() {
        let (what, (graph, _)) = numbered(at);
        let device = device("a100").with_tf32(at.is_multiple_of(2));
        let plan = planned(&device, &graph);
        let Some(source) = tilings[at * 7 % tilings.len()..].iter().find_map(|t| source(&plan, t)) else { continue };
        nvrtc.compile(&source.text, "k.cu", "sm_80").unwrap_or_else(|e| panic!("{what}: {e}"));
        compiled += 1;
    }
    assert!(compiled > SHAPES.len(), "{compiled}");
}

#[test]
fn emulated_convolutions_of_warps_agree_with_the_reference() {
    let named = |values: &[(&str, i64)]| WarpTiling::named(values).unwrap().words();
    let tilings = [named(&[]), named(&[("tile_k", 64), ("split_k", 2), ("stages", 3)])];
    for (i, tiling) in tilings.into_iter().enumerate() {
        let of = |at: usize| {
            let (what, (graph, inputs)) = numbered(at);
            let options = hypatia_optimize::Options { device: device("a100"), ..Default::default() };
            let graph = hypatia_pipeline::optimize(&graph, &options).unwrap().graph;
            emulated::Case { what: format!("{tiling:?} {what}"), graph, inputs }
        };
        let all: Vec<emulated::Case> = (0..4 * SHAPES.len()).skip(i).step_by(i + 1).map(of).collect();
        let made = match emulated::run_tiled(&all, &Options::new(device("a100")), Some(tiling)) {
            Ok(made) => made,
            Err(why) => return println!("SKIPPED {} emulated convolutions: {why}", all.len()),
        };
        for (case, made) in all.iter().zip(made) {
            let (plan, got) = made.unwrap_or_else(|| panic!("{}: not run", case.what));
            assert_eq!(implicit(&plan), 1, "{}\n{plan}", case.what);
            super::tiled::compared(&got, &case.graph, &case.inputs, &case.what);
        }
    }
}

#[test]
fn convolutions_of_warps_agree_with_the_reference_on_a_gpu() {
    let tilings = tilings();
    let Some(gpu) = gpu(tilings.len()) else { return };
    let mut ran = 0;
    for (i, tiling) in spread(&tilings, cases(60) as usize).enumerate() {
        for at in [i, i + SHAPES.len() * 3 + 1] {
            let (what, case) = numbered(at);
            if tiled_step(&planned(&gpu.profile(), &case.0)).is_some() {
                ran += usize::from(agrees_by(&gpu, &case, tiling, &format!("{tiling:?} {what}")));
            }
        }
    }
    println!("{ran} convolutions of warps agree");
    assert!(ran > 0, "no tiling of {}", tilings.len());
}
