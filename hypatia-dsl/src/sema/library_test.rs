//! The embedded library compiles.
#![allow(clippy::unwrap_used)]

use crate::compile::{FileLoader, compile};
use crate::program_print::{show_kernel, show_rule};
use crate::source::SourceFile;

pub(super) const FILES: &[(&str, &str)] = &[
    ("core", include_str!("../../../rules/core.hyp")),
    ("nn", include_str!("../../../rules/nn.hyp")),
    ("fuse", include_str!("../../../rules/fuse.hyp")),
];

#[test]
fn library_compiles() {
    let roots = FILES
        .iter()
        .map(|(n, t)| SourceFile { name: format!("<library>/{n}.hyp"), path: None, text: (*t).into(), embedded: true })
        .collect();
    let c = compile(roots, &FileLoader { embedded: FILES, trees: &[] });
    for d in &c.diagnostics {
        println!(
            "{} {} at {:?} {:?} {:?}",
            d.code,
            d.message,
            c.sources.line_column(d.primary.span),
            c.sources.file(d.primary.span.file).name,
            d.hints
        );
    }
    let p = c.program.unwrap();
    for r in &p.rules {
        println!("{}", show_rule(&p, r));
    }
    for k in &p.kernels {
        println!("{}", show_kernel(&p, k));
    }
    println!("{:#?}", p.tests);
}
