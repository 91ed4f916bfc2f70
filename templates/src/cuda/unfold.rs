//! The windows of an image as the rows of a matrix.
//!
//! In: an [`UnfoldKernel`]. Out: its source. Invariant: all sizes but the number of windows are
//! constants of the source; elements are moved, not computed.

use minijinja::context;

use super::pointwise::declarations;
use super::term::Functions;
use super::windows::along;
use super::{
    Arg, CudaSource, EmitError, Entry, Geometry, Header, POINTWISE_BLOCK, common, identifier, render, storage,
};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::UnfoldKernel;

/// Rows of the image that a thread reads ahead: elements that it may keep.
const AHEAD: usize = 64;
/// Accesses of a thread where the channels lie last.
const MOVES: usize = 4;

pub(super) fn emit(program: &Program, kernel: &UnfoldKernel) -> Result<CudaSource, EmitError> {
    let [rows, columns] = kernel.axes;
    if kernel.channels == Some(0) || [rows, columns].iter().any(|a| a.out == 0 || a.image == 0 || a.size == 0) {
        return Err(EmitError::Malformed(format!("kernel `{}`: windows of nothing", kernel.name)));
    }
    let (functions, vector, last) = (Functions::new(program), kernel.vector(), kernel.channels.is_some());
    // A thread stores an access for each place in a window; with the channels last, a few.
    let stores = if last { MOVES } else { rows.size * columns.size };
    let args = vec![
        Arg::read(0, kernel.dtype, if last { "images x rows x columns x channels" } else { "planes x rows x columns" }),
        Arg::written(
            0,
            kernel.dtype,
            if last { "windows x places in a window x channels" } else { "planes x places in a window x windows" },
        ),
        Arg::row_length("elements of the matrix"),
    ];
    let entries = vec![Entry {
        name: identifier("hypatia_", &kernel.name),
        geometry: Geometry::Flat { block: POINTWISE_BLOCK, vector: (vector * stores) as u32 },
    }];
    let of_plane = "out0[p, i, j, y, x] = in0[p, row i of window y, column j of window x], or 0";
    let of_channels = "out0[p, y, x, i, j, c] = in0[p, row i of window y, column j of window x, c], or 0";
    let formula = vec![if last { of_channels } else { of_plane }.to_string()];
    let header = Header {
        name: &kernel.name,
        kind: "windows as rows of a matrix",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let ctx = context! {
        entry => entries[0].name.clone(),
        block => POINTWISE_BLOCK,
        type => storage(kernel.dtype),
        args => declarations(&args, &[]),
        vector => vector,
        channels => kernel.channels,
        span => kernel.span(),
        keeps_rows => kernel.keeps_rows(),
        rows_ahead => (AHEAD / kernel.span().max(1)).clamp(1, rows.size),
        ..context! { ..along(kernel.axes), ..common(header, &functions, [kernel.dtype].into_iter(), &[])? }
    };
    let template = if last { "unfold_last.cu.j2" } else { "unfold.cu.j2" };
    let text = render(template, &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}
