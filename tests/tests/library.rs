//! The standard library as its reader meets it: every test in it passes.
#![allow(clippy::unwrap_used, missing_docs)]

use hypatia::library;
use hypatia::test_runner::run_test;

#[test]
fn every_test_of_the_library_passes() {
    let program = library::load(&[]).unwrap();
    assert!(program.tests.len() > 90, "only {} tests were found", program.tests.len());
    let mut failed = Vec::new();
    for test in &program.tests {
        let outcome = run_test(&program, test);
        failed.extend(outcome.failures.iter().map(|f| format!("{}: {f}", test.name)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
