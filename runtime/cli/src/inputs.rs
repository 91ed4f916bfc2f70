//! A model, and random inputs for it if the user gives none.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use hypatia::session::{Model, Options, Refusal};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Demand, Program};
use hypatia_dsl::shape::Dim;
use hypatia_graph::{Graph, NodeKind, Symbols};
use hypatia_optimize as optimize;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::device::MemoryOptions;
use super::model::Sizes;

/// Tensors by name.
pub type Named = Vec<(String, Tensor)>;

/// The model with these dynamic sizes, 1 by default, and random values for every input; also a
/// description of the chosen sizes.
pub fn load_random(
    path: &Path,
    program: Arc<Program>,
    options: Options,
    given: &Sizes,
    seed: u64,
) -> Result<(Model, Named, String)> {
    let model = Model::new(given.load(path, program)?, options);
    let symbols = model.graph().symbols();
    let sizes: Symbols = symbols.iter().map(|s| (s.clone(), 1)).collect();
    let inputs = random_inputs(&model.graph().specialize(&sizes)?, seed)?;
    let given = given.dim.iter().map(|(n, s)| (n.as_str(), *s));
    let chosen: String = given.chain(sizes.iter().map(|(s, v)| (&**s, *v))).fold(String::new(), |mut text, (s, v)| {
        let _ = write!(text, ", {s} = {v}");
        text
    });
    Ok((model, inputs, chosen))
}

/// Every dynamic size when rules are tested: a size at which broadcasting cannot hide an error.
const TRIED_SIZE: i64 = 3;

/// Runs the optimised graph and the original graph on random inputs on the CPU, as `run` does
/// before its first result. Returns why the optimised graph would be refused, or `None`. Reports if
/// the comparison could not run.
fn wrong(graph: &Graph, options: &optimize::Options, memory: MemoryOptions, quiet: bool) -> Option<Refusal> {
    let tried = || -> Result<Option<Refusal>> {
        let sizes: Symbols = graph.symbols().into_iter().map(|s| (s, TRIED_SIZE)).collect();
        let inputs = random_inputs(&graph.specialize(&sizes)?, 0)?;
        // What the contract forbids stays forbidden; what it demands is not the question here.
        let (disabled, contract) = (options.allowed().disabled, Vec::new());
        let optimize = optimize::Options { disabled, contract, ..options.clone() };
        let options = Options { optimize, memory: memory.bytes(), ..Options::default() };
        let model = Model::new(graph.clone(), options);
        Ok(model.compile(&inputs)?.refusal.clone())
    };
    match tried() {
        Ok(refusal) => refusal,
        Err(e) => {
            if !quiet {
                anstream::eprintln!("note: the rules were not tested on the model: {e}");
            }
            None
        }
    }
}

/// The rules that change what a model computes, as far as they are known.
fn these(without: &[String]) -> String {
    match without {
        [] => "the rules".to_string(),
        some => format!("the rules {}", some.join(", ")),
    }
}

/// For a command that writes the optimised graph: fails if the rules are wrong on this graph.
pub fn must_be_right(graph: &Graph, options: &optimize::Options, memory: MemoryOptions, quiet: bool) -> Result<()> {
    let Some(Refusal { reason, without, .. }) = wrong(graph, options, memory, quiet) else { return Ok(()) };
    let f16 = match has_f16(graph) {
        true => "; a constant that a rule computes may also be too large or too small for f16",
        false => "",
    };
    let rules = these(&without);
    Err(Error::Input(format!(
        "nothing was written: {rules} change what the model computes: {reason}{f16}. `--disable RULE` leaves a \
         rule out"
    )))
}

/// For a command that shows the optimised graph: warns if the rules are wrong on this graph, even
/// with -q, as `run` does.
///
/// # Errors
/// If the contract demands rules: those of a graph that is not used have no site.
pub fn warn_if_wrong(graph: &Graph, options: &optimize::Options, memory: MemoryOptions, quiet: bool) -> Result<()> {
    let Some(Refusal { reason, without, .. }) = wrong(graph, options, memory, quiet) else { return Ok(()) };
    let rules = these(&without);
    let text = format!(
        "{rules} change what the model computes, and `run` would not use this: {reason}. `--disable RULE` leaves a \
         rule out"
    );
    if let Some(clause) = options.contract.iter().find(|c| matches!(c.demand, Demand::Must { .. })) {
        return Err(Error::Contract(format!("`{clause}` is not met, because {text}")));
    }
    anstream::eprintln!("warning: {text}");
    Ok(())
}

/// True if the graph contains f16 values: constants that rules compute may leave the range of f16.
pub fn has_f16(graph: &Graph) -> bool {
    graph.nodes.iter().flat_map(|n| &n.results).any(|ty| ty.dtype == DType::F16)
}

/// Random values for every input of a graph with known sizes.
fn random_inputs(graph: &Graph, seed: u64) -> Result<Vec<(String, Tensor)>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut inputs = Vec::new();
    for id in &graph.inputs {
        let node = graph.node(*id);
        let NodeKind::Input { name } = &node.kind else { continue };
        let ty = &node.results[0];
        let shape: Option<Vec<usize>> =
            ty.shape.iter().map(|d| Dim::as_const(d).and_then(|v| usize::try_from(v).ok())).collect();
        let shape = shape.ok_or_else(|| Error::Input(format!("input `{name}`: the sizes of {ty} are not known")))?;
        inputs.push((name.clone(), random(ty.dtype, &shape, &mut rng)?));
    }
    Ok(inputs)
}

/// The largest number of elements of a random input.
const MAX_ELEMENTS: usize = 1 << 26;

/// Floats between -1 and 1, truth values, integers 0 and 1 (valid indices of nearly all tables).
fn random(dtype: DType, shape: &[usize], rng: &mut ChaCha8Rng) -> Result<Tensor> {
    let too_large = || {
        Error::Limit(format!(
            "a random input of shape {shape:?} has more than the {MAX_ELEMENTS} elements that are made up: \
             `--inputs FILE.npz` gives values, `--dim NAME=N` another number for a dynamic size"
        ))
    };
    let count = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d));
    let n = count.filter(|n| *n <= MAX_ELEMENTS).ok_or_else(too_large)?;
    let values: Vec<f64> = (0..n)
        .map(|_| if dtype.is_float() { rng.random_range(-1.0..1.0) } else { rng.random_range(0..2) as f64 })
        .collect();
    Tensor::from_f64(dtype, shape, &values).ok_or_else(too_large)
}
