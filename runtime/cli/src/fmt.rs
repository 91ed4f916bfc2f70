//! `hypatia fmt`: formats files in the standard style.

use std::path::PathBuf;

use clap::Args;
use hypatia_dsl::diag::{Diagnostic, has_errors};
use hypatia_dsl::fmt::format;
use hypatia_dsl::parse::parse;
use hypatia_dsl::source::{SourceFile, SourceMap};
use hypatia_tensor::error::Result;
use hypatia_tensor::file;

use super::check::{OutputFormat, report};
use super::files::Files;
use super::output::write_stdout;
use super::{Exit, Global};

/// Format .hyp files.
///
/// A file with syntax errors is not changed, and its errors are shown.
#[derive(Args)]
pub struct Fmt {
    /// Files, folders, or `-` to read stdin and write stdout.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write nothing: print the changes, and exit with code 1 if there are any.
    #[arg(long)]
    check: bool,
}

impl Fmt {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let files = Files::read(&self.files);
        let mut sources = SourceMap::new();
        let mut diagnostics: Vec<Diagnostic> = files.report(&mut sources);
        let mut different = false;
        for file in &files.read {
            let id = sources.add(file.clone());
            let (_, errors) = parse(&sources, id);
            if has_errors(&errors) {
                diagnostics.extend(errors);
                continue;
            }
            let formatted = format(&file.text);
            let changed = *formatted != *file.text;
            different |= changed;
            if self.check {
                write_stdout(&difference(&file.name, &file.text, &formatted));
            } else if let Some(path) = &file.path {
                if changed {
                    file::write(path, |out| out.write_all(formatted.as_bytes()))?;
                    note(global, file);
                }
            } else {
                write_stdout(&formatted);
            }
        }
        report(&sources, &diagnostics, OutputFormat::Full, global);
        Ok(if has_errors(&diagnostics) || (self.check && different) { Exit::Failed } else { Exit::Ok })
    }
}

fn note(global: &Global, file: &SourceFile) {
    if !global.quiet {
        anstream::eprintln!("formatted {}", file.name);
    }
}

/// The changes as a unified diff; empty if there are none.
fn difference(name: &str, before: &str, after: &str) -> String {
    let diff = similar::TextDiff::configure().timeout(std::time::Duration::from_secs(2)).diff_lines(before, after);
    diff.unified_diff().header(name, &format!("{name} (formatted)")).to_string()
}
