//! What a strict run found wrong.
//!
//! In: what was found. Out: an [`Incident`], which says who is to blame and what was done.
//! Invariant: the results of the run in which it happened are right.

use std::fmt;
use std::path::PathBuf;

/// What a strict run found wrong. The results of that run are right: what was wrong was computed
/// again.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// Who is to blame.
    pub culprit: Culprit,
    /// Where: the name of a step, or of an output.
    pub place: String,
    /// What was wrong there.
    pub detail: String,
    /// The folder with a small graph and inputs that show it, if one was saved.
    pub saved: Option<PathBuf>,
}

/// How much strict runs have checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Runs whose products were checked.
    pub runs: u64,
    /// Those of them that were compared with the unfused plan.
    pub compared: u64,
}

/// Who is to blame for a wrong result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// The same work was right the second time: memory or the processor failed.
    Transient,
    /// The kernel of this step. Another computation takes its place from now on.
    Kernel(String),
    /// These rules. Plans are without them from now on.
    Rules(Vec<String>),
    /// Several rules, or the kernels of the plan, which were not told apart. The unfused plan runs
    /// from now on.
    Plan,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Culprit::Transient => f.write_str("a fault that did not come back"),
            Culprit::Kernel(name) => write!(f, "the kernel of `{name}`"),
            Culprit::Rules(rules) if rules.len() == 1 => write!(f, "the rule {}", rules[0]),
            Culprit::Rules(rules) => write!(f, "the rules {}", rules.join(", ")),
            Culprit::Plan => f.write_str("the fused plan"),
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match &self.culprit {
            Culprit::Transient => "computed again",
            Culprit::Kernel(_) => "computed again in another way, as it will be from now on",
            Culprit::Rules(_) => "computed again without it, as it will be from now on",
            Culprit::Plan => "computed again by the unfused plan, which runs from now on",
        };
        write!(f, "{}: {} ({}); {done}", self.culprit, self.place, self.detail)?;
        match &self.saved {
            Some(folder) => write!(f, ". A small graph that shows it is in {}", folder.display()),
            None => Ok(()),
        }
    }
}
