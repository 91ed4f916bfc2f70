//! Compares imports with the `onnx` package and onnxruntime, and tests damaged files.
//!
//! The models and expected values are in tests/models; tools/make_op_models.py and
//! tools/onnx_types.py write them.
#![allow(clippy::unwrap_used)]

mod bad;
mod defaults;
mod dynamic;
mod masks;
mod no_elements;
mod nodes;
mod non_finite;
mod norms;
mod ops;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use hypatia_dsl::ir::Program;

use super::{Options, load_with, supported};
use hypatia_cpu::Executor;
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_pipeline::FOLDER;
use hypatia_plan as plan;
use hypatia_target::device::Device;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

pub(super) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

/// Results of the CPU executor.
pub(super) fn execute(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let plan = Arc::new(pipeline::plan(graph, &plan::Options::new(Device::named("cpu").unwrap()))?);
    let given = |n: &str| inputs.iter().find(|(i, _)| i == n).map(|(_, t)| t.clone()).unwrap();
    let ordered: Vec<Tensor> = plan.inputs.iter().map(|i| given(&i.name)).collect();
    Executor::new(plan, 1)?.poisoned().run(&ordered)
}

pub(super) fn program() -> Arc<Program> {
    static PROGRAM: LazyLock<Arc<Program>> = LazyLock::new(|| hypatia_library::load(&[]).unwrap());
    PROGRAM.clone()
}

#[test]
fn every_value_has_the_type_that_onnx_infers() {
    for name in ["digits", "ffn", "bert"] {
        let dir = models().join(name);
        let import = load_with(&dir.join("model.onnx"), program(), &Options::default(), &FOLDER)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        import.graph.validate().unwrap();
        let expected: BTreeMap<String, String> =
            serde_json::from_str(&std::fs::read_to_string(dir.join("types.json")).unwrap()).unwrap();
        let types: HashMap<&str, String> = import.types.iter().map(|(n, t)| (n.as_str(), t.to_string())).collect();
        for (value, ty) in &expected {
            assert_eq!(types.get(value.as_str()), Some(ty), "{name}: {value}");
        }
        assert_eq!(types.len(), expected.len(), "{name}");
    }
}

#[test]
fn given_shapes_bind_symbols() {
    let path = models().join("digits/model.onnx");
    let shapes = |shape: &[usize]| Options {
        shapes: BTreeMap::from([("input".to_string(), shape.to_vec())]),
        ..Options::default()
    };
    let import = load_with(&path, program(), &shapes(&[7, 64]), &FOLDER).unwrap();
    assert_eq!(import.graph.ty(import.graph.outputs[0].1).to_string(), "f32[7, 10]");
    for (options, says) in [
        (shapes(&[7, 63]), "axis 1 has size 64, not 63"),
        (shapes(&[7]), "`input` should have rank 2"),
        (
            Options { shapes: BTreeMap::from([("x".to_string(), vec![])]), ..Options::default() },
            "no input `x`; its inputs are: input",
        ),
    ] {
        let error = load_with(&path, program(), &options, &FOLDER).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_table_knows_every_version() {
    let text = std::fs::read_to_string(models().join("onnx_versions.json")).unwrap();
    let versions: BTreeMap<String, Vec<i64>> = serde_json::from_str(&text).unwrap();
    for row in supported() {
        let all = &versions[row.op];
        let first = all.iter().rev().find(|v| **v <= 13).or(all.first()).unwrap();
        let expected: Vec<i64> = all.iter().copied().filter(|v| v >= first).collect();
        assert_eq!(row.since, expected, "{}", row.op);
    }
}

#[test]
fn every_name_of_the_table_is_in_the_library() {
    for row in super::tables::ROWS {
        for name in row.names {
            let found = program().find_op(name).is_some() || program().find_scalar(name).is_some();
            assert!(found, "{}: {name}", row.op);
        }
    }
}

#[test]
fn claimed_ops_are_imported() {
    let text = std::fs::read_to_string(models().join("claimed_ops.txt")).unwrap();
    let have: Vec<&str> = supported().iter().map(|r| r.op).collect();
    let missing: Vec<&str> = text.lines().filter(|l| !l.starts_with('#') && !have.contains(l)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
