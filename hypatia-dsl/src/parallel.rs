//! A parallel map over a slice.
//!
//! In: items and a function. Out: the results in the order of the items, the same as on one thread.
//! The front end is so fast that the start of threads is noticeable: they are started only for
//! enough work.

use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of threads: the work is small, and starting more costs more than they gain.
const MOST: usize = 8;

/// Maps `f` over the items. Starts one thread per `share` items, up to the number of cores. `stack`
/// is the stack size of each thread in bytes; if it is given, no work runs on the caller's own
/// thread.
///
/// ```
/// use hypatia_dsl::parallel::side_by_side;
///
/// assert_eq!(side_by_side(&[1, 2, 3], 1, None, |x| x * x), [1, 4, 9]);
/// ```
pub fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    share: usize,
    stack: Option<usize>,
    f: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    side_by_side_with(items, share, stack, || (), |(), item| f(item))
}

/// As [`side_by_side`], with a value of each thread that `start` makes. A thread takes items in
/// their order, so what it keeps there is about earlier items.
pub fn side_by_side_with<T: Sync, R: Send, S>(
    items: &[T],
    share: usize,
    stack: Option<usize>,
    start: impl Fn() -> S + Sync,
    f: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let threads = cores().min(items.len() / share.max(1)).clamp(1, MOST);
    if threads == 1 && stack.is_none() {
        let mut own = start();
        return items.iter().map(|item| f(&mut own, item)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut out, mut own) = (Vec::new(), start());
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return out };
            out.push((i, f(&mut own, item)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let started: Vec<_> = (usize::from(stack.is_none())..threads)
            .filter_map(|_| {
                let builder = std::thread::Builder::new().name("side by side".into());
                let builder = if let Some(bytes) = stack { builder.stack_size(bytes) } else { builder };
                // If a thread cannot be started, the others do its share.
                builder.spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut done = if started.is_empty() || stack.is_none() { work() } else { Vec::new() };
        for thread in started {
            done.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, r)| r).collect()
}

/// The number of cores that this process may use. Asking the system takes as long as parsing a
/// small file.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_items_order_however_the_work_is_shared() {
        let items: Vec<u64> = (0..1000).collect();
        let expected: Vec<u64> = items.iter().map(|i| i * i).collect();
        for (share, stack) in [(1, None), (300, None), (5000, None), (1, Some(1 << 20)), (5000, Some(1 << 20))] {
            assert_eq!(side_by_side(&items, share, stack, |i| i * i), expected, "{share} {stack:?}");
        }
        assert!(side_by_side(&[] as &[u64], 1, Some(1 << 20), |i| i * i).is_empty());
    }

    #[test]
    fn a_panic_is_the_callers() {
        let thrown = std::panic::catch_unwind(|| side_by_side(&[1, 2, 3], 1, None, |i| assert_ne!(*i, 2)));
        assert!(thrown.is_err());
    }
}
