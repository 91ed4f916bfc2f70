//! `hypatia calibrate`: measures this device's rates, for the cost model.
//!
//! In: a device. Out: a file with its bandwidths, its launch, its rates of pointwise work and of
//! products, which `--costs FILE` takes. Invariant: each rate is measured by the executor that runs
//! plans, with the kernels that plans run; a file is for the device that it names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use hypatia::device::OnGpu;
use hypatia::session::Executor;
use hypatia_cuda::Gpu;
use hypatia_cuda::tuner::{Effort, Tuner};
use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Graph;
use hypatia_library as library;
use hypatia_pipeline as pipeline;
use hypatia_plan::Options;
use hypatia_target::device::{Device, Rates};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::{Tensor, file};
use serde::{Deserialize, Serialize};

use super::bench::noise;
use super::device::DeviceChoice;
use super::output::write_stdout;
use super::{Exit, Global};

/// Time limit of choosing the products' algorithms on a GPU.
const TUNING: std::time::Duration = std::time::Duration::from_secs(60);
/// Sizes of a product on a host and on a GPU.
const SIDES: [usize; 2] = [768, 4096];
/// Elements of f32 that are copied, likewise: more than all caches hold.
const COPIED: [usize; 2] = [1 << 24, 1 << 26];
/// Elements of f32 that a GPU's last cache holds, with a result of as many.
const CACHED: usize = 1 << 21;
/// The side of a product that is a few tiles.
const SMALL: usize = 128;
/// Elements and operations of pointwise work that computes much and moves little.
const COMPUTED: [usize; 2] = [1 << 16, 1 << 24];
const OPERATIONS: usize = 64;
/// Launches of next to nothing.
const LAUNCHES: usize = 64;
/// The number of tries: the median counts.
const TRIES: usize = 7;

/// Measure this device's rates for the cost model, and write them to a file.
///
/// Measures a copy of memory, pointwise work, launches of next to nothing, and products of each
/// element type, with the kernels that plans run. `--costs FILE` of run, bench, tune, explain, opt
/// and gen makes extraction use them in place of the device's profile.
#[derive(Args)]
pub struct Calibrate {
    /// The device: `cpu`, `cuda` (the first GPU) or `cuda:N`; `auto` takes the first GPU if there
    /// is one.
    #[arg(long, value_name = "auto|cpu|cuda|cuda:N", default_value = "auto")]
    device: DeviceChoice,
    /// Number of threads of the CPU; all cores by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "hypatia.costs")]
    output: PathBuf,
}

/// What a file of costs holds.
#[derive(Debug, Serialize, Deserialize)]
struct Costs {
    /// The profile that the figures are for.
    target: String,
    /// The device's own name.
    device: String,
    /// The figures.
    rates: Rates,
}

/// The device with the figures of this file, which must be for it.
pub fn with_costs(device: Device, path: Option<&Path>) -> Result<Device> {
    let Some(path) = path else { return Ok(device) };
    let wrong = |what: String| Error::Input(format!("--costs {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let costs: Costs = serde_json::from_str(&text)
        .map_err(|e| wrong(format!("is no file of `hypatia calibrate`: {e}; measure again to replace it")))?;
    if costs.target != device.name {
        let (own, theirs) = (device.name, costs.target);
        return Err(wrong(format!(
            "its figures are for {theirs}, not for {own}: run `hypatia calibrate` on this device"
        )));
    }
    device.calibrated(&costs.rates).map_err(wrong)
}

/// Where the measurements run.
struct Bench {
    gpu: Option<OnGpu>,
    threads: usize,
    device: Device,
}

impl Calibrate {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        file::check(&self.output, &[])?;
        let tuner = || Tuner::of_user(TUNING, Effort::Guessed);
        let gpu = match self.device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto => Gpu::open(0).ok().map(|gpu| OnGpu::new(gpu, tuner())),
            DeviceChoice::Cuda(number) => Some(OnGpu::new(Gpu::open(number)?, tuner())),
        };
        let threads =
            self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
        let device = gpu.as_ref().map_or_else(Device::cpu, |on| on.gpu.profile());
        let bench = Bench { gpu, threads, device };
        let say = |what: &str| {
            if !global.quiet {
                anstream::eprintln!("measuring {what}")
            }
        };
        say("launches");
        let launch = bench.launch()?;
        say("a copy of memory");
        let bandwidth = bench.bandwidth(launch)?;
        let gpu = bench.gpu.is_some();
        let cache_bandwidth = if gpu { Some(bench.cached(launch)?) } else { None };
        say("pointwise work");
        let vector = bench.vector(launch)?;
        let mut matrix = Vec::new();
        for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
            say(&format!("products of {dtype}"));
            matrix.push((dtype, bench.product(dtype, launch)?));
        }
        let ramp = if gpu { Some(bench.ramp(launch)?) } else { None };
        let rates = Rates { bandwidth, cache_bandwidth, launch, ramp, vector, matrix };
        let calibrated = bench.device.calibrated(&rates).map_err(Error::Internal)?;
        let device = bench.gpu.as_ref().map_or_else(|| "CPU".to_string(), |on| on.gpu.name().to_string());
        let costs = Costs { target: bench.device.name.into(), device, rates };
        let mut text = serde_json::to_string_pretty(&costs).map_err(|e| Error::Internal(e.to_string()))?;
        text.push('\n');
        file::write(&self.output, |to| to.write_all(text.as_bytes()))?;
        write_stdout(&table(&bench.device, &calibrated));
        Ok(Exit::Ok)
    }
}

/// The figures of the profile beside those that were measured.
fn table(before: &Device, now: &Device) -> String {
    let mut out = format!("{:<24} {:>12} {:>12}\n", before.name, format!("{:?}", before.figures).to_lowercase(), "now");
    let mut row = |what: &str, a: f64, b: f64| out.push_str(&format!("{what:<24} {a:>12.1} {b:>12.1}\n"));
    row("bandwidth, GB/s", before.bandwidth / 1e9, now.bandwidth / 1e9);
    if !before.is_host() {
        row("cached, GB/s", before.cache_bandwidth / 1e9, now.cache_bandwidth / 1e9);
    }
    row("launch, ns", before.launch * 1e9, now.launch * 1e9);
    if !before.is_host() {
        row("ramp of a product, ns", before.ramp * 1e9, now.ramp * 1e9);
    }
    row("pointwise, GFLOP/s", before.vector / 1e9, now.vector / 1e9);
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        row(&format!("products {dtype}, GFLOP/s"), before.matrix_rate(dtype) / 1e9, now.matrix_rate(dtype) / 1e9);
    }
    out
}

impl Bench {
    /// One of a pair of sizes: the host's or the GPU's.
    fn size(&self, sizes: [usize; 2]) -> usize {
        sizes[usize::from(self.gpu.is_some())]
    }

    /// Seconds of a graph's plan: the median of several runs.
    fn seconds(&self, graph: &Graph, inputs: &[Tensor], cluster: bool) -> Result<f64> {
        let options = Options { memory: usize::MAX, cluster, ..Options::new(self.device.clone()) };
        let plan = Arc::new(pipeline::plan(graph, &options)?);
        let executor = Executor::new(plan, self.gpu.as_ref(), self.threads)?;
        let mut times = Vec::with_capacity(TRIES);
        match executor.timer(inputs)? {
            Some(mut timer) => {
                timer.replays(TRIES)?;
                for _ in 0..TRIES {
                    times.push(timer.replays(TRIES)? * 1e-6);
                }
            }
            None => {
                executor.run(inputs)?;
                for _ in 0..TRIES {
                    let start = Instant::now();
                    executor.run(inputs)?;
                    times.push(start.elapsed().as_secs_f64());
                }
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[TRIES / 2])
    }

    /// A chain of `count` functions of one tensor.
    fn chain(&self, elements: usize, count: usize, cluster: bool) -> Result<f64> {
        let mut graph = Graph::new(library::load(&[])?);
        let x = graph.input("x", ty(DType::F32, &[elements]));
        let missing = || Error::Internal("a sum or a difference".into());
        // Numbers stay as large as they are.
        let [add, sub] = [BuiltinScalar::Add, BuiltinScalar::Sub].map(|s| graph.program.builtin_scalar(s));
        let (add, sub) = add.zip(sub).ok_or_else(missing)?;
        let mut y = x;
        for i in 0..count {
            y = graph.scalar(if i % 2 == 0 { add } else { sub }, &[y, x])?;
        }
        graph.output("y", y);
        self.seconds(&graph, &[noise(DType::F32, &[elements])?], cluster)
    }

    /// Seconds of a launch: what more launches of next to nothing take longer.
    fn launch(&self) -> Result<f64> {
        let [few, many] = [LAUNCHES / 4, LAUNCHES].map(|n| self.chain(16, n, false));
        Ok(((many? - few?) / (LAUNCHES - LAUNCHES / 4) as f64).max(1e-9))
    }

    /// Bytes per second of a pass over memory.
    fn bandwidth(&self, launch: f64) -> Result<f64> {
        let elements = self.size(COPIED);
        let seconds = self.chain(elements, 1, true)?;
        Ok(2.0 * 4.0 * elements as f64 / (seconds - launch).max(1e-9))
    }

    /// Bytes per second of a pass over what the last cache of a GPU holds.
    fn cached(&self, launch: f64) -> Result<f64> {
        let seconds = self.chain(CACHED, 1, true)?;
        Ok(2.0 * 4.0 * CACHED as f64 / (seconds - launch).max(1e-9))
    }

    /// Seconds that a product takes besides its launch and its arithmetic: of one of next to none.
    fn ramp(&self, launch: f64) -> Result<f64> {
        Ok((self.product_seconds(DType::BF16, SMALL)? - launch).max(1e-9))
    }

    /// Operations per second of pointwise work.
    fn vector(&self, launch: f64) -> Result<f64> {
        let elements = self.size(COMPUTED);
        let seconds = self.chain(elements, OPERATIONS, true)?;
        Ok((elements * OPERATIONS) as f64 / (seconds - launch).max(1e-9))
    }

    /// Operations per second of a product.
    fn product(&self, dtype: DType, launch: f64) -> Result<f64> {
        let side = self.size(SIDES);
        let seconds = self.product_seconds(dtype, side)?;
        Ok(2.0 * (side as f64).powi(3) / (seconds - launch).max(1e-9))
    }

    /// Seconds of a product of square matrices.
    fn product_seconds(&self, dtype: DType, side: usize) -> Result<f64> {
        let mut graph = Graph::new(library::load(&[])?);
        let x = graph.input("x", ty(dtype, &[side, side]));
        let w = graph.constant(noise(dtype, &[side, side])?);
        let y = graph.builtin(BuiltinOp::Matmul, &[x, w], vec![])?;
        graph.output("y", *y.first().ok_or_else(|| Error::Internal("a product".into()))?);
        self.seconds(&graph, &[noise(dtype, &[side, side])?], true)
    }
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|d| (*d as i64).into()).collect() }
}
