//! `hypatia check`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Check .hyp files and report every error in them.
#[derive(Args)]
pub struct Check {
    /// Files.
    files: Vec<PathBuf>,
}

impl Check {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
