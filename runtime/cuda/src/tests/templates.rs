//! Kernels from users' templates in plans: correct ones agree with the reference. What is wrong,
//! faults, hangs or writes where it should not is quarantined, and the plan runs without it.
//!
//! A trial runs in the command `hypatia`, which must be beside the test program or in PATH.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::ty;

use super::gpu;
use crate::quarantine::Trials;
use crate::tuner::Tuner;
use crate::{Executor, Gpu};
use hypatia_cache::{Kind, Store};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, CallStep, Called, Options, Plan};
use hypatia_target::device::Device;

/// The product and the row-wise op of the examples.
const FILES: [(&str, &str); 3] = [
    ("own.hyp", include_str!("../../../../tests/templates/tiled_gemm.hyp")),
    ("tiled_gemm.cu.j2", include_str!("../../../../tests/templates/tiled_gemm.cu.j2")),
    ("shares.cu.j2", include_str!("../../../../tests/templates/shares.cu.j2")),
];

/// An op whose body is two steps, and a kernel for it whose template is given.
const TWICE: &str = r#"edition 1;
use core::*;
/// Rows divided by their largest element, which is the second result.
op crest<T: float>(x: T[m, n]) -> (T[m, n], T[m])
  = (x / max(amax(abs(x), axes = [-1]), 1e-3), amax(abs(x), axes = [-1], keepdims = false));
kernel crest_warp for crest(x) {
  template "crest.cu.j2";
  requires dtype(x) in {f32};
  launch grid = dim(x, 0), block = 32GRID;
}
"#;
const CREST: &str = r#"${ prelude }
extern "C" __global__ void ENTRY(${ params }) {
  const long long n = in0_sizes.at[1], row = blockIdx.x;
  const float* from = in0 + row * in0_strides.at[0];
  float most = 0;
  for (long long i = threadIdx.x; i < n; i += 32) most = max_nan(most, fabsf(from[i * in0_strides.at[1]]));
  for (int d = 16; d > 0; d >>= 1) most = max_nan(most, __shfl_xor_sync(0xffffffffu, most, d));
  const float by = max_nan(most, 1e-3f);
  for (long long i = threadIdx.x; i < n; i += 32) out0[row * n + i] = from[i * in0_strides.at[1]] / by;
  if (threadIdx.x == 0) out1[row] = most;
BODY
}
"#;

/// A program with the library and these files.
fn program(files: &[(&str, &str)]) -> Arc<hypatia_dsl::ir::Program> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    hypatia_library::load(&[folder.path().join(files[0].0)]).unwrap_or_else(|e| panic!("{e}"))
}

fn planned(device: &Device, graph: &Graph) -> Arc<Plan> {
    let options = optimize::Options { device: device.clone(), ..optimize::Options::default() };
    let graph = pipeline::optimize(graph, &options).unwrap().graph;
    Arc::new(pipeline::plan(&graph, &Options::new(device.clone())).unwrap())
}

/// The names of the templates that a plan's steps may run.
fn templates(plan: &Plan) -> Vec<String> {
    let of = |s: &hypatia_plan::Step| match &s.action {
        Action::Call(CallStep { called: Called::Template(_), .. }) => {
            s.kernel.map(|k| plan.program.kernels[k.index()].name.clone())
        }
        _ => None,
    };
    plan.steps.iter().filter_map(of).collect()
}

fn numbers(dtype: DType, shape: &[usize]) -> Tensor {
    let len = shape.iter().product();
    let values: Vec<f64> = (0..len).map(|i| ((i * 7919) % 997) as f64 / 500.0 - 1.0).collect();
    Tensor::from_f64(dtype, shape, &values).unwrap()
}

/// silu(x w + bias) * gate with batches.
fn product(dtype: DType, batch: usize) -> (Graph, Vec<(String, Tensor)>) {
    let mut g = Graph::new(program(&FILES));
    let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
    let shapes = [[lead, &[37, 70]].concat(), vec![70, 45], vec![45], [lead, &[37, 45]].concat()];
    let inputs: Vec<(String, Tensor)> =
        shapes.iter().enumerate().map(|(i, s)| (format!("x{i}"), numbers(dtype, s))).collect();
    let v: Vec<_> = inputs.iter().zip(&shapes).map(|((n, _), s)| g.input(n, ty(dtype, s))).collect();
    let y = g.builtin(BuiltinOp::Matmul, &[v[0], v[1]], vec![]).unwrap()[0];
    let y = g.call("add", &[y, v[2]], &[]).unwrap()[0];
    let y = g.call("silu", &[y], &[]).unwrap()[0];
    let y = g.call("mul", &[y, v[3]], &[]).unwrap()[0];
    g.output("y", y);
    (g, inputs)
}

/// Rows divided by their sums; the operand is a transposed view or lies as it is.
fn shares(dtype: DType) -> (Graph, Vec<(String, Tensor)>) {
    let mut g = Graph::new(program(&FILES));
    let inputs = vec![("x".to_string(), numbers(dtype, &[5, 33, 100]))];
    let x = g.input("x", ty(dtype, &[5, 33, 100]));
    let y = g.call("shares", &[x], &[("floor", AttrValue::Float(1e-2))]).unwrap()[0];
    g.output("y", y);
    (g, inputs)
}

/// `crest` with the grid's settings, another entry name, and a body that does harm.
fn crest(grid: &str, entry: &str, body: &str) -> (Graph, Vec<(String, Tensor)>) {
    let rules = TWICE.replace("GRID", grid);
    let template = CREST.replace("ENTRY", entry).replace("BODY", body);
    let mut g = Graph::new(program(&[("own.hyp", &rules), ("crest.cu.j2", &template)]));
    let inputs = vec![("x".to_string(), numbers(DType::F32, &[70, 65]))];
    let x = g.input("x", ty(DType::F32, &[70, 65]));
    let y = g.call("crest", &[x], &[]).unwrap();
    g.output("y", y[0]);
    g.output("z", y[1]);
    (g, inputs)
}

fn tuner(folder: &Path) -> Tuner {
    let store = Arc::new(Store::open(folder, Kind::Trial));
    Tuner::without_cache(Duration::from_secs(60)).with_trials(Trials::with_store(store))
}

fn check(executor: &Executor, graph: &Graph, inputs: &[(String, Tensor)], what: &str) {
    let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    for (got, want) in executor.run(&tensors).unwrap().iter().zip(&want) {
        compare(got, &want.to_tensor().unwrap(), want.dtype, coarsest(graph), what);
    }
}

#[test]
fn templates_are_steps_of_plans_for_gpus() {
    for target in ["h200", "a100"] {
        let device = Device::named(target).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let (graph, _) = product(dtype, 1);
            let names = templates(&planned(&device, &graph));
            assert!(names == ["tiled_silu"] || names == ["tiled_gemm"], "{target} {dtype}: {names:?}");
            assert_eq!(templates(&planned(&device, &shares(dtype).0)), ["shares_warp"], "{target} {dtype}");
        }
        // Its `requires` rules f16 out for one of the two.
        assert_eq!(templates(&planned(&device, &product(DType::F16, 1).0)), ["tiled_gemm"]);
        assert_eq!(templates(&planned(&device, &crest("", "${ entry }", "").0)), ["crest_warp"]);
        // A grid that is empty or too large is no launch.
        assert!(templates(&planned(&device, &crest(" - 32", "${ entry }", "").0)).is_empty());
    }
    assert!(templates(&planned(&Device::cpu(), &product(DType::F32, 1).0)).is_empty());
    assert!(templates(&planned(&Device::cpu(), &shares(DType::F32).0)).is_empty());
}

/// Runs a graph with its template, whichever is faster; whether the template passed its trial.
fn run(gpu: &Arc<Gpu>, (graph, inputs): &(Graph, Vec<(String, Tensor)>), what: &str) -> Vec<String> {
    let plan = planned(&gpu.profile(), graph);
    assert_eq!(templates(&plan).len(), 1, "{what}\n{plan}");
    let folder = tempfile::tempdir().unwrap();
    let mut first = tuner(folder.path());
    let executor = Executor::new(plan.clone(), gpu.clone(), &mut first).unwrap().poisoned();
    check(&executor, graph, inputs, what);
    // A later start knows the verdict: there is no second trial.
    let begin = std::time::Instant::now();
    let mut second = tuner(folder.path());
    let executor = Executor::new(plan, gpu.clone(), &mut second).unwrap().poisoned();
    check(&executor, graph, inputs, what);
    println!("{what}: {:?}, second start {:?}", first.trials().notes(), begin.elapsed());
    assert_eq!(first.trials().notes(), second.trials().notes());
    first.trials().notes()
}

#[test]
fn correct_templates_pass_their_trial_on_a_gpu() {
    let Some(gpu) = gpu(7) else { return };
    for dtype in [DType::F32, DType::BF16] {
        for batch in [1, 3] {
            assert_eq!(run(&gpu, &product(dtype, batch), &format!("product {dtype} {batch}")), [""; 0]);
        }
        assert_eq!(run(&gpu, &shares(dtype), &format!("shares {dtype}")), [""; 0]);
    }
    assert_eq!(run(&gpu, &crest("", "${ entry }", ""), "crest"), [""; 0]);
}

#[test]
fn harmful_templates_are_quarantined_on_a_gpu() {
    let entry = "${ entry }";
    let faults: [(&str, &str, &str, &str); 9] = [
        ("", entry, "  if (row == 3) out0[row * n + 1] += 1.0f;", "wrong: element 196 of result 0"),
        ("", entry, "  *(volatile int*)0 = 1;", "faulted"),
        ("", entry, "  while (*(volatile float*)in0 != 1e30f) {}", "did not end"),
        ("", entry, "  out1[gridDim.x + row] = 1.0f;", "wrote outside"),
        ("", entry, "  ((float*)in0)[row] = 7.0f;", "changed an operand"),
        ("", "some_other_name", "", "cannot be loaded"),
        ("", entry, "  not_a_function();", "cannot be compiled"),
        (
            "",
            entry,
            "  if (row == 3 && threadIdx.x == 0) out1[row] = __int_as_float(0x7fffffff);",
            "wrong: element 3 of result 1",
        ),
        (", shared = 900000", entry, "", "cannot be loaded"),
    ];
    let Some(gpu) = gpu(faults.len()) else { return };
    for (grid, entry, body, expected) in faults {
        let notes = run(&gpu, &crest(grid, entry, body), expected);
        assert!(notes.len() == 1 && notes[0].contains("`crest_warp` is not used"), "{notes:?}");
        assert!(notes[0].contains(expected), "{expected}: {notes:?}");
    }
    let unwritten = crest("", entry, "");
    let half = CREST.replace("if (threadIdx.x == 0) out1[row] = most;", "");
    let rules = TWICE.replace("GRID", "");
    let template = half.replace("ENTRY", entry).replace("BODY", "");
    let mut g = Graph::new(program(&[("own.hyp", &rules), ("crest.cu.j2", &template)]));
    let x = g.input("x", ty(DType::F32, &[70, 65]));
    let y = g.call("crest", &[x], &[]).unwrap();
    g.output("y", y[0]);
    g.output("z", y[1]);
    let notes = run(&gpu, &(g, unwritten.1), "did not write");
    assert!(notes[0].contains("did not write byte 0 of result 1"), "{notes:?}");
}
