//! docs/benchmarks.md is generated from docs/benchmarks/*.json, the measurements, and
//! docs/benchmarks/page.md.j2, the text around them; the pictures next to it come from the same
//! files. `UPDATE_BENCHMARKS_PAGE=1 cargo test -p hypatia-cli --test benchmarks_page` regenerates
//! them. Files that were measured at another source than the present one are reported, but do not
//! fail the test.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde_json::{Value, json};

/// Pictures: the SVG, the file of times, and the selected cases.
const PICTURES: [(&str, &str, &str); 2] =
    [("linear.svg", "gpu_peers_h200.json", "linear "), ("mlp.svg", "gpu_peers_h200.json", "mlp ")];

/// Files of measured times by their stems.
type Records = BTreeMap<String, Value>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn records() -> Records {
    let files = std::fs::read_dir(root().join("docs/benchmarks")).unwrap().map(|e| e.unwrap().path());
    let json = files.filter(|p| p.extension().is_some_and(|e| e == "json"));
    let read = |p: &Path| serde_json::from_str(&std::fs::read_to_string(p).unwrap()).unwrap();
    json.map(|p| (p.file_stem().unwrap().to_string_lossy().into_owned(), read(&p))).collect()
}

/// The fields that a file's `about` lacks.
fn lacking(record: &Value) -> Vec<&'static str> {
    let text = |p: &str| record.pointer(p).and_then(Value::as_str).is_some_and(|t| !t.is_empty());
    let mut lacking: Vec<&str> = ["device", "date", "commit", "source", "command", "versions/hypatia"]
        .into_iter()
        .filter(|k| !text(&format!("/about/{k}")))
        .collect();
    let on_gpu = record["about"]["device"].as_str().is_some_and(|d| d.contains("NVIDIA"));
    let gpu = ["versions/driver", "versions/cuda", "versions/cublaslt"];
    lacking.extend(gpu.into_iter().filter(|k| on_gpu && !text(&format!("/about/{k}"))));
    if record["rows"].as_array().is_none_or(Vec::is_empty) {
        lacking.push("rows");
    }
    lacking
}

/// The output of `tools/source.sh hash` for a checkout.
fn source_hash(checkout: &Path) -> String {
    let out = Command::new("bash").arg(root().join("tools/source.sh")).arg("hash").arg(checkout).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().to_string()
}

/// A line for each file that was measured at another source.
fn stale(records: &Records, now: &str) -> Vec<String> {
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    let about = |r: &Value, key: &str| r["about"][key].as_str().unwrap_or("unknown").to_string();
    let moved = records.iter().filter(|(_, r)| about(r, "source") != now);
    moved
        .map(|(name, r)| {
            let (hash, commit) = (short(&about(r, "source")), about(r, "commit"));
            let now = short(now);
            format!(
                "STALE: docs/benchmarks/{name}.json was measured at another source (hash {hash}, commit {commit}; \
                 now {now})"
            )
        })
        .collect()
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The JSON value as a template value.
fn of_json(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => n.as_i64().map_or_else(|| n.as_f64().unwrap_or(f64::NAN).into(), minijinja::Value::from),
        Value::String(s) => s.as_str().into(),
        Value::Array(all) => all.iter().map(of_json).collect(),
        Value::Object(all) => minijinja::Value::from_pairs(all.iter().map(|(k, v)| (k.as_str(), of_json(v)))),
    }
}

/// A number with this many decimals.
fn fixed(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

/// Whether a value is within its limit, to the decimals that are shown.
fn verdict(value: f64, limit: f64, digits: usize) -> &'static str {
    let shown = |v: f64| fixed(v, digits).parse::<f64>().unwrap_or(v);
    if shown(value) <= limit { "met" } else { "missed" }
}

/// The row of a case in a file; an unknown case is an error.
fn row(records: &Records, file: &str, case: &str) -> Result<minijinja::Value, Error> {
    let rows = records.get(file).and_then(|r| r["rows"].as_array()).ok_or_else(|| wrong(format!("no file {file}")))?;
    let found = rows.iter().find(|r| r["case"] == case).ok_or_else(|| wrong(format!("{file} has no case {case}")))?;
    Ok(of_json(found))
}

/// Machine, versions, date, commit, and the raw file.
fn origin(records: &Records, file: &str) -> Result<String, Error> {
    let about = &records.get(file).ok_or_else(|| wrong(format!("no file {file}")))?["about"];
    let text = |v: &Value| v.as_str().unwrap_or("unknown").to_string();
    let calls = [
        ("hypatia", "Hypatia"),
        ("driver", "driver"),
        ("cuda", "CUDA"),
        ("cublaslt", "cuBLASLt"),
        ("torch", "PyTorch"),
        ("onnxruntime", "onnxruntime"),
    ];
    let versions = calls.iter().filter_map(|(k, call)| Some(format!("{call} {}", about["versions"][k].as_str()?)));
    let versions: Vec<String> = versions.collect();
    let (device, date, commit) = (text(&about["device"]), text(&about["date"]), text(&about["commit"]));
    Ok(format!(
        "*{device}; {}; {date}; commit {commit}; `{}`. Raw: [benchmarks/{file}.json](benchmarks/{file}.json).*",
        versions.join(", "),
        text(&about["command"])
    ))
}

fn page(records: &Records, template: &str) -> Result<String, Error> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
    env.set_syntax(syntax.build()?);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.add_filter("fixed", fixed);
    env.add_function("verdict", verdict);
    let (all, too) = (records.clone(), records.clone());
    env.add_function("row", move |file: &str, case: &str| row(&all, file, case));
    env.add_function("origin", move |file: &str| origin(&too, file));
    let files = minijinja::Value::from_pairs(records.iter().map(|(name, r)| (name.as_str(), of_json(r))));
    env.template_from_str(template)?.render(context! { files => files })
}

fn drawn(json: &str, rows: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("picture.svg");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypatia"));
    command.args(["bench", "--from"]).arg(root().join("docs/benchmarks").join(json)).arg("--plot").arg(&svg);
    let out = command.args(["--rows", rows]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    std::fs::read_to_string(svg).unwrap()
}

fn template() -> String {
    std::fs::read_to_string(root().join("docs/benchmarks/page.md.j2")).unwrap()
}

#[test]
fn the_page_and_its_pictures_are_not_stale() {
    let text = page(&records(), &template()).unwrap_or_else(|e| panic!("docs/benchmarks/page.md.j2: {e}"));
    let mut wanted = vec![("docs/benchmarks.md".to_string(), text)];
    wanted.extend(PICTURES.iter().map(|(svg, json, rows)| (format!("docs/benchmarks/{svg}"), drawn(json, rows))));
    for (path, wanted) in wanted {
        let file = root().join(&path);
        if std::env::var_os("UPDATE_BENCHMARKS_PAGE").is_some() {
            std::fs::write(&file, &wanted).unwrap();
        }
        let have = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(have == wanted, "{path} is not what its data say: run this test with UPDATE_BENCHMARKS_PAGE=1");
    }
}

/// Prints a notice that bypasses output capture, so that CI shows it.
#[test]
fn old_measurements_are_told() {
    let now = source_hash(&root());
    let told = stale(&records(), &now);
    if !told.is_empty() {
        let _ = writeln!(std::io::stderr(), "\n{}", told.join("\n"));
    }
}

#[test]
fn files_say_what_they_are_of() {
    let records = records();
    assert!(records.len() >= 6, "{:?}", records.keys());
    for (name, record) in &records {
        assert!(lacking(record).is_empty(), "{name}.json lacks {:?}", lacking(record));
        // Either both are known or neither is.
        let unknown = |key: &str| record["about"][key] == "unknown";
        assert_eq!(unknown("commit"), unknown("source"), "{name}.json");
    }
    let mut one = records["gpu_peers_h200"].clone();
    one["about"]["versions"].as_object_mut().unwrap().remove("driver");
    one["about"].as_object_mut().unwrap().remove("command");
    assert_eq!(lacking(&one), ["command", "versions/driver"]);
}

/// The page shows the content of the files: changing one figure changes the page.
#[test]
fn a_changed_figure_changes_the_page() {
    let (records, template) = (records(), template());
    let before = page(&records, &template).unwrap();
    for (file, key) in [
        ("cpu", "hypatia_ms"),
        ("compiler", "median_ms"),
        ("gpu_peers_h200", "eager"),
        ("gpu_rows_h200", "share_of_copy"),
        ("gpu_bert_h200", "first_warm_s"),
        ("gpu_models_h200", "ratio"),
        ("gpu_bert_f32_h200", "eager_graph"),
    ] {
        let mut changed = records.clone();
        for row in changed.get_mut(file).unwrap()["rows"].as_array_mut().unwrap() {
            row[key] = json!(row[key].as_f64().unwrap() * 1.5);
        }
        assert_ne!(before, page(&changed, &template).unwrap(), "{file}: {key}");
    }
    let mut less = records;
    less.get_mut("gpu_bert_h200").unwrap()["rows"] = json!([]);
    assert!(page(&less, &template).is_err());
}

#[test]
fn limits_are_judged_as_shown() {
    assert_eq!([1.004, 1.005_1, 0.2].map(|v| verdict(v, 1.0, 2)), ["met", "missed", "met"]);
    assert_eq!([49.96, 50.06].map(|v| verdict(v, 50.0, 1)), ["met", "missed"]);
}

#[test]
fn pictures_have_every_case() {
    let records = records();
    for (svg, json, rows) in PICTURES {
        let text = drawn(json, rows);
        let cases = records[json.trim_end_matches(".json")]["rows"].as_array().unwrap();
        let names: Vec<&str> = cases.iter().map(|r| r["case"].as_str().unwrap()).filter(|n| n.contains(rows)).collect();
        assert!(names.len() > 1 && names.iter().all(|n| text.contains(n)), "{svg}: {names:?}");
    }
}

#[test]
fn measurements_of_another_source_are_found() {
    let of = |source: &str| json!({"about": {"source": source, "commit": "abc1234"}, "rows": []});
    let records: Records =
        [("same", of("aa")), ("moved", of("bb")), ("lost", json!({}))].map(|(n, r)| (n.to_string(), r)).into();
    let told = stale(&records, "aa");
    assert_eq!(
        told,
        [
            "STALE: docs/benchmarks/lost.json was measured at another source (hash unknown, commit unknown; now aa)",
            "STALE: docs/benchmarks/moved.json was measured at another source (hash bb, commit abc1234; now aa)",
        ]
    );
}

/// The hash covers contents and names in the four folders only; it ignores the expected texts of
/// tests.
#[test]
fn the_hash_is_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let file = folder.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    for path in ["rules/a.hyp", "templates/b.j2", "runtime/src/lib.rs", "hypatia-dsl/src/x/y.rs"] {
        write(path, path);
    }
    let first = source_hash(folder.path());
    assert_eq!(first.len(), 64);
    write("runtime/src/plan/snapshots/a.snap", "text");
    write("docs/page.md", "text");
    write("runtime/tests/t.rs", "text");
    assert_eq!(source_hash(folder.path()), first);
    write("hypatia-dsl/src/x/y.rs", "other");
    let second = source_hash(folder.path());
    write("hypatia-dsl/src/x/y.rs", "hypatia-dsl/src/x/y.rs");
    assert_eq!(source_hash(folder.path()), first);
    std::fs::rename(folder.path().join("rules/a.hyp"), folder.path().join("rules/a b.hyp")).unwrap();
    let third = source_hash(folder.path());
    assert!(first != second && first != third && second != third);
}
