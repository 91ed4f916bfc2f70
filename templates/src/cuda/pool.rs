//! Windows of an image whose channels lie last, each channel reduced.
//!
//! In: a [`PoolKernel`] that fits. Out: its source. Invariant: all sizes but the number of images
//! are constants of the source; numbers of 16 bits are reduced in f32 and rounded once.

use minijinja::context;

use super::expr::{Expr, identity_literal};
use super::passes::combine;
use super::pointwise::declarations;
use super::term::{Functions, compute_name, widen};
use super::windows::along;
use super::{
    Arg, CudaSource, EmitError, Entry, Geometry, Header, POINTWISE_BLOCK, common, identifier, render, storage,
};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{PoolKernel, Reduction};

/// The most elements of a window whose rows are all unrolled.
const UNROLLED: usize = 25;

pub(super) fn emit(program: &Program, kernel: &PoolKernel) -> Result<CudaSource, EmitError> {
    if !PoolKernel::fits(kernel.axes, kernel.channels, kernel.dtype, kernel.kind) {
        return Err(EmitError::Malformed(format!("kernel `{}`: windows that do not fit", kernel.name)));
    }
    let [rows, columns] = kernel.axes;
    let (mut functions, acc) = (Functions::new(program), kernel.dtype.compute());
    let places = rows.size * columns.size;
    let whole = "images x rows x columns x channels";
    let args = vec![
        Arg::read(0, kernel.dtype, whole),
        Arg::written(0, kernel.dtype, whole),
        Arg::row_length("elements of the result"),
    ];
    let entries = vec![Entry {
        name: identifier("hypatia_", &kernel.name),
        geometry: Geometry::Flat { block: POINTWISE_BLOCK, vector: (kernel.vector() * kernel.across()) as u32 },
    }];
    let formula = vec![format!("out0[p, y, x, c] = the {} of window [y, x] of in0[p, .., c]", kernel.kind.name())];
    let header = Header {
        name: &kernel.name,
        kind: "windows of each channel, reduced",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let start = match kernel.kind {
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
        Reduction::Sum | Reduction::Mean | Reduction::Prod => 0.0,
    };
    let combined = combine(&mut functions, kernel.kind, acc, "before", "element");
    let mean = kernel.kind == Reduction::Mean;
    let narrowed = functions.store(&Expr::primary("result", acc), kernel.dtype);
    let ctx = context! {
        entry => entries[0].name.clone(),
        block => POINTWISE_BLOCK,
        type => storage(kernel.dtype),
        acc => compute_name(acc),
        args => declarations(&args, &[]),
        vector => kernel.vector(),
        channels => kernel.channels,
        across => kernel.across(),
        span => kernel.span(),
        rows_unrolled => if places <= UNROLLED { rows.size } else { 1 },
        identity => identity_literal(start, acc)?,
        widened => widen("pack.v[k]", kernel.dtype),
        combined => combined,
        finished => if mean { format!("results[x][k] / {places}") } else { "results[x][k]".into() },
        narrowed => narrowed,
        ..context! { ..along(kernel.axes), ..common(header, &functions, [kernel.dtype].into_iter(), &[])? }
    };
    let text = render("pool_last.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}
