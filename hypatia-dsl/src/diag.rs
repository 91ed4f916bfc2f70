//! Diagnostics: the one type in which every error and warning about a `.hyp` file is told.
//!
//! In: a code, a message and spans, from any stage. Out: a list that `render` turns into text for
//! a terminal, JSON, GitHub annotations or SARIF. Holds always: every code is in the table of
//! `codes`, where `hypatia explain` finds its long text.

use serde::{Deserialize, Serialize};

use crate::source::Span;

/// A stable code such as `H0304`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Code(pub u16);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "H{:04}", self.0)
    }
}

impl Code {
    /// Reads `H0304`.
    pub fn parse(text: &str) -> Option<Code> {
        let digits = text.strip_prefix(['H', 'h'])?;
        (digits.len() == 4).then(|| digits.parse().ok().map(Code)).flatten()
    }
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Nothing is produced.
    Error,
    /// Worth a look.
    Warning,
}

/// A place and what to say about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The place.
    pub span: Span,
    /// A few words; may be empty.
    pub text: String,
}

/// One error or warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Its code.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// One sentence: what is wrong.
    pub message: String,
    /// Where; the first thing underlined.
    pub primary: Label,
    /// Other places that matter, perhaps in other files.
    pub secondary: Vec<Label>,
    /// Facts that help to understand.
    pub notes: Vec<String>,
    /// What to do.
    pub hints: Vec<String>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(code: Code, message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic {
            code,
            severity: Severity::Error,
            message: message.into(),
            primary: Label { span, text: String::new() },
            secondary: Vec::new(),
            notes: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// A warning at a place.
    pub fn warning(code: Code, message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message, span) }
    }

    /// Says something beside the underlined text.
    pub fn label(mut self, text: impl Into<String>) -> Diagnostic {
        self.primary.text = text.into();
        self
    }

    /// Points at another place.
    pub fn also(mut self, span: Span, text: impl Into<String>) -> Diagnostic {
        self.secondary.push(Label { span, text: text.into() });
        self
    }

    /// Adds a fact.
    pub fn note(mut self, text: impl Into<String>) -> Diagnostic {
        self.notes.push(text.into());
        self
    }

    /// Adds what to do.
    pub fn hint(mut self, text: impl Into<String>) -> Diagnostic {
        self.hints.push(text.into());
        self
    }
}

/// True if any of them is an error.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|d| d.severity == Severity::Error)
}
