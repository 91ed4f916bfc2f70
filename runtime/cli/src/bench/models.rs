//! `hypatia bench --suite models`: whole models beside PyTorch and onnxruntime.
//!
//! In: a Python with PyTorch, which makes each model, exports it and times its peers (peers.py).
//! Out: for each model the time with and without rules and that of each peer, losses first, as a
//! table or JSON. Invariant: a model that fails is reported and the others continue; with --results
//! a finished model is kept at once, and is not measured again by the same build on the same
//! device.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anstream::eprintln;
use hypatia::session::{Model, Options};
use hypatia_dsl::ir::Program;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::{file, npz};
use serde_json::{Value, json};

use super::super::output::write_stdout;
use super::super::{Exit, Global, measured};
use super::peers::{Exporting, Python};
use super::{Bench, FLOOR_US, kernels, ms, paired_ratio, profile};

/// The peers, in the order of the table's columns.
pub(super) const PEERS: [&str; 4] = ["eager", "graph", "compile", "onnxruntime"];
/// The default duration of each model, in seconds.
const SECONDS: f64 = 0.5;
/// From so many cores on, the next model is exported while one is timed on a GPU.
const CORES: usize = 8;

/// The rows that are kept between starts.
struct Kept<'a> {
    folder: Option<&'a Path>,
    about: &'a Value,
    /// The peers that a row must have, or say why not.
    peers: Vec<String>,
}

impl Kept<'_> {
    fn path(&self, model: &str) -> Option<PathBuf> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        self.folder.map(|folder| folder.join(model.chars().map(plain).collect::<String>() + ".json"))
    }

    /// The row of this model, if this build measured it on this device.
    fn read(&self, model: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.path(model)?).ok()?;
        let kept: Value = serde_json::from_str(&text).ok()?;
        let alike = ["device", "commit", "source", "options"].iter().all(|key| kept["about"][key] == self.about[key]);
        let row = &kept["row"];
        let has = |peer: &String| !row["peers_us"][peer].is_null() || !row["left_out"][peer].is_null();
        let whole = row["case"] == model && row["error"].is_null() && self.peers.iter().all(has);
        (alike && whole).then(|| row.clone())
    }

    fn write(&self, model: &str, row: &Value) -> Result<()> {
        let Some(path) = self.path(model) else { return Ok(()) };
        let text = format!("{:#}\n", json!({"about": self.about, "row": row}));
        file::write(&path, |out| std::io::Write::write_all(out, text.as_bytes()))
    }
}

/// The peers to time.
fn wanted_peers(bench: &Bench) -> Vec<String> {
    if bench.peers.is_empty() { PEERS.map(str::to_string).to_vec() } else { bench.peers.clone() }
}

/// The arguments that change what is measured: not which models and peers, or how it is shown.
fn own_options(mut arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut own = Vec::new();
    while let Some(word) = arguments.next() {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        match name {
            "--json" | "-q" | "--quiet" => {}
            "--rows" | "--peers" | "--results" if value.is_some() => {}
            "--rows" | "--peers" | "--results" => drop(arguments.next()),
            _ => own.push(word),
        }
    }
    own
}

/// Times all models.
pub(super) fn run(bench: &Bench, global: &Global) -> Result<Exit> {
    let program = bench.domains.program(&bench.rules)?;
    let (options, notes) = bench.options(&program)?;
    let tell = |text: &str| {
        if !global.quiet {
            eprintln!("{text}");
        }
    };
    notes.iter().for_each(|note| tell(note));
    let python = Python::new(bench.python.as_deref().unwrap_or(Path::new("python3")))?;
    let wanted = |name: &String| bench.rows.is_empty() || bench.rows.iter().any(|r| name.contains(r.as_str()));
    let all = python.models()?;
    let models: Vec<String> = all.iter().filter(|name| wanted(name)).cloned().collect();
    if models.is_empty() {
        return Err(Error::Input(format!("no model contains the text of --rows; there are: {}", all.join("; "))));
    }
    let device = options.gpu.as_ref().map_or_else(|| "CPU".to_string(), |on| on.gpu.describe());
    let mut about = measured::about(Some(&device), options.gpu.is_some());
    about["options"] = json!(own_options(std::env::args().skip(1)));
    let kept = Kept { folder: bench.results.as_deref(), about: &about, peers: wanted_peers(bench) };
    if let Some(folder) = kept.folder {
        std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_path_buf(), source })?;
    }
    let mut rows: Vec<Value> = models.iter().filter_map(|name| kept.read(name)).collect();
    rows.iter().for_each(|row| tell(&line(row)));
    let missing: Vec<&String> = models.iter().filter(|name| kept.read(name).is_none()).collect();
    each(&missing, &python, options.gpu.is_some(), &kept.peers, &mut |exporting, name| {
        let row = exporting
            // Each model has the whole time for measuring algorithms.
            .and_then(|mut exporting| model(bench, &program, &bench.options(&program)?.0, &mut exporting, name))
            .unwrap_or_else(|e| json!({"case": name, "error": e.to_string()}));
        kept.write(name, &row)?;
        tell(&line(&row));
        rows.push(row);
        Ok(())
    })?;
    let failed = rows.iter().any(|r| !r["error"].is_null());
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
    let text = if bench.json {
        // Single kernels stay in the folder of --results.
        rows.iter_mut().filter_map(|row| row["kernels"].as_object_mut()).for_each(|k| drop(k.remove("each")));
        let mut about = about.clone();
        if let Some(versions) = rows.iter().find_map(|r| r["versions"].as_object()) {
            versions.iter().for_each(|(package, version)| about["versions"][package] = version.clone());
        }
        format!("{:#}\n", json!({"about": about, "rows": rows}))
    } else {
        table(&rows)
    };
    write_stdout(&text);
    Ok(if failed { Exit::Failed } else { Exit::Ok })
}

/// Hands on each model as it is exported: on a GPU beside enough cores, while the one before is
/// timed.
fn each(
    models: &[&String],
    python: &Python<'_>,
    gpu: bool,
    peers: &[String],
    take: &mut dyn FnMut(Result<Exporting>, &str) -> Result<()>,
) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ahead = gpu && cores >= CORES;
    let export = |name: &&String| python.export(name, if gpu { "cuda" } else { "cpu" }, peers);
    let mut next = None;
    for (i, name) in models.iter().enumerate() {
        let exporting = next.take().unwrap_or_else(|| export(name));
        next = models.get(i + 1).filter(|_| ahead).map(export);
        take(exporting, name)?;
    }
    Ok(())
}

/// Times one model's peers, and then Hypatia.
fn model(
    bench: &Bench,
    program: &Arc<Program>,
    options: &Options,
    exporting: &mut Exporting,
    name: &str,
) -> Result<Value> {
    let peers = exporting.times()?;
    let inputs = npz::read(&exporting.file("inputs.npz"))?;
    let graph = bench.sizes.load_for(&exporting.file("model.onnx"), program.clone(), &inputs)?;
    let (model, _) = bench.on.precision.narrowed(Model::new(graph, options.clone()))?;
    let started = Instant::now();
    let compiled = model.compile(&inputs)?;
    let ordered = model.order(&inputs)?;
    let got = compiled.executor.run(&ordered)?;
    let first = started.elapsed();
    let exact = npz::read(&exporting.file("exact.npz"))?;
    let mut row = json!({
        "case": name,
        "first_s": first.as_secs_f64(),
        "error_of_exact": got.first().zip(exact.first()).map(|(got, (_, exact))| relative_error(got, exact)),
        "warnings": compiled.warnings(),
        "error": null,
    });
    let sides = bench.time_for(&compiled, &ordered, SECONDS)?;
    row["rules_ratio"] = json!(paired_ratio(&sides));
    for side in &sides {
        let launches = side.executor.plan().launches();
        row[side.name.replace(' ', "_")] = json!({"launches": launches, "us": ms(side.quantile(0.5)) * 1e3});
    }
    if let Some(side) = sides.first() {
        let profile = profile(side.executor, options.gpu.as_ref(), &ordered)?;
        row["kernels"] = by_kind(&kernels(&profile, side.executor));
    }
    if options.gpu.is_some() {
        row["floor_us"] = json!(sides.first().map(|s| s.executor.plan().launches() as f64 * FLOOR_US));
    }
    for (to, from) in
        [("peers_us", "us"), ("left_out", "left_out"), ("eager_error", "eager_error"), ("versions", "versions")]
    {
        row[to] = peers[from].clone();
    }
    let ours = row["with_rules"]["us"].as_f64().or(row["without_rules"]["us"].as_f64());
    row["ratio"] = json!(ours.zip(best(&row)).map(|(ours, (_, peer))| ours / peer));
    Ok(row)
}

/// What kernels of each kind take, and how far the cost model is off: the median of their errors;
/// the four slowest; and each.
fn by_kind(kernels: &[Value]) -> Value {
    let error = |k: &&Value| Some((k["predicted_us"].as_f64()? / k["time_us"].as_f64()? - 1.0).abs());
    let of = |kernels: &[&Value]| {
        let mut errors: Vec<f64> = kernels.iter().filter_map(error).collect();
        errors.sort_by(f64::total_cmp);
        let us: f64 = kernels.iter().filter_map(|k| k["time_us"].as_f64()).sum();
        json!({"count": kernels.len(), "us": us, "prediction_off": errors.get(errors.len() / 2)})
    };
    let mut kinds: Vec<&str> = kernels.iter().filter_map(|k| k["kind"].as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut found = json!({"all": of(&kernels.iter().collect::<Vec<_>>())});
    for kind in kinds {
        found[kind] = of(&kernels.iter().filter(|k| k["kind"] == kind).collect::<Vec<_>>());
    }
    // Sorted by time, the slowest first.
    let slowest = kernels.iter().take(4).map(|k| json!([k["name"], k["kind"], k["time_us"], k["predicted_us"]]));
    found["slowest"] = slowest.collect();
    found["each"] = json!(kernels);
    found
}

/// The root mean square of the difference, over that of the exact values.
fn relative_error(got: &Tensor, exact: &Tensor) -> f64 {
    let (got, exact) = (got.to_f64(), exact.to_f64());
    let square = |sum: f64, x: f64| x.mul_add(x, sum);
    let difference = got.iter().zip(&exact).fold(0.0, |sum, (a, b)| square(sum, a - b));
    if got.len() == exact.len() {
        (difference / exact.iter().fold(0.0, |sum, x| square(sum, *x)).max(1e-300)).sqrt()
    } else {
        f64::NAN
    }
}

/// The fastest peer and its microseconds.
fn best(row: &Value) -> Option<(&'static str, f64)> {
    let times = PEERS.into_iter().filter_map(|name| Some((name, row["peers_us"][name].as_f64()?)));
    times.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Where a row stands in the table: failures first, then losses.
fn key(row: &Value) -> f64 {
    if row["error"].is_null() { row["ratio"].as_f64().unwrap_or(0.0) } else { f64::INFINITY }
}

/// What is said of a model as soon as it is measured.
fn line(row: &Value) -> String {
    let name = row["case"].as_str().unwrap_or_default();
    if let Some(error) = row["error"].as_str() {
        return format!("{name}: FAILED: {error}");
    }
    let ours = row["with_rules"]["us"].as_f64().or(row["without_rules"]["us"].as_f64()).unwrap_or(f64::NAN);
    match best(row) {
        Some((peer, us)) => format!("{name}: {ours:.1} us, {peer} {us:.1} us ({:.2})", ours / us),
        None => format!("{name}: {ours:.1} us"),
    }
}

/// The table, failures and losses first, then why peers were left out.
fn table(rows: &[Value]) -> String {
    let width = rows.iter().filter_map(|r| r["case"].as_str()).map(|m| m.chars().count()).max().unwrap_or(0);
    let heads =
        ["hypatia us", "no rules", "eager", "graph", "compile", "onnxrt", "launches", "ratio", "error", "predicted"];
    let mut text = format!("{:<width$}", "");
    heads.iter().for_each(|head| text += &format!(" {head:>10}"));
    text += "\n";
    for row in rows {
        let name = row["case"].as_str().unwrap_or_default();
        if let Some(error) = row["error"].as_str() {
            let _ = writeln!(text, "{name:<width$} FAILED: {error}");
            continue;
        }
        let us = [&row["with_rules"]["us"], &row["without_rules"]["us"]].into_iter();
        let us = us.chain(PEERS.iter().map(|name| &row["peers_us"][name]));
        let mut cells: Vec<String> = us.map(|us| us.as_f64().map_or(String::new(), |us| format!("{us:.1}"))).collect();
        let side = if row["with_rules"].is_null() { "without_rules" } else { "with_rules" };
        cells.push(row[side]["launches"].to_string());
        cells.push(row["ratio"].as_f64().map_or(String::new(), |r| format!("{r:.2}")));
        let errors = row["error_of_exact"].as_f64().zip(row["eager_error"].as_f64());
        cells.push(errors.map_or(String::new(), |(ours, eager)| format!("{:.2}", ours / eager)));
        let off = row["kernels"]["all"]["prediction_off"].as_f64();
        cells.push(off.map_or(String::new(), |off| format!("{:.0}%", 100.0 * off)));
        let _ = write!(text, "{name:<width$}");
        cells.iter().for_each(|cell| text += &format!(" {cell:>10}"));
        text += "\n";
    }
    text += "ratio: Hypatia's time over the fastest peer's; error: its difference from f64, over eager's; \
             predicted: how far off the cost model is, the median of all kernels\n";
    if rows.iter().any(|r| !r["floor_us"].is_null()) {
        text += "each launch takes at least 1 us of the time\n";
    }
    for peer in PEERS {
        let why = |row: &Value| row["left_out"][peer].as_str().map(str::to_string);
        let mut reasons: Vec<String> = rows.iter().filter_map(why).collect();
        reasons.sort();
        reasons.dedup();
        reasons.iter().for_each(|why| text += &format!("{peer} is left out: {why}\n"));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hypatia_dsl::dtype::DType;

    fn row(model: &str, ours: f64, peers: Value) -> Value {
        let mut row = json!({
            "case": model, "error": null, "with_rules": {"us": ours, "launches": 3},
            "without_rules": {"us": 2.0 * ours, "launches": 5}, "peers_us": peers, "left_out": {},
        });
        row["ratio"] = json!(best(&row).map(|(_, peer)| ours / peer));
        row
    }

    #[test]
    fn failures_and_losses_come_first() {
        let mut rows = vec![
            row("wins", 1.0, json!({"eager": 4.0, "compile": 2.0})),
            row("loses", 3.0, json!({"eager": 4.0, "compile": 2.0})),
            json!({"case": "fails", "error": "no such op"}),
        ];
        rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
        let table = table(&rows);
        let names: Vec<&str> = table.lines().skip(1).filter_map(|l| l.split(' ').next()).collect();
        assert_eq!(names[..3], ["fails", "loses", "wins"], "{table}");
        assert!(table.contains("1.50") && table.contains("0.50"), "{table}");
    }

    #[test]
    fn a_kept_row_is_that_of_the_same_build_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let about = json!({"device": "one", "commit": "abc", "source": "def"});
        let of = |about, peers: &[&str]| Kept {
            folder: Some(folder.path()),
            about,
            peers: peers.iter().map(|p| p.to_string()).collect(),
        };
        let kept = of(&about, &["eager"]);
        kept.write("BERT b1, s2", &row("BERT b1, s2", 1.0, json!({"eager": 2.0}))).unwrap();
        assert!(kept.read("BERT b1, s2").is_some() && kept.read("BERT b1").is_none());
        let other = json!({"device": "two", "commit": "abc", "source": "def"});
        assert!(of(&other, &[]).read("BERT b1, s2").is_none());
        assert!(of(&about, &["compile"]).read("BERT b1, s2").is_none(), "a peer is missing");
        kept.write("BERT b1, s2", &json!({"case": "BERT b1, s2", "error": "out of memory"})).unwrap();
        assert!(kept.read("BERT b1, s2").is_none(), "a failure is tried again");
    }

    #[test]
    fn what_is_measured_otherwise_is_measured_again() {
        let options = |line: &str| own_options(line.split(' ').map(str::to_string));
        let plain = options("bench --suite models --rows BERT --json");
        assert_eq!(plain, options("bench --suite models --rows=GPT --peers eager --results there"));
        assert_ne!(plain, options("bench --suite models --rows BERT --precision f16"));
        let folder = tempfile::tempdir().unwrap();
        let [narrow, wide] = ["f16", "f32"].map(|p| json!({"device": "one", "options": ["--precision", p]}));
        let kept = |about| Kept { folder: Some(folder.path()), about, peers: Vec::new() };
        kept(&narrow).write("a model", &row("a model", 1.0, json!({}))).unwrap();
        assert!(kept(&narrow).read("a model").is_some() && kept(&wide).read("a model").is_none());
    }

    #[test]
    fn errors_are_relative_and_sizes_must_agree() {
        let of = |values: &[f64]| Tensor::from_f64(DType::F64, &[values.len()], values).unwrap();
        assert!((relative_error(&of(&[3.0, 4.5]), &of(&[3.0, 4.0])) - 0.1).abs() < 1e-12);
        assert!(relative_error(&of(&[3.0]), &of(&[3.0, 4.0])).is_nan());
    }
}
