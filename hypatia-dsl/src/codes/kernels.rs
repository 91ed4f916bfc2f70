//! H06xx: kernels.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        601,
        "missing or unknown backend",
        "A kernel has one backend: `cublaslt EPILOGUE;` calls the library, `template \"file.cu.j2\";` fills in a
template, `pointwise;` and `rowwise;` generate a kernel, `tiled;` generates a matrix product with its
epilogue, and `composed;` runs the op's body, optimised by itself. `rowwise;` and `composed;` need an op
with a body; `tiled;` needs `gemm(a, b, e, to = d)`. The backend is missing, unknown, or does not fit the op.",
        "kernel k for gemm(a, b, acc, to = d) { requires dtype(a) == f16; }",
        "kernel k for gemm(a, b, acc, to = d) { cublaslt DEFAULT; requires dtype(a) == f16; }",
    ),
    Row::new(
        602,
        "a kernel for something that is not an op",
        "A kernel implements one op, possibly with a certain epilogue or certain attributes, so its pattern must
start with that op. Pointwise scalars need no kernel of their own: the compiler fuses them into regions
and generates one kernel per region.",
        "kernel k for exp(x) { pointwise; }",
        "kernel k for gemm(a, b, exp(acc), to = d) { template \"gemm.cu.j2\"; }",
    ),
    Row::new(
        603,
        "malformed tuning parameter",
        "`tune NAME in {a, b}` declares a parameter of the template and the integers to try for it, at most 64.
The name must not be in use. A `tiled` kernel has parameters of its own: tile_m, tile_n and group; consumers,
pingpong, cluster_m and cluster_n on Hopper; tile_k, warps, split_k and stages elsewhere. Each has the values
that the hardware has.",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; tune BM in {}; }",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; tune BM in {64, 128}; }",
    ),
    Row::new(
        604,
        "unknown setting of a kernel",
        "The launch settings of a kernel are grid, block, cluster, shared, stages and workspace. The value of each
is a formula of operand sizes and tuning parameters. A `tiled` kernel has none: its tiling decides.",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; launch blocks = 128; }",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; launch block = 128; }",
    ),
    Row::new(
        605,
        "template cannot be read",
        "The template of a kernel must be in the folder of the file that names it, or below. Symbolic links must
not lead out of that folder. It must be UTF-8 text of at most one mebibyte.",
        "",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; }",
    ),
    Row::new(
        606,
        "error in a template",
        "The template has a syntax error, or uses an undefined name. Values are written `${ }`, and statements on
lines that start with `//%`. A template can use what docs/language.md lists, the kernel's tuning parameters
and the attributes of its op. It cannot include other files, except CUDA's headers.",
        "",
        "kernel k for gemm(a, b, e, to = d) { template \"gemm.cu.j2\"; tune BN in {64, 128}; }",
    ),
    Row::new(
        607,
        "no kernel can be generated from this body",
        "`rowwise` kernels are generated from bodies that reduce over some axes and are element-wise otherwise,
`pointwise` kernels from bodies that are element-wise only, and `tiled` kernels from bodies that are
attention, `matmul(softmax(..), v)`, or its gradients. This body contains something else, which the message
names. Without the kernel, the op runs as the separate parts of its body.",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { pointwise; }",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { rowwise; }",
    ),
    Row::new(
        608,
        "a kernel that no device admits",
        "The `requires` of the kernel ask about the device, `sm` or `device`, and are false on every device that
the backend runs on: `cublaslt`, `tiled` and `template` kernels run on GPUs only. So the kernel is never used.
An op none of whose kernels is admissible on a device runs as the parts of its body there.",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { rowwise; requires sm >= 90, device == \"a100\"; }",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { rowwise; requires sm >= 90; }",
    ),
    Row::new(
        609,
        "no rule finds this op in a model",
        "An op with a kernel is recognised where a model computes its body, by a derived rule `fold::NAME`. No rule
can be derived from this body; the message says why. The kernel is then used only where a model or a rule
names the op. Write a rule whose right side is the op: `rule mine::form: PATTERN => NAME(...)`.",
        "op f<T: float>(*xs: T[..s, n]) -> T[..s, 1] = sum(concat(..xs, axis = -1), axes = [-1]);
kernel k for f(..xs) { composed; }",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]);
kernel k for f(x) { rowwise; }",
    ),
    Row::new(
        610,
        "a kernel of several results that becomes several launches",
        "A `composed` kernel runs the ops of the body, optimised by themselves, behind one name. Work of which a
`rowwise` or a `pointwise` kernel can be generated is one launch there, too. This body has something else,
which the message names, and several results: each takes a launch at least, so such a kernel saves no launch.
A template may compute all of them.",
        "op f<T: float>(x: T[..s, n]) -> (T[..s, n], T[..s, n]) = (exp(x), cumsum(x, axis = -1));
kernel k for f(x) { composed; }",
        "op f<T: float>(x: T[..s, n]) -> (T[..s, n], T[..s, 1]) = (exp(x), sum(x, axes = [-1]));
kernel k for f(x) { composed; }",
    ),
];
