//! Machine code for generated kernels: from this process, from the user's cache, or from NVRTC.
//!
//! In: sources of `hypatia-templates`. Out: loaded modules. Invariant: a source is compiled at most
//! once per architecture and NVRTC version; an entry of the [`hypatia_cache`] is byte-identical to
//! what was stored, or it is recompiled.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::CudaModule;
use hypatia_templates::cuda::NVRTC_OPTIONS;

use super::device::Gpu;
use super::nvrtc::{Nvrtc, NvrtcError};
use hypatia_cache::{Cache, Key, KeyMaker};
use hypatia_tensor::error::{Error, Result};

/// Counts of machine code by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Already loaded in this process.
    pub loaded: usize,
    /// Read from the cache folder.
    pub cached: usize,
    /// Compiled now.
    pub compiled: usize,
}

/// The cache key of a source: the source, the options, the architecture and the compiler version.
fn key(source: &str, arch: &str, compiler: &str) -> Key {
    let parts = [source, arch, compiler, env!("CARGO_PKG_VERSION")];
    parts.iter().chain(&NVRTC_OPTIONS.to_vec()).fold(KeyMaker::default(), |key, part| key.part(part)).key()
}

/// Machine code for sources, to be loaded as modules.
pub struct Codes {
    keys: Vec<Key>,
    found: BTreeMap<Key, Vec<u8>>,
    origins: Origins,
}

/// The machine code of these sources, except those whose module is loaded. Missing code is compiled
/// on several threads, while the plan's algorithms can be chosen.
pub fn codes(gpu: &Gpu, sources: &[String]) -> Result<Codes> {
    #[cfg(test)]
    let sources = &crate::tests::lost_waits::altered(sources)[..];
    let arch = gpu.arch();
    let nvrtc = Nvrtc::get();
    let compiler = match &nvrtc {
        Ok(n) => format!("{}.{}", n.version().0, n.version().1),
        Err(_) => String::from("none"),
    };
    let store = Cache::shared().as_ref().ok().map(|cache| &cache.cubins);
    let keys: Vec<Key> = sources.iter().map(|s| key(s, &arch, &compiler)).collect();
    let mut origins = Origins::default();
    let mut found: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    let mut missing: BTreeMap<Key, &str> = BTreeMap::new();
    for (key, source) in keys.iter().zip(sources) {
        if gpu.has_module(key) {
            origins.loaded += 1;
        } else if found.contains_key(key) || missing.contains_key(key) {
            continue;
        } else if let Some(code) = gpu.code(key) {
            origins.compiled += 1;
            found.insert(*key, code);
        } else if let Some(code) = store.and_then(|s| s.get(key)) {
            origins.cached += 1;
            found.insert(*key, code);
        } else {
            missing.insert(*key, source);
        }
    }
    if !missing.is_empty() {
        origins.compiled += missing.len();
        for (key, code) in compile(&*nvrtc?, &missing, &arch)? {
            if let Some(store) = store {
                store.put(&key, &code);
            }
            found.insert(key, code);
        }
    }
    Ok(Codes { keys, found, origins })
}

/// The machine code of one source, which [`codes`] finds too from now on.
pub fn code(gpu: &Gpu, source: &str) -> std::result::Result<Vec<u8>, NvrtcError> {
    let nvrtc = Nvrtc::get()?;
    let key = key(source, &gpu.arch(), &format!("{}.{}", nvrtc.version().0, nvrtc.version().1));
    let store = Cache::shared().as_ref().ok().map(|cache| &cache.cubins);
    if let Some(code) = gpu.code(&key).or_else(|| store.and_then(|s| s.get(&key))) {
        gpu.keep_code(key, code.clone());
        return Ok(code);
    }
    let code = nvrtc.compile(source, "kernel.cu", &gpu.arch())?.bytes;
    if let Some(store) = store {
        store.put(&key, &code);
    }
    gpu.keep_code(key, code.clone());
    Ok(code)
}

/// Compiles the missing code of these sources for the plans that are prepared next.
pub fn precompile(gpu: &Gpu, sources: &[String]) -> Result<()> {
    let Codes { found, .. } = codes(gpu, sources)?;
    found.into_iter().for_each(|(key, code)| gpu.keep_code(key, code));
    Ok(())
}

impl Codes {
    /// The modules in the order of the sources, and the origin of their machine code.
    pub fn load(mut self, gpu: &Gpu) -> Result<(Vec<Arc<CudaModule>>, Origins)> {
        let load = |key: &Key| gpu.module(*key, || Ok(self.found.remove(key).unwrap_or_default()));
        Ok((self.keys.iter().map(load).collect::<Result<_>>()?, self.origins))
    }
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
    use super::*;

    #[test]
    fn keys_tell_all_that_matters_apart() {
        let all = [key("a", "b", "c"), key("ab", "", "c"), key("a", "b", "d"), key("a", "c", "c"), key("b", "b", "c")];
        for (i, k) in all.iter().enumerate() {
            assert!(!all[..i].contains(k));
        }
    }
}
