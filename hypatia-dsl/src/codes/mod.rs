//! The table of diagnostic codes: one row per code, with a title, an explanation and two examples.
//!
//! In: a code. Out: what `hypatia explain CODE` prints. Invariant: every code that a stage emits
//! has a row here; rows are sorted by code; a test compiles both examples of every row: the wrong
//! one gives the code, the right one gives nothing.

mod kernels;
mod lints;
mod names;
mod rules;
mod syntax;
mod test_blocks;
mod types;

use crate::diag::Code;

/// One code.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The code.
    pub code: Code,
    /// A few words, lower case, no full stop.
    pub title: &'static str,
    /// Several sentences: what it means, why it matters, what to do.
    pub text: &'static str,
    /// A file that gives this code; empty if no short file can. `edition 1;` and `use core::*;` are
    /// prepended unless it has an edition of its own or is about that.
    pub wrong: &'static str,
    /// The same file, corrected.
    pub right: &'static str,
}

impl Row {
    const fn new(code: u16, title: &'static str, text: &'static str, wrong: &'static str, right: &'static str) -> Row {
        Row { code: Code(code), title, text, wrong, right }
    }
}

/// The rows of all stages, sorted by code.
pub fn all() -> impl Iterator<Item = &'static Row> {
    [syntax::ROWS, names::ROWS, types::ROWS, rules::ROWS, lints::ROWS, kernels::ROWS, test_blocks::ROWS]
        .into_iter()
        .flatten()
}

/// The row of a code.
pub fn find(code: Code) -> Option<&'static Row> {
    all().find(|r| r.code == code)
}

/// What `hypatia explain CODE` prints: title, explanation, wrong and right example.
pub fn explain(code: Code) -> Option<String> {
    let row = find(code)?;
    let mut out = format!("{}: {}\n\n{}\n", row.code, row.title, row.text.trim());
    for (heading, example) in [("Wrong:", row.wrong), ("Right:", row.right)] {
        if !example.is_empty() {
            out.push_str(&format!("\n{heading}\n\n"));
            for line in example.trim_matches('\n').lines() {
                out.push_str(&if line.is_empty() { "\n".to_string() } else { format!("    {line}\n") });
            }
        }
    }
    Some(out)
}

/// An example of a row as a complete file.
pub fn example_file(example: &str) -> String {
    if example.contains("edition") || example.contains("no edition") {
        example.to_string()
    } else {
        format!("edition 1;\nuse core::*;\n{example}")
    }
}

#[cfg(test)]
mod check {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::source::{SourceFile, SourceMap};

    #[test]
    fn rows_are_sorted_and_complete() {
        let rows: Vec<&Row> = all().collect();
        for pair in rows.windows(2) {
            assert!(pair[0].code < pair[1].code, "{} must come before {}", pair[1].code, pair[0].code);
        }
        for row in rows {
            assert!(row.text.len() > 100, "{}: say more", row.code);
            assert!(row.text.lines().all(|l| l.chars().count() <= 110), "{}: wrap at 110 columns", row.code);
            assert!(!row.title.ends_with('.') && !row.title.is_empty(), "{}", row.code);
            assert!(explain(row.code).unwrap().starts_with(&format!("{}: ", row.code)));
        }
    }

    #[test]
    fn syntax_examples_do_what_they_say() {
        let codes = |text: &str| {
            let mut sources = SourceMap::new();
            let text = example_file(text).into();
            let id = sources.add(SourceFile { name: "t.hyp".into(), path: None, text, embedded: false });
            crate::parse::parse(&sources, id).1.iter().map(|d| d.code).collect::<Vec<_>>()
        };
        for row in syntax::ROWS {
            if !row.wrong.is_empty() {
                assert_eq!(codes(row.wrong), [row.code], "{}", row.wrong);
            }
            assert_eq!(codes(row.right), [], "{}: {}", row.code, row.right);
        }
        // The other examples may have further errors, but not in their syntax.
        for row in all().filter(|r| r.code.0 >= 200) {
            assert_eq!(codes(row.wrong), [], "{}: {}", row.code, row.wrong);
            assert_eq!(codes(row.right), [], "{}: {}", row.code, row.right);
        }
    }
}
