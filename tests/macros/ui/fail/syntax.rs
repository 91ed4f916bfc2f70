hypatia::hypatia_rules!(mod rules = r#"
    edition 1;
    scalar oops(x = x;
"#);

fn main() {}
