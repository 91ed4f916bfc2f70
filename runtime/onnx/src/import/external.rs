//! External data: weights in files beside the model.
//!
//! In: a tensor's `external_data` entries and the model's folder. Out: its bytes. Invariant: only
//! regular files inside the model's folder are opened, after `..` and symbolic links are resolved.
//! Nothing is allocated before the file is known to be long enough and enough memory is known to be
//! free.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use hypatia_dsl::source::open_regular;

use super::onnx::proto::StringStringEntryProto;
use hypatia_tensor::memory;

/// The `expected` bytes of a tensor. `dir` is the model's folder, or `None` for a model from
/// memory.
pub(super) fn read(entries: &[StringStringEntryProto], dir: Option<&Path>, expected: usize) -> Result<Vec<u8>, String> {
    let get = |key: &str| entries.iter().find(|e| e.key() == key).map(|e| e.value());
    let number = |key: &str| match get(key) {
        None | Some("") => Ok(None),
        Some(text) => {
            text.trim().parse::<u64>().map(Some).map_err(|_| format!("external data: {key} `{text}` is not a size"))
        }
    };
    let location = get("location").filter(|l| !l.is_empty()).ok_or("external data: the location is missing")?;
    let offset = number("offset")?.unwrap_or(0);
    if let Some(length) = number("length")?
        && length != expected as u64
    {
        return Err(format!("external data: length {length}, but type and shape need {expected} bytes"));
    }
    let dir = dir.ok_or("external data: the model was not loaded from a file, so there is no folder to look in")?;
    let path = resolve(dir, location)?;
    let shown = path.display();
    let failed = |e: std::io::Error| format!("external data: {shown}: {e}");
    let mut file = open_regular(&path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let end = offset.checked_add(expected as u64).filter(|end| *end <= length);
    if end.is_none() {
        return Err(format!(
            "external data: {shown} has {length} bytes, but {expected} bytes from {offset} on are needed"
        ));
    }
    // A sparse file can have any length.
    memory::must_fit(expected)?;
    let mut bytes = vec![0; expected];
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    file.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The file at a location, which must lie in the model's folder.
fn resolve(dir: &Path, location: &str) -> Result<PathBuf, String> {
    let outside = || format!("external data: `{location}` is outside of the model's folder; move the file there");
    let relative = Path::new(location);
    if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir | Component::ParentDir)) {
        return Err(outside());
    }
    let dir = dir.canonicalize().map_err(|e| format!("{}: {e}", dir.display()))?;
    let path = dir.join(relative);
    let real = path.canonicalize().map_err(|e| format!("external data: {}: {e}", path.display()))?;
    if !real.starts_with(&dir) {
        return Err(outside());
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> Vec<StringStringEntryProto> {
        pairs
            .iter()
            .map(|(k, v)| StringStringEntryProto { key: Some(k.to_string()), value: Some(v.to_string()) })
            .collect()
    }

    #[test]
    fn a_sparse_file_is_no_reason_to_ask_for_memory() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("w.bin")).unwrap();
        let length = 1u64 << 41;
        // Some file systems have no sparse files.
        if file.set_len(length).is_ok() {
            let started = std::time::Instant::now();
            let why = read(&entries(&[("location", "w.bin")]), Some(dir.path()), length as usize).unwrap_err();
            assert!(why.contains("2199023255552 bytes are needed"), "{why}");
            assert!(started.elapsed().as_secs() < 5);
        }
    }

    #[test]
    fn stays_in_the_folder_and_in_the_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("model");
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::write(dir.join("w.bin"), [0u8, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        std::fs::write(root.path().join("secret"), [9u8; 8]).unwrap();
        let go = |pairs: &[(&str, &str)], n| read(&entries(pairs), Some(&dir), n);
        assert_eq!(go(&[("location", "w.bin"), ("offset", "4"), ("length", "4")], 4).unwrap(), [4, 5, 6, 7]);
        assert_eq!(go(&[("location", "sub/../w.bin")], 2).unwrap(), [0, 1]);
        for bad in [
            &[("location", "../secret")][..],
            &[("location", "sub/../../secret")],
            &[("location", "/etc/hostname")],
            &[("location", "missing.bin")],
            &[("location", "sub")],
            &[("location", "w.bin"), ("offset", "5")],
            &[("location", "w.bin"), ("offset", "18446744073709551615")],
            &[("location", "w.bin"), ("length", "8")],
            &[("location", "w.bin"), ("offset", "-4")],
            &[],
        ] {
            assert!(go(bad, 4).is_err(), "{bad:?}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.path().join("secret"), dir.join("link")).unwrap();
            assert!(go(&[("location", "link")], 4).unwrap_err().contains("outside"));
        }
        assert!(go(&[("location", "w.bin")], usize::MAX).is_err());
        assert!(read(&entries(&[("location", "w.bin")]), None, 4).is_err());
    }
}
