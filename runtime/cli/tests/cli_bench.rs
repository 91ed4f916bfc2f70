//! `hypatia bench`: its output and its error cases.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models").join(name)
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypatia"));
    // A cache other than the user's.
    command.env("HYPATIA_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache")).arg("bench");
    command
}

fn bench(args: &[&str]) -> Output {
    let path = model("digits").join("model.onnx");
    command().arg(path).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let out = bench(&[&["--json", "--runs", "12"], args].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn both_kinds_of_runs_are_timed_side_by_side() {
    let v = json(&["--dim", "batch=32", "--threads", "2"]);
    for side in ["with_rules", "without_rules"] {
        let s = &v[side];
        assert_eq!(s["runs"], 12, "{v:#}");
        assert_eq!(s["times_ms"].as_array().unwrap().len(), 12);
        let [low, middle, high] = ["min_ms", "median_ms", "p90_ms"].map(|k| s[k].as_f64().unwrap());
        assert!(0.0 < low && low <= middle && middle <= high, "{v:#}");
    }
    assert!(v["with_rules"]["launches"].as_u64() < v["without_rules"]["launches"].as_u64());
    assert!(v["ratio"].as_f64().unwrap() > 0.0);
    assert_eq!(v["inputs"][0]["shape"], serde_json::json!([32, 64]));
}

#[test]
fn one_kind_alone_has_no_ratio() {
    for (flag, there, absent) in
        [("--no-rules", "without_rules", "with_rules"), ("--no-compare", "with_rules", "without_rules")]
    {
        let v = json(&[flag]);
        assert!(v[there].is_object() && v[absent].is_null() && v["ratio"].is_null(), "{v:#}");
    }
}

#[test]
fn a_profile_adds_up() {
    let v = json(&["--profile", "--threads", "1", "--dim", "batch=256"]);
    let p = &v["profile"];
    let kernels = p["kernels"].as_array().unwrap();
    assert_eq!(kernels.len() as u64, v["with_rules"]["launches"].as_u64().unwrap());
    let sum: f64 = kernels.iter().map(|k| k["time_us"].as_f64().unwrap()).sum();
    let (inside, total) = (p["kernels_ms"].as_f64().unwrap() * 1e3, p["total_ms"].as_f64().unwrap() * 1e3);
    assert!((sum - inside).abs() < 1.0, "{p:#}");
    assert!(inside <= total && inside > 0.5 * total, "{inside} of {total}");
    assert!(p["roof"]["gflops"].as_f64().unwrap() > 0.1 && p["roof"]["gbs"].as_f64().unwrap() > 0.1);
    for k in kernels {
        for key in ["time_us", "share", "gflops", "gbs", "roof"] {
            assert!(k[key].as_f64().is_some_and(|x| x.is_finite() && x >= 0.0), "{key} {k:#}");
        }
        assert!(["compute", "memory"].contains(&k["bound"].as_str().unwrap()));
    }
    let text = bench(&["--profile", "--runs", "3"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("GFLOP/s") && text.contains("outside of kernels"), "{text}");
}

#[test]
fn a_trace_has_an_event_for_each_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let v = json(&["--trace", path.to_str().unwrap()]);
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let events: Vec<&Value> = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
    let runs = events.iter().filter(|e| e["name"] == "run").count();
    let launches = v["with_rules"]["launches"].as_u64().unwrap() as usize;
    assert!(runs > 0 && events.len() == runs * (launches + 1), "{} events", events.len());
    // Kernels are nested in their run, one after the other.
    let span = |e: &Value| (e["ts"].as_f64().unwrap(), e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap());
    for part in events.chunks(launches + 1) {
        let (mut at, end) = (span(part[0]).0, span(part[0]).1);
        for e in &part[1..] {
            assert!(span(e).0 + 1e-6 >= at && span(e).1 <= end + 1e-6);
            at = span(e).1;
        }
    }
}

/// Neither the model nor its inputs are overwritten; a link to another file is followed and stays.
#[test]
fn a_trace_goes_where_it_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(model("digits").join("model.onnx"), at("m.onnx")).unwrap();
    let before = std::fs::read(at("m.onnx")).unwrap();
    std::os::unix::fs::symlink("real.json", at("link.json")).unwrap();
    let trace = |to: &str| {
        let args = ["--device", "cpu", "--runs", "1", "--duration", "0.01", "--trace"];
        command().arg(at("m.onnx")).args(args).arg(at(to)).output().unwrap()
    };
    let refused = trace("m.onnx");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("would overwrite the input"), "{message}");
    assert_eq!(std::fs::read(at("m.onnx")).unwrap(), before);
    assert!(trace("link.json").status.success());
    assert!(at("link.json").is_symlink() && at("real.json").is_file());
}

#[test]
fn wrong_use_is_told() {
    for (args, code, words) in [
        (&["--runs", "0"][..], 2, "0 is not in"),
        (&["--duration=-1"], 2, "more than 0"),
        (&["--duration", "x"], 2, "not a number of seconds"),
        (&["--no-rules", "--no-compare"], 2, "cannot be used with"),
        (&["--dim", "nonsense=3"], 1, "nonsense"),
        (&["--inputs", "absent.npz"], 1, "absent.npz"),
        (&["--rows", "x"], 1, "--rows selects cases"),
        (&["--plot", "x.svg"], 1, "--plot plots a set of cases"),
        (&["--from", "x.json", "--plot", "x.svg"], 2, "cannot be used with"),
        (&["--trace", "/nonexistent/folder/t.json", "--runs", "1"], 1, "/nonexistent/folder/t.json"),
    ] {
        let out = bench(args);
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {message}");
        assert!(message.contains(words), "{args:?}: {message}");
    }
}

/// Constants of one shape have different values: equal ones would be deduplicated, which saves a
/// product.
#[test]
fn tests_of_a_file_are_timed_on_different_values() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.hyp");
    let run = |tests: &str, more: &[&str]| {
        std::fs::write(&file, format!("edition 1;\nuse core::*;\nuse nn::*;\n{tests}")).unwrap();
        let args = ["--device", "cpu", "--runs", "2", "--json"];
        command().arg(&file).args(args).args(more).output().unwrap()
    };
    let two = "test \"two\" { input x: f32[8, 16]; const w: f32[16, 32]; const v: f32[16, 32];
        given relu(matmul(x, w)) * matmul(x, v); expect launches == 2; }";
    let out = run(two, &[]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let case = &report["cases"][0];
    assert_eq!((case["case"].as_str(), case["with_rules"]["launches"].as_u64()), (Some("two"), Some(2)), "{report}");
    assert!(case["with_rules"]["us"].as_f64().unwrap() > 0.0 && case["ratio"].as_f64().unwrap() > 0.0);
    assert!(case.get("deviation").is_none(), "{report}");
    let report: Value = serde_json::from_slice(&run(two, &["--errors"]).stdout).unwrap();
    let [error, of] = ["largest", "of"].map(|k| report["cases"][0]["deviation"][k].as_f64().unwrap());
    assert!(error > 0.0 && error < 1e-5 * of, "{report}");
    let only_models = "is for a model";
    for (tests, more, wanted) in [
        ("", &[][..], "has no tests"),
        (two, &["--rows", "three"][..], "--rows"),
        (two, &["--profile"], only_models),
        (two, &["--trace", "t.json"], only_models),
        (two, &["--inputs", "i.npz"], only_models),
        (two, &["--dim", "batch=2"], only_models),
        (two, &["--seed", "1"], only_models),
    ] {
        let out = run(tests, more);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(wanted), "{text}");
    }
}

/// The plot shows the measured values, at once or later from the file; both record their
/// provenance.
#[test]
fn cases_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let test = |name: &str| format!("test \"{name}\" {{ input x: f32[4, 4]; given x + 1; expect launches == 1; }}\n");
    let tests = test("first of two") + &test("second of two");
    std::fs::write(at("t.hyp"), format!("edition 1;\nuse core::*;\n{tests}")).unwrap();
    let args = ["--device", "cpu", "--runs", "2", "--json", "--plot"];
    let out = command().arg(at("t.hyp")).args(args).arg(at("now.svg")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let about = &report["about"];
    for key in ["device", "date", "commit", "source", "command"] {
        assert!(about[key].as_str().is_some_and(|t| !t.is_empty()), "{key}: {about}");
    }
    assert!(
        about["command"].as_str().unwrap().starts_with("hypatia bench ") && about["versions"]["hypatia"].is_string()
    );
    std::fs::write(at("report.json"), &out.stdout).unwrap();
    let again = |rows: &[&str], to: &str| {
        command().arg("--from").arg(at("report.json")).arg("--plot").arg(at(to)).args(rows).output().unwrap()
    };
    let later = again(&[], "later.svg");
    let told = String::from_utf8_lossy(&later.stderr);
    assert!(told.contains("wrote ") && told.contains("later.svg"), "{told}");
    assert!(later.status.success() && again(&["--rows", "second"], "one.svg").status.success());
    let [now, later, one] = ["now.svg", "later.svg", "one.svg"].map(|f| std::fs::read_to_string(at(f)).unwrap());
    assert!(now == later && now.contains("first of two") && now.contains("second of two"), "{now}");
    assert!(one.contains("second of two") && !one.contains("first of two"), "{one}");
    let alone = command().arg("--from").arg(at("report.json")).output().unwrap();
    assert!(alone.status.code() == Some(2) && String::from_utf8_lossy(&alone.stderr).contains("--plot"));
    let none = again(&["--rows", "third"], "none.svg");
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("--rows") && !at("none.svg").exists());
}

/// A stub library that replaces NVTX receives the names, and equal numbers of begins and ends.
#[test]
fn profilers_are_told_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let source = "#include <stdio.h>
        #include <stdlib.h>
        static void say(const char *what, const char *name) {
            FILE *f = fopen(getenv(\"SAID\"), \"a\");
            fprintf(f, \"%s %s\\n\", what, name);
            fclose(f);
        }
        int nvtxRangePushA(const char *name) { say(\"push\", name); return 0; }
        int nvtxRangePop(void) { say(\"pop\", \"\"); return 0; }";
    std::fs::write(at("nvtx.c"), source).unwrap();
    let library = at("libnvtx3interop.so.1");
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(at("nvtx.c")).output();
    if !cc.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    let path = model("digits").join("model.onnx");
    let said = |command: &str, more: &[&str]| {
        let _ = std::fs::remove_file(at("said"));
        let mut hypatia = Command::new(env!("CARGO_BIN_EXE_hypatia"));
        hypatia.env("HYPATIA_CACHE", at("cache")).env("HYPATIA_CUDA_PATH", folder.path()).env("SAID", at("said"));
        let out = hypatia.arg(command).arg(&path).args(["--device", "cpu"]).args(more).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        std::fs::read_to_string(at("said")).unwrap_or_default()
    };
    for (command, more) in [("run", &["--nvtx"][..]), ("bench", &["--nvtx", "--runs", "2"])] {
        let text = said(command, more);
        let count = |what: &str| text.lines().filter(|l| l.starts_with(what)).count();
        assert_eq!(count("push"), count("pop"), "{text}");
        for name in ["compile", "with rules", "without rules"] {
            assert!(count(&format!("push {name}")) > 0, "{command}: {text}");
        }
    }
    assert_eq!(said("bench", &["--runs", "2"]), "");
}
