//! `hypatia doctor`: reports what this machine offers, and what Hypatia falls back to.

use anstream::println;
use anstyle::{AnsiColor, Style};
use clap::Args;
use hypatia_cuda::probe::{self, Probe};
use hypatia_tensor::error::Result;

use super::{Exit, Global, measured};

const GOOD: Style = AnsiColor::Green.on_default().bold();
const LACKING: Style = AnsiColor::Yellow.on_default().bold();

/// Show what this machine offers, and what Hypatia falls back to.
///
/// Shows each library with its path and version, or every place that was searched. The exit code is
/// always 0: a machine without a GPU is not an error.
#[derive(Args)]
pub struct Doctor {
    /// List every place that was searched, even for libraries that were found.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A component that was searched for.
struct Line {
    key: &'static str,
    what: &'static str,
    probe: Probe,
    without: &'static str,
}

impl Doctor {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let lines = [
            Line { key: "driver", what: "NVIDIA driver", probe: probe::driver(), without: "models run on the CPU" },
            Line {
                key: "nvrtc",
                what: "NVRTC",
                probe: probe::nvrtc(),
                without: "`hypatia gen` writes CUDA sources, but no machine code",
            },
            Line { key: "cublaslt", what: "cuBLASLt", probe: probe::cublaslt(), without: "models run on the CPU" },
        ];
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        if self.json {
            println!("{}", json(&lines, threads));
            return Ok(Exit::Ok);
        }
        println!("Hypatia {} on {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
        println!("{GOOD}ok{GOOD:#}      CPU: {threads} threads, {}", features().join(" "));
        for l in &lines {
            match &l.probe {
                Ok(f) => {
                    println!("{GOOD}ok{GOOD:#}      {} {}: {} ({})", l.what, f.version, f.path, f.origin);
                    f.details.iter().for_each(|d| println!("          {d}"));
                }
                Err(m) => {
                    println!("{LACKING}missing{LACKING:#} {}: {}; without it, {}", l.what, m.reason, l.without);
                    let shown = if self.verbose { m.tried.len() } else { m.tried.len().min(4) };
                    m.tried[..shown].iter().for_each(|t| println!("          {}: {}", t.location, t.reason));
                    if shown < m.tried.len() {
                        println!("          and {} more places (--verbose lists them)", m.tried.len() - shown);
                    }
                }
            }
        }
        if lines.iter().any(|l| l.probe.is_err()) {
            println!("If the CUDA libraries are in another folder, set HYPATIA_CUDA_PATH to it.");
        }
        Ok(Exit::Ok)
    }
}

fn json(lines: &[Line], threads: usize) -> serde_json::Value {
    let mut out = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": measured::COMMIT,
        "source": measured::SOURCE,
        "versions": measured::versions(lines.iter().all(|l| l.probe.is_ok())),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "threads": threads,
        "cpu_features": features(),
    });
    for l in lines {
        out[l.key] = match &l.probe {
            Ok(f) => serde_json::json!({
                "found": true, "path": f.path, "origin": f.origin, "version": f.version, "details": f.details,
            }),
            Err(m) => serde_json::json!({
                "found": false,
                "reason": m.reason,
                "without": l.without,
                "tried": m.tried.iter().map(|t| serde_json::json!({ "place": t.location, "reason": t.reason
                 })).collect::<Vec<_>>(),
            }),
        };
    }
    out
}

/// Vector extensions that affect speed here.
fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let all = [
            ("avx2", std::arch::is_x86_feature_detected!("avx2")),
            ("fma", std::arch::is_x86_feature_detected!("fma")),
            ("f16c", std::arch::is_x86_feature_detected!("f16c")),
            ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}
