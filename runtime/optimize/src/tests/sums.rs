//! AC matching: sums and products in any association and order, alone and within longer ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::optimize;
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_pipeline::FOLDER;

use super::laws::{apply, check, count, ty, weight};
use super::library::{axes, library, with_rules};
use crate::Options;
use hypatia_graph::{Graph, Value};
use hypatia_tensor::tensor::Tensor;

/// A product or sum of numbered operands, as a tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tree {
    Leaf(usize),
    Both(Box<Tree>, Box<Tree>),
}

/// Every tree on these operands, in every order.
fn trees(of: &[usize]) -> Vec<Tree> {
    if let [one] = of {
        return vec![Tree::Leaf(*one)];
    }
    let mut out = Vec::new();
    for set in 1..(1usize << of.len()) - 1 {
        let side = |want: bool| -> Vec<usize> {
            of.iter().enumerate().filter(|(i, _)| (set >> i & 1 == 1) == want).map(|(_, v)| *v).collect()
        };
        for a in trees(&side(true)) {
            out.extend(trees(&side(false)).into_iter().map(|b| Tree::Both(Box::new(a.clone()), Box::new(b))));
        }
    }
    out
}

fn build(g: &mut Graph, f: &str, tree: &Tree, leaves: &[Value]) -> Value {
    match tree {
        Tree::Leaf(i) => leaves[*i],
        Tree::Both(a, b) => {
            let (a, b) = (build(g, f, a, leaves), build(g, f, b, leaves));
            apply(g, f, &[a, b])
        }
    }
}

/// `0.5`, `x`, `1 + erf(x * 0.7071..)`, and optionally one more factor.
fn gelu_factors(g: &mut Graph, x: Value) -> Vec<Value> {
    let mut number = |v: f64| g.number(DType::F32, v).unwrap();
    let (half, one, root) = (number(0.5), number(1.0), number(std::f64::consts::FRAC_1_SQRT_2));
    let scaled = apply(g, "mul", &[root, x]);
    let e = apply(g, "erf", &[scaled]);
    let e = apply(g, "add", &[e, one]);
    vec![half, x, e]
}

#[test]
fn a_body_is_found_in_every_association() {
    let (all, program) = (trees(&[0, 1, 2]), library());
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 12);
    for tree in all {
        let mut g = Graph::new(program.clone());
        let x = g.input("x", ty(DType::F32, &[4, 8]));
        let factors = gelu_factors(&mut g, x);
        let y = build(&mut g, "mul", &tree, &factors);
        g.output("y", y);
        let out = check(&g, &Options::default());
        assert_eq!((count(&out, "gelu"), out.report.after.ops), (1, 1), "{tree:?}\n{}", out.graph);
    }
}

#[test]
fn a_body_is_found_within_a_longer_product() {
    let program = library();
    for tree in trees(&[0, 1, 2, 3]) {
        let mut g = Graph::new(program.clone());
        let x = g.input("x", ty(DType::F32, &[4, 8]));
        let mut factors = gelu_factors(&mut g, x);
        factors.push(g.input("gate", ty(DType::F32, &[4, 8])));
        let y = build(&mut g, "mul", &tree, &factors);
        g.output("y", y);
        let out = check(&g, &Options::default());
        assert_eq!((count(&out, "gelu"), out.report.after.ops), (1, 2), "{tree:?}\n{}", out.graph);
    }
}

#[test]
fn a_norm_is_found_in_every_association() {
    let program = library();
    for product in trees(&[0, 1, 2]) {
        for flip in [false, true] {
            let mut g = Graph::new(program.clone());
            let x = g.input("x", ty(DType::F32, &[4, 8]));
            let (scale, bias) = (weight(&mut g, &[8], 1), weight(&mut g, &[8], 2));
            let eps = g.number(DType::F32, 1e-5).unwrap();
            let mean = g.builtin(BuiltinOp::Mean, &[x], axes(-1)).unwrap()[0];
            let d = apply(&mut g, "sub", &[x, mean]);
            let sq = apply(&mut g, "mul", &[d, d]);
            let var = g.builtin(BuiltinOp::Mean, &[sq], axes(-1)).unwrap()[0];
            let var = apply(&mut g, "add", &[eps, var]);
            let r = apply(&mut g, "rsqrt", &[var]);
            let y = build(&mut g, "mul", &product, &[d, r, scale]);
            let y = apply(&mut g, "add", &if flip { [bias, y] } else { [y, bias] });
            g.output("y", y);
            let out = check(&g, &Options::default());
            assert_eq!((count(&out, "layer_norm"), out.report.after.ops), (1, 1), "{product:?}\n{}", out.graph);
        }
    }
}

#[test]
fn a_norm_is_found_before_a_residual() {
    let program = library();
    // residual + (normed + bias), and (residual + normed) + bias: the norm with its bias is part of
    // a longer sum.
    for tree in trees(&[0, 1, 2]) {
        let mut g = Graph::new(program.clone());
        let x = g.input("x", ty(DType::F32, &[4, 8]));
        let residual = g.input("residual", ty(DType::F32, &[4, 8]));
        let (scale, bias) = (weight(&mut g, &[8], 1), weight(&mut g, &[8], 2));
        let y = g.call("layer_norm", &[x, scale], &[]).unwrap()[0];
        let y = build(&mut g, "add", &tree, &[y, bias, residual]);
        g.output("y", y);
        let out = check(&g, &Options::default());
        assert_eq!((count(&out, "layer_norm"), out.report.after.ops), (1, 2), "{tree:?}\n{}", out.graph);
    }
}

const RULES: &str = "
ruleset t { until = fixpoint; }
scalar hypot2(a, b) = select(a < b, a * a, b * b) + select(a < b, b * b, a * a);
scalar pay(a, b, c) = select(a < 0, b, c);
/// No association is the written one where the class is exact.
rule t::exact: sin(a) + cos(b) + tanh(c) => pay(a, b, c) class exact;
rule t::loose: erf(a) + floor(b) + ceil(c) => pay(a, b, c);
rule t::pair: sin(a) * cos(a) => sinh2(a);
scalar sinh2(a) = 0.25 * (exp(a) - exp(-a));
rule t::scales: x * c1 * c2 => x * (c1 * c2) requires const(c1), const(c2);
";

fn sum_of(program: &Arc<Program>, names: &[&str], tree: &Tree, dtype: DType) -> (usize, String) {
    let mut g = Graph::new(program.clone());
    let leaves: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(i, f)| {
            let x = g.input(format!("x{i}"), ty(dtype, &[4]));
            apply(&mut g, f, &[x])
        })
        .collect();
    let y = build(&mut g, "add", tree, &leaves);
    g.output("y", y);
    let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
    out.graph.validate().unwrap();
    (count(&out, "pay"), out.graph.to_text())
}

#[test]
fn a_bitwise_claim_keeps_to_the_written_association() {
    let program = with_rules(RULES);
    // Swapping the operands of a float sum changes no bit; regrouping them does.
    let written: BTreeSet<Tree> = trees(&[0, 1, 2])
        .into_iter()
        .filter(|t| matches!(t, Tree::Both(a, b) if **a == Tree::Leaf(2) || **b == Tree::Leaf(2)))
        .collect();
    assert_eq!(written.len(), 4);
    for tree in trees(&[0, 1, 2]) {
        let (found, text) = sum_of(&program, &["sin", "cos", "tanh"], &tree, DType::F32);
        assert_eq!(found == 1, written.contains(&tree), "{tree:?}\n{text}");
        let (found, text) = sum_of(&program, &["erf", "floor", "ceil"], &tree, DType::F32);
        assert_eq!(found, 1, "{tree:?}\n{text}");
    }
}

#[test]
fn a_repeated_operand_joins_terms_that_stand_apart() {
    let program = with_rules(RULES);
    for tree in trees(&[0, 1, 2, 3]) {
        let mut g = Graph::new(program.clone());
        let x = g.input("x", ty(DType::F32, &[4]));
        let (a, b) = (g.input("a", ty(DType::F32, &[4])), g.input("b", ty(DType::F32, &[4])));
        let (s, c) = (apply(&mut g, "sin", &[x]), apply(&mut g, "cos", &[x]));
        let y = build(&mut g, "mul", &tree, &[s, a, c, b]);
        g.output("y", y);
        let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
        out.graph.validate().unwrap();
        assert_eq!(count(&out, "sinh2"), 1, "{tree:?}\n{}", out.graph);
    }
}

#[test]
fn a_variable_takes_what_is_left() {
    // x * 2 * y * 3: the two constants are combined, and x takes the rest.
    let program = with_rules(RULES);
    for tree in trees(&[0, 1, 2, 3]) {
        let mut g = Graph::new(program.clone());
        let (a, b) = (g.input("a", ty(DType::F32, &[4, 8])), g.input("b", ty(DType::F32, &[4, 1])));
        let (v, w) = (weight(&mut g, &[8], 1), weight(&mut g, &[8], 2));
        let y = build(&mut g, "mul", &tree, &[a, v, b, w]);
        g.output("y", y);
        let out = check(&g, &Options::default());
        // v * w is computed when the plan is made.
        assert_eq!(count(&out, "mul"), 2, "{tree:?}\n{}", out.graph);
    }
}

#[test]
fn a_partial_sum_that_others_need_is_left_whole() {
    let mut g = Graph::new(with_rules(RULES));
    let x = g.input("x", ty(DType::F32, &[4]));
    let a = g.input("a", ty(DType::F32, &[4]));
    let (s, c) = (apply(&mut g, "sin", &[x]), apply(&mut g, "cos", &[x]));
    let part = apply(&mut g, "mul", &[s, a]);
    let y = apply(&mut g, "mul", &[part, c]);
    g.output("part", part);
    g.output("y", y);
    let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
    assert_eq!(count(&out, "sinh2"), 0, "{}", out.graph);
}

#[test]
fn integers_group_exactly() {
    let program = with_rules(
        "ruleset t { until = fixpoint; }
         scalar pick(a, b, c) = select(a < 0, b, c);
         rule t::exact: abs(a) + sign(b) + abs(c) => pick(a, b, c) class exact;",
    );
    for tree in trees(&[0, 1, 2]) {
        let mut g = Graph::new(program.clone());
        let leaves: Vec<Value> = ["abs", "sign", "abs"]
            .iter()
            .enumerate()
            .map(|(i, f)| {
                let x = g.input(format!("x{i}"), ty(DType::I64, &[4]));
                apply(&mut g, f, &[x])
            })
            .collect();
        let y = build(&mut g, "add", &tree, &leaves);
        g.output("y", y);
        let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
        assert_eq!(count(&out, "pick"), 1, "{tree:?}\n{}", out.graph);
    }
}

#[test]
fn a_half_is_no_integer() {
    let program =
        with_rules("ruleset t { until = fixpoint; }\nrule t::half: x * 0.5 => x / 2;\nrule t::two: x * 2 => x + x;");
    for (value, dtype, fires) in [(0, DType::I64, false), (1, DType::I32, false), (2, DType::I64, true)] {
        let mut g = Graph::new(program.clone());
        let x = g.input("x", ty(dtype, &[4]));
        let c = g.constant(Tensor::from_f64(dtype, &[], &[f64::from(value)]).unwrap());
        let y = apply(&mut g, "mul", &[x, c]);
        g.output("y", y);
        let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
        assert!(
            out.report.firings.iter().any(|f| f.rule.starts_with("t::")) == fires,
            "{value} {dtype}: {}",
            out.report
        );
        assert!(!out.report.firings.iter().any(|f| f.rule == "t::half"), "{}", out.report);
    }
}

#[test]
fn long_sums_stay_cheap() {
    // A hundred terms of two kinds, alternating: partial sums are searched only to a small depth.
    let mut g = Graph::new(with_rules(
        "ruleset t { until = fixpoint; }\nscalar both(a, b) = sin(a) * cos(b);\n\
         rule t::both: sin(a) + cos(b) => both(a, b);",
    ));
    let mut y = g.input("x", ty(DType::F32, &[4]));
    for i in 0..100 {
        let x = g.input(format!("x{i}"), ty(DType::F32, &[4]));
        let x = apply(&mut g, if i % 2 == 0 { "sin" } else { "cos" }, &[x]);
        y = apply(&mut g, "add", &[y, x]);
    }
    g.output("y", y);
    let out = optimize(&g, &Options::default(), &FOLDER).unwrap();
    out.graph.validate().unwrap();
    let nodes = out.report.runs.iter().map(|s| s.nodes).max().unwrap();
    assert!(out.report.complete() && nodes < 20_000, "{nodes} nodes\n{}", out.report);
    assert!(count(&out, "both") >= 40, "{}", out.report);
}

/// Steps of work on a chain of additions, and why no ruleset was cut short.
fn steps_of_chain(program: &Arc<Program>, length: usize) -> usize {
    let mut g = Graph::new(program.clone());
    let mut y = g.input("x", ty(DType::F32, &[4]));
    for i in 0..length {
        let t = g.input(format!("t{i}"), ty(DType::F32, &[4]));
        y = apply(&mut g, "add", &[y, t]);
    }
    g.output("y", y);
    let report = optimize(&g, &Options::default(), &FOLDER).unwrap().report;
    assert!(report.complete(), "{:?}", report.runs);
    report.runs.iter().map(|s| s.steps + s.looked_through).sum()
}

#[test]
fn a_long_chain_takes_work_in_proportion_to_its_length() {
    let program = library();
    let [short, long] = [2_000, 8_000].map(|n| steps_of_chain(&program, n));
    assert!(long < short * 9 / 2, "{short} steps of 2,000 additions, {long} of 8,000");
}
