//! What is kept between starts: machine code, choices that were measured, verdicts on plans.
//!
//! In: a [`Key`] and bytes. Out: the same bytes at a later start, by any process of the user. Holds always: nothing
//! here knows of a device; bytes come back as they were put there, by their SHA-256, or not at all; a cache that cannot
//! be read or written costs time and nothing else, and [`Store::trouble`] tells why.
//!
//! [`folder`] says where and whom to trust, [`store`] how a file is written and read, [`sealed`] when a whole folder is as
//! it was made.

mod folder;
mod sealed;
mod store;

pub use folder::{cache_folder, children, private_folder};
pub use sealed::{is_sealed, seal};
pub use store::{Key, KeyMaker, Kind, Seen, State, Store};

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What the names of folders of CUDA's headers begin with.
pub const HEADERS: &str = "cuda-headers-";

/// The stores of a cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The folder.
    pub folder: PathBuf,
    /// Machine code of generated kernels.
    pub cubins: Arc<Store>,
    /// Choices that were measured.
    pub choices: Arc<Store>,
    /// What comparing a plan with the unfused one gave.
    pub verdicts: Arc<Store>,
}

impl Cache {
    /// The cache of the user, or why there is none.
    pub fn of_user() -> Result<Cache, String> {
        cache_folder().map(|folder| Cache::within(&folder))
    }

    /// The user's cache as this process found it when it first asked.
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
        }
    }

    /// Its stores.
    pub fn stores(&self) -> [&Arc<Store>; 3] {
        [&self.cubins, &self.choices, &self.verdicts]
    }

    /// Folders of CUDA's headers that NVRTC wrote, and what is left of such.
    pub fn headers(&self) -> Vec<PathBuf> {
        let named = |prefix| children(&self.folder, prefix);
        let all = named(HEADERS).into_iter().chain(named(&format!(".{HEADERS}")));
        all.filter(|p| std::fs::symlink_metadata(p).is_ok_and(|m| m.is_dir())).collect()
    }

    /// Removes these folders and returns them.
    pub fn clear_headers(&self) -> Result<Vec<PathBuf>, String> {
        let headers = self.headers();
        let remove = |p: &PathBuf| std::fs::remove_dir_all(p).map_err(|e| format!("{}: {e}", p.display()));
        headers.iter().try_for_each(remove).map(|()| headers)
    }

    /// Why something could not be kept, if that happened.
    pub fn trouble(&self) -> Option<String> {
        self.stores().iter().find_map(|s| s.trouble())
    }
}
