//! Entries of one kind: a folder with a file for each key.
//!
//! In: keys and bytes. Out: the bytes of a key, if a valid file holds them. Invariant: writes are
//! atomic: a file appears whole or not at all (it is written to a temporary file under a lock, then
//! renamed). The header holds the key and the SHA-256 of the content, so a damaged, truncated,
//! swapped or foreign file is a miss and never a wrong result. The next process that opens the
//! store removes the temporary files of killed writers. Files are not flushed to disk: one that a
//! power cut emptied is damaged and is recomputed.

use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::folder::{children, private_folder, untrusted};

/// First bytes of a file: a name and the version of the format.
const MAGIC: &[u8; 16] = b"hypatia-cache-2\n";
/// Bytes before the content: the magic, the key, the checksum.
const HEADER: usize = 16 + 32 + 32;
/// Maximum file size; larger files are not cache entries.
const LARGEST: u64 = 256 << 20;
/// Maximum number of files of one kind; the oldest are evicted.
const MOST: usize = 8 << 10;
/// The number of files is checked for one key in this many.
const LOOK: u8 = 32;

/// The name of an entry: a hash of everything that its content depends on.
pub type Key = [u8; 32];

/// Hashes parts into a [`Key`]. Each part is hashed with its length, so that different lists of
/// parts do not collide.
#[derive(Clone, Default)]
pub struct KeyMaker(Sha256);

impl KeyMaker {
    /// Adds a part.
    pub fn part(mut self, bytes: impl AsRef<[u8]>) -> KeyMaker {
        let bytes = bytes.as_ref();
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds a value's `Debug` output without allocating the string.
    pub fn debug(mut self, value: &dyn std::fmt::Debug) -> KeyMaker {
        use std::fmt::Write;
        struct Into<'a>(&'a mut Sha256, u64);
        impl Write for Into<'_> {
            fn write_str(&mut self, s: &str) -> std::fmt::Result {
                self.0.update(s.as_bytes());
                self.1 += s.len() as u64;
                Ok(())
            }
        }
        let mut out = Into(&mut self.0, 0);
        // Writing into a hash does not fail.
        let _ = write!(out, "{value:?}");
        let length = out.1;
        self.0.update(length.to_le_bytes());
        self
    }

    /// The key.
    pub fn key(self) -> Key {
        self.0.finalize().into()
    }
}

/// The kind of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Machine code.
    Cubin,
    /// A measured choice.
    Choice,
    /// A verdict on a plan.
    Verdict,
    /// A verdict on a kernel of the user's own.
    Trial,
}

impl Kind {
    /// The folder's name, and the file extension.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cubin => "cubin",
            Kind::Choice => "choice",
            Kind::Verdict => "verdict",
            Kind::Trial => "trial",
        }
    }
}

/// The state of a file in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Valid: its content would be used.
    Good,
    /// It has the name of an entry but is invalid; the reason.
    Bad(String),
    /// A temporary file of a writer that is running or was killed.
    Partial,
    /// Not a cache file.
    Foreign,
}

/// A file in a store.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The time of its last write.
    pub written: Option<SystemTime>,
    /// Its state.
    pub state: State,
}

/// A folder of entries of one kind.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    folder: PathBuf,
    trouble: Mutex<Option<String>>,
    writes: AtomicUsize,
}

impl Store {
    /// The entries of that kind in a cache folder. Removes the temporary files of killed writers.
    pub fn open(cache: &Path, kind: Kind) -> Store {
        let folder = cache.join(kind.name());
        let store = Store { kind, folder, trouble: Mutex::default(), writes: AtomicUsize::new(0) };
        store.sweep();
        store
    }

    /// The kind of its entries.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a key.
    pub fn file(&self, key: &Key) -> PathBuf {
        let name: String = key.iter().map(|b| format!("{b:02x}")).collect();
        self.folder.join(format!("{name}.{}", self.kind.name()))
    }

    /// The content stored under that key, if its file is valid.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.trusted().ok()?;
        read(&self.file(key), key).ok()
    }

    /// Stores the content under that key. If this fails, the content is recomputed at the next
    /// start: see [`Store::trouble`].
    pub fn put(&self, key: &Key, content: &[u8]) {
        if let Err(why) = self.write(key, content) {
            self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        }
    }

    /// The content stored under that key; on a miss, makes and stores it. Also returns whether it
    /// was made.
    pub fn get_or_make<E>(&self, key: &Key, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<(Vec<u8>, bool), E> {
        if let Some(found) = self.get(key) {
            return Ok((found, false));
        }
        let made = make()?;
        self.put(key, &made);
        Ok((made, true))
    }

    /// The first write error, if any.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All files in the folder, sorted by name.
    pub fn list(&self) -> Result<Vec<StoredFile>, String> {
        match self.trusted() {
            Err(_) if !self.folder.is_symlink() && !self.folder.exists() => return Ok(Vec::new()),
            trusted => trusted?,
        }
        let mut out = Vec::new();
        for path in children(&self.folder, "") {
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            let state = match (self.key_of(&path), is_partial(&path)) {
                (Some(key), _) => read(&path, &key).map_or_else(State::Bad, |_| State::Good),
                (None, true) if meta.is_file() => State::Partial,
                _ => State::Foreign,
            };
            out.push(StoredFile { path, bytes: meta.len(), written: meta.modified().ok(), state });
        }
        Ok(out)
    }

    /// The content of the entry in that file.
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        self.get(&self.key_of(path)?)
    }

    /// Removes the files whose names are those of cache files, and nothing else. Returns the
    /// removed files; a file that cannot be removed is an error.
    pub fn clear(&self) -> Result<Vec<StoredFile>, String> {
        let mut removed = Vec::new();
        for seen in self.list()? {
            // A folder with the name of an entry is not a cache file.
            let is_folder = std::fs::symlink_metadata(&seen.path).is_ok_and(|m| m.is_dir());
            if seen.state == State::Foreign || is_folder {
                continue;
            }
            match std::fs::remove_file(&seen.path) {
                Ok(()) => removed.push(seen),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(format!("{}: {e}", seen.path.display())),
            }
        }
        // This removes the folder only if it is empty.
        let _ = std::fs::remove_dir(&self.folder);
        Ok(removed)
    }

    /// Fails unless the folder exists and only the user can write to it.
    fn trusted(&self) -> Result<(), String> {
        std::fs::symlink_metadata(&self.folder).map_err(|e| format!("{}: {e}", self.folder.display()))?;
        private_folder(&self.folder)
    }

    /// The key in a file's name.
    fn key_of(&self, path: &Path) -> Option<Key> {
        let name = path.file_name()?.to_str()?.strip_suffix(self.kind.name())?.strip_suffix('.')?;
        let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if name.len() != 64 || !name.bytes().all(digits) {
            return None;
        }
        let mut key = [0; 32];
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(name.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(key)
    }

    /// Writes to a temporary file and renames it.
    fn write(&self, key: &Key, content: &[u8]) -> Result<(), String> {
        private_folder(&self.folder)?;
        let path = self.file(key);
        let fail = |e: std::io::Error| format!("{} cannot be written: {e}", path.display());
        if content.len() as u64 > LARGEST - HEADER as u64 {
            return Err(format!("{} cannot be written: {} bytes are too many", path.display(), content.len()));
        }
        let mut bytes = Vec::with_capacity(HEADER + content.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&checksum(key, content));
        bytes.extend_from_slice(content);
        // A process that sweeps may remove the temporary file before it is locked: retry once.
        let gone = |e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
        let once = || self.write_beside(&path, &bytes);
        once().or_else(|e| if gone(&e) { once() } else { Err(e) }).map_err(fail)?;
        if key[0].is_multiple_of(LOOK) {
            self.trim(MOST);
        }
        Ok(())
    }

    fn write_beside(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let (process, store) = (std::process::id(), std::ptr::from_ref(self) as usize);
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_extension(format!("{process}-{store:x}-{number}.part"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&beside)?;
        // The lock keeps other processes from removing the file as a leftover. On a file system
        // without locks the two cannot be told apart, and the sweep leaves the file alone.
        let _ = file.lock();
        let done = file.write_all(bytes).and_then(|()| std::fs::rename(&beside, path));
        if done.is_err() {
            // Remove the rest of a failed write. If that fails, the next process will do it.
            let _ = std::fs::remove_file(&beside);
        }
        done
    }

    /// Removes the temporary files of dead writers: their locks are released.
    fn sweep(&self) {
        if self.trusted().is_err() {
            return;
        }
        for path in children(&self.folder, "") {
            let ours = is_partial(&path) && std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
            // Nothing is written through this handle: locking needs an open file.
            let open = || std::fs::OpenOptions::new().write(true).open(&path);
            if let (true, Ok(file)) = (ours, open())
                && file.try_lock().is_ok()
            {
                // Another process may have removed it first.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Evicts all but the newest `most` files.
    fn trim(&self, most: usize) {
        let files: Vec<PathBuf> = children(&self.folder, "").into_iter().filter(|p| self.key_of(p).is_some()).collect();
        if files.len() <= most {
            return;
        }
        let age = |p: &PathBuf| std::fs::symlink_metadata(p).and_then(|m| m.modified()).ok();
        let mut dated: Vec<(Option<SystemTime>, PathBuf)> = files.into_iter().map(|p| (age(&p), p)).collect();
        dated.sort();
        // Evict some more than needed, so that the next write does not evict again.
        let too_many = dated.len() - most * 7 / 8;
        for (_, path) in dated.into_iter().take(too_many) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_partial(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "part")
}

/// The key is part of the checksum: a file under another entry's name is invalid.
fn checksum(key: &Key, content: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(MAGIC);
    hash.update(key);
    hash.update(content);
    hash.finalize().into()
}

/// The content of a valid file, or why it is invalid.
fn read(path: &Path, key: &Key) -> Result<Vec<u8>, String> {
    // Check before opening: opening a pipe would block. The opened file may be a newer one of the
    // same name and is checked again; nobody else can put one there.
    plain(&std::fs::symlink_metadata(path).map_err(|e| e.to_string())?)?;
    let file = File::open(path).map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    plain(&meta)?;
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(LARGEST).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is not a file of this version's cache")?;
    let rest = rest.strip_prefix(key).ok_or("it belongs to another entry")?;
    let (sum, content) = rest.split_at_checked(32).ok_or("it is truncated")?;
    if sum != checksum(key, content) {
        return Err("its content has changed since it was written".into());
    }
    Ok(content.to_vec())
}

/// Fails unless this is a regular file that only the user can write to, within the size limit.
fn plain(meta: &Metadata) -> Result<(), String> {
    if meta.is_symlink() {
        return Err("it is a symbolic link".into());
    }
    if !meta.is_file() {
        return Err("it is not a file".into());
    }
    if meta.len() > LARGEST {
        return Err(format!("{} bytes are too many", meta.len()));
    }
    untrusted(meta).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_tell_parts_apart() {
        let key = |parts: &[&str]| parts.iter().fold(KeyMaker::default(), |k, p| k.part(p)).key();
        let all = [key(&["a", "b"]), key(&["ab"]), key(&["ab", ""]), key(&["", "ab"]), key(&["b", "a"])];
        for (i, k) in all.iter().enumerate() {
            assert!(!all[..i].contains(k));
        }
        let shown = |v: &dyn std::fmt::Debug| KeyMaker::default().debug(v).key();
        assert_ne!(shown(&[1, 2]), shown(&[1, 3]));
        assert_eq!(shown(&[1, 2]), shown(&[1, 2]));
    }

    #[test]
    fn the_oldest_files_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), Kind::Verdict);
        for i in 0..40u8 {
            store.put(&[i; 32], &[i]);
            let file = File::options().write(true).open(store.file(&[i; 32])).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i.into())).unwrap();
        }
        store.trim(40);
        assert_eq!(store.list().unwrap().len(), 40);
        store.trim(32);
        assert_eq!(store.list().unwrap().len(), 28);
        assert!(store.get(&[11; 32]).is_none() && store.get(&[12; 32]).is_some());
    }
}
