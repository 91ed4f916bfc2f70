//! `hypatia run`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Run a model.
#[derive(Args)]
pub struct Run {
    /// Files.
    files: Vec<PathBuf>,
}

impl Run {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
