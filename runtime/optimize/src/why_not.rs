//! Why a rule did not fire: the answer, as data and as text.
//!
//! In: made by `explain`. Out: what `--why-not`, failed expectations and contracts print.

use std::fmt;

use serde::Serialize;

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhyNot {
    /// The rule with the nearest miss; of a family, the member.
    pub rule: String,
    /// The text of the rule.
    pub text: String,
    /// The node whose value the rule would have replaced.
    pub at: Option<String>,
    /// The outcome there.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It fired, and the result depends on it.
    Fired {
        /// All places.
        places: Vec<String>,
    },
    /// It fired, but the graph without it is cheaper.
    CostLost {
        /// Microseconds with it.
        with: f64,
        /// Microseconds without it.
        without: f64,
        /// Rules that fired there instead.
        instead: Vec<String>,
        /// Launches with it and without it, if they were counted.
        launches: Option<[usize; 2]>,
        /// What keeps each kernel from computing in one launch what the rule built.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        refused: Vec<String>,
    },
    /// It would gain, but rules had stopped before.
    CutShort {
        /// Microseconds with it.
        with: f64,
        /// Microseconds without it.
        without: f64,
        /// The rulesets that were cut short, and by which budget.
        runs: Vec<String>,
    },
    /// The costs of the nodes were in its favour, but the whole plan without it takes less time.
    PlanLost {
        /// Predicted microseconds of the plan with it.
        with: f64,
        /// Without it.
        without: f64,
    },
    /// Its pattern matched, but a guard did not hold.
    Guard {
        /// `requires` or `prefer`.
        clause: String,
        /// The part of the guard that is not true.
        guard: String,
        /// The values that it saw.
        values: Vec<String>,
    },
    /// It matched, but could not be applied.
    Rejected {
        /// Why.
        reason: String,
    },
    /// Its pattern did not match.
    NoMatch {
        /// What the pattern expected, and what it found.
        reason: String,
    },
    /// It was not tried.
    NotTried {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_ref().map_or(String::new(), |a| format!(" at `{a}`"));
        let rule = &self.rule;
        match &self.verdict {
            Verdict::Fired { places } => writeln!(f, "{rule} did fire, at {}", places.join(", "))?,
            Verdict::CostLost { with, without, instead, launches, refused } if (with - without).abs() < 0.005 => {
                let (instead, launches) = (fired_instead(instead), counted(*launches));
                writeln!(
                    f,
                    "{rule} matched{at}, but gains nothing: {with:.2} us with it and without it{launches}{instead}"
                )?;
                refused.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            }
            Verdict::CutShort { with, without, runs } => {
                write!(f, "{rule} matched{at} and would gain, {with:.2} us with it, {without:.2} us without, but ")?;
                match runs.is_empty() {
                    true => writeln!(f, "other rules had changed what it matches before it could")?,
                    false => writeln!(f, "{} before it could", runs.join(", "))?,
                }
            }
            Verdict::CostLost { with, without, instead, launches, refused } => {
                let (instead, launches) = (fired_instead(instead), counted(*launches));
                writeln!(
                    f,
                    "{rule} matched{at}, but the cost lost: {with:.2} us with it, {without:.2} us \
                     without{launches}{instead}"
                )?;
                refused.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            }
            Verdict::PlanLost { with, without } => writeln!(
                f,
                "{rule} matched, but the plan lost: it would take {with:.2} us with it, and takes {without:.2} us \
                 without"
            )?,
            Verdict::Guard { clause, guard, values } => {
                writeln!(f, "{rule} matched{at}, but its guard does not hold:")?;
                writeln!(f, "  {clause} {guard}")?;
                for v in values {
                    writeln!(f, "    {v}")?;
                }
            }
            Verdict::Rejected { reason } => writeln!(f, "{rule} matched{at}, but was not applied: {reason}")?,
            Verdict::NoMatch { reason } => {
                match at.is_empty() {
                    true => writeln!(f, "{rule} does not match anywhere:")?,
                    false => writeln!(f, "{rule} does not match; it comes nearest{at}:")?,
                }
                writeln!(f, "  {reason}")?;
            }
            Verdict::NotTried { reason } => writeln!(f, "{rule} was not tried: {reason}")?,
        }
        writeln!(f, "\n  {}", self.text.replace('\n', "\n  "))
    }
}

fn counted(launches: Option<[usize; 2]>) -> String {
    match launches {
        None => String::new(),
        Some([1, 1]) => ", 1 launch each".to_string(),
        Some([with, without]) if with == without => format!(", {with} launches each"),
        Some([with, without]) => format!(", {with} launches with it, {without} without"),
    }
}

fn fired_instead(rules: &[String]) -> String {
    if rules.is_empty() { String::new() } else { format!("; there {} fired", rules.join(", ")) }
}
