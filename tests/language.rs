//! The language from the user's side: files that must compile, files that must be refused with
//! exactly the recorded message, and malformed files.
//!
//! `tests/pass/*.hyp` compile without any diagnostic. Each `tests/fail/NAME.hyp` gives the report
//! in `NAME.expected`; the first part of NAME (up to `-`) is the code that the report must contain.
//! To add a case, add the `.hyp` file, run `UPDATE=1 cargo test -p hypatia-dsl --test language`,
//! and review the generated file. With `UPDATE=1`, a code of the table without a case gets one from
//! its example.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use hypatia_dsl::codes::{self, Row};
use hypatia_dsl::compile::{Compilation, FileLoader, compile};
use hypatia_dsl::diag::{Code, has_errors};
use hypatia_dsl::parse::{MAX_BRACKETS, MAX_DEPTH};
use hypatia_dsl::render::{Format, render, summary};
use hypatia_dsl::source::SourceFile;
use hypatia_templates::Checker;

/// Codes that no single `.hyp` file can trigger, with the test that covers them.
const ELSEWHERE: [(u16, &str); 1] = [(115, "about files that are not there: the command line's tests")];

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

fn loader() -> FileLoader {
    FileLoader { embedded: hypatia_rules::FILES, trees: hypatia_rules::TREES }
}

fn compile_text(text: &str) -> Compilation {
    let file = SourceFile { name: "example.hyp".into(), path: None, text: text.into(), embedded: false };
    compile(vec![file], &loader(), &Checker)
}

/// Compiles a file of this folder under its bare name, so that reports are the same on every
/// machine.
fn compile_file(path: &Path) -> Compilation {
    let mut file = SourceFile::read(path).unwrap();
    file.name = path.file_name().unwrap().to_string_lossy().into_owned();
    compile(vec![file], &loader(), &Checker)
}

fn report(c: &Compilation) -> String {
    let text = render(&c.sources, &c.diagnostics, Format::Full { color: false });
    let folder = format!("{}/", here().join("fail").display());
    without_library_lines(&format!("{text}{}\n", summary(&c.diagnostics)).replace(&folder, ""))
}

/// The report without the library's line numbers, which change with every addition to the library.
fn without_library_lines(report: &str) -> String {
    let mut inside = false;
    let line = |line: &str| {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        let number = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        if line.contains("::: ") || line.is_empty() {
            inside = line.contains("::: <library>/");
        }
        match (inside, line.find(".hyp:")) {
            (true, Some(at)) if line.contains("::: ") => format!("{}\n", &line[..at + 4]),
            (true, _) if number > 0 => format!("{indent}{}{}\n", "N".repeat(number), &text[number..]),
            _ => format!("{line}\n"),
        }
    };
    report.lines().map(line).collect()
}

fn codes_of(c: &Compilation) -> Vec<Code> {
    c.diagnostics.iter().map(|d| d.code).collect()
}

fn files(folder: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(here().join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "hyp"));
    all.sort();
    all
}

fn updating() -> bool {
    std::env::var_os("UPDATE").is_some()
}

#[test]
fn pass() {
    let all = files("pass");
    assert!(!all.is_empty());
    for path in all {
        let c = compile_file(&path);
        assert!(c.diagnostics.is_empty() && c.program.is_some(), "{}:\n{}", path.display(), report(&c));
    }
}

#[test]
fn fail() {
    if updating() {
        for row in codes::all().filter(|r| !r.wrong.is_empty()) {
            let path = here().join(format!("fail/{}.hyp", row.code));
            if !path.exists() {
                std::fs::write(path, codes::example_file(row.wrong) + "\n").unwrap();
            }
        }
    }
    let mut wrong = Vec::new();
    for path in files("fail") {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let code = Code::parse(name.split('-').next().unwrap()).unwrap_or_else(|| panic!("{name} names no code"));
        let c = compile_file(&path);
        let found = report(&c);
        let golden = path.with_extension("expected");
        if updating() {
            std::fs::write(&golden, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        if expected != found {
            wrong.push(format!("{name}: expected\n{expected}\nfound\n{found}"));
        }
        if !codes_of(&c).contains(&code) {
            wrong.push(format!("{name}: does not give {code}:\n{found}"));
        }
        // Every error says what to write instead.
        let starts = |word: &str| found.lines().filter(|l| l.starts_with(word) && l.contains("[H")).count();
        let hints = found.lines().filter(|l| l.contains("= help: ")).count();
        if hints < starts("error") + starts("warning") {
            wrong.push(format!("{name}: a message without a hint:\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{} differ; run with UPDATE=1 and read the changes", wrong.join("\n"), wrong.len());
}

#[test]
fn every_code_has_a_case_and_every_case_a_code() {
    let cases: Vec<String> = files("fail")
        .iter()
        .map(|p| p.file_stem().unwrap().to_string_lossy().split('-').next().unwrap().to_string())
        .collect();
    let elsewhere = |code: Code| ELSEWHERE.iter().any(|(c, _)| *c == code.0);
    let missing: Vec<Code> =
        codes::all().map(|r| r.code).filter(|c| !elsewhere(*c) && !cases.contains(&c.to_string())).collect();
    assert!(missing.is_empty(), "no case in tests/fail for {missing:?}");
    for case in cases {
        let code = Code::parse(&case).unwrap();
        assert!(codes::find(code).is_some(), "{case} is not in the table of codes");
    }
    // The codes in the source, written `Code(304)`, must match the table.
    let known: Vec<u16> = codes::all().map(|r| r.code.0).collect();
    for (path, number) in emitted() {
        assert!(known.contains(&number), "{} emits H{number:04}, which is not in the table", path.display());
    }
}

/// All `Code(n)` in the sources, except the table itself.
fn emitted() -> Vec<(PathBuf, u16)> {
    let mut folders =
        vec![here().join("../hypatia-dsl/src"), here().join("../runtime"), here().join("../templates/src")];
    let mut out = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for part in text.split("Code(").skip(1) {
                    if let Some((number, _)) = part.split_once(')')
                        && let Ok(number) = number.parse()
                    {
                        out.push((path.clone(), number));
                    }
                }
            }
        }
    }
    assert!(out.len() > 20, "the scan finds nothing");
    out
}

#[test]
fn the_examples_of_the_table_do_what_they_say() {
    let problem = |row: &Row| {
        let wrong = codes_of(&compile_text(&codes::example_file(row.wrong)));
        let right = compile_text(&codes::example_file(row.right));
        let several_files = row.wrong.contains(".hyp");
        if !row.wrong.is_empty() && !several_files && !wrong.contains(&row.code) {
            return Some(format!("{}: the wrong example gives {wrong:?}", row.code));
        }
        // A short example may contain unused declarations: only its own code and errors count.
        let bad = has_errors(&right.diagnostics) || codes_of(&right).contains(&row.code);
        bad.then(|| format!("{}: the right example is not:\n{}", row.code, report(&right)))
    };
    let problems: Vec<String> = codes::all().filter_map(problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The checker reports exactly the code of an example and nothing else.
#[test]
fn the_examples_of_the_checker_show_one_mistake_each() {
    let mut wrong = Vec::new();
    for row in codes::all().filter(|r| (200..800).contains(&r.code.0)) {
        for (example, wanted) in [(row.wrong, vec![row.code]), (row.right, vec![])] {
            let found = codes_of(&compile_text(&codes::example_file(example)));
            if !example.is_empty() && found != wanted {
                wrong.push((row.code, example, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The blocks of a page that are marked `hyp`.
fn blocks(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(here().join("..").join(page)).unwrap();
    text.split("```hyp\n").skip(1).map(|part| part.split("```").next().unwrap().to_string()).collect()
}

#[test]
fn the_documentation_compiles() {
    let (language, readme) = (blocks("docs/language.md"), blocks("README.md"));
    assert!(language.len() > 5 && !readme.is_empty());
    for block in language.iter().chain(&readme) {
        let c = compile_text(block);
        assert!(!has_errors(&c.diagnostics), "{block}\n{}", report(&c));
    }
    // Examples for readers compile without any diagnostic and are formatted.
    for block in language.iter().chain(&readme) {
        let c = compile_text(block);
        assert!(c.diagnostics.is_empty(), "{block}\n{}", report(&c));
        assert_eq!(hypatia_dsl::fmt::format(block), *block);
    }
}

#[test]
fn the_library_compiles() {
    let roots = hypatia_rules::FILES.iter().map(|(name, text)| SourceFile::library(name, text)).collect();
    let c = compile(roots, &loader(), &Checker);
    assert!(c.diagnostics.is_empty() && c.program.is_some(), "{}", report(&c));
}

#[test]
fn two_mistakes_in_one_file_are_both_told() {
    let c = compile_text("edition 1;\nuse core::*;\nscalar f(x) = x + ;\nscalar g(x) = (x;\nscalar h(x) = x;\n");
    assert_eq!(codes_of(&c), [Code(101), Code(104)], "{}", report(&c));
}

#[test]
fn absurd_files_are_refused() {
    let n = 10_000;
    let deep = |open: &str, close: &str| format!("edition 1;\nscalar f(x) = {}x{};", open.repeat(n), close.repeat(n));
    let cases = [
        ("\u{0}\u{0}".to_string(), 102),
        ("edition 1;\n\u{0}\n".to_string(), 106),
        ("// ".to_string() + &"x".repeat(2 << 20), 108),
        (deep("(", ")"), 107),
        (deep("-", ""), 107),
        (deep("not ", ""), 107),
        (deep("", " + x"), 107),
        (deep("f(", ")"), 107),
        (format!("edition 1;\nscalar f(x) = max({}x);", "1,".repeat(40 * n)), 108),
        (format!("edition 1;\nscalar f(x) = {};", "9".repeat(n)), 109),
        (format!("edition 1;\nscalar f(x) = {}", "(".repeat(n)), 104),
        (format!("edition {};", "9".repeat(n)), 103),
    ];
    for (text, code) in cases {
        let c = compile_text(&text);
        let found = report(&c);
        assert!(codes_of(&c).contains(&Code(code)), "H{code:04}: {}", &found[..found.len().min(2000)]);
        assert!(found.len() < 10_000, "H{code:04}: a report of {} bytes", found.len());
        assert!(c.program.is_none());
    }
    // At the maximum depth, no stage may overflow the small stack of a test's thread.
    let (brackets, depth) = (MAX_BRACKETS - 3, MAX_DEPTH as usize - 3);
    for body in [
        format!("{}x{}", "(".repeat(brackets), ")".repeat(brackets)),
        format!("{}x{}", "exp(".repeat(brackets), ")".repeat(brackets)),
        format!("{}x", "-".repeat(depth)),
        format!("x{}", " + x".repeat(depth)),
        format!("x{}", " ** x".repeat(depth)),
    ] {
        let c = compile_text(&format!("edition 1;\nuse core::*;\nscalar f(x) = {body};\n"));
        assert!(c.program.is_some(), "{}", report(&c));
    }
    // Long but correct.
    let names: Vec<String> = (0..1_000).map(|i| format!("scalar plus_{i}(x) = x + {i};")).collect();
    let c = compile_text(&format!("edition 1;\nuse core::*;\n{}\n", names.join("\n")));
    assert!(c.program.is_some(), "{}", report(&c));
}

/// Requires only that compilation terminates and gives a report that can be rendered.
fn survives(text: &str) {
    let c = compile_text(text);
    let _ = report(&c);
    assert!(c.program.is_some() || !c.diagnostics.is_empty(), "refused without a reason");
}

#[test]
fn cut_files_are_no_danger() {
    for (_, text) in hypatia_rules::FILES {
        // An odd step of about a thirtieth of the text: no period of the text hits every cut, and
        // there are few enough cuts to be quick.
        let step = (text.len() / 30).max(23) | 1;
        for end in (0..text.len()).step_by(step).filter(|i| text.is_char_boundary(*i)) {
            survives(&text[..end]);
            if end % 5 == 0 {
                survives(&format!("edition 1;\n{}", &text[end..]));
            }
        }
    }
}

#[test]
fn flipped_files_are_no_danger() {
    let mut state = 42u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) as usize) % n
    };
    for (_, text) in hypatia_rules::FILES {
        for round in 0..12 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..1 + round % 4 {
                let at = below(bytes.len());
                match below(4) {
                    0 => bytes[at] = below(256) as u8,
                    1 => bytes[at] = b"(){}[]<>=-+*/;:,.@|~?\"_09az \n\0"[below(30)],
                    2 => drop(bytes.remove(at)),
                    _ => {
                        // Two bytes swapped: a character where another belongs.
                        let other = below(bytes.len());
                        bytes.swap(at, other);
                    }
                }
            }
            survives(&String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn a_byte_order_mark_and_crlf_are_fine() {
    let text = "\u{feff}edition 1;\nuse core::*;\n/// doc\nscalar f(x) = x + 1;\n".replace('\n', "\r\n");
    let c = compile_text(&text);
    assert!(c.program.is_some(), "{}", report(&c));
}

/// Runs the cases on all cores.
fn each_survives(cases: &[Vec<u8>]) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        while let Some(bytes) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            survives(&String::from_utf8_lossy(bytes));
        }
    };
    std::thread::scope(|s| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(s.spawn(work)));
    });
}

/// A file truncated after every byte, started at every byte, with each byte removed, and with each
/// byte replaced.
#[test]
fn every_byte_may_be_missing_or_wrong() {
    let text = SMALL.as_bytes();
    let c = compile_text(SMALL);
    assert!(c.program.is_some() && c.diagnostics.is_empty(), "{}", report(&c));
    let wrong = b"(){}[]<>=-+*/;:,.@|~?\"_09az \n\0\xff";
    let mut cases = Vec::new();
    for at in 0..text.len() {
        cases.push(text[..at].to_vec());
        cases.push([b"edition 1;\nuse core::*;\n", &text[at..]].concat());
        cases.push([&text[..at], &text[at + 1..]].concat());
        let mut flipped = text.to_vec();
        flipped[at] = if at % 3 == 0 { text[at] ^ (1 << (at % 8)) } else { wrong[at % wrong.len()] };
        cases.push(flipped);
    }
    each_survives(&cases);
}

/// A file of which every byte is tried: it uses only `core`, so that each attempt is quick.
const SMALL: &str = "edition 1;
use core::*;
ruleset r { until = fixpoint; }
scalar g(x) = if x > 0 then x else -x / 2.5e1; // kept
op norm<T: float>(x: T[..s, n], w: T[n]?, eps: float = 1e-5) -> T[..s, n]
  = x * rsqrt(mean(x * x, axes = [-1]) + eps) * (w else 1);
kernel norm_k for norm(x, w?, eps = eps) { rowwise; requires dim(x, -1) <= 8192; }
pattern sq(x) = mul(x, x) | pow(x, 2.0 ~ 1e-3);
rule r::twice: transpose(transpose(x, perm = p), perm = q) => transpose(x, perm = [p[i] for i in q])
  requires len(p) == len(q) class exact;
rule r::squares[f in {abs, neg}]: sq(f(x: T[..s])) => x * x let n = rank(x) requires n > 0 class rounds for f32;
test \"t\" { input x: f32[2, 3] = 1; given norm(x, none); expect launches == 1; expect equal x * 1.0; }
";

/// A megabyte on one line is read or refused quickly, whatever it contains.
#[test]
fn a_line_of_a_megabyte_is_no_danger() {
    // Superlinear time would take minutes; the limit allows for a busy machine.
    let limit = 60;
    let letters = [
        " ", ";", "(", ")", "[", "{", "}", "\"", "\\", "x", "9", "9.", "-", "not ", "::", "..", "@", "\0", "\u{fffd}",
        "\u{e9}", "\r",
    ];
    // Whole items are too slow for a full megabyte in a test.
    let items = ["use core::*; ", "edition 1; ", "scalar f(x) = x; "];
    let letters = letters.iter().map(|part| (part, 1 << 20));
    for (part, size) in letters.chain(items.iter().map(|part| (part, 1 << 17))) {
        let start = std::time::Instant::now();
        survives(&format!("edition 1; use core::*; {}", part.repeat(size / part.len() - 100)));
        assert!(start.elapsed().as_secs() < limit, "{part:?} takes {:?}", start.elapsed());
    }
}

/// Every item may end after any of its bytes, and each of its words may be missing or duplicated.
#[test]
fn an_item_cut_anywhere_is_no_danger() {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    for item in EVERYTHING.split("\n\n") {
        let file = |text: &str| survives(&format!("edition 1;\n{text}"));
        (0..item.len()).filter(|i| item.is_char_boundary(*i)).for_each(|end| file(&item[..end]));
        let bytes = item.as_bytes();
        let between = |i: &usize| !(word(bytes[i - 1]) && word(bytes[*i]));
        let cuts: Vec<usize> = [0].into_iter().chain((1..bytes.len()).filter(between)).chain([bytes.len()]).collect();
        for token in cuts.windows(2) {
            let (before, word, after) = (&item[..token[0]], &item[token[0]..token[1]], &item[token[1]..]);
            if !word.trim().is_empty() {
                file(&format!("{before}{after}"));
                file(&format!("{before}{word} {word}{after}"));
            }
        }
    }
}

/// One of each item, including rare constructs. They use no other file, so that they are read
/// quickly.
const EVERYTHING: &str = "//! All.
ruleset r { until = fixpoint; nodes = 20 * graph; steps = 9; }

scalar add(a, b) builtin grad 1, 1;

scalar f(x, c: bool) = if c then -x + 2.5e-1 else x ** 2 grad x;

family fs = {f, add};

op mm<T: float>(a: T[..s, m, k], b: T[k, n]?, *c: T[..], axis: axis = -1) -> T[..s, m, n]
  = add(a, b else 0) { flops = 2 * prod(out); requires k % 8 == 0; }

pattern p(x, n) = add(x, n ~ 1e-3) | add(n, f(x, _));

rule r::a[g in fs]: (q @ g(x: T[..s], b?), mm(x, none, axis = a)) => (x, add(x, 1))
  let m = [i + 1 for i in shape(x) if i != 0][0]
  requires const(x), rank(x) in {1, 2}, not (dim(x, -1) == 3)
  prefer uses(x) == 1
  class exact for f64, approx(2e-3, 0) for f16;

kernel k for mm(a, b, ..c) { template \"a.cu\"; requires sm >= 80; tune BM in {64, 128}; launch grid = m; }

test \"t\" on h200 { input x: f32[2, n] = [[1, -2.0]]; const y: bf16[]; given add(x, y); \
  expect launches == 1; expect fires r::a; }
";

#[test]
fn an_embedded_tree_that_does_not_fit_its_text_is_an_error() {
    const EDITED: &[(&str, &str)] = &[("core", "edition 1;\nscalar f(x) = x;\n")];
    let file = SourceFile { name: "user.hyp".into(), path: None, text: "edition 1;\n".into(), embedded: false };
    let c = compile(vec![file], &FileLoader { embedded: EDITED, trees: hypatia_rules::TREES }, &Checker);
    assert!(codes_of(&c).contains(&Code(206)) && c.program.is_none(), "{}", report(&c));
    assert!(report(&c).contains("a different text"), "{}", report(&c));
}
