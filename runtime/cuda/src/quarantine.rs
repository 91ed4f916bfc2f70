//! What is known of kernels from users' templates: which passed their trial, and which are
//! quarantined.
//!
//! In: verdicts. Out: the same, in this process and, with the user's cache, at a later start.
//! Invariant: a quarantine is of a kernel's name and its template's text, so that an edited
//! template is tried again; a pass is of one launch on one device.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypatia_cache::{Cache, Key, KeyMaker, Store};
use hypatia_dsl::ir::{Backend, Kernel};

/// A kernel that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The kernel's name.
    pub kernel: String,
    /// What it did, as the end of a sentence: `wrote outside of its result`.
    pub reason: String,
}

impl std::fmt::Display for Quarantined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel `{}` is not used: it {}", self.kernel, self.reason)
    }
}

/// Verdicts on templates' kernels.
#[derive(Debug, Default)]
pub struct Trials {
    store: Option<Arc<Store>>,
    /// Kernels that failed, by the key of their quarantine.
    failed: BTreeMap<Key, Quarantined>,
    /// Launches that passed in this process.
    passed: Vec<Key>,
    /// Why no kernel can be tried, if that is so.
    disabled: Option<String>,
}

/// What a stored pass contains.
const PASSED: &[u8] = b"passed";

/// The key of a kernel's quarantine.
fn quarantine(kernel: &Kernel, device: &str) -> Key {
    let text = match &kernel.backend {
        Backend::Template(template) => template.text.as_str(),
        _ => "",
    };
    ["quarantine", &kernel.name, text, device].iter().fold(KeyMaker::default(), |k, part| k.part(part)).key()
}

impl Trials {
    /// Verdicts that the user's cache keeps.
    pub fn of_user() -> Trials {
        Trials { store: Cache::shared().as_ref().ok().map(|c| c.trials.clone()), ..Trials::default() }
    }

    /// Verdicts that this store keeps.
    pub fn with_store(store: Arc<Store>) -> Trials {
        Trials { store: Some(store), ..Trials::default() }
    }

    /// Why a kernel is not used on a device, if it is quarantined.
    pub(crate) fn quarantined(&mut self, kernel: &Kernel, device: &str) -> Option<&Quarantined> {
        let key = quarantine(kernel, device);
        if !self.failed.contains_key(&key) {
            let kept = self.store.as_ref()?.get(&key)?;
            let reason = String::from_utf8(kept).ok()?;
            self.failed.insert(key, Quarantined { kernel: kernel.name.clone(), reason });
        }
        self.failed.get(&key)
    }

    /// Puts a kernel into quarantine.
    pub(crate) fn fail(&mut self, kernel: &Kernel, device: &str, reason: String) {
        let key = quarantine(kernel, device);
        if let Some(store) = &self.store {
            store.put(&key, reason.as_bytes());
        }
        self.failed.insert(key, Quarantined { kernel: kernel.name.clone(), reason });
    }

    /// Whether a launch passed its trial before.
    pub(crate) fn has_passed(&self, launch: &Key) -> bool {
        let stored = || self.store.as_ref().and_then(|s| s.get(launch)).is_some_and(|kept| kept == PASSED);
        self.passed.contains(launch) || stored()
    }

    /// Records that a launch passed its trial.
    pub(crate) fn pass(&mut self, launch: Key) {
        if let Some(store) = &self.store {
            store.put(&launch, PASSED);
        }
        self.passed.push(launch);
    }

    /// Records why kernels cannot be tried on this machine.
    pub(crate) fn disable(&mut self, reason: String) {
        self.disabled.get_or_insert(reason);
    }

    /// What the user should know: the kernels in quarantine that were asked for, and why others
    /// were not tried.
    pub fn notes(&self) -> Vec<String> {
        let failed = self.failed.values().map(Quarantined::to_string);
        let disabled = self.disabled.iter().map(|why| format!("kernels from templates are not used: {why}"));
        failed.chain(disabled).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hypatia_cache::Kind;
    use hypatia_dsl::ir::TemplateFile;

    #[test]
    fn a_quarantine_ends_when_the_template_is_edited() {
        let folder = tempfile::tempdir().unwrap();
        let store = || Arc::new(Store::open(folder.path(), Kind::Trial));
        let program = hypatia_library::load(&[]).unwrap();
        let with = |text: &str| {
            let file = TemplateFile { file: "k.cu.j2".into(), text: text.into() };
            Kernel { backend: Backend::Template(file), ..program.kernels[0].clone() }
        };
        let mut first = Trials::with_store(store());
        first.fail(&with("a"), "one", "hung".into());
        let mut later = Trials::with_store(store());
        assert_eq!(later.quarantined(&with("a"), "one").unwrap().reason, "hung");
        assert_eq!(later.quarantined(&with("b"), "one"), None);
        assert_eq!(later.quarantined(&with("a"), "two"), None);
        assert!(later.notes()[0].ends_with("is not used: it hung"));
        first.pass([7; 32]);
        assert!(later.has_passed(&[7; 32]) && !later.has_passed(&[8; 32]));
    }
}
