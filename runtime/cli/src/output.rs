//! Output that the commands share: colours, messages on stderr, exit codes of errors.

use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, eprintln};
use anstyle::{AnsiColor, Style};
use hypatia_tensor::Error;
use serde_json::{Value, json};

use super::{ColorChoice, Exit};

const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Applies `--color` to all following output.
pub fn set_color(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => return,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Set by `--quiet`: warnings are not printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Applies `--quiet` to all following warnings.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Prints a warning, unless `--quiet` is given.
pub fn warning(text: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        eprintln!("warning: {text}");
    }
}

/// True if stderr shows colours.
pub fn stderr_has_color() -> bool {
    AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never
}

/// Prints an error.
pub fn error(error: &Error) {
    match error {
        // Already a full report with its own headings.
        Error::Rules { rendered, .. } => eprintln!("{rendered}"),
        other => eprintln!("{ERROR}error{ERROR:#}: {other}"),
    }
}

/// Prints an error for a program that reads stdout: with `--json`, the output is always JSON.
pub fn error_json(error: &Error) {
    let diagnostics: Vec<Value> = match error {
        Error::Rules { json, .. } => json.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
        _ => Vec::new(),
    };
    let message = match error {
        Error::Rules { .. } => "the .hyp files have errors".to_string(),
        other => other.to_string(),
    };
    let exit = exit_of(error) as u8;
    let value = json!({ "error": { "message": message, "exit_code": exit, "diagnostics": diagnostics } });
    write_stdout(&format!("{value:#}\n"));
}

/// Prints that Hypatia itself failed; `what` says where.
pub fn bug(what: &str) {
    eprintln!("{ERROR}internal error{ERROR:#}: {what}");
    eprintln!("This is a bug in Hypatia. Please report it with the command, the model and the rules.");
}

/// The exit code of an error.
pub fn exit_of(error: &Error) -> Exit {
    match error {
        Error::Unsupported { .. } => Exit::Unsupported,
        Error::Internal(_) => Exit::Internal,
        _ => Exit::Failed,
    }
}

/// Writes data to stdout. A closed reader (`| head`) is no error.
pub fn write_stdout(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
