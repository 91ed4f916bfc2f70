hypatia::hypatia_rules!("rules/none.hyp");

fn main() {}
