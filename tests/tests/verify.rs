//! Verification catches planted wrong rules, passes correct ones, and notices almost every mutation
//! of the library's rules.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypatia_dsl::ir::Program;
use hypatia_dsl::source::SourceFile;
use hypatia_verify::mutate::mutants;
use hypatia_verify::test_runner::run_test;
use hypatia_verify::{Options, Proved, Status, Subject, first_failure, verify};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("verify").join(name)
}

fn hyp_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "hyp"));
    files.sort();
    files
}

fn compile(name: &str, text: &str) -> Arc<Program> {
    let file = SourceFile { name: name.into(), path: None, text: text.into(), embedded: false };
    let compilation = hypatia_library::check(vec![file]);
    match compilation.program {
        Some(p) => Arc::new(p),
        None => panic!("{}\n{text}", hypatia_library::rejected(&compilation)),
    }
}

/// Each wrong rule is caught, and its counterexample, pasted into the file, is a failing test.
#[test]
fn wrong_rules_are_caught() {
    let files = hyp_files(&folder("wrong"));
    assert!(files.len() >= 25, "only {} wrong rules are planted", files.len());
    let mut escaped = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let program = compile(&name, &text);
        let report = verify(&program, &|o| o.file == name, &Options::default(), &mut |_, _, _| {});
        println!("=== {name}\n{}", report.to_text());
        let caught = report.entries.iter().find_map(|e| match &e.status {
            Status::False(c) => Some(c.clone()),
            _ => None,
        });
        let Some(caught) = caught else {
            escaped.push(format!("{name}: not caught"));
            continue;
        };
        let lines = caught.test.lines().count();
        assert!(lines <= 20, "{name}: {lines} lines:\n{}", caught.test);
        // A library kernel that reads its operand differently is reported without values.
        if caught.test.is_empty() && caught.kind == "kernel" {
            continue;
        }
        let pasted = compile(&name, &format!("{text}\n{}", caught.test));
        let test = pasted.tests.last().unwrap();
        if run_test(&pasted, test).failures.is_empty() {
            escaped.push(format!("{name}: its counterexample passes as a test:\n{}", caught.test));
        }
    }
    assert!(escaped.is_empty(), "{}", escaped.join("\n"));
}

/// The examples of the manual and the README are true.
#[test]
fn the_rules_of_the_documentation_are_true() {
    let mut rules = 0;
    for page in ["docs/language.md", "README.md"] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page)).unwrap();
        for block in text.split("```hyp\n").skip(1).map(|part| part.split("```").next().unwrap()) {
            let program = compile(page, block);
            for seed in [0, 1, 2] {
                let options = Options { seed, ..Options::default() };
                let report = verify(&program, &|o| o.file == page, &options, &mut |_, _, _| {});
                assert!(report.passed(), "{page}:\n{}", report.to_text());
                rules += report.entries.len();
            }
        }
    }
    assert!(rules >= 30, "only {rules} rules and scalars are shown");
}

/// Every rule and every written derivative in these files is wrong, each in a different way; so
/// every counterexample must fail.
#[test]
fn each_of_many_wrong_rules_is_caught() {
    let mut escaped = Vec::new();
    let mut caught = 0;
    for path in hyp_files(&folder("all_wrong")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let program = compile(&name, &text);
        let report = verify(&program, &|o| o.file == name, &Options::default(), &mut |_, _, _| {});
        // One counterexample among the examples of a rule over pointwise work is enough; what is
        // derived from a scalar is right.
        let mut rules: BTreeMap<String, Option<String>> = BTreeMap::new();
        for e in report.entries.iter().filter(|e| !e.name.starts_with("fold::")) {
            let rule = e.name.split(" (").next().unwrap_or_default().to_string();
            let test = rules.entry(rule).or_default();
            if let Status::False(c) = &e.status {
                test.get_or_insert_with(|| c.test.clone());
            }
        }
        escaped.extend(rules.iter().filter(|r| r.1.is_none()).map(|r| format!("{name}: {} is not caught", r.0)));
        let blocks: Vec<String> = rules.into_values().flatten().collect();
        caught += blocks.len();
        let pasted = compile(&name, &format!("{text}\n{}", blocks.join("\n")));
        let tests = pasted.tests.iter().filter(|t| t.origin.file == name);
        for (test, block) in tests.zip(&blocks) {
            if run_test(&pasted, test).failures.is_empty() {
                escaped.push(format!("{name}: a counterexample passes as a test:\n{block}"));
            }
        }
    }
    assert!(escaped.is_empty(), "{}", escaped.join("\n"));
    assert!(caught >= 160, "only {caught} wrong rules are planted");
}

/// A difference in few elements is still shown on the smallest tensors.
#[test]
fn counterexamples_are_small() {
    let text = std::fs::read_to_string(folder("wrong").join("rounded_bf16.hyp")).unwrap();
    let program = compile("rounded_bf16.hyp", &text);
    for seed in 0..4 {
        let options = Options { seed, ..Options::default() };
        let report = verify(&program, &|o| o.file == "rounded_bf16.hyp", &options, &mut |_, _, _| {});
        let Status::False(c) = &report.entries[0].status else { panic!("{}", report.to_text()) };
        let sizes = c.test.split("bf16[").skip(1).filter_map(|t| t.split(']').next());
        let sizes: Vec<&str> = sizes.flat_map(|t| t.split(", ")).filter(|t| !t.is_empty()).collect();
        assert!(!sizes.is_empty() && sizes.iter().all(|s| ["1", "2"].contains(s)), "{}", c.test);
    }
}

/// A claim that is too strong is reported with the class that holds, and with the side that is less
/// precise; a false rule has no class.
#[test]
fn broken_claims_say_what_holds() {
    let line_and_message = |name: &str| {
        let text = std::fs::read_to_string(folder("wrong").join(name)).unwrap();
        let program = compile(name, &text);
        let report = verify(&program, &|o| o.file == name, &Options::default(), &mut |_, _, _| {}).to_text();
        let line = |what: &str| report.lines().find(|l| l.contains(what)).unwrap().to_string();
        (line("FALSE"), line(" is false: "))
    };
    let (line, message) = line_and_message("fused_claims_exact.hyp");
    assert!(line.contains("claims exact for") && line.ends_with("holds") && !line.contains("f32"), "{line}");
    assert!(message.ends_with(": the left side is less precise"), "{message}");
    let (line, message) = line_and_message("approximation_too_tight.hyp");
    assert!(line.contains("claims approx(4.8e-7, 0) for ") && line.contains(", where approx("), "{line}");
    assert!(message.ends_with(": the right side is less precise"), "{message}");
    // Neither side is less precise: only the sign of a zero differs. And NaN does not concern
    // precision.
    assert!(!line_and_message("sign_of_zero.hyp").1.contains("precise"));
    let (line, message) = line_and_message("lost_nan.hyp");
    assert!(line.ends_with(" cases)") && !message.contains("precise"), "{line}\n{message}");
}

/// A difference only at infinities is no failure, but it is reported.
#[test]
fn lost_infinities_are_noted() {
    for path in hyp_files(&folder("noted")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let program = compile(&name, &std::fs::read_to_string(&path).unwrap());
        let report = verify(&program, &|o| o.file == name, &Options::default(), &mut |_, _, _| {});
        let noted = report.entries[0].note.as_deref().is_some_and(|n| n.contains("at infinities"));
        assert!(report.passed() && noted && report.to_text().contains("note: "), "{name}:\n{}", report.to_text());
    }
}

/// An element type for which a side is undefined is skipped and reported; a wrong meaning for
/// another type, or an undefined meaning for all types, is still found.
#[test]
fn element_types_without_a_meaning_are_skipped() {
    let text = std::fs::read_to_string(folder("skipped").join("element_types.hyp")).unwrap();
    let check = |text: &str| {
        let program = compile("skipped.hyp", text);
        verify(&program, &|o| o.file == "skipped.hyp", &Options::default(), &mut |_, _, _| {})
    };
    let report = check(&text);
    assert!(report.passed() && report.entries.len() >= 4, "{}", report.to_text());
    for e in report.entries.iter().filter(|e| !e.name.starts_with("fold::")) {
        let note = e.note.as_deref().unwrap_or_default();
        assert!(note.contains("is undefined for i64, i32, i8, u8") && e.cases > 50, "{}", report.to_text());
        assert!(e.classes.iter().all(|c| c.0.is_float()), "{}", report.to_text());
    }
    // `x + x` alone is undefined for truth values, which is not reported.
    let report = check("edition 1;\nuse core::*;\nop twice(x: T[..s]) -> T[..s] = x + x;\n");
    assert!(report.passed() && report.entries[0].note.is_none(), "{}", report.to_text());
    for (wrong, kind) in [
        ("div(x, 2) => mul(x, 0.25)", "value"),
        ("exp(x) => exp(x + cast(x, to = i32)) requires dtype(x) != f32", "type"),
        ("div(x, y) => mul(x, div(1, y))", "value"),
    ] {
        let report =
            check(&format!("edition 1;\nuse core::*;\nruleset r {{ until = fixpoint; }}\nrule r::a: {wrong};\n"));
        let Status::False(c) = &report.entries[0].status else { panic!("{wrong}:\n{}", report.to_text()) };
        assert!(c.kind == kind && report.entries[0].note.is_none(), "{}", report.to_text());
    }
    // Library rules declare their element types, so `first_failure` counts an undefined one as a
    // failure.
    let program = compile("skipped.hyp", &text);
    let half = program.rules.iter().find(|r| r.name == "some::half").unwrap();
    assert!(first_failure(&program, half, &Options::default()).is_some());
}

/// A lifted rule is verified even if only an epilogue distinguishes it from a correct rule.
#[test]
fn lifted_rules_are_verified_inside_epilogues() {
    let text = std::fs::read_to_string(folder("wrong").join("scale_in_epilogue.hyp")).unwrap();
    let program = compile("scale.hyp", &text);
    let report = verify(&program, &|o| o.file == "scale.hyp", &Options::default(), &mut |_, _, _| {});
    let Status::False(c) = &report.entries[0].status else { panic!("{}", report.to_text()) };
    assert!(c.message.starts_with("inside an epilogue") && c.test.contains("gemm("), "{}", report.to_text());
}

/// Correct rules pass, and the derived class is no weaker than the claimed one.
#[test]
fn right_rules_pass() {
    for path in hyp_files(&folder("right")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let program = compile(&name, &std::fs::read_to_string(&path).unwrap());
        let report = verify(&program, &|o| o.file == name, &Options::default(), &mut |_, _, _| {});
        assert!(report.passed(), "{name}:\n{}", report.to_text());
    }
}

/// An attribute that a body uses several times is several constants, or a constant and a size, on
/// the left side: the generator constructs instances in which they agree, instead of waiting for
/// one.
#[test]
fn attributes_used_several_times_are_exercised() {
    let text = std::fs::read_to_string(folder("right").join("attributes.hyp")).unwrap();
    let program = compile("attributes.hyp", &text);
    let folds = |o: &hypatia_dsl::ir::Origin| o.file == "attributes.hyp";
    for seed in [0, 1] {
        let report = verify(&program, &folds, &Options { seed, ..Options::default() }, &mut |_, _, _| {});
        let folds: Vec<_> = report.entries.iter().filter(|e| e.name.starts_with("fold::")).collect();
        assert_eq!(folds.len(), 12, "{}", report.to_text());
        assert!(folds.iter().all(|e| e.cases >= 100 && e.classes.len() >= 4), "{}", report.to_text());
    }
}

/// The whole embedded library is verified.
#[test]
fn the_library_is_verified() {
    let program = hypatia_library::load(&[]).unwrap();
    let report = verify(&program, &|_| true, &Options::default(), &mut |_, _, _| {});
    assert!(report.passed(), "{}", report.to_text());
    // At least a third of the rules that somebody wrote, with all members of a family, are proved.
    let mut rules: BTreeMap<&str, bool> = BTreeMap::new();
    for e in report.entries.iter().filter(|e| e.subject == Subject::Rule && !e.derived) {
        let name = e.name.split(['[', ' ']).next().unwrap_or_default();
        *rules.entry(name).or_insert(true) &= e.proved.is_some();
    }
    let proved = rules.values().filter(|p| **p).count();
    assert!(3 * proved >= rules.len(), "{proved} of {} rules are proved", rules.len());
}

/// What is proved, and how: a wrong rule never is.
#[test]
fn identities_are_proved() {
    let text = "edition 1;\nuse core::*;\nuse nn::*;\nruleset r { until = fixpoint; }\n\
                rule r::bits: neg(neg(x)) * 1 => x class exact;\n\
                rule r::reals: x * y + x * 2 => x * (y + 2);\n\
                rule r::product: relu(gemm(a, b, e, to = d)) => gemm(a, b, relu(e), to = d);\n\
                rule r::tested: amax(neg(x), axes = a) => neg(amin(x, axes = a)) requires dtype(x) == f32;\n";
    let program = compile("proved.hyp", text);
    let report = verify(&program, &|o| o.file == "proved.hyp", &Options::default(), &mut |_, _, _| {});
    let found: Vec<Option<Proved>> = report.entries.iter().map(|e| e.proved).collect();
    let wanted = [Some(Proved::Bits), Some(Proved::Reals), Some(Proved::Reals), None];
    assert_eq!(found, wanted, "{}", report.to_text());
    assert!(report.to_text().contains("written rules: 1 proved (bits), 2 proved (reals), 1 tested only"));
}

/// A right side that could as well be another one is not verified, and the report says what never
/// varied.
#[test]
fn vacuous_rules_do_not_pass() {
    let text = std::fs::read_to_string(folder("vacuous").join("never_varied.hyp")).unwrap();
    let program = compile("vacuous.hyp", &text);
    let report = verify(&program, &|o| o.file == "vacuous.hyp", &Options::default(), &mut |_, _, _| {});
    assert_eq!((report.vacuous(), report.entries.len()), (2, 2), "{}", report.to_text());
    assert!(!report.passed());
    let text = report.to_text();
    assert!(text.contains("VACUOUS") && text.contains("`d` was always 0"), "{text}");
    assert!(text.contains("`a` was always [0]"), "{text}");
}

/// A class for an element type in which the rule never applies says nothing.
#[test]
fn each_claimed_type_needs_instances() {
    let text = "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n\
                rule r::a: cast(x: f32[..s], to = f32) => x class exact for f32, f16;\n";
    let program = compile("few.hyp", text);
    let report = verify(&program, &|o| o.file == "few.hyp", &Options::default(), &mut |_, _, _| {});
    let Status::NotExercised { reason } = &report.entries[0].status else { panic!("{}", report.to_text()) };
    assert!(reason.starts_with("only 0 instances without empty tensors were found in f16"), "{reason}");
}

/// Infinities and NaN are values: a test does not take one for a number.
#[test]
fn tests_compare_infinities_as_values() {
    for (given, expected, holds) in [
        ("exp(x)", "x * 4.85e5", false),
        ("exp(x)", "x / 0.0", true),
        ("exp(x)", "-(x / 0.0)", false),
        ("x * 0.0 / 0.0", "x", false),
        ("x * 0.0 / 0.0", "log(-x)", true),
    ] {
        let text = format!(
            "edition 1;\nuse core::*;\n\
             test \"t\" {{ input x: f32[2] = 1000; given {given}; expect equal {expected}; }}\n"
        );
        let program = compile("infinite.hyp", &text);
        let test = program.tests.iter().find(|t| t.origin.file == "infinite.hyp").unwrap();
        assert_eq!(run_test(&program, test).failures.is_empty(), holds, "{given} = {expected}");
    }
}

/// The same seed gives the same report, another seed other cases.
#[test]
fn reports_are_reproducible() {
    let text = std::fs::read_to_string(folder("wrong").join("wrong_constant.hyp")).unwrap();
    let program = compile("wrong.hyp", &text);
    let run = |seed| {
        let options = Options { seed, ..Options::default() };
        verify(&program, &|o| o.file == "wrong.hyp", &options, &mut |_, _, _| {}).to_json().to_string()
    };
    assert_eq!(run(1), run(1));
}

/// A rule whose guard is never satisfied is not reported as verified.
#[test]
fn what_is_not_exercised_does_not_pass() {
    let text = "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n\
                rule r::never: neg(neg(x)) => x requires rank(x) == 2, rank(x) == 3;\n";
    let program = compile("never.hyp", text);
    let report = verify(&program, &|o| o.file == "never.hyp", &Options::default(), &mut |_, _, _| {});
    assert!(!report.passed());
    assert!(matches!(report.entries[0].status, Status::NotExercised { .. }), "{}", report.to_text());
}

/// Empty tensors prove nothing: if there are no others, nothing is known.
#[test]
fn empty_tensors_alone_do_not_exercise() {
    for guard in ["dim(x, -1) % 5003 == 0", "numel(x) == 0"] {
        let text = format!(
            "edition 1;\nuse core::*;\nuse nn::*;\nruleset r {{ until = fixpoint; }}\n\
             rule r::never: relu(x) => max(x, 1) requires {guard};\n"
        );
        let program = compile("empty.hyp", &text);
        let report = verify(&program, &|o| o.file == "empty.hyp", &Options::default(), &mut |_, _, _| {});
        let Status::NotExercised { reason } = &report.entries[0].status else { panic!("{}", report.to_text()) };
        assert!(reason.starts_with("the search found only empty tensors"), "{reason}");
    }
}

/// The number of members of a family that are mutated: the others differ only in a name.
const MEMBERS: usize = 2;

/// Every mutant of a rule of the library is noticed, or is in the list of equivalent mutants with
/// the reason.
#[test]
fn mutants_of_the_library_are_noticed() {
    let program = hypatia_library::load(&[]).unwrap();
    let list = std::fs::read_to_string(folder("equivalent_mutants.txt")).unwrap();
    let mut equivalent: BTreeMap<String, String> = BTreeMap::new();
    for line in list.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let (id, reason) = line.split_once(" # ").unwrap_or_else(|| panic!("no reason: {line}"));
        assert!(equivalent.insert(id.trim().into(), reason.into()).is_none(), "twice: {id}");
    }
    let mut members: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut killed, mut survivors, mut listed) = (0, Vec::new(), BTreeSet::new());
    let (options, longer) = (Options { cases: 60, seed: 7 }, Options { cases: 600, seed: 8 });
    // Mutants of one rule only: HYPATIA_MUTANTS=canon::relu cargo test -p hypatia-tests mutants
    let only = std::env::var("HYPATIA_MUTANTS").ok();
    for rule in program.rules.iter().filter(|r| only.as_ref().is_none_or(|o| r.name.starts_with(o.as_str()))) {
        let count = members.entry(&rule.base_name).or_default();
        *count += 1;
        if *count > MEMBERS {
            continue;
        }
        for mutant in mutants(&program, rule) {
            let id = format!("{}: {}", rule.name, mutant.change);
            // A mutant that survives the first check gets a longer one: some are wrong on few
            // instances only.
            let noticed = [&options, &longer].into_iter().any(|o| first_failure(&program, &mutant.rule, o).is_some());
            match (noticed, equivalent.contains_key(&id)) {
                (true, false) => killed += 1,
                (true, true) => survivors.push(format!("{id}: on the list, but it is noticed")),
                (false, true) => drop(listed.insert(id)),
                (false, false) => survivors.push(id),
            }
        }
    }
    println!("{killed} mutants noticed, {} equivalent", listed.len());
    assert!(
        survivors.is_empty(),
        "{} mutants survive, or should not stand in the list:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
    let stale: Vec<&String> = equivalent.keys().filter(|id| !listed.contains(*id)).collect();
    if !stale.is_empty() {
        println!("no longer mutants, remove them from the list: {stale:?}");
    }
    assert!(killed >= 20 || only.is_some(), "only {killed} mutants");
}
