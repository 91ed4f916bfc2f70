//! What the commands that take a model share: options, loading, sizes.
//!
//! In: arguments. Out: a graph, and the optimiser's options. Holds always: an unknown target, rule or size is an
//! error that lists what there is.

use std::path::{Path, PathBuf};

use clap::Args;
use hypatia::device::Device;
use hypatia::error::{Error, Result};
use hypatia::graph::{Graph, Symbols, import};
use hypatia::library;
use hypatia::optimize::Options;

/// Options of the commands that optimise a model without running it.
#[derive(Args, Clone, Debug)]
pub struct ModelOptions {
    /// Rules of your own, beside the library's; may be given several times.
    #[arg(long, value_name = "FILE.hyp")]
    pub rules: Vec<PathBuf>,
    /// The device whose costs decide: h200, a100 or cpu.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub target: String,
    /// The number for a dynamic size of the model, such as batch=8; may be given several times.
    #[arg(long, value_name = "NAME=N")]
    pub dim: Vec<String>,
    /// Leave out a rule, a family of rules (fuse::unary) or a ruleset; may be given several times.
    #[arg(long, value_name = "RULE")]
    pub disable: Vec<String>,
    /// Allow rules that only claim to be approximately right.
    #[arg(long)]
    pub approx: bool,
    /// Fire no rule.
    #[arg(long)]
    pub no_rules: bool,
}

impl ModelOptions {
    /// The model as a graph, its sizes filled in as far as they were given.
    pub fn load(&self, model: &Path) -> Result<Graph> {
        let program = library::load(&self.rules)?;
        let graph = import::load(model, program)?;
        if self.dim.is_empty() {
            return Ok(graph);
        }
        let known = graph.symbols();
        let mut symbols = Symbols::new();
        for given in &self.dim {
            let parsed = given.split_once('=').and_then(|(n, v)| Some((n.trim(), v.trim().parse::<i64>().ok()?)));
            let Some((name, value)) = parsed.filter(|(_, v)| *v >= 0) else {
                return Err(Error::Input(format!("--dim takes NAME=NUMBER, such as batch=8, not `{given}`")));
            };
            let Some(symbol) = known.iter().find(|s| s.as_ref() == name) else {
                let names: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
                let have = if names.is_empty() { "none".to_string() } else { names.join(", ") };
                return Err(Error::Input(format!("the model has no dynamic size `{name}`; it has {have}")));
            };
            symbols.insert(symbol.clone(), value);
        }
        graph.specialize(&symbols)
    }

    /// The optimiser's options. `--disable` must name something of the graph's program.
    pub fn options(&self, graph: &Graph) -> Result<Options> {
        let Some(device) = Device::named(&self.target) else {
            let names: Vec<&str> = Device::names().collect();
            return Err(Error::Input(format!("there is no target `{}`; there are {}", self.target, names.join(", "))));
        };
        let program = &graph.program;
        for name in &self.disable {
            let known = program.rules.iter().any(|r| r.name == *name || r.base_name == *name)
                || program.rulesets.iter().any(|r| r.name == *name);
            if !known {
                return Err(Error::Input(format!("there is no rule and no ruleset `{name}`")));
            }
        }
        Ok(Options {
            device,
            approx: self.approx,
            no_rules: self.no_rules,
            disabled: self.disable.iter().cloned().collect(),
            ..Options::default()
        })
    }
}
