//! `Safety::Strict`: faults are found, named and mended, and clean runs raise no alarm.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hypatia::session::{Compiled, Culprit, Model, Options, Safety};
use hypatia_cpu::Fault;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Clause, Program};
use hypatia_graph::{Graph, GraphBuilder, shape};
use hypatia_library as library;
use hypatia_plan::{Action, Plan};
use hypatia_tensor::compare::{Comparison, Tolerance};
use hypatia_tensor::{Tensor, npz};
use hypatia_testing::joint::networks;
use hypatia_testing::random::{FLOATS, Random};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A model, its plan and inputs.
struct Case {
    model: Model,
    inputs: Vec<(String, Tensor)>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name)
}

fn strict(compare_every: u64) -> Options {
    Options { threads: 2, safety: Safety::Strict, compare_every, ..Options::default() }
}

fn case(name: &str, options: Options) -> Case {
    let model = Model::load(&folder(name).join("model.onnx"), library::load(&[]).unwrap(), options).unwrap();
    Case { model, inputs: npz::read(&folder(name).join("inputs.npz")).unwrap() }
}

impl Case {
    fn compiled(&self) -> (Arc<Compiled>, Vec<Tensor>) {
        (self.model.compile(&self.inputs).unwrap(), self.model.order(&self.inputs).unwrap())
    }
}

/// The steps of a plan that are products, with the number of elements of each.
fn products(plan: &Plan) -> Vec<(usize, usize)> {
    let steps = plan.steps.iter().enumerate().filter(|(_, s)| matches!(s.action, Action::Gemm(_)));
    steps.map(|(i, s)| (i, s.writes[0].len())).collect()
}

fn same(got: &[Tensor], want: &[Tensor]) -> bool {
    got.iter().zip(want).all(|(g, w)| g.bytes() == w.bytes())
}

fn agree(got: &[Tensor], want: &[Tensor]) -> bool {
    got.iter().zip(want).all(|(g, w)| Comparison::of(g, w, Tolerance::of(w.dtype(), 1)).unwrap().ok)
}

#[test]
fn a_thousand_clean_runs_raise_no_alarm() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (name, runs) in [("ffn", 100), ("digits", 500), ("bert", 400)] {
        let case = case(name, strict(10));
        let (compiled, mut inputs) = case.compiled();
        let mut off = Vec::new();
        for _ in 0..runs {
            // Other values of the same kind: rows in another order, larger and smaller.
            for t in inputs.iter_mut().filter(|t| t.dtype().is_float()) {
                let factor = [0.5, 2.0][random.random_range(0..2)];
                let values: Vec<f64> = t.to_f64().iter().rev().map(|v| (v * factor).clamp(-1e3, 1e3)).collect();
                *t = Tensor::from_f64(t.dtype(), t.shape(), &values).unwrap();
            }
            compiled.run(&inputs).unwrap();
            off.extend(compiled.incidents());
        }
        assert_eq!(off, [], "{name}");
    }
}

#[test]
fn clean_products_of_every_type_and_convolutions_raise_no_alarm() {
    let program = library::load(&[]).unwrap();
    let mut runs = 0;
    let mut run = |graph: Graph, inputs: &[(String, Tensor)], what: &str| {
        let model = Model::new(graph, strict(0));
        // What cannot be run in this mode, cannot in another.
        let Ok(compiled) = model.compile(inputs) else { return };
        if compiled.run(&model.order(inputs).unwrap()).is_ok() {
            runs += 1;
        }
        assert_eq!(compiled.incidents(), [], "{what}");
    };
    for dtype in FLOATS {
        for joint in networks(&program, dtype, false) {
            run(joint.graph.clone(), &joint.inputs, &joint.name);
        }
    }
    for seed in 0..60 {
        let mut random = Random::new(seed);
        random.build(seed % 2 == 1);
        run(random.graph, &random.inputs, &format!("random graph {seed}"));
    }
    assert!(runs >= 80, "{runs}");
}

#[test]
fn a_thousand_flipped_bits_leave_the_results_right() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let (mut caught, mut large) = (0, 0);
    for (name, runs) in [("ffn", 100), ("digits", 500), ("bert", 400)] {
        let case = case(name, strict(0));
        let (compiled, inputs) = case.compiled();
        let want = compiled.run(&inputs).unwrap();
        let products = products(compiled.executor.plan());
        for _ in 0..runs {
            let (step, len) = products[random.random_range(0..products.len())];
            let (element, bit) = (random.random_range(0..len), random.random_range(0..32) as u32);
            compiled.executor.disturb(vec![Fault::Flip { step, element, bit, done: AtomicBool::new(false) }]);
            let before = compiled.incidents().len();
            let got = compiled.run(&inputs).unwrap();
            let found = &compiled.incidents()[before..];
            match found {
                [] => assert!(agree(&got, &want), "{name}: bit {bit} of element {element} of step {step}"),
                [one] => assert_eq!((&one.culprit, same(&got, &want)), (&Culprit::Transient, true), "{one}"),
                more => panic!("{name}: {more:?}"),
            }
            caught += found.len();
            // The exponent of an element is no rounding, unless the element is nearly zero.
            large += usize::from((27..31).contains(&bit));
        }
    }
    assert!(large > 80 && caught >= large, "{caught} of {large}");
}

#[test]
fn a_wrong_kernel_is_named_and_replaced() {
    for name in ["ffn", "digits", "bert"] {
        let mut seen = [0, 0];
        let launches = case(name, strict(1)).compiled().0.executor.plan().steps.len();
        for step in 0..launches {
            let case = case(name, strict(1));
            let (compiled, inputs) = case.compiled();
            let want = compiled.run(&inputs).unwrap();
            compiled.executor.disturb(vec![Fault::Kernel { step, one_in: 100 }]);
            let got = compiled.run(&inputs).unwrap();
            assert!(agree(&got, &want), "{name}: step {step}");
            let incidents = compiled.incidents();
            let plan = compiled.executor.plan();
            let is_product = matches!(plan.steps[step].action, Action::Gemm(_));
            // Steps of other types than f32 are not disturbed.
            let Some(first) = incidents.first() else {
                assert!(!is_product, "{name}: step {step}");
                continue;
            };
            assert_eq!(first.culprit, Culprit::Kernel(plan.step_name(step)), "{first}");
            seen[usize::from(is_product)] += 1;
            // What took its place is right, and is not found again.
            assert!(agree(&compiled.run(&inputs).unwrap(), &want));
            assert_eq!(compiled.incidents().len(), incidents.len());
        }
        assert!(seen[1] > 0 && (name != "bert" || seen[0] > 0), "{name}: {seen:?}");
    }
}

/// A rule that is right for small numbers only.
const WRONG: &str = "edition 1;
use core::*;
use nn::*;
ruleset wrong { until = fixpoint; }
rule wrong::uncapped: min(relu(x), 30.0) => relu(x);
";

/// Five layers with a capped ReLU, and inputs.
fn capped(program: Arc<Program>, options: Options) -> (Model, Vec<(String, Tensor)>) {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut values = |len: usize| -> Vec<f32> { (0..len).map(|_| random.random_range(-0.5..0.5)).collect() };
    let g = GraphBuilder::new(program);
    let mut x = g.input("x", DType::F32, shape![40, 24]);
    for _ in 0..5 {
        let cap = g.tensor(&[], &[30.0f32]);
        let w = g.tensor(&[24, 24], &values(24 * 24));
        x = g.call("min", &[g.call("relu", &[x.matmul(w)], &[]), cap], &[]);
    }
    g.output("y", x);
    let inputs = vec![("x".to_string(), Tensor::from_slice(&[40, 24], &values(40 * 24)).unwrap())];
    (Model::new(g.finish().unwrap(), options), inputs)
}

#[test]
fn a_rule_that_is_wrong_for_some_inputs_is_named_with_a_small_graph() {
    let temporary = tempfile::tempdir().unwrap();
    let rules = temporary.path().join("wrong.hyp");
    std::fs::write(&rules, WRONG).unwrap();
    let program = library::load(std::slice::from_ref(&rules)).unwrap();
    let incidents = temporary.path().join("incidents");
    let options = Options { incidents: Some(incidents.clone()), ..strict(1) };
    let (model, inputs) = capped(program.clone(), options);
    let compiled = model.compile(&inputs).unwrap();
    assert_eq!(compiled.warnings(), Vec::<String>::new(), "the rule is right on the first inputs");
    let values: Vec<f32> = inputs[0].1.to_f64().iter().map(|v| *v as f32 * 100.0).collect();
    let large = [Tensor::from_slice(&[40, 24], &values).unwrap()];
    let want = compiled.unfused().unwrap().run(&large).unwrap();
    assert!(!agree(&compiled.executor.run(&large).unwrap(), &want), "the rule is wrong on large ones");

    let got = compiled.run(&large).unwrap();
    assert!(agree(&got, &want));
    let [incident] = &compiled.incidents()[..] else { panic!("{:?}", compiled.incidents()) };
    assert_eq!(incident.culprit, Culprit::Rules(vec!["wrong::uncapped".into()]), "{incident}");
    let saved = incident.saved.clone().unwrap();
    assert!(saved.starts_with(&incidents) && incident.to_string().contains(&saved.display().to_string()));
    // From now on the plan is right.
    assert!(agree(&compiled.run(&large).unwrap(), &want));
    assert_eq!(compiled.incidents().len(), 1);

    // The small graph shows it by itself.
    let small = Model::load(&saved.join("model.onnx"), program, Options::default()).unwrap();
    assert!(small.graph().nodes.len() <= 20);
    let again = small.compile(&npz::read(&saved.join("inputs.npz")).unwrap()).unwrap();
    assert_eq!(again.refusal.as_ref().unwrap().without, ["wrong::uncapped"]);
    let about = std::fs::read_to_string(saved.join("about.txt")).unwrap();
    assert!(about.contains("wrong::uncapped") && about.contains("differs"), "{about}");
}

#[test]
fn a_contract_that_demands_a_wrong_rule_ends_all_runs() {
    let temporary = tempfile::tempdir().unwrap();
    let rules = temporary.path().join("wrong.hyp");
    std::fs::write(&rules, WRONG).unwrap();
    let mut options = strict(1);
    options.optimize.contract = vec![Clause::must("wrong::uncapped").unwrap()];
    let (model, inputs) = capped(library::load(&[rules]).unwrap(), options);
    let small = model.order(&inputs).unwrap();
    let compiled = model.compile(&inputs).unwrap();
    compiled.run(&small).unwrap();
    let values: Vec<f32> = small[0].to_f64().iter().map(|v| *v as f32 * 100.0).collect();
    let large = [Tensor::from_slice(&[40, 24], &values).unwrap()];
    for inputs in [&large[..], &large, &small] {
        let error = compiled.run(inputs).unwrap_err().to_string();
        assert!(error.contains("wrong::uncapped") && error.contains("is not met"), "{error}");
    }
}

#[test]
fn memory_of_the_caller_gets_the_right_results() {
    let case = case("digits", strict(1));
    let (compiled, inputs) = case.compiled();
    let want = compiled.run(&inputs).unwrap();
    let pointwise = compiled.executor.plan().steps.iter().position(|s| !matches!(s.action, Action::Gemm(_)));
    let step = pointwise.unwrap_or(0);
    compiled.executor.disturb(vec![Fault::Kernel { step, one_in: 100 }]);
    let mut outputs: Vec<Tensor> = want.iter().map(|t| Tensor::zeros(t.dtype(), t.shape()).unwrap()).collect();
    let from: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
    let mut to: Vec<&mut [u8]> = outputs.iter_mut().map(Tensor::bytes_mut).collect();
    compiled.run_in_place(&from, &mut to).unwrap();
    assert!(agree(&outputs, &want));
    assert_eq!(compiled.incidents().len(), 1, "{:?}", compiled.incidents());
}
