//! A thread pool that shares the work of a step.
//!
//! In: a number of tasks and a function. Out: the function, called once for each task, by whichever
//! thread is free. Invariant: the caller never waits for a sleeping thread, since it can do every
//! task itself; during a run idle threads spin, because a wake-up costs more than most steps; if
//! the pool is busy with another run, the caller works alone.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, Weak};

use smallvec::SmallVec;

use super::interp::Registers;
use super::memory::Bytes;
use hypatia_tensor::error::{Error, Result};

/// Number of spins before a thread yields its core, and before it sleeps when no run is in
/// progress.
const SPINS: u32 = 2000;

/// The gate bit: the job is open.
const OPEN: u64 = 1 << 63;
/// The epoch's unit, incremented per job; the bits below count the workers inside.
const EPOCH: u64 = 1 << 16;
const INSIDE: u64 = EPOCH - 1;

type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// State that the caller and its workers share.
struct Shared {
    /// Gate, epoch, and number of workers inside.
    state: AtomicU64,
    /// The job behind the gate.
    job: Mutex<Option<&'static Job<'static>>>,
    /// Number of runs in progress.
    hot: AtomicUsize,
    /// Number of sleeping workers.
    sleepers: Mutex<usize>,
    wake: Condvar,
    stop: AtomicBool,
    panicked: AtomicBool,
}

/// Workers that wait for jobs. All executors with the same number of threads share them.
pub struct Pool {
    shared: Arc<Shared>,
    turn: Mutex<()>,
    threads: usize,
}

/// Guard of a run: workers stay awake until it is dropped.
pub struct Awake<'a>(&'a Shared);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.hot.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// The pool of this many threads, including the caller.
    pub fn of(threads: usize) -> Result<Arc<Pool>> {
        static POOLS: Mutex<Option<HashMap<usize, Weak<Pool>>>> = Mutex::new(None);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = pools.get_or_insert_default();
        if let Some(pool) = pools.get(&threads).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::start(threads)?);
        pools.insert(threads, Arc::downgrade(&pool));
        Ok(pool)
    }

    fn start(threads: usize) -> Result<Pool> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: Mutex::new(None),
            hot: AtomicUsize::new(0),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        // The pool is created first, so that its workers stop if one fails to start.
        let pool = Pool { shared: shared.clone(), turn: Mutex::new(()), threads };
        for index in 1..threads {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("hypatia-{index}"));
            let started = builder.spawn(move || shared.work(index));
            started.map_err(|e| Error::Limit(format!("cannot start {threads} threads: {e}")))?;
        }
        Ok(pool)
    }

    /// Wakes the workers for a run.
    pub fn awake(&self) -> Awake<'_> {
        self.shared.hot.fetch_add(1, Ordering::SeqCst);
        if *self.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            self.shared.wake.notify_all();
        }
        Awake(&self.shared)
    }

    /// Calls `f(0)` here, and `f(i)` on each worker that becomes free before this call returns. `f`
    /// must do all the work whichever thread calls it, and return when none is left.
    fn run(&self, f: &Job<'_>) {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return f(0),
        };
        // SAFETY: only the lifetime changes. Workers get the reference through the gate alone;
        // `Closing` shuts the gate and waits until no worker is inside before this function returns
        // or unwinds, so no one uses `f` after the borrow ends.
        let job = unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(f) };
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        let closing = Closing(&self.shared);
        self.shared.state.fetch_add(EPOCH, Ordering::Relaxed);
        self.shared.state.fetch_or(OPEN, Ordering::Release);
        f(0);
        drop(closing);
        if self.shared.panicked.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("a worker thread panicked"));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _sleepers = self.shared.sleepers.lock();
        self.shared.wake.notify_all();
    }
}

/// Shuts the gate on drop, even if the caller's own task panics.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            pause(&mut spins);
        }
        *self.0.job.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Spins; after a while, yields the core.
fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    if *spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

impl Shared {
    fn work(&self, index: usize) {
        let (mut seen, mut spins) = (0, 0);
        loop {
            let state = self.state.load(Ordering::Acquire);
            let epoch = state & !OPEN & !INSIDE;
            if state & OPEN != 0 && epoch != seen {
                let enter = self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if enter.is_ok() {
                    seen = epoch;
                    self.inside(index);
                    spins = 0;
                }
            } else if self.stop.load(Ordering::Relaxed) {
                return;
            } else if spins < SPINS || self.hot.load(Ordering::Relaxed) > 0 {
                pause(&mut spins);
            } else {
                self.sleep();
                spins = 0;
            }
        }
    }

    fn inside(&self, index: usize) {
        let job = *self.job.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = job
            && catch_unwind(AssertUnwindSafe(|| job(index))).is_err()
        {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.state.fetch_sub(1, Ordering::Release);
    }

    fn sleep(&self) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        *sleepers += 1;
        while self.hot.load(Ordering::SeqCst) == 0 && !self.stop.load(Ordering::SeqCst) {
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
        *sleepers -= 1;
    }
}

/// Scratch memory of one thread.
#[derive(Default)]
pub struct Local {
    /// Registers of scalar terms.
    pub registers: Registers,
    /// Part of the left operand of a product.
    pub a: Bytes,
    /// Part of the right operand.
    pub b: Bytes,
    /// Accumulators, unless the result itself holds them.
    pub c: Bytes,
    /// Sums of a block of a product of bytes.
    pub of_block: Bytes,
    /// Results of row reductions.
    pub rows: Vec<f64>,
}

/// The threads of a run, and their memory.
pub struct Workers<'a> {
    /// The workers; `None` if the caller works alone.
    pub pool: Option<&'a Pool>,
    /// Scratch memory per thread.
    pub locals: &'a [Mutex<Local>],
}

/// A pointer that threads may share. Each user states why that is sound.
#[derive(Clone, Copy)]
pub struct Address(pub *mut u8);
// SAFETY: an address is a number; each use that follows it states its own invariant.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Workers<'_> {
    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.map_or(1, |p| p.threads)
    }

    /// Calls `f` once for each task.
    pub fn tasks(&self, count: usize, f: impl Fn(usize, &mut Local) + Sync) {
        let next = AtomicUsize::new(0);
        let all = |thread: usize| {
            let mut local = self.locals[thread].lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= count {
                    return;
                }
                f(task, &mut local);
            }
        };
        match self.pool {
            Some(pool) if count > 1 => pool.run(&all),
            _ => all(0),
        }
    }

    /// Divides the outputs into chunks of at least `grain` units of work, and calls `f` with the
    /// first unit, the number of units and their outputs. `sizes` are the bytes per unit of each
    /// output; there are `units` units.
    pub fn chunks(
        &self,
        outs: &mut [&mut [u8]],
        sizes: &[usize],
        units: usize,
        grain: usize,
        f: impl Fn(usize, usize, &mut [&mut [u8]], &mut Local) + Sync,
    ) {
        if units == 0 {
            return;
        }
        // Four chunks per thread, so that a delayed thread does not delay the others.
        let chunk = units.div_ceil(4 * self.threads()).max(grain).max(1);
        let fits = outs.len() == sizes.len() && outs.iter().zip(sizes).all(|(o, size)| o.len() >= units * size);
        if chunk >= units || self.pool.is_none() || !fits {
            let mut local = self.locals[0].lock().unwrap_or_else(PoisonError::into_inner);
            return f(0, units, outs, &mut local);
        }
        let bases: SmallVec<[(Address, usize); 4]> =
            outs.iter_mut().zip(sizes).map(|(o, size)| (Address(o.as_mut_ptr()), *size)).collect();
        self.tasks(units.div_ceil(chunk), |task, local| {
            let first = task * chunk;
            let count = chunk.min(units - first);
            let mut mine: SmallVec<[&mut [u8]; 4]> = SmallVec::new();
            for (base, size) in &bases {
                // SAFETY: `first + count <= units`, and `fits` holds, so the bytes lie in the
                // output, which is borrowed mutably until `tasks` has returned. `tasks` gives each
                // task to one thread once, and different tasks have different units: no two slices
                // overlap.
                mine.push(unsafe { std::slice::from_raw_parts_mut(base.0.add(first * size), count * size) });
            }
            f(first, count, &mut mine, local);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn locals(n: usize) -> Vec<Mutex<Local>> {
        (0..n).map(|_| Mutex::default()).collect()
    }

    #[test]
    fn every_task_is_done_once() {
        let (pool, locals) = (Pool::of(3).unwrap(), locals(3));
        let workers = Workers { pool: Some(&pool), locals: &locals };
        for count in [0, 1, 2, 7, 1000] {
            let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            let _awake = pool.awake();
            workers.tasks(count, |i, _| {
                done[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1), "{count}");
        }
    }

    #[test]
    fn chunks_cover_the_outputs_without_overlap() {
        let (pool, locals) = (Pool::of(3).unwrap(), locals(3));
        let workers = Workers { pool: Some(&pool), locals: &locals };
        for units in [0usize, 1, 5, 64, 1001] {
            let (mut a, mut b) = (vec![0u8; units * 2], vec![0u8; units]);
            workers.chunks(&mut [&mut a, &mut b], &[2, 1], units, 3, |first, count, outs, _| {
                outs[0].iter_mut().for_each(|v| *v += 1);
                for (i, v) in outs[1].iter_mut().enumerate().take(count) {
                    *v += (first + i) as u8;
                }
            });
            assert!(a.iter().all(|v| *v == 1));
            assert!(b.iter().enumerate().all(|(i, v)| *v == i as u8));
        }
    }

    #[test]
    fn many_callers_share_a_pool_and_workers_sleep_and_wake() {
        let pool = Pool::of(2).unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let locals = locals(2);
                    let workers = Workers { pool: Some(&pool), locals: &locals };
                    for round in 0..200 {
                        let sum = AtomicUsize::new(0);
                        let _awake = (round % 3 == 0).then(|| pool.awake());
                        workers.tasks(10, |i, _| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 45);
                        if round % 50 == 0 {
                            std::thread::sleep(std::time::Duration::from_millis(2));
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let (pool, locals) = (Pool::of(2).unwrap(), locals(2));
        let workers = Workers { pool: Some(&pool), locals: &locals };
        let panics = || workers.tasks(100, |i, _| assert!(i != 57, "task 57"));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        let sum = AtomicUsize::new(0);
        workers.tasks(4, |i, _| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 6);
    }
}
