//! The pattern index: which left sides may match at a class, also after classes were merged.

use std::sync::Arc;

use egg::Id;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_graph::Graph;
use hypatia_pipeline::FOLDER;
use hypatia_testing::ty;

use super::library::with_rules;
use crate::analysis::EGraph;
use crate::lower::insert_graph;
use crate::matcher::class_patterns::ClassPatterns;
use crate::matcher::pattern_index::{PatternId, PatternIndex};
use crate::matcher::prepare::Prepared;

const RULES: &str = "ruleset r { until = fixpoint; }
    rule r::node: tanh(exp(x)) => exp(tanh(x));
    rule r::sum: exp(x) + sin(y) + z => z;
    rule r::deep: tanh(exp(x) + sin(y)) => x;
    rule r::one: tanh(cos(x) | exp(x)) => x;
    rule r::number: x * 2.0 => x + x;
    rule r::constant: x * c => x requires const(c);
    rule r::longer: tanh(sin(cos(x))) => x;";

/// The rules whose left side may match at each class, by the names of the values.
fn possible(egraph: &EGraph, patterns: &ClassPatterns, roots: &[(String, PatternId)], class: Id) -> Vec<String> {
    let (class, dirty) = (egraph.find(class), egraph.analysis.dirty.len());
    roots.iter().filter(|(_, p)| patterns.may_match(class, *p, dirty)).map(|(name, _)| name.clone()).collect()
}

#[test]
fn a_class_has_the_patterns_of_its_nodes_also_after_it_is_merged() {
    let program = with_rules(RULES);
    let mut index = PatternIndex::default();
    let mut roots = Vec::new();
    for rule in program.rules.iter().filter(|r| r.name.starts_with("r::")) {
        let mut prepared = Prepared::of(&program, rule, false);
        index.add_rule(&program, &rule.lhs, false, &mut prepared);
        roots.push((rule.name.trim_start_matches("r::").to_string(), prepared.roots[0].unwrap()));
    }
    let index = Arc::new(index);
    let mut g = Graph::new(program);
    let [x, y, z] = ["x", "y", "z"].map(|name| g.input(name, ty(DType::F32, &[4])));
    use BuiltinScalar::{Add, Cos, Exp, Mul, Sin, Tanh};
    let mut call = |f: BuiltinScalar, of: &[_]| g.builtin_scalar(f, of).unwrap();
    let (e, s, c) = (call(Exp, &[x]), call(Sin, &[y]), call(Cos, &[x]));
    let pair = call(Add, &[e, s]);
    let nested = call(Add, &[z, pair]);
    let (deep, other, sine) = (call(Tanh, &[nested]), call(Tanh, &[c]), call(Tanh, &[s]));
    let (node, product) = (call(Tanh, &[e]), call(Mul, &[c, s]));
    let [two, three] = [2.0, 3.0].map(|v| g.number(DType::F32, v).unwrap());
    let [double, triple] = [two, three].map(|v| g.builtin_scalar(Mul, &[v, x]).unwrap());
    let values = [node, nested, deep, other, product, sine, double, triple];
    values.iter().for_each(|v| g.output(format!("{v:?}"), *v));
    let mut inserted = insert_graph(&g, &FOLDER, &Default::default()).unwrap();
    let ids: Vec<Id> = values.iter().map(|v| inserted.values[v.node.index()][0]).collect();
    let [e, c] = [e, c].map(|v| inserted.values[v.node.index()][0]);
    let egraph = &mut inserted.egraph;
    let mut patterns = ClassPatterns::of_index(index.clone());
    // Before it is refreshed, it excludes nothing.
    assert_eq!(possible(egraph, &patterns, &roots, ids[0]).len(), roots.len());
    patterns.refresh(egraph);
    let now = |egraph: &EGraph, patterns: &ClassPatterns| {
        ids.iter().map(|id| possible(egraph, patterns, &roots, *id)).collect::<Vec<_>>()
    };
    let expected: [&[&str]; 8] =
        [&["node", "one"], &["sum"], &["deep"], &["one"], &[], &[], &["number", "constant"], &["constant"]];
    assert_eq!(now(egraph, &patterns), expected);
    // exp(x) is found to be cos(x): what uses cos(x) may be what uses exp(x) may be.
    egraph.union(e, c);
    egraph.rebuild();
    assert_eq!(possible(egraph, &patterns, &roots, ids[5]).len(), roots.len());
    patterns.refresh(egraph);
    let expected: [&[&str]; 8] =
        [&["node", "one"], &["sum"], &["deep"], &["node", "one"], &[], &[], &["number", "constant"], &["constant"]];
    assert_eq!(now(egraph, &patterns), expected);
    let mut anew = ClassPatterns::of_index(index);
    anew.refresh(egraph);
    assert_eq!(now(egraph, &patterns), now(egraph, &anew));
}
