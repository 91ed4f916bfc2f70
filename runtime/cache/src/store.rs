//! One kind of entries: a folder with a file for each key.
//!
//! In: keys and bytes. Out: the bytes of a key, where a good file holds them. Holds always: a file appears whole or not
//! at all (written beside under a lock, then renamed); its header names the key and the SHA-256 of what follows, so that a
//! damaged, cut, exchanged or foreign file is missing, never wrong; what a killed writer leaves is removed by the next
//! process that opens the store. No file is flushed to the disk: one that a power cut emptied is damaged, and made again.

use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::folder::{children, private_folder, stranger};

/// First bytes of a file: a name and the version of what follows.
const MAGIC: &[u8; 16] = b"hypatia-cache-2\n";
/// Bytes before the content: the magic, the key, the checksum.
const HEADER: usize = 16 + 32 + 32;
/// Larger files are none of ours.
const LARGEST: u64 = 256 << 20;
/// Files of one kind at most; the oldest ones go.
const MOST: usize = 8 << 10;
/// How often it is looked whether there are too many: for one key in so many.
const LOOK: u8 = 32;

/// What names an entry: a hash of all that its content depends on.
pub type Key = [u8; 32];

/// Makes a [`Key`] of parts, each with its length, so that no two lists of parts run into one.
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

    /// Adds what a value shows of itself for debugging, without making the text.
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

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Machine code.
    Cubin,
    /// A choice that was measured.
    Choice,
    /// A verdict on a plan.
    Verdict,
}

impl Kind {
    /// The folder's name, and the ending of its files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cubin => "cubin",
            Kind::Choice => "choice",
            Kind::Verdict => "verdict",
        }
    }
}

/// What a file in a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Its content would be used.
    Good,
    /// It has an entry's name and would not be used.
    Bad(String),
    /// Half a file of a writer that is at work, or was killed.
    Part,
    /// Nothing of ours.
    Foreign,
}

/// A file in a store.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Where.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was written.
    pub written: Option<SystemTime>,
    /// What it is.
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
    /// The entries of that kind in a cache folder. What killed writers left is removed.
    pub fn open(cache: &Path, kind: Kind) -> Store {
        let folder = cache.join(kind.name());
        let store = Store { kind, folder, trouble: Mutex::default(), writes: AtomicUsize::new(0) };
        store.sweep();
        store
    }

    /// What it holds.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a key.
    pub fn file(&self, key: &Key) -> PathBuf {
        let name: String = key.iter().map(|b| format!("{b:02x}")).collect();
        self.folder.join(format!("{name}.{}", self.kind.name()))
    }

    /// What was kept under that key, if a good file holds it.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.trusted().ok()?;
        read(&self.file(key), key).ok()
    }

    /// Keeps this under that key. What cannot be kept is made again at the next start: see [`Store::trouble`].
    pub fn put(&self, key: &Key, content: &[u8]) {
        if let Err(why) = self.write(key, content) {
            self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        }
    }

    /// What was kept under that key, else what is made now, which is kept; and whether it was made.
    pub fn get_or_make<E>(&self, key: &Key, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<(Vec<u8>, bool), E> {
        if let Some(found) = self.get(key) {
            return Ok((found, false));
        }
        let made = make()?;
        self.put(key, &made);
        Ok((made, true))
    }

    /// Why the first entry that could not be kept was not.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All files in the folder, by name.
    pub fn list(&self) -> Result<Vec<Seen>, String> {
        match self.trusted() {
            Err(_) if !self.folder.is_symlink() && !self.folder.exists() => return Ok(Vec::new()),
            trusted => trusted?,
        }
        let mut out = Vec::new();
        for path in children(&self.folder, "") {
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            let state = match (self.key_of(&path), is_part(&path)) {
                (Some(key), _) => read(&path, &key).map_or_else(State::Bad, |_| State::Good),
                (None, true) if meta.is_file() => State::Part,
                _ => State::Foreign,
            };
            out.push(Seen { path, bytes: meta.len(), written: meta.modified().ok(), state });
        }
        Ok(out)
    }

    /// The content of an entry, by its file.
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        self.get(&self.key_of(path)?)
    }

    /// Removes files that have the names of ours, and nothing else. Returns what was removed; what could not be is an
    /// error.
    pub fn clear(&self) -> Result<Vec<Seen>, String> {
        let mut removed = Vec::new();
        for seen in self.list()? {
            // A folder in an entry's place is nobody's that we know.
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
        // Only an empty one goes.
        let _ = std::fs::remove_dir(&self.folder);
        Ok(removed)
    }

    /// Fails unless the folder is there and the user's alone.
    fn trusted(&self) -> Result<(), String> {
        std::fs::symlink_metadata(&self.folder).map_err(|e| format!("{}: {e}", self.folder.display()))?;
        private_folder(&self.folder)
    }

    /// The key that a file's name tells.
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

    /// Writes beside and renames.
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
        // A process that sweeps may take the file for a leftover before it is locked: then once more.
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
        // While it is locked no other process takes it for a leftover. A file system without locks cannot tell the two
        // apart, and a sweep leaves the file alone.
        let _ = file.lock();
        let done = file.write_all(bytes).and_then(|()| std::fs::rename(&beside, path));
        if done.is_err() {
            // What is left of a failed write is of no use; if it cannot be removed now, the next process will.
            let _ = std::fs::remove_file(&beside);
        }
        done
    }

    /// Removes what writers left that are no more: their locks went with them.
    fn sweep(&self) {
        if self.trusted().is_err() {
            return;
        }
        for path in children(&self.folder, "") {
            let ours = is_part(&path) && std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
            // Nothing is written through this: locking needs an open file.
            let open = || std::fs::OpenOptions::new().write(true).open(&path);
            if let (true, Ok(file)) = (ours, open())
                && file.try_lock().is_ok()
            {
                // Another process may have been faster.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Keeps so many files, the newest.
    fn trim(&self, most: usize) {
        let files: Vec<PathBuf> = children(&self.folder, "").into_iter().filter(|p| self.key_of(p).is_some()).collect();
        if files.len() <= most {
            return;
        }
        let age = |p: &PathBuf| std::fs::symlink_metadata(p).and_then(|m| m.modified()).ok();
        let mut dated: Vec<(Option<SystemTime>, PathBuf)> = files.into_iter().map(|p| (age(&p), p)).collect();
        dated.sort();
        // Some more than needed, so that this is not done for every further file.
        let too_many = dated.len() - most * 7 / 8;
        for (_, path) in dated.into_iter().take(too_many) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_part(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "part")
}

/// The key counts as well: a file under another's name is none of ours.
fn checksum(key: &Key, content: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(MAGIC);
    hash.update(key);
    hash.update(content);
    hash.finalize().into()
}

/// The content of a file that is as it was written, or why it is not.
fn read(path: &Path, key: &Key) -> Result<Vec<u8>, String> {
    // Before it is opened: a pipe would not let go. What is opened may be a newer file of the same name, and is looked
    // at again; nobody else can put one there.
    plain(&std::fs::symlink_metadata(path).map_err(|e| e.to_string())?)?;
    let file = File::open(path).map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    plain(&meta)?;
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(LARGEST).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no file of this version's cache")?;
    let rest = rest.strip_prefix(key).ok_or("it is another entry's")?;
    let (sum, content) = rest.split_at_checked(32).ok_or("it is cut off")?;
    if sum != checksum(key, content) {
        return Err("its bytes are not those that were written".into());
    }
    Ok(content.to_vec())
}

/// Fails unless this is a file that the user alone could have written, of a size that ours have.
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
    stranger(meta).map_or(Ok(()), Err)
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
