//! `hypatia verify`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Verify rules against random inputs.
#[derive(Args)]
pub struct Verify {
    /// Files.
    files: Vec<PathBuf>,
}

impl Verify {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
