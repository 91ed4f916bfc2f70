//! H06xx: kernels.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        601,
        "how is the kernel made?",
        "A kernel has one backend: `cublaslt EPILOGUE;` calls the library, `template \"file.cu.j2\";` fills in
a template, `pointwise;` and `rowwise;` are generated, the last one from the op's body; `composed;` runs
the op's body, optimised by itself. It is missing, unknown, or does not fit the op.",
        "kernel k for gemm(a, b, acc, to = d) { requires dtype(a) == f16; }",
        "kernel k for gemm(a, b, acc, to = d) { cublaslt DEFAULT; requires dtype(a) == f16; }",
    ),
    Row::new(
        602,
        "a kernel for something that is no op",
        "A kernel implements one op, perhaps with a certain epilogue or certain attributes: its pattern
starts with that op. Pointwise scalars need no kernel of their own; they are gathered into regions,
and each region becomes one.",
        "kernel k for exp(x) { pointwise; }",
        "kernel k for gemm(a, b, exp(acc), to = d) { template \"gemm.cu.j2\"; }",
    ),
    Row::new(
        603,
        "malformed tuning parameter",
        "`tune NAME in {a, b}` names a parameter of the template and the integers that are tried for it, at
most 64. The name must be new.",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; tune BM in {}; }",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; tune BM in {64, 128}; }",
    ),
    Row::new(
        604,
        "unknown setting of a kernel",
        "A kernel's launch has the settings grid, block, cluster, shared, stages and workspace, each a
formula over sizes of the operands and tuning parameters.",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; launch blocks = 128; }",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; launch block = 128; }",
    ),
    Row::new(
        605,
        "template cannot be read",
        "A kernel's template lies in the folder of the file that names it, or below; links must not lead
out of it. It is UTF-8 text of at most a megabyte.",
        "",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; }",
    ),
    Row::new(
        606,
        "template is wrong",
        "The template's syntax is broken, or it uses a name that nothing defines. Values stand in `${ }`,
statements on lines that begin with `//%`. A template may use what docs/language.md lists, the
kernel's tuning parameters and the attributes of its op. It cannot include other files, headers of
CUDA apart.",
        "",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; tune BN in {64, 128}; }",
    ),
    Row::new(
        607,
        "no kernel can be generated from this body",
        "`rowwise` kernels are generated from bodies that reduce over some axes and work element by element otherwise,
`pointwise` kernels from bodies that only work element by element. Something in this op's body is
neither; the message names it. The op then runs as its parts.",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { pointwise; }",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { rowwise; }",
    ),
];
