//! Kernels over lines of elements and over positions: integer products, cumsums, sorts, scatters.
//!
//! In: a [`ProductKernel`], [`CumsumKernel`], [`SortKernel`] or [`ScatterKernel`]. Out: its source.
//! Invariant: all threads of a block reach each of its barriers, for all sizes; an out-of-bounds
//! index writes nothing.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::term::{Functions, Lowered, compute_name, widen};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, POINTWISE_BLOCK, SizeName, common,
    identifier, render, storage,
};
use hypatia_dsl::builtin::{BuiltinScalar, ScatterReduction};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{InView, Program};
use hypatia_dsl::kernel::{CumsumKernel, ProductKernel, Running, SORT_TILE, ScatterKernel, SortKernel, Sorting};
use hypatia_dsl::scalar::{Term, TermNode};

/// Threads per block of all these kernels.
const BLOCK: u32 = 256;
/// Rows and columns of the output tile that a block computes at a time.
pub const PRODUCT_TILE: usize = 64;
/// Elements of a line that a thread sums at a time.
const EACH: usize = 4;
/// Maximum number of axes.
const MAX_RANK: usize = 16;
/// Suffix, threads that share a tile, elements of the tile, and the longest line.
const TEAMS: [(&str, u32, usize, Option<u64>); 2] = [("_warp", 32, 256, Some(256)), ("_block", BLOCK, SORT_TILE, None)];

/// What describes a source.
struct About<'a> {
    name: &'a str,
    doc: &'a str,
    kind: &'static str,
    formula: String,
    args: Vec<Arg>,
    entries: Vec<Entry>,
}

impl About<'_> {
    /// The context values that every template gets.
    fn base(&self, functions: &Functions<'_>, dtypes: &[DType]) -> Result<Value, EmitError> {
        let formula = [self.formula.clone()];
        let header = Header {
            name: self.name,
            kind: self.kind,
            doc: self.doc,
            formula: &formula,
            args: &self.args,
            entries: &self.entries,
            in_place: false,
        };
        let base = common(header, functions, dtypes.iter().copied(), &[])?;
        Ok(context! {
            entry => self.entries.first().map_or(String::new(), |e| e.name.clone()),
            block => BLOCK,
            args => declarations(&self.args, &[]),
            ..base
        })
    }

    fn source(self, template: &str, ctx: Value) -> Result<CudaSource, EmitError> {
        let text = render(template, &format!("{}.cu", identifier("", self.name)), ctx)?;
        let About { name, formula, args, entries, .. } = self;
        Ok(CudaSource { name: name.to_string(), formula, text, entries, args, launch: None })
    }
}

/// One entry point.
fn entry(name: &str, geometry: Geometry) -> Vec<Entry> {
    vec![Entry { name: identifier("hypatia_", name), geometry }]
}

/// One block per row; a row is one piece of work here.
const PIECES: Geometry = Geometry::Rows { block: BLOCK, threads: BLOCK, up_to: None };
/// One thread per element.
const ELEMENTS: Geometry = Geometry::Grid { block: POINTWISE_BLOCK, vector: 1 };

fn malformed(name: &str, what: &str) -> EmitError {
    EmitError::Malformed(format!("kernel `{name}`: {what}"))
}

pub(super) fn product(program: &Program, kernel: &ProductKernel) -> Result<CudaSource, EmitError> {
    let (dtype, [a, b], axes) = (kernel.dtype, kernel.factors, kernel.batch + 2);
    if !(dtype.is_int() && a.is_int() && b.is_int()) || axes > MAX_RANK {
        return Err(malformed(&kernel.name, "a product of no integers, or of more than 16 axes"));
    }
    let strides = |i: usize, about: &str| Arg::strides(ArgRole::Read(i), axes, about);
    let about = About {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: "a product of integer matrices",
        formula: format!("out0 = in0 in1, modulo 2^{}", 8 * dtype.size()),
        args: vec![
            Arg::read(0, a, "m x k, read with its strides"),
            Arg::read(1, b, "k x n, read with its strides"),
            Arg::written(0, dtype, "m x n, row-major; one after the other"),
            Arg::axes(axes, "sizes of the axes that number the products, then m and n"),
            Arg::size(SizeName::K, "terms of a sum"),
            strides(0, "elements between neighbours along those axes, then along m and k"),
            strides(1, "elements between neighbours along those axes, then along k and n"),
        ],
        entries: entry(&kernel.name, PIECES),
    };
    let mut functions = Functions::new(program);
    functions.need("axes");
    functions.need("quotient");
    let ctx = context! {
        type => storage(dtype),
        factors => [storage(a), storage(b)],
        wide => if dtype == DType::I64 { "unsigned long long" } else { "unsigned" },
        tile => PRODUCT_TILE,
        batch => kernel.batch,
        ..about.base(&functions, &[a, b, dtype])?
    };
    about.source("product.cu.j2", ctx)
}

fn cumsum_args(kernel: &CumsumKernel, sums: DType) -> Vec<Arg> {
    let dtype = kernel.dtype;
    let mut args = vec![Arg::read(0, dtype, "outer x size x inner, row-major")];
    if kernel.role != Running::Sums {
        args.push(Arg::written(0, dtype, "outer x size x inner, row-major"));
    }
    match kernel.role {
        Running::Whole => {}
        Running::Sums => {
            args.push(Arg::memory(ArgRole::Sums, ArgKind::Output(sums), "a sum for each chunk but the last, and line"))
        }
        Running::Chunks => {
            args.push(Arg::memory(ArgRole::Sums, ArgKind::Input(sums), "a sum for each chunk but the last, and line"))
        }
    }
    for (name, meaning) in [
        (SizeName::Outer, "lines one after the other"),
        (SizeName::Size, "elements"),
        (SizeName::Inner, "lines side by side"),
    ] {
        args.push(Arg::size(name, meaning));
    }
    if kernel.role != Running::Whole {
        args.push(Arg::size(SizeName::Chunks, "chunks of a line"));
        args.push(Arg::size(SizeName::Length, "elements of a chunk"));
    }
    args
}

/// The formula in words.
fn cumsum_formula(kernel: &CumsumKernel) -> String {
    let which = if kernel.reverse { "from" } else { "up to" };
    let own = if kernel.exclusive { ", without itself" } else { "" };
    match kernel.role {
        Running::Sums => "sums = the sum over each chunk of a line of in0".into(),
        _ => format!("out0 = the sum of the elements of in0 {which} each{own}"),
    }
}

pub(super) fn cumsum(program: &Program, kernel: &CumsumKernel) -> Result<CudaSource, EmitError> {
    let dtype = kernel.dtype;
    if dtype == DType::Bool {
        return Err(malformed(&kernel.name, "sums of truth values"));
    }
    let sums = CumsumKernel::sums(dtype);
    let about = About {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: if kernel.role == Running::Sums { "sums of chunks, for running sums" } else { "running sums" },
        formula: cumsum_formula(kernel),
        args: cumsum_args(kernel, sums),
        entries: entry(&kernel.name, if kernel.columns { Geometry::Columns { block: BLOCK } } else { PIECES }),
    };
    let mut functions = Functions::new(program);
    functions.need("quotient");
    let role = match kernel.role {
        Running::Whole => "whole",
        Running::Sums => "sums",
        Running::Chunks => "chunks",
    };
    let ctx = context! {
        type => storage(dtype),
        sum => if sums == DType::F64 { "double" } else { "unsigned long long" },
        widened => widen("element", dtype),
        stored => match dtype {
            DType::F16 => "__double2half(result)",
            DType::BF16 => "__double2bfloat16(result)",
            _ => "(T)result",
        },
        exclusive => kernel.exclusive,
        reverse => kernel.reverse,
        columns => kernel.columns,
        role => role,
        each => EACH,
        ..about.base(&functions, &[dtype])?
    };
    about.source("cumsum.cu.j2", ctx)
}

/// The arguments of a sort: inputs and outputs, then sizes and strides.
fn sort_args(kernel: &SortKernel, operands: &[&str]) -> Vec<Arg> {
    let axes = kernel.outer + 1;
    let mut args: Vec<Arg> = operands
        .iter()
        .map(|name| match *name {
            "in0" => Arg::read(0, kernel.dtype, "read with its strides"),
            "from" => {
                let about = "positions: sorted runs, with their strides";
                Arg::with(ArgRole::From, *name, ArgKind::Input(DType::I64), about)
            }
            _ => Arg::with(ArgRole::To, *name, ArgKind::Output(DType::I64), "positions, with their strides"),
        })
        .collect();
    let strides = |a: &Arg| {
        let about = format!("elements of {} between neighbours along each of these axes", a.name);
        Arg::strides(a.role, axes, about)
    };
    let strides: Vec<Arg> = args.iter().map(strides).collect();
    args.push(Arg::axes(axes, "sizes: of the axes that number the lines, then of the one that is sorted"));
    args.extend(strides);
    if kernel.indices {
        args.push(Arg::size(SizeName::Size, "size of the axis that in0 indexes"));
    }
    if kernel.role == Sorting::Merge {
        args.push(Arg::size(SizeName::Run, "elements of a sorted run"));
    }
    args
}

/// One thread per element, or one team of threads per tile.
fn sort_entries(kernel: &SortKernel) -> Vec<Entry> {
    match kernel.role {
        Sorting::Merge => entry(&kernel.name, ELEMENTS),
        Sorting::Tiles => TEAMS
            .iter()
            .map(|(suffix, threads, _, up_to)| Entry {
                name: format!("{}{suffix}", identifier("hypatia_", &kernel.name)),
                geometry: Geometry::Rows { block: BLOCK, threads: *threads, up_to: *up_to },
            })
            .collect(),
    }
}

pub(super) fn sort(program: &Program, kernel: &SortKernel) -> Result<CudaSource, EmitError> {
    let dtype = kernel.dtype;
    if kernel.outer + 1 > MAX_RANK || (kernel.indices && !dtype.is_int()) || dtype == DType::Bool {
        return Err(malformed(&kernel.name, "more than 16 axes, indices that are no integers, or truth values"));
    }
    let merges = kernel.role == Sorting::Merge;
    let operands: &[&str] = if merges { &["in0", "from", "to"] } else { &["in0", "to"] };
    let order = if kernel.descending { "descending" } else { "ascending" };
    let about = About {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: "a sort",
        formula: match merges {
            true => format!("to = the runs of from merged by pairs, so that in0 stands in {order} order"),
            false => format!("to = positions of in0 in {order} order, of {SORT_TILE} at most at a time"),
        },
        args: sort_args(kernel, operands),
        entries: sort_entries(kernel),
    };
    let mut functions = Functions::new(program);
    functions.need("axes");
    functions.need("quotient");
    let wide = kernel.indices || dtype.size() == 8;
    let points = TEAMS.iter().zip(&about.entries).map(|((_, threads, tile, _), entry)| {
        let who = if *threads == 32 { "One warp" } else { "One block" };
        context! { name => entry.name.clone(), about => format!("{who} a tile."), threads => *threads, tile => *tile }
    });
    let ctx = context! {
        type => storage(dtype),
        key => if wide { "unsigned long long" } else { "unsigned" },
        compute => compute_name(dtype),
        widened => widen("element", dtype),
        bits => match dtype {
            DType::F64 => "__double_as_longlong",
            d if d.is_float() => "__float_as_uint",
            _ => "",
        },
        indices => kernel.indices,
        descending => kernel.descending,
        outer => kernel.outer,
        role => if merges { "merge" } else { "tiles" },
        operands => operands.iter().copied().collect::<Value>(),
        strides => operands.iter().map(|o| format!(", {o}_strides")).collect::<String>(),
        size_argument => if kernel.indices { ", size" } else { "" },
        arg_names => about.args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", "),
        entry_points => points.collect::<Value>(),
        ..about.base(&functions, &[dtype])?
    };
    about.source("sort.cu.j2", ctx)
}

/// Combines elements `a` and `b`: statements, then the value in its storage type.
fn joined(
    functions: &mut Functions<'_>,
    program: &Program,
    dtype: DType,
    how: BuiltinScalar,
) -> Result<(Vec<String>, String), EmitError> {
    let scalar = program.builtin_scalar(how);
    let scalar = scalar.ok_or_else(|| EmitError::Malformed(format!("the program has no `{}`", how.name())))?;
    let mut term = Term::empty();
    let args = [0, 1].map(|input| term.add(TermNode::In { input, view: InView::Broadcast }));
    let root = term.add(TermNode::Call { scalar, args: args.to_vec() });
    term.roots.push(root);
    let leaf = |node: &TermNode| match node {
        TermNode::In { input: 0, .. } => Some(("a".to_string(), dtype.compute())),
        TermNode::In { .. } => Some(("b".to_string(), dtype.compute())),
        _ => None,
    };
    let Lowered { statements, roots, .. } = functions.lower(&term, dtype.compute(), &leaf)?;
    let root = roots.first().ok_or_else(|| EmitError::Malformed("a function without a value".into()))?;
    Ok((statements, functions.store(root, dtype)))
}

pub(super) fn scatter(program: &Program, kernel: &ScatterKernel) -> Result<CudaSource, EmitError> {
    let (dtype, index) = (kernel.dtype, kernel.index);
    if !index.is_int() {
        return Err(malformed(&kernel.name, "indices that are no integers"));
    }
    let mut functions = Functions::new(program);
    let (statements, value) = match kernel.reduction {
        ScatterReduction::Combine(_) if dtype == DType::Bool => {
            return Err(malformed(&kernel.name, "arithmetic of truth values"));
        }
        ScatterReduction::Combine(f) => joined(&mut functions, program, dtype, f)?,
        ScatterReduction::Replace => (Vec::new(), String::new()),
    };
    let what = match kernel.reduction {
        ScatterReduction::Combine(f) => format!("row in1[i] of out0 becomes {}(it, in2[i])", f.name()),
        ScatterReduction::Replace => "row in1[i] of out0 becomes in2[i]".to_string(),
    };
    let about = About {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: "rows joined",
        formula: format!("{what}, one after the other"),
        args: vec![
            Arg::read(1, index, "the indices; negative ones count from the end"),
            Arg::read(2, dtype, "rows x n, row-major"),
            Arg::memory(
                ArgRole::Order,
                ArgKind::Input(DType::I64),
                "positions of the indices in the order in which they lead",
            ),
            Arg::written(0, dtype, "size x n, row-major; it is read too"),
            Arg::size(SizeName::Size, "rows of out0"),
            Arg::rows("rows of in2"),
            Arg::row_length("columns"),
        ],
        entries: entry(&kernel.name, ELEMENTS),
    };
    let ctx = context! {
        type => storage(dtype),
        compute => compute_name(dtype),
        widened_old => widen("old", dtype),
        widened_update => widen("update", dtype),
        joins => kernel.reduction != ScatterReduction::Replace,
        statements => statements.into_iter().collect::<Value>(),
        joined => value,
        ..about.base(&functions, &[dtype])?
    };
    about.source("scatter.cu.j2", ctx)
}
