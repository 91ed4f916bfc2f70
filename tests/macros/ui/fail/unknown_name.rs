hypatia::hypatia_rules!(mod rules = r#"
    edition 1;
    use core::*;
    scalar oops(x) = nosuch(x) + y;
"#);

fn main() {}
