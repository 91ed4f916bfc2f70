//! `hypatia explain`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Explain an error code, a model's fusions, or why a rule did not fire.
#[derive(Args)]
pub struct Explain {
    /// Files.
    files: Vec<PathBuf>,
}

impl Explain {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        if let [only] = self.files.as_slice()
            && let Some(done) = only.to_str().and_then(super::explain_code::run)
        {
            return done;
        }
        Err(Error::Internal("this command is not there yet".into()))
    }
}
