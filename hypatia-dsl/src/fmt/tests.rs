#![allow(clippy::unwrap_used)]

use super::*;
use crate::source::{SourceFile, SourceMap};

/// The tree without its spans.
fn tree(text: &str) -> String {
    let mut sources = SourceMap::new();
    let id = sources.add(SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false });
    let (file, diagnostics) = crate::parse::parse(&sources, id);
    assert_eq!(diagnostics, [], "{text}");
    let comments: Vec<&String> = file.comments.iter().map(|c| &c.node).collect();
    let mut shown = format!("{:?} {:?} {comments:?} {:?}", file.edition.map(|e| e.node), file.doc, file.items);
    while let Some(at) = shown.find("Span {") {
        let end = shown[at..].find('}').unwrap() + at;
        shown.replace_range(at..=end, "@");
    }
    shown
}

fn check(text: &str) -> String {
    let once = format(text);
    assert_eq!(tree(&once), tree(text), "{once}");
    assert_eq!(format(&once), once, "not stable");
    once
}

/// Names and texts of the library's files.
fn library() -> Vec<(String, String)> {
    let folder = format!("{}/../rules", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "hyp"));
    files.sort();
    files.into_iter().map(|p| (p.display().to_string(), std::fs::read_to_string(&p).unwrap())).collect()
}

/// Every construct of the language.
const ALL: &str = r#"edition 1;
//! Everything.
use a::b::*;
use a::c;
ruleset r { until = fixpoint; nodes = 50 * graph; }
scalar f(x, c: bool) -> bool = if x < 0 then -x else x ** 2 grad 1, 2;
scalar and(a: bool, b: bool) -> bool builtin;
family g = {a, b} | h;
op o<T: {f16, bf16}, U>(x: T[..s, 2 * n], *ys: U[..], b: T[n]?, e: scalar, axis: axis = -1)
  -> (T[..broadcast(s, t)], *U[..]) = (x, y) { flops = 2 * n; requires n % 8 == 0, n > 0; }
op p(x: _[..]) -> i64[] { builtin; }
op s(x: f32[..s], w: f32[..s]) -> f32[..s] = x * w / t let t = sum(x, axes = [-1])
  grad(y, dy) = (dy * w / t - y, dy * x / t) let u = t;
pattern q(x, y) = mul(x, x) | pow(x, 2.0 ~ 1e-3) | cast?(x);
rule r::one[g in unary, h: pointwise, k in {a, b}]: (q @ m(x, w: T[..s, k]).0, n(_, none, b?, ..rest, axis = -1))
  <=> (z[i][0], split([..a, b, ..], [e for x in l if x not in m])) let a = dim(x, 0), b = 2 let c = 3
  requires not a == b, c or d and e prefer uses(x) == 1 class exact for f64, f32, approx(3e-2, 0) for bf16;
rule r::two: round<f16>(x) - -y => (b else 0) * (x + y) * true - inf / nan;
kernel k for o(x, b?) { template "a \"b\".j2"; requires sm == 90; tune BM in {64, 128};
  launch grid = a, block = [1, 2]; class rounds; x = 1; }
kernel l for gemm(a, b, gelu(acc + in(t))) { cublaslt GELU; }
kernel m for n(x) { pointwise; }
test "a" on h200 {
  input x: f32[2, n] = [[1.0, -2.0], [3, 4]]; const y: f32[] = 1;
  given x + y, z; expect launches == 1; expect error H0304; expect fires r::one; expect not fires r::two;
  expect equal x; expect becomes (x) + y;
}
"#;

#[test]
fn the_library_is_formatted() {
    for (name, text) in library() {
        assert!(check(&text) == text, "{name} is not formatted: run `hypatia fmt rules`");
    }
}

#[test]
fn every_construct() {
    insta::assert_snapshot!(check(ALL));
}

/// Bounds in units in the last place become relative ones, of the coarsest type that they are for.
#[test]
fn units_become_relative_bounds() {
    let claimed = |class: &str| format!("ruleset r {{}}\nrule r::a: x => x class {class};\n");
    for (old, new) in [
        ("approx(8) for f32", "approx(1e-6, 0) for f32"),
        ("approx(4)", "approx(4.8e-7, 0)"),
        ("approx(2) for f32, f16, rounds for f64", "approx(2e-3, 0) for f32, f16, rounds for f64"),
        ("exact for f64, approx(0) for f16", "exact for f64, approx(0, 0) for f16"),
        ("approx(1e-6, 0)", "approx(1e-6, 0)"),
        // A relative bound whose other one was forgotten.
        ("approx(1e-3)", "approx(1e-3)"),
    ] {
        let formatted = format(&claimed(old));
        assert!(formatted.contains(&format!("class {new};")), "{old}: {formatted}");
        assert_eq!(format(&formatted), formatted);
    }
    let call = "scalar f(x) = approx(4);\n";
    assert_eq!(format(call), call);
}

#[test]
fn comments_and_empty_lines_stay_where_they_belong() {
    let text = "// top\nedition 1; // first\n\n\n\nuse a::*;\n;;// spare\n/// doc\nscalar f(x) = // why\n  \
                x // x\n  // own line\n  + 1; // end\nkernel k for f(x) { // open\n\n// before\npointwise; // way\n\n\n\
                class exact;\n// last\n}\n// bottom";
    insta::assert_snapshot!(check(text));
}

/// A small pseudo-random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

/// The same tokens with different white space, and comments in between.
fn shaken(text: &str, random: &mut Random) -> String {
    let mut out = String::new();
    let mut before = 0;
    for token in crate::parse::scan::tokens(text) {
        let gap = &text[before as usize..token.start as usize];
        before = token.end;
        let comment_before = out.ends_with("\u{0}");
        out.push_str(&gap.replace(|c: char| !c.is_whitespace(), ""));
        if !gap.is_empty() && !comment_before {
            match random.below(12) {
                0 => out.push('\n'),
                1 => out.push_str("\n\n  \n"),
                2 => out.push_str("  // trailing\n"),
                3 => out.push_str("\n // own line\n"),
                4 => out.push_str("\t "),
                _ => {}
            }
        }
        out.push_str(token.text(text));
    }
    out
}

#[test]
fn formatting_is_stable_whatever_the_white_space() {
    let library = library();
    for seed in 0..25 {
        let mut random = Random(seed);
        check(&shaken(ALL, &mut random));
        check(&shaken(&library[seed as usize % library.len()].1, &mut random));
    }
}

fn expression(random: &mut Random, depth: usize) -> String {
    let sub = |r: &mut Random| expression(r, depth - 1);
    if depth == 0 {
        return ["x", "longer_name", "2.5", "1e-5", "_", "none", "a::b", "\"s\""][random.below(8)].into();
    }
    match random.below(12) {
        0..4 => {
            let op = ["+", "-", "*", "/", "%", "**", "and", "or", "in", "not in"][random.below(10)];
            format!("({}) {op} {}", sub(random), sub(random))
        }
        4 => format!("-({})", sub(random)),
        5 => format!("f({}, axis = {})", sub(random), sub(random)),
        6 => format!("[{}, ..{}]", sub(random), sub(random)),
        7 => format!("[{} for i in ({})]", sub(random), sub(random)),
        8 => format!("(if {} then {} else {})", sub(random), sub(random), sub(random)),
        9 => format!("v @ g({}, {})[{}]", sub(random), sub(random), sub(random)),
        10 if depth > 1 => format!("({} else {})", sub(random), sub(random)),
        10 => format!("(not ({}))", sub(random)),
        _ => format!("{{{}, {}}}", sub(random), sub(random)),
    }
}

#[test]
fn a_comment_in_front_of_a_clause_breaks_nothing() {
    let text = "edition 1;\nrule a::b: x + 0 => x\n  // why\n  requires rank(x) > 1, n > 2\n  // where\n  class \
                exact;\n";
    assert_eq!(check(text), text);
}

#[test]
fn formatting_is_stable_for_made_up_expressions() {
    for seed in 0..100 {
        let mut r = Random(seed);
        let depth = 1 + r.below(5);
        let (a, b) = (expression(&mut r, depth), expression(&mut r, depth));
        check(&format!("edition 1;\nrule a::b: {a} => {b} requires {a}, {b};\nop f(x: T[n]) -> T[n] = {a};\n"));
    }
}

#[test]
fn a_million_spare_semicolons_take_no_time() {
    let started = std::time::Instant::now();
    let text = format!("edition 1;{}\nscalar f(x) = x;", ";".repeat(1_000_000));
    assert_eq!(format(&text), "edition 1;\nscalar f(x) = x;\n");
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
