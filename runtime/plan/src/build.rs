//! Builds a plan: prepares the graph, lowers it, removes copies, joins products, and places the
//! buffers.
//!
//! In: a graph on concrete sizes, settings, and the model's constants. Out: a [`Plan`]. Invariant:
//! debug builds validate every plan.

use super::options::Options;
use super::plan::Plan;
use super::{arena, chain, concat, copies, lower, prepare, short};
use hypatia_graph::{Constants, Graph};
use hypatia_tensor::error::Result;

impl Plan {
    /// Plans a graph whose sizes are all numbers. Reuses the constants that earlier plans of the
    /// model have computed.
    pub fn build(graph: &Graph, options: &Options, constants: &mut Constants) -> Result<Plan> {
        Plan::of(&prepare::prepare(graph, options, constants)?, options)
    }

    /// Plans a graph of builtin ops without constant folding. Constant expressions themselves are
    /// planned this way.
    pub fn inlined(graph: &Graph, options: &Options) -> Result<Plan> {
        let prepared = prepare::Prepared { graph: graph.clone(), kernels: prepare::Kernels::default() };
        Plan::of(&prepared, options)
    }

    fn of(prepared: &prepare::Prepared, options: &Options) -> Result<Plan> {
        let mut plan = lower::lower(prepared, options)?;
        if !plan.device.is_host() {
            copies::remove(&mut plan);
            concat::omit(&mut plan);
            copies::join(&mut plan);
            if options.cluster {
                chain::cluster(&mut plan);
            }
            short::shorten(&mut plan);
        }
        arena::assign(&mut plan, options.memory)?;
        if cfg!(debug_assertions) {
            plan.validate()?;
        }
        Ok(plan)
    }
}
