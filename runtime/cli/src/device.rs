//! Device, precision, and the results of earlier starts: options that `run`, `bench` and `tune`
//! share.
//!
//! In: arguments. Out: the session's options, with a GPU opened if one is wanted. Invariant: `auto`
//! falls back to the CPU and says why; `cuda` fails without a GPU; anything that is not used (a
//! tuning file, the cache) is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hypatia::device::OnGpu;
use hypatia::session::{Model, Options};
use hypatia_cache::Cache;
use hypatia_cuda as cuda;
use hypatia_cuda::Gpu;
use hypatia_cuda::tune::machine;
use hypatia_cuda::tuner::{Effort, Tuner};
use hypatia_cuda::tuning::TuningFile;
use hypatia_dsl::dtype::DType;
use hypatia_graph::Graph;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

use super::calibrate::with_costs;
use super::claims;

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if it can be used, otherwise the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of that number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text, text.strip_prefix("cuda:").map(str::parse)) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
            (_, Some(Ok(number))) => Ok(DeviceChoice::Cuda(number)),
            _ => Err("expected auto, cpu, cuda, or one of several GPUs as cuda:1".into()),
        }
    }
}

impl DeviceChoice {
    /// The number of the GPU that may run; `None` for the CPU.
    pub fn gpu(self) -> Option<usize> {
        match self {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto => Some(0),
            DeviceChoice::Cuda(number) => Some(number),
        }
    }
}

/// The figures of the cost model.
#[derive(Args, Clone, Debug, Default)]
pub struct CostOptions {
    /// Costs that `hypatia calibrate` measured on this device, in place of its profile's.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
}

impl CostOptions {
    /// The device with these figures.
    pub fn of(&self, device: Device) -> Result<Device> {
        with_costs(device, self.costs.as_deref())
    }
}

/// How much memory a plan may take.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct MemoryOptions {
    /// Memory limit for intermediate results and outputs, in MiB; a model that needs more is
    /// refused. By default 1024, or what the limits of the process leave; on a GPU its free memory.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub memory: Option<u32>,
}

impl MemoryOptions {
    /// In bytes.
    pub fn bytes(self) -> Option<usize> {
        self.memory.map(|mib| (mib as usize).saturating_mul(1 << 20))
    }
}

/// The type in which f32 products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// The types of the model.
    F32,
    /// On a GPU, round the operands of f32 products to TF32 (10 bits of mantissa); everything else
    /// stays f32.
    Tf32,
    /// Compute products, normalisations and pointwise operations of f32 models in bf16 (8 bits of
    /// mantissa), and accumulate in f32; sums, exponentials and positions outside of them stay f32.
    Bf16,
    /// The same in f16 (11 bits of mantissa, numbers up to 65504).
    F16,
}

/// Device and precision, and what earlier starts found.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// Where to run: `cpu`, `cuda` (the first GPU) or `cuda:N`; `auto` takes the first GPU if it
    /// can be used, otherwise the CPU.
    #[arg(long, value_name = "auto|cpu|cuda|cuda:N", default_value = "auto")]
    pub device: DeviceChoice,
    /// What products of f32 are computed in.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub precision: Precision,
    /// Choices of algorithms that `hypatia tune` wrote; by default hypatia.tune beside the model,
    /// if it exists.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Compare the fused plan with the unfused one again, even if an earlier start did.
    #[arg(long)]
    pub recheck: bool,
    #[command(flatten)]
    pub costs: CostOptions,
}

impl Precision {
    /// True if the model runs in a narrower type than its own.
    pub fn narrows(self) -> bool {
        matches!(self, Precision::Bf16 | Precision::F16)
    }

    /// The type to which f32 is narrowed.
    fn narrow(self) -> Option<DType> {
        match self {
            Precision::F32 | Precision::Tf32 => None,
            Precision::Bf16 => Some(DType::BF16),
            Precision::F16 => Some(DType::F16),
        }
    }

    /// A graph in this precision, and the options with which it is optimised, as a run has them.
    pub fn of_graph(self, graph: Graph, options: optimize::Options) -> Result<(Graph, optimize::Options)> {
        let options = optimize::Options { device: self.on(options.device)?, ..options };
        let graph = match self.narrow() {
            None => graph,
            // Sums of a norm or a softmax that is written out would be narrowed: rules name those
            // ops first.
            Some(to) => pipeline::optimize(&graph, &options.naming(&graph.program))?.graph.narrowed(to)?.graph,
        };
        Ok((graph, options))
    }

    /// A device that computes products in this precision.
    pub fn on(self, device: Device) -> Result<Device> {
        let tf32 = self == Precision::Tf32;
        if tf32 && device.is_host() {
            return Err(Error::Input(
                "--precision tf32 needs a GPU, as in --target h200; a CPU computes in f32".into(),
            ));
        }
        Ok(device.with_tf32(tf32))
    }

    /// The model in this precision, and a note about what stays f32, or that nothing changes.
    pub fn narrowed(self, model: Model) -> Result<(Model, Option<String>)> {
        let Some(to) = self.narrow() else { return Ok((model, None)) };
        let model = model.narrowed(to)?;
        let wide: Vec<String> = model.wide().into_iter().flatten().map(|(name, n)| format!("{name} x{n}")).collect();
        let summary = match (model.narrow(), wide.is_empty()) {
            (0, true) => format!("unchanged: the model computes nothing in f32, so {to} has no effect"),
            (0, false) => format!("unchanged: {to} has no effect; these stay in f32: {}", wide.join(", ")),
            (_, true) => format!("{to}, accumulated in f32; only inputs and outputs stay in f32"),
            (_, false) => {
                format!("{to}, accumulated in f32; these stay in f32: inputs, outputs, {}", wide.join(", "))
            }
        };
        Ok((model, Some(summary)))
    }
}

/// How algorithms are chosen on a GPU.
pub struct Measuring<'a> {
    /// Time limit of autotuning before the first result.
    pub time: Duration,
    /// What is measured.
    pub effort: Effort,
    /// The model: a tuning file may lie next to it.
    pub model: Option<&'a Path>,
}

/// A GPU that is being opened. It stays open as long as this value lives.
pub struct Opening {
    profile: Receiver<Device>,
    _gpu: JoinHandle<Option<Arc<Gpu>>>,
}

impl Opening {
    /// Waits until the GPU is identified, before it is open; `None` if there is none.
    pub fn profile(&self) -> Option<Device> {
        self.profile.recv().ok()
    }
}

impl DeviceOptions {
    /// Starts opening the GPU in the background, if one may be wanted: the model can be read and
    /// optimised in the meantime.
    pub fn open_ahead(&self) -> Option<Opening> {
        self.device.gpu().map(|number| {
            let (tell, profile) = channel();
            let gpu = std::thread::spawn(move || {
                // The receiver may be gone; that is fine.
                if let Ok(profile) = cuda::profile(number) {
                    let _ = tell.send(profile);
                }
                drop(tell);
                Gpu::open(number).ok()
            });
            Opening { profile, _gpu: gpu }
        })
    }

    /// Writes the choice into the options of a session. Returns notes about it.
    pub fn apply(&self, options: Options, measuring: &Measuring<'_>) -> Result<(Options, Vec<String>)> {
        let tf32 = self.precision == Precision::Tf32;
        let options = Options { tf32, recheck: self.recheck, ..options.remembering() };
        let given = self.tuning.as_deref().map(TuningFile::read).transpose()?;
        let gpu = match self.device {
            DeviceChoice::Cpu => Err(None),
            DeviceChoice::Cuda(number) => Ok(Gpu::open(number)?),
            DeviceChoice::Auto => Gpu::open(0).map_err(|e| {
                let e = e.to_string();
                let why = e.lines().next().unwrap_or_default().trim_end_matches(" Tried:").trim_end_matches('.');
                Some(format!("running on the CPU: {why} (`hypatia doctor` shows details)"))
            }),
        };
        let mut notes: Vec<String> = Cache::shared().as_ref().err().cloned().into_iter().collect();
        match gpu {
            Ok(gpu) => {
                let beside = measuring.model.and_then(TuningFile::beside);
                let file = match (given, beside) {
                    (None, Some(path)) => Some(TuningFile::read(&path)?),
                    (given, _) => given,
                };
                let mut tuner = Tuner::of_user(measuring.time, measuring.effort);
                let mut measured = BTreeMap::new();
                if let Some(file) = file {
                    measured = claims::measured(&file, &gpu.profile());
                    let machine = machine(&gpu);
                    let fits = format!("{}: {} choices for this GPU", file.path.display(), file.fitting(&machine));
                    notes.push(file.mismatch(&machine).unwrap_or(fits));
                    tuner = tuner.with_file(file);
                }
                let mut options = options.on(gpu, tuner);
                options.optimize.measured = measured;
                options.optimize.device = self.costs.of(options.optimize.device)?;
                Ok((options, notes))
            }
            Err(_) if tf32 => Err(Error::Input("--precision tf32 needs a GPU; the CPU computes in f32".into())),
            Err(note) => {
                let mut options = options;
                options.optimize.device = self.costs.of(options.optimize.device)?;
                notes.extend(note);
                let file = match (given, measuring.model.and_then(TuningFile::beside)) {
                    (None, Some(path)) => Some(TuningFile::read(&path)?),
                    (given, _) => given,
                };
                if let Some(file) = file {
                    options.optimize.measured = claims::measured(&file, &options.optimize.device);
                    if options.optimize.measured.is_empty() && self.tuning.is_some() {
                        notes.push(format!("{}: not used, because its choices are for GPUs", file.path.display()));
                    }
                }
                Ok((options, notes))
            }
        }
    }
}

/// Notes after the first result: what could not be stored, chosen or measured.
pub fn notes_after_run(gpu: Option<&OnGpu>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(on) = gpu {
        let tuner = on.tuner.lock().unwrap_or_else(PoisonError::into_inner);
        let rejected = tuner.rejected().iter();
        notes.extend(rejected.map(|what| {
            format!(
                "cuBLASLt no longer accepts the algorithm for {what}; another one \
            was chosen"
            )
        }));
        notes.extend(tuner.trials().notes());
        let guessed = tuner.counts().guessed;
        if guessed > 0 {
            notes.push(format!(
                "{guessed} products use the algorithm that cuBLASLt guesses; `hypatia tune` measures \
                which is fastest"
            ));
        }
    }
    let trouble = Cache::shared().as_ref().ok().and_then(Cache::trouble);
    notes.extend(trouble.map(|why| format!("not stored for the next start: {why}")));
    notes
}
