//! `hypatia explain CODE`: a diagnostic's code at length.

use hypatia::error::{Error, Result};
use hypatia_dsl::codes;
use hypatia_dsl::diag::Code;

use super::Exit;
use super::output::write_stdout;

/// Explains the code that `text` names, or lists all for `codes`. `None` if it names none at all
/// (it is a model, then).
pub fn run(text: &str) -> Option<Result<Exit>> {
    if text == "codes" {
        let lines: String = codes::all().map(|r| format!("{}  {}\n", r.code, r.title)).collect();
        write_stdout(&lines);
        return Some(Ok(Exit::Ok));
    }
    let code = Code::parse(text)?;
    Some(match codes::explain(code) {
        Some(explanation) => {
            write_stdout(&explanation);
            Ok(Exit::Ok)
        }
        None => Err(Error::Input(format!("there is no code {code}; `hypatia explain codes` lists them all"))),
    })
}
