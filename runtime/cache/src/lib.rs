//! The persistent cache: machine code, measured choices, verdicts on plans and on kernels.
//!
//! In: a [`Key`] and bytes. Out: the same bytes at a later start, by any process of the user.
//! Invariant: the cache knows nothing about devices; bytes come back exactly as stored (checked by
//! SHA-256) or not at all; a cache that cannot be read or written costs only time, and
//! [`Store::trouble`] says why.
//!
//! [`folder`] chooses the folder and checks its owner, [`store`] reads and writes files, [`sealed`]
//! checks that a whole folder is unchanged.

mod folder;
mod sealed;
mod store;

pub use folder::{cache_folder, children, private_folder};
pub use sealed::{is_sealed, seal};
pub use store::{Key, KeyMaker, Kind, State, Store, StoredFile};

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Prefix of the names of folders of CUDA headers.
pub const HEADERS: &str = "cuda-headers-";

/// The stores of a cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The folder.
    pub folder: PathBuf,
    /// Machine code of generated kernels.
    pub cubins: Arc<Store>,
    /// Measured choices.
    pub choices: Arc<Store>,
    /// Results of comparing a plan with the unfused one.
    pub verdicts: Arc<Store>,
    /// Results of trying kernels of the user's own.
    pub trials: Arc<Store>,
}

impl Cache {
    /// The user's cache, or why there is none.
    pub fn of_user() -> Result<Cache, String> {
        cache_folder().map(|folder| Cache::within(&folder))
    }

    /// The user's cache, opened once per process on first use.
    pub fn shared() -> &'static Result<Cache, String> {
        static SHARED: OnceLock<Result<Cache, String>> = OnceLock::new();
        SHARED.get_or_init(Cache::of_user)
    }

    /// The cache in that folder, or why it cannot be trusted.
    pub fn at(folder: &Path) -> Result<Cache, String> {
        private_folder(folder).map(|()| Cache::within(folder))
    }

    fn within(folder: &Path) -> Cache {
        let store = |kind| Arc::new(Store::open(folder, kind));
        Cache {
            folder: folder.to_path_buf(),
            cubins: store(Kind::Cubin),
            choices: store(Kind::Choice),
            verdicts: store(Kind::Verdict),
            trials: store(Kind::Trial),
        }
    }

    /// Its stores.
    pub fn stores(&self) -> [&Arc<Store>; 4] {
        [&self.cubins, &self.choices, &self.verdicts, &self.trials]
    }

    /// Folders of CUDA headers that NVRTC wrote, and their leftovers.
    pub fn headers(&self) -> Vec<PathBuf> {
        let named = |prefix| children(&self.folder, prefix);
        let all = named(HEADERS).into_iter().chain(named(&format!(".{HEADERS}")));
        all.filter(|p| std::fs::symlink_metadata(p).is_ok_and(|m| m.is_dir())).collect()
    }

    /// Removes these folders and returns their paths.
    pub fn clear_headers(&self) -> Result<Vec<PathBuf>, String> {
        let headers = self.headers();
        let remove = |p: &PathBuf| std::fs::remove_dir_all(p).map_err(|e| format!("{}: {e}", p.display()));
        headers.iter().try_for_each(remove).map(|()| headers)
    }

    /// The first write error, if any.
    pub fn trouble(&self) -> Option<String> {
        self.stores().iter().find_map(|s| s.trouble())
    }
}
