//! Scalar functions of the templates against the exact values, on a GPU and compiled with the
//! host's C++ compiler. They replace two steps where low precision suffices; plans with TF32
//! products show them in f32.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use super::emulated::{self, Case};
use super::gpu;
use crate::Executor;
use crate::tuner::Tuner;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::numerics::Allowed;
use hypatia_dsl::numerics::Numerics;
use hypatia_dsl::scalar::device::device_function;
use hypatia_dsl::source::SourceFile;
use hypatia_graph::Graph;
use hypatia_library as library;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Options, Shortened};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::ty;

/// Arguments over which `1 + erf(x)` and `1 + tanh(x)` go from 0 to 2, and arguments at which they
/// are 0 or 2.
fn arguments() -> Vec<f32> {
    let special =
        [0.0, -0.0, 1e-40, -1e-40, 60.0, -60.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let dense = (-100_000..=100_000).map(|i| i as f32 * 4e-4);
    special.into_iter().chain(dense.clone().map(|x| x / 8.0)).chain(dense).collect()
}

/// The functions alone, on all arguments.
fn case() -> Case {
    let x = arguments();
    let text = "edition 1;\nuse core::*;\nscalar plus_erf(x) = 1 + erf(x);\nscalar plus_tanh(x) = tanh(x) + 1;\n";
    let file = SourceFile { name: "sums.hyp".into(), path: None, text: text.into(), embedded: false };
    let mut graph = Graph::new(library::compile_sources(vec![file]).program.unwrap().into());
    let value = graph.input("x", ty(DType::F32, &[x.len()]));
    for name in ["plus_erf", "plus_tanh", "exp"] {
        let sum = graph.call(name, &[value], &[]).unwrap()[0];
        graph.output(name, sum);
    }
    let tensor = Tensor::from_slice(&[x.len()], &x).unwrap();
    Case { what: "1 + erf(x), 1 + tanh(x) and e^x".into(), graph, inputs: vec![("x".into(), tensor)] }
}

/// Within 2e-5 of the value, or 1e-15 where it is next to nothing; exact if the f32 sum is 2.
fn check(case: &Case, got: &[Tensor]) {
    let exact: [fn(f64) -> f64; 2] = [|x| libm::erfc(-x), |x| 2.0 / (1.0 + libm::exp(-2.0 * x))];
    for (exact, (got, (name, _))) in exact.into_iter().zip(got.iter().zip(&case.graph.outputs)) {
        for (x, got) in case.inputs[0].1.as_slice::<f32>().unwrap().iter().zip(got.as_slice::<f32>().unwrap()) {
            let (want, got) = (exact(f64::from(*x)), f64::from(*got));
            if x.is_nan() {
                assert!(got.is_nan(), "{name}({x}) = {got}");
                continue;
            }
            let off = (got - want).abs();
            assert!(off <= 2e-5 * want + 1e-15, "{name}({x}) = {got}, exactly {want}");
            assert!(want <= 2.0 - 2f64.powi(-26) || got == 2.0, "{name}({x}) = {got}, exactly {want}");
        }
    }
}

/// The functions that `verify` assumes for the device are those of the templates, within one unit
/// of the largest step, by which two libraries' powers of two may differ.
fn same(case: &Case, got: &[Tensor]) {
    for (name, got) in ["one_plus_erf", "one_plus_tanh", "__expf"].into_iter().zip(got) {
        let function = device_function(name).unwrap();
        for (x, got) in case.inputs[0].1.as_slice::<f32>().unwrap().iter().zip(got.as_slice::<f32>().unwrap()) {
            let want = (function.emulate)(&[*x], 0);
            let unit = f32::EPSILON * if name == "__expf" { want } else { 2.0 };
            let near = (want - got).abs() <= unit.max(f32::MIN_POSITIVE);
            assert!(near || want == *got || want.is_nan() && got.is_nan(), "{name}({x}) = {got}, not {want}");
        }
    }
}

#[test]
fn sums_with_one_are_near_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    let case = case();
    let options = Options::new(gpu.profile().with_tf32(true));
    let plan = Arc::new(pipeline::plan(&case.graph, &options).unwrap());
    let executor = Executor::new(plan, gpu, &mut Tuner::without_cache(Duration::ZERO)).unwrap();
    check(&case, &executor.run(&[case.inputs[0].1.clone()]).unwrap());
}

#[test]
fn emulated_sums_with_one_are_near() {
    let options = Options::new(Device::named("h200").unwrap().with_tf32(true));
    match emulated::run_with(&[case()], &options) {
        Ok(results) => {
            let (plan, got) = results[0].as_ref().unwrap();
            let rule = |s: &Shortened| plan.program.rules[s.rule.index()].name.clone();
            let fired: Vec<String> = plan.shortened.iter().map(rule).collect();
            assert_eq!(fired, ["short::one_plus_erf", "short::one_plus_tanh", "short::exp"]);
            check(&case(), got);
            same(&case(), got);
        }
        Err(why) => eprintln!("SKIPPED 1 emulated case: {why}"),
    }
}

/// Nothing is shortened on the host, in f32, or if the user forbids it.
#[test]
fn rules_of_kernels_fire_where_digits_are_lost_only() {
    let case = case();
    let fired = |options: Options| pipeline::plan(&case.graph, &options).unwrap().shortened.len();
    let h200 = || Options::new(Device::named("h200").unwrap());
    let tf32 = || Options::new(h200().device.with_tf32(true));
    let allowed = |numerics| Allowed { numerics, ..Allowed::default() };
    assert_eq!(fired(Options::new(Device::cpu().with_tf32(true))), 0);
    assert_eq!(fired(h200()), 0);
    assert_eq!(fired(tf32()), 3);
    assert_eq!(fired(Options { allowed: allowed(Numerics::Fast), ..h200() }), 3);
    assert_eq!(fired(Options { allowed: allowed(Numerics::Exact), ..tf32() }), 0);
    let without = Allowed { disabled: ["short::exp".to_string()].into(), ..Allowed::default() };
    assert_eq!(fired(Options { allowed: without, ..tf32() }), 2);
}
