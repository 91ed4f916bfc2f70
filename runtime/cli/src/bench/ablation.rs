//! `hypatia bench --ablation`: what rules gain, and what the e-graph gains over greedy rewriting.
//!
//! In: a model. Out: for each way of optimising it, launches, predicted and measured time, and how
//! long optimising takes. Invariant: all ways have the same rules, guards and cost model, and are
//! timed in turn on the same inputs.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use hypatia::session::{Compiled, Model};
use hypatia_dsl::ir::Program;
use hypatia_pipeline as pipeline;
use hypatia_tensor::error::Result;
use serde_json::json;
use std::sync::Arc;

use super::super::inputs::load_random;
use super::super::model::must_be_model;
use super::super::output::write_stdout;
use super::super::{Exit, Global};
use super::{Bench, Variant, ms};

/// A way of optimising: its name, whether no rule fires, whether rewriting is greedy.
const WAYS: [(&str, bool, bool); 3] =
    [("without rules", true, false), ("greedy, in file order", false, true), ("e-graph", false, false)];

/// One way, and what came of it.
struct Row {
    name: &'static str,
    optimising: Duration,
    compiled: Arc<Compiled>,
}

impl Row {
    fn launches(&self) -> usize {
        self.compiled.executor.plan().launches()
    }

    /// Microseconds of the plan's steps, as the device's profile predicts them.
    fn predicted(&self) -> f64 {
        self.compiled.executor.plan().predicted() * 1e6
    }
}

impl Bench {
    /// Optimises and times a model in each way.
    pub(super) fn ablate(&self, path: &Path, global: &Global) -> Result<Exit> {
        must_be_model(path)?;
        let program = self.domains.program(&self.rules)?;
        let mut rows = Vec::new();
        let mut inputs = Vec::new();
        for (name, no_rules, greedy) in WAYS {
            let (row, given) = self.way(path, &program, (name, no_rules, greedy))?;
            inputs = given;
            for warning in row.compiled.warnings().iter().filter(|_| !global.quiet) {
                anstream::eprintln!("warning: {name}: {warning}");
            }
            rows.push(row);
        }
        let variants = rows.iter().map(|row| Variant::new(row.name, &row.compiled.executor, &inputs));
        let variants = self.interleaved(variants.collect::<Result<_>>()?, &inputs, self.duration.unwrap_or(1.0))?;
        write_stdout(&match self.json {
            true => format!("{:#}\n", to_json(path, &rows, &variants)),
            false => to_text(path, &rows, &variants),
        });
        Ok(Exit::Ok)
    }

    fn way(
        &self,
        path: &Path,
        program: &Arc<Program>,
        (name, no_rules, greedy): (&'static str, bool, bool),
    ) -> Result<(Row, Vec<hypatia_tensor::Tensor>)> {
        let (mut options, _) = self.options(program)?;
        (options.optimize.no_rules, options.optimize.greedy) = (no_rules, greedy);
        let how = options.optimize.clone();
        let (model, inputs, _) = load_random(path, program.clone(), options, &self.sizes, self.seed.unwrap_or(0))?;
        let begun = Instant::now();
        pipeline::optimize(model.graph(), &how)?;
        let optimising = begun.elapsed();
        let (compiled, ordered) = compile(&model, &inputs)?;
        Ok((Row { name, optimising, compiled }, ordered))
    }
}

fn compile(
    model: &Model,
    inputs: &[(String, hypatia_tensor::Tensor)],
) -> Result<(Arc<Compiled>, Vec<hypatia_tensor::Tensor>)> {
    Ok((model.compile(inputs)?, model.order(inputs)?))
}

fn to_text(path: &Path, rows: &[Row], variants: &[Variant<'_>]) -> String {
    let mut text = format!("model      {}\n", path.display());
    let _ = writeln!(
        text,
        "{:<22} {:>8} {:>12} {:>12} {:>13}",
        "", "launches", "predicted us", "measured us", "optimising ms"
    );
    for (row, variant) in rows.iter().zip(variants) {
        let measured = variant.quantile(0.5).as_secs_f64() * 1e6;
        let optimising = ms(row.optimising);
        let (name, launches, predicted) = (row.name, row.launches(), row.predicted());
        let _ = writeln!(text, "{name:<22} {launches:>8} {predicted:>12.1} {measured:>12.1} {optimising:>13.1}");
    }
    text
}

fn to_json(path: &Path, rows: &[Row], variants: &[Variant<'_>]) -> serde_json::Value {
    let row = |(row, variant): (&Row, &Variant<'_>)| {
        json!({
            "way": row.name,
            "launches": row.launches(),
            "predicted_us": row.predicted(),
            "measured_us": variant.quantile(0.5).as_secs_f64() * 1e6,
            "optimising_ms": row.optimising.as_secs_f64() * 1e3,
            "refused": row.compiled.refusal.is_some(),
        })
    };
    json!({"model": path.display().to_string(), "ways": rows.iter().zip(variants).map(row).collect::<Vec<_>>()})
}
