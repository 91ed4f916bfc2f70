#![allow(clippy::unwrap_used)]

use super::scalars::number;
use super::*;

#[test]
fn names_become_identifiers() {
    for (name, want) in [("gelu", "gelu"), ("match", "r#match"), ("self", "self_"), ("3d", "_3d"), ("a::b", "a__b")] {
        assert_eq!(ident(name).to_string(), want);
    }
}

#[test]
fn numbers_keep_their_bits() {
    assert_eq!(number(-0.0).to_string(), "- 0.0");
    assert_eq!(number(f64::NAN).to_string(), "f64 :: from_bits (9221120237041090560)");
}
