//! `hypatia cache`: machine code and tunings that were kept for the next start.

use anstream::println;
use clap::{Args, Subcommand};
use hypatia::cache::{Cache as Kept, State};
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
        let kept = Kept::of_user().map_err(Error::Input)?;
        let folder = &kept.folder;
        let tunings = folder.join("tunings.json");
        let files = kept.cubins.list().map_err(Error::Input)?;
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
                let mut bad = Vec::new();
                for f in &files {
                    if let State::Bad(why) = &f.state {
                        println!("{}: not used: {why}", f.path.display());
                        bad.push(f);
                    }
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
                let files = kept.cubins.clear().map_err(Error::Input)?;
                if tunings.exists() {
                    std::fs::remove_file(&tunings).map_err(|source| Error::Io { path: tunings.clone(), source })?;
                }
                println!("removed {} files of machine code and {} tunings", files.len(), known.entries().count());
            }
        }
        Ok(Exit::Ok)
    }
}
