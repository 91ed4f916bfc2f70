//! Kernels as CUDA C++: the embedded templates and the code that renders them.
//!
//! In: a checked [`Program`](hypatia_dsl::ir::Program), kernel descriptions
//! (`hypatia_dsl::kernel`), users' templates. Out: sources with their entry points, arguments and
//! launch geometry; and a [`Checker`] for the front end. Invariant: output is deterministic (the
//! same input gives the same bytes); user text reaches the output only through the expression
//! grammar, as a mangled name, or inside a sanitised comment.
//!
//! The templates are the `.j2` files of this folder: two for launchers, in C and Python, the others
//! for CUDA C++. `pointwise`, `epilogue`, `rowwise`, `moves`, `argmax`, `gemm_sm80`, `gemm_sm90`,
//! `gemv`, `mlp_fused`, `mlp_cluster`, `attention_sm80`, `attention_sm90`, `attention_grad`,
//! `attention_join`, `product`, `cumsum`, `sort` and `scatter` are whole files; the others are
//! parts that they include. Syntax: minijinja with `${ }` for values, `//%` for statements and
//! `//#` for comments on a line of their own, so that the braces of CUDA C++ need no escapes.

mod checker;
pub mod cuda;
pub mod instances;
pub mod launcher;

pub use checker::Checker;

/// Name and text of each template.
pub const TEMPLATES: &[(&str, &str)] = &[
    ("prelude.cu.j2", include_str!("../prelude.cu.j2")),
    ("prologue.cu.j2", include_str!("../prologue.cu.j2")),
    ("gemm_image.cu.j2", include_str!("../gemm_image.cu.j2")),
    ("across.cu.j2", include_str!("../across.cu.j2")),
    ("flat.cu.j2", include_str!("../flat.cu.j2")),
    ("grid.cu.j2", include_str!("../grid.cu.j2")),
    ("joint_rows.cu.j2", include_str!("../joint_rows.cu.j2")),
    ("pointwise.cu.j2", include_str!("../pointwise.cu.j2")),
    ("epilogue.cu.j2", include_str!("../epilogue.cu.j2")),
    ("rowwise.cu.j2", include_str!("../rowwise.cu.j2")),
    ("column_sums.cu.j2", include_str!("../column_sums.cu.j2")),
    ("join_sums.cu.j2", include_str!("../join_sums.cu.j2")),
    ("block_sums.cu.j2", include_str!("../block_sums.cu.j2")),
    ("checksum.cu.j2", include_str!("../checksum.cu.j2")),
    ("disturb.cu.j2", include_str!("../disturb.cu.j2")),
    ("disturb_result.cu.j2", include_str!("../disturb_result.cu.j2")),
    ("gemm_multiply.cu.j2", include_str!("../gemm_multiply.cu.j2")),
    ("gather.cu.j2", include_str!("../gather.cu.j2")),
    ("position.cu.j2", include_str!("../position.cu.j2")),
    ("horizontal.cu.j2", include_str!("../horizontal.cu.j2")),
    ("moves.cu.j2", include_str!("../moves.cu.j2")),
    ("argmax.cu.j2", include_str!("../argmax.cu.j2")),
    ("half.cu.j2", include_str!("../half.cu.j2")),
    ("words.cu.j2", include_str!("../words.cu.j2")),
    ("factor.cu.j2", include_str!("../factor.cu.j2")),
    ("factor_reads.cu.j2", include_str!("../factor_reads.cu.j2")),
    ("ampere.cu.j2", include_str!("../ampere.cu.j2")),
    ("hopper.cu.j2", include_str!("../hopper.cu.j2")),
    ("gemm_sm80.cu.j2", include_str!("../gemm_sm80.cu.j2")),
    ("gemm_sm90.cu.j2", include_str!("../gemm_sm90.cu.j2")),
    ("gemm_computed.cu.j2", include_str!("../gemm_computed.cu.j2")),
    ("gemm_row_sums.cu.j2", include_str!("../gemm_row_sums.cu.j2")),
    ("gemm_windows.cu.j2", include_str!("../gemm_windows.cu.j2")),
    ("gemm_split.cu.j2", include_str!("../gemm_split.cu.j2")),
    ("gemv.cu.j2", include_str!("../gemv.cu.j2")),
    ("mlp_fused.cu.j2", include_str!("../mlp_fused.cu.j2")),
    ("mlp_cluster.cu.j2", include_str!("../mlp_cluster.cu.j2")),
    ("softmax.cu.j2", include_str!("../softmax.cu.j2")),
    ("attention_soften.cu.j2", include_str!("../attention_soften.cu.j2")),
    ("attention_walk.cu.j2", include_str!("../attention_walk.cu.j2")),
    ("attention_fetch.cu.j2", include_str!("../attention_fetch.cu.j2")),
    ("attention_grad.cu.j2", include_str!("../attention_grad.cu.j2")),
    ("attention_sm80.cu.j2", include_str!("../attention_sm80.cu.j2")),
    ("attention_sm90.cu.j2", include_str!("../attention_sm90.cu.j2")),
    ("attention_join.cu.j2", include_str!("../attention_join.cu.j2")),
    ("product.cu.j2", include_str!("../product.cu.j2")),
    ("cumsum.cu.j2", include_str!("../cumsum.cu.j2")),
    ("sort.cu.j2", include_str!("../sort.cu.j2")),
    ("pool_last.cu.j2", include_str!("../pool_last.cu.j2")),
    ("unfold.cu.j2", include_str!("../unfold.cu.j2")),
    ("unfold_last.cu.j2", include_str!("../unfold_last.cu.j2")),
    ("windows.cu.j2", include_str!("../windows.cu.j2")),
    ("windows_groups.cu.j2", include_str!("../windows_groups.cu.j2")),
    ("windows_last.cu.j2", include_str!("../windows_last.cu.j2")),
    ("scatter.cu.j2", include_str!("../scatter.cu.j2")),
    ("launcher.h.j2", include_str!("../launcher.h.j2")),
    ("launcher.py.j2", include_str!("../launcher.py.j2")),
];
