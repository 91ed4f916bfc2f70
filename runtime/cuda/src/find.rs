//! Locates CUDA's libraries.
//!
//! In: `HYPATIA_CUDA_PATH`, the usual environment variables, system folders, toolkits and Python
//! packages. Out: the candidate folders in search order, and the opened library. Invariant: a
//! search ends with a library or with the list of every place that was tried.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use hypatia_cache::children;

/// A place where a library was not found or not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// A file or folder, or a name passed to the system's loader.
    pub location: String,
    /// Why it failed.
    pub reason: String,
}

/// A folder that may contain libraries, and why it is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchFolder {
    /// The folder.
    pub path: PathBuf,
    /// `HYPATIA_CUDA_PATH`, `toolkit`, ...
    pub origin: &'static str,
}

/// Subfolders of a toolkit, a Python package folder or a folder of `HYPATIA_CUDA_PATH`.
const INSIDE: &[&str] = &[
    "",
    "lib64",
    "lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "nvidia/cu13/lib",
    "nvidia/cuda_nvrtc/lib",
    "nvidia/cublas/lib",
];

/// All existing folders in search order.
pub fn search_folders() -> Vec<SearchFolder> {
    let mut roots: Vec<(PathBuf, &'static str)> = Vec::new();
    let mut variable = |name: &'static str| {
        if let Some(v) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            roots.extend(std::env::split_paths(&v).map(|p| (p, name)));
        }
    };
    variable("HYPATIA_CUDA_PATH");
    variable("CUDA_PATH");
    variable("CUDA_HOME");
    variable("LD_LIBRARY_PATH");
    for folder in ["/usr/local/cuda", "/opt/cuda"] {
        roots.push((folder.into(), "toolkit"));
    }
    // Newest version first.
    let mut versions = children(Path::new("/usr/local"), "cuda-");
    versions.sort_by(|a, b| b.cmp(a));
    roots.extend(versions.into_iter().map(|p| (p, "toolkit")));
    for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"] {
        roots.push((folder.into(), "system"));
    }
    roots.extend(python_folders().into_iter().map(|p| (p, "Python package")));

    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for (root, origin) in roots {
        for sub in INSIDE {
            let path = if sub.is_empty() { root.clone() } else { root.join(sub) };
            if path.is_dir() && seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                out.push(SearchFolder { path, origin });
            }
        }
    }
    out
}

/// The folders where Python installs packages.
fn python_folders() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    if let Some(home) = std::env::var_os("HOME") {
        prefixes.push(PathBuf::from(home).join(".local"));
    }
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut out: Vec<PathBuf> =
        std::env::var_os("PYTHONPATH").map(|v| std::env::split_paths(&v).collect()).unwrap_or_default();
    for prefix in prefixes {
        let mut pythons = children(&prefix.join("lib"), "python3");
        pythons.sort_by(|a, b| b.cmp(a));
        for p in pythons {
            out.push(p.join("site-packages"));
            out.push(p.join("dist-packages"));
        }
    }
    out
}

/// An opened library. It is never closed, since CUDA's libraries keep threads and exit handlers.
#[derive(Debug)]
pub struct Library {
    /// The file, or the name by which the system's loader found it.
    pub path: PathBuf,
    /// Why its folder was searched.
    pub origin: &'static str,
    handle: Handle,
}

#[cfg(unix)]
type Handle = std::mem::ManuallyDrop<libloading::os::unix::Library>;
#[cfg(not(unix))]
type Handle = std::mem::ManuallyDrop<libloading::Library>;

impl Library {
    /// Opens a file, or a name for the system's loader, with its symbols visible to libraries that
    /// are opened later (RTLD_GLOBAL).
    pub fn open(path: &Path, origin: &'static str) -> Result<Library, String> {
        #[cfg(unix)]
        // SAFETY: opening runs the library's initialisers. It is one of NVIDIA's, by its name, from
        // a folder that the user or the system set up; that it is sound is what we must assume.
        let handle = unsafe {
            use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
            Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL)
        };
        #[cfg(not(unix))]
        // SAFETY: as above.
        let handle = unsafe { libloading::Library::new(path) };
        match handle {
            Ok(h) => Ok(Library { path: path.into(), origin, handle: std::mem::ManuallyDrop::new(h) }),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The function of that name.
    ///
    /// # Safety
    /// `T` must be the function pointer type that the library's header declares for `name`.
    pub unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, String> {
        // SAFETY: the caller promises the type; the library is never closed, so the pointer stays
        // valid.
        let symbol = unsafe { self.handle.get::<T>(name.as_bytes()) };
        symbol.map(|s| *s).map_err(|e| e.to_string())
    }
}

/// Opens the first library with one of these names (`libnvrtc.so.13`, ...): in `first`, then by the
/// system's loader, then in all places. The `before` prefixes name files in the same folder that
/// must be opened first.
pub fn open_first(names: &[&str], before: &[&str], first: &[PathBuf]) -> Result<Library, Vec<Tried>> {
    let mut tried = Vec::new();
    let mut folders: Vec<SearchFolder> = first.iter().flat_map(|f| inside(f, "given")).collect();
    let all = search_folders();
    let (own, others): (Vec<SearchFolder>, Vec<SearchFolder>) =
        all.into_iter().partition(|p| p.origin == "HYPATIA_CUDA_PATH");
    folders.extend(own);
    for folder in &folders {
        if let Some(found) = open_in(folder, names, before, &mut tried) {
            return Ok(found);
        }
    }
    for name in names {
        match Library::open(Path::new(name), "system loader") {
            Ok(l) => return Ok(l),
            Err(_) => {
                tried.push(Tried { location: name.to_string(), reason: "not known to the system's loader".into() })
            }
        }
    }
    for folder in &others {
        if let Some(found) = open_in(folder, names, before, &mut tried) {
            return Ok(found);
        }
    }
    Err(tried)
}

fn inside(root: &Path, origin: &'static str) -> Vec<SearchFolder> {
    INSIDE
        .iter()
        .map(|s| SearchFolder { path: if s.is_empty() { root.to_path_buf() } else { root.join(s) }, origin })
        .filter(|p| p.path.is_dir())
        .collect()
}

fn open_in(folder: &SearchFolder, names: &[&str], before: &[&str], tried: &mut Vec<Tried>) -> Option<Library> {
    for name in names {
        let path = folder.path.join(name);
        if !path.is_file() {
            continue;
        }
        for prefix in before {
            for file in children(&folder.path, prefix) {
                if let Err(reason) = Library::open(&file, folder.origin) {
                    tried.push(Tried { location: file.display().to_string(), reason });
                }
            }
        }
        match Library::open(&path, folder.origin) {
            Ok(l) => return Some(l),
            Err(reason) => tried.push(Tried { location: path.display().to_string(), reason }),
        }
    }
    if tried.iter().all(|t| Path::new(&t.location).parent() != Some(&folder.path)) {
        let reason = format!("no {} in it ({})", names.join(" or "), folder.origin);
        tried.push(Tried { location: folder.path.display().to_string(), reason });
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_failed_search_names_every_place() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libnone.so.1"), "no library").unwrap();
        let tried = open_first(&["libnone.so.1"], &[], &[folder.path().to_path_buf()]).unwrap_err();
        assert!(tried[0].location.ends_with("libnone.so.1") && !tried[0].reason.is_empty(), "{tried:?}");
        assert!(tried.iter().any(|t| t.location == "libnone.so.1"));
    }
}
