#![allow(clippy::unwrap_used)]

use super::quote::Quote;
use super::*;

#[test]
fn names_become_identifiers() {
    for (name, want) in [("gelu", "gelu"), ("match", "r#match"), ("self", "self_"), ("3d", "_3d"), ("a::b", "a__b")] {
        assert_eq!(ident(name).to_string(), want);
    }
}

#[test]
fn numbers_keep_their_bits() {
    assert_eq!((-0.0f64).quote().to_string(), "- 0.0");
    assert_eq!(f64::NAN.quote().to_string(), "f64 :: from_bits (9221120237041090560)");
}
