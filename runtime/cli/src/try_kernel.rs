//! `hypatia try-kernel`: the child process in which a kernel of the user's own runs first.
//!
//! In: a folder with a request. Out: the answer, in the same folder. Invariant: users do not call
//! it; a fault of the kernel ends this process and no other.

use std::path::PathBuf;

use clap::Args;
use hypatia_cuda::trial::child;
use hypatia_tensor::error::Result;

use super::Exit;

/// Arguments of `hypatia try-kernel`.
#[derive(Args)]
pub struct TryKernel {
    /// The folder with the request.
    folder: PathBuf,
}

impl TryKernel {
    /// Runs the trial.
    pub fn run(&self) -> Result<Exit> {
        child::run(&self.folder).map(|()| Exit::Ok)
    }
}
