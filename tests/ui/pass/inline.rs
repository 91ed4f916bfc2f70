//! A module from inline text.
mod here {
    hypatia::hypatia_rules!(pub mod rules = r#"
        edition 1;
        use core::*;
        scalar twice(x) = x + x;
    "#);
}

fn main() {
    assert_eq!(here::rules::scalars::f32::twice(2.0), 4.0);
}
