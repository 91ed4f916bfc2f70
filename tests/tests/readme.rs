//! The README shows what is in the repository: its rules and its program are files that are tested
//! and run, and each file that it names exists.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    page.split(&open).skip(1).map(|part| part.split("```").next().unwrap().to_string()).collect()
}

#[test]
fn its_blocks_are_files() {
    let page = read("README.md");
    assert_eq!(blocks(&page, "hyp"), [read("examples/rules/gated.hyp")]);
    let program = read("examples/src/bin/gated.rs");
    let [shown] = &blocks(&page, "rust")[..] else { panic!("one Rust program") };
    assert!(program.starts_with("//!") && program.ends_with(shown.as_str()), "another program:\n{shown}");
}

#[test]
fn the_files_it_names_exist() {
    let page = read("README.md");
    let links = page.split("](").skip(1).map(|part| part.split([')', '#']).next().unwrap());
    let local: Vec<&str> = links.filter(|l| !l.is_empty() && !l.starts_with("http")).collect();
    let words = page.split([' ', '\n', '`', '(', ')', ':']);
    let tested = words.filter(|w| w.starts_with("tests/") || w.starts_with("examples/"));
    let missing: Vec<&str> = local.into_iter().chain(tested).filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
