hypatia::hypatia_rules!(mod rules = r#"
    use core::*;
    scalar good(x) = x;
"#);
fn main() {}
