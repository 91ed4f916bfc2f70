//! `hypatia cache` and `hypatia tune` as a user runs them, and what is stored between two starts.
//! No GPU is needed.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod onnx;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hypatia_cache::{Cache, Key};
use hypatia_cuda::tuning::{Choice, Machine, TuningFile};
use serde_json::Value;

/// Runs the binary with this cache, and without a GPU whatever the machine has.
fn hypatia(cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hypatia"))
        .args(args)
        .env("HYPATIA_CACHE", cache)
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

fn ok(cache: &Path, args: &[&str]) -> String {
    let o = hypatia(cache, args);
    assert_eq!(o.status.code(), Some(0), "{args:?}: {}", err(&o));
    out(&o)
}

fn json(cache: &Path, args: &[&str], code: i32) -> Value {
    let o = hypatia(cache, &[args, &["--json"]].concat());
    assert_eq!(o.status.code(), Some(code), "{args:?}: {}", err(&o));
    serde_json::from_str(&out(&o)).unwrap()
}

/// Requires exit code 1 with these texts in the message.
fn fails(cache: &Path, args: &[&str], messages: &[&str]) {
    let o = hypatia(cache, args);
    assert_eq!(o.status.code(), Some(1), "{args:?}: {}", err(&o));
    for message in messages {
        assert!(err(&o).contains(message), "{args:?} without `{message}`: {}", err(&o));
    }
}

/// A folder with a cache, the digits model and its inputs.
fn setup() -> (tempfile::TempDir, PathBuf, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let digits = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/digits");
    for entry in std::fs::read_dir(&digits).unwrap().flatten().filter(|e| e.path().is_file()) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let cache = folder.path().join("cache");
    let text = |name: &str| folder.path().join(name).display().to_string();
    let (model, inputs) = (text("model.onnx"), text("inputs.npz"));
    (folder, cache, model, inputs)
}

fn choice(device: &str) -> Choice {
    Choice {
        machine: Machine { device: device.into(), driver: 13_000, library: 130_100, hypatia: "0.1.0".into() },
        problem: "64x32x16 batch 1 f32->f32, warm".into(),
        algorithm: [1, 2, 3, 4, 5, 6, 7, 8],
        workspace: 0,
        us: Some(2.5),
        first_us: Some(3.5),
        candidates: 32,
    }
}

/// The entries of this kind in the cache.
fn entries(cache: &Path, kind: &str) -> Vec<Value> {
    let list = json(cache, &["cache", "ls"], 0);
    list["entries"].as_array().unwrap().iter().filter(|e| e["kind"] == kind).cloned().collect()
}

#[test]
fn verdicts_are_kept_told_and_forgotten() {
    let (folder, cache, model, inputs) = setup();
    let run = ["run", &model, "--inputs", &inputs, "--device", "cpu", "--json"];
    let (first, second) = (ok(&cache, &run), ok(&cache, &run));
    let [first, second] = [first, second].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(first["launches"], second["launches"]);
    assert_eq!((&first["checked"], &second["checked"]), (&"now".into(), &"before".into()));
    let kept = entries(&cache, "verdict");
    assert_eq!((kept.len(), &kept[0]["verdict"]["agree"]), (1, &true.into()));
    let again: Value = serde_json::from_str(&ok(&cache, &[&run[..], &["--recheck"]].concat())).unwrap();
    assert_eq!(again["checked"], "now");

    // A plan that was refused is refused at the second start too, with the same warning.
    let rules = folder.path().join("wrong.hyp");
    let text = "edition 1;\nuse core::*;\nuse nn::*;\nruleset wrong { until = fixpoint; }\n\
                rule wrong::dropped: relu(x) => x;\n";
    std::fs::write(&rules, text).unwrap();
    let wrong = [&run[..], &["--rules", rules.to_str().unwrap()]].concat();
    let starts = [0, 1].map(|_| hypatia(&cache, &wrong));
    assert!(err(&starts[0]).contains("wrong::dropped"), "{}", err(&starts[0]));
    assert_eq!(err(&starts[0]), err(&starts[1]));
    let checked = starts.map(|o| serde_json::from_str::<Value>(&out(&o)).unwrap()["checked"].clone());
    assert_eq!(checked, ["now", "before"]);
    let text = ok(&cache, &["cache", "ls"]);
    assert!(text.contains("refused plan") && text.contains("wrong::dropped"), "{text}");

    let text = ok(&cache, &["cache", "clear"]);
    assert!(text.contains("removed      2 verdicts"), "{text}");
    assert_eq!(entries(&cache, "verdict").len(), 0);
    assert_eq!(serde_json::from_str::<Value>(&ok(&cache, &run)).unwrap()["checked"], "now");
}

#[test]
fn a_cache_that_cannot_be_trusted_is_told_and_the_model_runs() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, cache, model, inputs) = setup();
    std::fs::create_dir(&cache).unwrap();
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).unwrap();
    let run = ["run", &model, "--inputs", &inputs, "--device", "cpu"];
    let o = hypatia(&cache, &run);
    assert_eq!(o.status.code(), Some(0));
    assert!(err(&o).contains("chmod 700"), "{}", err(&o));
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0, "nothing is written into it");
    fails(&cache, &["cache", "verify"], &["chmod 700"]);
    fails(&cache, &["cache", "clear"], &["chmod 700"]);
    // A folder that cannot be created.
    let o = hypatia(Path::new("/proc/nowhere/hypatia"), &run);
    assert_eq!(o.status.code(), Some(0));
    let told = "the cache folder /proc/nowhere/hypatia cannot be used: ";
    assert!(err(&o).contains(told) && err(&o).contains("nothing is stored"), "{}", err(&o));
}

#[test]
fn verify_names_bad_entries_and_clear_leaves_what_is_not_the_caches() {
    let (_folder, folder, ..) = setup();
    let cache = Cache::at(&folder).unwrap();
    let [a, b, c]: [Key; 3] = [[1; 32], [2; 32], [3; 32]];
    for key in [a, b, c] {
        cache.cubins.put(&key, b"machine code");
    }
    cache.choices.put(&a, choice("GPU").to_line().as_bytes());
    assert_eq!(json(&folder, &["cache", "verify"], 0)["entries"], 4);
    assert!(ok(&folder, &["cache", "verify"]).contains("4 of 4 entries are good"));
    let text = ok(&folder, &["cache", "ls"]);
    for part in ["machine code", "choices on GPU | driver 13000", "2.50 us (first guess 3.50, best of 32)  64x32x16"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    // First an entry with a damaged file, then an intact file that is not a choice.
    let mut bytes = std::fs::read(cache.cubins.file(&b)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(cache.cubins.file(&b), bytes).unwrap();
    cache.choices.put(&b, b"nonsense");
    std::fs::write(folder.join("cubin/mine.txt"), "mine").unwrap();
    std::fs::create_dir(folder.join("cuda-headers-13.3")).unwrap();
    let row = ok(&folder, &["cache", "ls"]).lines().find(|l| l.starts_with("CUDA headers")).map(str::to_string);
    let row: Vec<String> = row.unwrap().split_whitespace().skip(2).take(3).map(str::to_string).collect();
    assert_eq!(row, ["1", "1", "0"], "one folder, without its seal");
    let o = hypatia(&folder, &["cache", "verify"]);
    assert_eq!(o.status.code(), Some(1));
    let text = out(&o);
    assert!(text.contains("3 of 6 entries are good"), "{text}");
    for name in [cache.cubins.file(&b), cache.choices.file(&b), folder.join("cuda-headers-13.3")] {
        assert!(text.contains(&name.display().to_string()), "{text}");
    }
    let bad = json(&folder, &["cache", "verify"], 1);
    assert_eq!(bad["bad"].as_array().unwrap().len(), 3, "{bad}");
    assert!(bad["bad"][0]["why"].as_str().unwrap().contains("has changed since it was written"), "{bad}");

    let gone = json(&folder, &["cache", "clear"], 0);
    assert_eq!((&gone["removed"]["cubin"]["files"], &gone["removed"]["choice"]["files"]), (&3.into(), &2.into()));
    assert_eq!(gone["headers"].as_array().unwrap().len(), 1);
    let left = gone["left"].as_array().unwrap();
    assert!(left.len() == 1 && left[0].as_str().unwrap().ends_with("cubin/mine.txt"), "{gone}");
    assert!(folder.join("cubin/mine.txt").is_file());
    assert_eq!(json(&folder, &["cache", "verify"], 0)["entries"], 0);
}

#[test]
fn tune_says_that_it_needs_a_gpu_and_writes_nothing() {
    let (folder, cache, model, _) = setup();
    fails(&cache, &["tune", &model], &["`hypatia tune` needs an NVIDIA GPU, its driver and cuBLASLt"]);
    assert!(!folder.path().join("hypatia.tune").exists());
    fails(&cache, &["tune", "missing.onnx"], &["missing.onnx"]);
    // A file that is no tuning file is not overwritten.
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "mine\n").unwrap();
    fails(&cache, &["tune", &model, "-o", other.to_str().unwrap()], &["notes.txt:1: expected `# Hypatia tuning file"]);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine\n");
}

#[test]
fn tuning_files_are_read_told_and_refused_where_they_are_damaged() {
    let (folder, cache, model, inputs) = setup();
    let beside = folder.path().join("hypatia.tune");
    let mut file = TuningFile::empty(&beside);
    file.insert(choice("GPU A (sm_90)"));
    file.insert(choice("GPU B (sm_80)"));
    file.write(&beside).unwrap();
    let text = ok(&cache, &["explain", &model]);
    assert!(text.contains("hypatia.tune on GPU A (sm_90) | driver 13000 | cuBLASLt 130100"), "{text}");
    let value = json(&cache, &["explain", &model], 0);
    assert_eq!(value["tuning"].as_array().unwrap().len(), 2);
    assert_eq!(value["tuning"][0]["us"], 2.5);

    let moved = folder.path().join("other.tune");
    std::fs::rename(&beside, &moved).unwrap();
    let moved = moved.to_str().unwrap();
    assert!(!ok(&cache, &["explain", &model]).contains("choices of"));
    assert!(ok(&cache, &["explain", &model, "--tuning", moved]).contains("other.tune on GPU B"));
    let run = ["run", &model, "--inputs", &inputs, "--device", "cpu", "--tuning", moved];
    let o = hypatia(&cache, &run);
    assert_eq!(o.status.code(), Some(0));
    assert_eq!(err(&o).matches("other.tune: not used, because its choices are for GPUs").count(), 1, "{}", err(&o));
    let quiet = hypatia(&cache, &[&run[..], &["-q"]].concat());
    assert_eq!(err(&quiet), "");

    let good = std::fs::read_to_string(moved).unwrap();
    std::fs::write(moved, good.replace("2.5 us", "1.5 us")).unwrap();
    for command in [&run[..], &["bench", &model, "--tuning", moved], &["explain", &model, "--tuning", moved]] {
        fails(&cache, command, &["other.tune:4: the line was changed"]);
    }
    fails(&cache, &["run", &model, "--tuning", "nowhere.tune"], &["nowhere.tune"]);
}

/// What a rule claims to save is measured, and what was measured takes its place.
#[test]
fn claims_of_rules_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, rules, tuning) = (path("model.onnx"), path("mine.hyp"), path("hypatia.tune"));
    std::fs::write(&model, onnx::Model::unary("Tanh", &[256, 256]).bytes()).unwrap();
    let rule = "edition 1;\nuse core::*;\nruleset mine { until = fixpoint; }\n\
                rule mine::long: tanh(x) => (exp(x) - exp(-x)) / (exp(x) + exp(-x)) saves 3 us class rounds for f32;\n";
    std::fs::write(&rules, rule).unwrap();
    let explained = |more: &[&str]| -> Value {
        let report = json(&cache, &[&["explain", &model, "--rules", &rules, "--target", "cpu"], more].concat(), 0);
        report["savings"][0].clone()
    };
    let claimed = explained(&[]);
    assert_eq!((&claimed["rule"], &claimed["sites"]), (&"mine::long".into(), &1.into()), "{claimed}");
    assert_eq!((&claimed["claimed_us"], &claimed["measured_us"]), (&3.0.into(), &Value::Null), "{claimed}");
    let said = ok(&cache, &["tune", &model, "--rules", &rules, "--device", "cpu"]);
    assert!(said.contains("us saved by mine::long, 1 times"), "{said}");
    // Five functions take longer than one, whatever is claimed.
    let measured = explained(&["--tuning", &tuning]);
    assert_eq!(measured, explained(&[]), "the file beside the model counts");
    assert!(measured["measured_us"].as_f64().is_some_and(|us| us < 0.0), "{measured}");
    assert_eq!(measured["sites"], 0, "{measured}");
    let ran = |more: &[&str]| {
        let args = [&["run", &model, "--rules", &rules, "--device", "cpu"], more].concat();
        ok(&cache, &args)
    };
    assert!(!ran(&[]).contains("mine::long"), "{}", ran(&[]));
    std::fs::remove_file(&tuning).unwrap();
    assert!(ran(&[]).contains("mine::long"), "{}", ran(&[]));
    std::fs::remove_file(&rules).unwrap();
    fails(&cache, &["tune", &model, "--device", "cpu"], &["there is nothing to measure on the CPU"]);
}
