//! `hypatia test`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Run the `test` blocks of .hyp files.
#[derive(Args)]
pub struct Test {
    /// Files.
    files: Vec<PathBuf>,
}

impl Test {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
