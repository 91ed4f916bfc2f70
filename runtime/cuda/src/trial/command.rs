//! The program that runs trials.
//!
//! In: the environment. Out: the path of the command `hypatia`. Invariant: a relative path is never
//! searched, so that nothing in the current folder is run by accident.

use std::path::PathBuf;

/// The environment variable that names the command.
pub const VARIABLE: &str = "HYPATIA_COMMAND";
/// The name of the command.
const NAME: &str = "hypatia";

/// The command: what the environment names, this program if it is the command, the one beside this
/// program, or the first one in `PATH`.
pub fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(named);
        return match path.is_absolute() && path.is_file() {
            true => Ok(path),
            false => Err(format!("{VARIABLE} names {}, which is no file with an absolute path", path.display())),
        };
    }
    let own = std::env::current_exe().ok();
    let is_own = |p: &PathBuf| p.file_stem().is_some_and(|n| n == NAME);
    if let Some(own) = own.as_ref().filter(|p| is_own(p)) {
        return Ok(own.clone());
    }
    let beside = own.iter().flat_map(|p| p.ancestors().skip(1).take(2)).map(|folder| folder.join(NAME));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path: Vec<PathBuf> = std::env::split_paths(&path).filter(|p| p.is_absolute()).collect();
    let found = beside.chain(in_path.iter().map(|folder| folder.join(NAME))).find(|p| p.is_file());
    found.ok_or_else(|| {
        format!(
            "they are tried by the command `{NAME}`, which is neither beside this program nor in PATH; install \
            it, or name it in {VARIABLE}"
        )
    })
}
