hypatia::hypatia_rules!(mod rules = "edition 1;\nscalar oops(x) = x +;");
fn main() {}
