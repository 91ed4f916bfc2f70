//! `hypatia run`: runs a model optimised by rules, on given or random inputs; compares its results
//! with expected ones; shows what the rules saved.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anstream::eprintln;
use clap::Args;
use hypatia::session::{Comparison, Compiled, Loosened, Model, Options, Refusal, Watched, loosened};
use hypatia_cuda::nvtx;
use hypatia_cuda::tuner::Effort;
use hypatia_dsl::ir::Program;
use hypatia_graph::NodeKind;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::{file, npz};
use serde_json::{Value, json};

use super::device::{DeviceOptions, Measuring, MemoryOptions, Opening, Precision, notes_after_run};
use super::inputs::{Named, load_random};
use super::model::{ContractOptions, Domains, RuleOptions, SafetyOptions, Sizes, must_be_model};
use super::output::write_stdout;
use super::{Exit, Global, since_start};

/// Limits of the timed runs: their number and their total duration.
const TIMED_RUNS: usize = 20;
const TIMED_FOR: Duration = Duration::from_millis(700);
/// Time limit of autotuning before the first result; `hypatia tune` takes as long as it needs.
const TUNING: Duration = Duration::from_millis(1500);

/// Run an ONNX model with the standard library's rules and your own.
///
/// Prints the fusions, the launches and the time before and after, and each output. --check
/// compares the outputs with expected ones: a float output agrees if every element is within atol +
/// rtol * |expected|; others must be equal. The exit code is 1 if an output does not agree, or is
/// missing in the file. By default, `rtol` is 1e-4, or the precision of the least precise float
/// type in which the model computes the output, and `atol` is rtol times the ordinary magnitude of
/// the output, which outliers do not raise: see docs/language.md, "When results agree".
#[derive(Args)]
pub struct Run {
    /// The model.
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Inputs by name; inputs that are not given are random.
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,
    /// Write the outputs to this file. numpy has no bf16: such arrays are written as numpy writes
    /// those of ml_dtypes, with two bytes per element (`V2`); `array.view(ml_dtypes.bfloat16)`
    /// gives the numbers.
    #[arg(long, value_name = "FILE.npz")]
    outputs: Option<PathBuf>,
    /// Compare the outputs with those in this file.
    #[arg(long, value_name = "FILE.npz")]
    check: Option<PathBuf>,
    /// With --check: the relative tolerance of an element.
    #[arg(long, value_name = "R", requires = "check", value_parser = tolerance, allow_hyphen_values = true)]
    rtol: Option<f64>,
    /// With --check: the absolute tolerance of an element.
    #[arg(long, value_name = "A", requires = "check", value_parser = tolerance, allow_hyphen_values = true)]
    atol: Option<f64>,
    /// Rules of your own, in addition to the library's; can be given several times.
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
    /// Disable all rules.
    #[arg(long, conflicts_with_all = ["rules", "disable", "must", "never"])]
    no_rules: bool,
    #[command(flatten)]
    on: DeviceOptions,
    /// Number of threads; all cores by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(flatten)]
    sizes: Sizes,
    /// Seed of random inputs.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    memory: MemoryOptions,
    /// Also print the plan.
    #[arg(long)]
    plan: bool,
    /// Annotate compiling, the first run and the timed runs for NVIDIA's profilers (`nsys profile
    /// hypatia run ...`).
    #[arg(long)]
    nvtx: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.trim().parse().ok();
    value.filter(|v| v.is_finite() && *v >= 0.0).ok_or_else(|| "expected a number of at least 0, such as 1e-3".into())
}

/// The measurements and comparisons of a run.
struct Outcome {
    compiled: std::sync::Arc<Compiled>,
    inputs: Named,
    source: String,
    /// The precision and what stays f32, if a precision was requested.
    precision: Option<String>,
    outputs: Named,
    /// For each output: its comparison, if there is an expected one.
    checks: Vec<Option<Comparison>>,
    /// For each output: why the tolerance exceeds that of its type.
    loosened: Vec<Option<Loosened>>,
    /// With --check: outputs that the file lacks, so that nothing is known of them.
    unchecked: Vec<String>,
    unfused_launches: usize,
    before: Duration,
    after: Duration,
    runs: usize,
    /// From the start of the process to the first result.
    first: Duration,
}

impl Outcome {
    /// True if the rules' plan was wrong, and the unfused one runs instead.
    fn discarded(&self) -> bool {
        self.compiled.refusal.as_ref().is_some_and(Refusal::is_whole)
    }
}

impl Run {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        if self.nvtx {
            nvtx::enable()?;
        }
        must_be_model(&self.model)?;
        if let Some(path) = &self.outputs {
            let others = self.inputs.iter().chain(&self.check).chain(&self.rules).map(PathBuf::as_path);
            let inputs: Vec<&Path> = others.chain([self.model.as_path()]).collect();
            file::check(path, &inputs)?;
        }
        let opening = self.on.open_ahead();
        let program = self.domains.program(&self.rules)?;
        let options = self.options(&program)?;
        let (model, inputs, source) = self.load(program)?;
        let measuring = Measuring { time: TUNING, effort: Effort::Unknown, model: Some(&self.model) };
        let model = match opening.as_ref().filter(|_| !self.on.precision.narrows()).and_then(Opening::profile) {
            Some(device) => {
                let device = self.on.costs.of(device)?;
                let options = Options { tf32: self.on.precision == Precision::Tf32, ..options.clone() };
                let model = model.with_options(options);
                model.plan_ahead(&device, &inputs);
                model
            }
            None => model,
        };
        let (options, mut notes) = self.on.apply(options, &measuring)?;
        drop(opening);
        let gpu = options.gpu.clone();
        let model = model.with_options(options);
        let (model, precision) = self.on.precision.narrowed(model)?;
        let tell = |notes: &[String]| notes.iter().filter(|_| !global.quiet).for_each(|note| eprintln!("{note}"));
        tell(&notes);
        let expected = self.check.as_ref().map(|path| npz::read(path)).transpose()?;
        if self.outputs.is_some() {
            npz::check_names(model.outputs())?;
        }
        let hint = self.no_inputs(&model);
        let outcome = self.execute(&model, inputs, source, expected.as_deref()).map_err(|e| match (&hint, e) {
            (Some(hint), Error::Input(what)) => Error::Input(format!("{what}\n{hint}")),
            (_, e) => e,
        })?;
        let outcome = Outcome { precision, ..outcome };
        notes = notes_after_run(gpu.as_ref());
        tell(&notes);
        // A discarded plan is always reported, even with -q.
        outcome.compiled.warnings().iter().for_each(|w| eprintln!("warning: {w}"));
        if let Some(path) = &self.outputs {
            npz::write(path, &outcome.outputs)?;
        }
        Ok(self.tell(&outcome, hint))
    }

    /// The options, before the device is known.
    fn options(&self, program: &Arc<Program>) -> Result<Options> {
        let memory = self.memory.bytes();
        let mut options = Options { threads: self.threads.unwrap_or(0).into(), memory, ..Options::default() };
        options.optimize.no_rules = self.no_rules;
        self.firing.apply(program, &mut options.optimize)?;
        options.optimize.contract = self.contract.clauses(program, &self.rules)?;
        self.safety.apply(self.no_rules, &mut options);
        Ok(options)
    }

    /// The model, its inputs, and where they come from.
    fn load(&self, program: Arc<Program>) -> Result<(Model, Named, String)> {
        Ok(match &self.inputs {
            Some(path) => {
                let inputs = npz::read(path)?;
                let graph = self.sizes.load_for(&self.model, program, &inputs)?;
                (Model::new(graph, Options::default()), inputs, format!("from {}", path.display()))
            }
            None => {
                let (model, inputs, dims) =
                    load_random(&self.model, program, Options::default(), &self.sizes, self.seed)?;
                (model, inputs, format!("random, seed {}{dims}", self.seed))
            }
        })
    }

    /// Prints what a run gave. `hint` is for outputs that do not agree.
    fn tell(&self, outcome: &Outcome, hint: Option<String>) -> Exit {
        let text = if self.json { format!("{:#}\n", self.to_json(outcome)) } else { self.to_text(outcome) };
        write_stdout(&text);
        let differs = outcome.checks.iter().flatten().any(|c| !c.ok);
        if let (Some(file), false) = (&self.check, outcome.unchecked.is_empty()) {
            let (file, missing) = (file.display(), outcome.unchecked.join(", "));
            eprintln!("error: --check: {file} has no expected values for {missing}");
        }
        if let Some(hint) = hint.filter(|_| differs) {
            eprintln!("{hint}");
        }
        if differs || !outcome.unchecked.is_empty() { Exit::Failed } else { Exit::Ok }
    }

    /// A hint for outputs that do not agree: the inputs were random.
    fn no_inputs(&self, model: &Model) -> Option<String> {
        let expected = self.check.as_ref().filter(|_| self.inputs.is_none())?;
        let graph = model.graph();
        let inputs: Vec<String> = graph
            .inputs
            .iter()
            .filter_map(|id| match &graph.node(*id).kind {
                NodeKind::Input { name } => Some(format!("{name}: {}", graph.node(*id).results.first()?)),
                _ => None,
            })
            .collect();
        let file = expected.display();
        let list = inputs.join(", ");
        (!inputs.is_empty()).then(|| {
            format!(
                "hint: without --inputs the model runs on random ones (seed {}); if {file} has the outputs of \
                 others, give \
                 those: `--inputs FILE.npz` with {list}",
                self.seed
            )
        })
    }

    /// Runs the model, compares its outputs with the expected ones, and times it with and without
    /// rules.
    fn execute(
        &self,
        model: &Model,
        inputs: Named,
        source: String,
        expected: Option<&[(String, Tensor)]>,
    ) -> Result<Outcome> {
        let names = model.outputs();
        for (name, _) in expected.unwrap_or_default() {
            if !names.contains(&name.as_str()) {
                let names = names.join(", ");
                return Err(Error::Input(format!("--check: `{name}` is not an output; the outputs are {names}")));
            }
        }
        let compiling = nvtx::range("compile");
        let compiled = model.compile(&inputs)?;
        drop(compiling);
        let ordered = model.order(&inputs)?;
        let first = nvtx::range("first run");
        let results = compiled.run(&ordered)?;
        drop(first);
        let first = since_start();
        let checks = self.compared(model, &results, expected)?;
        // A tolerance given by the caller is never loosened.
        let loosened = match self.rtol {
            Some(_) => vec![None; checks.len()],
            None => loosened(model.graph()),
        };
        let timed = nvtx::range("with rules");
        let (after, runs) = median(|| compiled.run(&ordered))?;
        drop(timed);
        let (before, unfused_launches) = if self.no_rules {
            (after, compiled.executor.plan().launches())
        } else {
            let unfused = compiled.unfused()?;
            let _timed = nvtx::range("without rules");
            (median(|| unfused.run(&ordered))?.0, unfused.plan().launches())
        };
        let outputs: Named = names.iter().map(|n| n.to_string()).zip(results).collect();
        let open = outputs.iter().zip(&checks).filter(|(_, c)| expected.is_some() && c.is_none());
        let unchecked = open.map(|((name, _), _)| name.clone()).collect();
        Ok(Outcome {
            compiled,
            inputs,
            source,
            precision: None,
            outputs,
            checks,
            loosened,
            unchecked,
            unfused_launches,
            before,
            after,
            runs,
            first,
        })
    }

    /// The comparison of each output with the expected one, if there is one.
    fn compared(
        &self,
        model: &Model,
        results: &[Tensor],
        expected: Option<&[(String, Tensor)]>,
    ) -> Result<Vec<Option<Comparison>>> {
        let mut checks = Vec::new();
        for ((name, got), mut tolerance) in model.outputs().iter().zip(results).zip(model.tolerances()) {
            tolerance.rtol = self.rtol.unwrap_or(tolerance.rtol);
            tolerance.atol = self.atol;
            let want = expected.and_then(|e| e.iter().find(|(n, _)| n == name));
            let check = want.map(|(_, want)| Comparison::of(got, want, tolerance)).transpose();
            checks.push(check.map_err(|e| Error::Input(format!("--check: output `{name}`: {e}")))?);
        }
        Ok(checks)
    }

    fn to_text(&self, o: &Outcome) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            let _ = writeln!(text, "{label:<10} {value}");
        };
        line("model", self.model.display().to_string());
        line("inputs", format!("{} ({})", list(&o.inputs), o.source));
        if let Some(precision) = &o.precision {
            line("precision", precision.clone());
        }
        if self.no_rules {
            line("rules", "none (--no-rules)".to_string());
        } else {
            let fired = fired(o);
            let fired: Vec<String> =
                fired.iter().map(|(r, n)| if *n > 1 { format!("{r} x{n}") } else { r.clone() }).collect();
            let fused = if fired.is_empty() { "no rule".to_string() } else { fired.join(", ") };
            let discarded = match fired.is_empty() {
                true => "no rule: the optimised plan is not used".to_string(),
                false => format!("no rule: the plan fused by {fused} is not used"),
            };
            line("fused by", if o.discarded() { discarded } else { fused });
        }
        let fused = o.compiled.executor.plan();
        line("launches", arrow(o.unfused_launches, fused.launches(), self.no_rules));
        let (place, runs) = (o.compiled.executor.device_name(), o.runs);
        let ms = |d: Duration| format!("{:.3} ms", d.as_secs_f64() * 1e3);
        let time = if self.no_rules { ms(o.after) } else { format!("{} -> {}", ms(o.before), ms(o.after)) };
        line("time", format!("{time} (median of {runs} runs, {place})"));
        line("first", format!("{:.2} s from the start of the command to the first result", o.first.as_secs_f64()));
        line("memory", format!("{} KiB of arena", fused.arena.div_ceil(1024)));
        if let Some(Watched { runs, compared }) = o.compiled.watched() {
            let found = match o.compiled.incidents().len() {
                0 => "nothing was wrong".to_string(),
                n => format!("{n} incidents, see the warnings"),
            };
            line("safety", format!("strict: {runs} runs, {compared} of them compared as a whole; {found}"));
        }
        for (((name, t), check), loosened) in o.outputs.iter().zip(&o.checks).zip(&o.loosened) {
            let what = match (check, &self.check) {
                (Some(c), _) => c.to_string(),
                (None, Some(_)) => "not in the file of --check".to_string(),
                (None, None) => summary(t),
            };
            line("output", format!("{name}: {}{:?}  {what}", t.dtype(), t.shape()));
            if let (Some(_), Some(why)) = (check, loosened) {
                line("", why.to_string());
            }
        }
        if self.plan {
            let _ = write!(text, "{}", fused.noted(&o.compiled.executor.notes()));
        }
        text
    }

    fn to_json(&self, o: &Outcome) -> Value {
        let tensor =
            |(name, t): &(String, Tensor)| json!({"name": name, "dtype": t.dtype().name(), "shape": t.shape()});
        let outputs: Vec<Value> = o
            .outputs
            .iter()
            .zip(&o.checks)
            .zip(&o.loosened)
            .map(|((output, check), loosened)| {
                let mut v = tensor(output);
                if let Some(c) = check {
                    v["check"] = json!(c);
                    v["check"]["loosened_by"] = json!(loosened);
                }
                v
            })
            .collect();
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let fused = o.compiled.executor.plan();
        let mut value = json!({
            "model": self.model.display().to_string(),
            "device": o.compiled.executor.device_name(),
            "inputs": o.inputs.iter().map(tensor).collect::<Vec<_>>(),
            "inputs_source": o.source,
            "precision": o.precision,
            "outputs": outputs,
            "rules_fired": if o.discarded() { BTreeMap::new() } else { fired(o) },
            "fused_plan_used": !self.no_rules && !o.discarded(),
            "launches": {"before": o.unfused_launches, "after": fused.launches()},
            "time_ms": {"before": ms(o.before), "after": ms(o.after), "runs": o.runs},
            "first_s": o.first.as_secs_f64(),
            "arena_bytes": fused.arena,
            "checked": o.compiled.checked.name(),
            "safety": self.safety.mode(self.no_rules).name(),
            "incidents": o.compiled.incidents().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "warnings": o.compiled.warnings(),
            "unchecked": o.unchecked,
            "ok": o.checks.iter().flatten().all(|c| c.ok) && o.unchecked.is_empty(),
        });
        if self.plan {
            value["plan"] = fused.to_json(&o.compiled.executor.notes());
        }
        value
    }
}

fn arrow(before: usize, after: usize, same: bool) -> String {
    if same { after.to_string() } else { format!("{before} -> {after}") }
}

/// Rules that contributed to the result, with the number of times.
fn fired(o: &Outcome) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for f in o.compiled.report.firings.iter().filter(|f| f.kept) {
        *counts.entry(f.rule.clone()).or_insert(0) += 1;
    }
    counts
}

fn list(tensors: &[(String, Tensor)]) -> String {
    let show = |(n, t): &(String, Tensor)| format!("{n}: {}{:?}", t.dtype(), t.shape());
    tensors.iter().map(show).collect::<Vec<_>>().join(", ")
}

/// Smallest, mean and largest element, integers without decimals; the numbers of NaN and infinite
/// elements, if there are any. The mean is over the finite elements.
fn summary(t: &Tensor) -> String {
    let values = t.to_f64();
    let numbers = || values.iter().copied().filter(|v| !v.is_nan());
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let (nan, infinite) = (values.len() - numbers().count(), numbers().count() - finite().count());
    let (low, high) = (numbers().reduce(f64::min), numbers().reduce(f64::max));
    let shown = |v: f64| if t.dtype().is_float() { number(v) } else { format!("{v:.0}") };
    let (Some(low), Some(high)) = (low, high) else {
        return if nan == 0 { "no elements".to_string() } else { format!("all {nan} elements are NaN") };
    };
    let mut parts = vec![format!("min {}", shown(low))];
    if finite().next().is_some() {
        parts.push(format!("mean {}", number(finite().sum::<f64>() / finite().count() as f64)));
    }
    parts.push(format!("max {}", shown(high)));
    let counted = [(nan, "NaN"), (infinite, "infinite")];
    parts.extend(counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    parts.join(", ")
}

fn number(v: f64) -> String {
    if v != 0.0 && !(1e-3..1e6).contains(&v.abs()) { format!("{v:.4e}") } else { format!("{v:.6}") }
}

/// The median time of several runs, and their number.
fn median(mut run: impl FnMut() -> Result<Vec<Tensor>>) -> Result<(Duration, usize)> {
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < TIMED_RUNS && (times.is_empty() || started.elapsed() < TIMED_FOR) {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], times.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hypatia_dsl::dtype::DType;

    #[test]
    fn summaries_tell_what_is_no_number_apart() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let cases: [(&[f64], &str); 7] = [
            (&[], "no elements"),
            (&[1.0, 2.0, 6.0], "min 1.000000, mean 3.000000, max 6.000000"),
            (&[nan, nan], "all 2 elements are NaN"),
            (&[nan, 2.0, 4.0], "min 2.000000, mean 3.000000, max 4.000000, 1 NaN"),
            (&[-inf, 2.0, 4.0], "min -inf, mean 3.000000, max 4.000000, 1 infinite"),
            (&[inf, -inf], "min -inf, max inf, 2 infinite"),
            (&[nan, inf], "min inf, max inf, 1 NaN, 1 infinite"),
        ];
        for (values, wanted) in cases {
            assert_eq!(summary(&Tensor::from_f64(DType::F32, &[values.len()], values).unwrap()), wanted);
        }
        let whole = Tensor::from_slice(&[2], &[-568_880i32, 3]).unwrap();
        assert_eq!(summary(&whole), "min -568880, mean -284438.500000, max 3");
        let truths = Tensor::from_f64(DType::Bool, &[2], &[0.0, 1.0]).unwrap();
        assert_eq!(summary(&truths), "min 0, mean 0.500000, max 1");
    }
}
