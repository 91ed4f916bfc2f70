#![allow(clippy::unwrap_used)]

use super::*;
use crate::source::SourceFile;

fn run(text: &str) -> (File, Vec<Diagnostic>) {
    let mut sources = SourceMap::new();
    let id = sources.add(SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false });
    parse(&sources, id)
}

#[test]
fn the_library_parses() {
    for name in ["core", "nn", "fuse"] {
        let path = format!("{}/../rules/{name}.hyp", env!("CARGO_MANIFEST_DIR"));
        let (file, diagnostics) = run(&std::fs::read_to_string(path).unwrap());
        assert_eq!(diagnostics, []);
        assert!(file.items.len() > 5);
    }
}

/// Sources that must give exactly one diagnostic each, with its code.
#[test]
fn each_mistake_is_one_error_in_plain_words() {
    let cases = [
        ("rule a: f(x) = g(x);", 113),
        ("rule a: f(x) -> g(x);", 113),
        ("rule a: f(x) => g(x) requires x = y;", 113),
        ("rule a: f(x) => g(x) requires x && y;", 106),
        ("rule a: f(x) => g(x) requirse x;", 101),
        ("rule a: f(x) => g(x)", 112),
        ("rule a: f(x => g(x);", 104),
        ("rule a: f(x]) => g(x);", 104),
        ("rule a: f(x)) => g(x);", 104),
        ("rul a: f(x) => g(x);", 111),
        ("scalar f(x) = 2x;", 109),
        ("scalar f(x) = 1e999;", 109),
        ("scalar f(x) = 99999999999999999999;", 109),
        ("scalar f(x) = a < b < c;", 110),
        ("scalar f(x) = \"abc;", 105),
        ("scalar f(x) = x +;", 101),
        ("scalar f(x) => x;", 113),
        ("scalar if(x) = x;", 101),
        ("op f(x: T[n]) = x;", 113),
        ("kernel k for f(x) { pointwse; }", 101),
        ("test \"a\" { input x: f32[1] given x; }", 101),
        ("test \"a\" { input x: f32[1]\n given x; }", 112),
        ("/* x */ scalar f(x) = x;", 106),
        ("use core;", 101),
        ("scalar f(x, = x;", 104),
        ("rule a: x y => z;", 101),
    ];
    for (text, code) in cases {
        let (_, diagnostics) = run(&format!("edition 1;\n{text}\nscalar ok(x) = x;"));
        println!("{text}\n{diagnostics:#?}\n");
        assert_eq!(diagnostics.iter().map(|d| d.code.0).collect::<Vec<_>>(), [code], "{text}");
    }
}

#[test]
fn the_edition_comes_first() {
    let codes = |text: &str| run(text).1.iter().map(|d| d.code.0).collect::<Vec<_>>();
    assert_eq!(codes(""), [102]);
    assert_eq!(codes("scalar f(x) = x;"), [102]);
    assert_eq!(codes("scalar f(x) = x; edition 1;"), [102]);
    assert_eq!(codes("edition 2;"), [103]);
    assert!(codes("\u{feff}edition 1;\r\nscalar f(x) = x;\r\n").is_empty());
}

#[test]
fn two_broken_items_are_both_reported_and_the_others_kept() {
    let (file, diagnostics) =
        run("edition 1;\nscalar f(x) = ;\nscalar g(x) = x;\nrule a: b(x => c;\nscalar h(x) = x;\n");
    assert_eq!(diagnostics.len(), 2);
    assert_eq!(file.items.len(), 2);
}

#[test]
fn depth_is_bounded_whatever_makes_it() {
    let n = 8_000;
    let half = MAX_DEPTH as usize / 2;
    let brackets = limits::MAX_BRACKETS - 2;
    let of = |body: String| run(&format!("edition 1;\nscalar f(x) = {body};")).1;
    for body in [
        format!("{}x{}", "(".repeat(n), ")".repeat(n)),
        format!("x{}", " + x".repeat(n)),
        format!("x{}", " ** x".repeat(n)),
        format!("{}x", "- ".repeat(n)),
        format!("{}x", "not ".repeat(n)),
        format!("x{}", "[0]".repeat(n)),
        format!("x{}", ".0".repeat(n)),
        format!("{}x", "x @ ".repeat(n)),
        format!("{}x{}", "if x then ".repeat(n), " else x".repeat(n)),
        format!("x{}", " else x".repeat(n)),
    ] {
        assert_eq!(of(body).iter().map(|d| d.code.0).collect::<Vec<_>>(), [107]);
    }
    // Nesting just below the limit must not overflow the small stack of a test thread.
    for body in [
        format!("{}x{}", "(".repeat(brackets), ")".repeat(brackets)),
        format!("{}x{}", "[".repeat(brackets), "]".repeat(brackets)),
        format!("{}x{}", "f(".repeat(brackets), ")".repeat(brackets)),
        format!("x{}", " + x".repeat(half)),
        format!("{}x", "- ".repeat(half)),
        format!("[{}]", "x, ".repeat(10_000)),
    ] {
        assert_eq!(of(body), []);
    }
}

#[test]
fn operators_bind_as_documented() {
    let body = |text: &str| {
        let (file, diagnostics) = run(&format!("edition 1;\nscalar f(x) = {text};"));
        assert_eq!(diagnostics, []);
        let ItemKind::Scalar(s) = file.items.into_iter().next().unwrap().kind else { panic!() };
        show(&s.body.unwrap())
    };
    assert_eq!(body("a + b * c ** -d"), "(a Add (b Mul (c Pow (Neg d))))");
    assert_eq!(body("-a ** 2"), "(Neg (a Pow 2))");
    assert_eq!(body("a - b - c"), "((a Sub b) Sub c)");
    assert_eq!(body("a ** b ** c"), "(a Pow (b Pow c))");
    assert_eq!(body("not a == b and c or d"), "(((Not (a Eq b)) And c) Or d)");
    assert_eq!(body("a not in b"), "(a NotIn b)");
    assert_eq!(body("a else b + 1"), "(a else (b Add 1))");
}

use crate::ast::{Expr, ExprKind, ItemKind};

fn show(e: &Expr) -> String {
    match &e.kind {
        ExprKind::Path(p) => p.text(),
        ExprKind::Number { value, .. } => value.to_string(),
        ExprKind::Unary(op, a) => format!("({op:?} {})", show(a)),
        ExprKind::Binary(op, a, b) => format!("({} {op:?} {})", show(a), show(b)),
        ExprKind::Else(a, b) => format!("({} else {})", show(a), show(b)),
        other => format!("{other:?}"),
    }
}
