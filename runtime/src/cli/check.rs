//! `hypatia check`: every error and warning of the given files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hypatia::error::Result;
use hypatia::library;
use hypatia_dsl::diag::{Diagnostic, Severity, has_errors};
use hypatia_dsl::render::{self, Format};
use hypatia_dsl::source::SourceMap;

use super::files::Files;
use super::output::{stderr_has_color, write_stdout};
use super::{Exit, Global};

/// Check .hyp files and report every error in them.
///
/// Nothing is printed and the exit code is 0 if all is well. Reports for people go to stderr, those
/// for programs to stdout. `hypatia explain CODE` tells a code at length.
#[derive(Args)]
pub struct Check {
    /// Files, folders, or `-` for stdin.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How to report.
    #[arg(long, value_enum, default_value_t = OutputFormat::Full)]
    output_format: OutputFormat,
}

/// How diagnostics are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people: the source, underlined, with hints.
    Full,
    /// One JSON object a line: severity, code, message, file, line, column, end_line, end_column,
    /// label, related, notes, hints.
    Json,
    /// Annotations of GitHub Actions.
    Github,
    /// One SARIF 2.1.0 document.
    Sarif,
}

impl Check {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let mut files = Files::read(&self.files);
        let compilation = library::check(std::mem::take(&mut files.read));
        let mut sources = compilation.sources;
        let mut diagnostics = compilation.diagnostics;
        diagnostics.extend(files.report(&mut sources));
        report(&sources, &diagnostics, self.output_format, global);
        Ok(if has_errors(&diagnostics) { Exit::Failed } else { Exit::Ok })
    }
}

/// Prints diagnostics in that format, and for people a summary.
pub fn report(sources: &SourceMap, diagnostics: &[Diagnostic], format: OutputFormat, global: &Global) {
    let machine = match format {
        OutputFormat::Full => return full(sources, diagnostics, global),
        OutputFormat::Json => Format::Json,
        OutputFormat::Github => Format::Github,
        OutputFormat::Sarif => Format::Sarif,
    };
    write_stdout(&render::render(sources, diagnostics, machine));
}

fn full(sources: &SourceMap, diagnostics: &[Diagnostic], global: &Global) {
    let shown: Vec<Diagnostic> =
        diagnostics.iter().filter(|d| !global.quiet || d.severity == Severity::Error).cloned().collect();
    if !shown.is_empty() {
        let text = render::render(sources, &shown, Format::Full { color: stderr_has_color() });
        anstream::eprintln!("{text}{}", render::summary(&shown));
    }
}
