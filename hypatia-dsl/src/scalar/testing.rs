//! Shared helpers of tests about terms: the compiled library, and terms from text.
#![allow(clippy::unwrap_used)]

use super::{Term, TermNode};
use crate::checker::Unchecked;
use crate::compile::{FileLoader, compile};
use crate::ir::{Program, ScalarBody};
use crate::source::SourceFile;

const FILES: &[(&str, &str)] = &[
    ("core", include_str!("../../../rules/core.hyp")),
    ("nn", include_str!("../../../rules/nn.hyp")),
    ("onnx", include_str!("../../../rules/onnx.hyp")),
];

/// The standard library's scalars.
pub fn library() -> Program {
    static LIBRARY: std::sync::LazyLock<Program> = std::sync::LazyLock::new(|| compiled(""));
    LIBRARY.clone()
}

/// The standard library with these declarations.
pub fn compiled(text: &str) -> Program {
    let text = format!("edition 1;\nuse core::*;\nuse nn::*;\nuse onnx::*;\n{text}").into();
    let root = SourceFile { name: "test.hyp".into(), path: None, text, embedded: false };
    let c = compile(vec![root], &FileLoader { embedded: FILES, trees: &[] }, &Unchecked);
    c.program.unwrap_or_else(|| panic!("{:#?}", c.diagnostics))
}

/// Parses a term over those parameters.
pub fn term(program: &Program, params: &[&str], text: &str) -> Term {
    let own = compiled(&format!("scalar term_of_a_test({}) = {text};", params.join(", ")));
    let def = own.scalar(own.find_scalar("term_of_a_test").unwrap());
    let ScalarBody::Term(body) = &def.body else { panic!("no body") };
    let mut body = body.clone();
    for node in &mut body.nodes {
        if let TermNode::Call { scalar, .. } = node {
            *scalar = program.find_scalar(&own.scalar(*scalar).name).unwrap();
        }
    }
    body
}
