//! What failed expectations say: golden texts of the tests in `expect/*.hyp`.
//!
//! With `UPDATE=1` the texts are written; review them.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypatia_dsl::source::SourceFile;
use hypatia_library as library;
use hypatia_verify::test_runner::run_test;

fn report(path: &Path) -> String {
    let file = SourceFile::read(path).unwrap();
    let name = file.name.clone();
    let compiled = library::check(vec![file]);
    let program = Arc::new(compiled.program.expect("the file has no errors"));
    let mut text = String::new();
    for test in program.tests.iter().filter(|t| t.origin.file == name) {
        text.push_str(&format!("test {}\n", test.name));
        let failures = run_test(&program, test).failures;
        if failures.is_empty() {
            text.push_str("  ok\n");
        }
        for line in failures.iter().flat_map(|f| f.lines()) {
            text.push_str(format!("  {line}").trim_end());
            text.push('\n');
        }
    }
    text
}

#[test]
fn failed_expectations_say_why() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("expect");
    let all = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "hyp")).collect();
    files.sort();
    for path in files {
        let got = report(&path);
        let golden = path.with_extension("expected");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&golden, &got).unwrap();
        }
        let want = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(got, want, "{} differs; run with UPDATE=1 and read the changes", golden.display());
    }
}
