//! Which rules are searched: those whose left side may match somewhere, and no others.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{RuleId, RuleSetId};
use hypatia_dsl::numerics::Allowed;
use hypatia_graph::Graph;
use hypatia_pipeline::FOLDER;
use hypatia_testing::ty;

use super::library::with_rules;
use crate::language::Discriminant;
use crate::live_rules::LiveRules;
use crate::lower::insert_graph;
use crate::rewrites::SearchState;
use crate::{Options, optimize};

const RULES: &str = "ruleset r { until = fixpoint; }
    rule r::now: tanh(exp(x)) => sin(cos(x));
    rule r::later: sin(cos(x)) => x;
    rule r::shape: exp(tanh(x)) => x;
    rule r::head: floor(exp(x)) => x;
    ruleset never { until = fixpoint; }
    rule never::head: floor(x) => x;
    ruleset idle { until = fixpoint; }
    rule idle::shape: exp(exp(x)) => x;";

fn graph() -> Graph {
    let mut g = Graph::new(with_rules(RULES));
    let x = g.input("x", ty(DType::F32, &[4]));
    let e = g.call("exp", &[x], &[]).unwrap()[0];
    let t = g.call("tanh", &[e], &[]).unwrap()[0];
    g.output("t", t);
    g
}

/// Which of these rules are live.
fn live(rules: &LiveRules, names: [&str; 4]) -> [bool; 4] {
    let program = with_rules(RULES);
    names.map(|name| {
        let id = program.rules.iter().position(|r| r.name == name).unwrap();
        rules.of_rule(RuleId(id as u32)).next().is_some()
    })
}

#[test]
fn rules_are_live_once_their_left_side_may_match() {
    let g = graph();
    let mut inserted = insert_graph(&g, &FOLDER, &Default::default()).unwrap();
    let heads = |egraph: &crate::analysis::EGraph| -> Vec<Discriminant> {
        egraph.classes().flat_map(|c| c.nodes.iter().map(|n| n.payload.discriminant())).collect()
    };
    let present = heads(&inserted.egraph);
    let mut rules = LiveRules::of(&g.program, Some(present.into_iter()), Allowed::default());
    let mut search = SearchState::of_program(&g.program);
    let names = ["r::now", "r::later", "r::shape", "r::head"];
    assert_eq!(live(&rules, names), [false; 4]);
    search.patterns.refresh(&inserted.egraph);
    rules.wake(&search.patterns);
    assert_eq!(live(&rules, names), [true, false, false, false]);
    // What a rule builds wakes the next one.
    let (x, context) = (inserted.values[0][0], &mut inserted.egraph);
    let scalar = |name: &str| g.program.scalars.iter().position(|s| s.name == name).unwrap() as u32;
    let node = |name: &str, of| crate::language::Node {
        payload: crate::language::Payload::Scalar(hypatia_dsl::ir::ScalarId(scalar(name))),
        children: smallvec::smallvec![of],
    };
    let cos = context.add(node("cos", x));
    context.add(node("sin", cos));
    context.rebuild();
    search.patterns.refresh(context);
    rules.wake(&search.patterns);
    assert_eq!(live(&rules, names), [true, true, false, false]);
}

#[test]
fn rulesets_whose_rules_wait_run_and_those_that_never_fire_do_not() {
    let g = graph();
    let report = optimize(&g, &Options::default(), &FOLDER).unwrap().report;
    let fired = |name: &str| report.firings.iter().filter(|f| f.rule == name).count();
    assert_eq!(["r::now", "r::later", "idle::shape"].map(fired), [1, 1, 0], "{report}");
    let ran = |name: &str| report.runs.iter().any(|run| run.ruleset == name);
    assert_eq!(["r", "idle", "never"].map(ran), [true, true, false], "{report}");
    let rulesets = g.program.rulesets.len();
    let mut none = LiveRules::none(&g.program);
    assert!((0..rulesets).all(|set| none.of_ruleset(RuleSetId(set as u32)).is_none()));
}
