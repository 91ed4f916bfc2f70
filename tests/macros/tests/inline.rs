//! A module from inline text.
#![allow(clippy::unwrap_used, missing_docs)]
mod here {
    hypatia::hypatia_rules!(pub mod rules = r#"
        edition 1;
        use core::*;
        scalar twice(x) = x + x;
    "#);
}

#[test]
fn a_module_from_inline_text() {
    assert_eq!(here::rules::scalars::f32::twice(2.0), 4.0);
}
