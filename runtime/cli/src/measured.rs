//! The provenance of a measurement: device, versions, date, command, and the source that this
//! binary was built from.
//!
//! In: the device of the run. Out: the `about` object of every file of measured times, as in
//! docs/benchmarks. Invariant: unknown values are `unknown` or left out, never guessed; source and
//! commit are those of the build (`tools/source.sh`), not of the current folder.

use std::time::{SystemTime, UNIX_EPOCH};

use hypatia_cuda::probe;
use serde_json::{Value, json};

/// SHA-256 of the source, if the build received it.
pub const SOURCE: &str = match option_env!("HYPATIA_SOURCE") {
    Some(hash) => hash,
    None => "unknown",
};
/// The commit, if the build received it.
pub const COMMIT: &str = match option_env!("HYPATIA_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The provenance of this process's measurements on `device`, in the executor's notation.
pub fn about(device: Option<&str>, gpu: bool) -> Value {
    json!({
        "device": device.map(|d| if gpu { d.to_string() } else { format!("{}, {d}", processor()) }),
        "versions": versions(gpu),
        "date": date(SystemTime::now()),
        "commit": COMMIT,
        "source": SOURCE,
        "command": command(std::env::args().skip(1)),
    })
}

/// Versions of Hypatia and, for a GPU, of its driver and libraries.
pub fn versions(gpu: bool) -> Value {
    let mut versions = json!({"hypatia": env!("CARGO_PKG_VERSION")});
    if gpu {
        let found = [("cuda", probe::driver()), ("cublaslt", probe::cublaslt()), ("nvrtc", probe::nvrtc())];
        for (name, found) in found {
            versions[name] = found.map_or_else(|_| json!("unknown"), |f| json!(f.version));
        }
        versions["driver"] = json!(driver().unwrap_or_else(|| "unknown".to_string()));
    }
    versions
}

/// The driver's own version, such as 580.159.04, if the kernel reports it.
fn driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    driver_of(&text)
}

fn driver_of(text: &str) -> Option<String> {
    let version = |w: &&str| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(version).map(str::to_string)
}

/// The name of the processor.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// The date of a time, in UTC: 2026-11-22.
fn date(time: SystemTime) -> String {
    let days = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400) as i64;
    // Years begin in March here, so that the leap day is the last day of its year. Such a year 0
    // begins 719,468 days before 1970-01-01, and 400 years have 146,097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + i64::from(month <= 2))
}

/// The arguments quoted for a shell.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+%@".contains(c);
    arguments.fold("hypatia".to_string(), |line, word| {
        if !word.is_empty() && word.chars().all(plain) {
            format!("{line} {word}")
        } else {
            format!("{line} '{}'", word.replace('\'', "'\\''"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (1_795_305_600, "2026-11-22"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), day);
        }
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let words = ["bench", "a.hyp", "--rows", "softmax ", "it's", ""].map(str::to_string);
        assert_eq!(command(words.into_iter()), r"hypatia bench a.hyp --rows 'softmax ' 'it'\''s' ''");
    }

    #[test]
    fn the_driver_tells_its_version() {
        let line =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root)\nGCC version";
        assert_eq!(driver_of(line).as_deref(), Some("580.159.04"));
        assert_eq!(driver_of("NVRM version: none"), None);
    }
}
