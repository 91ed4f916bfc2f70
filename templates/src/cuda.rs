//! CUDA C++ from kernel descriptions.
//!
//! In: a [`PointwiseKernel`] or [`RowwiseKernel`] whose operands have element types. Out: a
//! [`CudaSource`]: one translation unit for NVRTC (or nvcc), with its entry points, their arguments
//! and the launch geometry of each. Invariant: a kernel is correct for every size (0 included),
//! every alignment of its pointers and every grid; only the block shape is fixed. Arithmetic runs
//! in the compute type of the operands and rounds once, at the store.
//!
//! The skeletons are the templates of `hypatia-templates`. [`term`] prints the parts that vary:
//! scalar functions and the value of one element.

mod attention;
mod attention_grad;
mod attention_sm80;
mod carry;
mod chain;
mod checksum;
mod column_sums;
mod expr;
mod gemm;
mod gemm_sm80;
mod gemv;
mod growth;
mod horizontal;
mod join_sums;
mod joint_rows;
mod limits;
mod lines;
mod moves;
mod names;
mod online;
mod passes;
mod pointwise;
mod pool;
pub(crate) mod problem;
mod prologue;
mod row_values;
mod rowwise;
mod size_name;
mod source;
mod teams;
pub mod template;
pub mod term;
#[cfg(test)]
mod tests;
mod tiles;
mod unfold;
mod windows;
mod windows_groups;
mod windows_last;

use std::fmt;
use std::sync::OnceLock;

use minijinja::{Environment, UndefinedBehavior, Value, context};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::attention::AttentionKernel;
use hypatia_dsl::kernel::attention_grad::AttentionGradKernel;
use hypatia_dsl::kernel::attention_sm80::WarpAttention;
use hypatia_dsl::kernel::chain::ChainKernel;
use hypatia_dsl::kernel::{
    ArgmaxKernel, BlockSumsKernel, ChannelWindowsKernel, ChecksumKernel, CumsumKernel, DisturbKernel, GemmKernel,
    GemvKernel, GroupWindowsKernel, HorizontalKernel, JoinSumsKernel, JointRowsKernel, MoveKernel, PointwiseKernel,
    PoolKernel, ProductKernel, RowSumsKernel, RowwiseKernel, ScatterKernel, SortKernel, UnfoldKernel, WarpGemm,
    WindowsKernel,
};
use term::Functions;

pub use checksum::{SLICE as CHECKSUM_SLICE, compared_at_a_time};
pub use join_sums::JOIN_COLUMNS;
pub use lines::PRODUCT_TILE;
pub use names::{comment_lines, identifier};
pub use rowwise::{RowTarget, slices};
pub use size_name::SizeName;
pub use source::{Arg, ArgKind, ArgRole, CudaSource, Entry, Geometry};

/// Required compiler options for every source. Contraction of `a * b + c` to FMA is off: a fused
/// kernel rounds after each operation, exactly like the kernels it replaces.
pub const NVRTC_OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device"];

/// Maximum nodes of a printed term. A compiler would take minutes for a larger one.
pub const MAX_TERM_NODES: usize = 20_000;

/// Number of rows at which one thread per row fills a GPU.
pub const MANY_ROWS: usize = 1 << 12;
/// Rows with fewer elements than this are too short for a warp.
pub const FEW_ELEMENTS: usize = 24;

/// Threads per block of a pointwise kernel.
const POINTWISE_BLOCK: u32 = 256;

/// Why a kernel cannot be printed as CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// A float-only function is applied to integers.
    FloatOnly {
        /// The function.
        scalar: String,
    },
    /// A fractional literal is combined with integers.
    Fraction {
        /// The literal.
        literal: String,
    },
    /// The term is too large to compile in reasonable time.
    TooLarge {
        /// Its number of nodes.
        nodes: usize,
    },
    /// An element type that generated kernels lack.
    NoKernels {
        /// The type.
        dtype: DType,
    },
    /// The description or the program violates its own invariants.
    Malformed(String),
    /// A template is invalid or missing.
    Template(String),
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::FloatOnly { scalar } => write!(f, "`{scalar}` has no meaning on integers"),
            EmitError::Fraction { literal } => write!(f, "the number {literal} is no integer, but its operands are"),
            EmitError::TooLarge { nodes } => {
                write!(f, "{nodes} scalar operations in one kernel; at most {MAX_TERM_NODES} are compiled")
            }
            EmitError::NoKernels { dtype } => write!(
                f,
                "{dtype} has no CUDA kernels yet; run the model on the CPU (--device cpu), or keep {dtype} out of what \
                 the GPU computes: cast the weights when the model is made"
            ),
            EmitError::Malformed(what) => write!(f, "malformed kernel: {what}"),
            EmitError::Template(what) => write!(f, "template: {what}"),
        }
    }
}

impl std::error::Error for EmitError {}

/// Prints a pointwise kernel, or the pass after a matrix product.
pub fn pointwise(program: &Program, kernel: &PointwiseKernel) -> Result<CudaSource, EmitError> {
    pointwise::emit(program, kernel, &[], None)
}

/// Like [`pointwise`](fn@pointwise), but outputs may alias the inputs with the indices `shared`;
/// the accumulator counts as the input after the last. An aliased input must be full, and the
/// output must begin at the same address.
pub fn pointwise_in_place(
    program: &Program,
    kernel: &PointwiseKernel,
    shared: &[usize],
) -> Result<CudaSource, EmitError> {
    pointwise::emit(program, kernel, shared, None)
}

/// The amount of work to tune a pointwise kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointTarget {
    /// Elements of one result.
    pub elements: u64,
    /// Elements of a row, where operands make rows differ.
    pub row: u64,
    /// Threads that the device runs at a time.
    pub threads: u64,
}

/// Like [`pointwise_in_place`], tuned for this amount of work. The kernel is correct for any
/// amount.
pub fn pointwise_for(
    program: &Program,
    kernel: &PointwiseKernel,
    shared: &[usize],
    target: PointTarget,
) -> Result<CudaSource, EmitError> {
    pointwise::emit(program, kernel, shared, Some(target))
}

/// Prints pointwise work of several index spaces as one kernel.
pub fn horizontal(program: &Program, kernel: &HorizontalKernel) -> Result<CudaSource, EmitError> {
    horizontal::emit(program, kernel)
}

/// Prints a tiled matrix product with its epilogue, for sm_90a.
pub fn gemm(program: &Program, kernel: &GemmKernel) -> Result<CudaSource, EmitError> {
    gemm::emit(program, kernel)
}

/// Prints a matrix product of warps with its epilogue, for sm_80 and later.
pub fn warp_gemm(program: &Program, kernel: &WarpGemm) -> Result<CudaSource, EmitError> {
    gemm_sm80::emit(program, kernel)
}

/// Prints a matrix product of few rows with its epilogue, for sm_80 and later.
pub fn gemv(program: &Program, kernel: &GemvKernel) -> Result<CudaSource, EmitError> {
    gemv::emit(program, kernel)
}

/// Prints a chain of matrix products with their epilogues: for sm_90a, or for sm_80 and later, as
/// its tiling says.
pub fn chain(program: &Program, kernel: &ChainKernel) -> Result<CudaSource, EmitError> {
    chain::emit(program, kernel)
}

/// Prints attention in tiles, for sm_90a; the sums of each chunk of keys, if its tiling splits
/// them.
pub fn attention(program: &Program, kernel: &AttentionKernel) -> Result<CudaSource, EmitError> {
    attention::emit(program, kernel)
}

/// Prints attention in tiles of warps, for sm_80 and later.
pub fn warp_attention(program: &Program, kernel: &WarpAttention) -> Result<CudaSource, EmitError> {
    attention_sm80::emit(program, kernel)
}

/// Prints one of the two kernels of attention's gradients, for sm_80 and later.
pub fn attention_grad(program: &Program, kernel: &AttentionGradKernel) -> Result<CudaSource, EmitError> {
    attention_grad::emit(program, kernel)
}

/// Prints the kernel that joins the chunks of an attention whose keys are split.
pub fn attention_join(program: &Program, kernel: &AttentionKernel) -> Result<CudaSource, EmitError> {
    attention::join(program, kernel)
}

/// Prints a row-wise kernel.
pub fn rowwise(program: &Program, kernel: &RowwiseKernel) -> Result<CudaSource, EmitError> {
    rowwise::emit(program, kernel, None)
}

/// Prints a row-wise kernel for these rows alone. It compiles faster and runs faster.
pub fn rowwise_for(program: &Program, kernel: &RowwiseKernel, target: RowTarget) -> Result<CudaSource, EmitError> {
    rowwise::emit(program, kernel, Some(target))
}

/// Prints several row-wise kernels as one launch.
pub fn joint_rows(program: &Program, kernel: &JointRowsKernel) -> Result<CudaSource, EmitError> {
    joint_rows::emit(program, kernel)
}

/// Prints the kernel of rows whose columns are added up by blocks.
pub fn row_sums(program: &Program, kernel: &RowSumsKernel) -> Result<CudaSource, EmitError> {
    if kernel.split.tiled {
        return column_sums::emit(program, kernel);
    }
    let target = RowTarget::Sums { n: kernel.n as u64, split: kernel.split };
    rowwise::emit(program, &kernel.kernel, Some(target))
}

/// Prints the kernel that adds up the sums of all blocks.
pub fn join_sums(program: &Program, kernel: &JoinSumsKernel) -> Result<CudaSource, EmitError> {
    join_sums::emit(program, kernel)
}

/// Prints the sums of a product's right factor, for its checksums.
pub fn block_sums(program: &Program, kernel: &BlockSumsKernel) -> Result<CudaSource, EmitError> {
    checksum::block_sums(program, kernel)
}

/// Prints the comparison of a product with its checksums.
pub fn checksum(program: &Program, kernel: &ChecksumKernel) -> Result<CudaSource, EmitError> {
    checksum::compare(program, kernel)
}

/// Prints a kernel that changes a result as a test wants it.
pub fn disturb(program: &Program, kernel: &DisturbKernel) -> Result<CudaSource, EmitError> {
    checksum::disturb(program, kernel)
}

/// Prints a kernel that reduces windows of each channel, with the channels last.
pub fn pool(program: &Program, kernel: &PoolKernel) -> Result<CudaSource, EmitError> {
    pool::emit(program, kernel)
}

/// Prints a kernel that copies windows as the rows of a matrix.
pub fn unfold(program: &Program, kernel: &UnfoldKernel) -> Result<CudaSource, EmitError> {
    unfold::emit(program, kernel)
}

/// Prints a kernel of windows times filters.
pub fn windows(program: &Program, kernel: &WindowsKernel) -> Result<CudaSource, EmitError> {
    windows::emit(program, kernel)
}

/// Prints a kernel of windows times filters, with the channels last.
pub fn channel_windows(program: &Program, kernel: &ChannelWindowsKernel) -> Result<CudaSource, EmitError> {
    windows_last::emit(program, kernel)
}

/// Prints a kernel of windows times filters of groups, with the channels last.
pub fn group_windows(program: &Program, kernel: &GroupWindowsKernel) -> Result<CudaSource, EmitError> {
    windows_groups::emit(program, kernel)
}

/// Prints a kernel that moves elements.
pub fn moves(program: &Program, kernel: &MoveKernel) -> Result<CudaSource, EmitError> {
    moves::emit(program, kernel)
}

/// Prints an argmax over each row.
pub fn argmax(program: &Program, kernel: &ArgmaxKernel) -> Result<CudaSource, EmitError> {
    moves::argmax(program, kernel)
}

/// Prints an integer matrix product.
pub fn product(program: &Program, kernel: &ProductKernel) -> Result<CudaSource, EmitError> {
    lines::product(program, kernel)
}

/// Prints a cumsum, or a part of it.
pub fn cumsum(program: &Program, kernel: &CumsumKernel) -> Result<CudaSource, EmitError> {
    lines::cumsum(program, kernel)
}

/// Prints a sort, or a part of it.
pub fn sort(program: &Program, kernel: &SortKernel) -> Result<CudaSource, EmitError> {
    lines::sort(program, kernel)
}

/// Prints a scatter of rows.
pub fn scatter(program: &Program, kernel: &ScatterKernel) -> Result<CudaSource, EmitError> {
    lines::scatter(program, kernel)
}

/// The C++ type of an element in memory.
pub fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::F16 => "__half",
        DType::BF16 => "__nv_bfloat16",
        DType::F8E4M3 => "__nv_fp8_e4m3",
        DType::F8E5M2 => "__nv_fp8_e5m2",
        DType::I64 => "long long",
        DType::I32 => "int",
        DType::I8 => "signed char",
        DType::U8 => "unsigned char",
        DType::Bool => "bool",
    }
}

/// Elements per access: 16 bytes of the smallest type, in several accesses for larger types; at
/// most 8 elements for types wider than a byte.
pub fn vector_width(dtypes: impl Iterator<Item = DType> + Clone) -> usize {
    let widest = dtypes.clone().map(DType::size).max().unwrap_or(4);
    let narrowest = dtypes.map(DType::size).min().unwrap_or(4);
    let cap = if widest == 1 { 16 } else { 8 };
    (16 / narrowest).min(cap)
}

/// The `#include`s that these types need.
fn includes(dtypes: impl Iterator<Item = DType> + Clone) -> Vec<&'static str> {
    let mut out = Vec::new();
    if dtypes.clone().any(|d| d == DType::F16) {
        out.push("cuda_fp16.h");
    }
    if dtypes.clone().any(|d| d == DType::BF16) {
        out.push("cuda_bf16.h");
    }
    out
}

/// The context values that every template gets. Here, too, a kernel is refused whose element types
/// cannot be printed yet.
fn common(
    header: Header<'_>,
    functions: &Functions<'_>,
    dtypes: impl Iterator<Item = DType> + Clone,
    bodies: &[String],
) -> Result<Value, EmitError> {
    let all = dtypes.chain(functions.rounded_to());
    if let Some(dtype) = all.clone().find(|d| d.only_stored()) {
        return Err(EmitError::NoKernels { dtype });
    }
    Ok(context! {
        entries => header.entries.iter().map(|e| Value::from(e.name.clone())).collect::<Value>(),
        header => header.lines().into_iter().collect::<Value>(),
        includes => includes(all.collect::<Vec<_>>().into_iter()).into_iter().collect::<Value>(),
        helpers => functions.helpers().into_iter().collect::<Value>(),
        functions => functions.texts().into_iter().collect::<Value>(),
        bodies => bodies.iter().cloned().collect::<Value>(),
    })
}

/// The comment at the top of a file.
struct Header<'a> {
    name: &'a str,
    kind: &'a str,
    doc: &'a str,
    formula: &'a [String],
    args: &'a [Arg],
    entries: &'a [Entry],
    in_place: bool,
}

impl Header<'_> {
    fn overlap(&self) -> &'static str {
        if self.in_place {
            "outputs may lie where inputs do that are read at the same index"
        } else {
            "outputs do not overlap inputs"
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut out = vec![format!("{}: {}", names::comment_lines(self.name, 60).join(" "), self.kind)];
        out.extend(names::comment_lines(self.doc, 100));
        out.push(String::new());
        out.push("Computes:".into());
        out.extend(self.formula.iter().map(|l| format!("  {l}")));
        out.push(String::new());
        let maps = self.args.iter().any(|a| matches!(a.kind, ArgKind::Map { .. }));
        let apart = match maps {
            true => "; rows of a CUtensorMap begin at multiples of 16 bytes, its last axis is dense",
            false => "",
        };
        out.push(format!("Arguments, in order ({}; pointers may have any alignment{apart}):", self.overlap()));
        let width = self.args.iter().map(|a| a.kind.c_type().len()).max().unwrap_or(0);
        let names = self.args.iter().map(|a| a.name.len()).max().unwrap_or(0).max(8);
        for a in self.args {
            out.push(format!("  {:width$} {:names$} {}", a.kind.c_type(), a.name, a.about).trim_end().to_string());
        }
        out.push(String::new());
        if self.entries.iter().all(|e| e.geometry != Geometry::Declared) {
            let prescribed = self.entries.iter().any(|e| e.geometry.is_prescribed());
            let clusters =
                self.entries.iter().any(|e| matches!(e.geometry, Geometry::Tiles { cluster, .. } if cluster > 1));
            let grid = match (prescribed, clusters) {
                (true, _) => "this grid and no other",
                (false, true) => "any grid of whole clusters is correct, this one is fast",
                (false, false) => "any grid is correct, this one is fast",
            };
            out.push(format!("Launch ({grid}):"));
            out.extend(self.entries.iter().map(|e| format!("  {}: {}", e.name, e.geometry)));
        }
        out.push(String::new());
        let tiles = self.entries.iter().any(|e| matches!(e.geometry, Geometry::Tiles { .. }));
        let machine = if tiles { "sm_90a" } else { "sm_80 or newer" };
        out.push(format!("Compile with NVRTC: --gpu-architecture={machine} {}", NVRTC_OPTIONS.join(" ")));
        out.push("With nvcc the same, but for -default-device, which is NVRTC's alone.".into());
        out.push(format!("Generated by Hypatia {}; do not edit.", env!("CARGO_PKG_VERSION")));
        out
    }
}

/// Renders a template and fills in the line numbers of `#line` directives that point back into the
/// generated file.
fn render(template: &str, file: &str, ctx: Value) -> Result<String, EmitError> {
    let fail = |e: minijinja::Error| EmitError::Template(format!("{e:#}"));
    let text = environment()?.get_template(template).map_err(fail)?.render(ctx).map_err(fail)?;
    Ok(tidy(&text, file))
}

/// Renders a template into a text that another one includes.
fn render_part(template: &str, ctx: Value) -> Result<String, EmitError> {
    let fail = |e: minijinja::Error| EmitError::Template(format!("{e:#}"));
    environment()?.get_template(template).map_err(fail)?.render(ctx).map_err(fail)
}

/// Renders a template of a language other than CUDA C++.
pub(crate) fn render_plain(template: &str, ctx: Value) -> Result<String, EmitError> {
    let fail = |e: minijinja::Error| EmitError::Template(format!("{e:#}"));
    Ok(environment()?.get_template(template).map_err(fail)?.render(ctx).map_err(fail)? + "\n")
}

/// Trims trailing blanks, collapses consecutive empty lines, and fills in the numbers of `#line`
/// directives.
fn tidy(text: &str, file: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut blank = false;
    let mut number = 0usize;
    for line in text.lines().map(str::trim_end) {
        // Empty parts of a template leave two empty lines in a row.
        if line.is_empty() && (blank || out.is_empty()) {
            continue;
        }
        blank = line.is_empty();
        number += 1;
        if line == term::LINE_BACK {
            out.push_str(&format!("#line {} \"{}\"", number + 1, names::file_name(file)));
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}

fn environment() -> Result<&'static Environment<'static>, EmitError> {
    static ENV: OnceLock<Result<Environment<'static>, String>> = OnceLock::new();
    ENV.get_or_init(|| build_environment().map_err(|e| format!("{e:#}")))
        .as_ref()
        .map_err(|e| EmitError::Template(e.clone()))
}

fn build_environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    configure(&mut env)?;
    for (name, text) in crate::TEMPLATES {
        env.add_template(name, text)?;
    }
    Ok(env)
}

/// The template syntax. The braces of CUDA C++ need no escapes, and an undefined variable is an
/// error.
fn configure(env: &mut Environment<'_>) -> Result<(), minijinja::Error> {
    let mut syntax = minijinja::syntax::SyntaxConfig::builder();
    syntax.variable_delimiters("${", "}").block_delimiters("/*%", "%*/").comment_delimiters("/*#", "#*/");
    syntax.line_statement_prefix("//%").line_comment_prefix("//#").trim_blocks(true).lstrip_blocks(true);
    env.set_syntax(syntax.build()?);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    Ok(())
}
