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
mod expr;
mod gemm;
mod gemm_sm80;
mod gemv;
mod growth;
mod join_sums;
mod limits;
mod lines;
mod moves;
mod names;
mod pointwise;
pub(crate) mod problem;
mod row_values;
mod rowwise;
mod size_name;
mod teams;
pub mod template;
pub mod term;
#[cfg(test)]
mod tests;
mod tiles;

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
    ArgmaxKernel, BlockSumsKernel, ChecksumKernel, CumsumKernel, DisturbKernel, GemmKernel, GemvKernel, JoinSumsKernel,
    MoveKernel, PointwiseKernel, ProductKernel, RowSumsKernel, RowwiseKernel, ScatterKernel, SortKernel, WarpGemm,
};
use term::Functions;

pub use checksum::{SLICE as CHECKSUM_SLICE, compared_at_a_time};
pub use join_sums::JOIN_COLUMNS;
pub use lines::PRODUCT_TILE;
pub use names::{comment_lines, identifier};
pub use rowwise::{RowTarget, slices};
pub use size_name::SizeName;

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

/// A translation unit.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaSource {
    /// The kernel's name, as in its description.
    pub name: String,
    /// One line that says what is computed.
    pub formula: String,
    /// The text.
    pub text: String,
    /// Its entry points.
    pub entries: Vec<Entry>,
    /// The arguments, the same for all entry points.
    pub args: Vec<Arg>,
    /// The launch configuration, if the kernel declares one.
    pub launch: Option<String>,
}

/// An entry point of a [`CudaSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The `extern "C"` name.
    pub name: String,
    /// How to launch it.
    pub geometry: Geometry,
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Its name in the source.
    pub name: String,
    /// What the launcher passes for it. The launcher goes by the role, not by the name.
    pub role: ArgRole,
    /// Its kind.
    pub kind: ArgKind,
    /// Its shape or meaning, in words.
    pub about: String,
}

impl Arg {
    /// The input tensor at that position.
    pub fn read(place: usize, dtype: DType, about: impl Into<String>) -> Arg {
        let role = ArgRole::Read(place);
        Arg { name: role.tensor_name(), role, kind: ArgKind::Input(dtype), about: about.into() }
    }

    /// The output tensor at that position.
    pub fn written(place: usize, dtype: DType, about: impl Into<String>) -> Arg {
        let role = ArgRole::Written(place);
        Arg { name: role.tensor_name(), role, kind: ArgKind::Output(dtype), about: about.into() }
    }

    /// A descriptor of a tensor for the copy engine, for boxes of that many elements of its two
    /// inner axes.
    pub fn map(name: String, role: ArgRole, dtype: DType, inner: [usize; 2], about: &str) -> Arg {
        Arg { name, role, kind: ArgKind::Map { dtype, inner: inner.map(|n| n as u32) }, about: about.into() }
    }

    /// Memory of that role, which is no operand of the step.
    pub fn memory(role: ArgRole, kind: ArgKind, about: impl Into<String>) -> Arg {
        Arg::with(role, role.tensor_name(), kind, about)
    }

    /// An argument with that role and name.
    pub fn with(role: ArgRole, name: impl Into<String>, kind: ArgKind, about: impl Into<String>) -> Arg {
        Arg { name: name.into(), role, kind, about: about.into() }
    }

    /// A size that says nothing about the grid.
    pub fn size(name: SizeName, about: impl Into<String>) -> Arg {
        Arg::size_of(ArgRole::Named, name, about)
    }

    /// A size with that role.
    pub fn size_of(role: ArgRole, name: SizeName, about: impl Into<String>) -> Arg {
        Arg::with(role, name.name(), ArgKind::Size(name), about)
    }

    /// Several sizes.
    pub fn sizes(name: SizeName, count: usize, about: impl Into<String>) -> Arg {
        Arg::with(ArgRole::Named, name.name(), ArgKind::Sizes { name, count }, about)
    }

    /// The sizes of the axes of the work.
    pub fn axes(count: usize, about: impl Into<String>) -> Arg {
        Arg { role: ArgRole::Axes, ..Arg::sizes(SizeName::Axes, count, about) }
    }

    /// The strides of the tensor of that role, along this many axes.
    pub fn strides(of: ArgRole, axes: usize, about: impl Into<String>) -> Arg {
        Arg::with(ArgRole::Named, of.strides_name(), ArgKind::Strides { of, axes }, about)
    }

    /// The number of rows.
    pub fn rows(about: impl Into<String>) -> Arg {
        Arg::size_of(ArgRole::Rows, SizeName::Rows, about)
    }

    /// The number of elements of a row.
    pub fn row_length(about: impl Into<String>) -> Arg {
        Arg::size_of(ArgRole::RowLength, SizeName::N, about)
    }
}

/// What the launcher passes for an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgRole {
    /// The input tensor at that position.
    Read(usize),
    /// The output tensor at that position.
    Written(usize),
    /// The accumulator of an epilogue: the last input tensor.
    Accumulator,
    /// The factor at that position of the product that a user's template computes; its other inputs
    /// are counted from 0.
    Factor(usize),
    /// Partial sums that one launch of a step writes and the next one reads.
    Sums,
    /// Sums of a product's accumulators, for its checksums.
    RowSums,
    /// The largest score of each chunk of keys, and the sum of its weights.
    Tops,
    /// The tiles that each block of a masked attention visits.
    Ranges,
    /// The keys of each query of a masked attention.
    Intervals,
    /// What a comparison finds.
    Report,
    /// What a test wants changed.
    Fault,
    /// Positions in the order in which a scatter takes them.
    Order,
    /// Positions that a pass of a sort reads.
    From,
    /// Positions that a pass of a sort writes.
    To,
    /// The number of rows.
    Rows,
    /// The number of elements of a row.
    RowLength,
    /// The sizes of the axes of the work: of those that number the rows, then of those within one.
    Axes,
    /// A number of problems of one shape: all such numbers are multiplied.
    Problems,
    /// The rows of a problem, which are divided into tiles.
    TiledRows,
    /// The columns of a problem, which are divided into tiles.
    TiledColumns,
    /// A size that says nothing about the grid, or strides: the kind names them.
    Named,
}

impl ArgRole {
    /// The name of memory of this role in sources; empty if it is no memory.
    fn tensor_name(self) -> String {
        match self {
            ArgRole::Read(place) => format!("in{place}"),
            ArgRole::Written(place) => format!("out{place}"),
            ArgRole::Accumulator => "acc".into(),
            ArgRole::Factor(0) => "a".into(),
            ArgRole::Factor(_) => "b".into(),
            ArgRole::Sums => "sums".into(),
            ArgRole::RowSums => "row_sums".into(),
            ArgRole::Tops => "tops".into(),
            ArgRole::Ranges => "ranges".into(),
            ArgRole::Intervals => "intervals".into(),
            ArgRole::Report => "report".into(),
            ArgRole::Fault => "fault".into(),
            ArgRole::Order => "order".into(),
            ArgRole::From => "from".into(),
            ArgRole::To => "to".into(),
            ArgRole::Rows | ArgRole::RowLength | ArgRole::Axes | ArgRole::Problems => String::new(),
            ArgRole::TiledRows | ArgRole::TiledColumns | ArgRole::Named => String::new(),
        }
    }

    /// The name of the argument with the strides of the tensor of this role.
    pub fn strides_name(self) -> String {
        format!("{}_strides", self.tensor_name())
    }
}

/// Kinds of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A device pointer to read from.
    Input(DType),
    /// A device pointer to write to.
    Output(DType),
    /// A 64-bit signed size.
    Size(SizeName),
    /// Several 64-bit signed integers, passed by value: sizes, outermost first.
    Sizes {
        /// Which ones.
        name: SizeName,
        /// How many.
        count: usize,
    },
    /// The same: elements between neighbours along each axis of a tensor.
    Strides {
        /// The role of the tensor.
        of: ArgRole,
        /// The number of axes.
        axes: usize,
    },
    /// A `CUtensorMap` of three axes, passed by value: for boxes of `inner` elements of the two
    /// inner axes, the densest first, in rows of 128 bytes that are swizzled; zero outside of the
    /// tensor.
    Map {
        /// Element type.
        dtype: DType,
        /// Elements of a box along the dense axis and along the next one.
        inner: [u32; 2],
    },
}

impl ArgKind {
    /// Its C++ type.
    pub fn c_type(self) -> String {
        match self {
            ArgKind::Input(t) => format!("const {}*", storage(t)),
            ArgKind::Output(t) => format!("{}*", storage(t)),
            ArgKind::Size(_) => "long long".into(),
            ArgKind::Sizes { count, .. } | ArgKind::Strides { axes: count, .. } => format!("Axes<{count}>"),
            ArgKind::Map { .. } => "CUtensorMap".into(),
        }
    }
}

/// How an entry point is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// A grid-stride loop over `n` elements, `vector` at a time.
    Flat {
        /// Threads per block.
        block: u32,
        /// Elements that a thread handles at a time, in one or two accesses.
        vector: u32,
    },
    /// A block covers columns along x and rows along y.
    Grid {
        /// Threads per block, over both axes.
        block: u32,
        /// Elements per access.
        vector: u32,
    },
    /// `threads` threads share a row; a block handles `block / threads` rows.
    Rows {
        /// Threads per block.
        block: u32,
        /// Threads that share a row.
        threads: u32,
        /// The longest row for which this entry point is the fastest; the widest one has no limit.
        up_to: Option<u64>,
    },
    /// A cluster of `blocks` blocks shares a row.
    Clusters {
        /// Threads per block.
        block: u32,
        /// Blocks that share a row.
        blocks: u32,
        /// Dynamic shared memory per block, in bytes. If it is not 0, each cluster loops over
        /// several rows; it is fastest to launch as many clusters as the device runs at a time.
        shared: u32,
    },
    /// So many blocks share all rows, whatever their number.
    Parts {
        /// Threads per block.
        block: u32,
        /// Blocks.
        parts: u32,
    },
    /// A block for every `block` of `n` threads. Several problems may be computed by one launch:
    /// their arguments are one structure, an array of problems and their number.
    Problems {
        /// Threads per block.
        block: u32,
        /// Problems of a launch, at most.
        at_once: usize,
    },
    /// As the kernel declares: `CudaSource::launch`.
    Declared,
    /// Persistent blocks that walk over tiles of a matrix, in clusters.
    Tiles {
        /// Threads per block.
        block: u32,
        /// Blocks per cluster.
        cluster: u32,
        /// Rows of a cluster's tile.
        rows: u32,
        /// Columns of a cluster's tile.
        columns: u32,
        /// Dynamic shared memory per block, in bytes.
        shared: u32,
    },
    /// One thread per row, for adjacent rows whose elements are strided.
    Columns {
        /// Threads per block.
        block: u32,
    },
}

impl Geometry {
    /// True if a kernel is correct for that grid alone.
    pub fn is_prescribed(self) -> bool {
        matches!(self, Geometry::Parts { .. })
    }

    /// Dynamic shared memory of a launch, in bytes.
    pub fn shared(self) -> u32 {
        match self {
            Geometry::Clusters { shared, .. } | Geometry::Tiles { shared, .. } => shared,
            _ => 0,
        }
    }

    /// Grid and block for `rows` rows of `n` elements (`rows` is 1 for flat kernels).
    pub fn launch(self, rows: u64, n: u64) -> ([u32; 3], [u32; 3]) {
        let cap = |v: u64, max: u64| v.clamp(1, max) as u32;
        match self {
            Geometry::Flat { block, vector } => {
                let total = rows.saturating_mul(n).div_ceil(vector as u64);
                ([cap(total.div_ceil(block as u64), i32::MAX as u64), 1, 1], [block, 1, 1])
            }
            Geometry::Grid { block, vector } => {
                let lanes = if n.is_multiple_of(vector as u64) { n / vector as u64 } else { n };
                let x = cap(lanes, block as u64).next_power_of_two().min(block);
                let y = block / x;
                ([cap(lanes.div_ceil(x as u64), i32::MAX as u64), cap(rows.div_ceil(y as u64), 65_535), 1], [x, y, 1])
            }
            Geometry::Parts { block, parts } => ([parts, 1, 1], [block, 1, 1]),
            Geometry::Problems { block, .. } => ([cap(n.div_ceil(block as u64), i32::MAX as u64), 1, 1], [block, 1, 1]),
            Geometry::Declared => ([1, 1, 1], [1, 1, 1]),
            Geometry::Tiles { block, cluster, rows: of_tile, columns, .. } => {
                let tiles = rows.div_ceil(of_tile as u64).saturating_mul(n.div_ceil(columns as u64));
                ([cap(tiles, (i32::MAX as u32 / cluster) as u64) * cluster, 1, 1], [block, 1, 1])
            }
            Geometry::Clusters { block, blocks, .. } => {
                ([cap(rows, (i32::MAX as u32 / blocks) as u64) * blocks, 1, 1], [block, 1, 1])
            }
            Geometry::Columns { block } => ([cap(rows.div_ceil(block as u64), i32::MAX as u64), 1, 1], [block, 1, 1]),
            Geometry::Rows { block, threads, .. } => {
                ([cap(rows.div_ceil((block / threads) as u64), i32::MAX as u64), 1, 1], [block, 1, 1])
            }
        }
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Geometry::Flat { block, vector } => write!(f, "block ({block}), grid (ceil(n / {}))", block * vector),
            Geometry::Grid { block, vector } => write!(
                f,
                "lanes = n % {vector} == 0 ? n / {vector} : n; x = min({block}, next power of two of lanes); y = \
                 {block} / x; \
                 block (x, y), grid (ceil(lanes / x), min(65535, ceil(rows / y)))"
            ),
            Geometry::Parts { block, parts } => write!(f, "block ({block}), grid ({parts})"),
            Geometry::Problems { block, at_once } => {
                write!(f, "block ({block}), grid (the sum of ceil(n / {block}) over at most {at_once} problems)")
            }
            Geometry::Declared => write!(f, "as the kernel declares"),
            Geometry::Tiles { block, cluster, rows, columns, shared } => write!(
                f,
                "block ({block}), grid ({cluster} * min(clusters that run at a time, batches * ceil(rows / {rows}) * \
                 ceil(columns / {columns}))), clusters of {cluster}, {shared} bytes of shared memory"
            ),
            Geometry::Clusters { block, blocks, .. } => {
                write!(f, "block ({block}), grid ({blocks} * rows), clusters of {blocks} blocks")
            }
            Geometry::Columns { block } => {
                write!(f, "block ({block}), grid (ceil(rows / {block})); for columns of a matrix")
            }
            Geometry::Rows { block, threads, up_to } => {
                let per_block = block / threads;
                write!(f, "block ({block}), grid (")?;
                if per_block == 1 {
                    write!(f, "rows)")?
                } else {
                    write!(f, "ceil(rows / {per_block}))")?
                }
                match up_to {
                    Some(n) => write!(f, "; for n <= {n}"),
                    None => write!(f, "; for longer rows"),
                }
            }
        }
    }
}

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

/// Prints the kernel of rows whose columns are added up by blocks.
pub fn row_sums(program: &Program, kernel: &RowSumsKernel) -> Result<CudaSource, EmitError> {
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
fn vector_width(dtypes: impl Iterator<Item = DType> + Clone) -> usize {
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
        out.push(format!("Arguments, in order ({}; pointers may have any alignment):", self.overlap()));
        let width = self.args.iter().map(|a| a.kind.c_type().len()).max().unwrap_or(0);
        let names = self.args.iter().map(|a| a.name.len()).max().unwrap_or(0).max(8);
        for a in self.args {
            out.push(format!("  {:width$} {:names$} {}", a.kind.c_type(), a.name, a.about).trim_end().to_string());
        }
        out.push(String::new());
        if self.entries.iter().all(|e| e.geometry != Geometry::Declared) {
            let prescribed = self.entries.iter().any(|e| e.geometry.is_prescribed());
            let grid = if prescribed { "this grid and no other" } else { "any grid is correct, this one is fast" };
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
