//! The same rules in `egg`'s own `Runner` and in our loop give the same result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use egg::{Id, RewriteScheduler, Runner, SearchMatches, StopReason};
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Program, RuleSetId};
use hypatia_dsl::numerics::Allowed;
use hypatia_pipeline::FOLDER;

use super::laws::{apply, matmul, ty, weight};
use super::library::{axes, library, with_rules};
use crate::analysis::Context;
use crate::analysis::EGraph;
use crate::built_problem::BuiltProblem;
use crate::cost::CostModel;
use crate::extract::extract;
use crate::language::{Node, Payload};
use crate::live_rules::LiveRules;
use crate::lower::{Inserted, insert_graph};
use crate::report::Stop;
use crate::rewrites::{SearchState, compile};
use crate::saturate::{Budget, Rejections, SearchProgress, run};
use crate::{CompiledRule, Options, Rewrite, rewrites};
use hypatia_graph::Graph;

/// Delays rules on arbitrary pointwise work until no other rule changes anything, as our loop does.
struct InTurn {
    /// Names of the delayed rules.
    whole: Vec<String>,
    /// True when they may run.
    turn: bool,
    changed: bool,
}

impl RewriteScheduler<Node, Context> for InTurn {
    fn can_stop(&mut self, _: usize) -> bool {
        self.turn || self.whole.is_empty()
    }

    fn search_rewrites<'a>(
        &mut self,
        iteration: usize,
        egraph: &EGraph,
        rewrites: &[&'a Rewrite],
        _: &egg::RunnerLimits,
    ) -> egg::RunnerResult<Vec<Vec<SearchMatches<'a, Node>>>> {
        self.turn = iteration > 0 && !std::mem::take(&mut self.changed);
        let due = |r: &Rewrite| self.whole.contains(&r.name.to_string()) == self.turn;
        Ok(rewrites.iter().map(|r| if due(r) { r.search(egraph) } else { Vec::new() }).collect())
    }

    fn apply_rewrite(
        &mut self,
        _: usize,
        egraph: &mut EGraph,
        rewrite: &Rewrite,
        matches: Vec<SearchMatches<'_, Node>>,
    ) -> usize {
        let applied = rewrite.apply(egraph, &matches).len();
        self.changed |= applied > 0;
        applied
    }
}

/// The rules of one ruleset.
fn of_set(program: &Arc<Program>, set: usize) -> Vec<CompiledRule> {
    let rules = compile(program, &Allowed::default());
    rules.into_iter().filter(|r| r.rule().ruleset == RuleSetId(set as u32)).collect()
}

/// Runs all rulesets in order, each to its fixpoint, in our loop. Returns how often a rule changed
/// something.
fn under_our_loop(program: &Arc<Program>, egraph: &mut EGraph) -> usize {
    let options = Options { max_nodes: 100_000, max_time: Duration::from_secs(600), ..Options::default() };
    let mut fired = 0;
    for set in 0..program.rulesets.len() {
        let mut live = LiveRules::of(program, None::<std::iter::Empty<_>>, Allowed::default());
        let Some(mut rules) = live.of_ruleset(RuleSetId(set as u32)) else { continue };
        rules.grows = false;
        let budget = Budget::of_optimisation(100_000, &options, Instant::now());
        let (search, seen) = (&mut SearchState::of_program(program), &mut SearchProgress::default());
        let ran = run(egraph, &mut rules, &budget, search, seen, &mut Vec::new(), &mut Rejections::default());
        assert_eq!(ran.stop, Stop::Saturated, "{}", program.rulesets[set].name);
        fired += ran.fired;
    }
    fired
}

/// The same in `egg`'s `Runner`.
fn under_eggs_runner(program: &Arc<Program>, mut egraph: EGraph) -> EGraph {
    for set in 0..program.rulesets.len() {
        let rules = of_set(program, set);
        let whole = rules.iter().filter(|r| r.prepared().any_work).map(CompiledRule::name).collect();
        let rewrites: Vec<Rewrite> = rules.into_iter().map(Rewrite::from).collect();
        let runner = Runner::<Node, Context>::new(Context::new(program.clone(), &FOLDER))
            .with_egraph(egraph)
            .with_scheduler(InTurn { whole, turn: false, changed: false })
            .with_iter_limit(1000)
            .with_node_limit(100_000)
            .with_time_limit(Duration::from_secs(600))
            .run(&rewrites);
        let reason = runner.stop_reason.as_ref().unwrap();
        assert!(matches!(reason, StopReason::Saturated), "{}: {reason:?}", program.rulesets[set].name);
        egraph = runner.egraph;
    }
    egraph
}

/// Every class with its nodes.
fn classes(egraph: &EGraph) -> Vec<(Id, Vec<Node>)> {
    let mut out: Vec<(Id, Vec<Node>)> = egraph.classes().map(|c| (c.id, c.nodes.clone())).collect();
    out.sort();
    out
}

/// The cost of the cheapest graph, and its nodes.
fn extraction(egraph: &EGraph, outputs: &[Id], program: &Arc<Program>) -> (u64, Vec<Option<u32>>) {
    let model = CostModel::new(program, &Options::default());
    let built = BuiltProblem::new(egraph, outputs, None, &model);
    let choice = extract(&built.problem, None).unwrap();
    (built.problem.cost(&choice).unwrap(), choice)
}

fn agree(g: &Graph) -> usize {
    let program = g.program.clone();
    let g = g.inlined().unwrap().pruned();
    let (Inserted { egraph: mut ours, outputs, .. }, theirs) = (
        insert_graph(&g, &FOLDER, &Default::default()).unwrap(),
        insert_graph(&g, &FOLDER, &Default::default()).unwrap().egraph,
    );
    let fired = under_our_loop(&program, &mut ours);
    let theirs = under_eggs_runner(&program, theirs);
    assert_eq!(ours.number_of_classes(), theirs.number_of_classes());
    assert_eq!(ours.total_number_of_nodes(), theirs.total_number_of_nodes());
    assert_eq!(classes(&ours), classes(&theirs));
    assert_eq!(extraction(&ours, &outputs, &program), extraction(&theirs, &outputs, &program));
    fired
}

#[test]
fn graphs_of_the_library_give_equal_e_graphs() {
    let mut fired = 0;
    // A product with a bias and an anonymous activation.
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let (w, b) = (weight(&mut g, &[8, 16], 1), weight(&mut g, &[16], 2));
    let m = matmul(&mut g, x, w);
    let sum = apply(&mut g, "add", &[m, b]);
    let s = apply(&mut g, "sigmoid", &[sum]);
    let y = apply(&mut g, "mul", &[sum, s]);
    g.output("y", y);
    fired += agree(&g);
    // Softmax, then layer norm, written out in basic ops.
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let largest = g.builtin(BuiltinOp::Amax, &[x], axes(-1)).unwrap()[0];
    let shifted = apply(&mut g, "sub", &[x, largest]);
    let e = apply(&mut g, "exp", &[shifted]);
    let total = g.builtin(BuiltinOp::Sum, &[e], axes(-1)).unwrap()[0];
    let p = apply(&mut g, "div", &[e, total]);
    let (scale, bias) = (weight(&mut g, &[8], 1), weight(&mut g, &[8], 2));
    let n = g.call("layer_norm", &[p, scale, bias], &[]).unwrap()[0];
    g.output("n", n);
    fired += agree(&g);
    // Two products of one operand, a residual, a long sum.
    let mut g = Graph::new(library());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let (v, w) = (weight(&mut g, &[8, 8], 1), weight(&mut g, &[8, 8], 2));
    let (a, b) = (matmul(&mut g, x, v), matmul(&mut g, x, w));
    let relu = apply(&mut g, "relu", &[a]);
    let gated = apply(&mut g, "mul", &[relu, b]);
    let once = apply(&mut g, "add", &[gated, x]);
    let twice = apply(&mut g, "add", &[once, a]);
    g.output("y", twice);
    fired += agree(&g);
    // A residual stream.
    let mut g = Graph::new(library());
    let mut x = g.input("x", ty(DType::F32, &[4, 8]));
    for i in 0..3 {
        let (v, w) = (weight(&mut g, &[8, 16], i), weight(&mut g, &[16, 8], 10 + i));
        let inner = matmul(&mut g, x, v);
        let gelu = apply(&mut g, "gelu", &[inner]);
        let outer = matmul(&mut g, gelu, w);
        x = apply(&mut g, "add", &[x, outer]);
    }
    g.output("y", x);
    fired += agree(&g);
    assert!(fired > 20, "only {fired} rules fired: the graphs test nothing");
}

#[test]
fn rules_about_regions_and_several_roots_give_equal_e_graphs() {
    let rules = "ruleset own { until = fixpoint; }
        rule own::region[f: pointwise]: f(gemm(a, b, e, to = d)) => gemm(a, b, f(e), to = d);
        rule own::twice: (sin(x), cos(x)) => (sin(neg(neg(x))), cos(x));";
    let mut g = Graph::new(with_rules(rules));
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 8], 1);
    let m = matmul(&mut g, x, w);
    let (s, c) = (apply(&mut g, "sin", &[m]), apply(&mut g, "cos", &[m]));
    let y = apply(&mut g, "add", &[s, c]);
    g.output("y", y);
    assert!(agree(&g) > 2);
}

#[test]
fn the_library_runs_under_eggs_own_runner() {
    let program = library();
    let mut g = Graph::new(program.clone());
    let x = g.input("x", ty(DType::F32, &[4, 8]));
    let w = weight(&mut g, &[8, 16], 1);
    let m = matmul(&mut g, x, w);
    let y = apply(&mut g, "relu", &[m]);
    g.output("y", y);
    let inserted = insert_graph(&g.inlined().unwrap(), &FOLDER, &Default::default()).unwrap();
    let classes = inserted.egraph.number_of_classes();
    let rewrites: Vec<Rewrite> = rewrites(&program).into_iter().map(Rewrite::from).collect();
    let runner = Runner::<Node, Context>::new(Context::new(program.clone(), &FOLDER))
        .with_egraph(inserted.egraph)
        .with_iter_limit(10)
        .run(&rewrites);
    assert!(matches!(runner.stop_reason, Some(StopReason::Saturated)), "{:?}", runner.stop_reason);
    assert!(runner.egraph.number_of_classes() > classes);
    let y = runner.egraph.find(inserted.outputs[0]);
    let gemm = program.builtin_op(BuiltinOp::Gemm).unwrap();
    let is_gemm = |n: &Node| matches!(n.payload, Payload::Op(op, _) if op == gemm);
    assert!(runner.egraph[y].nodes.iter().any(is_gemm));
}
