//! `hypatia doctor`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Tell what this machine offers.
#[derive(Args)]
pub struct Doctor {
    /// Files.
    files: Vec<PathBuf>,
}

impl Doctor {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
