//! H07xx: tests and contracts.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        701,
        "unknown target",
        "`test ... on TARGET` runs the test with the profile of a device, which need not be present. The profiles
are cpu, h200, a100, h100, l40s, rtx4090 and b200. Without `on`, the profile is cpu, on every machine.",
        "test \"t\" on h2000 { input x: f32[2]; given exp(x); expect launches == 1; }",
        "test \"t\" on h200 { input x: f32[2]; given exp(x); expect launches == 1; }",
    ),
    Row::new(
        702,
        "malformed input of a test",
        "An input has a known element type and rank; its sizes are numbers, symbols or formulas over them. Its
value is a single number for all elements, or a list nested as the shape is.",
        "test \"t\" { const x: f32[2] = [1.0, 2.0, 3.0]; given exp(x); expect launches == 1; }",
        "test \"t\" { const x: f32[2] = [1.0, 2.0]; given exp(x); expect launches == 1; }",
    ),
    Row::new(
        703,
        "malformed expectation",
        "A test states a graph with `given` and what must hold for it with `expect`: `launches == 1`, `count(gemm)
<= 2`, `error H0304`, `fires fuse::unary`, `not fires r::a`, `matches r::a`, `equal e` or `becomes e`. A
test without an expectation cannot fail: that is a warning. One whose expectations exclude each other cannot
pass.",
        "test \"t\" { input x: f32[2]; given exp(x); expect launches; }",
        "test \"t\" { input x: f32[2]; given exp(x); expect launches == 1; }",
    ),
    Row::new(
        704,
        "malformed contract",
        "A contract lists the rules that must be part of a model's plan, `must fold::softmax count = 12;` or `must
r::a at \"node\";`, and those that must not, `never r::b;`. A clause names a rule, a family of rules, one of
those, or a ruleset. A contract cannot demand a rule that it forbids.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;\ncontract c { must r::a; never r; }",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;\ncontract c { must r::a; }",
    ),
];
