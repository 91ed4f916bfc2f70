//! Contracts as a user states them: `--must`, `--never`, and `contract` items in files.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn hypatia(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypatia"));
    // A cache other than the user's.
    command.env("HYPATIA_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.args(args).current_dir(folder).output().unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn model(name: &str) -> String {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models");
    models.join(name).join("model.onnx").canonicalize().unwrap().display().to_string()
}

/// `opt` of a model with these demands, for a device; `Err` with the message if it is not met.
fn opt(model: &str, target: &str, demands: &[&str]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let args = [&["opt", model, "-q", "--target", target, "-o", "fused.onnx"][..], demands].concat();
    let o = hypatia(&args, folder.path());
    match o.status.code() {
        Some(0) => Ok(()),
        Some(1) => {
            assert!(!folder.path().join("fused.onnx").exists(), "{args:?}");
            Err(err(&o))
        }
        other => panic!("{args:?}: {other:?}: {}", err(&o)),
    }
}

#[test]
fn what_the_plan_has_is_met() {
    let digits = model("digits");
    for demand in [
        &["--must", "fuse::unary[relu]"][..],
        &["--must", "fuse::unary"],
        &["--must", "fuse"],
        &["--must", "fuse::unary[relu] count = 3"],
        &["--must", "fuse::start count = 4", "--must", "fuse::operand[add]", "--never", "fuse::both"],
        &["--never", "fuse::unary"],
        // With `exact`, a more general rule makes the same first.
        &["--numerics", "exact", "--must", "fuse::unary[relu] count = 3"],
    ] {
        opt(&digits, "cpu", demand).unwrap();
    }
}

#[test]
fn a_demand_that_the_run_forbids_is_a_contradiction() {
    let digits = model("digits");
    for (demands, reason) in [
        (["--must", "fuse::unary", "--never", "fuse::unary"], "`must fuse::unary` contradicts `never fuse::unary`"),
        (["--must", "fuse::unary[relu]", "--never", "fuse"], "`must fuse::unary[relu]` contradicts `never fuse`"),
        (["--must", "fuse::unary", "--disable", "fuse"], "`must fuse::unary` demands a rule that is disabled"),
    ] {
        let told = opt(&digits, "cpu", &demands).unwrap_err();
        assert!(told.contains(reason), "{demands:?}: {told}");
    }
    opt(&digits, "cpu", &["--must", "fuse", "--never", "fuse::both"]).unwrap();
}

#[test]
fn the_contract_follows_the_totals() {
    let folder = tempfile::tempdir().unwrap();
    let o = hypatia(&["explain", &model("digits"), "--target", "cpu", "--must", "fuse::unary"], folder.path());
    let text = out(&o);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?}: {text}"));
    assert!(at("\n  fusions ") < at("\ncontract\n") && at("\ncontract\n") < at("\nfusion "), "{text}");
}

#[test]
fn what_it_lacks_is_told_with_the_reason() {
    let (digits, bert, ffn) = (model("digits"), model("bert"), model("ffn"));
    for (model, target, demand, reasons) in [
        // No match.
        (&digits, "cpu", "fold::softmax", &["`must fold::softmax` is not met: no site", "there is no `div`"][..]),
        // Of the products whose left factor is no softmax, the one that has it further below.
        (&bert, "h200", "norm::attention", &["nearest at `node_scaled_dot_product_attention", "is `safe_softmax`"]),
        // Too few, too many.
        (&digits, "cpu", "fuse::unary[relu] count = 5", &["5 wanted, but 3 sites, at `"]),
        (&digits, "cpu", "fuse::unary[relu] count = 1", &["1 wanted, but 3 sites, at `"]),
        // A node that the model lacks, and one where the rule does not match.
        (&digits, "cpu", "fuse::start at nowhere", &["the graph has no node `nowhere`"]),
        // No kernel of the device computes the whole in f32.
        (
            &bert,
            "a100",
            "norm::safe_attention",
            &["on a100 its result takes several launches", "requires dtype(q) in [f16, bf16]"],
        ),
        // It fired, and a graph without it is cheaper: what became of its preference is no reason.
        (&ffn, "cpu", "fuse::pair", &["the cost lost", "kernel pair_tiles requires sm >= 80"]),
        // A rule that nobody knows.
        (&digits, "cpu", "fuse::unry", &["there is no rule `fuse::unry`; did you mean `fuse::unary`?"]),
    ] {
        let told = opt(model, target, &["--must", demand]).unwrap_err();
        for reason in reasons {
            assert!(told.contains(reason), "--must {demand}: {told}");
        }
    }
    // A guard with its values.
    let folder = tempfile::tempdir().unwrap();
    let rules = "edition 1;\nuse core::*;\nuse nn::*;\nruleset own { until = fixpoint; }
rule own::wide: relu(x: T[..s, n]) => max(x, 0.0) requires n > 1000;\n";
    std::fs::write(folder.path().join("own.hyp"), rules).unwrap();
    let o = hypatia(&["opt", &digits, "--rules", "own.hyp", "--must", "own::wide"], folder.path());
    assert!(
        o.status.code() == Some(1) && err(&o).contains("requires n > 1000\n    ") && err(&o).contains("n is "),
        "{}",
        err(&o)
    );
}

#[test]
fn contracts_of_files_hold_for_every_command_that_takes_rules() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = "edition 1;\nuse nn::*;\nuse fuse::*;
contract digits { must fuse::unary[relu] count = 3; never fuse::both; }
contract others { must fuse::unary[gelu]; }\n";
    std::fs::write(at.join("plans.hyp"), text).unwrap();
    let model = model("digits");
    for command in [&["run", &model, "--device", "cpu"][..], &["bench", &model, "--device", "cpu", "--runs", "1"]] {
        let o = hypatia(&[command, &["--rules", "plans.hyp"]].concat(), at);
        assert!(o.status.code() == Some(1) && err(&o).contains("(plans.hyp:5:24) is not met"), "{}", err(&o));
        let o = hypatia(&[command, &["--rules", "plans.hyp", "--contract", "digits"]].concat(), at);
        assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    }
    // `explain` shows all of it, and fails if something is missing.
    let o = hypatia(&["explain", &model, "--rules", "plans.hyp"], at);
    assert_eq!(o.status.code(), Some(1), "{}", err(&o));
    for line in
        ["count = 3` (plans.hyp:4:24) is met: 3 sites", "`never fuse::both` (", "[gelu]` (plans.hyp:5:24) is not met"]
    {
        assert!(out(&o).contains(line), "{line}: {}", out(&o));
    }
    let o = hypatia(&["opt", &model, "--rules", "plans.hyp", "--contract", "nobody"], at);
    assert!(o.status.code() == Some(1) && err(&o).contains("they have digits, others"), "{}", err(&o));
}

#[test]
fn a_plan_that_was_found_wrong_meets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let rules = "edition 1;\nuse core::*;\nuse nn::*;\nruleset wrong { until = fixpoint; }\n";
    std::fs::write(at.join("wrong.hyp"), format!("{rules}rule wrong::dropped: relu(x) => x;\n")).unwrap();
    let model = model("digits");
    for command in [&["run", &model, "--device", "cpu"][..], &["explain", &model]] {
        let o = hypatia(&[command, &["--rules", "wrong.hyp", "--must", "fuse::start"]].concat(), at);
        let told = err(&o);
        assert!(o.status.code() == Some(1) && told.contains("`must fuse::start` is not met, because"), "{told}");
        assert!(told.contains("wrong::dropped"), "{told}");
        // Nothing that must be there is nothing that is missing.
        let o = hypatia(&[command, &["--rules", "wrong.hyp", "--never", "fuse::both"]].concat(), at);
        assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    }
}

#[test]
fn a_strict_run_says_what_it_has_checked() {
    let folder = tempfile::tempdir().unwrap();
    let digits = model("digits");
    let run = |more: &[&str]| {
        hypatia(&[&["run", &digits, "--device", "cpu", "--dim", "batch=4"][..], more].concat(), folder.path())
    };
    let o = run(&["--safety", "strict", "--incidents", "found"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let text = out(&o);
    let line = text.lines().find(|l| l.starts_with("safety")).unwrap();
    assert!(line.contains("strict: ") && line.ends_with("nothing was wrong"), "{line}");
    assert!(!folder.path().join("found").exists());
    let o = run(&["--safety", "off"]);
    assert!(!out(&o).contains("safety"), "{}", out(&o));
    let o = run(&["--safety", "careful"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("expected `strict`, `check` or `off`"), "{}", err(&o));
    let wrong =
        "edition 1; use core::*; use nn::*; ruleset wrong { until = fixpoint; }\nrule wrong::dropped: relu(x) => x;";
    std::fs::write(folder.path().join("wrong.hyp"), wrong).unwrap();
    let o = run(&["--rules", "wrong.hyp", "--incidents", "found"]);
    assert!(err(&o).contains("the rule wrong::dropped is not used"), "{}", err(&o));
    assert!(err(&o).contains("A small graph that shows it is in found"), "{}", err(&o));
    assert!(folder.path().join("found/incident-1/model.onnx").exists());
    let json = out(&run(&["--safety", "strict", "--json"]));
    assert!(json.contains("\"safety\": \"strict\"") && json.contains("\"incidents\": []"), "{json}");
}
