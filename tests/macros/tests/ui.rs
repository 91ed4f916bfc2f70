//! `hypatia_rules!` from outside: for wrong input the errors point into the user's text.
#![allow(missing_docs)]

#[test]
fn macro_explains() {
    // Programs that compile are tests of their own beside this one: with them, trybuild would
    // generate code for everything that they need.
    trybuild::TestCases::new().compile_fail("ui/fail/*.rs");
}
