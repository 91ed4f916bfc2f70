//! What can be wrong with a user's template: the message and the hint of each problem.
//!
//! In: the scanner of templates and the template engine, which find problems. Out: a [`Problem`],
//! which the checker reports. Invariant: a hint is chosen by the variant, never by the message.

use std::fmt;

use minijinja::ErrorKind;

use super::limits::{FUEL, MAX_SETS, MAX_SOURCE, MAX_TEXT, STATEMENTS};

/// A problem in a template, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Counted from 1.
    pub line: Option<usize>,
    /// The problem.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// An `#include` of something other than one of CUDA's headers.
    Include,
    /// A statement that reads another template.
    OtherTemplate(String),
    /// A statement that templates do not have.
    Statement(String),
    /// A `for`, `if` or `with` without its end.
    Unclosed(String),
    /// An `endfor`, `endif` or `endwith` without its beginning.
    Unopened(String),
    /// A recursive loop.
    Recursive,
    /// A `set` without a value, which would keep output.
    CapturedOutput,
    /// Too many values are kept.
    TooManyValues,
    /// A string literal is too long.
    LongString,
    /// Strings joined with `~`.
    Tilde,
    /// A dictionary is kept.
    Dictionary,
    /// A kept list with an element that is not a literal.
    ListElement,
    /// `cat` of a value of this kind.
    Cat(String),
    /// `epilogue` with other than three arguments.
    EpilogueArguments,
    /// All strings together are too large.
    StringsTooLarge,
    /// The source is too large.
    SourceTooLarge,
    /// Rendering takes too many steps.
    TooManySteps,
    /// An unknown filter; the engine's message.
    Filter(String),
    /// A value of the wrong kind for an operator; the engine's message.
    Operation(String),
    /// A syntax error; the engine's message.
    Syntax(String),
    /// Another error of the engine.
    Other(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Include => f.write_str(
                "only CUDA's headers can be included, and the name must be written plainly: `#include <cuda_fp16.h>`",
            ),
            Problem::OtherTemplate(word) => write!(f, "`{word}`: a template cannot include other templates"),
            Problem::Statement(word) => {
                write!(f, "a template has no statement `{word}`: its statements are {}", STATEMENTS.join(", "))
            }
            Problem::Unclosed(word) => write!(f, "this `{word}` has no `end{word}`"),
            Problem::Unopened(word) => write!(f, "this `end{word}` has no `{word}`"),
            Problem::Recursive => f.write_str("a template cannot contain recursive loops"),
            Problem::CapturedOutput => {
                f.write_str("a template cannot keep output as a string: write `set name = value`")
            }
            Problem::TooManyValues => write!(f, "a template can keep at most {MAX_SETS} values"),
            Problem::LongString => write!(f, "this string is too long: the limit is {MAX_TEXT} bytes"),
            Problem::Tilde => f.write_str("`~` cannot join strings"),
            Problem::Dictionary => f.write_str("a template can keep numbers and strings, but no dictionaries"),
            Problem::ListElement => f.write_str("a kept list can contain only numbers and strings in quotes"),
            Problem::Cat(kind) => write!(f, "`cat` takes strings and numbers, not a {kind}"),
            Problem::EpilogueArguments => {
                f.write_str("`epilogue` takes three strings: the value, its row and its column")
            }
            Problem::StringsTooLarge => {
                write!(f, "the strings of the template become larger than {} MiB", MAX_SOURCE >> 20)
            }
            Problem::SourceTooLarge => write!(f, "the source becomes larger than {} MiB", MAX_SOURCE >> 20),
            Problem::TooManySteps => write!(f, "rendering takes more than {FUEL} steps: is a loop too long?"),
            Problem::Filter(text) | Problem::Operation(text) | Problem::Syntax(text) | Problem::Other(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for Problem {}

impl Problem {
    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Problem::Include => "copy what you need from the file into the template",
            Problem::OtherTemplate(_) => "copy the text of the other file here",
            Problem::Statement(_) | Problem::CapturedOutput => {
                "repeat the lines, or write a `__device__` function in CUDA"
            }
            Problem::Unclosed(_) | Problem::Unopened(_) => {
                "close each block: `//% for i in range(4)` ... `//% endfor`, `//% if rank > 1` ... `//% endif`"
            }
            Problem::Tilde => "write `cat(a, b)`, or print both in a row: `${ a }${ b }`",
            Problem::Operation(_) => "`+` and `*` work on numbers only; join strings with `cat(a, b)`",
            Problem::Dictionary | Problem::ListElement => "keep each value under its own name: `//% set a = 1`",
            Problem::EpilogueArguments => "in a loop over a tile, write `epilogue(\"sum\", \"row\", \"col\")`",
            Problem::StringsTooLarge => "make shorter strings: text that is only printed need not be kept",
            Problem::SourceTooLarge => "print less: the source of a kernel usually has some hundred lines",
            Problem::TooManySteps => "make the loop shorter, or write it in CUDA: `#pragma unroll`",
            Problem::Filter(_) => "docs/language.md lists the filters, in \"Templates of your own\"",
            Problem::Syntax(_) => "write statements on lines that start with `//%`, and values in `${ }`",
            Problem::Recursive | Problem::TooManyValues | Problem::LongString | Problem::Cat(_) | Problem::Other(_) => {
                return None;
            }
        })
    }

    /// The problem as an error of the template engine, which carries it to the caller.
    pub(super) fn raise(self) -> minijinja::Error {
        minijinja::Error::new(ErrorKind::InvalidOperation, self.to_string()).with_source(self)
    }
}

impl From<minijinja::Error> for Wrong {
    fn from(e: minijinja::Error) -> Wrong {
        let line = e.line();
        if let Some(problem) = raised(&e) {
            return Wrong { line, problem };
        }
        let text = e.detail().map_or_else(|| e.kind().to_string(), |d| format!("{}: {d}", e.kind()));
        let problem = match e.kind() {
            ErrorKind::OutOfFuel => Problem::TooManySteps,
            ErrorKind::UnknownFilter => Problem::Filter(text),
            ErrorKind::InvalidOperation => Problem::Operation(text),
            ErrorKind::SyntaxError => Problem::Syntax(text),
            _ => Problem::Other(text),
        };
        Wrong { line, problem }
    }
}

/// The problem that an error carries, directly or in an error of the writer.
fn raised(e: &minijinja::Error) -> Option<Problem> {
    let source = std::error::Error::source(e)?;
    let inner = source.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref()?.downcast_ref::<Problem>());
    source.downcast_ref::<Problem>().or(inner).cloned()
}
