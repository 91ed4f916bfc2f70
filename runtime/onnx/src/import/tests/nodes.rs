//! The node tests of the `onnx` package: each runs through the reference evaluator and through the
//! CPU executor, or ends in an error that says what is not supported.
//!
//! In: target/onnx-nodes/cases.npz, which tools/fetch_node_cases.sh writes, and the expected
//! outcome of each case, tests/models/onnx_nodes.txt. Out: docs/onnx-ops.md must match the
//! outcomes. Run with `HYPATIA_UPDATE=1` to rewrite both. Invariant: a wrong result fails, whatever
//! outcome is expected.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use hypatia_dsl::dtype::DType;
use prost::Message;

use super::super::onnx::proto::{ModelProto, TensorProto};
use super::super::{Options, load_bytes, supported, tensor};
use super::{execute, models, program};
use hypatia_eval::{Mode, evaluate};
use hypatia_pipeline::FOLDER;
use hypatia_tensor::error::Error;
use hypatia_tensor::npz;
use hypatia_tensor::tensor::Tensor;

/// A case as stored in the archive.
#[derive(Default)]
struct Case {
    model: Vec<u8>,
    inputs: Vec<(String, Vec<u8>)>,
    outputs: Vec<(String, Vec<u8>)>,
}

/// The outcome of a case.
#[derive(Clone, PartialEq, PartialOrd, Eq, Ord)]
enum Status {
    /// The results match.
    Pass,
    /// The results match if operands that decide shapes are constants of the model.
    Fixed,
    /// Rejected, for this reason.
    Refused(String),
    /// The results differ.
    Wrong(String),
}

impl Status {
    fn word(&self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Fixed => "fixed",
            Status::Refused(_) => "refused",
            Status::Wrong(_) => "wrong",
        }
    }
}

pub(super) fn archive() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/onnx-nodes/cases.npz")
}

/// True for operands that may decide shapes.
fn is_shape(t: &Tensor) -> bool {
    t.shape().len() <= 1
}

/// The model of each case, and the operands that may have to be constants of it.
pub(super) fn files() -> Vec<(String, Vec<u8>, BTreeMap<String, Tensor>)> {
    let constants = |case: &Case| tensors(&case.inputs).unwrap_or_default().into_iter().filter(|(_, t)| is_shape(t));
    let of = |(name, case): (String, Case)| {
        let constants = constants(&case).collect();
        (name, case.model, constants)
    };
    cases().into_iter().map(of).collect()
}

fn cases() -> BTreeMap<String, Case> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for (name, tensor) in npz::read(&archive()).unwrap() {
        let (case, part) = name.split_once('/').unwrap();
        let case = cases.entry(case.to_string()).or_default();
        let bytes = tensor.bytes().to_vec();
        match part.split_once(':') {
            None => case.model = bytes,
            Some(("in", name)) => case.inputs.push((name.to_string(), bytes)),
            Some((_, name)) => case.outputs.push((name.to_string(), bytes)),
        }
    }
    cases
}

/// Tensors of the case, or the reason why an element type is not supported.
fn tensors(list: &[(String, Vec<u8>)]) -> Result<Vec<(String, Tensor)>, String> {
    list.iter()
        .map(|(name, bytes)| {
            let proto = TensorProto::decode(&bytes[..]).map_err(|e| e.to_string())?;
            match tensor::read(&proto, None) {
                Ok(t) => Ok((name.clone(), t)),
                Err(tensor::TensorFault::Unsupported(m) | tensor::TensorFault::Damaged(m)) => Err(m),
            }
        })
        .collect()
}

/// Cases whose expected values have only four digits.
const ROUNDED: &[&str] = &["test_averagepool_2d_ceil_last_window_starts_on_pad"];

/// Relative to the largest element.
fn tolerance(name: &str, dtype: DType) -> f64 {
    match dtype {
        _ if ROUNDED.contains(&name) => 1e-3,
        DType::F64 => 1e-7,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 2e-2,
        _ => 0.0,
    }
}

fn differs(name: &str, have: &Tensor, want: &Tensor) -> Option<String> {
    if (have.dtype(), have.shape()) != (want.dtype(), want.shape()) {
        let show = |t: &Tensor| format!("{}{:?}", t.dtype(), t.shape());
        return Some(format!("{}, {} expected", show(have), show(want)));
    }
    let (have, want64) = (have.to_f64(), want.to_f64());
    let scale = want64.iter().filter(|v| v.is_finite()).fold(1.0f64, |a, v| a.max(v.abs()));
    let near =
        |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance(name, want.dtype()) * scale;
    let at = (0..have.len()).find(|i| !near(have[*i], want64[*i]))?;
    Some(format!("element {at} is {}, {} expected", have[at], want64[at]))
}

/// Imports and runs a case; with `fixed`, operands that may decide shapes become constants.
fn run(name: &str, case: &Case, fixed: bool) -> Result<Status, Error> {
    let refused = |m: String| Ok(Status::Refused(m));
    let inputs = match tensors(&case.inputs) {
        Ok(t) => t,
        // The importer rejects the model as well.
        Err(m) => {
            let error = load_bytes(&case.model, name, program(), &Options::default(), &FOLDER).err();
            return match error {
                Some(Error::Unsupported { .. }) => refused(m),
                other => Ok(Status::Wrong(format!("{m}, but its import gives {other:?}"))),
            };
        }
    };
    let (constants, inputs): (Vec<_>, Vec<_>) = inputs.into_iter().partition(|(_, t)| fixed && is_shape(t));
    let shapes = inputs.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
    let options = Options { shapes, constants: constants.into_iter().collect(), ..Options::default() };
    let graph = load_bytes(&case.model, name, program(), &options, &FOLDER)?.graph;
    let want = match tensors(&case.outputs) {
        Ok(t) if t.len() == graph.outputs.len() => t,
        Ok(_) => return Ok(Status::Wrong("it has values that are no tensors, but is imported".into())),
        Err(m) => return Ok(Status::Wrong(format!("{m}, but it is imported"))),
    };
    graph.validate()?;
    let reference: Vec<Tensor> =
        evaluate(&graph, &inputs, Mode::Rounded)?.iter().map(|t| t.to_tensor()).collect::<Result<_, _>>()?;
    let executed = execute(&graph, &inputs)?;
    for (who, have) in [("reference", reference), ("executor", executed)] {
        for ((output, want), have) in want.iter().zip(&have) {
            if let Some(m) = differs(name, have, want) {
                return Ok(Status::Wrong(format!("{who}: `{output}`: {m}")));
            }
        }
    }
    Ok(if fixed { Status::Fixed } else { Status::Pass })
}

fn status(name: &str, case: &Case) -> Status {
    let result = match run(name, case, false) {
        Err(Error::Unsupported { message, .. }) => match run(name, case, true) {
            Err(Error::Unsupported { .. }) => Ok(Status::Refused(message)),
            other => other,
        },
        other => other,
    };
    result.unwrap_or_else(|e| Status::Wrong(e.to_string()))
}

/// The op that a case is about.
fn op_of(case: &Case) -> String {
    let model = ModelProto::decode(&case.model[..]).unwrap();
    match &model.graph.map(|g| g.node).unwrap_or_default()[..] {
        [one] if one.domain().is_empty() => one.op_type().to_string(),
        [one] => format!("{}.{}", one.domain(), one.op_type()),
        _ => "several nodes".to_string(),
    }
}

/// Counts and reasons of an op's cases.
#[derive(Default)]
struct Tally {
    counts: [usize; 3],
    reasons: BTreeSet<String>,
}

impl Tally {
    fn add(&mut self, status: &Status) {
        match status {
            Status::Pass => self.counts[0] += 1,
            Status::Fixed => self.counts[1] += 1,
            Status::Refused(why) => {
                self.counts[2] += 1;
                self.reasons.insert(why.split(" (nor are").next().unwrap_or(why).to_string());
            }
            Status::Wrong(_) => {}
        }
    }
}

/// docs/onnx-ops.md
fn page(ops: &BTreeMap<String, Tally>, expanded: &Tally) -> String {
    let mut out = String::from(
        "# ONNX ops\n\n\
         The import tests (`HYPATIA_UPDATE=1 cargo test -p hypatia node_tests`) generate this page from the\n\
         node tests of onnx 1.23.2, opsets 7 to 28.\n\n\
         - *Pass*: the reference evaluator and the CPU executor give the expected values.\n\
         - *Fixed*: they do where operands that determine shapes are constants of the model, as exporters\n\
         \x20 write them.\n\
         - *Refused*: an error names the node, its op and the reason; `hypatia` exits with 4.\n\n\
         ## Imported\n\n\
         | op | opsets | pass | fixed | refused | why refused |\n|---|---|---|---|---|---|\n",
    );
    let claimed: BTreeSet<&str> = supported().iter().map(|r| r.op).collect();
    let cell = |t: &Tally| {
        let reasons: Vec<String> = t.reasons.iter().map(|r| r.replace('|', "\\|").replace('\n', " ")).collect();
        reasons.join("; ")
    };
    for row in supported() {
        let since: Vec<String> = row.since.iter().map(i64::to_string).collect();
        let none = Tally::default();
        let t = ops.get(row.op).unwrap_or(&none);
        let [pass, fixed, refused] = t.counts;
        writeln!(out, "| {} | {} | {pass} | {fixed} | {refused} | {} |", row.op, since.join(", "), cell(t)).unwrap();
    }
    let [pass, fixed, refused] = expanded.counts;
    writeln!(
        out,
        "\nCases named `_expanded`, which write an op as the function that defines it: {pass} pass, {fixed} fixed, \
         {refused} refused."
    )
    .unwrap();
    out.push_str("\n## Not imported\n\n| op | cases |\n|---|---|\n");
    for (op, t) in ops.iter().filter(|(op, _)| !claimed.contains(op.as_str())) {
        writeln!(out, "| {op} | {} |", t.counts.iter().sum::<usize>()).unwrap();
    }
    out
}

#[test]
fn node_tests_of_onnx_pass_or_are_refused() {
    if !archive().is_file() {
        println!("skipped: {} is not there; tools/fetch_node_cases.sh writes it", archive().display());
        return;
    }
    let all = cases();
    let (mut ops, mut expanded) = (BTreeMap::<String, Tally>::new(), Tally::default());
    let (mut list, mut wrong) = (String::new(), Vec::new());
    for (name, case) in &all {
        let status = status(name, case);
        let tally = if name.contains("_expanded") { &mut expanded } else { ops.entry(op_of(case)).or_default() };
        tally.add(&status);
        writeln!(list, "{name} {}", status.word()).unwrap();
        if let Status::Wrong(m) = status {
            wrong.push(format!("{name}: {m}"));
        }
    }
    let page = page(&ops, &expanded);
    println!("{page}\n{} cases, {} wrong", all.len(), wrong.len());
    let expectations = models().join("onnx_nodes.txt");
    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx-ops.md");
    if std::env::var_os("HYPATIA_UPDATE").is_some() {
        std::fs::write(&expectations, &list).unwrap();
        std::fs::write(&doc, &page).unwrap();
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let expected = std::fs::read_to_string(&expectations).unwrap();
    let old: BTreeSet<&str> = expected.lines().collect();
    let new: BTreeSet<&str> = list.lines().collect();
    let changed: Vec<&&str> = new.difference(&old).collect();
    let hint = "run with HYPATIA_UPDATE=1 to write tests/models/onnx_nodes.txt and docs/onnx-ops.md anew";
    assert!(old == new, "what became of some cases has changed ({hint}): {changed:?}");
    assert!(std::fs::read_to_string(&doc).unwrap() == page, "docs/onnx-ops.md is stale: {hint}");
}
