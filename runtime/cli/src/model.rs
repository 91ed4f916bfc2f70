//! What the commands that take a model share: options, loading, sizes.
//!
//! In: arguments. Out: a graph, and the optimiser's options. Invariant: an option has the same name
//! in every command; an unknown target, rule or size is an error that lists the known ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hypatia::session::{self, Safety};
use hypatia_dsl::ir::{Clause, Contract, Program};
use hypatia_dsl::numerics::Numerics;
use hypatia_graph::Graph;
use hypatia_library as library;
use hypatia_onnx::import;
use hypatia_optimize::Options;
use hypatia_optimize::explain::no_such_rule;
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::npz;

use super::device::{CostOptions, MemoryOptions, Precision};
use super::output::warning;

/// Which rules may fire.
#[derive(Args, Clone, Debug, Default)]
pub struct RuleOptions {
    /// Disable a rule, a family of rules (fuse::unary) or a ruleset; can be given several times.
    #[arg(long, value_name = "RULE")]
    pub disable: Vec<String>,
    /// Which rules may fire: `exact`, so that results are bit for bit those without rules;
    /// `rounds`, which round differently but as precisely (the default; also approximations that
    /// rounding the result hides); `fast`, all that are only approximately right (`class approx`)
    /// too.
    #[arg(long, value_name = "exact|rounds|fast", value_parser = numerics)]
    pub numerics: Option<Numerics>,
    /// Rewrite greedily, rule by rule in the order of the files, instead of with an e-graph: to see
    /// what that loses.
    #[arg(long)]
    pub greedy: bool,
    /// Give each row the same bits, however many rows stand beside it, where their number is a
    /// dynamic size of the model.
    #[arg(long)]
    pub batch_invariant: bool,
}

/// The fusions that the plan must have, and those that it must not.
#[derive(Args, Clone, Debug, Default)]
pub struct ContractOptions {
    /// A rule (fuse::unary[relu]), family or ruleset that must have a site in the plan, as part of
    /// one launch; `RULE count = N` for exactly N sites, `RULE at NODE` for one at a node of the
    /// model. Otherwise the command fails and says why not. Can be given several times.
    #[arg(long, value_name = "RULE", value_parser = Clause::must)]
    pub must: Vec<Clause>,
    /// A rule, family or ruleset that must have no site: it does not fire. Can be given several
    /// times.
    #[arg(long, value_name = "RULE")]
    pub never: Vec<String>,
    /// Only this `contract` of the files given with --rules; by default all of them hold. Can be
    /// given several times.
    #[arg(long, value_name = "NAME", requires = "rules")]
    pub contract: Vec<String>,
}

impl ContractOptions {
    /// The clauses that hold: those of the command line, and those of the contracts in these files.
    pub fn clauses(&self, program: &Program, rules: &[PathBuf]) -> Result<Vec<Clause>> {
        let files: Vec<String> = rules.iter().map(|p| p.display().to_string()).collect();
        let mut contracts: Vec<&Contract> =
            program.contracts.iter().filter(|c| files.contains(&c.origin.file)).collect();
        if let Some(name) = self.contract.iter().find(|n| !contracts.iter().any(|c| c.name == **n)) {
            let known: Vec<&str> = contracts.iter().map(|c| c.name.as_str()).collect();
            let known = if known.is_empty() { "no contract".to_string() } else { known.join(", ") };
            return Err(Error::Input(format!("--contract: the files of --rules have no `{name}`; they have {known}")));
        }
        contracts.retain(|c| self.contract.is_empty() || self.contract.contains(&c.name));
        let written = contracts.into_iter().flat_map(|c| c.clauses.iter().cloned());
        let given = self.must.iter().cloned().chain(self.never.iter().map(|rule| Clause::never(rule)));
        Ok(written.chain(given).collect())
    }

    /// True if nothing is demanded on the command line.
    pub fn is_empty(&self) -> bool {
        self.must.is_empty() && self.never.is_empty()
    }
}

impl RuleOptions {
    /// Writes this into the optimiser's options. `--disable` must name something in the program.
    pub fn apply(&self, program: &Program, options: &mut Options) -> Result<()> {
        for name in &self.disable {
            let known = program.rules.iter().any(|r| r.is_named(program, name))
                || program.rulesets.iter().any(|r| r.name == *name);
            if !known {
                return Err(Error::Input(format!("--disable: {}", no_such_rule(program, name))));
            }
        }
        options.numerics = self.numerics.unwrap_or_default();
        options.greedy = self.greedy;
        options.batch_invariant = self.batch_invariant;
        options.disabled = self.disable.iter().cloned().collect();
        Ok(())
    }
}

/// How far plans are trusted.
#[derive(Args, Clone, Debug, Default)]
pub struct SafetyOptions {
    /// How far plans are trusted. `check`: a new plan is compared once with the unfused one (the
    /// default). `strict`: products are checked by checksums in every run, and one run in 32 as a
    /// whole (on a GPU fewer); what is wrong is computed again, named, and not used again. `off`:
    /// nothing is compared (the default with --no-rules).
    #[arg(long, value_name = "strict|check|off", value_parser = safety)]
    pub safety: Option<Safety>,
    /// The folder for graphs of at most 20 nodes that show what was wrong with a plan (with
    /// `check`, on the CPU only).
    #[arg(long, value_name = "DIR")]
    pub incidents: Option<PathBuf>,
}

impl SafetyOptions {
    /// The mode, for a model that runs with rules or without.
    pub fn mode(&self, no_rules: bool) -> Safety {
        self.safety.unwrap_or(if no_rules { Safety::Off } else { Safety::Check })
    }

    /// Writes this into the options of a model that runs with rules or without.
    pub fn apply(&self, no_rules: bool, options: &mut session::Options) {
        options.safety = self.mode(no_rules);
        options.incidents.clone_from(&self.incidents);
    }
}

fn safety(text: &str) -> Result<Safety, String> {
    text.parse().map_err(|_| "expected `strict`, `check` or `off`".to_string())
}

fn numerics(text: &str) -> Result<Numerics, String> {
    Numerics::named(text).ok_or_else(|| "expected `exact`, `rounds` or `fast`".to_string())
}

/// What the nodes of custom domains mean.
#[derive(Args, Clone, Debug, Default)]
pub struct Domains {
    /// A file whose ops are what the nodes of a custom ONNX domain mean, each by its name, such as
    /// com.acme=acme.hyp. Its rules take part as with --rules. Can be given several times.
    #[arg(long, value_name = "DOMAIN=FILE.hyp", value_parser = domain)]
    pub domain: Vec<(String, PathBuf)>,
}

impl Domains {
    /// The library, these files and those of the domains.
    pub fn program(&self, rules: &[PathBuf]) -> Result<Arc<Program>> {
        library::load_with_domains(rules, &self.domain)
    }
}

fn domain(text: &str) -> Result<(String, PathBuf), String> {
    let (domain, file) = text.split_once('=').ok_or("expected a domain and a file, such as com.acme=acme.hyp")?;
    Ok((domain.trim().to_string(), PathBuf::from(file)))
}

/// Numbers for the dynamic sizes of a model.
#[derive(Args, Clone, Debug, Default)]
pub struct Sizes {
    /// The value of a dynamic size of the model, such as batch=8; can be given several times. By
    /// default the size stays dynamic, except for `run` (1, if there are no inputs) and `gen` (8).
    #[arg(long, alias = "size", value_name = "NAME=N", value_parser = size)]
    pub dim: Vec<(String, i64)>,
}

fn size(text: &str) -> Result<(String, i64), String> {
    let wrong = || "expected a name and a size, such as batch=8".to_string();
    let (name, size) = text.split_once('=').ok_or_else(wrong)?;
    let size: i64 = size.trim().parse().map_err(|_| wrong())?;
    if size < 0 { Err("a size must be at least 0".into()) } else { Ok((name.trim().into(), size)) }
}

impl Sizes {
    /// The model as a graph with these sizes bound. Prints what is odd about the model's file.
    pub fn load(&self, model: &Path, program: Arc<Program>) -> Result<Graph> {
        self.load_for(model, program, &[])
    }

    /// [`Sizes::load`], with the sizes of these inputs bound too, which must agree.
    pub fn load_for(&self, model: &Path, program: Arc<Program>, inputs: &[(String, Tensor)]) -> Result<Graph> {
        self.agree(model, &program, inputs)?;
        let import = self.import(model, program, inputs)?;
        import.warnings.iter().for_each(|w| warning(w));
        Ok(import.graph)
    }

    fn import(&self, model: &Path, program: Arc<Program>, inputs: &[(String, Tensor)]) -> Result<import::Import> {
        let mut dims = BTreeMap::new();
        for (name, value) in &self.dim {
            if let Some(before) = dims.insert(name.clone(), *value).filter(|b| b != value) {
                return Err(Error::Input(format!("--dim {name}: both {before} and {value} are given")));
            }
        }
        let shapes = inputs.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
        let options = import::Options { dims, shapes, ..import::Options::default() };
        hypatia_pipeline::load(model, program, &options)
    }

    /// Inputs determine the sizes: sizes given in addition must agree.
    fn agree(&self, model: &Path, program: &Arc<Program>, inputs: &[(String, Tensor)]) -> Result<()> {
        if self.dim.is_empty() || inputs.is_empty() {
            return Ok(());
        }
        let named = inputs.iter().cloned().collect();
        let bound = self.import(model, program.clone(), &[])?.graph.bind_symbols(&named);
        bound.map(|_| ()).map_err(|e| Error::Input(format!("--dim contradicts --inputs: {e}")))
    }
}

/// The device profile of this name.
pub fn device(name: &str) -> Result<Device> {
    Device::named(name).ok_or_else(|| {
        let names: Vec<&str> = Device::names().collect();
        Error::Input(format!("there is no target `{name}`; the targets are {}", names.join(", ")))
    })
}

/// The profile of that name; without a name that of the first GPU of this machine, or `otherwise`.
pub fn assumed(target: Option<&str>, otherwise: &str) -> Result<Device> {
    match target {
        Some(name) => device(name),
        None => hypatia_cuda::profile(0).or_else(|_| device(otherwise)),
    }
}

/// Says which device's costs were assumed, if the user named none.
pub fn tell_assumed(target: Option<&str>, device: &Device, quiet: bool) {
    if target.is_none() && !quiet {
        let (name, figures) = (device.name, device.figures);
        anstream::eprintln!("note: the costs are those of {name}, {figures}; --target names another device");
    }
}

/// Options of the commands that optimise a model without running it.
#[derive(Args, Clone, Debug)]
pub struct ModelOptions {
    /// Rules of your own, in addition to the library's; can be given several times.
    #[arg(long, value_name = "FILE.hyp")]
    pub rules: Vec<PathBuf>,
    #[command(flatten)]
    pub domains: Domains,
    /// The device whose cost model is used, by its profile (cpu, h200, a100, h100, l40s, rtx4090,
    /// b200); by default the first GPU of this machine, or cpu if there is none.
    #[arg(long, value_name = "DEVICE")]
    pub target: Option<String>,
    #[command(flatten)]
    pub costs: CostOptions,
    #[command(flatten)]
    pub memory: MemoryOptions,
    #[command(flatten)]
    pub sizes: Sizes,
    /// Take the dynamic sizes from the arrays in this file, for a model that cannot be imported
    /// without them.
    #[arg(long, value_name = "FILE.npz")]
    pub inputs: Option<PathBuf>,
    /// What products of f32 are computed in.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub precision: Precision,
    #[command(flatten)]
    pub firing: RuleOptions,
    #[command(flatten)]
    pub contract: ContractOptions,
    /// Disable all rules.
    #[arg(long, conflicts_with_all = ["must", "never", "contract"])]
    pub no_rules: bool,
}

impl ModelOptions {
    /// The model as a graph in the precision that is asked for, and the optimiser's options; only
    /// the given sizes are bound.
    pub fn load(&self, model: &Path) -> Result<(Graph, Options)> {
        must_be_model(model)?;
        let program = self.domains.program(&self.rules)?;
        let graph = match &self.inputs {
            None => self.sizes.load(model, program)?,
            Some(path) => self.sizes.load_for(model, program, &npz::read(path)?)?,
        };
        let options = self.options(&graph)?;
        self.precision.of_graph(graph, options)
    }

    /// The files that the command reads.
    pub fn files<'a>(&'a self, model: &'a Path) -> Vec<&'a Path> {
        let files = self.domains.domain.iter().map(|(_, file)| file);
        let others = self.inputs.iter().chain(&self.rules).chain(files).map(PathBuf::as_path);
        std::iter::once(model).chain(others).collect()
    }

    /// The optimiser's options.
    fn options(&self, graph: &Graph) -> Result<Options> {
        let mut options = Options {
            device: self.costs.of(assumed(self.target.as_deref(), "cpu")?)?,
            no_rules: self.no_rules,
            ..Options::default()
        };
        self.firing.apply(&graph.program, &mut options)?;
        if !self.no_rules {
            options.contract = self.contract.clauses(&graph.program, &self.rules)?;
        }
        Ok(options)
    }
}

/// Fails before any other work for a file that is missing, or whose name shows that it is not a
/// model.
pub fn must_be_model(path: &Path) -> Result<()> {
    if path.extension().is_some_and(|e| e == "hyp") {
        let p = path.display();
        return Err(Error::Input(format!(
            "{p} is a .hyp file, not a model: check it with `hypatia check {p}`, or add it to a model with `--rules \
             {p}`"
        )));
    }
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Io { path: path.to_path_buf(), source }),
    }
}
