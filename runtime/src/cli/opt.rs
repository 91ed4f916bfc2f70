//! `hypatia opt`: a model as the optimiser leaves it, or as it was at an earlier stage.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hypatia::error::Result;
use hypatia::graph::Graph;
use hypatia::optimize::{Report, optimize};
use serde_json::json;

use super::model::ModelOptions;
use super::output::write_stdout;
use super::{Exit, Global};

/// Optimise a model and print the result of each stage.
///
/// The graph goes to stdout, one line a node; a summary goes to stderr. `hypatia explain MODEL` tells which rules
/// fired where.
#[derive(Args)]
pub struct Opt {
    /// The model.
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    #[command(flatten)]
    options: ModelOptions,
    /// The graph to print: as imported, with defined ops replaced by their bodies, or optimised.
    #[arg(long, value_enum, default_value_t = Stage::Optimized)]
    stage: Stage,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Text, conflicts_with = "json")]
    format: Format,
    /// Print graph and report as JSON.
    #[arg(long)]
    json: bool,
}

/// A stage of the way from a model to its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// As imported.
    Imported,
    /// Defined ops replaced by their bodies: what enters the e-graph.
    Unfolded,
    /// What the rules made of it.
    Optimized,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line a node.
    Text,
    /// Graphviz.
    Dot,
}

impl Opt {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let graph = self.options.load(&self.model)?;
        let options = self.options.options(&graph)?;
        let (graph, report) = match self.stage {
            Stage::Imported => (graph, None),
            Stage::Unfolded => (graph.unfold()?, None),
            Stage::Optimized => {
                let out = optimize(&graph, &options)?;
                (out.graph, Some(out.report))
            }
        };
        if let Some(report) = report.as_ref().filter(|_| !global.quiet) {
            summarise(report);
        }
        write_stdout(&self.show(&graph, report.as_ref()));
        Ok(Exit::Ok)
    }

    fn show(&self, graph: &Graph, report: Option<&Report>) -> String {
        if self.json {
            return format!("{:#}\n", json!({ "graph": graph.to_json(), "report": report }));
        }
        match self.format {
            Format::Text => graph.to_text(),
            Format::Dot => graph.to_dot(),
        }
    }
}

fn summarise(report: &Report) {
    let (b, a) = (&report.before, &report.after);
    anstream::eprintln!(
        "ops {} -> {}, launches {} -> {}, cost {:.1} -> {:.1} us on {} (estimated), in {:.0} ms",
        b.ops,
        a.ops,
        b.launches,
        a.launches,
        b.micros,
        a.micros,
        report.device,
        report.millis
    );
    for w in &report.warnings {
        anstream::eprintln!("warning: {w}");
    }
}
