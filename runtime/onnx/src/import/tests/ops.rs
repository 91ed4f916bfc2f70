//! Tiny models of single ops, at each version of their definitions, compared with onnxruntime.

use std::collections::BTreeMap;
use std::path::Path;

use hypatia_dsl::dtype::DType;

use super::{execute, models, program};
use crate::import::{Options, load_bytes};
use hypatia_eval::{Mode, evaluate};
use hypatia_pipeline as pipeline;
use hypatia_pipeline::FOLDER;
use hypatia_tensor::error::Error;
use hypatia_tensor::npz;
use hypatia_tensor::tensor::Tensor;

/// One model with its inputs and expected outputs.
#[derive(Default)]
pub(super) struct Case {
    pub model: Vec<u8>,
    pub inputs: Vec<(String, Tensor)>,
    pub outputs: Vec<(String, Tensor)>,
}

/// The cases of an archive: `CASE/model`, `CASE/in:NAME`, `CASE/out:NAME`.
pub(super) fn cases(path: &Path) -> BTreeMap<String, Case> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for (name, tensor) in npz::read(path).unwrap() {
        let (case, part) = name.split_once('/').unwrap();
        let case = cases.entry(case.to_string()).or_default();
        match part.split_once(':') {
            None => case.model = tensor.bytes().to_vec(),
            Some(("in", name)) => case.inputs.push((name.to_string(), tensor)),
            Some((_, name)) => case.outputs.push((name.to_string(), tensor)),
        }
    }
    cases
}

/// Relative to the largest element, with room for approximations in libraries.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 2e-2,
        _ => 0.0,
    }
}

fn differs(have: &[f64], want: &Tensor) -> Option<String> {
    let want64 = want.to_f64();
    let scale = want64.iter().filter(|v| v.is_finite()).fold(1.0f64, |a, v| a.max(v.abs()));
    let near =
        |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance(want.dtype()) * scale;
    if have.len() != want64.len() {
        return Some(format!("{} elements, {} expected", have.len(), want64.len()));
    }
    let at = (0..have.len()).find(|i| !near(have[*i], want64[*i]))?;
    Some(format!("element {at} is {}, {} expected", have[at], want64[at]))
}

/// Runs whole small networks through the optimiser and the executor too.
fn check_optimised(name: &str, case: &Case) -> Result<(), Error> {
    let shapes = case.inputs.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
    let graph = load_bytes(&case.model, name, program(), &Options { shapes, ..Options::default() }, &FOLDER)?.graph;
    let out = pipeline::optimize(&graph, &hypatia_optimize::Options::default())?;
    for (how, graph) in [("unfused", &graph), ("fused", &out.graph)] {
        for ((output, want), have) in case.outputs.iter().zip(execute(graph, &case.inputs)?) {
            if let Some(m) = differs(&have.to_f64(), want) {
                return Err(Error::Internal(format!("{name}, {how}: `{output}`: {m}")));
            }
        }
    }
    Ok(())
}

/// Imports and evaluates a case; the error says what is wrong.
pub(super) fn check(name: &str, case: &Case) -> Result<(), Error> {
    let import = load_bytes(&case.model, name, program(), &Options::default(), &FOLDER)?;
    import.graph.validate()?;
    let results = evaluate(&import.graph, &case.inputs, Mode::Rounded)?;
    let wrong = |m: String| Err(Error::Internal(format!("{name}: {m}")));
    if results.len() != case.outputs.len() {
        return wrong(format!("{} outputs", results.len()));
    }
    for (((output, _), have), (_, want)) in import.graph.outputs.iter().zip(&results).zip(&case.outputs) {
        if (have.dtype, &have.shape[..]) != (want.dtype(), want.shape()) {
            let (d, s) = (want.dtype(), want.shape());
            return wrong(format!("`{output}` is {}{:?}, {d}{s:?} expected", have.dtype, have.shape));
        }
        if let Some(m) = differs(&have.to_tensor()?.to_f64(), want) {
            return wrong(format!("`{output}`: {m}"));
        }
    }
    Ok(())
}

#[test]
fn ops_agree_with_onnxruntime() {
    let all = cases(&models().join("ops.npz"));
    assert!(all.len() > 400);
    let whole = |n: &str| ["family", "graph", "conv", "maxpool", "averagepool"].iter().any(|p| n.starts_with(p));
    let both = |n: &str, c: &Case| check(n, c).and_then(|()| if whole(n) { check_optimised(n, c) } else { Ok(()) });
    let failed: Vec<String> = all.iter().filter_map(|(n, c)| both(n, c).err().map(|e| format!("{n}: {e}"))).collect();
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), all.len(), failed.join("\n"));
}

/// Whole models, or all folders in another path.
#[test]
fn models_agree_with_their_exporter() {
    let folders = match std::env::var_os("HYPATIA_MODELS") {
        Some(path) => std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect(),
        None => ["digits", "ffn", "bert"].map(|m| models().join(m)).to_vec(),
    };
    for dir in folders.into_iter().filter(|d| d.join("model.onnx").is_file()) {
        let name = dir.display().to_string();
        let case = Case {
            model: std::fs::read(dir.join("model.onnx")).unwrap(),
            inputs: npz::read(&dir.join("inputs.npz")).unwrap(),
            outputs: npz::read(&dir.join("outputs.npz")).unwrap(),
        };
        match check(&name, &case) {
            Err(e @ Error::Unsupported { .. }) => println!("{e}"),
            result => result.unwrap_or_else(|e| panic!("{e}")),
        }
    }
}
