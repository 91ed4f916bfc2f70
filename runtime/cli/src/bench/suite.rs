//! Benchmarks of many small cases: the tests of a `.hyp` file, or a built-in suite.
//!
//! In: a file whose tests declare the inputs. Out: for each test, microseconds with and without
//! rules, as a table or JSON. Invariant: values are random, N(0, 1); constants of several axes are
//! scaled so that results computed from them stay moderate; both sides of a case are interleaved in
//! one process; a failing case is reported and the others continue.

use std::fmt::Write;
use std::path::Path;

use anstream::eprintln;
use clap::ValueEnum;
use hypatia::internal::{deviation, is_f32};
use hypatia::session::{Model, Options};
use hypatia_cuda::nvtx;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Program, Test, TestInput};
use hypatia_dsl::source::SourceFile;
use hypatia_library as library;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};
use hypatia_verify::test_runner::given_with;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::sync::Arc;

use super::super::output::write_stdout;
use super::super::{Exit, Global, measured};
use super::{Bench, ms, paired_ratio};

/// Built-in sets of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Linear layers with epilogues at four sizes, eleven multi-layer perceptrons, a gate, softmax
    /// and norms over long rows.
    Classic,
    /// Whole models with random weights, beside PyTorch and onnxruntime; needs a Python with
    /// PyTorch.
    Models,
}

const CLASSIC: &str = include_str!("classic.hyp");

/// The number of distinct random numbers; a larger tensor repeats them.
const BLOCK: usize = 1 << 16;
/// The minimum width of the column of names, in characters.
const NARROWEST: usize = 40;
/// The default duration of each case, in seconds.
const SECONDS: f64 = 0.15;

/// N(0, 1), the same in every run.
pub(crate) fn noise(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    scaled(dtype, shape, 1.0, shape.len() as u64, BLOCK)
}

/// `N(0, scale^2)`: `block` numbers, repeated.
fn scaled(dtype: DType, shape: &[usize], scale: f64, seed: u64, block: usize) -> Result<Tensor> {
    let wrong = || Error::Internal(format!("a tensor {dtype}{shape:?}"));
    let len: usize = shape.iter().product();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The sum of twelve uniform numbers approximates a normal distribution.
    let mut next = || ((0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0) * scale;
    let values: Vec<f64> = (0..len.min(block)).map(|_| next()).collect();
    let block = Tensor::from_f64(dtype, &[values.len()], &values).ok_or_else(wrong)?;
    let mut tensor = Tensor::zeros(dtype, shape).ok_or_else(wrong)?;
    for chunk in tensor.bytes_mut().chunks_mut(block.bytes().len().max(1)) {
        chunk.copy_from_slice(&block.bytes()[..chunk.len()]);
    }
    Ok(tensor)
}

fn data(input: &TestInput, block: usize) -> Result<Tensor> {
    let sizes = input.shape.iter().map(|d| d.as_const().and_then(|v| usize::try_from(v).ok()));
    let shape: Vec<usize> = sizes
        .collect::<Option<_>>()
        .ok_or_else(|| Error::Input(format!("input `{}` has symbolic sizes; `bench` needs numbers", input.name)))?;
    if let Some(values) = &input.value {
        let len = shape.iter().product();
        let all = if let [one] = values.as_slice() { vec![*one; len] } else { values.clone() };
        return Tensor::from_f64(input.dtype, &shape, &all).ok_or_else(|| {
            Error::Input(format!("input `{}` has {} values, but its shape needs {len}", input.name, values.len()))
        });
    }
    // The seed depends on the name: equal constants would be deduplicated.
    let seed = input.name.bytes().fold(1u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let fan_in = if input.constant && shape.len() > 1 { shape.last().copied().unwrap_or(1).max(1) } else { 1 };
    scaled(input.dtype, &shape, 1.0 / (fan_in as f64).sqrt(), seed, block)
}

fn load(bench: &Bench, path: Option<&Path>) -> Result<(Arc<Program>, Vec<Test>)> {
    let file = match path {
        Some(path) => SourceFile::read(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })?,
        None => SourceFile { name: "classic.hyp".into(), path: None, text: CLASSIC.into(), embedded: true },
    };
    let name = file.name.clone();
    let mut files = vec![file];
    for path in &bench.rules {
        files.push(SourceFile::read(path).map_err(|source| Error::Io { path: path.clone(), source })?);
    }
    let compiled = library::compile_sources(files);
    let Some(program) = compiled.program else { return Err(library::rejected(&compiled)) };
    let wanted = |t: &&Test| {
        t.origin.file == name && (bench.rows.is_empty() || bench.rows.iter().any(|r| t.name.contains(r.as_str())))
    };
    let tests: Vec<Test> = program.tests.iter().filter(wanted).cloned().collect();
    if tests.is_empty() {
        let which = if bench.rows.is_empty() { "no tests" } else { "no test whose name contains the text of --rows" };
        return Err(Error::Input(format!("{name} has {which}; `bench` times the `given` of `test` blocks")));
    }
    Ok((Arc::new(program), tests))
}

/// Times all cases.
pub(super) fn run(bench: &Bench, path: Option<&Path>, global: &Global) -> Result<Exit> {
    let (program, tests) = load(bench, path)?;
    let (mut options, notes) = bench.options(&program)?;
    options.memory = Some(usize::MAX);
    notes.iter().filter(|_| !global.quiet).for_each(|note| eprintln!("{note}"));
    let mut rows = Vec::new();
    let width = tests.iter().map(|t| t.name.chars().count()).max().unwrap_or(0).max(NARROWEST);
    for test in &tests {
        let row = case(bench, &program, test, &options)
            .unwrap_or_else(|e| json!({"case": test.name, "error": e.to_string()}));
        // The table is printed at the end; until then, show progress.
        if !global.quiet && bench.json {
            eprintln!("{}", line(&row, width));
        }
        rows.push(row);
    }
    let failed = rows.iter().any(|r| r.get("error").is_some());
    let about = measured::about(rows.iter().find_map(|r| r["device"].as_str()), options.gpu.is_some());
    let report = json!({"about": about, "cases": rows});
    let text = if bench.json {
        format!("{report:#}\n")
    } else {
        rows.iter().fold(format!("{}\n", header(width)), |mut text, row| {
            let _ = writeln!(text, "{}", line(row, width));
            text
        })
    };
    write_stdout(&text);
    if let Some(to) = &bench.plot {
        bench.draw(&report, to, global)?;
    }
    Ok(if failed { Exit::Failed } else { Exit::Ok })
}

fn case(bench: &Bench, program: &Arc<Program>, test: &Test, options: &Options) -> Result<Value> {
    let _range = nvtx::range(&test.name);
    // The largest error of a few repeated numbers differs from that of as many distinct ones.
    let data = |input: &TestInput| data(input, if bench.errors { usize::MAX } else { BLOCK });
    let (graph, inputs) = given_with(program, test, data)?;
    let (model, _) = bench.on.precision.narrowed(Model::new(graph, options.clone()))?;
    let compiled = model.compile(&inputs)?;
    let ordered = model.order(&inputs)?;
    let sides = bench.time_for(&compiled, &ordered, SECONDS)?;
    let mut row = json!({
        "case": test.name,
        "device": compiled.executor.device_name(),
        "ratio": paired_ratio(&sides),
        "warnings": compiled.warnings(),
    });
    let multiplies = test.inputs.iter().any(|i| i.constant && i.shape.len() == 2);
    if bench.errors && is_f32(test) && multiplies {
        let got = compiled.executor.run(&ordered)?;
        let seen = deviation(program, test, options, data, &got)?;
        row["deviation"] = json!({"largest": seen.error, "of": seen.largest});
    }
    for side in &sides {
        let key = side.name.replace(' ', "_");
        row[key] = json!({
            "launches": side.executor.plan().launches(),
            "us": ms(side.quantile(0.5)) * 1e3,
            "min_us": ms(side.quantile(0.0)) * 1e3,
        });
    }
    Ok(row)
}

/// The header of the table; `width` is that of the names.
fn header(width: usize) -> String {
    format!("{:<width$} {:>8} {:>11} {:>8} {:>11} {:>7}", "", "launches", "rules us", "launches", "without us", "ratio")
}

/// A case as a row of the table.
fn line(row: &Value, width: usize) -> String {
    let name = row["case"].as_str().unwrap_or_default();
    if let Some(e) = row.get("error").and_then(Value::as_str) {
        return format!("{name:<width$} FAILED: {e}");
    }
    let side = |key: &str| match row.get(key) {
        // Formatting a JSON value ignores the width, so numbers are extracted first.
        Some(s) => {
            format!("{:>8} {:>11.2}", s["launches"].as_u64().unwrap_or(0), s["us"].as_f64().unwrap_or(0.0))
        }
        None => format!("{:>8} {:>11}", "", ""),
    };
    let ratio = row["ratio"].as_f64().map_or(String::new(), |r| format!("{r:.3}"));
    format!("{name:<width$} {} {} {ratio:>7}", side("with_rules"), side("without_rules"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_behind_long_names() {
        let side = |us: f64| json!({"launches": 1, "us": us});
        let row =
            |name: &str| json!({"case": name, "ratio": 0.5, "with_rules": side(12.5), "without_rules": side(25.0)});
        let long = "a name of more than forty characters, as some are";
        let all = [header(long.len()), line(&row("short"), long.len()), line(&row(long), long.len())];
        assert!(all.iter().all(|l| l.len() == all[0].len()), "{all:#?}");
    }
}
