//! What the unit tests of this crate share.
#![allow(clippy::unwrap_used)]

use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_tensor::Result;

use super::{Options, Plan};

/// The plan of a graph, its lists of kernels made first.
pub fn planned(graph: &Graph, options: &Options) -> Result<Plan> {
    let graph = hypatia_optimize::kernels::select(graph, &options.device, &pipeline::FOLDER)?;
    Plan::build(&graph, options, &mut pipeline::constants())
}
