//! `hypatia test`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anstream::{eprintln, println};
use anstyle::{AnsiColor, Style};
use clap::Args;
use hypatia_dsl::ir::{Program, Test as Block};
use hypatia_optimize::Options;
use hypatia_pipeline as pipeline;
use hypatia_tensor::error::{Error, Result};
use hypatia_verify::test_runner::{given, run_test_with, target};

use super::model::RuleOptions;
use super::{Exit, Global, files};

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Run the `test` blocks of .hyp files.
///
/// Each test is optimised with the rules of its file, and of the files that it uses, for the device
/// that the test names, or for the CPU. No GPU is needed. The exit code is 1 if a test fails.
#[derive(Args)]
pub struct Test {
    /// Files, folders, or `-` for stdin. The files given are one program; in a folder, each file
    /// that no other file there uses is one.
    #[arg(required_unless_present = "library", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also run the tests of the files that these use; without files, those of the standard
    /// library.
    #[arg(long)]
    library: bool,
    /// Run only the tests whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Instead of the results, print why this rule or family (fuse::unary) did not fire in what
    /// each test gives: the nearest miss, a guard with its values, or both costs.
    #[arg(long, value_name = "RULE", conflicts_with = "json")]
    why_not: Option<String>,
    #[command(flatten)]
    firing: RuleOptions,
    /// Print the results as JSON.
    #[arg(long)]
    pub json: bool,
}

impl Test {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let programs = files::programs(&self.files, self.library)?;
        let tests = self.tests(&programs)?;
        if tests.own == 0 && !self.json && !global.quiet {
            eprintln!("note: there are no `test` blocks here; docs/language.md shows how to write one");
        }
        if let Some(rule) = &self.why_not {
            return self.tell_why(rule, &tests);
        }
        let (mut passed, mut results, mut failures) = (0, Vec::new(), Vec::new());
        for (program, test) in &tests.wanted {
            let mut options = Options::default();
            self.firing.apply(program, &mut options)?;
            let start = Instant::now();
            let outcome = run_test_with(program, test, &options);
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
        let failed = tests.wanted.len() - passed;
        let filtered = tests.own - tests.wanted.len();
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

    /// Prints why a rule did not fire in each test.
    fn tell_why(&self, rule: &str, tests: &Chosen<'_>) -> Result<Exit> {
        for (program, test) in &tests.wanted {
            let (graph, mut options) =
                (given(program, test)?.0, Options { device: target(test)?, ..Options::default() });
            self.firing.apply(program, &mut options)?;
            println!("test {}", test.name);
            println!(
                "  {}",
                pipeline::why_not(&graph, &options, rule, None)?.to_string().trim_end().replace('\n', "\n  ")
            );
        }
        Ok(Exit::Ok)
    }

    /// The tests of the programs; an error if the filter matches none.
    fn tests<'p>(&self, programs: &'p [(Arc<Program>, Vec<String>)]) -> Result<Chosen<'p>> {
        let mut own: Vec<(&Arc<Program>, &Block)> = Vec::new();
        for (program, names) in programs {
            let among = |t: &&Block| self.library || names.contains(&t.origin.file);
            for test in program.tests.iter().filter(among) {
                // Files that several programs use are tested once.
                if !own.iter().any(|(_, t)| t.origin == test.origin) {
                    own.push((program, test));
                }
            }
        }
        let Some(filter) = &self.filter else { return Ok(Chosen { own: own.len(), wanted: own }) };
        let wanted: Vec<_> = own.iter().filter(|(_, t)| t.name.contains(filter.as_str())).copied().collect();
        if wanted.is_empty() {
            let names: Vec<String> = own.iter().take(8).map(|(_, t)| format!("\n  {}", t.name)).collect();
            let have =
                if names.is_empty() { "; there are none".into() } else { format!("; there are{}", names.concat()) };
            return Err(Error::Input(format!("--filter: no test's name contains `{filter}`{have}")));
        }
        Ok(Chosen { own: own.len(), wanted })
    }
}

/// The selected tests, and their number.
struct Chosen<'p> {
    own: usize,
    wanted: Vec<(&'p Arc<Program>, &'p Block)>,
}
