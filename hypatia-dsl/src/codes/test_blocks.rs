//! H07xx: tests.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        701,
        "unknown target",
        "`test ... on TARGET` runs the test with the figures of a device, whether it is present or not. The
profiles are cpu, h200 and a100; without `on` the CPU is meant.",
        "test \"t\" on h2000 { input x: f32[2]; given exp(x); expect launches == 1; }",
        "test \"t\" on h200 { input x: f32[2]; given exp(x); expect launches == 1; }",
    ),
    Row::new(
        702,
        "malformed input of a test",
        "An input has a definite element type and rank; its sizes are numbers, symbols or formulas over them.
Values are one number for all elements, or lists as deep and as long as the shape says.",
        "test \"t\" { const x: f32[2] = [1.0, 2.0, 3.0]; given exp(x); expect launches == 1; }",
        "test \"t\" { const x: f32[2] = [1.0, 2.0]; given exp(x); expect launches == 1; }",
    ),
    Row::new(
        703,
        "malformed expectation",
        "A test gives something with `given`, and expects something of it: `launches == 1`, `count(gemm) <=
2`, `error H0304`, `fires fuse::unary`, `not fires r::a`, `equal e` or `becomes e`.",
        "test \"t\" { input x: f32[2]; given exp(x); expect launches; }",
        "test \"t\" { input x: f32[2]; given exp(x); expect launches == 1; }",
    ),
];
