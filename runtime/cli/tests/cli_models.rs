//! `hypatia run`, `opt`, `explain`, `gen --model` and `test` as a user runs them.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hypatia_tensor::npz;

fn hypatia(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypatia"));
    // A cache other than the user's.
    command.env("HYPATIA_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.args(args).current_dir(folder).output().unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

/// Requires exit code 1 with this text in the message, and only errors before it.
fn fails(args: &[&str], folder: &Path, message: &str) {
    let o = hypatia(args, folder);
    assert_eq!(o.status.code(), Some(1), "{args:?}: {}", err(&o));
    assert!(err(&o).starts_with("error") && err(&o).contains(message), "{args:?}: {}", err(&o));
}

fn digits() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/digits").canonicalize().unwrap()
}

#[test]
fn what_was_meant_is_told_before_anything_runs() {
    let at = digits();
    let at = at.as_path();
    fails(&["run", "missing.onnx"], at, "missing.onnx");
    fails(&["run", "my.hyp"], at, "hypatia check my.hyp");
    fails(&["opt", "my.hyp"], at, "hypatia check my.hyp");
    fails(&["explain", "frob"], at, "codes");
    fails(&["run", "model.onnx", "--disable", "no::rule"], at, "no::rule");
    for command in ["run", "opt", "explain"] {
        fails(&[command, "model.onnx", "--dim", "zzz=3"], at, "it has batch");
    }
    let size = npz::read(&at.join("inputs.npz")).unwrap()[0].1.shape()[0];
    fails(
        &["run", "model.onnx", "--inputs", "inputs.npz", "--dim", &format!("batch={}", size + 1)],
        at,
        "--dim contradicts",
    );
    let same = ["run", "model.onnx", "--inputs", "inputs.npz", "--dim", &format!("batch={size}"), "--device", "cpu"];
    assert_eq!(hypatia(&same, at).status.code(), Some(0));
}

#[test]
fn what_is_no_name_of_a_rule_is_told_to_be_none() {
    let at = digits();
    let ask = |rule: &str, message: &str| fails(&["explain", "model.onnx", "--why-not", rule], &at, message);
    for pattern in ["relu(gemm(a, b, e))", "relu(x) => max(x, 0)", "", "fuse::unary[relu", "a b"] {
        ask(
            pattern,
            &format!(
                "`{pattern}` is not the name of a rule, such as fuse::unary or fuse::unary[relu]; to ask about a \
                 pattern, write it"
            ),
        );
    }
    ask("fuse::*", "`fuse` is a ruleset; name one of its rules: fuse::");
    ask("fuse:unary", "there is no rule `fuse:unary`; did you mean `fuse::unary`?");
    ask("fuse::unary[rleu]", "there is no rule `fuse::unary[rleu]`; did you mean `fuse::unary[relu]`?");
}

#[test]
fn the_user_may_set_the_tolerance() {
    let at = digits();
    let with = |more: &[&str]| {
        let check = ["run", "model.onnx", "--inputs", "inputs.npz", "--check", "outputs.npz", "--device", "cpu"];
        hypatia(&[&check[..], more].concat(), &at)
    };
    assert_eq!(with(&[]).status.code(), Some(0));
    let o = with(&["--rtol", "0", "--atol", "0"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("differs"), "{}", out(&o));
    assert_eq!(with(&["--rtol", "1e-3", "--atol", "1e-3"]).status.code(), Some(0));
    for wrong in [["--rtol", "-1"], ["--atol", "-1e-3"], ["--rtol", "nan"], ["--atol", "1,5"]] {
        let o = with(&wrong);
        assert_eq!(o.status.code(), Some(2), "{wrong:?}");
        assert!(err(&o).contains("expected a number of at least 0, such as 1e-3"), "{wrong:?}: {}", err(&o));
    }
    assert_eq!(hypatia(&["run", "model.onnx", "--rtol", "1e-3"], &at).status.code(), Some(2), "--rtol is for --check");
}

/// Written through links, into streams and with the file's mode; never over an input.
#[cfg(unix)]
#[test]
fn outputs_go_where_they_are_asked_to_and_nowhere_else() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::copy(digits().join("model.onnx"), at.join("model.onnx")).unwrap();
    std::fs::set_permissions(at.join("model.onnx"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let model = std::fs::read(at.join("model.onnx")).unwrap();
    symlink("model.onnx", at.join("link")).unwrap();
    for name in ["model.onnx", "link"] {
        fails(&["run", "model.onnx", "--device", "cpu", "--outputs", name], at, "would overwrite the input");
        fails(&["opt", "model.onnx", "-o", name], at, "would overwrite the input");
    }
    fails(&["run", "model.onnx", "--device", "cpu", "--outputs", "."], at, "is a folder");
    fails(&["opt", "model.onnx", "-o", "none/fused.onnx"], at, "there is no folder none");
    assert_eq!(std::fs::read(at.join("model.onnx")).unwrap(), model);

    std::fs::write(at.join("out.npz"), "old").unwrap();
    std::fs::set_permissions(at.join("out.npz"), std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("out.npz", at.join("to_out")).unwrap();
    let o = hypatia(&["run", "model.onnx", "--device", "cpu", "--outputs", "to_out"], at);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    assert!(at.join("to_out").is_symlink());
    assert_eq!(npz::read(&at.join("out.npz")).unwrap().len(), 1);
    assert_eq!(std::fs::metadata(at.join("out.npz")).unwrap().permissions().mode() & 0o777, 0o600);

    let o = hypatia(&["opt", "model.onnx", "-q", "-o", "/dev/stdout"], at);
    std::fs::write(at.join("fused.onnx"), &o.stdout).unwrap();
    let o = hypatia(&["run", "fused.onnx", "--device", "cpu"], at);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
}

#[test]
fn outputs_of_random_inputs_that_do_not_agree_are_told_to_be_such() {
    let folder = tempfile::tempdir().unwrap();
    let at = digits();
    let kept = folder.path().join("kept.npz").display().to_string();
    let run = |more: &[&str]| hypatia(&[&["run", "model.onnx", "--device", "cpu"], more].concat(), &at);
    let hint = "`--inputs FILE.npz` with input: f32[batch, 64]";
    // A shape that differs from the file's; another seed; the same seed.
    let o = run(&["--check", "outputs.npz"]);
    assert!(o.status.code() == Some(1) && err(&o).contains(hint), "{}", err(&o));
    assert_eq!(run(&["--outputs", &kept]).status.code(), Some(0));
    let o = run(&["--check", &kept, "--seed", "1"]);
    assert!(o.status.code() == Some(1) && err(&o).contains(hint), "{}", err(&o));
    let o = run(&["--check", &kept]);
    assert!(o.status.code() == Some(0) && !err(&o).contains("--inputs"), "{}", err(&o));
    // No hint about random inputs if inputs were given.
    let o = run(&["--inputs", "inputs.npz", "--check", "outputs.npz", "--rtol", "0", "--atol", "0"]);
    assert!(o.status.code() == Some(1) && !err(&o).contains("--inputs"), "{}", err(&o));
}

const APPROX: &str = "edition 1;
use core::*;
ruleset t { until = fixpoint; }
rule t::rough: tanh(x) => neg(x) class approx(1, 1);
test \"rough\" { input x: f32[4]; given tanh(x); expect count(tanh) == 0; }
";

#[test]
fn approximate_rules_can_be_tried_where_they_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("rough.hyp"), APPROX).unwrap();
    assert_eq!(hypatia(&["test", "rough.hyp"], at).status.code(), Some(1));
    let o = hypatia(&["test", "rough.hyp", "--numerics", "fast"], at);
    assert_eq!(o.status.code(), Some(0), "{}", out(&o));
    for numerics in ["rounds", "exact"] {
        assert_eq!(hypatia(&["test", "rough.hyp", "--numerics", numerics], at).status.code(), Some(1));
    }
    let disabled = ["test", "rough.hyp", "--numerics", "fast", "--disable", "t::rough"];
    assert_eq!(hypatia(&disabled, at).status.code(), Some(1));
    let o = hypatia(&["test", "rough.hyp", "--numerics", "loose"], at);
    assert!(o.status.code() == Some(2) && err(&o).contains("`exact`, `rounds` or `fast`"), "{}", err(&o));
    fails(&["test", "rough.hyp", "--filter", "zzz"], at, "rough");
    let model = digits().join("model.onnx").display().to_string();
    for command in [&["run", &model, "--device", "cpu"][..], &["opt", &model], &["explain", &model]] {
        let all = [command, &["--numerics", "fast", "--disable", "fuse", "--rules", "rough.hyp", "--dim", "batch=2"]]
            .concat();
        let o = hypatia(&all, at);
        assert_eq!(o.status.code(), Some(0), "{all:?}: {}", err(&o));
    }
    // Without rules too, sums may be wanted in one order.
    let o = hypatia(&["run", &model, "--device", "cpu", "--no-rules", "--numerics", "exact", "--dim", "batch=2"], at);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    for dim in ["--dim", "--size"] {
        let numerics = ["--numerics", "fast", "--emit", "cuda", dim, "batch=2"];
        let o = hypatia(&[&["gen", "--model", &model, "-o", "k"][..], &numerics].concat(), at);
        assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    }
    fails(&["gen", "rough.hyp", "--numerics", "fast", "-o", "k"], at, "--model");
    // A file with tests is explained by what they give.
    let o = hypatia(&["explain", "rough.hyp", "--numerics", "fast"], at);
    assert!(out(&o).starts_with("test rough\n") && out(&o).contains("t::rough"), "{}{}", out(&o), err(&o));
    let o = hypatia(&["explain", "rough.hyp", "--why-not", "t::rough"], at);
    assert!(out(&o).contains("makes no claim for f32 that this run accepts"), "{}{}", out(&o), err(&o));
    fails(&["explain", "rough.hyp", "--target", "h200"], at, "--target is for a model");
    // A test without a meaning keeps the others from nothing.
    let head = "edition 1;\nuse core::*;\nuse nn::*;\n";
    let [bad, good] = ["amax(select(isnan(x), 1.0, 0.0), axes = [0])", "relu(x)"].map(|given| {
        format!("test \"{given}\" {{\n  input x: f32[2, 3];\n  given {given};\n  expect launches == 1;\n}}\n")
    });
    std::fs::write(at.join("half.hyp"), format!("{head}{bad}{good}")).unwrap();
    let o = hypatia(&["explain", "half.hyp"], at);
    assert_eq!(o.status.code(), Some(1), "{}", err(&o));
    assert!(
        out(&o).contains("\nerror: the number 1 has no element type") && out(&o).contains("--> half.hyp:4"),
        "{}",
        out(&o)
    );
    assert!(out(&o).contains("test relu(x)\n") && out(&o).contains("1. pointwise relu"), "{}", out(&o));
}

#[test]
fn a_plan_is_listed_for_a_device_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let model = digits().join("model.onnx");
    let model = model.to_str().unwrap();
    let plan = ["opt", model, "--stage", "plan", "--target", "h200", "-q"];
    let o = hypatia(&plan, folder.path());
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let list = out(&o);
    let numbers: Vec<&str> = list.lines().map(|l| l.split('.').next().unwrap()).collect();
    assert!(numbers.len() > 2 && numbers.iter().zip(1..).all(|(n, i)| *n == i.to_string()), "{list}");
    let o = hypatia(&[&plan[..], &["--json"]].concat(), folder.path());
    let json: serde_json::Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!(json["steps"].as_array().unwrap().len(), numbers.len());
    // In 16 bits, one launch computes all layers; on a CPU there is no TF32.
    let narrow = hypatia(&[&plan[..], &["--precision", "bf16"]].concat(), folder.path());
    assert!(out(&narrow).contains("by tiles") && out(&narrow) != list, "{list}\n{}", out(&narrow));
    let explained = hypatia(&["explain", model, "--target", "h200", "--precision", "tf32", "-q"], folder.path());
    assert_eq!(explained.status.code(), Some(0), "{}", err(&explained));
    assert_ne!(out(&explained), out(&hypatia(&["explain", model, "--target", "h200", "-q"], folder.path())));
    fails(&["opt", model, "--precision", "tf32"], folder.path(), "needs a GPU");
    fails(&[&plan[..], &["-o", "m.onnx"]].concat(), folder.path(), "neither -o nor dot");
    fails(&[&plan[..], &["--format", "dot"]].concat(), folder.path(), "neither -o nor dot");
}

#[test]
fn what_a_wrong_rule_makes_of_a_model_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "edition 1;\nuse core::*;\nuse nn::*;\nruleset wrong { until = fixpoint; }\n";
    std::fs::write(folder.path().join("wrong.hyp"), format!("{rules}rule wrong::dropped: relu(x) => x;\n")).unwrap();
    std::fs::write(folder.path().join("right.hyp"), format!("{rules}rule wrong::twice: relu(relu(x)) => relu(x);\n"))
        .unwrap();
    let model = digits().join("model.onnx");
    let model = model.to_str().unwrap();
    let opt = |rules| ["opt", model, "--rules", rules, "-o", "fused.onnx"];
    fails(&opt("wrong.hyp"), folder.path(), "wrong::dropped");
    // A result that is only shown comes with a warning, even with -q.
    for args in [&["opt", model][..], &["opt", model, "-q"], &["explain", model], &["explain", model, "--json"]] {
        for (rules, wrong) in [("wrong.hyp", true), ("right.hyp", false)] {
            let o = hypatia(&[args, &["--rules", rules]].concat(), folder.path());
            assert_eq!(o.status.code(), Some(0), "{}", err(&o));
            let told = err(&o).contains("warning: the rules wrong::dropped change what the model computes");
            assert_eq!(told, wrong, "{args:?} {rules}: {}", err(&o));
            // No tensor of this model is f16.
            assert!(!err(&o).contains("f16"), "{}", err(&o));
        }
    }
    let generate = |rules| ["gen", rules, "--model", model, "-o", "kernels", "--emit", "cuda"];
    fails(&generate("wrong.hyp"), folder.path(), "nothing was written");
    assert!(!folder.path().join("fused.onnx").exists() && !folder.path().join("kernels").exists());
    for args in [&opt("right.hyp")[..], &generate("right.hyp")] {
        let o = hypatia(args, folder.path());
        assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    }
    assert!(folder.path().join("fused.onnx").exists() && folder.path().join("kernels").exists());
}

#[test]
fn a_model_runs_in_a_narrow_precision() {
    let at = digits();
    let run = |precision: &str, more: &[&str]| {
        let args = ["run", "model.onnx", "--inputs", "inputs.npz", "--check", "outputs.npz", "--device", "cpu"];
        hypatia(&[&args[..], &["--precision", precision], more].concat(), &at)
    };
    let error = |precision: &str| {
        let o = run(precision, &["--json"]);
        assert_eq!(o.status.code(), Some(0), "{precision}: {}{}", out(&o), err(&o));
        let json: serde_json::Value = serde_json::from_str(&out(&o)).unwrap();
        assert_eq!(json["warnings"], serde_json::json!([]));
        (json["outputs"][0]["check"]["max_error"].as_f64().unwrap(), json["outputs"][0]["dtype"].clone())
    };
    let (f32, f16, bf16) = (error("f32"), error("f16"), error("bf16"));
    // Each type shows the error of its mantissa, and the outputs keep their types.
    assert!(f32.0 * 50.0 < f16.0 && f16.0 * 4.0 < bf16.0, "{f32:?} {f16:?} {bf16:?}");
    assert!([f32.1, f16.1, bf16.1].iter().all(|d| d == "f32"));
    assert!(out(&run("bf16", &[])).contains("stay in f32"));
    let o = run("tf32", &[]);
    assert!(o.status.code() == Some(1) && err(&o).contains("needs a GPU"), "{}", err(&o));
}

#[test]
fn what_loosens_a_comparison_is_named() {
    let at = digits();
    let with = |more: &[&str]| {
        let check = ["run", "model.onnx", "--inputs", "inputs.npz", "--check", "outputs.npz", "--device", "cpu"];
        let o = hypatia(&[&check[..], more].concat(), &at);
        assert_eq!(o.status.code(), Some(0), "{more:?}: {}", err(&o));
        out(&o)
    };
    assert!(!with(&[]).contains("loosened"));
    let narrow = with(&["--precision", "bf16"]);
    assert!(narrow.contains("tolerance loosened by bf16 node `"), "{narrow}");
    assert!(!with(&["--precision", "bf16", "--rtol", "1", "--atol", "1"]).contains("loosened"), "the user's tolerance");
    let json: serde_json::Value = serde_json::from_str(&with(&["--precision", "bf16", "--json"])).unwrap();
    assert_eq!(json["outputs"][0]["check"]["loosened_by"]["dtype"], "bf16");
}

#[test]
fn sizes_may_be_those_of_inputs() {
    let at = digits();
    let size = npz::read(&at.join("inputs.npz")).unwrap()[0].1.shape()[0];
    let o = hypatia(&["opt", "model.onnx", "--inputs", "inputs.npz", "--stage", "imported", "-q"], &at);
    assert!(out(&o).contains(&format!("f32[{size}, 64]")) && !out(&o).contains("batch"), "{}", out(&o));
    let o = hypatia(&["explain", "model.onnx", "--inputs", "inputs.npz"], &at);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let wrong = format!("batch={}", size + 1);
    fails(&["opt", "model.onnx", "--inputs", "inputs.npz", "--dim", &wrong], &at, "--dim contradicts");
}

#[test]
fn outputs_that_nothing_was_compared_with_are_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let at = digits();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    npz::write(folder.path().join("none.npz").as_path(), &[]).unwrap();
    let o =
        hypatia(&["run", "model.onnx", "--device", "cpu", "--inputs", "inputs.npz", "--check", &file("none.npz")], &at);
    assert_eq!(o.status.code(), Some(1), "{}", err(&o));
    assert!(err(&o).contains("has no expected values for "), "{}", err(&o));
    let args = ["run", "model.onnx", "--device", "cpu", "--check", &file("none.npz"), "--json"];
    let value: serde_json::Value = serde_json::from_str(&out(&hypatia(&args, &at))).unwrap();
    assert_eq!((value["ok"].as_bool(), value["unchecked"].as_array().unwrap().len()), (Some(false), 1));
}

/// The result that does not fit is named, by the op that makes it and its size.
#[test]
fn memory_that_does_not_suffice_names_the_op() {
    let at = digits();
    let on_cpu = |command| [command, "--device", "cpu"];
    let gen_model = ["gen", "-o", "/dev/null/no", "--model"];
    for more in [&on_cpu("run")[..], &on_cpu("bench"), &gen_model] {
        let (command, rest) = more.split_first().unwrap();
        let args = [&[*command], rest, &["model.onnx", "--memory", "1", "--dim", "batch=9000"]].concat();
        fails(&args, &at, "at most 1 MiB (`--memory MIB`");
        let told = err(&hypatia(&args, &at));
        assert!(told.contains("the result of `") && !told.contains("``") && told.contains("f32[9000, "), "{told}");
    }
    let enough = ["run", "model.onnx", "--device", "cpu", "--memory", "64", "--dim", "batch=9000"];
    assert_eq!(hypatia(&enough, &at).status.code(), Some(0));
}

#[test]
fn devices_and_invariance_are_told_apart() {
    let at = digits();
    let wrong = hypatia(&["run", "model.onnx", "--device", "cuda:x"], &at);
    assert!(wrong.status.code() == Some(2) && err(&wrong).contains("cuda:1"), "{}", err(&wrong));
    let bits = |batch: &str| {
        let args = ["run", "model.onnx", "--batch-invariant", "--dim", batch, "--json"];
        let o = hypatia(&args, &at);
        assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    };
    bits("batch=1");
    bits("batch=33");
}

#[test]
fn explain_lists_the_candidates_of_steps_and_whose_costs_they_have() {
    let at = digits();
    let o = hypatia(&["explain", "model.onnx", "--target", "h200"], &at);
    let text = out(&o);
    assert!(text.contains("candidates of each step, with the time that the profile of h200 predicts"), "{text}");
    assert!(text.contains(" us  cublaslt RELU_BIAS"), "{text}");
    let bert = at.parent().unwrap().join("bert");
    let text = out(&hypatia(&["explain", "model.onnx", "--target", "h200"], &bert));
    assert!(text.contains("not admitted: kernel attention_tiles requires dtype(q) in [f16, bf16]"), "{text}");
    assert!(!err(&o).contains("note: the costs"), "{}", err(&o));
    let o = hypatia(&["explain", "model.onnx"], &at);
    assert!(err(&o).contains("note: the costs are those of "), "{}", err(&o));
}

#[test]
fn measured_costs_are_for_the_device_that_they_were_measured_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = digits().join("model.onnx");
    let model = model.to_str().unwrap();
    let o = hypatia(&["calibrate", "--device", "cpu", "--threads", "2", "-o", "cpu.costs"], at);
    assert!(o.status.code() == Some(0) && out(&o).contains("bandwidth, GB/s"), "{}", err(&o));
    let with = |target: &str, file: &str| hypatia(&["opt", model, "--target", target, "--costs", file], at);
    assert_eq!(with("cpu", "cpu.costs").status.code(), Some(0));
    let other = with("h200", "cpu.costs");
    assert!(other.status.code() == Some(1) && err(&other).contains("are for cpu, not for h200"), "{}", err(&other));
    std::fs::write(at.join("no.costs"), "{}").unwrap();
    assert!(err(&with("cpu", "no.costs")).contains("is no file of `hypatia calibrate`"));
}
