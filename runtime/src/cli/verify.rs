//! `hypatia verify`.

use std::path::PathBuf;

use anstream::println;
use clap::Args;
use hypatia::error::{Error, Result};
use hypatia::verify::{Options, verify};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Exit, Global, files};

/// Verify rules against random inputs.
///
/// Makes up shapes, attributes and values for each rule's left side, and compares both sides in f64
/// and in every element type. Written derivatives are compared with derived ones and with finite
/// differences, ops' bodies with their declared types. Exit code 1 if anything is false or could not be exercised.
#[derive(Args)]
pub struct Verify {
    /// Files, folders, or `-` for stdin. What they `use` is not verified.
    #[arg(value_name = "FILE", required_unless_present = "library")]
    files: Vec<PathBuf>,
    /// Verify what the files use too; without files, the whole library that comes with Hypatia.
    #[arg(long)]
    library: bool,
    /// Instances of each rule.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,
    /// Start of the random choices; the same seed gives the same report.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Verify {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let (program, names) = files::program(&self.files)?;
        let wanted = |o: &hypatia_dsl::ir::Origin| names.contains(&o.file) || self.library;
        let options = Options { cases: self.cases as usize, seed: self.seed };
        let bar = if global.quiet || global.no_progress { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let style =
            ProgressStyle::with_template("verifying {pos}/{len} {msg}").map_err(|e| Error::Internal(e.to_string()))?;
        bar.set_style(style);
        let report = verify(&program, &wanted, &options, &mut |name, done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(name.to_string());
        });
        bar.finish_and_clear();
        if self.json {
            println!("{:#}", report.to_json());
        } else {
            println!("{}", report.to_text().trim_end());
        }
        Ok(if report.passed() { Exit::Ok } else { Exit::Failed })
    }
}
