//! Row-wise work of several tensors in one launch, against the reference: emulated on a host, on a
//! GPU, and its fallback on the CPU.
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_plan::{Action, CallStep, Called, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{int, list};

use super::tiled::{Case, Inputs};
use super::{agrees, emulated, gpu, planned};
use hypatia_graph::{Graph, Value};

/// The norms of the heads of queries and keys that one product left side by side.
fn norms(dtype: DType, [b, s, h, g, d]: [usize; 5]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let all = c.input(&[b, s, (h + 2 * g) * d]);
    for (heads, start) in [(h, 0), (g, h * d)] {
        let attrs = [2, start, start + heads * d, 1].map(|v| int(v as i64)).to_vec();
        let cut = c.graph.builtin(BuiltinOp::Slice, &[all], attrs).unwrap()[0];
        let x = c.graph.builtin(BuiltinOp::Reshape, &[cut], vec![list(&[b, s, heads, d])]).unwrap()[0];
        let w = c.input(&[d]);
        let y = c.call("rms_norm", &[x, w]);
        c.graph.output(format!("y{start}"), y);
    }
    (c.graph, c.inputs)
}

/// Softmaxes of rows of several lengths and numbers.
fn softmaxes(dtype: DType, shapes: &[[usize; 2]]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    for (i, shape) in shapes.iter().enumerate() {
        let x = c.input(shape);
        let y = c.call("softmax", &[x]);
        c.graph.output(format!("y{i}"), y);
    }
    (c.graph, c.inputs)
}

/// The largest, and the sum, of the squares of rows, as gradients are clipped.
fn squares(dtype: DType, shapes: &[[usize; 2]]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    for (i, shape) in shapes.iter().enumerate() {
        let x: Value = c.input(shape);
        let square = c.call("mul", &[x, x]);
        let op = if i % 2 == 0 { BuiltinOp::Sum } else { BuiltinOp::Amax };
        let y = c.graph.builtin(op, &[square], vec![list(&[1]), hypatia_dsl::ir::AttrValue::Bool(false)]);
        c.graph.output(format!("y{i}"), y.unwrap()[0]);
    }
    (c.graph, c.inputs)
}

fn cases() -> Vec<(String, (Graph, Inputs))> {
    let mut all = Vec::new();
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for shape in [[2, 5, 4, 2, 64], [1, 3, 2, 1, 40], [1, 1, 3, 3, 128]] {
            all.push((format!("norms {dtype} {shape:?}"), norms(dtype, shape)));
        }
        let shapes: [&[[usize; 2]]; 3] =
            [&[[3, 7], [40, 128], [5, 1000]], &[[1, 8192], [300, 33]], &[[6, 1], [2, 2000]]];
        for shapes in shapes {
            all.push((format!("softmaxes {dtype} {shapes:?}"), softmaxes(dtype, shapes)));
            all.push((format!("squares {dtype} {shapes:?}"), squares(dtype, shapes)));
        }
    }
    all
}

/// Plans for a launcher.
pub(super) fn plans() -> Vec<Plan> {
    let device = Device::named("h200").unwrap();
    cases().into_iter().step_by(4).map(|(_, (graph, _))| Plan::clone(&planned(&device, &graph))).collect()
}

fn joint(plan: &Plan) -> usize {
    let is = |s: &&hypatia_plan::Step| matches!(&s.action, Action::Call(CallStep { called: Called::Rows(_), .. }));
    plan.steps.iter().filter(is).count()
}

#[test]
fn independent_rows_are_one_launch_and_their_fallback_agrees() {
    for (what, (graph, inputs)) in cases() {
        let plan = planned(&Device::named("h200").unwrap(), &graph);
        assert_eq!((joint(&plan), plan.launches()), (1, 1), "{what}\n{plan}");
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let executor = hypatia_cpu::Executor::new(Arc::clone(&plan), 2).unwrap().poisoned();
        for (got, w) in executor.run(&tensors).unwrap().iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &what);
        }
    }
}

#[test]
fn emulated_joint_rows_agree_with_the_reference() {
    let case = |(what, (graph, inputs)): (String, (Graph, Inputs))| emulated::Case { what, graph, inputs };
    let all: Vec<emulated::Case> = cases().into_iter().map(case).collect();
    let made = match emulated::run(&all) {
        Ok(made) => made,
        Err(why) => return println!("skipped: {} cases, {why}", all.len()),
    };
    for (case, made) in all.iter().zip(made) {
        let (plan, got) = made.unwrap_or_else(|| panic!("{}: a step without a kernel", case.what));
        assert_eq!(joint(&plan), 1, "{}\n{plan}", case.what);
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        for (got, w) in got.iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &case.what);
        }
    }
}

#[test]
fn joint_rows_agree_with_the_reference_on_a_gpu() {
    let all = cases();
    let Some(gpu) = gpu(all.len()) else { return };
    for (what, (graph, inputs)) in &all {
        agrees(&gpu, graph, inputs, what).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

#[test]
fn joint_rows_compile() {
    let Some(compiler) = super::compiler() else { return };
    for (what, (graph, _)) in cases().into_iter().step_by(2) {
        let plan = planned(&Device::named("h200").unwrap(), &graph);
        let (body, _) = crate::lowering::step_kernels(&plan.steps[0]).remove(0);
        let source = body.emit(&plan.program).unwrap();
        if let Ok(folder) = std::env::var("HYPATIA_SOURCES") {
            std::fs::write(format!("{folder}/{}.cu", what.replace([' ', '[', ']', ','], "_")), &source.text).unwrap();
        }
        compiler.compile(&source.text, "k.cu", "sm_90").unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}
