//! Models that once showed an error of Hypatia: what `hypatia run` makes of them now.
//! `tests/models/found` holds them, with inputs and what ONNX's own reference gives.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(model: &str, more: &[&str]) -> Output {
    let at = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/found");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypatia"));
    command.current_dir(&at).env("HYPATIA_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.args(["run", &format!("{model}.onnx"), "--device", "cpu"]);
    let inputs = format!("{model}.in.npz");
    if at.join(&inputs).is_file() {
        command.args(["--inputs", &inputs]);
    }
    command.args(more).output().unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn json(model: &str, more: &[&str]) -> Value {
    let o = run(model, &[&["--json"], more].concat());
    assert!(o.status.success(), "{model}: {}", err(&o));
    serde_json::from_slice(&o.stdout).unwrap()
}

/// Values outside of a domain, weights that are not finite (beside padding and inserted zeros), and
/// a batch size that the exporter left in a declared output.
#[test]
fn results_are_those_of_the_reference_of_onnx() {
    for model in ["acosh", "conv_nan_pad", "conv_transpose_inf_stride", "autoencoder_static_output", "non_finite"] {
        let o = run(model, &["--check", &format!("{model}.out.npz")]);
        assert!(o.status.success(), "{model}: {}", err(&o));
        let warned = err(&o).contains("declared sizes");
        assert_eq!(warned, model == "autoencoder_static_output", "{model}: {}", err(&o));
    }
}

/// Where rounding meets a step (quantised values) or a steep function (the sine of large numbers),
/// plans may differ by rounding alone: no fusion is dropped for it, and nobody is blamed.
#[test]
fn rounding_drops_no_fusion() {
    for model in ["t5_dynq", "sine_of_large"] {
        let v = json(model, &["--recheck"]);
        assert_eq!((&v["warnings"], &v["fused_plan_used"]), (&serde_json::json!([]), &Value::Bool(true)), "{v:#}");
        assert!(v["launches"]["after"].as_u64() < v["launches"]["before"].as_u64(), "{v:#}");
    }
}

/// Where weights are not finite, only the rules that change NaN and infinities are left out.
#[test]
fn a_part_of_a_plan_that_differs_is_dropped() {
    let v = json("non_finite", &["--recheck"]);
    let warnings = v["warnings"].to_string();
    assert!(warnings.contains("not used: with") && warnings.contains("not wrong, only unused"), "{warnings}");
    assert_eq!(v["fused_plan_used"], true, "{v:#}");
    assert!(v["launches"]["after"].as_u64() < v["launches"]["before"].as_u64(), "{v:#}");
    // The verdict is kept, and the same plan made again.
    let again = json("non_finite", &[]);
    assert_eq!((&again["warnings"], &again["launches"]), (&v["warnings"], &v["launches"]));
}

/// What is not supported is refused with the node, the op and what to do.
#[test]
fn missing_ops_are_named() {
    for (model, said) in [
        ("lstm", ["`/l/LSTM`: LSTM (opset 17) is not supported", "export the model without it"]),
        ("gru", ["`node_gru__1`: GRU (opset 20) is not supported", "export the model without it"]),
        (
            "unet_qoperator",
            ["com.microsoft.QLinearConcat (opset 1) is not supported", "--domain com.microsoft=FILE.hyp"],
        ),
        ("detect_nms", ["NonMaxSuppression (opset 20) is not supported", "docs/onnx-ops.md lists"]),
        ("dyn_control", ["`node_cond__0`: If (opset 20) is not supported", "control flow is not imported"]),
        ("loop", ["`/e.0/Loop`: Loop (opset 17) is not supported", "control flow is not imported"]),
        ("fft_mixer", ["`node_DFT_15`: DFT (opset 20) is not supported", "export the model without it"]),
        // Its domain is imported twice, which is no error.
        ("opset_twice", ["ai.onnx.ml.LinearRegressor (opset 1) is not supported", "--domain ai.onnx.ml=FILE.hyp"]),
    ] {
        let o = run(model, &[]);
        assert_eq!(o.status.code(), Some(4), "{model}: {}", err(&o));
        assert!(said.iter().all(|s| err(&o).contains(s)), "{model}: {}", err(&o));
    }
}
