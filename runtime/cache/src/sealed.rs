//! Folders that are used as a whole: sealed when they are made, verified before they are used.
//!
//! In: a folder of files. Out: whether every byte in it is unchanged since the folder was sealed.
//! Invariant: a symbolic link, and anything that is neither a file nor a folder, breaks the seal,
//! as does an added or removed file.

use std::path::{Path, PathBuf};

use hypatia_dsl::source::read_regular;

use super::store::{Key, KeyMaker};

/// The file that holds the hash of all others.
const SEAL: &str = "hypatia.seal";
/// Maximum number of files; none of Hypatia's folders has more.
const MOST: usize = 10_000;

/// Records the hash of a folder's content.
pub fn seal(folder: &Path) -> std::io::Result<()> {
    std::fs::write(folder.join(SEAL), sum(folder)?)
}

/// True if a folder's content is unchanged since it was sealed.
pub fn is_sealed(folder: &Path) -> bool {
    let written = read_regular(&folder.join(SEAL), 4096);
    written.is_ok_and(|written| sum(folder).is_ok_and(|sum| sum[..] == written[..]))
}

/// The hash of the names and contents of all files except the seal.
fn sum(folder: &Path) -> std::io::Result<Key> {
    let mut files = Vec::new();
    walk(folder, &mut files)?;
    files.sort();
    let mut key = KeyMaker::default();
    for path in files.iter().filter(|p| **p != folder.join(SEAL)) {
        let name = path.strip_prefix(folder).unwrap_or(path);
        key = key.part(name.as_os_str().as_encoded_bytes()).part(std::fs::read(path)?);
    }
    Ok(key.key())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let no = |what: &str| Err(std::io::Error::other(what.to_string()));
    for entry in std::fs::read_dir(folder)? {
        let (entry, path) = entry.map(|e| (e.file_type(), e.path()))?;
        let kind = entry?;
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => walk(&path, files)?,
            (_, true) => files.push(path),
            _ => return no("neither a file nor a folder"),
        }
        if files.len() > MOST {
            return no("too many files");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whatever_changes_breaks_the_seal() {
        let keep = tempfile::tempdir().unwrap();
        let at = keep.path().join("headers");
        let fresh = || {
            let _ = std::fs::remove_dir_all(&at);
            std::fs::create_dir_all(at.join("sub")).unwrap();
            std::fs::write(at.join("a.h"), "int a;").unwrap();
            std::fs::write(at.join("sub/b.h"), "int b;").unwrap();
            seal(&at).unwrap();
            assert!(is_sealed(&at));
        };
        let changes: [&dyn Fn(); 7] = [
            &|| std::fs::write(at.join("a.h"), "int c;").unwrap(),
            &|| std::fs::write(at.join("sub/c.h"), "").unwrap(),
            &|| std::fs::remove_file(at.join("sub/b.h")).unwrap(),
            &|| std::fs::rename(at.join("a.h"), at.join("sub/a.h")).unwrap(),
            &|| std::fs::write(at.join(SEAL), "").unwrap(),
            &|| std::fs::remove_file(at.join(SEAL)).unwrap(),
            &|| {
                std::fs::rename(at.join("a.h"), keep.path().join("a.h")).unwrap();
                #[cfg(unix)]
                std::os::unix::fs::symlink(keep.path().join("a.h"), at.join("a.h")).unwrap();
            },
        ];
        for (i, change) in changes.iter().enumerate() {
            fresh();
            change();
            assert!(!is_sealed(&at), "change {i}");
        }
        assert!(!is_sealed(&keep.path().join("nowhere")));
    }
}
