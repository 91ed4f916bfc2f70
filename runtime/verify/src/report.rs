//! The results of verification, as text and as JSON.
//!
//! In: entries from the checkers. Out: for people, one line per declaration and a report for each
//! failure; for programs, JSON with a versioned schema (`"schema": 1`).

use std::fmt::Write;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, Origin};

use super::options::Options;
use super::proof::Proved;

/// All entries of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// How thorough the search was.
    pub options: Options,
    /// One for each declaration that was checked.
    pub entries: Vec<Entry>,
}

/// What was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A rule: both sides.
    Rule,
    /// A scalar: its written derivative.
    Scalar,
    /// An op: its body and its kernels.
    Op,
    /// A kernel of a library: whether the library computes what the pattern means.
    Kernel,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// No difference was found.
    Verified,
    /// A difference was found.
    False(Box<Counterexample>),
    /// No difference was found, but the right side could be another one: nothing tells them apart.
    Vacuous {
        /// Which change went unnoticed, and what never varied.
        reason: String,
    },
    /// An op of the rule has no body for operands that it accepts: the rule cannot be judged.
    Undefined(Box<Counterexample>),
    /// No legal instance could be made, or an alternative was never covered: nothing is known.
    NotExercised {
        /// The reason, as far as it is known, and what would help.
        reason: String,
    },
}

/// A failing instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Counterexample {
    /// One sentence that says what is wrong.
    pub message: String,
    /// A stable identifier: `type`, `value`, `nan`, `rounding`, `class`, `gradient`, `body`,
    /// `kernel`.
    pub kind: &'static str,
    /// A `test` block that fails; empty if there is none.
    pub test: String,
}

/// One declaration.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The kind of declaration.
    pub subject: Subject,
    /// Its name.
    pub name: String,
    /// Its source location.
    pub origin: Origin,
    /// The number of compared instances.
    pub cases: usize,
    /// For rules: claimed and derived class by element type. `None` if no class holds.
    pub classes: Vec<(DType, Class, Option<Class>)>,
    /// The result.
    pub status: Status,
    /// A remark that is no failure: that infinities are lost.
    pub note: Option<String>,
    /// What an author should look at though nothing is wrong: a guard that nothing needs.
    pub warnings: Vec<String>,
    /// What was proved of a verified rule.
    pub proved: Option<Proved>,
    /// A rule that follows from the body of an op or scalar.
    pub derived: bool,
}

impl Report {
    /// True if everything was verified.
    pub fn passed(&self) -> bool {
        self.entries.iter().all(|e| e.status == Status::Verified)
    }

    /// Counts of verified, false and not exercised entries.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |f: fn(&Status) -> bool| self.entries.iter().filter(|e| f(&e.status)).count();
        (
            count(|s| *s == Status::Verified),
            count(|s| matches!(s, Status::False(_))),
            count(|s| matches!(s, Status::NotExercised { .. })),
        )
    }

    /// The number of entries whose verdict says nothing.
    pub fn vacuous(&self) -> usize {
        self.entries.iter().filter(|e| matches!(e.status, Status::Vacuous { .. })).count()
    }

    /// The number of rules that cannot be judged, because an op has no body.
    pub fn undefined(&self) -> usize {
        self.entries.iter().filter(|e| matches!(e.status, Status::Undefined(_))).count()
    }

    /// Of the verified rules that somebody wrote: those proved bit for bit, those proved over the
    /// reals, and those that are tested only.
    pub fn shares(&self) -> (usize, usize, usize) {
        let written = |e: &&Entry| e.subject == Subject::Rule && !e.derived && e.status == Status::Verified;
        let count = |p: Option<Proved>| self.entries.iter().filter(written).filter(|e| e.proved == p).count();
        (count(Some(Proved::Bits)), count(Some(Proved::Reals)), count(None))
    }

    /// The report for people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.entries.iter().for_each(|e| e.write_verdict(&mut out));
        self.entries.iter().for_each(|e| e.write_reason(&mut out));
        let (verified, wrong, skipped) = self.counts();
        let vacuous = self.vacuous();
        let (bits, reals, tested) = self.shares();
        if bits + reals > 0 {
            let _ = write!(out, "\nwritten rules: {bits} proved (bits), {reals} proved (reals), {tested} tested only");
        }
        let _ = write!(out, "\n{verified} verified, {wrong} false, {vacuous} vacuous, {skipped} not exercised");
        let undefined = self.undefined();
        out.push_str(&if undefined > 0 { format!(", {undefined} undefined\n") } else { "\n".to_string() });
        out
    }

    /// The report for programs.
    pub fn to_json(&self) -> serde_json::Value {
        let entries: Vec<_> = self.entries.iter().map(Entry::to_json).collect();
        let (bits, reals, tested) = self.shares();
        let (verified, wrong, skipped) = self.counts();
        serde_json::json!({
            "schema": 1,
            "seed": self.options.seed,
            "cases": self.options.cases,
            "passed": self.passed(),
            "verified": verified,
            "false": wrong,
            "vacuous": self.vacuous(),
            "not_exercised": skipped,
            "undefined": self.undefined(),
            "proved_bits": bits,
            "proved_reals": reals,
            "tested_only": tested,
            "entries": entries,
        })
    }
}

impl Subject {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Rule => "rule",
            Subject::Scalar => "scalar",
            Subject::Op => "op",
            Subject::Kernel => "kernel",
        }
    }
}

impl Counterexample {
    fn write_test(&self, heading: &str, out: &mut String) {
        if !self.test.is_empty() {
            let _ = writeln!(out, "{heading}:\n\n{}", self.test);
        }
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "kind": self.kind, "message": self.message, "test": self.test })
    }
}

impl Entry {
    /// Writes the verdict on one line, then notes and warnings.
    fn write_verdict(&self, out: &mut String) {
        let word = match self.status {
            Status::Verified => "ok",
            Status::False(_) => "FALSE",
            Status::Vacuous { .. } => "VACUOUS",
            Status::NotExercised { .. } => "NOT EXERCISED",
            Status::Undefined(_) => "UNDEFINED",
        };
        let classes = match &self.status {
            _ if self.classes.is_empty() => String::new(),
            // A false rule has no class, but a rule that claims too much has a weaker class that
            // holds.
            Status::False(c) if c.kind == "class" => format!("  {}", show_broken_claims(&self.classes)),
            Status::False(_) | Status::Undefined(_) => String::new(),
            _ => format!("  {}", show_classes(&self.classes)),
        };
        let proved = match self.proved {
            Some(Proved::Bits) => "; proved (bits)",
            Some(Proved::Reals) => "; proved (reals)",
            None => "",
        };
        let cases = if self.cases == 1 { "case" } else { "cases" };
        let tried = format!("({} {cases})", self.cases);
        let _ = writeln!(out, "{} {} ... {word} {tried}{classes}{proved}", self.subject.name(), self.name);
        if let Some(note) = &self.note {
            let _ = writeln!(out, "  note: {note}");
        }
        for warning in &self.warnings {
            let _ = writeln!(out, "  warning: {warning}");
        }
    }

    /// Writes why an entry is not verified, and its counterexample.
    fn write_reason(&self, out: &mut String) {
        let place = format!("{}:{}:{}", self.origin.file, self.origin.line, self.origin.column);
        let subject = format!("{} {}", self.subject.name(), self.name);
        match &self.status {
            Status::Verified => {}
            Status::Vacuous { reason } => {
                let _ = writeln!(out, "\n{subject} says nothing: {reason}\n  --> {place}");
            }
            Status::NotExercised { reason } => {
                let _ = writeln!(out, "\n{subject} could not be exercised\n  --> {place}\n{reason}");
            }
            Status::False(c) => {
                let _ = writeln!(out, "\n{subject} is false: {}\n  --> {place}", c.message);
                let heading = "counterexample (paste it into the file; it fails under `hypatia test`)";
                c.write_test(heading, out);
            }
            Status::Undefined(c) => {
                let _ = writeln!(out, "\n{subject} cannot be judged: {}\n  --> {place}", c.message);
                c.write_test("instance (paste it into the file; it fails under `hypatia test`)", out);
            }
        }
    }

    fn to_json(&self) -> serde_json::Value {
        let (status, detail) = match &self.status {
            Status::Verified => ("verified", serde_json::Value::Null),
            Status::Vacuous { reason } => ("vacuous", serde_json::json!({ "message": reason })),
            Status::NotExercised { reason } => ("not_exercised", serde_json::json!({ "message": reason })),
            Status::False(c) => ("false", c.to_json()),
            Status::Undefined(c) => ("undefined", c.to_json()),
        };
        let classes: Vec<_> = self
            .classes
            .iter()
            .map(|(d, claimed, derived)| {
                serde_json::json!({
                    "dtype": d.name(),
                    "claimed": show_class(*claimed),
                    "derived": derived.map(show_class),
                })
            })
            .collect();
        serde_json::json!({
            "subject": self.subject.name(),
            "name": self.name,
            "file": self.origin.file,
            "line": self.origin.line,
            "column": self.origin.column,
            "cases": self.cases,
            "status": status,
            "classes": classes,
            "detail": detail,
            "note": self.note,
            "warnings": self.warnings,
            "proved": self.proved.map(|p| match p {
                Proved::Bits => "bits",
                Proved::Reals => "reals",
            }),
        })
    }
}

/// `exact`, `approx(1e-6, 0)`.
pub fn show_class(class: Class) -> String {
    match class {
        Class::Exact => "exact".into(),
        Class::Finite => "finite".into(),
        Class::Rounds => "rounds".into(),
        Class::Within(steps) => format!("within({steps})"),
        Class::Ties => "ties".into(),
        Class::Approx { rel, abs } => format!("approx({}, {})", short(rel), short(abs)),
    }
}

/// All digits: another bound is another claim.
fn short(v: f64) -> String {
    let text = format!("{v:e}");
    text.strip_suffix("e0").map(str::to_string).unwrap_or(text)
}

/// `claims exact for f16, bf16, where rounds holds`: the claims that are too strong.
fn show_broken_claims(classes: &[(DType, Class, Option<Class>)]) -> String {
    let mut groups: Vec<((String, String), Vec<&str>)> = Vec::new();
    for (dtype, claimed, derived) in classes {
        if derived.is_some_and(|d| d <= *claimed) {
            continue;
        }
        let words = (show_class(*claimed), derived.map_or("nothing".to_string(), show_class));
        match groups.iter_mut().find(|g| g.0 == words) {
            Some(g) => g.1.push(dtype.name()),
            None => groups.push((words, vec![dtype.name()])),
        }
    }
    let said = |((claimed, holds), dtypes): ((String, String), Vec<&str>)| {
        format!("claims {claimed} for {}, where {holds} holds", dtypes.join(", "))
    };
    groups.into_iter().map(said).collect::<Vec<_>>().join("; ")
}

/// `exact for f64, f32; rounds for f16`: derived classes, with the types of one class grouped.
fn show_classes(classes: &[(DType, Class, Option<Class>)]) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (dtype, _, derived) in classes {
        let text = derived.map_or("wrong".to_string(), |c| match c {
            // The short form omits the measured bound.
            Class::Approx { .. } => "approx".into(),
            c => show_class(c),
        });
        match groups.iter_mut().find(|g| g.0 == text) {
            Some(g) => g.1.push(dtype.name()),
            None => groups.push((text, vec![dtype.name()])),
        }
    }
    groups.into_iter().map(|(c, d)| format!("{c} for {}", d.join(", "))).collect::<Vec<_>>().join("; ")
}
