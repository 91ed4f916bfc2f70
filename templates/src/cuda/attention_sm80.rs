//! Attention in tiles that stores no scores, by warps: for GPUs from Ampere on.
//!
//! In: a [`WarpAttention`] whose tiling fits. Out: its source. Invariant: the score is the same
//! function as in the template for Hopper.

use minijinja::context;

use super::attention::{AXES, FACTORS, Scores, flag, lse, malformed, masked, read, read_behind, section, sizes};
use super::tiles::Tiles;
use super::{Arg, ArgRole, CudaSource, EmitError, Geometry};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::attention_sm80::WarpAttention;

pub(super) fn emit(program: &Program, kernel: &WarpAttention) -> Result<CudaSource, EmitError> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    if !kernel.fits() {
        return Err(malformed(of, "its tiles do not fit into shared memory or registers"));
    }
    // The score is called for tiles that hide keys, and for those that hide none.
    let mut scores = Scores::of(program, of, kernel.row_tiles() * t.keys, true)?;
    scores.functions.need("axes");
    let tiles = Tiles {
        name: &of.name,
        doc: &of.doc,
        kind: "tiled attention",
        formula: scores.formula,
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: t.rows as u32,
            columns: of.padded_value() as u32,
            shared: kernel.shared() as u32,
        },
        bodies: scores.bodies,
        template: "attention_sm80.cu.j2",
    };
    let [.., out] = kernel.units;
    let own = context! {
        unit => of.dtype.name(),
        size => of.dtype.size(),
        tile_m => t.rows,
        tile_n => t.keys,
        warps => t.warps,
        stages => t.stages,
        head_size => of.head,
        value_size => of.value,
        rows => kernel.row_bytes(),
        units => kernel.units,
        vector => out / of.dtype.size(),
        blocks => kernel.blocks(),
        keeps_queries => flag(kernel.keeps_queries()),
        split => false,
        ..scores.values
    };
    tiles.render(&scores.functions, own)
}

fn arguments(kernel: &WarpAttention) -> Vec<Arg> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    let strides = |of: ArgRole, rows: &str| {
        let name = of.tensor_name();
        let about = format!("elements of {name} between neighbours along the batch's axes, {rows} and elements");
        Arg::strides(of, AXES, about)
    };
    let factors =
        [("batch x queries x head", "queries"), ("batch x keys x head", "keys"), ("batch x keys x value", "keys")];
    let mut out = Vec::new();
    for (i, (about, rows)) in factors.into_iter().enumerate().take(FACTORS) {
        out.extend([Arg::read(i, of.dtype, about), strides(ArgRole::Read(i), rows)]);
    }
    out.extend([Arg::written(0, of.dtype, "batch x queries x value"), strides(ArgRole::Written(0), "queries")]);
    out.extend(lse(of));
    out.extend(read(&of.inputs, FACTORS));
    out.extend(read_behind(of));
    out.extend(sizes(ArgRole::TiledRows, ArgRole::Named));
    out.push(section());
    out.extend(masked(of.intervals, t.rows, t.keys));
    out
}
