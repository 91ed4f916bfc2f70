//! Kernels that move elements, and argmax over a row.
//!
//! In: a [`MoveKernel`] or an [`ArgmaxKernel`]. Out: its source. Invariant: an out-of-bounds index
//! reads nothing; the element becomes NaN, or 0 if the type has no NaN.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::term::{Functions, compute_name, widen};
use super::{
    Arg, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, POINTWISE_BLOCK, SizeName, common, identifier,
    render, storage, vector_width,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{ArgmaxKernel, Move, MoveKernel};

/// Maximum number of operands of a concatenation: they are arguments of a kernel.
const MAX_OPERANDS: usize = 32;
/// Maximum number of axes.
const MAX_RANK: usize = 16;

/// Suffix, threads per block, threads that share a row, and the longest row.
const SEARCHES: [(&str, u32, u32, Option<u64>); 2] = [("_warp", 128, 32, Some(1024)), ("_block", 256, 256, None)];

/// What the template needs to know about a kind of move.
struct Form {
    kind: &'static str,
    rank: usize,
    axis: usize,
    count: usize,
    index: Option<DType>,
    formula: String,
    args: Vec<Arg>,
}

/// What a row-major result says of itself.
const ROW_MAJOR: &str = "all elements in row-major order";

/// The strides of an operand.
fn strides(i: usize, rank: usize) -> Arg {
    Arg::strides(ArgRole::Read(i), rank, "elements between neighbours along each axis")
}

/// The size of an axis that is indexed.
fn indexed() -> Arg {
    Arg::size(SizeName::Size, "size of the axis that is indexed")
}

/// The form of each kind of move, with its arguments in the order of the source.
fn form(kernel: &MoveKernel) -> Form {
    let dtype = kernel.dtype;
    match kernel.moves {
        Move::Concat { count, axis, rank } => concat(dtype, [count, axis, rank]),
        Move::Pad { rank } => pad(dtype, rank),
        Move::Gather { index } => gather([dtype, index]),
        Move::GatherElements { index, axis, rank } => gather_elements([dtype, index], [axis, rank]),
        Move::GatherNd { index, width } => gather_nd([dtype, index], width),
    }
}

fn concat(dtype: DType, [count, axis, rank]: [usize; 3]) -> Form {
    let mut args: Vec<Arg> = (0..count).map(|i| Arg::read(i, dtype, "read with its strides")).collect();
    args.push(Arg::written(0, dtype, ROW_MAJOR));
    args.push(Arg::axes(rank, "sizes of the result"));
    args.push(Arg::sizes(SizeName::Ends, count, "where each operand ends along the axis"));
    args.extend((0..count).map(|i| strides(i, rank)));
    let formula = format!("{count} operands side by side along axis {axis}");
    Form { kind: "concat", rank, axis, count, index: None, formula, args }
}

fn pad(dtype: DType, rank: usize) -> Form {
    let args = vec![
        Arg::read(0, dtype, "read with its strides"),
        Arg::read(1, dtype, "one element"),
        Arg::written(0, dtype, ROW_MAJOR),
        Arg::axes(rank, "sizes of the result"),
        Arg::sizes(SizeName::Before, rank, "elements before the operand along each axis; negative: cut off"),
        Arg::sizes(SizeName::Data, rank, "sizes of the operand"),
        strides(0, rank),
    ];
    let formula = "in1 everywhere, then in0 at a distance from the start of each axis".into();
    Form { kind: "pad", rank, axis: 0, count: 0, index: None, formula, args }
}

fn gather([dtype, index]: [DType; 2]) -> Form {
    let args = vec![
        Arg::read(0, dtype, "outer x size x inner, row-major"),
        Arg::read(1, index, "the indices"),
        Arg::written(0, dtype, "outer x indices x inner, row-major"),
        Arg::axes(3, "outer, number of indices, inner"),
        indexed(),
    ];
    let formula = "out0[o, i, j] = in0[o, in1[i], j]".into();
    Form { kind: "gather", rank: 3, axis: 1, count: 1, index: Some(index), formula, args }
}

fn gather_elements([dtype, index]: [DType; 2], [axis, rank]: [usize; 2]) -> Form {
    let args = vec![
        Arg::read(0, dtype, "row-major, with the strides of that name"),
        Arg::read(1, index, "the indices, in the shape of the result"),
        Arg::written(0, dtype, ROW_MAJOR),
        Arg::axes(rank, "sizes of the result"),
        indexed(),
        strides(0, rank),
    ];
    let formula = format!("in0 at the index of each element, but for axis {axis}, where in1 says the position");
    Form { kind: "gather_elements", rank, axis, count: 1, index: Some(index), formula, args }
}

fn gather_nd([dtype, index]: [DType; 2], width: usize) -> Form {
    let args = vec![
        Arg::read(0, dtype, "batch x indexed axes x inner, row-major"),
        Arg::read(1, index, "the tuples: batch x tuples x width"),
        Arg::written(0, dtype, "batch x tuples x inner, row-major"),
        Arg::axes(3, "batch, tuples of one batch, inner"),
        Arg::size(SizeName::Batch, "elements of in0 in one batch"),
        Arg::sizes(SizeName::Dims, width, "sizes of the indexed axes"),
        Arg::sizes(SizeName::Steps, width, "elements between neighbours along them"),
    ];
    let formula = format!("out0[b, i, j] = in0[b, in1[b, i, 0], ..., in1[b, i, {}], j]", width.saturating_sub(1));
    Form { kind: "gather_nd", rank: 3, axis: 1, count: width, index: Some(index), formula, args }
}

pub(super) fn emit(program: &Program, kernel: &MoveKernel) -> Result<CudaSource, EmitError> {
    let form = form(kernel);
    let bad = |what: &str| Err(EmitError::Malformed(format!("kernel `{}`: {what}", kernel.name)));
    if form.rank == 0 || form.rank > MAX_RANK || form.axis >= form.rank {
        return bad("an axis that is not there, or more than 16");
    }
    if form.count > MAX_OPERANDS || (form.count == 0 && form.kind != "pad") {
        return bad("it takes 1 to 32 operands");
    }
    let dtype = kernel.dtype;
    // A gather of single elements gains nothing from vector accesses.
    let vector = if form.kind == "gather_elements" { 1 } else { vector_width([dtype].into_iter()) };
    let mut functions = Functions::new(program);
    functions.need("axes");
    functions.need("quotient");
    let entries = vec![Entry {
        name: identifier("hypatia_", &kernel.name),
        geometry: Geometry::Grid { block: POINTWISE_BLOCK, vector: vector as u32 },
    }];
    let formula = vec![form.formula.clone()];
    let header = Header {
        name: &kernel.name,
        kind: "elements moved",
        doc: &kernel.doc,
        formula: &formula,
        args: &form.args,
        entries: &entries,
        in_place: false,
    };
    let base = common(header, &functions, [dtype].into_iter(), &[])?;
    let ctx = context! {
        entry => entries[0].name.clone(),
        block => POINTWISE_BLOCK,
        vector => vector,
        type => storage(dtype),
        kind => form.kind,
        rank => form.rank,
        axis => form.axis,
        count => form.count,
        indices => form.index.is_some(),
        missing => missing(dtype),
        args => declarations(&form.args, &[]),
        ..base
    };
    let text = render("moves.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: form.formula, text, entries, args: form.args, launch: None })
}

/// The value for an out-of-bounds index.
fn missing(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "__longlong_as_double(0x7ff8000000000000LL)",
        DType::F32 => "__int_as_float(0x7fc00000)",
        DType::F16 => "__ushort_as_half((unsigned short)0x7e00)",
        DType::BF16 => "__ushort_as_bfloat16((unsigned short)0x7fc0)",
        DType::Bool => "false",
        _ => "(T)0",
    }
}

pub(super) fn argmax(program: &Program, kernel: &ArgmaxKernel) -> Result<CudaSource, EmitError> {
    let axes = kernel.outer + 1;
    if axes > MAX_RANK {
        return Err(EmitError::Malformed(format!("kernel `{}`: more than 16 axes", kernel.name)));
    }
    let dtype = kernel.dtype;
    let mut functions = Functions::new(program);
    functions.need("axes");
    functions.need("quotient");
    let args = vec![
        Arg::read(0, dtype, "read with its strides"),
        Arg::written(0, DType::I64, "one position a row"),
        Arg::axes(axes, "sizes: of the axes that number the rows, then of the one that is searched"),
        Arg::strides(ArgRole::Read(0), axes, "elements between neighbours along each of these axes"),
    ];
    let entries: Vec<Entry> = SEARCHES
        .iter()
        .map(|(suffix, block, threads, up_to)| Entry {
            name: format!("{}{suffix}", identifier("hypatia_", &kernel.name)),
            geometry: Geometry::Rows { block: *block, threads: *threads, up_to: *up_to },
        })
        .collect();
    let which = if kernel.last { "last" } else { "first" };
    let formula = vec![format!("out0 = {which} position of the largest of a row of in0")];
    let header = Header {
        name: &kernel.name,
        kind: "a search",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let base = common(header, &functions, [dtype].into_iter(), &[])?;
    // Booleans are searched as numbers.
    let (ty, widened) = match dtype {
        DType::Bool => ("long long", "(long long)element".to_string()),
        d => (compute_name(d), widen("element", d)),
    };
    let points = SEARCHES.iter().zip(&entries).map(|((_, block, threads, _), entry)| {
        let who = if *threads == 32 { "One warp" } else { "One block" };
        context! { name => entry.name.clone(), about => format!("{who} a row."), block => *block, threads => *threads }
    });
    let ctx = context! {
        type => ty,
        widened => widened,
        outer => kernel.outer,
        last => kernel.last,
        args => declarations(&args, &[]),
        arg_names => args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", "),
        entry_points => points.collect::<Value>(),
        ..base
    };
    let text = render("argmax.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}
