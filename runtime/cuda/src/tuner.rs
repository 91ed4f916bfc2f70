//! Chooses algorithms: from a tuning file, from the cache, by measuring while there is time for it, else as the library
//! guesses.
//!
//! In: a product's name, the library's first candidate, and ways to ask whether an algorithm is accepted and to measure.
//! Out: the choice. Holds always: what was chosen once is not measured again, in this process or, with a cache, in later
//! ones; that includes guesses, which `hypatia bench` and `hypatia tune` measure after all; a choice that the library no
//! longer accepts is not used. Nothing here needs a device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::tuning::{Choice, Machine, TuningFile};
use hypatia_cache::{Cache, Store};
use hypatia_tensor::error::Result;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// What nothing is known of, while there is time.
    Unknown,
    /// Also what was guessed at an earlier start.
    Guessed,
    /// Everything anew, more candidates and more rounds.
    Everything,
}

/// An algorithm, and what was measured of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The library's own words for it.
    pub algorithm: [u64; 8],
    /// Bytes of workspace.
    pub workspace: usize,
    /// Median time in microseconds; `None` if it is a guess.
    pub us: Option<f64>,
    /// Microseconds of the library's first candidate.
    pub first_us: Option<f64>,
    /// How many there were to choose from.
    pub candidates: usize,
}

/// Where a choice is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a tuning file, which may be anybody's.
    File,
    /// In the user's own cache.
    Cache,
}

/// Where choices came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// From a tuning file.
    pub file: usize,
    /// From the cache.
    pub cached: usize,
    /// Measured now.
    pub measured: usize,
    /// Left to the library's guess, now or at an earlier start.
    pub guessed: usize,
}

/// Chooses algorithms on one device.
#[derive(Debug)]
pub struct Tuner {
    file: TuningFile,
    store: Option<Arc<Store>>,
    /// Choices of this process, by product.
    known: BTreeMap<String, Choice>,
    /// Time left for measuring.
    budget: Duration,
    effort: Effort,
    counts: Counts,
    /// Products whose kept algorithm is not accepted any more, and where it was kept.
    rejected: Vec<String>,
}

impl Tuner {
    /// With what the user's cache holds, which also gets what is found.
    pub fn of_user(budget: Duration, effort: Effort) -> Tuner {
        let store = Cache::shared().as_ref().ok().map(|cache| cache.choices.clone());
        Tuner { store, effort, ..Tuner::forgetful(budget) }
    }

    /// The same with that store.
    pub fn with_store(store: Arc<Store>, budget: Duration, effort: Effort) -> Tuner {
        Tuner { store: Some(store), effort, ..Tuner::forgetful(budget) }
    }

    /// With what is found in this process alone.
    pub fn forgetful(budget: Duration) -> Tuner {
        Tuner {
            file: TuningFile::default(),
            store: None,
            known: BTreeMap::new(),
            budget,
            effort: Effort::Unknown,
            counts: Counts::default(),
            rejected: Vec::new(),
        }
    }

    /// The same with the choices of a tuning file, which come before those of the cache.
    pub fn with_file(self, file: TuningFile) -> Tuner {
        Tuner { file, ..self }
    }

    /// What is measured.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// Where choices came from so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What was chosen in this process.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.known.values()
    }

    /// Products whose kept algorithm the library no longer accepts, and where it was kept.
    pub fn rejected(&self) -> &[String] {
        &self.rejected
    }

    /// The choice for a product; `None` where there is nothing to choose from. `measure` gives `None` for that.
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

    /// What was chosen earlier, if it is still accepted.
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

    /// A tuner of a process that has just started, and how often it has measured.
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

        /// The first word of the algorithm that is chosen, where measuring finds 1.
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
        // The time is over: guesses are kept as well.
        first.tuner.budget = Duration::ZERO;
        assert_eq!(first.choose(1, "b", |_| true), 9);
        let mut second = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!([second.choose(1, "a", |_| true), second.choose(1, "b", |_| true)], [1, 9]);
        assert_eq!(second.times.get(), 0);
        assert_eq!(second.tuner.counts(), Counts { cached: 2, guessed: 1, ..Counts::default() });
        // Another driver is another machine.
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
        // Rejected in the file: that of the cache; rejected there as well: measured.
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
        // A good file of the cache whose content is no choice.
        store.put(&key, b"nonsense");
        let mut next = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!((next.choose(1, "a", |_| true), next.times.get()), (1, 1));
        std::fs::write(store.file(&key), "nonsense").unwrap();
        let mut next = Process::start(&store, BUDGET, Effort::Unknown);
        assert_eq!((next.choose(1, "a", |_| true), next.times.get()), (1, 1));
    }
}
