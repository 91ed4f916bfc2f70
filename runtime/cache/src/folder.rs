//! The user's cache folder, and the check that it can be trusted.
//!
//! In: the environment. Out: a folder that only the user can write to, or why there is none.
//! Invariant: a folder that is a symbolic link, belongs to another user, or is writable by others
//! is refused and left unchanged, because its content would be executed.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// Entries of a folder whose names have that prefix, sorted; none if the folder cannot be read.
pub fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut out: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.starts_with(prefix)))
        .map(|e| e.path())
        .collect();
    out.sort();
    out
}

/// The user's cache folder for Hypatia: `HYPATIA_CACHE`, `XDG_CACHE_HOME` or `~/.cache`; created if
/// it does not exist.
pub fn cache_folder() -> Result<PathBuf, String> {
    let own = std::env::var_os("HYPATIA_CACHE").filter(|v| !v.is_empty()).map(PathBuf::from);
    // A path relative to the current directory would not be the user's own folder.
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let folder = own
        .or_else(|| of("XDG_CACHE_HOME").map(|p| p.join("hypatia")))
        .or_else(|| of("HOME").map(|p| p.join(".cache/hypatia")))
        .ok_or("no cache folder: set HYPATIA_CACHE, XDG_CACHE_HOME or HOME")?;
    private_folder(&folder)?;
    Ok(folder)
}

/// Creates a folder that only the user can enter, or checks that nobody else can write to the
/// existing one.
pub fn private_folder(folder: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| {
        format!(
            "the cache folder {} cannot be used: {e}; nothing is stored for the next start (HYPATIA_CACHE names \
             another folder)",
            folder.display()
        )
    };
    match std::fs::symlink_metadata(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(folder).map_err(fail)?;
        }
        Err(e) => return Err(fail(e)),
        Ok(_) => {}
    }
    let meta = std::fs::symlink_metadata(folder).map_err(fail)?;
    let refuse = |why: String| Err(format!("the cache folder {} is not used: {why}", folder.display()));
    if meta.is_symlink() {
        return refuse("it is a symbolic link; set HYPATIA_CACHE to the folder that it points to".into());
    }
    if !meta.is_dir() {
        return refuse("it is not a folder".into());
    }
    match untrusted(&meta) {
        Some(why) => refuse(format!(
            "{why}; take ownership of it and run chmod 700, or set HYPATIA_CACHE to another \
            folder"
        )),
        None => Ok(()),
    }
}

/// Who other than the user could have written this, if anyone.
#[cfg(unix)]
pub(super) fn untrusted(meta: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    // Gets the user's id without a call that needs `unsafe`.
    let me = match std::fs::metadata("/proc/self") {
        Ok(m) => m.uid(),
        Err(e) => return Some(format!("this process's user is not known (/proc/self: {e})")),
    };
    if meta.uid() != me {
        return Some(format!("it belongs to user {}, not to {me}", meta.uid()));
    }
    (meta.mode() & 0o022 != 0).then(|| format!("others may write to it (mode {:o})", meta.mode() & 0o777))
}

#[cfg(not(unix))]
pub(super) fn untrusted(_: &Metadata) -> Option<String> {
    None
}
