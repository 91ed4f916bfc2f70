//! Copies and pointwise work whose operands lie across the result, against the reference: emulated
//! on a host, compiled, and on a GPU. Ragged tiles, every width of an element, several axes,
//! several parts of a launch.
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_plan::Plan;
use hypatia_target::device::Device;
use hypatia_templates::instances::Body;
use hypatia_testing::list;
use hypatia_testing::random::{coarsest, compare};

use super::tiled::{Case, Inputs};
use super::{agrees, emulated, gpu, planned};
use crate::lowering::step_kernels;
use hypatia_graph::{Graph, Value};

/// Shapes of an input, and the order in which its axes are read.
const SHAPES: [(&[usize], &[usize]); 8] = [
    (&[64, 64], &[1, 0]),
    (&[130, 70], &[1, 0]),
    (&[33, 257], &[1, 0]),
    (&[3, 40, 50], &[0, 2, 1]),
    (&[2, 48, 5, 40], &[0, 3, 1, 2]),
    (&[2, 20, 6, 36], &[2, 3, 0, 1]),
    (&[512, 16], &[1, 0]),
    (&[5, 16, 128], &[2, 0, 1]),
];

fn turned(c: &mut Case, (shape, order): (&[usize], &[usize])) -> (Value, Vec<usize>) {
    let x = c.input(shape);
    let y = c.graph.builtin(BuiltinOp::Transpose, &[x], vec![list(order)]).unwrap()[0];
    (y, order.iter().map(|axis| shape[*axis]).collect())
}

/// A copy.
fn copy(dtype: DType, shape: (&[usize], &[usize])) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let (y, _) = turned(&mut c, shape);
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

/// Two operands across, one along, a row, a column and a number; two results.
fn work(dtype: DType, shape: (&[usize], &[usize])) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let ((a, sizes), (b, _)) = (turned(&mut c, shape), turned(&mut c, shape));
    let (row, mut lines) = (*sizes.last().unwrap(), sizes.clone());
    *lines.last_mut().unwrap() = 1;
    let others = [sizes, vec![row], lines, vec![1]].map(|shape| c.input(&shape));
    let mut y = c.call("mul", &[a, b]);
    for other in others {
        y = c.call("add", &[y, other]);
    }
    let z = c.call("sub", &[y, a]);
    c.graph.output("y", y);
    c.graph.output("z", z);
    (c.graph, c.inputs)
}

/// Two copies in one launch.
fn both(dtype: DType, [one, other]: [(&[usize], &[usize]); 2]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    for (i, shape) in [one, other].into_iter().enumerate() {
        let (y, _) = turned(&mut c, shape);
        let y = c.call("add", &[y, y]);
        c.graph.output(format!("y{i}"), y);
    }
    (c.graph, c.inputs)
}

fn cases() -> Vec<(String, (Graph, Inputs))> {
    let mut all = Vec::new();
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for dtype in [DType::BF16, DType::F32, DType::F64, DType::I8] {
            all.push((format!("copy {dtype} {shape:?}"), copy(dtype, shape)));
        }
        for dtype in [DType::F16, DType::F32] {
            all.push((format!("work {dtype} {shape:?}"), work(dtype, shape)));
            let other = SHAPES[(i + 1) % SHAPES.len()];
            all.push((format!("both {dtype} {shape:?} {other:?}"), both(dtype, [shape, other])));
        }
    }
    all
}

/// So many elements that accesses are of several: f32 by two, bf16 and bytes by four. In the last
/// one, tiles of two terms would not fit into shared memory.
fn large() -> Vec<(String, (Graph, Inputs))> {
    let one: (&[usize], &[usize]) = (&[1472, 1504], &[1, 0]);
    let more: (&[usize], &[usize]) = (&[2948, 2884], &[1, 0]);
    let other: (&[usize], &[usize]) = (&[3, 1100, 2560], &[0, 2, 1]);
    vec![
        ("f32".into(), copy(DType::F32, one)),
        ("two of f32".into(), work(DType::F32, one)),
        ("bf16".into(), copy(DType::BF16, more)),
        ("i8".into(), copy(DType::I8, more)),
        ("both".into(), both(DType::BF16, [more, other])),
    ]
}

/// Plans for a launcher.
pub(super) fn plans() -> Vec<Plan> {
    let device = Device::named("h200").unwrap();
    let small = cases().into_iter().step_by(9);
    small.map(|(_, (graph, _))| Plan::clone(&planned(&device, &graph))).collect()
}

#[test]
fn tiles_of_a_launch_fit_into_shared_memory() {
    let device = Device::named("h200").unwrap();
    let vectors = |(graph, _): &(Graph, Inputs)| {
        let plan = planned(&device, graph);
        let of = |(body, _): (Body, crate::lowering::Work)| match body {
            Body::Horizontal(k) => {
                let turned: usize = k.codes.iter().map(|c| c.turned()).sum();
                assert!(turned > 0 && turned <= 40_960, "{turned} bytes\n{plan}");
                assert!(Body::Horizontal(k.clone()).emit(&plan.program).is_ok());
                k.codes.iter().map(|c| c.vector).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        plan.steps.iter().flat_map(step_kernels).flat_map(of).collect::<Vec<_>>()
    };
    let all: Vec<Vec<usize>> = large().iter().map(|(_, case)| vectors(case)).collect();
    assert_eq!(all, [vec![2], vec![2], vec![4], vec![4], vec![4, 2]]);
}

/// The launches of a plan that turn tiles.
fn across(plan: &Plan) -> usize {
    let is = |(body, _): &(Body, crate::lowering::Work)| match body {
        Body::Horizontal(k) => k.codes.iter().any(|c| c.across.is_some()),
        _ => false,
    };
    plan.steps.iter().flat_map(step_kernels).filter(is).count()
}

#[test]
fn emulated_tiles_across_agree_with_the_reference() {
    let case = |(what, (graph, inputs)): (String, (Graph, Inputs))| emulated::Case { what, graph, inputs };
    let all: Vec<emulated::Case> = cases().into_iter().step_by(2).chain(large()).map(case).collect();
    let made = match emulated::run(&all) {
        Ok(made) => made,
        Err(why) => return println!("skipped: {} cases, {why}", all.len()),
    };
    let mut turned = 0;
    for (case, made) in all.iter().zip(made) {
        let (plan, got) = made.unwrap_or_else(|| panic!("{}: a step without a kernel", case.what));
        turned += across(&plan);
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        for (got, w) in got.iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &case.what);
        }
    }
    assert!(turned >= all.len() / 2, "{turned} of {}", all.len());
}

#[test]
fn tiles_across_compile() {
    let Some(compiler) = super::compiler() else { return };
    for (what, (graph, _)) in cases().into_iter().step_by(5) {
        let plan = planned(&Device::named("h200").unwrap(), &graph);
        for (body, _) in plan.steps.iter().flat_map(step_kernels) {
            let source = body.emit(&plan.program).unwrap();
            if let Ok(folder) = std::env::var("HYPATIA_SOURCES") {
                std::fs::write(
                    format!("{folder}/{}.cu", what.replace(|c: char| !c.is_alphanumeric(), "_")),
                    &source.text,
                )
                .unwrap();
            }
            compiler.compile(&source.text, "k.cu", "sm_90").unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

#[test]
fn tiles_across_agree_with_the_reference_on_a_gpu() {
    let all = [cases(), large()].concat();
    let Some(gpu) = gpu(all.len()) else { return };
    for (what, (graph, inputs)) in &all {
        agrees(&gpu, graph, inputs, what).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}
