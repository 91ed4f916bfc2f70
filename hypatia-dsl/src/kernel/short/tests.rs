//! Rules about terms, on small kernels.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::ir::InView;
use crate::kernel::{Access, Operand};
use crate::scalar::show_term_with;
use crate::scalar::testing::{compiled, term};

const RULES: &str = "
ruleset t { until = fixpoint; }
scalar my_exp(x) = exp(x) device \"__expf\";
scalar my_tanh(x) = tanh(x) device \"tanh_approx\";
/// Both together, with a number.
rule t::pair: exp(x) * tanh(y) => my_exp(x) * my_tanh(y) * 0.5 class approx(1e-6, 0) for f32;
/// It does not read y.
rule t::drop: log(x + 0 * y) => my_exp(x) class approx(1e-6, 0) for f32;
rule t::exp: exp(x) => my_exp(x) class approx(1e-6, 0) for f32;
";

/// What a pointwise kernel over `a` and `b` with a result in f16 becomes, and the rules that fired.
fn shortened(dtype: DType, text: &str) -> (String, Vec<String>) {
    let p = compiled(RULES);
    let over_parameters = term(&p, &["a", "b"], text);
    let mut out = TermBuilder::new();
    let inputs = [0, 1].map(|input| out.add(TermNode::In { input, view: InView::Full }));
    let roots = out.append(&over_parameters, &inputs);
    let mut kernel = PointwiseKernel {
        name: "k".into(),
        doc: String::new(),
        inputs: vec![Operand { dtype, access: Access::Full }; 2],
        outputs: vec![DType::F16],
        rank: 1,
        term: out.finish(roots),
        acc: None,
    };
    let before = kernel.term.clone();
    let fired = Shortener::new(&p, &Allowed::default()).pointwise(&mut kernel, false);
    assert_eq!(fired.is_empty(), kernel.term == before);
    let fired = fired.iter().map(|r| p.rules[r.index()].base_name.clone()).collect();
    let name = |node: &TermNode| match node {
        TermNode::In { input, .. } => ["a", "b"][*input as usize].into(),
        other => panic!("{other:?}"),
    };
    (show_term_with(&p, &kernel.term, &name), fired)
}

#[test]
fn rules_fire_on_f32() {
    for (text, expected, fired) in [
        ("b - exp(a)", "b - my_exp(a)", vec!["t::exp"]),
        // The interpreter builds the number; operands of a product match in any order.
        ("tanh(b) * exp(a)", "my_exp(a) * my_tanh(b) * 0.5", vec!["t::pair"]),
        // `exp(a)` is computed in any case, so only it is replaced.
        ("tanh(b) * exp(a) + exp(a)", "tanh(b) * my_exp(a) + my_exp(a)", vec!["t::exp"]),
        // What the right side does not read is computed no more.
        ("log(a + 0 * exp(b))", "my_exp(a)", vec!["t::drop"]),
        ("log(exp(a) + 0 * exp(b))", "my_exp(my_exp(a))", vec!["t::exp", "t::drop"]),
        ("log(a)", "log(a)", vec![]),
    ] {
        assert_eq!(shortened(DType::F32, text), (expected.into(), fired.iter().map(ToString::to_string).collect()));
    }
    assert_eq!(shortened(DType::F64, "b - exp(a)"), ("b - exp(a)".into(), vec![]));
}

#[test]
fn a_side_that_is_not_one_term_says_why() {
    let why = |rule: &str| {
        let p = compiled(&format!("{RULES}rule t::r: {rule} class rounds;"));
        let rule = p.rules.iter().find(|r| r.base_name == "t::r").unwrap();
        TermRule::of(&p, rule).err()
    };
    assert_eq!(why("exp(x) => my_exp(x)"), None);
    assert_eq!(why("softmax(x) => exp(x)").unwrap(), "its left side holds an op on tensors");
    assert_eq!(
        why("exp(x) => softmax(x)").unwrap(),
        "its right side is not one term: an epilogue calls the op `softmax`, but may call scalars only"
    );
    assert_eq!(why("(exp(x), tanh(x)) => (my_exp(x), tanh(x))").unwrap(), "it has several roots");
}
