//! `hypatia cache`: machine code and tunings that were kept for the next start.

use anstream::println;
use clap::{Args, Subcommand};
use hypatia::cuda::cubin;
use hypatia::cuda::nvrtc::cache_folder;
use hypatia::cuda::tune::Tunings;
use hypatia::error::{Error, Result};

use super::{Exit, Global};

/// Look into the cache of machine code and tunings.
///
/// It lies in HYPATIA_CACHE, else in hypatia/ under XDG_CACHE_HOME or ~/.cache, and can be removed at any time: what is
/// missing or damaged is made again.
#[derive(Args)]
pub struct Cache {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List what is kept.
    Ls,
    /// Check every file; exit code 1 if one is damaged or not ours.
    Verify,
    /// Remove all of it.
    Clear,
}

impl Cache {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let folder = cache_folder().map_err(Error::Device)?;
        let tunings = folder.join("tunings.json");
        let files = cubin::list()?;
        let (known, damaged) = Tunings::read(&tunings);
        match self.action {
            Action::Ls => {
                let bytes: u64 = files.iter().map(|f| f.bytes).sum();
                println!("{}", folder.display());
                println!("machine code  {} files, {} KiB", files.len(), bytes.div_ceil(1024));
                println!("tunings       {} products", known.entries().count());
                for (what, entry) in known.entries() {
                    println!(
                        "  {:9.2} us (first guess {:.2} us, best of {})  {what}",
                        entry.us, entry.first_us, entry.candidates
                    );
                }
            }
            Action::Verify => {
                let bad: Vec<_> = files.iter().filter(|f| !f.good).collect();
                for f in &bad {
                    println!("{}: damaged, or not a file that only you can write; it is not used", f.path.display());
                }
                if let Some(why) = &damaged {
                    println!("{why}");
                }
                println!("{} of {} files are good", files.len() - bad.len(), files.len());
                if !bad.is_empty() || damaged.is_some() {
                    return Ok(Exit::Failed);
                }
            }
            Action::Clear => {
                for f in &files {
                    std::fs::remove_file(&f.path).map_err(|source| Error::Io { path: f.path.clone(), source })?;
                }
                if tunings.exists() {
                    std::fs::remove_file(&tunings).map_err(|source| Error::Io { path: tunings.clone(), source })?;
                }
                println!("removed {} files of machine code and {} tunings", files.len(), known.entries().count());
            }
        }
        Ok(Exit::Ok)
    }
}
