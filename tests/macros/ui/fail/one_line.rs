hypatia::hypatia_rules!(mod rules = "edition 1; use core::*; scalar oops(x) = nosuch(x);");
fn main() {}
