//! `hypatia check`: reports every error and warning of the given files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hypatia_dsl::compile::Compilation;
use hypatia_dsl::diag::{Diagnostic, Severity, has_errors};
use hypatia_dsl::program_print::show_program;
use hypatia_dsl::render::{self, Format};
use hypatia_dsl::source::{SourceMap, Span};
use hypatia_library as library;
use hypatia_tensor::error::Result;

use super::files::{Files, roots};
use super::output::{stderr_has_color, write_stdout};
use super::{Exit, Global};

/// Check .hyp files and report every error in them.
///
/// If there are no errors, nothing is printed and the exit code is 0. Reports for people go to
/// stderr, reports for programs to stdout. `hypatia explain CODE` explains a code. The files given
/// are checked as one program. In a folder, each file that no other file there uses is a program of
/// its own, together with the files that it uses, so unrelated files can declare the same names.
#[derive(Args)]
pub struct Check {
    /// Files, folders, or `-` for stdin.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The format of the report.
    #[arg(long, value_enum, default_value_t = OutputFormat::Full)]
    output_format: OutputFormat,
    /// Print the declarations as the compiler understands them: scalars simplified and with
    /// derivatives, ops with types and bodies, rules with their class, families expanded and
    /// patterns inlined, and kernels.
    #[arg(long, conflicts_with = "output_format")]
    print: bool,
}

/// How diagnostics are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people: the source, underlined, with hints.
    Full,
    /// One JSON object per line: severity, code, message, file, line, column, end_line, end_column,
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
        let (folders, named): (Vec<PathBuf>, Vec<PathBuf>) = self.files.iter().cloned().partition(|p| p.is_dir());
        let mut files = Files::read(&named);
        let mut all = Checked::default();
        if !files.read.is_empty() {
            let names = files.read.iter().map(|f| f.name.clone()).collect();
            all.add(library::check(std::mem::take(&mut files.read)), names);
        }
        all.diagnostics.extend(files.report(&mut all.sources));
        for folder in folders {
            let mut files = Files::read(&[folder]);
            for (compilation, name) in roots(std::mem::take(&mut files.read), library::check) {
                all.add(compilation, vec![name]);
            }
            all.diagnostics.extend(files.report(&mut all.sources));
        }
        report(&all.sources, &all.diagnostics, self.output_format, global);
        if self.print {
            write_stdout(&all.printed);
        }
        Ok(if has_errors(&all.diagnostics) { Exit::Failed } else { Exit::Ok })
    }
}

/// The combined result of several compilations.
#[derive(Default)]
struct Checked {
    sources: SourceMap,
    diagnostics: Vec<Diagnostic>,
    /// The output of `--print`.
    printed: String,
}

impl Checked {
    /// Adds the compilation of the files of these names. Diagnostics of a file that several
    /// compilations read are reported once.
    fn add(&mut self, c: Compilation, names: Vec<String>) {
        let mut ids = Vec::new();
        for (_, file) in c.sources.files() {
            let known =
                self.sources.files().find(|(_, f)| f.name == file.name && f.path == file.path).map(|(id, _)| id);
            ids.push(known.unwrap_or_else(|| self.sources.add(file.clone())));
        }
        let moved = |span: Span| Span { file: ids[span.file.0 as usize], ..span };
        for mut d in c.diagnostics {
            d.primary.span = moved(d.primary.span);
            d.secondary.iter_mut().for_each(|label| label.span = moved(label.span));
            if !self.diagnostics.contains(&d) {
                self.diagnostics.push(d);
            }
        }
        if let Some(program) = c.program {
            self.printed.push_str(&show_program(&program, &|origin| names.contains(&origin.file)));
        }
    }
}

/// Prints diagnostics in this format, and a summary for people.
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
