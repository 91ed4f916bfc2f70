//! Tests of `hypatia_rules!` from outside are in `tests`.
