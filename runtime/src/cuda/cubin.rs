//! Machine code for generated kernels: from this process, from the user's cache, or from NVRTC.
//!
//! In: sources of `emit::cuda`. Out: loaded modules. Holds always: a source is compiled at most once for an
//! architecture and an NVRTC version; what comes from the cache folder is the bytes that were put there, by their
//! SHA-256, or it is compiled again; a file appears whole or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::driver::CudaModule;
use hypatia_dsl::emit::cuda::NVRTC_OPTIONS;
use sha2::{Digest, Sha256};

use super::device::Gpu;
use super::nvrtc::{Nvrtc, cache_folder};
use crate::error::{Error, Result};

/// First bytes of a cached file: a name and the version of what follows.
const MAGIC: &[u8; 16] = b"hypatia-cubin-1\n";

/// What names a piece of machine code: the source, the options, the architecture and the compiler.
pub type Key = [u8; 32];

/// How often machine code was found, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Loaded in this process before.
    pub loaded: usize,
    /// Read from the cache folder.
    pub cached: usize,
    /// Compiled now.
    pub compiled: usize,
}

/// The key of a source.
fn key(source: &str, arch: &str, compiler: &str) -> Key {
    let mut hash = Sha256::new();
    for part in [source, arch, compiler, env!("CARGO_PKG_VERSION")].iter().chain(&NVRTC_OPTIONS.to_vec()) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// A file of the cache.
fn file(folder: &Path, key: &Key) -> PathBuf {
    let name: String = key.iter().map(|b| format!("{b:02x}")).collect();
    folder.join("cubin").join(format!("{name}.cubin"))
}

/// The machine code in a cached file, if the file is as it was written.
fn read(path: &Path, key: &Key) -> Option<Vec<u8>> {
    let link = std::fs::symlink_metadata(path).ok()?;
    if !link.file_type().is_file() || !owned(&link) {
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(key)?;
    let (sum, code) = rest.split_at_checked(32)?;
    (sum == checksum(key, code)).then(|| code.to_vec())
}

/// The key counts as well: a file under another's name is none of ours.
fn checksum(key: &Key, code: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(code);
    hash.finalize().into()
}

/// True if the file belongs to the user and nobody else may write it.
#[cfg(unix)]
fn owned(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    // The user's id, without a call that needs `unsafe`.
    let me = std::fs::metadata("/proc/self").map(|m| m.uid());
    meta.mode() & 0o022 == 0 && me.is_ok_and(|me| me == meta.uid())
}

#[cfg(not(unix))]
fn owned(_: &std::fs::Metadata) -> bool {
    true
}

/// Writes beside and renames. A cache that cannot be written is no error: the next start compiles again.
fn write(path: &Path, key: &Key, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    let mut bytes = Vec::with_capacity(code.len() + 80);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&checksum(key, code));
    bytes.extend_from_slice(code);
    let unique = format!(".{}-{:?}.part", std::process::id(), std::thread::current().id());
    let beside = path.with_extension(unique.replace(['(', ')'], ""));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let done = options.open(&beside).and_then(|mut f| {
        use std::io::Write;
        f.write_all(&bytes)?;
        f.sync_all()
    });
    let done = done.and_then(|()| std::fs::rename(&beside, path));
    if done.is_err() {
        // What is left of a failed write is of no use; if it cannot be removed either, `cache clear` will.
        let _ = std::fs::remove_file(&beside);
    }
    done
}

/// A file of the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// Where.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// False if it would not be used: damaged, a link, or another user's.
    pub good: bool,
}

/// All files of the cache of machine code, by name.
pub fn list() -> Result<Vec<Cached>> {
    let folder = cache_folder().map_err(Error::Device)?.join("cubin");
    let mut out = Vec::new();
    for path in super::find::children(&folder, "") {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        let good = key_of(&path).is_some_and(|key| read(&path, &key).is_some());
        out.push(Cached { path, bytes: meta.len(), good });
    }
    Ok(out)
}

/// The key that a file's name tells.
fn key_of(path: &Path) -> Option<Key> {
    let name = path.file_name()?.to_str()?.strip_suffix(".cubin")?;
    let mut key = [0; 32];
    if name.len() != 64 || !name.is_ascii() {
        return None;
    }
    for (i, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(name.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(key)
}

/// Loads the modules of these sources, all that must be compiled at once on several threads.
pub fn modules(gpu: &Arc<Gpu>, sources: &[String]) -> Result<(Vec<Arc<CudaModule>>, Origins)> {
    let arch = gpu.arch();
    let nvrtc = Nvrtc::get();
    let compiler = match &nvrtc {
        Ok(n) => format!("{}.{}", n.version().0, n.version().1),
        Err(_) => String::from("none"),
    };
    let folder = cache_folder().ok();
    let keys: Vec<Key> = sources.iter().map(|s| key(s, &arch, &compiler)).collect();
    let mut origins = Origins::default();
    let mut found: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut missing: BTreeMap<Key, &str> = BTreeMap::new();
    for (key, source) in keys.iter().zip(sources) {
        if gpu.has_module(key) {
            origins.loaded += 1;
        } else if found.contains_key(key) || missing.contains_key(key) {
            continue;
        } else if let Some(code) = folder.as_ref().and_then(|f| read(&file(f, key), key)) {
            origins.cached += 1;
            found.insert(*key, code);
        } else {
            missing.insert(*key, source);
        }
    }
    if !missing.is_empty() {
        origins.compiled = missing.len();
        for (key, code) in compile(&*nvrtc?, &missing, &arch)? {
            if let Some(folder) = &folder {
                // An unwritable cache costs time at the next start and nothing else.
                let _ = write(&file(folder, &key), &key, &code);
            }
            found.insert(key, code);
        }
    }
    let load = |key: &Key| gpu.module(*key, || Ok(found.get(key).cloned().unwrap_or_default()));
    Ok((keys.iter().map(load).collect::<Result<_>>()?, origins))
}

fn compile(nvrtc: &Nvrtc, missing: &BTreeMap<Key, &str>, arch: &str) -> Result<Vec<(Key, Vec<u8>)>> {
    let work: Vec<(&Key, &&str)> = missing.iter().collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(work.len()).max(1);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some((key, source)) = work.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            done.push(nvrtc.compile(source, "kernel.cu", arch).map(|c| (**key, c.bytes)));
        }
        done
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles.into_iter().flat_map(|h| h.join().unwrap_or_default()).collect()
    });
    if results.len() != work.len() {
        return Err(Error::Internal("a compiling thread was lost".into()));
    }
    Ok(results.into_iter().collect::<std::result::Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_written_is_read_and_every_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let key = key("source", "sm_90a", "13.0");
        let path = file(folder.path(), &key);
        write(&path, &key, b"machine code").unwrap();
        assert_eq!(read(&path, &key).unwrap(), b"machine code");
        assert_eq!(key_of(&path), Some(key));
        assert_eq!(key_of(&path.with_extension("part")), None);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(read(&path, &key), None, "byte {at}");
        }
        for len in 0..good.len() {
            std::fs::write(&path, &good[..len]).unwrap();
            assert_eq!(read(&path, &key), None, "cut at {len}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_and_files_that_others_may_write_are_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = key("source", "sm_90a", "13.0");
        let path = file(folder.path(), &key);
        write(&path, &key, b"machine code").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read(&link, &key), None);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&path, &key), None);
    }

    #[test]
    fn keys_tell_all_that_matters_apart() {
        let all = [key("a", "b", "c"), key("ab", "", "c"), key("a", "b", "d"), key("a", "c", "c"), key("b", "b", "c")];
        for (i, k) in all.iter().enumerate() {
            assert!(!all[..i].contains(k));
        }
    }
}
