//! Builds a plan: prepares the graph, lowers it, copies constants, removes other copies, joins
//! products with each other, with work on their results and with the work on their factors,
//! gives independent pointwise work one launch, and places the buffers.
//!
//! In: a graph, the values of its symbolic sizes, settings, and the model's constants. Out: a
//! [`Plan`]. Invariant: debug builds validate every plan.

use super::horizontal::Sharing;
use super::options::Options;
use super::plan::Plan;
use super::prepare::Weights;
use super::{
    added, arena, beside, chain, concat, copies, finish, horizontal, joint_rows, laid_out, long_rows, lower,
    narrow_weights, pool, prepare, prologue, reordered, results, short,
};
use hypatia_graph::{Constants, Graph, Symbols};
use hypatia_tensor::error::Result;

impl Plan {
    /// Plans a graph whose sizes are all numbers. Reuses the constants that earlier plans of the
    /// model have computed.
    pub fn build(graph: &Graph, options: &Options, constants: &mut Constants) -> Result<Plan> {
        let prepared = prepare::prepare(graph, options, constants, Weights::Narrow)?;
        let plan = Plan::of(&prepared, options, Some(constants))?;
        // Some work on a weight was not joined with its product.
        if narrow_weights::computes_constants(&plan) {
            let prepared = prepare::prepare(graph, options, constants, Weights::Folded)?;
            return Plan::of(&prepared, options, Some(constants));
        }
        Ok(plan)
    }

    /// Plans a graph for these values of its symbols. What becomes one launch, and by which kernel,
    /// is decided while the sizes are symbols: plans of other sizes have the same launches. With
    /// [`Allowed::batch_invariant`](hypatia_dsl::numerics::Allowed), each row then has the same
    /// bits in all of them.
    pub fn specialized(graph: &Graph, symbols: &Symbols, options: &Options, constants: &mut Constants) -> Result<Plan> {
        let open = prepare::prepare(graph, options, constants, Weights::Folded)?;
        let prepared = open.specialized(symbols, options, constants)?;
        Plan::of(&prepared, options, Some(constants))
    }

    /// Plans a graph of builtin ops without constant folding. Constant expressions themselves are
    /// planned this way.
    pub fn inlined(graph: &Graph, options: &Options) -> Result<Plan> {
        Plan::of(&prepare::Prepared::of(graph.clone(), prepare::Kernels::default(), options)?, options, None)
    }

    /// Without the model's constants, what is copied of them is copied in the plan.
    fn of(prepared: &prepare::Prepared, options: &Options, known: Option<&mut Constants>) -> Result<Plan> {
        let mut plan = lower::lower(prepared, options)?;
        if let Some(known) = known {
            laid_out::fold(&mut plan, known);
        }
        if !plan.device.is_host() {
            copies::remove(&mut plan);
            concat::omit(&mut plan);
            copies::join(&mut plan);
            pool::omit_padding(&mut plan);
            if options.cluster {
                chain::cluster(&mut plan);
                beside::cluster(&mut plan);
                results::cluster(&mut plan);
                prologue::cluster(&mut plan);
                finish::cluster(&mut plan);
                added::cluster(&mut plan);
                reordered::cluster(&mut plan);
            }
            long_rows::split(&mut plan);
        }
        let steps = plan.steps.clone();
        if plan.placed(options, Sharing::Any).is_err() {
            // Large results that share a launch take memory for longer.
            plan.steps = steps;
            plan.placed(options, Sharing::Small)?;
        }
        if cfg!(debug_assertions) {
            plan.validate()?;
        }
        Ok(plan)
    }

    /// Joins independent steps, and places the buffers.
    fn placed(&mut self, options: &Options, sharing: Sharing) -> Result<()> {
        if !self.device.is_host() {
            if options.cluster {
                horizontal::cluster(self, sharing);
                joint_rows::cluster(self, sharing);
            }
            short::shorten(self);
        }
        arena::assign(self, options.memory)
    }
}
