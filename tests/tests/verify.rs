//! Verification catches planted wrong rules, passes correct ones, and notices almost every mutation
//! of the library's rules.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hypatia_dsl::ir::{Program, Rule};
use hypatia_dsl::source::SourceFile;
use hypatia_verify::check::Failure;
use hypatia_verify::mutate::{Mutant, mutants};
use hypatia_verify::test_runner::run_test;
use hypatia_verify::{Need, Options, Proved, Status, Subject, first_failure, guard_need, proved, verify};

/// Verification makes many small tensors.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
        // A library kernel that reads its operand differently is reported without values; tests of
        // the language have no gradients.
        if caught.test.is_empty() && ["kernel", "gradient"].contains(&caught.kind) {
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
    assert!(caught >= 325, "only {caught} wrong rules are planted");
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
    assert!(
        (line.ends_with(" case)") || line.ends_with(" cases)")) && !message.contains("precise"),
        "{line}\n{message}"
    );
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

/// A kernel keeps f32 inside, so its body in f16 has fewer digits. No `test` shows that: it runs
/// both sides by the bodies.
#[test]
fn the_body_of_a_kernel_is_less_precise_than_the_kernel() {
    let rule = "rms_norm(x, none, eps = e) => x * rsqrt(mean(x * x, axes = [-1]) + e) class rounds for f16";
    let text = format!("edition 1;\nuse core::*;\nuse nn::*;\nruleset r {{ until = fixpoint; }}\nrule r::a: {rule};\n");
    for seed in 0..3 {
        let options = Options { seed, ..Options::default() };
        let report = verify(&compile("norm.hyp", &text), &|o| o.file == "norm.hyp", &options, &mut |_, _, _| {});
        assert!(matches!(report.entries[0].status, Status::False(_)), "{seed}: {}", report.to_text());
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
    let warned: Vec<&String> = report.entries.iter().flat_map(|e| &e.warnings).collect();
    assert!(warned.is_empty(), "{warned:?}");
    // Two fifths of the rules that somebody wrote, with all members of a family, are proved.
    let mut rules: BTreeMap<&str, bool> = BTreeMap::new();
    for e in report.entries.iter().filter(|e| e.subject == Subject::Rule && !e.derived) {
        let name = e.name.split(['[', ' ']).next().unwrap_or_default();
        *rules.entry(name).or_insert(true) &= e.proved.is_some();
    }
    let count = rules.values().filter(|p| **p).count();
    assert!(5 * count >= 2 * rules.len(), "{count} of {} rules are proved", rules.len());
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

/// Views are proved for all sizes; where an element comes from another place, nothing is.
#[test]
fn views_are_proved() {
    let head = "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n";
    let check = |rule: &str| {
        let program = compile("views.hyp", &format!("{head}rule r::a: {rule};\n"));
        let rule = program.rules.iter().find(|r| r.name == "r::a").unwrap();
        proved(&program, rule)
    };
    for right in [
        "transpose(transpose(x, perm = p), perm = q) => transpose(x, perm = [p[i] for i in q])",
        "reshape(reshape(x, shape = _), shape = s) => reshape(x, shape = s)",
        "slice(x, axis = a, start = 0, stop = e) => x requires dim(x, a) == e",
        "slice(slice(x, axis = a, start = b, stop = _), axis = a, start = c, stop = d)
           => slice(x, axis = a, start = b + c, stop = b + d)",
        "concat(slice(x, axis = a, start = b, stop = c), slice(x, axis = a, start = c, stop = d), axis = a)
           => slice(x, axis = a, start = b, stop = d) requires b <= c, c <= d",
        "split(concat(x, y, axis = a), axis = a, sizes = [m, _]).1 => y requires dim(x, a) == m",
        "reshape(transpose(x: T[l, m, n], perm = [0, 2, 1]), shape = [..s, n, m])
           => transpose(reshape(x, shape = [..s, m, n]), perm = [..range(len(s)), len(s) + 1, len(s)])",
        "matmul(reshape(x: T[..s, m, k], shape = [p, m, k]), reshape(y: T[..s, k, n], shape = [p, k, n]))
           => reshape(matmul(x, y), shape = [p, m, n]) requires p == prod(s)",
        "concat(matmul(x: T[m, k], v: T[k, n]), matmul(x, w: T[k, o]), axis = 1) => matmul(x, concat(v, w, axis = 1))",
    ] {
        assert_eq!(check(right), Some(Proved::Bits), "{right}");
    }
    for wrong in [
        "transpose(transpose(x, perm = p), perm = q) => transpose(x, perm = [q[i] for i in p])",
        "transpose(transpose(x, perm = p), perm = p) => x",
        "transpose(x: T[n, n], perm = [1, 0]) => x",
        "slice(x, axis = a, start = 0, stop = e) => x",
        "slice(x, axis = a, start = 1, stop = e) => slice(x, axis = a, start = 0, stop = e - 1)",
        "slice(slice(x, axis = a, start = b, stop = _), axis = a, start = c, stop = d)
           => slice(x, axis = a, start = c, stop = d)",
        "concat(slice(x, axis = a, start = b, stop = c), slice(x, axis = a, start = c, stop = d), axis = a)
           => slice(x, axis = a, start = b, stop = d)",
        "concat(x, y, axis = a) => concat(y, x, axis = a) requires shape(x) == shape(y)",
        "split(concat(x, y, axis = a), axis = a, sizes = [m, _]).1 => y requires dim(y, a) == m",
        "reshape(transpose(x: T[l, m, n], perm = [0, 2, 1]), shape = [..s, n, m])
           => reshape(x, shape = [..s, n, m])",
        "reshape(transpose(x: T[m, n], perm = [1, 0]), shape = [m, n]) => x",
        "matmul(reshape(x: T[..s, m, k], shape = [p, m, k]), reshape(y: T[..s, k, n], shape = [p, k, n]))
           => reshape(matmul(x, y), shape = [p, m, n])",
        "concat(matmul(x: T[m, k], v: T[k, n]), matmul(x, w: T[k, n]), axis = 1) => matmul(x, concat(w, v, axis = 1))",
        "sum(x: T[n, n], axes = [0]) => transpose(sum(x, axes = [1]), perm = [1, 0])",
        "reshape(expand(x: T[b, g, 1], shape = [b, g, r]), shape = [b, h])
           => reshape(expand(reshape(x, shape = [b, 1, g]), shape = [b, r, g]), shape = [b, h]) requires h == g * r",
    ] {
        assert_eq!(check(wrong), None, "{wrong}");
    }
}

/// Prints how many written rules of the library are proved, and which are not.
#[test]
#[ignore = "a measurement"]
fn what_is_proved() {
    let program = hypatia_library::load(&[]).unwrap();
    let mut rules: BTreeMap<&str, Option<Proved>> = BTreeMap::new();
    for rule in program.rules.iter().filter(|r| !r.derived) {
        let found = proved(&program, rule);
        let all = rules.entry(&rule.base_name).or_insert(found);
        *all = all.zip(found).map(|(a, b)| a.max(b));
    }
    let count = |p: Option<Proved>| rules.values().filter(|r| **r == p).count();
    let (bits, reals) = (count(Some(Proved::Bits)), count(Some(Proved::Reals)));
    println!("{} rules: {bits} proved (bits), {reals} proved (reals), {} tested only", rules.len(), count(None));
    let rest: Vec<&&str> = rules.iter().filter(|r| r.1.is_none()).map(|r| r.0).collect();
    println!("{rest:?}");
}

/// No wrong rule is proved: none of those that are planted, and no mutant of a rule of the library
/// that has other values.
#[test]
fn wrong_rules_are_never_proved() {
    for name in ["wrong", "all_wrong"] {
        for path in hyp_files(&folder(name)) {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            let program = compile(&file, &std::fs::read_to_string(&path).unwrap());
            let own = program.rules.iter().filter(|r| r.origin.file == file && !r.derived);
            let bits: Vec<&str> =
                own.filter(|r| proved(&program, r) == Some(Proved::Bits)).map(|r| r.name.as_str()).collect();
            assert!(bits.is_empty(), "{file}: {bits:?}");
        }
    }
    let program = hypatia_library::load(&[]).unwrap();
    let views = |name: &str| {
        ["views", "merge", "rotary", "attention", "grouped", "conv"].iter().any(|f| name.ends_with(&format!("{f}.hyp")))
    };
    let (mut some, mut wrong) = (0, Vec::new());
    for rule in program.rules.iter().filter(|r| !r.derived && views(&r.origin.file)) {
        for mutant in mutants(&program, rule).into_iter().filter(|m| proved(&program, &m.rule).is_some()) {
            some += 1;
            let options = Options { cases: 60, seed: 7 };
            if let Some(Failure::Value) = first_failure(&program, &mutant.rule, &options) {
                wrong.push(format!("{}: {}", rule.name, mutant.change));
            }
        }
    }
    assert!(wrong.is_empty(), "proved, and false:\n{}", wrong.join("\n"));
    println!("{some} mutants are proved, and none of them is false");
}

/// A guard that nothing needs is a warning; one that something needs, or that always holds, is
/// none.
#[test]
fn guards_that_nothing_needs_are_warned_of() {
    for path in hyp_files(&folder("warned")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let program = compile(&name, &std::fs::read_to_string(&path).unwrap());
        let report = verify(&program, &|o| o.file == name, &Options::default(), &mut |_, _, _| {});
        assert!(report.passed(), "{}", report.to_text());
        let expected = std::fs::read_to_string(path.with_extension("expected")).unwrap();
        let got: Vec<String> =
            report.entries.iter().flat_map(|e| e.warnings.iter().map(|w| format!("{}: {w}\n", e.name))).collect();
        assert_eq!(got.concat(), expected);
    }
}

/// Prints what rules come out as with these options: `HYPATIA_CASES` (100) and `HYPATIA_SEEDS` (5)
/// say how many cases and seeds. It takes minutes.
#[test]
#[ignore = "a measurement"]
fn how_many_cases_catch_what() {
    let number = |name: &str, default: usize| std::env::var(name).ok().map_or(default, |v| v.parse().unwrap());
    let (cases, seeds) = (number("HYPATIA_CASES", 100), number("HYPATIA_SEEDS", 5) as u64);
    for (kind, right) in [("wrong", false), ("all_wrong", false), ("vacuous", false), ("right", true)] {
        let (mut rules, mut missed) = (0, Vec::new());
        for path in hyp_files(&folder(kind)) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let program = compile(&name, &std::fs::read_to_string(&path).unwrap());
            for seed in 1..=seeds {
                let options = Options { cases, seed };
                let report = verify(&program, &|o| o.file == name, &options, &mut |_, _, _| {});
                let mut found: BTreeMap<&str, bool> = BTreeMap::new();
                for e in report.entries.iter().filter(|e| !e.name.starts_with("fold::")) {
                    *found.entry(e.name.split(" (").next().unwrap_or_default()).or_default() |=
                        e.status != Status::Verified;
                }
                // In a file of one wrong rule, the others are its context.
                let caught = found.values().any(|f| *f);
                let as_meant = |f: bool| if kind == "wrong" { caught } else { f != right };
                rules += found.len();
                missed.extend(
                    found.iter().filter(|f| !as_meant(*f.1)).map(|f| format!("{name}: {} at seed {seed}", f.0)),
                );
            }
        }
        println!("{kind}: {rules} verdicts at {cases} cases, {} not as they should be {missed:?}", missed.len());
    }
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

/// A left side that no operands give a value says nothing about the rule: it is no counterexample.
#[test]
fn left_sides_without_a_value_are_skipped() {
    let check = |rule: &str| {
        let text = format!("edition 1;\nuse core::*;\nruleset r {{ until = fixpoint; }}\nrule r::a: {rule};\n");
        verify(&compile("none.hyp", &text), &|o| o.file == "none.hyp", &Options::default(), &mut |_, _, _| {})
    };
    let side = "gemm(a: i64[..], b: i64[..], tanh(acc), to = i64)";
    let report = check(&format!("{side} => gemm(a, b, tanh(acc), to = i64)"));
    let Status::NotExercised { reason } = &report.entries[0].status else { panic!("{}", report.to_text()) };
    assert!(reason.contains("the left side has no value: tanh: needs a float"), "{reason}");
    // Where some types have a value, these are compared.
    let report = check("gemm(a, b, tanh(acc), to = d) => gemm(a, b, tanh(acc), to = d)");
    assert!(report.passed(), "{}", report.to_text());
    let types: Vec<bool> = report.entries[0].classes.iter().map(|c| c.0.is_float()).collect();
    assert!(types.len() >= 4 && types.iter().all(|f| *f), "{}", report.to_text());
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

/// A rule whose right side calls an op that has no body for operands that it accepts is neither
/// true nor false: the op is wrong. Where the op refuses the operands, the rule is.
#[test]
fn rules_of_ops_without_a_body_are_undefined() {
    let check = |requires: &str, guard: &str| {
        let text = format!(
            "edition 1;\nuse core::*;\nuse nn::*;\nruleset r {{ until = fixpoint; }}\n\
             op evens<T: float>(x: T[..s, n]) -> T[..s, n]\n\
               = concat(slice(relu(x), axis = len(s), start = 0, stop = n / 2),\n\
                 slice(relu(x), axis = len(s), start = n / 2, stop = n), axis = len(s)) {requires}\n\
             rule r::evens: relu(x: T[..s, n]) => evens(x) requires dtype(x) in {{f32, f64}}{guard};\n"
        );
        let program = compile("evens.hyp", &text);
        let report = verify(&program, &|o| o.file == "evens.hyp", &Options::default(), &mut |_, _, _| {});
        let rule = report.entries.iter().find(|e| e.name == "r::evens").unwrap().clone();
        (report, rule.status)
    };
    let (report, status) = check(";", "");
    let Status::Undefined(c) = status else { panic!("{}", report.to_text()) };
    assert!(c.message.contains("in the body of `evens`") && c.test.contains("evens(x)"), "{}", report.to_text());
    assert!(report.to_text().ends_with(", 1 undefined\n") && !report.passed(), "{}", report.to_text());
    let (report, status) = check("{ requires n % 2 == 0; }", "");
    assert!(matches!(status, Status::False(_)), "{}", report.to_text());
    let (report, status) = check("{ requires n % 2 == 0; }", ", n % 2 == 0");
    assert!(status == Status::Verified && report.passed(), "{}", report.to_text());
}

/// Whether a mutant drops a guard that no instance violates.
fn follows(program: &Arc<Program>, rule: &Rule, mutant: &Mutant, options: &Options) -> bool {
    let dropped =
        rule.requires.iter().enumerate().position(|(i, _)| mutant.change == format!("guard {} dropped", i + 1));
    dropped.is_some_and(|i| guard_need(program, rule, i, options) == Need::Implied)
}

/// Which lines of the list of equivalent mutants drop a guard that always holds, so that nobody
/// need list them.
#[test]
#[ignore = "a tool"]
fn guards_that_need_no_line() {
    let program = hypatia_library::load(&[]).unwrap();
    let list = std::fs::read_to_string(folder("equivalent_mutants.txt")).unwrap();
    for line in list.lines().filter(|l| l.contains(": guard ")) {
        let (name, rest) = line.split_once(": guard ").unwrap();
        let number: usize = rest.split(' ').next().unwrap().parse().unwrap();
        let Some(rule) = program.rules.iter().find(|r| r.name == name) else { continue };
        let need = guard_need(&program, rule, number - 1, &Options { cases: 60, seed: 7 });
        println!("{need:?} {line}");
    }
}

/// The number of members of a family that are mutated: the others differ only in a name.
const MEMBERS: usize = 2;

/// What becomes of a mutant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Some instance tells it from the rule.
    Noticed,
    /// It drops a guard that follows from types and shapes.
    Implied,
    /// The list says that it is equivalent, and no instance contradicts.
    Listed,
    /// The list says that it is equivalent, but some instance tells it from the rule.
    Needless,
    /// No instance tells it from the rule.
    Survives,
}

/// The fates of all mutants of these rules, by their names; all cores share the rules.
fn fates(program: &Arc<Program>, rules: &[&Rule], listed: &(dyn Fn(&str) -> bool + Sync)) -> Vec<(String, Fate)> {
    let (options, longer) = (Options { cases: 60, seed: 7 }, Options { cases: 600, seed: 8 });
    let fate = |rule: &Rule, mutant: &Mutant, id: &str| {
        let noticed = |o: &Options| first_failure(program, &mutant.rule, o).is_some();
        match (listed(id), noticed(&options)) {
            (true, true) => Fate::Needless,
            (true, false) => Fate::Listed,
            (false, true) => Fate::Noticed,
            (false, false) if follows(program, rule, mutant, &options) => Fate::Implied,
            // What survives the first check gets a longer one: some are wrong on few instances.
            (false, false) if noticed(&longer) => Fate::Noticed,
            (false, false) => Fate::Survives,
        }
    };
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(rule) = rules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for mutant in mutants(program, rule) {
                        let id = format!("{}: {}", rule.name, mutant.change);
                        let fate = fate(rule, &mutant, &id);
                        found.lock().unwrap().push((id, fate));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

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
    // Mutants of one rule only: HYPATIA_MUTANTS=canon::relu cargo test -p hypatia-tests mutants
    let only = std::env::var("HYPATIA_MUTANTS").ok();
    let mut members: BTreeMap<&str, usize> = BTreeMap::new();
    let mut rules: Vec<&Rule> = Vec::new();
    for rule in program.rules.iter().filter(|r| only.as_ref().is_none_or(|o| r.name.starts_with(o.as_str()))) {
        let count = members.entry(&rule.base_name).or_default();
        *count += 1;
        if *count <= MEMBERS {
            rules.push(rule);
        }
    }
    let fates = fates(&program, &rules, &|id| equivalent.contains_key(id));
    let count = |fate: Fate| fates.iter().filter(|(_, f)| *f == fate).count();
    let (killed, implied) = (count(Fate::Noticed), count(Fate::Implied));
    let listed: BTreeSet<&String> = fates.iter().filter(|(_, f)| *f == Fate::Listed).map(|(id, _)| id).collect();
    let survivors: Vec<String> = fates
        .iter()
        .filter_map(|(id, fate)| match fate {
            Fate::Survives => Some(id.clone()),
            Fate::Needless => Some(format!("{id}: on the list, but it is noticed")),
            _ => None,
        })
        .collect();
    println!("{killed} mutants noticed, {} equivalent, {implied} without a guard that always holds", listed.len());
    assert!(
        survivors.is_empty(),
        "{} mutants survive, or should not stand in the list:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
    let stale: Vec<&String> = equivalent.keys().filter(|id| !listed.contains(id)).collect();
    if !stale.is_empty() {
        println!("no longer mutants, remove them from the list: {stale:?}");
    }
    assert!(killed >= 20 || only.is_some(), "only {killed} mutants");
}
