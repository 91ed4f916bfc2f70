hypatia::hypatia_rules! {
    mod unknown;
    use core::*;
    /// Two mistakes, each at its word.
    scalar oops(x) = nosuch(x)
        + y;
}

hypatia::hypatia_rules! { mod syntax; use core::*; scalar oops(x) = x + ; scalar good(x) = x; }

fn main() {}
