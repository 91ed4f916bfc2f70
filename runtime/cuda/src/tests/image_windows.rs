//! Convolutions as products that read their windows from the image, against the reference: both
//! orders of the filters, strides, dilations, padding on one side, channels that fill no slice, few
//! windows and many, images whose tiles end within another image, epilogues, every tiling that the
//! library declares; what keeps the windows stored.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{StoredTiling, Tiling};
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, CallStep, Called, Plan};
use hypatia_target::device::Device;
use hypatia_testing::list;

use super::tiled::{Case, Inputs, agrees_by, source, tiled_step};
use super::{cases, gpu, planned};
use crate::lowering::timed::Timed;
use crate::nvrtc::{Nvrtc, NvrtcError};
use crate::tiled;

/// Images, rows, columns and channels; filters and the rows and columns of a window; stride,
/// dilation; padding before and behind rows and columns.
struct Shape([usize; 4], [usize; 3], [i64; 2], [i64; 2], [i64; 2]);

const SHAPES: [Shape; 10] = [
    Shape([2, 14, 14, 64], [64, 3, 3], [1, 1], [1, 1], [1, 1]),
    Shape([3, 9, 11, 128], [96, 3, 3], [2, 1], [1, 1], [1, 1]),
    Shape([2, 13, 10, 40], [72, 3, 3], [1, 1], [0, 2], [2, 1]),
    Shape([5, 7, 7, 72], [136, 3, 3], [1, 1], [1, 1], [1, 1]),
    Shape([2, 16, 18, 64], [128, 1, 1], [2, 1], [0, 0], [0, 0]),
    Shape([1, 20, 17, 8], [64, 5, 2], [3, 1], [2, 0], [1, 1]),
    Shape([2, 21, 12, 16], [64, 3, 3], [1, 4], [4, 4], [4, 4]),
    Shape([1, 3, 40, 192], [256, 1, 7], [1, 1], [0, 3], [0, 3]),
    Shape([9, 5, 4, 80], [8, 4, 3], [1, 1], [1, 0], [2, 2]),
    Shape([33, 4, 4, 64], [320, 3, 3], [2, 1], [1, 1], [0, 0]),
];
const EPILOGUES: [&str; 6] =
    ["", "bias, silu", "bias, relu, residual", "residual", "bias, sums of channels", "silu, largest"];

fn transposed(c: &mut Case, v: Value, order: [usize; 4]) -> Value {
    c.graph.builtin(BuiltinOp::Transpose, &[v], vec![list(&order)]).unwrap()[0]
}

/// A convolution whose image and result have their channels last; of each filter, these lie side by
/// side if `by_k` says so, else the filters do.
fn case(dtype: DType, shape: &Shape, by_k: bool, epilogue: &str) -> (Graph, Inputs) {
    let Shape(image, [filters, rows, columns], [stride, dilation], before, after) = shape;
    let mut c = Case::new(dtype);
    let x = c.input(image);
    let channels = image[3];
    let (of_filters, order) = match by_k {
        true => ([*filters, *rows, *columns, channels], [0, 3, 1, 2]),
        false => ([*rows, *columns, channels, *filters], [3, 2, 0, 1]),
    };
    let w = c.input(&of_filters);
    let (x, w) = (transposed(&mut c, x, [0, 3, 1, 2]), transposed(&mut c, w, order));
    // Sums stay near 1.
    let scale = c.graph.number(dtype, 1.0 / ((channels * rows * columns) as f64).sqrt()).unwrap();
    let attrs = [
        ("strides", AttrValue::from([*stride; 2])),
        ("before", AttrValue::from(*before)),
        ("after", AttrValue::from(*after)),
        ("dilations", AttrValue::from([*dilation; 2])),
        ("groups", 1i64.into()),
    ];
    let y = c.graph.call("conv", &[x, w], &attrs).unwrap()[0];
    let mut y = c.graph.call("mul", &[y, scale], &[]).unwrap()[0];
    for part in epilogue.split(", ").filter(|p| !p.is_empty()) {
        y = match part {
            "bias" => {
                let bias = c.input(&[*filters, 1, 1]);
                c.call("add", &[y, bias])
            }
            "residual" => {
                let size = |axis: usize| c.graph.ty(y).shape[axis].as_const().unwrap() as usize;
                let beside = [size(0), size(2), size(3), size(1)];
                let r = c.input(&beside);
                let r = transposed(&mut c, r, [0, 3, 1, 2]);
                c.call("add", &[y, r])
            }
            "sums of channels" | "largest" => y,
            name => c.call(name, &[y]),
        };
    }
    let y = transposed(&mut c, y, [0, 2, 3, 1]);
    c.graph.output("y", y);
    let reduced = match epilogue.split(", ").last() {
        Some("sums of channels") => (BuiltinOp::Sum, &[0, 1, 2][..]),
        Some("largest") => (BuiltinOp::Amax, &[0, 1, 2, 3][..]),
        _ => return (c.graph, c.inputs),
    };
    let attrs = vec![list(reduced.1), AttrValue::Bool(false)];
    let r = c.graph.builtin(reduced.0, &[y], attrs).unwrap()[0];
    c.graph.output("r", r);
    (c.graph, c.inputs)
}

fn numbered(at: usize) -> (String, (Graph, Inputs)) {
    let dtype = if at.is_multiple_of(3) { DType::F16 } else { DType::BF16 };
    let (shape, by_k) = (&SHAPES[at % SHAPES.len()], (at / SHAPES.len() + at).is_multiple_of(2));
    let epilogue = EPILOGUES[(at + at / EPILOGUES.len()) % EPILOGUES.len()];
    let Shape(image, filters, ..) = shape;
    (format!("{dtype} {image:?} {filters:?} by k {by_k} {epilogue}"), case(dtype, shape, by_k, epilogue))
}

fn device(name: &str) -> Device {
    Device::named(name).unwrap()
}

/// The number of products that read windows from an image.
pub(super) fn implicit(plan: &Plan) -> usize {
    let reads_windows = |action: &Action| match action {
        Action::Call(CallStep { called: Called::Prologue(p), .. }) => p.windows().is_some(),
        _ => false,
    };
    plan.steps.iter().filter(|s| reads_windows(&s.action)).count()
}

fn tilings() -> Vec<StoredTiling> {
    let some = planned(&device("h200"), &case(DType::BF16, &SHAPES[0], true, "").0);
    let tune = &some.program.kernels.iter().find(|k| k.name == "tiles").unwrap().tune;
    Tiling::all(tune).iter().map(Tiling::words).collect()
}

fn fits(plan: &Plan, tiling: &StoredTiling) -> bool {
    let Some((step, e)) = tiled_step(plan) else { return false };
    let timed = Timed::of(plan, (step, e, tiled::kernel(plan, step).unwrap()));
    timed.is_some_and(|t| !t.launches(tiling).is_empty())
}

#[test]
fn a_convolution_reads_its_windows_from_the_image() {
    let tilings = tilings();
    for at in 0..2 * SHAPES.len() {
        let (what, (graph, _)) = numbered(at);
        let plan = planned(&device("h200"), &graph);
        assert_eq!((plan.steps.len(), implicit(&plan)), (1, 1), "{what}\n{plan}");
        assert!(tilings.iter().any(|t| fits(&plan, t)), "{what}: no tiling fits\n{plan}");
        // Elsewhere threads read them; they reduce nothing beside a product.
        let plan = planned(&device("a100"), &graph);
        let reduced = graph.outputs.len() > 1;
        assert_eq!((plan.steps.len() > 1, implicit(&plan)), (reduced, 1), "{what}\n{plan}");
    }
}

#[test]
fn threads_read_windows_that_the_copy_engine_does_not() {
    let tilings = tilings();
    let of = |dtype: DType, shape: Shape| {
        let plan = planned(&device("h200"), &case(dtype, &shape, true, "").0);
        (implicit(&plan), tilings.iter().any(|t| fits(&plan, t)))
    };
    let near = || Shape([2, 24, 24, 64], [64, 3, 3], [1, 1], [1, 1], [1, 1]);
    assert_eq!(of(DType::BF16, near()), (1, true));
    assert_eq!(of(DType::F32, near()), (1, false));
    // Rows of 12 channels are no whole accesses; a stride of 9; windows that reach too far.
    assert_eq!(of(DType::BF16, Shape([2, 24, 24, 12], [64, 3, 3], [1, 1], [1, 1], [1, 1])), (1, false));
    assert_eq!(of(DType::BF16, Shape([2, 24, 24, 64], [64, 3, 3], [9, 1], [1, 1], [1, 1])), (1, false));
    assert_eq!(of(DType::BF16, Shape([1, 300, 300, 8], [8, 2, 2], [1, 280], [0, 0], [0, 0])), (1, false));
}

#[test]
fn a_convolution_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let plan = planned(&device("h200"), &case(DType::BF16, &SHAPES[1], true, "bias, silu").0);
    let tiling = Tiling::named(&[("cluster_n", 2), ("cluster_m", 2)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
}

/// NVRTC accepts them; it needs no GPU.
#[test]
fn products_of_windows_compile() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(NvrtcError::NotFound(_)) => return eprintln!("SKIPPED: no NVRTC"),
        Err(e) => panic!("{e}"),
    };
    let mut compiled = 0;
    for (i, tiling) in tilings().iter().enumerate().step_by(5) {
        let (what, (graph, _)) = numbered(i / 5);
        let plan = planned(&device("h200"), &graph);
        if fits(&plan, tiling) {
            let text = source(&plan, tiling).unwrap().text;
            nvrtc.compile(&text, "k.cu", "sm_90a").unwrap_or_else(|e| panic!("{tiling:?} {what}: {e}"));
            compiled += 1;
        }
    }
    assert!(compiled > 4, "{compiled}");
}

#[test]
fn products_of_windows_agree_with_the_reference_on_a_gpu() {
    let tilings = tilings();
    let Some(gpu) = gpu(tilings.len() * 3) else { return };
    let mut ran = 0;
    for (i, tiling) in tilings.iter().enumerate().take(cases(1000) as usize) {
        for at in i * 3..i * 3 + 3 {
            let (what, case) = numbered(at);
            if fits(&planned(&gpu.profile(), &case.0), tiling) {
                ran += usize::from(agrees_by(&gpu, &case, tiling, &format!("{tiling:?} {what}")));
            }
        }
    }
    println!("{ran} products of windows agree");
    assert!(ran > 0 || gpu.profile().sm != 90, "no tiling of {}", tilings.len());
}
