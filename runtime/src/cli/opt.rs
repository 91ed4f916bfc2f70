//! `hypatia opt`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Optimise a model and print the result.
#[derive(Args)]
pub struct Opt {
    /// Files.
    files: Vec<PathBuf>,
}

impl Opt {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
