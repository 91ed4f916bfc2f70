//! `hypatia verify`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anstream::{eprintln, println};
use clap::Args;
use hypatia_dsl::ir::{Backend, Origin};
use hypatia_tensor::error::{Error, Result};
use hypatia_verify::{Options, Report, verify};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Exit, Global, files};

/// Verify rules with random inputs.
///
/// Generates shapes, attributes and values for each rule's left side, and compares both sides in
/// f64 and in every element type. Compares written derivatives with derived ones and with finite
/// differences, and the bodies of ops with their declared types. The exit code is 1 if anything is
/// false or could not be tested.
#[derive(Args)]
pub struct Verify {
    /// Files, folders, or `-` for stdin. The files that they `use` are not verified. The files
    /// given are one program; in a folder, each file that no other file there uses is one.
    #[arg(value_name = "FILE", required_unless_present = "library")]
    files: Vec<PathBuf>,
    /// Also verify the files that these use; without files, the whole standard library.
    #[arg(long)]
    library: bool,
    /// Number of instances of each rule.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,
    /// Seed of the random choices; the same seed gives the same report.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Verify {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let options = Options { cases: self.cases as usize, seed: self.seed };
        let bar = if global.quiet || global.no_progress { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let style =
            ProgressStyle::with_template("verifying {pos}/{len} {msg}").map_err(|e| Error::Internal(e.to_string()))?;
        bar.set_style(style);
        let mut progress = |name: &str, done: usize, total: usize| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(name.to_string());
        };
        let mut report = Report { options: options.clone(), entries: Vec::new() };
        let programs = files::programs(&self.files, false)?;
        // Files that several programs use are verified once.
        let own: BTreeSet<&String> = programs.iter().flat_map(|p| &p.1).collect();
        let (mut done, mut not_run): (BTreeSet<String>, BTreeSet<String>) = Default::default();
        for (program, names) in &programs {
            let wanted = |o: &Origin| {
                names.contains(&o.file) || (self.library && !own.contains(&o.file) && !done.contains(&o.file))
            };
            report.entries.extend(verify(program, &wanted, &options, &mut progress).entries);
            done.extend(program.rules.iter().map(|r| r.origin.file.clone()));
            done.extend(program.scalars.iter().map(|s| s.origin.file.clone()));
            done.extend(program.ops.iter().map(|o| o.origin.file.clone()));
            let templates = program.kernels.iter().filter(|k| matches!(k.backend, Backend::Template(_)));
            not_run.extend(templates.filter(|k| names.contains(&k.origin.file)).map(|k| k.name.clone()));
        }
        bar.finish_and_clear();
        if self.json {
            println!("{:#}", report.to_json());
        } else {
            println!("{}", report.to_text().trim_end());
        }
        if !not_run.is_empty() && !global.quiet {
            let names: Vec<String> = not_run.iter().map(|n| format!("`{n}`")).collect();
            eprintln!(
                "note: the templates of {} were not run: verify compares rules and bodies; on a GPU, `hypatia run` \
                 first tries a template in a process of its own, and compares it with the op's body",
                names.join(", ")
            );
        }
        Ok(if report.passed() { Exit::Ok } else { Exit::Failed })
    }
}
