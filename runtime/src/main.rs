//! The hypatia binary.
fn main() {}
