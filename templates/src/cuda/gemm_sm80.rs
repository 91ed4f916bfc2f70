//! Matrix products of warps with an epilogue on their accumulators, for GPUs from Ampere on.
//!
//! In: a [`WarpGemm`] whose tiling fits. Out: its source. Invariant: the epilogue is one inlined
//! function of the accumulator and its operands, in the compute types; the template calls it once
//! for each element of the result and rounds once.

use minijinja::{Value, context};

use super::gemm::{EPILOGUE, sign, window_axes};
use super::prologue;
use super::term::{Functions, compute_name};
use super::tiles::{OnTiles, Tiles, about, loaded, plain_storage};
use super::{Arg, ArgRole, CudaSource, EmitError, Geometry, SizeName, storage};
use hypatia_dsl::builtin::SECOND;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, Factor, ImageWindows, Operand, Prologue, WarpGemm};

/// Strides of an operand: along both axes of the batch, the rows and the columns.
pub(super) const STRIDES: usize = 4;

pub(super) fn emit(program: &Program, kernel: &WarpGemm) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| EmitError::Malformed(format!("tiled product {}: {what}", kernel.name));
    let t = &kernel.tiling;
    let [warps_m, warps_n] =
        t.layout().filter(|_| kernel.fits()).ok_or_else(|| malformed("its tiling does not fit"))?;
    if let Some(why) = kernel.refusal() {
        return Err(malformed(why));
    }
    let mut functions = Functions::bare(program);
    let reads = kernel.reads();
    let types = [kernel.acc(), kernel.value()];
    let term = OnTiles { term: &kernel.term, pair: kernel.pair, inputs: &kernel.inputs, factors: reads, types };
    let per_thread = t.rows * kernel.columns() / t.threads();
    let mut bodies = vec![term.function(&mut functions, EPILOGUE, &kernel.outputs, per_thread as u64)?];
    let [a, b] = kernel.factors;
    let walks = prologue::units(&kernel.prologues, [a.dense_k, b.dense_k], kernel.multiplied);
    for (walk, lines) in walks.iter().zip([t.rows, t.columns]) {
        let copies = lines * t.depth / t.threads();
        bodies.extend(walk.map(|w| w.function(&mut functions, copies)).transpose()?);
    }
    functions.need("axes");
    let left_reads = kernel.prologues[0].as_ref().map_or(1, |p| p.inputs.len());
    let tiles = Tiles {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: if kernel.pair {
            "two matrix products with their epilogue"
        } else {
            "a matrix product with its epilogue"
        },
        formula: format!(
            "{}, where {}",
            term.results(program),
            prologue::factors(program, walks, left_reads, &["acc", SECOND][..if kernel.pair { 2 } else { 1 }])
        ),
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: t.rows as u32,
            columns: kernel.columns() as u32,
            shared: kernel.shared() as u32,
        },
        bodies,
        template: "gemm_sm80.cu.j2",
    };
    let [left, right] = walks;
    let own = context! {
        half => kernel.half().map(DType::name),
        unit => match kernel.multiplied {
            DType::F32 => (!kernel.exact).then_some("tf32"),
            d => (!d.is_byte()).then(|| d.name()),
        },
        bytes => kernel.multiplied.is_byte().then(|| kernel.factors.map(|f| sign(f.dtype)).to_vec()),
        exact => kernel.exact,
        sum => storage(kernel.acc()),
        value => storage(kernel.value()),
        size => kernel.multiplied.size(),
        a_size => a.dtype.size(),
        b_size => b.dtype.size(),
        a_by_k => a.dense_k,
        b_by_k => b.dense_k,
        left => left.map(|w| w.context()),
        right => right.map(|w| w.context()),
        image => (0..2).find_map(|i| Some(image(kernel.images[i].as_ref()?, i == 0, &kernel.factors[i]))),
        pair => kernel.pair,
        right_factor => format!("in{left_reads}"),
        second_factor => format!("in{}", left_reads + 1),
        a_unit => a.unit,
        b_unit => b.unit,
        results => kernel.outputs.iter().map(|o| result(*o)).collect::<Value>(),
        vector => kernel.vector,
        tile_m => t.rows,
        tile_n => t.columns,
        tile_k => t.depth,
        warps_m => warps_m,
        warps_n => warps_n,
        split => t.split,
        stages => t.stages,
        group => t.group,
        row_sums => super::checksum::word(kernel.row_sums),
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + reads, o)).collect::<Value>(),
    };
    tiles.render(&functions, own)
}

/// An operand of the epilogue as the template sees it: where it lies, what it reads ahead, and its
/// value.
fn input(at: usize, o: &Operand) -> Value {
    let name = format!("in{at}");
    let stride = |axis: usize| format!("{name}_strides.at[{axis}]");
    let rows = format!("tile.outer * {} + tile.inner * {} + q_row * {}", stride(0), stride(1), stride(2));
    let load = |index: &str| loaded(o.dtype, &format!("{name}[{index}]"));
    let (kind, first, value) = match o.access {
        Access::Splat => ("splat", load("0"), format!("{name}_all")),
        Access::Row => ("row", String::new(), loaded(o.dtype, &format!("row{at}[SAME_COLUMNS ? 0 : p].v[e]"))),
        Access::Col => ("col", load(&rows), format!("col{at}[p]")),
        Access::Full => ("full", String::new(), loaded(o.dtype, &format!("full{at}[p].v[e]"))),
        Access::Strided => {
            let index = format!("{rows} + (q_col + e) * {}", stride(3));
            // Beside the result's last column nothing may be read.
            ("strided", String::new(), format!("e < count ? {} : ({})0", load(&index), compute_name(o.dtype)))
        }
    };
    context! {
        index => at,
        kind => kind,
        storage => plain_storage(o.dtype),
        compute => compute_name(o.dtype),
        at => format!("{rows} + q_col"),
        first => first,
        value => value,
    }
}

/// A result as the template sees it.
pub(super) fn result(dtype: DType) -> Value {
    context! { storage => plain_storage(dtype), size => dtype.size() }
}

/// The windows of an image that are the left factor, or the right one, as the template sees them.
fn image(w: &ImageWindows, left: bool, factor: &Factor) -> Value {
    let [rows, columns] = &w.axes;
    let place = |y: usize, x: usize| y * rows.dilation * columns.image + x * columns.dilation;
    let from_first = (0..rows.size).flat_map(|y| (0..columns.size).map(move |x| place(y, x)));
    context! {
        from_first => from_first.collect::<Vec<usize>>(),
        // A bit for each place fits into a word.
        in_word => w.places() <= u32::BITS as usize,
        left => left,
        last => factor.dense_k,
        channels => w.channels,
        storage => plain_storage(factor.dtype),
        bytes => factor.dtype.size(),
        ..window_axes(&w.axes)
    }
}

fn arguments(kernel: &WarpGemm) -> Vec<Arg> {
    let mut out = of_factors(&kernel.prologues, &kernel.factors, if kernel.pair { 2 } else { 1 });
    for (i, factor) in kernel.factors.iter().enumerate().filter(|(i, _)| kernel.images[*i].is_some()) {
        let order = if factor.dense_k { "rows x columns x channels" } else { "channels x rows x columns" };
        let about = format!("images x {order}; a window is a {} of the factor", ["row", "column"][i]);
        // Behind each factor come its strides.
        out[2 * i] = Arg::read(i, factor.dtype, about);
    }
    out.extend(other_arguments(kernel.reads(), &kernel.outputs, &kernel.inputs));
    out.extend(super::checksum::row_sums_arguments(kernel.row_sums));
    out
}

/// The arguments of the left factor and of so many right ones: those in memory, or of what each is
/// computed from.
pub(super) fn of_factors(prologues: &[Option<Prologue>; 2], factors: &[Factor; 2], rights: usize) -> Vec<Arg> {
    let mut out = Vec::new();
    let mut at = 0;
    for factor in 0..1 + rights {
        let side = factor.min(1);
        match &prologues[side] {
            Some(p) => {
                out.extend(prologue::arguments(p, at, ["rows", "columns"][side]));
                at += p.inputs.len();
            }
            None => {
                out.extend(factor_arguments(at, factor, &factors[side]));
                at += 1;
            }
        }
    }
    out
}

/// The arguments of a factor, which is operand `at` of the kernel; the first factor is the left
/// one.
fn factor_arguments(at: usize, factor: usize, Factor { dtype, dense_k, .. }: &Factor) -> [Arg; 2] {
    let by_k = ["products x rows x depth", "products x columns x depth"];
    let by_other = ["products x depth x rows", "products x depth x columns"];
    let side = factor.min(1);
    let about = if *dense_k { by_k[side] } else { by_other[side] };
    [Arg::read(at, *dtype, about), strides(ArgRole::Read(at), STRIDES - 1)]
}

fn strides(of: ArgRole, count: usize) -> Arg {
    let axes = ["outer products", "inner products", "rows", "columns"][..count].join(", ");
    Arg::strides(of, count, format!("elements of {} between {axes}", of.tensor_name()))
}

/// The arguments behind those of the factors. The first operand of the epilogue is operand `first`.
/// All results lie alike.
pub(super) fn other_arguments(first: usize, outputs: &[DType], inputs: &[Operand]) -> Vec<Arg> {
    let written = |(i, o): (usize, &DType)| Arg::written(i, *o, "products x rows x columns");
    let mut out: Vec<Arg> = outputs.iter().enumerate().map(written).collect();
    out.insert(1, strides(ArgRole::Written(0), STRIDES - 1));
    for (i, o) in inputs.iter().enumerate() {
        let at = i + first;
        out.push(Arg::read(at, o.dtype, about(&o.access, "products x rows x columns")));
        if !matches!(o.access, Access::Row | Access::Splat) {
            out.push(strides(ArgRole::Read(at), STRIDES));
        }
    }
    let sizes = [
        (ArgRole::TiledRows, SizeName::Rows, "rows of each product"),
        (ArgRole::TiledColumns, SizeName::Columns, "columns of each product"),
        (ArgRole::Named, SizeName::Depth, "length of the sums"),
        (ArgRole::Problems, SizeName::Outer, "outer products"),
        (ArgRole::Problems, SizeName::Inner, "inner products of each outer one"),
    ];
    out.extend(sizes.map(|(role, name, about)| Arg::size_of(role, name, about)));
    out
}
