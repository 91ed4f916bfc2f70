//! `hypatia tune`: autotunes a model thoroughly on this GPU and writes the choices to a file that
//! can be committed.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anstream::eprintln;
use clap::Args;
use hypatia::device::OnGpu;
use hypatia::session::{Model, Options};
use hypatia_cuda::Gpu;
use hypatia_cuda::tune::machine;
use hypatia_cuda::tuner::{Effort, Tuner};
use hypatia_cuda::tuning::{BESIDE, Choice, Machine, TuningFile};
use hypatia_dsl::ir::Program;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::npz;

use super::device::{CostOptions, DeviceChoice, MemoryOptions, Precision, notes_after_run};
use super::inputs::{Named, load_random};
use super::model::{Domains, RuleOptions, Sizes, must_be_model};
use super::output::write_stdout;
use super::{Exit, Global, claims};

/// The time limit of the whole measurement: nobody waits longer.
const TIME: Duration = Duration::from_secs(24 * 3600);

/// Measure which algorithms are fastest for a model on this GPU, and write them to a file.
///
/// Times every product of the plan, with rules and without, with all algorithms that cuBLASLt
/// offers; a product with a weight is also timed with the transposed weight (`packed`). The file
/// has one line per choice and can be committed: `run`, `bench` and `explain` use it (`--tuning
/// FILE`, or hypatia.tune beside the model) if device, driver, library and Hypatia are the same.
/// Choices for other devices in the file are kept. The choices are also stored in the user's cache.
/// Rules that say what they save (`saves`) are measured too, by the model's plan with and without
/// each; what was measured then counts in place of the claim. With `--device cpu`, that is all.
/// The exit code is 1 if there is no GPU.
#[derive(Args)]
pub struct Tune {
    /// The model.
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// The file to write or update; by default hypatia.tune beside the model.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rules of your own, in addition to the library's; can be given several times.
    #[arg(long, value_name = "FILE.hyp")]
    rules: Vec<PathBuf>,
    #[command(flatten)]
    domains: Domains,
    #[command(flatten)]
    firing: RuleOptions,
    /// The type in which f32 products are computed.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Inputs by name, for their sizes; inputs that are not given are random.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    memory: MemoryOptions,
    /// The device to measure: `cuda` (the first GPU), `cuda:N`, or `cpu` (savings of rules only).
    #[arg(long, value_name = "cuda|cuda:N|cpu", default_value = "cuda")]
    device: DeviceChoice,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Tune {
    /// The options on the device that is tuned, and its name in the file.
    fn on_device(&self, options: Options) -> Result<(Options, Machine)> {
        let (mut options, here) = match self.device.gpu() {
            None => (options, claims::host_machine()),
            Some(number) => {
                let gpu = Gpu::open(number).map_err(|e| {
                    let why = e.to_string().replace(", or use --device cpu", "");
                    Error::Device(format!("`hypatia tune` needs an NVIDIA GPU, its driver and cuBLASLt: {why}"))
                })?;
                let here = machine(&gpu);
                (options.on(gpu, Tuner::of_user(TIME, Effort::Everything)), here)
            }
        };
        options.optimize.device = self.costs.of(options.optimize.device)?;
        Ok((options, here))
    }

    /// The model with inputs, and where these come from.
    fn load(&self, program: Arc<Program>, options: Options) -> Result<(Model, Named, String)> {
        match &self.inputs {
            Some(path) => {
                let inputs = npz::read(path)?;
                let graph = self.sizes.load_for(&self.model, program, &inputs)?;
                Ok((Model::new(graph, options), inputs, path.display().to_string()))
            }
            None => {
                let (model, inputs, dims) = load_random(&self.model, program, options, &self.sizes, 0)?;
                Ok((model, inputs, format!("random{dims}")))
            }
        }
    }

    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        must_be_model(&self.model)?;
        let program = self.domains.program(&self.rules)?;
        let output = self.output.clone().unwrap_or_else(|| self.model.with_file_name(BESIDE));
        // The existing file is read before hours are spent: it may be damaged, or not a tuning
        // file.
        let read: Vec<&Path> =
            [&self.model].into_iter().chain(&self.inputs).chain(&self.rules).map(PathBuf::as_path).collect();
        let mut file = if output.exists() { TuningFile::read(&output)? } else { TuningFile::empty(&output) };
        TuningFile::writable(&output, &read)?;
        let mut options =
            Options { tf32: self.precision == Precision::Tf32, memory: self.memory.bytes(), ..Options::default() };
        self.firing.apply(&program, &mut options.optimize)?;
        let (options, here) = self.on_device(options)?;
        let on = options.gpu.clone();
        let (model, inputs, source) = self.load(program, options)?;
        let (model, _) = self.precision.narrowed(model)?;
        let started = Instant::now();
        let compiled = model.compile(&inputs)?;
        // With a cached verdict the unfused plan is not needed, but its products must still be
        // tuned.
        compiled.unfused()?;
        compiled.warnings().iter().for_each(|w| eprintln!("warning: {w}"));
        let (savings, unclear) = claims::measure(model.graph(), model.options(), &inputs, &here)?;
        let mut choices: Vec<Choice> = on.iter().flat_map(measured_choices).collect();
        choices.extend(savings);
        unclear.iter().for_each(|what| eprintln!("warning: {what}"));
        if on.is_none() && choices.is_empty() && unclear.is_empty() {
            let said = "there is nothing to measure on the CPU: its products need no tuning, and no rule of this \
                        model's plan states what it `saves`";
            return Err(Error::Input(format!("--device: {said}")));
        }
        choices.iter().for_each(|c| file.insert(c.clone()));
        file.write(&output)?;
        if !global.quiet {
            notes_after_run(None).iter().for_each(|note| eprintln!("{note}"));
        }
        let seconds = started.elapsed().as_secs_f64();
        write_stdout(&self.report((&here, &source), &choices, seconds, &output));
        Ok(Exit::Ok)
    }

    /// What was measured on which machine, with which inputs, as text or JSON.
    fn report(&self, (here, source): (&Machine, &str), choices: &[Choice], seconds: f64, output: &Path) -> String {
        if self.json {
            let choices: Vec<_> = choices.iter().map(to_json).collect();
            let file = output.display().to_string();
            let value = serde_json::json!({
                "file": file, "machine": here.to_string(), "inputs": source, "seconds": seconds, "choices": choices,
            });
            return format!("{value:#}\n");
        }
        let mut text = format!("device     {here}\ninputs     {source}\n");
        choices.iter().for_each(|c| text.push_str(&line(c)));
        let (n, file) = (choices.len(), output.display());
        let _ = writeln!(text, "{n} choices measured in {seconds:.1} s, written to {file}");
        text
    }
}

/// The choices of algorithms that were measured.
fn measured_choices(on: &OnGpu) -> Vec<Choice> {
    let tuner = on.tuner.lock().unwrap_or_else(PoisonError::into_inner);
    tuner.choices().filter(|c| c.us.is_some()).cloned().collect()
}

/// A choice as text.
pub fn line(c: &Choice) -> String {
    if let (Some((rule, saved)), Some(with), Some(without)) = (c.saving(), c.us, c.first_us) {
        let times = c.candidates;
        return format!(
            "  {saved:>9.2} us saved by {rule}, {times} times: {without:.2} without it, {with:.2} with it\n"
        );
    }
    let time = |us: Option<f64>| us.map_or("guess".to_string(), |us| format!("{us:.2}"));
    let (us, first) = (time(c.us), time(c.first_us));
    let tiling = c.tiling().map_or(String::new(), |t| format!(": {t}"));
    format!("  {us:>9} us ({} {first}, best of {})  {}{tiling}\n", c.first(), c.candidates, c.problem)
}

/// A choice as JSON.
pub fn to_json(c: &Choice) -> serde_json::Value {
    serde_json::json!({
        "machine": c.machine.to_string(),
        "product": c.problem,
        "tiling": c.tiling(),
        "us": c.us,
        "first_us": c.first_us,
        "candidates": c.candidates,
        "saved_us": c.saving().map(|(_, us)| us),
    })
}
