//! No op or scalar name of the library occurs in Rust outside the import tables: only `.hyp` files
//! define what an op means.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Where the names of a foreign format are mapped to ours.
const IMPORT_TABLES: &str = "runtime/onnx/src/import";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Names that `rules/*.hyp` declare and that are not builtins.
fn declared_names() -> BTreeSet<String> {
    let library = hypatia_library::load(&[]).unwrap();
    let ops = library.ops.iter().map(|o| o.name.clone()).filter(|n| BuiltinOp::from_name(n).is_none());
    let scalars = library.scalars.iter().map(|s| s.name.clone()).filter(|n| BuiltinScalar::from_name(n).is_none());
    ops.chain(scalars).filter(|n| BuiltinOp::from_name(n).is_none() && BuiltinScalar::from_name(n).is_none()).collect()
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// String literals of a file, except in test modules. Doc comments are attributes, which are
/// excluded too.
fn literals(tokens: TokenStream, out: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    let mut skip_next_block = false;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(p) if p.as_char() == '#' => {
                if let Some(TokenTree::Punct(bang)) = tokens.peek()
                    && bang.as_char() == '!'
                {
                    tokens.next();
                }
                if let Some(TokenTree::Group(g)) = tokens.peek()
                    && g.delimiter() == Delimiter::Bracket
                {
                    let text = g.to_string().replace(' ', "");
                    skip_next_block |= text.contains("cfg(test)");
                    tokens.next();
                }
            }
            TokenTree::Group(g) => {
                if g.delimiter() == Delimiter::Brace && skip_next_block {
                    skip_next_block = false;
                } else {
                    literals(g.stream(), out);
                }
            }
            TokenTree::Punct(p) if p.as_char() == ';' => skip_next_block = false,
            TokenTree::Literal(l) => {
                let text = l.to_string();
                if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
                    out.push(inner.to_string());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn names_of_the_library_stand_in_hyp_files_only() {
    let names = declared_names();
    assert!(names.len() > 5, "the library declares ops and scalars: {names:?}");
    let mut files = Vec::new();
    for dir in ["hypatia-dsl/src", "hypatia-macros", "templates/src", "runtime", "python/src"] {
        rust_files(&root().join(dir), &mut files);
    }
    let mut found = Vec::new();
    for file in files.iter().filter(|f| !f.starts_with(root().join(IMPORT_TABLES))) {
        // Modules that contain only tests.
        let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let of_tests =
            |c: std::path::Component<'_>| ["tests", "testing", "benches"].iter().any(|t| c.as_os_str() == *t);
        if file.components().any(of_tests) || ["tests", "testing"].contains(&stem) || stem.ends_with("_tests") {
            continue;
        }
        let mut strings = Vec::new();
        literals(std::fs::read_to_string(file).unwrap().parse().unwrap(), &mut strings);
        for s in strings.iter().filter(|s| names.contains(*s)) {
            found.push(format!("{}: \"{s}\"", file.strip_prefix(root()).unwrap().display()));
        }
    }
    assert!(found.is_empty(), "names of library ops or scalars in Rust:\n{}", found.join("\n"));
}

#[test]
fn the_scan_sees_strings_and_skips_tests_and_comments() {
    let source = r##"
        /// "in a doc comment"
        fn f() { g("seen"); }
        #[cfg(test)]
        mod tests { const S: &str = "in a test"; }
        const T: &str = "seen too";
    "##;
    let mut strings = Vec::new();
    literals(source.parse().unwrap(), &mut strings);
    assert_eq!(strings, ["seen", "seen too"]);
}
