//! Contracts: the fusions that the plan of a model must have, and those that it must not.
//!
//! In: `contract` items, and the same clauses as text (`--must RULE`). Out: clauses, which the
//! optimiser obeys and the pipeline checks. Invariant: a clause names a rule
//! (`fuse::unary[relu]`), a group of rules (`fuse::unary`) or a ruleset (`fuse`); whether there is
//! one of that name is checked where the rules are known.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Origin, Program, Rule};

/// A contract.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    /// Its name.
    pub name: String,
    /// Its doc comment.
    pub doc: String,
    /// Its location.
    pub origin: Origin,
    /// Its clauses in order.
    pub clauses: Vec<Clause>,
}

/// One demand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clause {
    /// The name of a rule, of a family of rules, of one of those, or of a ruleset.
    pub rule: String,
    /// What is demanded.
    pub demand: Demand,
    /// Where it is written; `None` if it was not written in a file.
    pub origin: Option<Origin>,
}

/// What a clause demands of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Demand {
    /// The rule has sites, each of them part of one launch.
    Must {
        /// The exact number of sites; `None` means at least one.
        count: Option<usize>,
        /// Only sites at this node of the model count.
        at: Option<String>,
    },
    /// The rule has no site: it does not fire.
    Never,
}

impl Clause {
    /// The clause of `--must`: `RULE`, optionally followed by `count = N` and `at NODE`, in either
    /// order. A node whose name ends like a count stands in quotes.
    ///
    /// ```
    /// use hypatia_dsl::ir::{Clause, Demand};
    /// let clause = Clause::must("fuse::unary[relu] count = 3")?;
    /// assert_eq!(clause.rule, "fuse::unary[relu]");
    /// assert_eq!(clause.demand, Demand::Must { count: Some(3), at: None });
    /// assert!(Clause::must("fuse::unary count = many").is_err());
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Errors
    /// If the text is none of these.
    pub fn must(text: &str) -> Result<Clause, String> {
        let wrong = || {
            format!(
                "expected `RULE`, optionally followed by `count = N`, with N from 1 on, and `at NODE`, not `{text}`; \
                 `never` forbids a rule"
            )
        };
        let number = |count: &str| {
            let count = count.trim_start().strip_prefix('=').and_then(|n| n.trim().parse::<usize>().ok());
            count.filter(|n| *n > 0)
        };
        let (head, place) = text.split_once(" at ").map_or((text, None), |(head, node)| (head, Some(node.trim())));
        // What stands behind the node, and is no part of its name.
        let (at, last) = match place.map(|p| (p, p.strip_prefix('"').and_then(|p| p.split_once('"')))) {
            Some((_, Some((node, rest)))) => (Some(node), Some(rest.trim()).filter(|rest| !rest.is_empty())),
            Some((place, None)) => match place.rsplit_once(" count") {
                Some((node, count)) if number(count).is_some() => (Some(node), Some(&place[node.len() + 1..])),
                _ => (Some(place.trim_matches('"')), None),
            },
            None => (None, None),
        };
        let last = last.map(|rest| rest.strip_prefix("count").and_then(number).ok_or_else(wrong)).transpose()?;
        let (rule, first) = match head.split_once(" count") {
            Some((rule, count)) => (rule, Some(number(count).ok_or_else(wrong)?)),
            None => (head, None),
        };
        if first.is_some() && last.is_some() {
            return Err(wrong());
        }
        let (at, count) = (at.map(|node| node.trim().to_string()), first.or(last));
        if rule.trim().is_empty() || at.as_ref().is_some_and(String::is_empty) {
            return Err(wrong());
        }
        Ok(Clause { rule: rule.trim().to_string(), demand: Demand::Must { count, at }, origin: None })
    }

    /// The clause of `--never`.
    pub fn never(rule: &str) -> Clause {
        Clause { rule: rule.trim().to_string(), demand: Demand::Never, origin: None }
    }

    /// Whether the clause applies to this rule.
    pub fn names(&self, program: &Program, rule: &Rule) -> bool {
        rule.is_named(program, &self.rule)
    }
}

impl Rule {
    /// True if that is the name of the rule, of its family, or of its ruleset.
    pub fn is_named(&self, program: &Program, name: &str) -> bool {
        let ruleset = program.rulesets.get(self.ruleset.index()).map_or("", |s| s.name.as_str());
        let name = name.strip_suffix("::*").unwrap_or(name);
        [self.name.as_str(), self.base_name.as_str(), ruleset].contains(&name)
    }
}

/// As it is written.
impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Demand::Must { count, at } = &self.demand else { return write!(f, "never {}", self.rule) };
        write!(f, "must {}", self.rule)?;
        count.map_or(Ok(()), |n| write!(f, " count = {n}"))?;
        at.as_ref().map_or(Ok(()), |node| write!(f, " at \"{node}\""))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clauses_are_read_as_they_are_printed() {
        for text in ["a::b", "a::b[f, g] count = 12", "a at \"/x/y z\"", "fold::f count = 1 at \"n\""] {
            assert_eq!(Clause::must(text).unwrap().to_string(), format!("must {text}"));
        }
        let node = Clause::must("a::b at /layer.0/Softmax").unwrap();
        assert_eq!(node.demand, Demand::Must { count: None, at: Some("/layer.0/Softmax".into()) });
        for (text, same) in [
            ("a at \"n\" count = 2", "a count = 2 at \"n\""),
            ("a at n count = 2", "a count = 2 at \"n\""),
            ("a at /x/y z", "a at \"/x/y z\""),
            ("a at \"n count = 2\"", "a at \"n count = 2\""),
        ] {
            assert_eq!(Clause::must(text).unwrap().to_string(), format!("must {same}"), "{text}");
        }
        let twice = "a count = 1 at \"n\" count = 1";
        for text in [
            twice,
            "a at \"n\" times 2",
            "",
            " ",
            "a count",
            "a count = 0",
            "a count = -1",
            "a count 3",
            "a at ",
            "a at \"\"",
            " at n",
        ] {
            assert!(Clause::must(text).is_err(), "{text}");
        }
    }
}
