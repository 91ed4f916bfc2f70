//! Where a model runs, and in which precision: options that `run`, `bench` and `tune` share.
//!
//! In: arguments. Out: the session's options, with a GPU opened where one is wanted. Holds always: `auto` falls back to
//! the CPU and says why; `cuda` fails where there is no GPU.

use std::time::Duration;

use clap::{Args, ValueEnum};
use hypatia::cuda::Gpu;
use hypatia::cuda::tune::Tuner;
use hypatia::error::{Error, Result};
use hypatia::session::Options;

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// A GPU if one can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// What products of f32 are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// As the model says.
    F32,
    /// On a GPU, operands of f32 products rounded to TF32 (10 bits of mantissa); everything else stays f32.
    Tf32,
}

/// Device and precision.
#[derive(Args, Clone, Debug)]
pub struct On {
    /// Where to run.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// What products of f32 are computed in.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub precision: Precision,
}

impl On {
    /// Puts the choice into the options of a session. `tuning` is the time for measuring algorithms before the first
    /// result. Returns what is worth telling about the choice.
    pub fn apply(&self, options: Options, tuning: Duration) -> Result<(Options, Option<String>)> {
        let options = Options { tf32: self.precision == Precision::Tf32, ..options };
        let gpu = match self.device {
            DeviceChoice::Cpu => Err(None),
            DeviceChoice::Cuda => Ok(Gpu::open(0)?),
            DeviceChoice::Auto => Gpu::open(0).map_err(|e| {
                let e = e.to_string();
                let why = e.lines().next().unwrap_or_default().trim_end_matches(" Tried:").trim_end_matches('.');
                Some(format!("running on the CPU: {why} (`hypatia doctor` tells more)"))
            }),
        };
        match gpu {
            Ok(gpu) => Ok((options.on(gpu, Tuner::of_user(tuning)), None)),
            Err(_) if options.tf32 => Err(Error::Input("--precision tf32 needs a GPU: the CPU computes in f32".into())),
            Err(note) => Ok((options, note)),
        }
    }
}
