//! `hypatia gen`: CUDA kernels, machine code and Rust from `.hyp` files or a model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anstream::eprintln;
use clap::{Args, ValueEnum};
use hypatia_cuda::generate::{ChoiceEntry, PlanKernels, Request, Scope, Written, of_plan, of_program, write};
use hypatia_cuda::nvrtc::Nvrtc;
use hypatia_cuda::tuning::TuningFile;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_emit as rust;
use hypatia_graph::Symbols;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_plan::Plan;
use hypatia_tensor::error::{Error, Result};

use super::device::{CostOptions, MemoryOptions, Precision};
use super::inputs::must_be_right;
use super::model::{Domains, RuleOptions, Sizes, assumed, must_be_model, tell_assumed};
use super::output::write_stdout;
use super::{Exit, Global};

/// Generate CUDA kernels, machine code or Rust.
///
/// Writes one CUDA C++ file for each kernel and element type, machine code for each architecture if
/// NVRTC is installed (no GPU is needed), and manifest.json, which says how to call each kernel.
/// From a .hyp file it generates every `kernel` that the file declares and a pointwise kernel for
/// every `scalar` that it defines; from a model, the kernels that its plan launches, except library
/// calls. Kernels that an earlier run left in the folder, according to its manifest.json, are
/// removed.
#[derive(Args)]
pub struct Gen {
    /// The .hyp files; by default the standard library. With --model, additional rules.
    #[arg(value_name = "FILE.hyp")]
    files: Vec<PathBuf>,
    /// The folder to write to; it is created if it does not exist.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Generate the kernels of this model's plan instead, in the model's element types.
    #[arg(long, value_name = "MODEL.onnx")]
    model: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    firing: RuleOptions,
    #[command(flatten)]
    domains: Domains,
    /// The device profile to plan the model for; by default that of the first GPU of this machine,
    /// or h200 if there is none.
    #[arg(long, value_name = "DEVICE", requires = "model")]
    target: Option<String>,
    /// What products of f32 are computed in.
    #[arg(long, value_enum, default_value_t = Precision::F32, requires = "model")]
    precision: Precision,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    memory: MemoryOptions,
    /// Write the kernels that were measured to be the fastest, as this file of `hypatia tune` says;
    /// by default hypatia.tune beside the model, if it exists. What it does not name, and all
    /// without a file, is what is predicted to be the fastest.
    #[arg(long, value_name = "FILE", requires = "model")]
    tuning: Option<PathBuf>,
    /// Element types of the kernels generated from .hyp files.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "f32,f16,bf16", value_parser = dtype)]
    dtype: Vec<DType>,
    /// GPU architectures to compile for.
    #[arg(long, value_name = "ARCHS", value_delimiter = ',', default_value = "sm_90a,sm_80", value_parser = arch)]
    arch: Vec<String>,
    /// What to write; by default CUDA, and machine code if NVRTC is installed.
    #[arg(long, value_delimiter = ',', value_enum)]
    emit: Vec<Emit>,
}

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// CUDA C++ sources.
    Cuda,
    /// Machine code; an error if NVRTC is not installed.
    Cubin,
    /// Launchers beside the sources and the machine code: for each kernel a C header (driver API)
    /// and a Python module (PyTorch).
    Launcher,
    /// The module that `hypatia_rules!` generates from the files, as rules.rs.
    Rust,
}

fn dtype(text: &str) -> Result<DType, String> {
    let known: Vec<DType> = DType::ALL.into_iter().filter(|d| *d != DType::Bool && !d.only_stored()).collect();
    let names: Vec<&str> = known.iter().map(|d| d.name()).collect();
    let found = DType::from_name(text).filter(|d| known.contains(d));
    found.ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// Architectures that a release of CUDA 12 or 13 compiles for, from the first that has the
/// instructions that the kernels use (a maximum that propagates NaN). Those from 9.0 on have `a`
/// variants and those from 10.0 on `f` variants.
const ARCHS: [u32; 12] = [80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121];

fn arch(text: &str) -> Result<String, String> {
    let is = |n: u32| {
        let rest = text.strip_prefix("sm_").and_then(|t| t.strip_prefix(&n.to_string()));
        rest.is_some_and(|r| r.is_empty() || n >= 90 && r == "a" || n >= 100 && r == "f")
    };
    if ARCHS.into_iter().any(is) {
        return Ok(text.into());
    }
    let number: Option<u32> = text.strip_prefix("sm_").and_then(|n| n.parse().ok());
    if number.is_some_and(|n| (50..ARCHS[0]).contains(&n)) {
        return Err(format!(
            "the oldest supported architecture is sm_{}: the kernels use instructions that {text} \
            lacks",
            ARCHS[0]
        ));
    }
    let names: Vec<String> = ARCHS.into_iter().map(|n| format!("sm_{n}")).collect();
    Err(format!(
        "unknown architecture; the known ones are {}, from sm_90 on also with `a`, from sm_100 on also with `f`",
        names.join(", ")
    ))
}

/// Removes duplicates; keeps the first occurrence of each.
fn distinct<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut out: Vec<T> = Vec::new();
    list.iter().for_each(|x| {
        if !out.contains(x) {
            out.push(x.clone());
        }
    });
    out
}

/// What the user should know of what was written, and of what was not.
fn notes(written: &Written, kernels: bool) -> Vec<String> {
    let manifest = &written.manifest;
    let mut notes = Vec::new();
    for s in &manifest.skipped {
        let dtype = s.dtype.as_deref().map_or(String::new(), |d| format!(" for {d}"));
        notes.push(format!("cannot generate `{}`{dtype}: {}", s.kernel, s.reason));
    }
    for c in &manifest.choices {
        let kernels = c.kernels.join("; ");
        notes.push(format!("sizes that are not known decide the kernel of {}: {kernels}", c.node));
    }
    let removed = written.removed.iter();
    notes.extend(removed.map(|f| format!("removed {}: it is no longer generated", f.display())));
    if kernels && manifest.kernels.is_empty() && !manifest.steps.is_empty() {
        notes.push("each step of the plan is a library call: there is no kernel to write (`steps` lists them)".into());
    } else if kernels && manifest.kernels.is_empty() && manifest.skipped.is_empty() {
        notes.push(
            "nothing here asks for a kernel by itself: declare a `kernel` or a `scalar`. What rules fuse has its \
             kernels where it is found: `hypatia gen --model MODEL.onnx FILE.hyp`"
                .into(),
        );
    }
    notes
}

impl Gen {
    /// Fails if options that speak of a model's plan stand without a model.
    fn check_options(&self) -> Result<()> {
        if self.model.is_none()
            && (!self.sizes.dim.is_empty()
                || self.firing.numerics.is_some()
                || !self.firing.disable.is_empty()
                || self.memory.memory.is_some()
                || self.costs.costs.is_some()
                || !self.domains.domain.is_empty())
        {
            let options = "--dim, --numerics, --disable, --costs, --domain and --memory";
            return Err(Error::Input(format!("{options} apply to a model's plan: add --model")));
        }
        Ok(())
    }

    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let say = !global.quiet;
        self.check_options()?;
        let program = self.domains.program(&self.files)?;
        let scope = match self.files.is_empty() {
            true => Scope::All,
            false => Scope::Files(self.files.iter().map(|f| f.display().to_string()).collect()),
        };
        let dtypes = distinct(&self.dtype);
        let more = match self.emit.contains(&Emit::Rust) {
            true => vec![("rules.rs".to_string(), self.module(&program, &scope, &dtypes)?)],
            false => Vec::new(),
        };
        let kernels = self.emit.is_empty() || self.emit.iter().any(|e| *e != Emit::Rust);
        let (mut choices, mut device) = (Vec::new(), None);
        let PlanKernels { instances, skipped, steps } = match &self.model {
            _ if !kernels => PlanKernels::default(),
            Some(model) => {
                let (plan, open) = self.plan(model, &program, global.quiet)?;
                choices = open;
                device = Some(plan.device.clone());
                let tuning = self.tuning.clone().or_else(|| TuningFile::beside(model));
                let tuning = tuning.map(|path| TuningFile::read(&path)).transpose()?;
                of_plan(&plan, tuning.as_ref())
            }
            None => {
                let (instances, skipped) = of_program(&program, &scope, &dtypes);
                PlanKernels { instances, skipped, steps: Vec::new() }
            }
        };
        let nvrtc = if kernels { self.compiler(global)? } else { None };
        let archs = distinct(&self.arch);
        let progress = move |done: usize, all: usize| {
            if say && (done.is_multiple_of(25) || done == all) {
                eprintln!("compiled {done} of {all}");
            }
        };
        let request = Request {
            program: &program,
            instances: &instances,
            skipped,
            steps,
            choices,
            cuda: self.emit.is_empty() || self.emit.iter().any(|e| matches!(e, Emit::Cuda | Emit::Launcher)),
            launchers: self.emit.contains(&Emit::Launcher),
            cubins: nvrtc.as_ref().map(|n| (&**n, &archs[..])),
            folders: &self.folders(),
            more,
            progress: &progress,
        };
        let written = write(request, &self.output)?;
        let mut lines = String::new();
        written.files.iter().for_each(|f| lines.push_str(&format!("{}\n", f.display())));
        write_stdout(&lines);
        if let (Some(device), true) = (&device, kernels) {
            tell_assumed(self.target.as_deref(), device, global.quiet);
        }
        if say {
            notes(&written, kernels).iter().for_each(|note| eprintln!("note: {note}"));
        }
        Ok(Exit::Ok)
    }

    /// The folders of files with absolute paths. Generated files name them relative to the current
    /// folder, or by file name alone, so that the output is the same on every machine.
    fn folders(&self) -> Vec<(String, String)> {
        let here = std::env::current_dir().unwrap_or_default();
        let absolute = self.files.iter().filter(|f| f.is_absolute()).filter_map(|f| f.parent());
        let mut out: Vec<(String, String)> = Vec::new();
        for folder in absolute.filter(|f| f.parent().is_some()) {
            let instead = folder.strip_prefix(&here).map_or(String::new(), |f| f.display().to_string());
            let instead = if instead.is_empty() { instead } else { instead + "/" };
            out.push((format!("{}/", folder.display()), instead));
        }
        // Deeper folders first.
        out.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.len()));
        out
    }

    /// The Rust module of the files.
    fn module(&self, program: &Program, scope: &Scope, dtypes: &[DType]) -> Result<String> {
        let stem = self.files.first().and_then(|f| f.file_stem()).map(|s| s.to_string_lossy().into_owned());
        let names: Vec<String> = self.files.iter().map(|f| f.display().to_string()).collect();
        let options = rust::Options {
            module: stem.unwrap_or_else(|| "rules".into()),
            public: true,
            doc: match names.is_empty() {
                true => " The standard library.".into(),
                false => format!(" The rules of `{}`.", names.join("`, `")),
            },
            scope: scope.clone(),
            dtypes: dtypes.to_vec(),
            watch: Vec::new(),
        };
        rust::text(program, &options).map_err(Error::Internal)
    }

    /// The plan of a model with its dynamic sizes bound, and the choices that depend on them.
    fn plan(&self, model: &Path, program: &Arc<Program>, quiet: bool) -> Result<(Plan, Vec<ChoiceEntry>)> {
        must_be_model(model)?;
        let device = self.costs.of(assumed(self.target.as_deref(), "h200")?)?;
        let graph = self.sizes.load(model, program.clone())?;
        let mut options = optimize::Options { device: device.clone(), ..optimize::Options::default() };
        self.firing.apply(program, &mut options)?;
        let (graph, options) = self.precision.of_graph(graph, options)?;
        let device = options.device.clone();
        let symbols = graph.symbols();
        // A run optimises the model on its sizes, and so does the plan below.
        let open = match symbols.is_empty() {
            true => Vec::new(),
            false => pipeline::optimize(&graph, &options)?.report.undecided,
        };
        let choices = open.into_iter().map(|o| ChoiceEntry { node: o.node, kernels: o.kernels }).collect();
        let sizes: Symbols = symbols.into_iter().map(|s| (s, 8)).collect();
        let graph = graph.specialize(&sizes)?;
        if !self.files.is_empty() {
            must_be_right(&graph, &options, self.memory, quiet)?;
        }
        let optimized = pipeline::optimize(&graph, &options)?;
        // Nothing is run: memory is a limit only if one is given.
        let memory = self.memory.bytes().unwrap_or(usize::MAX);
        let plan = plan::Options { allowed: options.allowed(), memory, ..plan::Options::new(device) };
        Ok((pipeline::plan(&optimized.graph, &plan)?, choices))
    }

    /// NVRTC, if machine code is wanted; its absence is an error only if machine code was requested
    /// explicitly.
    fn compiler(&self, global: &Global) -> Result<Option<Arc<Nvrtc>>> {
        let wanted = |e: &Emit| matches!(e, Emit::Cubin | Emit::Launcher);
        if !self.emit.is_empty() && !self.emit.iter().any(wanted) {
            return Ok(None);
        }
        match Nvrtc::get() {
            Ok(n) => Ok(Some(n)),
            Err(e) if self.emit.contains(&Emit::Cubin) => Err(Error::from(e)),
            Err(_) => {
                if !global.quiet {
                    eprintln!(
                        "note: NVRTC is not installed: wrote CUDA sources only (`hypatia doctor` shows where it was \
                         searched)"
                    );
                }
                Ok(None)
            }
        }
    }
}
