//! The command line: one file per command.
//!
//! In: arguments. Out: data on stdout, progress and messages on stderr, an [`Exit`] code.
//! Invariant: a command returns its exit code, and never ends the process itself.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

/// The optimiser allocates and frees small lists all the time: this allocator makes it faster by a
/// sixth.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod bench;
mod cache;
mod calibrate;
mod check;
mod claims;
mod completions;
mod device;
mod doctor;
mod explain;
mod explain_code;
mod files;
mod fmt;
mod generate;
mod inputs;
mod measured;
mod model;
mod opt;
mod output;
mod run;
mod test;
mod try_kernel;
mod tune;
mod verify;

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// The user's input has errors: diagnostics, failing tests, a mismatch.
    Failed = 1,
    /// A bug in Hypatia.
    Internal = 3,
    /// The model needs something that Hypatia does not support.
    Unsupported = 4,
}

/// Hypatia: write how operators fuse, check it, and run your model with it.
#[derive(Parser)]
#[command(name = "hypatia", version, about, long_about = LONG_ABOUT, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Print nothing on stderr except errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Show no progress bars.
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// When to use colours (NO_COLOR is respected).
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto)]
    pub color: ColorChoice,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

const LONG_ABOUT: &str = "\
Hypatia is a declarative fusion compiler for neural networks. You write rules for fusing operators in a
.hyp file; Hypatia checks and verifies them, applies them to a model and generates CUDA kernels.";

const AFTER_HELP: &str = "\
First steps:
  hypatia check my.hyp                        is it well formed?
  hypatia verify my.hyp                       is it true?
  hypatia explain model.onnx --rules my.hyp   where did it fire, and what did it save?
  hypatia run model.onnx --rules my.hyp       run the model with it
  hypatia gen my.hyp -o kernels               its CUDA kernels

Exit codes: 0 success; 1 errors in your input (diagnostics, failing tests, mismatching outputs);
2 wrong usage; 3 a bug in Hypatia; 4 the model uses an unsupported feature.

With --json, a command prints one JSON object on stdout. If it fails, the object is
{\"error\": {\"message\", \"exit_code\", \"diagnostics\"}}, with the diagnostics in the format of
`check --output-format json`; wrong usage (exit code 2) is reported on stderr only.";

#[derive(Subcommand)]
enum Command {
    /// Check .hyp files and report every error in them.
    Check(check::Check),
    /// Format .hyp files.
    Fmt(fmt::Fmt),
    /// Run the `test` blocks of .hyp files.
    Test(test::Test),
    /// Verify rules with random inputs: is each rewrite true, and as precise as it claims?
    Verify(verify::Verify),
    /// Generate CUDA kernels or Rust code from .hyp files or from a model.
    Gen(generate::Gen),
    /// Optimise a model and print the result of each stage.
    Opt(opt::Opt),
    /// Run a model.
    Run(run::Run),
    /// Time a model, with and without rules, as a whole and kernel by kernel.
    Bench(bench::Bench),
    /// Measure which algorithms are fastest for a model on this GPU, and write them to a file.
    Tune(tune::Tune),
    /// Measure this device's rates for the cost model, and write them to a file.
    Calibrate(calibrate::Calibrate),
    /// Explain an error code (H0304), a model's fusions, or why a rule did not fire.
    Explain(explain::Explain),
    /// Show what this machine offers, and what Hypatia falls back to.
    Doctor(doctor::Doctor),
    /// Inspect the cache of machine code, measured choices and verdicts.
    Cache(cache::Cache),
    /// Print shell completions.
    Completions(completions::Completions),
    /// Launch a template's kernel for the first time, as the folder says: the child process of a
    /// trial.
    #[command(hide = true)]
    TryKernel(try_kernel::TryKernel),
}

/// When the process started.
static START: OnceLock<Instant> = OnceLock::new();

/// Time since the start of the process.
fn since_start() -> Duration {
    START.get_or_init(Instant::now).elapsed()
}

/// Parses the arguments, runs the command, and maps its result to an exit code.
fn main() -> ExitCode {
    since_start();
    let cli = Cli::parse();
    output::set_color(cli.global.color);
    output::set_quiet(cli.global.quiet);
    // A panic is a bug in Hypatia: it is reported as one, with the documented exit code.
    std::panic::set_hook(Box::new(|info| output::bug(&info.to_string())));
    let exit = match std::panic::catch_unwind(|| run(&cli)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            output::error(&error);
            if wants_json(&cli.command) {
                output::error_json(&error);
            }
            output::exit_of(&error)
        }
        Err(_) => Exit::Internal,
    };
    ExitCode::from(exit as u8)
}

/// True if the command's output is meant for a program.
fn wants_json(command: &Command) -> bool {
    match command {
        Command::Test(c) => c.json,
        Command::Verify(c) => c.json,
        Command::Opt(c) => c.json,
        Command::Run(c) => c.json,
        Command::Bench(c) => c.json,
        Command::Tune(c) => c.json,
        Command::Explain(c) => c.json,
        Command::Doctor(c) => c.json,
        Command::Cache(c) => c.json,
        Command::Check(_) | Command::Fmt(_) | Command::Gen(_) | Command::Calibrate(_) => false,
        Command::Completions(_) | Command::TryKernel(_) => false,
    }
}

fn run(cli: &Cli) -> hypatia_tensor::error::Result<Exit> {
    let global = &cli.global;
    match &cli.command {
        Command::Check(c) => c.run(global),
        Command::Fmt(c) => c.run(global),
        Command::Test(c) => c.run(global),
        Command::Verify(c) => c.run(global),
        Command::Gen(c) => c.run(global),
        Command::Opt(c) => c.run(global),
        Command::Run(c) => c.run(global),
        Command::Bench(c) => c.run(global),
        Command::Tune(c) => c.run(global),
        Command::Calibrate(c) => c.run(global),
        Command::Explain(c) => c.run(global),
        Command::Doctor(c) => c.run(global),
        Command::Cache(c) => c.run(global),
        Command::Completions(c) => c.run(global, &mut Cli::command()),
        Command::TryKernel(c) => c.run(),
    }
}
