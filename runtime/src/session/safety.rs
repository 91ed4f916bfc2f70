//! How far plans are trusted.

use std::fmt;
use std::str::FromStr;

use hypatia_tensor::error::{Error, Result};

/// How far plans are trusted.
///
/// # Example
/// ```
/// # use hypatia::session::{Options, Safety};
/// let options = Options { safety: "strict".parse()?, ..Options::default() };
/// assert_eq!(options.safety, Safety::Strict);
/// # Ok::<(), hypatia::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Safety {
    /// Every run is checked: products by checksums of their accumulators, and one run in
    /// [`Options::compare_every`](super::Options::compare_every) as a whole by the unfused plan.
    /// What is found wrong is computed again, named, and not used again.
    Strict,
    /// A new plan is compared once with the unfused plan.
    #[default]
    Check,
    /// Nothing is compared.
    Off,
}

impl Safety {
    /// All of them, the safest first.
    pub const ALL: [Safety; 3] = [Safety::Strict, Safety::Check, Safety::Off];

    /// The word that users write.
    pub fn name(self) -> &'static str {
        match self {
            Safety::Strict => "strict",
            Safety::Check => "check",
            Safety::Off => "off",
        }
    }
}

impl fmt::Display for Safety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Safety {
    type Err = Error;

    fn from_str(text: &str) -> Result<Safety> {
        let found = Safety::ALL.into_iter().find(|s| s.name() == text);
        found.ok_or_else(|| Error::Input(format!("safety: expected `strict`, `check` or `off`, not `{text}`")))
    }
}
