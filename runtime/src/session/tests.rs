//! Tests of models with their rules: results, early plans, comparing, cached verdicts.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use super::*;
use hypatia_dsl::numerics::Numerics;
use hypatia_library as library;
use hypatia_tensor::npz;

fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name)
}

/// The largest error relative to the largest reference value, over all outputs.
fn error(name: &str, rules: bool) -> (f64, usize, usize) {
    let program = library::load(&[]).unwrap();
    let mut options = Options { threads: 2, ..Options::default() };
    options.optimize.no_rules = !rules;
    let m = Model::load(&model(name).join("model.onnx"), program, options).unwrap();
    let inputs = npz::read(&model(name).join("inputs.npz")).unwrap();
    let want = npz::read(&model(name).join("outputs.npz")).unwrap();
    let compiled = m.compile(&inputs).unwrap();
    assert_eq!(compiled.warnings(), [] as [String; 0]);
    let got = m.run(&inputs).unwrap();
    let mut worst = 0.0f64;
    for (name, got) in m.outputs().iter().zip(&got) {
        let (_, want) = want.iter().find(|(n, _)| n == name).unwrap();
        let c = Comparison::of(got, want, Tolerance::of(want.dtype(), 1)).unwrap();
        assert!(c.ok, "{c}");
        worst = worst.max(c.max_error / c.max_reference);
    }
    (worst, compiled.unfused().unwrap().plan().launches(), compiled.executor.plan().launches())
}

#[test]
fn models_give_their_expected_outputs_with_and_without_rules() {
    for name in ["digits", "ffn", "bert"] {
        let (plain, before, _) = error(name, false);
        let (fused, _, after) = error(name, true);
        assert!(plain < 1e-5, "{name} without rules is off by {plain}");
        assert!(fused < 1e-5, "{name} with rules is off by {fused}");
        assert!(after < before, "{name}: {before} launches became {after}");
    }
}

#[test]
fn an_early_plan_is_used_for_the_same_inputs_and_settings() {
    let program = library::load(&[]).unwrap();
    let load = |options| Model::load(&model("digits").join("model.onnx"), program.clone(), options).unwrap();
    let inputs = npz::read(&model("digits").join("inputs.npz")).unwrap();
    let (name, x) = &inputs[0];
    let fewer = Tensor::zeros(x.dtype(), &[&[1], &x.shape()[1..]].concat()).unwrap();
    let others = [(name.clone(), fewer)];
    let no_rules = |optimize: optimize::Options| optimize::Options { no_rules: true, ..optimize };
    let plain = Options { threads: 2, ..Options::default() };
    let changed = Options { optimize: no_rules(plain.optimize.clone()), ..plain.clone() };
    let more = Options { memory: Some(memory::budget() / 2), ..plain.clone() };
    for (what, device, options, given, used) in [
        ("the same", Device::cpu(), &plain, &inputs[..], true),
        ("other sizes", Device::cpu(), &plain, &others[..], false),
        ("another device", Device::named("h200").unwrap(), &plain, &inputs[..], false),
        ("other rules", Device::cpu(), &changed, &inputs[..], false),
        ("other memory", Device::cpu(), &more, &inputs[..], false),
    ] {
        let model = load(plain.clone());
        model.plan_ahead(&device, given);
        let made = model.early.lock().unwrap().as_ref().map(|a| a.fused.clone()).unwrap();
        let model = model.with_options(options.clone());
        let compiled = model.compile(&inputs).unwrap();
        assert_eq!(std::ptr::eq(&*made, compiled.executor.plan()), used, "{what}");
        let want = load(options.clone()).run(&inputs).unwrap();
        assert_eq!(model.run(&inputs).unwrap()[0].bytes(), want[0].bytes(), "{what}");
    }
}

#[test]
fn a_wrong_rule_is_caught_and_named_and_the_unfused_plan_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.hyp");
    let rule = "rule wrong::dropped: relu(x) => x;";
    std::fs::write(
        &path,
        format!("edition 1;\nuse core::*;\nuse nn::*;\nruleset wrong {{ until = fixpoint; }}\n{rule}\n"),
    )
    .unwrap();
    let inputs = npz::read(&model("digits").join("inputs.npz")).unwrap();
    let want = npz::read(&model("digits").join("outputs.npz")).unwrap();
    let load = |safety: Safety| {
        let program = library::load(std::slice::from_ref(&path)).unwrap();
        let options = Options { threads: 1, safety, ..Options::default() };
        Model::load(&model("digits").join("model.onnx"), program, options).unwrap()
    };
    let m = load(Safety::Check);
    let compiled = m.compile(&inputs).unwrap();
    assert_eq!(compiled.warnings().len(), 1);
    let warning = compiled.refusal.as_ref().unwrap().to_string();
    assert!(warning.contains("wrong::dropped") && warning.contains("not used"), "{warning}");
    assert!(compiled.executor.plan().launches() < compiled.unfused().unwrap().plan().launches());
    let agrees = |m: &Model| {
        let got = &m.run(&inputs).unwrap()[0];
        Comparison::of(got, &want[0].1, Tolerance::of(want[0].1.dtype(), 1)).unwrap().ok
    };
    assert!(agrees(&m));
    // Unchecked, the rule does what it says.
    let m = load(Safety::Off);
    assert!(m.compile(&inputs).unwrap().refusal.is_none() && !agrees(&m));
}

/// The digits model with a rule of the user's own, as a process that starts now would load it.
fn start(rule: &str, store: &Arc<Store>, change: impl FnOnce(&mut Options, &mut Graph)) -> Arc<Compiled> {
    let path = store.folder().with_file_name("own.hyp");
    let head = "edition 1;\nuse core::*;\nuse nn::*;\nruleset own { until = fixpoint; }";
    std::fs::write(&path, format!("{head}\n{rule}\n")).unwrap();
    let program = library::load(&[path]).unwrap();
    let mut options = Options { threads: 1, verdicts: Some(store.clone()), ..Options::default() };
    let mut graph =
        pipeline::load(&model("digits").join("model.onnx"), program, &import::Options::default()).unwrap().graph;
    change(&mut options, &mut graph);
    let inputs = npz::read(&model("digits").join("inputs.npz")).unwrap();
    Model::new(graph, options).compile(&inputs).unwrap()
}

fn store() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(folder.path(), hypatia_cache::Kind::Verdict));
    (folder, store)
}

#[test]
fn a_second_start_makes_no_second_plan_until_something_changes() {
    let (_folder, store) = store();
    let same = |_: &mut Options, _: &mut Graph| {};
    let first = start("", &store, same);
    assert_eq!((first.checked, first.unfused.made.get().is_some()), (Checked::Now, true));
    let second = start("", &store, same);
    assert_eq!((second.checked, second.unfused.made.get().is_some()), (Checked::Before, false));
    assert_eq!(second.executor.plan().launches(), first.executor.plan().launches());
    assert!(second.unfused().unwrap().plan().launches() > second.executor.plan().launches());

    assert_eq!(start("", &store, |o, _| o.recheck = true).checked, Checked::Now);
    assert_eq!(start("", &store, |o, _| o.safety = Safety::Off).checked, Checked::Never);
    assert_eq!(start("", &store, |o, _| o.threads = 2).checked, Checked::Now);
    assert_eq!(start("", &store, |o, _| o.tf32 = true).checked, Checked::Now);
    assert_eq!(start("rule own::add: x + 0 => x;", &store, same).checked, Checked::Now);
    let one_bit = |_: &mut Options, g: &mut Graph| {
        let weight = g.nodes.iter_mut().find_map(|n| match &mut n.kind {
            NodeKind::Const(t) if t.bytes().len() > 64 => Some(t),
            _ => None,
        });
        let weight = weight.unwrap();
        let mut bytes = weight.bytes().to_vec();
        bytes[8] ^= 1;
        *weight = Arc::new(Tensor::from_bytes(weight.dtype(), weight.shape(), &bytes).unwrap());
    };
    assert_eq!(start("", &store, one_bit).checked, Checked::Now);
    assert_eq!(start("", &store, one_bit).checked, Checked::Before);

    assert_eq!(start("", &store, same).checked, Checked::Before);
    for seen in store.list().unwrap() {
        std::fs::write(&seen.path, "damaged").unwrap();
    }
    assert_eq!(start("", &store, same).checked, Checked::Now);
    store.clear().unwrap();
    assert_eq!(start("", &store, same).checked, Checked::Now);
    assert_eq!(start("", &store, same).checked, Checked::Before);
}

#[test]
fn a_plan_that_was_refused_stays_refused_with_its_reason() {
    let (_folder, store) = store();
    let rule = "rule own::dropped: relu(x) => x;";
    let first = start(rule, &store, |_, _| {});
    assert_eq!((first.checked, first.warnings().len()), (Checked::Now, 1));
    let second = start(rule, &store, |_, _| {});
    assert_eq!((second.checked, &second.refusal), (Checked::Before, &first.refusal));
    assert!(second.warnings()[0].contains("own::dropped"));
    assert_eq!(second.executor.plan().launches(), first.executor.plan().launches());
    assert_eq!(second.refusal.as_ref().unwrap().without, ["own::dropped"]);
    assert!(second.unfused.made.get().is_none());
}

#[test]
fn a_missing_input_is_named() {
    let program = library::load(&[]).unwrap();
    let m = Model::load(&model("digits").join("model.onnx"), program, Options::default()).unwrap();
    let e = m.run(&[]).unwrap_err().to_string();
    assert!(e.contains("missing"), "{e}");
    let wrong = vec![("nonsense".to_string(), Tensor::zeros(hypatia_dsl::dtype::DType::F32, &[1]).unwrap())];
    let e = m.run(&wrong).unwrap_err().to_string();
    assert!(e.contains("nonsense"), "{e}");
}

#[test]
fn an_approximation_is_judged_by_what_it_claims() {
    let made = |claim: &str, chain: &str| {
        let rule = format!("rule own::line: tanh(x) => abs(x) class {claim};");
        let (m, inputs) = given(&format!(
            "ruleset own {{ until = fixpoint; }}\n{rule}\n\
             test \"t\" {{ input x: f32[8, 64]; given {chain}; expect count(tanh) == 0; }}\n"
        ));
        let mut options = Options { threads: 2, ..Options::default() };
        options.optimize.numerics = Numerics::Fast;
        let compiled = Model::new(m.graph().clone(), options).compile(&inputs).unwrap();
        assert!(compiled.report.fired("own::line") || compiled.refusal.is_some());
        compiled.refusal.as_ref().map(ToString::to_string)
    };
    for chain in ["tanh(x)", "sqrt(abs(tanh(x)) + 1)", "sum(exp(tanh(tanh(x))), axes = [-1])"] {
        assert_eq!(made("approx(3, 0.5)", chain), None, "{chain}");
        let refused = made("approx(1e-3, 1e-3)", chain).unwrap();
        assert!(refused.contains("own::line") && refused.contains("claim does not explain"), "{refused}");
    }
}

/// A test's `given` as a model, with random inputs, and the program of its file.
fn given(text: &str) -> (Model, Vec<(String, Tensor)>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.hyp");
    std::fs::write(&file, format!("edition 1;\nuse core::*;\nuse nn::*;\n{text}")).unwrap();
    let program = library::load(&[file]).unwrap();
    let (graph, inputs) = hypatia_verify::test_runner::given(&program, program.tests.last().unwrap()).unwrap();
    (Model::new(graph, Options { threads: 2, ..Options::default() }), inputs)
}

#[test]
fn a_model_that_computes_in_f16_keeps_its_fusions_whatever_it_returns() {
    let (model, inputs) = given(
        "test \"t\" { input x: f16[32, 64]; const w: f16[64, 48]; const b: f16[48];
           given cast(silu(matmul(x, w) + b), to = f32); expect launches == 1; }",
    );
    let compiled = model.compile(&inputs).unwrap();
    assert_eq!(compiled.warnings(), [] as [String; 0]);
    assert!(compiled.executor.plan().launches() < compiled.unfused().unwrap().plan().launches());
}

#[test]
fn a_wrong_rule_is_found_beside_large_numbers() {
    for given_text in ["concat(gelu(x), x * 1e5, axis = 1)", "select(lt(x, 0.5), gelu(x), -3.4e38)"] {
        let (model, inputs) = given(&format!(
            "ruleset t {{ until = fixpoint; }}
             rule t::bad: gelu(x) => relu(x) class exact;
             test \"t\" {{ input x: f32[16, 64]; given {given_text}; expect launches >= 1; }}"
        ));
        let compiled = model.compile(&inputs).unwrap();
        assert_eq!(compiled.warnings().len(), 1, "{given_text}");
        assert!(compiled.warnings()[0].contains("t::bad"), "{}", compiled.warnings()[0]);
    }
}

/// A sum of deviations from their mean, which is nothing but rounding, beside ordinary results.
fn cancelled(dtype: &str, rule: &str) -> Arc<Compiled> {
    let (model, inputs) = given(&format!(
        "ruleset t {{ until = fixpoint; }}
         {rule}
         test \"t\" {{ input x: {dtype}[64, 32];
           given sum(log(1.0 + exp(x)) - mean(log(1.0 + exp(x)), axes = [0]), axes = [0]), log(1.0 + exp(x)) * x;
           expect launches >= 1; }}"
    ));
    model.compile(&inputs).unwrap()
}

#[test]
fn where_terms_cancel_no_rule_is_blamed_for_rounding() {
    for dtype in ["f64", "f32"] {
        let compiled = cancelled(dtype, "");
        assert!(compiled.report.firings.iter().any(|f| f.kept && f.rule == "canon::softplus"), "{dtype}");
        assert_eq!(compiled.warnings(), [] as [String; 0], "{dtype}");
    }
}

#[test]
fn a_wrong_rule_is_found_where_terms_cancel() {
    for (dtype, by) in [("f64", "1e-9"), ("f32", "1e-3")] {
        let compiled = cancelled(dtype, &format!("rule t::bad: x - mean(x, axes = a) => x * {by};"));
        assert_eq!(compiled.warnings().len(), 1, "{dtype}");
        assert!(compiled.warnings()[0].contains("t::bad"), "{}", compiled.warnings()[0]);
    }
}
