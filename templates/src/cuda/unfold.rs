//! The windows of an image as the rows of a matrix.
//!
//! In: an [`UnfoldKernel`]. Out: its source. Invariant: all sizes but the number of windows are
//! constants of the source; elements are moved, not computed.

use minijinja::context;

use super::pointwise::declarations;
use super::term::Functions;
use super::{
    Arg, CudaSource, EmitError, Entry, Geometry, Header, POINTWISE_BLOCK, common, identifier, render, storage,
};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{UnfoldKernel, WindowAxis};

/// Rows of the image that a thread reads ahead: elements that it may keep.
const AHEAD: usize = 64;

pub(super) fn emit(program: &Program, kernel: &UnfoldKernel) -> Result<CudaSource, EmitError> {
    let [rows, columns] = kernel.axes;
    if [rows, columns].iter().any(|a| a.out == 0 || a.image == 0 || a.size == 0) {
        return Err(EmitError::Malformed(format!("kernel `{}`: windows of nothing", kernel.name)));
    }
    let (functions, vector) = (Functions::new(program), kernel.vector());
    let args = vec![
        Arg::read(0, kernel.dtype, "planes x rows x columns"),
        Arg::written(0, kernel.dtype, "planes x places in a window x windows"),
        Arg::row_length("elements of the matrix"),
    ];
    let entries = vec![Entry {
        name: identifier("hypatia_", &kernel.name),
        geometry: Geometry::Flat { block: POINTWISE_BLOCK, vector: (vector * rows.size * columns.size) as u32 },
    }];
    let formula = vec!["out0[p, i, j, y, x] = in0[p, row i of window y, column j of window x], or 0".to_string()];
    let header = Header {
        name: &kernel.name,
        kind: "windows as rows of a matrix",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let both = |of: fn(&WindowAxis) -> usize| vec![of(&rows), of(&columns)];
    let ctx = context! {
        entry => entries[0].name.clone(),
        block => POINTWISE_BLOCK,
        type => storage(kernel.dtype),
        args => declarations(&args, &[]),
        image => both(|a| a.image),
        out => both(|a| a.out),
        size => both(|a| a.size),
        stride => both(|a| a.stride),
        dilation => both(|a| a.dilation),
        before => both(|a| a.before),
        vector => vector,
        span => kernel.span(),
        keeps_rows => kernel.keeps_rows(),
        rows_ahead => (AHEAD / kernel.span().max(1)).clamp(1, rows.size),
        ..common(header, &functions, [kernel.dtype].into_iter(), &[])?
    };
    let text = render("unfold.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}
