//! Diagnostics: the one type of every error and warning about a `.hyp` file.
//!
//! In: a code, a message and spans, from any stage. Out: a list that `render` turns into text for a
//! terminal, JSON, GitHub annotations or SARIF. Invariant: every code is in the table of `codes`,
//! where `hypatia explain` finds its long text.

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
    /// Parses `H0304`.
    pub fn parse(text: &str) -> Option<Code> {
        let digits = text.strip_prefix(['H', 'h'])?;
        let is_code = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
        is_code.then(|| digits.parse().ok().map(Code)).flatten()
    }
}

/// The severity of a diagnostic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// An error: no output is produced.
    Error,
    /// A warning: worth a look.
    Warning,
}

/// A span with a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The span.
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
    /// The main location, underlined first.
    pub primary: Label,
    /// Other relevant locations, possibly in other files.
    pub secondary: Vec<Label>,
    /// Facts that help to understand.
    pub notes: Vec<String>,
    /// What to do.
    pub hints: Vec<String>,
}

impl Diagnostic {
    /// An error at a span.
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

    /// A warning at a span.
    pub fn warning(code: Code, message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message, span) }
    }

    /// Sets the text beside the underlined source.
    pub fn label(mut self, text: impl Into<String>) -> Diagnostic {
        self.primary.text = text.into();
        self
    }

    /// Adds a secondary location.
    pub fn also(mut self, span: Span, text: impl Into<String>) -> Diagnostic {
        self.secondary.push(Label { span, text: text.into() });
        self
    }

    /// Adds a note.
    pub fn note(mut self, text: impl Into<String>) -> Diagnostic {
        self.notes.push(text.into());
        self
    }

    /// Adds a hint.
    pub fn hint(mut self, text: impl Into<String>) -> Diagnostic {
        self.hints.push(text.into());
        self
    }
}

/// Whether any diagnostic is an error.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|d| d.severity == Severity::Error)
}
