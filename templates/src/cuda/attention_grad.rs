//! Gradients of attention, by warps: for GPUs from Ampere on.
//!
//! In: an [`AttentionGradKernel`] whose tiling fits. Out: its source. Invariant: weights and slopes
//! are inlined functions of both products and of what the terms read, the same in both kernels.

use minijinja::{Value, context};

use super::attention::{AXES, inputs, masked, read, sizes};
use super::term::Functions;
use super::tiles::{OnTiles, Tiles};
use super::{Arg, ArgKind, CudaSource, EmitError, Geometry};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::attention_grad::{AttentionGradKernel, GradSide};

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
    let mut functions = Functions::new(program);
    let weight = OnTiles { term: &of.weight, pair: false, inputs: &of.inputs, factors: FACTORS };
    let slope = OnTiles { term: &of.slope, pair: true, ..weight };
    let copies = (kernel.parts() * t.columns / 2) as u64;
    let about_slope = ("slope", "The gradient of the product of a query and a key, from both products.");
    let mut bodies = vec![slope.function(&mut functions, about_slope, DType::F32, copies)?];
    if kernel.side == GradSide::Keys {
        let about = ("weight", "The weight of a query and a key, from their product.");
        bodies.push(weight.function(&mut functions, about, DType::F32, copies)?);
    }
    functions.need("axes");
    let (weight, slope) = (weight.formula(program), slope.formula(program));
    let both = "acc = in0 transpose(in1), acc1 = in3 transpose(in2)";
    let formula = match kernel.side {
        GradSide::Queries => format!("out0 = s in1, where s = {slope}, {both}"),
        GradSide::Keys => {
            format!("out1 = transpose(s) in0, out2 = transpose(w) in3, where s = {slope}, w = {weight}, {both}")
        }
    };
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
        GradSide::Keys => vec![
            store(1, of.head, head, rows[0], "o", "h_at"),
            store(2, of.value, value, rows[1], "o_value", "v_at"),
        ],
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
        inputs => inputs(&of.inputs, &of.along, FACTORS),
        stores,
    }
}

fn arguments(kernel: &AttentionGradKernel) -> Vec<Arg> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    let strides = |name: &str, rows: &str| {
        let about = format!("elements of {name} between neighbours along the batch's axes, {rows} and elements");
        Arg::named(format!("{name}_strides"), ArgKind::Sizes(AXES), about)
    };
    let factors = [
        ("batch x queries x head", "queries"),
        ("batch x keys x head", "keys"),
        ("batch x keys x value", "keys"),
        ("batch x queries x value: the gradient of the result", "queries"),
    ];
    let mut out = Vec::new();
    for (i, (about, rows)) in factors.into_iter().enumerate() {
        out.extend([Arg::read(i, of.dtype, about), strides(&format!("in{i}"), rows)]);
    }
    let results = match kernel.side {
        GradSide::Queries => 0..1,
        GradSide::Keys => 1..3,
    };
    for i in results {
        let (about, rows) = factors[i];
        out.extend([Arg::written(i, of.dtype, about), strides(&format!("out{i}"), rows)]);
    }
    out.extend(read(&of.inputs, FACTORS));
    out.extend(sizes());
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
        *ranges = Arg::named("ranges", ArgKind::Input(DType::I32), about);
    }
    out
}
