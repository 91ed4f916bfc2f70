//! The default memory budget for large tensors.
//!
//! In: the limits of the process (address space, container). Out: bytes. Invariant: running out of
//! memory kills a process without a message, so large allocations are refused in advance, with an
//! error that names them.

use std::sync::OnceLock;

/// Bytes for one stage's tensors: one gibibyte, or less if the limits of the process are lower.
pub fn budget() -> usize {
    static BUDGET: OnceLock<usize> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let limits = [address_space(&read("/proc/self/limits")), container(&read("/sys/fs/cgroup/memory.max"))];
        of(limits.into_iter().flatten().min())
    })
}

/// Fails if the machine cannot give this many bytes now: allocating them would end the process.
pub fn must_fit(bytes: usize) -> Result<(), String> {
    // Small allocations are not checked.
    if bytes < 64 << 20 {
        return Ok(());
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let limits = [
        free(&read("/proc/meminfo")),
        address_space(&read("/proc/self/limits")),
        container(&read("/sys/fs/cgroup/memory.max")),
    ];
    match limits.into_iter().flatten().min().filter(|free| bytes > *free) {
        Some(free) => Err(format!("{bytes} bytes are needed, but only {free} bytes of memory are free")),
        None => Ok(()),
    }
}

/// Memory that Linux can give without swapping.
fn free(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Besides a stage's tensors there must be room for inputs, weights, copies of outputs and the
/// program itself.
fn of(limit: Option<usize>) -> usize {
    limit.map_or(1 << 30, |l| (l / 4).min(1 << 30))
}

/// The soft limit of `ulimit -v`, from the text of `/proc/self/limits`.
fn address_space(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn container(max: &str) -> Option<usize> {
    max.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_process_count() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max cpu time              unlimited            unlimited            seconds   \n\
                    Max address space         1073741824           unlimited            bytes     \n";
        assert_eq!(address_space(text), Some(1 << 30));
        assert_eq!(address_space(&text.replace("1073741824", "unlimited")), None);
        assert_eq!(container("max\n"), None);
        assert_eq!(free("MemTotal:  9 kB\nMemAvailable:    4 kB\n"), Some(4096));
        assert!(must_fit(1 << 50).is_err_and(|why| why.contains("bytes of memory are free")));
        assert_eq!((of(None), of(Some(1 << 30)), of(Some(1 << 40))), (1 << 30, 1 << 28, 1 << 30));
    }
}
