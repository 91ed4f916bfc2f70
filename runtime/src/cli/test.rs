//! `hypatia test`.

use std::path::PathBuf;
use std::time::Instant;

use anstream::println;
use anstyle::{AnsiColor, Style};
use clap::Args;
use hypatia::error::{Error, Result};
use hypatia::optimize::Options;
use hypatia::test_runner::run_test_with;

use super::model::Firing;
use super::{Exit, Global, files};

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Run the `test` blocks of .hyp files.
///
/// Each test is optimised with the rules of its file (and of what it uses) for the device that it
/// names, or for the CPU. No GPU is needed. Exit code 1 if a test fails.
#[derive(Args)]
pub struct Test {
    /// Files, folders, or `-` for stdin.
    #[arg(required_unless_present = "library", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Run the tests of what the files use too; without files, those of the library that comes with Hypatia.
    #[arg(long)]
    library: bool,
    /// Run only the tests whose name holds this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    #[command(flatten)]
    firing: Firing,
    /// Print the results as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Test {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let (program, names) = files::program_with(&self.files, self.library)?;
        let wanted = |name: &str| self.filter.as_ref().is_none_or(|f| name.contains(f.as_str()));
        let own: Vec<_> = program.tests.iter().filter(|t| self.library || names.contains(&t.origin.file)).collect();
        let tests: Vec<_> = own.iter().filter(|t| wanted(&t.name)).collect();
        if let Some(filter) = self.filter.as_ref().filter(|_| tests.is_empty()) {
            let names: Vec<String> = own.iter().take(8).map(|t| format!("\n  {}", t.name)).collect();
            let have =
                if names.is_empty() { "; there are none".into() } else { format!("; there are{}", names.concat()) };
            return Err(Error::Input(format!("--filter: no test has `{filter}` in its name{have}")));
        }
        let mut options = Options::default();
        self.firing.apply(&program, &mut options)?;
        let (mut passed, mut results, mut failures) = (0, Vec::new(), Vec::new());
        for test in &tests {
            let start = Instant::now();
            let outcome = run_test_with(&program, test, &options);
            let place = format!("{}:{}:{}", test.origin.file, test.origin.line, test.origin.column);
            let ok = outcome.failures.is_empty();
            passed += usize::from(ok);
            if self.json {
                results.push(serde_json::json!({
                    "name": test.name,
                    "file": test.origin.file,
                    "line": test.origin.line,
                    "target": test.target,
                    "passed": ok,
                    "failures": outcome.failures,
                    "millis": start.elapsed().as_secs_f64() * 1e3,
                }));
            } else if ok {
                if !global.quiet {
                    println!("test {} ... {GOOD}ok{GOOD:#}", test.name);
                }
            } else {
                println!("test {} ... {BAD}FAILED{BAD:#}", test.name);
                failures.push((test.name.clone(), place, outcome.failures));
            }
        }
        let failed = tests.len() - passed;
        let filtered = own.len() - tests.len();
        if self.json {
            let report = serde_json::json!({
                "schema": 1, "passed": passed, "failed": failed, "filtered_out": filtered, "tests": results,
            });
            println!("{report:#}");
        } else {
            for (name, place, reasons) in &failures {
                println!("\n{BAD}{name}{BAD:#}\n  --> {place}");
                for reason in reasons {
                    println!("  {}", reason.trim_end().replace('\n', "\n  "));
                }
            }
            let note = if filtered > 0 { format!(", {filtered} filtered out") } else { String::new() };
            println!("\n{passed} passed, {failed} failed{note}");
        }
        Ok(if failed == 0 { Exit::Ok } else { Exit::Failed })
    }
}
