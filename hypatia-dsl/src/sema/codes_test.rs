//! The examples of the code table do what they say.
#![allow(clippy::unwrap_used)]

use crate::codes::{all, example_file};
use crate::compile::{FileLoader, compile};
use crate::diag::Code;
use crate::source::SourceFile;

use super::library_test::FILES;

/// The codes that a file gives, those of the library left out.
pub(super) fn codes_of(text: &str) -> Vec<Code> {
    let root = SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false };
    let c = compile(vec![root], &FileLoader { embedded: FILES, trees: &[] });
    for d in &c.diagnostics {
        println!("{} {} | {} {:?}", d.code, d.message, d.primary.text, d.notes);
    }
    c.diagnostics.iter().map(|d| d.code).collect()
}

#[test]
fn examples_do_what_they_say() {
    let mut bad = Vec::new();
    for row in all().filter(|r| r.code.0 >= 200 && r.code.0 < 800) {
        for (example, wanted) in [(row.wrong, vec![row.code]), (row.right, vec![])] {
            if example.is_empty() {
                continue;
            }
            println!("---- {} {example}", row.code);
            let have = codes_of(&example_file(example));
            if have != wanted {
                bad.push((row.code, example, have));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn every_code_has_a_row() {
    for code in super::code::ALL {
        assert!(all().any(|r| r.code == *code), "{code} has no row");
    }
}
