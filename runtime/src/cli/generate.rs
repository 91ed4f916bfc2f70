//! `hypatia gen`.

use std::path::PathBuf;

use clap::Args;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Generate CUDA kernels or Rust code.
#[derive(Args)]
pub struct Gen {
    /// Files.
    files: Vec<PathBuf>,
}

impl Gen {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let _ = &self.files;
        Err(Error::Internal("this command is not there yet".into()))
    }
}
