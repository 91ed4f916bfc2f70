//! `hypatia opt`: prints or exports the optimised model, or the model at an earlier stage.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hypatia_graph::Graph;
use hypatia_onnx::export;
use hypatia_optimize::{Options, Report};
use hypatia_pipeline as pipeline;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::file;
use serde_json::json;

use super::inputs::{has_f16, must_be_right, warn_if_wrong};
use super::model::{ModelOptions, tell_assumed};
use super::output::write_stdout;
use super::{Exit, Global};

/// Optimise a model and print the result of each stage, or write it as an ONNX model.
///
/// Prints the graph on stdout, one line per node, then the optimised bodies of ops that run as
/// several launches, and a summary on stderr. -o writes the graph to a
/// file as an ONNX model that any runtime can run: fused kernels become model-local functions whose
/// bodies are standard ops. `hypatia explain MODEL` shows which rules fired where. If you add rules
/// of your own, both graphs are run once on random inputs; if their results differ, nothing is
/// written, and without -o there is a warning.
#[derive(Args)]
pub struct Opt {
    /// The model.
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    #[command(flatten)]
    options: ModelOptions,
    /// Write the graph to this file as an ONNX model instead of printing it.
    #[arg(short, long, value_name = "FILE.onnx", conflicts_with_all = ["format", "json"])]
    output: Option<PathBuf>,
    /// The graph to print: as imported, with defined ops replaced by their bodies, or optimised; or
    /// the launches that run on the target.
    #[arg(long, value_enum, default_value_t = Stage::Optimized)]
    stage: Stage,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Text, conflicts_with = "json")]
    format: Format,
    /// Print the graph and the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A stage of the way from a model to its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// As imported.
    Imported,
    /// Defined ops replaced by their bodies: what enters the e-graph.
    Inlined,
    /// Optimised by the rules.
    Optimized,
    /// The launches of its plan, in order.
    Plan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line per node.
    Text,
    /// Graphviz.
    Dot,
}

impl Opt {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        if let Some(path) = &self.output {
            file::check(path, &self.options.files(&self.model))?;
        }
        if self.stage == Stage::Plan && (self.output.is_some() || self.format == Format::Dot) {
            return Err(Error::Input(
                "a plan is printed as text or JSON: --stage plan takes neither -o nor dot".into(),
            ));
        }
        let (graph, options) = self.options.load(&self.model)?;
        let (graph, report) = match self.stage {
            Stage::Imported => (graph, None),
            Stage::Inlined => (graph.inlined()?, None),
            Stage::Optimized | Stage::Plan => {
                let own = !self.options.rules.is_empty() && !options.no_rules;
                match self.output.is_some() {
                    // Rules that combine constants may leave the range of f16, which is narrow.
                    true if own || has_f16(&graph) => {
                        must_be_right(&graph, &options, self.options.memory, global.quiet)?
                    }
                    false if own => warn_if_wrong(&graph, &options, self.options.memory, global.quiet)?,
                    _ => {}
                }
                let mut out = pipeline::optimize(&graph, &options)?;
                if let Some(memory) = self.options.memory.bytes() {
                    pipeline::must_fit(&out.graph, &options, memory)?;
                }
                pipeline::count_launches(&mut out, &graph, &options);
                (out.graph, Some(out.report))
            }
        };
        if let Some(report) = report.as_ref().filter(|_| !global.quiet) {
            summarise(report);
        }
        match &self.output {
            Some(path) => self.export(&graph, path, global)?,
            None if self.stage == Stage::Plan => write_stdout(&self.launches(&graph, &options, report.as_ref())?),
            None => write_stdout(&self.show(&graph, report.as_ref())),
        }
        tell_assumed(self.options.target.as_deref(), &options.device, global.quiet || report.is_none());
        Ok(Exit::Ok)
    }

    /// Writes the graph as a model, and prints what it contains.
    fn export(&self, graph: &Graph, path: &Path, global: &Global) -> Result<()> {
        let export = pipeline::export(graph)?;
        let calls: usize = export.fusions.iter().map(|f| f.calls).sum();
        let functions = export.fusions.len();
        let files = export::write(export.model, path)?;
        if !global.quiet {
            let files: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
            anstream::eprintln!(
                "wrote {}: {functions} fusions as functions, called {calls} times",
                files.join(" and ")
            );
        }
        Ok(())
    }

    /// The launches of the plan, one line each.
    fn launches(&self, graph: &Graph, options: &Options, report: Option<&Report>) -> Result<String> {
        let list = pipeline::launch_list(graph, &pipeline::planned_as(options))?;
        Ok(match self.json {
            true => format!("{:#}\n", json!({ "steps": list, "report": report })),
            false => list.into_iter().map(|line| line + "\n").collect(),
        })
    }

    fn show(&self, graph: &Graph, report: Option<&Report>) -> String {
        if self.json {
            return format!("{:#}\n", json!({ "graph": graph.to_json(), "report": report }));
        }
        match self.format {
            Format::Text => graph.to_text() + &graph.bodies_to_text(),
            Format::Dot => graph.to_dot(),
        }
    }
}

fn summarise(report: &Report) {
    let (b, a) = (&report.before, &report.after);
    let launches = report.launches.map_or(String::new(), |l| format!("launches {} -> {}, ", l.before, l.after));
    anstream::eprintln!(
        "{launches}ops {} -> {}, cost {:.1} -> {:.1} us on {} (estimated), in {:.0} ms",
        b.ops,
        a.ops,
        b.micros,
        a.micros,
        report.device,
        report.millis
    );
    for w in &report.warnings {
        anstream::eprintln!("warning: {w}");
    }
}
