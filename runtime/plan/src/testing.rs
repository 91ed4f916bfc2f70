//! Helpers shared by the unit tests of this crate.
#![allow(clippy::unwrap_used)]

use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_tensor::Result;

use super::{Options, Plan};

/// The plan of a graph, after kernel choice.
pub fn planned(graph: &Graph, options: &Options) -> Result<Plan> {
    let graph = hypatia_optimize::kernels::select(graph, &options.device, &options.allowed, &pipeline::FOLDER)?;
    Plan::build(&graph, options, &mut pipeline::constants())
}
