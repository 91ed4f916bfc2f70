//! `hypatia check`, `fmt` and `explain CODE` as a user runs them.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn hypatia(args: &[&str], stdin: &str, folder: &Path) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hypatia"))
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may refuse and exit before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

const GOOD: &str = "edition 1;\nuse core::*;\nscalar f(x) = x + 1;\n";
const BAD: &str = "edition 1;\nuse core::*;\nscalar f(x) = x + ;\nscalar g(x) = (x;\n";

#[test]
fn check_tells_every_error_of_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("good.hyp"), GOOD).unwrap();
    std::fs::write(at.join("bad.hyp"), BAD).unwrap();
    std::fs::write(at.join("latin1.hyp"), b"edition 1; // \xe9\n").unwrap();

    let o = hypatia(&["check", "good.hyp"], "", at);
    assert_eq!((o.status.code(), out(&o), err(&o)), (Some(0), String::new(), String::new()));
    let o = hypatia(&["check", "-"], BAD, at);
    assert_eq!(o.status.code(), Some(1));
    assert!(err(&o).contains("<stdin>:3:19") && err(&o).contains("2 errors") && out(&o).is_empty(), "{}", err(&o));

    let o = hypatia(&["check", "--output-format", "json", "missing.hyp", "bad.hyp", "good.hyp", "latin1.hyp"], "", at);
    assert_eq!(o.status.code(), Some(1));
    let mut codes: Vec<(String, String)> = out(&o)
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .map(|v| (v["file"].as_str().unwrap().to_string(), v["code"].as_str().unwrap().to_string()))
        .collect();
    codes.sort();
    let expected = [("bad.hyp", "H0101"), ("bad.hyp", "H0104"), ("latin1.hyp", "H0114"), ("missing.hyp", "H0115")];
    assert_eq!(codes, expected.map(|(f, c)| (f.to_string(), c.to_string())));

    let o = hypatia(&["check", "--output-format", "github", "."], "", at);
    assert!(
        out(&o).contains("::error file=./bad.hyp,line=3,endLine=3,col=19,endColumn=20,title=H0101::"),
        "{}",
        out(&o)
    );
    let o = hypatia(&["check", "--output-format", "sarif", "good.hyp"], "", at);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out(&o)).unwrap()["version"], "2.1.0");
    assert_eq!(hypatia(&["check"], "", at).status.code(), Some(2));
    assert_eq!(hypatia(&["check", "--output-format", "xml", "good.hyp"], "", at).status.code(), Some(2));
    let colored = hypatia(&["check", "--color", "always", "bad.hyp"], "", at);
    assert!(err(&colored).contains("\u{1b}["));
}

/// An op that is undefined for some element types gets a warning, and is correct for the others.
#[test]
fn a_missing_bound_is_a_warning() {
    let text = "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n\
        op half(x: T[..s]) -> T[..s] = x * 0.5;\n\
        rule r::half: div(x, 2) => mul(x, 0.5);\n\
        test \"floats\" { input x: f32[4]; given half(x / 2); expect fires r::half; }\n\
        test \"integers\" { input x: i32[4]; given x / 2; expect not fires r::half; }\n\
        test \"not for integers\" { input x: i32[4]; given half(x); expect error H0302; }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("half.hyp"), text).unwrap();
    let o = hypatia(&["check", "half.hyp"], "", folder.path());
    assert!(o.status.success() && err(&o).matches("warning[H0510]").count() == 2, "{}", err(&o));
    let o = hypatia(&["test", "half.hyp"], "", folder.path());
    assert!(o.status.success() && out(&o).contains("3 passed"), "{}{}", out(&o), err(&o));
    let o = hypatia(&["verify", "half.hyp"], "", folder.path());
    assert!(o.status.success() && out(&o).contains("2 verified, 0 false"), "{}{}", out(&o), err(&o));
    // Errors are not buried under warnings.
    let o = hypatia(&["check", "-"], &format!("{text}scalar f(x) = y;\n"), folder.path());
    assert!(o.status.code() == Some(1) && !err(&o).contains("warning"), "{}", err(&o));
}

#[test]
fn fmt_writes_only_what_it_understands() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let read = |name: &str| std::fs::read_to_string(at.join(name)).unwrap();
    std::fs::write(at.join("a.hyp"), "edition 1;\r\nscalar f(x)=x+1; // why\r\n").unwrap();
    std::fs::write(at.join("b.hyp"), BAD).unwrap();

    let o = hypatia(&["fmt", "--check", "a.hyp"], "", at);
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("+scalar f(x) = x + 1; // why"), "{}", out(&o));
    assert!(read("a.hyp").contains("x+1"));

    let o = hypatia(&["fmt", "a.hyp", "b.hyp"], "", at);
    assert_eq!(o.status.code(), Some(1));
    assert_eq!(read("a.hyp"), "edition 1;\nscalar f(x) = x + 1; // why\n");
    assert_eq!(read("b.hyp"), BAD);
    assert!(err(&o).contains("H0101") && err(&o).contains("formatted a.hyp"), "{}", err(&o));
    assert_eq!(hypatia(&["fmt", "--check", "a.hyp"], "", at).status.code(), Some(0));
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 2, "no temporary file may stay");

    let o = hypatia(&["fmt", "-"], "edition   1 ;", at);
    assert_eq!(out(&o), "edition 1;\n");
}

#[test]
fn explain_tells_codes() {
    let here = Path::new(".");
    let o = hypatia(&["explain", "H0304"], "", here);
    assert_eq!(o.status.code(), Some(0));
    assert!(out(&o).starts_with("H0304: ") && out(&o).contains("Right:"), "{}", out(&o));
    assert!(out(&hypatia(&["explain", "codes"], "", here)).lines().count() > 50);
    assert_eq!(hypatia(&["explain", "H9999"], "", here).status.code(), Some(1));
}

/// Fusions that the library lacks, written only in the language, and every construct of the
/// language: their own tests pass.
#[test]
fn the_tests_of_files_that_compile_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pass");
    let files = [
        ("attributes.hyp", 5),
        ("columns.hyp", 3),
        ("groups.hyp", 3),
        ("whole_plans.hyp", 2),
        ("horizontal.hyp", 19),
        ("constructs.hyp", 3),
        ("contracts.hyp", 0),
        ("gated.hyp", 2),
        ("group_norm.hyp", 3),
        ("laid_out.hyp", 5),
        ("no_elements.hyp", 3),
        ("numbers.hyp", 2),
        ("order.hyp", 1),
        ("overflow.hyp", 2),
        ("prologues.hyp", 5),
        ("regrouping.hyp", 0),
        ("residual_norm.hyp", 4),
        ("rules.hyp", 9),
        ("saving.hyp", 0),
        ("saying.hyp", 14),
        ("simplified.hyp", 3),
        ("sketch.hyp", 2),
        ("softcap.hyp", 3),
        ("sums.hyp", 7),
        ("tiled.hyp", 4),
        ("written_gradients.hyp", 1),
    ];
    for (file, tests) in files {
        let o = hypatia(&["test", file], "", &folder);
        assert!(o.status.success() && out(&o).contains(&format!("{tests} passed, 0 failed")), "{file}: {}", out(&o));
    }
    let there = std::fs::read_dir(&folder).unwrap().filter_map(|e| e.unwrap().file_name().into_string().ok());
    assert_eq!(there.filter(|n| n.ends_with(".hyp")).count(), files.len(), "a file that is not listed here");
}

/// Opening a named pipe waits for a writer, so paths of named pipes are refused.
#[cfg(unix)]
#[test]
fn named_pipes_are_refused_wherever_they_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for pipe in ["t.cu.j2", "pipe.hyp", "pipe"] {
        assert!(Command::new("mkfifo").arg(at.join(pipe)).status().unwrap().success());
    }
    let k = "kernel k for f(x) { template \"t.cu.j2\"; launch grid = 1, block = 1; }\n";
    std::fs::write(at.join("k.hyp"), format!("edition 1;\nuse core::*;\nop f(x: T[..s]) -> T[..s] = x + x;\n{k}"))
        .unwrap();
    std::fs::write(at.join("use.hyp"), "edition 1;\nuse pipe::*;\n").unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/digits/model.onnx");
    let model = digits.to_str().unwrap();
    let started = std::time::Instant::now();
    for args in [
        &["check", "k.hyp"][..],
        &["check", "use.hyp"],
        &["check", "pipe.hyp"],
        &["test", "k.hyp"],
        &["verify", "k.hyp"],
        &["gen", "k.hyp", "-o", "out"],
        &["fmt", "pipe.hyp"],
        &["run", "pipe"],
        &["run", model, "--device", "cpu", "--tuning", "pipe"],
        &["run", model, "--device", "cpu", "--inputs", "pipe"],
        &["run", model, "--device", "cpu", "--check", "pipe"],
        &["run", model, "--device", "cpu", "--rules", "pipe"],
        &["explain", model, "--tuning", "pipe"],
    ] {
        let o = hypatia(args, "", at);
        assert_eq!(o.status.code(), Some(1), "{args:?}: {}", err(&o));
        assert!(err(&o).contains("this is not a file"), "{args:?}: {}", err(&o));
    }
    assert!(started.elapsed().as_secs() < 120);
}

#[test]
fn files_of_a_folder_that_do_not_use_each_other_are_programs_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let rule = "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n\
                rule r::a: exp(log(x)) => x requires positive(x);\n";
    std::fs::write(at.join("a.hyp"), rule).unwrap();
    std::fs::write(at.join("b.hyp"), rule).unwrap();
    let o = hypatia(&["check", "."], "", at);
    assert_eq!((o.status.code(), err(&o)), (Some(0), String::new()));
    // Files named together are one program.
    let o = hypatia(&["check", "a.hyp", "b.hyp"], "", at);
    assert!(o.status.code() == Some(1) && err(&o).contains("declared twice"), "{}", err(&o));
    // A used file is not checked again, and its errors are reported once.
    std::fs::write(at.join("c.hyp"), "edition 1;\nuse core::*;\nscalar c(x) = x + ;\n").unwrap();
    std::fs::write(at.join("d.hyp"), "edition 1;\nuse c::*;\nscalar d(x) = c(x);\n").unwrap();
    std::fs::write(at.join("e.hyp"), "edition 1;\nuse c::*;\nscalar e(x) = c(x);\n").unwrap();
    let o = hypatia(&["check", "."], "", at);
    assert!(o.status.code() == Some(1) && err(&o).ends_with("1 error\n"), "{}", err(&o));
}

#[test]
fn check_prints_what_it_understood() {
    let folder = tempfile::tempdir().unwrap();
    let text = "edition 1;\nuse core::*;\nuse nn::*;\nruleset r { until = fixpoint; nodes = 50 * graph; }\n\
        scalar leaky(x) = max(x, 0.1 * x) + 0;\n\
        op twice<T: float>(x: T[..s, n]) -> T[..s, n] = leaky(leaky(x)) { requires n > 0; }\n\
        pattern sq(x) = mul(x, x) | pow(x, 2.0);\n\
        rule r::root[g in {exp, log}]: g(sqrt(sq(x))) => g(abs(x)) class rounds for f32;\n\
        rule r::again: leaky(abs(x)) => abs(x);\n\
        kernel twice_row for twice(x) { rowwise; requires dtype(x) == f32; }\n";
    std::fs::write(folder.path().join("p.hyp"), text).unwrap();
    let o = hypatia(&["check", "p.hyp", "--print"], "", folder.path());
    assert_eq!((o.status.code(), err(&o)), (Some(0), String::new()));
    insta::assert_snapshot!(out(&o));
}

#[test]
fn a_file_that_cannot_be_read_is_told_as_it_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fail/H0115.expected");
    let o = hypatia(&["check", "H0115.hyp"], "", folder.path());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&golden, err(&o)).unwrap();
    }
    assert_eq!(err(&o), std::fs::read_to_string(golden).unwrap());
}

#[test]
fn what_is_asked_for_as_json_is_json_whatever_happens() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("bad.hyp"), BAD).unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/digits/model.onnx");
    let model = digits.to_str().unwrap();
    let json = |args: &[&str]| -> (Option<i32>, serde_json::Value) {
        let o = hypatia(args, "", at);
        let value = serde_json::from_str(&out(&o)).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", out(&o)));
        (o.status.code(), value)
    };
    for args in [
        &["verify", "bad.hyp", "--json"][..],
        &["test", "bad.hyp", "--json"],
        &["run", model, "--rules", "bad.hyp", "--json"],
        &["opt", model, "--rules", "bad.hyp", "--json"],
        &["explain", model, "--rules", "bad.hyp", "--json"],
    ] {
        let (code, value) = json(args);
        assert_eq!((code, value["error"]["exit_code"].as_i64()), (Some(1), Some(1)), "{args:?}");
        let codes: Vec<&str> =
            value["error"]["diagnostics"].as_array().unwrap().iter().filter_map(|d| d["code"].as_str()).collect();
        assert_eq!(codes, ["H0101", "H0104"], "{args:?}");
    }
    let (code, value) = json(&["run", "missing.onnx", "--json"]);
    assert!(code == Some(1) && value["error"]["message"].as_str().unwrap().contains("missing.onnx"), "{value}");
    assert_eq!(json(&["explain", "H0304", "--json"]).1["code"], "H0304");
    assert!(json(&["explain", "codes", "--json"]).1["codes"].as_array().unwrap().len() > 50);
    assert!(json(&["explain", "onnx", "--json"]).1["ops"].as_array().unwrap().len() > 50);
    assert!(json(&["explain", "builtins", "--json"]).1["ops"].as_array().unwrap().len() > 10);
    let (_, value) = json(&["run", model, "--device", "cpu", "--plan", "--json"]);
    assert!(!value["plan"]["steps"].as_array().unwrap().is_empty(), "{value}");
}

/// `expect launches` counts those of the plan that the command's options make: a reduction of one
/// long row is two launches, but not where parts of a sum may not be joined in any order.
#[test]
fn tests_count_launches_as_the_options_plan() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = "edition 1;\nuse core::*;\n\
                test \"long\" on h200 { input x: f32[4194304]; given sum(x, axes = [0]); expect launches == 2; }\n";
    std::fs::write(at.join("long.hyp"), text).unwrap();
    let o = hypatia(&["test", "long.hyp"], "", at);
    assert_eq!(o.status.code(), Some(0), "{}", out(&o));
    for more in [&["--batch-invariant"][..], &["--numerics", "exact"]] {
        let o = hypatia(&[&["test", "long.hyp"], more].concat(), "", at);
        assert!(o.status.code() == Some(1) && out(&o).contains("there are 1"), "{more:?}: {}", out(&o));
    }
}
