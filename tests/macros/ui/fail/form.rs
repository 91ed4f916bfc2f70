hypatia::hypatia_rules!(rules, "a.hyp");

fn main() {}
