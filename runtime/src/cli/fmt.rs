//! `hypatia fmt`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Format .hyp files.
#[derive(Args)]
pub struct Fmt {
    /// Files.
    files: Vec<PathBuf>,
}

impl Fmt {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
