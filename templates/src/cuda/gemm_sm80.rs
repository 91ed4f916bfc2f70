//! Matrix products of warps with an epilogue on their accumulators, for GPUs from Ampere on.
//!
//! In: a [`WarpGemm`] whose tiling fits. Out: its source. Invariant: the epilogue is one inlined
//! function of the accumulator and its operands, in the compute types; the template calls it once
//! for each element of the result and rounds once.

use minijinja::{Value, context};

use super::gemm::EPILOGUE;
use super::term::{Functions, compute_name};
use super::tiles::{OnTiles, Tiles, about, loaded, plain_storage};
use super::{Arg, ArgRole, CudaSource, EmitError, Geometry, SizeName};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, Factor, Operand, WarpGemm};

/// Strides of an operand: along both axes of the batch, the rows and the columns.
pub(super) const STRIDES: usize = 4;

/// Factors of the product, which come before the epilogue's operands.
pub(super) const FACTORS: usize = 2;

pub(super) fn emit(program: &Program, kernel: &WarpGemm) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| EmitError::Malformed(format!("tiled product {}: {what}", kernel.name));
    let t = &kernel.tiling;
    let [warps_m, warps_n] =
        t.layout().filter(|_| kernel.fits()).ok_or_else(|| malformed("its tiling does not fit"))?;
    if let Some(why) = kernel.refusal() {
        return Err(malformed(why));
    }
    let mut functions = Functions::bare(program);
    let term = OnTiles { term: &kernel.term, pair: false, inputs: &kernel.inputs, factors: FACTORS };
    let body = term.function(&mut functions, EPILOGUE, &kernel.outputs, (t.rows * t.columns / t.threads()) as u64)?;
    functions.need("axes");
    let tiles = Tiles {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: "a matrix product with its epilogue",
        formula: format!("{}, where acc = in0 in1", term.formulas(program)),
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: t.rows as u32,
            columns: t.columns as u32,
            shared: kernel.shared() as u32,
        },
        bodies: vec![body],
        template: "gemm_sm80.cu.j2",
    };
    let [a, b] = kernel.factors;
    let own = context! {
        half => kernel.half().map(DType::name),
        unit => if kernel.multiplied == DType::F32 { "tf32" } else { kernel.multiplied.name() },
        size => kernel.multiplied.size(),
        a_size => a.dtype.size(),
        b_size => b.dtype.size(),
        a_by_k => a.dense_k,
        b_by_k => b.dense_k,
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
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + FACTORS, o)).collect::<Value>(),
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

fn arguments(kernel: &WarpGemm) -> Vec<Arg> {
    let mut out = product_arguments(&kernel.factors, &kernel.outputs, &kernel.inputs);
    out.extend(super::checksum::row_sums_arguments(kernel.row_sums));
    out
}

/// The arguments of a product of warps: its operands with their strides, and its sizes.
pub(super) fn product_arguments(factors: &[Factor], outputs: &[DType], inputs: &[Operand]) -> Vec<Arg> {
    let mut out: Vec<Arg> = factors.iter().enumerate().flat_map(|(i, f)| factor_arguments(i, i, f)).collect();
    out.extend(other_arguments(factors.len(), outputs, inputs));
    out
}

/// The arguments of a factor, which is operand `at` of the kernel; the first factor is the left
/// one.
pub(super) fn factor_arguments(at: usize, factor: usize, Factor { dtype, dense_k, .. }: &Factor) -> [Arg; 2] {
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
