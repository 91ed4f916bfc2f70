//! The path from a model to a plan, stage by stage.
//!
//! In: a model file, a graph or a plan's settings. Out: the result of each stage. The stages run no
//! executor: this crate hands them the [`HostFolder`], which computes constants, and compares the
//! plans of two graphs. Invariant: every caller that plans a model takes this path, so the number
//! of launches that is reported is the number that runs.

#[cfg(feature = "onnx")]
use std::path::Path;
#[cfg(feature = "onnx")]
use std::sync::Arc;

use hypatia_dsl::ir::{Program, Rule};
use hypatia_dsl::kernel::short::is_short;
use hypatia_dsl::numerics::Allowed;
use hypatia_dsl::program_print::show_rule_lines;

use hypatia_cpu::HostFolder;
use hypatia_graph::fate::Fate;
use hypatia_graph::{Constants, Graph, Symbols};
#[cfg(feature = "onnx")]
use hypatia_onnx::{export, import};
use hypatia_optimize as optimize;
use hypatia_optimize::cost::ASSUMED_SIZE;
use hypatia_optimize::why_not::WhyNot;
use hypatia_optimize::{Choice, Considered, Firing, Launches, Optimized, contract, explain};
use hypatia_plan as plan;
use hypatia_plan::{Action, CallStep, Called, Plan, Shortened, Step};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

mod settle;
use settle::Decisions;

/// What computes constants.
pub static FOLDER: HostFolder = HostFolder;

/// Imports a model file: see [`import::load_with`].
#[cfg(feature = "onnx")]
pub fn load(path: &Path, program: Arc<Program>, options: &import::Options) -> Result<import::Import> {
    import::load_with(path, program, options, &FOLDER)
}

/// Exports a graph as an ONNX model: see [`export::export`].
#[cfg(feature = "onnx")]
pub fn export(graph: &Graph) -> Result<export::Export> {
    export::export(graph, &FOLDER)
}

/// Optimises a graph: see [`optimize::optimize`].
///
/// # Errors
/// Also if the contract of the options is not met: then the error says where, and why not.
pub fn optimize(graph: &Graph, options: &optimize::Options) -> Result<Optimized> {
    let optimized = optimize_anyway(graph, options)?;
    match contract::unmet(&optimized.report.contract) {
        Some(unmet) => Err(unmet),
        None => Ok(optimized),
    }
}

/// [`optimize()`], but a contract that is not met is only reported.
pub fn optimize_anyway(graph: &Graph, options: &optimize::Options) -> Result<Optimized> {
    let (mut optimized, decisions) = settled(graph, options)?;
    if options.contract.is_empty() {
        return Ok(optimized);
    }
    let (graph, options) = decisions.as_ref().map_or((graph, options), Decisions::parts);
    let program = &graph.program;
    let short = |r: &Rule| is_short(program, r) && options.contract.iter().any(|c| c.names(program, r));
    if program.rules.iter().any(short) {
        let fired = shortened(&optimized.graph, &options.device, options.allowed())?;
        optimized.report.firings.extend(fired.iter().map(|s| firing(program, s)));
    }
    let count = counter(options);
    optimized.report.contract = contract::outcomes(graph, options, (&FOLDER, &count), &optimized)?;
    Ok(optimized)
}

/// What the optimiser makes of a graph, and the decisions that take whole plans, if there are any.
fn settled(graph: &Graph, options: &optimize::Options) -> Result<(Optimized, Option<Decisions>)> {
    let first = optimize::optimize(graph, options, &FOLDER)?;
    Ok(match settle::settle(graph, options, &first)? {
        Some((decisions, optimized)) => (optimized, Some(decisions)),
        None => (first, None),
    })
}

/// Why a rule did not fire, at a node or anywhere.
pub fn why_not(graph: &Graph, options: &optimize::Options, rule: &str, node: Option<&str>) -> Result<WhyNot> {
    let decisions = settled(graph, options)?.1;
    let lost = decisions.iter().flat_map(|d| &d.settled).filter(|s| !s.used);
    if let Some(answer) = lost.filter_map(|s| explain::lost_plan(&graph.program, rule, s)).next() {
        return Ok(answer);
    }
    let (decided, options) = decisions.as_ref().map_or((graph, options), Decisions::parts);
    let mut answer = explain::why_not(decided, options, (&FOLDER, &counter(options)), rule, node)?;
    // A favoured rule does not say so in its file.
    if let Some(written) = graph.program.rules.iter().find(|r| r.name == answer.rule) {
        answer.text = show_rule_lines(&graph.program, written);
    }
    Ok(answer)
}

/// Counts the launches of a graph's plan.
fn counter(options: &optimize::Options) -> impl Fn(&Graph) -> Option<usize> {
    |graph| launches_as(graph, &planned_as(options)).ok()
}

/// A rule that fired in a generated kernel.
fn firing(program: &Program, s: &Shortened) -> Firing {
    let rule = &program.rules[s.rule.index()];
    let (rule, base) = (rule.name.clone(), rule.base_name.clone());
    Firing { rule, base, nodes: vec![s.step.clone()], kept: true, in_result: true, site: None }
}

/// Plans a graph whose sizes are all numbers: see [`Plan::build`].
pub fn plan(graph: &Graph, options: &plan::Options) -> Result<Plan> {
    plan_with(graph, options, &mut constants())
}

/// [`plan()`], with the constants that earlier plans of the model have computed. What the optimiser
/// has not seen gets its lists of kernels now.
pub fn plan_with(graph: &Graph, options: &plan::Options, constants: &mut Constants) -> Result<Plan> {
    let graph = optimize::kernels::select(graph, &options.device, &options.allowed, constants.folder())?;
    Plan::build(&graph, options, constants)
}

/// [`plan_with()`] for these values of a graph's symbols: see [`Plan::specialized`].
pub fn plan_specialized(
    graph: &Graph,
    symbols: &Symbols,
    options: &plan::Options,
    constants: &mut Constants,
) -> Result<Plan> {
    let graph = optimize::kernels::select(graph, &options.device, &options.allowed, constants.folder())?;
    Plan::specialized(&graph, symbols, options, constants)
}

/// No constants yet, for plans of one model.
pub fn constants() -> Constants {
    Constants::new(&FOLDER)
}

/// How a graph is planned that was optimised like this: for its device, with what its numerics
/// allow.
pub fn planned_as(options: &optimize::Options) -> plan::Options {
    plan::Options { allowed: options.allowed(), ..plan::Options::new(options.device.clone()) }
}

/// Launches of a graph on a device: the steps of its plan. A size that is still symbolic is taken
/// to be what the cost model assumes.
pub fn launches(graph: &Graph, device: &Device, cluster: bool) -> Result<usize> {
    launches_as(graph, &plan::Options { cluster, ..plan::Options::new(device.clone()) })
}

/// The same with all options of a plan.
pub fn launches_as(graph: &Graph, options: &plan::Options) -> Result<usize> {
    Ok(runnable(graph, options)?.launches())
}

/// Launches of a graph, one line each: what each computes. Sizes as for [`launches`].
pub fn launch_list(graph: &Graph, options: &plan::Options) -> Result<Vec<String>> {
    Ok(runnable(graph, options)?.launch_list())
}

/// The plan of a graph for a device. Fails if the device has no kernels for an element type in it,
/// as running it would.
fn runnable(graph: &Graph, options: &plan::Options) -> Result<Plan> {
    let (plan, device) = (assumed(graph, options)?, &options.device);
    let stored = |s: &Step| s.reads.iter().chain(&s.writes).map(|v| v.dtype).find(|d| d.only_stored());
    match plan.steps.iter().find_map(|s| Some((s, stored(s)?))).filter(|_| !device.is_host()) {
        None => Ok(plan),
        Some((step, dtype)) => {
            let title = if step.name.is_empty() { step.title() } else { format!("`{}`", step.name) };
            Err(Error::Device(format!(
                "{title} cannot run on a GPU: {dtype} has no CUDA kernels yet; keep {dtype} out of what the GPU \
                 computes, or take the CPU"
            )))
        }
    }
}

/// Where rules put short functions into the kernels of a graph on a device.
pub fn shortened(graph: &Graph, device: &Device, allowed: Allowed) -> Result<Vec<Shortened>> {
    if device.is_host() {
        return Ok(Vec::new());
    }
    Ok(assumed(graph, &plan::Options { allowed, ..plan::Options::new(device.clone()) })?.shortened)
}

/// The plan of a graph whose symbolic sizes are what the cost model assumes.
fn assumed(graph: &Graph, options: &plan::Options) -> Result<Plan> {
    let symbols = graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
    // Nothing is run: memory is no limit.
    plan(&graph.specialize(&symbols)?, &plan::Options { memory: usize::MAX, ..options.clone() })
}

/// Fails if a graph's plan takes more memory than that, in bytes. A size that is still symbolic is
/// taken to be what the cost model assumes.
pub fn must_fit(graph: &Graph, options: &optimize::Options, memory: usize) -> Result<()> {
    let symbols = graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
    let plain = plan::Options { memory, ..planned_as(options) };
    plan(&graph.specialize(&symbols)?, &plain).map(drop)
}

/// Plans a model both ways, as far as these options allow, and counts the launches. With no rules
/// at all, the given graph is what is run.
pub fn compared(given: &Graph, optimized: &Graph, options: &optimize::Options) -> Result<Launches> {
    let before = launches(given, &options.device, false)?;
    let after = if options.no_rules { before } else { launches_as(optimized, &planned_as(options))? };
    Ok(Launches { before, after })
}

/// Puts the ways to compute each node with a choice into the report, with predicted times. A size
/// that is still symbolic is taken to be what the cost model assumes.
pub fn list_choices(optimized: &mut Optimized, options: &optimize::Options) {
    let plain = plan::Options { memory: usize::MAX, ..planned_as(options) };
    let predicted = |graph: &Graph| plan(graph, &plain).ok().map(|p| p.predicted() * 1e6);
    let symbols = optimized.graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
    match optimized.graph.specialize(&symbols) {
        Ok(graph) => {
            optimized.report.choices = optimize::kernels::considered(&graph, &options.device, &predicted);
        }
        Err(e) => optimized.report.warnings.push(format!("the candidates of steps cannot be listed: {e}")),
    }
    // Products in turn are found in the plan. If there is none, its error is above.
    let plan = assumed(&optimized.graph, &plain);
    optimized.report.choices.extend(plan.iter().flat_map(|p| p.steps.iter().filter_map(|s| in_turn(p, s))));
}

/// The two ways to compute products in turn, and a product with the work on its factors or on its
/// results.
fn in_turn(plan: &Plan, step: &Step) -> Option<Choice> {
    let Action::Call(CallStep { called, fallback, .. }) = &step.action else { return None };
    let (whole, parts) = match called {
        Called::Chain(layers) => {
            (format!("{} products in turn, in one launch", layers.len()), "one product after the other")
        }
        Called::Prologue(p) if p.windows().is_some() => {
            ("a product of an image's windows, in one launch".to_string(), "the windows are copied first")
        }
        Called::Prologue(_) => {
            ("a product with the work on its factors, in one launch".to_string(), "one after the other")
        }
        Called::Product(g) | Called::Pair(g) if !g.reduced.is_empty() => {
            let (stored, reduced) = (g.term.roots.len() - g.reduced.len(), g.reduced.len());
            let what = format!("a product with {stored} results and {reduced} reductions");
            (format!("{what}, and a launch that joins the parts of each reduction"), "one after the other")
        }
        Called::Product(g) | Called::Pair(g) if g.term.roots.len() > 1 => {
            (format!("a product with {} results, in one launch", g.term.roots.len()), "one after the other")
        }
        // A product that was a call of its own, and the work behind it: one result is left.
        Called::Product(_) | Called::Pair(_) if fallback.iter().any(|s| matches!(s.action, Action::Call(_))) => {
            ("a product with the work on its result, in one launch".to_string(), "one after the other")
        }
        _ => return None,
    };
    let us = |steps: &[Step]| Some(steps.iter().map(|s| s.predicted(&plan.device)).sum::<f64>() * 1e6);
    let way = |kernel: String, steps, fate| Considered { kernel, predicted_us: us(steps), fate };
    let one = way(whole, std::slice::from_ref(step), Fate::Raced);
    let each = way(parts.into(), fallback, Fate::Fallback);
    Some(Choice { nodes: vec![step.title()], candidates: vec![one, each] })
}

/// Counts the launches of `given` and of what was made of it, and the fusions, and puts them into
/// the report. Planning takes time (constants are computed), so it is done for those who ask. What
/// cannot be planned gives a warning.
pub fn count_launches(optimized: &mut Optimized, given: &Graph, options: &optimize::Options) {
    match compared(given, &optimized.graph, options) {
        Ok(launches) => optimized.report.launches = Some(launches),
        Err(e) => optimized.report.warnings.push(format!("the launches cannot be counted: {e}")),
    }
    match shortened(&optimized.graph, &options.device, options.allowed()) {
        Ok(shortened) => {
            let program = optimized.graph.program.clone();
            let known = optimized.report.firings.len();
            for firing in shortened.iter().map(|s| firing(&program, s)) {
                if !optimized.report.firings[..known].iter().any(|f| f.rule == firing.rule && f.nodes == firing.nodes) {
                    optimized.report.firings.push(firing);
                }
            }
        }
        Err(e) => optimized.report.warnings.push(format!("the short functions cannot be listed: {e}")),
    }
    #[cfg(feature = "onnx")]
    match export::fusions(&optimized.graph, &FOLDER) {
        Ok(fusions) => optimized.report.fusions = Some(fusions),
        Err(e) => optimized.report.warnings.push(format!("the fusions cannot be counted: {e}")),
    }
}
