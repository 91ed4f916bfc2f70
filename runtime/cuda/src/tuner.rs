//! Chooses algorithms: from a tuning file, from the cache, by measurement within a time budget,
//! else by the library's guess.
//!
//! In: a product's name, the library's first candidate, and callbacks that check whether an
//! algorithm is accepted, and measure. Out: the choice. Invariant: a choice is never measured twice
//! in a process, nor in later ones that share a cache. That includes guesses, except that `hypatia
//! bench` and `hypatia tune` measure them; a choice that the library no longer accepts is not used.
//! Nothing here needs a device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::trial::Trials;
use crate::tuning::{Choice, Machine, TuningFile};
use hypatia_cache::{Cache, Store};
use hypatia_tensor::error::Result;

/// Which products are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Unknown products, within the time budget.
    Unknown,
    /// Also products whose choice was guessed at an earlier start.
    Guessed,
    /// All products again, with more candidates and more rounds.
    Everything,
}

/// An algorithm and its measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The library's configuration of it.
    pub algorithm: [u64; 8],
    /// Bytes of workspace.
    pub workspace: usize,
    /// Median time in microseconds; `None` if it is a guess.
    pub us: Option<f64>,
    /// Microseconds of the library's first candidate.
    pub first_us: Option<f64>,
    /// Number of candidates.
    pub candidates: usize,
}

/// Where a choice is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a tuning file, which is untrusted.
    File,
    /// In the user's own cache.
    Cache,
}

/// Number of choices by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// From a tuning file.
    pub file: usize,
    /// From the cache.
    pub cached: usize,
    /// Measured now.
    pub measured: usize,
    /// The library's guess, now or at an earlier start.
    pub guessed: usize,
}

/// Chooses algorithms on one device.
#[derive(Debug)]
pub struct Tuner {
    file: TuningFile,
    store: Option<Arc<Store>>,
    /// Choices of this process, by product.
    known: BTreeMap<String, Choice>,
    /// Remaining time for measurements.
    budget: Duration,
    effort: Effort,
    counts: Counts,
    /// Products whose stored algorithm is no longer accepted, and where it was stored.
    rejected: Vec<String>,
    trials: Trials,
}

impl Tuner {
    /// A tuner with the user's cache, which also stores new results.
    pub fn of_user(budget: Duration, effort: Effort) -> Tuner {
        let store = Cache::shared().as_ref().ok().map(|cache| cache.choices.clone());
        Tuner { store, effort, trials: Trials::of_user(), ..Tuner::without_cache(budget) }
    }

    /// A tuner with that store.
    pub fn with_store(store: Arc<Store>, budget: Duration, effort: Effort) -> Tuner {
        Tuner { store: Some(store), effort, ..Tuner::without_cache(budget) }
    }

    /// A tuner that keeps results only in this process.
    pub fn without_cache(budget: Duration) -> Tuner {
        Tuner {
            file: TuningFile::default(),
            store: None,
            known: BTreeMap::new(),
            budget,
            effort: Effort::Unknown,
            counts: Counts::default(),
            rejected: Vec::new(),
            trials: Trials::default(),
        }
    }

    /// The same with these verdicts on templates' kernels.
    pub fn with_trials(self, trials: Trials) -> Tuner {
        Tuner { trials, ..self }
    }

    /// What is known of kernels from users' templates.
    pub fn trials(&self) -> &Trials {
        &self.trials
    }

    /// The same, to add to.
    pub(crate) fn trials_mut(&mut self) -> &mut Trials {
        &mut self.trials
    }

    /// Adds the choices of a tuning file, which take precedence over those of the cache.
    pub fn with_file(self, file: TuningFile) -> Tuner {
        Tuner { file, ..self }
    }

    /// The effort: which products are measured.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// Number of choices by origin so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The choices of this process.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.known.values()
    }

    /// Products whose stored algorithm the library no longer accepts, and where it was stored.
    pub fn rejected(&self) -> &[String] {
        &self.rejected
    }

    /// An earlier choice for a product, without counting it as used.
    pub fn known(&self, machine: &Machine, problem: &str) -> Option<Choice> {
        if self.effort >= Effort::Everything {
            return None;
        }
        let of_file = || self.file.find(machine, problem).cloned();
        let of_store = || {
            let kept = self.store.as_ref()?.get(&Choice::key(machine, problem))?;
            let choice = std::str::from_utf8(&kept).ok().and_then(|line| Choice::from_line(line).ok())?;
            (choice.machine == *machine).then_some(choice)
        };
        self.known.get(problem).cloned().or_else(of_file).or_else(of_store)
    }

    /// The choice for a product; `None` if there are no alternatives, which `measure` reports with
    /// `None`.
    pub fn choose(
        &mut self,
        machine: &Machine,
        problem: &str,
        guess: Measured,
        accepts: impl Fn(&Choice, Source) -> bool,
        measure: impl FnOnce() -> Result<Option<Measured>>,
    ) -> Result<Option<Choice>> {
        if let Some(known) = self.known.get(problem) {
            return Ok(Some(known.clone()));
        }
        let found = self.find(machine, problem, accepts);
        let measures = !self.budget.is_zero()
            && match &found {
                None => true,
                Some(choice) if choice.us.is_none() => self.effort >= Effort::Guessed,
                Some(_) => self.effort >= Effort::Everything,
            };
        if let (false, Some(choice)) = (measures, found) {
            self.counts.guessed += usize::from(choice.us.is_none());
            self.known.insert(problem.into(), choice.clone());
            return Ok(Some(choice));
        }
        let measured = if measures {
            let start = Instant::now();
            let measured = measure()?;
            self.budget = self.budget.saturating_sub(start.elapsed());
            let Some(measured) = measured else { return Ok(None) };
            self.counts.measured += 1;
            measured
        } else {
            self.counts.guessed += 1;
            Measured { us: None, first_us: None, ..guess }
        };
        let choice = Choice {
            machine: machine.clone(),
            problem: problem.into(),
            algorithm: measured.algorithm,
            workspace: measured.workspace,
            us: measured.us,
            first_us: measured.first_us,
            candidates: measured.candidates,
        };
        if let Some(store) = &self.store {
            store.put(&Choice::key(machine, problem), choice.to_line().as_bytes());
        }
        self.known.insert(problem.into(), choice.clone());
        Ok(Some(choice))
    }

    /// An earlier choice, if it is still accepted.
    fn find(&mut self, machine: &Machine, problem: &str, accepts: impl Fn(&Choice, Source) -> bool) -> Option<Choice> {
        if self.effort >= Effort::Everything {
            return None;
        }
        if let Some(choice) = self.file.find(machine, problem) {
            if accepts(choice, Source::File) {
                self.counts.file += 1;
                return Some(choice.clone());
            }
            self.rejected.push(format!("{}: {problem}", self.file.path.display()));
        }
        let kept = self.store.as_ref()?.get(&Choice::key(machine, problem))?;
        let choice = std::str::from_utf8(&kept).ok().and_then(|line| Choice::from_line(line).ok())?;
        if choice.machine != *machine || !accepts(&choice, Source::Cache) {
            self.rejected.push(format!("the cache: {problem}"));
            return None;
        }
        self.counts.cached += 1;
        Some(choice)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;
    use hypatia_cache::Kind;

    const BUDGET: Duration = Duration::from_secs(5);

    fn machine(driver: i32) -> Machine {
        Machine { device: "GPU (sm_90)".into(), driver, library: 130_100, hypatia: "0.1.0".into() }
    }

    fn measured(word: u64, us: f64) -> Measured {
        Measured { algorithm: [word; 8], workspace: 64, us: Some(us), first_us: Some(us), candidates: 32 }
    }

    const GUESS: Measured = Measured { algorithm: [9; 8], workspace: 0, us: None, first_us: None, candidates: 32 };

    /// A tuner of a new process, and its number of measurements.
    struct Process {
        tuner: Tuner,
        times: Cell<usize>,
    }

    impl Process {
        fn new(tuner: Tuner) -> Process {
            Process { tuner, times: Cell::new(0) }
        }

        fn start(store: &Arc<Store>, budget: Duration, effort: Effort) -> Process {
            Process::new(Tuner::with_store(store.clone(), budget, effort))
        }

        /// The first word of the chosen algorithm; a measurement finds 1.
        fn choose(&mut self, driver: i32, problem: &str, accepts: impl Fn(&Choice) -> bool) -> u64 {
            let measure = || {
                self.times.set(self.times.get() + 1);
                Ok(Some(measured(1, 2.0)))
            };
            self.tuner.choose(&machine(driver), problem, GUESS, |c, _| accepts(c), measure).unwrap().unwrap().algorithm
                [0]
        }
    }

    fn store() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), Kind::Choice));
        (folder, store)
    }

    #[test]
    fn a_second_start_times_nothing() {
        let (_folder, store) = store();
        let mut first = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!([first.choose(1, "a", |_| true), first.choose(1, "a", |_| true)], [1, 1]);
        assert_eq!((first.times.get(), first.tuner.counts().measured), (1, 1));
        // The time budget is spent: guesses are stored as well.
        first.tuner.budget = Duration::ZERO;
        assert_eq!(first.choose(1, "b", |_| true), 9);
        let mut second = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!([second.choose(1, "a", |_| true), second.choose(1, "b", |_| true)], [1, 9]);
        assert_eq!(second.times.get(), 0);
        assert_eq!(second.tuner.counts(), Counts { cached: 2, guessed: 1, ..Counts::default() });
        // A different driver counts as a different machine.
        assert_eq!((second.choose(2, "c", |_| true), second.times.get()), (1, 1));
    }

    #[test]
    fn guesses_are_measured_by_those_who_take_the_time() {
        let (_folder, store) = store();
        Process::start(&store, Duration::ZERO, Effort::Unknown).choose(1, "a", |_| true);
        let mut bench = Process::start(&store, BUDGET, Effort::Guessed);
        assert_eq!((bench.choose(1, "a", |_| true), bench.times.get()), (1, 1));
        let mut run = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!((run.choose(1, "a", |_| true), run.tuner.counts().guessed), (1, 0));
        let mut bench = Process::start(&store, BUDGET, Effort::Guessed);
        assert_eq!((bench.choose(1, "a", |_| true), bench.times.get()), (1, 0));
        let mut tune = Process::start(&store, BUDGET, Effort::Everything);
        assert_eq!((tune.choose(1, "a", |_| true), tune.choose(1, "a", |_| true), tune.times.get()), (1, 1, 1));
    }

    #[test]
    fn a_file_comes_first_where_it_fits_and_is_accepted() {
        let (_folder, store) = store();
        let mut file = TuningFile::empty(std::path::Path::new("m.tune"));
        let m = measured(5, 1.0);
        file.insert(Choice {
            machine: machine(1),
            problem: "a".into(),
            algorithm: m.algorithm,
            workspace: m.workspace,
            us: m.us,
            first_us: m.first_us,
            candidates: m.candidates,
        });
        Process::start(&store, BUDGET, Effort::Unknown).choose(1, "a", |_| true);
        let with_file = |store: &Arc<Store>| {
            Process::new(Tuner::with_store(store.clone(), BUDGET, Effort::Unknown).with_file(file.clone()))
        };
        let mut fits = with_file(&store);
        assert_eq!((fits.choose(1, "a", |_| true), fits.tuner.counts().file, fits.times.get()), (5, 1, 0));
        let mut other = with_file(&store);
        assert_eq!((other.choose(2, "a", |_| true), other.tuner.counts().file, other.times.get()), (1, 0, 1));
        // If the file's choice is rejected, the cache's applies; if that is rejected too, the
        // product is measured.
        let mut stale = with_file(&store);
        assert_eq!((stale.choose(1, "a", |c| c.algorithm[0] != 5), stale.times.get()), (1, 0));
        assert_eq!(stale.tuner.rejected(), ["m.tune: a"]);
        let mut stale = with_file(&store);
        assert_eq!((stale.choose(1, "a", |_| false), stale.times.get()), (1, 1));
        assert_eq!(stale.tuner.rejected(), ["m.tune: a", "the cache: a"]);
    }

    #[test]
    fn a_damaged_entry_is_measured_again() {
        let (_folder, store) = store();
        Process::start(&store, BUDGET, Effort::Unknown).choose(1, "a", |_| true);
        let key = Choice::key(&machine(1), "a");
        // A valid cache file whose content is not a choice.
        store.put(&key, b"nonsense");
        let mut next = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!((next.choose(1, "a", |_| true), next.times.get()), (1, 1));
        std::fs::write(store.file(&key), "nonsense").unwrap();
        let mut next = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!((next.choose(1, "a", |_| true), next.times.get()), (1, 1));
    }
}
