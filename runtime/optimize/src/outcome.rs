//! Whether a clause of a contract is met, and why not: as data and as text.
//!
//! In: made by `contract`. Out: part of a report, and the text of the error.

use std::fmt;

use serde::Serialize;

use super::why_not::WhyNot;

/// Whether a clause is met.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The clause as it is written.
    pub clause: String,
    /// Where it is written, if in a file.
    pub written: Option<String>,
    /// The sites of the rule.
    pub sites: Vec<String>,
    /// Why the clause is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmet: Option<Unmet>,
}

/// Why a clause is not met.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "unmet", rename_all = "kebab-case")]
pub enum Unmet {
    /// The rule has no sites, or too few.
    Missing {
        /// The number that is demanded.
        wanted: usize,
        /// The nearest miss.
        why: Box<WhyNot>,
        /// Rulesets that were cut short, and why.
        cut_short: Vec<String>,
    },
    /// The rule has more sites than are demanded.
    TooMany {
        /// The number that is demanded.
        wanted: usize,
    },
    /// The rule fires, but its result takes several launches.
    Kernel {
        /// The device.
        device: String,
        /// Where it fires so.
        at: Vec<String>,
        /// What computes the result there.
        launches: String,
        /// Kernels that could compute it alone, and what keeps each from it.
        refused: Vec<String>,
    },
    /// The rule is forbidden, but fires.
    Fires,
}

/// What is met, on one line; what is not, with the reason.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = self.written.as_ref().map_or(String::new(), |w| format!(" ({w})"));
        let clause = format!("`{}`{written}", self.clause);
        let sites = match self.sites.len() {
            0 => "no site".to_string(),
            1 => format!("1 site, at {}", self.sites[0]),
            n => format!("{n} sites, at {}", self.sites.join(", ")),
        };
        match &self.unmet {
            None => writeln!(f, "{clause} is met: {sites}"),
            Some(Unmet::Fires) => writeln!(f, "{clause} is not met: {sites}"),
            Some(Unmet::TooMany { wanted }) => writeln!(f, "{clause} is not met: {wanted} wanted, but {sites}"),
            Some(Unmet::Missing { wanted, why, cut_short }) => {
                match self.sites.is_empty() {
                    true => writeln!(f, "{clause} is not met: {sites}")?,
                    false => writeln!(f, "{clause} is not met: {wanted} wanted, but {sites}; elsewhere:")?,
                }
                write!(f, "{}", indented(&why.to_string()))?;
                cut_short.iter().try_for_each(|line| writeln!(f, "  {line}"))
            }
            Some(Unmet::Kernel { device, at, launches, refused }) => {
                writeln!(f, "{clause} is not met: the rule fires at {},", at.join(", "))?;
                writeln!(f, "  but on {device} its result takes several launches: {launches}")?;
                refused.iter().try_for_each(|line| writeln!(f, "  {line}"))
            }
        }
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|l| if l.is_empty() { "\n".to_string() } else { format!("  {l}\n") }).collect()
}
