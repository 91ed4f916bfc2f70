//! CUDA C++ from kernel descriptions.
//!
//! In: a [`PointwiseKernel`] or [`RowwiseKernel`] whose operands have element types. Out: a
//! [`CudaSource`]: one translation unit for NVRTC (or nvcc), with its entry points, their arguments
//! and the launch geometry of each. Holds always: a kernel is right for every size (0 included), every
//! alignment of its pointers and every grid; only the block's shape is prescribed. Arithmetic is done
//! in the compute type of the operands and rounded once, at the store.
//!
//! The skeletons are the templates of `hypatia-templates`; what varies (scalar functions, the value
//! of one element) is printed by [`term`].

mod carry;
mod expr;
mod growth;
mod lines;
mod moves;
mod names;
mod pointwise;
mod rowwise;
mod teams;
pub mod template;
pub mod term;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;

use minijinja::{Environment, UndefinedBehavior, Value, context};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{
    ArgmaxKernel, CumsumKernel, MoveKernel, PointwiseKernel, ProductKernel, RowwiseKernel, ScatterKernel, SortKernel,
};
use term::Functions;

pub use lines::PRODUCT_TILE;
pub use names::{comment_lines, identifier};
pub use rowwise::RowTarget;

/// Options that every source must be compiled with. Contraction of `a * b + c` is off: a fused
/// kernel rounds after each operation, exactly as the kernels that it replaces.
pub const NVRTC_OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device"];

/// Most nodes of one term that is printed: beyond it a compiler would take minutes.
pub const MAX_TERM_NODES: usize = 20_000;

/// Threads of a block of a pointwise kernel.
const POINTWISE_BLOCK: u32 = 256;

/// Why a kernel has no CUDA form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// A function of floating-point numbers is applied to integers.
    FloatOnly {
        /// The function.
        scalar: String,
    },
    /// A literal with a fraction meets integers.
    Fraction {
        /// The literal.
        literal: String,
    },
    /// The term is too large to compile in reasonable time.
    TooLarge {
        /// Its nodes.
        nodes: usize,
    },
    /// The description or the program breaks its own rules.
    Malformed(String),
    /// A template is wrong or missing.
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
    /// One line: what is computed.
    pub formula: String,
    /// The text.
    pub text: String,
    /// Its kernels.
    pub entries: Vec<Entry>,
    /// The arguments, the same for each entry point.
    pub args: Vec<Arg>,
    /// How it is launched, where the kernel declares that itself.
    pub launch: Option<String>,
}

/// A kernel of a [`CudaSource`].
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
    /// What it is given: who launches the kernel goes by this and not by the name.
    pub role: ArgRole,
    /// What it is.
    pub kind: ArgKind,
    /// Its shape or meaning, in words.
    pub about: String,
}

impl Arg {
    /// The tensor that the kernel reads at that place.
    pub fn read(place: usize, dtype: DType, about: impl Into<String>) -> Arg {
        let role = ArgRole::Read(place);
        Arg { name: format!("in{place}"), role, kind: ArgKind::Input(dtype), about: about.into() }
    }

    /// The tensor that it writes at that place.
    pub fn written(place: usize, dtype: DType, about: impl Into<String>) -> Arg {
        let role = ArgRole::Written(place);
        Arg { name: format!("out{place}"), role, kind: ArgKind::Output(dtype), about: about.into() }
    }

    /// What the caller has under that name: memory, a size, several sizes or strides.
    pub fn named(name: impl Into<String>, kind: ArgKind, about: impl Into<String>) -> Arg {
        Arg { name: name.into(), role: ArgRole::Named, kind, about: about.into() }
    }

    /// The number of rows.
    pub fn rows(about: impl Into<String>) -> Arg {
        Arg { name: "rows".into(), role: ArgRole::Rows, kind: ArgKind::Size, about: about.into() }
    }

    /// The number of elements of a row.
    pub fn row_length(about: impl Into<String>) -> Arg {
        Arg { name: "n".into(), role: ArgRole::RowLength, kind: ArgKind::Size, about: about.into() }
    }
}

/// What an argument is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgRole {
    /// The tensor that the kernel reads at that place.
    Read(usize),
    /// The tensor that it writes at that place.
    Written(usize),
    /// The value on which an epilogue grows: the last tensor that it reads.
    Accumulator,
    /// The number of rows.
    Rows,
    /// The number of elements of a row.
    RowLength,
    /// What the caller has under the argument's name.
    Named,
}

/// Kinds of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A device pointer that is read.
    Input(DType),
    /// A device pointer that is written.
    Output(DType),
    /// A 64-bit signed size.
    Size,
    /// So many 64-bit signed integers, passed by value: sizes or strides, outermost first.
    Sizes(usize),
}

impl ArgKind {
    /// As C++ writes it.
    pub fn c_type(self) -> String {
        match self {
            ArgKind::Input(t) => format!("const {}*", storage(t)),
            ArgKind::Output(t) => format!("{}*", storage(t)),
            ArgKind::Size => "long long".into(),
            ArgKind::Sizes(count) => format!("Axes<{count}>"),
        }
    }
}

/// How an entry point is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// Threads stride over `n` elements, `vector` at a time.
    Flat {
        /// Threads of a block.
        block: u32,
        /// Elements that a thread takes at a time, in one access or two.
        vector: u32,
    },
    /// A block covers columns along x and rows along y.
    Grid {
        /// Threads of a block, along both axes together.
        block: u32,
        /// Elements of one access.
        vector: u32,
    },
    /// `threads` share a row, `block / threads` rows a block.
    Rows {
        /// Threads of a block.
        block: u32,
        /// Threads that share a row.
        threads: u32,
        /// The row length up to which this entry point is the best one; the widest has no limit.
        up_to: Option<u64>,
    },
    /// `blocks` blocks, a cluster, share a row.
    Clusters {
        /// Threads of a block.
        block: u32,
        /// Blocks that share a row.
        blocks: u32,
        /// Dynamic shared memory of a block, in bytes. Where there is some, a cluster goes over several rows: as many clusters
        /// as the device runs at a time are best.
        shared: u32,
    },
    /// As the kernel's declaration says: `CudaSource::launch`.
    Declared,
    /// A thread a row: for rows that lie side by side, their elements apart.
    Columns {
        /// Threads of a block.
        block: u32,
    },
}

impl Geometry {
    /// Dynamic shared memory that a launch asks for, in bytes.
    pub fn shared(self) -> u32 {
        if let Geometry::Clusters { shared, .. } = self { shared } else { 0 }
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
            Geometry::Declared => ([1, 1, 1], [1, 1, 1]),
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
                "lanes = n % {vector} == 0 ? n / {vector} : n; x = min({block}, next power of two of lanes); y = {block} / x; \
                 block (x, y), grid (ceil(lanes / x), min(65535, ceil(rows / y)))"
            ),
            Geometry::Declared => write!(f, "as the kernel declares"),
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

/// Prints a pointwise kernel, or the pass behind a matrix product.
pub fn pointwise(program: &Program, kernel: &PointwiseKernel) -> Result<CudaSource, EmitError> {
    pointwise::emit(program, kernel, &[], None)
}

/// As [`pointwise`](fn@pointwise), where outputs may lie in the memory of some inputs: those of the indices
/// `shared`, the accumulator counting as the input behind the last. Such an input must be full, and an output
/// begin where it begins.
pub fn pointwise_in_place(
    program: &Program,
    kernel: &PointwiseKernel,
    shared: &[usize],
) -> Result<CudaSource, EmitError> {
    pointwise::emit(program, kernel, shared, None)
}

/// How much work a pointwise kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointTarget {
    /// Elements of a result.
    pub elements: u64,
    /// Threads that the device runs at a time.
    pub threads: u64,
}

/// As [`pointwise_in_place`], for so much work: correct for any, quickest for this.
pub fn pointwise_for(
    program: &Program,
    kernel: &PointwiseKernel,
    shared: &[usize],
    target: PointTarget,
) -> Result<CudaSource, EmitError> {
    pointwise::emit(program, kernel, shared, Some(target))
}

/// Prints a row-wise kernel.
pub fn rowwise(program: &Program, kernel: &RowwiseKernel) -> Result<CudaSource, EmitError> {
    rowwise::emit(program, kernel, None)
}

/// Prints a row-wise kernel for these rows alone: quicker to compile, and quicker.
pub fn rowwise_for(program: &Program, kernel: &RowwiseKernel, target: RowTarget) -> Result<CudaSource, EmitError> {
    rowwise::emit(program, kernel, Some(target))
}

/// Prints a kernel that moves elements.
pub fn moves(program: &Program, kernel: &MoveKernel) -> Result<CudaSource, EmitError> {
    moves::emit(program, kernel)
}

/// Prints the search for the largest element of each row.
pub fn argmax(program: &Program, kernel: &ArgmaxKernel) -> Result<CudaSource, EmitError> {
    moves::argmax(program, kernel)
}

/// Prints a product of integer matrices.
pub fn product(program: &Program, kernel: &ProductKernel) -> Result<CudaSource, EmitError> {
    lines::product(program, kernel)
}

/// Prints a running sum, or a part of it.
pub fn cumsum(program: &Program, kernel: &CumsumKernel) -> Result<CudaSource, EmitError> {
    lines::cumsum(program, kernel)
}

/// Prints a sort, or a part of it.
pub fn sort(program: &Program, kernel: &SortKernel) -> Result<CudaSource, EmitError> {
    lines::sort(program, kernel)
}

/// Prints the joining of rows.
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
        DType::I64 => "long long",
        DType::I32 => "int",
        DType::I8 => "signed char",
        DType::U8 => "unsigned char",
        DType::Bool => "bool",
    }
}

/// Elements of one access: the smallest type moves 16 bytes at once, larger ones in several
/// accesses, and never more than 8 elements of a type that is wider than a byte.
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

/// What every template gets.
fn common(
    header: Header<'_>,
    functions: &Functions<'_>,
    dtypes: impl Iterator<Item = DType> + Clone,
    bodies: &[String],
) -> Value {
    let all = dtypes.chain(functions.rounded_to());
    context! {
        entries => header.entries.iter().map(|e| Value::from(e.name.clone())).collect::<Value>(),
        header => header.lines().into_iter().collect::<Value>(),
        includes => includes(all.collect::<Vec<_>>().into_iter()).into_iter().collect::<Value>(),
        helpers => functions.helpers().into_iter().collect::<Value>(),
        functions => functions.texts().into_iter().collect::<Value>(),
        bodies => bodies.iter().cloned().collect::<Value>(),
    }
}

/// The comment at the head of a file.
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
            out.push("Launch (any grid is correct, this one is fast):".into());
            out.extend(self.entries.iter().map(|e| format!("  {}: {}", e.name, e.geometry)));
        }
        out.push(String::new());
        out.push(format!("Compile with NVRTC: --gpu-architecture=sm_80 or newer {}", NVRTC_OPTIONS.join(" ")));
        out.push("With nvcc the same, but for -default-device, which is NVRTC's alone.".into());
        out.push(format!("Generated by Hypatia {}; do not edit.", env!("CARGO_PKG_VERSION")));
        out
    }
}

/// Renders a template and gives `#line` directives that lead back into the file their number.
fn render(template: &str, file: &str, ctx: Value) -> Result<String, EmitError> {
    let fail = |e: minijinja::Error| EmitError::Template(format!("{e:#}"));
    let text = environment()?.get_template(template).map_err(fail)?.render(ctx).map_err(fail)?;
    Ok(tidy(&text, file))
}

/// Lines without blanks at their ends or in a row, and `#line` directives with their numbers.
fn tidy(text: &str, file: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut blank = false;
    let mut number = 0usize;
    for line in text.lines().map(str::trim_end) {
        // Two blank lines in a row are left behind by empty parts of a template.
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

/// The syntax of templates: the braces of CUDA C++ need no escapes, and what is not defined is an error.
fn configure(env: &mut Environment<'_>) -> Result<(), minijinja::Error> {
    let mut syntax = minijinja::syntax::SyntaxConfig::builder();
    syntax.variable_delimiters("${", "}").block_delimiters("/*%", "%*/").comment_delimiters("/*#", "#*/");
    syntax.line_statement_prefix("//%").line_comment_prefix("//#").trim_blocks(true).lstrip_blocks(true);
    env.set_syntax(syntax.build()?);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    Ok(())
}
