//! Races: how long a plan took beside a framework's own ops, kept for later processes.
//!
//! In: all that the times depend on, as text. Out: the times of an earlier process of this user, on
//! this machine. Invariant: they are those of the same build of Hypatia; an unreadable entry is
//! none.

use std::sync::Arc;

use hypatia_cache::{Cache, Key, KeyMaker, Store};

use crate::verdict;

/// The cache entry of a race.
pub struct Race {
    store: Arc<Store>,
    key: Key,
}

impl Race {
    /// The entry of the race that these parts describe; `None` if there is no cache, or if this
    /// build cannot be distinguished from others.
    pub fn of<T: AsRef<[u8]>>(parts: &[T]) -> Option<Race> {
        let store = Cache::shared().as_ref().ok()?.choices.clone();
        Some(Race { store, key: key(parts)? })
    }

    /// Seconds of the plan and of the framework, if they are known.
    pub fn times(&self) -> Option<[f64; 2]> {
        parsed(&self.store.get(&self.key)?)
    }

    /// Stores them.
    pub fn keep(&self, [plan, framework]: [f64; 2]) {
        self.store.put(&self.key, format!("{plan:e} {framework:e}\n").as_bytes());
    }
}

fn key<T: AsRef<[u8]>>(parts: &[T]) -> Option<Key> {
    let key = KeyMaker::default().part("race 1").part(verdict::build()?);
    Some(parts.iter().fold(key, |key, part| key.part(part)).key())
}

fn parsed(bytes: &[u8]) -> Option<[f64; 2]> {
    let (plan, framework) = std::str::from_utf8(bytes).ok()?.trim_end().split_once(' ')?;
    let times = [plan.parse::<f64>().ok()?, framework.parse::<f64>().ok()?];
    times.iter().all(|t| t.is_finite() && *t > 0.0).then_some(times)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("hypatia-race-{}", std::process::id()));
        let store = Cache::at(&folder).unwrap().choices.clone();
        let race = |parts: &[&str]| Race { store: store.clone(), key: key(parts).unwrap() };
        assert_eq!(race(&["a", "b"]).times(), None);
        race(&["a", "b"]).keep([1.5e-6, 0.25]);
        assert_eq!(race(&["a", "b"]).times(), Some([1.5e-6, 0.25]));
        assert_eq!(race(&["ab"]).times(), None);
        assert_eq!(
            [&b"1 2"[..], b"1", b"nan 1", b"0 1", b"1 x", b"\xff 1"].map(parsed).map(|t| t.is_some()),
            [true, false, false, false, false, false]
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
