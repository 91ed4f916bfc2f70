//! A trained digit classifier through the whole pipeline: accuracy, what fused, launches and time
//! with and without the rules.
//!
//! Run it with `./x demo`, or `cargo run --release -p hypatia-examples --bin digits [FOLDER]`. The
//! folder holds `model.onnx`, `inputs.npz`, `outputs.npz` and `labels.npz`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hypatia::session::{Comparison, Executor};
use hypatia::{Error, Model, Options, Result, Tensor, npz, rules};

fn main() -> std::process::ExitCode {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/digits"));
    match digits(&folder) {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Runs the demo; false if the outputs are not the expected ones.
fn digits(folder: &Path) -> Result<bool> {
    let rules = rules::load(&[])?;
    println!("rules     {} rules over {} ops and {} scalars", rules.rules.len(), rules.ops.len(), rules.scalars.len());

    let model = Model::load(&folder.join("model.onnx"), rules, Options::default())?;
    let inputs = npz::read(&folder.join("inputs.npz"))?;
    println!("model     {} nodes, inputs {}", model.graph().nodes.len(), shapes(&inputs));

    let compiled = model.compile(&inputs)?;
    compiled.warnings().iter().for_each(|w| println!("warning   {w}"));
    let results = model.run(&inputs)?;

    let mut ok = true;
    for (name, want) in npz::read(&folder.join("outputs.npz"))? {
        let at = model.outputs().iter().position(|o| **o == *name);
        let at = at.ok_or_else(|| Error::Input(format!("the model has no output `{name}`")))?;
        let c = Comparison::of(&results[at], &want, model.tolerances()[at])?;
        println!("output    `{name}` {c}");
        ok &= c.ok;
    }
    println!("accuracy  {:.2} % of {} test images", 100.0 * accuracy(&results[0], folder)?, results[0].shape()[0]);

    println!("\nwhat fused:");
    let mut fused: BTreeMap<&str, usize> = BTreeMap::new();
    compiled.report.firings.iter().filter(|f| f.kept).for_each(|f| *fused.entry(&f.rule).or_default() += 1);
    fused.iter().for_each(|(rule, times)| println!("  {times} x {rule}"));

    let ordered = model.order(&inputs)?;
    let (unfused, executor) = (compiled.unfused()?, &compiled.executor);
    let (before, after) = paired(unfused, executor, &ordered)?;
    println!("\n              rules off   rules on");
    println!("  launches    {:>9}   {:>8}", unfused.plan().launches(), executor.plan().launches());
    println!("  time        {:>6.0} us   {:>5.0} us", before.as_secs_f64() * 1e6, after.as_secs_f64() * 1e6);
    println!("  (medians of alternating runs, {})", executor.device_name());
    Ok(ok)
}

fn shapes(inputs: &[(String, Tensor)]) -> String {
    inputs.iter().map(|(n, t)| format!("{n}: {}{:?}", t.dtype(), t.shape())).collect::<Vec<_>>().join(", ")
}

/// The accuracy: the share of rows whose largest element is at the label.
fn accuracy(logits: &Tensor, folder: &Path) -> Result<f64> {
    let labels = npz::read(&folder.join("labels.npz"))?;
    let labels = labels.iter().find(|(n, _)| n == "labels").map(|(_, t)| t.to_f64());
    let labels = labels.ok_or_else(|| Error::Input("labels.npz has no entry `labels`".into()))?;
    let classes = logits.shape().last().copied().unwrap_or(1).max(1);
    let values = logits.to_f64();
    let largest = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
    let right = values.chunks(classes).zip(&labels).filter(|(row, label)| largest(row) as f64 == **label).count();
    Ok(right as f64 / labels.len().max(1) as f64)
}

/// Median times of two executors, run alternately.
fn paired(a: &Executor, b: &Executor, inputs: &[Tensor]) -> Result<(Duration, Duration)> {
    const RUNS: usize = 51;
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        for (executor, times) in [(a, &mut of_a), (b, &mut of_b)] {
            let start = Instant::now();
            executor.run(inputs)?;
            times.push(start.elapsed());
        }
    }
    of_a.sort_unstable();
    of_b.sort_unstable();
    Ok((of_a[RUNS / 2], of_b[RUNS / 2]))
}
