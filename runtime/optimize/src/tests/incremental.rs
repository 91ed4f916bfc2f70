//! Incremental searches, which look only where the pattern index says that a rule may match, find
//! what complete ones without an index find.

use hypatia_pipeline::FOLDER;

use super::library::library;
use crate::Options;
use crate::matcher::View;
use crate::matcher::class_patterns::ClassPatterns;
use crate::optimizer::Optimizer;
use crate::rewrites::{SEARCH_LIMITS, compile};
use hypatia_graph::Graph;

#[path = "../../../benches/support/models.rs"]
#[allow(dead_code)]
mod models;

/// Saturates a graph, then searches every rule everywhere: what is found must have been rejected.
/// Returns how often rules fired, and how many matches were rejected.
fn nothing_is_left(graph: &Graph) -> (usize, usize) {
    let options = Options::default();
    let mut optimizer = Optimizer::start(graph, &options, &FOLDER).unwrap();
    optimizer.saturate();
    let fired = optimizer.traces.iter().filter(|t| t.changed).count();
    let mut rejected = 0;
    // Of all rules, also those that never were live.
    for rule in &compile(&graph.program, &options.allowed()) {
        let progress = optimizer.search.progress.remove(&rule.key()).unwrap_or_default();
        let view = View::of(&optimizer.inserted.egraph, &optimizer.search.candidate, ClassPatterns::none());
        let found = rule.find(&view, &progress, SEARCH_LIMITS, None);
        assert!(!found.capped, "{}", rule.name());
        for m in found.matches {
            let applied = rule.apply(&mut optimizer.inserted.egraph, &mut optimizer.search, &m, usize::MAX);
            assert!(applied.is_err(), "{} was not found at {:?}", rule.name(), m.roots);
            rejected += 1;
        }
    }
    (fired, rejected)
}

#[test]
fn nothing_is_left_in_models() {
    let program = library();
    for graph in [models::Bert::base(2).graph(&program), models::Llama::shaped(2).graph(&program)] {
        let (fired, rejected) = nothing_is_left(&graph);
        assert!(fired > 50 && rejected > 50, "{fired} fired, {rejected} rejected");
    }
}
