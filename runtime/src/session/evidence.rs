//! A small graph that shows what was wrong.
//!
//! In: a plan that differs from the unfused one, and the rules that make the difference. Out: at
//! most [`MOST_NODES`] nodes of the model whose fused plan still differs, on values from the
//! model's run, and whether the rule or a kernel is to blame. Invariant: the graph that is returned
//! was run, and differed.

use std::path::{Path, PathBuf};

use hypatia_graph::{Cone, Graph, NodeId, NodeKind};
use hypatia_optimize as optimize;
use hypatia_optimize::Firing;
use hypatia_pipeline as pipeline;
use hypatia_tensor::compare::{Comparison, Tolerance};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::npz;
use hypatia_tensor::tensor::Tensor;

use super::compiled::{Compiled, Planner, Refusal};
use super::incident::Culprit;
use super::judge::Judge;
use crate::compare::of_outputs;

/// Nodes of a small graph that compute.
const MOST_NODES: usize = 20;
/// Sizes of graphs that are tried, the smallest first.
const SIZES: [usize; 4] = [3, 6, 12, MOST_NODES];
/// Places that are tried.
const PLACES: usize = 16;

/// Looks for a small graph.
pub(super) struct Evidence<'a> {
    pub judge: &'a Judge,
    pub compiled: &'a Compiled,
    /// The inputs for which the plans differ.
    pub inputs: &'a [Tensor],
}

/// A small graph whose fused plan is wrong.
struct Small {
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    fault: Fault,
    /// How its fused plan differs.
    comparison: Comparison,
}

/// What is wrong with a fused plan.
enum Fault {
    /// The graph that the rules made.
    Rule,
    /// A kernel: its step.
    Kernel(String),
}

impl Evidence<'_> {
    /// Who is to blame for a difference that goes away without these rules, and the folder where a
    /// small graph was saved, if the settings ask for one.
    pub fn shown(&self, refusal: &Refusal) -> (Culprit, Option<PathBuf>) {
        let small = self.of(&refusal.without);
        let culprit = match (small.as_ref().map(|small| &small.fault), refusal.is_whole()) {
            (Some(Fault::Kernel(step)), _) => Culprit::Kernel(step.clone()),
            (_, true) => Culprit::Plan,
            (_, false) => Culprit::Rules(refusal.without.clone()),
        };
        let saved = small.zip(self.judge.options.incidents.as_deref()).and_then(|(small, folder)| {
            // Results count for more than a file that could not be written.
            small.save(folder, &culprit, &refusal.reason).ok()
        });
        (culprit, saved)
    }

    /// The smallest such graph that is found, if there is one, for the firings of these rules, or
    /// of all.
    fn of(&self, rules: &[String]) -> Option<Small> {
        let graph = &self.compiled.unfused.graph;
        let fired = |f: &&Firing| f.kept && (rules.is_empty() || rules.contains(&f.rule));
        let sites = self.compiled.report.firings.iter().filter(fired).map(|f| nodes_named(graph, &f.nodes));
        let mut places: Vec<Vec<NodeId>> = sites.filter(|nodes| !nodes.is_empty()).collect();
        places.dedup();
        // A rule within an epilogue names no node.
        let all = (0..graph.nodes.len()).map(|i| NodeId(i as u32)).filter(|id| computes(graph, *id));
        let all: Vec<NodeId> = all.collect();
        let step = all.len().div_ceil(PLACES).max(1);
        places.truncate(PLACES);
        places.extend(all.iter().rev().step_by(step).map(|id| vec![*id]));
        SIZES.iter().find_map(|size| places.iter().find_map(|ends| self.at(ends, *size).ok().flatten()))
    }

    /// Makes plans of the host: a small graph is run there, where it is the graph that is wrong and
    /// not a kernel of a GPU.
    fn planner(&self) -> &Planner {
        let planner = &self.compiled.unfused.planner;
        if planner.gpu.is_some() { &self.judge.host } else { planner }
    }

    /// The graph of that size that ends at these nodes, if its fused plan differs.
    fn at(&self, ends: &[NodeId], size: usize) -> Result<Option<Small>> {
        let Cone { graph, inputs } = self.compiled.unfused.graph.cone(ends, size)?;
        let inputs = self.values(&inputs)?;
        let planner = self.planner();
        let want = planner.plan(&graph, false, None)?.run(&inputs)?;
        let device = planner.options.device.clone();
        let options = optimize::Options { device, ..self.judge.options.optimize.clone() };
        let optimized = pipeline::optimize(&graph, &options)?.graph;
        let fused = planner.plan(&optimized, true, None)?;
        let tolerances = of_outputs(&graph);
        let Some(comparison) = difference(&fused.run(&inputs)?, &want, &tolerances)? else { return Ok(None) };
        // The same graph with each op written out has other kernels.
        let parts = planner.plan(&optimized.inlined()?, false, None)?.run(&inputs)?;
        let fault = match difference(&parts, &want, &tolerances)? {
            Some(_) => Fault::Rule,
            None => Fault::Kernel(fused.plan().steps.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ")),
        };
        let names = (0..inputs.len()).map(|i| format!("in{i}"));
        Ok(Some(Small { graph, inputs: names.zip(inputs).collect(), fault, comparison }))
    }

    /// Values of the whole graph, by the unfused plan.
    fn values(&self, wanted: &[hypatia_graph::Value]) -> Result<Vec<Tensor>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut graph = self.compiled.unfused.graph.clone();
        graph.outputs = wanted.iter().enumerate().map(|(i, v)| (format!("v{i}"), *v)).collect();
        self.planner().plan(&graph.pruned(), false, None)?.run(self.inputs)
    }
}

impl Small {
    /// Writes the graph, its inputs and what is wrong into a new folder within that one.
    ///
    /// # Errors
    /// If they cannot be written.
    fn save(&self, within: &Path, culprit: &Culprit, reason: &str) -> Result<PathBuf> {
        let failed = |e: std::io::Error| Error::Input(format!("{}: {e}", within.display()));
        std::fs::create_dir_all(within).map_err(failed)?;
        let mut number = 1;
        let folder = loop {
            let folder = within.join(format!("incident-{number}"));
            match std::fs::create_dir(&folder) {
                Ok(()) => break folder,
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(failed(e)),
            }
        };
        npz::write(&folder.join("inputs.npz"), &self.inputs)?;
        #[cfg(feature = "onnx")]
        {
            use hypatia_onnx::export;
            let model = export::export(&self.graph, &hypatia_cpu::HostFolder)?.model;
            export::write(model, &folder.join("model.onnx"))?;
        }
        let text = format!("{culprit}: {reason}\n\nHere: {}\n\n{}", self.comparison, self.graph.to_text());
        std::fs::write(folder.join("about.txt"), text).map_err(failed)?;
        Ok(folder)
    }
}

/// True if a node is no input and no constant.
fn computes(graph: &Graph, id: NodeId) -> bool {
    !matches!(graph.node(id).kind, NodeKind::Input { .. } | NodeKind::Const(_))
}

/// The nodes of these names that compute.
fn nodes_named(graph: &Graph, names: &[String]) -> Vec<NodeId> {
    let ids = (0..graph.nodes.len()).map(|i| NodeId(i as u32));
    ids.filter(|id| computes(graph, *id) && names.contains(&graph.node(*id).name)).collect()
}

/// The first output that differs.
fn difference(got: &[Tensor], want: &[Tensor], tolerances: &[Tolerance]) -> Result<Option<Comparison>> {
    for ((g, w), tolerance) in got.iter().zip(want).zip(tolerances) {
        let c = Comparison::of(g, w, *tolerance)?;
        if !c.ok {
            return Ok(Some(c));
        }
    }
    Ok(None)
}
