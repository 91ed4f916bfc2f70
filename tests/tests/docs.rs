//! Every `hyp` block of the documentation compiles without a diagnostic.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use hypatia_dsl::compile::compile;
use hypatia_dsl::source::SourceFile;

/// The fenced blocks of that language, with the line on which each starts.
fn blocks(markdown: &str, language: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut current: Option<(usize, String)> = None;
    for (i, line) in markdown.lines().enumerate() {
        match (&mut current, line.strip_prefix("```")) {
            (Some(_), Some(_)) => out.extend(current.take().filter(|(_, t)| !t.is_empty())),
            (None, Some(tag)) if tag.trim() == language => current = Some((i + 2, String::new())),
            (None, Some(_)) => current = Some((i + 2, String::new())).filter(|_| false),
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    out
}

#[test]
fn blocks_of_the_language_page_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("docs/language.md")).unwrap();
    let blocks = blocks(&page, "hyp");
    assert!(blocks.len() >= 8, "{} blocks found", blocks.len());
    let mut failed = Vec::new();
    for (line, text) in blocks {
        let file =
            SourceFile { name: format!("docs/language.md:{line}"), path: None, text: text.into(), embedded: false };
        let c = compile(vec![file], &hypatia::library::loader());
        if !c.diagnostics.is_empty() {
            failed.push(format!("block at line {line}: {:#?}", c.diagnostics));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
