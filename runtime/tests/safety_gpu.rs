//! `Safety::Strict` on a GPU: faults are found, named and mended, and clean runs raise no alarm.
//!
//! Without a GPU each test reports how many runs it skips.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hypatia::session::{Compiled, Culprit, Model, Options, Safety};
use hypatia_cuda::tuner::Tuner;
use hypatia_cuda::{Disturbance, Gpu};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_graph::{GraphBuilder, shape};
use hypatia_library as library;
use hypatia_tensor::compare::{Comparison, Tolerance};
use hypatia_tensor::{Tensor, npz};
use hypatia_testing::gpu_or_skip;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Inputs = Vec<(String, Tensor)>;

/// A rule that is right for small numbers only.
const WRONG: &str = "edition 1;
use core::*;
use nn::*;
ruleset wrong { until = fixpoint; }
rule wrong::uncapped: min(relu(x), 30.0) => relu(x);
";

fn gpu(cases: usize) -> Option<Arc<Gpu>> {
    gpu_or_skip(Gpu::open(0), cases)
}

fn strict(gpu: &Arc<Gpu>, compare_every: u64, disturbed: bool) -> Options {
    let options = Options { safety: Safety::Strict, compare_every, disturbed, ..Options::default() };
    Options { verdicts: None, ..options.on(gpu.clone(), Tuner::without_cache(Duration::from_secs(20))) }
}

/// Three models in f32, and a network in bf16.
fn models(options: &Options) -> Vec<(&'static str, Model, Inputs)> {
    let mut out = Vec::new();
    for name in ["ffn", "digits", "bert"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name);
        let model = Model::load(&folder.join("model.onnx"), library::load(&[]).unwrap(), options.clone()).unwrap();
        out.push((name, model, npz::read(&folder.join("inputs.npz")).unwrap()));
    }
    let (model, inputs) = network(library::load(&[]).unwrap(), options.clone());
    out.push(("network", model, inputs));
    out
}

fn random(random: &mut ChaCha8Rng, dtype: DType, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.random_range(-0.5..0.5)).collect();
    Tensor::from_f64(dtype, shape, &values).unwrap()
}

/// Three layers in bf16, by generated products on Hopper.
fn network(program: Arc<Program>, options: Options) -> (Model, Inputs) {
    let mut values = ChaCha8Rng::seed_from_u64(3);
    let g = GraphBuilder::new(program);
    let mut x = g.input("x", DType::BF16, shape![200, 264]);
    for _ in 0..3 {
        let w = g.constant(random(&mut values, DType::BF16, &[264, 264]));
        let bias = g.constant(random(&mut values, DType::BF16, &[264]));
        x = g.call("silu", &[x.matmul(w) + bias], &[]);
    }
    g.output("y", x);
    let inputs = vec![("x".to_string(), random(&mut values, DType::BF16, &[200, 264]))];
    (Model::new(g.finish().unwrap(), options), inputs)
}

/// Within this many times the tolerance with which plans are compared.
fn within(times: f64, got: &[Tensor], want: &[Tensor]) -> bool {
    let tolerance = |w: &Tensor| Tolerance { rtol: times * Tolerance::of(w.dtype(), 1).rtol, atol: None };
    got.iter().zip(want).all(|(g, w)| Comparison::of(g, w, tolerance(w)).unwrap().ok)
}

fn agree(got: &[Tensor], want: &[Tensor]) -> bool {
    within(1.0, got, want)
}

fn same(got: &[Tensor], want: &[Tensor]) -> bool {
    got.iter().zip(want).all(|(g, w)| g.bytes() == w.bytes())
}

fn compiled(model: &Model, inputs: &Inputs) -> (Arc<Compiled>, Vec<Tensor>) {
    (model.compile(inputs).unwrap(), model.order(inputs).unwrap())
}

#[test]
fn a_thousand_clean_runs_raise_no_alarm_on_a_gpu() {
    let Some(gpu) = gpu(1000) else { return };
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (name, model, inputs) in models(&strict(&gpu, 16, false)) {
        let (compiled, mut inputs) = compiled(&model, &inputs);
        for _ in 0..250 {
            for t in inputs.iter_mut().filter(|t| t.dtype().is_float()) {
                let factor = [0.5, 2.0][random.random_range(0..2)];
                let values: Vec<f64> = t.to_f64().iter().rev().map(|v| (v * factor).clamp(-1e3, 1e3)).collect();
                *t = Tensor::from_f64(t.dtype(), t.shape(), &values).unwrap();
            }
            compiled.run(&inputs).unwrap();
        }
        assert_eq!(compiled.incidents(), [], "{name}");
        let watched = compiled.watched().unwrap();
        // Suspicions would be compared too.
        assert!(watched.runs == 250 && (1..=16).contains(&watched.compared), "{name}: {watched:?}");
    }
}

#[test]
fn flipped_bits_leave_the_results_right_on_a_gpu() {
    let Some(gpu) = gpu(1000) else { return };
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let (mut caught, mut large) = (0, 0);
    for (name, model, inputs) in models(&strict(&gpu, 0, true)) {
        let (compiled, inputs) = compiled(&model, &inputs);
        let want = compiled.run(&inputs).unwrap();
        for _ in 0..250 {
            let (at, bit) = ([random.random_range(0..16), random.random_range(0..10)], random.random_range(0..32));
            compiled.executor.cuda().unwrap().disturb(Disturbance::Flip { at, bit }).unwrap();
            let before = compiled.incidents().len();
            let got = compiled.run(&inputs).unwrap();
            let found = &compiled.incidents()[before..];
            match found {
                [] => assert!(within(10.0, &got, &want), "{name}: bit {bit} of {at:?}"),
                [one] => assert_eq!((&one.culprit, same(&got, &want)), (&Culprit::Transient, true), "{one}"),
                more => panic!("{name}: {more:?}"),
            }
            caught += found.len();
            large += usize::from((27..31).contains(&bit) && name != "network");
        }
    }
    println!("{caught} of 1000 flipped bits found; {large} were in the exponent of an f32");
    assert!(large > 80 && caught >= large, "{caught} of {large}");
}

#[test]
fn a_wrong_kernel_is_replaced_on_a_gpu() {
    let Some(gpu) = gpu(4) else { return };
    for (name, model, inputs) in models(&strict(&gpu, 0, true)) {
        let (compiled, inputs) = compiled(&model, &inputs);
        let want = compiled.run(&inputs).unwrap();
        compiled.executor.cuda().unwrap().disturb(Disturbance::Double(64)).unwrap();
        let got = compiled.run(&inputs).unwrap();
        assert!(agree(&got, &want), "{name}");
        let incidents = compiled.incidents();
        let [one] = incidents.as_slice() else { panic!("{name}: {incidents:?}") };
        assert!(matches!(&one.culprit, Culprit::Kernel(_)), "{name}: {one}");
        // What took its place is right, and is not found again.
        assert!(agree(&compiled.run(&inputs).unwrap(), &want), "{name}");
        assert_eq!(compiled.incidents().len(), 1, "{name}");
    }
}

#[test]
fn a_rule_that_is_wrong_for_some_inputs_is_named_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    let temporary = tempfile::tempdir().unwrap();
    let rules = temporary.path().join("wrong.hyp");
    std::fs::write(&rules, WRONG).unwrap();
    let program = library::load(std::slice::from_ref(&rules)).unwrap();
    let options = Options { incidents: Some(temporary.path().join("incidents")), ..strict(&gpu, 1, false) };
    let mut values = ChaCha8Rng::seed_from_u64(3);
    let g = GraphBuilder::new(program);
    let mut x = g.input("x", DType::F32, shape![40, 24]);
    for _ in 0..3 {
        let cap = g.tensor(&[], &[30.0f32]);
        let w = g.constant(random(&mut values, DType::F32, &[24, 24]));
        x = g.call("min", &[g.call("relu", &[x.matmul(w)], &[]), cap], &[]);
    }
    g.output("y", x);
    let small = random(&mut values, DType::F32, &[40, 24]);
    let model = Model::new(g.finish().unwrap(), options);
    let compiled = model.compile(&[("x".to_string(), small.clone())]).unwrap();
    let large: Vec<f64> = small.to_f64().iter().map(|v| v * 100.0).collect();
    let large = [Tensor::from_f64(DType::F32, &[40, 24], &large).unwrap()];
    let want = compiled.unfused().unwrap().run(&large).unwrap();
    assert!(!agree(&compiled.executor.run(&large).unwrap(), &want), "the rule is wrong on large ones");
    assert!(agree(&compiled.run(&large).unwrap(), &want));
    let [incident] = &compiled.incidents()[..] else { panic!("{:?}", compiled.incidents()) };
    assert_eq!(incident.culprit, Culprit::Rules(vec!["wrong::uncapped".into()]), "{incident}");
    let saved = incident.saved.clone().unwrap();
    assert!(Model::load(&saved.join("model.onnx"), library::load(&[rules]).unwrap(), Options::default()).is_ok());
    assert!(agree(&compiled.run(&large).unwrap(), &want));
}
