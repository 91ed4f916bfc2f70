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
    // The program may refuse and end before it has read all.
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

/// An op that has a meaning for some element types only is warned about, and right for these.
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
    // What is an error is not buried under warnings.
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

/// Fusions that the library does not have, in the language alone, and every construct of it: their own tests say what
/// they come to.
#[test]
fn the_tests_of_files_that_compile_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/pass");
    let files = [
        ("constructs.hyp", 3),
        ("gated.hyp", 2),
        ("group_norm.hyp", 3),
        ("overflow.hyp", 2),
        ("residual_norm.hyp", 4),
        ("rules.hyp", 9),
        ("sketch.hyp", 2),
        ("softcap.hyp", 2),
    ];
    for (file, tests) in files {
        let o = hypatia(&["test", file], "", &folder);
        assert!(o.status.success() && out(&o).contains(&format!("{tests} passed, 0 failed")), "{file}: {}", out(&o));
    }
    let there = std::fs::read_dir(&folder).unwrap().filter_map(|e| e.unwrap().file_name().into_string().ok());
    assert_eq!(there.filter(|n| n.ends_with(".hyp")).count(), files.len(), "a file that is not listed here");
}
