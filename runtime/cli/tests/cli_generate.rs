//! `hypatia gen` on edge cases: the files it writes, its messages, its exit codes.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Graph;

/// The result of a run: exit code, stdout, stderr.
fn hypatia(args: &[&str], folder: &Path) -> (i32, String, String) {
    let o = Command::new(env!("CARGO_BIN_EXE_hypatia")).args(args).current_dir(folder).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (o.status.code().unwrap(), text(&o.stdout), text(&o.stderr))
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

fn names(folder: &Path) -> Vec<String> {
    contents(folder).into_keys().collect()
}

const HEAD: &str = "edition 1;\nuse core::*;\n";

/// A folder with files of these names and texts.
fn with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), format!("{HEAD}{text}")).unwrap();
    }
    folder
}

#[test]
fn files_without_kernels_are_no_error() {
    let turned = "op turned<T: float>(x: T[n, m]) -> T[m, n] = transpose(x, perm = [1, 0]);\n\
                  kernel turned_k for turned(x) { rowwise; }\n";
    let folder = with(&[("nothing.hyp", ""), ("turned.hyp", turned)]);
    let at = folder.path();
    std::fs::write(at.join("empty.hyp"), "").unwrap();

    let (code, out, err) = hypatia(&["gen", "empty.hyp", "-o", "k"], at);
    assert!(code == 1 && out.is_empty() && err.contains("H0102"), "{code} {err}");
    assert!(!at.join("k").exists());

    let (code, out, err) = hypatia(&["gen", "nothing.hyp", "-o", "k", "--emit", "cuda"], at);
    assert_eq!((code, names(&at.join("k"))), (0, vec!["manifest.json".to_string()]), "{out}");
    assert!(err.contains("nothing here asks for a kernel"), "{err}");

    // A kernel that cannot be generated is reported with the reason, both on stderr and in the
    // manifest.
    let (code, _, err) = hypatia(&["gen", "turned.hyp", "-o", "k", "--emit", "cuda", "--dtype", "f32"], at);
    assert!(code == 0 && err.contains("cannot generate `turned_k` for f32: "), "{code} {err}");
    assert!(!err.contains("nothing here asks"), "{err}");
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(at.join("k/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["kernels"].as_array().unwrap().len(), 0);
    assert_eq!(manifest["skipped"][0]["kernel"], "turned_k");
}

#[test]
fn names_that_differ_in_case_are_files_of_their_own() {
    let folder = with(&[("s.hyp", "scalar Cube(x) = x * x * x;\nscalar cube(x) = x * x + x;\n")]);
    let at = folder.path();
    let (code, _, err) = hypatia(&["gen", "s.hyp", "-o", "k", "--emit", "cuda", "--dtype", "f32"], at);
    assert_eq!(code, 0, "{err}");
    let lower: std::collections::BTreeSet<String> = names(&at.join("k")).iter().map(|n| n.to_lowercase()).collect();
    assert_eq!(lower.len(), 3, "two kernels and the manifest: {lower:?}");

    // One file under several names is one file, and a type given twice is one type.
    let twice = ["gen", "s.hyp", "./s.hyp", "s.hyp", "-o", "l", "--emit", "cuda", "--dtype", "f32,f32"];
    assert_eq!(hypatia(&twice, at).0, 0);
    assert_eq!(contents(&at.join("k")), contents(&at.join("l")));
}

#[test]
fn wrong_options_and_folders_are_told_apart() {
    let folder = with(&[("s.hyp", "scalar cube(x) = x * x * x;\n")]);
    let at = folder.path();
    for (args, said) in [
        (vec!["--dtype", "f32,float"], "expected one of f64, f32, f16"),
        (vec!["--dtype", ""], "expected one of"),
        (vec!["--dtype", "bool"], "expected one of"),
        (vec!["--arch", "sm_9"], "known ones are sm_80, "),
        (vec!["--arch", "90a"], "sm_80, "),
        (vec!["--arch", "sm_999"], "sm_120, "),
        (vec!["--arch", "sm_90a,sm_80a"], "'sm_80a'"),
        (vec!["--arch", "sm_90f"], "from sm_100 on also with `f`"),
        (vec!["--emit", "ptx"], "cubin"),
    ] {
        let (code, out, err) = hypatia(&[&["gen", "s.hyp", "-o", "k"], &args[..]].concat(), at);
        assert!(code == 2 && out.is_empty() && err.contains(said), "{args:?}: {code} {err}");
    }
    let (code, _, err) = hypatia(&["gen", "s.hyp"], at);
    assert!(code == 2 && err.contains("--output"), "{err}");
    for (args, said) in [
        (["missing.hyp", "-o", "k"], "missing.hyp"),
        (["s.hyp", "-o", "s.hyp"], "is a file"),
        (["s.hyp", "-o", "s.hyp/k"], "s.hyp/k"),
        (["s.hyp", "-o", "/proc/no"], "/proc/no"),
    ] {
        let (code, out, err) = hypatia(&[&["gen", "--emit", "cuda"], &args[..]].concat(), at);
        assert!(code == 1 && out.is_empty() && err.contains(said), "{args:?}: {code} {err}");
    }
    assert!(!at.join("k").exists());
    // It is an error if explicitly requested machine code cannot be made: NVRTC is missing, or it
    // no longer knows the architecture.
    let (code, _, err) = hypatia(&["gen", "s.hyp", "-o", "k", "--emit", "cubin", "--arch", "sm_101"], at);
    assert!(code == 1 && err.contains("NVRTC") && !at.join("k").exists(), "{code} {err}");
}

#[test]
fn a_second_run_gives_the_same_bytes_and_leaves_no_old_kernels() {
    let folder = with(&[("a.hyp", "scalar cube(x) = x * x * x;\n"), ("b.hyp", "scalar soft(x) = exp(x) + 1;\n")]);
    let at = folder.path();
    let run = |file: &str| {
        let (code, out, err) = hypatia(&["gen", file, "-o", "k", "--emit", "cuda", "--dtype", "f32,i8"], at);
        assert_eq!(code, 0, "{err}");
        (out, err)
    };
    let (first, _) = run("a.hyp");
    let before = contents(&at.join("k"));
    assert_eq!(before.len(), 3);
    let (second, err) = run("a.hyp");
    assert_eq!((first, &before), (second, &contents(&at.join("k"))));
    assert!(!err.contains("removed"), "{err}");

    // Kernels of the previous run are removed according to its manifest; files of others stay.
    for (name, text) in [("mine.cu", "// mine"), ("notes.txt", "x")] {
        std::fs::write(at.join("k").join(name), text).unwrap();
    }
    let (_, err) = run("b.hyp");
    assert_eq!(names(&at.join("k")), ["manifest.json", "mine.cu", "notes.txt", "soft.f32.cu"]);
    assert!(err.contains("removed") && err.contains("`exp` has no meaning on integers"), "{err}");

    // A manifest that names files elsewhere is not followed.
    let manifest = r#"{"generator": "hypatia 0", "kernels": [{"file": "../a.cu", "cubins": [{"file": "/tmp/x.cubin"}]},
        {"file": "mine.cu.bak"}, {"file": 3}, 4]}"#;
    std::fs::write(at.join("k/manifest.json"), manifest).unwrap();
    std::fs::write(at.join("a.cu"), "// not ours").unwrap();
    run("b.hyp");
    assert!(at.join("a.cu").exists() && at.join("k/mine.cu").exists());
}

#[test]
fn files_name_themselves_and_no_folder_of_this_machine() {
    let folder = with(&[("s.hyp", "scalar cube(x) = x * x * x;\nscalar whole(x) = floor(x) + 1;\n")]);
    let at = folder.path().canonicalize().unwrap();
    let (code, _, err) = hypatia(&["gen", "s.hyp", "-o", "near", "--dtype", "f32,f16"], &at);
    assert_eq!(code, 0, "{err}");
    let absolute = at.join("s.hyp").display().to_string();
    let (code, _, err) = hypatia(&["gen", &absolute, "-o", "far", "--dtype", "f32,f16"], &at);
    assert_eq!(code, 0, "{err}");
    assert_eq!(contents(&at.join("near")), contents(&at.join("far")));
    let text = String::from_utf8(contents(&at.join("near")).remove("cube.f16.cu").unwrap()).unwrap();
    let back: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, l)| l.contains("\"cube.f16.cu\"")).collect();
    assert!(!back.is_empty(), "{text}");
    back.iter().for_each(|(i, l)| assert_eq!(*l, format!("#line {} \"cube.f16.cu\"", i + 2)));
    assert!(text.contains("#line 3 \"s.hyp\""), "{text}");
}

#[test]
fn what_the_kernels_cannot_run_on_is_refused_before_anything_is_compiled() {
    let folder = with(&[("s.hyp", "scalar cube(x) = x * x * x;\n")]);
    let (code, _, err) = hypatia(&["gen", "s.hyp", "-o", "k", "--arch", "sm_75"], folder.path());
    assert!(
        code == 2 && err.contains("the oldest supported architecture is sm_80") && !err.contains("compiled"),
        "{code} {err}"
    );
    assert!(!folder.path().join("k").exists());
}

#[test]
fn a_models_manifest_tells_what_runs_when() {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/bert/model.onnx");
    let args = ["gen", "--model", model.to_str().unwrap(), "-o", "k", "--emit", "cuda"];
    let (code, _, err) = hypatia(&args, folder.path());
    assert_eq!(code, 0, "{err}");
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("k/manifest.json")).unwrap()).unwrap();
    let kernels: Vec<&str> =
        manifest["kernels"].as_array().unwrap().iter().filter_map(|k| k["kernel"].as_str()).collect();
    let steps = manifest["steps"].as_array().unwrap();
    let mut run: Vec<&str> = steps.iter().filter_map(|s| s["kernel"].as_str()).collect();
    assert!(steps.len() > run.len() && run.len() > kernels.len(), "{manifest}");
    assert!(steps.iter().all(|s| s["step"].as_str().is_some_and(|n| !n.is_empty())), "{manifest}");
    run.sort_unstable();
    run.dedup();
    let mut all = kernels.clone();
    all.sort_unstable();
    assert_eq!(run, all);
    for entry in manifest["kernels"].as_array().unwrap().iter().flat_map(|k| k["entries"].as_array().unwrap()) {
        assert!(entry["shared_memory"].is_u64() && entry["grid"].as_array().is_some_and(|g| g.len() == 3), "{entry}");
    }
}

#[test]
fn a_models_manifest_lists_what_sizes_decide() {
    let folder = tempfile::tempdir().unwrap();
    let mut graph = Graph::new(hypatia_library::load(&[]).unwrap());
    let ty = |shape: [Dim; 2]| TensorType { dtype: DType::F32, shape: shape.to_vec() };
    let x = graph.input("x", ty([128.into(), 64.into()]));
    let w = graph.input("w", ty([64.into(), Dim::symbol("n")]));
    let pre = graph.input("pre", ty([128.into(), Dim::symbol("n")]));
    let product = graph.call("matmul", &[x, w], &[]).unwrap()[0];
    let slope = graph.call("gelu_tanh_grad", &[pre], &[]).unwrap()[0];
    let y = graph.call("mul", &[product, slope], &[]).unwrap()[0];
    graph.output("y", y);
    let model = hypatia_pipeline::export(&graph).unwrap().model;
    hypatia_onnx::export::write(model, &folder.path().join("m.onnx")).unwrap();
    let gen_with = |more: &[&str]| {
        let args = [&["gen", "--model", "m.onnx", "-o", "k", "--emit", "cuda"], more].concat();
        let (code, _, err) = hypatia(&args, folder.path());
        assert_eq!(code, 0, "{err}");
        let manifest = std::fs::read(folder.path().join("k/manifest.json")).unwrap();
        (serde_json::from_slice::<serde_json::Value>(&manifest).unwrap()["choices"].clone(), err)
    };
    let (choices, err) = gen_with(&[]);
    let [choice] = choices.as_array().unwrap().as_slice() else { panic!("{choices}") };
    let kernels: Vec<&str> = choice["kernels"].as_array().unwrap().iter().filter_map(|k| k.as_str()).collect();
    assert!(kernels.len() > 1 && kernels.contains(&"cublaslt DGELU if shape(%w)[-1] % 8 == 0"), "{choices}");
    assert!(kernels.iter().all(|k| err.contains(k)), "{err}");
    let (choices, err) = gen_with(&["--dim", "n=64"]);
    assert!(choices.is_null() && !err.contains("sizes that are not known"), "{choices} {err}");
}
