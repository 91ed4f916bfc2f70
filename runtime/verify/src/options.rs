//! How thorough a verification is, and the seeds that follow from it.
//!
//! In: the caller's settings. Out: the number of instances and a seed for each declaration.
//! Invariant: the same settings give the same seeds.

/// How thorough the search is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Legal instances of each rule.
    pub cases: usize,
    /// The seed of the random choices.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { cases: 100, seed: 0 }
    }
}

/// A separate seed for each declaration, so that an additional rule does not change the cases of
/// the others.
pub(crate) fn seed_of(options: &Options, name: &str) -> u64 {
    // FNV-1a: stable across versions, unlike `DefaultHasher`.
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for b in name.bytes() {
        h = (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h
}
