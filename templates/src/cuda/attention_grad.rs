//! Gradients of attention, by warps: for GPUs from Ampere on.
//!
//! In: an [`AttentionGradKernel`] whose tiling fits. Out: its source. Invariant: weights and slopes
//! are inlined functions of both products and of what the terms read, the same in both kernels.

use minijinja::{Value, context};

use super::attention::{AXES, masked, read, sizes};
use super::term::{Functions, compute_name};
use super::tiles::{FLOATS, OnTiles, Tiles, loaded};
use super::{Arg, ArgKind, ArgRole, CudaSource, EmitError, Geometry};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::attention::{Along, BATCH};
use hypatia_dsl::kernel::attention_grad::{AttentionGradKernel, GradSide};
use hypatia_dsl::kernel::{Access, Operand};

/// Queries, keys, values and the gradient of the result, which come before what the terms read.
const FACTORS: usize = 4;
/// Their names in the template.
const NAMES: [&str; FACTORS] = ["q", "k", "v", "dy"];

pub(super) fn emit(program: &Program, kernel: &AttentionGradKernel) -> Result<CudaSource, EmitError> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    let malformed = |why: &str| EmitError::Malformed(format!("attention {}: {why}", of.name));
    if let Some(why) = of.refusal() {
        return Err(malformed(why));
    }
    if !kernel.fits() {
        return Err(malformed("its tiles do not fit into shared memory or registers"));
    }
    let mut functions = Functions::bare(program);
    let with_weight = [of.inputs.as_slice(), &[Operand { dtype: DType::F32, access: Access::Splat }]].concat();
    let weight = OnTiles { term: &of.weight, pair: false, inputs: &of.inputs, factors: FACTORS, types: FLOATS };
    let slope = OnTiles { term: &of.slope, pair: true, inputs: &with_weight, ..weight };
    let copies = (kernel.row_tiles() * t.columns / 2) as u64;
    let about_weight = match of.exponential {
        true => "The logarithm of the weight of a query and a key, from their product.",
        false => "The weight of a query and a key, from their product.",
    };
    let about_slope = "The gradient of the product of a query and a key, from both products and the weight.";
    let bodies = vec![
        weight.function(&mut functions, ("score", about_weight), &[DType::F32], copies)?,
        slope.function(&mut functions, ("slope", about_slope), &[DType::F32], copies)?,
    ];
    functions.need("axes");
    let (weight, slope) = (weight.formula(program), slope.formula(program));
    let weight = if of.exponential { format!("exp({weight})") } else { weight };
    let slope = slope.replace(&format!("in{}", of.inputs.len() + FACTORS), "w");
    let both = "acc = in0 transpose(in1), acc1 = in3 transpose(in2)";
    let formula = match kernel.side {
        GradSide::Queries => "out0 = s in1",
        GradSide::Keys => "out1 = transpose(s) in0, out2 = transpose(w) in3",
    };
    let formula = format!("{formula}, where s = {slope}, w = {weight}, {both}");
    let tiles = Tiles {
        name: &of.name,
        doc: &of.doc,
        kind: "gradients of attention in tiles",
        formula,
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: t.rows as u32,
            columns: of.padded().iter().max().copied().unwrap_or_default() as u32,
            shared: kernel.shared() as u32,
        },
        bodies,
        template: "attention_grad.cu.j2",
    };
    tiles.render(&functions, values(kernel))
}

/// What the template is filled in with.
fn values(kernel: &AttentionGradKernel) -> Value {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    let of_keys = kernel.side == GradSide::Keys;
    // The factors of a block's rows, and those of the columns: each time one of heads and one of
    // values.
    let (queries, keys) = ([0, 3], [1, 2]);
    let (near, far) = if of_keys { (keys, queries) } else { (queries, keys) };
    let [head, value] = of.padded();
    let rows = kernel.row_bytes();
    let store = |index: usize, size: usize, padded: usize, row: usize, sums: &str, at: &str| {
        context! { index, size, padded, row, sums, at, vector => kernel.stored[index] / of.dtype.size() }
    };
    let stores = match kernel.side {
        GradSide::Queries => vec![store(0, of.head, head, rows[0], "o", "h_at")],
        GradSide::Keys => {
            vec![store(1, of.head, head, rows[0], "o", "h_at"), store(2, of.value, value, rows[1], "o_value", "v_at")]
        }
    };
    context! {
        half => of.dtype.name(),
        unit => of.dtype.name(),
        size => of.dtype.size(),
        tile_m => t.rows,
        tile_n => t.columns,
        warps => t.warps,
        stages => t.stages,
        head_size => of.head,
        value_size => of.value,
        head,
        value,
        rows,
        units => kernel.units,
        names => NAMES,
        near,
        far,
        of_keys,
        blocks => kernel.blocks(),
        intervals => of.intervals,
        exponential => of.exponential,
        short => of.short,
        inputs => of.inputs.iter().zip(&of.along).enumerate().map(|(i, o)| input(i, o, kernel.side)).collect::<Value>(),
        stores,
    }
}

/// An operand of the terms as the template sees it: where its part for a tile of rows begins, and
/// its value. One that varies along a block's own rows alone is read once (`near`).
fn input(i: usize, (o, along): (&Operand, &[Along; AXES]), side: GradSide) -> Value {
    let name = format!("in{}", i + FACTORS);
    let step = |axis: usize, place: &str| match along[axis] {
        Along::Same => None,
        Along::Dense => Some(place.to_string()),
        Along::Strided => Some(format!("{place} * {name}_strides.at[{axis}]")),
    };
    let start: Vec<String> =
        [name.clone()].into_iter().chain((0..BATCH).filter_map(|axis| step(axis, &format!("tile.b{axis}")))).collect();
    let of_tile = ["min(q_row, m - 1)", "min(q_col, n - 1)"];
    let steps: Vec<String> = (0..2).filter_map(|at| step(BATCH + at, of_tile[at])).collect();
    let far = if side == GradSide::Keys { BATCH } else { BATCH + 1 };
    let index = if steps.is_empty() { "0".to_string() } else { steps.join(" + ") };
    let read = loaded(o.dtype, &format!("{name}_from[{index}]"));
    context! {
        index => i + FACTORS,
        start => start.join(" + "),
        compute => compute_name(o.dtype),
        near => along[far] == Along::Same,
        read,
    }
}

fn arguments(kernel: &AttentionGradKernel) -> Vec<Arg> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    let strides = |of: ArgRole, rows: &str| {
        let name = of.tensor_name();
        let about = format!("elements of {name} between neighbours along the batch's axes, {rows} and elements");
        Arg::strides(of, AXES, about)
    };
    let factors = [
        ("batch x queries x head", "queries"),
        ("batch x keys x head", "keys"),
        ("batch x keys x value", "keys"),
        ("batch x queries x value: the gradient of the result", "queries"),
    ];
    let mut out = Vec::new();
    for (i, (about, rows)) in factors.into_iter().enumerate() {
        out.extend([Arg::read(i, of.dtype, about), strides(ArgRole::Read(i), rows)]);
    }
    let results = match kernel.side {
        GradSide::Queries => 0..1,
        GradSide::Keys => 1..3,
    };
    for i in results {
        let (about, rows) = factors[i];
        out.extend([Arg::written(i, of.dtype, about), strides(ArgRole::Written(i), rows)]);
    }
    out.extend(read(&of.inputs, FACTORS));
    out.extend(match kernel.side {
        GradSide::Queries => sizes(ArgRole::TiledRows, ArgRole::Named),
        GradSide::Keys => sizes(ArgRole::Named, ArgRole::TiledRows),
    });
    out.extend(masked_rows(kernel, t.rows, t.columns));
    out
}

/// The keys that queries attend to, or the queries that keys meet.
fn masked_rows(kernel: &AttentionGradKernel, rows: usize, columns: usize) -> Vec<Arg> {
    let mut out = masked(kernel.problem.intervals, rows, columns);
    if let (GradSide::Keys, Some(ranges)) = (kernel.side, out.first_mut()) {
        let about = format!(
            "for each {rows} keys the tiles of {columns} queries that attend to them, [first, end), and those that \
             hide nothing"
        );
        *ranges = Arg::memory(ArgRole::Ranges, ArgKind::Input(DType::I32), about);
    }
    out
}
