//! A new plan is compared once with the plan without rules, and judged by what rounding does to it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia::session::{Model, Options};
use hypatia_dsl::source::SourceFile;
use hypatia_verify::test_runner::given;

/// The warnings of a model, which a test's `given` describes, on the test's inputs; and whether a
/// rule took part in its plan.
fn compiled(text: &str) -> (Vec<String>, bool) {
    let text = format!("edition 1;\nuse core::*;\nuse nn::*;\nruleset own {{ until = fixpoint; }}\n{text}");
    let file = SourceFile { name: "own.hyp".into(), path: None, text: text.into(), embedded: false };
    let compilation = hypatia_library::check(vec![file]);
    let program = match compilation.program {
        Some(p) => Arc::new(p),
        None => panic!("{}", hypatia_library::rejected(&compilation)),
    };
    let test = program.tests.iter().find(|t| t.name == "own").unwrap();
    let (graph, inputs) = given(&program, test).unwrap();
    let model = Model::new(graph, Options { threads: 1, ..Options::default() });
    let compiled = model.compile(&inputs).unwrap();
    (compiled.warnings(), compiled.report.firings.iter().any(|f| f.kept))
}

/// Where rounding meets a steep function or a step, both plans are far apart, and none is wrong.
#[test]
fn rounding_is_blamed_on_nobody() {
    for text in [
        "rule own::scale: x / 3 => x * 0.3333333333333333 class rounds;
         test \"own\" { input x: f32[4096]; given sin(x * 2e6 / 3) + 1; expect launches >= 1; }",
        "rule own::scale: x / 3 => x * 0.3333333333333333 class rounds;
         test \"own\" { input x: f32[4096]; given round(sin(x * 2e6 / 3) * 8) * 0.25; expect launches >= 1; }",
    ] {
        assert_eq!(compiled(text), (Vec::new(), true), "{text}");
    }
}

/// A rule that is wrong there is caught, and named.
#[test]
fn a_wrong_rule_is_caught_where_rounding_shows() {
    let (found, _) = compiled(
        "rule own::wrong: sin(x * 30) * 2 => sin(x * 29);
         test \"own\" { input x: f32[64]; given sin(x * 30) * 2; expect launches >= 1; }",
    );
    assert!(found.len() == 1 && found[0].contains("own::wrong"), "{found:?}");
}

/// Where only NaN and infinities differ, the reason says so, and names no rule.
#[test]
fn infinities_are_blamed_on_nobody() {
    let (found, _) = compiled(
        "rule own::twice: x * 2 - x => x + 0.0 class rounds;
         test \"own\" { input x: f32[4] = [inf, 1, 2, 3]; given abs(x * 2 - x); expect launches >= 1; }",
    );
    assert!(found.len() == 1 && found[0].contains("so none is blamed"), "{found:?}");
    assert!(!found[0].contains("own::twice"), "{found:?}");
}
