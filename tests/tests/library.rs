//! The standard library from the reader's side: every test in it passes, and every rule is
//! documented, contributes to the result of at least one test, and does not fire in another test
//! that is a near miss.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::sync::Arc;

use hypatia_dsl::ir::{Expect, Program};
use hypatia_dsl::kernel::short::is_short;
use hypatia_library as library;
use hypatia_optimize::Options;
use hypatia_pipeline as pipeline;
use hypatia_target::device::Device;
use hypatia_verify::test_runner::{given, run_test};

/// Rules without a near miss, and why.
const NO_NEAR_MISS: [(&str, &str); 2] = [
    ("fuse::start", "any product will do: no guard, no attribute"),
    ("fuse::conv", "any convolution will do: no guard, each attribute a variable"),
];

/// The names that the list gives reasons for.
fn names(list: &[(&'static str, &str)]) -> BTreeSet<&'static str> {
    list.iter().map(|(name, _)| *name).collect()
}

/// The names of the rules about written graphs, without derived rules. Tests do not cover generated
/// kernels, which the other rules are about.
fn written(program: &Program) -> BTreeSet<&str> {
    program.rules.iter().filter(|r| !r.derived && !is_short(program, r)).map(|r| r.base_name.as_str()).collect()
}

#[test]
fn every_test_of_the_library_passes() {
    let program = Arc::new(library::check_library().program.unwrap());
    assert!(program.tests.len() > 90, "only {} tests were found", program.tests.len());
    let mut failed = Vec::new();
    for test in &program.tests {
        let outcome = run_test(&program, test);
        failed.extend(outcome.failures.iter().map(|f| format!("{}: {f}", test.name)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_rule_of_the_library_has_a_part_in_a_test() {
    let program = Arc::new(library::check_library().program.unwrap());
    let mut unseen: BTreeSet<&str> =
        program.rules.iter().filter(|r| !is_short(&program, r)).map(|r| r.base_name.as_str()).collect();
    for test in &program.tests {
        let Ok((graph, _)) = given(&program, test) else { continue };
        // Some rules need a feature that only the test's device has.
        for device in [test.target.as_deref().and_then(Device::named), Some(Device::cpu())].into_iter().flatten() {
            let options = Options { device, ..Options::default() };
            let report = pipeline::optimize(&graph, &options).unwrap().report;
            report.firings.iter().filter(|f| f.kept).for_each(|f| {
                unseen.remove(f.base.as_str());
            });
        }
    }
    assert!(unseen.is_empty(), "these have a part in no test of rules/: {unseen:?}");
}

#[test]
fn every_rule_of_the_library_is_expected_not_to_fire_somewhere() {
    let program = Arc::new(library::check_library().program.unwrap());
    let mut open = written(&program);
    for expect in program.tests.iter().flat_map(|t| &t.expect) {
        if let Expect::Fires(rule, false) = expect {
            open.remove(rule.as_str());
        }
    }
    assert_eq!(open, names(&NO_NEAR_MISS), "on the left, rules that no test says `expect not fires` of");
}

#[test]
fn every_rule_of_the_library_has_a_doc_comment() {
    let program = Arc::new(library::check_library().program.unwrap());
    let silent: BTreeSet<&str> =
        program.rules.iter().filter(|r| !r.derived && r.doc.is_empty()).map(|r| r.base_name.as_str()).collect();
    assert!(silent.is_empty(), "without a doc comment: {silent:?}");
}
