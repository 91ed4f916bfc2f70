//! `hypatia_rules!` from outside: correct input compiles and runs; for wrong input the errors point
//! into the user's text.
#![allow(missing_docs)]

#[test]
fn macro_compiles_or_explains() {
    let t = trybuild::TestCases::new();
    t.pass("ui/pass/*.rs");
    t.compile_fail("ui/fail/*.rs");
}
