//! `hypatia bench`: times a model with and without rules, profiles each kernel against the
//! machine's peak rates, and writes traces.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstream::eprintln;
use clap::Args;
use hypatia::device::OnGpu;
use hypatia::session::{Compiled, Executor, Model, Options};
use hypatia_cuda::tuner::Effort;
use hypatia_cuda::{Timer, nvtx};
use hypatia_dsl::ir::Program;
use hypatia_plan::note;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::{file, npz};
use serde_json::{Value, json};

use super::device::{DeviceOptions, Measuring, MemoryOptions, notes_after_run};
use super::inputs::load_random;
use super::model::{ContractOptions, Domains, RuleOptions, SafetyOptions, Sizes, must_be_model};
use super::output::write_stdout;
use super::{Exit, Global, measured};
use roofline::Roofline;
use suite::Suite;
pub(crate) use suite::noise;

mod ablation;
mod models;
mod peers;
mod plot;
mod roofline;
mod suite;

/// Time limit of autotuning, before anything is timed.
const TUNING: Duration = Duration::from_secs(60);
/// The smallest number of runs if a duration limits them.
const AT_LEAST: usize = 10;
/// Runs of a profile, and of a trace.
const PROFILED: usize = 30;
const TRACED: usize = 10;

/// Time an ONNX model, or the tests of a `.hyp` file, with and without rules side by side.
///
/// Runs of both kinds alternate, so that other load on the machine affects both; the ratio is the
/// median of the ratios of neighbouring runs. On a GPU, events on the device time replays of the
/// plan's CUDA graph, with inputs in place. --profile shows each kernel's time, GFLOP/s and GB/s,
/// and its share of what this machine reached in the same run with a large matrix product and with
/// a copy of memory; `cache` means more than 100 % of the copy, because what the kernel reads is in
/// the processor's cache (in JSON, `roof` is then greater than 1).
#[derive(Args)]
pub struct Bench {
    /// The model, or a file with tests: `bench` times the `given` of each.
    #[arg(value_name = "MODEL.onnx", required_unless_present_any = ["suite", "from"], conflicts_with_all =
        ["suite", "from"])]
    model: Option<PathBuf>,
    /// A built-in set of cases.
    #[arg(long, value_enum)]
    suite: Option<Suite>,
    /// The Python with PyTorch that the suite `models` takes; by default python3.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// What the suite `models` times beside Hypatia: eager, eager in a CUDA graph (`graph`),
    /// torch.compile with max-autotune (`compile`: a minute a model), onnxruntime; by default all.
    #[arg(long, value_name = "PEER", value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(models::PEERS))]
    peers: Vec<String>,
    /// Keep the result of each of the suite's models in this folder, and measure only those that
    /// are not there.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Only the cases, models or tests whose names contain this text; can be given several times.
    #[arg(long, value_name = "TEXT")]
    rows: Vec<String>,
    #[command(flatten)]
    on: DeviceOptions,
    /// Inputs by name; inputs that are not given are random.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
    /// Seed of a model's random inputs; 0 by default.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Number of runs of each kind; by default as many as fit into the duration.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    runs: Option<u32>,
    /// Number of warm-up runs of each kind, which are not counted.
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// Seconds for the counted runs; by default 1 for a model, and 0.15 for each of a set of cases.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<f64>,
    /// Number of threads; all cores by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Rules in addition to the standard library's.
    #[arg(long, value_name = "FILE.hyp")]
    rules: Vec<PathBuf>,
    #[command(flatten)]
    domains: Domains,
    #[command(flatten)]
    firing: RuleOptions,
    #[command(flatten)]
    contract: ContractOptions,
    #[command(flatten)]
    safety: SafetyOptions,
    #[command(flatten)]
    memory: MemoryOptions,
    /// Also show the largest error of f32 cases that multiply matrices: the difference from the
    /// same case in f64.
    #[arg(long)]
    errors: bool,
    /// Run only without rules.
    #[arg(long, conflicts_with_all = ["rules", "must", "never"])]
    no_rules: bool,
    /// Run only with rules.
    #[arg(long, conflicts_with = "no_rules")]
    no_compare: bool,
    /// Compare three ways of optimising a model: without rules, with greedy rewriting in the order
    /// of the files, and with the e-graph: launches, predicted and measured time, time to optimise.
    #[arg(long, conflicts_with_all = ["no_rules", "no_compare", "profile", "trace", "greedy"])]
    ablation: bool,
    /// Time each kernel of a model.
    #[arg(long)]
    profile: bool,
    /// Write a trace of some runs of a model, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Plot the times of a set of cases as bars.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Time nothing: plot what --json or tools/gpu_peers.py wrote.
    #[arg(long, value_name = "FILE.json", requires = "plot", conflicts_with_all = ["suite", "json", "errors",
        "nvtx", "profile", "trace", "inputs", "runs"])]
    from: Option<PathBuf>,
    /// Annotate cases, plans and the steps of --profile for NVIDIA's profilers (`nsys profile
    /// hypatia bench ...`).
    #[arg(long)]
    nvtx: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if value > 0.0 && value <= 86_400.0 { Ok(value) } else { Err("expected more than 0, at most 86400".to_string()) }
}

/// What a launch takes at least on a GPU, in microseconds, whatever it computes (NVIDIA H200).
const FLOOR_US: f64 = 1.0;

/// One way to run the model, and its times.
struct Variant<'a> {
    name: &'static str,
    executor: &'a Executor,
    timer: Option<Timer<'a>>,
    times: Vec<Duration>,
}

/// The shortest burst of replays on a device, in seconds.
const BURST: f64 = 2e-3;

impl<'a> Variant<'a> {
    fn new(name: &'static str, executor: &'a Executor, inputs: &[Tensor]) -> Result<Variant<'a>> {
        Ok(Variant { name, executor, timer: executor.timer(inputs)?, times: Vec::new() })
    }

    /// Times one run; on a device, the mean of a burst of `replays` replays.
    fn once(&mut self, inputs: &[Tensor], replays: usize) -> Result<Duration> {
        match &mut self.timer {
            Some(timer) => Ok(Duration::from_secs_f64(timer.replays(replays)? * 1e-6)),
            None => {
                let start = Instant::now();
                self.executor.run(inputs)?;
                Ok(start.elapsed())
            }
        }
    }

    fn sorted(&self) -> Vec<Duration> {
        let mut times = self.times.clone();
        times.sort_unstable();
        times
    }

    /// The time that this share of the runs stays below.
    fn quantile(&self, share: f64) -> Duration {
        let times = self.sorted();
        let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(at).copied().unwrap_or_default()
    }

    fn to_json(&self) -> Value {
        json!({
            "launches": self.executor.plan().launches(),
            "runs": self.times.len(),
            "median_ms": ms(self.quantile(0.5)),
            "min_ms": ms(self.quantile(0.0)),
            "p90_ms": ms(self.quantile(0.9)),
            "times_ms": self.times.iter().map(|t| ms(*t)).collect::<Vec<f64>>(),
        })
    }
}

/// Times of each kernel over several runs.
struct Profile {
    runs: usize,
    total: Duration,
    steps: Vec<Duration>,
    roof: Roofline,
}

fn on_gpu(executor: &Executor) -> bool {
    matches!(executor, Executor::Cuda(_))
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// Fails on an option that has no effect here: users assume that a silently ignored option worked.
fn refuse(options: &[(&str, bool)], why: &str) -> Result<()> {
    match options.iter().find(|o| o.1) {
        Some((name, _)) => Err(Error::Input(format!("{name} {why}"))),
        None => Ok(()),
    }
}

impl Bench {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        self.check_outputs()?;
        if let (Some(from), Some(to)) = (&self.from, &self.plot) {
            let text = std::fs::read_to_string(from).map_err(|e| Error::Io { path: from.clone(), source: e })?;
            let report = serde_json::from_str(&text).map_err(|e| Error::Input(format!("{}: {e}", from.display())))?;
            self.draw(&report, to, global)?;
            return Ok(Exit::Ok);
        }
        if self.nvtx {
            nvtx::enable()?;
        }
        let is_model = |path: &&PathBuf| path.extension().is_none_or(|e| e != "hyp");
        match self.model.as_ref().filter(is_model) {
            Some(path) => {
                refuse(&self.of_models(), "belongs to --suite models")?;
                refuse(&[("--rows", !self.rows.is_empty())], "selects cases, but a model is one case")?;
                refuse(&[("--plot", self.plot.is_some())], "plots a set of cases, but a model is one case")?;
                if self.ablation { self.ablate(path, global) } else { self.run_model(path, global) }
            }
            None => {
                let of_a_model = [
                    ("--profile", self.profile),
                    ("--ablation", self.ablation),
                    ("--trace", self.trace.is_some()),
                    ("--inputs", self.inputs.is_some()),
                    ("--dim", !self.sizes.dim.is_empty()),
                    ("--seed", self.seed.is_some()),
                    ("--must and --never", !self.contract.is_empty()),
                ];
                refuse(&of_a_model, "is for a model, MODEL.onnx, but a set of cases was given")?;
                if self.suite == Some(Suite::Models) {
                    let of_cases = [("--errors", self.errors), ("--plot", self.plot.is_some())];
                    refuse(&of_cases, "is for small cases, but the suite `models` was given")?;
                    return models::run(self, global);
                }
                refuse(&self.of_models(), "belongs to --suite models")?;
                suite::run(self, self.model.as_deref(), global)
            }
        }
    }

    /// The options that only the suite `models` has.
    fn of_models(&self) -> [(&'static str, bool); 3] {
        [
            ("--python", self.python.is_some()),
            ("--peers", !self.peers.is_empty()),
            ("--results", self.results.is_some()),
        ]
    }

    /// Fails if what is to be written cannot be, or would overwrite what is read.
    fn check_outputs(&self) -> Result<()> {
        let read = [&self.model, &self.inputs, &self.from].into_iter().flatten().chain(&self.rules);
        let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
        [&self.trace, &self.plot].into_iter().flatten().try_for_each(|path| file::check(path, &read))
    }

    /// Plots a report of cases, limited to those whose names contain the text of --rows.
    fn draw(&self, report: &Value, to: &Path, global: &Global) -> Result<()> {
        let svg = plot::svg(report, &self.rows)?;
        file::write(to, |out| std::io::Write::write_all(out, svg.as_bytes()))?;
        if !global.quiet {
            eprintln!("wrote {}", to.display());
        }
        Ok(())
    }

    /// The session's options, and notes about them.
    fn options(&self, program: &Program) -> Result<(Options, Vec<String>)> {
        let memory = self.memory.bytes();
        let mut options = Options { threads: self.threads.unwrap_or(0).into(), memory, ..Options::default() };
        options.optimize.no_rules = self.no_rules;
        self.firing.apply(program, &mut options.optimize)?;
        options.optimize.contract = self.contract.clauses(program, &self.rules)?;
        self.safety.apply(self.no_rules, &mut options);
        let model = self.model.as_deref().filter(|p| p.extension().is_none_or(|e| e != "hyp"));
        self.on.apply(options, &Measuring { time: TUNING, effort: Effort::Guessed, model })
    }

    fn run_model(&self, path: &Path, global: &Global) -> Result<Exit> {
        must_be_model(path)?;
        let program = self.domains.program(&self.rules)?;
        let (options, notes) = self.options(&program)?;
        let tell = |notes: &[String]| notes.iter().filter(|_| !global.quiet).for_each(|note| eprintln!("{note}"));
        tell(&notes);
        let gpu = options.gpu.clone();
        let (model, inputs, source) = match &self.inputs {
            Some(given) => {
                let inputs = npz::read(given)?;
                let graph = self.sizes.load_for(path, program, &inputs)?;
                (Model::new(graph, options), inputs, format!("from {}", given.display()))
            }
            None => {
                let seed = self.seed.unwrap_or(0);
                let (model, inputs, dims) = load_random(path, program, options, &self.sizes, seed)?;
                (model, inputs, format!("random, seed {seed}{dims}"))
            }
        };
        let (model, precision) = self.on.precision.narrowed(model)?;
        tell(&precision.into_iter().collect::<Vec<_>>());
        let started = Instant::now();
        let compiling = nvtx::range("compile");
        let compiled = model.compile(&inputs)?;
        drop(compiling);
        let ordered = model.order(&inputs)?;
        compiled.executor.run(&ordered)?;
        let first = started.elapsed();
        tell(&notes_after_run(gpu.as_ref()));
        // A discarded plan is always reported, even with -q.
        compiled.warnings().iter().for_each(|w| eprintln!("warning: {w}"));
        let variants = self.time(&compiled, &ordered)?;
        let measured = variants.first().map(|s| s.executor).ok_or_else(|| Error::Internal("nothing to time".into()))?;
        let profile = if self.profile { Some(profile(measured, gpu.as_ref(), &ordered)?) } else { None };
        if let Some(path) = &self.trace {
            let text =
                serde_json::to_string(&trace(measured, &ordered)?).map_err(|e| Error::Internal(e.to_string()))?;
            file::write(path, |out| std::io::Write::write_all(out, text.as_bytes()))?;
        }
        let case = Timed { compiled: &compiled, inputs: &inputs, source: &source, first, variants: &variants };
        let text = if self.json {
            format!("{:#}\n", case.to_json(&path.display().to_string(), self.warmup, profile.as_ref()))
        } else {
            case.to_text(&path.display().to_string(), profile.as_ref())
        };
        write_stdout(&text);
        Ok(Exit::Ok)
    }

    /// Runs of all kinds, interleaved.
    fn time<'a>(&self, compiled: &'a Compiled, inputs: &[Tensor]) -> Result<Vec<Variant<'a>>> {
        self.time_for(compiled, inputs, 1.0)
    }

    /// Like [`Self::time`], with a default duration in seconds.
    fn time_for<'a>(&self, compiled: &'a Compiled, inputs: &[Tensor], default: f64) -> Result<Vec<Variant<'a>>> {
        let variant = |name, executor| Variant::new(name, executor, inputs);
        let variants = match (self.no_rules, self.no_compare) {
            (true, _) => vec![variant("without rules", &compiled.executor)?],
            (_, true) => vec![variant("with rules", &compiled.executor)?],
            _ => vec![variant("with rules", &compiled.executor)?, variant("without rules", compiled.unfused()?)?],
        };
        self.interleaved(variants, inputs, self.duration.unwrap_or(default))
    }

    /// Runs these variants in turn, for that many seconds.
    fn interleaved<'a>(
        &self,
        mut variants: Vec<Variant<'a>>,
        inputs: &[Tensor],
        seconds: f64,
    ) -> Result<Vec<Variant<'a>>> {
        let mut replays = vec![1; variants.len()];
        for (variant, replays) in variants.iter_mut().zip(&mut replays) {
            for _ in 0..self.warmup {
                let once = variant.once(inputs, 1)?;
                *replays = ((BURST / once.as_secs_f64().max(1e-9)).ceil() as usize).clamp(1, 10_000);
            }
        }
        let started = Instant::now();
        let mut done = 0;
        loop {
            let enough = match self.runs {
                Some(runs) => done >= runs as usize,
                None => done >= AT_LEAST && started.elapsed().as_secs_f64() >= seconds,
            };
            if enough {
                return Ok(variants);
            }
            for (variant, replays) in variants.iter_mut().zip(&replays) {
                let range = nvtx::range(variant.name);
                let once = variant.once(inputs, *replays)?;
                drop(range);
                variant.times.push(once);
            }
            done += 1;
        }
    }
}

/// A timed model.
struct Timed<'a> {
    compiled: &'a Compiled,
    inputs: &'a [(String, Tensor)],
    source: &'a str,
    /// From the loaded model to its first result: rules, plan, kernels, weights.
    first: Duration,
    variants: &'a [Variant<'a>],
}

impl Timed<'_> {
    fn to_text(&self, model: &str, profile: Option<&Profile>) -> String {
        let (variants, mut text) = (self.variants, String::new());
        let _ = writeln!(text, "model      {model}");
        let _ = writeln!(text, "inputs     {}", self.source);
        if let Some(variant) = variants.first() {
            let _ = writeln!(text, "device     {}", variant.executor.device_name());
        }
        let _ = writeln!(
            text,
            "{:<14} {:>8} {:>6} {:>11} {:>11} {:>11}",
            "", "launches", "runs", "median ms", "min", "p90"
        );
        for s in variants {
            let (launches, runs) = (s.executor.plan().launches(), s.times.len());
            let [median, min, p90] = [0.5, 0.0, 0.9].map(|q| ms(s.quantile(q)));
            let _ = writeln!(text, "{:<14} {launches:>8} {runs:>6} {median:>11.4} {min:>11.4} {p90:>11.4}", s.name);
        }
        let _ =
            writeln!(text, "first      {:.3} s from the loaded model to its first result", self.first.as_secs_f64());
        if let Some(s) = variants.first().filter(|s| on_gpu(s.executor)) {
            let launches = s.executor.plan().launches();
            let floor = launches as f64 * FLOOR_US;
            let _ = writeln!(text, "floor      {:.4} ms: {launches} launches of at least {FLOOR_US} us", floor * 1e-3);
        }
        if let Some(ratio) = paired_ratio(variants) {
            let _ = writeln!(text, "ratio      {ratio:.3} (with / without, median of pairs)");
        }
        if let (Some(p), Some(variant)) = (profile, variants.first()) {
            profile_text(&mut text, p, variant.executor);
        }
        text
    }

    fn to_json(&self, model: &str, warmup: u32, profile: Option<&Profile>) -> Value {
        let variants = self.variants;
        let tensor =
            |(name, t): &(String, Tensor)| json!({"name": name, "dtype": t.dtype().name(), "shape": t.shape()});
        let variant = |name: &str| variants.iter().find(|s| s.name == name).map(Variant::to_json);
        json!({
            "about": variants.first().map(|s| measured::about(Some(&s.executor.device_name()), on_gpu(s.executor))),
            "model": model,
            "device": variants.first().map(|s| s.executor.device_name()),
            "inputs": self.inputs.iter().map(tensor).collect::<Vec<_>>(),
            "inputs_source": self.source,
            "warmup": warmup,
            "first_s": self.first.as_secs_f64(),
            "with_rules": variant("with rules"),
            "without_rules": variant("without rules"),
            "ratio": paired_ratio(variants),
            "floor_ms": variants.first().filter(|s| on_gpu(s.executor))
                .map(|s| s.executor.plan().launches() as f64 * FLOOR_US * 1e-3),
            "profile": profile.zip(variants.first()).map(|(p, s)| profile_json(p, s.executor)),
            "checked": self.compiled.checked.name(),
            "warnings": self.compiled.warnings(),
        })
    }
}

/// The median of the ratios of neighbouring runs.
fn paired_ratio(variants: &[Variant<'_>]) -> Option<f64> {
    let [a, b] = variants else { return None };
    let mut ratios: Vec<f64> =
        a.times.iter().zip(&b.times).map(|(a, b)| a.as_secs_f64() / b.as_secs_f64().max(1e-9)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

fn profile(executor: &Executor, gpu: Option<&OnGpu>, inputs: &[Tensor]) -> Result<Profile> {
    let _range = nvtx::range("profile");
    let micros = |us: &f64| Duration::from_secs_f64(us * 1e-6);
    if let (Some(mut timer), Some(on)) = (executor.timer(inputs)?, gpu) {
        let total = micros(&timer.replays(PROFILED)?);
        let steps = timer.steps(5)?.iter().map(micros).collect();
        return Ok(Profile { runs: 1, total, steps, roof: Roofline::on_gpu(on, executor.plan())? });
    }
    let mut steps = vec![Duration::ZERO; executor.plan().steps.len()];
    executor.run_timed(inputs, &mut steps)?;
    steps.fill(Duration::ZERO);
    let started = Instant::now();
    for _ in 0..PROFILED {
        executor.run_timed(inputs, &mut steps)?;
    }
    let total = started.elapsed();
    Ok(Profile { runs: PROFILED, total, steps, roof: Roofline::measure(executor.threads())? })
}

/// Kernels by time, each with its rates and its share of the nearer roof.
fn kernels(p: &Profile, executor: &Executor) -> Vec<Value> {
    let mut rows: Vec<(Duration, Value)> = Vec::new();
    let notes = executor.notes();
    for (i, (step, time)) in executor.plan().steps.iter().zip(&p.steps).enumerate() {
        let (work, seconds) = (step.work(), (time.as_secs_f64() / p.runs as f64).max(1e-12));
        let (flops, bytes) = (work.flops / seconds, work.bytes / seconds);
        let (compute, memory) = (flops / p.roof.flops, bytes / p.roof.bytes);
        rows.push((
            *time,
            json!({
                "name": step.name,
                "kind": step.kind(),
                "sizes": step.sizes(),
                "note": note(&notes, i),
                "calls": p.runs,
                "time_us": seconds * 1e6,
                "predicted_us": step.predicted(&executor.plan().device) * 1e6,
                "share": time.as_secs_f64() / p.total.as_secs_f64().max(1e-12),
                "gflops": flops / 1e9,
                "gbs": bytes / 1e9,
                "roof": compute.max(memory),
                "bound": if compute >= memory { "compute" } else { "memory" },
            }),
        ));
    }
    rows.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn profile_json(p: &Profile, executor: &Executor) -> Value {
    json!({
        "runs": p.runs,
        "total_ms": ms(p.total) / p.runs as f64,
        "kernels_ms": ms(p.steps.iter().sum()) / p.runs as f64,
        "roof": {"gflops": p.roof.flops / 1e9, "gbs": p.roof.bytes / 1e9},
        "kernels": kernels(p, executor),
    })
}

fn profile_text(text: &mut String, p: &Profile, executor: &Executor) {
    let (flops, bytes) = (p.roof.flops / 1e9, p.roof.bytes / 1e9);
    let _ = writeln!(
        text,
        "\nroof       {flops:.0} GFLOP/s ({} product), {bytes:.1} GB/s (copy), measured now",
        p.roof.dtype
    );
    let header = ["time us", "predicted", "share", "GFLOP/s", "GB/s", "roof", "kind"];
    let [time, predicted, share, gflops, gbs, roof, kind] = header;
    let _ = writeln!(text, "{time:>9} {predicted:>9} {share:>6} {gflops:>8} {gbs:>7} {roof:>6}  {kind:<9}  for");
    let mut cached = false;
    for k in kernels(p, executor) {
        let number = |key: &str| k[key].as_f64().unwrap_or(0.0);
        let word = |key: &str| k[key].as_str().unwrap_or("").to_string();
        let roof = match number("roof") {
            // No copy through memory is that fast: the operands are in the cache.
            share if share > 1.0 && word("bound") == "memory" => "cache".to_string(),
            share => format!("{:.0}%", 100.0 * share),
        };
        cached |= roof == "cache";
        let _ = writeln!(
            text,
            "{:>9.2} {:>9.2} {:>5.1}% {:>8.1} {:>7.1} {roof:>6}  {:<9}  {}{}",
            number("time_us"),
            number("predicted_us"),
            100.0 * number("share"),
            number("gflops"),
            number("gbs"),
            word("kind"),
            word("name"),
            k["note"].as_str().map_or(String::new(), |note| format!(", {note}")),
        );
    }
    let device = &executor.plan().device;
    let errors = kernels(p, executor).into_iter().filter_map(|k| {
        let (time, predicted) = (k["time_us"].as_f64()?, k["predicted_us"].as_f64()?);
        Some((predicted / time - 1.0).abs())
    });
    let mut errors: Vec<f64> = errors.collect();
    errors.sort_by(f64::total_cmp);
    if let Some(median) = errors.get(errors.len() / 2) {
        let (name, figures) = (device.name, device.figures);
        let _ = writeln!(text, "predicted by the costs of {name}, {figures}: median error {:.0}%", 100.0 * median);
    }
    let (total, inside) = (ms(p.total), ms(p.steps.iter().sum()));
    let outside = 100.0 * (total - inside).max(0.0) / total.max(1e-9);
    let _ = writeln!(text, "{:>9.2} us per run, {outside:.1}% of it outside of kernels", 1e3 * total / p.runs as f64);
    if cached {
        let _ =
            writeln!(text, "cache: faster than a copy through memory, because its data is in the processor's cache");
    }
}

/// Events in Chrome's trace format: one for each kernel of several runs.
fn trace(executor: &Executor, inputs: &[Tensor]) -> Result<Value> {
    let plan = executor.plan();
    let mut events = vec![json!({"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "hypatia"}})];
    let started = Instant::now();
    for run in 0..TRACED {
        let mut steps = vec![Duration::ZERO; plan.steps.len()];
        let begin = started.elapsed();
        executor.run_timed(inputs, &mut steps)?;
        let whole = started.elapsed() - begin;
        let micros = |d: Duration| d.as_secs_f64() * 1e6;
        let event = |name: &str, ts: Duration, dur: Duration, args: Value| {
            json!({"ph": "X", "pid": 1, "tid": 1,
            "name": name, "ts": micros(ts), "dur": micros(dur), "args": args})
        };
        events.push(event("run", begin, whole, json!({"run": run})));
        let mut at = begin;
        for (step, time) in plan.steps.iter().zip(&steps) {
            let work = step.work();
            let args = json!({"for": step.name, "flops": work.flops, "bytes": work.bytes});
            events.push(event(step.kind(), at, *time, args));
            at += *time;
        }
    }
    Ok(json!({"traceEvents": events, "displayTimeUnit": "ns"}))
}
