//! `hypatia completions SHELL`.

use clap::Args;
use clap_complete::Shell;
use hypatia_tensor::error::Result;

use super::{Exit, Global};

/// Print shell completions, for the shell to source.
#[derive(Args)]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    /// Prints the completions on stdout.
    pub fn run(&self, _: &Global, command: &mut clap::Command) -> Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "hypatia", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
        Ok(Exit::Ok)
    }
}
